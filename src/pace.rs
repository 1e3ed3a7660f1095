//! How many workers of a lane should be in calls at once: learned from what the calls bring.
//!
//! Calls that sleep side by side bring the more, the more there are. Calls that share one bottleneck bring less: the ops that
//! are in flight are split into small ones, and each costs what a call costs. Nobody can say beforehand which a store is, so a
//! lane tries, while there is enough to do:
//!
//! ```text
//!            calls of 8 ops or more, or that leave some behind
//!   OPEN ──────────────────────────────────────────────────────▶ PACED: no more calls at once than `limit`
//!    ▲      they get small, or none has ended for long                 │  windows of 10 ms or more; what each brings
//!    └─────────────────────────────────────────────────────────────────┘  tells the next limit: see [`Climb`]
//! ```
//! While it is open, every worker may call: an op that comes to an idle worker goes at once. A lane that is paced has more in
//! flight than its workers could take one by one, so what waits for a call goes with the next one, which is fuller for it.
//!
//! # How large a call is
//! A lane that is paced makes as many calls at once as its limit says, also where one caller sends all that is in flight at once: a take
//! stops at an even part of what is in flight ([`Pace::share`]). So where one call at a time has been found
//! best, batches are as large as what is in flight, and where three are, a third of it. The knobs bound it from above.
//!
//! What a call, a key and a byte cost is not taken apart, because these three do not tell which size is best. With 500 us a call
//! and 6 us a key, 64 ops take 884 us as one call. If the 500 us are a wait for something far away, three calls of 21 take 626 us side by
//! side; if they are a core that all calls share, the same three take 1,884 us. Which it is shows only in what calls bring that are made at
//! once, and that is what is measured: keys and bytes in the same time, at each split.
//!
//! # Gathering
//! Where one call is made at a time, what producers send when they see its answers comes a moment too late for the next. So between two
//! calls the worker waits for that, for a small part of the time that a call takes: [`GATHER`]. Where nobody sends again it stops
//! to wait, and tries rarely.
//!
//! # Calls that hang
//! A call that doesn't return must not keep the others waiting. One idle worker, the group's watcher, looks every now and then
//! whether a paced lane's calls still end; where they don't, those in progress are **stuck**, and count against the limit no
//! more. Overdue ones never do.
//!
//! All is hints but the limit itself, and that only bounds: any value from 1 on is right. So everything is relaxed, and an update
//! that is lost in a race is the next call's.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

mod climb;
use climb::Climb;

/// Mean ops of a call, were all workers in calls, from which a lane is paced; below the second it is open again.
const BUSY: u32 = 8;
const CALM: u32 = 4;
/// So many count at most, so that a few small calls open the lane after large ones. Also what a call counts that left some behind.
const MOST: u32 = 32;
/// The mean has so many binary places.
const FRACTION: u32 = 8;
/// A lane whose calls have not ended for so many times as long as they take on average is stuck.
const PATIENCE: u64 = 8;
/// So many calls are enough for a window, if it is long enough.
const CALLS: u32 = 32;
/// As much work as one key, in bytes: with 4 KiB values keys count, with 1 MiB values bytes.
const KEY_BYTES: usize = 64 << 10;
/// A call's time by this is the longest time of gathering. Seen on Mooncake over loopback: calls of 14 ms, for which 0.05 ms are enough.
const GATHER: u64 = 64;
/// After so many gatherings in vain, as a power of two, the next calls go without.
const MOST_MISSES: u32 = 7;

/// What was in flight and is not seen any more is forgotten by one part in so many at each look.
const FORGET: u32 = 64;

/// The rules, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The shortest window.
    pub(crate) window: u64,
    /// The shortest time without an end after which calls are stuck.
    pub(crate) patience: u64,
}

/// What a call must know when it ends of the time when it began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Begun {
    window: u32,
    stalls: u32,
    /// Its ops, where they were counted among those in calls.
    counted: u32,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) begun: Begun,
    /// When it began, in ticks.
    pub(crate) since: u64,
    pub(crate) ops: usize,
    pub(crate) bytes: usize,
    /// More ops were there than it had room for.
    pub(crate) left: bool,
}

