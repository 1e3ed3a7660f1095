//! The ops in flight of one submitter: a [`Table`] of descriptors with their keys and results.
//!
//! The life of an op is drawn in [`moonring_rings::slots`]. What belongs to it:
//!
//! | where | what | written by | read by |
//! | --- | --- | --- | --- |
//! | descriptor (one cache line with the state word) | key, buffer, hash, caller, times | owner, before `queue` | worker; its atomics: anybody |
//! | key place | the key and a NUL | owner, before `queue` | the store call |
//! | result | how the op ended | who ended it, before that is told | owner, after it saw the end |

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crossbeam_utils::CachePadded;
pub(crate) use moonring_rings::deadline::NEVER;
use moonring_rings::deadline::Soonest;
use moonring_rings::slots::{Table, Ticket};

use crate::OpKind;
use crate::key::{INLINE_KEY, KeyHasher, KeyPlaces};
use crate::store::{RawResult, UNSET};
use crate::waker::OpWaker;

/// Delete leased objects too.
pub(crate) const FORCE: u8 = 1 << 0;
/// An object of another length than the buffer is an error.
pub(crate) const EXACT: u8 = 1 << 1;
/// Where the op's kind lies in the flags, by its index.
const KIND_SHIFT: u32 = 6;

/// In a deadline: of an op that may not be in its ring yet. To the timer it is far away, to a worker it counts.
pub(crate) const HIDDEN: u64 = 1 << 63;

/// A deadline that a worker sees and the timer does not.
pub(crate) fn hidden(deadline: u64) -> u64 {
    deadline | HIDDEN // Of `NEVER`, the same.
}

/// Whether the time of an op is up that a worker has found in a ring.
#[inline(always)]
pub(crate) fn is_late(deadline: u64, now: impl FnOnce() -> u64) -> bool {
    deadline != NEVER && now() >= deadline & !HIDDEN
}

/// What a worker reads of an op.
pub(crate) struct Descriptor {
    pub(crate) hash: u64,
    /// NUL-terminated, `key_len` bytes before the NUL.
    pub(crate) key: *const u8,
    pub(crate) buf: *mut u8,
    /// Atomic because a worker that takes from a shared ring looks at it before it knows that the op is its own.
    pub(crate) buf_len: AtomicUsize,
    /// When it was published, in ticks of the engine's clock.
    pub(crate) submitted: u64,
    pub(crate) key_len: u32,
    /// When its time is up, in ticks of the engine's clock, or [`NEVER`]. Atomic because the timer looks at it.
    deadline: AtomicU64,
    /// Who submitted it, for `callers_per_call`.
    pub(crate) caller: u16,
    /// The worker that has it, by its number in its group. Atomic because the timer reads it.
    worker: AtomicU8,
    /// Flags and kind. Atomic because the entry of an op that was abandoned may be in use again when its kind is asked for.
    flags: AtomicU8,
}

// With the state word, one cache line.
const _: () = assert!(size_of::<Descriptor>() == 56);

// SAFETY: the pointers are to a key place of the op's table and to memory that its submitter vouched for; both are used
// only by who holds the op.
unsafe impl Send for Descriptor {}

impl Descriptor {
    fn empty() -> Self {
        Self {
            hash: 0,
            key: std::ptr::null(),
            buf: std::ptr::null_mut(),
            buf_len: AtomicUsize::new(0),
            submitted: 0,
            key_len: 0,
            deadline: AtomicU64::new(NEVER),
            caller: 0,
            worker: AtomicU8::new(0),
            flags: AtomicU8::new(0),
        }
    }

    /// Says which worker has the op.
    #[inline(always)]
    pub(crate) fn set_worker(&self, number: usize) {
        self.worker.store(number as u8, Relaxed);
    }

    pub(crate) fn worker(&self) -> usize {
        usize::from(self.worker.load(Relaxed))
    }

    #[inline(always)]
    pub(crate) fn flags(&self) -> u8 {
        self.flags.load(Relaxed)
    }

    pub(crate) fn len(&self) -> usize {
        self.buf_len.load(Relaxed)
    }
}

fn op_of(flags: u8) -> OpKind {
    OpKind::ALL[usize::from(flags >> KIND_SHIFT)]
}

/// What an owner fills in, besides the key.
pub(crate) struct Fill {
    pub(crate) op: OpKind,
    pub(crate) buf: *mut u8,
    pub(crate) len: usize,
    pub(crate) flags: u8,
    pub(crate) caller: u16,
    pub(crate) submitted: u64,
    pub(crate) deadline: u64,
}

/// A key that lies in its place.
pub(crate) struct PlacedKey {
    ptr: *const u8,
    hash: u64,
    len: u32,
}

/// The table of one pair, or of all clients.
pub(crate) struct OpTable {
    ops: Table<Descriptor, OpWaker, RawResult>,
    keys: KeyPlaces,
    long_keys: KeyPlaces,
    /// No deadline of its ops is earlier, but for those of which the timer is told in a moment; see [`crate::timer`].
    pub(crate) soonest: CachePadded<Soonest>,
}

