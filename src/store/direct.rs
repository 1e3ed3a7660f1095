//! Calls on a store without an engine, for tests of stores and for tools.
//!
//! They settle results by the engine's rules: a result that the store left out is [`OpError::BadResult`], so is a
//! retrieve that claims more bytes than its buffer holds; a wrong number of results makes every key
//! [`OpError::WrongResultCount`]; an error of the call is every key's. What the engine keeps from a store is
//! refused here ([`DirectError`]) and no call is made. An empty list gives an empty result without a call.
//!
//! Panics of a store pass through. The functions allocate in each call; [`PreparedKeys`] and [`PreparedBuffers`] lay
//! keys and buffers out once, for many calls that allocate nothing: what a careful caller without an engine would do.
//!
//! ```
//! use moonring::store::{direct, MemoryOptions, MemoryStore};
//! let store = MemoryStore::new(MemoryOptions::default())?;
//! direct::put_from(&store, &[(b"key", b"bytes")])?;
//! let mut buf = [0; 5];
//! assert_eq!(direct::get_into(&store, &mut [(b"key", &mut buf)])?, [Ok(5)]);
//! assert_eq!(&buf, b"bytes");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::HashMap;
use std::ffi::c_char;
use std::fmt;
use std::marker::PhantomData;

use super::{
    CallResult, DeleteBatch, Keys, LookupBatch, RawResult, RetrieveBatch, Store, StoreBatch, UNSET,
};
use crate::{OpError, StoreOutcome};

/// A list that no store may see. `index` counts from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// A key is empty.
    #[error("key {index}: empty")]
    EmptyKey {
        /// Its place in the list.
        index: usize,
    },
    /// A key has a NUL byte inside.
    #[error("key {index}: NUL byte at offset {at}")]
    NulInKey {
        /// Its place in the list.
        index: usize,
        /// Offset of the first NUL byte.
        at: usize,
    },
    /// A key stands twice in the list.
    #[error("key {index}: the same as key {first}")]
    DuplicateKey {
        /// Place where it stands first.
        first: usize,
        /// Place where it stands again.
        index: usize,
    },
    /// A buffer has length zero.
    #[error("buffer {index}: length zero")]
    ZeroLength {
        /// Its place in the list.
        index: usize,
    },
    /// There are more keys than buffers for them.
    #[error("{keys} keys, but {buffers} buffers")]
    TooFewBuffers {
        /// How many keys.
        keys: usize,
        /// How many buffers.
        buffers: usize,
    },
}

/// Which keys exist.
///
/// # Errors
/// [`DirectError`] for lists that no store may see.
pub fn exists(
    store: &dyn Store,
    keys: &[&[u8]],
) -> Result<Vec<Result<bool, OpError>>, DirectError> {
    let mut keys = PreparedKeys::new(keys.iter().copied())?;
    Ok(keys.exists(store).collect())
}

/// Reads objects into buffers: the true length of each in bytes.
///
/// # Errors
/// [`DirectError`] for lists that no store may see.
pub fn get_into(
    store: &dyn Store,
    items: &mut [(&[u8], &mut [u8])],
) -> Result<Vec<Result<u64, OpError>>, DirectError> {
    let mut keys = PreparedKeys::new(items.iter().map(|(key, _)| *key))?;
    let mut bufs = PreparedBuffers::new(items.iter_mut().map(|(_, buf)| &mut **buf))?;
    Ok(keys.get_into(store, &mut bufs)?.collect())
}

/// Writes objects from buffers.
///
/// # Errors
/// [`DirectError`] for lists that no store may see.
pub fn put_from(
    store: &dyn Store,
    items: &[(&[u8], &[u8])],
) -> Result<Vec<Result<StoreOutcome, OpError>>, DirectError> {
    let mut keys = PreparedKeys::new(items.iter().map(|(key, _)| *key))?;
    let lens: Vec<usize> = items.iter().map(|(_, bytes)| bytes.len()).collect();
    refuse_zero_length(&lens)?;
    let bufs: Vec<*const u8> = items.iter().map(|(_, bytes)| bytes.as_ptr()).collect();
    let results = keys.run(|keys| {
        // SAFETY: the pointers and lengths are those of `items`' slices, borrowed until this function returns.
        let mut batch = unsafe { StoreBatch::new(keys, &bufs, &lens) };
        store.batch_put_from(&mut batch)
    });
    Ok(results.map(|r| r.map(StoreOutcome::from_raw)).collect())
}

