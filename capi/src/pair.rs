//! A pair: one thread's rings.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::time::Duration;

use moonring::{EventFd, Pair};

use crate::engine::moonring_engine;
use crate::moonring_status::*;
use crate::op::{moonring_completion, moonring_op, submission, told};
use crate::{fail, guarded, moonring_status};

/// One thread's own rings. By one thread at a time.
pub struct moonring_pair {
    pair: Pair,
    event: Option<EventFd>,
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
