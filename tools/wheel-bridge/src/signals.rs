//! The calling thread's signal mask, kept.

use std::mem::MaybeUninit;
use std::ptr;

/// Puts the mask back when dropped: loading the wheel and setting a client up run foreign code that may change it.
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
