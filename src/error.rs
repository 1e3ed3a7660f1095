//! What can go wrong, an error type for each kind of call.
//!
//! - [`OpError`]: how an **accepted** op failed; comes in its completion.
//! - [`SubmitError`]: why an op was **refused**; comes at once, with the op, as [`Refused`].
//! - [`ClientError`]: either of the two, for callers that `.await` an op.

use std::num::NonZeroU64;

/// Why an accepted op failed.
///
/// `NotFound` of a retrieve is a miss. For a lookup every `Err` means *unknown*, never "not there".
/// After any error of a retrieve the content of its buffer is undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// No object has this key.
    #[error("no object has this key")]
    NotFound,
    /// The object has a read lease; a delete without `force` must wait for its end.
    #[error("the object is leased")]
    Leased,
    /// The store has no room for the object.
    #[error("the store has no space left")]
    NoSpace,
    /// The object is longer than the buffer. `object_len` (bytes) where the store tells it.
    #[error("the object is longer than the buffer{}", len_note(*.object_len))]
    ShortBuffer {
        /// True length of the object in bytes, where known.
        object_len: Option<NonZeroU64>,
    },
    /// An exact retrieve found an object of another length than its buffer.
    #[error("the object's length differs from the buffer's{}", len_note(*.object_len))]
    LengthMismatch {
        /// True length of the object in bytes, where known.
        object_len: Option<NonZeroU64>,
    },
    /// The lease ended during the transfer; the bytes cannot be trusted.
    #[error("the lease expired during the transfer")]
    LeaseExpired,
    /// The object is being written and can't be read yet.
    #[error("the object is not ready")]
    NotReady,
    /// The object is in use by another operation of the store.
    #[error("the object is busy")]
    Busy,
    /// The object is already there, where a store reports that as an error.
    #[error("the object already exists")]
    AlreadyExists,
    /// The store refused the arguments.
    #[error("the store refused the arguments as invalid")]
    InvalidArgument,
    /// The store takes this client for none that may do this, as after its master lost sight of it.
    #[error("the store does not let this client do it")]
    IllegalClient,
    /// No storage segment is mounted, or it is gone.
    #[error("no storage segment is available")]
    NoSegment,
    /// The transfer of the bytes failed.
    #[error("the transfer failed")]
    TransferFailed,
    /// The bytes arrived damaged.
    #[error("checksum mismatch")]
    ChecksumMismatch,
    /// A call to the store's master failed.
    #[error("the call to the store's master failed")]
    RpcFailed,
    /// A call to the store's master timed out.
    #[error("the call to the store's master timed out")]
    RpcTimedOut,
    /// The store can't serve this now.
    #[error("the store is unavailable")]
    Unavailable,
    /// The store does not offer this operation.
    #[error("the store does not support this operation")]
    Unsupported,
    /// The store reported an internal error.
    #[error("internal error of the store")]
    StoreInternal,
    /// The store's code panicked during the call.
    #[error("the store panicked during the call")]
    StorePanicked,
    /// The store answered with another number of results than keys; none of them can be trusted.
    #[error("the store returned a wrong number of results")]
    WrongResultCount,
    /// The store's answer for this key was missing or impossible.
    #[error("the store gave no or an impossible result for this key")]
    BadResult,
    /// The deadline passed.
    #[error("timed out ({})", if *.started { "in progress" } else { "never started" })]
    TimedOut {
        /// Whether a store call had taken the op.
        started: bool,
    },
    /// Cancelled by the caller.
    #[error("cancelled ({})", if *.started { "in progress" } else { "never started" })]
    Cancelled {
        /// Whether a store call had taken the op.
        started: bool,
    },
    /// The engine was shut down before a store call took the op, or, where a release notice follows, before that call returned.
    #[error("the engine is shut down")]
    ShutDown,
    /// This is a forked child: the op was accepted by its parent, and ends there.
    #[error("the op belongs to the parent of this forked process")]
    Forked,
    /// A code of the store that this version doesn't know.
    #[error("the store returned code {0}")]
    Store(i32),
}

