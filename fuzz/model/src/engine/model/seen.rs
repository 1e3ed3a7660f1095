//! What can be seen of it.

use super::{Future, Held, Model};

impl Model {
    /// Ops that have ended while a call has them.
    pub fn quarantined(&self) -> Vec<Held> {
        let held = self.quarantine.iter().map(|&id| {
            let op = &self.ops[id];
            let bytes = op.request.bytes.as_ref();
            let error = op.result.expect_err("what is in quarantine has failed");
            let (addr, len) = (bytes.map(|b| b.addr), bytes.map_or(0, |b| b.len));
            (op.request.kind, op.request.key.clone(), addr, len, error)
        });
        held.collect()
    }

    /// Slots that are the engine's.
    pub fn slots_held(&self) -> usize {
        let waiting = self.futures.iter().filter(
            |future| matches!(future, Future::Waits { request, .. } if request.bytes.is_some()),
        );
        self.ops.iter().filter(|op| op.slot_held).count() + waiting.count()
    }

    /// Whether a byte there is the engine's.
    pub fn is_in_use(&self, addr: usize, len: usize) -> bool {
        let mut held = self.ops.iter().filter(|op| op.slot_held);
        held.any(|op| {
            let bytes = op.request.bytes.as_ref();
            bytes.is_some_and(|b| b.addr < addr + len && addr < b.addr + b.content.len())
        })
    }

    pub fn accepted_ops(&self) -> u64 {
        let pairs: u64 = self.pairs.iter().flatten().map(|pair| pair.accepted).sum();
        pairs + self.gone.0 + self.clients_accepted
    }

    pub fn refused_ops(&self) -> u64 {
        let pairs: u64 = self.pairs.iter().flatten().map(|pair| pair.refused).sum();
        pairs + self.gone.1 + self.clients_refused
    }

    pub fn open_pairs(&self) -> u64 {
        self.pairs.iter().flatten().count() as u64
    }

    pub fn ops_in_flight(&self) -> u64 {
        self.live_ops(|_| true).len() as u64
    }

    pub fn credits_in_use(&self) -> u64 {
        let pairs = self.pairs.iter().flatten();
        let of_pairs: u64 = pairs.map(|pair| pair.accepted - pair.reaped).sum();
        of_pairs + (self.knobs.ring_depth - self.credits) as u64
    }
}
