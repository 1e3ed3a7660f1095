//! The rings beside their rivals: rtrb for one producer and one consumer, crossbeam's `ArrayQueue` for many.
//!
//! Both sides run on threads of their own; a time is that of moving [`N`] words from one side to the other.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use moonring_rings::{mpmc::Mpmc, spsc};

const N: u64 = 100_000;
const CAPACITY: usize = 1024;
const BURST: usize = 32;

/// Times `rounds` transfers of `N` words: `produce` here, `consume` on another thread.
fn transfer<P, C>(
    rounds: u64,
    mut make: impl FnMut() -> (P, C),
    produce: impl Fn(&mut P),
    consume: impl Fn(&mut C) + Sync,
) -> Duration
where
    C: Send,
{
    let mut took = Duration::ZERO;
    for _ in 0..rounds {
        let (mut producer, mut consumer) = make();
        let started = Instant::now();
        thread::scope(|s| {
            s.spawn(|| consume(&mut consumer));
            produce(&mut producer);
        });
        took += started.elapsed();
    }
    took
}

fn spsc_ring(c: &mut Criterion) {
    let mut group = c.benchmark_group("spsc");
    group.throughput(Throughput::Elements(N));
    group.bench_function("moonring, bursts of 32", |b| {
        b.iter_custom(|rounds| {
            transfer(
                rounds,
                || spsc::ring::<u64>(CAPACITY),
                |producer| {
                    let mut sent = 0;
                    while sent < N {
                        let n = BURST.min((N - sent) as usize);
                        match producer.reserve(n) {
                            Err(_) => spin_loop(),
                            Ok(mut places) => {
                                for _ in 0..n {
                                    let _ = places.push(sent);
                                    sent += 1;
                                }
                                places.commit();
                            }
                        }
                    }
                },
                |consumer| {
                    let mut taker = consumer.try_lock().expect("the only consumer");
                    let mut got = 0;
                    while got < N {
                        for word in taker.take(BURST) {
                            assert_eq!(word, got);
                            got += 1;
                        }
                    }
                },
            )
        });
    });
    group.bench_function("rtrb, chunks of 32", |b| {
        b.iter_custom(|rounds| {
            transfer(
                rounds,
                || rtrb::RingBuffer::<u64>::new(CAPACITY),
                |producer| {
                    let mut sent = 0;
                    while sent < N {
                        let n = BURST.min((N - sent) as usize);
                        match producer.write_chunk_uninit(n) {
                            Err(_) => spin_loop(),
                            Ok(chunk) => {
                                sent += chunk.fill_from_iter(sent..) as u64;
                            }
                        }
                    }
                },
                |consumer| {
                    let mut got = 0;
                    while got < N {
                        let n = consumer.slots().min(BURST);
                        if let Ok(chunk) = consumer.read_chunk(n) {
                            for word in chunk {
                                assert_eq!(word, got);
                                got += 1;
                            }
                        }
                    }
                },
            )
        });
    });
    group.bench_function("moonring, one at a time", |b| {
        b.iter_custom(|rounds| {
            transfer(
                rounds,
                || spsc::ring::<u64>(CAPACITY),
                |producer| {
                    for word in 0..N {
                        while producer.push(word).is_err() {
                            spin_loop();
                        }
                    }
                },
                |consumer| {
                    let mut taker = consumer.try_lock().expect("the only consumer");
                    let mut got = 0;
                    while got < N {
                        if let Some(word) = taker.pop() {
                            assert_eq!(word, got);
                            got += 1;
                        }
                    }
                },
            )
        });
    });
    group.bench_function("rtrb, one at a time", |b| {
        b.iter_custom(|rounds| {
            transfer(
                rounds,
                || rtrb::RingBuffer::<u64>::new(CAPACITY),
                |producer| {
                    for word in 0..N {
                        while producer.push(word).is_err() {
                            spin_loop();
                        }
                    }
                },
                |consumer| {
                    let mut got = 0;
                    while got < N {
                        if let Ok(word) = consumer.pop() {
                            assert_eq!(word, got);
                            got += 1;
                        }
                    }
                },
            )
        });
    });
    group.finish();
}

/// Times two producers with bursts of 16 against one consumer, `rounds` times.
fn two_producers<Q: Sync>(
    rounds: u64,
    make: impl Fn() -> Q,
    push: impl Fn(&Q, &[u64]) + Sync,
    pop: impl Fn(&Q) -> usize,
) -> Duration {
    let mut took = Duration::ZERO;
    for _ in 0..rounds {
        let queue = make();
        let got = AtomicUsize::new(0);
        let started = Instant::now();
        thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    let words: Vec<u64> = (0..16).collect();
                    for _ in 0..N / 32 {
                        push(&queue, &words);
                    }
                });
            }
            while got.load(Ordering::Relaxed) < (N / 32 * 32) as usize {
                got.fetch_add(pop(&queue), Ordering::Relaxed);
            }
        });
        took += started.elapsed();
    }
    took
}

fn mpmc_ring(c: &mut Criterion) {
    let mut group = c.benchmark_group("mpmc, 2 producers, bursts of 16");
    group.throughput(Throughput::Elements(N / 32 * 32));
    group.bench_function("moonring", |b| {
        b.iter_custom(|rounds| {
            two_producers(
                rounds,
                || {
                    (
                        Mpmc::new(CAPACITY),
                        std::sync::Mutex::new(Vec::with_capacity(64)),
                    )
                },
                |(ring, _), words| {
                    while ring.push_all(words).is_err() {
                        thread::yield_now();
                    }
                },
                |(ring, out)| {
                    let mut out = out.lock().expect("the only consumer");
                    ring.take_while(&mut out, |_, _| true)
                },
            )
        });
    });
    group.bench_function("crossbeam ArrayQueue", |b| {
        b.iter_custom(|rounds| {
            two_producers(
                rounds,
                || ArrayQueue::new(CAPACITY),
                |queue, words| {
                    for &word in words {
                        while queue.push(word).is_err() {
                            thread::yield_now();
                        }
                    }
                },
                |queue| std::iter::from_fn(|| queue.pop()).take(64).count(),
            )
        });
    });
    group.finish();
}

criterion_group!(benches, spsc_ring, mpmc_ring);
criterion_main!(benches);
