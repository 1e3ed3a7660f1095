//! How ops ended, as a dense list of codes: outcomes that went well, then the errors.

use crate::store::RawResult;
use crate::{OpError, OpKind, StoreOutcome};

/// Outcomes that went well, in the order of [`OUTCOMES`].
#[derive(Clone, Copy)]
enum Outcome {
    Present,
    Absent,
    Ok,
    Stored,
    AlreadyThere,
    Accepted,
}

const OUTCOMES: [&str; 6] = [
    "present",
    "absent",
    "ok",
    "stored",
    "already_there",
    "accepted",
];

/// How many codes there are.
pub(super) const CODES: usize = OUTCOMES.len() + OpError::NAMES.len();

/// All names that [`LaneStats::by_code`](super::LaneStats::by_code) can have, in its order.
///
/// What went well: `present` and `absent` of lookups; `ok` of retrieves and deletes; `stored`,
/// `already_there` and `accepted` of stores. Then the errors' names, [`OpError::NAMES`].
pub const CODE_NAMES: [&str; CODES] = {
    let mut names = [""; CODES];
    let mut i = 0;
    while i < CODES {
        names[i] = if i < OUTCOMES.len() {
            OUTCOMES[i]
        } else {
            OpError::NAMES[i - OUTCOMES.len()]
        };
        i += 1;
    }
    names
};

/// Index in [`CODE_NAMES`].
#[inline(always)]
pub(super) const fn code_of(op: OpKind, result: &RawResult) -> usize {
    match result {
        // A table: what ends well is counted with each op.
        Ok(raw) => {
            let last = RAWS as u64 - 1;
            let raw = if *raw < last { *raw } else { last };
            OK_CODES[op.index()][raw as usize] as usize
        }
        Err(e) => code_of_error(e),
    }
}

#[inline(never)]
const fn code_of_error(error: &OpError) -> usize {
    OUTCOMES.len() + error.code()
}

/// No wildcard: a new outcome or op kind doesn't compile without its code.
const fn outcome_of(op: OpKind, raw: u64) -> Outcome {
    match (op, raw) {
        (OpKind::Lookup, 0) => Outcome::Absent,
        (OpKind::Lookup, _) => Outcome::Present,
        (OpKind::Retrieve | OpKind::Delete, _) => Outcome::Ok,
        (OpKind::Store, raw) => match StoreOutcome::from_raw(raw) {
            StoreOutcome::Stored => Outcome::Stored,
            StoreOutcome::AlreadyThere => Outcome::AlreadyThere,
            StoreOutcome::Accepted => Outcome::Accepted,
        },
    }
}

/// Values that are told apart: 0, 1, and 2, with what lengths are above.
const RAWS: usize = 3;

/// Codes by op kind and value.
const OK_CODES: [[u8; RAWS]; 4] = {
    let mut codes = [[0; RAWS]; 4];
    let (mut op, mut raw) = (0, 0);
    while op < codes.len() {
        codes[op][raw] = outcome_of(OpKind::ALL[op], raw as u64) as u8;
        raw += 1;
        if raw == RAWS {
            (op, raw) = (op + 1, 0);
        }
    }
    codes
};

#[cfg(test)]
mod tests {
    use super::*;

    fn name(op: OpKind, result: RawResult) -> &'static str {
        CODE_NAMES[code_of(op, &result)]
    }

    #[test]
    fn outcomes_are_named_by_op_kind() {
        assert_eq!(name(OpKind::Lookup, Ok(1)), "present");
        assert_eq!(name(OpKind::Lookup, Ok(0)), "absent");
        // A retrieve's value is a length, also of 0, 1 and 2.
        for len in [0, 1, 2, u64::MAX] {
            assert_eq!(name(OpKind::Retrieve, Ok(len)), "ok");
        }
        assert_eq!(name(OpKind::Delete, Ok(0)), "ok");
        for (outcome, expected) in [
            (StoreOutcome::Stored, "stored"),
            (StoreOutcome::AlreadyThere, "already_there"),
            (StoreOutcome::Accepted, "accepted"),
        ] {
            assert_eq!(name(OpKind::Store, Ok(outcome.to_raw())), expected);
        }
    }

    #[test]
    fn errors_are_named_alike_for_all_op_kinds() {
        for op in OpKind::ALL {
            for error in [
                OpError::NotFound,
                OpError::StorePanicked,
                OpError::TimedOut { started: false },
                OpError::TimedOut { started: true },
                OpError::ShutDown,
                OpError::Store(-7),
            ] {
                assert_eq!(name(op, Err(error)), error.name());
            }
        }
    }

    #[test]
    fn no_name_stands_twice() {
        let names: std::collections::HashSet<_> = CODE_NAMES.iter().collect();
        assert_eq!(names.len(), CODES);
        assert!(!names.contains(&""));
    }
}
