//! `moonring bench`: one op kind, in a closed loop or at a rate.

mod compare;
mod plan;
mod producer;
mod report;
mod rounds;
mod schedule;
mod sweep;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use moonring::{Engine, EngineConfig, INLINE_KEY, OpKind, PairOptions};

use crate::cli::{Failure, PathKind};
use crate::interrupt;
use crate::keys::random_salt;
use crate::record::book::{Book, Books};
use crate::record::{self, Position, Progress, RecordArgs, Recorded};
use crate::session::{self, JsonOut, Need, Session};
use crate::table;
use compare::Compared;
use plan::{Counts, Hand, Keys, Phase, Values};
use producer::{Producer, Way};
use report::Report;
use rounds::Measured;
use sweep::Swept;

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moonring bench --op store --seconds 10 --hlog a.hlog --json a.json
  moonring bench --rate 20000 --depth 256 --producers 2
  moonring bench --compare --keys 8192 --depth 1024
  moonring bench --sweep --value-bytes 4MiB --keys 64 --depth 32
Ctrl-C ends it; what was measured so far is reported.")]
pub struct BenchArgs {
    /// The store and the engine, as JSON: what LMCache takes, and more (docs/configuration.md)
    #[arg(long, value_name = "JSON", default_value = r#"{"type":"memory"}"#)]
    l2_adapter: String,
    /// What to measure
    #[arg(long, value_enum, default_value = "retrieve")]
    op: BenchOp,
    /// How ops reach the engine
    #[arg(long, value_enum, default_value = "pair")]
    path: PathKind,
    /// Bytes of a value, as 4096 or 64KiB
    #[arg(long, value_name = "SIZE", default_value = "4096", value_parser = session::size)]
    value_bytes: u64,
    /// Bytes of a key
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    key_bytes: u32,
    /// Different keys, over all producers
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// Measure N ops, over all producers
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    ops: Option<u64>,
    /// Measure for S seconds [default: 5]
    #[arg(long, value_name = "S", value_parser = seconds, allow_negative_numbers = true)]
    seconds: Option<f64>,
    /// Threads that submit, each to keys of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    producers: u32,
    /// Ops in flight of each producer
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    depth: u32,
    /// Start N ops a second over all producers, whether or not earlier ones have ended: an open loop
    ///
    /// Latencies are then also told from when an op was due: corrected for coordinated omission. What is due while all of --depth
    /// are in flight waits, and that counts.
    #[arg(long, value_name = "N", value_parser = rate, conflicts_with = "compare", allow_negative_numbers = true)]
    rate: Option<f64>,
    /// Measure beside the engine, in the same run: one call per key, and batches made by hand
    #[arg(long, conflicts_with = "ops")]
    compare: bool,
    /// Measure the settings as they are beside fixed --max-batch of these sizes, in the same run
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1,2,4,8,16,32,64,128,256",
        conflicts_with_all = ["ops", "rate", "compare", "max_batch"]
    )]
    sweep: Option<Vec<usize>>,
    /// Rounds of --compare or --sweep, each a part of the seconds [default: 21]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: Option<u32>,
    /// At most N keys in a store call [default: moonring.max_batch of --l2-adapter]
    #[arg(long, value_name = "N")]
    max_batch: Option<usize>,
    /// Ops may wait up to US microseconds for a fuller call (with --path pair)
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(1..=60_000_000))]
    linger_us: Option<u64>,
    /// Of those, as many as wait no longer [default: a full call's]
    #[arg(long, value_name = "N", requires = "linger_us", value_parser = clap::value_parser!(u32).range(2..))]
    linger_ops: Option<u32>,
    /// Size of the region that values are read into and written from [default: what the run needs]
    #[arg(long, value_name = "SIZE", value_parser = session::size)]
    region_bytes: Option<u64>,
    /// Write the report as JSON; - is standard output
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,
    /// Draw the sweep as SVG
    #[arg(long, value_name = "FILE", requires = "sweep", help_heading = "Output")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    record: RecordArgs,
}

