//! What a sim has done: counts, and which keys' bytes it spoiled.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::fault::{CallId, Fault};
use crate::OpKind;

/// A fault that spoiled bytes: [`Flipped`](Fault::Flipped), [`Unwritten`](Fault::Unwritten) or
/// [`Swapped`](Fault::Swapped).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteFault {
    /// Which.
    pub fault: Fault,
    /// The call's number among all calls, from 1.
    pub call: u64,
    /// The call's number among the retrieves, from 1.
    pub retrieve: u64,
    /// Whose bytes: one key, or the two that were swapped.
    pub keys: Vec<Vec<u8>>,
    /// Of a flip: offset of the changed byte in the object.
    pub offset: Option<usize>,
}

/// What a sim has done so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimReport {
    /// The seed it runs with.
    pub seed: u64,
    /// Calls by kind, in the order of [`OpKind::ALL`].
    pub calls: [u64; 4],
    /// Injected faults by number, see [`count`](Self::count).
    counts: [u64; 7],
    /// Every fault that spoiled bytes, in the order in which they were injected.
    pub byte_faults: Vec<ByteFault>,
}

impl SimReport {
    /// Calls of this kind.
    pub fn calls_of(&self, op: OpKind) -> u64 {
        self.calls[op.index()]
    }

    /// How often this fault was injected: keys for [`KeyError`](Fault::KeyError), else calls.
    pub fn count(&self, fault: Fault) -> u64 {
        self.counts[fault as usize]
    }

    /// All faults together.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The keys whose bytes were spoiled at least once.
    pub fn spoiled_keys(&self) -> BTreeSet<&[u8]> {
        let keys = self.byte_faults.iter().flat_map(|f| &f.keys);
        keys.map(Vec::as_slice).collect()
    }
}

/// A call of [`register`](crate::store::Store::register) or [`unregister`](crate::store::Store::unregister).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterCall {
    /// False: it was an unregistration.
    pub register: bool,
    /// Address of the first byte.
    pub base: usize,
    /// Length in bytes.
    pub len: usize,
    /// Whether it went well.
    pub ok: bool,
}

/// Where all that is written down. Counters are only counters: relaxed throughout.
#[derive(Debug, Default)]
pub(super) struct Record {
    all: AtomicU64,
    calls: [AtomicU64; 4],
    counts: [AtomicU64; 7],
    byte_faults: Mutex<Vec<ByteFault>>,
    pub(super) registers: Mutex<Vec<RegisterCall>>,
}

impl Record {
    /// Numbers a new call.
    pub(super) fn call(&self, op: OpKind) -> CallId {
        CallId {
            op,
            number: self.all.fetch_add(1, Relaxed) + 1,
            of_kind: self.calls[op.index()].fetch_add(1, Relaxed) + 1,
        }
    }

    pub(super) fn count(&self, fault: Fault, by: u64) {
        self.counts[fault as usize].fetch_add(by, Relaxed);
    }

    pub(super) fn byte_fault(&self, fault: ByteFault) {
        self.count(fault.fault, 1);
        let log = self.byte_faults.lock();
        log.unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    pub(super) fn report(&self, seed: u64) -> SimReport {
        let log = self.byte_faults.lock();
        let log = log.unwrap_or_else(PoisonError::into_inner);
        SimReport {
            seed,
            calls: self.calls.each_ref().map(|n| n.load(Relaxed)),
            counts: self.counts.each_ref().map(|n| n.load(Relaxed)),
            byte_faults: log.clone(),
        }
    }
}
