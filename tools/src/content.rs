//! What a block's bytes must be, so that every byte that comes back can be checked.
//!
//! Each line of 64 bytes is a pseudo-random function of the block's seed and the line's place, with the lowest
//! bit of every byte set. The poison that buffers are filled with before a retrieve has that bit clear, so
//! no byte of it can pass for content.

use serde::Serialize;

use crate::rng::{STEP, mix};

/// What buffers are filled with before a retrieve. Even; every byte of content is odd.
pub const POISON: u8 = 0x5A;

const ODD: u64 = 0x0101_0101_0101_0101;
/// Bytes that share one mixing; the words in it differ by a constant each, so that compilers vectorize them.
const LINE: usize = 64;
const LINE_WORDS: usize = LINE / 8;
/// Lines compared between two looks at the result.
const CHUNK_LINES: usize = 8;

const WORD_MASKS: [u64; LINE_WORDS] = {
    let mut masks = [0; LINE_WORDS];
    let mut i = 0;
    while i < LINE_WORDS {
        masks[i] = mix(i as u64 + 1);
        i += 1;
    }
    masks
};

/// The first byte that is not what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Its offset in bytes.
    pub offset: usize,
    /// The byte that the block has there.
    pub expected: u8,
    /// The byte that was found.
    pub found: u8,
}

impl Mismatch {
    /// Whether the byte is [`POISON`]: it was never written.
    pub fn is_poison(&self) -> bool {
        self.found == POISON
    }
}

/// The content of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    seed: u64,
}

impl Content {
    /// The content of block `id` under a salt (see [`salt_seed`]). Different ids have different seeds.
    pub fn new(id: u64, salt_seed: u64) -> Self {
        Self {
            seed: mix(id ^ salt_seed),
        }
    }

    /// The bytes of line `i`.
    #[inline]
    fn line(self, i: usize) -> [u8; LINE] {
        let base = mix(self.seed.wrapping_add((i as u64).wrapping_mul(STEP)));
        let mut line = [0; LINE];
        for (word, mask) in line.chunks_exact_mut(8).zip(WORD_MASKS) {
            word.copy_from_slice(&((base ^ mask) | ODD).to_le_bytes());
        }
        line
    }

    /// Writes the block's bytes into all of `buf`.
    pub fn fill(self, buf: &mut [u8]) {
        let (lines, tail) = buf.as_chunks_mut::<LINE>();
        let whole = lines.len();
        for (i, line) in lines.iter_mut().enumerate() {
            *line = self.line(i);
        }
        tail.copy_from_slice(&self.line(whole)[..tail.len()]);
    }

    /// Compares all of `buf` with the block's bytes.
    ///
    /// # Errors
    /// The first byte that differs.
    pub fn check(self, buf: &[u8]) -> Result<(), Mismatch> {
        let (lines, tail) = buf.as_chunks::<LINE>();
        // One branch a chunk: the differences of its lines are gathered first.
        for (nth, chunk) in lines.chunks(CHUNK_LINES).enumerate() {
            let first = nth * CHUNK_LINES;
            let mut difference = [0; LINE];
            for (k, found) in chunk.iter().enumerate() {
                let expected = self.line(first + k);
                for i in 0..LINE {
                    difference[i] |= found[i] ^ expected[i];
                }
            }
            if difference != [0; LINE] {
                for (k, line) in chunk.iter().enumerate() {
                    self.compare(line, first + k)?;
                }
            }
        }
        self.compare(tail, lines.len())
    }

    /// Compares line `i`, or what there is of it, byte by byte.
    fn compare(self, found: &[u8], i: usize) -> Result<(), Mismatch> {
        let differs = |(_, (found, expected)): &(usize, (&u8, u8))| *found != expected;
        match found.iter().zip(self.line(i)).enumerate().find(differs) {
            None => Ok(()),
            Some((at, (&found, expected))) => Err(Mismatch {
                offset: i * LINE + at,
                expected,
                found,
            }),
        }
    }
}

/// The number that a salt's text stands for in [`Content::new`]: FNV-1a, mixed.
pub fn salt_seed(salt: &str) -> u64 {
    let fnv = salt.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    mix(fnv)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [usize; 10] = [1, 7, 8, 63, 64, 65, 511, 512, 513, 1101];

    fn filled(content: Content, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        content.fill(&mut buf);
        buf
    }

    #[test]
    fn what_was_filled_checks() {
        for len in LENGTHS {
            let content = Content::new(7, 1);
            assert_eq!(content.check(&filled(content, len)), Ok(()), "{len}");
        }
    }

    #[test]
    fn every_flipped_bit_is_found_at_its_offset() {
        let content = Content::new(7, 1);
        for len in LENGTHS {
            let good = filled(content, len);
            for offset in 0..len {
                let mut bad = good.clone();
                bad[offset] ^= 1 << (offset % 8);
                // A second fault later must not hide the first.
                bad[len - 1] ^= 0x80;
                if bad == good {
                    continue;
                }
                let mismatch = content.check(&bad).expect_err("a fault");
                assert_eq!(mismatch.offset, offset, "length {len}");
                assert_eq!(mismatch.expected, good[offset]);
                assert_eq!(mismatch.found, bad[offset]);
            }
        }
    }

    #[test]
    fn no_byte_of_poison_passes_for_content() {
        for id in 0..200 {
            let block = filled(Content::new(id, 3), 4099);
            assert!(block.iter().all(|byte| byte % 2 == 1));
        }
        assert_eq!(POISON % 2, 0);
    }

    #[test]
    fn blocks_of_other_ids_and_salts_differ_at_once() {
        let (one, other) = (salt_seed("a"), salt_seed("b"));
        for id in 0..1000 {
            let block = filled(Content::new(id, one), 16);
            assert!(Content::new(id + 1, one).check(&block).is_err());
            assert!(Content::new(id, other).check(&block).is_err());
        }
    }

    #[test]
    fn a_block_is_a_prefix_of_the_longer_one() {
        // So a store that returns a cut object is told by its length, not by its bytes.
        let content = Content::new(1, 1);
        assert_eq!(filled(content, 4096)[..99], filled(content, 99));
    }
}