/// What a bench measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BenchOp {
    /// Keys that are there
    Lookup,
    /// Values that are there
    Retrieve,
    /// New values; between rounds over all keys they are deleted, unmeasured
    Store,
    /// Values that are there; between rounds over all keys they are stored, unmeasured
    Delete,
    /// Each key goes round store, lookup, retrieve, delete
    Mixed,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        // Beyond a year a Duration from now is no time to wait for.
        Ok(seconds) if seconds > 0.0 && seconds <= 31_557_600.0 => Ok(seconds),
        _ => Err("must be a number of seconds over 0".into()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.001..=1e9).contains(&rate) => Ok(rate),
        _ => Err("must be a number of ops a second, from 0.001 to 1e9".into()),
    }
}

impl BenchOp {
    /// The op kind that is measured, if it is one.
    const fn kind(self) -> Option<OpKind> {
        match self {
            BenchOp::Lookup => Some(OpKind::Lookup),
            BenchOp::Retrieve => Some(OpKind::Retrieve),
            BenchOp::Store => Some(OpKind::Store),
            BenchOp::Delete => Some(OpKind::Delete),
            BenchOp::Mixed => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            BenchOp::Lookup => "lookup",
            BenchOp::Retrieve => "retrieve",
            BenchOp::Store => "store",
            BenchOp::Delete => "delete",
            BenchOp::Mixed => "mixed",
        }
    }

    /// What happens, for the report.
    const fn procedure(self) -> &'static str {
        match self {
            BenchOp::Lookup => {
                "all keys are stored first; then each producer looks its keys up, again and again"
            }
            BenchOp::Retrieve => {
                "all keys are stored first; then each producer retrieves its keys, again and again; in the end \
                 every value is retrieved once more and checked, unmeasured"
            }
            BenchOp::Store => {
                "rounds: each producer stores its keys, none of which is there; between rounds all are deleted, \
                 unmeasured; in the end every value of the last round is retrieved and checked, unmeasured"
            }
            BenchOp::Delete => {
                "rounds: each producer deletes its keys, all of which are there; before each round they are \
                 stored, unmeasured"
            }
            BenchOp::Mixed => {
                "each key goes round store, lookup, retrieve and forced delete, keys beside each other a step \
                 apart, so that the four make a quarter each"
            }
        }
    }

    /// Before the clock runs. A bench of rounds does it before each.
    const fn before(self) -> Phase {
        match self {
            BenchOp::Lookup | BenchOp::Retrieve | BenchOp::Delete => Phase::Pass {
                op: OpKind::Store,
                force: false,
            },
            BenchOp::Store => DELETE_ALL,
            BenchOp::Mixed => Phase::SetUpMixed,
        }
    }

    /// While the clock runs.
    const fn measured(self) -> Phase {
        match self {
            BenchOp::Lookup => Phase::Cycle(OpKind::Lookup),
            BenchOp::Retrieve => Phase::Cycle(OpKind::Retrieve),
            BenchOp::Store => Phase::Pass {
                op: OpKind::Store,
                force: false,
            },
            BenchOp::Delete => Phase::Pass {
                op: OpKind::Delete,
                force: false,
            },
            BenchOp::Mixed => Phase::CycleMixed,
        }
    }
}

/// How long is measured unless told otherwise.
const DEFAULT_SECONDS: f64 = 5.0;

/// Also what is leased, and what an earlier run on the store has left.
const DELETE_ALL: Phase = Phase::Pass {
    op: OpKind::Delete,
    force: true,
};

