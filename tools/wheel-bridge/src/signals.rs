//! The host's signal mask and handlers, kept.

use std::mem::MaybeUninit;
use std::ptr;

/// Puts the calling thread's mask back when dropped: loading the wheel and setting a client up run foreign code.
pub struct MaskKept(Option<libc::sigset_t>);

impl MaskKept {
    pub fn new() -> MaskKept {
        let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: only reads the mask, into `mask`, of which zeroes are a valid value.
        let (code, mask) = unsafe {
            (
                libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr()),
                mask.assume_init(),
            )
        };
        MaskKept((code == 0).then_some(mask))
    }
}

impl Drop for MaskKept {
    fn drop(&mut self) {
        if let Some(mask) = &self.0 {
            // SAFETY: a mask that this thread had.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
        }
    }
}

/// Puts the process's signal handlers back when dropped, where they were changed.
///
/// Loading the wheel loads a Go library (for etcd), whose run-time takes SIGBUS, SIGFPE, SIGSEGV and SIGURG. It works
/// without: the first three tell it of faults, the last makes its threads yield sooner.
///
/// A handler that another thread of the host sets in this very time is lost; so this is held for the loading only, never
/// for a set-up, which can take minutes.
pub struct HandlersKept([Option<libc::sigaction>; 32]);

impl HandlersKept {
    pub fn new() -> HandlersKept {
        HandlersKept(std::array::from_fn(|signal| handler(signal as libc::c_int)))
    }
}

impl Drop for HandlersKept {
    fn drop(&mut self) {
        for (signal, before) in (0..).zip(&self.0) {
            if let (Some(before), Some(now)) = (before, handler(signal))
                && before.sa_sigaction != now.sa_sigaction
            {
                // SAFETY: a handler that the process had.
                unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
            }
        }
    }
}

/// `None` for what is no signal.
fn handler(signal: libc::c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only reads, into `action`, of which zeroes are a valid value.
    let (code, action) = unsafe {
        (
            libc::sigaction(signal, ptr::null(), action.as_mut_ptr()),
            action.assume_init(),
        )
    };
    (code == 0).then_some(action)
}
