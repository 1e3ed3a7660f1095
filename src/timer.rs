//! Deadlines: one thread that sleeps while none is pending, and ends ops whose time is up, whatever the workers do.
//!
//! A deadline lies in its op's descriptor, and each table knows the soonest of its own. So an op without one costs nothing, and
//! one with costs a comparison, unless it is sooner than all others of its table.
//!
//! ```text
//!  submitter                                   timer
//!  1 the op is queued, with its deadline       1 the table's time has come: soonest = never
//!  2 fence(SeqCst)            [publication]    2 fence(SeqCst)
//!  3 sooner than `soonest`? lower it           3 look at all ops: end those that are late, lower `soonest` to the
//!  4 fence(SeqCst)                               next of the others
//!  5 sooner than the timer's `next`? wake it   4 next = the soonest of all tables; fence(SeqCst); look at them again
//!                                              5 sleep until `next`
//! ```
//! The fences of 2 forbid that the submitter sees the old `soonest` and the timer misses the op; those of 4 that the
//! submitter sees the old `next` and the timer the old `soonest`.
//!
//! An op is ended by one step on its word, for which a worker that takes it or returns with it competes: see
//! [`moonring_rings::slots`]. The entry that its ring has is left behind, as a tombstone.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::Thread;
use std::time::Duration;

use moonring_rings::park::publish_fence;
use moonring_rings::slots::Why;

use crate::engine::Shared;
use crate::inflight::{NEVER, OpTable};
use crate::pairs::Snapshot;
use crate::quarantine::Submitter;
use crate::waker::OpWaker;
use crate::worker;

/// The least time between two looks, so that many deadlines close together don't keep the timer busy: far below the 2 ms
/// within which an op shall end.
const PAUSE: Duration = Duration::from_micros(200);

/// What submitters see of the timer.
pub(crate) struct Timer {
    /// When it looks next, in ticks; [`NEVER`] while it sleeps for good.
    next: AtomicU64,
    thread: OnceLock<Thread>,
    ended: AtomicBool,
    /// Ticks of the clock in 2^32 ns.
    rate: u64,
}

impl Timer {
    pub(crate) fn new(clock: &quanta::Clock) -> Self {
        // The clock tells nanoseconds from ticks only; a long span keeps the error of the inverse below 1 in 10^9.
        let ticks = 1u64 << 40;
        let ns = clock.delta_as_nanos(0, ticks).max(1);
        let rate = ((u128::from(ticks) << 32) / u128::from(ns)) as u64;
        Self {
            next: AtomicU64::new(NEVER),
            thread: OnceLock::new(),
            ended: AtomicBool::new(false),
            rate,
        }
    }

    /// Nanoseconds as ticks; what is too long is [`NEVER`].
    #[inline]
    pub(crate) fn ticks(&self, ns: u64) -> u64 {
        ((u128::from(ns) * u128::from(self.rate)) >> 32)
            .try_into()
            .unwrap_or(NEVER)
    }

    /// Tells of ops that were published, with the soonest of their deadlines. After the publication's fence.
    #[cold]
    pub(crate) fn note(&self, table: &OpTable, deadline: u64) {
        if deadline >= table.soonest.load(Ordering::Relaxed) {
            return;
        }
        table.soonest.fetch_min(deadline, Ordering::Relaxed);
        // Pairs with the fence before the timer's second look.
        fence(Ordering::SeqCst);
        if deadline < self.next.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        // Release pairs with the Acquire in `run`.
        self.ended.store(true, Ordering::Release);
        self.wake();
    }
}

/// The timer's own part.
pub(crate) struct Sweeper {
    pairs: Snapshot,
    wakers: Vec<OpWaker>,
}

impl Sweeper {
    pub(crate) fn new() -> Self {
        Self {
            pairs: Snapshot::default(),
            wakers: Vec::new(),
        }
    }

