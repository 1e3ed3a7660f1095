//! The counts of one op kind, as read.

use std::fmt;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::code::{CODE_NAMES, CODES};
use super::latency::{difference, latency_histogram, summary_us};
use crate::{OpError, OpKind};

/// The counts of one op kind. See the [module's page](super).
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct LaneStats {
    /// The op kind.
    pub op: OpKind,
    /// Ops that store calls took, folded ones included.
    pub ops: u64,
    /// Store calls.
    pub calls: u64,
    /// Keys in store calls.
    pub keys: u64,
    /// For each call, how many different pairs and clients its ops came from; the sum over all calls.
    pub callers: u64,
    /// Ops that were answered from another op's key in their call.
    pub folded_ops: u64,
    /// Bytes copied between buffers for folded retrieves.
    pub folded_bytes: u64,
    /// Bytes that stores took or gave, copies for folded ops not included.
    pub bytes: u64,
    /// Latencies beyond an hour, in any of the three histograms, which have them as one hour.
    pub saturated: u64,
    /// The number of the last [`OpError::Store`], of one of the workers that had one.
    pub last_store_code: Option<i32>,
    pub(super) codes: [u64; CODES],
    pub(super) queue: Histogram<u64>,
    pub(super) call: Histogram<u64>,
    pub(super) total: Histogram<u64>,
}

impl LaneStats {
    /// Nothing counted.
    pub(super) fn new(op: OpKind) -> Self {
        Self {
            op,
            ops: 0,
            calls: 0,
            keys: 0,
            callers: 0,
            folded_ops: 0,
            folded_bytes: 0,
            bytes: 0,
            saturated: 0,
            last_store_code: None,
            codes: [0; CODES],
            queue: latency_histogram(),
            call: latency_histogram(),
            total: latency_histogram(),
        }
    }

    /// From submit until a store call took the op, per op, in nanoseconds.
    pub fn queue(&self) -> &Histogram<u64> {
        &self.queue
    }

    /// The store's time per call, in nanoseconds.
    pub fn call(&self) -> &Histogram<u64> {
        &self.call
    }

    /// From submit to completion, per op, in nanoseconds.
    pub fn total(&self) -> &Histogram<u64> {
        &self.total
    }

    /// How ops ended: name and count, those that occurred, in the order of [`CODE_NAMES`].
    pub fn by_code(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let all = CODE_NAMES.iter().copied().zip(self.codes);
        all.filter(|(_, count)| *count > 0)
    }

    /// How many ops ended with this name, one of [`CODE_NAMES`]; 0 for others.
    pub fn count(&self, name: &str) -> u64 {
        self.by_code()
            .find(|(code, _)| *code == name)
            .map_or(0, |(_, count)| count)
    }

    /// Ops that have their terminal completion: the sum of [`by_code`](LaneStats::by_code). Unlike
    /// [`ops`](LaneStats::ops) this includes those that ended before a store call took them.
    pub fn completed(&self) -> u64 {
        self.codes.iter().sum()
    }

    /// Ops per store call; 0 where there was no call.
    pub fn ops_per_call(&self) -> f64 {
        per(self.ops, self.calls)
    }

    /// Keys per store call; 0 where there was no call.
    pub fn keys_per_call(&self) -> f64 {
        per(self.keys, self.calls)
    }

    /// Callers per store call; 0 where there was no call.
    pub fn callers_per_call(&self) -> f64 {
        per(self.callers, self.calls)
    }

    /// Adds the counts of `other`, for example the same lane of another engine. `op` stays.
    pub fn merge(&mut self, other: &LaneStats) {
        self.ops += other.ops;
        self.calls += other.calls;
        self.keys += other.keys;
        self.callers += other.callers;
        self.folded_ops += other.folded_ops;
        self.folded_bytes += other.folded_bytes;
        self.bytes += other.bytes;
        self.saturated += other.saturated;
        self.last_store_code = other.last_store_code.or(self.last_store_code);
        for (mine, theirs) in self.codes.iter_mut().zip(other.codes) {
            *mine += theirs;
        }
        // Operators of hdrhistogram panic where bounds differ; all of these are `latency_histogram`s.
        self.queue += &other.queue;
        self.call += &other.call;
        self.total += &other.total;
    }

    /// See [`Stats::since`](super::Stats::since).
    pub(super) fn since(&self, earlier: &LaneStats) -> LaneStats {
        let mut codes = self.codes;
        for (new, old) in codes.iter_mut().zip(earlier.codes) {
            *new = new.saturating_sub(old);
        }
        let mut since = Self {
            op: self.op,
            ops: self.ops.saturating_sub(earlier.ops),
            calls: self.calls.saturating_sub(earlier.calls),
            keys: self.keys.saturating_sub(earlier.keys),
            callers: self.callers.saturating_sub(earlier.callers),
            folded_ops: self.folded_ops.saturating_sub(earlier.folded_ops),
            folded_bytes: self.folded_bytes.saturating_sub(earlier.folded_bytes),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            saturated: self.saturated.saturating_sub(earlier.saturated),
            last_store_code: None,
            codes,
            queue: difference(&self.queue, &earlier.queue),
            call: difference(&self.call, &earlier.call),
            total: difference(&self.total, &earlier.total),
        };
        if since.count(OpError::Store(0).name()) > 0 {
            since.last_store_code = self.last_store_code;
        }
        since
    }

    /// As JSON: `ops, calls, ops_per_call, keys_per_call, callers_per_call, by_code{}, latency_us{}, queue_us{},
    /// call_us{}`; the last three as in [`summary_us`], `latency_us` being [`total`](LaneStats::total).
    pub fn to_json(&self) -> Value {
        let by_code: serde_json::Map<_, _> = self
            .by_code()
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect();
        json!({
            "ops": self.ops,
            "calls": self.calls,
            "ops_per_call": self.ops_per_call(),
            "keys_per_call": self.keys_per_call(),
            "callers_per_call": self.callers_per_call(),
            "by_code": by_code,
            "latency_us": summary_us(&self.total),
            "queue_us": summary_us(&self.queue),
            "call_us": summary_us(&self.call),
        })
    }
}

/// Never NaN.
fn per(sum: u64, calls: u64) -> f64 {
    if calls == 0 {
        0.0
    } else {
        sum as f64 / calls as f64
    }
}

impl fmt::Debug for LaneStats {
    /// Histograms as summaries: derived, each would print its 4,608 bins.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneStats")
            .field("op", &self.op)
            .field("ops", &self.ops)
            .field("calls", &self.calls)
            .field("keys", &self.keys)
            .field("callers", &self.callers)
            .field("folded_ops", &self.folded_ops)
            .field("folded_bytes", &self.folded_bytes)
            .field("bytes", &self.bytes)
            .field("saturated", &self.saturated)
            .field("last_store_code", &self.last_store_code)
            .field("by_code", &self.by_code().collect::<Vec<_>>())
            .field("queue_us", &format_args!("{}", summary_us(&self.queue)))
            .field("call_us", &format_args!("{}", summary_us(&self.call)))
            .field("total_us", &format_args!("{}", summary_us(&self.total)))
            .finish()
    }
}
