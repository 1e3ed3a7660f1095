//! The table of ops in flight: tickets, and the state of each op.
//!
//! Each op that is accepted holds one **entry** from acceptance until its last notice is reaped; how many entries
//! there are is the depth, and a free entry is a **credit**. A [`Ticket`] names an op for good: the entry's index
//! and its generation, which grows each time the entry is used again. So an old ticket is harmless: every step
//! below compares the generation and the phase in the same atomic step that changes them.
//!
//! ```text
//!          queue             hold                end                 finish
//!  FREE ─────────▶ QUEUED ─────────▶ RUNNING ─────────▶ ENDING ─────────────▶ DONE
//!   ▲     owner       │      worker     │      worker            worker        │
//!   │                 │                 │                                      │
//!   │                 │ abandon:        │ abandon: deadline, cancel, shutdown  │
//!   │                 │ never started   ▼                                      │
//!   │                 │              OVERDUE ─────────▶ RELEASING ───────▶ RELEASED
//!   │                 │                 │      end                 finish      │
//!   │                 ▼                 │                                      │
//!   │               DONE                │ the terminal notice is out, with     │
//!   │                 │                 │ MORE; the bytes are still in use     │
//!   └─────────────────┴─────────────────┴──────────────────────────────────────┘
//!      reap (owner), or finish of a detached op (who finishes it)
//! ```
//!
//! Each arrow is one atomic step on the op's word, so of all that race for an op (a worker, a deadline, a cancel, a
//! shutdown) one wins each step, and the others see that they lost. `end` is the worker's claim of the op's end: it
//! comes before the op is counted and its result told. An op that was abandoned before says in its word why, see [`Why`];
//! that reason is its result, whatever the call brings.
//!
//! | step | by | loses to |
//! | --- | --- | --- |
//! | `hold` | worker | `abandon` of a queued op: its ring entry is a tombstone |
//! | `abandon` | timer, canceller, shutdown | `hold` (a queued op becomes a running one), `end` |
//! | `end` | worker that claimed | `abandon` of a running op: the op is released, not ended |
//! | `finish` | worker that ended | nobody |
//!
//! Who may touch what:
//!
//! | phase | descriptor | waker cell |
//! | --- | --- | --- |
//! | FREE | the owner | the owner |
//! | QUEUED to ENDING | nobody writes | the owner while the WAKER flag is off |
//! | OVERDUE, RELEASING | nobody writes | who abandoned it until it clears the WAKER flag, then the owner |
//! | DONE, RELEASED | the owner | who ended it until it clears the WAKER flag, then the owner |
//!
//! The owner is the pair's thread, the future, or, once DETACHED is set, who finishes. DONE with the WAKER
//! flag still set is the moment in which its waker is taken: the result can be read, but the entry can't be used
//! again yet. [`Table::reap`] tells; it leaves the entry to the one who takes the waker then, and nobody waits.
//!
//! A pair's ops have no wakers, and a completion ring tells their end: for them `end` is the last step.
//!
//! Who abandons a running op must be off its descriptor and its waker cell before the worker that claimed it calls `finish`:
//! the engine does both under the lock of its quarantine.

use core::fmt;

use crate::sync::{AtomicU64, Ordering, UnsafeCell, broken, ordering};

const INDEX_BITS: u32 = 24;
const INDEX: u64 = (1 << INDEX_BITS) - 1;
/// The generation in a ticket, and in the state word: 39 bits above the index, or the phase and its flags.
const GENERATION: u64 = !INDEX & (u64::MAX >> 1);
const ONE_GENERATION: u64 = 1 << INDEX_BITS;

/// Most ops in flight in one table.
pub const MAX_DEPTH: usize = 1 << INDEX_BITS;

