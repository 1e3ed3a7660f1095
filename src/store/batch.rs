//! The batches that a store sees: keys, buffers, and a place for each result.
//!
//! Arrays of keys, pointers and lengths lie apart, as C interfaces want them, and belong to the worker, which
//! reuses them; a batch only borrows them.

use std::ffi::c_char;

use crate::{OpError, StoreOutcome};

/// One result as the engine carries it: a value (length, yes/no, outcome) or the error.
pub(crate) type RawResult = Result<u64, OpError>;

/// What result arrays are filled with before each call: no store has answered.
pub(crate) const UNSET: RawResult = Err(OpError::BadResult);

/// The keys of a batch and the places of their results.
#[derive(Debug)]
pub(crate) struct Keys<'a> {
    ptrs: &'a [*const c_char],
    lens: &'a [usize],
    results: &'a mut [RawResult],
}

impl<'a> Keys<'a> {
    /// # Safety
    /// For each `i`, `ptrs[i]` must point to `lens[i]` readable bytes followed by a NUL byte, unchanged for `'a`.
    /// The three slices must have one length.
    pub(crate) unsafe fn new(
        ptrs: &'a [*const c_char],
        lens: &'a [usize],
        results: &'a mut [RawResult],
    ) -> Self {
        debug_assert!(ptrs.len() == lens.len() && lens.len() == results.len());
        Self {
            ptrs,
            lens,
            results,
        }
    }

    fn get(&self, i: usize) -> &'a [u8] {
        // SAFETY: `Keys::new`'s caller vouches for `ptrs[i]` and `lens[i]`; both are indexed with bounds checks.
        unsafe { std::slice::from_raw_parts(self.ptrs[i].cast(), self.lens[i]) }
    }

    pub(crate) fn set(&mut self, i: usize, value: RawResult) {
        self.results[i] = value;
    }

    /// What stands in the place of result `i`; for stores that wrap another.
    pub(crate) fn result(&self, i: usize) -> RawResult {
        self.results[i]
    }
}

/// What all four batches have.
macro_rules! keys_of_a_batch {
    () => {
        /// How many keys. Never zero.
        #[allow(clippy::len_without_is_empty)]
        pub fn len(&self) -> usize {
            self.keys.ptrs.len()
        }

        /// Key `i`, without its NUL.
        pub fn key(&self, i: usize) -> &[u8] {
            self.keys.get(i)
        }

        /// All keys as NUL-terminated strings, for C interfaces. Valid until the call returns.
        pub fn key_ptrs(&self) -> &[*const c_char] {
            self.keys.ptrs
        }

        /// Lengths of all keys in bytes, without the NUL.
        pub fn key_lens(&self) -> &[usize] {
            self.keys.lens
        }
    };
}

/// Lookups: which keys exist?
#[derive(Debug)]
pub struct LookupBatch<'a> {
    pub(crate) keys: Keys<'a>,
}

impl LookupBatch<'_> {
    keys_of_a_batch!();

    /// The answer for key `i`: there, not there, or unknown (`Err`).
    pub fn set(&mut self, i: usize, exists: Result<bool, OpError>) {
        self.keys.set(i, exists.map(u64::from));
    }
}

/// Retrieves: objects into buffers.
#[derive(Debug)]
pub struct RetrieveBatch<'a> {
    pub(crate) keys: Keys<'a>,
    bufs: &'a [*mut u8],
    lens: &'a [usize],
}

impl<'a> RetrieveBatch<'a> {
    /// # Safety
    /// For each `i`, `bufs[i]` must point to `lens[i]` writable bytes that nobody else reads or writes for `'a`.
    pub(crate) unsafe fn new(keys: Keys<'a>, bufs: &'a [*mut u8], lens: &'a [usize]) -> Self {
        debug_assert!(bufs.len() == lens.len() && lens.len() == keys.ptrs.len());
        Self { keys, bufs, lens }
    }

    keys_of_a_batch!();

    /// Addresses of all buffers. For this call alone to write, until it returns.
    pub fn bufs(&self) -> &[*mut u8] {
        self.bufs
    }

    /// Lengths of all buffers in bytes.
    pub fn buf_lens(&self) -> &[usize] {
        self.lens
    }

    /// Copies `object` into buffer `i` and sets the result: its length, or
    /// [`OpError::ShortBuffer`] where it doesn't fit (the buffer is untouched then).
    pub fn fill(&mut self, i: usize, object: &[u8]) {
        if object.len() > self.lens[i] {
            let object_len = std::num::NonZeroU64::new(object.len() as u64);
            self.set(i, Err(OpError::ShortBuffer { object_len }));
            return;
        }
        // SAFETY: the buffer has at least `object.len()` writable bytes that are this call's alone
        // (`RetrieveBatch::new`'s caller), so they don't overlap `object` either.
        unsafe { std::ptr::copy_nonoverlapping(object.as_ptr(), self.bufs[i], object.len()) };
        self.set(i, Ok(object.len() as u64));
    }

    /// The result for key `i`: the object's true length in bytes, after the bytes were written.
    pub fn set(&mut self, i: usize, len: Result<u64, OpError>) {
        self.keys.set(i, len);
    }
}

/// Stores: objects from buffers.
#[derive(Debug)]
pub struct StoreBatch<'a> {
    pub(crate) keys: Keys<'a>,
    bufs: &'a [*const u8],
    lens: &'a [usize],
}

impl<'a> StoreBatch<'a> {
    /// # Safety
    /// For each `i`, `bufs[i]` must point to `lens[i]` readable bytes that nobody writes for `'a`.
    pub(crate) unsafe fn new(keys: Keys<'a>, bufs: &'a [*const u8], lens: &'a [usize]) -> Self {
        debug_assert!(bufs.len() == lens.len() && lens.len() == keys.ptrs.len());
        Self { keys, bufs, lens }
    }

    keys_of_a_batch!();

    /// Addresses of all buffers. Valid until the call returns.
    pub fn bufs(&self) -> &[*const u8] {
        self.bufs
    }

    /// Lengths of all buffers in bytes.
    pub fn buf_lens(&self) -> &[usize] {
        self.lens
    }

    /// The bytes of object `i`.
    pub fn bytes(&self, i: usize) -> &[u8] {
        // SAFETY: `StoreBatch::new`'s caller vouches for the pointer and the length.
        unsafe { std::slice::from_raw_parts(self.bufs[i], self.lens[i]) }
    }

    /// The result for key `i`.
    pub fn set(&mut self, i: usize, outcome: Result<StoreOutcome, OpError>) {
        self.keys.set(i, outcome.map(StoreOutcome::to_raw));
    }
}

/// Deletes.
#[derive(Debug)]
pub struct DeleteBatch<'a> {
    pub(crate) keys: Keys<'a>,
    force: bool,
}

impl<'a> DeleteBatch<'a> {
    pub(crate) fn new(keys: Keys<'a>, force: bool) -> Self {
        Self { keys, force }
    }

    keys_of_a_batch!();

    /// Whether leased objects go too. One value for the whole batch.
    pub fn force(&self) -> bool {
        self.force
    }

    /// The result for key `i`.
    pub fn set(&mut self, i: usize, removed: Result<(), OpError>) {
        self.keys.set(i, removed.map(|()| 0));
    }
}
