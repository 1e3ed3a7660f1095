//! Failing fast: what a lane does while its calls keep failing, or hang.
//!
//! ```text
//!            5 calls in a row fail in transport,
//!            or half of the workers are in overdue calls
//!   CLOSED ─────────────────────────────────────────────▶ OPEN ──┐ every half second, with jitter:
//!      ▲                                                   ▲  │  │ a probe, one op of what comes
//!      │     a call reaches the store, and few hang         │  │  │
//!      └───────────────────────────────────────────────────┼──┘  │
//!                                                          └─────┘ it fails
//! ```
//! While it is open, no call is made but the probe: lookups are answered *unknown* at once, and so is what was queued; new retrieves,
//! stores and deletes are refused. A probe is an op of the caller's, so an idle engine makes no calls, and its circuits
//! stay open until the next op comes.
//!
//! A call is **overdue** when the time of one of its ops was up before it returned. After such a call the lane takes half as
//! many keys at a time, until its calls are in time again: then twice as many with each.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use crate::store::RawResult;
use crate::{OpError, Unavailable};

const CLOSED: u8 = 0;
const FAILING: u8 = 1;
const OVERDUE: u8 = 2;

/// How a call went, by its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The store answered for at least one key, be it that it is not there.
    Answered,
    /// Every key failed, not all in transport: as where there is no space.
    Failed,
    /// Every key failed on the way.
    Unreachable,
}

impl Outcome {
    /// Of results that are not none.
    #[inline]
    pub(crate) fn of<'a>(results: impl Iterator<Item = &'a RawResult> + Clone) -> Self {
        match results.clone().next() {
            // Mostly.
            Some(Ok(_)) => Outcome::Answered,
            _ => Self::of_all(results),
        }
    }

    #[cold]
    fn of_all<'a>(mut results: impl Iterator<Item = &'a RawResult> + Clone) -> Self {
        match results.clone().any(is_answer) {
            true => Outcome::Answered,
            false if results.all(is_transport) => Outcome::Unreachable,
            false => Outcome::Failed,
        }
    }
}

fn is_answer(result: &RawResult) -> bool {
    match result {
        Ok(_) => true,
        Err(error) => matches!(
            error,
            OpError::NotFound
                | OpError::Leased
                | OpError::ShortBuffer { .. }
                | OpError::LengthMismatch { .. }
                | OpError::NotReady
                | OpError::Busy
                | OpError::AlreadyExists
        ),
    }
}

fn is_transport(result: &RawResult) -> bool {
    matches!(
        result,
        Err(OpError::RpcFailed
            | OpError::RpcTimedOut
            | OpError::TransferFailed
            | OpError::Unavailable)
    )
}

/// The knobs, in ticks where they are times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailFast {
    /// Calls in a row that open a circuit; 0: no circuit is ever opened, and no batch bound halved.
    pub(crate) after: u32,
    /// Time between probes.
    pub(crate) pause: u64,
    /// Most keys of a call.
    pub(crate) max_batch: usize,
    /// Overdue calls that open a circuit.
    pub(crate) overdue: u32,
}

/// One lane's. Relaxed throughout: hints, each right by itself; what depends on an op is ordered by its own word.
pub(crate) struct Circuit {
    rules: FailFast,
    state: AtomicU8,
    /// Most keys of the next call.
    bound: AtomicUsize,
    /// Calls in a row without an answer, and those of them that failed on the way.
    failed: AtomicU32,
    unreachable: AtomicU32,
    /// Calls that are overdue now.
    overdue: AtomicU32,
    probe_at: AtomicU64,
    probing: AtomicBool,
    opened: AtomicU64,
    /// Calls that were answered; only whether there were any matters.
    answered: AtomicBool,
}

/// What a worker may do with what it takes from a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    /// Call the store, with so many keys at most.
    Call(usize),
    /// Call it with one key; tell [`Circuit::after_call`].
    Probe,
    /// No call: the ops end as unavailable.
    Answer,
}

