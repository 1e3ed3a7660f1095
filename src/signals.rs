//! The host's signals are the host's: none is handled on a thread of ours.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Blocks signals on the calling thread until it is dropped. Threads that are started meanwhile are born with them
/// blocked, and stay so; what comes for the calling thread is delivered when its own mask is back.
pub(crate) struct BlockedSignals {
    before: libc::sigset_t,
    /// It is about the thread that made it.
    _one_thread: PhantomData<*const ()>,
}

impl BlockedSignals {
    pub(crate) fn new() -> Self {
        let mut set = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: plain calls on local sets: `sigfillset` makes the one whole, `pthread_sigmask` the other. Signals that a
        // fault raises on the thread itself stay unblocked, as blocking them is undefined.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            for fault in [
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGFPE,
                libc::SIGILL,
                libc::SIGTRAP,
                libc::SIGABRT,
                libc::SIGSYS,
            ] {
                libc::sigdelset(set.as_mut_ptr(), fault);
            }
            // Can't fail with these arguments.
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            Self {
                before: before.assume_init(),
                _one_thread: PhantomData,
            }
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the mask is the one that this thread had; the guard is not Send.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
