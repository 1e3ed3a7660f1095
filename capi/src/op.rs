//! What is asked for, and how it ended, as C has them.

use std::ffi::c_char;
use std::time::Duration;

use moonring::{Completion, Done, OpError, OpKind, StoreOutcome, Submission};

use crate::moonring_status;
use crate::moonring_status::*;

/// Op: is an object with this key there?
pub const MOONRING_LOOKUP: u8 = 0;
/// Op: read an object into the buffer.
pub const MOONRING_RETRIEVE: u8 = 1;
/// Op: write an object from the buffer.
pub const MOONRING_STORE: u8 = 2;
/// Op: remove an object.
pub const MOONRING_DELETE: u8 = 3;

/// Flag of a delete: also a leased object.
pub const MOONRING_FORCE: u8 = 1;
/// Flag of a retrieve: an object of another length than the buffer is an error.
pub const MOONRING_EXACT: u8 = 2;
/// Flag: the op can wait.
pub const MOONRING_BACKGROUND: u8 = 4;

/// Flag of a completion: a release notice follows; until then the buffer belongs to the engine.
pub const MOONRING_MORE: u8 = 1;
/// Flag of a completion: it is that notice. The op ended before, with the same status.
pub const MOONRING_RELEASE: u8 = 2;

/// `value` of a store that went well: new, already there, or being written by another; Mooncake can't tell.
pub const MOONRING_ACCEPTED: u64 = 0;
/// `value` of a store that went well: the object is new.
pub const MOONRING_STORED: u64 = 1;
/// `value` of a store that went well: an object was there, and stays as it was.
pub const MOONRING_ALREADY_THERE: u64 = 2;

/// What is asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moonring_op {
    /// `MOONRING_LOOKUP`, `_RETRIEVE`, `_STORE` or `_DELETE`.
    pub kind: u8,
    /// `MOONRING_FORCE`, `_EXACT`, `_BACKGROUND`.
    pub flags: u8,
    /// Milliseconds that it may take; 0: as configured (`timeout_ms`).
    pub timeout_ms: u32,
    /// 1 to `max_key` bytes without NUL. They are copied.
    pub key: *const c_char,
    /// Length of the key in bytes, without a NUL.
    pub key_len: usize,
    /// Of retrieves and stores: in the engine's memory, or anywhere if the store needs no registration (tcp).
    pub buffer: *mut u8,
    /// Length of the buffer in bytes.
    pub buffer_len: usize,
    /// Comes back with the completion.
    pub user_data: u64,
}

/// How an op ended.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct moonring_completion {
    /// That of the op.
    pub user_data: u64,
    /// A lookup: 1 or 0. A retrieve: the object's true length in bytes. A store: `MOONRING_ACCEPTED`, `_STORED` or
    /// `_ALREADY_THERE`. With the status `MOONRING_STORE_CODE`: the store's code, sign-extended.
    pub value: u64,
    /// `MOONRING_OK`, or why not. For a lookup any error means unknown, never "no".
    pub status: moonring_status,
    /// That of the op.
    pub kind: u8,
    /// `MOONRING_MORE`, `MOONRING_RELEASE`.
    pub flags: u8,
}

/// # Safety
/// As [`moonring_submit`](crate::moonring_submit) says of an op.
pub(crate) unsafe fn submission(op: &moonring_op) -> Result<Submission<'_>, &'static str> {
    if op.key.is_null() || (op.buffer.is_null() && op.buffer_len > 0) {
        return Err("key or buffer is NULL");
    }
    // SAFETY: the caller's: so many bytes, as long as the op lives.
    let key = unsafe { std::slice::from_raw_parts(op.key.cast::<u8>(), op.key_len) };
    let (buffer, len) = (op.buffer, op.buffer_len);
    let mut submission = match op.kind {
        MOONRING_LOOKUP => Submission::lookup(key),
        // SAFETY: the caller's: it is left to the engine until the op's release.
        MOONRING_RETRIEVE => unsafe { Submission::retrieve_foreign(key, buffer, len) },
        // SAFETY: as above.
        MOONRING_STORE => unsafe { Submission::store_foreign(key, buffer, len) },
        MOONRING_DELETE => Submission::delete(key),
        _ => return Err("kind: want MOONRING_LOOKUP, _RETRIEVE, _STORE or _DELETE"),
    };
    if op.flags & MOONRING_FORCE != 0 {
        submission = submission.force();
    }
    if op.flags & MOONRING_EXACT != 0 {
        submission = submission.exact();
    }
    if op.flags & MOONRING_BACKGROUND != 0 {
        submission = submission.background();
    }
    if op.timeout_ms > 0 {
        submission = submission.timeout(Some(Duration::from_millis(op.timeout_ms.into())));
    }
    Ok(submission.user_data(op.user_data))
}

pub(crate) fn told(completion: &Completion) -> moonring_completion {
    let (status, value) = match completion.result {
        Ok(Done::Present) => (MOONRING_OK, 1),
        Ok(Done::Absent | Done::Deleted) => (MOONRING_OK, 0),
        Ok(Done::Retrieved(len)) => (MOONRING_OK, len),
        Ok(Done::Store(StoreOutcome::Stored)) => (MOONRING_OK, MOONRING_STORED),
        Ok(Done::Store(StoreOutcome::AlreadyThere)) => (MOONRING_OK, MOONRING_ALREADY_THERE),
        Ok(Done::Store(_)) => (MOONRING_OK, MOONRING_ACCEPTED),
        Ok(_) => (MOONRING_OTHER, 0),
        Err(OpError::Store(code)) => (MOONRING_STORE_CODE, i64::from(code) as u64),
        Err(error) => (error.into(), 0),
    };
    moonring_completion {
        user_data: completion.user_data,
        value,
        status,
        kind: match completion.op {
            OpKind::Lookup => MOONRING_LOOKUP,
            OpKind::Retrieve => MOONRING_RETRIEVE,
            OpKind::Store => MOONRING_STORE,
            OpKind::Delete => MOONRING_DELETE,
        },
        flags: u8::from(completion.more) * MOONRING_MORE
            + u8::from(completion.release) * MOONRING_RELEASE,
    }
}
