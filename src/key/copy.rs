//! A key's way into its place: copied, hashed and looked through for a NUL, in one go.
//!
//! Hashes find equal keys of one store call; equal hashes are compared byte by byte. They are seeded per engine, so that nobody
//! can prepare keys that collide, and cost time there.
//!
//! Keys of 16 to 255 bytes on x86_64, nearly all: NH (J. Black et al., "UMAC: Fast and Secure Message Authentication", 1999), the sum
//! of the products of neighbouring 32-bit words, each with a word of the secret added: two keys of one length collide with a probability of 2^-32
//! at most, for each half of the 128 bits that are folded at the end. All others: a folded multiplication for each 16 bytes, as in wyhash and foldhash.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;

/// The secret of an engine.
#[derive(Clone)]
pub(crate) struct KeyHasher {
    seeds: [u64; 2],
    #[cfg(target_arch = "x86_64")]
    words: nh::Words,
}

impl KeyHasher {
    pub(crate) fn new() -> Self {
        let random = RandomState::default();
        Self {
            seeds: [random.hash_one(0u8), random.hash_one(1u8)],
            #[cfg(target_arch = "x86_64")]
            words: nh::Words::new(|i| random.hash_one(i)),
        }
    }

    #[inline(always)]
    fn start(&self, len: usize) -> u64 {
        self.seeds[1] ^ len as u64
    }

    #[inline(always)]
    fn step(&self, hash: u64, [low, high]: [u64; 2]) -> u64 {
        let product = u128::from(low ^ self.seeds[0]) * u128::from(high ^ hash);
        product as u64 ^ (product >> 64) as u64
    }
}

/// Copies a key and returns its hash, and whether there is a NUL in it.
///
/// # Safety
/// `to` must point to as many writable bytes as the key has.
#[inline(always)]
pub(super) unsafe fn copy(key: &[u8], to: *mut u8, hasher: &KeyHasher) -> (u64, bool) {
    #[cfg(target_arch = "x86_64")]
    if (16..=nh::LONGEST).contains(&key.len()) {
        // SAFETY: the length was just looked at; the caller vouches for `to`.
        return unsafe { nh::copy(key, to, hasher) };
    }
    // SAFETY: as above.
    unsafe { copy_by_steps(key, to, hasher) }
}

/// # Safety
/// As for [`copy`].
#[cfg_attr(target_arch = "x86_64", cold)]
unsafe fn copy_by_steps(key: &[u8], to: *mut u8, hasher: &KeyHasher) -> (u64, bool) {
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    // Not 0 if and only if a byte of `v` is: a borrow can only start at a zero byte.
    let nul = |v: u64| v.wrapping_sub(LOW) & !v & HIGH;
    let mut hash = hasher.start(key.len());
    let mut nuls = 0;
    let mut step = |words: [u64; 2]| {
        hash = hasher.step(hash, words);
        nuls |= nul(words[0]) | nul(words[1]);
    };
    let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
    let (blocks, rest) = key.as_chunks::<16>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        step([word(&words[0]), word(&words[1])]);
    }
    if !rest.is_empty() {
        // Filled up with what is no NUL; the length is in the hash, too.
        let mut block = [0xff; 16];
        block[..rest.len()].copy_from_slice(rest);
        let (words, _) = block.as_chunks::<8>();
        step([word(&words[0]), word(&words[1])]);
    }
    // SAFETY: the caller vouches for `to`, which is not the caller's key.
    unsafe { std::ptr::copy_nonoverlapping(key.as_ptr(), to, key.len()) };
    (hash, nuls != 0)
}

#[cfg(target_arch = "x86_64")]
mod nh {
    use std::arch::x86_64::*;

    use super::KeyHasher;

    /// The longest key for which there are enough secret words.
    pub(super) const LONGEST: usize = 256;

    /// Aligned, so that each block of them is an operand.
    #[derive(Clone)]
    #[repr(align(16))]
    pub(super) struct Words([u64; LONGEST / 8]);

    impl Words {
        pub(super) fn new(random: impl Fn(usize) -> u64) -> Self {
            Self(std::array::from_fn(random))
        }
    }

    struct State {
        sums: __m128i,
        /// The least byte of each column: 0 if and only if one of them is.
        least: __m128i,
    }

    impl State {
        /// One block of 16 bytes.
        ///
        /// # Safety
        /// 16 readable bytes at `from`, 16 writable ones at `to`, and 16 at `secret`, aligned.
        #[inline(always)]
        unsafe fn block(&mut self, from: *const u8, to: *mut u8, secret: *const u8) {
            // SAFETY: SSE2 is part of x86_64; the caller vouches for the pointers.
            unsafe {
                let bytes = _mm_loadu_si128(from.cast());
                _mm_storeu_si128(to.cast(), bytes);
                self.least = _mm_min_epu8(self.least, bytes);
                let words = _mm_add_epi32(bytes, _mm_load_si128(secret.cast()));
                let odd = _mm_shuffle_epi32(words, 0b11_11_01_01);
                self.sums = _mm_add_epi64(self.sums, _mm_mul_epu32(words, odd));
            }
        }
    }

    /// # Safety
    /// As for [`super::copy`]; the key must have 16 to [`LONGEST`] bytes.
    #[inline(always)]
    pub(super) unsafe fn copy(key: &[u8], to: *mut u8, hasher: &KeyHasher) -> (u64, bool) {
        let (from, len) = (key.as_ptr(), key.len());
        debug_assert!((16..=LONGEST).contains(&len));
        let secret = hasher.words.0.as_ptr().cast::<u8>();
        // SAFETY: SSE2 is part of x86_64. Each block but the last begins below `len - 16`; the last may overlap the one before. It
        // is number `len.div_ceil(16)` at most, and so many blocks has the secret.
        unsafe {
            let mut state = State {
                sums: _mm_setzero_si128(),
                least: _mm_set1_epi8(-1),
            };
            let last = len - 16;
            let mut at = 0;
            // Two at a time: half the loop.
            while at + 16 < last {
                state.block(from.add(at), to.add(at), secret.add(at));
                state.block(from.add(at + 16), to.add(at + 16), secret.add(at + 16));
                at += 32;
            }
            if at < last {
                state.block(from.add(at), to.add(at), secret.add(at));
                at += 16;
            }
            state.block(from.add(last), to.add(last), secret.add(at));
            let low = _mm_cvtsi128_si64(state.sums) as u64;
            let high = _mm_cvtsi128_si64(_mm_unpackhi_epi64(state.sums, state.sums)) as u64;
            let hash = hasher.step(hasher.start(len), [low, high]);
            let nuls = _mm_cmpeq_epi8(state.least, _mm_setzero_si128());
            (hash, _mm_movemask_epi8(nuls) != 0)
        }
    }
}
