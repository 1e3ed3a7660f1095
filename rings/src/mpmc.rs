//! A bounded ring of words with many producers and many consumers.
//!
//! A word is a `u64` below 2^63 (a ticket). It lies in its place shifted left by one, beside a **lap bit** that tells
//! whether the place was published in this lap:
//!
//! ```text
//!  position p:   place p mod capacity,   lap bit = 1 - (p / capacity) mod 2
//!
//!       head                     tail
//!  ──────▼──────────┬─────────────▼────────
//!  free  │ published│ claimed, some│  free
//!        │ prefix   │ not filled   │
//! ```
//!
//! - **Push**: n places or none, by one compare-and-swap on `tail` after finding all n free; then the words are
//!   copied in, each with a Release store. No user code runs in between.
//! - **Take**: reads the published prefix from `head` on, then claims what it read by one compare-and-swap on `head`.
//!   What it read was copied out before, so the places are free the moment `head` moves. A reader that lost
//!   the race throws away what it read: `head` is a 64-bit position and never comes back to a value.
//! - **Close**: a bit in `tail`, so that no place can be claimed afterwards. A consumer sees the end when it has
//!   taken everything that had been claimed.
//!
//! **Progress**: push and take are lock-free among themselves. A producer stopped between claim and publication
//! delays the words behind its gap until it goes on, though not the words before it; consumers never wait for it,
//! they find less.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering, broken, ordering};
use crate::{Full, PushError};

/// Largest word plus one.
pub const WORD_LIMIT: u64 = 1 << 63;

const CLOSED: u64 = 1 << 63;

/// The ring. Shared by reference.
#[derive(Debug)]
pub struct Mpmc {
    /// End of what is claimed, and the closed bit. Advanced by compare-and-swap in `push_with`.
    tail: CachePadded<AtomicU64>,
    /// Begin of what is not taken. Advanced by compare-and-swap in `take_while`: Release there pairs with the
    /// Acquire load in `push_with`, so that a place is overwritten only after it was copied out.
    head: CachePadded<AtomicU64>,
    places: Box<[AtomicU64]>,
    mask: u64,
    /// log2 of the capacity.
    shift: u32,
}

impl Mpmc {
    /// A ring with room for at least `capacity` words (rounded up to a power of two, at least 1).
    pub fn new(capacity: usize) -> Self {
        let capacity = crate::capacity(capacity);
        Self {
            tail: CachePadded::new(AtomicU64::new(0)),
            head: CachePadded::new(AtomicU64::new(0)),
            // Lap bit 0: not published in lap 0, whose bit is 1.
            places: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            mask: capacity as u64 - 1,
            shift: capacity.trailing_zeros(),
        }
    }

    /// Number of places.
    pub fn capacity(&self) -> usize {
        self.places.len()
    }

    #[inline(always)]
    fn place(&self, position: u64) -> &AtomicU64 {
        // SAFETY: `position & mask` is below the length of `places`, a power of two.
        unsafe { self.places.get_unchecked((position & self.mask) as usize) }
    }

    #[inline(always)]
    fn lap_bit(&self, position: u64) -> u64 {
        ((position >> self.shift) & 1) ^ 1
    }

    /// Pushes one word.
    #[inline]
    pub fn push(&self, word: u64) -> Result<(), PushError<u64>> {
        self.push_with(1, |_| word).map_err(|e| match e {
            PushError::Full(f) => PushError::Full(Full {
                value: word,
                room: f.room,
            }),
            PushError::Closed(()) => PushError::Closed(word),
        })
    }

    /// Pushes all of `words`, or none.
    #[inline]
    pub fn push_all(&self, words: &[u64]) -> Result<(), PushError<()>> {
        self.push_with(words.len(), |i| words[i])
    }

    /// Claims `n` places, or none, and fills them with `word(0)` to `word(n - 1)`, which must be below
    /// [`WORD_LIMIT`].
    #[inline]
    fn push_with(&self, n: usize, word: impl Fn(usize) -> u64) -> Result<(), PushError<()>> {
        // Acquire, here and wherever `tail` is read again, pairs with the Release of the compare-and-swap below: what
        // those before us knew of `head`, we know. Without it an old `head` beside a new `tail` passes for a full ring,
        // even to one who has just taken a word out (`slots::Credits` relies on it).
        let mut tail = self
            .tail
            .load(ordering!(Acquire, "mpmc-push-tail" => Relaxed));
        loop {
            if tail & CLOSED != 0 && !broken("mpmc-push-closed") {
                return Err(PushError::Closed(()));
            }
            // Acquire pairs with the Release of `take_while`'s compare-and-swap.
            let head = self
                .head
                .load(ordering!(Acquire, "mpmc-push-head" => Relaxed));
            // A stale tail can lie before head: then look again, it is neither full nor free.
            let room = self.capacity() as i64 - tail.wrapping_sub(head) as i64;
            if room < n as i64 {
                let now = self.tail.load(Ordering::Acquire);
                if now == tail {
                    return Err(PushError::Full(Full {
                        value: (),
                        room: room.max(0) as usize,
                    }));
                }
                tail = now;
                continue;
            }
            // The claim shows no word, each place is published by its own store below.
            match self.tail.compare_exchange_weak(
                tail,
                tail + n as u64,
                ordering!(Release, "mpmc-claim" => Relaxed),
                Ordering::Acquire,
            ) {
                Ok(_) => break,
                Err(now) => tail = now,
            }
        }
        for i in 0..n {
            let position = tail + i as u64;
            let word = word(i);
            debug_assert!(word < WORD_LIMIT);
            // Release pairs with the Acquire load in `take_while`: what the word refers to is written.
            let order = ordering!(Release, "mpmc-publish" => Relaxed);
            self.place(position)
                .store(word << 1 | self.lap_bit(position), order);
        }
        Ok(())
    }