/// One lane's.
pub(crate) struct Pace {
    rules: Rules,
    /// Most calls at once while the lane is open. With 1 there is nothing to learn; 0: the lane is never paced.
    most: u32,
    /// Read by all.
    paced: AtomicBool,
    limit: AtomicU32,
    /// Counts limits: what began under one tells nothing about the next.
    window: AtomicU32,
    stalls: AtomicU32,
    stuck: AtomicU32,
    /// Written by each call.
    calls: CachePadded<Calls>,
    /// Of a lane that splits what it has.
    split: CachePadded<Split>,
    /// Once a window, and never waited for: who finds it taken goes on.
    climb: Mutex<Climb>,
}

struct Split {
    /// Ops in calls.
    in_calls: AtomicU32,
    /// What was in flight at most of late: at a look, those whose answers are just out are nowhere.
    in_flight: AtomicU32,
}

struct Calls {
    /// Mean ops of one, see [`FRACTION`].
    mean_ops: AtomicU32,
    /// Mean time that one takes.
    mean_time: AtomicU64,
    /// When the last one ended.
    last: AtomicU64,
    /// The next to end that began in the window is its first, or the first after a pause: from its end on time counts.
    resumes: AtomicBool,
    /// Gatherings in vain, one after the other, and calls that go without now.
    misses: AtomicU32,
    skips: AtomicU32,
    /// Of the window.
    work: AtomicU64,
    time: AtomicU64,
    count: AtomicU32,
}

impl Pace {
    /// Of a lane with so many calls at once at most.
    pub(crate) fn new(most: u32, rules: Rules) -> Self {
        Self {
            rules,
            most,
            paced: AtomicBool::new(false),
            limit: AtomicU32::new(most),
            window: AtomicU32::new(0),
            stalls: AtomicU32::new(0),
            stuck: AtomicU32::new(0),
            calls: CachePadded::new(Calls {
                mean_ops: AtomicU32::new(0),
                mean_time: AtomicU64::new(0),
                last: AtomicU64::new(0),
                resumes: AtomicBool::new(true),
                misses: AtomicU32::new(0),
                skips: AtomicU32::new(0),
                work: AtomicU64::new(0),
                time: AtomicU64::new(0),
                count: AtomicU32::new(0),
            }),
            split: CachePadded::new(Split {
                in_calls: AtomicU32::new(0),
                in_flight: AtomicU32::new(0),
            }),
            climb: Mutex::new(Climb::new(most)),
        }
    }

    /// Whether calls at once are bounded by what was learned, as is what each takes.
    #[inline]
    pub(crate) fn is_paced(&self) -> bool {
        self.paced.load(Relaxed)
    }

    /// Whether what is queued is shared out over several calls.
    #[inline]
    pub(crate) fn splits(&self) -> bool {
        self.paced.load(Relaxed) && self.limit.load(Relaxed) > 1
    }

    /// How many ops a call takes of so many that are queued, where so many calls may begin, this one included.
    pub(crate) fn share(&self, queued: usize, calls: u32) -> usize {
        let now = queued as u32 + self.split.in_calls.load(Relaxed);
        let before = self.split.in_flight.load(Relaxed);
        let in_flight = now.max(before - before.div_ceil(FORGET));
        self.split.in_flight.store(in_flight, Relaxed);
        let part = in_flight.div_ceil(self.limit.load(Relaxed).max(1));
        // No more calls are to come than these: they leave nothing behind.
        let least = queued.div_ceil(calls.max(1) as usize);
        let part = least.max(part as usize).max(1);
        // A small rest would be a call of its own, and take the place of a large one.
        match queued <= part + part / 8 {
            true => queued.max(1),
            false => part,
        }
    }

    /// A call is about to begin with so many ops, a part of what is in flight.
    pub(crate) fn took(&self, begun: &mut Begun, ops: usize) {
        begun.counted = ops as u32;
        self.split.in_calls.fetch_add(begun.counted, Relaxed);
    }

    /// Of a lane whose bound stands.
    pub(crate) fn off() -> Self {
        let rules = Rules {
            window: 0,
            patience: 0,
        };
        Self::new(0, rules)
    }

    /// Whether the number of calls at once may be bounded.
    #[inline(always)]
    pub(crate) fn learns(&self) -> bool {
        self.most > 1
    }

