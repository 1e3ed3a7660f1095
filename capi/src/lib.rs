//! Moonring for hosts that are not in Rust. The header `include/moonring.h` is generated from here; `docs/c.md` is the guide.
//!
//! It is the hot path's interface and no more: an engine from JSON over memory of the host's, pairs, ops, completions, an eventfd, the end.

#![allow(non_camel_case_types)]

mod status;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Display;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use moonring::store::{self, OpenOptions};
use moonring::{
    Completion, Done, Engine, EventFd, L2Adapter, OpKind, Pair, Region, Shutdown, StoreOutcome,
    Submission,
};

pub use status::moonring_status;
use status::moonring_status::*;

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

/// A running engine. Its functions may be called from any thread.
pub struct moonring_engine {
    engine: Engine,
}

/// One thread's own rings. By one thread at a time.
pub struct moonring_pair {
    pair: Pair,
    event: Option<EventFd>,
}

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

/// How an engine ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct moonring_shutdown_report {
    /// Ops that had their completion since the start.
    pub completed: u64,
    /// Those of them that ended as shut down.
    pub cancelled: u64,
    /// Ops in store calls that have not returned. Over 0: the engine's memory must stay mapped for as long as the process lives.
    pub unreleased: u64,
    /// Pieces of the memory that the store did not unregister. Over 0: the same.
    pub not_unregistered: u64,
}

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

/// Opens the store and starts an engine, over memory of the host's that buffers will lie in.
///
/// `json`: LMCache's `--l2-adapter`, see docs/configuration.md. `memory` may be NULL (with `memory_len` 0) for a store that needs no
/// registration. It stays the host's, who must keep it mapped until `moonring_shutdown` reports `unreleased` and
/// `not_unregistered` 0, else for as long as the process lives.
///
/// # Safety
/// `json` must end in NUL; `memory` must be NULL, or `memory_len` mapped, readable and writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_open(
    json: *const c_char,
    memory: *mut u8,
    memory_len: usize,
    engine: *mut *mut moonring_engine,
) -> moonring_status {
    guarded(|| {
        if json.is_null() || engine.is_null() || memory.is_null() != (memory_len == 0) {
            return fail(
                MOONRING_BAD_ARGUMENT,
                "json, memory or engine is NULL, or memory has no length",
            );
        }
        // SAFETY: the caller's: it ends in NUL.
        let json = unsafe { CStr::from_ptr(json) };
        let json = match json.to_str() {
            Ok(json) => json,
            Err(error) => return fail(MOONRING_BAD_CONFIG, format_args!("json: {error}")),
        };
        let adapter = match L2Adapter::parse(json) {
            Ok(adapter) => adapter,
            Err(error) => return fail(MOONRING_BAD_CONFIG, error),
        };
        let mut options = OpenOptions::new(&adapter.engine);
        let mut region = None;
        if !memory.is_null() {
            options = options.region(memory, memory_len);
            // SAFETY: the caller's: mapped for as long as the engine may use it. The `()` keeps nothing.
            region = match unsafe { Region::wrap(memory, memory_len, ()) } {
                Ok(region) => Some(region),
                Err(error) => return fail(MOONRING_BAD_ARGUMENT, error),
            };
        }
        let store = match store::open_with(&adapter.store, &options) {
            Ok(opened) => opened.store,
            Err(error) => return fail(MOONRING_OPEN_FAILED, error),
        };
        let warnings = adapter.warnings().to_vec();
        let mut builder = Engine::builder(store)
            .config(adapter.engine)
            .warnings(warnings);
        if let Some(region) = region {
            builder = builder.region(region);
        }
        match builder.start() {
            // SAFETY: the caller's: a place for a pointer.
            Ok(started) => unsafe {
                engine.write(Box::into_raw(Box::new(moonring_engine { engine: started })))
            },
            Err(error) => return fail(MOONRING_START_FAILED, error),
        }
        MOONRING_OK
    })
}

