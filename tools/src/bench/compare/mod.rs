//! `bench --compare`: the engine, and the same store called without it, in turns.
//!
//! All of them work on the same keys and are measured by the same clock. Each round measures each once, a round
//! later all begin one place later, so that none always follows the same other; ratios are taken within a round. Before the first
//! the engine runs for a while unmeasured: it learns from what calls bring, and what it learns stays. Ctrl-C ends it with the rounds
//! that were over.

pub mod race;
mod rival;
pub mod summary;

use std::time::Duration;

use indicatif::ProgressBar;
use moonring::{OpKind, Slot};

use super::plan::{Counts, Phase, Values};
use super::producer::Producer;
use super::rounds::Measured;
use super::{BenchArgs, BenchOp, DEFAULT_SECONDS, DELETE_ALL};
use crate::interrupt;
use crate::record::Watch;
use crate::session::Session;
use race::Lap;
pub use rival::LEAST_KEYS;
use rival::{Course, Rival, Work};
use summary::Laps;
pub use summary::{Compared, PROCEDURE};

/// How many rounds, unless asked otherwise.
pub const ROUNDS: u32 = 21;

/// How long the engine runs before the first round, as a part of all its rounds together.
const WARM_UP: f64 = 0.4;

/// Slots that the largest rival needs.
pub fn slots(args: &BenchArgs) -> u64 {
    let rivals = Rival::all(args.keys as usize);
    let most = rivals.iter().map(|rival| rival.bufs()).max();
    match args.op {
        BenchOp::Retrieve | BenchOp::Store => most.unwrap_or(0) as u64,
        _ => 0,
    }
}

/// How many measurements all rounds are together.
pub fn turns(args: &BenchArgs) -> u64 {
    let all = 1 + Rival::all(args.keys as usize).len();
    u64::from(args.rounds.unwrap_or(ROUNDS)) * all as u64
}

/// What came of a comparison.
pub struct Outcome {
    /// The engine's part.
    pub measured: Measured,
    /// The engine's values, read back before the rounds.
    pub verified: Counts,
    /// All of it.
    pub compared: Compared,
}

/// What is compared, and where.
pub struct Plan<'a> {
    pub args: &'a BenchArgs,
    pub op: OpKind,
    pub session: &'a Session,
    /// Told when the first round begins and when the last one is over.
    pub watch: &'a Watch<'a>,
    /// Moves on with each of [`turns`].
    pub bar: &'a ProgressBar,
    /// The store keeps what it is given.
    pub verify: bool,
}

/// Runs the engine's producers and all rivals through their rounds, and cleans up.
///
/// # Errors
/// An op was refused, the set-up failed, a thread panicked, or one of them did not do its work where it was checked.
pub fn drive(
    plan: &Plan<'_>,
    mut producers: Vec<Producer>,
    mut slots: Vec<Slot>,
) -> Result<Outcome, String> {
    let keys: Vec<_> = producers.iter().map(|p| p.keys.all().to_vec()).collect();
    let keys: Vec<&[u8]> = keys.iter().flatten().map(Vec::as_slice).collect();
    let mut field = Field {
        plan,
        producers: &mut producers,
        keys: &keys,
        slots: &mut slots,
    };
    let outcome = field.compare();
    plan.watch.end();
    // The store may be shared, and outlive us.
    let cleaned = race::phase(field.producers, DELETE_ALL, None, false);
    let outcome = outcome?;
    cleaned?;
    Ok(outcome)
}

/// All that is needed to run one of them.
struct Field<'a> {
    plan: &'a Plan<'a>,
    producers: &'a mut [Producer],
    keys: &'a [&'a [u8]],
    slots: &'a mut [Slot],
}

