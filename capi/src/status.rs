//! Numbers for what can go wrong, that stay what they are.

use std::ffi::CStr;

use moonring::{OpError, PairError, ShutdownError, SubmitError, WaitError};

use moonring_status::*;

/// How a call or an op ended. 0 is well; each number keeps its meaning, and new ones may come.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum moonring_status {
    /// It went well.
    MOONRING_OK = 0,
    /// A pointer is NULL, or a number out of its range.
    MOONRING_BAD_ARGUMENT = -1,
    /// The configuration was refused.
    MOONRING_BAD_CONFIG = -2,
    /// The store could not be opened.
    MOONRING_OPEN_FAILED = -3,
    /// The engine could not be started.
    MOONRING_START_FAILED = -4,
    /// The system refused something; the text says what.
    MOONRING_SYSTEM = -5,
    /// No credit is left: reap completions first.
    MOONRING_NO_CREDIT = -10,
    /// The ring of this kind is full for the moment.
    MOONRING_RING_FULL = -11,
    /// The op was refused for its key, its buffer, or its length.
    MOONRING_BAD_OP = -12,
    /// The time given to wait was up.
    MOONRING_WAIT_TIMED_OUT = -13,
    /// The call would wait for itself.
    MOONRING_WOULD_DEADLOCK = -14,
    /// The engine is shut down.
    MOONRING_SHUT_DOWN = -15,
    /// This is a forked child: the engine is its parent's.
    MOONRING_FORKED = -16,
    /// A bug of Moonring's: it panicked.
    MOONRING_PANICKED = -17,
    /// No object has this key.
    MOONRING_NOT_FOUND = -100,
    /// The object has a read lease.
    MOONRING_LEASED = -101,
    /// The store has no space left.
    MOONRING_NO_SPACE = -102,
    /// The object is longer than the buffer.
    MOONRING_SHORT_BUFFER = -103,
    /// An exact retrieve found another length.
    MOONRING_LENGTH_MISMATCH = -104,
    /// The lease ended during the transfer.
    MOONRING_LEASE_EXPIRED = -105,
    /// The object is being written.
    MOONRING_NOT_READY = -106,
    /// The object is in use by another operation of the store.
    MOONRING_BUSY = -107,
    /// The object is there already, where a store reports that as an error.
    MOONRING_ALREADY_EXISTS = -108,
    /// The store refused the arguments.
    MOONRING_INVALID_ARGUMENT = -109,
    /// The store does not let this client do it.
    MOONRING_ILLEGAL_CLIENT = -110,
    /// No storage segment is mounted.
    MOONRING_NO_SEGMENT = -111,
    /// The transfer failed.
    MOONRING_TRANSFER_FAILED = -112,
    /// The bytes arrived damaged.
    MOONRING_CHECKSUM_MISMATCH = -113,
    /// The call to the store's master failed.
    MOONRING_RPC_FAILED = -114,
    /// The call to the store's master timed out.
    MOONRING_RPC_TIMED_OUT = -115,
    /// The store can't serve this now.
    MOONRING_UNAVAILABLE = -116,
    /// The store does not offer this.
    MOONRING_UNSUPPORTED = -117,
    /// The store reported an internal error.
    MOONRING_STORE_INTERNAL = -118,
    /// The store panicked during the call.
    MOONRING_STORE_PANICKED = -119,
    /// The store returned a wrong number of results.
    MOONRING_WRONG_RESULT_COUNT = -120,
    /// The store gave no or an impossible result.
    MOONRING_BAD_RESULT = -121,
    /// The time was up before a store call took the op.
    MOONRING_TIMED_OUT_NEVER_STARTED = -122,
    /// The time was up during the store call.
    MOONRING_TIMED_OUT_IN_PROGRESS = -123,
    /// Cancelled before a store call took the op.
    MOONRING_CANCELLED_NEVER_STARTED = -124,
    /// Cancelled during the store call.
    MOONRING_CANCELLED_IN_PROGRESS = -125,
    /// A code of the store that this version doesn't know; it is the completion's `value`.
    MOONRING_STORE_CODE = -126,
    /// Something that this version of the interface has no number for.
    MOONRING_OTHER = -199,
}