/// Stops intake, executes (`drain` not 0) or cancels what is queued, and waits for store calls under way, `limit_ms` at most.
/// `report` may be NULL. Harmless when called again.
///
/// # Safety
/// `engine` must be one that was opened and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_shutdown(
    engine: *const moonring_engine,
    drain: c_int,
    limit_ms: u32,
    report: *mut moonring_shutdown_report,
) -> moonring_status {
    guarded(|| {
        // SAFETY: the caller's.
        let Some(engine) = (unsafe { engine.as_ref() }) else {
            return fail(MOONRING_BAD_ARGUMENT, "engine is NULL");
        };
        let mode = if drain != 0 {
            Shutdown::Drain
        } else {
            Shutdown::Cancel
        };
        match engine
            .engine
            .shutdown(mode, Duration::from_millis(limit_ms.into()))
        {
            Ok(ended) => {
                let told = moonring_shutdown_report {
                    completed: ended.completed,
                    cancelled: ended.cancelled,
                    unreleased: ended.in_flight,
                    not_unregistered: ended.not_unregistered.len() as u64,
                };
                // SAFETY: the caller's: NULL, or a place for it.
                if let Some(report) = unsafe { report.as_mut() } {
                    *report = told;
                }
                MOONRING_OK
            }
            Err(error) => fail(error, error),
        }
    })
}

/// Frees the handle; an engine that was not shut down is, with what is queued cancelled, in 5 s at most. NULL is fine.
///
/// # Safety
/// `engine` must be one that was opened and not closed; nobody uses it any more. Pairs may outlive it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_close(engine: *mut moonring_engine) {
    guarded(|| {
        if !engine.is_null() {
            // SAFETY: the caller's: made by `moonring_open`, and this is its end.
            drop(unsafe { Box::from_raw(engine) });
        }
        MOONRING_OK
    });
}

/// Rings for one thread, with at most `depth` ops in flight.
///
/// # Safety
/// `engine` must be one that was opened and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_pair_open(
    engine: *const moonring_engine,
    depth: usize,
    pair: *mut *mut moonring_pair,
) -> moonring_status {
    guarded(|| {
        // SAFETY: the caller's.
        let Some(engine) = (unsafe { engine.as_ref() }).filter(|_| !pair.is_null()) else {
            return fail(MOONRING_BAD_ARGUMENT, "engine or pair is NULL");
        };
        match engine.engine.pair(depth) {
            Ok(opened) => {
                let opened = moonring_pair {
                    pair: opened,
                    event: None,
                };
                // SAFETY: the caller's: a place for a pointer.
                unsafe { pair.write(Box::into_raw(Box::new(opened))) };
                MOONRING_OK
            }
            Err(error) => fail(error, error),
        }
    })
}

/// Frees a pair. Its ops go on; nobody hears of their ends, so keep their buffers until the engine is shut down. NULL is fine.
///
/// # Safety
/// `pair` must be one that was opened and not closed; nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_pair_close(pair: *mut moonring_pair) {
    guarded(|| {
        if !pair.is_null() {
            // SAFETY: the caller's: made by `moonring_pair_open`, and this is its end.
            drop(unsafe { Box::from_raw(pair) });
        }
        MOONRING_OK
    });
}

/// Submits ops by one publication. The first that is refused ends it: the status tells why, and `accepted` how many before it
/// were taken in. Those end with one completion each, and one release notice if that had `MOONRING_MORE`.
///
/// # Safety
/// `pair` must be open, and used by this thread alone; `ops` has `n` ops whose keys and buffers are as they say. From now until
/// its release nobody else may access the buffer of a retrieve, nor write that of a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_submit(
    pair: *mut moonring_pair,
    ops: *const moonring_op,
    n: usize,
    accepted: *mut usize,
) -> moonring_status {
    guarded(|| {
        // SAFETY: the caller's: one thread alone has it.
        let pair = unsafe { pair.as_mut() };
        // SAFETY: the caller's.
        let accepted = unsafe { accepted.as_mut() };
        let (Some(pair), Some(accepted), false) = (pair, accepted, ops.is_null()) else {
            return fail(MOONRING_BAD_ARGUMENT, "pair, ops or accepted is NULL");
        };
        *accepted = 0;
        // SAFETY: the caller's: `n` ops.
        let ops = unsafe { std::slice::from_raw_parts(ops, n) };
        let mut batch = pair.pair.batch();
        for op in ops {
            // SAFETY: the caller's: key and buffer are as the op says.
            let submission = match unsafe { submission(op) } {
                Ok(submission) => submission,
                Err(why) => return fail(MOONRING_BAD_OP, why),
            };
            if let Err(refused) = batch.push(submission) {
                return fail(refused.reason, refused.reason);
            }
            *accepted += 1;
        }
        batch.publish();
        MOONRING_OK
    })
}

