//! Ready bits, consumer tokens and the wake word together, as the engine's lanes and workers use them: nothing that was
//! published lies there while every worker that is not busy sleeps.
//!
//! ```text
//!   producer                                worker
//!   publish to the ring                     bit set? take the ring's consumer token, never wait
//!   fence(SeqCst)                           clear the bit, fence(SeqCst)
//!   bit clear? set it, fence(SeqCst)        take what is there; something left? as the producer, from its fence on
//!   sleeper, and nobody between?            busy, fence(SeqCst); more to do, a sleeper, and nobody between? wake it
//!       clear its bit, wake it              nothing? announce, fence(SeqCst), no bit set? sleep
//! ```
//!
//! A worker that took a word is busy for good ("in a store call that does not return"), and there are as many words as
//! workers. So a model ends well only if each is awake, or woken, while a word is left. One that sleeps for ever is a
//! deadlock, which loom reports.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::*, fence};
use loom::thread;
use moonring_rings::crew::SPINNING;
use moonring_rings::mpmc::Mpmc;
use moonring_rings::park::publish_fence;
use moonring_rings::spsc::{Consumer, Producer, ring};

use crate::model;
use crate::park::Sleepers;

enum Source {
    Pair(Consumer<u64>),
    Clients(Box<Mpmc>),
}

struct Lane {
    sources: Vec<Source>,
    /// The ready bits, one word for each source: as far apart as they can be.
    ready: Vec<AtomicU64>,
    sleepers: Sleepers,
}

impl Lane {
    fn new(sources: Vec<Source>) -> Arc<Self> {
        Arc::new(Self {
            ready: sources.iter().map(|_| AtomicU64::new(0)).collect(),
            sources,
            sleepers: Sleepers::new(),
        })
    }

    /// What a producer does after it has pushed.
    fn publish(&self, source: usize) {
        publish_fence();
        self.mark_ready(source);
        self.wake_one();
    }

    fn push_client(&self, source: usize, word: u64) {
        if let Source::Clients(ring) = &self.sources[source] {
            ring.push(word).unwrap();
        }
        self.publish(source);
    }

    fn mark_ready(&self, source: usize) {
        let word = &self.ready[source];
        if word.load(Relaxed) == 0 {
            word.fetch_or(1, Release);
            // Sleepers look at the bit, not at the ring.
            publish_fence();
        }
    }

    fn wake_one(&self) {
        if self.sleepers.crew.needs_wake() {
            self.sleepers.wake_one();
        }
    }

    fn has_work(&self) -> bool {
        self.ready.iter().any(|word| word.load(Acquire) != 0)
    }

    /// Takes at most one word from the first source that has one.
    fn take(&self) -> Option<u64> {
        (0..self.sources.len()).find_map(|source| self.take_from(source))
    }

    fn take_from(&self, source: usize) -> Option<u64> {
        if self.ready[source].load(Acquire) == 0 {
            return None;
        }
        let clear = || {
            self.ready[source].fetch_and(0, Acquire);
            // Pairs with the producer's fence before its look at the bit.
            fence(SeqCst);
        };
        let (word, left) = match &self.sources[source] {
            Source::Pair(ring) => {
                let mut taker = ring.try_lock()?;
                clear();
                // The earliest look that is right. A later one sees no less.
                let there = taker.available();
                (taker.pop(), there > 1)
            }
            Source::Clients(ring) => {
                clear();
                let mut out = Vec::with_capacity(1);
                ring.take_while(&mut out, |_, _| true);
                (out.pop(), ring.has_ready())
            }
        };
        if left {
            self.mark_ready(source);
        }
        word
    }

    /// Before the store call: what this worker leaves behind must not wait for it.
    fn pass_on(&self) {
        self.sleepers.crew.enter();
        if self.has_work() {
            self.wake_one();
        }
    }

    /// Runs until it has taken a word, which it returns. `spins` looks by the group's spinner before it sleeps.
    fn worker(&self, n: usize, spins: usize) -> u64 {
        loop {
            if let Some(word) = self.take() {
                self.pass_on();
                return word;
            }
            if spins > 0 && self.spin(spins) {
                thread::yield_now();
                continue;
            }
            self.sleepers.word().announce(1 << n);
            if self.has_work() {
                self.sleepers.word().retract(1 << n);
                thread::yield_now();
                continue;
            }
            self.sleepers.sleep(n);
        }
    }

    /// One worker of a group looks for a while before it sleeps; nobody is woken meanwhile.
    fn spin(&self, looks: usize) -> bool {
        let word = self.sleepers.word();
        if word.announced() & SPINNING != 0 || !word.set_flag(SPINNING) {
            return false;
        }
        let found = (0..looks).any(|_| self.has_work());
        word.retract(SPINNING);
        // Pairs with the publication's fence: who saw the flag published before this, and we see it.
        fence(SeqCst);
        found
    }
}

fn pair(capacity: usize) -> (Producer<u64>, Source) {
    let (producer, consumer) = ring(capacity);
    (producer, Source::Pair(consumer))
}

