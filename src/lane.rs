//! Lanes and groups: where work waits, and who sleeps until it comes.
//!
//! A **lane** is all rings of one op kind: a **queue** for each [`Class`], with the clients' ring and one ring of each pair.
//! A **group** is a set of workers that serve the same lanes: the shared pool, or the workers of one op kind. Each lane has
//! one group.
//!
//! # The ready bits
//! Sources of a queue (clients: source 0; pair `p`: source `p + 1`) have a bit each, so that nobody scans all rings:
//!
//! ```text
//!   producer                                worker
//!   publish to the ring                     bit set? take the ring's consumer token (pairs), never wait
//!   fence(SeqCst)                           clear the bit
//!   bit clear? set it, fence(SeqCst)        fence(SeqCst)
//!   wake word: nobody spins, one sleeps?    take what is there; something left? set the bit again
//!   clear its bit, wake it                  give the token back
//! ```
//!
//! The fences forbid that the producer sees the old set bit and the worker, having cleared it, sees the old
//! ring. A worker that finds a token taken leaves the bit alone and looks again; it doesn't sleep while a bit is
//! set, and the token's holder is only copying tickets.
//!
//! # Going to sleep
//! A worker announces itself in the group's wake word, looks at the bits again, then parks (see
//! [`moonring_rings::park`]). One worker of a group may spin first; it says so by [`SPINNING`], and producers
//! then wake nobody. When it stops it clears that bit, and looks once more after a fence. Nor do they wake anybody while a worker is
//! between two calls, for it looks for work itself; see [`moonring_rings::crew`]. Whoever goes into a store call, or into a waker, and
//! leaves work behind wakes the next sleeper first.
//!
//! While the group has a lane that is paced (see [`crate::pace`]), one of its idle workers is the **watcher**: it sleeps no longer than
//! calls may take. Whoever goes into a call wakes another if there is none.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::thread::Thread;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use moonring_rings::crew::{Crew, SPINNING};
use moonring_rings::linger::Lingerer;
use moonring_rings::mpmc::Mpmc;
use moonring_rings::park::publish_fence;

use crate::circuit::{Circuit, FailFast};
use crate::linger::Lingering;
use crate::pace::Pace;
use crate::{Class, OpKind};

/// The clients' place among a queue's sources.
pub(crate) const CLIENTS: usize = 0;

/// Most workers in one group: one bit each, one for their spare, and one for a flag.
pub(crate) const MAX_WORKERS: usize = 62;

/// The workers, and their spare.
const SLEEPERS: u64 = (1 << (MAX_WORKERS + 1)) - 1;

/// Of so many takes at which background ops wait, they go first in one.
const BACKGROUND_EVERY: u32 = 8;

/// The rings of one op kind.
pub(crate) struct Lane {
    pub(crate) op: OpKind,
    /// Which group serves it, by its place in the engine's list.
    pub(crate) group: usize,
    /// By [`Class`].
    pub(crate) queues: [Queue; 2],
    /// Takes at which background ops waited, modulo 2^32.
    background_waited: CachePadded<AtomicU32>,
    /// Workers that are in a call of this lane. Bounded by `max_holders`, and by what was learned.
    holders: CachePadded<AtomicU32>,
    max_holders: u32,
    /// Whether they need to be counted.
    has_bound: bool,
    pub(crate) pace: Pace,
    pub(crate) lingering: Lingering,
    pub(crate) circuit: CachePadded<Circuit>,
    /// No worker will come any more: whoever publishes must end what is queued by itself. Set in `close`; read after the
    /// publication's fence in `publish`.
    closed: AtomicBool,
}

impl Lane {
    pub(crate) fn new(
        op: OpKind,
        group: usize,
        ring_depth: usize,
        max_pairs: usize,
        max_holders: u32,
        pace: Pace,
        rules: FailFast,
    ) -> Self {
        Self {
            op,
            group,
            queues: Class::ALL.map(|_| Queue::new(ring_depth, max_pairs)),
            background_waited: CachePadded::new(AtomicU32::new(0)),
            holders: CachePadded::new(AtomicU32::new(0)),
            max_holders,
            has_bound: max_holders != u32::MAX || pace.learns(),
            pace,
            lingering: Lingering::new(max_pairs + 1),
            circuit: CachePadded::new(Circuit::new(rules)),
            closed: AtomicBool::new(false),
        }
    }

