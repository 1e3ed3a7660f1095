//! The completion ring against a plain model, and under load.
#![cfg(not(loom))]

mod support;

use std::collections::VecDeque;
use std::time::Duration;

use moonring_rings::completion::{CompletionRing, Cursor};
use moonring_rings::mpmc::{Mpmc, WORD_LIMIT};
use proptest::prelude::*;
use support::within;

proptest! {
    #![proptest_config(support::cases())]

    /// Ops are accepted while there are credits, end with one notice or two, in one burst or apart, in any order.
    #[test]
    fn does_what_a_queue_does(
        credits in 1..6usize,
        steps in prop::collection::vec((0..4u8, any::<prop::sample::Index>(), any::<u64>()), 0..300),
    ) {
        let ring = CompletionRing::new(credits);
        let mut cursor = Cursor::default();
        let mut model = VecDeque::new();
        // Ops in flight, and whether their first notice is out; ops whose last notice is not read.
        let (mut running, mut unread, mut next) = (Vec::new(), 0, 0u64);
        for (step, which, value) in steps {
            match step {
                0 if running.len() + unread < credits => {
                    // Words up to the limit: nothing of the lap bit may get into them.
                    running.push((WORD_LIMIT - 1 - next, false));
                    next += 1;
                }
                1 if !running.is_empty() => {
                    // First and last notice at once, or what is left of them.
                    let (word, started) = running.swap_remove(which.index(running.len()));
                    let notices = [(word, 1), (word, 2)];
                    let notices = &notices[usize::from(started)..];
                    ring.push_all(notices.iter().copied());
                    model.extend(notices.iter().copied());
                    unread += 1;
                }
                2 if !running.is_empty() => {
                    let i = which.index(running.len());
                    if !running[i].1 {
                        running[i].1 = true;
                        ring.push_all([(running[i].0, 1)].into_iter());
                        model.push_back((running[i].0, 1));
                    }
                }
                _ => {
                    let ahead = (value % 16) as usize;
                    prop_assert_eq!(ring.has_ready(&cursor, ahead), ahead < model.len());
                    let entry = ring.pop(&mut cursor);
                    prop_assert_eq!(entry, model.pop_front());
                    unread -= usize::from(entry.is_some_and(|(_, notice)| notice == 2));
                }
            }
            prop_assert_eq!(ring.pushed() - cursor.popped(), model.len() as u64);
            prop_assert!(!ring.has_ready(&cursor, usize::MAX));
        }
    }

    #[test]
    fn values_are_kept_whole(entries in prop::collection::vec((0..WORD_LIMIT, any::<u64>()), 1..9)) {
        let ring = CompletionRing::new(8);
        let mut cursor = Cursor::default();
        for _ in 0..5 {
            ring.push_all(entries.iter().copied());
            for &entry in &entries {
                prop_assert_eq!(ring.pop(&mut cursor), Some(entry));
            }
            prop_assert_eq!(ring.pop(&mut cursor), None);
        }
    }
}

/// An iterator that has more than it says writes nothing beyond its claim.
#[test]
fn a_claim_is_not_exceeded() {
    struct Liar(u64);
    impl Iterator for Liar {
        type Item = (u64, u64);
        fn next(&mut self) -> Option<(u64, u64)> {
            self.0 += 1;
            Some((self.0, self.0))
        }
    }
    impl ExactSizeIterator for Liar {
        fn len(&self) -> usize {
            1
        }
    }
    let ring = CompletionRing::new(2);
    let mut cursor = Cursor::default();
    ring.push_all(Liar(0));
    ring.push_all([(9, 9)].into_iter());
    assert_eq!(ring.pop(&mut cursor), Some((1, 1)));
    assert_eq!(ring.pop(&mut cursor), Some((9, 9)));
    assert_eq!(ring.pop(&mut cursor), None);
}

/// Workers end ops in bursts, some with two notices; the owner accepts as it reaps. Few credits, so that the ring goes round
/// all the time, and a slow worker's completion falls into any lap.
#[test]
fn each_notice_once_under_load() {
    const OPS: u64 = 120_000;
    within(
        Duration::from_secs(120),
        "completion ring under load",
        || {
            for credits in [1, 2, 3, 8] {
                let ring = CompletionRing::new(credits);
                let work = Mpmc::new(credits);
                std::thread::scope(|s| {
                    let (ring, work) = (&ring, &work);
                    for worker in 0..3 {
                        s.spawn(move || {
                            let mut ops = Vec::with_capacity(4);
                            while !work.is_drained() {
                                if work.take_while(&mut ops, |i, _| i < worker + 1) == 0 {
                                    std::thread::yield_now();
                                    continue;
                                }
                                let (two, one) =
                                    ops.iter().partition::<Vec<u64>, _>(|&&op| op % 3 == 0);
                                ring.push_all(two.iter().map(|&op| (op, op * 2)));
                                ring.push_all(
                                    one.iter()
                                        .chain(&two)
                                        .map(|&op| (op, op * 2 + 1))
                                        .collect::<Vec<_>>()
                                        .into_iter(),
                                );
                            }
                        });
                    }
                    let mut cursor = Cursor::default();
                    let (mut accepted, mut ended, mut in_flight) = (0, 0, 0);
                    let mut notices = vec![0u8; OPS as usize];
                    while ended < OPS {
                        while in_flight < credits && accepted < OPS {
                            work.push(accepted).unwrap();
                            accepted += 1;
                            in_flight += 1;
                        }
                        let Some((op, value)) = ring.pop(&mut cursor) else {
                            std::thread::yield_now();
                            continue;
                        };
                        let last = value == op * 2 + 1;
                        assert!(last || value == op * 2, "op {op} with {value}");
                        notices[op as usize] += 1;
                        if last {
                            let expected = if op % 3 == 0 { 2 } else { 1 };
                            assert_eq!(notices[op as usize], expected, "notices of op {op}");
                            ended += 1;
                            in_flight -= 1;
                        }
                    }
                    work.close();
                    assert_eq!(ring.pop(&mut cursor), None);
                    assert_eq!(cursor.popped(), OPS + OPS.div_ceil(3));
                });
            }
        },
    );
}
