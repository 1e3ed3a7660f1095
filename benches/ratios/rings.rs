//! The rings beside rtrb and crossbeam's `ArrayQueue`.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::Backoff;
use moonring_rings::{mpmc::Mpmc, spsc};

use crate::measure::{Core, Turn, core, interruptions, pin};

const CAPACITY: usize = 1024;
pub const BURST: usize = 32;

/// An element, made from a number and read back.
pub trait Element: Copy + Send + 'static {
    fn new(number: u64) -> Self;
    fn number(&self) -> u64;
}

/// What the engine's rings carry: a ticket.
impl Element for u64 {
    fn new(number: u64) -> Self {
        number
    }
    fn number(&self) -> u64 {
        *self
    }
}

/// What a ring of whole descriptors carries.
impl Element for [u64; 16] {
    fn new(number: u64) -> Self {
        [number; 16]
    }
    fn number(&self) -> u64 {
        self[15]
    }
}

/// Moves `n` elements from one pinned thread to another; elements per second.
fn transfer<P: Send, C: Send>(
    n: u64,
    (mut producer, mut consumer): (P, C),
    produce: impl FnOnce(&mut P) + Send,
    consume: impl FnOnce(&mut C) + Send,
) -> Turn {
    let both = Barrier::new(2);
    let (first, last) = (core(Core::First), core(Core::Last));
    thread::scope(|s| {
        let consuming = s.spawn(|| {
            pin(first);
            both.wait();
            consume(&mut consumer);
            (Instant::now(), interruptions())
        });
        let producing = s.spawn(|| {
            pin(last);
            both.wait();
            let before = interruptions();
            let started = Instant::now();
            produce(&mut producer);
            (started, before)
        });
        let (started, before) = producing.join().expect("no panic");
        let (ended, after) = consuming.join().expect("no panic");
        Turn {
            value: n as f64 / (ended - started).as_secs_f64(),
            calm: before == after,
        }
    })
}

pub fn spsc_bursts<T: Element>(n: u64) -> Turn {
    transfer(
        n,
        spsc::ring::<T>(CAPACITY),
        |producer| {
            let mut sent = 0;
            while sent < n {
                match producer.reserve(BURST) {
                    Err(_) => std::hint::spin_loop(),
                    Ok(mut places) => {
                        sent += places.fill_from((sent..).map(T::new)) as u64;
                        places.commit();
                    }
                }
            }
        },
        |consumer| {
            let mut taker = consumer.try_lock().expect("the only consumer");
            let mut got = 0;
            while got < n {
                for element in taker.take(BURST) {
                    assert_eq!(element.number(), got);
                    got += 1;
                }
            }
        },
    )
}

pub fn rtrb_chunks<T: Element>(n: u64) -> Turn {
    transfer(
        n,
        rtrb::RingBuffer::<T>::new(CAPACITY),
        |producer| {
            let mut sent = 0;
            while sent < n {
                match producer.write_chunk_uninit(BURST) {
                    Err(_) => std::hint::spin_loop(),
                    Ok(chunk) => sent += chunk.fill_from_iter((sent..).map(T::new)) as u64,
                }
            }
        },
        |consumer| {
            let mut got = 0;
            while got < n {
                let ready = consumer.slots().min(BURST);
                if let Ok(chunk) = consumer.read_chunk(ready) {
                    for element in chunk {
                        assert_eq!(element.number(), got);
                        got += 1;
                    }
                }
            }
        },
    )
}

pub fn spsc_single<T: Element>(n: u64) -> Turn {
    transfer(
        n,
        spsc::ring::<T>(CAPACITY),
        |producer| {
            for number in 0..n {
                while producer.push(T::new(number)).is_err() {
                    std::hint::spin_loop();
                }
            }
        },
        |consumer| {
            let mut taker = consumer.try_lock().expect("the only consumer");
            let mut got = 0;
            while got < n {
                match taker.pop() {
                    None => std::hint::spin_loop(),
                    Some(element) => {
                        assert_eq!(element.number(), got);
                        got += 1;
                    }
                }
            }
        },
    )
}

pub fn rtrb_single<T: Element>(n: u64) -> Turn {
    transfer(
        n,
        rtrb::RingBuffer::<T>::new(CAPACITY),
        |producer| {
            for number in 0..n {
                while producer.push(T::new(number)).is_err() {
                    std::hint::spin_loop();
                }
            }
        },
        |consumer| {
            let mut got = 0;
            while got < n {
                match consumer.pop() {
                    Err(_) => std::hint::spin_loop(),
                    Ok(element) => {
                        assert_eq!(element.number(), got);
                        got += 1;
                    }
                }
            }
        },
    )
}

/// Two producers that push bursts of 16 each, and a consumer; three threads. Elements per second.
fn two_producers(n: u64, push: impl Fn(&[u64; 16]) + Sync, pop: impl Fn() -> usize + Sync) -> Turn {
    let bursts = n / 32;
    let all = Barrier::new(3);
    let took = thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                let words = std::array::from_fn(|i| i as u64);
                all.wait();
                (0..bursts).for_each(|_| push(&words));
            });
        }
        let consuming = s.spawn(|| {
            all.wait();
            let started = Instant::now();
            let (mut got, backoff) = (0, Backoff::new());
            while got < bursts * 32 {
                match pop() {
                    0 => backoff.snooze(),
                    n => {
                        got += n as u64;
                        backoff.reset();
                    }
                }
            }
            started.elapsed()
        });
        consuming.join().expect("no panic")
    });
    ((bursts * 32) as f64 / took.as_secs_f64()).into()
}

pub fn mpmc_bursts(n: u64) -> Turn {
    let ring = Mpmc::new(CAPACITY);
    // The consumer's own; there is one.
    let out = std::sync::Mutex::new(Vec::with_capacity(64));
    two_producers(
        n,
        |words| {
            let backoff = Backoff::new();
            while ring.push_all(words).is_err() {
                backoff.snooze();
            }
        },
        || ring.take_while(&mut out.lock().expect("one consumer"), |_, _| true),
    )
}

pub fn array_queue(n: u64) -> Turn {
    let queue = ArrayQueue::new(CAPACITY);
    two_producers(
        n,
        |words| {
            let backoff = Backoff::new();
            for &word in words {
                while queue.push(word).is_err() {
                    backoff.snooze();
                }
            }
        },
        || std::iter::from_fn(|| queue.pop()).take(64).count(),
    )
}
