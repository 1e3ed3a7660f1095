//! Keys: what is refused, how they are hashed, and where they lie while their op is in flight.

use std::cell::UnsafeCell;

use crate::SubmitError;

mod copy;

pub(crate) use copy::KeyHasher;

/// Longest key, in bytes, that has its place in every op of a table; with its NUL it fills four cache lines.
pub const INLINE_KEY: usize = 255;

const PLACE: usize = INLINE_KEY + 1;

/// Refuses an empty key, and one of more than `max` bytes. A NUL inside is found by [`KeyPlaces::write`].
#[inline]
pub(crate) fn check_len(key: &[u8], max: usize) -> Result<(), SubmitError> {
    if key.is_empty() {
        return Err(SubmitError::EmptyKey);
    }
    if key.len() > max {
        return Err(SubmitError::KeyTooLong {
            len: key.len(),
            max,
        });
    }
    Ok(())
}

/// A cache line.
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; LINE]);

const LINE: usize = 64;

// A key's place in every op of a table.
const _: () = assert!(PLACE.is_multiple_of(LINE));

/// A block of places for keys, each of some cache lines, the last byte for a NUL.
pub(crate) struct KeyPlaces {
    lines: Box<[UnsafeCell<Line>]>,
    /// Lines of a place.
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

    fn new(count: usize, bytes: usize) -> Self {
        let stride = bytes.div_ceil(LINE);
        Self {
            lines: (0..count * stride)
                .map(|_| UnsafeCell::new(Line([0; LINE])))
                .collect(),
            stride,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.lines.len() / self.stride
    }

    /// Copies a key and its NUL into a place, hashing it on the way; returns where it lies and its hash.
    ///
    /// # Errors
    /// The offset of a NUL in the key. The place is free then as before.
    ///
    /// # Safety
    /// The place must be one of these, and the caller's: no op in flight uses it. The key must fit, and not be empty.
    #[inline(always)]
    pub(crate) unsafe fn write(
        &self,
        place: u32,
        key: &[u8],
        hasher: &KeyHasher,
    ) -> Result<(*const u8, u64), usize> {
        let first = place as usize * self.stride;
        debug_assert!(!key.is_empty() && key.len() < self.stride * LINE);
        debug_assert!(first + self.stride <= self.lines.len());
        // SAFETY: the caller vouches for the place: its lines are in the block, its bytes the caller's, and the key and a NUL fit.
        let (to, (hash, has_nul)) = unsafe {
            let to = self.lines.as_ptr().add(first).cast::<u8>().cast_mut();
            let copied = copy::copy(key, to, hasher);
            to.add(key.len()).write(0);
            (to, copied)
        };
        if has_nul {
            return Err(position_of_nul(key));
        }
        Ok((to, hash))
    }
}

#[cold]
fn position_of_nul(key: &[u8]) -> usize {
    key.iter().position(|&b| b == 0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SubmitError as E;

    #[test]
    fn the_length_of_a_key_is_bounded() {
        assert_eq!(check_len(b"", 10), Err(E::EmptyKey));
        assert_eq!(check_len(b"1234567890", 10), Ok(()));
        assert_eq!(
            check_len(b"12345678901", 10),
            Err(E::KeyTooLong { len: 11, max: 10 })
        );
    }

    #[test]
    fn a_place_holds_the_key_and_its_nul_and_a_nul_inside_is_found() {
        let (places, hasher) = (KeyPlaces::inline(3), KeyHasher::new());
        for len in 1..=INLINE_KEY {
            for byte in [0x01, 0x80, 0xff] {
                let mut key: Vec<u8> = (0..len).map(|i| (i as u8 % 100) + 1).collect();
                key[len - 1] = byte;
                // SAFETY: no op uses the place, which then holds what was written.
                let (to, hash) = unsafe { places.write(1, &key, &hasher) }.unwrap();
                // SAFETY: as above.
                let place = unsafe { std::slice::from_raw_parts(to, len + 1) };
                assert_eq!((&place[..len], place[len]), (&key[..], 0));
                // SAFETY: as above.
                let again = unsafe { places.write(2, &key, &hasher) }.unwrap().1;
                assert_eq!(hash, again, "equal keys have equal hashes");
            }
            for at in 0..len {
                let mut key = vec![b'k'; len];
                key[at] = 0;
                key[len - 1] = if at == len - 1 { 0 } else { b'k' };
                // SAFETY: as above.
                assert_eq!(unsafe { places.write(1, &key, &hasher) }, Err(at), "{len}");
            }
        }
        assert_eq!(KeyPlaces::long(4, 255).count(), 0);
        assert_eq!(KeyPlaces::long(4, 256).count(), 4);
    }

    /// A bit anywhere in a key changes its hash: no part is left out.
    #[test]
    fn every_byte_counts_in_the_hash() {
        let (places, hasher) = (KeyPlaces::long(1, 1000), KeyHasher::new());
        // SAFETY: no op uses the place.
        let hash = |key: &[u8]| unsafe { places.write(0, key, &hasher) }.unwrap().1;
        for len in (1..=INLINE_KEY + 20).chain([1000]) {
            let key = vec![b'k'; len];
            for at in 0..len {
                let mut other = key.clone();
                other[at] ^= 1;
                assert_ne!(hash(&key), hash(&other), "byte {at} of {len}");
            }
        }
        assert_ne!(hash(b"kk"), hash(b"k"));
    }
}
