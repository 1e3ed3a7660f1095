//! The clock that leases are measured with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What a [`MemoryStore`](super::MemoryStore) measures its leases with: the system's monotonic clock by default, or a
/// [`ManualClock`].
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    /// Time since this instant.
    Monotonic(Instant),
    Manual(ManualClock),
}

impl Clock {
    /// The system's monotonic clock.
    pub fn monotonic() -> Self {
        Self(Source::Monotonic(Instant::now()))
    }

    /// Nanoseconds since the clock's beginning.
    pub(super) fn now_ns(&self) -> u64 {
        match &self.0 {
            Source::Monotonic(start) => nanos(start.elapsed()),
            Source::Manual(clock) => clock.0.load(Relaxed),
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::monotonic()
    }
}

/// A clock that stands still until it is told to go on, for tests. Clones share the time.
#[derive(Clone, Debug, Default)]
// A number that nothing else is published with: relaxed throughout.
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes on by `by`; whole nanoseconds, and no further than 2^64 of them.
    pub fn advance(&self, by: Duration) {
        let later = |now: u64| Some(now.saturating_add(nanos(by)));
        let _ = self.0.fetch_update(Relaxed, Relaxed, later);
    }

    /// This clock, for [`MemoryOptions::clock`](super::MemoryOptions::clock).
    pub fn clock(&self) -> Clock {
        Clock(Source::Manual(self.clone()))
    }
}

/// Whole nanoseconds, cut at 2^64 (584 years).
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
