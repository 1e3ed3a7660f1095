//! The MPMC ring against a plain model, and under load.
#![cfg(not(loom))]

mod support;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moonring_rings::mpmc::{Mpmc, WORD_LIMIT};
use moonring_rings::{Full, PushError};
use proptest::prelude::*;
use support::within;

#[derive(Clone, Debug)]
enum Step {
    Push(u64),
    PushAll(Vec<u64>),
    Pop,
    /// `room` in the vector, words below `below` are kept, at most `keep`.
    Take {
        room: usize,
        keep: usize,
        below: u64,
    },
    Close,
}

fn word() -> impl Strategy<Value = u64> {
    prop_oneof![0..100u64, WORD_LIMIT - 3..WORD_LIMIT]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => word().prop_map(Step::Push),
        40 => prop::collection::vec(word(), 0..7).prop_map(Step::PushAll),
        40 => Just(Step::Pop),
        40 => (0..7usize, 0..7usize, word())
            .prop_map(|(room, keep, below)| Step::Take { room, keep, below }),
        1 => Just(Step::Close),
    ]
}

proptest! {
    #![proptest_config(support::cases())]

    #[test]
    fn does_what_a_queue_does(
        steps in prop::collection::vec(step(), 0..300),
        capacity in 0..6usize,
    ) {
        let ring = Mpmc::new(capacity);
        let capacity = ring.capacity();
        let (mut model, mut closed, mut pushed) = (VecDeque::new(), false, 0);
        for step in steps {
            let room = capacity - model.len();
            match step {
                Step::Push(word) => {
                    let expected = match (closed, room) {
                        (true, _) => Err(PushError::Closed(word)),
                        (false, 0) => Err(PushError::Full(Full { value: word, room })),
                        _ => {
                            model.push_back(word);
                            Ok(())
                        }
                    };
                    pushed += u64::from(expected.is_ok());
                    prop_assert_eq!(ring.push(word), expected);
                }
                Step::PushAll(words) => {
                    let expected = match closed {
                        true => Err(PushError::Closed(())),
                        false if room < words.len() => {
                            Err(PushError::Full(Full { value: (), room }))
                        }
                        false => {
                            model.extend(&words);
                            Ok(())
                        }
                    };
                    pushed += if expected.is_ok() { words.len() as u64 } else { 0 };
                    prop_assert_eq!(ring.push_all(&words), expected);
                }
                Step::Pop => prop_assert_eq!(ring.pop(), model.pop_front()),
                Step::Take { room, keep, below } => {
                    let mut out = Vec::with_capacity(room);
                    out.extend(std::iter::repeat_n(7, room.min(1)));
                    let room = out.capacity();
                    let keeps = |i: usize, word: u64| i < keep && word < below;
                    let mut asked = Vec::new();
                    let n = ring.take_while(&mut out, |i, word| {
                        asked.push((i, word));
                        keeps(i, word)
                    });
                    let mut taken = Vec::new();
                    while taken.len() < room
                        && model.front().is_some_and(|&w| keeps(taken.len(), w))
                    {
                        taken.extend(model.pop_front());
                    }
                    prop_assert_eq!((n, &out), (taken.len(), &taken));
                    prop_assert!(asked.len() - n <= 1, "asked on after a no");
                }
                Step::Close => {
                    ring.close();
                    closed = true;
                }
            }
            prop_assert_eq!((ring.len(), ring.is_empty()), (model.len(), model.is_empty()));
            prop_assert_eq!(ring.has_ready(), !model.is_empty());
            prop_assert_eq!(ring.has_one_ready(), model.len() == 1);
            prop_assert_eq!(ring.pushed(), pushed);
            prop_assert_eq!(ring.is_drained(), closed && model.is_empty());
        }
    }
}

const PRODUCERS: u64 = 3;
const EACH: u64 = 20_000;

