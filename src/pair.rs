//! A pair: one thread's own rings and its own completion ring.

use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::thread::Thread;
use std::time::{Duration, Instant};
use std::{fmt, io};

use crossbeam_utils::CachePadded;
use moonring_rings::completion::CompletionRing;
use moonring_rings::park::{WakeWord, publish_fence};
use moonring_rings::slots::{Ticket, Why};
use moonring_rings::spsc::{Consumer, Producer};

use crate::clock::Clock;
use crate::engine::Shared;
use crate::inflight::{NEVER, OpTable};
use crate::linger::{Added, Linger};
use crate::notify::{self, EventFd};
use crate::quarantine::Submitter;
use crate::store::RawResult;
use crate::submission::{Completion, Submission};
use crate::waker::OpWaker;
use crate::{Class, OpError, OpKind, Refused, Slot, SubmitError};

mod accept;
mod owner;

use owner::Owner;
pub(crate) use owner::{EndedOp, Notice};

/// A thread sleeps in `wait`.
const PARKED: u64 = 1 << 0;
/// The eventfd wants a signal.
const ARMED: u64 = 1 << 1;
/// The pair was dropped with ops in flight: who completes the last one clears up.
const ORPHAN: u64 = 1 << 2;
/// A task waits by `poll_ready`.
const AWAITED: u64 = 1 << 3;

// In a completion's word, above the entry's index.
const INDEX: u64 = (1 << 24) - 1;
/// The result is in the table.
const FAILED: u64 = 1 << 24;
/// A release notice follows.
const MORE: u64 = 1 << 25;
/// This is it.
const RELEASE: u64 = 1 << 26;

/// One for each op kind and class.
const RINGS: usize = OpKind::ALL.len() * Class::ALL.len();

// `PairBatch` and `Pair::publish` have a bit for each.
const _: () = assert!(RINGS == u8::BITS as usize);

/// A ring's place among a pair's.
#[inline]
fn ring_of(op: OpKind, class: Class) -> usize {
    class.index() * OpKind::ALL.len() + op.index()
}

/// What the workers see of a pair.
pub(crate) struct PairShared {
    /// Its number; its place among a lane's sources is one higher.
    pub(crate) id: usize,
    pub(crate) table: OpTable,
    completions: CompletionRing,
    rings: [Consumer<u64>; RINGS],
    /// Looked at by the workers with each completion.
    wake: CachePadded<WakeWord>,
    /// Who sleeps in `wait`. Written before PARKED is announced.
    waiter: Mutex<Option<Thread>>,
    /// The task that waits. Written before AWAITED is announced.
    task: Mutex<Option<OpWaker>>,
    pub(crate) event: OnceLock<OwnedFd>,
    orphan: Mutex<Option<Owner>>,
    /// Written by the owner with each op: apart from all that the workers look at.
    counts: CachePadded<Counts>,
}

/// What a pair's owner counts. One writer.
#[derive(Default)]
struct Counts {
    /// Ops accepted: counted before they are queued.
    accepted: AtomicU64,
    refused: AtomicU64,
    /// Ops whose last notice was reaped.
    reaped: AtomicU64,
}

