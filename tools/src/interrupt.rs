//! Ctrl-C: the first ends a run in good order, the second ends the process.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::cli::Failure;

/// What a shell reports of a process that ended by Ctrl-C, and what a run returns that it ended.
pub const EXIT_CODE: u8 = 130;

/// How long a wait goes on after Ctrl-C, at most.
pub const NAP: Duration = Duration::from_millis(100);

static PRESSED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_interrupt(_: libc::c_int) {
    // Relaxed: a flag to stop, nothing is read because of it. All that a handler may do.
    PRESSED.store(true, Ordering::Relaxed);
}

/// From now on a first Ctrl-C is only noted. A second one ends the process, as ever.
pub fn listen() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeroes are a valid sigaction; the handler only writes an atomic; `listen` is called before there are threads
    // that could set another.
    unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = on_interrupt as *const () as usize;
        // The default comes back with the first. Calls under way go on: they end by themselves, or the run looks.
        action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGINT, action, ptr::null_mut());
    }
}

/// Whether the run shall end.
#[inline]
pub fn pressed() -> bool {
    PRESSED.load(Ordering::Relaxed)
}

/// How a run ends that went well until here.
///
/// # Errors
/// It was interrupted.
pub fn ended() -> Result<(), Failure> {
    match pressed() {
        false => Ok(()),
        true => Err(Failure {
            what: "interrupted: the report is of what was done before".into(),
            code: EXIT_CODE,
        }),
    }
}

/// Sleeps until then, or Ctrl-C.
pub fn sleep_until(then: Instant) {
    while !pressed() {
        let left = then.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(NAP));
    }
}
