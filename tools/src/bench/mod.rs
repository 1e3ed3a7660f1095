//! `moonring bench`: one op kind, in a closed loop.

mod plan;
mod producer;
mod report;
mod rounds;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use moonring::{INLINE_KEY, OpKind};

use crate::cli::{Failure, PathKind};
use crate::keys::random_salt;
use crate::session::{self, JsonOut, Need, Session};
use crate::table;
use plan::{Hand, Keys, Phase, Values};
use producer::{Producer, Way};
use report::Report;

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The store and the engine, as JSON
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
    /// At most N keys in a store call [default: moonring.max_batch of --l2-adapter]
    #[arg(long, value_name = "N")]
    max_batch: Option<usize>,
    /// Size of the region that values are read into and written from [default: what the run needs]
    #[arg(long, value_name = "SIZE", value_parser = session::size)]
    region_bytes: Option<u64>,
    /// Write the report as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
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

impl BenchOp {
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
    let salt = random_salt();
    let keys = (0..producers).map(|producer| {
        let [producer, producers, keys] = [producer, producers, args.keys].map(u64::from);
        Keys::make(producer, producers, keys, args.key_bytes as usize, &salt)
    });
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let need = Need {
        slot_bytes: args.value_bytes,
        slots: u64::from(producers) * u64::from(depth),
        why: format!(
            "{producers} producers x {depth} ops in flight x {}",
            table::bytes(args.value_bytes)
        ),
    };
    let session = Session::start(&adapter, &need, args.region_bytes)?;
    let json = JsonOut::open(args.json.as_deref())?;

    let producers = keys.into_iter().map(|keys| producer(args, &session, keys));
    let producers = producers.collect::<Result<Vec<_>, _>>()?;
    // A store that moves no bytes gives none back.
    let verify =
        matches!(args.op, BenchOp::Retrieve | BenchOp::Store) && !session::is_null(&adapter);
    let (measured, verified, stats) = rounds::drive(args, &session, producers, verify);
    let (last, shut_down) = session.end();

    let mut errors: Vec<_> = [measured.as_ref().err(), verified.as_ref().err()]
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    // A producer that failed tells it in both.
    errors.dedup();
    let (measured, verified) = (measured.unwrap_or_default(), verified.unwrap_or_default());
    if verified.corrupt > 0 {
        let n = table::count(verified.corrupt);
        errors.push(format!("{n} values have wrong bytes"));
    }
    let report = Report::new(args, &adapter, &measured, &verified, &stats, &last, &errors);
    json.write(&report, &report.text(&stats))?;
    if measured.counts.failed > 0 {
        eprintln!(
            "moonring: warning: {} of {} ops did not do their work; see the results",
            table::count(measured.counts.failed),
            table::count(measured.counts.ops)
        );
    }
    match errors.into_iter().next() {
        Some(error) => Err(Failure::run(error)),
        None => shut_down,
    }
}

fn producer(args: &BenchArgs, session: &Session, keys: Keys) -> Result<Producer, Failure> {
    let depth = args.depth as usize;
    let slots = session.slots.as_ref();
    let hand = |number| {
        let slot = slots.and_then(|slots| slots.lend(args.value_bytes as usize));
        Hand::new(number, depth, slot)
    };
    let way = match args.path {
        PathKind::Pair => {
            let pair = session.engine.pair(depth);
            let pair = pair.map_err(|e| Failure::input(format!("--depth: {e}")))?;
            Way::Pair(Box::new(pair))
        }
        PathKind::Client => Way::Client(session.engine.client()),
    };
    Ok(Producer {
        way,
        hands: (0..depth).map(hand).collect(),
        keys,
        values: Values {
            bytes: args.value_bytes as usize,
            one_for_all: matches!(args.op, BenchOp::Store | BenchOp::Mixed),
        },
    })
}