/// Names one accepted op: index and generation. Never 2^63 or more, so it fits the rings.
///
/// A generation comes back after 2^39 ops on one entry; a ticket kept for longer than that is no longer safe to use.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// The ticket as a ring's word.
    #[inline(always)]
    pub fn to_word(self) -> u64 {
        self.0
    }

    /// The ticket that was turned into this word.
    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The ticket before an entry's first, for [`Table::queue_after`].
    pub const fn before_first(index: u32) -> Self {
        Self(index as u64 & INDEX)
    }

    /// That of the entry's next use.
    #[inline(always)]
    fn next(self) -> Self {
        Self(self.0.wrapping_add(ONE_GENERATION) & (u64::MAX >> 1))
    }

    /// The entry's place in its table.
    #[inline(always)]
    pub fn index(self) -> u32 {
        (self.0 & INDEX) as u32
    }

    /// Which use of the entry this is.
    #[inline(always)]
    pub fn generation(self) -> u64 {
        self.0 >> INDEX_BITS
    }

    /// Whether a state word is of this use of the entry.
    #[inline(always)]
    fn is_of(self, state: u64) -> bool {
        (self.0 ^ state) & GENERATION == 0
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({}.{})", self.index(), self.generation())
    }
}

// The state word: generation, reason, flags, phase. `end` and `finish` add 1.
const PHASE: u64 = 0b111;
const QUEUED: u64 = 1;
const RUNNING: u64 = 2;
const ENDING: u64 = 3;
const DONE: u64 = 4;
const OVERDUE: u64 = 5;
const RELEASING: u64 = 6;
const RELEASED: u64 = 7;
/// A waker lies in the cell; who tells the end takes it, and clears the flag when it is off the cell.
const WAKER: u64 = 1 << 3;
/// The owner is gone; who finishes recycles the entry.
const DETACHED: u64 = 1 << 4;
/// A [`Why`], of an op that was abandoned.
const WHY_SHIFT: u32 = 5;
const WHY: u64 = 0b11 << WHY_SHIFT;

/// Why an op was abandoned before its call returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Why {
    /// Its deadline passed.
    Deadline = 1,
    /// Its owner cancelled it.
    Cancel = 2,
    /// The engine is shut down.
    ShutDown = 3,
}

impl Why {
    fn of(word: u64) -> Option<Self> {
        match (word & WHY) >> WHY_SHIFT {
            0 => None,
            1 => Some(Why::Deadline),
            2 => Some(Why::Cancel),
            _ => Some(Why::ShutDown),
        }
    }

    fn bits(self) -> u64 {
        (self as u64) << WHY_SHIFT
    }
}

#[inline(always)]
fn word(ticket: Ticket, low: u64) -> u64 {
    ticket.0 & GENERATION | low
}

/// State and descriptor side by side: with a descriptor of up to 56 bytes, one cache line an op.
#[repr(align(64))]
struct Entry<D> {
    state: AtomicU64,
    descriptor: UnsafeCell<D>,
}

/// What goes back to an op's owner, in one cache line.
#[repr(align(32))]
struct Mail<W, R> {
    waker: UnsafeCell<Option<W>>,
    result: UnsafeCell<R>,
}

/// The table. `D` is the descriptor that workers read, `W` the waker of an op's owner, `R` how an op ended.
pub struct Table<D, W = (), R = ()> {
    entries: Box<[Entry<D>]>,
    mail: Box<[Mail<W, R>]>,
    /// log2 of how many places in `mail` an entry has. Only the first is used.
    spread: u32,
}

// SAFETY: who may touch which cell is decided by the state word, see the module's table; descriptors, wakers and results
// go from one thread to another.
unsafe impl<D: Send, W: Send, R: Send> Send for Table<D, W, R> {}
// SAFETY: as above. A `&D` is shared between threads only as `Table::peek` says, whose caller vouches for it.
unsafe impl<D: Send, W: Send, R: Send> Sync for Table<D, W, R> {}

/// What is to be done after an op's end was told.
#[derive(Debug, PartialEq, Eq)]
pub enum Finished<W> {
    /// The owner will see it by itself.
    Quiet,
    /// Wake the owner.
    Wake(W),
    /// The owner is gone: the entry is the caller's, to recycle. A waker comes along where the owner saw the op done
    /// while it was being taken; it needs no wake any more.
    Detached(Option<W>),
}

/// What [`Held::end`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The caller's result is the op's.
    InTime,
    /// The op was abandoned, and that was told with MORE: its release is to be told now.
    Abandoned,
}

/// What [`Table::abandon`] did.
#[derive(Debug, PartialEq, Eq)]
pub enum Abandoned<W> {
    /// The op was queued and is done: no store call has taken it, and none will.
    NeverStarted(Finished<W>),
    /// A store call has it: its owner is told now, its release follows. A waker is to be woken.
    Running(Option<W>),
}

