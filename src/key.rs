//! Keys: what is refused, how they are hashed, and where they lie while their op is in flight.

use std::hash::{BuildHasher, Hasher};

use moonring_rings::sync::UnsafeCell;

use crate::SubmitError;

/// Longest key, in bytes, that has its place in every op of a table; with its NUL it fills four cache lines.
pub const INLINE_KEY: usize = 255;

const PLACE: usize = INLINE_KEY + 1;

/// Refuses what no store may see: an empty key, a NUL inside (C interfaces cut there), more than `max` bytes.
#[inline]
pub(crate) fn check(key: &[u8], max: usize) -> Result<(), SubmitError> {
    if key.is_empty() {
        return Err(SubmitError::EmptyKey);
    }
    if key.len() > max {
        return Err(SubmitError::KeyTooLong {
            len: key.len(),
            max,
        });
    }
    match memchr::memchr(0, key) {
        None => Ok(()),
        Some(at) => Err(SubmitError::NulInKey { at }),
    }
}

/// Hashes keys for folding. Seeded per engine, so that nobody can prepare keys that collide.
#[derive(Clone, Debug)]
pub(crate) struct KeyHasher(foldhash::fast::FixedState);

impl KeyHasher {
    pub(crate) fn new() -> Self {
        let seed = foldhash::fast::RandomState::default().hash_one(0u8);
        Self(foldhash::fast::FixedState::with_seed(seed))
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(key);
        hasher.finish()
    }
}

/// A block of places for keys, each with room for `stride - 1` bytes and a NUL.
pub(crate) struct KeyPlaces {
    bytes: Box<[UnsafeCell<u8>]>,
    stride: usize,
}

// SAFETY: a place is written by the owner of its op before the op is published, and only read until the owner has it
// back; the ring's publication and the completion order the two.
unsafe impl Sync for KeyPlaces {}

impl KeyPlaces {
    /// `count` places for keys of up to [`INLINE_KEY`] bytes.
    pub(crate) fn inline(count: usize) -> Self {
        Self::new(count, PLACE)
    }

    /// `count` places for keys of up to `max` bytes.
    pub(crate) fn long(count: usize, max: usize) -> Self {
        Self::new(if max > INLINE_KEY { count } else { 0 }, max + 1)
    }

    fn new(count: usize, stride: usize) -> Self {
        Self {
            bytes: (0..count * stride).map(|_| UnsafeCell::new(0)).collect(),
            stride,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.bytes.len() / self.stride
    }

    /// Copies a key and its NUL into a place; returns where it lies.
    ///
    /// # Safety
    /// The place must be the caller's: no op in flight uses it.
    #[inline]
    pub(crate) unsafe fn write(&self, place: u32, key: &[u8]) -> *const u8 {
        debug_assert!(key.len() < self.stride);
        let start = place as usize * self.stride;
        let bytes = &self.bytes[start..start + self.stride];
        let to = bytes[0].with_mut(|p| p);
        // SAFETY: `check` has bounded the key to `stride - 1` bytes, the slice above has `stride`, cells of bytes lie
        // side by side, and the caller owns the place.
        unsafe {
            std::ptr::copy_nonoverlapping(key.as_ptr(), to, key.len());
            to.add(key.len()).write(0);
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SubmitError as E;

    #[test]
    fn bad_keys_are_refused_and_the_first_nul_is_named() {
        assert_eq!(check(b"", 10), Err(E::EmptyKey));
        assert_eq!(
            check(b"12345678901", 10),
            Err(E::KeyTooLong { len: 11, max: 10 })
        );
        for len in 1..40 {
            assert_eq!(check(&vec![0x80u8; len], 40), Ok(()));
            assert_eq!(check(&vec![1u8; len], 40), Ok(()));
            for at in 0..len {
                let mut key = vec![0x01u8; len];
                key[at] = 0;
                key[len - 1] = if at == len - 1 { 0 } else { 1 };
                assert_eq!(check(&key, 40), Err(E::NulInKey { at }), "{len} {at}");
            }
        }
    }

    #[test]
    fn a_place_holds_the_key_and_its_nul() {
        let places = KeyPlaces::inline(2);
        // SAFETY: no op uses the places.
        let (a, b) = unsafe { (places.write(0, &[7; 255]), places.write(1, b"b")) };
        // SAFETY: both places hold what was just written.
        let (a, b) = unsafe {
            (
                std::slice::from_raw_parts(a, 256),
                std::slice::from_raw_parts(b, 2),
            )
        };
        assert_eq!((&a[..255], a[255], b), (&[7u8; 255][..], 0, &b"b\0"[..]));
        assert_eq!(KeyPlaces::long(4, 255).count(), 0);
        assert_eq!(KeyPlaces::long(4, 256).count(), 4);
    }
}
