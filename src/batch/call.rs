//! A store call, of however many keys, and what its answer means for an op.

use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::inflight::{Descriptor, EXACT};
use crate::store::{
    CallResult, DeleteBatch, Keys, LookupBatch, RawResult, RetrieveBatch, Store, StoreBatch,
};
use crate::waker::drop_quietly;
use crate::{OpError, OpKind};

/// A store call. A panic of the store is an answer like others.
#[inline(always)]
pub(super) fn guarded(
    kind: OpKind,
    lens: &[usize],
    call: impl FnOnce() -> CallResult,
) -> CallResult {
    #[cfg(feature = "spans")]
    let span = crate::spans::store_call(kind, lens.len(), lens);
    #[cfg(not(feature = "spans"))]
    let _ = (kind, lens);
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        drop_quietly(payload);
        Err(OpError::StorePanicked)
    });
    #[cfg(feature = "spans")]
    crate::spans::returned(span, &result);
    result
}

/// # Safety
/// The slices must have one length, that of the keys. Of retrieves and stores, each buffer must be of its length and this call's, for
/// the store to write or read.
#[inline(always)]
pub(super) unsafe fn call_store(
    kind: OpKind,
    store: &dyn Store,
    keys: Keys<'_>,
    bufs: &[*mut u8],
    lens: &[usize],
    force: bool,
) -> CallResult {
    match kind {
        OpKind::Lookup => store.batch_exists(&mut LookupBatch { keys }),
        OpKind::Retrieve => {
            // SAFETY: the caller vouches for the buffers.
            store.batch_get_into(&mut unsafe { RetrieveBatch::new(keys, bufs, lens) })
        }
        OpKind::Store => {
            // SAFETY: as above; nobody writes them.
            store.batch_put_from(&mut unsafe { StoreBatch::new(keys, as_const(bufs), lens) })
        }
        OpKind::Delete => store.batch_remove(&mut DeleteBatch::new(keys, force)),
    }
}

fn as_const(bufs: &[*mut u8]) -> &[*const u8] {
    // SAFETY: `*mut u8` and `*const u8` have one layout.
    unsafe { std::slice::from_raw_parts(bufs.as_ptr().cast(), bufs.len()) }
}

/// What is wrong with a call's answer for so many keys.
#[inline(always)]
pub(super) fn error_of(answer: CallResult, keys: usize) -> Option<OpError> {
    match answer {
        Ok(n) if n == keys => None,
        Ok(_) => Some(OpError::WrongResultCount),
        Err(error) => Some(error),
    }
}

/// The result of a retrieve or a store whose key was in a call for it alone. Returns how many bytes the store moved.
#[inline(always)]
pub(super) fn settle_own(
    kind: OpKind,
    d: &Descriptor,
    buf_len: usize,
    result: &mut RawResult,
) -> u64 {
    let Ok(value) = *result else { return 0 };
    if kind == OpKind::Store {
        return buf_len as u64;
    }
    *result = settle_retrieve(d, value, (d.buf, buf_len), true);
    match value <= buf_len as u64 {
        // Also where it is not the length that the op wanted.
        true => value,
        false => 0,
    }
}

/// A retrieve whose key was read: `len` bytes into `from`, the leader's buffer and its length.
pub(super) fn settle_retrieve(
    d: &Descriptor,
    len: u64,
    from: (*mut u8, usize),
    leads: bool,
) -> RawResult {
    let (buf, buf_len) = from;
    let object_len = NonZeroU64::new(len);
    if len > buf_len as u64 {
        return Err(OpError::BadResult);
    }
    if len > d.len() as u64 {
        return Err(OpError::ShortBuffer { object_len });
    }
    if d.flags() & EXACT != 0 && len != d.len() as u64 {
        return Err(OpError::LengthMismatch { object_len });
    }
    if !leads {
        // SAFETY: the store wrote `len` bytes at `buf` (the leader's buffer is not released yet), and the op's own buffer has
        // at least as many and is claimed. `copy`, not `copy_nonoverlapping`: a submitter that broke its promise
        // and gave one buffer twice shall not make it worse.
        unsafe { std::ptr::copy(buf, d.buf, len as usize) };
    }
    Ok(len)
}
