//! What a busy machine may spoil, asked of one run of several. (A file of its own: the tests of tools and examples have it, too.)

/// Runs `run` until one finds nothing amiss, at most `runs` times, and gives what that one gave: a machine that does other things
/// spoils some of them, and a fault all.
#[track_caller]
pub fn one_run_of<T>(runs: usize, mut run: impl FnMut() -> Result<T, String>) -> T {
    let mut amiss = String::new();
    for n in 1..=runs {
        match run() {
            Ok(found) => return found,
            Err(why) => amiss += &format!("\n  run {n}: {why}"),
        }
    }
    panic!("it held in none of {runs} runs:{amiss}");
}
