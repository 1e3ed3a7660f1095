//! Statistics: what the engine counted, as snapshots.
//!
//! Each worker counts for itself, in plain words of memory that only it writes; a snapshot reads them all while
//! the workers go on. **No reader ever makes a worker wait**, and no worker a reader.
//!
//! What a snapshot promises:
//! - Each count only grows from one snapshot to the next.
//! - `completed <= accepted`, and `in_flight` is exactly their difference.
//! - An op that is counted by its result code is also counted in `ops` and in its histograms, where it has a
//!   place there (an op that no store call took has none).
//! - Counts of *different* kinds may else be a few ops apart, for the workers don't stop. Once nothing is in
//!   flight they agree exactly.
//!
//! Latencies are nanoseconds in [`Histogram`]s with two significant digits from 0 to one hour: a value read from
//! one is at most 0.8 % off. Longer ones count as one hour, and in [`LaneStats::saturated`].

mod code;
mod count;
mod lane;
mod latency;
mod recorder;

use std::sync::Arc;

use serde_json::{Value, json};

use crate::OpKind;

pub use code::CODE_NAMES;
pub use hdrhistogram::Histogram;
pub use lane::LaneStats;
pub use latency::{HIGHEST_NS, latency_histogram, summary_us};
pub(crate) use recorder::{LaneRecorder, WorkerRecorder, collect};

/// A snapshot of all counts. See the [module's page](self).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Counts of the engine as a whole.
    pub engine: EngineCounts,
    /// One entry per op kind, in the order of [`OpKind::ALL`].
    pub lanes: [LaneStats; 4],
}

/// Counts of the engine as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineCounts {
    /// Ops accepted since the start.
    pub accepted: u64,
    /// Accepted ops that have their terminal completion; in a snapshot `accepted - in_flight`.
    pub completed: u64,
    /// Ops refused at submit.
    pub refused: u64,
    /// Accepted ops that have no terminal completion yet, now.
    pub in_flight: u64,
    /// Ops that have ended while a store call still has them, now: see [`Engine::quarantined`](crate::Engine::quarantined).
    pub quarantined: u64,
    /// Credits in use now: ops in flight, and those whose last notice is not reaped.
    pub credits_in_use: u64,
    /// Pairs that exist now.
    pub pairs: u64,
    /// Clients that exist now.
    pub clients: u64,
}

/// The submitters' side of a snapshot, for [`Stats::read`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Intake {
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    pub(crate) quarantined: u64,
    pub(crate) credits_in_use: u64,
    pub(crate) pairs: u64,
    pub(crate) clients: u64,
}

impl Stats {
    /// Takes a snapshot: first how ops ended, then `intake()`, then all else that `workers` counted.
    ///
    /// This order is what makes `completed <= accepted` hold. It needs three things of the engine:
    /// - a submitter counts an op as accepted **before** it publishes it;
    /// - whoever completes an op counts its result ([`LaneRecorder::result`]) **after** it took the op from its
    ///   ring, and before it publishes the completion (a caller who reaped it then finds it counted);
    /// - every completion is counted in one of `workers`, exactly once.
    ///
    /// A result that was seen (acquire) then brings with it the acceptance of its op:
    /// ```text
    /// submitter: accepted += 1 ─ publish (release) ─▶ worker: take (acquire) ─ result (release) ─▶ reader: results ─ accepted
    /// ```
    pub(crate) fn read(workers: &[Arc<WorkerRecorder>], intake: impl FnOnce() -> Intake) -> Self {
        let (lanes, intake) = collect(workers, intake);
        let completed = lanes.iter().map(LaneStats::completed).sum();
        debug_assert!(completed <= intake.accepted, "counted before accepted");
        let engine = EngineCounts {
            accepted: intake.accepted,
            completed,
            refused: intake.refused,
            in_flight: intake.accepted.saturating_sub(completed),
            quarantined: intake.quarantined,
            credits_in_use: intake.credits_in_use,
            pairs: intake.pairs,
            clients: intake.clients,
        };
        Self { engine, lanes }
    }

    /// The lane of this op kind.
    pub fn lane(&self, op: OpKind) -> &LaneStats {
        &self.lanes[op.index()]
    }

    /// What happened between `earlier` and `self`, two snapshots of one engine.
    ///
    /// Counts and histograms are differences; what is "now" (`in_flight`, `quarantined`, `credits_in_use`, `pairs`, `clients`) is
    /// that of `self`. Were `earlier` the later one, differences would be 0.
    pub fn since(&self, earlier: &Stats) -> Stats {
        let (new, old) = (&self.engine, &earlier.engine);
        let engine = EngineCounts {
            accepted: new.accepted.saturating_sub(old.accepted),
            completed: new.completed.saturating_sub(old.completed),
            refused: new.refused.saturating_sub(old.refused),
            ..*new
        };
        let lanes = OpKind::ALL.map(|op| self.lane(op).since(earlier.lane(op)));
        Stats { engine, lanes }
    }

    /// As JSON, the form that the tools write:
    /// `{"lanes": {"lookup": .., "retrieve": .., "store": .., "delete": ..}, "engine": {"accepted", "completed",
    /// "refused", "in_flight", "quarantined"}}`, each lane as in [`LaneStats::to_json`].
    pub fn to_json(&self) -> Value {
        let lanes: serde_json::Map<_, _> = OpKind::ALL
            .iter()
            .map(|op| (op.name().to_owned(), self.lane(*op).to_json()))
            .collect();
        json!({
            "lanes": lanes,
            "engine": {
                "accepted": self.engine.accepted,
                "completed": self.engine.completed,
                "refused": self.engine.refused,
                "in_flight": self.engine.in_flight,
                "quarantined": self.engine.quarantined,
            },
        })
    }
}

impl Default for Stats {
    /// Nothing counted yet.
    fn default() -> Self {
        Self {
            engine: EngineCounts::default(),
            lanes: OpKind::ALL.map(LaneStats::new),
        }
    }
}

#[cfg(test)]
mod tests;