/// Runs `bench`.
///
/// # Errors
/// Bad input, or a run that could not go on.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let mut adapter = session::adapter(&args.l2_adapter)?;
    if let Some(max_batch) = args.max_batch {
        adapter.engine.max_batch = max_batch;
        let valid = adapter.engine.validate();
        valid.map_err(|e| Failure::input(format!("--max-batch: {e}")))?;
    }
    let (keys, max_key) = (args.key_bytes as usize, adapter.engine.max_key);
    if keys > max_key {
        return Err(Failure::input(format!(
            "--key-bytes: {keys}, but moonring.max_key is {max_key}"
        )));
    }
    let (producers, depth) = (args.producers, args.depth);
    // A pair has places for long keys of its own, all clients share those of one table.
    let long_keys = match args.path {
        PathKind::Pair => depth as usize,
        PathKind::Client => depth as usize * producers as usize,
    };
    if keys > INLINE_KEY && adapter.engine.long_keys < long_keys {
        return Err(Failure::input(format!(
            "--key-bytes: with more than {INLINE_KEY}, moonring.long_keys must be at least {long_keys}, is {}",
            adapter.engine.long_keys
        )));
    }
    let least = args.keys / producers;
    if least < depth {
        return Err(Failure::input(format!(
            "--keys: {} are {least} a producer, --depth {depth} needs as many",
            args.keys
        )));
    }
    if args.linger_us.is_some() && args.path != PathKind::Pair {
        return Err(Failure::input("--linger-us: only with --path pair"));
    }
    let compared = compared_op(args)?;
    let swept = swept(args, &adapter.engine)?;
    if args.rounds.is_some() && compared.is_none() && swept.is_none() {
        return Err(Failure::input("--rounds: only with --compare or --sweep"));
    }
    let salt = random_salt();
    let keys = (0..producers).map(|producer| {
        let [producer, producers, keys] = [producer, producers, args.keys].map(u64::from);
        Keys::make(producer, producers, keys, args.key_bytes as usize, &salt)
    });
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let slots = u64::from(producers) * u64::from(depth);
    let rivals_slots = compared.map_or(0, |_| compare::slots(args));
    let and_rivals = match rivals_slots {
        0 => String::new(),
        slots => format!(" and {slots} buffers of hand-made batches"),
    };
    let need = Need {
        slot_bytes: args.value_bytes,
        slots: slots + rivals_slots,
        why: format!(
            "{producers} producers x {depth} ops in flight{and_rivals} x {}",
            table::bytes(args.value_bytes)
        ),
    };
    let session = Session::start(&adapter, &need, args.region_bytes)?;
    let json = JsonOut::open(args.json.as_deref())?;
    let mut outputs = args.record.outputs()?;

    let producers = |books: &Books| {
        let producers = keys
            .into_iter()
            .map(|keys| producer(args, &session, keys, books.book()));
        producers.collect::<Result<Vec<_>, _>>()
    };
    // A store that moves no bytes gives none back.
    let keeps = !session::is_null(&adapter);
    let turns = match swept {
        Some((_, sizes)) => Some(sweep::turns(args, &adapter.engine, sizes)),
        None => compared.map(|_| compare::turns(args)),
    };
    let progress = progress(args, turns);
    let interval = Duration::from_secs_f64(args.record.interval);
    interrupt::listen();
    let (driven, recorded) = record::watched(
        &session.engine,
        interval,
        &mut outputs,
        &progress,
        |watch| {
            let producers = producers(watch.books())?;
            if let Some((op, sizes)) = swept {
                let plan = sweep::Plan {
                    args,
                    op,
                    sizes,
                    config: &adapter.engine,
                    session: &session,
                    watch,
                    bar: &progress.bar,
                };
                return Ok(Driven::Swept(sweep::drive(&plan, producers)));
            }
            let Some(op) = compared else {
                let verify = keeps && matches!(args.op, BenchOp::Retrieve | BenchOp::Store);
                let driven = rounds::drive(args, watch, producers, verify);
                return Ok(Driven::Rounds(driven));
            };
            let lend = |_| session.slots.as_ref()?.lend(args.value_bytes as usize);
            let slots = (0..rivals_slots).map(lend).collect::<Option<Vec<_>>>();
            let slots = slots.ok_or_else(|| Failure::run("the pool has too few slots"))?;
            let plan = compare::Plan {
                args,
                op,
                session: &session,
                watch,
                bar: &progress.bar,
                verify: keeps,
            };
            let outcome = compare::drive(&plan, producers, slots);
            Ok(Driven::Compared(Box::new(outcome)))
        },
    );
    progress.bar.finish_and_clear();
    let mut results = match driven? {
        Driven::Rounds(driven) => Results::of_rounds(driven, recorded),
        Driven::Compared(outcome) => Results::of_comparison(*outcome, recorded),
        Driven::Swept(outcome) => Results::of_sweep(outcome, recorded),
    };
    let (last, shut_down) = session.end();

    let corrupt = results.corrupt();
    if corrupt > 0 {
        let n = table::count(corrupt);
        results.errors.push(format!("{n} values have wrong bytes"));
    }
    let report = Report::new(args, &adapter, &results, &last);
    json.write(&report, &report.text(&results))?;
    if let (Some(path), Some(swept)) = (&args.svg, &results.swept) {
        swept.draw(&report.title(), path)?;
    }
    outputs.write_hgrm(results.recorded.histograms())?;
    let all = results.all();
    if all.failed > 0 {
        eprintln!(
            "moonring: warning: {} of {} ops did not do their work; see the results",
            table::count(all.failed),
            table::count(all.ops)
        );
    }
    if all.unstarted > 0 {
        eprintln!(
            "moonring: warning: {} ops were due and not started when the time was over: this is more than it can do at --rate, or \
             --depth is too small",
            table::count(all.unstarted)
        );
    }
    match results.errors.into_iter().next() {
        Some(error) => Err(Failure::run(error)),
        None => shut_down.and_then(|()| interrupt::ended()),
    }
}

