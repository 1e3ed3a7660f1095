//! What a comparison came to: each one's rate, and the engine's ratio to it.

use std::fmt::Write;
use std::time::Duration;

use moonring::{OpKind, Stats};
use serde::Serialize;

use super::race::Lap;
use super::rival::Rival;
use crate::bench::plan::Counts;
use crate::table::{self, Table};

/// One contestant's rounds.
#[derive(Debug, Default)]
pub struct Laps {
    /// Keys a second, of each round.
    pub per_s: Vec<f64>,
    /// All rounds together.
    pub all: Lap,
    /// Values that were read back once and had the right length.
    pub verified: u64,
    /// Of those, the ones with wrong bytes.
    pub corrupt: u64,
}

impl Laps {
    /// How many rounds.
    pub fn rounds(&self) -> usize {
        self.per_s.len()
    }

    /// Adds a round.
    pub fn add(&mut self, lap: Lap) {
        self.per_s.push(lap.per_s());
        self.all.add(lap);
    }
}

/// The members that `--compare` adds to the report.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The engine's rate over that of the faster one-call-per-key; the median of the rounds. `None`: no round was over.
    ratio_vs_per_key: Option<f64>,
    /// The same for the best batches made by hand.
    ratio_vs_hand_batched: Option<f64>,
    /// Ops of the measured kind that were folded into another's key: 0, or the engine did less than the others.
    folds: u64,
    compare: Details,
}

#[derive(Clone, Debug, Serialize)]
struct Details {
    /// What was done, in words.
    procedure: &'static str,
    rounds: u32,
    /// How long each was measured in each round, in seconds.
    round_s: f64,
    engine: Line,
    per_key: Vec<Line>,
    hand_batched: Vec<Line>,
}

/// What is done, in words.
pub const PROCEDURE: &str = "the engine first runs unmeasured, for 0.4 of the time of all its rounds; in each round the engine \
    and all others are measured, one after the other, on the same keys and the same store; each thread has keys of its \
    own; the others call the store itself, keys and buffers laid out before; ratios are taken within a round";

/// One contestant.
#[derive(Clone, Debug, Serialize)]
struct Line {
    threads: usize,
    /// Keys of a call; the engine decides for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_keys: Option<usize>,
    keys_per_s: Quartiles,
    /// The engine's rate over this one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_ratio: Option<Quartiles>,
    /// Whether the report's ratio is that to this one: its median rate is the highest of its kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    best: Option<bool>,
    /// Keys of all rounds.
    keys: u64,
    /// Of those, the ones for which the work was not done.
    failed_keys: u64,
    /// Values that were read back once, unmeasured. The engine's are in the report itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified_values: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    corrupt_values: Option<u64>,
}

/// A median and what half of the rounds lie between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quartiles {
    /// A quarter lies below.
    pub q1: f64,
    /// The middle one.
    pub median: f64,
    /// A quarter lies above.
    pub q3: f64,
}

impl Quartiles {
    /// Of these values; zeros where there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        // Between two values, as far as the quantile lies between their places.
        let at = |quantile: f64| {
            let place = quantile * values.len().saturating_sub(1) as f64;
            let value = |i: f64| values.get(i as usize).copied().unwrap_or(0.0);
            let (low, high) = (value(place.floor()), value(place.ceil()));
            low + (high - low) * place.fract()
        };
        Self {
            q1: at(0.25),
            median: at(0.5),
            q3: at(0.75),
        }
    }
}

/// The engine's rate over another's; 0 where that one did nothing.
pub fn ratio((engine, other): (&f64, &f64)) -> f64 {
    if *other > 0.0 { engine / other } else { 0.0 }
}

impl Compared {
    /// Of an engine and its rivals, by their rounds.
    pub fn new(
        producers: u32,
        op: OpKind,
        slice: Duration,
        engine: &Laps,
        rivals: &[(Rival, Laps)],
        stats: &Stats,
    ) -> Self {
        let rivals = || rivals.iter();
        let per_key = lines(engine, rivals().filter(|(rival, _)| rival.batch == 1));
        let hand_batched = lines(engine, rivals().filter(|(rival, _)| rival.batch > 1));
        let of_best = |lines: &[Line]| {
            let best = lines.iter().find(|line| line.best == Some(true));
            let ratio = best.and_then(|line| line.engine_ratio);
            ratio
                .filter(|_| engine.rounds() > 0)
                .map(|ratio| ratio.median)
        };
        Self {
            ratio_vs_per_key: of_best(&per_key),
            ratio_vs_hand_batched: of_best(&hand_batched),
            folds: stats.lane(op).folded_ops,
            compare: Details {
                procedure: PROCEDURE,
                rounds: engine.rounds() as u32,
                round_s: slice.as_secs_f64(),
                engine: Line {
                    threads: producers as usize,
                    batch_keys: None,
                    keys_per_s: Quartiles::of(engine.per_s.iter().copied()),
                    engine_ratio: None,
                    best: None,
                    keys: engine.all.counts.ops,
                    failed_keys: engine.all.counts.failed,
                    verified_values: None,
                    corrupt_values: None,
                },
                per_key,
                hand_batched,
            },
        }
    }

    /// Keys of all but the engine, those that failed among them, and their corrupt values.
    pub fn rivals(&self) -> Counts {
        let mut counts = Counts::default();
        for line in self.lines() {
            counts.ops += line.keys;
            counts.failed += line.failed_keys;
            counts.corrupt += line.corrupt_values.unwrap_or(0);
        }
        counts
    }

    /// What makes the comparison void, if anything does.
    pub fn error(&self) -> Option<String> {
        let folds = table::count(self.folds);
        (self.folds > 0).then(|| format!("{folds} ops were folded: the engine read fewer keys"))
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.compare
            .per_key
            .iter()
            .chain(&self.compare.hand_batched)
    }