    /// Takes words from the published prefix for as long as `keep` says yes, and hands them out; returns how many.
    ///
    /// `keep(i, word)` may be called several times for the same words, from 0 on again, when another
    /// consumer was faster: it must not act on them. `out` has the words that were really taken, in order,
    /// after the last call with `i == 0`. `out` is cleared first and never grown beyond its capacity.
    #[inline]
    pub fn take_while(
        &self,
        out: &mut Vec<u64>,
        mut keep: impl FnMut(usize, u64) -> bool,
    ) -> usize {
        // Acquire, here and wherever `head` is read again, pairs with the Release of the compare-and-swap below: who
        // moved `head` here has seen each place's word of the lap before, so what is read below is not older than
        // that. Without it the word of two laps ago, with the same lap bit, could pass for the one at `head`.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            out.clear();
            while out.len() < out.capacity() && out.len() < self.capacity() {
                let position = head + out.len() as u64;
                // Acquire pairs with the Release store in `push_with`.
                let order = ordering!(Acquire, "mpmc-take-place" => Relaxed);
                let place = self.place(position).load(order);
                if place & 1 != self.lap_bit(position) || !keep(out.len(), place >> 1) {
                    break;
                }
                out.push(place >> 1);
            }
            if out.is_empty() {
                let now = self.head.load(Ordering::Acquire);
                if now == head || broken("mpmc-take-recheck") {
                    return 0;
                }
                head = now;
                continue;
            }
            // Release: the places have been copied out before producers see them free (`push_with`).
            match self.head.compare_exchange(
                head,
                head + out.len() as u64,
                ordering!(Release, "mpmc-take-release" => Relaxed),
                ordering!(Acquire, "mpmc-take-again" => Relaxed),
            ) {
                Ok(_) => return out.len(),
                Err(now) => head = now,
            }
        }
    }

    /// Takes one word.
    #[inline]
    pub fn pop(&self) -> Option<u64> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            // Acquire and Release, of `head` too: as in `take_while`.
            let order = ordering!(Acquire, "mpmc-pop-place" => Relaxed);
            let place = self.place(head).load(order);
            if place & 1 != self.lap_bit(head) {
                let now = self.head.load(Ordering::Acquire);
                if now == head || broken("mpmc-pop-recheck") {
                    return None;
                }
                head = now;
                continue;
            }
            match self.head.compare_exchange(
                head,
                head + 1,
                ordering!(Release, "mpmc-pop-release" => Relaxed),
                ordering!(Acquire, "mpmc-pop-again" => Relaxed),
            ) {
                Ok(_) => return Some(place >> 1),
                Err(now) => head = now,
            }
        }
    }

    /// Whether the next word is published. A hint: it may change at once.
    #[inline]
    pub fn has_ready(&self) -> bool {
        self.is_published(self.head.load(Ordering::Acquire))
    }

    /// Whether the next word is published, and none behind it: a hint that leaves the producers' `tail` alone.
    #[inline]
    pub fn has_one_ready(&self) -> bool {
        let head = self.head.load(Ordering::Acquire);
        self.is_published(head) && !self.is_published(head + 1)
    }

    /// Of a position from `head` on.
    #[inline(always)]
    fn is_published(&self, position: u64) -> bool {
        self.place(position).load(Ordering::Acquire) & 1 == self.lap_bit(position)
    }

    /// How many places are claimed and not taken. A hint.
    pub fn len(&self) -> usize {
        // Head first: it never passes a tail that is read later.
        let head = self.head.load(Ordering::Acquire);
        (self.tail.load(Ordering::Acquire) & !CLOSED).wrapping_sub(head) as usize
    }

    /// Whether nothing is claimed. A hint.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Words pushed since the ring was made.
    pub fn pushed(&self) -> u64 {
        self.tail.load(Ordering::Acquire) & !CLOSED
    }

    /// From now on every push is refused. Words claimed before still come.
    pub fn close(&self) {
        self.tail.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// True when the ring is closed and everything that was claimed has been taken: nothing will ever come.
    pub fn is_drained(&self) -> bool {
        let tail = self.tail.load(Ordering::Acquire);
        tail & CLOSED != 0
            && (self.head.load(Ordering::Acquire) == tail & !CLOSED || broken("mpmc-drained-head"))
    }
}
