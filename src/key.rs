//! Keys: what is refused, how they are hashed, and where they lie while their op is in flight.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use moonring_rings::sync::UnsafeCell;

use crate::SubmitError;

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

/// Hashes keys for folding. Seeded per engine, so that nobody can prepare keys that collide; that would cost time, not
/// correctness, for equal hashes are compared.
#[derive(Clone, Debug)]
pub(crate) struct KeyHasher {
    seeds: [u64; 2],
}

impl KeyHasher {
    pub(crate) fn new() -> Self {
        let random = RandomState::default();
        Self {
            seeds: [random.hash_one(0u8), random.hash_one(1u8)],
        }
    }

    /// One step over 16 bytes: a folded multiplication, as in wyhash and foldhash.
    #[inline(always)]
    fn step(&self, hash: u64, (low, high): (u64, u64)) -> u64 {
        let product = u128::from(low ^ self.seeds[0]) * u128::from(high ^ hash);
        product as u64 ^ (product >> 64) as u64
    }
}

/// What has been copied: whether a NUL was among it.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Least(std::arch::x86_64::__m128i);

#[cfg(target_arch = "x86_64")]
impl Least {
    #[inline(always)]
    fn new() -> Self {
        // SAFETY: SSE2 is part of x86_64.
        Self(unsafe { std::arch::x86_64::_mm_set1_epi8(-1) })
    }

    /// Copies 16 bytes and returns them as two words.
    ///
    /// # Safety
    /// 16 readable bytes at `from`, 16 writable ones at `to`.
    #[inline(always)]
    unsafe fn copy_16(&mut self, from: *const u8, to: *mut u8) -> (u64, u64) {
        use std::arch::x86_64::*;
        // SAFETY: SSE2 is part of x86_64; the caller vouches for the pointers, which need no alignment here.
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            _mm_storeu_si128(to.cast(), bytes);
            // The least byte of each column: 0 if and only if one of them is.
            self.0 = _mm_min_epu8(self.0, bytes);
            let words = (from.cast::<u64>(), from.add(8).cast::<u64>());
            (words.0.read_unaligned(), words.1.read_unaligned())
        }
    }

    #[inline(always)]
    fn has_nul(self) -> bool {
        use std::arch::x86_64::*;
        // SAFETY: SSE2 is part of x86_64.
        unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(self.0, _mm_setzero_si128())) != 0 }
    }
}

/// As above.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy)]
struct Least(u64);

#[cfg(not(target_arch = "x86_64"))]
impl Least {
    #[inline(always)]
    fn new() -> Self {
        Self(0)
    }

    /// As above.
    ///
    /// # Safety
    /// 16 readable bytes at `from`, 16 writable ones at `to`.
    #[inline(always)]
    unsafe fn copy_16(&mut self, from: *const u8, to: *mut u8) -> (u64, u64) {
        const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
        const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
        // Not 0 if and only if a byte of `v` is: a borrow can only start at a zero byte.
        let nul = |v: u64| v.wrapping_sub(LOW) & !v & HIGH;
        // SAFETY: the caller vouches for the pointers, which need no alignment here.
        unsafe {
            let words = (
                from.cast::<u64>().read_unaligned(),
                from.add(8).cast::<u64>().read_unaligned(),
            );
            to.cast::<u64>().write_unaligned(words.0);
            to.add(8).cast::<u64>().write_unaligned(words.1);
            self.0 |= nul(words.0) | nul(words.1);
            words
        }
    }

    #[inline(always)]
    fn has_nul(self) -> bool {
        self.0 != 0
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

    /// Copies a key and its NUL into a place, hashing it on the way; returns where it lies and its hash.
    ///
    /// # Errors
    /// The offset of a NUL in the key. The place is free then as before.
    ///
    /// # Safety
    /// The place must be the caller's: no op in flight uses it. The key must fit, and not be empty.
    #[inline]
    pub(crate) unsafe fn write(
        &self,
        place: u32,
        key: &[u8],
        hasher: &KeyHasher,
    ) -> Result<(*const u8, u64), usize> {
        debug_assert!(!key.is_empty() && key.len() < self.stride);
        let start = place as usize * self.stride;
        let to = self.bytes[start..start + self.stride][0].with_mut(|p| p);
        let (from, len) = (key.as_ptr(), key.len());
        let mut hash = hasher.seeds[1] ^ len as u64;
        let mut least = Least::new();
        // SAFETY: `check_len` has bounded the key to `stride - 1` bytes, the slice above has `stride`, cells of bytes lie side
        // by side, and the caller owns the place. Each step stays below `len`, which is 16 at least where steps of 16
        // are made; the last one may overlap the one before.
        unsafe {
            if len >= 16 {
                let last = len - 16;
                let mut at = 0;
                // Two at a time: half the loop.
                while at + 16 < last {
                    hash = hasher.step(hash, least.copy_16(from.add(at), to.add(at)));
                    hash = hasher.step(hash, least.copy_16(from.add(at + 16), to.add(at + 16)));
                    at += 32;
                }
                if at < last {
                    hash = hasher.step(hash, least.copy_16(from.add(at), to.add(at)));
                }
                hash = hasher.step(hash, least.copy_16(from.add(last), to.add(last)));
            } else {
                let mut short = [0xff; 16];
                let mut copy = [0; 16];
                short[..len].copy_from_slice(key);
                hash = hasher.step(hash, least.copy_16(short.as_ptr(), copy.as_mut_ptr()));
                std::ptr::copy_nonoverlapping(from, to, len);
            }
            to.add(len).write(0);
        }
        if least.has_nul() {
            return Err(key.iter().position(|&b| b == 0).unwrap_or(0));
        }
        Ok((to, hash))
    }
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
        for len in 1..=255 {
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
        let (places, hasher) = (KeyPlaces::inline(1), KeyHasher::new());
        // SAFETY: no op uses the place.
        let hash = |key: &[u8]| unsafe { places.write(0, key, &hasher) }.unwrap().1;
        for len in 1..=255 {
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
