//! The rounds of a bench: the clock, and where its threads meet.
//!
//! ```text
//! producers:  set up ─ meet ──────────── meet ─ measure ─ meet ─────────── meet ─ set up again, or verify and clean up
//! main:                meet ─ set time ─ meet ─────────── meet ─ enough? ─ meet
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::plan::{Counts, Phase};
use super::producer::{Limit, Producer};
use super::schedule::Schedule;
use super::{BenchArgs, DEFAULT_SECONDS, DELETE_ALL};
use crate::interrupt;
use crate::record::Watch;

/// Where main thread and producers meet between the parts of a round.
struct Meeting {
    barrier: Barrier,
    over: AtomicBool,
    /// How long this round may take; each producer counts from its own beginning, so that no time is lost
    /// to threads that come late.
    time_left: Mutex<Option<Duration>>,
    /// What each producer did in this round.
    rounds: Mutex<Vec<Round>>,
}

/// One producer's part of a round.
struct Round {
    began: Instant,
    ended: Instant,
    counts: Result<Counts, String>,
}

/// What all rounds came to.
#[derive(Debug, Default)]
pub struct Measured {
    /// The ops of all rounds.
    pub counts: Counts,
    /// From each round's first op to its last completion; the sum.
    pub time: Duration,
    /// How many.
    pub rounds: u64,
}

/// What one producer found when the clock had stopped.
pub type Verified = Result<Counts, String>;

/// Runs all producers through their rounds, watched from the first round's beginning to the last one's end.
pub fn drive(
    args: &BenchArgs,
    watch: &Watch<'_>,
    producers: Vec<Producer>,
    verify: bool,
) -> (Result<Measured, String>, Verified) {
    let n = producers.len() as u64;
    let meeting = Meeting {
        barrier: Barrier::new(producers.len() + 1),
        over: AtomicBool::new(false),
        time_left: Mutex::new(None),
        rounds: Mutex::new(Vec::new()),
    };
    let quota = |i: u64| match args.ops {
        // Of N ops each producer has its share; the shares' sum is N.
        Some(ops) => share(ops, i, n),
        None => u64::MAX,
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .zip(producers)
            .map(|(i, producer)| {
                let (meeting, quota) = (&meeting, quota(i));
                let course = Course {
                    args,
                    number: i,
                    verify,
                };
                scope.spawn(move || produce(&course, producer, quota, meeting))
            })
            .collect();
        let measured = measure(args, watch, &meeting);
        let mut verified = Ok(Counts::default());
        for thread in threads {
            let found = thread
                .join()
                .unwrap_or_else(|_| Err("a producer panicked".into()));
            verified = match (verified, found) {
                (Ok(mut all), Ok(counts)) => {
                    all.add(counts);
                    Ok(all)
                }
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        (measured, verified)
    })
}

/// Part `i` of `n` of a whole, as even as can be.
fn share(whole: u64, i: u64, n: u64) -> u64 {
    let cut = |i: u64| (u128::from(whole) * u128::from(i) / u128::from(n)) as u64;
    cut(i + 1) - cut(i)
}

/// The main thread's side: the clock, and when it is enough.
fn measure(args: &BenchArgs, watch: &Watch<'_>, meeting: &Meeting) -> Result<Measured, String> {
    let all = args
        .ops
        .is_none()
        .then(|| Duration::from_secs_f64(args.seconds.unwrap_or(DEFAULT_SECONDS)));
    let mut measured = Measured::default();
    let mut failed = None;
    loop {
        // All have set up.
        meeting.barrier.wait();
        watch.begin();
        *lock(&meeting.time_left) = all.map(|all| all.saturating_sub(measured.time));
        // They measure.
        meeting.barrier.wait();
        meeting.barrier.wait();
        let rounds = std::mem::take(&mut *lock(&meeting.rounds));
        let began = rounds.iter().map(|round| round.began).min();
        let ended = rounds.iter().map(|round| round.ended).max();
        if let (Some(began), Some(ended)) = (began, ended) {
            measured.time += ended - began;
        }
        measured.rounds += 1;
        let mut ops = 0;
        for round in rounds {
            match round.counts {
                Ok(counts) => {
                    ops += counts.ops;
                    measured.counts.add(counts);
                }
                Err(error) => failed = Some(error),
            }
        }
        let enough = match all {
            Some(all) => measured.time >= all,
            None => measured.counts.ops >= args.ops.unwrap_or(0),
        };
        // A round without an op would repeat for ever.
        let over = enough || failed.is_some() || ops == 0 || interrupt::pressed();
        // Relaxed: the barrier orders it.
        meeting.over.store(over, Ordering::Relaxed);
        if over {
            watch.end();
            meeting.barrier.wait();
            return failed.map_or(Ok(measured), Err);
        }
        meeting.barrier.wait();
    }
}

/// What a producer is to do.
struct Course<'a> {
    args: &'a BenchArgs,
    /// Which producer it is.
    number: u64,
    /// Values are read back in the end.
    verify: bool,
}

/// A producer's side. After a failure it does nothing more, but comes to every meeting.
fn produce(
    course: &Course<'_>,
    mut producer: Producer,
    mut quota: u64,
    meeting: &Meeting,
) -> Verified {
    let Course {
        args,
        number,
        verify,
    } = *course;
    let op = args.op;
    let mut set_up = producer.run(DELETE_ALL, Limit::NONE).map(drop);
    loop {
        if set_up.is_ok() {
            let before = producer.run(op.before(), Limit::STOPPABLE);
            set_up = before.and_then(|counts| match (op.before(), counts.failed) {
                // What is to be deleted need not be there.
                (DELETE_ALL, _) | (_, 0) => Ok(()),
                (_, failed) => Err(format!("set-up: {failed} values could not be stored")),
            });
        }
        meeting.barrier.wait();
        meeting.barrier.wait();
        let time_left = *lock(&meeting.time_left);
        let began = Instant::now();
        let until = time_left.map(|left| began + left);
        let schedule = args
            .rate
            .map(|rate| Schedule::new(began, rate, number, args.producers.into()));
        let limit = Limit {
            ops: quota,
            until,
            schedule,
            stoppable: true,
            timed: true,
        };
        let counts = set_up
            .clone()
            .and_then(|()| producer.run(op.measured(), limit));
        let ended = Instant::now();
        if let Ok(counts) = &counts {
            quota = quota.saturating_sub(counts.ops);
        }
        lock(&meeting.rounds).push(Round {
            began,
            ended,
            counts,
        });
        meeting.barrier.wait();
        meeting.barrier.wait();
        if meeting.over.load(Ordering::Relaxed) {
            break;
        }
    }
    set_up?;
    let mut verified = Counts::default();
    if verify && !interrupt::pressed() {
        verified = producer.run(Phase::Verify, Limit::STOPPABLE)?;
    }
    // The store may be shared, and outlive us.
    producer.run(DELETE_ALL, Limit::NONE)?;
    Ok(verified)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that can panic runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_whole() {
        for (whole, n) in [(0, 1), (10, 3), (7, 8), (u64::MAX, 7)] {
            let shares: Vec<_> = (0..n).map(|i| share(whole, i, n)).collect();
            assert_eq!(shares.iter().sum::<u64>(), whole);
            let (least, most) = (shares.iter().min(), shares.iter().max());
            assert!(most.expect("some") - least.expect("some") <= 1);
        }
    }
}
