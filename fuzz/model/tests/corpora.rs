//! What the fuzzers have found is tried again in every test run, and some scripts that nobody chose.

use std::panic::catch_unwind;
use std::path::PathBuf;

use moonring_fuzz_model::{config, engine, trace};

/// Runs each file of a corpus; says which one fails.
fn replay(target: &str, check: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    let entries = std::fs::read_dir(folder.join(target)).expect("a corpus");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 20, "{target}: {} files", files.len());
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let ran = catch_unwind(|| check(&bytes));
        assert!(ran.is_ok(), "{}", file.display());
    }
}

#[test]
fn the_corpus_of_configurations() {
    replay("config", config::check);
}

#[test]
fn the_corpus_of_traces() {
    replay("trace", trace::check);
}

#[test]
fn the_corpus_of_scripts() {
    replay("engine", engine::check);
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `MOONRING_SCRIPTS`: how many; `MOONRING_SCRIPT`: the first one's number.
#[test]
fn the_engine_does_as_the_model_says_in_random_scripts() {
    let number = |name, default| std::env::var(name).map_or(default, |n| n.parse().unwrap());
    let (first, n): (u64, u64) = (
        number("MOONRING_SCRIPT", 0),
        number("MOONRING_SCRIPTS", 100),
    );
    for seed in first..first + n {
        let mut state = seed;
        let len = 8 + next(&mut state) as usize % 1200;
        let bytes: Vec<u8> = (0..len).map(|_| next(&mut state) as u8).collect();
        let ran = catch_unwind(|| engine::check(&bytes));
        assert!(
            ran.is_ok(),
            "script {seed}: again with MOONRING_SCRIPT={seed} MOONRING_SCRIPTS=1 MOONRING_SAY=1"
        );
    }
}