impl Circuit {
    pub(crate) fn new(rules: FailFast) -> Self {
        Self {
            state: AtomicU8::new(CLOSED),
            bound: AtomicUsize::new(rules.max_batch),
            rules,
            failed: AtomicU32::new(0),
            unreachable: AtomicU32::new(0),
            overdue: AtomicU32::new(0),
            probe_at: AtomicU64::new(0),
            probing: AtomicBool::new(false),
            opened: AtomicU64::new(0),
            answered: AtomicBool::new(false),
        }
    }

    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::Relaxed) != CLOSED
    }

    /// Why an op that is submitted now is refused, if it is: a probe that is due lets it in.
    #[cold]
    pub(crate) fn refuses(&self, now: u64) -> Option<Unavailable> {
        if !self.probing.load(Ordering::Relaxed) && now >= self.probe_at.load(Ordering::Relaxed) {
            return None;
        }
        match self.state.load(Ordering::Relaxed) {
            CLOSED => None,
            FAILING => Some(Unavailable::Failing),
            _ => Some(Unavailable::Overdue),
        }
    }

    /// What may be done with what a worker is about to take. A `spare` one makes no calls.
    #[inline]
    pub(crate) fn permit(&self, spare: bool, now: impl FnOnce() -> u64) -> Permit {
        if !spare && !self.is_open() {
            return Permit::Call(self.bound.load(Ordering::Relaxed));
        }
        self.permit_open(spare, now())
    }

    /// Whether a worker that makes calls may [call](Self::usual) with as many keys as ever.
    #[inline(always)]
    pub(crate) fn is_usual(&self) -> bool {
        !self.is_open() && self.bound.load(Ordering::Relaxed) == self.rules.max_batch
    }

    /// What may be done then.
    #[inline(always)]
    pub(crate) fn usual(&self) -> Permit {
        Permit::Call(self.rules.max_batch)
    }

    #[cold]
    fn permit_open(&self, spare: bool, now: u64) -> Permit {
        let due = now >= self.probe_at.load(Ordering::Relaxed);
        if spare && due {
            // It came to nothing: the next is let in after the pause, and not all that come until then.
            self.set_probe(now);
        }
        // Others see the flag, so one probe goes on at a time.
        if spare || !due || self.probing.swap(true, Ordering::Relaxed) {
            return Permit::Answer;
        }
        Permit::Probe
    }

    /// Nothing was there to probe with.
    pub(crate) fn give_back_probe(&self) {
        self.probing.store(false, Ordering::Relaxed);
    }

    /// A call has returned. `overdue`: the time of one of its ops was up before.
    #[inline(always)]
    pub(crate) fn after_call(
        &self,
        outcome: Outcome,
        permit: Permit,
        overdue: bool,
        now: impl FnOnce() -> u64,
    ) {
        let untroubled = outcome == Outcome::Answered
            && !overdue
            && permit == Permit::Call(self.rules.max_batch)
            && self.failed.load(Ordering::Relaxed) == 0
            && !self.is_open();
        if untroubled {
            if !self.answered.load(Ordering::Relaxed) {
                self.answered.store(true, Ordering::Relaxed);
            }
            return;
        }
        self.after_troubled_call(outcome, permit, overdue, now());
    }

    #[cold]
    fn after_troubled_call(&self, outcome: Outcome, permit: Permit, overdue: bool, now: u64) {
        if self.rules.after > 0 {
            // Two workers at once may halve or double it once: it comes to the same soon.
            let bound = self.bound.load(Ordering::Relaxed);
            let next = match overdue {
                true => (bound / 2).max(1),
                false => (bound * 2).min(self.rules.max_batch),
            };
            self.bound.store(next, Ordering::Relaxed);
        }
        match outcome {
            Outcome::Answered => {
                self.failed.store(0, Ordering::Relaxed);
                self.unreachable.store(0, Ordering::Relaxed);
                self.answered.store(true, Ordering::Relaxed);
                self.close(now);
            }
            Outcome::Failed => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                self.unreachable.store(0, Ordering::Relaxed);
                // The store is there, and its callers are to hear what it says: that it is full, perhaps.
                self.close(now);
            }
            Outcome::Unreachable => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                let n = self.unreachable.fetch_add(1, Ordering::Relaxed) + 1;
                if self.rules.after > 0 && n >= self.rules.after {
                    self.open(FAILING, now);
                }
            }
        }
        if permit == Permit::Probe {
            self.set_probe(now);
            self.give_back_probe();
        }
    }

    fn open(&self, why: u8, now: u64) {
        if self.state.swap(why, Ordering::Relaxed) == CLOSED {
            self.opened.fetch_add(1, Ordering::Relaxed);
            self.set_probe(now);
        }
    }

    /// Closes it, unless too many calls hang.
    fn close(&self, now: u64) {
        let too_many = || self.overdue.load(Ordering::Relaxed) >= self.rules.overdue;
        if too_many() {
            return;
        }
        self.state.store(CLOSED, Ordering::Relaxed);
        // Pairs with the fence in `add_overdue`: it opens after this, or its call is counted here.
        fence(Ordering::SeqCst);
        if self.rules.after > 0 && too_many() {
            self.open(OVERDUE, now);
        }
    }

    /// The next probe comes after the pause, a quarter more or less.
    fn set_probe(&self, now: u64) {
        // Low bits of a clock are as good as a random number here.
        let jitter = now.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let half = self.rules.pause / 2;
        let pause = self.rules.pause - half / 2 + half.saturating_mul(jitter >> 16) / 0x1_0000;
        self.probe_at
            .store(now.saturating_add(pause), Ordering::Relaxed);
    }

    /// One more call is overdue. Under the quarantine's lock, as its counterpart.
    pub(crate) fn add_overdue(&self, now: u64) {
        let n = self.overdue.fetch_add(1, Ordering::Relaxed) + 1;
        // Pairs with the fence in `close`.
        fence(Ordering::SeqCst);
        if self.rules.after > 0 && n >= self.rules.overdue {
            self.open(OVERDUE, now);
        }
    }

    /// An overdue call has returned; before [`after_call`](Self::after_call).
    pub(crate) fn remove_overdue(&self) {
        self.overdue.fetch_sub(1, Ordering::Relaxed);
    }

    /// Calls that are overdue now.
    #[inline]
    pub(crate) fn overdue(&self) -> u32 {
        self.overdue.load(Ordering::Relaxed)
    }

    /// For the engine's health.
    pub(crate) fn look(&self, queued: usize) -> LaneHealth {
        LaneHealth {
            open: match self.state.load(Ordering::Relaxed) {
                CLOSED => None,
                FAILING => Some(Unavailable::Failing),
                _ => Some(Unavailable::Overdue),
            },
            failed_calls: self.failed.load(Ordering::Relaxed),
            overdue_calls: self.overdue.load(Ordering::Relaxed),
            batch_bound: self.bound.load(Ordering::Relaxed),
            opened: self.opened.load(Ordering::Relaxed),
            in_use: self.answered.load(Ordering::Relaxed)
                || self.failed.load(Ordering::Relaxed) > 0,
            queued,
        }
    }
}