/// What a run of either kind returns.
enum Driven {
    Rounds((Result<Measured, String>, rounds::Verified)),
    Compared(Box<Result<compare::Outcome, String>>),
    Swept(Result<sweep::Outcome, String>),
}

/// What a bench came to.
struct Results {
    measured: Measured,
    /// Values read back through the engine.
    verified: Counts,
    /// Of the measured time.
    recorded: Recorded,
    compared: Option<Compared>,
    swept: Option<Swept>,
    /// Why the run did not go well, a line each.
    errors: Vec<String>,
}

impl Results {
    fn of_rounds(
        (measured, verified): (Result<Measured, String>, rounds::Verified),
        mut recorded: Recorded,
    ) -> Self {
        let errors = [measured.as_ref().err(), verified.as_ref().err()];
        let mut errors: Vec<_> = errors.into_iter().flatten().cloned().collect();
        // A producer that failed tells it in both.
        errors.dedup();
        errors.extend(recorded.error.take());
        Self {
            measured: measured.unwrap_or_default(),
            verified: verified.unwrap_or_default(),
            recorded,
            compared: None,
            swept: None,
            errors,
        }
    }

    fn of_sweep(outcome: Result<sweep::Outcome, String>, mut recorded: Recorded) -> Self {
        let written = recorded.error.take();
        let (measured, swept, error) = match outcome {
            Ok(outcome) => (outcome.measured, Some(outcome.swept), None),
            Err(error) => (Measured::default(), None, Some(error)),
        };
        Self {
            measured,
            verified: Counts::default(),
            recorded,
            compared: None,
            swept,
            errors: error.into_iter().chain(written).collect(),
        }
    }

    fn of_comparison(outcome: Result<compare::Outcome, String>, mut recorded: Recorded) -> Self {
        let written = recorded.error.take();
        let (outcome, error) = match outcome {
            Ok(outcome) => {
                let error = outcome.compared.error();
                (Some(outcome), error)
            }
            Err(error) => (None, Some(error)),
        };
        let (measured, verified, compared) = match outcome {
            Some(outcome) => (outcome.measured, outcome.verified, Some(outcome.compared)),
            None => Default::default(),
        };
        Self {
            measured,
            verified,
            recorded,
            compared,
            swept: None,
            errors: error.into_iter().chain(written).collect(),
        }
    }

