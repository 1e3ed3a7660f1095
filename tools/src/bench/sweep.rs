//! `bench --sweep`: the settings as they are, beside fixed bounds of a batch, in turns.
//!
//! Each setting has an engine of its own on the same store and the same memory; the same producers work with one after the other,
//! so that of all engines one at a time has something to do. Each runs for a while unmeasured before the first round: it learns, and
//! what it learns stays. Ratios are taken within a round. Ctrl-C ends it with the rounds that were over.

use std::fmt::Write;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use moonring::store::{
    CallResult, Capabilities, DeleteBatch, LookupBatch, RegisterError, RetrieveBatch, Store,
    StoreBatch, StoreHealth,
};
use moonring::{Engine, EngineConfig, OpKind, Shutdown, Stats};
use serde::Serialize;

use super::compare::race::{self, Lap};
use super::compare::summary::{Laps, Quartiles, ratio};
use super::plan::Counts;
use super::producer::{Producer, Way};
use super::rounds::Measured;
use super::{BenchArgs, BenchOp, DEFAULT_SECONDS, DELETE_ALL};
use crate::cli::Failure;
use crate::interrupt;
use crate::record::Watch;
use crate::report::svg::{self, Axis, Chart};
use crate::session::Session;
use crate::table::{self, Table};

/// How long an engine runs before the first round, as a part of all its rounds together.
const WARM_UP: f64 = 0.4;

/// A store whose memory the session's engine has registered already, and which that engine closes.
struct Lent(Arc<dyn Store>);

impl Store for Lent {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    unsafe fn register(&self, _: NonNull<u8>, _: usize) -> Result<(), RegisterError> {
        Ok(())
    }

    unsafe fn unregister(&self, _: NonNull<u8>, _: usize) -> Result<(), RegisterError> {
        Ok(())
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        self.0.batch_exists(batch)
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        self.0.batch_get_into(batch)
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        self.0.batch_put_from(batch)
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        self.0.batch_remove(batch)
    }

    fn health(&self) -> StoreHealth {
        self.0.health()
    }
}

/// One setting, its engine, and what it did.
struct Contestant {
    /// `None`: as configured.
    max_batch: Option<usize>,
    adapt: bool,
    /// The session's own where it is as configured.
    engine: Option<Engine>,
    /// Each producer's, while it is not its turn.
    ways: Vec<Way>,
    before: Stats,
    laps: Laps,
}

/// What came of a sweep.
pub struct Outcome {
    /// What the settings as configured did.
    pub measured: Measured,
    /// All of it.
    pub swept: Swept,
}

/// The members that `--sweep` adds to the report.
#[derive(Clone, Debug, Serialize)]
pub struct Swept {
    /// The rate as configured over that of the best fixed bound; the median of the rounds. `None`: no round was over.
    ratio_vs_best_fixed: Option<f64>,
    /// That bound.
    best_fixed_max_batch: Option<usize>,
    sweep: Details,
}

#[derive(Clone, Debug, Serialize)]
struct Details {
    /// What was done, in words.
    procedure: &'static str,
    rounds: u32,
    /// How long each was measured in each round, in seconds.
    round_s: f64,
    settings: Vec<Line>,
}

/// One setting.
#[derive(Clone, Debug, Serialize)]
struct Line {
    /// Null: as configured.
    fixed_max_batch: Option<usize>,
    adapt: bool,
    keys_per_s: Quartiles,
    /// Its rate over that as configured; the median of the rounds.
    ratio: f64,
    keys_per_call: f64,
    /// From submit to completion, in microseconds.
    p50_us: f64,
    p99_us: f64,
    /// Keys of all rounds.
    keys: u64,
    /// Of those, the ones for which the work was not done.
    failed_keys: u64,
}

const PROCEDURE: &str = "each setting has an engine of its own on the same store; each first runs unmeasured, for 0.4 of the time \
    of all its rounds; in each round all are measured, one after the other, by the same producers with the same keys; ratios are \
    taken within a round";