impl Counts {
    /// No read-modify-write: there is one writer.
    #[inline(always)]
    fn add_one(count: &AtomicU64) {
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Ops that were accepted and not shown.
#[derive(Default)]
struct Staged {
    /// When the first of them was, in ticks.
    since: u64,
    /// Rings that have some, a bit each.
    rings: u8,
}

impl Staged {
    /// When the first was staged: now, if there is none yet.
    #[inline(always)]
    fn begin(&mut self, clock: &Clock) -> u64 {
        if self.rings == 0 {
            self.since = clock.raw();
        }
        self.since
    }
}

impl PairShared {
    #[inline]
    pub(crate) fn ring(&self, op: OpKind, class: Class) -> &Consumer<u64> {
        &self.rings[ring_of(op, class)]
    }

    /// Entries in its rings of an op kind. A hint.
    pub(crate) fn queued(&self, op: OpKind) -> usize {
        Class::ALL
            .map(|class| self.ring(op, class).ready())
            .iter()
            .sum()
    }

    /// Ops accepted since the pair was made.
    pub(crate) fn accepted(&self) -> u64 {
        self.counts.accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.counts.refused.load(Ordering::Relaxed)
    }

    /// Accepted, and the last notice not reaped.
    pub(crate) fn credits_in_use(&self) -> u64 {
        self.accepted()
            .saturating_sub(self.counts.reaped.load(Ordering::Relaxed))
    }

    /// Its place among a lane's sources.
    pub(crate) fn source(&self) -> usize {
        self.id + 1
    }

    /// Pushes the completions of ops. [`notify`](Self::notify) comes after, once for many.
    ///
    /// # Safety
    /// The caller must have claimed and ended the tickets, which must be this pair's and not abandoned, and tell of them only here.
    #[inline]
    pub(crate) unsafe fn complete<'r>(
        &self,
        ends: impl ExactSizeIterator<Item = (Ticket, &'r RawResult)>,
    ) {
        self.completions.push_all(ends.map(|(ticket, result)| {
            // SAFETY: the caller has ended the op.
            unsafe { self.entry_of(ticket, result) }
        }));
    }

    /// The same of one.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn complete_one(&self, ticket: Ticket, result: &RawResult) {
        // SAFETY: the caller has ended the op.
        let (word, value) = unsafe { self.entry_of(ticket, result) };
        self.completions.push(word, value);
    }

    /// What a completion ring has of an op's end. A pair's ops have no wakers and are never detached: there is nothing to finish.
    ///
    /// # Safety
    /// The caller must have ended the op, and not told of it yet.
    #[inline(always)]
    unsafe fn entry_of(&self, ticket: Ticket, result: &RawResult) -> (u64, u64) {
        let index = u64::from(ticket.index());
        match result {
            Ok(value) => (index, *value),
            Err(_) => {
                // SAFETY: the caller has ended the op.
                unsafe { self.table.ops().set_result(ticket.index(), *result) };
                (index | FAILED, 0)
            }
        }
    }

    /// Pushes the completion of an op that was abandoned.
    ///
    /// # Safety
    /// The caller must have abandoned the op, and tell of it only here.
    pub(crate) unsafe fn push_end(&self, ticket: Ticket, error: OpError, more: bool) {
        let index = ticket.index();
        // SAFETY: who ends an op writes its result; the owner reads it when it sees the entry.
        unsafe { self.table.ops().set_result(index, Err(error)) };
        let flags = if more { FAILED | MORE } else { FAILED };
        self.completions.push(u64::from(index) | flags, 0);
    }

    /// Pushes the release notice of an op that was ended with MORE.
    pub(crate) fn push_release(&self, ticket: Ticket) {
        let word = u64::from(ticket.index()) | FAILED | RELEASE;
        self.completions.push(word, 0);
    }

    /// The bytes of an op that was abandoned are nobody's any more.
    pub(crate) fn forget_bytes(&self, shared: &Shared, addr: usize, len: usize) {
        if len > 0 {
            shared.memory.live().remove(addr, len);
        }
    }

    /// Wakes who waits for completions; a task's waker goes to `wakers`, for the caller to wake without a lock. The caller has
    /// pushed the completions and called [`publish_fence`].
    #[inline]
    pub(crate) fn notify(&self, shared: &Shared, wakers: &mut Vec<OpWaker>) {
        if self.wake.announced() != 0 {
            self.notify_slow(shared, wakers);
        }
    }

    #[cold]
    fn notify_slow(&self, shared: &Shared, wakers: &mut Vec<OpWaker>) {
        let taken = self.wake.take(PARKED | ARMED | AWAITED);
        if taken & PARKED != 0
            && let Some(thread) = &*self.waiter.lock().unwrap_or_else(|e| e.into_inner())
        {
            thread.unpark();
        }
        if taken & ARMED != 0
            && let Some(event) = self.event.get()
        {
            notify::signal(event);
        }
        if taken & AWAITED != 0 {
            // A waker that was renewed in between is woken just as well: its task then looks again.
            wakers.extend(self.set_task(None));
        }
        if self.wake.peek(ORPHAN) != 0 {
            self.reap_orphan(shared);
        }
    }

    /// Returns the waker that was there; dropping it runs the caller's code.
    fn set_task(&self, waker: Option<OpWaker>) -> Option<OpWaker> {
        mem::replace(
            &mut *self.task.lock().unwrap_or_else(|e| e.into_inner()),
            waker,
        )
    }

    /// The engine is closed: wakes every waiter and leaves the eventfd readable.
    pub(crate) fn wake_closed(&self, shared: &Shared, wakers: &mut Vec<OpWaker>) {
        publish_fence();
        self.notify(shared, wakers);
        if let Some(event) = self.event.get() {
            notify::signal(event);
        }
    }

    /// Reaps for a pair that was dropped; forgets it when nothing is in flight any more.
    fn reap_orphan(&self, shared: &Shared) {
        let mut orphan = self.orphan.lock().unwrap_or_else(|e| e.into_inner());
        let Some(owner) = &mut *orphan else { return };
        while owner.reap(self, shared).is_some() {}
        if owner.in_flight() == 0 {
            *orphan = None;
            drop(orphan);
            shared.pairs.forget(self);
        }
    }
}

/// One thread's way to the engine: a submitter with its own rings, and its completions.
///
/// `Send`, not `Sync`: one thread at a time. [`depth`](Pair::depth) is how many ops can be in flight, from acceptance until
/// their last notice is reaped; the completion ring has room for both notices of each, so none is ever lost.
///
/// ```
/// # use moonring::{Engine, Submission, Done, Region, RegionOptions, SlotClass, store::{MemoryOptions, MemoryStore}};
/// # use std::sync::Arc;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let region = Region::allocate(RegionOptions::new(1 << 20))?;
/// let slots = region.slot_pool(&[SlotClass { size: 4096, count: 8 }])?;
/// let engine = Engine::builder(Arc::new(MemoryStore::new(MemoryOptions::default())?)).region(region).start()?;
/// let mut pair = engine.pair(64)?;
///
/// let mut slot = slots.lend(5).ok_or("no slot")?;
/// slot.copy_from_slice(b"hello");
/// pair.submit(Submission::store(b"key", slot).user_data(1))?;
/// pair.wait(1, None)?;
/// let stored = pair.poll().ok_or("no completion")?;
/// assert_eq!((stored.user_data, stored.result.is_ok()), (1, true));
///
/// pair.submit(Submission::retrieve(b"key", stored.slot.ok_or("no slot")?))?;
/// pair.wait(1, None)?;
/// let got = pair.poll().ok_or("no completion")?;
/// assert_eq!(got.result, Ok(Done::Retrieved(5)));
/// assert_eq!(&got.slot.ok_or("no slot")?[..], b"hello");
/// # Ok(()) }
/// ```
///
/// Dropping a pair publishes what was pushed and gives up its completions: its ops go on, their slots return to their
/// pools by themselves. What is promised for raw spans stands until the ops end, which nobody is told then.
pub struct Pair {
    shared: Arc<PairShared>,
    engine: Arc<Shared>,
    producers: [Producer<u64>; RINGS],
    staged: Staged,
    /// The soonest deadline of what is staged, in ticks.
    soonest: u64,
    /// Its ops may wait for a fuller call.
    linger: Option<Linger>,
    /// Taken out only when the pair is dropped.
    owner: ManuallyDrop<Owner>,
    /// Not `Sync`, though all that changes it takes `&mut self`: so that it can stay a promise.
    one_thread: PhantomData<std::cell::Cell<()>>,
}

/// What a pair is to be: [`Engine::pair_with`](crate::Engine::pair_with).
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// # use moonring::{Engine, PairOptions, store::NullStore};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::builder(Arc::new(NullStore)).start()?;
/// let options = PairOptions::new(64).linger(32, Duration::from_micros(200));
/// let pair = engine.pair_with(options)?;
/// assert_eq!(pair.depth(), 64);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PairOptions {
    pub(crate) depth: usize,
    pub(crate) linger: Option<(usize, Duration)>,
}

