//! The engine's clock, in ticks: those of the processor's counter where `quanta` trusts it.
//!
//! `quanta` calibrates the counter and converts its ticks. It reads it behind a call and a look at what kind of clock it has; three
//! reads an op were a twelfth of all instructions of an op alone. So where its ticks are the counter's, the counter is read directly.
//!
//! `quanta` converts by a product and a shift, behind a look at the clock's kind, and shifts 128 bits by what may be more than 63. The same is done
//! here for every clock alike, and in fewer steps.

use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Clock {
    clock: quanta::Clock,
    /// Its ticks are those of [`counter`].
    is_counter: bool,
    /// Nanoseconds a tick, times two to the power of `shift`, which is below 64.
    scale: u64,
    shift: u32,
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
        let (scale, shift) = scale_of(&clock);
        Self {
            clock,
            is_counter,
            scale,
            shift,
        }
    }

    /// Now.
    #[inline(always)]
    pub(crate) fn raw(&self) -> u64 {
        match self.is_counter {
            true => counter(),
            false => self.other(),
        }
    }

    #[cold]
    fn other(&self) -> u64 {
        self.clock.raw()
    }

    /// From `start` to `end` in nanoseconds; 0 where the end comes first.
    #[inline(always)]
    pub(crate) fn delta_as_nanos(&self, start: u64, end: u64) -> u64 {
        let ticks = u128::from(end.saturating_sub(start));
        ((ticks * u128::from(self.scale)) >> (self.shift & 63)) as u64
    }

    pub(crate) fn delta(&self, start: u64, end: u64) -> Duration {
        self.clock.delta(start, end)
    }
}

/// The clock's [`scale`](Clock::scale) and shift. As exact as `quanta`, whose own factor has fewer binary places (about 30).
fn scale_of(clock: &quanta::Clock) -> (u64, u32) {
    // A tick is no longer than two to the power of this.
    let length = u64::BITS - (clock.delta_as_nanos(0, 1 << 32) >> 32).leading_zeros();
    let shift = 63 - length.min(31);
    (clock.delta_as_nanos(0, 1 << shift), shift)
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
    fn nanoseconds_are_those_of_the_clock_that_it_was_made_of() {
        let theirs = quanta::Clock::new();
        let clock = Clock::new(theirs.clone());
        let lengths = (0..64).flat_map(|bit| [1_u64 << bit, u64::MAX >> bit]);
        let odd = (1..50_000).map(|i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (i % 64) | 1);
        for ticks in lengths.chain(odd) {
            for start in [0, 1, 12_345] {
                let end = ticks.saturating_add(start);
                let ns = clock.delta_as_nanos(start, end);
                assert_eq!(ns, theirs.delta_as_nanos(start, end), "{start} to {end}");
            }
            assert_eq!(clock.delta_as_nanos(ticks, ticks), 0);
            assert_eq!(clock.delta_as_nanos(ticks, ticks - 1), 0);
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