/// What is swept, and where.
pub struct Plan<'a> {
    pub args: &'a BenchArgs,
    pub op: OpKind,
    /// The fixed bounds.
    pub sizes: &'a [usize],
    pub config: &'a EngineConfig,
    pub session: &'a Session,
    /// Told when the first round begins and when the last one is over.
    pub watch: &'a Watch<'a>,
    /// Moves on with each of [`turns`].
    pub bar: &'a ProgressBar,
}

/// How many measurements all rounds are together.
pub fn turns(args: &BenchArgs, config: &EngineConfig, sizes: &[usize]) -> u64 {
    rounds(args) as u64 * (1 + settings(config, sizes).count()) as u64
}

fn rounds(args: &BenchArgs) -> u32 {
    args.rounds.unwrap_or(super::compare::ROUNDS)
}

/// Each size, also without learning how many calls to make; where that is configured, only so.
fn settings(config: &EngineConfig, sizes: &[usize]) -> impl Iterator<Item = (bool, usize)> {
    let adapt = [true, false].into_iter().filter(|on| config.adapt || !on);
    adapt.flat_map(|adapt| sizes.iter().map(move |size| (adapt, *size)))
}

/// Runs the producers through all settings, and cleans up.
///
/// # Errors
/// An engine did not start, an op was refused, the set-up failed, or a thread panicked.
pub fn drive(plan: &Plan<'_>, producers: Vec<Producer>) -> Result<Outcome, String> {
    let mut contestants = contestants(plan)?;
    let mut sweep = Sweep { plan, producers };
    let outcome = sweep.run(&mut contestants);
    plan.watch.end();
    // The store may be shared, and outlive us.
    let cleaned = race::phase(&mut sweep.producers, DELETE_ALL, None, false);
    for engine in contestants.into_iter().filter_map(|c| c.engine) {
        engine
            .shutdown(Shutdown::Drain, Duration::from_secs(60))
            .map_err(|e| format!("shutdown: {e}"))?;
    }
    let outcome = outcome?;
    cleaned?;
    Ok(outcome)
}

/// As configured, which the producers begin with, and each of [`settings`] with an engine of its own.
fn contestants(plan: &Plan<'_>) -> Result<Vec<Contestant>, String> {
    let Plan {
        args,
        config,
        session,
        ..
    } = *plan;
    let contestant = |max_batch, adapt, engine, ways| Contestant {
        max_batch,
        adapt,
        engine,
        ways,
        before: Stats::default(),
        laps: Laps::default(),
    };
    let mut all = vec![contestant(None, config.adapt, None, Vec::new())];
    for (adapt, max_batch) in settings(config, plan.sizes) {
        let config = config.clone().max_batch(max_batch).adapt(adapt);
        let store = Arc::new(Lent(Arc::clone(session.engine.store())));
        let mut builder = Engine::builder(store).config(config);
        if let Some(region) = &session.region {
            builder = builder.region(region.clone());
        }
        let engine = builder.start().map_err(|e| format!("start: {e}"))?;
        let ways = (0..args.producers).map(|_| super::way(args, &engine));
        let ways = ways.collect::<Result<_, Failure>>().map_err(|e| e.what)?;
        all.push(contestant(Some(max_batch), adapt, Some(engine), ways));
    }
    Ok(all)
}

struct Sweep<'a> {
    plan: &'a Plan<'a>,
    producers: Vec<Producer>,
}