impl PairOptions {
    /// At most `depth` ops in flight, of all kinds together; nothing else.
    pub fn new(depth: usize) -> Self {
        Self {
            depth,
            linger: None,
        }
    }

    /// The pair's ops may wait for a fuller store call: until `ops` of their kind wait (of all pairs that linger; at most `max_batch`), but no
    /// longer than `budget`. Whatever makes a call of that kind earlier takes them along, and an op with a timeout waits no longer than half
    /// of it. They go at once while the engine shuts down, while their kind's circuit is open, and where a worker is driven by hand. Ops
    /// of other pairs and of clients never wait. Without effect where `ops` is below 2 or `budget` is 0.
    ///
    /// Worth it where a call costs much by itself and little comes at a time; it costs up to `budget` of latency
    /// (measured: `docs/merging.md` in the repository).
    pub fn linger(mut self, ops: usize, budget: Duration) -> Self {
        self.linger = Some((ops, budget));
        self
    }
}

/// Why [`Pair::wait`] came back with fewer completions than asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The time was up.
    #[error("timed out while waiting for completions")]
    TimedOut,
    /// The engine was shut down while ops were in store calls that had not returned.
    #[error("the engine is shut down, and store calls have not returned")]
    ShutDown,
    /// This is a forked child: the pair's ops end in its parent.
    #[error("the pair belongs to the parent of this forked process")]
    Forked,
}

