//! Models of every ring, the wake word and the in-flight table: loom runs each through all the interleavings, and
//! all the stale values an atomic load may see, within the bounds that the model prints.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p moonring-rings --release --test loom
//! ```
//!
//! Each model has its own bound on preemptions, or none; `LOOM_MAX_PREEMPTIONS=2` caps them all.
//!
//! What loom can't see, and the models therefore don't rely on: it treats SeqCst accesses as AcqRel (only the
//! fence is sequentially consistent), a read-modify-write always finds the newest value, and no load sees a value
//! that is stored later in the same execution (load buffering).
#![cfg(loom)]

mod completion;
mod credits;
mod deadline;
mod life;
mod linger;
mod mpmc;
mod notify;
mod park;
mod ready;
mod slots;
mod spsc;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use loom::cell::UnsafeCell;

/// Runs `f` in every way that loom finds, with at most `preemptions` (`None`: any number), or fewer if the environment
/// says so, and says how far that went. `threads` is how many `f` starts besides its own.
fn model(
    name: &str,
    threads: usize,
    preemptions: Option<usize>,
    f: impl Fn() + Send + Sync + 'static,
) {
    assert!(threads <= 3, "more threads than a model may have");
    let mut builder = loom::model::Builder::new();
    builder.max_threads = threads + 1;
    builder.max_branches = 10_000;
    // What the environment says is in there already. The smaller of the two.
    let bounds = [builder.preemption_bound, preemptions];
    builder.preemption_bound = bounds.into_iter().flatten().min();
    let bound = match builder.preemption_bound {
        Some(n) => format!("at most {n}"),
        None => "any number of".to_owned(),
    };
    let runs = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let counted = Arc::clone(&runs);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        f();
    });
    // Past the harness, which would swallow it where a test goes well.
    let _ = writeln!(
        std::io::stderr(),
        "loom {name}: {threads} threads besides main, {bound} preemptions, {} executions, {:.1} s",
        runs.load(Ordering::Relaxed),
        start.elapsed().as_secs_f64(),
    );
}

/// Three threads take the numbers 0 and 1 from a pool that `new` makes, and give them back: each is one thread's at a time, and brings
/// along what its last holder did.
fn one_threads<P: Send + Sync + 'static>(
    name: &str,
    new: impl Fn() -> P + Send + Sync + 'static,
    take: fn(&P) -> Option<u64>,
    give: fn(&P, u64),
) {
    model(name, 2, Some(3), move || {
        let cells = [0, 1].map(UnsafeCell::new);
        let shared = loom::sync::Arc::new((new(), cells, AtomicUsize::new(0)));
        let turn = |n: usize| {
            let shared = loom::sync::Arc::clone(&shared);
            move || {
                let (pool, cells, used) = &*shared;
                for _ in 0..n {
                    // Two others hold at most one each.
                    if let Some(number) = take(pool) {
                        // SAFETY: the number is ours.
                        cells[number as usize].with_mut(|c| unsafe { *c += 10 });
                        used.fetch_add(1, Ordering::Relaxed);
                        give(pool, number);
                    }
                }
            }
        };
        let threads = [turn(2), turn(1)].map(loom::thread::spawn);
        turn(1)();
        for thread in threads {
            thread.join().unwrap();
        }
        let (pool, cells, used) = &*shared;
        let mut left = [take(pool), take(pool), take(pool)];
        left.sort();
        assert_eq!(left, [None, Some(0), Some(1)]);
        // SAFETY: no thread is left.
        let sum: usize = cells.iter().map(|c| c.with(|c| unsafe { *c })).sum();
        let used = used.load(Ordering::Relaxed);
        assert_eq!(sum, 1 + 10 * used, "each use, and none twice");
        assert!(used >= 1);
    });
}

/// Counts how often each of a handful of values was dropped. Not seen by loom: it only counts.
#[derive(Clone, Debug)]
struct Drops(Arc<Vec<AtomicUsize>>);

/// A value that counts its drop.
#[derive(Debug)]
struct Counted {
    number: usize,
    drops: Drops,
}

impl Drops {
    fn new(n: usize) -> Self {
        Self(Arc::new((0..n).map(|_| AtomicUsize::new(0)).collect()))
    }

    fn value(&self, number: usize) -> Counted {
        Counted {
            number,
            drops: self.clone(),
        }
    }

    fn of(&self, number: usize) -> usize {
        self.0[number].load(Ordering::Relaxed)
    }

    fn assert_each_once(&self) {
        for number in 0..self.0.len() {
            assert_eq!(self.of(number), 1, "drops of value {number}");
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.drops.0[self.number].fetch_add(1, Ordering::Relaxed);
    }
}