/// How far an op is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No worker has taken it.
    Queued,
    /// A worker has it.
    Running,
    /// Its owner can take its result: the call's (`None`), or that it was abandoned, and whether a store call had taken it by then.
    /// `more`: that call has not returned.
    Ended {
        /// Why it was abandoned, and whether a store call had taken it.
        why: Option<(Why, bool)>,
        /// A store call may still use its bytes.
        more: bool,
    },
    /// Another use of the entry, or none.
    Gone,
}

/// The op has ended already: its result can be taken.
#[derive(Debug, PartialEq, Eq)]
pub struct Done;

/// An op that was claimed: the way to its entry, without another look at the table.
pub struct Held<D>(*const Entry<D>);

impl<D> Clone for Held<D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for Held<D> {}

impl<D> Held<D> {
    /// No op.
    pub const NONE: Self = Self(core::ptr::null());

    /// Whether it is [`NONE`](Self::NONE).
    #[inline]
    pub fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// The descriptor, which nobody writes until the op is finished.
    ///
    /// # Safety
    /// It must be an op, and its table alive.
    #[inline(always)]
    pub unsafe fn descriptor(self) -> *const D {
        // SAFETY: the caller vouches for the entry.
        unsafe { (*self.0).descriptor.with(|d| d) }
    }

    /// RUNNING → ENDING, or OVERDUE → RELEASING: from now on nobody else ends the op. One step, for whoever has come first.
    ///
    /// # Safety
    /// It must be an op that was not ended, and its table alive.
    #[inline(always)]
    pub unsafe fn end(self) -> Ended {
        // SAFETY: the caller vouches for the entry.
        let state = unsafe { &(*self.0).state };
        // Relaxed: it shows nothing. `finish` does, and what is to be known of an abandoned op is known under the lock.
        let before = state.fetch_add(1, Ordering::Relaxed);
        debug_assert!(matches!(before & PHASE, RUNNING | OVERDUE));
        match before & PHASE {
            RUNNING => Ended::InTime,
            _ => Ended::Abandoned,
        }
    }
}

impl<D, W> Table<D, W> {
    /// A table of `depth` entries (at most [`MAX_DEPTH`]) that keeps no results.
    pub fn new(depth: usize, descriptor: impl FnMut(usize) -> D) -> Self {
        Self::with_results(depth, descriptor, (), false)
    }
}

impl<D, W, R: Copy> Table<D, W, R> {
    /// A table of `depth` entries (at most [`MAX_DEPTH`]). `unset`: what stands in the place of a result before there is one.
    /// `apart`: the wakers and results of two ops never share a cache line, for a table whose ops are waited for one by one.
    pub fn with_results(
        depth: usize,
        mut descriptor: impl FnMut(usize) -> D,
        unset: R,
        apart: bool,
    ) -> Self {
        let depth = depth.min(MAX_DEPTH);
        let spread = u32::from(apart);
        Self {
            entries: (0..depth)
                .map(|i| Entry {
                    state: AtomicU64::new(0),
                    descriptor: UnsafeCell::new(descriptor(i)),
                })
                .collect(),
            spread,
            mail: (0..depth << spread)
                .map(|_| Mail {
                    waker: UnsafeCell::new(None),
                    result: UnsafeCell::new(unset),
                })
                .collect(),
        }
    }

    /// Sets how an op ended.
    ///
    /// # Safety
    /// The op's end must be the caller's, who has not told of it yet.
    #[inline(always)]
    pub unsafe fn set_result(&self, index: u32, result: R) {
        // SAFETY: the caller has the op's end: nobody else is at its result.
        self.mail(index).result.with_mut(|r| unsafe { *r = result });
    }

    /// How an op ended.
    ///
    /// # Safety
    /// The op must be its caller's, who has seen its end.
    #[inline(always)]
    pub unsafe fn result(&self, index: u32) -> R {
        // SAFETY: the caller owns the op, whose end was told after the result was set.
        self.mail(index).result.with(|r| unsafe { *r })
    }

    /// Number of entries.
    pub fn depth(&self) -> usize {
        self.entries.len()
    }

    /// # Safety
    /// `index` must be below the depth.
    #[inline(always)]
    unsafe fn entry(&self, index: u32) -> &Entry<D> {
        debug_assert!((index as usize) < self.entries.len());
        // SAFETY: the caller vouches for the index.
        unsafe { self.entries.get_unchecked(index as usize) }
    }

