//! A small made-up trace of the shape of a chat service's: the same for a seed on every machine.
//!
//! Conversations start at random; each has a system prompt (few of them are popular) and for some an opening
//! document that others share. Every turn's input is the whole conversation so far and something new. Blocks hold
//! 512 tokens; the last, partial one changes its hash when it grows, so only full blocks are met again.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::cli::Failure;
use crate::rng::Rng;
use crate::session::JsonOut;

/// Arguments of `gen-trace`.
#[derive(Debug, Args)]
pub struct GenTraceArgs {
    /// How many requests
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..))]
    requests: u64,
    /// The same seed makes the same trace
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Where to write it [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write what the trace holds as JSON; - is standard output
    #[arg(long, value_name = "FILE", requires = "out")]
    json: Option<PathBuf>,
}

/// What a trace holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Written {
    /// Requests.
    pub requests: u64,
    /// Blocks of all requests.
    pub blocks: u64,
    /// Different blocks.
    pub objects: u64,
}

/// The JSON of `gen-trace`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    /// Which JSON this is.
    schema: &'static str,
    out: String,
    seed: u64,
    #[serde(flatten)]
    written: &'a Written,
}

/// Runs `gen-trace`.
///
/// # Errors
/// The file can't be written.
pub fn run(args: &GenTraceArgs) -> Result<(), Failure> {
    let Some(path) = &args.out else {
        let mut out = BufWriter::new(io::stdout().lock());
        let written = write(args.requests, args.seed, &mut out).and_then(|_| out.flush());
        return match written {
            // Whoever reads it has seen enough.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(|e| Failure::run(format!("standard output: {e}"))),
        };
    };
    let input = |e: io::Error| Failure::input(format!("{}: {e}", path.display()));
    let json = JsonOut::open(args.json.as_deref())?;
    let mut out = BufWriter::new(File::create(path).map_err(input)?);
    let written = write(args.requests, args.seed, &mut out).map_err(input)?;
    out.flush().map_err(input)?;
    let report = Report {
        schema: "moonring.gen-trace/1",
        out: path.display().to_string(),
        seed: args.seed,
        written: &written,
    };
    json.write(&report, "")
}

/// Tokens of a block.
const BLOCK: u64 = 512;
/// Different system prompts, and documents that conversations open with.
const PROMPTS: usize = 12;
const DOCUMENTS: usize = 40;
/// Conversations that are open at a time; over that, the oldest ends.
const OPEN: usize = 48;

/// A line of the trace; the order of the fields is that of the published traces.
#[derive(Serialize)]
struct Line<'a> {
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    hash_ids: &'a [u64],
}

/// Full blocks that conversations share, and their length in tokens.
#[derive(Clone)]
struct Text {
    tokens: u64,
    full_blocks: Vec<usize>,
}

/// Hands out blocks, and numbers them in order of first use, as the published traces do.
#[derive(Default)]
struct Ids {
    numbers: Vec<Option<u64>>,
    used: u64,
}

impl Ids {
    fn next(&mut self) -> usize {
        self.numbers.push(None);
        self.numbers.len() - 1
    }

    fn number(&mut self, block: usize) -> u64 {
        *self.numbers[block].get_or_insert_with(|| {
            self.used += 1;
            self.used - 1
        })
    }
}

impl Text {
    /// Appends tokens; the blocks that they fill get new ids.
    fn grow(&mut self, tokens: u64, ids: &mut Ids) {
        self.tokens += tokens;
        while (self.full_blocks.len() as u64 + 1) * BLOCK <= self.tokens {
            self.full_blocks.push(ids.next());
        }
    }
}

/// One of `choices`, the first the likeliest: weights 1, 1/2, 1/3, ...
fn zipf(rng: &mut Rng, choices: usize) -> usize {
    // Integers only: floating point differs between machines.
    let weight = |rank: usize| 1_000_000 / (rank as u64 + 1);
    let mut draw = rng.below((0..choices).map(weight).sum());
    for rank in 0..choices {
        if draw < weight(rank) {
            return rank;
        }
        draw -= weight(rank);
    }
    0
}

