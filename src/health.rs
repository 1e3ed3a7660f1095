//! How an engine does: from what its calls brought, without a call of its own.

use std::fmt;

use crate::OpKind;
use crate::circuit::LaneHealth;
use crate::engine::Shared;

/// The whole engine, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum HealthState {
    /// The last call of each kind was answered, none is overdue, nothing is in quarantine.
    Healthy,
    /// Something is wrong, and some kind of op still works.
    Degraded,
    /// No kind of op that was used works; or the engine is shut down.
    Down,
}

impl HealthState {
    /// `healthy`, `degraded` or `down`.
    pub fn name(self) -> &'static str {
        match self {
            HealthState::Healthy => "healthy",
            HealthState::Degraded => "degraded",
            HealthState::Down => "down",
        }
    }
}

impl fmt::Display for HealthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How an engine does, and why. See [`Engine::health`](crate::Engine::health).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// In a word.
    pub state: HealthState,
    /// What is wrong, a line each; empty where all is well.
    pub reasons: Vec<String>,
    /// One entry per op kind, in the order of [`OpKind::ALL`].
    pub lanes: [LaneHealth; 4],
    /// Ops that have ended while a store call still has them.
    pub quarantined: u64,
}

impl Health {
    pub(crate) fn of(engine: &Shared) -> Self {
        let queued = engine.queued();
        let lanes = OpKind::ALL.map(|op| {
            let circuit = &engine.lanes[op.index()].circuit;
            circuit.look(queued[op.index()])
        });
        let quarantined = engine.quarantine.ops() as u64;
        let mut reasons = Vec::new();
        if engine.is_closing() {
            reasons.push(engine.refusal().to_string());
        }
        for (op, lane) in OpKind::ALL.into_iter().zip(&lanes) {
            if let Some(why) = lane.open {
                reasons.push(format!("{op}: circuit open: {why}"));
            }
            if lane.failed_calls > 0 {
                reasons.push(format!("{op}: the last {} calls failed", lane.failed_calls));
            }
            if lane.overdue_calls > 0 {
                reasons.push(format!("{op}: {} calls are overdue", lane.overdue_calls));
            }
        }
        if quarantined > 0 {
            reasons.push(format!("{quarantined} ops are in quarantine"));
        }
        // Whether its workers all hang in calls of any kind.
        let hangs = |op: OpKind| engine.groups[engine.lanes[op.index()].group].wants_spare();
        let used = || {
            let lanes = OpKind::ALL.into_iter().zip(&lanes);
            lanes.filter(|(_, lane)| lane.in_use || lane.open.is_some())
        };
        let works = |(op, lane): (OpKind, &LaneHealth)| {
            lane.open.is_none() && lane.failed_calls == 0 && !hangs(op)
        };
        let nothing_works = used().count() > 0 && !used().any(works);
        let state = match reasons.is_empty() {
            true => HealthState::Healthy,
            false if engine.is_closing() || nothing_works => HealthState::Down,
            false => HealthState::Degraded,
        };
        Self {
            state,
            reasons,
            lanes,
            quarantined,
        }
    }
}
