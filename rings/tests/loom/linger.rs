//! Lingering: what was published and waits for company, against workers that make it ready, sleep until it is due, or go to sleep.
//!
//! A worker that took a word is busy for good. One lingerer's sleep ends by itself only where it is due [`SOON`]; until [`LATE`] and for
//! ever are the same here. So a word that nobody looks at any more, or for which somebody sleeps too long, is a deadlock, which
//! loom reports.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use loom::thread;
use moonring_rings::deadline::NEVER;
use moonring_rings::linger::{Added, Lingerer, Lingering};
use moonring_rings::park::publish_fence;
use moonring_rings::spsc::{Consumer, Producer, ring};

use crate::model;
use crate::park::Sleepers;

/// Times at which something is due: the one comes while the model runs, the other does not.
const SOON: u64 = 1;
const LATE: u64 = 2;

struct Lane {
    rings: Vec<Consumer<u64>>,
    ready: AtomicU64,
    lingering: Lingering<1>,
    lingerer: Lingerer,
    closing: AtomicBool,
    sleepers: Sleepers,
}

impl Lane {
    fn new(rings: Vec<Consumer<u64>>) -> Arc<Self> {
        Arc::new(Self {
            rings,
            ready: AtomicU64::new(0),
            lingering: Lingering::new(2),
            lingerer: Lingerer::new(),
            closing: AtomicBool::new(false),
            sleepers: Sleepers::new(),
        })
    }

    /// What a publisher does with one word in its ring. As `Pair::publish_all`.
    fn publish(&self, source: usize, due: u64, enough: u64) {
        publish_fence();
        let added = self.lingering.add(0, source, 1, enough, due);
        publish_fence();
        if added == Added::Enough || self.closing.load(Relaxed) {
            self.mark_ready(source);
            self.wake_one();
        } else if added == (Added::Waits { first: true }) {
            match self.lingerer.who() {
                Some(worker) => self.sleepers.unpark(worker),
                None => self.wake_one(),
            }
        }
    }

    fn mark_ready(&self, source: usize) {
        if self.ready.load(Relaxed) & 1 << source == 0 {
            self.ready.fetch_or(1 << source, Release);
            publish_fence();
        }
    }

    fn wake_one(&self) {
        if self.sleepers.crew.needs_wake() {
            self.sleepers.wake_one();
        }
    }

    fn has_work(&self) -> bool {
        self.ready.load(Acquire) != 0
    }

    /// As `Worker::ripen`.
    fn ripen(&self) {
        let closing = self.closing.load(Relaxed);
        publish_fence();
        let due = self.lingering.due();
        if due != NEVER && (due == SOON || closing || self.has_work()) {
            self.lingering.ripen(|_, source| self.mark_ready(source));
        }
    }

    fn take(&self) -> Option<u64> {
        (0..self.rings.len()).find_map(|source| {
            if self.ready.load(Acquire) & 1 << source == 0 {
                return None;
            }
            let mut taker = self.rings[source].try_lock()?;
            self.ready.fetch_and(!(1 << source), Acquire);
            // Pairs with the producer's fence before its look at the bit.
            fence(SeqCst);
            let word = taker.pop();
            if taker.available() > 0 {
                self.mark_ready(source);
            }
            word
        })
    }

    /// As `Worker::go_busy`.
    fn pass_on(&self) {
        self.sleepers.crew.enter();
        let waits = self.lingering.due() != NEVER && self.lingerer.who().is_none();
        if self.has_work() || waits {
            self.wake_one();
        }
    }