/// The opening of a new conversation: a system prompt and for one in four a shared document.
fn open(
    rng: &mut Rng,
    ids: &mut Ids,
    openings: &mut [Option<Text>; PROMPTS * (DOCUMENTS + 1)],
) -> Text {
    let prompt = zipf(rng, PROMPTS);
    let document = match rng.below(4) {
        0 => 1 + zipf(rng, DOCUMENTS),
        _ => 0,
    };
    let at = prompt * (DOCUMENTS + 1);
    let system = openings[at].get_or_insert_with(|| {
        let mut text = Text {
            tokens: 0,
            full_blocks: Vec::new(),
        };
        text.grow(BLOCK * rng.between(1, 3), ids);
        text
    });
    let system = system.clone();
    openings[at + document]
        .get_or_insert_with(|| {
            let mut text = system;
            text.grow(rng.between(4 * BLOCK, 30 * BLOCK), ids);
            text
        })
        .clone()
}

/// Writes `requests` lines.
///
/// # Errors
/// Those of `out`.
pub fn write(requests: u64, seed: u64, out: &mut impl Write) -> io::Result<Written> {
    let mut rng = Rng::new(seed);
    let mut ids = Ids::default();
    let mut openings = [const { None }; PROMPTS * (DOCUMENTS + 1)];
    let mut conversations: Vec<Text> = Vec::new();
    let mut timestamp = 0;
    let mut total = 0;
    for _ in 0..requests {
        // Half of the turns continue a conversation, a recent one more likely.
        let ongoing = !conversations.is_empty() && rng.below(2) == 0;
        let mut text = if ongoing {
            let back = zipf(&mut rng, conversations.len());
            conversations.remove(conversations.len() - 1 - back)
        } else {
            open(&mut rng, &mut ids, &mut openings)
        };
        // Most inputs are short, some are long.
        let long = rng.below(5) == 0;
        let new = rng.between(20, if long { 40 * BLOCK } else { 5 * BLOCK });
        text.grow(new, &mut ids);
        let partial = (text.tokens % BLOCK > 0).then(|| ids.next());
        let blocks = text.full_blocks.iter().copied().chain(partial);
        let hash_ids: Vec<u64> = blocks.map(|block| ids.number(block)).collect();
        total += hash_ids.len() as u64;
        let output_length = rng.between(1, 700);
        let line = Line {
            timestamp,
            input_length: text.tokens,
            output_length,
            hash_ids: &hash_ids,
        };
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")?;
        text.grow(output_length, &mut ids);
        conversations.push(text);
        if conversations.len() > OPEN {
            conversations.remove(0);
        }
        timestamp += rng.below(600);
    }
    Ok(Written {
        requests,
        blocks: total,
        objects: ids.used,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle;
    use crate::trace::{Request, parse};

    fn trace(requests: u64, seed: u64) -> (Vec<u8>, Vec<Request>) {
        let mut text = Vec::new();
        let written = write(requests, seed, &mut text).expect("a write to memory");
        let requests: Vec<_> = text
            .split_inclusive(|&byte| byte == b'\n')
            .map(|line| parse(line).expect("a good line"))
            .collect();
        let counts = oracle::count(&requests);
        let told = Written {
            requests: counts.requests,
            blocks: counts.blocks,
            objects: counts.objects,
        };
        assert_eq!(written, told);
        (text, requests)
    }

    #[test]
    fn it_has_the_shape_of_the_published_traces() {
        for seed in 0..5 {
            let (_, requests) = trace(400, seed);
            assert_eq!(requests.len(), 400);
            for r in &requests {
                assert_eq!(r.hash_ids.len() as u64, r.input_length.div_ceil(BLOCK));
                let twice = r.hash_ids.iter().collect::<std::collections::HashSet<_>>();
                assert_eq!(twice.len(), r.hash_ids.len());
            }
            assert!(requests.is_sorted_by_key(|r| r.timestamp));
            let counts = oracle::count(&requests);
            let ratio = counts.hit_blocks as f64 / counts.blocks as f64;
            assert!((0.3..0.7).contains(&ratio), "hit ratio {ratio}");
            // A prefix is met whole or not at all: no block is there behind a gap.
            assert_eq!(counts.stored_blocks, counts.objects);
            let last = requests.iter().flat_map(|r| &r.hash_ids).max();
            assert_eq!(last, Some(&(counts.objects - 1)), "ids are dense");
        }
    }

    #[test]
    fn seeds_differ_and_a_longer_trace_begins_with_the_shorter() {
        let (short, _) = trace(20, 1);
        assert!(trace(40, 1).0.starts_with(&short));
        assert_ne!(trace(20, 2).0, short);
    }
}