/// One table for codes and names, so that a variant without a name does not compile.
macro_rules! op_error_codes {
    ($($variant:pat => $code:ident $name:literal,)+) => {
        enum Code { $($code),+ }

        impl OpError {
            /// All names, see [`OpError::name`]. New ones may come anywhere in the list.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// Position in [`OpError::NAMES`].
            pub(crate) const fn code(&self) -> usize {
                let code = match self { $($variant => Code::$code),+ };
                code as usize
            }

            /// A stable name for statistics and logs, as `not_found`: the variant's, without its values, but
            /// [`TimedOut`](OpError::TimedOut) has two, and all numbers of [`Store`](OpError::Store) are `store_code`.
            pub const fn name(&self) -> &'static str {
                match self { $($variant => $name),+ }
            }
        }
    };
}

op_error_codes! {
    OpError::NotFound => NotFound "not_found",
    OpError::Leased => Leased "leased",
    OpError::NoSpace => NoSpace "no_space",
    OpError::ShortBuffer { .. } => ShortBuffer "short_buffer",
    OpError::LengthMismatch { .. } => LengthMismatch "length_mismatch",
    OpError::LeaseExpired => LeaseExpired "lease_expired",
    OpError::NotReady => NotReady "not_ready",
    OpError::Busy => Busy "busy",
    OpError::AlreadyExists => AlreadyExists "already_exists",
    OpError::InvalidArgument => InvalidArgument "invalid_argument",
    OpError::IllegalClient => IllegalClient "illegal_client",
    OpError::NoSegment => NoSegment "no_segment",
    OpError::TransferFailed => TransferFailed "transfer_failed",
    OpError::ChecksumMismatch => ChecksumMismatch "checksum_mismatch",
    OpError::RpcFailed => RpcFailed "rpc_failed",
    OpError::RpcTimedOut => RpcTimedOut "rpc_timed_out",
    OpError::Unavailable => Unavailable "unavailable",
    OpError::Unsupported => Unsupported "unsupported",
    OpError::StoreInternal => StoreInternal "store_internal",
    OpError::StorePanicked => StorePanicked "store_panicked",
    OpError::WrongResultCount => WrongResultCount "wrong_result_count",
    OpError::BadResult => BadResult "bad_result",
    OpError::TimedOut { started: false } => NeverStarted "timed_out_never_started",
    OpError::TimedOut { started: true } => InProgress "timed_out_in_progress",
    OpError::Cancelled { started: false } => Cancelled "cancelled_never_started",
    OpError::Cancelled { started: true } => CancelledInProgress "cancelled_in_progress",
    OpError::ShutDown => ShutDown "shut_down",
    OpError::Forked => Forked "forked",
    OpError::Store(_) => Number "store_code",
}

fn len_note(len: Option<NonZeroU64>) -> String {
    len.map(|n| format!(" (object: {n} bytes)"))
        .unwrap_or_default()
}

