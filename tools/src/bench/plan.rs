//! What a bench does: its keys, its phases, and who does which op.
//!
//! A producer has `depth` **hands**. Each hand has one op in flight and keys of its own, so that no two ops of one key
//! are ever in flight, whatever the order of completions.

use moonring::{Done, OpKind, Slot, StoreOutcome};

use crate::cli::Failure;
use crate::content::{Content, POISON};

/// One pass of a producer's hands over their keys, or many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// All keys, again and again, with one op kind.
    Cycle(OpKind),
    /// Each key goes round store, lookup, retrieve, delete; neighbours are a step apart.
    CycleMixed,
    /// Each key once.
    Pass {
        /// The op kind.
        op: OpKind,
        /// Deletes also what is leased.
        force: bool,
    },
    /// Each key once that [`CycleMixed`](Phase::CycleMixed) begins with being there.
    SetUpMixed,
    /// Retrieves each key once and checks its bytes.
    Verify,
}

/// The steps of a key in [`Phase::CycleMixed`].
const MIXED: [OpKind; 4] = [
    OpKind::Store,
    OpKind::Lookup,
    OpKind::Retrieve,
    OpKind::Delete,
];

/// What a bench moves, the same for all producers.
#[derive(Clone, Copy, Debug)]
pub struct Values {
    /// Bytes of each.
    pub bytes: usize,
    /// Whether all keys have one value. Then slots are filled once, before the clock runs.
    pub one_for_all: bool,
}

impl Values {
    /// What the value of key `index` (over all producers) must be.
    pub fn content(self, index: u64) -> Content {
        Content::new(if self.one_for_all { 0 } else { index }, 0)
    }
}

/// What the ops of a producer came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ops that completed.
    pub ops: u64,
    /// Of those, the ones that did not do their work.
    pub failed: u64,
    /// Values that were moved, in bytes.
    pub bytes: u64,
    /// Values with wrong bytes, in [`Phase::Verify`].
    pub corrupt: u64,
    /// Ops of an open loop that were due when the time was over, and not started.
    pub unstarted: u64,
}

impl Counts {
    /// Adds another's.
    pub fn add(&mut self, other: Counts) {
        self.ops += other.ops;
        self.failed += other.failed;
        self.bytes += other.bytes;
        self.corrupt += other.corrupt;
        self.unstarted += other.unstarted;
    }
}

/// The keys of one producer.
#[derive(Debug)]
pub struct Keys {
    keys: Vec<Vec<u8>>,
    /// Number of the first among the keys of all producers.
    first: u64,
}

const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";

/// How many base 64 digits tell `keys` keys apart.
fn digits(keys: u64) -> usize {
    let mut digits = 1;
    while digits < 11 && (keys - 1) >> (6 * digits) != 0 {
        digits += 1;
    }
    digits
}

impl Keys {
    /// The keys of producer `producer` of `producers`: as much of the salt as there is room for, filling, the number.
    ///
    /// # Errors
    /// `key_bytes` is too short for so many keys.
    pub fn make(
        producer: u64,
        producers: u64,
        keys: u64,
        key_bytes: usize,
        salt: &str,
    ) -> Result<Self, Failure> {
        let digits = digits(keys);
        let Some(room) = key_bytes.checked_sub(digits) else {
            return Err(Failure::input(format!(
                "--key-bytes: {keys} different keys need at least {digits} bytes, have {key_bytes}"
            )));
        };
        let key = |index: u64| {
            let mut key: Vec<u8> = salt
                .bytes()
                .chain(std::iter::repeat(b'.'))
                .take(room)
                .collect();
            key.extend(
                (0..digits)
                    .rev()
                    .map(|d| DIGITS[(index >> (6 * d)) as usize % 64]),
            );
            key
        };
        let first = producer * keys / producers;
        let end = (producer + 1) * keys / producers;
        Ok(Self {
            keys: (first..end).map(key).collect(),
            first,
        })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// All of them, in order.
    pub fn all(&self) -> &[Vec<u8>] {
        &self.keys
    }

    /// Key `i` of this producer.
    pub fn get(&self, i: usize) -> &Vec<u8> {
        &self.keys[i]
    }
}

/// One op in flight and the keys that it goes through.
#[derive(Debug)]
pub struct Hand {
    number: usize,
    hands: usize,
    /// Where it is among its own keys, and how often it was through.
    at: usize,
    pass: usize,
    /// Its buffer, when no op has it; `None` also where the bench needs none.
    pub slot: Option<Slot>,
}

/// The next op of a hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What to do.
    pub op: OpKind,
    /// With which key.
    pub key: usize,
    /// For a delete: also if it is leased.
    pub force: bool,
}

