//! A gate that holds a sim's calls until they are let through.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::OpKind;

/// Holds calls of chosen kinds before they reach the wrapped store. Every [`SimStore`](super::SimStore) has one, open at
/// first; clones are the same gate. Who waits sleeps.
#[derive(Clone, Debug, Default)]
pub struct SimGate(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    kinds: Mutex<[Kind; 4]>,
    /// Signalled at every change of `kinds`.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Kind {
    /// How many [`ClosedGate`]s keep it closed.
    closed: usize,
    /// Calls that may pass all the same.
    admitted: usize,
    /// Calls that wait.
    inside: usize,
    /// How often it was opened: who waited before the last time passes, also when it is closed again.
    opened: u64,
}

impl SimGate {
    /// Closes it for these kinds, until what is returned is dropped.
    pub fn close(&self, kinds: &[OpKind]) -> ClosedGate {
        let mut table = self.lock();
        let kinds: Vec<OpKind> = OpKind::ALL
            .into_iter()
            .filter(|k| kinds.contains(k))
            .collect();
        for kind in &kinds {
            table[kind.index()].closed += 1;
        }
        ClosedGate {
            gate: self.clone(),
            kinds,
        }
    }

    /// How many calls of this kind wait.
    pub fn inside(&self, kind: OpKind) -> usize {
        self.lock()[kind.index()].inside
    }

    /// Waits until at least `n` calls of this kind wait at the gate; false: `timeout` passed first.
    #[must_use]
    pub fn wait_inside(&self, kind: OpKind, n: usize, timeout: Duration) -> bool {
        let table = self.lock();
        let fewer = |table: &mut [Kind; 4]| table[kind.index()].inside < n;
        let waited = self.0.changed.wait_timeout_while(table, timeout, fewer);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Waits while it is closed for `kind`.
    pub(super) fn pass(&self, kind: OpKind) {
        let mut table = self.lock();
        let place = &mut table[kind.index()];
        if place.closed == 0 {
            return;
        }
        let opened = place.opened;
        place.inside += 1;
        self.0.changed.notify_all();
        let shut = |table: &mut [Kind; 4]| {
            let place = &table[kind.index()];
            place.opened == opened && place.admitted == 0
        };
        let waited = self.0.changed.wait_while(table, shut);
        let mut table = waited.unwrap_or_else(PoisonError::into_inner);
        let place = &mut table[kind.index()];
        place.inside -= 1;
        if place.opened == opened {
            place.admitted -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, [Kind; 4]> {
        let table = self.0.kinds.lock();
        table.unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`SimGate`] that is closed. Dropping it opens the gate, so that a failed test leaves no thread behind it.
#[derive(Debug)]
#[must_use = "dropping it opens the gate"]
pub struct ClosedGate {
    gate: SimGate,
    kinds: Vec<OpKind>,
}

impl ClosedGate {
    /// Lets `n` more calls of each of its kinds through, those that wait or the next that come.
    pub fn admit(&self, n: usize) {
        let mut table = self.gate.lock();
        for kind in &self.kinds {
            table[kind.index()].admitted += n;
        }
        self.gate.0.changed.notify_all();
    }
}

impl Drop for ClosedGate {
    fn drop(&mut self) {
        let mut table = self.gate.lock();
        for kind in &self.kinds {
            let kind = &mut table[kind.index()];
            kind.closed -= 1;
            if kind.closed == 0 {
                kind.admitted = 0;
                kind.opened += 1;
            }
        }
        self.gate.0.changed.notify_all();
    }
}
