//! When ops are due: all at once in a closed loop, at a rate in an open one.

use std::time::{Duration, Instant};

/// An open loop's share of one producer: op `i` is due at `first + i * every`.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    first: Instant,
    every: f64,
    next: u64,
}

impl Schedule {
    /// The part of producer `number` of `producers`, of `rate` ops a second over all, from `began` on. The producers'
    /// ops are due one after the other, never together.
    pub fn new(began: Instant, rate: f64, number: u64, producers: u64) -> Self {
        let step = 1.0 / rate;
        Self {
            first: began + Duration::from_secs_f64(step * number as f64),
            every: step * producers as f64,
            next: 0,
        }
    }

    /// When the next op is due.
    pub fn next(&self) -> Instant {
        self.due(self.next)
    }

    /// It was started.
    pub fn advance(&mut self) {
        self.next += 1;
    }

    /// Ops that are due before `then` and were not started.
    pub fn backlog(&self, then: Instant) -> u64 {
        let after = then.saturating_duration_since(self.first).as_secs_f64();
        let due = match then > self.first {
            true => (after / self.every).ceil() as u64,
            false => 0,
        };
        due.saturating_sub(self.next)
    }

    fn due(&self, i: u64) -> Instant {
        // From the first, so that rounding doesn't add up. Beyond what a Duration holds no run lasts.
        let after = Duration::try_from_secs_f64(self.every * i as f64);
        self.first + after.unwrap_or(Duration::from_secs(u32::MAX.into()))
    }
}

/// Timers of this thread fire within a microsecond or so instead of the 50 that the kernel grants itself, so that ops start
/// when they are due.
pub fn precise_timers() {
    // SAFETY: a number for the calling thread alone; no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64, 0_u64, 0_u64, 0_u64) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn producers_share_a_rate_one_after_the_other() {
        let began = Instant::now();
        let mut due = Vec::new();
        for number in 0..3 {
            let mut schedule = Schedule::new(began, 1000.0, number, 3);
            for _ in 0..4 {
                due.push((schedule.next() - began).as_micros());
                schedule.advance();
            }
        }
        due.sort_unstable();
        let want: Vec<_> = (0..12).map(|i| i * 1000).collect();
        assert!(
            due.iter()
                .zip(&want)
                .all(|(due, want)| due.abs_diff(*want) <= 1),
            "{due:?}"
        );
    }

    #[test]
    fn the_backlog_is_what_was_due_and_not_started() {
        let began = Instant::now();
        let mut schedule = Schedule::new(began, 100.0, 1, 2);
        // Due at 10, 30, 50 ms.
        let at = |ms| began + Duration::from_millis(ms);
        assert_eq!(schedule.backlog(began), 0);
        assert_eq!(schedule.backlog(at(5)), 0);
        assert_eq!(schedule.backlog(at(11)), 1);
        assert_eq!(schedule.backlog(at(51)), 3);
        schedule.advance();
        assert_eq!(schedule.backlog(at(11)), 0);
        assert_eq!(schedule.backlog(at(51)), 2);
        assert_eq!(schedule.next(), at(30));
    }
}
