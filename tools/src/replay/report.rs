//! What a replay reports: as JSON, and as text for people.

use std::fmt::Write;

use moonring::Stats;
use moonring::config::L2Adapter;
use moonring::stats::{latency_histogram, summary_us};
use moonring::store::SimStore;
use serde::Serialize;
use serde_json::Value;

use super::ReplayArgs;
use super::request::Fatal;
use super::tally::{Corrupt, Tally};
use crate::cli::Failure;
use crate::interrupt;
use crate::record::book::Series;
use crate::record::{Recorded, Sample};
use crate::session;
use crate::table::{self, Table};
use crate::trace::TraceError;

/// The JSON of a replay.
///
/// Each block is counted once: `blocks = hit_blocks + late_misses + stored_blocks + no_space + failed_blocks`.
/// `corrupt_blocks` are among the hits.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Which JSON this is.
    schema: &'static str,
    began_unix_s: Option<f64>,
    /// By Ctrl-C: the rest covers what was done before.
    interrupted: bool,
    trace: String,
    path: &'static str,
    concurrency: u64,
    speed: f64,
    block_bytes: u64,
    salt: String,
    /// The effective configuration.
    l2_adapter: Value,
    requests: u64,
    blocks: u64,
    /// Blocks that a retrieve served.
    hit_blocks: u64,
    /// Blocks that were there at the lookup and gone at the retrieve.
    late_misses: u64,
    /// Blocks whose store went well: new, or already there.
    stored_blocks: u64,
    no_space: u64,
    /// Blocks whose retrieve or store failed otherwise.
    failed_blocks: u64,
    corrupt_blocks: u64,
    /// `hit_blocks / blocks`.
    hit_ratio: f64,
    bytes_retrieved: u64,
    bytes_stored: u64,
    folded_bytes: u64,
    wall_s: f64,
    /// Of the whole process, an embedded store included.
    peak_memory_bytes: Option<u64>,
    lanes: Value,
    /// Whole requests. With a speed they count from when they were due.
    request_us: Value,
    engine: Value,
    /// The run over time.
    intervals: Vec<Sample>,
    /// What the store did on purpose, where it is a `sim`.
    #[serde(skip_serializing_if = "Option::is_none")]
    sim: Option<Value>,
    /// The first corrupt blocks, at most [`MAX_LISTED`](super::tally::MAX_LISTED).
    corrupt: Vec<Corrupt>,
    /// Why the run did not go well, a line each.
    errors: Vec<String>,
    #[serde(skip)]
    accounted: u64,
    /// Accepted ops without a completion.
    #[serde(skip)]
    unfinished: u64,
}

impl Report {
    /// The report of a run; [`faults`](Self::faults) completes it.
    pub fn new(
        args: &ReplayArgs,
        adapter: &L2Adapter,
        salt: &str,
        tally: &Tally,
        recorded: &Recorded,
        stats: &Stats,
        sim: Option<&SimStore>,
    ) -> Self {
        let (lanes, engine) = session::stats_json(stats);
        let requests = recorded.callers.get(Series::Request);
        let ratio = match tally.blocks {
            0 => 0.0,
            blocks => tally.hit_blocks as f64 / blocks as f64,
        };
        Self {
            schema: "moonring.replay/1",
            began_unix_s: recorded.began_unix_s,
            interrupted: interrupt::pressed(),
            trace: args.trace.display().to_string(),
            path: args.path.name(),
            concurrency: args.concurrency,
            speed: args.speed,
            block_bytes: args.block_bytes,
            salt: salt.to_owned(),
            l2_adapter: adapter.effective(),
            requests: tally.requests,
            blocks: tally.blocks,
            hit_blocks: tally.hit_blocks,
            late_misses: tally.late_misses,
            stored_blocks: tally.stored_blocks,
            no_space: tally.no_space,
            failed_blocks: tally.failed_blocks,
            corrupt_blocks: tally.corrupt_blocks,
            hit_ratio: ratio,
            bytes_retrieved: tally.bytes_retrieved,
            bytes_stored: tally.bytes_stored,
            folded_bytes: stats.lanes.iter().map(|lane| lane.folded_bytes).sum(),
            wall_s: recorded.time.as_secs_f64(),
            peak_memory_bytes: session::peak_memory(),
            lanes,
            request_us: requests.map_or_else(|| summary_us(&latency_histogram()), summary_us),
            engine,
            intervals: recorded.samples.clone(),
            sim: sim.map(|sim| session::sim_json(&sim.report())),
            corrupt: tally.corrupt.clone(),
            errors: Vec::new(),
            accounted: tally.accounted(),
            unfinished: stats.engine.accepted - stats.engine.completed,
        }
    }

    /// Why the run did not go well, the gravest first. They also stand in the report from now on.
    pub fn faults(
        &mut self,
        played: Result<(), Fatal>,
        written: Option<Failure>,
        trace_error: Option<TraceError>,
    ) -> Vec<Failure> {
        let mut faults = Vec::new();
        if self.corrupt_blocks > 0 {
            let n = table::count(self.corrupt_blocks);
            let listed = match self.corrupt.len() {
                told if told <= super::MAX_TOLD => String::new(),
                told => format!(
                    "; {} of them are told above, {told} are listed in the JSON",
                    super::MAX_TOLD
                ),
            };
            faults.push(Failure::run(format!("{n} corrupt blocks{listed}")));
        }
        let complete = played.is_ok();
        if let Err(Fatal(what)) = played {
            faults.push(Failure::run(what));
        }
        let (blocks, accounted) = (self.blocks, self.accounted);
        if complete && accounted != blocks {
            faults.push(Failure::run(format!(
                "{blocks} blocks, but {accounted} are accounted for"
            )));
        }
        if self.unfinished > 0 {
            let n = self.unfinished;
            faults.push(Failure::run(format!("{n} accepted ops did not complete")));
        }
        faults.extend(written);
        faults.extend(trace_error.map(Failure::input));
        self.errors = faults.iter().map(|fault| fault.what.clone()).collect();
        faults
    }

    /// The text for people.
    pub fn text(&self, stats: &Stats) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "{} on {}, path {}, {} in flight, blocks of {}, salt {}\n",
            self.trace,
            self.l2_adapter["type"].as_str().unwrap_or("?"),
            self.path,
            self.concurrency,
            table::bytes(self.block_bytes),
            self.salt,
        );
        let mut counts = Table::default();
        let mut row = |name: &str, value: String| counts.row([name.to_owned(), value]);
        row("requests", table::count(self.requests));
        row("blocks", table::count(self.blocks));
        for (name, n) in [
            ("  hits", self.hit_blocks),
            ("  late misses", self.late_misses),
            ("  stored", self.stored_blocks),
            ("  no space", self.no_space),
            ("  failed", self.failed_blocks),
            ("corrupt", self.corrupt_blocks),
        ] {
            row(name, table::count(n));
        }
        row("hit ratio", format!("{:.1} %", 100.0 * self.hit_ratio));
        row("retrieved", table::bytes(self.bytes_retrieved));
        row("stored", table::bytes(self.bytes_stored));
        row("folded", table::bytes(self.folded_bytes));
        row("time", format!("{:.2} s", self.wall_s));
        if let Some(bytes) = self.peak_memory_bytes {
            row("peak memory", table::bytes(bytes));
        }
        for p in ["p50", "p99", "max"] {
            let us = self.request_us[p].as_f64().unwrap_or(0.0);
            row(&format!("request {p}"), table::micros(us));
        }
        text.push_str(&counts.text());
        text.push('\n');
        text.push_str(&session::lanes_table(stats));
        text
    }
}
