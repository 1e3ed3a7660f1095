//! Whether an op is accepted, and what it is then.

use moonring::{OpError, SubmitError, Unavailable};

use super::{Id, Model, Op, Request, State, Time};

impl Model {
    pub(super) fn check_key(&self, key: &[u8]) -> Result<(), SubmitError> {
        let (len, max) = (key.len(), self.knobs.max_key);
        match len {
            0 => Err(SubmitError::EmptyKey),
            _ if len > max => Err(SubmitError::KeyTooLong { len, max }),
            _ => Ok(()),
        }
    }

    pub(super) fn check_nul(key: &[u8]) -> Result<(), SubmitError> {
        match key.iter().position(|&b| b == 0) {
            Some(at) => Err(SubmitError::NulInKey { at }),
            None => Ok(()),
        }
    }

    pub(super) fn check_bytes(&self, request: &Request) -> Result<(), SubmitError> {
        let op = request.kind;
        let mine = |id: &&Id| self.ops[**id].request.kind == op;
        let len_of = |id: &Id| self.ops[*id].request.bytes.as_ref().map_or(0, |b| b.len);
        let any = self.quarantine.iter().any(|id| len_of(id) > 0);
        let held: usize = self.quarantine.iter().filter(mine).map(len_of).sum();
        if any && held > self.knobs.quarantine_limit {
            let why = Unavailable::Quarantine;
            return Err(SubmitError::Unavailable { op, why });
        }
        let Some(bytes) = &request.bytes else {
            return Ok(());
        };
        let overlaps = |id: &Id| {
            let held = self.ops[*id].request.bytes.as_ref();
            held.is_some_and(|h| h.addr < bytes.addr + bytes.len && bytes.addr < h.addr + h.len)
        };
        if !bytes.is_slot && self.quarantine.iter().any(overlaps) {
            let (addr, len) = (bytes.addr, bytes.len);
            return Err(SubmitError::Quarantined { op, addr, len });
        }
        match bytes.len {
            0 => Err(SubmitError::ZeroLength { op }),
            _ => Ok(()),
        }
    }

    pub(super) fn deadline(&self, request: &Request, submitted: u64) -> Option<u64> {
        let ns = match request.time {
            Time::OfItsLane => self.knobs.timeouts[request.kind.index()],
            Time::Endless => None,
            Time::Ns(ns) => Some(ns),
        };
        ns.map(|ns| submitted + ns)
    }

    pub(super) fn add_op(
        &mut self,
        request: &Request,
        source: usize,
        caller: u64,
        submitted: u64,
    ) -> Id {
        self.ops.push(Op {
            source,
            caller,
            deadline: self.deadline(request, submitted),
            state: State::Queued,
            result: Err(OpError::BadResult),
            more: false,
            released: false,
            ownerless: false,
            slot_held: request.bytes.as_ref().is_some_and(|b| b.is_slot),
            request: request.clone(),
        });
        self.ops.len() - 1
    }
}
