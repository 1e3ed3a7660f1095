//! What a caller hands in, and what it gets back.

use std::time::{Duration, Instant};

use moonring_rings::slots::Ticket;

use crate::store::RawResult;
use crate::{Class, OpError, OpKind, Slot, Span, StoreOutcome};

/// Where the bytes of an op are.
#[derive(Debug)]
pub(crate) enum Buffer {
    None,
    Slot(Slot),
    Span(Span),
    Foreign { ptr: *mut u8, len: usize },
}

// SAFETY: a foreign buffer's pointer is used only after submit, where the caller of the `unsafe` constructor vouched for it,
// whatever thread submits.
unsafe impl Send for Buffer {}

/// One op, before it is submitted to a [`Pair`](crate::Pair). The key is copied at submit.
///
/// ```
/// use moonring::Submission;
/// let op = Submission::lookup(b"model@0@1@abcd").user_data(7);
/// ```
#[derive(Debug)]
#[must_use = "an op does nothing until it is submitted"]
pub struct Submission<'k> {
    pub(crate) op: OpKind,
    pub(crate) key: &'k [u8],
    pub(crate) buffer: Buffer,
    pub(crate) user_data: u64,
    /// In nanoseconds, or one of the two below.
    pub(crate) timeout: u64,
    pub(crate) flags: u8,
    pub(crate) class: Class,
}

/// The op's time is that of its lane.
pub(crate) const LANE_TIMEOUT: u64 = u64::MAX;
/// The op has all the time of the world.
pub(crate) const NO_TIMEOUT: u64 = u64::MAX - 1;

/// A time as nanoseconds: what is more than 500 years is none.
pub(crate) fn timeout_ns(timeout: Option<Duration>) -> u64 {
    let ns = timeout.and_then(|timeout| u64::try_from(timeout.as_nanos()).ok());
    ns.map_or(NO_TIMEOUT, |ns| ns.min(NO_TIMEOUT))
}

impl<'k> Submission<'k> {
    fn new(op: OpKind, key: &'k (impl AsRef<[u8]> + ?Sized), buffer: Buffer) -> Self {
        Self {
            op,
            key: key.as_ref(),
            buffer,
            user_data: 0,
            timeout: LANE_TIMEOUT,
            flags: 0,
            class: Class::default(),
        }
    }

    /// Is an object with this key there? Ends as [`Done::Present`] or [`Done::Absent`]; an error means *unknown*.
    pub fn lookup(key: &'k (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self::new(OpKind::Lookup, key, Buffer::None)
    }

    /// Reads the object into the slot's first `slot.len()` bytes. Ends as [`Done::Retrieved`] with the true length;
    /// bytes of the slot behind it are untouched. After an error the slot's content is undefined.
    pub fn retrieve(key: &'k (impl AsRef<[u8]> + ?Sized), slot: Slot) -> Self {
        Self::new(OpKind::Retrieve, key, Buffer::Slot(slot))
    }

    /// Writes the slot's first `slot.len()` bytes as the object. Ends as [`Done::Store`].
    pub fn store(key: &'k (impl AsRef<[u8]> + ?Sized), slot: Slot) -> Self {
        Self::new(OpKind::Store, key, Buffer::Slot(slot))
    }

    /// Removes the object. Ends as [`Done::Deleted`], or fails as [`OpError::NotFound`] or [`OpError::Leased`].
    pub fn delete(key: &'k (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self::new(OpKind::Delete, key, Buffer::None)
    }

    /// [`retrieve`](Self::retrieve) into a raw span.
    ///
    /// # Safety
    /// From acceptance to the op's release (the completion without MORE, or the release notice) nobody else may read or
    /// write the span's bytes.
    pub unsafe fn retrieve_span(key: &'k (impl AsRef<[u8]> + ?Sized), span: Span) -> Self {
        Self::new(OpKind::Retrieve, key, Buffer::Span(span))
    }

    /// [`store`](Self::store) from a raw span.
    ///
    /// # Safety
    /// From acceptance to the op's release nobody may write the span's bytes, and they must be initialised.
    pub unsafe fn store_span(key: &'k (impl AsRef<[u8]> + ?Sized), span: Span) -> Self {
        Self::new(OpKind::Store, key, Buffer::Span(span))
    }

    /// [`retrieve`](Self::retrieve) into memory given by its address: inside a region of the engine, or
    /// anywhere if the store needs no registration.
    ///
    /// # Safety
    /// As [`retrieve_span`](Self::retrieve_span), and the memory must be mapped and writable until the op's release.
    pub unsafe fn retrieve_foreign(
        key: &'k (impl AsRef<[u8]> + ?Sized),
        ptr: *mut u8,
        len: usize,
    ) -> Self {
        Self::new(OpKind::Retrieve, key, Buffer::Foreign { ptr, len })
    }

