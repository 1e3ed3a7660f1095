//! Lingering: a pair's ops that may wait for a fuller call ([`PairOptions::linger`](crate::PairOptions::linger)).
//!
//! Such an op lies in its pair's ring like any other, but the pair's ready bit is not set: a bit of its own is, so that no worker sees it
//! as work, and an op that may not wait costs nothing more.
//!
//! ```text
//!   publisher                                    worker, at the begin of a round (`ripen`)
//!   push to the ring                             anything lingers? then, if
//!   lingering bit, count, due time                 something else of the lane is ready, or
//!   fence(SeqCst)                                  the oldest is due, or the engine is closing, or the circuit is open:
//!   enough? ready bit, wake, as always           due = never, fence, take the bits, set the ready bits
//!   else: due sooner than before?
//!     wake the lingerer, or a sleeper
//! ```
//! So whatever makes a call of the lane takes them along. One idle worker of the group, the **lingerer**, sleeps until the soonest is due;
//! it is announced like any sleeper and can be woken for other work. Before a worker goes into a call it wakes another if
//! something lingers and there is no lingerer. A publisher that moves the due time forward either sees the lingerer, which it then
//! wakes, or the lingerer sees that time: both have a fence between.
//!
//! The count is a hint: it may be too high, and then a call begins early.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::Class;
use crate::inflight::NEVER;
use crate::lane::Lane;

/// What a pair's ops may wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linger {
    /// So many ops of a kind are enough.
    pub(crate) ops: u32,
    /// In ticks.
    pub(crate) budget: u64,
}

/// What lingers in one lane.
pub(crate) struct Lingering {
    /// By class, a bit for each source.
    sources: [Box<[AtomicU64]>; 2],
    ops: AtomicU32,
    /// The least that is enough for one of them.
    enough: AtomicU32,
    /// When the first of them is due, in ticks; [`NEVER`]: nothing lingers.
    due: AtomicU64,
}

/// What becomes of an op that may linger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// There are enough now.
    Enough,
    /// It waits. `first`: nobody is due before it.
    Waits { first: bool },
}

impl Lingering {
    /// For so many sources.
    pub(crate) fn new(sources: usize) -> Self {
        let words = sources.div_ceil(64);
        let bits = || (0..words).map(|_| AtomicU64::new(0)).collect();
        Self {
            sources: [bits(), bits()],
            ops: AtomicU32::new(0),
            enough: AtomicU32::new(u32::MAX),
            due: AtomicU64::new(NEVER),
        }
    }

    /// So many more ops of a source, which are in its ring. A fence comes after this.
    pub(crate) fn add(
        &self,
        class: Class,
        source: usize,
        ops: u32,
        enough: u32,
        due: u64,
    ) -> Added {
        let word = &self.sources[class.index()][source / 64];
        // Release, as that below: who finds it in `ripen` finds the ring filled.
        word.fetch_or(1 << (source % 64), Ordering::Release);
        let ops = self.ops.fetch_add(ops, Ordering::Relaxed) + ops;
        let enough = self.enough.fetch_min(enough, Ordering::Relaxed).min(enough);
        // Release pairs with the Acquire in `ripen`: who takes the time away finds the bit.
        let before = self.due.fetch_min(due, Ordering::Release);
        match ops >= enough {
            true => Added::Enough,
            false => Added::Waits {
                first: due < before,
            },
        }
    }

    /// When the first is due; [`NEVER`]: nothing lingers.
    #[inline]
    pub(crate) fn due(&self) -> u64 {
        self.due.load(Ordering::Relaxed)
    }
}

impl Lane {
    /// What lingers is ready now.
    #[cold]
    pub(crate) fn ripen(&self) {
        let lingering = &self.lingering;
        lingering.due.swap(NEVER, Ordering::Acquire);
        lingering.enough.store(u32::MAX, Ordering::Relaxed);
        lingering.ops.store(0, Ordering::Relaxed);
        // Who adds from now on sets the time again after its bit, whether the bit is seen below or not.
        fence(Ordering::SeqCst);
        for class in Class::ALL {
            for (word, bits) in lingering.sources[class.index()].iter().enumerate() {
                let mut bits = match bits.load(Ordering::Relaxed) {
                    0 => continue,
                    _ => bits.swap(0, Ordering::Acquire),
                };
                while bits != 0 {
                    let source = word * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    self.queue(class).mark_ready(source);
                }
            }
        }
    }

    /// Whether what lingers should go at `now`.
    pub(crate) fn is_ripe(&self, now: u64) -> bool {
        let due = self.lingering.due();
        due != NEVER && (due <= now || self.is_ready() || self.circuit.is_open())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpKind;
    use crate::lane::tests::RULES;
    use crate::pace::Pace;

    fn lane() -> Lane {
        let lane = Lane::new(OpKind::Lookup, 0, 4, 200, 1, Pace::off(), RULES);
        lane.open_source(130);
        lane
    }

    #[test]
    fn enough_is_the_least_that_one_of_them_asked_for() {
        let lane = lane();
        let add = |source, ops, enough| {
            let class = Class::Foreground;
            lane.lingering.add(class, source, ops, enough, 100)
        };
        assert_eq!(add(1, 3, 64), Added::Waits { first: true });
        assert_eq!(add(2, 1, 6), Added::Waits { first: false });
        assert_eq!(add(1, 1, 64), Added::Waits { first: false });
        assert_eq!(add(3, 1, 64), Added::Enough);
        lane.ripen();
        assert_eq!(add(1, 9, 64), Added::Waits { first: true }, "begun anew");
    }

    #[test]
    fn what_lingers_is_no_work_until_the_first_is_due_or_the_lane_has_other_work() {
        let lane = lane();
        let (fore, back) = (Class::Foreground, Class::Background);
        assert!(!lane.is_ripe(u64::MAX - 1), "nothing there");
        let first = Added::Waits { first: true };
        assert_eq!(lane.lingering.add(back, 130, 1, 9, 500), first);
        assert_eq!(lane.lingering.add(fore, 7, 1, 9, 300), first);
        let later = Added::Waits { first: false };
        assert_eq!(lane.lingering.add(fore, 64, 1, 9, 400), later);
        assert!(!lane.is_ready() && !lane.is_ripe(299) && lane.is_ripe(300));
        lane.queue(fore).mark_ready(9);
        assert!(lane.is_ripe(0), "goes along");
        lane.ripen();
        let words = |class: Class| [0, 1, 2].map(|word| lane.queue(class).ready_word(word));
        assert_eq!(words(fore), [1 << 7 | 1 << 9, 1, 0]);
        assert_eq!(words(back), [0, 0, 1 << 2]);
        assert!(!lane.is_ripe(u64::MAX - 1), "gone");
    }
}