/// Removes objects, with `force` leased ones too.
///
/// # Errors
/// [`DirectError`] for lists that no store may see.
pub fn remove(
    store: &dyn Store,
    keys: &[&[u8]],
    force: bool,
) -> Result<Vec<Result<(), OpError>>, DirectError> {
    let mut keys = PreparedKeys::new(keys.iter().copied())?;
    Ok(keys.remove(store, force).collect())
}

fn refuse_zero_length(lens: &[usize]) -> Result<(), DirectError> {
    match lens.iter().position(|len| *len == 0) {
        Some(index) => Err(DirectError::ZeroLength { index }),
        None => Ok(()),
    }
}

/// The keys of a call, laid out as stores want them.
pub struct PreparedKeys {
    /// All keys, each followed by its NUL. Never touched again: `ptrs` point into it.
    _bytes: Vec<u8>,
    ptrs: Vec<*const c_char>,
    lens: Vec<usize>,
    results: Vec<RawResult>,
}

// SAFETY: `ptrs` point into `_bytes`, which goes along and which nobody writes.
unsafe impl Send for PreparedKeys {}

impl PreparedKeys {
    /// Copies the keys.
    ///
    /// # Errors
    /// [`DirectError`] for a list that no store may see.
    pub fn new<'k>(keys: impl IntoIterator<Item = &'k [u8]>) -> Result<Self, DirectError> {
        let mut seen = HashMap::new();
        let mut bytes = Vec::new();
        let mut lens = Vec::new();
        for (index, key) in keys.into_iter().enumerate() {
            if key.is_empty() {
                return Err(DirectError::EmptyKey { index });
            }
            if let Some(at) = key.iter().position(|byte| *byte == 0) {
                return Err(DirectError::NulInKey { index, at });
            }
            if let Some(first) = seen.insert(key, index) {
                return Err(DirectError::DuplicateKey { first, index });
            }
            bytes.extend_from_slice(key);
            bytes.push(0);
            lens.push(key.len());
        }
        let mut ptrs = Vec::with_capacity(lens.len());
        let mut rest: &[u8] = &bytes;
        for len in &lens {
            ptrs.push(rest.as_ptr().cast());
            rest = &rest[len + 1..];
        }
        Ok(Self {
            results: vec![UNSET; lens.len()],
            _bytes: bytes,
            ptrs,
            lens,
        })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.lens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// Which of them exist.
    pub fn exists(
        &mut self,
        store: &dyn Store,
    ) -> impl ExactSizeIterator<Item = Result<bool, OpError>> + '_ {
        let results = self.run(|keys| store.batch_exists(&mut LookupBatch { keys }));
        results.map(|r| r.map(|there| there != 0))
    }

    /// Reads their objects into the first of these buffers: the true length of each in bytes.
    ///
    /// # Errors
    /// [`DirectError::TooFewBuffers`].
    pub fn get_into<'a>(
        &'a mut self,
        store: &dyn Store,
        bufs: &'a mut PreparedBuffers<'_>,
    ) -> Result<impl ExactSizeIterator<Item = Result<u64, OpError>> + 'a, DirectError> {
        let (ptrs, lens) = bufs.first(self.len())?;
        let results = self.run(|keys| {
            // SAFETY: `PreparedBuffers` has its slices borrowed mutably, and is itself borrowed so by this function,
            // until the call has returned.
            let mut batch = unsafe { RetrieveBatch::new(keys, ptrs, lens) };
            store.batch_get_into(&mut batch)
        });
        let fits = |(r, len): (RawResult, &usize)| match r {
            Ok(n) if n > *len as u64 => Err(OpError::BadResult),
            r => r,
        };
        Ok(results.zip(lens).map(fits))
    }

    /// Writes their objects from the first of these buffers.
    ///
    /// # Errors
    /// [`DirectError::TooFewBuffers`].
    pub fn put_from<'a>(
        &'a mut self,
        store: &dyn Store,
        bufs: &PreparedBuffers<'_>,
    ) -> Result<impl ExactSizeIterator<Item = Result<StoreOutcome, OpError>> + 'a, DirectError>
    {
        let (ptrs, lens) = bufs.first(self.len())?;
        // SAFETY: `*mut u8` and `*const u8` have one layout.
        let ptrs = unsafe { std::slice::from_raw_parts(ptrs.as_ptr().cast(), ptrs.len()) };
        let results = self.run(|keys| {
            // SAFETY: `PreparedBuffers` has its slices borrowed mutably, and is itself borrowed by this function, so
            // nobody writes them until the call has returned.
            let mut batch = unsafe { StoreBatch::new(keys, ptrs, lens) };
            store.batch_put_from(&mut batch)
        });
        Ok(results.map(|r| r.map(StoreOutcome::from_raw)))
    }

    /// Removes their objects, with `force` leased ones too.
    pub fn remove(
        &mut self,
        store: &dyn Store,
        force: bool,
    ) -> impl ExactSizeIterator<Item = Result<(), OpError>> + '_ {
        let results = self.run(move |keys| store.batch_remove(&mut DeleteBatch::new(keys, force)));
        results.map(|r| r.map(|_| ()))
    }

    /// Makes the call and settles every key's result.
    fn run(
        &mut self,
        call: impl FnOnce(Keys<'_>) -> CallResult,
    ) -> impl ExactSizeIterator<Item = RawResult> + '_ {
        if !self.lens.is_empty() {
            self.results.fill(UNSET);
            // SAFETY: each pointer is to `lens[i]` bytes and a NUL in `_bytes`, which is unchanged since `new`; the three
            // arrays have one entry a key.
            let keys = unsafe { Keys::new(&self.ptrs, &self.lens, &mut self.results) };
            match call(keys) {
                Ok(n) if n == self.lens.len() => {}
                Ok(_) => self.results.fill(Err(OpError::WrongResultCount)),
                Err(error) => self.results.fill(Err(error)),
            }
        }
        self.results.iter().copied()
    }
}

