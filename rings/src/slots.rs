//! The table of ops in flight: tickets, the state of each op, and credits.
//!
//! Each op that is accepted holds one **entry** from acceptance until its last notice is reaped; how many entries
//! there are is the depth, and a free entry is a **credit**. A [`Ticket`] names an op for good: the entry's index
//! and its generation, which grows each time the entry is used again. So an old ticket is harmless: every step
//! below compares the generation and the phase in the same atomic step that changes them.
//!
//! ```text
//!                 queue                claim                 finish
//!        FREE ───────────▶ QUEUED ───────────────▶ RUNNING ────────────▶ DONE ─┐
//!          ▲    owner          │      worker          │      worker        ▲   │
//!          │                   │                      │                    │   │
//!          │                   └ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─│─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┤   │
//!          │                     deadline, cancel     │                    │   │
//!          │                                          │  finish: release   │   │
//!          │                                          ▼  notice            │   │
//!          │                                       OVERDUE ─ ─ ─ ─ ─ ─ ─ ─ ┘   │
//!          │                                 deadline, cancel: terminal        │
//!          │                                 notice with MORE                  │
//!          └───────────────────────────────────────────────────────────────────┘
//!                      reap (owner), or finish of a detached op (worker)
//! ```
//!
//! Dashed steps are not in this version; the word has room for their phases. Who may touch what:
//!
//! | phase | descriptor | waker cell |
//! | --- | --- | --- |
//! | FREE | the owner | the owner |
//! | QUEUED | nobody writes | the owner while the WAKER flag is off |
//! | RUNNING | the worker that claimed | the owner while the WAKER flag is off |
//! | DONE | the owner | the worker until it clears the WAKER flag, then the owner |
//!
//! The owner is the pair's thread, the future, or, once DETACHED is set, the worker that finishes. DONE with the WAKER
//! flag still set is the moment in which a worker takes the waker: the result can be read, but the entry can't be used
//! again yet. [`Table::reap`] tells; it leaves the entry to that worker then, and nobody waits.

use core::fmt;

use crate::mpmc::Mpmc;
use crate::sync::{AtomicU64, Ordering, UnsafeCell};

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 39;

/// Most ops in flight in one table.
pub const MAX_DEPTH: usize = 1 << INDEX_BITS;

/// Names one accepted op: index and generation. Never 2^63 or more, so it fits the rings.
///
/// A generation comes back after 2^39 ops on one entry; a ticket kept for longer than that is no longer safe to use.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

impl Ticket {
    fn new(index: u32, generation: u64) -> Self {
        Self(generation << INDEX_BITS | u64::from(index))
    }

    /// The ticket as a ring's word.
    #[inline(always)]
    pub fn to_word(self) -> u64 {
        self.0
    }

    /// The ticket that was turned into this word.
    #[inline(always)]
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The entry's place in its table.
    #[inline(always)]
    pub fn index(self) -> u32 {
        (self.0 & ((1 << INDEX_BITS) - 1)) as u32
    }

    /// Which use of the entry this is.
    #[inline(always)]
    pub fn generation(self) -> u64 {
        self.0 >> INDEX_BITS
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({}.{})", self.index(), self.generation())
    }
}

// The state word: generation, flags, phase.
const PHASE: u64 = 0b111;
const QUEUED: u64 = 1;
const RUNNING: u64 = 2;
const DONE: u64 = 3;
/// A waker lies in the cell; who finishes takes it, and clears the flag when it is off the cell.
const WAKER: u64 = 1 << 3;
/// The owner is gone; who finishes recycles the entry.
const DETACHED: u64 = 1 << 4;
const GENERATION_SHIFT: u32 = 8;

#[inline(always)]
fn word(ticket: Ticket, low: u64) -> u64 {
    ticket.generation() << GENERATION_SHIFT | low
}

/// State and descriptor side by side: with a descriptor of up to 56 bytes, one cache line an op.
#[repr(align(64))]
struct Entry<D> {
    state: AtomicU64,
    descriptor: UnsafeCell<D>,
}

/// The table. `D` is the descriptor that workers read, `W` the waker of an op's owner.
pub struct Table<D, W = ()> {
    entries: Box<[Entry<D>]>,
    wakers: Box<[UnsafeCell<Option<W>>]>,
}

// SAFETY: who may touch which cell is decided by the state word, see the module's table; descriptors and wakers go from
// one thread to another.
unsafe impl<D: Send, W: Send> Send for Table<D, W> {}
// SAFETY: as above. A `&D` is shared between threads only as `Table::peek` says, whose caller vouches for it.
unsafe impl<D: Send, W: Send> Sync for Table<D, W> {}

