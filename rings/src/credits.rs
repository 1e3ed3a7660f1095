//! The free entries of a table that many threads share: a stack of their indices, so that the one given back last is used next. Its lines
//! are still in somebody's cache; a queue would go round all entries, however few are in use.
//!
//! ```text
//!   top: tag │ index            below[index]: free ones below │ index below
//!        │                           ▲
//!        └───────────────────────────┘
//! ```
//! Taking the top one swaps in what lies below it, which may be old by then: another thread may have taken both and given the first
//! back. So each step also changes the tag (40 bits), and the swap fails. A thread would have to be kept between its look and its swap
//! for exactly a multiple of 2^40 steps of the others, days of them, to be deceived.
//!
//! **Progress**: lock-free. A thread that is stopped anywhere delays nobody, and hides no entry but its own.

use crossbeam_utils::CachePadded;

use crate::slots::MAX_DEPTH;
use crate::sync::{AtomicU64, Ordering, broken, ordering};

const INDEX_BITS: u32 = 24;
/// Below the last one, and of an empty stack.
const NONE: u64 = (1 << INDEX_BITS) - 1;
const ONE_TAG: u64 = 1 << INDEX_BITS;

/// Most credits: one less than a table can have entries.
pub const MAX_CREDITS: usize = MAX_DEPTH - 1;

/// The credits of a table: the indices of its free entries.
#[derive(Debug)]
pub struct Credits {
    top: CachePadded<AtomicU64>,
    /// By index. Relaxed: what is read of the top one is good only if `top` is still the same afterwards.
    below: Box<[AtomicU64]>,
}

impl Credits {
    /// All of `depth` credits (at most [`MAX_CREDITS`]) free; the lowest is the first to be taken.
    pub fn new(depth: usize) -> Self {
        let depth = depth.min(MAX_CREDITS) as u64;
        let below = (0..depth).map(|index| match index + 1 {
            next if next == depth => AtomicU64::new(NONE),
            next => AtomicU64::new((depth - next) << INDEX_BITS | next),
        });
        Self {
            below: below.collect(),
            top: CachePadded::new(AtomicU64::new(if depth == 0 { NONE } else { 0 })),
        }
    }

    /// What lies below an index, if it is one.
    #[inline(always)]
    fn below(&self, index: u64) -> Option<&AtomicU64> {
        self.below.get(index as usize)
    }

    /// Takes a credit: the index of an entry that is the caller's now.
    #[inline]
    pub fn acquire(&self) -> Option<u32> {
        // Acquire, here and below, pairs with the Release in `release`, of whichever step on the way to this top: what the last holder did
        // to the entry is seen, and what it wrote below it.
        let mut top = self
            .top
            .load(ordering!(Acquire, "credits-acquire" => Relaxed));
        loop {
            let below = self.below(top & NONE)?.load(Ordering::Relaxed);
            match self.top.compare_exchange_weak(
                top,
                next_tag(top) | below & NONE,
                Ordering::Relaxed,
                ordering!(Acquire, "credits-acquire-again" => Relaxed),
            ) {
                Ok(_) => return Some((top & NONE) as u32),
                Err(now) => top = now,
            }
        }
    }

    /// Gives a credit back. It must have been taken; others are not taken in.
    #[inline]
    pub fn release(&self, index: u32) {
        let Some(below) = self.below(u64::from(index)) else {
            return;
        };
        // Acquire, for the count below the top: as in `acquire`.
        let mut top = self
            .top
            .load(ordering!(Acquire, "credits-release-count" => Relaxed));
        loop {
            let count = self.count(top);
            below.store(count << INDEX_BITS | top & NONE, Ordering::Relaxed);
            match self.top.compare_exchange_weak(
                top,
                next_tag(top) | u64::from(index),
                // Pairs with the Acquire in `acquire`.
                ordering!(Release, "credits-release" => Relaxed),
                ordering!(Acquire, "credits-release-again" => Relaxed),
            ) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// How many are free, where this is the top; nonsense where it is no more.
    #[inline(always)]
    fn count(&self, top: u64) -> u64 {
        let below = self.below(top & NONE);
        below.map_or(0, |below| (below.load(Ordering::Relaxed) >> INDEX_BITS) + 1)
    }

    /// Free credits. A hint.
    pub fn free(&self) -> usize {
        self.count(self.top.load(Ordering::Acquire)) as usize
    }
}

/// The top's tag, one on; no index.
#[inline(always)]
fn next_tag(top: u64) -> u64 {
    match broken("credits-tag") {
        true => top & !NONE,
        false => (top & !NONE).wrapping_add(ONE_TAG),
    }
}
