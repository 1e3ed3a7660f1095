//! The list of an engine's pairs, and the workers' own copies of it.
//!
//! The list changes rarely and under a lock; its version tells workers that their copy is old. A worker renews its
//! copy between batches only, so that the pairs of a batch stay alive until they are completed.
//!
//! A ready bit can be that of a pair which took the place of another in the list, and a bit that the old pair left set
//! the new one doesn't set again. The worker therefore looks at the version after it has cleared the bit: the pair was
//! listed before it published, so either the worker sees the new version, or the pair sees the bit cleared and sets it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::pair::PairShared;

#[derive(Default)]
pub(crate) struct Pairs {
    list: Mutex<List>,
    /// Grows with each change. Written under the lock, Release; read without it, Acquire.
    version: AtomicU64,
}

#[derive(Default)]
struct List {
    pairs: Vec<Option<Arc<PairShared>>>,
    /// What pairs that are gone had counted.
    accepted: u64,
    refused: u64,
}

/// What all pairs counted, those included that are gone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PairCounts {
    pub(crate) pairs: u64,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    pub(crate) credits_in_use: u64,
}

impl Pairs {
    /// For a test of what takes it.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Lists a new pair, made by `make` for its number; `None` where `max` are open.
    pub(crate) fn add<T>(
        &self,
        max: usize,
        make: impl FnOnce(usize) -> (T, Arc<PairShared>),
    ) -> Option<T> {
        let mut list = self.lock();
        let free = list.pairs.iter().position(Option::is_none);
        let id = free.unwrap_or(list.pairs.len());
        if id >= max {
            return None;
        }
        let (made, shared) = make(id);
        if id == list.pairs.len() {
            list.pairs.push(None);
        }
        list.pairs[id] = Some(shared);
        self.version.fetch_add(1, Ordering::Release);
        Some(made)
    }

    /// Takes a pair off the list: nothing of it is in flight, and nothing comes.
    pub(crate) fn forget(&self, pair: &PairShared) {
        let mut list = self.lock();
        let gone = match list.pairs.get_mut(pair.id) {
            Some(place) if place.as_ref().is_some_and(|p| std::ptr::eq(&**p, pair)) => place.take(),
            _ => return,
        };
        list.accepted += pair.accepted();
        list.refused += pair.refused();
        self.version.fetch_add(1, Ordering::Release);
        drop(list);
        drop(gone);
    }

    /// The pairs that are open, or dropped with ops in flight.
    pub(crate) fn all(&self) -> Vec<Arc<PairShared>> {
        self.lock().pairs.iter().flatten().cloned().collect()
    }

    pub(crate) fn counts(&self) -> PairCounts {
        let list = self.lock();
        let mut counts = PairCounts {
            accepted: list.accepted,
            refused: list.refused,
            ..PairCounts::default()
        };
        for pair in list.pairs.iter().flatten() {
            counts.pairs += 1;
            counts.accepted += pair.accepted();
            counts.refused += pair.refused();
            counts.credits_in_use += pair.credits_in_use();
        }
        counts
    }
}

/// A worker's copy.
#[derive(Default)]
pub(crate) struct Snapshot {
    pairs: Vec<Option<Arc<PairShared>>>,
    version: u64,
}

impl Snapshot {
    /// Renews the copy if the list has changed. Only between batches.
    #[inline(always)]
    pub(crate) fn refresh(&mut self, pairs: &Pairs) {
        if self.is_stale(pairs) {
            self.renew(pairs);
        }
    }

    #[cold]
    fn renew(&mut self, pairs: &Pairs) {
        let list = pairs.lock();
        self.pairs.clone_from(&list.pairs);
        // Under the lock nobody changes it.
        self.version = pairs.version.load(Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn is_stale(&self, pairs: &Pairs) -> bool {
        pairs.version.load(Ordering::Acquire) != self.version
    }

    /// All pairs of this copy.
    pub(crate) fn all(&self) -> impl Iterator<Item = &PairShared> {
        self.pairs.iter().flatten().map(|pair| &**pair)
    }

    /// The pair of a source; `None` for the clients, and where there is none in this copy.
    #[inline(always)]
    pub(crate) fn taken(&self, source: usize) -> Option<&PairShared> {
        self.pairs.get(source.checked_sub(1)?)?.as_deref()
    }
}
