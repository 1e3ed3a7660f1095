//! Moonring for hosts that are not in Rust. The header `include/moonring.h` is generated from here; `docs/c.md` is the guide.
//!
//! It is the hot path's interface and no more: an engine from JSON over memory of the host's, pairs, ops, completions, an eventfd, the end.

#![allow(non_camel_case_types)]

mod engine;
mod op;
mod pair;
mod status;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use engine::*;
pub use op::*;
pub use pair::*;
pub use status::moonring_status;
use status::moonring_status::*;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Why a call failed: what it returns, and what `moonring_last_error` says.
struct Failure {
    status: moonring_status,
    text: String,
}

fn failure(status: moonring_status, text: impl Display) -> Failure {
    let text = text.to_string();
    Failure { status, text }
}

/// What has a status of its own.
impl<E: Into<moonring_status> + Display> From<E> for Failure {
    fn from(error: E) -> Self {
        let text = error.to_string();
        failure(error.into(), text)
    }
}

/// An argument that must not be.
struct Null(&'static str);

impl Display for Null {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is NULL", self.0)
    }
}

impl From<Null> for moonring_status {
    fn from(_: Null) -> Self {
        MOONRING_BAD_ARGUMENT
    }
}

/// Runs what must not unwind into C, and keeps why it failed.
fn guarded(call: impl FnOnce() -> Result<(), Failure>) -> moonring_status {
    let ended = catch_unwind(AssertUnwindSafe(call));
    let panicked = |_| Err(failure(MOONRING_PANICKED, "Moonring panicked: a bug"));
    let Err(Failure { status, text }) = ended.unwrap_or_else(panicked) else {
        return MOONRING_OK;
    };
    let text = text.replace('\0', "");
    let text = CString::new(text).unwrap_or_default();
    // A thread that ends has no place for it.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
    status
}

/// Why the last call of this thread failed, as text: valid until its next call. Empty if none failed.
#[unsafe(no_mangle)]
pub extern "C" fn moonring_last_error() -> *const c_char {
    LAST_ERROR
        .try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// The name of a status, as `not_found`; the names of ops' errors are those of the statistics. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn moonring_status_name(status: c_int) -> *const c_char {
    moonring_status::name_of(status).as_ptr()
}
