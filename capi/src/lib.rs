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
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use engine::*;
pub use op::*;
pub use pair::*;
pub use status::moonring_status;
use status::moonring_status::*;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

fn fail(status: impl Into<moonring_status>, text: impl Display) -> moonring_status {
    let text: Vec<u8> = text
        .to_string()
        .into_bytes()
        .into_iter()
        .filter(|&byte| byte != 0)
        .collect();
    let text = CString::new(text).unwrap_or_default();
    // A thread that ends has no place for it.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
    status.into()
}

/// Runs what must not unwind into C.
fn guarded(call: impl FnOnce() -> moonring_status) -> moonring_status {
    let ended = catch_unwind(AssertUnwindSafe(call));
    ended.unwrap_or_else(|_| fail(MOONRING_PANICKED, "Moonring panicked: a bug"))
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