/// What a worker must do after [`Table::finish`].
#[derive(Debug, PartialEq, Eq)]
pub enum Finished<W> {
    /// The owner will see it by itself.
    Quiet,
    /// Wake the owner.
    Wake(W),
    /// The owner is gone: the entry is the worker's, to recycle. A waker comes along where the owner saw the op done
    /// while the worker was taking it; it needs no wake any more.
    Detached(Option<W>),
}

/// The op is done already: its entry is the owner's.
#[derive(Debug, PartialEq, Eq)]
pub struct Done;

impl<D, W> Table<D, W> {
    /// A table of `depth` entries (at most [`MAX_DEPTH`]).
    pub fn new(depth: usize, mut descriptor: impl FnMut(usize) -> D) -> Self {
        let depth = depth.min(MAX_DEPTH);
        Self {
            entries: (0..depth)
                .map(|i| Entry {
                    state: AtomicU64::new(0),
                    descriptor: UnsafeCell::new(descriptor(i)),
                })
                .collect(),
            wakers: (0..depth).map(|_| UnsafeCell::new(None)).collect(),
        }
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
    /// The index must be below the depth. The entry must be FREE or DONE and the caller its owner; or RUNNING and the
    /// caller the worker that claimed it.
    #[inline(always)]
    pub unsafe fn with_mut<R>(&self, index: u32, f: impl FnOnce(&mut D) -> R) -> R {
        // SAFETY: the caller vouches for the index, and is the only one who may touch the descriptor in this phase.
        unsafe { self.entry(index).descriptor.with_mut(|d| f(&mut *d)) }
    }

    /// The descriptor of an op that nobody is writing.
    ///
    /// # Safety
    /// The index must be below the depth. The entry must be QUEUED or RUNNING under a ticket that the caller took from
    /// a ring, or the caller must use only fields that are atomics and mind that they may be of a later op.
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
        // Relaxed load: in FREE and DONE only the owner changes the word. The Release store pairs with the Acquire in
        // `claim`, though the ring's own pair has ordered it already.
        let generation = (state.load(Ordering::Relaxed) >> GENERATION_SHIFT).wrapping_add(1)
            & ((1 << GENERATION_BITS) - 1);
        let ticket = Ticket::new(index, generation);
        state.store(word(ticket, QUEUED), Ordering::Release);
        ticket
    }

    /// QUEUED → RUNNING. False where the op is not waiting any more (its ring entry is a tombstone), or never was in
    /// this table.
    #[inline]
    pub fn claim(&self, ticket: Ticket) -> bool {
        let Some(Entry { state, .. }) = self.entries.get(ticket.index() as usize) else {
            return false;
        };
        let mut now = word(ticket, QUEUED);
        // Acquire pairs with the Release store in `queue`. The loop goes round only where the owner changed a flag.
        while let Err(other) = state.compare_exchange(
            now,
            now ^ QUEUED ^ RUNNING,
            Ordering::Acquire,
            Ordering::Relaxed,
        ) {
            if other & !(WAKER | DETACHED) != word(ticket, QUEUED) {
                return false;
            }
            now = other;
        }
        true
    }

    /// RUNNING → DONE, after the result was written where the owner looks for it.
    ///
    /// # Safety
    /// The caller must have claimed this ticket and not finished it.
    #[inline]
    pub unsafe fn finish(&self, ticket: Ticket) -> Finished<W> {
        // SAFETY: the caller has claimed the ticket in this table.
        let state = unsafe { self.state(ticket) };
        // One read-modify-write turns RUNNING into DONE and leaves flags and generation alone. Release pairs with the
        // Acquire loads in `is_done`, `register` and `detach`: the result is written. Acquire pairs with the
        // Release in `register` and `detach`: waker and leftovers of the owner are there.
        let before = state.fetch_add(DONE - RUNNING, Ordering::AcqRel);
        debug_assert_eq!(before & PHASE, RUNNING);
        if before & (WAKER | DETACHED) == 0 {
            return Finished::Quiet;
        }
        if before & DETACHED != 0 {
            return Finished::Detached(None);
        }
        // SAFETY: the WAKER flag was set in the step that ended the op, so the cell is ours until we clear it: the owner
        // sees DONE in `register` and `detach` and keeps off, and `reap` doesn't let it use the entry again.
        let waker = self.wakers[ticket.index() as usize].with_mut(|w| unsafe { (*w).take() });
        // Release pairs with the Acquire in `reap`: we are off the cell. Acquire pairs with the Release in `reap`: the
        // owner is off the descriptor.
        let before = state.fetch_and(!WAKER, Ordering::AcqRel);
        if before & DETACHED != 0 {
            return Finished::Detached(waker);
        }
        waker.map_or(Finished::Quiet, Finished::Wake)
    }