impl Sweep<'_> {
    fn run(&mut self, contestants: &mut [Contestant]) -> Result<Outcome, String> {
        let Plan {
            args, op, session, ..
        } = *self.plan;
        let time = Duration::from_secs_f64(args.seconds.unwrap_or(DEFAULT_SECONDS));
        let slice = time / rounds(args);
        self.set_up(true)?;
        let stats = |c: &Contestant| c.engine.as_ref().unwrap_or(&session.engine).stats();
        for contestant in &mut *contestants {
            self.lap(contestant, time.mul_f64(WARM_UP))?;
            contestant.before = stats(contestant);
        }
        if !interrupt::pressed() {
            self.plan.watch.begin();
            self.plan.bar.reset();
        }
        let all = contestants.len();
        for round in 0..rounds(args) as usize {
            let Some(laps) = self.round(round, contestants, slice)? else {
                break;
            };
            for (contestant, lap) in contestants.iter_mut().zip(laps) {
                contestant.laps.add(lap);
            }
        }
        let configured = &contestants[0];
        let lines = contestants.iter().map(|contestant| {
            let lane = stats(contestant).since(&contestant.before);
            let lane = lane.lane(op);
            let us = |quantile| lane.total().value_at_quantile(quantile) as f64 / 1e3;
            Line {
                fixed_max_batch: contestant.max_batch,
                adapt: contestant.adapt,
                keys_per_s: Quartiles::of(contestant.laps.per_s.iter().copied()),
                ratio: median_ratio(&contestant.laps, &configured.laps),
                keys_per_call: lane.keys_per_call(),
                p50_us: us(0.5),
                p99_us: us(0.99),
                keys: contestant.laps.all.counts.ops,
                failed_keys: contestant.laps.all.counts.failed,
            }
        });
        let lines: Vec<_> = lines.collect();
        let best = (1..all).max_by(|&a, &b| {
            let median = |i: usize| lines[i].keys_per_s.median;
            median(a).total_cmp(&median(b))
        });
        let rounds = configured.laps.rounds() as u32;
        let best = best.filter(|_| rounds > 0).map(|best| &contestants[best]);
        Ok(Outcome {
            measured: Measured {
                counts: configured.laps.all.counts,
                time: configured.laps.all.time,
                rounds: rounds.into(),
            },
            swept: Swept {
                ratio_vs_best_fixed: best.map(|best| median_ratio(&configured.laps, &best.laps)),
                best_fixed_max_batch: best.and_then(|best| best.max_batch),
                sweep: Details {
                    procedure: PROCEDURE,
                    rounds,
                    round_s: slice.as_secs_f64(),
                    settings: lines,
                },
            },
        })
    }

    /// One measurement of each; `None`: Ctrl-C came before all had theirs.
    fn round(
        &mut self,
        round: usize,
        contestants: &mut [Contestant],
        slice: Duration,
    ) -> Result<Option<Vec<Lap>>, String> {
        let all = contestants.len();
        let mut laps = vec![Lap::default(); all];
        for turn in 0..all {
            let nth = (round + turn) % all;
            laps[nth] = self.lap(&mut contestants[nth], slice)?;
            if interrupt::pressed() {
                return Ok(None);
            }
            self.plan.bar.inc(1);
        }
        Ok(Some(laps))
    }

    /// One setting, for as long as `slice`.
    fn lap(&mut self, contestant: &mut Contestant, slice: Duration) -> Result<Lap, String> {
        self.swap(contestant);
        let lap = self.laps(slice);
        self.swap(contestant);
        lap
    }

    fn laps(&mut self, slice: Duration) -> Result<Lap, String> {
        let mut all = Lap::default();
        loop {
            self.set_up(false)?;
            let left = slice.saturating_sub(all.time);
            let measured = self.plan.args.op.measured();
            let lap = race::phase(&mut self.producers, measured, Some(left), true)?;
            all.add(lap);
            // A pass without an op would repeat for ever.
            if all.time >= slice || lap.counts.ops == 0 || interrupt::pressed() {
                return Ok(all);
            }
        }
    }

    /// Makes the store ready for the op, unmeasured; where that is good for all passes, only at `first`.
    fn set_up(&mut self, first: bool) -> Result<(), String> {
        let op = self.plan.args.op;
        let cycles = matches!(op, BenchOp::Lookup | BenchOp::Retrieve);
        if cycles && !first {
            return Ok(());
        }
        race::set_up(&mut self.producers, op.before())
    }

    fn swap(&mut self, contestant: &mut Contestant) {
        for (producer, way) in self.producers.iter_mut().zip(&mut contestant.ways) {
            std::mem::swap(&mut producer.way, way);
        }
    }
}

/// One's rate over another's, the median of the rounds.
fn median_ratio(one: &Laps, other: &Laps) -> f64 {
    let rounds = one.per_s.iter().zip(&other.per_s);
    Quartiles::of(rounds.map(ratio)).median
}

