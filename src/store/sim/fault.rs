//! Which faults there are, and when they are due.

use crate::OpKind;
use crate::store::OptionError;

/// A fault that a sim injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Fault {
    /// One key's result became an error, after a good call: what was asked has happened.
    KeyError = 0,
    /// The call became an error; the wrapped store was not called.
    CallError = 1,
    /// The call returned one result too many or too few, after a good call.
    WrongCount = 2,
    /// One byte of one retrieved object was changed.
    Flipped = 3,
    /// One retrieve was reported as good, and its buffer left as it was before.
    Unwritten = 4,
    /// Two retrieved objects of equal length and unequal bytes were exchanged.
    Swapped = 5,
    /// The call panicked; the wrapped store was not called.
    Panic = 6,
}

impl Fault {
    /// All of them, in the order of their numbers.
    pub const ALL: [Fault; 7] = [
        Fault::KeyError,
        Fault::CallError,
        Fault::WrongCount,
        Fault::Flipped,
        Fault::Unwritten,
        Fault::Swapped,
        Fault::Panic,
    ];

    /// The fault's name: `key_error`, `call_error`, `wrong_count`, `flipped`, `unwritten`, `swapped`, `panic`.
    pub const fn name(self) -> &'static str {
        match self {
            Fault::KeyError => "key_error",
            Fault::CallError => "call_error",
            Fault::WrongCount => "wrong_count",
            Fault::Flipped => "flipped",
            Fault::Unwritten => "unwritten",
            Fault::Swapped => "swapped",
            Fault::Panic => "panic",
        }
    }
}

/// When a fault is due: in a share of the calls, in calls of chosen numbers, or both. Never by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct When {
    /// Share of the calls that it strikes, 0 to 1.
    pub rate: f64,
    /// Calls that it strikes by their number among **all** calls of the sim; the first is 1.
    pub calls: Vec<u64>,
    /// Calls that it strikes by their number among the calls of **their kind**; the first is 1. With one worker a kind
    /// these don't depend on how threads run.
    pub kind_calls: Vec<u64>,
    /// Only calls of this kind.
    pub only: Option<OpKind>,
}

impl When {
    /// In a share of the calls, 0 to 1.
    pub fn rate(rate: f64) -> Self {
        Self {
            rate,
            ..Self::default()
        }
    }

    /// In the calls with these numbers among all calls.
    pub fn calls(numbers: impl IntoIterator<Item = u64>) -> Self {
        Self {
            calls: numbers.into_iter().collect(),
            ..Self::default()
        }
    }

    /// In the calls of this kind with these numbers among them.
    pub fn calls_of(kind: OpKind, numbers: impl IntoIterator<Item = u64>) -> Self {
        Self {
            kind_calls: numbers.into_iter().collect(),
            only: Some(kind),
            ..Self::default()
        }
    }

    /// Only in calls of this kind.
    pub fn only(mut self, kind: OpKind) -> Self {
        self.only = Some(kind);
        self
    }

    /// Whether it is due in this call.
    pub(super) fn is_due(&self, dice: Dice, call: &CallId, fault: Fault) -> bool {
        self.names(call) || self.applies(call) && dice.of(call, fault).chance(self.rate)
    }

    /// Whether it is due in this call by its number.
    pub(super) fn names(&self, call: &CallId) -> bool {
        self.applies(call)
            && (self.calls.contains(&call.number) || self.kind_calls.contains(&call.of_kind))
    }

    /// Whether it can be due in calls of this kind.
    pub(super) fn applies(&self, call: &CallId) -> bool {
        self.only.is_none_or(|only| only == call.op)
    }

