//! The wake word: how sleepers and those who wake them agree, in one word.
//!
//! Each bit is one sleeper: a worker of a group, a thread in `wait`, an armed eventfd. A set bit says "I am about to
//! sleep, or asleep; whoever clears this bit must wake me".
//!
//! ```text
//!      sleeper                                   who publishes
//!  1   announce: set the bit                     publish (ring tail, completion, ready bit)
//!  2   fence(SeqCst)                             fence(SeqCst)          [publish_fence]
//!  3   look again: anything published?           look at the word: any bit set?
//!  4a  yes: retract the bit, go on               no: done, nothing costs a system call
//!  4b  no: sleep while the bit is set            yes: clear a bit; who cleared it wakes that sleeper
//! ```
//!
//! The two fences forbid that both 3s miss: either the sleeper sees what was published, or the publisher sees the bit.
//! Without either fence both can read the old value, and the wake is lost. Clearing is an atomic read-modify-write,
//! so that one announcement is woken at most once, and a bit that the sleeper finds cleared at its own
//! retraction has been woken: it must look for work before it sleeps again.
//!
//! A wake is a hint: whoever wakes up drains until empty, then announces again.

use crate::sync::{AtomicU64, Ordering, broken, fence, ordering};

/// The word. 64 bits, one per sleeper or flag.
#[derive(Debug)]
pub struct WakeWord(AtomicU64);

/// The barrier between publishing and [`WakeWord`]'s look at the sleepers. One serves several words.
#[inline(always)]
pub fn publish_fence() {
    // Pairs with the fence in `WakeWord::announce`.
    if !broken("park-publish-fence") {
        fence(Ordering::SeqCst);
    }
}

impl Default for WakeWord {
    fn default() -> Self {
        Self::new()
    }
}

impl WakeWord {
    /// A word with no bit set.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Sets `bits` (step 1 and 2 of a sleeper). Look again before you sleep.
    #[inline]
    pub fn announce(&self, bits: u64) {
        self.0.fetch_or(bits, Ordering::Relaxed);
        if !broken("park-announce-fence") {
            // Pairs with `publish_fence`.
            fence(Ordering::SeqCst);
        }
    }

    /// Sets a flag that is no announcement of sleep; false where it was set already.
    #[inline]
    pub fn set_flag(&self, bit: u64) -> bool {
        self.0.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Clears `bits`; returns those that were still set. The others have been taken by somebody who wakes.
    #[inline]
    pub fn retract(&self, bits: u64) -> u64 {
        // Acquire pairs with the Release in `take`: what was published before the wake is visible.
        let order = ordering!(Acquire, "park-retract" => Relaxed);
        self.0.fetch_and(!bits, order) & bits
    }

    /// Which of `bits` are set. Acquire pairs with the Release in `take`.
    #[inline]
    pub fn peek(&self, bits: u64) -> u64 {
        self.0.load(ordering!(Acquire, "park-peek" => Relaxed)) & bits
    }

    /// Step 3 of who publishes, after [`publish_fence`]: a plain look, for the case that nobody sleeps.
    #[inline(always)]
    pub fn announced(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Clears those of `bits` that are set and returns them: the caller must wake each.
    #[inline]
    pub fn take(&self, bits: u64) -> u64 {
        if self.announced() & bits == 0 {
            return 0;
        }
        // Release pairs with the Acquire in `peek` and `retract`. (The fence before would do, where there is one.)
        self.0.fetch_and(!bits, Ordering::AcqRel) & bits
    }

    /// Clears one of `bits` that is set and returns its number: the caller must wake it.
    #[inline]
    pub fn take_one(&self, bits: u64) -> Option<u32> {
        loop {
            let set = self.announced() & bits;
            if set == 0 {
                return None;
            }
            let bit = set.trailing_zeros();
            if self.take(1 << bit) != 0 || broken("park-take-one-recheck") {
                return Some(bit);
            }
        }
    }
}
