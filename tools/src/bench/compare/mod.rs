//! `bench --compare`: the engine, and the same store called without it, in turns.
//!
//! All of them work on the same keys and are measured by the same clock. Each round measures each once, a round
//! later all begin one place later, so that none always follows the same other; ratios are taken within a round. Before the first
//! the engine runs for a while unmeasured: it learns from what calls bring, and what it learns stays.

pub mod race;
mod rival;
pub mod summary;

use std::time::Duration;

use moonring::{OpKind, Slot, Stats};

use super::plan::{Counts, Phase, Values};
use super::producer::{Limit, Producer};
use super::rounds::Measured;
use super::{BenchArgs, BenchOp, DELETE_ALL};
use crate::session::Session;
use race::{Lap, race};
pub use rival::LEAST_KEYS;
use rival::{Course, Rival, Work};
pub use summary::Compared;
use summary::Laps;

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

/// What came of a comparison.
pub struct Outcome {
    /// The engine's part.
    pub measured: Measured,
    /// The engine's values, read back in the end.
    pub verified: Counts,
    /// From the first round's beginning to the last one's end.
    pub stats: Stats,
    /// All of it.
    pub compared: Compared,
}

/// Runs the engine's producers and all rivals through their rounds, and cleans up. `verify`: the store keeps what it is given.
///
/// # Errors
/// An op was refused, the set-up failed, a thread panicked, or one of them did not do its work where it was checked.
pub fn drive(
    args: &BenchArgs,
    op: OpKind,
    session: &Session,
    mut producers: Vec<Producer>,
    mut slots: Vec<Slot>,
    verify: bool,
) -> Result<Outcome, String> {
    let keys: Vec<_> = producers.iter().map(|p| p.keys.all().to_vec()).collect();
    let keys: Vec<&[u8]> = keys.iter().flatten().map(Vec::as_slice).collect();
    let mut field = Field {
        args,
        op,
        session,
        producers: &mut producers,
        keys: &keys,
        slots: &mut slots,
        verify,
    };
    let outcome = field.compare();
    // The store may be shared, and outlive us.
    let cleaned = field.engine(DELETE_ALL, None);
    let outcome = outcome?;
    cleaned?;
    Ok(outcome)
}

/// All that is needed to run one of them.
struct Field<'a> {
    args: &'a BenchArgs,
    op: OpKind,
    session: &'a Session,
    producers: &'a mut [Producer],
    keys: &'a [&'a [u8]],
    slots: &'a mut [Slot],
    verify: bool,
}

impl Field<'_> {
    fn compare(&mut self) -> Result<Outcome, String> {
        let rounds = self.args.rounds.unwrap_or(ROUNDS);
        let time = Duration::from_secs_f64(self.args.seconds.unwrap_or(5.0));
        let slice = time / rounds;
        self.fill_slots();
        if self.cycles() {
            self.clear_and_store()?;
        }
        let rivals = Rival::all(self.keys.len());
        let mut rivals: Vec<_> = rivals.into_iter().map(|r| (r, Laps::default())).collect();
        // Once over all keys, which also warms everything up.
        for (rival, laps) in &mut rivals {
            let checked = self.check(*rival)?;
            laps.verified = checked.ops - checked.failed;
            laps.corrupt = checked.corrupt;
        }
        let verified = self.check_engine()?;
        let mut engine = Laps::default();
        self.lap(time.mul_f64(WARM_UP), None)?;
        let before = self.session.engine.stats();
        let all = 1 + rivals.len();
        for round in 0..rounds as usize {
            for turn in 0..all {
                match (round + turn) % all {
                    0 => engine.add(self.lap(slice, None)?),
                    nth => {
                        let (rival, laps) = &mut rivals[nth - 1];
                        laps.add(self.lap(slice, Some(*rival))?);
                    }
                }
            }
        }
        let stats = self.session.engine.stats().since(&before);
        Ok(Outcome {
            measured: Measured {
                counts: engine.all.counts,
                time: engine.all.time,
                rounds: rounds.into(),
            },
            verified,
            compared: Compared::new(
                self.args.producers,
                self.op,
                slice,
                &engine,
                &rivals,
                &stats,
            ),
            stats,
        })
    }

    /// Whether the op leaves all as it was, and can be done again and again.
    fn cycles(&self) -> bool {
        matches!(self.args.op, BenchOp::Lookup | BenchOp::Retrieve)
    }

    /// One of them, for as long as `slice`; `None` is the engine.
    fn lap(&mut self, slice: Duration, rival: Option<Rival>) -> Result<Lap, String> {
        let mut all = Lap::default();
        loop {
            self.set_up()?;
            let left = slice.saturating_sub(all.time);
            let lap = match rival {
                None => self.engine(self.args.op.measured(), Some(left))?,
                Some(rival) if self.cycles() => self.rival(rival, Course::Cycle(left))?,
                Some(rival) => self.rival(rival, Course::Once(left))?,
            };
            all.add(lap);
            // A pass without an op would repeat for ever.
            if all.time >= slice || lap.counts.ops == 0 {
                return Ok(all);
            }
        }
    }

    /// Makes the store ready for one pass of the op, through the engine, unmeasured.
    fn set_up(&mut self) -> Result<(), String> {
        match self.args.op {
            BenchOp::Store => self.engine(DELETE_ALL, None).map(drop),
            BenchOp::Delete => self.clear_and_store(),
            _ => Ok(()),
        }
    }

    fn clear_and_store(&mut self) -> Result<(), String> {
        self.engine(DELETE_ALL, None)?;
        match self.engine(BenchOp::Delete.before(), None)?.counts.failed {
            0 => Ok(()),
            failed => Err(format!("set-up: {failed} values could not be stored")),
        }
    }

    /// A phase of all producers.
    fn engine(&mut self, phase: Phase, limit: Option<Duration>) -> Result<Lap, String> {
        let producers = self.producers.iter_mut();
        race(producers.map(|producer| {
            move |began| {
                let until = limit.map(|limit| began + limit);
                producer.run(
                    phase,
                    Limit {
                        until,
                        ..Limit::NONE
                    },
                )
            }
        }))
    }

    fn rival(&mut self, rival: Rival, course: Course) -> Result<Lap, String> {
        let work = Work {
            op: self.op,
            store: &**self.session.engine.store(),
            keys: self.keys,
            values: self.values(),
        };
        rival.run(&work, self.slots, course)
    }

    fn values(&self) -> Values {
        super::values(self.args)
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
        let bytes = self.verify;
        let pass = self.rival(rival, Course::Checked { bytes })?.counts;
        match self.op {
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
        self.engine(pass_of(self.op), None)?;
        match self.op {
            OpKind::Retrieve | OpKind::Store if self.verify => {
                Ok(self.engine(Phase::Verify, None)?.counts)
            }
            _ => Ok(Counts::default()),
        }
    }
}

const fn pass_of(op: OpKind) -> Phase {
    Phase::Pass { op, force: false }
}