    /// Whether a worker may be kept from a call that it could make if the lane were open.
    #[inline]
    pub(crate) fn holds_back(&self) -> bool {
        self.paced.load(Relaxed) && self.limit.load(Relaxed) < self.most
    }

    /// Most calls at once, now. `overdue`: of these.
    #[inline]
    pub(crate) fn limit(&self, overdue: impl FnOnce() -> u32) -> u32 {
        match self.paced.load(Relaxed) {
            false => u32::MAX,
            true => {
                let hanging = self.stuck.load(Relaxed).max(overdue());
                self.limit.load(Relaxed).saturating_add(hanging)
            }
        }
    }

    /// A call is about to begin. Before it is counted: a stall that is seen in between makes it no stuck one.
    #[inline(always)]
    pub(crate) fn begin(&self) -> Begun {
        Begun {
            window: self.window.load(Relaxed),
            stalls: self.stalls.load(Relaxed),
            counted: 0,
        }
    }

    /// A call has ended, and its worker looks for work after this, with a fence between: the limit may be higher.
    #[inline(always)]
    pub(crate) fn end(&self, call: Ended, now: u64) {
        if call.begun.counted > 0 {
            let in_calls = &self.split.in_calls;
            in_calls.fetch_sub(call.begun.counted, Relaxed);
        }
        let is_small = !call.left && call.ops < CALM as usize;
        if !(is_small && self.passes_over(call.begun)) {
            self.count_end(call, now);
        }
    }

    /// Whether a small call that ends now needs not to be told of.
    #[inline(always)]
    pub(crate) fn passes_over(&self, begun: Begun) -> bool {
        // One that was stuck is taken off the stuck ones, however small.
        let was_stuck = begun.stalls != self.stalls.load(Relaxed);
        let is_calm = !self.is_paced() && self.calls.mean_ops.load(Relaxed) == 0;
        is_calm && !was_stuck
    }

    #[inline(never)]
    fn count_end(&self, call: Ended, now: u64) {
        if self.most == 0 {
            return;
        }
        let paced = self.is_paced();
        if call.begun.stalls != self.stalls.load(Relaxed) {
            let less = |stuck: u32| stuck.checked_sub(1);
            let _ = self.stuck.fetch_update(Relaxed, Relaxed, less);
        }
        let calls = &*self.calls;
        let last = calls.last.swap(now, Relaxed);
        // What hangs counts as much as what nearly does.
        let took = now.saturating_sub(call.since).min(self.patience());
        let mean_time = match calls.mean_time.load(Relaxed) {
            0 => took,
            mean => mean - mean / 4 + took / 4,
        };
        calls.mean_time.store(mean_time, Relaxed);
        let limit = match paced {
            true => self.limit.load(Relaxed),
            false => self.most,
        };
        let size = match call.left {
            true => MOST,
            // As large as it were with all workers in calls.
            false => match (call.ops as u64 * u64::from(limit) / u64::from(self.most)) as u32 {
                // None, so that many of them leave nothing to count.
                ..CALM => 0,
                size => size.min(MOST),
            },
        };
        let mean = calls.mean_ops.load(Relaxed);
        let mean = mean - mean.div_ceil(4) + (size << FRACTION) / 4;
        calls.mean_ops.store(mean, Relaxed);
        match paced {
            false if mean >= BUSY << FRACTION => self.start(),
            true if mean < CALM << FRACTION => self.open(),
            true if self.learns() && call.begun.window == self.window.load(Relaxed) => {
                let pause = mean_time.max(self.rules.window);
                match call.since.saturating_sub(last) > pause {
                    // There was nothing to do for a while.
                    true => calls.resumes.store(true, Relaxed),
                    false => self.count(call, limit, now.saturating_sub(last)),
                }
            }
            _ => {}
        }
    }

    #[cold]
    fn start(&self) {
        if let Ok(climb) = self.climb.try_lock() {
            self.set_limit(climb.limit());
            self.paced.store(true, Relaxed);
        }
    }

    fn set_limit(&self, limit: u32) {
        let calls = &*self.calls;
        if self.limit.swap(limit, Relaxed) != limit {
            calls.work.store(0, Relaxed);
            calls.time.store(0, Relaxed);
            calls.count.store(0, Relaxed);
        }
        self.resume();
    }

