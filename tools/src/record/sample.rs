//! What happened in one interval of a run, for its JSON.

use std::time::Duration;

use moonring::stats::{LaneStats, summary_us};
use moonring::{OpKind, Stats};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::book::{Latencies, Series};

/// One interval. Times are seconds, from the run's beginning.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// When it began.
    pub start_s: f64,
    /// How long it was.
    pub length_s: f64,
    /// The lanes in which anything happened.
    pub lanes: Map<String, Value>,
    /// Whole requests; only with a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_us: Option<Value>,
}

impl Sample {
    /// What happened from `start` on, for `length`.
    pub fn new(start: Duration, length: Duration, stats: &Stats, callers: &Latencies) -> Self {
        let busy = stats
            .lanes
            .iter()
            .filter(|lane| lane.completed() > 0 || lane.calls > 0);
        let lanes = busy.map(|lane| {
            let mut json = lane_json(lane);
            add_callers(&mut json, lane.op, callers);
            (lane.op.name().to_owned(), json)
        });
        Self {
            start_s: start.as_secs_f64(),
            length_s: length.as_secs_f64(),
            lanes: lanes.collect(),
            request_us: callers.get(Series::Request).map(summary_us),
        }
    }
}

/// As [`LaneStats::to_json`], with the counts that its ratios are of.
fn lane_json(lane: &LaneStats) -> Value {
    let mut json = lane.to_json();
    for (name, count) in [
        ("keys", lane.keys),
        ("callers", lane.callers),
        ("folded_ops", lane.folded_ops),
        ("bytes", lane.bytes),
    ] {
        json[name] = count.into();
    }
    json
}

/// Adds `caller_us` and `corrected_us` to a lane's JSON, where there are any.
fn add_callers(lane: &mut Value, op: OpKind, callers: &Latencies) {
    for (name, series) in [
        ("caller_us", Series::Caller(op)),
        ("corrected_us", Series::Corrected(op)),
    ] {
        if let Some(histogram) = callers.get(series).filter(|h| !h.is_empty()) {
            lane[name] = summary_us(histogram);
        }
    }
}

/// The `lanes` member of a report, with what the callers measured.
pub fn lanes_json(stats: &Stats, callers: &Latencies) -> Value {
    let mut lanes = stats.to_json()["lanes"].take();
    for op in OpKind::ALL {
        add_callers(&mut lanes[op.name()], op, callers);
    }
    match lanes {
        Value::Object(_) => lanes,
        _ => json!({}),
    }
}