    /// Whether the op is done. Acquire pairs with the Release in `finish`: the result can be read.
    #[inline]
    pub fn is_done(&self, ticket: Ticket) -> bool {
        self.entries
            .get(ticket.index() as usize)
            .is_some_and(|entry| {
                let now = entry.state.load(Ordering::Acquire);
                now & PHASE == DONE && now >> GENERATION_SHIFT == ticket.generation()
            })
    }

    /// DONE → FREE, after the owner has read the result. True: the entry is the caller's, to recycle. False: the worker
    /// is still taking the waker that it found, and recycles the entry ([`Finished::Detached`]).
    ///
    /// Where no waker was ever registered with the op, the answer is always true and need not be asked for.
    ///
    /// # Safety
    /// The caller must be the owner of this ticket's op and have seen it done, and not use it after `false`.
    #[inline]
    pub unsafe fn reap(&self, ticket: Ticket) -> bool {
        // SAFETY: the ticket is of this table.
        let state = unsafe { self.state(ticket) };
        // Acquire pairs with the Release with which `finish` clears the flag: the worker is off the waker cell.
        if state.load(Ordering::Acquire) & WAKER == 0 {
            return true;
        }
        // Release pairs with the Acquire in that step: our last access to the descriptor is over.
        state.fetch_or(DETACHED, Ordering::AcqRel) & WAKER == 0
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
            if now & PHASE == DONE {
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
            if now & PHASE == DONE {
                return Err(Done);
            }
            // Release pairs with the Acquire in `finish`; Acquire on failure as in `is_done`.
            match state.compare_exchange_weak(now, now | flag, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Ok(()),
                Err(other) => now = other,
            }
        }
    }

    /// Leaves a waker with the op, in place of an earlier one. `Err(Done)` where the op is done; then it won't be woken.
    ///
    /// # Safety
    /// The ticket's op must be QUEUED, RUNNING or DONE, and the caller its owner.
    pub unsafe fn register(
        &self,
        ticket: Ticket,
        same: impl FnOnce(&W) -> bool,
        waker: impl FnOnce() -> W,
    ) -> Result<(), Done> {
        // SAFETY: as for this function.
        unsafe { self.own_waker_cell(ticket)? };
        // SAFETY: the WAKER flag is off and the caller is the owner, so the cell is ours.
        let old = self.wakers[ticket.index() as usize].with_mut(|w| unsafe {
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
            Err(Done) => self.wakers[ticket.index() as usize].with_mut(|w| unsafe { (*w).take() }),
        };
        // User code: only after the cell is in order again.
        drop((old, unused));
        set
    }

    /// Gives the op up: who finishes it recycles the entry. `Err(Done)` where it is done: then it is still the caller's,
    /// to [`reap`](Table::reap).
    ///
    /// # Safety
    /// The ticket's op must be QUEUED, RUNNING or DONE, and the caller its owner, who must not use it after `Ok`.
    pub unsafe fn detach(&self, ticket: Ticket) -> Result<(), Done> {
        // SAFETY: as for this function.
        unsafe { self.own_waker_cell(ticket)? };
        // SAFETY: as in `register`.
        let old = self.wakers[ticket.index() as usize].with_mut(|w| unsafe { (*w).take() });
        // SAFETY: as for this function.
        let set = unsafe { self.set_flag(ticket, DETACHED) };
        // User code: only after the cell is in order again.
        drop(old);
        set
    }
}

impl<D, W> fmt::Debug for Table<D, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}

/// The credits of a table that many threads share: the indices of its free entries.
#[derive(Debug)]
pub struct Credits {
    free: Mpmc,
}

impl Credits {
    /// All of `depth` credits free.
    pub fn new(depth: usize) -> Self {
        let free = Mpmc::new(depth);
        for index in 0..depth.min(MAX_DEPTH) as u64 {
            // The ring is new and large enough.
            let pushed = free.push(index);
            debug_assert!(pushed.is_ok());
        }
        Self { free }
    }

    /// Takes a credit: the index of an entry that is the caller's now.
    #[inline]
    pub fn acquire(&self) -> Option<u32> {
        self.free.pop().map(|index| index as u32)
    }

    /// Gives a credit back. There is always room: there are no more credits than places, and a pusher knows of its
    /// own take, and of those that came before the pushes it sees.
    #[inline]
    pub fn release(&self, index: u32) {
        let pushed = self.free.push(u64::from(index));
        debug_assert!(pushed.is_ok());
    }

    /// Free credits. A hint.
    pub fn free(&self) -> usize {
        self.free.len()
    }
}