    #[inline(always)]
    fn waker(&self, ticket: Ticket) -> &UnsafeCell<Option<W>> {
        &self.mail(ticket.index()).waker
    }

    #[inline(always)]
    fn mail(&self, index: u32) -> &Mail<W, R> {
        &self.mail[(index as usize) << self.spread]
    }

    /// # Safety
    /// The ticket must be of this table.
    #[inline(always)]
    unsafe fn state(&self, ticket: Ticket) -> &AtomicU64 {
        // SAFETY: this table made the ticket from an index of its own.
        unsafe { &self.entry(ticket.index()).state }
    }

    /// The owner's descriptor, to fill in before [`queue`](Table::queue) or to read after the op is done.
    ///
    /// # Safety
    /// The index must be below the depth. The entry must be FREE, or its op over, and the caller its owner.
    #[inline(always)]
    pub unsafe fn with_mut<T>(&self, index: u32, f: impl FnOnce(&mut D) -> T) -> T {
        // SAFETY: the caller vouches for the index, and is the only one who may touch the descriptor in this phase.
        unsafe { self.entry(index).descriptor.with_mut(|d| f(&mut *d)) }
    }

    /// The descriptor of an op that nobody is writing.
    ///
    /// # Safety
    /// The index must be below the depth. The caller must be the worker that claimed the op, or have abandoned it while it was
    /// running, or use only fields that are atomics and mind that they may be of a later op.
    #[inline(always)]
    pub unsafe fn peek(&self, index: u32) -> *const D {
        // SAFETY: the caller vouches for the index.
        unsafe { self.entry(index).descriptor.with(|d| d) }
    }

    /// FREE or DONE → QUEUED with a new generation. The ring's publication shows it to the workers.
    ///
    /// # Safety
    /// The index must be below the depth, the entry FREE (or DONE, of an op that never had a waker), the caller its
    /// owner, and the descriptor filled in.
    #[inline]
    pub unsafe fn queue(&self, index: u32) -> Ticket {
        // SAFETY: the caller vouches for the index.
        let state = unsafe { &self.entry(index).state };
        // Relaxed: in FREE and DONE only the owner changes the word.
        let before = state.load(Ordering::Relaxed) & GENERATION;
        // SAFETY: that is the ticket of its last use; the caller vouches for the rest.
        unsafe { self.queue_after(Ticket(before | u64::from(index))) }
    }

    /// [`queue`](Table::queue), for an owner that has kept the ticket of the entry's last use
    /// ([`Ticket::before_first`], if there was none): the word need not be read, which a worker's core has.
    ///
    /// # Safety
    /// As there, for the ticket's index.
    #[inline(always)]
    pub unsafe fn queue_after(&self, last: Ticket) -> Ticket {
        // SAFETY: the caller vouches for the index.
        let state = unsafe { &self.entry(last.index()).state };
        debug_assert!(last.is_of(state.load(Ordering::Relaxed)));
        let ticket = last.next();
        // Release pairs with the Acquire in `hold`, though the ring's own pair has ordered it already.
        let order = ordering!(Release, "slots-queue" => Relaxed);
        state.store(word(ticket, QUEUED), order);
        ticket
    }

    /// Has the processor fetch an entry's line to write, which lies in another core's cache: for an owner that uses the entry next.
    #[inline(always)]
    pub fn prefetch(&self, ticket: Ticket) {
        // Wrapping, so that it may be a ticket of another table.
        prefetch(self.entries.as_ptr().wrapping_add(ticket.index() as usize));
    }

    /// The same of the line with an op's waker and result, for a future that is about to leave its waker.
    #[inline(always)]
    pub fn prefetch_mail(&self, ticket: Ticket) {
        let place = (ticket.index() as usize) << self.spread;
        prefetch(self.mail.as_ptr().wrapping_add(place));
    }