    /// What is in progress says nothing about what comes now.
    fn resume(&self) {
        self.window.fetch_add(1, Relaxed);
        self.calls.resumes.store(true, Relaxed);
    }

    #[cold]
    fn open(&self) {
        self.paced.store(false, Relaxed);
        self.calls.mean_ops.store(0, Relaxed);
        self.resume();
    }

    /// Counts a call that ended so long after the one before.
    fn count(&self, call: Ended, limit: u32, time: u64) {
        let calls = &*self.calls;
        if calls.resumes.load(Relaxed) {
            calls.resumes.store(false, Relaxed);
            return;
        }
        // In sixteenths of a key.
        let work = call.ops * 16 + call.bytes / (KEY_BYTES / 16);
        calls.work.fetch_add(work as u64, Relaxed);
        let time = calls.time.fetch_add(time, Relaxed) + time;
        let count = calls.count.fetch_add(1, Relaxed) + 1;
        // Some calls of each worker: bursts of producers make large ones and small ones take turns.
        if count >= (limit * 3 / 2 + 1).clamp(4, CALLS) && time >= self.rules.window {
            self.decide(limit, count);
        }
    }

    #[cold]
    fn decide(&self, limit: u32, count: u32) {
        let Ok(mut climb) = self.climb.try_lock() else {
            return;
        };
        let calls = &*self.calls;
        if calls.count.load(Relaxed) < count || self.limit.load(Relaxed) != limit {
            return; // Somebody else has just done it.
        }
        let work = calls.work.swap(0, Relaxed);
        let time = calls.time.swap(0, Relaxed).max(1);
        calls.count.store(0, Relaxed);
        let next = climb.next(work as f64 / time as f64);
        if next != limit {
            self.set_limit(next);
        }
    }

    /// For how many ticks a worker whose call has ended should gather; 0: not at all.
    #[inline]
    pub(crate) fn gather_time(&self) -> u64 {
        if !self.paced.load(Relaxed) || self.limit.load(Relaxed) != 1 {
            return 0;
        }
        // One call at a time, so nobody else counts.
        let skips = self.calls.skips.load(Relaxed);
        if skips > 0 {
            self.calls.skips.store(skips - 1, Relaxed);
            return 0;
        }
        self.calls.mean_time.load(Relaxed) / GATHER
    }

    /// Whether most of those that had answers sent again in that time.
    pub(crate) fn gathered(&self, most: bool) {
        let misses = match most {
            true => 0,
            false => (self.calls.misses.load(Relaxed) + 1).min(MOST_MISSES),
        };
        self.calls.misses.store(misses, Relaxed);
        self.calls.skips.store((1 << misses) - 1, Relaxed);
    }

    /// How long the watcher waits between its looks, in ticks.
    pub(crate) fn patience(&self) -> u64 {
        let time = self.calls.mean_time.load(Relaxed);
        time.saturating_mul(PATIENCE).max(self.rules.patience)
    }

    /// The watcher's look: opens the lane if no call has ended for long. `holders`: calls in progress.
    #[cold]
    pub(crate) fn watch(&self, holders: u32, now: u64) {
        let calm = now.saturating_sub(self.calls.last.load(Relaxed));
        if !self.holds_back() || calm <= self.patience() {
            return;
        }
        if holders > 0
            && let Ok(mut climb) = self.climb.try_lock()
        {
            // Or its calls are so much longer that it comes to the same.
            climb.reject();
        }
        self.stuck.store(holders, Relaxed);
        self.stalls.fetch_add(1, Relaxed);
        self.open();
    }

    /// As if it had learned this, for long, from calls that take so long.
    #[cfg(test)]
    pub(crate) fn learned(&self, limit: u32, mean_time: u64, now: u64) {
        self.calls.mean_time.store(mean_time, Relaxed);
        self.calls.last.store(now, Relaxed);
        let mut climb = self.climb.lock().unwrap();
        climb.learned(limit);
        self.set_limit(limit);
        self.paced.store(true, Relaxed);
        self.calls.mean_ops.store(MOST << FRACTION, Relaxed);
    }
}

#[cfg(test)]
mod tests;
