//! What a bench reports: as JSON, and as text for people.

use std::fmt::Write;

use moonring::Stats;
use moonring::config::L2Adapter;
use serde::Serialize;
use serde_json::Value;

use super::compare::{self, Compared};
use super::sweep::Swept;
use super::{BenchArgs, Results};
use crate::interrupt;
use crate::record::book::{Latencies, Series};
use crate::record::{Sample, lanes_json};
use crate::session;
use crate::table::{self, Table};

/// The JSON of a bench.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Which JSON this is.
    schema: &'static str,
    began_unix_s: Option<f64>,
    /// By Ctrl-C: the rest covers what was done before.
    interrupted: bool,
    op: &'static str,
    path: &'static str,
    /// What was done, in words.
    procedure: &'static str,
    producers: u32,
    depth: u32,
    keys: u32,
    key_bytes: u32,
    value_bytes: u64,
    max_batch: usize,
    /// For how long ops could wait for a fuller call, in microseconds, and how many of them waited no longer; null: they did not.
    linger_us: Option<u64>,
    linger_ops: Option<u32>,
    /// Ops a second that were to be started; null: a closed loop.
    rate: Option<f64>,
    /// The effective configuration.
    l2_adapter: Value,
    /// Measured ops that completed.
    ops: u64,
    /// Of those, the ones that did not do their work.
    failed_ops: u64,
    /// Ops that were due when the time was over, and not started.
    unstarted_ops: u64,
    rounds: u64,
    /// Measured time.
    wall_s: f64,
    ops_per_s: f64,
    /// Values retrieved and stored in the measured time, in 10^9 bytes a second.
    gbytes_per_s: f64,
    /// Values that were retrieved and checked in the end.
    verified_values: u64,
    corrupt_values: u64,
    /// From the first round's beginning to the last one's end.
    lanes: Value,
    /// Over the whole life of the engine.
    engine: Value,
    /// The run over time.
    intervals: Vec<Sample>,
    /// Only with `--compare`.
    #[serde(flatten)]
    compared: Option<Compared>,
    /// Only with `--sweep`.
    #[serde(flatten)]
    swept: Option<Swept>,
    /// Why the run did not go well, a line each.
    errors: Vec<String>,
}

/// What was done, in words. A comparison reads values back before its rounds, and tells by itself what it does.
fn procedure(args: &BenchArgs) -> &'static str {
    match args.compare {
        true => compare::PROCEDURE,
        false => args.op.procedure(),
    }
}

impl Report {
    /// The report of a run. `last` are the statistics of the engine's whole life.
    pub fn new(args: &BenchArgs, adapter: &L2Adapter, results: &Results, last: &Stats) -> Self {
        let Results {
            measured,
            verified,
            recorded,
            compared,
            swept,
            errors,
        } = results;
        let wall_s = measured.time.as_secs_f64();
        let per_s = |n: u64| if wall_s > 0.0 { n as f64 / wall_s } else { 0.0 };
        let counts = &measured.counts;
        Self {
            schema: "moonring.bench/1",
            began_unix_s: recorded.began_unix_s,
            interrupted: interrupt::pressed(),
            op: args.op.name(),
            path: args.path.name(),
            procedure: procedure(args),
            producers: args.producers,
            depth: args.depth,
            keys: args.keys,
            key_bytes: args.key_bytes,
            value_bytes: args.value_bytes,
            max_batch: adapter.engine.max_batch,
            linger_us: args.linger_us,
            linger_ops: args.linger_ops,
            rate: args.rate,
            l2_adapter: adapter.effective(),
            ops: counts.ops,
            failed_ops: counts.failed,
            unstarted_ops: counts.unstarted,
            rounds: measured.rounds,
            wall_s,
            ops_per_s: per_s(counts.ops),
            gbytes_per_s: per_s(counts.bytes) / 1e9,
            verified_values: verified.ops - verified.failed,
            corrupt_values: results.corrupt(),
            lanes: lanes_json(&recorded.stats, &recorded.callers),
            engine: session::stats_json(last).1,
            intervals: recorded.samples.clone(),
            compared: compared.clone(),
            swept: swept.clone(),
            errors: errors.clone(),
        }
    }

    /// What was measured, in a few words.
    pub fn title(&self) -> String {
        format!(
            "{} of {} on {}, {} producers x {}",
            self.op,
            table::bytes(self.value_bytes),
            self.l2_adapter["type"].as_str().unwrap_or("?"),
            self.producers,
            self.depth
        )
    }

    /// The text for people.
    pub fn text(&self, results: &Results) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "{} on {}, path {}, {} producers x {} in flight, {} keys of {} bytes, values of {}\n{}\n",
            self.op,
            self.l2_adapter["type"].as_str().unwrap_or("?"),
            self.path,
            self.producers,
            self.depth,
            table::count(self.keys.into()),
            self.key_bytes,
            table::bytes(self.value_bytes),
            self.procedure,
        );
        let mut counts = Table::default();
        let mut row = |name: &str, value: String| counts.row([name.to_owned(), value]);
        row("ops", table::count(self.ops));
        row("failed ops", table::count(self.failed_ops));
        if let Some(rate) = self.rate {
            row("asked for", format!("{} ops/s", table::count(rate as u64)));
            row("not started in time", table::count(self.unstarted_ops));
        }
        row("rounds", table::count(self.rounds));
        row("time", format!("{:.2} s", self.wall_s));
        row("ops/s", table::count(self.ops_per_s as u64));
        row("GB/s", format!("{:.3}", self.gbytes_per_s));
        row("verified values", table::count(self.verified_values));
        row("corrupt values", table::count(self.corrupt_values));
        text.push_str(&counts.text());
        text.push('\n');
        text.push_str(&session::lanes_table(&results.recorded.stats));
        text.push_str(&callers_table(&results.recorded.callers));
        if let Some(compared) = &self.compared {
            text.push('\n');
            text.push_str(&compared.text());
        }
        if let Some(swept) = &self.swept {
            text.push('\n');
            text.push_str(&swept.text());
        }
        text
    }
}

/// Latencies as the callers see them; in an open loop also from when ops were due.
fn callers_table(callers: &Latencies) -> String {
    let mut rows = Table::new(&["the caller's", "p50", "p90", "p99", "p99.9", "max"]);
    let mut any = false;
    for series in Series::all() {
        let name = match series {
            Series::Caller(op) => format!("{op}, from submit"),
            Series::Corrected(op) => format!("{op}, from when it was due"),
            Series::Request => continue,
        };
        let Some(histogram) = callers.get(series).filter(|h| !h.is_empty()) else {
            continue;
        };
        let times = [0.5, 0.9, 0.99, 0.999, 1.0]
            .map(|q| table::micros(histogram.value_at_quantile(q) as f64 / 1e3));
        rows.row([name].into_iter().chain(times));
        any = true;
    }
    match any {
        true => format!("\n{}", rows.text()),
        false => String::new(),
    }
}