    /// What waits of one class.
    #[inline]
    pub(crate) fn queue(&self, class: Class) -> &Queue {
        &self.queues[class.index()]
    }

    /// A source that is about to be used.
    pub(crate) fn open_source(&self, source: usize) {
        self.queues.iter().for_each(|q| q.open_source(source));
    }

    /// Whether any source is ready.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.queues.iter().any(Queue::is_ready)
    }

    /// The bit of the source of foreground's that alone is ready, where background has none and one word shows all sources.
    #[inline(always)]
    pub(crate) fn lone_bit(&self) -> Option<u64> {
        let [foreground, background] = &self.queues;
        let bits = foreground.ready_word(0);
        let one = bits.is_power_of_two() && background.ready_word(0) == 0;
        // The queues' sources are opened together.
        (one && foreground.words() == 1).then_some(bits)
    }

    /// Whether background goes first in a take at which it waits: once in [`BACKGROUND_EVERY`].
    #[inline]
    pub(crate) fn is_backgrounds_turn(&self) -> bool {
        // Relaxed: a count and nothing else.
        let nth = self.background_waited.fetch_add(1, Ordering::Relaxed);
        nth % BACKGROUND_EVERY == BACKGROUND_EVERY - 1
    }

    /// Whether no client's op is queued, and none can come.
    pub(crate) fn is_drained(&self) -> bool {
        self.queues.iter().all(|q| q.clients.is_drained())
    }

    /// Entries in the clients' rings. A hint.
    pub(crate) fn queued_by_clients(&self) -> usize {
        self.queues.iter().map(|queue| queue.clients.len()).sum()
    }

    /// Whether a worker would find something to do.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.is_ready() && self.can_be_held()
    }

    /// Whether one more worker may hold it, or need not, for it makes no calls. A hint.
    #[inline]
    pub(crate) fn can_be_held(&self) -> bool {
        self.holders() < self.bound() || self.circuit.is_open()
    }

    /// Most holders, now.
    #[inline]
    fn bound(&self) -> u32 {
        let learned = self.pace.limit(|| self.circuit.overdue());
        self.max_holders.min(learned)
    }

    /// How many calls may begin, that of a worker which holds the lane already included. A hint.
    pub(crate) fn free_calls(&self) -> u32 {
        self.bound()
            .saturating_sub(self.holders())
            .saturating_add(1)
    }

    /// Workers that are in a call. None where there is no bound for them.
    #[inline]
    pub(crate) fn holders(&self) -> u32 {
        self.holders.load(Ordering::Relaxed)
    }

    /// The right to hold a call of this lane, within its bound.
    #[inline(always)]
    pub(crate) fn try_hold(&self) -> bool {
        if !self.has_bound {
            return true;
        }
        self.try_count_holder()
    }

    fn try_count_holder(&self) -> bool {
        // Relaxed: a count and nothing else; what the holder does is ordered by rings and tickets. Never over the bound, not even
        // for a moment: who saw it so would wake nobody, and might have been the only one to do so.
        let bound = self.bound();
        if bound == u32::MAX {
            self.holders.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let more = |holders: u32| (holders < bound).then_some(holders + 1);
        let held = self
            .holders
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        held.is_ok()
    }

    /// The same, until it is dropped.
    #[inline(always)]
    pub(crate) fn hold(&self) -> Option<Hold<'_>> {
        self.try_hold().then(|| Hold(self))
    }

    /// The call is over. The worker looks for work itself next.
    #[inline(always)]
    pub(crate) fn release(&self) {
        if self.has_bound {
            self.holders.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Says that no worker will come any more. What is queued from now on, its publisher ends.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // Pairs with the publisher's fence: it sees `closed`, or the closer's look into the rings sees the op.
        fence(Ordering::SeqCst);
    }

    /// After publication and its fence: whether the publisher must end what it published.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

/// A call of a lane.
pub(crate) struct Hold<'a>(&'a Lane);

impl Drop for Hold<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.release();
    }
}

/// What waits of one op kind and class.
pub(crate) struct Queue {
    pub(crate) clients: Mpmc,
    ready: Box<[CachePadded<AtomicU64>]>,
    /// How many words of `ready` have ever been in use.
    words: AtomicUsize,
}