/// Pushes numbers 0 to [`EACH`], in bursts and one by one. The word says whose and which.
fn produce(ring: &Mpmc, producer: u64) {
    let mut next = 0;
    for way in 0.. {
        if next == EACH {
            return;
        }
        let n = (way % 4 + 1).min(EACH - next).min(ring.capacity() as u64);
        let words: Vec<_> = (next..next + n).map(|i| producer << 32 | i).collect();
        let pushed = if way % 3 == 0 {
            ring.push(words[0]).is_ok() as u64
        } else {
            ring.push_all(&words).is_ok() as u64 * n
        };
        next += pushed;
        if pushed == 0 {
            std::thread::yield_now();
        }
    }
}

/// Takes until the ring is drained; sees each producer's words in their order.
fn consume(ring: &Mpmc, seen: &[AtomicU64]) -> u64 {
    let mut next = [0; PRODUCERS as usize];
    let mut out = Vec::with_capacity(5);
    let mut count = 0;
    for way in 0.. {
        // Before the take: what it then doesn't find will never come.
        let drained = ring.is_drained();
        if way % 3 == 0 {
            out.clear();
            out.extend(ring.pop());
        } else {
            ring.take_while(&mut out, |i, word| i < 2 || word % 7 != 0);
        }
        for &word in &out {
            let (producer, i) = ((word >> 32) as usize, word & u64::from(u32::MAX));
            assert!(
                i >= next[producer],
                "producer {producer}: {i} after {}",
                next[producer]
            );
            next[producer] = i + 1;
            seen[producer].fetch_add(i + 1, Ordering::Relaxed);
        }
        count += out.len() as u64;
        match (out.is_empty(), drained) {
            (true, true) => break,
            (true, false) => std::thread::yield_now(),
            (false, _) => assert!(!drained, "drained, and yet a word came"),
        }
    }
    count
}

#[test]
fn each_word_once_and_in_its_producers_order_under_load() {
    within(Duration::from_secs(120), "mpmc under load", || {
        for capacity in [1, 4, 64] {
            let ring = Mpmc::new(capacity);
            let seen: Vec<_> = (0..PRODUCERS).map(|_| AtomicU64::new(0)).collect();
            let taken: u64 = std::thread::scope(|s| {
                let (ring, seen) = (&ring, &seen);
                let consumers = [(); 3].map(|()| s.spawn(|| consume(ring, seen)));
                let producers: Vec<_> = (0..PRODUCERS)
                    .map(|p| s.spawn(move || produce(ring, p)))
                    .collect();
                for producer in producers {
                    producer.join().unwrap();
                }
                ring.close();
                assert_eq!(ring.push(1), Err(PushError::Closed(1)));
                consumers.into_iter().map(|c| c.join().unwrap()).sum()
            });
            assert_eq!(taken, PRODUCERS * EACH);
            for sum in &seen {
                assert_eq!(sum.load(Ordering::Relaxed), EACH * (EACH + 1) / 2);
            }
        }
    });
}

/// Pushes race with the close: what went well is taken, all of it, and nothing else.
#[test]
fn close_in_the_middle_loses_nothing() {
    within(Duration::from_secs(60), "mpmc close in the middle", || {
        for round in 0..300 {
            let ring = Mpmc::new(8);
            let (pushed, taken) = std::thread::scope(|s| {
                let ring = &ring;
                let producers = [0, 1].map(|p| {
                    s.spawn(move || {
                        let mut pushed = 0;
                        loop {
                            match ring.push_all(&[p, p, p]) {
                                Ok(()) => pushed += 3,
                                Err(PushError::Full(_)) => std::thread::yield_now(),
                                Err(PushError::Closed(())) => return pushed,
                            }
                        }
                    })
                });
                let consumer = s.spawn(move || {
                    let mut taken = 0;
                    while !ring.is_drained() {
                        match ring.pop() {
                            Some(_) => taken += 1,
                            None => std::thread::yield_now(),
                        }
                    }
                    assert_eq!(ring.pop(), None);
                    taken
                });
                for _ in 0..round {
                    std::hint::spin_loop();
                }
                ring.close();
                let pushed: u64 = producers.into_iter().map(|p| p.join().unwrap()).sum();
                (pushed, consumer.join().unwrap())
            });
            assert_eq!(pushed, taken);
        }
    });
}