impl Hand {
    /// Hand `number` of `hands`.
    pub fn new(number: usize, hands: usize, slot: Option<Slot>) -> Self {
        Self {
            number,
            hands,
            at: 0,
            pass: 0,
            slot,
        }
    }

    /// Begins a phase.
    pub fn begin(&mut self, values: Values) {
        (self.at, self.pass) = (0, 0);
        if let (true, Some(slot)) = (values.one_for_all, &mut self.slot) {
            values.content(0).fill(slot);
        }
    }

    /// The next op, and the slot made ready for it; `None`: the phase is over for this hand.
    pub fn next(&mut self, phase: Phase, keys: &Keys, values: Values) -> Option<Step> {
        loop {
            let mut key = self.number + self.at * self.hands;
            if key >= keys.len() {
                if !matches!(phase, Phase::Cycle(_) | Phase::CycleMixed) || self.at == 0 {
                    return None;
                }
                (self.at, self.pass) = (0, self.pass + 1);
                key = self.number;
            }
            let op = match phase {
                Phase::Cycle(op) | Phase::Pass { op, .. } => op,
                Phase::CycleMixed => MIXED[(key + self.pass) % 4],
                Phase::SetUpMixed if MIXED[key % 4] == OpKind::Store => {
                    self.at += 1;
                    continue;
                }
                Phase::SetUpMixed => OpKind::Store,
                Phase::Verify => OpKind::Retrieve,
            };
            if let Some(slot) = &mut self.slot {
                if phase == Phase::Verify {
                    slot.fill(POISON);
                } else if op == OpKind::Store && !values.one_for_all {
                    values.content(keys.first + key as u64).fill(slot);
                }
            }
            // In the mix the key has just been retrieved, and is leased.
            let force = match phase {
                Phase::Pass { force, .. } => force,
                _ => phase == Phase::CycleMixed,
            };
            return Some(Step { op, key, force });
        }
    }

    /// The step was accepted: the next one is another.
    pub fn advance(&mut self) {
        self.at += 1;
    }

