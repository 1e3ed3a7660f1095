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

/// Index in [`CODE_NAMES`]. No wildcard: a new outcome or op kind doesn't compile without its code.
#[inline]
pub(super) const fn code_of(op: OpKind, result: &RawResult) -> usize {
    let outcome = match (op, result) {
        (_, Err(e)) => return OUTCOMES.len() + e.code(),
        (OpKind::Lookup, Ok(0)) => Outcome::Absent,
        (OpKind::Lookup, Ok(_)) => Outcome::Present,
        (OpKind::Retrieve | OpKind::Delete, Ok(_)) => Outcome::Ok,
        (OpKind::Store, Ok(raw)) => match StoreOutcome::from_raw(*raw) {
            StoreOutcome::Stored => Outcome::Stored,
            StoreOutcome::AlreadyThere => Outcome::AlreadyThere,
            StoreOutcome::Accepted => Outcome::Accepted,
        },
    };
    outcome as usize
}

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
