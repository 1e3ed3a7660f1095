//! A pair: one thread's rings.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::time::Duration;

use moonring::{EventFd, Pair, PairOptions};

use crate::engine::moonring_engine;
use crate::moonring_status::*;
use crate::op::{moonring_completion, moonring_op, submission, told};
use crate::{Failure, Null, failure, guarded, moonring_status};

/// One thread's own rings. By one thread at a time.
pub struct moonring_pair {
    pair: Pair,
    event: Option<EventFd>,
}

/// What a pair is to be. Set the fields by name, over zeros.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct moonring_pair_options {
    /// The most ops in flight.
    pub depth: usize,
    /// The pair's ops may wait for a fuller store call: until so many of their kind wait (of all pairs that do so; at most `max_batch`).
    /// Below 2: none waits.
    pub linger_ops: usize,
    /// But no longer than so many microseconds. 0: none waits.
    pub linger_us: u32,
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
    // SAFETY: the caller's.
    guarded(|| unsafe { open(engine, PairOptions::new(depth), pair) })
}

/// As `moonring_pair_open`, with options. They are not kept.
///
/// Ops that wait for a fuller call go along with whatever makes a call of their kind earlier, and at once while the engine shuts down
/// or their kind's circuit is open; one with a timeout waits for half of it at most. Ops of other pairs never wait. When it is worth
/// it: docs/merging.md.
///
/// # Safety
/// `engine` must be one that was opened and not closed; `options` NULL, or what it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_pair_open_with(
    engine: *const moonring_engine,
    options: *const moonring_pair_options,
    pair: *mut *mut moonring_pair,
) -> moonring_status {
    guarded(|| {
        // SAFETY: the caller's.
        let options = unsafe { options.as_ref() }.ok_or(Null("options"))?;
        let budget = Duration::from_micros(options.linger_us.into());
        let options = PairOptions::new(options.depth).linger(options.linger_ops, budget);
        // SAFETY: the caller's.
        unsafe { open(engine, options, pair) }
    })
}

/// # Safety
/// As [`moonring_pair_open`] says.
unsafe fn open(
    engine: *const moonring_engine,
    options: PairOptions,
    pair: *mut *mut moonring_pair,
) -> Result<(), Failure> {
    // SAFETY: the caller's.
    let engine = unsafe { engine.as_ref() }.filter(|_| !pair.is_null());
    let engine = engine.ok_or(Null("engine or pair"))?;
    let opened = moonring_pair {
        pair: engine.engine.pair_with(options)?,
        event: None,
    };
    // SAFETY: the caller's: a place for a pointer.
    unsafe { pair.write(Box::into_raw(Box::new(opened))) };
    Ok(())
}