type Worker = thread::JoinHandle<u64>;

fn worker(lane: &Arc<Lane>, n: usize, spins: usize) -> Worker {
    let lane = Arc::clone(lane);
    thread::spawn(move || {
        lane.sleepers.enrol(n, &thread::current());
        lane.worker(n, spins)
    })
}

/// A worker that has announced itself, and looked in vain, before anything else happens.
fn sleeper(lane: &Arc<Lane>, n: usize) -> Worker {
    lane.sleepers.word().announce(1 << n);
    let lane = Arc::clone(lane);
    let here = Arc::clone(&lane);
    let worker = thread::spawn(move || {
        lane.sleepers.sleep(n);
        lane.worker(n, 0)
    });
    here.sleepers.enrol(n, worker.thread());
    worker
}

fn join(workers: [Worker; 2]) -> Vec<u64> {
    let mut words: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
    words.sort();
    words
}

/// Two publications into one ring, one at a time; two workers, each for one of them.
#[test]
fn one_ring_two_publications() {
    model("ready one_ring_two_publications", 2, Some(2), || {
        let (mut producer, source) = pair(2);
        let lane = Lane::new(vec![source]);
        let workers = [worker(&lane, 0, 0), sleeper(&lane, 1)];
        for word in [1, 2] {
            producer.push(word).unwrap();
            lane.publish(0);
        }
        assert_eq!(join(workers), [1, 2]);
    });
}

/// One burst of two: the worker that takes the first leaves the second, and wakes the other for it.
#[test]
fn one_burst_is_shared() {
    model("ready one_burst_is_shared", 2, Some(2), || {
        let (mut producer, source) = pair(2);
        let lane = Lane::new(vec![source]);
        let workers = [worker(&lane, 0, 0), sleeper(&lane, 1)];
        producer.stage(1).unwrap();
        producer.stage(2).unwrap();
        producer.publish();
        lane.publish(0);
        assert_eq!(join(workers), [1, 2]);
    });
}

/// Two rings, two producers: a worker that is woken for one ring may take from the other, and must see to it that the first is
/// not forgotten. The second producer is the other worker afterwards.
#[test]
fn two_rings() {
    model("ready two_rings", 2, Some(3), || {
        let (mut first, a) = pair(1);
        let (mut second, b) = pair(1);
        let lane = Lane::new(vec![a, b]);
        let sleeper = sleeper(&lane, 1);
        let producer = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || {
                second.push(2).unwrap();
                lane.publish(1);
            })
        };
        lane.sleepers.enrol(0, &thread::current());
        // Busy until then: with its own publication.
        lane.sleepers.crew.enter();
        first.push(1).unwrap();
        lane.publish(0);
        lane.sleepers.crew.leave();
        let word = lane.worker(0, 0);
        producer.join().unwrap();
        assert_eq!(word + sleeper.join().unwrap(), 3);
    });
}

/// The same with a pair's ring and the clients' ring.
#[test]
fn a_pair_and_a_client() {
    model("ready a_pair_and_a_client", 2, Some(3), || {
        let (mut producer, source) = pair(1);
        let lane = Lane::new(vec![Source::Clients(Box::new(Mpmc::new(1))), source]);
        let sleeper = sleeper(&lane, 1);
        let client = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || lane.push_client(0, 1))
        };
        lane.sleepers.enrol(0, &thread::current());
        // Busy until then: with its own publication.
        lane.sleepers.crew.enter();
        producer.push(2).unwrap();
        lane.publish(1);
        lane.sleepers.crew.leave();
        let word = lane.worker(0, 0);
        client.join().unwrap();
        assert_eq!(word + sleeper.join().unwrap(), 3);
    });
}

/// Two clients push into one ring: the one behind the other's gap may publish, wake and be gone first.
#[test]
fn two_clients() {
    model("ready two_clients", 2, Some(3), || {
        let lane = Lane::new(vec![Source::Clients(Box::new(Mpmc::new(2)))]);
        let sleeper = sleeper(&lane, 1);
        let client = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || lane.push_client(0, 1))
        };
        lane.sleepers.enrol(0, &thread::current());
        // Busy until then: with its own publication.
        lane.sleepers.crew.enter();
        lane.push_client(0, 2);
        lane.sleepers.crew.leave();
        let word = lane.worker(0, 0);
        client.join().unwrap();
        assert_eq!(word + sleeper.join().unwrap(), 3);
    });
}

/// While a worker spins nobody is woken: what is published then is seen before it sleeps, and passed on before it is busy.
#[test]
fn a_spinner() {
    model("ready a_spinner", 2, Some(2), || {
        let (mut producer, source) = pair(2);
        let lane = Lane::new(vec![source]);
        let workers = [worker(&lane, 0, 1), sleeper(&lane, 1)];
        for word in [1, 2] {
            producer.push(word).unwrap();
            lane.publish(0);
        }
        assert_eq!(join(workers), [1, 2]);
    });
}