impl Queue {
    fn new(ring_depth: usize, max_pairs: usize) -> Self {
        Self {
            clients: Mpmc::new(ring_depth),
            ready: (0..(max_pairs + 1).div_ceil(64))
                .map(|_| CachePadded::new(AtomicU64::new(0)))
                .collect(),
            words: AtomicUsize::new(1),
        }
    }

    /// A source that is about to be used.
    fn open_source(&self, source: usize) {
        // Relaxed: the source's first ready bit is set after this by the same thread, with a Release.
        self.words.fetch_max(source / 64 + 1, Ordering::Relaxed);
    }

    /// Sets the source's ready bit if it isn't set, between the publication and the look at the sleepers.
    ///
    /// The caller has published and called [`publish_fence`].
    #[inline]
    pub(crate) fn mark_ready(&self, source: usize) {
        let word = &self.ready[source / 64];
        let bit = 1 << (source % 64);
        if word.load(Ordering::Relaxed) & bit == 0 {
            // Release pairs with the Acquire in `ready_word`: the source's registration is visible.
            word.fetch_or(bit, Ordering::Release);
            // The sleeper looks at the bit, not at the ring: order it before the look at the wake word.
            publish_fence();
        }
    }

    /// Clears the bit before looking into the ring. Returns whether it was set.
    #[inline(always)]
    pub(crate) fn clear_ready(&self, source: usize) -> bool {
        self.clear_bit(source / 64, 1 << (source % 64))
    }

    /// The same of a bit of a word.
    #[inline(always)]
    pub(crate) fn clear_bit(&self, word: usize, bit: u64) -> bool {
        let before = self.ready[word].fetch_and(!bit, Ordering::Acquire);
        // Pairs with `publish_fence` before `mark_ready`'s look at the bit.
        fence(Ordering::SeqCst);
        before & bit != 0
    }

    /// A word of ready bits: sources `64 * word` and on.
    #[inline(always)]
    pub(crate) fn ready_word(&self, word: usize) -> u64 {
        // Acquire pairs with the Release in `mark_ready`.
        self.ready[word].load(Ordering::Acquire)
    }

    /// How many words of ready bits are in use.
    #[inline(always)]
    pub(crate) fn words(&self) -> usize {
        self.words.load(Ordering::Relaxed)
    }

    /// Whether any source is ready.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        // Mostly there is one word.
        let words = self.words();
        self.ready_word(0) != 0 || (words > 1 && (1..words).any(|word| self.ready_word(word) != 0))
    }
}

/// Workers that serve the same lanes.
pub(crate) struct Group {
    /// The op kinds served, in lane order.
    pub(crate) ops: Vec<OpKind>,
    pub(crate) workers: usize,
    crew: Crew,
    /// Of the busy workers, those that are in no store call.
    aside: AtomicUsize,
    /// The last is the spare.
    threads: Box<[OnceLock<Thread>]>,
    /// Listed ops, by worker and op kind, for which a call counts as overdue; and how many of these are not 0. Changed under the
    /// quarantine's lock.
    overdue: Box<[[AtomicU32; 4]]>,
    overdue_calls: AtomicUsize,
    /// An idle worker looks every now and then whether the calls of paced lanes end.
    watched: AtomicBool,
    /// A pair was made whose ops may linger; for good.
    lingers: AtomicBool,
    /// The idle worker that sleeps until what lingers is due.
    lingerer: Lingerer,
}

impl Group {
    pub(crate) fn new(ops: Vec<OpKind>, workers: usize) -> Self {
        Self {
            ops,
            workers,
            crew: Crew::new(workers),
            aside: AtomicUsize::new(0),
            threads: (0..=workers).map(|_| OnceLock::new()).collect(),
            overdue: (0..workers).map(|_| Default::default()).collect(),
            overdue_calls: AtomicUsize::new(0),
            watched: AtomicBool::new(false),
            lingers: AtomicBool::new(false),
            lingerer: Lingerer::new(),
        }
    }

    /// Called once by each worker, before it first sleeps.
    pub(crate) fn enrol(&self, worker: usize) {
        // A second call can't happen; if it did, the first handle would stand, of the same thread.
        let _ = self.threads[worker].set(std::thread::current());
    }

    /// Wakes a sleeper for what was published in `lane`, if one is needed: none spins, one sleeps, and it may take it.
    ///
    /// Where the lane has all the holders that it may have, nobody is woken: a holder looks for work after it let go, with
    /// a fence between the two ([`publish_fence`] in `Worker::complete`, or that of an announcement). So it sees
    /// what was published before a look at the holders that still found them all there.
    #[inline]
    pub(crate) fn wake_for(&self, lane: &Lane) {
        if self.needs_wake() && lane.can_be_held() {
            self.wake_one();
        }
    }

