//! A clock that is moved by hand, so that a model of the engine can say what happens when.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The clock of an engine that was started by
/// [`start_by_hand_on`](crate::EngineBuilder::start_by_hand_on): it stands still but when it is moved.
#[derive(Clone)]
pub struct HandClock {
    clock: quanta::Clock,
    time: Arc<quanta::Mock>,
}

impl HandClock {
    /// A clock that nobody has moved yet.
    pub fn new() -> Self {
        let (clock, time) = quanta::Clock::mock();
        // Far from 0, as clocks are.
        time.increment(Duration::from_secs(1));
        Self { clock, time }
    }

    /// Moves it on.
    pub fn advance(&self, by: Duration) {
        self.time.increment(by);
    }

    pub(crate) fn clock(&self) -> quanta::Clock {
        self.clock.clone()
    }
}

impl Default for HandClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for HandClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandClock")
            .field("ns", &self.time.value())
            .finish()
    }
}
