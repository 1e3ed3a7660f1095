//! What can be seen of the engine, beside what the model says.

use std::time::Duration;

use moonring::{Shutdown, ShutdownError};

use super::World;
use crate::engine::model::{Held, Lane, Model};

impl World {
    /// After each step outside of calls.
    pub(super) fn look(&self) {
        let model = self.model.borrow();
        for submitter in self.pairs.borrow().iter() {
            assert_eq!(submitter.pair.in_flight(), model.in_flight(submitter.id));
        }
        let free = self.pool.total() - model.slots_held();
        assert_eq!(self.pool.available(), free, "slots that are free");
        self.look_at_quarantine(&model);
        self.look_at_circuits(&model);
    }

    fn look_at_circuits(&self, model: &Model) {
        let health = self.engine.health();
        for (lane, circuit) in health.lanes.iter().zip(model.circuits()) {
            assert_eq!(lane.open, circuit.open, "why a circuit is open");
            let got = (lane.failed_calls, lane.overdue_calls, lane.opened);
            let expected = (circuit.failed, circuit.overdue, circuit.opened);
            assert_eq!(got, expected, "failed, overdue, opened");
            assert_eq!(lane.batch_bound, circuit.bound, "most keys of a call");
            let in_use = circuit.answered || circuit.failed > 0;
            assert_eq!(lane.in_use, in_use, "whether a kind is in use");
        }
    }

    pub(super) fn look_inside(&self) {
        self.look();
        if self.below(64) == 63 {
            let refused = self.engine.shutdown(Shutdown::Drain, Duration::ZERO);
            assert_eq!(refused, Err(ShutdownError::WouldDeadlock));
        }
    }

    fn look_at_quarantine(&self, model: &Model) {
        let mut expected = model.quarantined();
        let held = self.engine.quarantined().into_iter();
        let mut held: Vec<_> = held
            .map(|q| (q.op, q.key, q.addr, q.len, q.ended_as))
            .collect();
        let order = |q: &Held| (q.0, q.1.clone(), q.2, q.3, q.4.name());
        expected.sort_by_key(order);
        held.sort_by_key(order);
        assert_eq!(held, expected, "what is in quarantine");
    }

    pub(super) fn look_at_counts_at_times(&self) {
        if let Some(left) = self.looks.get().checked_sub(1) {
            self.looks.set(left);
            self.look_at_counts();
        }
    }

    /// All counts. Slow, and exact only where no call is under way.
    pub(super) fn look_at_counts(&self) {
        if self.drivers.iter().any(|d| d.try_borrow_mut().is_err()) {
            return;
        }
        let (stats, model) = (self.engine.stats(), self.model.borrow());
        let counts = stats.engine;
        let in_flight = model.ops_in_flight();
        assert_eq!(counts.accepted, model.accepted_ops(), "accepted");
        assert_eq!(counts.completed, counts.accepted - in_flight, "completed");
        assert_eq!(counts.in_flight, in_flight, "in flight");
        assert_eq!(counts.refused, model.refused_ops(), "refused");
        assert_eq!(counts.quarantined, 0, "in quarantine");
        assert_eq!(counts.credits_in_use, model.credits_in_use(), "credits");
        assert_eq!(counts.pairs, model.open_pairs(), "pairs");
        assert_eq!(counts.clients, self.clients.len() as u64, "clients");
        for (lane, expected) in stats.lanes.iter().zip(&model.lanes) {
            let got = Lane {
                calls: lane.calls,
                keys: lane.keys,
                ops: lane.ops,
                callers: lane.callers,
                folded_ops: lane.folded_ops,
                folded_bytes: lane.folded_bytes,
                bytes: lane.bytes,
                queue: lane.queue().len(),
                total: lane.total().len(),
                codes: lane.by_code().collect(),
            };
            assert_eq!(&got, expected, "the counts of {}", lane.op);
        }
        assert_eq!(*self.store.objects(), model.objects, "the objects");
    }
}