    /// Wakes a sleeper, if there is one.
    #[cold]
    pub(crate) fn wake_one(&self) {
        if let Some(worker) = self.crew.word().take_one(SLEEPERS) {
            self.unpark(worker as usize);
        }
    }

    /// One more op for which a worker's call is overdue. Whether it is the first. Under the quarantine's lock.
    ///
    /// The worker may be another one, where the op's own has not told its number yet. Such a call counts all the same, and
    /// [`remove_overdue`](Self::remove_overdue) with the same number takes it back.
    pub(crate) fn add_overdue(&self, worker: usize, op: OpKind) -> bool {
        let Some(ops) = self.overdue.get(worker) else {
            return false; // A spare, which makes no calls.
        };
        if ops[op.index()].fetch_add(1, Ordering::Relaxed) > 0 {
            return false;
        }
        self.overdue_calls.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence of the spare's announcement, so that one of the two sees the other.
        publish_fence();
        if self.wants_spare() {
            self.unpark(self.workers);
        }
        true
    }

    /// One less. Whether it was the last. Under the quarantine's lock.
    pub(crate) fn remove_overdue(&self, worker: usize, op: OpKind) -> bool {
        let ops = self.overdue.get(worker);
        let last = ops.is_some_and(|ops| ops[op.index()].fetch_sub(1, Ordering::Relaxed) == 1);
        if last {
            self.overdue_calls.fetch_sub(1, Ordering::Relaxed);
        }
        last
    }

    /// Whether all workers are in overdue calls.
    pub(crate) fn wants_spare(&self) -> bool {
        self.overdue_calls.load(Ordering::Relaxed) >= self.workers
    }

    /// Wakes everybody, for the end.
    pub(crate) fn wake_all(&self) {
        publish_fence();
        self.unpark(self.workers);
        let mut sleepers = self.crew.word().take(SLEEPERS);
        while sleepers != 0 {
            self.unpark(sleepers.trailing_zeros() as usize);
            sleepers &= sleepers - 1;
        }
    }

    fn unpark(&self, worker: usize) {
        if let Some(thread) = self.threads[worker].get() {
            thread.unpark();
        }
    }

    /// Whether whoever leaves work behind should wake a worker: one sleeps, none spins, and none is about to look by itself.
    #[inline(always)]
    pub(crate) fn needs_wake(&self) -> bool {
        self.crew.needs_wake()
    }

    /// Becomes the group's spinner, if it has none.
    pub(crate) fn start_spinning(&self) -> bool {
        if self.crew.word().announced() & SPINNING != 0 {
            return false;
        }
        self.crew.word().set_flag(SPINNING)
    }

    /// Stops spinning. Work published until now may have woken nobody: look again before you sleep.
    pub(crate) fn stop_spinning(&self) {
        self.crew.word().retract(SPINNING);
        // Pairs with `publish_fence`: who saw the flag published before this, and we see it.
        fence(Ordering::SeqCst);
    }

    /// Announces a worker as about to sleep. Look again after this.
    pub(crate) fn announce(&self, worker: usize) {
        self.crew.word().announce(1 << worker);
    }

    /// Takes the announcement back.
    pub(crate) fn retract(&self, worker: usize) {
        self.crew.word().retract(1 << worker);
    }

    /// Sleeps until somebody clears the announcement.
    pub(crate) fn sleep(&self, worker: usize) {
        while self.crew.word().peek(1 << worker) != 0 {
            std::thread::park();
        }
    }

    /// The same, but no longer than `most`, as the group's watcher. False where it has one.
    #[cold]
    pub(crate) fn nap(&self, worker: usize, most: Duration) -> bool {
        // Relaxed, as all of it: two watchers or, for one call, none do no harm.
        if self.watched.swap(true, Ordering::Relaxed) {
            return false;
        }
        std::thread::park_timeout(most);
        self.watched.store(false, Ordering::Relaxed);
        // Who took it has woken this worker, and it looks for work now.
        self.retract(worker);
        true
    }

