//! Lingering: a pair's ops that may wait for a fuller call ([`PairOptions::linger`](crate::PairOptions::linger)).
//!
//! Such an op lies in its pair's ring like any other, but the pair's ready bit is not set: a bit of its own is, so that no worker sees it
//! as work, and an op that may not wait costs nothing more. The protocol, and who sleeps until when, is in [`moonring_rings::linger`].
//!
//! What lingers in a lane is made ready (`ripen`) at the begin of a round, if something else of the lane is ready, the oldest is due, the
//! engine is closing, or the circuit is open. So whatever makes a call of the lane takes it along. One idle worker of the group, the
//! **lingerer**, sleeps until the soonest is due; it is announced like any sleeper and can be woken for other work. Before a worker goes
//! into a call it wakes another if something lingers and there is no lingerer.

pub(crate) use moonring_rings::linger::Added;

use crate::Class;
use crate::inflight::NEVER;
use crate::lane::Lane;

/// What lingers in one lane, by class.
pub(crate) type Lingering = moonring_rings::linger::Lingering<2>;

/// What a pair's ops may wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linger {
    /// So many ops of a kind are enough.
    pub(crate) ops: u32,
    /// In ticks.
    pub(crate) budget: u64,
}

impl Lane {
    /// What lingers is ready now.
    #[cold]
    pub(crate) fn ripen(&self) {
        self.lingering.ripen(|class, source| {
            self.queue(Class::ALL[class]).mark_ready(source);
        });
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
            lane.lingering.add(class.index(), source, ops, enough, 100)
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
        assert_eq!(lane.lingering.add(back.index(), 130, 1, 9, 500), first);
        assert_eq!(lane.lingering.add(fore.index(), 7, 1, 9, 300), first);
        let later = Added::Waits { first: false };
        assert_eq!(lane.lingering.add(fore.index(), 64, 1, 9, 400), later);
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