impl fmt::Debug for PreparedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedKeys")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// Buffers for [`PreparedKeys`], borrowed for as long as they are prepared.
#[derive(Debug)]
pub struct PreparedBuffers<'b> {
    ptrs: Vec<*mut u8>,
    lens: Vec<usize>,
    borrowed: PhantomData<&'b mut [u8]>,
}

// SAFETY: it stands for the `&mut [u8]`s that it was made of, which may be sent.
unsafe impl Send for PreparedBuffers<'_> {}

impl<'b> PreparedBuffers<'b> {
    /// Of these slices.
    ///
    /// # Errors
    /// [`DirectError::ZeroLength`].
    pub fn new(bufs: impl IntoIterator<Item = &'b mut [u8]>) -> Result<Self, DirectError> {
        let bufs = bufs.into_iter().map(|buf| (buf.as_mut_ptr(), buf.len()));
        let (ptrs, lens): (Vec<_>, Vec<_>) = bufs.unzip();
        refuse_zero_length(&lens)?;
        Ok(Self {
            ptrs,
            lens,
            borrowed: PhantomData,
        })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.ptrs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ptrs.is_empty()
    }

    /// The bytes of buffer `i`, or `None` beyond the last.
    pub fn get_mut(&mut self, i: usize) -> Option<&mut [u8]> {
        let (ptr, len) = (*self.ptrs.get(i)?, *self.lens.get(i)?);
        // SAFETY: both are those of a slice that is borrowed mutably for `'b`, by us alone; `self` is borrowed mutably for as
        // long as the result lives.
        Some(unsafe { std::slice::from_raw_parts_mut(ptr, len) })
    }

