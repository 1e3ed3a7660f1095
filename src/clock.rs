//! The engine's clock, in ticks: those of the processor's counter where `quanta` trusts it.
//!
//! `quanta` calibrates the counter and converts its ticks. It reads it behind a call and a look at what kind of clock it has; three
//! reads an op were a twelfth of all instructions of an op alone. So where its ticks are the counter's, the counter is read directly.

use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Clock {
    clock: quanta::Clock,
    /// Its ticks are those of [`counter`].
    is_counter: bool,
}

/// The time-stamp counter; 0 where there is none that `quanta` uses.
#[inline(always)]
fn counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of x86_64. A kernel that forbids it would have ended `quanta`, which has read it before.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

impl Clock {
    pub(crate) fn new(clock: quanta::Clock) -> Self {
        // Thrice: another clock might show the same once.
        let is_counter = (0..3).all(|_| {
            let before = counter();
            let raw = clock.raw();
            cfg!(target_arch = "x86_64") && before <= raw && raw <= counter()
        });
        Self { clock, is_counter }
    }

    /// Now.
    #[inline(always)]
    pub(crate) fn raw(&self) -> u64 {
        match self.is_counter {
            true => counter(),
            false => self.clock.raw(),
        }
    }

    /// From `start` to `end` in nanoseconds; 0 where the end comes first.
    #[inline(always)]
    pub(crate) fn delta_as_nanos(&self, start: u64, end: u64) -> u64 {
        self.clock.delta_as_nanos(start, end)
    }

    pub(crate) fn delta(&self, start: u64, end: u64) -> Duration {
        self.clock.delta(start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_ticks_are_those_of_the_clock_that_it_was_made_of() {
        let theirs = quanta::Clock::new();
        let clock = Clock::new(theirs.clone());
        for _ in 0..1000 {
            let before = theirs.raw();
            let now = clock.raw();
            let after = theirs.raw();
            assert!(before <= now && now <= after);
        }
    }

    #[test]
    fn a_clock_that_is_moved_by_hand_stands_still_between() {
        let (theirs, time) = quanta::Clock::mock();
        let clock = Clock::new(theirs);
        assert!(!clock.is_counter);
        let before = clock.raw();
        assert_eq!(clock.raw(), before);
        time.increment(Duration::from_nanos(7));
        assert_eq!(clock.delta_as_nanos(before, clock.raw()), 7);
    }
}
