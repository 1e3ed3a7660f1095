//! The completion ring: several pushers, one reader, laps bounded by credits.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use moonring_rings::completion::{CompletionRing, Cursor};

use crate::model;

fn push(ring: &CompletionRing, entries: &[(u64, u64)]) {
    ring.push_all(entries.iter().copied());
}

/// Two pushers, one of them with both notices of an op at once. The reader gets each once, with its value, and what the op
/// wrote before.
#[test]
fn two_pushers() {
    model("completion two_pushers", 2, None, || {
        let shared = Arc::new((CompletionRing::new(2), [0, 1].map(UnsafeCell::new)));
        let pushers = [vec![(0, 5)], vec![(1, 6), (1, 7)]].map(|entries| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (ring, results) = &*shared;
                // SAFETY: the op's result is this thread's until its completion is read.
                results[entries[0].0 as usize].with_mut(|r| unsafe { *r = 9 });
                push(ring, &entries);
            })
        });
        let (ring, results) = &*shared;
        let mut cursor = Cursor::default();
        let mut got = Vec::new();
        let mut read = |cursor: &mut Cursor| {
            let ready = ring.has_ready(cursor, 0);
            let entry = ring.pop(cursor);
            assert!(!ready || entry.is_some(), "what is ready is there");
            got.extend(entry.inspect(|&(word, _)| {
                // SAFETY: the op is done.
                results[word as usize].with(|r| assert_eq!(unsafe { *r }, 9));
            }));
        };
        read(&mut cursor);
        read(&mut cursor);
        for pusher in pushers {
            pusher.join().unwrap();
        }
        for _ in 0..3 {
            read(&mut cursor);
        }
        assert_eq!((cursor.popped(), ring.pushed()), (3, 3));
        let second: Vec<_> = got.iter().copied().filter(|e| e.0 == 1).collect();
        assert_eq!(second, [(1, 6), (1, 7)]);
        assert!(got.contains(&(0, 5)));
    });
}

/// Two credits. One op ends at some time, whenever; the other credit is used over and over meanwhile, so that the slow op's
/// completion falls into any lap of the ring, with nothing but the claims between it and the reads of the lap before.
#[test]
fn a_slow_op_completes_in_a_later_lap() {
    model(
        "completion a_slow_op_completes_in_a_later_lap",
        1,
        None,
        || {
            let ring = Arc::new(CompletionRing::new(2));
            let slow = {
                let ring = Arc::clone(&ring);
                thread::spawn(move || push(&ring, &[(99, 990)]))
            };
            let mut cursor = Cursor::default();
            let mut got = Vec::new();
            let (mut accepted, mut slow_done) = (0, false);
            for _ in 0..9 {
                if accepted == got.len() as u64 {
                    // The other credit is free.
                    push(&ring, &[(accepted, 10 * accepted)]);
                    accepted += 1;
                }
                match ring.pop(&mut cursor) {
                    Some((99, value)) => {
                        assert!(!slow_done && value == 990);
                        slow_done = true;
                    }
                    Some((word, value)) => {
                        assert_eq!(value, 10 * word);
                        got.push(word);
                    }
                    // Behind the gap that the slow op's completion left.
                    None => break,
                }
            }
            slow.join().unwrap();
            while let Some((word, value)) = ring.pop(&mut cursor) {
                assert_eq!(value, 10 * word);
                match word {
                    99 => slow_done = true,
                    _ => got.push(word),
                }
            }
            assert!(slow_done && got.into_iter().eq(0..accepted));
        },
    );
}

/// One credit, two notices per op, three laps, from two threads in turn: the second accepts only what the first's reader has
/// given back.
#[test]
fn both_notices_over_laps() {
    model("completion both_notices_over_laps", 2, None, || {
        use loom::sync::atomic::{AtomicUsize, Ordering};
        let shared = Arc::new((CompletionRing::new(1), AtomicUsize::new(0)));
        // Each serves the ops that it is handed, if it sees them in time.
        let workers = [1, 2].map(|op: usize| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let accepted = shared.1.load(Ordering::Acquire) == op;
                if accepted {
                    push(&shared.0, &[(op as u64, 1)]);
                    push(&shared.0, &[(op as u64, 2)]);
                }
                accepted
            })
        });
        let mut cursor = Cursor::default();
        let mut got = Vec::new();
        push(&shared.0, &[(0, 1), (0, 2)]);
        for op in 1..3 {
            got.extend(shared.0.pop(&mut cursor));
            got.extend(shared.0.pop(&mut cursor));
            if got.len() == 2 * op {
                // Both notices are read: the credit is free.
                shared.1.store(op, Ordering::Release);
            }
        }
        let served = workers.map(|w| w.join().unwrap());
        while let Some(entry) = shared.0.pop(&mut cursor) {
            got.push(entry);
        }
        let mut expected = vec![(0, 1), (0, 2)];
        for op in [1, 2].into_iter().filter(|op| served[op - 1]) {
            expected.extend([(op as u64, 1), (op as u64, 2)]);
        }
        assert_eq!(got, expected);
    });
}