    /// Runs until it has taken a word, which it returns.
    fn worker(&self, n: usize) -> u64 {
        loop {
            self.ripen();
            if let Some(word) = self.take() {
                self.pass_on();
                return word;
            }
            self.sleepers.word().announce(1 << n);
            if self.has_work() || (self.closing.load(Relaxed) && self.lingering.due() != NEVER) {
                self.sleepers.word().retract(1 << n);
                thread::yield_now();
                continue;
            }
            let sleep = || match self.lingering.due() {
                SOON => thread::yield_now(),
                _ => thread::park(),
            };
            let lingers = self.lingering.due() != NEVER
                && self.lingerer.linger(self.sleepers.word(), n, sleep);
            if !lingers {
                self.sleepers.sleep(n);
            }
        }
    }
}

fn rings(n: usize) -> (Vec<Producer<u64>>, Vec<Consumer<u64>>) {
    (0..n).map(|_| ring(2)).unzip()
}

fn worker(lane: &Arc<Lane>, n: usize) -> thread::JoinHandle<u64> {
    let lane = Arc::clone(lane);
    thread::spawn(move || {
        lane.sleepers.enrol(n, &thread::current());
        lane.worker(n)
    })
}

/// One worker alone: the other of the crew is in a call.
fn alone(lane: &Arc<Lane>) {
    lane.sleepers.crew.enter();
}

/// Two words, one after the other, for two workers: each is looked for in time, or the second makes both ready at once.
#[test]
fn what_is_due_is_looked_for() {
    model("linger what_is_due_is_looked_for", 2, Some(2), || {
        let (mut producers, consumers) = rings(1);
        let lane = Lane::new(consumers);
        let workers = [worker(&lane, 0), worker(&lane, 1)];
        for word in [1, 2] {
            producers[0].push(word).unwrap();
            lane.publish(0, SOON, 2);
        }
        let mut words = workers.map(|worker| worker.join().unwrap());
        words.sort();
        assert_eq!(words, [1, 2]);
    });
}

/// One is due late, and somebody may sleep until then already; the next is due soon, and takes the first along.
#[test]
fn what_is_due_sooner_is_not_slept_over() {
    model(
        "linger what_is_due_sooner_is_not_slept_over",
        2,
        Some(2),
        || {
            let (mut producers, consumers) = rings(2);
            let lane = Lane::new(consumers);
            let workers = [worker(&lane, 0), worker(&lane, 1)];
            for (source, due) in [(0, LATE), (1, SOON)] {
                producers[source].push(due).unwrap();
                lane.publish(source, due, 9);
            }
            let mut words = workers.map(|worker| worker.join().unwrap());
            words.sort();
            assert_eq!(words, [SOON, LATE]);
        },
    );
}

/// Two publishers, while a worker makes ready what it sees: what is not seen then stays due.
#[test]
fn two_publishers_against_one_who_ripens() {
    let name = "linger two_publishers_against_one_who_ripens";
    model(name, 2, Some(2), || {
        let (mut producers, consumers) = rings(2);
        let lane = Lane::new(consumers);
        alone(&lane);
        let worker = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                lane.sleepers.enrol(0, &thread::current());
                let first = lane.worker(0);
                lane.sleepers.crew.leave();
                first + lane.worker(0)
            })
        };
        let mut second = producers.pop().unwrap();
        let publisher = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                second.push(2).unwrap();
                lane.publish(1, SOON, 9);
            })
        };
        producers[0].push(1).unwrap();
        lane.publish(0, SOON, 9);
        assert_eq!(worker.join().unwrap(), 3);
        publisher.join().unwrap();
    });
}

/// What is due late, at the end: the publisher sees that the engine closes, or the worker sees what lingers.
#[test]
fn close_against_what_is_due_late() {
    model("linger close_against_what_is_due_late", 2, Some(2), || {
        let (mut producers, consumers) = rings(1);
        let lane = Lane::new(consumers);
        alone(&lane);
        let worker = worker(&lane, 0);
        let closer = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                lane.closing.store(true, Relaxed);
                publish_fence();
                lane.sleepers.wake_all();
            })
        };
        producers[0].push(7).unwrap();
        lane.publish(0, LATE, 9);
        assert_eq!(worker.join().unwrap(), 7);
        closer.join().unwrap();
    });
}