    /// Whether the group has a watcher.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// Ops of a pair may linger from now on.
    pub(crate) fn may_linger(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    /// Whether there is or was a pair whose ops may linger. Who published for one has it seen: its thread set it before.
    #[inline]
    pub(crate) fn lingers(&self) -> bool {
        self.lingers.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn has_lingerer(&self) -> bool {
        self.lingerer.who().is_some()
    }

    /// Sleeps as the group's lingerer for as long as `time` says, or until it is woken. False where there is one. The worker is announced.
    #[cold]
    pub(crate) fn linger(&self, worker: usize, time: impl Fn() -> Duration) -> bool {
        self.lingerer.linger(self.crew.word(), worker, || {
            let time = time();
            if !time.is_zero() {
                std::thread::park_timeout(time);
            }
        })
    }

    /// Tells that something is due sooner than before. After a fence.
    #[cold]
    pub(crate) fn linger_less(&self) {
        match self.lingerer.who() {
            Some(worker) => self.unpark(worker),
            None if self.needs_wake() => self.wake_one(),
            None => {}
        }
    }

    /// A worker is about to be busy with what may take long. Look for work that is left after this, see [`Crew::enter`].
    #[inline(always)]
    pub(crate) fn enter(&self) {
        self.crew.enter();
    }

    #[inline(always)]
    pub(crate) fn leave(&self) {
        self.crew.leave();
    }

    /// A worker that [entered](Self::enter) is in no store call; until it [is back](Self::is_back).
    pub(crate) fn is_aside(&self) {
        self.aside.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn is_back(&self) {
        self.aside.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many workers are in a store call. A hint.
    pub(crate) fn calls(&self) -> usize {
        let aside = self.aside.load(Ordering::Relaxed);
        self.crew.busy().saturating_sub(aside)
    }

    /// Whether another worker could take part of a large batch right now. A hint.
    pub(crate) fn has_idle(&self) -> bool {
        // The caller is one of those not busy.
        self.crew.busy() + 1 < self.workers
    }

    /// Whether no worker could. A hint, for a caller that is busy itself.
    pub(crate) fn is_all_busy(&self) -> bool {
        self.crew.busy() >= self.workers
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Of a lane that never fails fast.
    pub(crate) const RULES: FailFast = FailFast {
        after: 0,
        pause: 0,
        max_batch: 1,
        overdue: 1,
    };

    #[test]
    fn ready_bits_are_set_and_cleared_in_their_words() {
        let lane = Lane::new(OpKind::Lookup, 0, 4, 200, 1, Pace::off(), RULES);
        assert!(!lane.is_ready());
        lane.open_source(130);
        let queue = lane.queue(Class::Background);
        for source in [130, 63, 64, 0] {
            queue.mark_ready(source);
            queue.mark_ready(source);
        }
        let words: Vec<_> = (0..queue.words()).map(|w| queue.ready_word(w)).collect();
        assert_eq!(words, [1 << 63 | 1, 1, 1 << 2]);
        assert!(queue.clear_ready(64));
        assert!(!queue.clear_ready(64));
        assert_eq!(queue.ready_word(1), 0);
        assert!(lane.is_ready());
    }

    #[test]
    fn what_counts_as_overdue_is_taken_back_as_it_was_added() {
        let group = Group::new(OpKind::ALL.to_vec(), 2);
        let (lookup, store) = (OpKind::Lookup, OpKind::Store);
        assert!(group.add_overdue(0, lookup) && !group.add_overdue(0, lookup));
        assert!(!group.wants_spare());
        // Of another worker, perhaps, that has not told its number yet.
        assert!(group.add_overdue(0, store) && group.wants_spare());
        assert!(!group.add_overdue(2, store), "the spare makes no calls");
        assert!(!group.remove_overdue(0, lookup) && group.wants_spare());
        assert!(group.remove_overdue(0, store) && !group.wants_spare());
        assert!(group.remove_overdue(0, lookup) && !group.remove_overdue(2, store));
        assert_eq!(group.overdue_calls.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_lane_is_held_by_no_more_than_its_bound() {
        let lane = Lane::new(OpKind::Store, 0, 4, 1, 2, Pace::off(), RULES);
        lane.queue(Class::Background).mark_ready(CLIENTS);
        assert!(lane.has_work() && lane.try_hold() && lane.has_work() && lane.try_hold());
        assert!(!lane.has_work() && !lane.try_hold());
        lane.release();
        assert!(lane.has_work() && lane.try_hold());
    }
}
