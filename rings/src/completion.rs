//! The completion ring: many threads push, one reads, and it can't overflow.
//!
//! An entry is a 63-bit word and a 64-bit value. The owner of the ring bounds what is in it by credits: at most
//! two notices per credit, and a capacity of at least twice the credits. So a push has nothing to check, the
//! reader's position is the reader's alone, and room needs no shared counter.
//!
//! As in [`mpmc`](crate::mpmc), a lap bit beside the word says whether the entry was published in this lap.
//!
//! **Progress**: a push is wait-free. A pusher stopped between its claim and its publication delays the entries
//! behind it; the reader never waits, it finds less.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering, broken, ordering};

struct Entry {
    /// The word and the lap bit. Written last (Release), read first (Acquire).
    word: AtomicU64,
    value: AtomicU64,
}

impl Entry {
    #[inline(always)]
    fn publish(&self, word: u64, value: u64, lap_bit: u64) {
        self.value.store(value, Ordering::Relaxed);
        // Release pairs with the Acquire load in `pop`: the value is written, and all that the op wrote.
        let order = ordering!(Release, "completion-publish" => Relaxed);
        self.word.store(word << 1 | lap_bit, order);
    }
}

/// The ring. Shared by reference.
pub struct CompletionRing {
    /// End of what is claimed.
    tail: CachePadded<AtomicU64>,
    entries: Box<[Entry]>,
    mask: u64,
    shift: u32,
}

/// Where the reader is.
#[derive(Debug, Default)]
pub struct Cursor(u64);

impl CompletionRing {
    /// A ring for `credits` ops with two notices each.
    pub fn new(credits: usize) -> Self {
        let capacity = crate::capacity(credits.saturating_mul(2).max(2));
        Self {
            tail: CachePadded::new(AtomicU64::new(0)),
            entries: (0..capacity)
                .map(|_| Entry {
                    word: AtomicU64::new(0),
                    value: AtomicU64::new(0),
                })
                .collect(),
            mask: capacity as u64 - 1,
            shift: capacity.trailing_zeros(),
        }
    }

    #[inline(always)]
    fn entry(&self, position: u64) -> &Entry {
        // SAFETY: `position & mask` is below the length of `entries`, a power of two.
        unsafe { self.entries.get_unchecked((position & self.mask) as usize) }
    }

    #[inline(always)]
    fn lap_bit(&self, position: u64) -> u64 {
        ((position >> self.shift) & 1) ^ 1
    }

    /// Pushes one entry: [`push_all`](Self::push_all) of one.
    #[inline(always)]
    pub fn push(&self, word: u64, value: u64) {
        let position = self.claim(1);
        self.entry(position)
            .publish(word, value, self.lap_bit(position));
    }

    #[inline(always)]
    fn claim(&self, n: u64) -> u64 {
        // That the places have been read follows from the credits: among the ops whose completions were claimed up to
        // here is one that was accepted after that, by the reader, and acceptance happens before completion.
        // It need not be one of these ops, which may be older; AcqRel hands that knowledge from claim to claim.
        let order = ordering!(AcqRel, "completion-claim-acquire" => Release, "completion-claim-release" => Acquire);
        self.tail.fetch_add(n, order)
    }

    /// Pushes one entry for each item. The word must be below 2^63.
    ///
    /// The caller vouches that the credits leave room for them; too many would overwrite entries unread.
    #[inline]
    pub fn push_all(&self, mut items: impl ExactSizeIterator<Item = (u64, u64)>) {
        let n = items.len() as u64;
        let first = self.claim(n);
        let mut position = first;
        // In stretches: up to the ring's end, and on from its begin, in the next lap.
        while position != first + n {
            let lap_bit = self.lap_bit(position);
            let end = ((position | self.mask) + 1).min(first + n);
            let stretch = self.entries.iter().skip((position & self.mask) as usize);
            // No more than was claimed, whatever the iterator has.
            let stretch = stretch.take((end - position) as usize);
            for (entry, (word, value)) in stretch.zip(&mut items) {
                entry.publish(word, value, lap_bit);
            }
            position = end;
        }
    }

    /// The next entry, for the one reader that owns the cursor.
    #[inline]
    pub fn pop(&self, cursor: &mut Cursor) -> Option<(u64, u64)> {
        let entry = self.entry(cursor.0);
        // Acquire pairs with the Release store in `push_all`.
        let word = entry
            .word
            .load(ordering!(Acquire, "completion-pop" => Relaxed));
        if word & 1 != self.lap_bit(cursor.0) && !broken("completion-pop-lap") {
            return None;
        }
        let value = entry.value.load(Ordering::Relaxed);
        cursor.0 += 1;
        Some((word >> 1, value))
    }

    /// Whether `pop` would find the entry `ahead` places after the next one. Entries before it may be missing. Never
    /// true for more entries than the ring has.
    #[inline]
    pub fn has_ready(&self, cursor: &Cursor, ahead: usize) -> bool {
        let position = cursor.0.wrapping_add(ahead as u64);
        ahead as u64 <= self.mask
            && self.entry(position).word.load(Ordering::Acquire) & 1 == self.lap_bit(position)
    }

    /// Entries claimed since the ring was made.
    pub fn pushed(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }
}

impl Cursor {
    /// Entries read since the ring was made.
    pub fn popped(&self) -> u64 {
        self.0
    }
}

impl core::fmt::Debug for CompletionRing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CompletionRing")
            .field("capacity", &self.entries.len())
            .field("pushed", &self.pushed())
            .finish()
    }
}