    /// QUEUED → RUNNING. Nothing where the op is not waiting any more (its ring entry is a tombstone), or never was in
    /// this table.
    #[inline(always)]
    pub fn hold(&self, ticket: Ticket) -> Option<Held<D>> {
        let entry = self.entries.get(ticket.index() as usize)?;
        let state = &entry.state;
        let mut now = word(ticket, QUEUED);
        // Acquire pairs with the Release store in `queue`. The loop goes round only where the owner changed a flag.
        while let Err(other) = state.compare_exchange(
            now,
            now ^ QUEUED ^ RUNNING,
            ordering!(Acquire, "slots-claim" => Relaxed),
            Ordering::Relaxed,
        ) {
            let other_op = other & PHASE == QUEUED && broken("slots-claim-generation");
            if other & !(WAKER | DETACHED) != word(ticket, QUEUED) && !other_op {
                return None;
            }
            now = other;
        }
        Some(Held(entry))
    }

    /// ENDING → DONE, after the result was written where the owner looks for it; or RELEASING → RELEASED.
    ///
    /// # Safety
    /// The caller must have ended this ticket and not finished it; who abandoned the op must be through with
    /// [`abandon`](Table::abandon).
    #[inline]
    pub unsafe fn finish(&self, ticket: Ticket) -> Finished<W> {
        // SAFETY: the caller has claimed the ticket in this table.
        let state = unsafe { self.state(ticket) };
        // Leaves flags, reason and generation alone. Release pairs with the Acquire loads in `progress`, `register` and
        // `detach`: the result is written. Acquire pairs with the Release in `register` and `detach`: waker and
        // leftovers of the owner are there.
        let order =
            ordering!(AcqRel, "slots-finish-acquire" => Release, "slots-finish-release" => Acquire);
        let before = state.fetch_add(1, order);
        debug_assert!(matches!(before & PHASE, ENDING | RELEASING));
        // SAFETY: this step ended the op with these flags.
        unsafe { self.tell(ticket, before) }
    }

    /// What follows the step that ended an op, whose word was `before`.
    ///
    /// # Safety
    /// The caller must have made that step.
    #[inline]
    unsafe fn tell(&self, ticket: Ticket, before: u64) -> Finished<W> {
        if before & (WAKER | DETACHED) == 0 {
            return Finished::Quiet;
        }
        if before & DETACHED != 0 {
            return Finished::Detached(None);
        }
        // SAFETY: the WAKER flag was set in the step that ended the op.
        let (waker, before) = unsafe { self.take_waker(ticket) };
        if before & DETACHED != 0 && !broken("slots-tell-detached") {
            return Finished::Detached(waker);
        }
        waker.map_or(Finished::Quiet, Finished::Wake)
    }

    /// Takes the waker, then clears the flag; the word before that comes along.
    ///
    /// # Safety
    /// The WAKER flag must have been set in the step by which the caller ended or abandoned the op: the cell is the caller's until the
    /// flag is cleared. The owner sees the end in `register` and `detach` and keeps off, and `reap` doesn't let it
    /// use the entry again.
    unsafe fn take_waker(&self, ticket: Ticket) -> (Option<W>, u64) {
        // SAFETY: as for this function.
        let waker = self.waker(ticket).with_mut(|w| unsafe { (*w).take() });
        // SAFETY: the ticket is of this table.
        let state = unsafe { self.state(ticket) };
        // Release pairs with the Acquire in `reap`: we are off the cell. Acquire pairs with the Release in `reap`: the
        // owner is off the descriptor.
        let order = ordering!(AcqRel, "slots-take-waker-acquire" => Release, "slots-take-waker-release" => Acquire);
        (waker, state.fetch_and(!WAKER, order))
    }