impl Swept {
    /// Keys of all fixed settings, and those that failed among them.
    pub fn others(&self) -> Counts {
        let mut counts = Counts::default();
        for line in self.sweep.settings.iter().skip(1) {
            counts.ops += line.keys;
            counts.failed += line.failed_keys;
        }
        counts
    }

    /// The text for people.
    pub fn text(&self) -> String {
        let (Some(ratio), Some(best)) = (self.ratio_vs_best_fixed, self.best_fixed_max_batch)
        else {
            return "no round was over: nothing is swept\n".into();
        };
        let mut text = String::new();
        let Details {
            rounds, round_s, ..
        } = self.sweep;
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "swept in {rounds} rounds of {:.0} ms each\n",
            round_s * 1e3
        );
        let mut table = Table::new(&[
            "max_batch",
            "keys/s, q1",
            "median",
            "q3",
            "ratio",
            "keys/call",
            "p50",
            "p99",
        ]);
        for line in &self.sweep.settings {
            let name = match (line.fixed_max_batch, line.adapt) {
                (None, _) => "as configured".to_owned(),
                (Some(n), true) => n.to_string(),
                (Some(n), false) => format!("{n}, adapt off"),
            };
            let Quartiles { q1, median, q3 } = line.keys_per_s;
            let rates = [q1, median, q3].map(|per_s| table::count(per_s as u64));
            let rest = [
                format!("{:.3}", line.ratio),
                format!("{:.1}", line.keys_per_call),
                table::micros(line.p50_us),
                table::micros(line.p99_us),
            ];
            table.row([name].into_iter().chain(rates).chain(rest));
        }
        text.push_str(&table.text());
        let _ = writeln!(
            text,
            "\nas configured it has {ratio:.3} of the best fixed bound's rate, {best} keys"
        );
        text
    }

    /// Draws the rates over the bounds, if there are any.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn draw(&self, title: &str, path: &Path) -> Result<(), Failure> {
        if self.ratio_vs_best_fixed.is_none() {
            return Ok(());
        }
        let lines = &self.sweep.settings;
        let most = lines.iter().map(|line| line.keys_per_s.median);
        let most = most.fold(0.0, f64::max);
        let sizes: Vec<_> = lines.iter().filter_map(|l| l.fixed_max_batch).collect();
        let (low, high) = (sizes.iter().min(), sizes.iter().max());
        let (low, high) = low.zip(high).map_or((1, 2), |(l, h)| (*l, *h));
        let x = Axis::doubling(low as f64, high as f64, 1, "max_batch", svg::number);
        let y = Axis::linear(most, 4.0, "", svg::short);
        let mut chart = Chart::new(x, y, false);
        let mut legend = Vec::new();
        let mut draw = |class, name: &'static str, points: Vec<svg::Point>, dots| {
            if !points.is_empty() {
                chart.line(&points, class, dots, None);
                legend.push((class, name));
            }
        };
        for (adapt, class, name) in [
            (true, "s0", "fixed bound"),
            (false, "s1", "fixed bound, adapt off"),
        ] {
            let points = lines.iter().filter(|line| line.adapt == adapt);
            let points = points.filter_map(|line| {
                let rate = line.keys_per_s.median;
                let told = format!("{} keys/s", svg::number(rate.round()));
                Some((line.fixed_max_batch? as f64, rate, told))
            });
            draw(class, name, points.collect(), true);
        }
        if let Some(line) = lines.first() {
            let rate = line.keys_per_s.median;
            let told = format!("{} keys/s", svg::number(rate.round()));
            let ends = [low as f64, high as f64].map(|x| (x, rate, told.clone()));
            draw("s2 raw", "as configured", ends.into(), false);
        }
        let drawn = svg::alone(&format!("{title}: keys/s"), &legend, vec![("", chart)]);
        let failed = |e| Failure::run(format!("--svg {}: {e}", path.display()));
        std::fs::write(path, drawn).map_err(failed)
    }
}
