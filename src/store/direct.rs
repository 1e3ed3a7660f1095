//! Calls on a store without an engine, for tests of stores and for tools.
//!
//! They settle results by the engine's rules: a result that the store left out is [`OpError::BadResult`], so is a
//! retrieve that claims more bytes than its buffer holds; a wrong number of results makes every key
//! [`OpError::WrongResultCount`]; an error of the call is every key's. What the engine keeps from a store is
//! refused here ([`DirectError`]) and no call is made. An empty list gives an empty result without a call.
//!
//! Panics of a store pass through. Each call allocates; this is not the way to read or write a cache fast.
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
}

/// Which keys exist.
///
/// # Errors
/// [`DirectError`] for lists that no store may see.
pub fn exists(
    store: &dyn Store,
    keys: &[&[u8]],
) -> Result<Vec<Result<bool, OpError>>, DirectError> {
    let mut call = Call::new(keys.iter().copied())?;
    let results = call.run(|keys| store.batch_exists(&mut LookupBatch { keys }));
    Ok(results.map(|r| r.map(|there| there != 0)).collect())
}

/// Reads objects into buffers: the true length of each in bytes.
///
/// # Errors
/// [`DirectError`] for lists that no store may see.
pub fn get_into(
    store: &dyn Store,
    items: &mut [(&[u8], &mut [u8])],
) -> Result<Vec<Result<u64, OpError>>, DirectError> {
    let mut call = Call::new(items.iter().map(|(key, _)| *key))?;
    let lens: Vec<usize> = items.iter().map(|(_, buf)| buf.len()).collect();
    refuse_zero_length(&lens)?;
    let bufs: Vec<*mut u8> = items.iter_mut().map(|(_, buf)| buf.as_mut_ptr()).collect();
    let results = call.run(|keys| {
        // SAFETY: the pointers and lengths are those of `items`' slices, which stay borrowed mutably by this
        // function, untouched by it, until the call has returned.
        let mut batch = unsafe { RetrieveBatch::new(keys, &bufs, &lens) };
        store.batch_get_into(&mut batch)
    });
    let fits = |(r, len): (RawResult, &usize)| match r {
        Ok(n) if n > *len as u64 => Err(OpError::BadResult),
        r => r,
    };
    Ok(results.zip(&lens).map(fits).collect())
}

/// Writes objects from buffers.
///
/// # Errors
/// [`DirectError`] for lists that no store may see.
pub fn put_from(
    store: &dyn Store,
    items: &[(&[u8], &[u8])],
) -> Result<Vec<Result<StoreOutcome, OpError>>, DirectError> {
    let mut call = Call::new(items.iter().map(|(key, _)| *key))?;
    let lens: Vec<usize> = items.iter().map(|(_, bytes)| bytes.len()).collect();
    refuse_zero_length(&lens)?;
    let bufs: Vec<*const u8> = items.iter().map(|(_, bytes)| bytes.as_ptr()).collect();
    let results = call.run(|keys| {
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
    let mut call = Call::new(keys.iter().copied())?;
    let results = call.run(|keys| store.batch_remove(&mut DeleteBatch::new(keys, force)));
    Ok(results.map(|r| r.map(|_| ())).collect())
}

fn refuse_zero_length(lens: &[usize]) -> Result<(), DirectError> {
    match lens.iter().position(|len| *len == 0) {
        Some(index) => Err(DirectError::ZeroLength { index }),
        None => Ok(()),
    }
}

/// The arrays of one call.
struct Call {
    /// All keys, each followed by its NUL.
    bytes: Vec<u8>,
    lens: Vec<usize>,
    results: Vec<RawResult>,
}

impl Call {
    fn new<'k>(keys: impl Iterator<Item = &'k [u8]>) -> Result<Self, DirectError> {
        let mut seen = HashMap::new();
        let mut bytes = Vec::new();
        let mut lens = Vec::new();
        for (index, key) in keys.enumerate() {
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
        let results = vec![UNSET; lens.len()];
        Ok(Self {
            bytes,
            lens,
            results,
        })
    }

    /// Makes the call and settles every key's result.
    fn run(
        &mut self,
        call: impl FnOnce(Keys<'_>) -> CallResult,
    ) -> impl Iterator<Item = RawResult> + '_ {
        if !self.lens.is_empty() {
            let mut ptrs: Vec<*const c_char> = Vec::with_capacity(self.lens.len());
            let mut rest: &[u8] = &self.bytes;
            for len in &self.lens {
                ptrs.push(rest.as_ptr().cast());
                rest = &rest[len + 1..];
            }
            // SAFETY: each pointer is to `lens[i]` bytes and a NUL in `self.bytes`, borrowed and unchanged until the
            // call has returned; the three arrays have one entry a key.
            let keys = unsafe { Keys::new(&ptrs, &self.lens, &mut self.results) };
            match call(keys) {
                Ok(n) if n == self.lens.len() => {}
                Ok(_) => self.results.fill(Err(OpError::WrongResultCount)),
                Err(error) => self.results.fill(Err(error)),
            }
        }
        self.results.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers as told, and counts calls.
    #[derive(Default)]
    struct Odd {
        calls: std::sync::atomic::AtomicUsize,
        answer: Option<CallResult>,
        set_first: bool,
        claim: u64,
    }

    impl Odd {
        fn answer(&self, len: usize) -> CallResult {
            self.calls
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
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
    fn an_empty_list_gives_an_empty_result_without_a_call() {
        let store = Odd::default();
        assert_eq!(exists(&store, &[]), Ok(vec![]));
        assert_eq!(get_into(&store, &mut []), Ok(vec![]));
        assert_eq!(put_from(&store, &[]), Ok(vec![]));
        assert_eq!(remove(&store, &[], true), Ok(vec![]));
        assert_eq!(store.calls.into_inner(), 0);
    }
}
