//! The eventfd's arm and signal, and the pair that is dropped with ops in flight: completion ring and wake word together, as the
//! engine's pairs use them.
//!
//! ```text
//!   worker                                  host                              a pair that is dropped
//!   push the completion                     drain until empty                 reap what is there
//!   fence(SeqCst)                           clear the eventfd                 lay the owner's part down, under the lock
//!   ARMED? clear it, signal                 announce ARMED, fence(SeqCst)     announce ORPHAN, fence(SeqCst)
//!   ORPHAN? reap for it, under the lock     completion there? retract         reap for it, under the lock
//!                                           none? sleep until it is readable
//! ```
//!
//! A host that sleeps for ever looks again and again, until loom gives up with that model. (It can't be parked: a signal may come when it
//! waits for something else.)

use std::sync::atomic::{AtomicUsize as Counter, Ordering};

use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::sync::{Arc, Mutex};
use loom::thread;
use moonring_rings::completion::{CompletionRing, Cursor};
use moonring_rings::park::{WakeWord, publish_fence};

use crate::model;

const ARMED: u64 = 1 << 1;
const ORPHAN: u64 = 1 << 2;

/// An eventfd, and the host that sleeps until it is readable. Its own order says nothing: all must come from the rings.
struct Event {
    count: AtomicU64,
    signals: Counter,
}

impl Event {
    fn signal(&self) {
        self.signals.fetch_add(1, Ordering::Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    fn clear(&self) {
        self.count.swap(0, Relaxed);
    }

    fn wait(&self) {
        while self.count.load(Relaxed) == 0 {
            thread::yield_now();
        }
    }
}

struct Pair {
    completions: CompletionRing,
    wake: WakeWord,
    event: Event,
    /// What an orphan's owner had: its cursor, and how many ops are in flight.
    orphan: Mutex<Option<(Cursor, usize)>>,
    forgotten: Counter,
}

impl Pair {
    fn new(depth: usize) -> Arc<Self> {
        Arc::new(Self {
            completions: CompletionRing::new(depth),
            wake: WakeWord::new(),
            event: Event {
                count: AtomicU64::new(0),
                signals: Counter::new(0),
            },
            orphan: Mutex::new(None),
            forgotten: Counter::new(0),
        })
    }

    fn notify(&self) {
        if self.wake.announced() == 0 {
            return;
        }
        if self.wake.take(ARMED) != 0 {
            self.event.signal();
        }
        if self.wake.peek(ORPHAN) != 0 {
            self.reap_orphan();
        }
    }

    fn reap_orphan(&self) {
        let mut orphan = self.orphan.lock().unwrap();
        let Some((cursor, in_flight)) = &mut *orphan else {
            return;
        };
        while self.completions.pop(cursor).is_some() {
            *in_flight -= 1;
        }
        if *in_flight == 0 {
            *orphan = None;
            self.forgotten.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the host may sleep.
    fn arm(&self, cursor: &Cursor) -> bool {
        self.event.clear();
        self.wake.announce(ARMED);
        if self.completions.has_ready(cursor, 0) {
            self.wake.retract(ARMED);
            return false;
        }
        true
    }

    /// The host's loop. Returns what it got, and how often it was armed.
    fn host(&self, ops: usize) -> (Vec<u64>, usize) {
        let mut cursor = Cursor::default();
        let (mut got, mut arms) = (Vec::new(), 0);
        loop {
            while let Some((op, _)) = self.completions.pop(&mut cursor) {
                got.push(op);
            }
            if got.len() == ops {
                return (got, arms);
            }
            arms += 1;
            if self.arm(&cursor) {
                self.event.wait();
            }
        }
    }

    /// What a pair's drop does, with so many ops in flight.
    fn abandon(&self, ops: usize) {
        let mut cursor = Cursor::default();
        let mut in_flight = ops;
        while self.completions.pop(&mut cursor).is_some() {
            in_flight -= 1;
        }
        if in_flight == 0 {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
            return;
        }
        *self.orphan.lock().unwrap() = Some((cursor, in_flight));
        self.wake.announce(ORPHAN);
        // What came before the announcement nobody else reaps.
        self.reap_orphan();
    }
}

/// A worker that completes ops.
fn worker(pair: &Arc<Pair>, ops: Vec<u64>) -> thread::JoinHandle<()> {
    let pair = Arc::clone(pair);
    thread::spawn(move || {
        for op in ops {
            pair.completions.push_all(std::iter::once((op, op)));
            publish_fence();
            pair.notify();
        }
    })
}

/// Two workers, one completion each: the host gets both, and is signalled at most once for each time it armed.
#[test]
fn no_signal_is_lost() {
    model("event no_signal_is_lost", 2, Some(3), || {
        let pair = Pair::new(2);
        let workers = [0, 1].map(|op| worker(&pair, vec![op]));
        let (mut got, arms) = pair.host(2);
        for worker in workers {
            worker.join().unwrap();
        }
        got.sort();
        assert_eq!(got, [0, 1]);
        assert!(pair.event.signals.load(Ordering::Relaxed) <= arms);
    });
}

/// One worker after the other's completion: a signal that was not waited for is cleared before the next sleep, and not taken for that one's.
#[test]
fn a_stale_signal_is_no_reason_to_sleep_on() {
    model(
        "event a_stale_signal_is_no_reason_to_sleep_on",
        1,
        Some(3),
        || {
            let pair = Pair::new(2);
            let worker = worker(&pair, vec![0, 1]);
            assert_eq!(pair.host(2).0, [0, 1]);
            worker.join().unwrap();
        },
    );
}

/// A pair dropped while two workers complete its ops: they, or the drop, reap what is left, and the pair is forgotten once.
#[test]
fn an_orphan_is_reaped_by_the_last() {
    model("event an_orphan_is_reaped_by_the_last", 2, Some(3), || {
        let pair = Pair::new(2);
        let workers = [0, 1].map(|op| worker(&pair, vec![op]));
        pair.abandon(2);
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(pair.forgotten.load(Ordering::Relaxed), 1);
        assert!(pair.orphan.lock().unwrap().is_none());
    });
}
