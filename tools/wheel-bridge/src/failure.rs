//! What goes wrong inside the bridge, and how the caller learns it: a code, and a sentence for people.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use pyo3::PyErr;

/// Mooncake's code for a failure that has none of its own.
pub const INTERNAL: c_int = -1;
/// Mooncake's INVALID_PARAMS.
pub const INVALID_PARAMS: c_int = -600;

/// A call that failed as a whole.
#[derive(Debug)]
pub struct Failure {
    pub code: c_int,
    pub reason: String,
}

impl Failure {
    pub fn new(code: c_int, reason: impl Into<String>) -> Failure {
        let reason = reason.into();
        Failure { code, reason }
    }

    pub fn internal(reason: impl Into<String>) -> Failure {
        Failure::new(INTERNAL, reason)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Failure {
        Failure::internal(error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs a call from C: whatever happens in it, nothing unwinds. `answer` makes a failure's code the caller's result.
pub fn guarded<T>(answer: impl FnOnce(c_int) -> T, call: impl FnOnce() -> Result<T, Failure>) -> T {
    remember(None);
    // What a panic may leave half done is dropped by it, or is Python's own.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => {
            remember(Some(failure.reason));
            answer(failure.code)
        }
        Err(panic) => {
            remember(Some(format!("panic in the bridge: {}", text_of(&*panic))));
            answer(INTERNAL)
        }
    }
}

/// The reason of this thread's last call, NULL if it went well. Valid until the thread's next call.
pub fn last() -> *const c_char {
    let read = LAST.try_with(|last| match &*last.borrow() {
        Some(text) => text.as_ptr(),
        None => ptr::null(),
    });
    read.unwrap_or(ptr::null())
}

fn remember(reason: Option<String>) {
    let text = reason.map(|reason| CString::new(reason.replace('\0', "\\0")).unwrap_or_default());
    // A thread that is ending has nobody left to tell.
    let _ = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        if last.is_some() || text.is_some() {
            *last = text;
        }
    });
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("of no text")
}