/// Why an op was refused at submit. The op comes back with it, see [`Refused`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// As many ops are in flight as the depth allows: reap completions first.
    #[error("no credit left: {depth} ops are in flight")]
    NoCredit {
        /// The depth of the pair or of the clients' table.
        depth: usize,
    },
    /// The ring of this op kind is full for the moment.
    #[error("the {op} ring is full (room for {room} more)")]
    RingFull {
        /// The op kind.
        op: crate::OpKind,
        /// Places that are free; a batch asked for more.
        room: usize,
    },
    /// The engine no longer takes ops.
    #[error("the engine is shut down")]
    ShutDown,
    /// This is a forked child: the engine is its parent's.
    #[error("the engine belongs to the parent of this forked process")]
    Forked,
    /// The key is empty.
    #[error("key: empty")]
    EmptyKey,
    /// The key contains a NUL byte, where Mooncake's C interface would cut it.
    #[error("key: NUL byte at offset {at}")]
    NulInKey {
        /// Offset of the first NUL byte.
        at: usize,
    },
    /// The key is longer than the configured `max_key`.
    #[error("key: {len} bytes, the limit max_key is {max}")]
    KeyTooLong {
        /// Length of the key in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// All places for keys of more than 255 bytes are in use.
    #[error("key: all {places} places for keys over 255 bytes are in use (long_keys)")]
    NoLongKeyPlace {
        /// How many places there are.
        places: usize,
    },
    /// The buffer has length zero.
    #[error("{op}: the buffer has length zero")]
    ZeroLength {
        /// The op kind.
        op: crate::OpKind,
    },
    /// The span doesn't lie inside its region.
    #[error("{op}: span {offset}+{len} is outside the region of {region_len} bytes")]
    OutsideRegion {
        /// The op kind.
        op: crate::OpKind,
        /// Offset of the span in bytes.
        offset: usize,
        /// Length of the span in bytes.
        len: usize,
        /// Length of the region in bytes.
        region_len: usize,
    },
    /// The span or slot belongs to a region that this engine was not started with.
    #[error("{op}: the region is not one of this engine's")]
    UnknownRegion {
        /// The op kind.
        op: crate::OpKind,
    },
    /// The span crosses from one registered piece of the region into the next.
    #[error("{op}: span {offset}+{len} crosses the registration boundary at {boundary}")]
    AcrossRegistration {
        /// The op kind.
        op: crate::OpKind,
        /// Offset of the span in bytes.
        offset: usize,
        /// Length of the span in bytes.
        len: usize,
        /// Offset of the first boundary that it crosses.
        boundary: usize,
    },
    /// The memory is not in a registered region, and the store needs that.
    #[error("{op}: {len} bytes at {addr:#x} are not inside one registered region")]
    NotRegistered {
        /// The op kind.
        op: crate::OpKind,
        /// Address of the first byte.
        addr: usize,
        /// Length in bytes.
        len: usize,
    },
    /// A store call that was given up may still use bytes of the span: see [`Engine::quarantined`](crate::Engine::quarantined).
    #[error(
        "{op}: {len} bytes at {addr:#x} are in quarantine: a store call that timed out or was cancelled has not returned"
    )]
    Quarantined {
        /// The op kind.
        op: crate::OpKind,
        /// Address of the first byte.
        addr: usize,
        /// Length in bytes.
        len: usize,
    },
    /// The lane takes no ops for the moment: its calls keep failing or hang, or too many bytes are in quarantine.
    #[error("{op}: the store is unavailable ({why})")]
    Unavailable {
        /// The op kind.
        op: crate::OpKind,
        /// Why.
        why: Unavailable,
    },
    /// The span overlaps one of an op in flight (checked in debug builds only).
    #[error("{op}: span {offset}+{len} overlaps the span of an op in flight")]
    Overlap {
        /// The op kind.
        op: crate::OpKind,
        /// Offset of the span in bytes.
        offset: usize,
        /// Length of the span in bytes.
        len: usize,
    },
}

/// Why a lane refuses ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// Its calls keep failing; only probes are made.
    #[error("its calls keep failing")]
    Failing,
    /// Too many of its calls are overdue.
    #[error("its calls hang")]
    Overdue,
    /// Its ops have more bytes in quarantine than `quarantine_percent` allows.
    #[error("too many bytes are in quarantine")]
    Quarantine,
}

/// A refused op: the reason, and the op whole.
#[derive(Debug)]
pub struct Refused<T> {
    /// Why.
    pub reason: SubmitError,
    /// What was refused; nothing of it was used.
    pub op: T,
}

impl<T> std::fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.reason.fmt(f)
    }
}

impl<T: std::fmt::Debug> std::error::Error for Refused<T> {}

/// What a client's op ended with when it did not go well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The op was refused and never ran.
    #[error("refused: {0}")]
    Refused(#[from] SubmitError),
    /// The op was accepted and failed.
    #[error(transparent)]
    Failed(#[from] OpError),
}