/// Frees a pair. Its ops go on; nobody hears of their ends, so keep their buffers until the engine is shut down. NULL is fine.
///
/// # Safety
/// `pair` must be one that was opened and not closed; nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_pair_close(pair: *mut moonring_pair) {
    guarded(|| {
        if !pair.is_null() {
            // SAFETY: the caller's: made by `open`, and this is its end.
            drop(unsafe { Box::from_raw(pair) });
        }
        Ok(())
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
            return Err(Null("pair, ops or accepted").into());
        };
        *accepted = 0;
        // SAFETY: the caller's: `n` ops.
        let ops = unsafe { std::slice::from_raw_parts(ops, n) };
        let mut batch = pair.pair.batch();
        for op in ops {
            // SAFETY: the caller's: key and buffer are as the op says.
            let submission = unsafe { submission(op) };
            let submission = submission.map_err(|why| failure(MOONRING_BAD_OP, why))?;
            batch.push(submission).map_err(|refused| refused.reason)?;
            *accepted += 1;
        }
        batch.publish();
        Ok(())
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
        let pair = unsafe { pair.as_mut() }.filter(|_| !completions.is_null());
        let pair = pair.ok_or(Null("pair or completions"))?;
        while reaped < n
            && let Some(completion) = pair.pair.poll()
        {
            // SAFETY: the caller's: room for `n`.
            unsafe { completions.add(reaped).write(told(&completion)) };
            reaped += 1;
        }
        Ok(())
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
        let pair = unsafe { pair.as_mut() }.ok_or(Null("pair"))?;
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        Ok(pair.pair.wait(n, timeout)?)
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
        let pair = unsafe { pair.as_mut() }.ok_or(Null("pair"))?;
        let event = pair.pair.event_fd();
        let event = event.map_err(|e| failure(MOONRING_SYSTEM, e))?;
        number = event.as_raw_fd();
        pair.event = Some(event);
        Ok(())
    });
    match status {
        MOONRING_OK => number,
        _ => status as c_int,
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
        Ok(())
    });
    c_int::from(armed)
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::time::Instant;

    use super::*;
    use crate::*;

    /// In milliseconds: who waits so long waits for ever.
    const LIMIT: i64 = 30_000;
    /// In microseconds: longer than any test.
    const HOUR: u32 = 3_600_000_000;

    /// An engine over the store that does nothing, and a pair.
    struct Host {
        engine: *mut moonring_engine,
        pair: *mut moonring_pair,
    }

    impl Host {
        fn new(linger_ops: usize, linger_us: u32) -> Self {
            let (mut engine, mut pair) = (ptr::null_mut(), ptr::null_mut());
            let options = moonring_pair_options {
                depth: 8,
                linger_ops,
                linger_us,
            };
            let json = c"{\"type\": \"null\"}".as_ptr();
            // SAFETY: a store without memory, and places for the handles.
            unsafe {
                let opened = moonring_open(json, ptr::null_mut(), 0, &mut engine);
                assert_eq!(opened, MOONRING_OK);
                let opened = moonring_pair_open_with(engine, &options, &mut pair);
                assert_eq!(opened, MOONRING_OK);
            }
            Self { engine, pair }
        }

        fn lookups(&self, n: usize) {
            let op = moonring_op {
                kind: MOONRING_LOOKUP,
                flags: 0,
                timeout_ms: 0,
                key: c"key".as_ptr(),
                key_len: 3,
                buffer: ptr::null_mut(),
                buffer_len: 0,
                user_data: 0,
            };
            for _ in 0..n {
                let mut accepted = 0;
                // SAFETY: a pair that is open, and an op without bytes.
                let status = unsafe { moonring_submit(self.pair, &op, 1, &mut accepted) };
                assert_eq!((status, accepted), (MOONRING_OK, 1));
            }
        }

        fn wait(&self, n: usize, timeout_ms: i64) -> moonring_status {
            // SAFETY: a pair that is open.
            unsafe { moonring_wait(self.pair, n, timeout_ms) }
        }

        fn calls(&self) -> u64 {
            // SAFETY: an engine that is open.
            let stats = unsafe { &*self.engine }.engine.stats();
            stats.lane(moonring::OpKind::Lookup).calls
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            // SAFETY: both are open, and this is their end.
            unsafe {
                moonring_pair_close(self.pair);
                moonring_close(self.engine);
            }
        }
    }

    #[test]
    fn ops_of_a_pair_that_lingers_wait_until_there_are_enough_and_go_as_one_call() {
        let host = Host::new(3, HOUR);
        for round in 1..4 {
            host.lookups(2);
            assert_eq!(host.wait(1, 30), MOONRING_WAIT_TIMED_OUT);
            assert_eq!(host.calls(), round - 1);
            host.lookups(1);
            assert_eq!(host.wait(3, LIMIT), MOONRING_OK);
            assert_eq!(host.calls(), round);
            let mut done = [MaybeUninit::<moonring_completion>::uninit(); 8];
            // SAFETY: a pair that is open, and room for eight.
            let reaped = unsafe { moonring_poll(host.pair, done.as_mut_ptr().cast(), done.len()) };
            assert_eq!(reaped, 3);
        }
    }

    #[test]
    fn they_wait_for_the_budget_and_no_longer() {
        let host = Host::new(99, 300_000);
        let began = Instant::now();
        host.lookups(2);
        assert_eq!(host.wait(2, LIMIT), MOONRING_OK);
        assert!(began.elapsed() >= Duration::from_millis(300), "too early");
        assert_eq!(host.calls(), 1);
    }

    #[test]
    fn a_pair_without_it_waits_for_nobody() {
        for (linger_ops, linger_us) in [(0, 0), (0, HOUR), (1, HOUR), (8, 0)] {
            let host = Host::new(linger_ops, linger_us);
            host.lookups(1);
            assert_eq!(host.wait(1, LIMIT), MOONRING_OK);
        }
        let mut host = Host::new(8, HOUR);
        // SAFETY: handles that are open; the pair is replaced.
        unsafe {
            moonring_pair_close(host.pair);
            assert_eq!(
                moonring_pair_open(host.engine, 1, &mut host.pair),
                MOONRING_OK
            );
        }
        host.lookups(1);
        assert_eq!(host.wait(1, LIMIT), MOONRING_OK);
    }

    #[test]
    fn bad_options_are_refused_and_make_no_pair() {
        let host = Host::new(0, 0);
        let mut pair = ptr::null_mut();
        let none = moonring_pair_options::default();
        for (options, text) in [
            (ptr::null(), "options is NULL"),
            (&raw const none, "pair: depth 0, allowed are 1 to"),
        ] {
            // SAFETY: an engine that is open, options or NULL, and a place for a handle.
            let status = unsafe { moonring_pair_open_with(host.engine, options, &mut pair) };
            assert_eq!(status, MOONRING_BAD_ARGUMENT);
            // SAFETY: text that ends in NUL, until the next call.
            let said = unsafe { std::ffi::CStr::from_ptr(moonring_last_error()) };
            assert!(said.to_str().unwrap().starts_with(text), "{said:?}");
            assert!(pair.is_null());
        }
    }
}
