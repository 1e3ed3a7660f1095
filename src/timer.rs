//! Deadlines: one thread that sleeps while none is pending, and ends ops whose time is up, whatever the workers do.
//!
//! A deadline lies in its op's descriptor, and each table knows the soonest of its own, so that an op without one costs
//! nothing. How submitters and timer agree is drawn in [`moonring_rings::deadline`].
//!
//! An op is ended by one step on its word, for which a worker that takes it or returns with it competes: see
//! [`moonring_rings::slots`]. The entry that its ring has is left behind, as a tombstone.

use std::sync::Arc;
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::Duration;

use moonring_rings::deadline::{Alarm, NEVER};
use moonring_rings::park::publish_fence;
use moonring_rings::slots::Why;

use crate::clock::Clock;
use crate::engine::Shared;
use crate::inflight::OpTable;
use crate::pairs::Snapshot;
use crate::quarantine::Submitter;
use crate::waker::OpWaker;
use crate::worker;

/// The least time between two looks, so that many deadlines close together don't keep the timer busy: far below the 2 ms
/// within which an op shall end.
const PAUSE: Duration = Duration::from_micros(200);

/// What submitters see of the timer.
pub(crate) struct Timer {
    /// When it looks next, in ticks.
    alarm: Alarm,
    thread: OnceLock<Thread>,
    /// Ticks of the clock in 2^32 ns.
    rate: u64,
}

impl Timer {
    pub(crate) fn new(clock: &Clock) -> Self {
        // The clock tells nanoseconds from ticks only; a long span keeps the error of the inverse below 1 in 10^9.
        let ticks = 1u64 << 40;
        let ns = clock.delta_as_nanos(0, ticks).max(1);
        let rate = ((u128::from(ticks) << 32) / u128::from(ns)) as u64;
        Self {
            alarm: Alarm::default(),
            thread: OnceLock::new(),
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
        if table.soonest.note(deadline, &self.alarm) {
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
        self.alarm.end();
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
        while !timer.alarm.is_ended() {
            let next = self.look(engine);
            let again = || {
                self.pairs.refresh(&engine.pairs);
                self.soonest(engine)
            };
            if !timer.alarm.set(next, again) {
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
        for pair in self.pairs.all() {
            if sweep(engine, Submitter::Pair(pair), &pair.table, now, wakers) {
                publish_fence();
                pair.notify(engine, wakers);
            }
        }
        wakers.drain(..).for_each(OpWaker::wake);
        self.soonest(engine)
    }

    fn soonest(&self, engine: &Shared) -> u64 {
        let pairs = self.pairs.all().map(|pair| pair.table.soonest.get());
        pairs.fold(engine.clients.table.soonest.get(), u64::min)
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
    table.soonest.sweep(now, || {
        let mut soonest = NEVER;
        for index in 0..table.depth() as u32 {
            // SAFETY: below the depth.
            let Some((ticket, _)) = (unsafe { table.ops().pending(index) }) else {
                continue;
            };
            // SAFETY: as above. It is the deadline of this ticket's op, or the ticket is no longer good for anything: the word
            // was read before, and an entry is used again only after its word has changed for good.
            let deadline = unsafe { table.peek_deadline(index) };
            if deadline > now {
                soonest = soonest.min(deadline);
            } else {
                engine.abandon(submitter, ticket, Why::Deadline, true, wakers);
            }
        }
        soonest
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_time_is_never_fewer_ticks_and_one_that_is_too_long_is_none() {
        let clock = Clock::new(quanta::Clock::new());
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
