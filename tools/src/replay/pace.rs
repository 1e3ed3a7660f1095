//! Which request is next, and when it is due.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::trace::Request;

/// Hands out the requests of a trace in order, to several threads.
#[derive(Debug)]
pub struct Pace<'a> {
    requests: &'a [Request],
    next: AtomicUsize,
    start: Instant,
    /// How many times as fast as recorded; 0: all are due at once.
    speed: f64,
}

/// A request to play.
#[derive(Clone, Copy, Debug)]
pub struct Due<'a> {
    /// Its number, from 1.
    pub number: u64,
    /// The request.
    pub request: &'a Request,
    /// When it is due; `None`: as soon as there is a place for it.
    pub at: Option<Instant>,
}

impl<'a> Pace<'a> {
    /// The clock starts now, with the first request.
    pub fn new(requests: &'a [Request], speed: f64) -> Self {
        Self {
            requests,
            next: AtomicUsize::new(0),
            start: Instant::now(),
            speed,
        }
    }

    /// The next request, each to one caller.
    pub fn next(&self) -> Option<Due<'a>> {
        // Relaxed: only the number is shared, the requests don't change.
        let i = self.next.fetch_add(1, Ordering::Relaxed);
        let request = self.requests.get(i)?;
        let first = self.requests.first()?.timestamp;
        let after_ms = request.timestamp.saturating_sub(first) as f64;
        // A time too long for a Duration is one that never comes; such a trace is as good as asleep.
        let at = (self.speed > 0.0).then(|| {
            let after = Duration::try_from_secs_f64(after_ms / 1e3 / self.speed);
            let after = after.unwrap_or(Duration::from_secs(u32::MAX.into()));
            self.start + after
        });
        Some(Due {
            number: i as u64 + 1,
            request,
            at,
        })
    }
}

impl Due<'_> {
    /// How long until it is due; `None` where it is.
    pub fn wait(&self) -> Option<Duration> {
        let wait = self.at?.saturating_duration_since(Instant::now());
        (!wait.is_zero()).then_some(wait)
    }

    /// When its time began: when it was due, so that waiting for a place counts, or now.
    pub fn began(&self) -> Instant {
        self.at.unwrap_or_else(Instant::now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(timestamps: &[u64]) -> Vec<Request> {
        let request = |&timestamp| Request {
            timestamp,
            input_length: 1,
            output_length: 1,
            hash_ids: vec![0],
        };
        timestamps.iter().map(request).collect()
    }

    #[test]
    fn requests_are_due_as_recorded_from_the_first_on() {
        let requests = trace(&[5_000, 5_000, 7_000, 6_000, 4_000]);
        let pace = Pace::new(&requests, 2.0);
        let due: Vec<_> = std::iter::from_fn(|| pace.next()).collect();
        assert_eq!(
            due.iter().map(|d| d.number).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5]
        );
        let after: Vec<_> = due
            .iter()
            .map(|d| d.at.map(|at| (at - pace.start).as_millis()))
            .collect();
        let want = [0, 0, 1000, 500, 0].map(Some);
        assert_eq!(after, want);
        assert!(pace.next().is_none());
    }

    #[test]
    fn without_a_speed_all_are_due() {
        let requests = trace(&[0, u64::MAX]);
        let pace = Pace::new(&requests, 0.0);
        assert!(std::iter::from_fn(|| pace.next()).all(|d| d.at.is_none()));
    }

    #[test]
    fn no_timestamp_and_no_speed_is_too_odd() {
        let requests = trace(&[0, u64::MAX]);
        for speed in [f64::MIN_POSITIVE, 1.0, f64::MAX] {
            let pace = Pace::new(&requests, speed);
            assert_eq!(std::iter::from_fn(|| pace.next()).count(), 2);
        }
    }
}
