//! The statistics as Prometheus metrics (feature `prometheus`).
//!
//! A [`Metrics`] is a collector of the crate `prometheus-client`: at each scrape it takes a snapshot of the engine's
//! [`Stats`] and [`Health`], and writes it. So there is no registry on the way of an op, nothing is counted twice, and a scrape makes no
//! worker wait. (Of the two ecosystems, `metrics` would need each event pushed into its recorder, or a thread that copies.)
//!
//! Names are by the conventions of Prometheus: base units (seconds, bytes), `_total` for what only grows. `op` is `lookup`,
//! `retrieve`, `store` or `delete`.
//!
//! | metric | labels | what |
//! | --- | --- | --- |
//! | `moonring_accepted_total`, `moonring_refused_total` | | ops accepted, ops refused at submit |
//! | `moonring_completions_total` | `op`, `result` | how ops ended, by the names of [`CODE_NAMES`](crate::stats::CODE_NAMES) |
//! | `moonring_store_calls_total` | `op` | store calls |
//! | `moonring_called_ops_total` | `op` | ops that store calls took, folded ones included |
//! | `moonring_keys_total` | `op` | keys in store calls |
//! | `moonring_callers_total` | `op` | for each call, how many different pairs and clients its ops came from |
//! | `moonring_folded_ops_total`, `moonring_folded_bytes_total` | `op` | ops answered from another op's key, bytes copied for them |
//! | `moonring_transferred_bytes_total` | `op` | bytes that stores took or gave |
//! | `moonring_op_duration_seconds` | `op` | histogram: from submit to completion, per op |
//! | `moonring_queue_duration_seconds` | `op` | histogram: from submit until a store call took it, per op |
//! | `moonring_store_call_duration_seconds` | `op` | histogram: the store's time, per call |
//! | `moonring_in_flight_ops`, `moonring_quarantined_ops`, `moonring_credits_in_use` | | now |
//! | `moonring_pairs`, `moonring_clients` | | that exist now |
//! | `moonring_health` | `state` | 1 for the state that the engine is in, of `healthy`, `degraded`, `down` |
//! | `moonring_circuit_open` | `op` | 1 while the circuit is open |
//! | `moonring_circuit_opened_total` | `op` | how often it was opened |
//! | `moonring_failed_calls` | `op` | calls in a row in which every key failed |
//! | `moonring_overdue_calls` | `op` | calls that have not returned though the time of an op of theirs is up |
//! | `moonring_batch_bound_keys` | `op` | most keys that the next call takes |
//! | `moonring_queued_ops` | `op` | entries that wait in its rings for a worker, now |
//!
//! ```
//! use moonring::{Engine, metrics::Metrics, store::NullStore};
//! use prometheus_client::{encoding::text, registry::Registry};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::builder(std::sync::Arc::new(NullStore)).start()?;
//! let mut registry = Registry::default();
//! registry.register_collector(Box::new(Metrics::new(&engine)));
//! // With two engines, each in a `registry.sub_registry_with_label(("engine".into(), "a".into()))`.
//!
//! engine.client().blocking().lookup("key")?;
//! let mut page = String::new();
//! text::encode(&mut page, &registry)?;
//! assert!(page.contains("moonring_accepted_total 1\n"));
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::{Arc, Weak};

use hdrhistogram::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::engine::Shared;
use crate::stats::LaneStats;
use crate::{Engine, Health, HealthState, LaneHealth, OpKind, Stats};

/// Upper bounds of the histograms' buckets, in seconds: from 1 us, three a decade, to a minute; `+Inf` comes last. Latencies of an
/// embedded store are some microseconds, calls that hang take up to a minute (a transfer's limit in Mooncake).
pub const BUCKETS: [f64; 24] = [
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2,
    5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// The metrics of one engine; see the [module's page](self).
///
/// It keeps no part of the engine alive. Once the engine and all that belongs to it are gone, it gives nothing. In a
/// forked child all counts are 0.
#[derive(Debug, Clone)]
pub struct Metrics {
    engine: Weak<Shared>,
}

impl Metrics {
    /// The metrics of this engine.
    pub fn new(engine: &Engine) -> Self {
        Self {
            engine: Arc::downgrade(&engine.shared),
        }
    }
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(engine) = self.engine.upgrade() else {
            return Ok(());
        };
        let stats = match engine.is_forked() {
            true => Stats::default(),
            false => engine.stats(),
        };
        let health = Health::of(&engine);
        // Not for as long as the writer may take.
        drop(engine);
        Page(encoder).write(&stats, &health)
    }
}

struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn write(&mut self, stats: &Stats, health: &Health) -> fmt::Result {
        let engine = &stats.engine;
        self.count("accepted", "Ops accepted", engine.accepted)?;
        self.count("refused", "Ops refused at submit", engine.refused)?;
        self.results(stats)?;
        self.counts("store_calls", "Store calls", stats, |lane| lane.calls)?;
        self.counts("called_ops", "Ops that store calls took", stats, |lane| {
            lane.ops
        })?;
        self.counts("keys", "Keys in store calls", stats, |lane| lane.keys)?;
        let help = "Different pairs and clients of each store call, summed up";
        self.counts("callers", help, stats, |lane| lane.callers)?;
        let help = "Ops answered from another op's key in their call";
        self.counts("folded_ops", help, stats, |lane| lane.folded_ops)?;
        let help = "Bytes copied between buffers for folded retrieves";
        self.counts("folded_bytes", help, stats, |lane| lane.folded_bytes)?;
        let help = "Bytes that stores took or gave";
        self.counts("transferred_bytes", help, stats, |lane| lane.bytes)?;

        let help = "From submit to completion, per op";
        self.times("op_duration_seconds", help, stats, LaneStats::total)?;
        let help = "From submit until a store call took the op";
        self.times("queue_duration_seconds", help, stats, LaneStats::queue)?;
        let help = "The store's time per call";
        self.times("store_call_duration_seconds", help, stats, LaneStats::call)?;

        self.now(
            "in_flight_ops",
            "Accepted ops without their completion",
            engine.in_flight,
        )?;
        let help = "Ops that have ended while a store call still has them";
        self.now("quarantined_ops", help, engine.quarantined)?;
        let help = "Ops in flight, and those whose last notice is not reaped";
        self.now("credits_in_use", help, engine.credits_in_use)?;
        self.now("pairs", "Pairs that exist", engine.pairs)?;
        self.now("clients", "Clients that exist", engine.clients)?;

        self.state(health.state)?;
        let open = |lane: &LaneHealth| u64::from(lane.open.is_some());
        self.lanes("circuit_open", "1 while the circuit is open", health, open)?;
        let lanes = &health.lanes;
        let help = "How often the circuit was opened";
        self.counts("circuit_opened", help, stats, |lane| {
            lanes[lane.op.index()].opened
        })?;
        let help = "Calls in a row in which every key failed";
        self.lanes("failed_calls", help, health, |lane| {
            lane.failed_calls.into()
        })?;
        let help = "Calls that have not returned though the time of an op of theirs is up";
        self.lanes("overdue_calls", help, health, |lane| {
            lane.overdue_calls.into()
        })?;
        let help = "Most keys that the next call takes";
        self.lanes("batch_bound_keys", help, health, |lane| {
            lane.batch_bound as u64
        })?;
        let help = "Ops that wait for a worker";
        self.lanes("queued_ops", help, health, |lane| lane.queued as u64)
    }

    fn count(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let name = full(name);
        let mut metric = self
            .0
            .encode_descriptor(&name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    fn counts(
        &mut self,
        name: &str,
        help: &str,
        stats: &Stats,
        value: impl Fn(&LaneStats) -> u64,
    ) -> fmt::Result {
        let name = full(name);
        let mut metric = self
            .0
            .encode_descriptor(&name, help, None, MetricType::Counter)?;
        for lane in &stats.lanes {
            let labels = [("op", lane.op.name())];
            let mut one = metric.encode_family(&labels)?;
            one.encode_counter::<NoLabelSet, _, f64>(&value(lane), None)?;
        }
        Ok(())
    }

    fn results(&mut self, stats: &Stats) -> fmt::Result {
        let (name, help) = (full("completions"), "How ops ended");
        let mut metric = self
            .0
            .encode_descriptor(&name, help, None, MetricType::Counter)?;
        for lane in &stats.lanes {
            for (result, count) in lane.by_code() {
                let labels = [("op", lane.op.name()), ("result", result)];
                let mut one = metric.encode_family(&labels)?;
                one.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn times(
        &mut self,
        name: &str,
        help: &str,
        stats: &Stats,
        of: impl Fn(&LaneStats) -> &Histogram<u64>,
    ) -> fmt::Result {
        let name = full(name);
        let mut metric = self
            .0
            .encode_descriptor(&name, help, None, MetricType::Histogram)?;
        for lane in &stats.lanes {
            let (sum, buckets) = in_seconds(of(lane));
            let count = buckets.iter().map(|(_, count)| count).sum();
            let labels = [("op", lane.op.name())];
            let mut one = metric.encode_family(&labels)?;
            one.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    fn now(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let name = full(name);
        let mut metric = self
            .0
            .encode_descriptor(&name, help, None, MetricType::Gauge)?;
        metric.encode_gauge(&value)
    }

    fn lanes(
        &mut self,
        name: &str,
        help: &str,
        health: &Health,
        value: impl Fn(&LaneHealth) -> u64,
    ) -> fmt::Result {
        let name = full(name);
        let mut metric = self
            .0
            .encode_descriptor(&name, help, None, MetricType::Gauge)?;
        for (op, lane) in OpKind::ALL.into_iter().zip(&health.lanes) {
            let labels = [("op", op.name())];
            metric.encode_family(&labels)?.encode_gauge(&value(lane))?;
        }
        Ok(())
    }

    fn state(&mut self, now: HealthState) -> fmt::Result {
        let (name, help) = (full("health"), "1 for the state that the engine is in");
        let mut metric = self
            .0
            .encode_descriptor(&name, help, None, MetricType::Gauge)?;
        for state in [
            HealthState::Healthy,
            HealthState::Degraded,
            HealthState::Down,
        ] {
            let labels = [("state", state.name())];
            metric
                .encode_family(&labels)?
                .encode_gauge(&u64::from(state == now))?;
        }
        Ok(())
    }
}

fn full(name: &str) -> String {
    format!("moonring_{name}")
}

/// Sum and buckets of nanoseconds, in seconds. A bin across a bound counts above it: it is at most 0.8 % wide.
fn in_seconds(ns: &Histogram<u64>) -> (f64, Vec<(f64, u64)>) {
    let bounds = BUCKETS.into_iter().chain([f64::INFINITY]);
    let mut buckets: Vec<(f64, u64)> = bounds.map(|bound| (bound, 0)).collect();
    let mut sum = 0.0;
    for bin in ns.iter_recorded() {
        let count = bin.count_at_value();
        let highest = bin.value_iterated_to();
        sum += ns.median_equivalent(highest) as f64 * 1e-9 * count as f64;
        let place = BUCKETS.partition_point(|bound| highest as f64 * 1e-9 > *bound);
        buckets[place].1 += count;
    }
    (sum, buckets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::latency_histogram;

    #[test]
    fn buckets_have_what_is_up_to_their_bound() {
        let mut ns = latency_histogram();
        for value in [500, 900, 1_200, 2_000_000_000] {
            ns.record(value).unwrap();
        }
        ns.record_n(3_500_000_000_000, 2).unwrap();
        let (sum, buckets) = in_seconds(&ns);
        let filled: Vec<_> = buckets
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(
            filled,
            [(1e-6, 2), (2.5e-6, 1), (2.5, 1), (f64::INFINITY, 2)]
        );
        assert!((sum / 7002.0 - 1.0).abs() < 0.008, "{sum}");
        assert!(BUCKETS.is_sorted());
        assert_eq!(in_seconds(&latency_histogram()).0, 0.0);
    }
}