    /// QUEUED → DONE, or RUNNING → OVERDUE, with the reason. `None` where the op has ended, or never was in this table;
    /// also a running one unless `running`.
    ///
    pub fn abandon(&self, ticket: Ticket, why: Why, running: bool) -> Option<Abandoned<W>> {
        let Entry { state, .. } = self.entries.get(ticket.index() as usize)?;
        let mut now = state.load(Ordering::Relaxed);
        loop {
            if !ticket.is_of(now) && !broken("slots-abandon-generation") {
                return None;
            }
            let next = match now & PHASE {
                QUEUED => now ^ QUEUED ^ DONE | why.bits(),
                RUNNING if running => now ^ RUNNING ^ OVERDUE | why.bits(),
                _ => return None,
            };
            // Release pairs with the Acquire in `progress`, `register` and `detach`: who sees the op abandoned sees that
            // somebody is at it (`Quarantine::settled` of the engine). Acquire pairs with the Release in `register` and
            // `detach`, as in `finish`.
            let order = ordering!(AcqRel, "slots-abandon-acquire" => Release, "slots-abandon-release" => Acquire);
            match state.compare_exchange_weak(now, next, order, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        if now & PHASE == QUEUED {
            // SAFETY: our step ended the op.
            return Some(Abandoned::NeverStarted(unsafe { self.tell(ticket, now) }));
        }
        let mut waker = None;
        if now & (WAKER | DETACHED) == WAKER {
            // SAFETY: our step abandoned the op with the flag set. Who detaches it now leaves it to the worker's `finish`.
            (waker, _) = unsafe { self.take_waker(ticket) };
        }
        Some(Abandoned::Running(waker))
    }

    /// How far the op is. Acquire pairs with the Release in `finish` and `abandon`: the result can be read.
    #[inline]
    pub fn progress(&self, ticket: Ticket) -> Progress {
        let Some(Entry { state, .. }) = self.entries.get(ticket.index() as usize) else {
            return Progress::Gone;
        };
        let now = state.load(ordering!(Acquire, "slots-progress" => Relaxed));
        if !ticket.is_of(now) {
            return Progress::Gone;
        }
        match now & PHASE {
            QUEUED => Progress::Queued,
            RUNNING | ENDING => Progress::Running,
            DONE => Progress::Ended {
                why: Why::of(now).map(|why| (why, false)),
                more: false,
            },
            phase => Progress::Ended {
                why: Why::of(now).map(|why| (why, true)),
                more: phase != RELEASED,
            },
        }
    }

    /// The ticket of the entry's op, if it is queued or running.
    ///
    /// # Safety
    /// The index must be below the depth.
    #[inline]
    pub unsafe fn pending(&self, index: u32) -> Option<(Ticket, bool)> {
        // SAFETY: the caller vouches for the index.
        let now = unsafe { self.entry(index) }.state.load(Ordering::Acquire);
        let ticket = Ticket(now & GENERATION | u64::from(index));
        match now & PHASE {
            QUEUED => Some((ticket, false)),
            RUNNING => Some((ticket, true)),
            _ => None,
        }
    }

    /// Whether the op has ended. Acquire pairs with the Release in `finish` and `abandon`: the result can be read.
    #[inline]
    pub fn is_done(&self, ticket: Ticket) -> bool {
        self.entries
            .get(ticket.index() as usize)
            .is_some_and(|entry| {
                let order = ordering!(Acquire, "slots-is-done" => Relaxed);
                let now = entry.state.load(order);
                now & PHASE >= DONE && ticket.is_of(now)
            })
    }

    /// Whether the op ended as its call did, and nobody is at its waker: then its result can be read, and the entry is the owner's without
    /// a [`reap`](Table::reap).
    ///
    /// # Safety
    /// The ticket must be of this table.
    #[inline(always)]
    pub unsafe fn ended_quietly(&self, ticket: Ticket) -> bool {
        // SAFETY: the caller vouches for the ticket.
        let state = unsafe { self.state(ticket) };
        // Acquire pairs with the Release in `finish`, and with that with which `take_waker` clears the flag.
        let now = state.load(ordering!(Acquire, "slots-quiet" => Relaxed));
        let at_the_waker = match broken("slots-quiet-waker") {
            true => now & WAKER,
            false => 0,
        };
        now == word(ticket, DONE) | at_the_waker
    }

    /// DONE or RELEASED → FREE, after the owner has read the result. True: the entry is the caller's, to recycle. False:
    /// somebody is still taking the waker that it found, or a store call still has the op's bytes; who is through with that
    /// recycles the entry ([`Finished::Detached`]).
    ///
    /// Where no waker was ever registered with the op, and it was never abandoned, the answer is always true and need not be asked for.
    ///
    /// # Safety
    /// The caller must be the owner of this ticket's op and have seen its end, and not use it after `false`.
    #[inline]
    pub unsafe fn reap(&self, ticket: Ticket) -> bool {
        // SAFETY: the ticket is of this table.
        let state = unsafe { self.state(ticket) };
        let free = |word: u64| {
            let at_the_waker = word & WAKER != 0 && !broken("slots-reap-waker");
            let in_a_call = matches!(word & PHASE, OVERDUE | RELEASING);
            !at_the_waker && (!in_a_call || broken("slots-reap-call"))
        };
        // Acquire pairs with the Release with which `take_waker` clears the flag, and with that of `finish`: others are off the entry.
        if free(state.load(ordering!(Acquire, "slots-reap-look" => Relaxed))) {
            return true;
        }
        // Release pairs with the Acquire in those steps: our last access to the descriptor is over.
        let order =
            ordering!(AcqRel, "slots-reap-acquire" => Release, "slots-reap-release" => Acquire);
        free(state.fetch_or(DETACHED, order))
    }

    /// Clears the WAKER flag, so that the cell is the owner's. `Err` where the op is done.
    ///
    /// # Safety
    /// As for [`register`](Table::register).
    unsafe fn own_waker_cell(&self, ticket: Ticket) -> Result<(), Done> {
        // SAFETY: the ticket is of this table.
        let state = unsafe { self.state(ticket) };
        let mut now = state.load(Ordering::Acquire);
        loop {
            if now & PHASE >= DONE {
                return Err(Done);
            }
            if now & WAKER == 0 {
                return Ok(());
            }
            match state.compare_exchange_weak(
                now,
                now ^ WAKER,
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(()),
                Err(other) => now = other,
            }
        }
    }

    /// Sets a flag unless the op is done.
    ///
    /// # Safety
    /// As for [`register`](Table::register).
    unsafe fn set_flag(&self, ticket: Ticket, flag: u64) -> Result<(), Done> {
        // SAFETY: the ticket is of this table.
        let state = unsafe { self.state(ticket) };
        let mut now = state.load(Ordering::Acquire);
        loop {
            if now & PHASE >= DONE && !broken("slots-set-flag-recheck") {
                return Err(Done);
            }
            // Release pairs with the Acquire in `finish`; Acquire on failure as in `is_done`.
            let order = ordering!(AcqRel, "slots-set-flag" => Acquire);
            match state.compare_exchange_weak(now, now | flag, order, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                Err(other) => now = other,
            }
        }
    }

    /// Leaves a waker with the op, in place of an earlier one. `Err(Done)` where the op has ended; then it won't be woken.
    ///
    /// # Safety
    /// The ticket's op must be queued, running or ended, and the caller its owner.
    pub unsafe fn register(
        &self,
        ticket: Ticket,
        same: impl FnOnce(&W) -> bool,
        waker: impl FnOnce() -> W,
    ) -> Result<(), Done> {
        // SAFETY: as for this function.
        unsafe { self.own_waker_cell(ticket)? };
        // SAFETY: the WAKER flag is off and the caller is the owner, so the cell is ours.
        let old = self.waker(ticket).with_mut(|w| unsafe {
            match &*w {
                Some(old) if same(old) => None,
                _ => (*w).replace(waker()),
            }
        });
        // SAFETY: as for this function.
        let set = unsafe { self.set_flag(ticket, WAKER) };
        let unused = match set {
            Ok(()) => None,
            // SAFETY: done with the WAKER flag off: the cell stays the owner's.
            Err(Done) => self.waker(ticket).with_mut(|w| unsafe { (*w).take() }),
        };
        // User code: only after the cell is in order again.
        drop((old, unused));
        set
    }

    /// Gives the op up: who finishes it recycles the entry. `Err(Done)` where it has ended: then it is still the caller's,
    /// to [`reap`](Table::reap).
    ///
    /// # Safety
    /// The ticket's op must be queued, running or ended, and the caller its owner, who must not use it after `Ok`.
    pub unsafe fn detach(&self, ticket: Ticket) -> Result<(), Done> {
        // SAFETY: as for this function.
        unsafe { self.own_waker_cell(ticket)? };
        // SAFETY: as in `register`.
        let old = self.waker(ticket).with_mut(|w| unsafe { (*w).take() });
        // SAFETY: as for this function.
        let set = unsafe { self.set_flag(ticket, DETACHED) };
        // User code: only after the cell is in order again.
        drop(old);
        set
    }
}

#[inline(always)]
fn prefetch<T>(line: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a hint, whatever the address. x86_64 without it takes it as no operation.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = line;
}

impl<D, W, R: Copy> fmt::Debug for Table<D, W, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}