    fn first(&self, keys: usize) -> Result<(&[*mut u8], &[usize]), DirectError> {
        match (self.ptrs.get(..keys), self.lens.get(..keys)) {
            (Some(ptrs), Some(lens)) => Ok((ptrs, lens)),
            _ => Err(DirectError::TooFewBuffers {
                keys,
                buffers: self.len(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// Answers as told, and counts calls.
    #[derive(Default)]
    struct Odd {
        calls: AtomicUsize,
        answer: Option<CallResult>,
        set_first: bool,
        claim: u64,
    }

    impl Odd {
        fn answer(&self, len: usize) -> CallResult {
            self.calls.fetch_add(1, Relaxed);
            self.answer.unwrap_or(Ok(len))
        }
    }

    impl Store for Odd {
        fn name(&self) -> &str {
            "odd"
        }
        fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
            if self.set_first {
                batch.set(0, Ok(false));
            }
            self.answer(batch.len())
        }
        fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
            for i in 0..batch.len() {
                batch.set(i, Ok(self.claim));
            }
            self.answer(batch.len())
        }
        fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
            self.answer(batch.len())
        }
        fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
            self.answer(batch.len())
        }
    }

    const KEYS: [&[u8]; 2] = [b"a", b"b"];

    #[test]
    fn a_missing_result_is_bad_result() {
        let store = Odd {
            set_first: true,
            ..Odd::default()
        };
        let got = exists(&store, &KEYS);
        assert_eq!(got, Ok(vec![Ok(false), Err(OpError::BadResult)]));
        let put = put_from(&store, &[(b"a", &[1])]);
        assert_eq!(put, Ok(vec![Err(OpError::BadResult)]));
        let gone = remove(&store, &KEYS, false);
        assert_eq!(gone, Ok(vec![Err(OpError::BadResult); 2]));
    }

    #[test]
    fn a_wrong_count_or_a_call_error_is_every_keys() {
        for (answer, error) in [
            (Ok(1), OpError::WrongResultCount),
            (Ok(3), OpError::WrongResultCount),
            (Ok(0), OpError::WrongResultCount),
            (Err(OpError::RpcTimedOut), OpError::RpcTimedOut),
        ] {
            let store = Odd {
                answer: Some(answer),
                set_first: true,
                claim: 1,
                ..Odd::default()
            };
            assert_eq!(exists(&store, &KEYS), Ok(vec![Err(error); 2]));
            let (mut a, mut b) = ([0], [0]);
            let got = get_into(&store, &mut [(b"a", &mut a), (b"b", &mut b)]);
            assert_eq!(got, Ok(vec![Err(error); 2]));
            let put = put_from(&store, &[(b"a", &[1]), (b"b", &[1])]);
            assert_eq!(put, Ok(vec![Err(error); 2]));
            assert_eq!(remove(&store, &KEYS, true), Ok(vec![Err(error); 2]));
        }
    }

    #[test]
    fn a_length_beyond_the_buffer_is_bad_result() {
        let store = Odd {
            claim: 2,
            ..Odd::default()
        };
        let (mut a, mut b) = ([0; 1], [0; 2]);
        let got = get_into(&store, &mut [(b"a", &mut a), (b"b", &mut b)]);
        assert_eq!(got, Ok(vec![Err(OpError::BadResult), Ok(2)]));
    }

    #[test]
    fn what_no_store_may_see_is_refused_without_a_call() {
        let store = Odd::default();
        let empty = DirectError::EmptyKey { index: 1 };
        assert_eq!(exists(&store, &[b"a", b""]), Err(empty.clone()));
        let nul = DirectError::NulInKey { index: 0, at: 1 };
        assert_eq!(remove(&store, &[b"a\0b"], true), Err(nul));
        let twice = DirectError::DuplicateKey { first: 0, index: 2 };
        assert_eq!(exists(&store, &[b"a", b"b", b"a"]), Err(twice.clone()));
        let put = put_from(&store, &[(b"a", &[1]), (b"b", &[1]), (b"a", &[1])]);
        assert_eq!(put, Err(twice));
        let zero = DirectError::ZeroLength { index: 1 };
        let put = put_from(&store, &[(b"a", &[1]), (b"b", &[])]);
        assert_eq!(put, Err(zero.clone()));
        let mut a = [0];
        let got = get_into(&store, &mut [(b"a", &mut a), (b"b", &mut [])]);
        assert_eq!(got, Err(zero));
        let got = get_into(&store, &mut [(b"b", &mut a), (b"", &mut [1])]);
        assert_eq!(got, Err(empty));
        assert_eq!(store.calls.into_inner(), 0);
    }

    #[test]
    fn keys_are_seen_as_they_are_and_end_in_nul() {
        struct Keyed;
        impl Store for Keyed {
            fn name(&self) -> &str {
                "keyed"
            }
            fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
                for i in 0..batch.len() {
                    // SAFETY: a batch's keys are NUL-terminated until the call returns.
                    let key = unsafe { std::ffi::CStr::from_ptr(batch.key_ptrs()[i]) };
                    let same = key.to_bytes() == batch.key(i);
                    let long = key.count_bytes() == batch.key_lens()[i];
                    batch.set(i, Ok(same && long));
                }
                Ok(batch.len())
            }
            fn batch_get_into(&self, _: &mut RetrieveBatch<'_>) -> CallResult {
                Err(OpError::Unsupported)
            }
            fn batch_put_from(&self, _: &mut StoreBatch<'_>) -> CallResult {
                Err(OpError::Unsupported)
            }
            fn batch_remove(&self, _: &mut DeleteBatch<'_>) -> CallResult {
                Err(OpError::Unsupported)
            }
        }
        let keys: [&[u8]; 4] = [b"a", b"longer", &[b'k'; 1000], "键".as_bytes()];
        assert_eq!(exists(&Keyed, &keys), Ok(vec![Ok(true); 4]));
    }

