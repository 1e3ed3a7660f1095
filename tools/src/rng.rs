//! SplitMix64 (Steele, Lea, Flood 2014): seeds, block contents and made-up traces, the same on every machine.

/// The step between states: 2^64 divided by the golden ratio, odd.
pub const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64's output function. A bijection: different inputs have different outputs.
#[inline]
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A small random number generator. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_splitmix64() {
        // The reference implementation's first outputs for the seed 1234567.
        let mut rng = Rng::new(1_234_567);
        let want = [
            6457827717110365317,
            3203168211198807973,
            9817491932198370423,
        ];
        assert_eq!([rng.next_u64(), rng.next_u64(), rng.next_u64()], want);
    }

    #[test]
    fn numbers_stay_in_their_bounds_and_reach_them() {
        let mut rng = Rng::new(1);
        let drawn: Vec<_> = (0..1000).map(|_| rng.between(3, 5)).collect();
        assert_eq!(drawn.iter().min(), Some(&3));
        assert_eq!(drawn.iter().max(), Some(&5));
        assert_eq!(rng.below(0), 0);
    }
}