/// All of them with their names: what is missing here has a `match` that does not compile.
macro_rules! names {
    ($($status:ident $name:literal,)*) => {
        impl moonring_status {
            #[cfg(test)]
            const ALL: &'static [Self] = &[$($status,)*];

            fn name(self) -> &'static CStr {
                match self {
                    $($status => $name,)*
                }
            }

            /// The name of a number.
            pub(crate) fn name_of(number: i32) -> &'static CStr {
                let statuses = [$($status,)*];
                let found = statuses.into_iter().find(|&status| status as i32 == number);
                found.map_or(c"unknown", Self::name)
            }
        }
    };
}

names! {
    MOONRING_OK c"ok",
    MOONRING_BAD_ARGUMENT c"bad_argument",
    MOONRING_BAD_CONFIG c"bad_config",
    MOONRING_OPEN_FAILED c"open_failed",
    MOONRING_START_FAILED c"start_failed",
    MOONRING_SYSTEM c"system",
    MOONRING_NO_CREDIT c"no_credit",
    MOONRING_RING_FULL c"ring_full",
    MOONRING_BAD_OP c"bad_op",
    MOONRING_WAIT_TIMED_OUT c"wait_timed_out",
    MOONRING_WOULD_DEADLOCK c"would_deadlock",
    MOONRING_SHUT_DOWN c"shut_down",
    MOONRING_FORKED c"forked",
    MOONRING_PANICKED c"panicked",
    MOONRING_NOT_FOUND c"not_found",
    MOONRING_LEASED c"leased",
    MOONRING_NO_SPACE c"no_space",
    MOONRING_SHORT_BUFFER c"short_buffer",
    MOONRING_LENGTH_MISMATCH c"length_mismatch",
    MOONRING_LEASE_EXPIRED c"lease_expired",
    MOONRING_NOT_READY c"not_ready",
    MOONRING_BUSY c"busy",
    MOONRING_ALREADY_EXISTS c"already_exists",
    MOONRING_INVALID_ARGUMENT c"invalid_argument",
    MOONRING_ILLEGAL_CLIENT c"illegal_client",
    MOONRING_NO_SEGMENT c"no_segment",
    MOONRING_TRANSFER_FAILED c"transfer_failed",
    MOONRING_CHECKSUM_MISMATCH c"checksum_mismatch",
    MOONRING_RPC_FAILED c"rpc_failed",
    MOONRING_RPC_TIMED_OUT c"rpc_timed_out",
    MOONRING_UNAVAILABLE c"unavailable",
    MOONRING_UNSUPPORTED c"unsupported",
    MOONRING_STORE_INTERNAL c"store_internal",
    MOONRING_STORE_PANICKED c"store_panicked",
    MOONRING_WRONG_RESULT_COUNT c"wrong_result_count",
    MOONRING_BAD_RESULT c"bad_result",
    MOONRING_TIMED_OUT_NEVER_STARTED c"timed_out_never_started",
    MOONRING_TIMED_OUT_IN_PROGRESS c"timed_out_in_progress",
    MOONRING_CANCELLED_NEVER_STARTED c"cancelled_never_started",
    MOONRING_CANCELLED_IN_PROGRESS c"cancelled_in_progress",
    MOONRING_STORE_CODE c"store_code",
    MOONRING_OTHER c"other",
}

