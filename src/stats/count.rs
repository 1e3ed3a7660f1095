//! A count with one writer and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Written by one thread only. A second writer would lose counts (nothing worse).
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`. With one writer a load and a store do; a read-modify-write would lock the cache line.
    #[inline(always)]
    pub(super) fn add(&self, n: u64) {
        let old = self.0.load(Ordering::Relaxed);
        self.0.store(old.wrapping_add(n), Ordering::Relaxed);
    }

    /// Adds `n`; who sees it with [`get_acquire`](Count::get_acquire) sees all that its writer wrote before.
    #[inline(always)]
    pub(super) fn add_release(&self, n: u64) {
        let old = self.0.load(Ordering::Relaxed);
        // Release: pairs with the acquire in `get_acquire`.
        self.0.store(old.wrapping_add(n), Ordering::Release);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn get_acquire(&self) -> u64 {
        // Acquire: pairs with the release in `add_release`.
        self.0.load(Ordering::Acquire)
    }
}