/// What becomes of an op that is cancelled while a store call has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfRunning {
    /// It ends as its call does.
    Wait,
    /// It ends at once as [`OpError::Cancelled`], with [`more`](Completion::more); its bytes are in quarantine until the call returns.
    Abandon,
}

/// What [`Pair::cancel`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// The op was queued, and ends as [`OpError::Cancelled`] (never started).
    NeverStarted,
    /// A store call has it; it ends as [`OpError::Cancelled`] (in progress), and its release notice follows.
    Abandoned,
    /// A store call has it; it ends as the call does.
    Running,
    /// It has ended already.
    Ended,
    /// This is a forked child: the pair's ops end in its parent.
    Forked,
}

impl Pair {
    pub(crate) fn new(engine: Arc<Shared>, id: usize, depth: usize) -> (Self, Arc<PairShared>) {
        let config = &engine.config;
        let mut rings = Vec::new();
        let producers = [(); RINGS].map(|()| {
            let (producer, consumer) = moonring_rings::spsc::ring(depth);
            rings.push(consumer);
            producer
        });
        let rings = match <[_; RINGS]>::try_from(rings) {
            Ok(rings) => rings,
            Err(_) => unreachable!("as many consumers as producers"),
        };
        let table = OpTable::new(depth, config.long_keys, config.max_key, false);
        let owner = Owner::new(depth, table.long_key_places());
        let shared = Arc::new(PairShared {
            id,
            table,
            completions: CompletionRing::new(depth),
            rings,
            wake: CachePadded::default(),
            waiter: Mutex::new(None),
            task: Mutex::new(None),
            event: OnceLock::new(),
            orphan: Mutex::new(None),
            counts: CachePadded::default(),
        });
        let pair = Self {
            shared: Arc::clone(&shared),
            engine,
            producers,
            staged: Staged::default(),
            soonest: NEVER,
            linger: None,
            owner: ManuallyDrop::new(owner),
            one_thread: PhantomData,
        };
        (pair, shared)
    }

    /// How many ops can be in flight.
    pub fn depth(&self) -> usize {
        self.shared.table.depth()
    }

    /// How many ops are in flight: accepted, and their last notice not reaped.
    pub fn in_flight(&self) -> usize {
        self.owner.in_flight()
    }

    /// How many more ops can be accepted before completions must be reaped.
    pub fn credits(&self) -> usize {
        self.depth() - self.in_flight()
    }