/// # Safety
/// As [`moonring_submit`] says of an op.
unsafe fn submission(op: &moonring_op) -> Result<Submission<'_>, &'static str> {
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

/// Reaps up to `n` completions, and returns how many. Never waits.
///
/// # Safety
/// `pair` must be open, and used by this thread alone; `completions` has room for `n`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_poll(
    pair: *mut moonring_pair,
    completions: *mut moonring_completion,
    n: usize,
) -> usize {
    let mut reaped = 0;
    guarded(|| {
        // SAFETY: the caller's: one thread alone has it.
        let Some(pair) = (unsafe { pair.as_mut() }).filter(|_| !completions.is_null()) else {
            return fail(MOONRING_BAD_ARGUMENT, "pair or completions is NULL");
        };
        while reaped < n
            && let Some(completion) = pair.pair.poll()
        {
            // SAFETY: the caller's: room for `n`.
            unsafe { completions.add(reaped).write(told(&completion)) };
            reaped += 1;
        }
        MOONRING_OK
    });
    reaped
}

fn told(completion: &Completion) -> moonring_completion {
    let (status, value) = match completion.result {
        Ok(Done::Present) => (MOONRING_OK, 1),
        Ok(Done::Absent | Done::Deleted) => (MOONRING_OK, 0),
        Ok(Done::Retrieved(len)) => (MOONRING_OK, len),
        Ok(Done::Store(StoreOutcome::Stored)) => (MOONRING_OK, MOONRING_STORED),
        Ok(Done::Store(StoreOutcome::AlreadyThere)) => (MOONRING_OK, MOONRING_ALREADY_THERE),
        Ok(Done::Store(_)) => (MOONRING_OK, MOONRING_ACCEPTED),
        Ok(_) => (MOONRING_OTHER, 0),
        Err(moonring::OpError::Store(code)) => (MOONRING_STORE_CODE, i64::from(code) as u64),
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

/// Waits until `n` completions can be reaped, or all ops in flight if those are fewer; at most `timeout_ms`, or without a limit
/// if that is negative.
///
/// # Safety
/// `pair` must be open, and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_wait(
    pair: *mut moonring_pair,
    n: usize,
    timeout_ms: i64,
) -> moonring_status {
    guarded(|| {
        // SAFETY: the caller's: one thread alone has it.
        let Some(pair) = (unsafe { pair.as_mut() }) else {
            return fail(MOONRING_BAD_ARGUMENT, "pair is NULL");
        };
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        match pair.pair.wait(n, timeout) {
            Ok(()) => MOONRING_OK,
            Err(error) => fail(error, error),
        }
    })
}

/// The pair's eventfd, to wait for in the host's own loop, or a negative status. It is the pair's: don't close it.
///
/// # Safety
/// `pair` must be open, and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_event_fd(pair: *mut moonring_pair) -> c_int {
    let mut number = 0;
    let status = guarded(|| {
        // SAFETY: the caller's: one thread alone has it.
        let Some(pair) = (unsafe { pair.as_mut() }) else {
            return fail(MOONRING_BAD_ARGUMENT, "pair is NULL");
        };
        match pair.pair.event_fd() {
            Ok(event) => {
                number = event.as_raw_fd();
                pair.event = Some(event);
                MOONRING_OK
            }
            Err(error) => fail(MOONRING_SYSTEM, error),
        }
    });
    if status == MOONRING_OK {
        number
    } else {
        status as c_int
    }
}

/// Asks for one signal of the eventfd at the next completion. Call it after draining, before sleeping: 1: sleep; 0: there is something to
/// reap, or the engine is shut down.
///
/// # Safety
/// `pair` must be open, and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_arm(pair: *mut moonring_pair) -> c_int {
    let mut armed = false;
    guarded(|| {
        // SAFETY: the caller's: one thread alone has it.
        armed = unsafe { pair.as_mut() }.is_some_and(|pair| pair.pair.arm());
        MOONRING_OK
    });
    c_int::from(armed)
}