    /// The text for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let Details {
            rounds,
            round_s,
            engine,
            ..
        } = &self.compare;
        let (Some(per_key), Some(hand_batched)) =
            (self.ratio_vs_per_key, self.ratio_vs_hand_batched)
        else {
            return "no round was over: nothing is compared\n".into();
        };
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "compared in {rounds} rounds of {:.0} ms each, keys/s; * the best of its kind\n",
            round_s * 1e3
        );
        let mut table = Table::new(&["", "q1", "median", "q3", "engine's ratio"]);
        let mut row = |name: String, line: &Line| {
            let Quartiles { q1, median, q3 } = line.keys_per_s;
            let ratio = line.engine_ratio.map_or(String::new(), |ratio| {
                let best = if line.best == Some(true) { "*" } else { "" };
                format!("{best} {:.2}", ratio.median)
            });
            let rates = [q1, median, q3].map(|per_s| table::count(per_s as u64));
            table.row([name].into_iter().chain(rates).chain([ratio]));
        };
        let threads = |line: &Line| match line.threads {
            1 => "1 thread".to_owned(),
            n => format!("{n} threads"),
        };
        row(format!("the engine, {}", threads(engine)), engine);
        for line in self.lines() {
            let what = match line.batch_keys {
                Some(keys) if keys > 1 => format!("batches of {keys} keys"),
                _ => "one call per key".to_owned(),
            };
            row(format!("{what}, {}", threads(line)), line);
        }
        text.push_str(&table.text());
        let _ = writeln!(
            text,
            "\nthe engine is {per_key:.2} times as fast as one call per key, {hand_batched:.2} times as fast as the best batches \
             made by hand; folds {}",
            self.folds
        );
        text
    }
}

/// The lines of one kind of rivals, the best of them marked.
fn lines<'a>(engine: &Laps, rivals: impl Iterator<Item = &'a (Rival, Laps)>) -> Vec<Line> {
    let line = |(rival, laps): &(Rival, Laps)| {
        let rounds = engine.per_s.iter().zip(&laps.per_s);
        Line {
            threads: rival.threads,
            batch_keys: Some(rival.batch),
            keys_per_s: Quartiles::of(laps.per_s.iter().copied()),
            engine_ratio: Some(Quartiles::of(rounds.map(ratio))),
            best: Some(false),
            keys: laps.all.counts.ops,
            failed_keys: laps.all.counts.failed,
            verified_values: Some(laps.verified),
            corrupt_values: Some(laps.corrupt),
        }
    };
    let mut lines: Vec<_> = rivals.map(line).collect();
    let median = |line: &Line| line.keys_per_s.median;
    let best = lines
        .iter_mut()
        .max_by(|a, b| median(a).total_cmp(&median(b)));
    if let Some(best) = best {
        best.best = Some(true);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laps(per_s: &[f64]) -> Laps {
        Laps {
            per_s: per_s.to_vec(),
            ..Laps::default()
        }
    }

    #[test]
    fn quartiles_are_between_their_neighbours() {
        let of = |values: &[f64]| {
            let Quartiles { q1, median, q3 } = Quartiles::of(values.iter().copied());
            [q1, median, q3]
        };
        assert_eq!(of(&[]), [0.0; 3]);
        assert_eq!(of(&[7.0]), [7.0; 3]);
        assert_eq!(of(&[5.0, 1.0, 4.0, 2.0, 3.0]), [2.0, 3.0, 4.0]);
        assert_eq!(of(&[4.0, 1.0, 3.0, 2.0]), [1.75, 2.5, 3.25]);
    }

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_and_to_the_one_with_the_best_median() {
        // The machine was twice as slow in the second round: the ratios are the same.
        let engine = laps(&[200.0, 100.0, 240.0]);
        let rival = |threads, per_s: &[f64]| (Rival { threads, batch: 32 }, laps(per_s));
        let rivals = [
            rival(1, &[100.0, 50.0, 100.0]),
            // Best in one round only.
            rival(2, &[90.0, 40.0, 1000.0]),
        ];
        let lines = lines(&engine, rivals.iter());
        let best: Vec<_> = lines.iter().map(|line| line.best).collect();
        assert_eq!(best, [Some(true), Some(false)]);
        let ratio = lines[0].engine_ratio.expect("a ratio");
        assert_eq!((ratio.q1, ratio.median), (2.0, 2.0));
        assert!(ratio.q3 > 2.0);
        assert_eq!(lines[0].keys_per_s.median, 100.0);
    }

    #[test]
    fn folded_ops_make_a_comparison_void() {
        use moonring::store::NullStore;
        use moonring::{Engine, Submission};

        let compared = |keys: [&[u8]; 2]| {
            let builder = Engine::builder(std::sync::Arc::new(NullStore));
            let (engine, mut drivers) = builder.start_by_hand().expect("an engine");
            let mut pair = engine.pair(2).expect("a pair");
            let mut batch = pair.batch();
            for key in keys {
                batch.push(Submission::lookup(key)).expect("room");
            }
            batch.publish();
            assert!(drivers.iter_mut().any(|driver| driver.poll_once()));
            let (op, laps) = (OpKind::Lookup, Laps::default());
            Compared::new(1, op, Duration::ZERO, &laps, &[], &engine.stats())
        };
        assert_eq!(compared([b"a", b"b"]).error(), None);
        let folded = compared([b"a", b"a"]);
        assert_eq!(folded.folds, 1);
        assert!(folded.error().is_some());
    }

    #[test]
    fn who_did_nothing_gives_no_infinite_ratio() {
        assert_eq!(ratio((&1.0, &0.0)), 0.0);
    }
}
