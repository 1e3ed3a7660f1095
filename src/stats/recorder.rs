//! Where workers count.
//!
//! A [`WorkerRecorder`] has **one writer**, its worker; counts of two workers share no cache line. The writer
//! counts in this order, for each call:
//! ```text
//! op_waits ─ call, folded, moved ─ op_totals ─ result (release) ─ completions are published
//! ```
//! Readers look at results first (acquire) and then at the rest, so an op whose result they see, they see whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use crossbeam_utils::CachePadded;

use super::code::{CODES, code_of};
use super::count::Count;
use super::lane::LaneStats;
use super::latency::LatencyRecorder;
use crate::store::RawResult;
use crate::{OpError, OpKind};

/// What one thread counts, all op kinds.
#[derive(Debug)]
pub(crate) struct WorkerRecorder {
    lanes: [CachePadded<LaneRecorder>; 4],
}

impl WorkerRecorder {
    /// All memory that it will ever need: about 440 KiB.
    pub(crate) fn new() -> Self {
        Self {
            lanes: OpKind::ALL.map(|op| CachePadded::new(LaneRecorder::new(op))),
        }
    }

    /// The recorder of this op kind.
    #[inline(always)]
    pub(crate) fn lane(&self, op: OpKind) -> &LaneRecorder {
        &self.lanes[op.index()]
    }
}

/// What one thread counts of one op kind. All methods but those that add are that thread's alone.
#[derive(Debug)]
pub(crate) struct LaneRecorder {
    op: OpKind,
    /// Calls of one op, which are not among those that follow.
    calls_of_one: Count,
    calls: Count,
    keys: Count,
    ops: Count,
    callers: Count,
    folded_ops: Count,
    folded_bytes: Count,
    bytes: Count,
    last_store_code: AtomicI32,
    codes: [Count; CODES],
    queue: LatencyRecorder,
    call: LatencyRecorder,
    total: LatencyRecorder,
}

impl LaneRecorder {
    fn new(op: OpKind) -> Self {
        Self {
            op,
            calls_of_one: Count::new(),
            calls: Count::new(),
            keys: Count::new(),
            ops: Count::new(),
            callers: Count::new(),
            folded_ops: Count::new(),
            folded_bytes: Count::new(),
            bytes: Count::new(),
            last_store_code: AtomicI32::new(0),
            codes: [const { Count::new() }; CODES],
            queue: LatencyRecorder::new(),
            call: LatencyRecorder::new(),
            total: LatencyRecorder::new(),
        }
    }

    /// A store call ended: its keys, the ops behind them, how many different callers these came from, and how long
    /// the store took.
    #[inline(always)]
    pub(crate) fn call(&self, keys: u64, ops: u64, callers: u64, call_ns: u64) {
        self.calls.add(1);
        self.keys.add(keys);
        self.ops.add(ops);
        self.callers.add(callers);
        self.call.record(call_ns, 1);
    }

    /// The same of a call of one op.
    #[inline(always)]
    pub(crate) fn call_of_one(&self, call_ns: u64) {
        self.calls_of_one.add(1);
        self.call.record(call_ns, 1);
    }

    /// `count` ops waited `ns` from their submit until a call took them.
    #[inline(always)]
    pub(crate) fn op_waits(&self, ns: u64, count: u64) {
        self.queue.record(ns, count);
    }

    /// `count` ops took `ns` from their submit to their completion.
    #[inline(always)]
    pub(crate) fn op_totals(&self, ns: u64, count: u64) {
        self.total.record(ns, count);
    }

    /// `ops` ops were answered from another op's key, with `bytes` copied for them.
    #[inline]
    pub(crate) fn folded(&self, ops: u64, bytes: u64) {
        self.folded_ops.add(ops);
        self.folded_bytes.add(bytes);
    }

    /// The store took or gave `bytes`.
    #[inline]
    pub(crate) fn moved(&self, bytes: u64) {
        self.bytes.add(bytes);
    }

    /// `count` ops end with `result`: the last thing that is counted of them, before their completion is published.
    #[inline(always)]
    pub(crate) fn result(&self, result: &RawResult, count: u64) {
        if let Err(OpError::Store(number)) = result {
            self.last_store_code.store(*number, Ordering::Relaxed);
        }
        // Release: pairs with the acquire in `add_results_to`.
        self.codes[code_of(self.op, result)].add_release(count);
    }

    /// Adds how ops ended to `stats`: the first half of a snapshot. Any thread, at any time.
    fn add_results_to(&self, stats: &mut LaneStats) {
        // The acquire pairs with the release in `result`.
        for (sum, count) in stats.codes.iter_mut().zip(&self.codes) {
            *sum += count.get_acquire();
        }
        // The number is written before its count: a count over 0 has one.
        let numbered = code_of(self.op, &Err(OpError::Store(0)));
        if self.codes[numbered].get_acquire() > 0 {
            stats.last_store_code = Some(self.last_store_code.load(Ordering::Relaxed));
        }
    }

    /// Adds all other counts to `stats`, after the results: the other way round, an op could be seen as completed before
    /// it is seen in `ops`.
    fn add_rest_to(&self, stats: &mut LaneStats) {
        let of_one = self.calls_of_one.get();
        stats.calls += self.calls.get() + of_one;
        stats.keys += self.keys.get() + of_one;
        stats.ops += self.ops.get() + of_one;
        stats.callers += self.callers.get() + of_one;
        stats.folded_ops += self.folded_ops.get();
        stats.folded_bytes += self.folded_bytes.get();
        stats.bytes += self.bytes.get();
        for (recorder, histogram) in [
            (&self.queue, &mut stats.queue),
            (&self.call, &mut stats.call),
            (&self.total, &mut stats.total),
        ] {
            recorder.snapshot_into(histogram);
            stats.saturated += recorder.saturated();
        }
    }
}

/// The sums over all `workers`, one entry per op kind, and what `intake` says right after the results were read: reading
/// the histograms takes its time, in which many more ops are accepted. See [`Stats::read`](super::Stats::read).
pub(crate) fn collect<R>(
    workers: &[Arc<WorkerRecorder>],
    intake: impl FnOnce() -> R,
) -> ([LaneStats; 4], R) {
    let mut lanes = OpKind::ALL.map(LaneStats::new);
    let add = |lanes: &mut [LaneStats; 4], add: fn(&LaneRecorder, &mut LaneStats)| {
        for worker in workers {
            for stats in &mut *lanes {
                add(worker.lane(stats.op), stats);
            }
        }
    };
    add(&mut lanes, LaneRecorder::add_results_to);
    let intake = intake();
    add(&mut lanes, LaneRecorder::add_rest_to);
    (lanes, intake)
}
