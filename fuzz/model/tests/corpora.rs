//! What the fuzzer has found is tried again in every test run, and some scripts that nobody chose.

use moonring_fuzz_model::engine;

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn the_engine_does_as_the_model_says_in_random_scripts() {
    let n: u64 = std::env::var("MOONRING_SCRIPTS").map_or(200, |n| n.parse().unwrap());
    let first: u64 = std::env::var("MOONRING_SCRIPT").map_or(0, |n| n.parse().unwrap());
    for seed in first..first + n {
        let mut state = seed;
        let len = 8 + next(&mut state) as usize % 1200;
        let bytes: Vec<u8> = (0..len).map(|_| next(&mut state) as u8).collect();
        let ran = std::panic::catch_unwind(|| engine::check(&bytes));
        assert!(ran.is_ok(), "script {seed}");
    }
}