    /// [`store`](Self::store) from memory given by its address: inside a region of the engine, or anywhere if the
    /// store needs no registration.
    ///
    /// # Safety
    /// As [`store_span`](Self::store_span), and the memory must be mapped until the op's release.
    pub unsafe fn store_foreign(
        key: &'k (impl AsRef<[u8]> + ?Sized),
        ptr: *const u8,
        len: usize,
    ) -> Self {
        let ptr = ptr.cast_mut();
        Self::new(OpKind::Store, key, Buffer::Foreign { ptr, len })
    }

    /// A number of the caller's that comes back in the completion. 0 by default.
    pub fn user_data(mut self, user_data: u64) -> Self {
        self.user_data = user_data;
        self
    }

    /// How long the op may take from its submission on, in place of its lane's `timeout_ms`; `None`: as long as it takes.
    ///
    /// An op whose time is up before a store call took it ends as [`OpError::TimedOut`] (never started), and no call is made for it.
    /// One that a call has taken ends at that moment too (in progress), with [`more`](Completion::more): its bytes belong to
    /// the engine until the call has returned, which a release notice tells.
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout_ns(timeout);
        self
    }

    /// [`timeout`](Self::timeout), by the time at which it is up. Reads the clock.
    pub fn deadline(self, deadline: Instant) -> Self {
        let left = deadline.saturating_duration_since(Instant::now());
        self.timeout(Some(left))
    }

    /// For a delete: remove the object even if it is leased. Without effect on other ops.
    pub fn force(mut self) -> Self {
        if self.op == OpKind::Delete {
            self.flags |= crate::inflight::FORCE;
        }
        self
    }

    /// For a retrieve: an object of another length than the buffer is [`OpError::LengthMismatch`] or
    /// [`OpError::ShortBuffer`]. Without effect on other ops.
    pub fn exact(mut self) -> Self {
        if self.op == OpKind::Retrieve {
            self.flags |= crate::inflight::EXACT;
        }
        self
    }

    /// The op can wait: [`Class::Background`].
    pub fn background(self) -> Self {
        self.class(Class::Background)
    }

    /// How urgent the op is. [`Class::Foreground`] by default.
    pub fn class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// The op's kind.
    pub fn op(&self) -> OpKind {
        self.op
    }

    /// The key.
    pub fn key(&self) -> &'k [u8] {
        self.key
    }

    /// Takes the slot back, of an op that was refused.
    pub fn into_slot(self) -> Option<Slot> {
        match self.buffer {
            Buffer::Slot(slot) => Some(slot),
            _ => None,
        }
    }
}

/// How an op that went well ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Done {
    /// Lookup: the object is there.
    Present,
    /// Lookup: it is not there.
    Absent,
    /// Retrieve: the object's true length in bytes; they are in the buffer.
    Retrieved(u64),
    /// Store.
    Store(StoreOutcome),
    /// Delete: the object is gone.
    Deleted,
}

impl Done {
    #[inline]
    pub(crate) fn from_raw(op: OpKind, value: u64) -> Self {
        Self::with_raw(op, value, |done| done)
    }

    /// [`from_raw`](Self::from_raw), handed to `then` in each kind's own branch: a `Done` of any kind would be copied by its bytes.
    #[inline(always)]
    pub(crate) fn with_raw<R>(op: OpKind, value: u64, mut then: impl FnMut(Self) -> R) -> R {
        match op {
            OpKind::Lookup if value != 0 => then(Done::Present),
            OpKind::Lookup => then(Done::Absent),
            OpKind::Retrieve => then(Done::Retrieved(value)),
            OpKind::Store => then(Done::Store(StoreOutcome::from_raw(value))),
            OpKind::Delete => then(Done::Deleted),
        }
    }
}

/// One notice about an accepted op.
///
/// Each op gets exactly one terminal completion. If that one carries [`more`](Completion::more), a store call may
/// still be writing the op's bytes, and exactly one release notice follows.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The number given with the submission.
    pub user_data: u64,
    /// The op's kind.
    pub op: OpKind,
    /// What [`submit`](crate::Pair::submit) returned.
    pub ticket: Ticket,
    /// How the op ended.
    pub result: Result<Done, OpError>,
    /// The slot that the op was given. `None` for an op without one, and exactly when `more` is set, with one: that
    /// slot goes back to its pool by itself.
    pub slot: Option<Slot>,
    /// A release notice follows; until then the op's bytes belong to the engine.
    pub more: bool,
    /// This is that notice: the op ended before, with the same `result`, and its bytes are the caller's again.
    pub release: bool,
}

impl Completion {
    #[inline]
    pub(crate) fn result_of(op: OpKind, raw: RawResult) -> Result<Done, OpError> {
        raw.map(|value| Done::from_raw(op, value))
    }
}
