//! Ends without a call, and who is told of any end.

use moonring::{OpError, OpKind};

use super::{Future, Id, Model, Notice, Op, State};

impl Model {
    /// Ends an op that is queued, or running if it may be. Whether it was running; `None`: nothing was done.
    pub(super) fn abandon(
        &mut self,
        id: Id,
        error: impl Fn(bool) -> OpError,
        may_run: bool,
    ) -> Option<bool> {
        let started = match self.ops[id].state {
            State::Queued => false,
            State::Running if may_run => true,
            _ => return None,
        };
        let kind = self.ops[id].request.kind;
        let op = &mut self.ops[id];
        op.state = State::Ended;
        op.result = Err(error(started));
        op.more = started;
        if started {
            self.quarantine.push(id);
            self.lanes[kind.index()].total += 1;
            if matches!(error(started), OpError::TimedOut { .. }) {
                self.op_is_overdue(id);
            }
        }
        self.count(id);
        self.tell(id, started, false);
        Some(started)
    }

    pub(super) fn count(&mut self, id: Id) {
        let kind = self.ops[id].request.kind;
        let name = match (&self.ops[id].result, kind) {
            (Err(error), _) => error.name(),
            (Ok(0), OpKind::Lookup) => "absent",
            (Ok(_), OpKind::Lookup) => "present",
            (Ok(1), OpKind::Store) => "stored",
            (Ok(2), OpKind::Store) => "already_there",
            (Ok(_), OpKind::Store) => "accepted",
            (Ok(_), _) => "ok",
        };
        *self.lanes[kind.index()].codes.entry(name).or_default() += 1;
    }

    /// The submitter learns of an end, or of a release.
    pub(super) fn tell(&mut self, id: Id, more: bool, release: bool) {
        match self.ops[id].source {
            0 => {
                let op = &self.ops[id];
                if op.ownerless && op.is_final() {
                    self.recycle(id);
                }
            }
            source => {
                let notice = Notice { id, more, release };
                self.pair(source - 1).notices.push_back(notice);
                self.clear_up(source - 1);
            }
        }
    }

    pub(super) fn release(&mut self, id: Id) {
        self.quarantine.retain(|&held| held != id);
        let op = &mut self.ops[id];
        op.released = true;
        if op.source > 0 && op.ownerless {
            op.slot_held = false;
        }
        self.tell(id, false, true);
    }

    /// What a cancel answers: the op was never started, is abandoned, runs on, or has ended.
    pub fn cancel(&mut self, id: Id, abandon: bool) -> moonring::Cancel {
        use moonring::Cancel;
        let error = |started| OpError::Cancelled { started };
        match self.abandon(id, error, abandon) {
            Some(true) => Cancel::Abandoned,
            Some(false) => Cancel::NeverStarted,
            None if self.ops[id].state == State::Running => Cancel::Running,
            None => Cancel::Ended,
        }
    }

    /// Cancels what a pair has with this number; how many.
    pub fn cancel_all(&mut self, pair: usize, user_data: u64, abandon: bool) -> usize {
        let mine = |op: &Op| op.source == pair + 1 && op.request.user_data == user_data;
        let ids = self.live_ops(mine);
        let error = |started| OpError::Cancelled { started };
        let done = ids.into_iter().map(|id| self.abandon(id, error, abandon));
        done.flatten().count()
    }

    pub(super) fn live_ops(&self, is_it: impl Fn(&Op) -> bool) -> Vec<Id> {
        let live = |op: &Op| op.state != State::Ended && is_it(op);
        (0..self.ops.len())
            .filter(|&id| live(&self.ops[id]))
            .collect()
    }

    /// Ends all whose time is up.
    pub fn expire(&mut self) {
        let now = self.now;
        for id in self.live_ops(|op| op.deadline.is_some_and(|d| d <= now)) {
            self.abandon(id, |started| OpError::TimedOut { started }, true);
        }
    }

    /// Ends all that is queued. No call may be under way.
    pub fn shut_down(&mut self) {
        self.closed = true;
        for id in self.live_ops(|op| op.state == State::Queued) {
            self.abandon(id, |_| OpError::ShutDown, false);
        }
        // They come to be refused.
        self.waiting.clear();
        for future in &mut self.futures {
            if let Future::Waits { queued, .. } = future {
                *queued = true;
            }
        }
        self.ready = [[0; 4]; 2];
        self.clients = Default::default();
        for pair in self.pairs.iter_mut().flatten() {
            pair.rings = Default::default();
        }
    }
}
