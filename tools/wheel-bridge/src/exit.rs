//! The end of the process, with calls in progress.
//!
//! Mooncake tears its clients down in an exit handler, and crashes when a call is in one of them. So once a client was set
//! up, a handler of ours runs before Mooncake's: it turns new calls away and waits for those in progress. If some still hang
//! after a while, the process ends at once, with the host's exit code, and the handlers that are left are not run.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// How long the exit waits for calls in progress. A call can hang for a minute; an exit should take seconds.
const PATIENCE: Duration = Duration::from_secs(3);

/// Calls inside of Mooncake. Pairs with `ENDING`: a call counts itself and then looks at `ENDING`, the exit sets `ENDING`
/// and then looks here; all SeqCst, so at least one of them sees the other.
static CALLS: AtomicUsize = AtomicUsize::new(0);
static ENDING: AtomicBool = AtomicBool::new(false);

/// A call in progress.
pub struct InCall(());

impl InCall {
    pub fn enter() -> Result<InCall, Failure> {
        CALLS.fetch_add(1, Ordering::SeqCst);
        let call = InCall(());
        if ENDING.load(Ordering::SeqCst) {
            return Err(Failure::internal("the process is ending"));
        }
        Ok(call)
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        // The exit's look at 0 comes after what the call did.
        CALLS.fetch_sub(1, Ordering::Release);
    }
}

/// Called after a set-up. Handlers run in reverse order, and Mooncake registers its own in the first set-up.
pub fn watch() {
    static REGISTERED: Once = Once::new();
    // SAFETY: the handler is code that is never unloaded (`build.rs`).
    REGISTERED.call_once(|| unsafe {
        on_exit(at_exit, ptr::null_mut());
    });
}

unsafe extern "C" {
    /// glibc's; libc has no declaration.
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

extern "C" fn at_exit(code: c_int, _: *mut c_void) {
    ENDING.store(true, Ordering::SeqCst);
    let end = Instant::now() + PATIENCE;
    while CALLS.load(Ordering::SeqCst) > 0 {
        if Instant::now() >= end {
            // SAFETY: flushes the host's output, ends the process.
            unsafe {
                libc::fflush(ptr::null_mut());
                libc::_exit(code);
            }
        }
        thread::sleep(Duration::from_millis(2));
    }
}