    /// The timer's thread.
    pub(crate) fn run(mut self, engine: &Arc<Shared>) {
        let timer = &engine.timer;
        // For good: wakers run on this thread.
        std::mem::forget(worker::Inside::enter(engine));
        // A second call can't happen.
        let _ = timer.thread.set(std::thread::current());
        while !timer.ended.load(Ordering::Acquire) {
            let next = self.look(engine);
            timer.next.store(next, Ordering::Relaxed);
            // Pairs with the fence in `note`.
            fence(Ordering::SeqCst);
            self.pairs.refresh(&engine.pairs);
            if self.soonest(engine) < next {
                continue;
            }
            // An unpark since the last park is not lost: `park` then returns at once.
            if next == NEVER {
                std::thread::park();
                continue;
            }
            let now = engine.clock.raw();
            let left = match next > now {
                true => engine.clock.delta(now, next),
                false => Duration::ZERO,
            };
            std::thread::park_timeout(left.max(PAUSE));
        }
    }

    /// Ends what is late. Returns the soonest deadline of the rest.
    pub(crate) fn look(&mut self, engine: &Shared) -> u64 {
        self.pairs.refresh(&engine.pairs);
        let now = engine.clock.raw();
        let wakers = &mut self.wakers;
        sweep(
            engine,
            Submitter::Clients,
            &engine.clients.table,
            now,
            wakers,
        );
        for waker in wakers.drain(..) {
            waker.wake();
        }
        for pair in self.pairs.all() {
            if sweep(engine, Submitter::Pair(pair), &pair.table, now, wakers) {
                publish_fence();
                pair.notify(engine);
            }
        }
        self.soonest(engine)
    }

    fn soonest(&self, engine: &Shared) -> u64 {
        let of = |table: &OpTable| table.soonest.load(Ordering::Relaxed);
        let pairs = self.pairs.all().map(|pair| of(&pair.table));
        pairs.fold(of(&engine.clients.table), u64::min)
    }
}

/// Ends the late ops of one table, if its time has come. Returns whether it had.
fn sweep(
    engine: &Shared,
    submitter: Submitter<'_>,
    table: &OpTable,
    now: u64,
    wakers: &mut Vec<OpWaker>,
) -> bool {
    if table.soonest.load(Ordering::Relaxed) > now {
        return false;
    }
    table.soonest.store(NEVER, Ordering::Relaxed);
    // Pairs with the fence of a publication: it sees that, or we see its ops.
    fence(Ordering::SeqCst);
    let mut soonest = NEVER;
    for index in 0..table.depth() as u32 {
        // SAFETY: below the depth.
        let Some((ticket, _)) = (unsafe { table.ops().pending(index) }) else {
            continue;
        };
        // SAFETY: as above. It is the deadline of this ticket's op, or the ticket is no longer good for anything: the word was read
        // before, and an entry is used again only after its word has changed for good.
        let deadline = unsafe { table.peek_deadline(index) };
        if deadline > now {
            soonest = soonest.min(deadline);
        } else {
            engine.abandon(submitter, ticket, Why::Deadline, true, wakers);
        }
    }
    table.soonest.fetch_min(soonest, Ordering::Relaxed);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_time_is_never_fewer_ticks_and_one_that_is_too_long_is_none() {
        let clock = quanta::Clock::new();
        let mut timer = Timer::new(&clock);
        let ms = clock.delta(0, timer.ticks(1_000_000));
        assert!(ms.abs_diff(Duration::from_millis(1)) < Duration::from_nanos(100));
        // Of any processor: from 1 MHz to 10 GHz.
        for mhz in [1, 24, 999, 1_000, 1_001, 2_100, 3_000, 10_000] {
            timer.rate = ((mhz as u128) << 32).div_ceil(1_000) as u64;
            let shifts = (0..64).map(|shift| u64::MAX >> shift);
            let mut ticks: Vec<_> = shifts.map(|ns| timer.ticks(ns)).collect();
            assert!(mhz <= 1_000 || ticks[0] == NEVER);
            ticks.reverse();
            assert!(ticks.is_sorted(), "{mhz} MHz: {ticks:?}");
        }
    }
}