impl From<OpError> for moonring_status {
    fn from(error: OpError) -> Self {
        match error {
            OpError::NotFound => MOONRING_NOT_FOUND,
            OpError::Leased => MOONRING_LEASED,
            OpError::NoSpace => MOONRING_NO_SPACE,
            OpError::ShortBuffer { .. } => MOONRING_SHORT_BUFFER,
            OpError::LengthMismatch { .. } => MOONRING_LENGTH_MISMATCH,
            OpError::LeaseExpired => MOONRING_LEASE_EXPIRED,
            OpError::NotReady => MOONRING_NOT_READY,
            OpError::Busy => MOONRING_BUSY,
            OpError::AlreadyExists => MOONRING_ALREADY_EXISTS,
            OpError::InvalidArgument => MOONRING_INVALID_ARGUMENT,
            OpError::IllegalClient => MOONRING_ILLEGAL_CLIENT,
            OpError::NoSegment => MOONRING_NO_SEGMENT,
            OpError::TransferFailed => MOONRING_TRANSFER_FAILED,
            OpError::ChecksumMismatch => MOONRING_CHECKSUM_MISMATCH,
            OpError::RpcFailed => MOONRING_RPC_FAILED,
            OpError::RpcTimedOut => MOONRING_RPC_TIMED_OUT,
            OpError::Unavailable => MOONRING_UNAVAILABLE,
            OpError::Unsupported => MOONRING_UNSUPPORTED,
            OpError::StoreInternal => MOONRING_STORE_INTERNAL,
            OpError::StorePanicked => MOONRING_STORE_PANICKED,
            OpError::WrongResultCount => MOONRING_WRONG_RESULT_COUNT,
            OpError::BadResult => MOONRING_BAD_RESULT,
            OpError::TimedOut { started: false } => MOONRING_TIMED_OUT_NEVER_STARTED,
            OpError::TimedOut { started: true } => MOONRING_TIMED_OUT_IN_PROGRESS,
            OpError::Cancelled { started: false } => MOONRING_CANCELLED_NEVER_STARTED,
            OpError::Cancelled { started: true } => MOONRING_CANCELLED_IN_PROGRESS,
            OpError::ShutDown => MOONRING_SHUT_DOWN,
            OpError::Forked => MOONRING_FORKED,
            OpError::Store(_) => MOONRING_STORE_CODE,
            _ => MOONRING_OTHER,
        }
    }
}

impl From<SubmitError> for moonring_status {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::NoCredit { .. } => MOONRING_NO_CREDIT,
            SubmitError::RingFull { .. } => MOONRING_RING_FULL,
            SubmitError::ShutDown => MOONRING_SHUT_DOWN,
            SubmitError::Forked => MOONRING_FORKED,
            SubmitError::Unavailable { .. } => MOONRING_UNAVAILABLE,
            _ => MOONRING_BAD_OP,
        }
    }
}

impl From<PairError> for moonring_status {
    fn from(error: PairError) -> Self {
        match error {
            PairError::ShutDown => MOONRING_SHUT_DOWN,
            PairError::Forked => MOONRING_FORKED,
            _ => MOONRING_BAD_ARGUMENT,
        }
    }
}

impl From<WaitError> for moonring_status {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::TimedOut => MOONRING_WAIT_TIMED_OUT,
            WaitError::ShutDown => MOONRING_SHUT_DOWN,
            WaitError::Forked => MOONRING_FORKED,
            _ => MOONRING_OTHER,
        }
    }
}

impl From<ShutdownError> for moonring_status {
    fn from(error: ShutdownError) -> Self {
        match error {
            ShutdownError::WouldDeadlock => MOONRING_WOULD_DEADLOCK,
            ShutdownError::Forked => MOONRING_FORKED,
            _ => MOONRING_OTHER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// A new error of the engine's has no number yet: give it one.
    #[test]
    fn each_error_of_an_op_has_a_number_of_its_name() {
        let names: HashSet<_> = moonring_status::ALL
            .iter()
            .map(|&status| moonring_status::name_of(status as i32).to_str().unwrap())
            .collect();
        for name in OpError::NAMES {
            assert!(names.contains(name), "{name}");
        }
        assert_eq!(names.len(), moonring_status::ALL.len());
        for error in [
            OpError::NotFound,
            OpError::TimedOut { started: true },
            OpError::Store(-5),
            OpError::ShutDown,
        ] {
            let number = moonring_status::from(error) as i32;
            assert_eq!(moonring_status::name_of(number).to_str(), Ok(error.name()));
        }
        assert_eq!(moonring_status::name_of(-12345), c"unknown");
    }
}