    /// Counts how a step ended; the slot is back.
    pub fn ended<E>(
        &self,
        phase: Phase,
        step: Step,
        keys: &Keys,
        values: Values,
        result: Result<Done, E>,
        counts: &mut Counts,
    ) {
        let bytes = values.bytes as u64;
        counts.ops += 1;
        if phase == Phase::Verify
            && let Ok(Done::Retrieved(_)) = result
            && let Some(slot) = &self.slot
            && values
                .content(keys.first + step.key as u64)
                .check(slot)
                .is_err()
        {
            counts.corrupt += 1;
        }
        match result {
            Ok(Done::Present | Done::Deleted) => {}
            Ok(Done::Store(StoreOutcome::Stored | StoreOutcome::Accepted)) => counts.bytes += bytes,
            Ok(Done::Retrieved(len)) if len == bytes => counts.bytes += bytes,
            _ => counts.failed += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    const VALUES: Values = Values {
        bytes: 8,
        one_for_all: true,
    };

    const PASS: Phase = Phase::Pass {
        op: OpKind::Store,
        force: false,
    };

    fn keys(producer: u64, producers: u64, keys: u64) -> Keys {
        Keys::make(producer, producers, keys, 30, "salt").expect("good keys")
    }

    /// The first `n` steps of each of `hands` hands.
    fn steps(phase: Phase, keys: &Keys, hands: usize, n: usize) -> Vec<Step> {
        let mut hands: Vec<_> = (0..hands).map(|i| Hand::new(i, hands, None)).collect();
        let mut steps = Vec::new();
        for _ in 0..n {
            for hand in &mut hands {
                steps.extend(hand.next(phase, keys, VALUES));
                hand.advance();
            }
        }
        steps
    }

    #[test]
    fn keys_differ_over_all_producers_and_have_their_length() {
        for key_bytes in [2, 3, 10, 300] {
            let mut all = HashSet::new();
            for producer in 0..3 {
                let keys = Keys::make(producer, 3, 4096, key_bytes, "0123456789abcdef");
                let keys = keys.expect("long enough");
                assert!((1365..=1366).contains(&keys.len()));
                assert!(keys.keys.iter().all(|key| key.len() == key_bytes));
                all.extend(keys.keys);
            }
            assert_eq!(all.len(), 4096);
        }
    }

    #[test]
    fn keys_too_short_to_differ_are_refused() {
        assert!(Keys::make(0, 1, 64, 1, "s").is_ok());
        let refused = Keys::make(0, 1, 65, 1, "s").expect_err("too short");
        assert_eq!(
            refused.what,
            "--key-bytes: 65 different keys need at least 2 bytes, have 1"
        );
        assert_eq!(
            (digits(1), digits(4096), digits(4097), digits(u64::MAX)),
            (1, 2, 3, 11)
        );
    }

    #[test]
    fn a_pass_takes_each_key_once() {
        for (hands, n) in [(1, 10), (3, 4), (10, 1), (7, 2)] {
            let steps = steps(PASS, &keys(0, 1, 10), hands, n + 3);
            let seen: Vec<_> = steps.iter().map(|step| step.key).collect();
            assert_eq!(seen.len(), 10, "{hands} hands");
            assert_eq!(seen.iter().collect::<HashSet<_>>().len(), 10);
        }
    }

    #[test]
    fn hands_never_share_a_key() {
        let keys = keys(0, 1, 10);
        let mut owner = HashMap::new();
        for number in 0..3 {
            let mut hand = Hand::new(number, 3, None);
            for _ in 0..50 {
                let step = hand.next(Phase::Cycle(OpKind::Lookup), &keys, VALUES);
                let key = step.expect("no end").key;
                assert_eq!(*owner.entry(key).or_insert(number), number);
                hand.advance();
            }
        }
        assert_eq!(owner.len(), 10);
    }

    #[test]
    fn every_op_of_the_mix_finds_what_it_needs() {
        for (n, hands) in [(10, 3), (8, 4), (5, 5), (1, 1)] {
            let keys = keys(0, 1, n);
            let mut there: HashSet<_> = steps(Phase::SetUpMixed, &keys, hands, 10)
                .iter()
                .map(|step| step.key)
                .collect();
            let mut count = HashMap::new();
            for step in steps(Phase::CycleMixed, &keys, hands, 400) {
                *count.entry(step.op).or_insert(0) += 1;
                match step.op {
                    OpKind::Store => assert!(there.insert(step.key), "stored twice"),
                    OpKind::Lookup | OpKind::Retrieve => assert!(there.contains(&step.key)),
                    OpKind::Delete => assert!(step.force && there.remove(&step.key)),
                }
            }
            let (least, most) = (count.values().min(), count.values().max());
            assert!(count.len() == 4 && most.expect("some") - least.expect("some") <= 2 * n);
        }
    }

    #[test]
    fn what_did_no_work_has_failed() {
        let hand = Hand::new(0, 1, None);
        let keys = keys(0, 1, 1);
        let step = Step {
            op: OpKind::Lookup,
            key: 0,
            force: false,
        };
        let counts = |result: Result<Done, ()>| {
            let mut counts = Counts::default();
            let phase = Phase::Cycle(OpKind::Lookup);
            hand.ended(phase, step, &keys, VALUES, result, &mut counts);
            (counts.ops, counts.failed, counts.bytes)
        };
        for (result, want) in [
            (Ok(Done::Present), (1, 0, 0)),
            (Ok(Done::Absent), (1, 1, 0)),
            (Ok(Done::Retrieved(8)), (1, 0, 8)),
            (Ok(Done::Retrieved(7)), (1, 1, 0)),
            (Ok(Done::Store(StoreOutcome::Stored)), (1, 0, 8)),
            (Ok(Done::Store(StoreOutcome::Accepted)), (1, 0, 8)),
            (Ok(Done::Store(StoreOutcome::AlreadyThere)), (1, 1, 0)),
            (Ok(Done::Deleted), (1, 0, 0)),
            (Err(()), (1, 1, 0)),
        ] {
            assert_eq!(counts(result), want, "{result:?}");
        }
    }
}
