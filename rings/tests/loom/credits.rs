//! Credits: each is one thread's, however old what a taker saw below it.

use loom::sync::Arc;
use loom::thread;
use moonring_rings::credits::Credits;

use crate::{model, one_threads};

/// A credit is one thread's at a time, and brings along what its last holder did to the entry.
#[test]
fn a_credit_is_one_threads() {
    one_threads(
        "credits a_credit_is_one_threads",
        || Credits::new(2),
        |credits| credits.acquire().map(u64::from),
        |credits, index| credits.release(index as u32),
    );
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
