//! The wake word between real threads: nobody oversleeps.
#![cfg(not(loom))]

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moonring_rings::park::{WakeWord, publish_fence};
use support::within;

#[test]
fn bits_are_taken_one_by_one_and_once() {
    let word = WakeWord::new();
    word.announce(0b1011);
    assert_eq!(word.announced(), 0b1011);
    assert_eq!(word.take_one(0b1010), Some(1));
    assert_eq!(word.peek(!0), 0b1001);
    assert_eq!(word.take(0b0111), 0b0001);
    assert_eq!(word.take_one(0b0111), None);
    assert_eq!(word.retract(0b1001), 0b1000, "the other bit was taken");
    assert!(word.set_flag(1 << 63));
    assert!(!word.set_flag(1 << 63));
    assert_eq!(word.announced(), 1 << 63);
}

/// Two publishers count up, three sleepers wait for each count to be taken. A lost wake hangs, which the watchdog turns
/// into a failure.
#[test]
fn no_wake_is_lost_under_load() {
    const EACH: u64 = 30_000;
    const TOTAL: u64 = 2 * EACH;
    within(Duration::from_secs(120), "a sleeper overslept", || {
        let word = WakeWord::new();
        let (published, taken) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|s| {
            let (word, published, taken) = (&word, &published, &taken);
            let sleepers: Vec<_> = (0..3)
                .map(|n| {
                    s.spawn(move || {
                        let bit = 1 << n;
                        let mut took = 0;
                        loop {
                            let now = taken.load(Ordering::Relaxed);
                            if now == TOTAL {
                                return took;
                            }
                            if now < published.load(Ordering::Relaxed) {
                                let next = taken.compare_exchange(
                                    now,
                                    now + 1,
                                    Ordering::Relaxed,
                                    Ordering::Relaxed,
                                );
                                took += u64::from(next.is_ok());
                                continue;
                            }
                            word.announce(bit);
                            if taken.load(Ordering::Relaxed) != published.load(Ordering::Relaxed)
                                || taken.load(Ordering::Relaxed) == TOTAL
                            {
                                word.retract(bit);
                                continue;
                            }
                            while word.peek(bit) != 0 {
                                std::thread::park();
                            }
                        }
                    })
                })
                .collect();
            let threads: Vec<_> = sleepers.iter().map(|s| s.thread().clone()).collect();
            for _ in 0..2 {
                let threads = threads.clone();
                s.spawn(move || {
                    for i in 0..EACH {
                        published.fetch_add(1, Ordering::Relaxed);
                        publish_fence();
                        if let Some(n) = word.take_one(0b111) {
                            threads[n as usize].unpark();
                        }
                        if i % 64 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            // The last take is nobody's publication: wake who sleeps through it.
            while taken.load(Ordering::Relaxed) != TOTAL {
                std::thread::yield_now();
            }
            publish_fence();
            while let Some(n) = word.take_one(0b111) {
                threads[n as usize].unpark();
            }
            let took: u64 = sleepers.into_iter().map(|s| s.join().unwrap()).sum();
            assert_eq!(took, TOTAL);
        });
    });
}