impl OpTable {
    /// `shared`: by many owners, each of which is woken for its own op.
    pub(crate) fn new(depth: usize, long_keys: usize, max_key: usize, shared: bool) -> Self {
        Self {
            ops: Table::with_results(depth, |_| Descriptor::empty(), UNSET, shared),
            keys: KeyPlaces::inline(depth),
            long_keys: KeyPlaces::long(long_keys, max_key),
            soonest: CachePadded::default(),
        }
    }

    pub(crate) fn ops(&self) -> &Table<Descriptor, OpWaker, RawResult> {
        &self.ops
    }

    pub(crate) fn depth(&self) -> usize {
        self.ops.depth()
    }

    pub(crate) fn long_key_places(&self) -> usize {
        self.long_keys.count()
    }

    /// Whether the key needs a long place.
    pub(crate) fn is_long(key: &[u8]) -> bool {
        key.len() > INLINE_KEY
    }

    /// Copies an op's key to where workers read it: the entry's own place, or a long one.
    ///
    /// # Errors
    /// The offset of a NUL in the key.
    ///
    /// # Safety
    /// The entry and the long place must be the caller's, and free; the key must have passed `key::check_len`, and
    /// need no long place if there is none.
    #[inline(always)]
    pub(crate) unsafe fn place_key(
        &self,
        index: u32,
        long_place: Option<u32>,
        key: &[u8],
        hasher: &KeyHasher,
    ) -> Result<PlacedKey, usize> {
        // SAFETY: the caller owns the entry and the place.
        let (ptr, hash) = unsafe {
            match long_place {
                None => self.keys.write(index, key, hasher)?,
                Some(place) => self.long_keys.write(place, key, hasher)?,
            }
        };
        let len = key.len() as u32;
        Ok(PlacedKey { ptr, hash, len })
    }

    /// Fills in the entry and makes it QUEUED; the ring's publication shows it to the workers.
    ///
    /// # Safety
    /// The entry must be the caller's, and free; the key must have been placed for it.
    #[inline]
    pub(crate) unsafe fn queue(&self, index: u32, key: PlacedKey, fill: &Fill) -> Ticket {
        // SAFETY: the caller owns the entry.
        unsafe {
            self.fill(index, key, fill);
            self.ops.queue(index)
        }
    }

    /// The same for an owner that knows the ticket of the entry's last use, see [`Table::queue_after`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn queue_after(&self, last: Ticket, key: PlacedKey, fill: &Fill) -> Ticket {
        // SAFETY: the caller owns the entry.
        unsafe {
            self.fill(last.index(), key, fill);
            self.ops.queue_after(last)
        }
    }

    /// # Safety
    /// As for [`queue`](Self::queue).
    #[inline(always)]
    unsafe fn fill(&self, index: u32, key: PlacedKey, fill: &Fill) {
        // SAFETY: the caller owns the entry.
        unsafe {
            self.ops.with_mut(index, |d| {
                d.hash = key.hash;
                d.key = key.ptr;
                d.buf = fill.buf;
                // A store, not `get_mut`: a slow worker may be looking at it for an op that is long gone.
                d.buf_len.store(fill.len, Relaxed);
                d.submitted = fill.submitted;
                d.key_len = key.len;
                d.caller = fill.caller;
                d.deadline.store(fill.deadline, Relaxed);
                d.flags
                    .store(fill.flags | (fill.op.index() as u8) << KIND_SHIFT, Relaxed);
            });
        }
    }

    /// Length of the op's buffer; of another op's, where this one is over.
    ///
    /// # Safety
    /// The index must be below the depth.
    #[inline(always)]
    pub(crate) unsafe fn peek_len(&self, index: u32) -> usize {
        // SAFETY: the caller vouches for the index. The field is atomic, and no reference to the rest is made.
        unsafe { (*self.ops.peek(index)).buf_len.load(Relaxed) }
    }

    /// Its deadline, with the same reserve.
    ///
    /// # Safety
    /// As for [`peek_len`](Self::peek_len).
    #[inline(always)]
    pub(crate) unsafe fn peek_deadline(&self, index: u32) -> u64 {
        // SAFETY: as there.
        unsafe { (*self.ops.peek(index)).deadline.load(Relaxed) }
    }

    /// Sets the deadline of an op that is in its ring.
    ///
    /// # Safety
    /// The op must be the caller's.
    pub(crate) unsafe fn set_deadline(&self, index: u32, deadline: u64) {
        // SAFETY: as in `peek_len`.
        unsafe { (*self.ops.peek(index)).deadline.store(deadline, Relaxed) };
    }

    /// Its kind, with the same reserve.
    ///
    /// # Safety
    /// As for [`peek_len`](Self::peek_len).
    pub(crate) unsafe fn peek_op(&self, index: u32) -> OpKind {
        // SAFETY: as there.
        op_of(unsafe { (*self.ops.peek(index)).flags.load(Relaxed) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_deadline_counts_for_a_worker_and_is_far_away_for_the_timer() {
        assert!(is_late(hidden(5), || 5) && is_late(5, || 5));
        assert!(!is_late(hidden(5), || 4) && !is_late(5, || 4));
        assert!(hidden(5) > u64::MAX / 2);
        // None is none, hidden or not.
        assert_eq!(hidden(NEVER), NEVER);
        assert!(!is_late(NEVER, || unreachable!()));
    }
}