    /// Submits one op and shows it to the workers.
    ///
    /// # Errors
    /// The op comes back whole, with the reason.
    #[inline(always)]
    pub fn submit<'k>(
        &mut self,
        submission: Submission<'k>,
    ) -> Result<Ticket, Refused<Submission<'k>>> {
        let mut batch = self.batch();
        batch.push(submission)
        // Dropping the batch publishes.
    }

    /// Begins a batch: ops pushed into it are shown to the workers together, by one publication.
    #[inline]
    pub fn batch(&mut self) -> PairBatch<'_> {
        PairBatch { pair: self }
    }

    /// Shows what was staged to the workers, by one publication. Whether there was something.
    #[inline]
    pub(crate) fn show(&mut self) -> bool {
        let rings = mem::take(&mut self.staged.rings);
        if rings != 0 {
            self.publish(rings);
        }
        rings != 0
    }

    #[cold]
    fn count_refused(&self) {
        Counts::add_one(&self.shared.counts.refused);
    }

    /// Shows what was staged in the rings given (a bit each).
    #[inline]
    fn publish(&mut self, rings: u8) {
        // Mostly it is one.
        if self.linger.is_none() && rings.is_power_of_two() {
            let ring = rings.trailing_zeros() as usize;
            self.producers[ring].publish();
            publish_fence();
            self.note_deadline();
            self.announce(ring);
        } else {
            self.publish_all(rings);
        }
    }

    /// The same for several rings, and where ops may wait for company.
    fn publish_all(&mut self, rings: u8) {
        let is_in = |ring: &usize| rings & 1 << ring != 0;
        let mut shown = [0; RINGS];
        for ring in (0..RINGS).filter(is_in) {
            shown[ring] = self.producers[ring].publish() as u32;
        }
        publish_fence();
        let soonest = self.soonest;
        self.note_deadline();
        for ring in (0..RINGS).filter(is_in) {
            if !self.lingers(ring, shown[ring], soonest) {
                self.announce(ring);
            }
        }
    }

    /// Tells the timer of the soonest deadline of what was shown.
    #[inline]
    fn note_deadline(&mut self) {
        if self.soonest != NEVER {
            let soonest = mem::replace(&mut self.soonest, NEVER);
            self.engine.timer.note(&self.shared.table, soonest);
        }
    }

    /// Says that a ring has something, after the fence.
    #[inline]
    fn announce(&self, ring: usize) {
        let lane = &self.engine.lanes[ring % OpKind::ALL.len()];
        lane.queues[ring / OpKind::ALL.len()].mark_ready(self.shared.source());
        if lane.is_closed() {
            self.engine.end_queued(&self.shared, lane.op);
        } else {
            self.engine.groups[lane.group].wake_for(lane);
        }
    }

    pub(crate) fn may_linger(&mut self, ops: u32, budget: u64) {
        self.linger = Some(Linger { ops, budget });
    }

    /// Whether what was just shown in a ring waits for company; else it is to be announced as always.
    fn lingers(&self, ring: usize, shown: u32, deadline: u64) -> bool {
        let Some(linger) = &self.linger else {
            return false;
        };
        let engine = &*self.engine;
        let lane = &engine.lanes[ring % OpKind::ALL.len()];
        let group = &engine.groups[lane.group];
        let now = engine.clock.raw();
        let mut budget = linger.budget;
        if deadline != NEVER {
            // It shall still have a call.
            budget = budget.min(deadline.saturating_sub(now) / 2);
        }
        let class = Class::ALL[ring / OpKind::ALL.len()];
        let added = lane.lingering.add(
            class.index(),
            self.shared.source(),
            shown.into(),
            linger.ops.into(),
            now.saturating_add(budget).min(NEVER - 1),
        );
        // Pairs with those of a lingerer, and of workers that leave a closing engine or are in overdue calls.
        publish_fence();
        if engine.is_closing() || lane.circuit.is_open() || group.wants_spare() {
            return false;
        }
        match added {
            Added::Enough => false,
            Added::Waits { first } => {
                if first {
                    group.linger_less();
                }
                true
            }
        }
    }

    /// The next completion, if there is one. Gives its credit back. In a forked child there is none.
    #[inline(always)]
    pub fn poll(&mut self) -> Option<Completion> {
        if self.engine.is_forked() {
            return None;
        }
        self.owner.reap(&self.shared, &self.engine)
    }

    /// What [`poll`](Self::poll) makes a completion of, for who has seen that this is no forked child.
    #[inline(always)]
    pub(crate) fn next_notice(&mut self) -> Option<Notice> {
        self.owner.next_notice(&self.shared)
    }

    /// The op of such a notice: gives its credit back. Once for each.
    #[inline(always)]
    pub(crate) fn end_well(&mut self, index: u32) -> (EndedOp, Option<Slot>) {
        self.owner.end_well(index, &self.shared, &self.engine)
    }

    /// The same.
    pub(crate) fn end_other(&mut self, word: u64) -> (EndedOp, RawResult, Option<Slot>) {
        self.owner.end_other(word, &self.shared, &self.engine)
    }

    /// Drains the completions that are there, and those that come while it does.
    pub fn completions(&mut self) -> impl Iterator<Item = Completion> + '_ {
        std::iter::from_fn(|| self.poll())
    }

    /// Cancels an op of this pair. What is said of it comes as a completion, as always.
    ///
    /// The ticket must be one of this pair's: pairs number their ops alike, and another's may name one of these.
    pub fn cancel(&mut self, ticket: Ticket, running: IfRunning) -> Cancel {
        if self.engine.is_forked() {
            return Cancel::Forked;
        }
        let cell = self.owner.cells().get(ticket.index() as usize);
        // A ticket of an op that is long gone is none here.
        if cell.is_none_or(|cell| cell.ticket != ticket) {
            return Cancel::Ended;
        }
        let engine = &*self.engine;
        let from = Submitter::Pair(&self.shared);
        let mut wakers = Vec::new(); // Of a task that waits for this pair.
        let abandon = running == IfRunning::Abandon;
        match engine.abandon(from, ticket, Why::Cancel, abandon, &mut wakers) {
            Some(started) => {
                publish_fence();
                self.shared.notify(engine, &mut wakers);
                wakers.into_iter().for_each(OpWaker::wake);
                match started {
                    true => Cancel::Abandoned,
                    false => Cancel::NeverStarted,
                }
            }
            None => {
                // SAFETY: there is a cell for it, so the index is below the depth.
                match unsafe { self.shared.table.ops().pending(ticket.index()) } {
                    Some((now, _)) if now == ticket => Cancel::Running,
                    // Also where its worker has claimed its end: its result stands, and is told in a moment.
                    _ => Cancel::Ended,
                }
            }
        }
    }

    /// Cancels every op that was submitted with this `user_data`. Returns how many have been cancelled or abandoned by this.
    pub fn cancel_all(&mut self, user_data: u64, running: IfRunning) -> usize {
        let mut cancelled = 0;
        for index in 0..self.owner.cells().len() {
            let cell = &self.owner.cells()[index];
            if cell.user_data == user_data {
                let cancel = self.cancel(cell.ticket, running);
                cancelled +=
                    usize::from(matches!(cancel, Cancel::NeverStarted | Cancel::Abandoned));
            }
        }
        cancelled
    }

    /// Waits until at least `n` completions can be reaped, or all ops in flight if those are fewer. Spins for the
    /// configured `spin_us`, then sleeps.
    ///
    /// # Errors
    /// [`WaitError`]; what is there can be reaped all the same.
    pub fn wait(&mut self, n: usize, timeout: Option<Duration>) -> Result<(), WaitError> {
        if self.engine.is_forked() {
            return Err(WaitError::Forked);
        }
        let n = n.min(self.in_flight());
        if n == 0 || self.has_ready(n) {
            return Ok(());
        }
        let start = Instant::now();
        let spin = self.spin();
        let deadline = timeout.and_then(|t| start.checked_add(t));
        loop {
            for _ in 0..64 {
                if self.has_ready(n) {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if deadline.is_some_and(|d| now >= d) {
                return Err(WaitError::TimedOut);
            }
            if now - start >= spin {
                break;
            }
        }
        *self.shared.waiter.lock().unwrap_or_else(|e| e.into_inner()) =
            Some(std::thread::current());
        loop {
            self.shared.wake.announce(PARKED);
            if self.has_ready(n) {
                self.shared.wake.retract(PARKED);
                return Ok(());
            }
            if self.engine.is_closed() {
                self.shared.wake.retract(PARKED);
                return match self.has_ready(n) {
                    true => Ok(()),
                    false => Err(WaitError::ShutDown),
                };
            }
            while self.shared.wake.peek(PARKED) != 0 {
                match deadline {
                    None => std::thread::park(),
                    Some(deadline) => {
                        let now = Instant::now();
                        if now >= deadline {
                            self.shared.wake.retract(PARKED);
                            return match self.has_ready(n) {
                                true => Ok(()),
                                false => Err(WaitError::TimedOut),
                            };
                        }
                        std::thread::park_timeout(deadline - now);
                    }
                }
            }
        }
    }

    /// Waits as [`wait`](Pair::wait) for `n` completions, but for no more than one once `min_wait` is over, and for that one no longer
    /// than `timeout` altogether: a fuller look within a budget. What `io_uring_submit_and_wait_min_timeout` is for a ring.
    ///
    /// # Errors
    /// [`WaitError`]; what is there can be reaped all the same.
    pub fn wait_min(
        &mut self,
        n: usize,
        min_wait: Duration,
        timeout: Option<Duration>,
    ) -> Result<(), WaitError> {
        let first = timeout.map_or(min_wait, |timeout| timeout.min(min_wait));
        match self.wait(n, Some(first)) {
            Err(WaitError::TimedOut) => self.wait(1, timeout.map(|all| all.saturating_sub(first))),
            other => other,
        }
    }

    /// Whether a completion can be reaped, or nothing is in flight; else the task is woken when that may have changed. For
    /// one task at a time: the last that asked.
    ///
    /// ```
    /// # use moonring::{Engine, Submission, store::NullStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::builder(std::sync::Arc::new(NullStore)).start()?;
    /// let mut pair = engine.pair(64)?;
    /// pair.submit(Submission::lookup("key"))?;
    /// let completion = moonring::block_on(async {
    ///     std::future::poll_fn(|cx| pair.poll_ready(cx)).await?;
    ///     Ok::<_, moonring::WaitError>(pair.poll())
    /// })?;
    /// assert!(completion.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`WaitError`], but never [`WaitError::TimedOut`].
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WaitError>> {
        if self.engine.is_forked() {
            return Poll::Ready(Err(WaitError::Forked));
        }
        if self.in_flight() == 0 || self.has_ready(1) {
            return Poll::Ready(Ok(()));
        }
        drop(self.set_task(Some(OpWaker::of(cx.waker()))));
        let ready = self.await_ready();
        if ready.is_ready() {
            drop(self.set_task(None));
        }
        ready
    }

    /// Sets the waker of [`await_ready`](Self::await_ready). Returns the one before; dropping it runs the caller's code.
    pub(crate) fn set_task(&mut self, waker: Option<OpWaker>) -> Option<OpWaker> {
        self.shared.set_task(waker)
    }

    /// [`poll_ready`](Self::poll_ready), for a task whose waker is set.
    pub(crate) fn await_ready(&mut self) -> Poll<Result<(), WaitError>> {
        if self.engine.is_forked() {
            return Poll::Ready(Err(WaitError::Forked));
        }
        if self.in_flight() == 0 {
            return Poll::Ready(Ok(()));
        }
        self.shared.wake.announce(AWAITED);
        let closed = self.engine.is_closed();
        let ready = self.has_ready(1);
        if !ready && !closed {
            return Poll::Pending;
        }
        self.shared.wake.retract(AWAITED);
        Poll::Ready(if ready {
            Ok(())
        } else {
            Err(WaitError::ShutDown)
        })
    }

    /// Refuses an op of a closing engine without looking at it.
    pub(crate) fn refuse(&self) -> SubmitError {
        self.count_refused();
        self.engine.refusal()
    }

    /// How long whoever waits for completions looks for them before it sleeps.
    pub(crate) fn spin(&self) -> Duration {
        Duration::from_micros(u64::from(self.engine.config.spin_us))
    }

    /// Whether nothing more is accepted.
    pub(crate) fn is_closing(&self) -> bool {
        self.engine.is_closing()
    }

    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.engine.is_forked()
    }

    fn has_ready(&self, n: usize) -> bool {
        (0..n).all(|i| self.shared.completions.has_ready(&self.owner.cursor, i))
    }

    /// The pair's eventfd, opened at the first call. It becomes readable at most once per [`arm`](Pair::arm), and stays
    /// readable once the engine is shut down or the pair dropped.
    ///
    /// # Errors
    /// The system's, where no descriptor can be opened. Any call in a forked child: the descriptor is shared with the parent.
    pub fn event_fd(&self) -> io::Result<EventFd> {
        if self.engine.is_forked() {
            return Err(io::Error::other(WaitError::Forked));
        }
        if self.shared.event.get().is_none() {
            // Two handles can't race: the pair is not `Sync`, and nobody else opens it.
            let _ = self.shared.event.set(notify::open()?);
            // Pairs with the fence in `wake_closed`: it sees the descriptor, or we see that the engine is closed.
            publish_fence();
            if self.engine.is_closed()
                && let Some(event) = self.shared.event.get()
            {
                notify::signal(event);
            }
        }
        Ok(EventFd(Arc::clone(&self.shared)))
    }

    /// Asks for one signal of the eventfd at the next completion. Call it after draining, before sleeping: with `false`
    /// there is something to reap (or the engine is shut down), and no need to sleep.
    ///
    /// Takes back the readability that an earlier signal left, so it serves level- and edge-triggered hosts.
    /// Without an [`event_fd`](Pair::event_fd) there is nothing to arm, and the answer is `false`; so it is in a forked child.
    pub fn arm(&mut self) -> bool {
        if self.engine.is_forked() {
            return false;
        }
        let Some(event) = self.shared.event.get() else {
            return false;
        };
        notify::clear(event);
        self.shared.wake.announce(ARMED);
        if self.engine.is_closed() {
            // The closing signal may be what was just cleared.
            notify::signal(event);
            return false;
        }
        if self.has_ready(1) {
            self.shared.wake.retract(ARMED);
            return false;
        }
        true
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if self.engine.is_forked() {
            // The ops are the parent's, and the eventfd is shared with it.
            // SAFETY: nobody uses the pair after this.
            unsafe { ManuallyDrop::drop(&mut self.owner) };
            return;
        }
        // Nothing more comes: what lingers goes.
        let lingers = self.linger.take().is_some();
        let mut rings = 0;
        for (ring, producer) in self.producers.iter_mut().enumerate() {
            // Of a batch that was leaked.
            let shown = producer.publish() > 0;
            let waits = lingers && self.shared.rings[ring].ready() > 0;
            rings |= u8::from(shown || waits) << ring;
        }
        self.publish(rings);
        // The task that had the pair may be in its own waker.
        drop(self.set_task(None));
        // Nobody arms it any more: who sleeps on it must not sleep for ever.
        if let Some(event) = self.shared.event.get() {
            notify::signal(event);
        }
        // SAFETY: nobody uses the pair after this.
        let mut owner = unsafe { ManuallyDrop::take(&mut self.owner) };
        while owner.reap(&self.shared, &self.engine).is_some() {}
        if owner.in_flight() == 0 {
            self.engine.pairs.forget(&self.shared);
            return;
        }
        *self.shared.orphan.lock().unwrap_or_else(|e| e.into_inner()) = Some(owner);
        self.shared.wake.announce(ORPHAN);
        // What came before the announcement nobody else reaps.
        self.shared.reap_orphan(&self.engine);
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("id", &self.shared.id)
            .field("depth", &self.depth())
            .field("in_flight", &self.in_flight())
            .finish()
    }
}

/// Ops that are pushed one by one and shown to the workers together.
///
/// An op is accepted when it is pushed. [`publish`](PairBatch::publish) or dropping the batch shows the ops;
/// there is no way to take them back. What can't be accepted is refused alone, by its push.
#[derive(Debug)]
pub struct PairBatch<'a> {
    pair: &'a mut Pair,
}

impl PairBatch<'_> {
    /// Accepts one op.
    ///
    /// # Errors
    /// The op comes back whole, with the reason; the ops pushed before stay accepted.
    #[inline(always)]
    pub fn push<'k>(
        &mut self,
        submission: Submission<'k>,
    ) -> Result<Ticket, Refused<Submission<'k>>> {
        self.pair.stage(submission)
    }

    /// How many more ops can be pushed before completions must be reaped.
    pub fn credits(&self) -> usize {
        self.pair.credits()
    }

    /// Shows the ops to the workers.
    pub fn publish(self) {}
}

impl Drop for PairBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        self.pair.show();
    }
}