    /// All measured ops, also those of others than the engine.
    fn all(&self) -> Counts {
        let mut all = self.measured.counts;
        if let Some(compared) = &self.compared {
            all.add(compared.rivals());
        }
        if let Some(swept) = &self.swept {
            all.add(swept.others());
        }
        all
    }

    /// Values with wrong bytes, whoever read them.
    fn corrupt(&self) -> u64 {
        self.all().corrupt + self.verified.corrupt
    }
}

/// A bar on a terminal, nothing elsewhere: of the ops, of the time, or of as many measurements in turns.
fn progress(args: &BenchArgs, turns: Option<u64>) -> Progress {
    let percent = "{msg}{bar:40} {percent} %, {eta} left";
    let (length, template, position): (_, _, Option<Position>) = match (turns, args.ops) {
        (Some(turns), _) => (turns, percent, None),
        (None, Some(ops)) => (
            ops,
            "{msg}{bar:40} {human_pos}/{human_len} ops, {eta} left",
            Some(|_, ops| ops),
        ),
        (None, None) => (
            (args.seconds.unwrap_or(DEFAULT_SECONDS) * 1e3) as u64,
            percent,
            Some(|time: Duration, _| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        ),
    };
    let bar = ProgressBar::new(length);
    let bar = match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    };
    Progress { bar, position }
}

/// What `--compare` measures, if it is asked for.
fn compared_op(args: &BenchArgs) -> Result<Option<OpKind>, Failure> {
    let least = compare::LEAST_KEYS;
    match args.op.kind() {
        _ if !args.compare => Ok(None),
        None => Err(Failure::input(
            "--compare: not with --op mixed, one op kind is compared",
        )),
        Some(_) if args.keys < least => Err(Failure::input(format!(
            "--keys: {}, --compare needs at least {least}, 32 for each of 4 threads",
            args.keys
        ))),
        op => Ok(op),
    }
}

/// What `--sweep` measures with which sizes, if it is asked for.
fn swept<'a>(
    args: &'a BenchArgs,
    config: &EngineConfig,
) -> Result<Option<(OpKind, &'a [usize])>, Failure> {
    let Some(sizes) = &args.sweep else {
        return Ok(None);
    };
    for &size in sizes {
        let valid = config.clone().max_batch(size).validate();
        valid.map_err(|e| Failure::input(format!("--sweep: {e}")))?;
    }
    let op = args
        .op
        .kind()
        .ok_or_else(|| Failure::input("--sweep: not with --op mixed, one op kind is swept"))?;
    Ok(Some((op, sizes)))
}

/// What is moved.
fn values(args: &BenchArgs) -> Values {
    Values {
        bytes: args.value_bytes as usize,
        one_for_all: matches!(args.op, BenchOp::Store | BenchOp::Mixed),
    }
}

fn producer(
    args: &BenchArgs,
    session: &Session,
    keys: Keys,
    book: Book,
) -> Result<Producer, Failure> {
    let depth = args.depth as usize;
    let slots = session.slots.as_ref();
    let hand = |number| {
        let slot = slots.and_then(|slots| slots.lend(args.value_bytes as usize));
        Hand::new(number, depth, slot)
    };
    Ok(Producer {
        way: way(args, &session.engine)?,
        hands: (0..depth).map(hand).collect(),
        keys,
        values: values(args),
        book,
    })
}

/// How a producer's ops reach an engine.
fn way(args: &BenchArgs, engine: &Engine) -> Result<Way, Failure> {
    Ok(match args.path {
        PathKind::Pair => {
            let mut options = PairOptions::new(args.depth as usize);
            if let Some(us) = args.linger_us {
                let ops = args.linger_ops.map_or(usize::MAX, |ops| ops as usize);
                options = options.linger(ops, Duration::from_micros(us));
            }
            let pair = engine.pair_with(options);
            let pair = pair.map_err(|e| Failure::input(format!("--depth: {e}")))?;
            Way::Pair(Box::new(pair))
        }
        PathKind::Client => Way::Client(engine.client()),
    })
}
