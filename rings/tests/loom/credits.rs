//! Credits: each is one thread's, however old what a taker saw below it.

use std::sync::atomic::AtomicUsize;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use moonring_rings::credits::Credits;

use crate::model;

/// A credit is one thread's at a time, and brings along what its last holder did to the entry.
#[test]
fn a_credit_is_one_threads() {
    model("credits a_credit_is_one_threads", 2, Some(3), || {
        let shared = Arc::new((
            Credits::new(2),
            [0, 1].map(UnsafeCell::new),
            AtomicUsize::new(0),
        ));
        let turn = |n: usize| {
            let shared = Arc::clone(&shared);
            move || {
                let (credits, cells, used) = &*shared;
                for _ in 0..n {
                    // Two others hold at most one each.
                    if let Some(index) = credits.acquire() {
                        // SAFETY: the credit is ours.
                        cells[index as usize].with_mut(|c| unsafe { *c += 10 });
                        used.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        credits.release(index);
                    }
                }
            }
        };
        let threads = [thread::spawn(turn(2)), thread::spawn(turn(1))];
        turn(1)();
        for thread in threads {
            thread.join().unwrap();
        }
        let (credits, cells, used) = &*shared;
        let mut left = [credits.acquire(), credits.acquire(), credits.acquire()];
        left.sort();
        assert_eq!(left, [None, Some(0), Some(1)]);
        // SAFETY: no thread is left.
        let sum: usize = cells.iter().map(|c| c.with(|c| unsafe { *c })).sum();
        let used = used.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(sum, 1 + 10 * used, "each use, and none twice");
        assert!(used >= 1);
    });
}

/// While one thread has looked at the two on top, another takes both and gives the first back: it is on top again, and what lay below it is
/// not free.
#[test]
fn one_that_comes_back_is_another() {
    model("credits one_that_comes_back_is_another", 1, None, || {
        let credits = Arc::new(Credits::new(2));
        let other = {
            let credits = Arc::clone(&credits);
            thread::spawn(move || {
                let first = credits.acquire();
                let second = credits.acquire();
                if let Some(first) = first {
                    credits.release(first);
                }
                second
            })
        };
        let mine = credits.acquire();
        let theirs = other.join().unwrap();
        // Theirs is held for good.
        assert!(mine.is_none() || mine != theirs, "held twice: {mine:?}");
        let left: Vec<_> = std::iter::from_fn(|| credits.acquire()).collect();
        let held = [mine, theirs].into_iter().flatten();
        let mut all: Vec<_> = held.chain(left).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1]);
    });
}

/// The count is right once all is quiet, whoever gave back what.
#[test]
fn the_free_ones_are_counted() {
    model("credits the_free_ones_are_counted", 2, Some(3), || {
        let credits = Arc::new(Credits::new(3));
        let turns = [0, 1].map(|_| {
            let credits = Arc::clone(&credits);
            thread::spawn(move || {
                if let Some(index) = credits.acquire() {
                    credits.release(index);
                }
            })
        });
        let mine = credits.acquire();
        for turn in turns {
            turn.join().unwrap();
        }
        assert!(mine.is_some(), "there are more than threads");
        assert_eq!(credits.free(), 2);
    });
}