/// How one lane does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneHealth {
    /// Its circuit is open, and why: no calls are made but probes.
    pub open: Option<Unavailable>,
    /// Calls in a row in which every key failed.
    pub failed_calls: u32,
    /// Calls that have not returned though the time of an op of theirs is up.
    pub overdue_calls: u32,
    /// Most keys that its next call takes: `max_batch`, or less after overdue calls.
    pub batch_bound: usize,
    /// How often its circuit was opened.
    pub opened: u64,
    /// It has made calls.
    pub in_use: bool,
    /// Entries that wait in its rings, now: ops, and those that ended there before a worker came. 0 in a forked child.
    pub queued: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: FailFast = FailFast {
        after: 3,
        pause: 1000,
        max_batch: 64,
        overdue: 2,
    };

    fn call(circuit: &Circuit, outcome: Outcome, overdue: bool, now: u64) -> Permit {
        let permit = circuit.permit(false, || now);
        if permit != Permit::Answer {
            circuit.after_call(outcome, permit, overdue, || now);
        }
        permit
    }

    #[test]
    fn calls_that_fail_on_the_way_open_it_and_a_probe_that_is_answered_closes_it() {
        let circuit = Circuit::new(RULES);
        for now in 0..2 {
            call(&circuit, Outcome::Unreachable, false, now);
        }
        // One that only fails begins the count anew.
        call(&circuit, Outcome::Failed, false, 2);
        for now in 3..5 {
            call(&circuit, Outcome::Unreachable, false, now);
            assert!(!circuit.is_open());
        }
        assert_eq!(
            call(&circuit, Outcome::Unreachable, false, 5),
            Permit::Call(64)
        );
        assert_eq!(circuit.refuses(700), Some(Unavailable::Failing));
        assert_eq!(circuit.permit(false, || 700), Permit::Answer);
        // Due after at most a pause and a quarter; one at a time.
        assert_eq!(circuit.refuses(1300), None);
        assert_eq!(circuit.permit(false, || 1300), Permit::Probe);
        assert_eq!(circuit.refuses(1300), Some(Unavailable::Failing));
        assert_eq!(circuit.permit(false, || 1300), Permit::Answer);
        circuit.after_call(Outcome::Unreachable, Permit::Probe, false, || 1300);
        assert_eq!(circuit.permit(false, || 1301), Permit::Answer);
        assert_eq!(
            call(&circuit, Outcome::Answered, false, 3000),
            Permit::Probe
        );
        assert!(!circuit.is_open() && circuit.refuses(3001).is_none());
        assert_eq!(circuit.look(0).opened, 1);
        // So does one that fails, but not on the way.
        for now in 4000..4003 {
            call(&circuit, Outcome::Unreachable, false, now);
        }
        assert!(circuit.is_open());
        assert_eq!(call(&circuit, Outcome::Failed, false, 6000), Permit::Probe);
        assert!(!circuit.is_open());
    }

    #[test]
    fn hanging_calls_open_it_until_enough_have_returned() {
        let circuit = Circuit::new(RULES);
        circuit.add_overdue(1);
        assert!(!circuit.is_open());
        circuit.add_overdue(2);
        assert_eq!(circuit.refuses(3), Some(Unavailable::Overdue));
        circuit.remove_overdue();
        circuit.after_call(Outcome::Answered, Permit::Call(64), true, || 4);
        assert!(!circuit.is_open());
        assert_eq!(circuit.look(0).batch_bound, 32);
    }

    #[test]
    fn a_spare_makes_no_probe_and_puts_it_off() {
        let circuit = Circuit::new(RULES);
        circuit.add_overdue(1);
        circuit.add_overdue(1);
        assert_eq!(circuit.refuses(2000), None);
        assert_eq!(circuit.permit(true, || 2000), Permit::Answer);
        assert_eq!(circuit.refuses(2001), Some(Unavailable::Overdue));
        assert_eq!(circuit.refuses(3300), None);
        assert_eq!(circuit.permit(false, || 3300), Permit::Probe);
    }

    #[test]
    fn the_batch_bound_halves_with_each_overdue_call_and_doubles_with_each_in_time() {
        let circuit = Circuit::new(RULES);
        let bound = |overdue| {
            call(&circuit, Outcome::Answered, overdue, 0);
            circuit.look(0).batch_bound
        };
        assert_eq!([true; 8].map(bound), [32, 16, 8, 4, 2, 1, 1, 1]);
        assert_eq!([false; 7].map(bound), [2, 4, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn switched_off_it_never_opens_and_never_bounds() {
        let circuit = Circuit::new(FailFast { after: 0, ..RULES });
        for now in 0..100 {
            call(&circuit, Outcome::Unreachable, true, now);
            circuit.add_overdue(now);
        }
        assert_eq!(circuit.permit(false, || 0), Permit::Call(64));
        assert_eq!(circuit.look(0).failed_calls, 100);
    }

    #[test]
    fn a_call_is_answered_by_one_key_and_unreachable_by_all() {
        let of = |results: &[RawResult]| Outcome::of(results.iter());
        let (lost, full) = (Err(OpError::RpcFailed), Err(OpError::NoSpace));
        assert_eq!(of(&[lost, Err(OpError::NotFound)]), Outcome::Answered);
        assert_eq!(of(&[lost, full]), Outcome::Failed);
        assert_eq!(
            of(&[lost, Err(OpError::TransferFailed)]),
            Outcome::Unreachable
        );
    }
}
