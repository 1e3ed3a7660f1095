//! `moonring replay`: plays a trace against a store and checks every byte.

mod client;
mod pace;
mod pair;
mod report;
mod request;
mod tally;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use moonring::{Engine, Slot, SlotPool};

use crate::cli::{Failure, PathKind};
use crate::content::salt_seed;
use crate::interrupt;
use crate::keys::{KeyMaker, random_salt};
use crate::record::{self, Progress, RecordArgs, Watch};
use crate::session::{self, JsonOut, Need, Session};
use crate::table;
use crate::trace::{Request, Trace};
use report::Report;
use request::{Fatal, Rules};

/// Corrupt blocks that are told one by one on standard error; the JSON lists more.
const MAX_TOLD: usize = 20;

/// Arguments of `replay`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moonring replay traces/sample.jsonl
  moonring replay traces/sample.jsonl --speed 2 --concurrency 16 --hlog b.hlog --json b.json
Ctrl-C ends it; what was played so far is reported.")]
pub struct ReplayArgs {
    /// A trace in the FAST'25 format: one JSON object a line
    trace: PathBuf,
    /// The store and the engine, as JSON: what LMCache takes, and more (docs/configuration.md)
    #[arg(long, value_name = "JSON", default_value = r#"{"type":"memory"}"#)]
    l2_adapter: String,
    /// How ops reach the engine
    #[arg(long, value_enum, default_value = "pair")]
    path: PathKind,
    /// Bytes of a block, as 4096 or 64KiB
    #[arg(long, value_name = "SIZE", default_value = "4096", value_parser = session::size)]
    block_bytes: u64,
    /// Play the first N requests only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    concurrency: u64,
    /// 1: as recorded, 2: twice as fast, 0: as fast as it goes
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = speed, allow_negative_numbers = true)]
    speed: f64,
    /// Part of keys and contents; the same salt meets the blocks of an earlier run [default: random]
    #[arg(long, value_name = "S", value_parser = salt)]
    salt: Option<String>,
    /// Size of the region that blocks are read into and written from [default: what the run needs]
    #[arg(long, value_name = "SIZE", value_parser = session::size)]
    region_bytes: Option<u64>,
    /// Write the report as JSON; - is standard output
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,
    #[command(flatten)]
    record: RecordArgs,
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(speed) if f64::is_finite(speed) && speed >= 0.0 => Ok(speed),
        _ => Err("must be a number, 0 or more".into()),
    }
}

fn salt(text: &str) -> Result<String, String> {
    KeyMaker::new(text).map(|_| text.to_owned())
}

/// What both paths need to play.
struct Run<'a> {
    engine: &'a Engine,
    slots: Option<&'a SlotPool>,
    rules: &'a Rules,
    requests: &'a [Request],
    /// Blocks of the largest request.
    largest: usize,
    /// Requests in flight.
    concurrency: usize,
    speed: f64,
    progress: &'a ProgressBar,
    watch: &'a Watch<'a>,
}

impl Run<'_> {
    /// Slots for one request in flight.
    fn slots(&self) -> Result<Vec<Slot>, Fatal> {
        let lend = |_| {
            let slot = self.slots?.lend(self.rules.block_bytes);
            debug_assert!(slot.is_some(), "the pool is sized for all");
            slot
        };
        let slots = (0..self.largest).map(lend).collect::<Option<_>>();
        slots.ok_or_else(|| Fatal("the pool has too few slots".into()))
    }
}

/// A bar on a terminal, nothing elsewhere.
fn progress(requests: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg}{bar:40} {pos}/{len} requests, {per_sec}, {eta} left");
    let bar = ProgressBar::new(requests);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Runs `replay`.
///
/// # Errors
/// Bad input, corrupt blocks, or a run that could not go on. What ran before is reported.
pub fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let adapter = session::adapter(&args.l2_adapter)?;
    let salt = args.salt.clone().unwrap_or_else(random_salt);
    let rules = Rules {
        keys: KeyMaker::new(&salt).map_err(|e| Failure::input(format!("--salt: {e}")))?,
        salt_seed: salt_seed(&salt),
        block_bytes: args.block_bytes as usize,
    };
    let limit = args.limit.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let trace = Trace::load(&args.trace, limit);
    if let (true, Some(error)) = (trace.requests.is_empty(), &trace.error) {
        return Err(Failure::input(error));
    }
    // More seats than requests would stay empty.
    let concurrency = args.concurrency.min(trace.requests.len() as u64);
    let largest = trace.largest_request();
    let session = Session::start(
        &adapter,
        &Need {
            slot_bytes: args.block_bytes,
            slots: concurrency * largest as u64,
            why: format!(
                "{concurrency} requests in flight x {largest} blocks x {}",
                table::bytes(args.block_bytes)
            ),
        },
        args.region_bytes,
    )?;
    let json = JsonOut::open(args.json.as_deref())?;
    let mut outputs = args.record.outputs()?;

    let progress = Progress {
        bar: progress(trace.requests.len() as u64),
        position: None,
    };
    let interval = Duration::from_secs_f64(args.record.interval);
    interrupt::listen();
    let ((tally, played), mut recorded) = record::watched(
        &session.engine,
        interval,
        &mut outputs,
        &progress,
        |watch| {
            let run = Run {
                engine: &session.engine,
                slots: session.slots.as_ref(),
                rules: &rules,
                requests: &trace.requests,
                largest,
                concurrency: concurrency as usize,
                speed: args.speed,
                progress: &progress.bar,
                watch,
            };
            watch.begin();
            let played = match args.path {
                PathKind::Pair => pair::play(&run),
                PathKind::Client => client::play(&run),
            };
            watch.end();
            played
        },
    );
    progress.bar.finish_and_clear();
    let sim = session.sim.clone();
    let (stats, shut_down) = session.end();

    let sim = sim.as_deref();
    let mut report = Report::new(args, &adapter, &salt, &tally, &recorded, &stats, sim);
    let written = recorded.error.take().map(Failure::run);
    let faults = report.faults(played, written, trace.error);
    json.write(&report, &report.text(&stats))?;
    outputs.write_hgrm(recorded.histograms())?;
    for corrupt in tally.corrupt.iter().take(MAX_TOLD) {
        eprintln!("moonring: corrupt: {corrupt}");
    }
    for fault in faults.iter().skip(1) {
        eprintln!("moonring: {}", fault.what);
    }
    match faults.into_iter().next() {
        Some(fault) => Err(fault),
        None => shut_down.and_then(|()| interrupt::ended()),
    }
}
