//! A start line: threads that begin together, and the time from the first beginning to the last end.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::DELETE_ALL;
use crate::bench::plan::{Counts, Phase};
use crate::bench::producer::{Limit, Producer};

/// What came of one race.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lap {
    /// Of all threads.
    pub counts: Counts,
    /// From the first thread's beginning to the last one's end.
    pub time: Duration,
}

impl Lap {
    /// Adds another's.
    pub fn add(&mut self, other: Lap) {
        self.counts.add(other.counts);
        self.time += other.time;
    }

    /// Ops a second; 0 where no time went by.
    pub fn per_s(&self) -> f64 {
        match self.time.is_zero() {
            true => 0.0,
            false => self.counts.ops as f64 / self.time.as_secs_f64(),
        }
    }
}

/// A phase of all producers, for no longer than `limit`. Ctrl-C ends it if it is `stoppable`.
///
/// # Errors
/// As for [`race`].
pub fn phase(
    producers: &mut [Producer],
    phase: Phase,
    limit: Option<Duration>,
    stoppable: bool,
) -> Result<Lap, String> {
    race(producers.iter_mut().map(|producer| {
        move |began| {
            let until = limit.map(|limit| began + limit);
            let limit = Limit {
                until,
                stoppable,
                ..Limit::NONE
            };
            producer.run(phase, limit)
        }
    }))
}

/// Empties the store, unmeasured, and fills it as `before` says.
///
/// # Errors
/// As for [`race`]; values that could not be stored.
pub fn set_up(producers: &mut [Producer], before: Phase) -> Result<(), String> {
    phase(producers, DELETE_ALL, None, true)?;
    if before == DELETE_ALL {
        return Ok(());
    }
    match phase(producers, before, None, true)?.counts.failed {
        0 => Ok(()),
        failed => Err(format!("set-up: {failed} values could not be stored")),
    }
}

/// Runs each on a thread of its own, with the time at which it began.
///
/// # Errors
/// The first of theirs, or a panic.
pub fn race<R>(runners: impl ExactSizeIterator<Item = R>) -> Result<Lap, String>
where
    R: FnOnce(Instant) -> Result<Counts, String> + Send,
{
    let line = Barrier::new(runners.len());
    let laps: Vec<_> = thread::scope(|scope| {
        let run = |runner: R| {
            let line = &line;
            scope.spawn(move || {
                line.wait();
                let began = Instant::now();
                let counts = runner(began);
                (began, Instant::now(), counts)
            })
        };
        let threads: Vec<_> = runners.map(run).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let (mut counts, mut began, mut ended) = (Counts::default(), None, None);
    for lap in laps {
        let (b, e, c) = lap.map_err(|_| "a thread panicked")?;
        began = Some(began.map_or(b, |began: Instant| began.min(b)));
        ended = Some(ended.map_or(e, |ended: Instant| ended.max(e)));
        counts.add(c?);
    }
    let time = began.zip(ended).map(|(began, ended)| ended - began);
    Ok(Lap {
        counts,
        time: time.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_all_and_counts_add_up() {
        let sleep = |ms| {
            move |began: Instant| {
                thread::sleep(Duration::from_millis(ms));
                assert!(began.elapsed() >= Duration::from_millis(ms));
                Ok(Counts {
                    ops: ms,
                    ..Counts::default()
                })
            }
        };
        let lap = race([sleep(1), sleep(30), sleep(2)].into_iter()).expect("went well");
        assert_eq!(lap.counts.ops, 33);
        assert!(lap.time >= Duration::from_millis(30), "{lap:?}");
        assert!((lap.per_s() - 33.0 / lap.time.as_secs_f64()).abs() < 1e-9);
    }

    #[test]
    fn an_error_or_a_panic_of_one_is_that_of_all() {
        let error = race([0, 1].into_iter().map(|i| {
            move |_| match i {
                0 => Ok(Counts::default()),
                _ => Err("told".to_owned()),
            }
        }));
        assert_eq!(error.map(drop), Err("told".to_owned()));
        let panicked = race([0].into_iter().map(|_| |_| panic!("on purpose")));
        assert_eq!(panicked.map(drop), Err("a thread panicked".to_owned()));
    }
}
