//! Mooncake's result codes: their names, and the errors that they become.

use crate::{OpError, OpKind};

macro_rules! codes {
    ($($code:literal $name:ident $(=> $error:ident)?,)*) => {
        /// Each with its name and, where there is an error of that meaning, the error.
        const CODES: &[(i32, &str, Option<OpError>)] =
            &[$(($code, stringify!($name), codes!(@ $($error)?))),*];
    };
    (@ $error:ident) => { Some(OpError::$error) };
    (@) => { None };
}

// Names and numbers of `ErrorCode` in Mooncake's `types.h`. What is not here keeps its number, and so do the codes
// without an error: they speak of Mooncake's insides.
codes! {
    -1 INTERNAL_ERROR => StoreInternal,
    -10 BUFFER_OVERFLOW,
    -100 SHARD_INDEX_OUT_OF_RANGE,
    -101 SEGMENT_NOT_FOUND => NoSegment,
    -102 SEGMENT_ALREADY_EXISTS,
    -103 CLIENT_NOT_FOUND,
    -200 NO_AVAILABLE_HANDLE => NoSpace,
    -300 INVALID_VERSION,
    -400 INVALID_KEY => InvalidArgument,
    -500 WRITE_FAIL => TransferFailed,
    -600 INVALID_PARAMS => InvalidArgument,
    -601 ILLEGAL_CLIENT => IllegalClient,
    -700 INVALID_WRITE,
    -701 INVALID_READ,
    -702 INVALID_REPLICA,
    -703 REPLICA_IS_NOT_READY => NotReady,
    -704 OBJECT_NOT_FOUND => NotFound,
    -705 OBJECT_ALREADY_EXISTS => AlreadyExists,
    -706 OBJECT_HAS_LEASE => Leased,
    -707 LEASE_EXPIRED => LeaseExpired,
    -708 OBJECT_HAS_REPLICATION_TASK => Busy,
    -709 OBJECT_NO_REPLICATION_TASK,
    -710 REPLICA_NOT_FOUND,
    -711 REPLICA_ALREADY_EXISTS,
    -712 REPLICA_IS_GONE,
    -713 REPLICA_NOT_IN_LOCAL_MEMORY,
    -714 OBJECT_REPLICA_BUSY => Busy,
    -800 TRANSFER_FAIL => TransferFailed,
    -801 CHECKSUM_MISMATCH => ChecksumMismatch,
    -900 RPC_FAIL => RpcFailed,
    -901 RPC_TIMEOUT => RpcTimedOut,
    -1010 UNAVAILABLE_IN_CURRENT_STATUS => Unavailable,
    -1011 UNAVAILABLE_IN_CURRENT_MODE => Unavailable,
    -1012 NOT_SUPPORTED => Unsupported,
}

/// Mooncake's name of a result code, as `OBJECT_NOT_FOUND` for -704; `None`: not known here.
pub fn code_name(code: i32) -> Option<&'static str> {
    let (_, name, _) = CODES.iter().find(|(number, ..)| *number == code)?;
    Some(name)
}

/// A code with its name, for texts.
pub(super) fn named(code: i32) -> String {
    match code_name(code) {
        Some(name) => format!("{code} ({name})"),
        None => code.to_string(),
    }
}

/// The error of a code that is not 0: of a whole call, or of one key.
pub(super) fn error(code: i32) -> OpError {
    match CODES.iter().find(|(number, ..)| *number == code) {
        Some((_, _, Some(error))) => *error,
        _ => OpError::Store(code),
    }
}

/// The error of a negative result of one key.
///
/// For a retrieve -600 means that the object is longer than the buffer: its other causes (an empty key, lists of unequal
/// length, over rdma a buffer that is not registered) never get as far as here.
pub(super) fn error_of_key(op: OpKind, result: i64) -> OpError {
    match (op, i32::try_from(result)) {
        (OpKind::Retrieve, Ok(-600)) => OpError::ShortBuffer { object_len: None },
        // What no code can be: the library has not written it, or nonsense.
        (_, Err(_) | Ok(i32::MIN) | Ok(0..)) => OpError::BadResult,
        (_, Ok(code)) => error(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_that_was_measured_has_its_name_and_its_error() {
        use OpError::*;
        for (code, name, wanted) in [
            (-1, "INTERNAL_ERROR", StoreInternal),
            (-101, "SEGMENT_NOT_FOUND", NoSegment),
            (-200, "NO_AVAILABLE_HANDLE", NoSpace),
            (-600, "INVALID_PARAMS", InvalidArgument),
            (-601, "ILLEGAL_CLIENT", IllegalClient),
            (-703, "REPLICA_IS_NOT_READY", NotReady),
            (-704, "OBJECT_NOT_FOUND", NotFound),
            (-705, "OBJECT_ALREADY_EXISTS", AlreadyExists),
            (-706, "OBJECT_HAS_LEASE", Leased),
            (-707, "LEASE_EXPIRED", LeaseExpired),
            (-714, "OBJECT_REPLICA_BUSY", Busy),
            (-800, "TRANSFER_FAIL", TransferFailed),
            (-801, "CHECKSUM_MISMATCH", ChecksumMismatch),
            (-900, "RPC_FAIL", RpcFailed),
            (-901, "RPC_TIMEOUT", RpcTimedOut),
            (-1010, "UNAVAILABLE_IN_CURRENT_STATUS", Unavailable),
            (-1011, "UNAVAILABLE_IN_CURRENT_MODE", Unavailable),
            (-1012, "NOT_SUPPORTED", Unsupported),
        ] {
            assert_eq!(code_name(code), Some(name));
            assert_eq!(error(code), wanted, "{code}");
            for op in [OpKind::Lookup, OpKind::Store, OpKind::Delete] {
                assert_eq!(error_of_key(op, code.into()), wanted, "{op} {code}");
            }
        }
    }

    #[test]
    fn a_retrieve_tells_a_short_buffer_and_a_call_does_not() {
        let short = OpError::ShortBuffer { object_len: None };
        assert_eq!(error_of_key(OpKind::Retrieve, -600), short);
        assert_eq!(error_of_key(OpKind::Store, -600), OpError::InvalidArgument);
        assert_eq!(error_of_key(OpKind::Retrieve, -704), OpError::NotFound);
        assert_eq!(error(-600), OpError::InvalidArgument);
    }

    #[test]
    fn an_unknown_code_keeps_its_number() {
        for code in [-2, -1700, -999_999, 7] {
            assert_eq!(code_name(code), None);
            assert_eq!(error(code), OpError::Store(code));
            assert_eq!(named(code), code.to_string());
        }
        // Known to Mooncake, of no meaning to an op.
        assert_eq!(error(-712), OpError::Store(-712));
        assert_eq!(named(-712), "-712 (REPLICA_IS_GONE)");
    }

    #[test]
    fn what_no_code_can_be_is_a_bad_result() {
        for op in OpKind::ALL {
            for result in [i64::MIN, i64::from(i32::MIN), i64::from(i32::MIN) - 1] {
                assert_eq!(error_of_key(op, result), OpError::BadResult);
            }
        }
    }

    #[test]
    fn no_code_stands_twice() {
        let numbers: std::collections::HashSet<_> = CODES.iter().map(|c| c.0).collect();
        assert_eq!(numbers.len(), CODES.len());
    }
}