    /// `fields`: the full names of its fields, in their order.
    pub(super) fn validate(
        &self,
        fields: [&'static str; 4],
        bytes: bool,
    ) -> Result<(), OptionError> {
        let [rate, calls, kind_calls, only] = fields;
        if !(0.0..=1.0).contains(&self.rate) {
            let reason = format!("{}; must be 0 to 1", self.rate);
            return Err(OptionError::new(rate, reason));
        }
        for (field, numbers) in [(calls, &self.calls), (kind_calls, &self.kind_calls)] {
            if numbers.contains(&0) {
                return Err(OptionError::new(field, "0; calls are counted from 1"));
            }
        }
        match self.only {
            Some(kind) if bytes && kind != OpKind::Retrieve => {
                let reason = format!("{kind}; only a retrieve has bytes to spoil");
                Err(OptionError::new(only, reason))
            }
            _ => Ok(()),
        }
    }
}

/// Which call it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallId {
    pub(super) op: OpKind,
    /// Among all calls, from 1.
    pub(super) number: u64,
    /// Among those of its kind, from 1.
    pub(super) of_kind: u64,
}

/// Pseudo-random numbers: SplitMix64, whose every state gives a good stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The dice of one fault in one call: they depend on the seed and the call's number among its kind, not on
    /// what other threads do.
    pub(super) fn of(self, call: &CallId, fault: Fault) -> Dice {
        let mut dice = self;
        for part in [call.op as u64, call.of_kind, fault as u64] {
            dice.0 ^= part;
            dice.0 = dice.next();
        }
        dice
    }

    /// The same, after the throw that decided whether the fault is due: for what else is to be chosen.
    pub(super) fn choices(self, call: &CallId, fault: Fault) -> Dice {
        let mut dice = self.of(call, fault);
        dice.next();
        dice
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True in a share `rate` of all throws: never at 0, always at 1.
    pub(super) fn chance(&mut self, rate: f64) -> bool {
        // 53 bits, so that the quotient is exact and below 1.
        ((self.next() >> 11) as f64) / ((1u64 << 53) as f64) < rate
    }

    /// A number below `n`, which is not 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(op: OpKind, number: u64, of_kind: u64) -> CallId {
        CallId {
            op,
            number,
            of_kind,
        }
    }

    #[test]
    fn a_rate_strikes_its_share_and_the_seed_decides_where() {
        let when = When::rate(0.2);
        let struck = |seed, fault| -> Vec<u64> {
            let dice = Dice::new(seed);
            let due = |n: &u64| when.is_due(dice, &call(OpKind::Lookup, 9, *n), fault);
            (1..=10_000).filter(due).collect()
        };
        let a = struck(1, Fault::Panic);
        assert!((1_850..2_150).contains(&a.len()), "{}", a.len());
        assert_eq!(a, struck(1, Fault::Panic));
        assert_ne!(a, struck(2, Fault::Panic));
        assert_ne!(a, struck(1, Fault::WrongCount));
    }

    #[test]
    fn zero_never_strikes_and_one_always_does() {
        let dice = Dice::new(3);
        for n in 1..10_000 {
            let call = call(OpKind::Store, n, n);
            assert!(!When::rate(0.0).is_due(dice, &call, Fault::Panic));
            assert!(When::rate(1.0).is_due(dice, &call, Fault::Panic));
        }
    }

    #[test]
    fn numbers_count_all_calls_or_those_of_a_kind() {
        let dice = Dice::new(4);
        let due = |when: &When, op, number, of_kind| {
            when.is_due(dice, &call(op, number, of_kind), Fault::Panic)
        };
        let all = When::calls([5]);
        assert!(due(&all, OpKind::Lookup, 5, 1) && due(&all, OpKind::Store, 5, 2));
        assert!(!due(&all, OpKind::Lookup, 6, 5));
        let only = When::calls([5]).only(OpKind::Store);
        assert!(!due(&only, OpKind::Lookup, 5, 5) && due(&only, OpKind::Store, 5, 5));
        let of = When::calls_of(OpKind::Store, [2]);
        assert!(due(&of, OpKind::Store, 9, 2));
        assert!(!due(&of, OpKind::Store, 2, 1) && !due(&of, OpKind::Lookup, 9, 2));
    }

    #[test]
    fn below_reaches_every_number_and_no_other() {
        let mut dice = Dice::new(5);
        let mut seen = [0; 7];
        for _ in 0..7_000 {
            seen[dice.below(7)] += 1;
        }
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }
}