    #[test]
    fn prepared_calls_settle_anew_each_time() {
        // Each call sets what the one before had set, or nothing.
        struct Once(AtomicUsize);
        impl Store for Once {
            fn name(&self) -> &str {
                "once"
            }
            fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
                if self.0.fetch_add(1, Relaxed) == 0 {
                    batch.set(0, Ok(true));
                    batch.set(1, Ok(true));
                }
                Ok(batch.len())
            }
            fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
                let n = self.0.fetch_add(1, Relaxed) as u8;
                for i in 0..batch.len() {
                    batch.fill(i, &[n, i as u8]);
                }
                Ok(batch.len())
            }
            fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
                for i in 0..batch.len() {
                    assert_eq!(batch.bytes(i)[1], i as u8);
                    batch.set(i, Ok(StoreOutcome::Stored));
                }
                Ok(batch.len())
            }
            fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
                let force = batch.force();
                for i in 0..batch.len() {
                    batch.set(i, force.then_some(()).ok_or(OpError::Leased));
                }
                Ok(batch.len())
            }
        }
        let store = Once(AtomicUsize::new(0));
        let mut keys = PreparedKeys::new(KEYS).unwrap();
        assert_eq!(keys.exists(&store).collect::<Vec<_>>(), [Ok(true); 2]);
        let unset = [Err(OpError::BadResult); 2];
        assert_eq!(keys.exists(&store).collect::<Vec<_>>(), unset);
        let mut memory = [[0u8; 2]; 3];
        let slices = memory.iter_mut().map(|buf| &mut buf[..]);
        let mut bufs = PreparedBuffers::new(slices).unwrap();
        for n in 2..4 {
            let got = keys.get_into(&store, &mut bufs).unwrap();
            assert_eq!(got.collect::<Vec<_>>(), [Ok(2); 2]);
            assert_eq!(bufs.get_mut(1), Some(&mut [n, 1][..]));
        }
        assert_eq!(bufs.get_mut(2), Some(&mut [0, 0][..]), "no key of its own");
        assert_eq!(bufs.get_mut(3), None);
        let put = keys.put_from(&store, &bufs).unwrap();
        assert_eq!(put.collect::<Vec<_>>(), [Ok(StoreOutcome::Stored); 2]);
        for (force, want) in [(true, Ok(())), (false, Err(OpError::Leased))] {
            assert_eq!(keys.remove(&store, force).collect::<Vec<_>>(), [want; 2]);
        }
    }

    #[test]
    fn prepared_keys_without_enough_buffers_make_no_call() {
        let store = Odd::default();
        let mut keys = PreparedKeys::new(KEYS).unwrap();
        let mut one = [0];
        let mut bufs = PreparedBuffers::new([&mut one[..]]).unwrap();
        let refused = DirectError::TooFewBuffers {
            keys: 2,
            buffers: 1,
        };
        let got = keys.get_into(&store, &mut bufs).map(drop);
        assert_eq!(got, Err(refused.clone()));
        let put = keys.put_from(&store, &bufs).map(drop);
        assert_eq!(put, Err(refused));
        let zero = PreparedBuffers::new([&mut [1][..], &mut []]).map(drop);
        assert_eq!(zero, Err(DirectError::ZeroLength { index: 1 }));
        assert_eq!(store.calls.into_inner(), 0);
    }

    #[test]
    fn an_empty_list_gives_an_empty_result_without_a_call() {
        let store = Odd::default();
        assert_eq!(exists(&store, &[]), Ok(vec![]));
        assert_eq!(get_into(&store, &mut []), Ok(vec![]));
        assert_eq!(put_from(&store, &[]), Ok(vec![]));
        assert_eq!(remove(&store, &[], true), Ok(vec![]));
        assert_eq!(store.calls.into_inner(), 0);
    }
}