impl Field<'_> {
    fn compare(&mut self) -> Result<Outcome, String> {
        let Plan { args, session, .. } = *self.plan;
        let rounds = args.rounds.unwrap_or(ROUNDS);
        let time = Duration::from_secs_f64(args.seconds.unwrap_or(DEFAULT_SECONDS));
        let slice = time / rounds;
        let mut engine = Laps::default();
        let mut rivals: Vec<_> = Rival::all(self.keys.len())
            .into_iter()
            .map(|rival| (rival, Laps::default()))
            .collect();
        let mut verified = Counts::default();
        self.prepare(&mut rivals, &mut verified, time.mul_f64(WARM_UP))?;
        let before = session.engine.stats();
        if !interrupt::pressed() {
            self.plan.watch.begin();
            self.plan.bar.reset();
        }
        for round in 0..rounds as usize {
            let Some(mut laps) = self.round(round, slice, &rivals)? else {
                break;
            };
            for (all, lap) in rivals
                .iter_mut()
                .map(|(_, laps)| laps)
                .zip(laps.split_off(1))
            {
                all.add(lap);
            }
            laps.into_iter().for_each(|lap| engine.add(lap));
        }
        let stats = session.engine.stats().since(&before);
        Ok(Outcome {
            measured: Measured {
                counts: engine.all.counts,
                time: engine.all.time,
                rounds: engine.rounds() as u64,
            },
            verified,
            compared: Compared::new(
                args.producers,
                self.plan.op,
                slice,
                &engine,
                &rivals,
                &stats,
            ),
        })
    }

    /// Once over all keys by each, which also warms everything up; then the engine learns.
    fn prepare(
        &mut self,
        rivals: &mut [(Rival, Laps)],
        verified: &mut Counts,
        warm_up: Duration,
    ) -> Result<(), String> {
        self.fill_slots();
        if self.cycles() {
            race::set_up(self.producers, BenchOp::Delete.before())?;
        }
        for (rival, laps) in rivals {
            let checked = self.check(*rival)?;
            laps.verified = checked.ops - checked.failed;
            laps.corrupt = checked.corrupt;
        }
        *verified = self.check_engine()?;
        self.lap(warm_up, None).map(drop)
    }

    /// One measurement of each, the engine's first in the list; `None`: Ctrl-C came before all had theirs.
    fn round(
        &mut self,
        round: usize,
        slice: Duration,
        rivals: &[(Rival, Laps)],
    ) -> Result<Option<Vec<Lap>>, String> {
        let all = 1 + rivals.len();
        let mut laps = vec![Lap::default(); all];
        for turn in 0..all {
            let nth = (round + turn) % all;
            let rival = nth.checked_sub(1).map(|nth| rivals[nth].0);
            laps[nth] = self.lap(slice, rival)?;
            if interrupt::pressed() {
                return Ok(None);
            }
            self.plan.bar.inc(1);
        }
        Ok(Some(laps))
    }

    /// Whether the op leaves all as it was, and can be done again and again.
    fn cycles(&self) -> bool {
        matches!(self.plan.args.op, BenchOp::Lookup | BenchOp::Retrieve)
    }

    /// One of them, for as long as `slice`; `None` is the engine.
    fn lap(&mut self, slice: Duration, rival: Option<Rival>) -> Result<Lap, String> {
        let mut all = Lap::default();
        loop {
            self.set_up()?;
            let left = slice.saturating_sub(all.time);
            let lap = match rival {
                None => self.engine(self.plan.args.op.measured(), Some(left))?,
                Some(rival) if self.cycles() => self.rival(rival, Course::Cycle(left))?,
                Some(rival) => self.rival(rival, Course::Once(left))?,
            };
            all.add(lap);
            // A pass without an op would repeat for ever.
            if all.time >= slice || lap.counts.ops == 0 || interrupt::pressed() {
                return Ok(all);
            }
        }
    }

    /// Makes the store ready for one pass of the op, through the engine, unmeasured.
    fn set_up(&mut self) -> Result<(), String> {
        match self.plan.args.op {
            op @ (BenchOp::Store | BenchOp::Delete) => race::set_up(self.producers, op.before()),
            _ => Ok(()),
        }
    }

    /// A phase of all producers, which Ctrl-C ends.
    fn engine(&mut self, phase: Phase, limit: Option<Duration>) -> Result<Lap, String> {
        race::phase(self.producers, phase, limit, true)
    }

    fn rival(&mut self, rival: Rival, course: Course) -> Result<Lap, String> {
        let work = Work {
            op: self.plan.op,
            store: &**self.plan.session.engine.store(),
            keys: self.keys,
            values: self.values(),
        };
        rival.run(&work, self.slots, course)
    }

    fn values(&self) -> Values {
        super::values(self.plan.args)
    }

    /// What rivals store; what they retrieve writes over it.
    fn fill_slots(&mut self) {
        let value = self.values().content(0);
        for slot in &mut *self.slots {
            value.fill(slot);
        }
    }

    /// A pass of a rival, and whether it did what it should: values that it read or stored have the right bytes, what it
    /// deleted is gone. Counts the values looked at.
    fn check(&mut self, rival: Rival) -> Result<Counts, String> {
        self.set_up()?;
        let bytes = self.plan.verify;
        let pass = self.rival(rival, Course::Checked { bytes })?.counts;
        match self.plan.op {
            OpKind::Retrieve if bytes => Ok(pass),
            OpKind::Store if bytes => Ok(self.engine(Phase::Verify, None)?.counts),
            OpKind::Delete if bytes => {
                // Those that are gone count as failed.
                let there = self.engine(pass_of(OpKind::Lookup), None)?.counts;
                match there.ops - there.failed {
                    left if left > pass.failed => {
                        Err(format!("{left} keys are there after their deletion"))
                    }
                    _ => Ok(Counts::default()),
                }
            }
            _ => Ok(Counts::default()),
        }
    }

    /// A pass of the engine; what it retrieved or stored is read back and looked at.
    fn check_engine(&mut self) -> Result<Counts, String> {
        self.set_up()?;
        self.engine(pass_of(self.plan.op), None)?;
        match self.plan.op {
            OpKind::Retrieve | OpKind::Store if self.plan.verify => {
                Ok(self.engine(Phase::Verify, None)?.counts)
            }
            _ => Ok(Counts::default()),
        }
    }
}

const fn pass_of(op: OpKind) -> Phase {
    Phase::Pass { op, force: false }
}
