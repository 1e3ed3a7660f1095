//! Who waits for a pair's completions without a thread of its own, a host by the pair's eventfd or a task by `poll_ready`, and the pair that
//! is dropped with ops in flight: completion ring and wake word together, as the engine's pairs use them.
//!
//! ```text
//!   worker                                  who waits                         a pair that is dropped
//!   push the completion                     drain until empty                 reap what is there
//!   fence(SeqCst)                           clear eventfd, or set waker       lay the owner's part down, under the lock
//!   its bit? clear it, signal or wake       announce, fence(SeqCst)           announce ORPHAN, fence(SeqCst)
//!   ORPHAN? reap for it, under the lock     completion there? retract         reap for it, under the lock
//!                                           none? sleep until then
//! ```
//!
//! Who sleeps for ever looks again and again, until loom gives up with that model. (It can't be parked: a wake may come when it waits for
//! something else.)

use std::sync::atomic::{AtomicUsize as Counter, Ordering};

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use loom::sync::{Arc, Mutex};
use loom::thread;
use moonring_rings::completion::{CompletionRing, Cursor};
use moonring_rings::park::{WakeWord, publish_fence};

use crate::model;

const ARMED: u64 = 1 << 1;
const ORPHAN: u64 = 1 << 2;
const AWAITED: u64 = 1 << 3;

/// Who waits. Its own orders say nothing: all must come from the rings.
trait Waiter: Send + Sync + 'static {
    const BIT: u64;

    fn new() -> Self;

    /// Before it is announced, for the `n`th time.
    fn begin(&self, n: usize);

    /// It does not wait: there is a completion.
    fn end(&self);

    /// By who has cleared its bit. False: another was quicker.
    fn wake(&self) -> bool;

    /// Sleeps until it is woken.
    fn sleep(&self);
}

/// An eventfd: its count.
struct Event(AtomicU64);

impl Waiter for Event {
    const BIT: u64 = ARMED;

    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn begin(&self, _: usize) {
        self.0.swap(0, Relaxed);
    }

    fn end(&self) {}

    fn wake(&self) -> bool {
        self.0.fetch_add(1, Relaxed);
        true
    }

    fn sleep(&self) {
        while self.0.load(Relaxed) == 0 {
            thread::yield_now();
        }
    }
}

/// A task. A worker may find a waker that was renewed since the announcement which it took: the task is woken by that one, and looks again.
/// It may find none, where another was quicker.
struct Task {
    /// Its waker, by the number of the poll which it is of.
    waker: Mutex<Option<usize>>,
    /// It is to be polled.
    woken: AtomicBool,
}

impl Waiter for Task {
    const BIT: u64 = AWAITED;

    fn new() -> Self {
        Self {
            waker: Mutex::new(None),
            woken: AtomicBool::new(false),
        }
    }

    fn begin(&self, poll: usize) {
        *self.waker.lock().unwrap() = Some(poll);
    }

    fn end(&self) {
        *self.waker.lock().unwrap() = None;
    }

    fn wake(&self) -> bool {
        let waker = self.waker.lock().unwrap().take();
        if waker.is_some() {
            self.woken.store(true, Relaxed);
        }
        waker.is_some()
    }

    fn sleep(&self) {
        while !self.woken.load(Relaxed) {
            thread::yield_now();
        }
        self.woken.swap(false, Relaxed);
    }
}

struct Pair<W> {
    completions: CompletionRing,
    wake: WakeWord,
    waiter: W,
    wakes: Counter,
    /// What an orphan's owner had: its cursor, and how many ops are in flight.
    orphan: Mutex<Option<(Cursor, usize)>>,
    forgotten: Counter,
}

impl<W: Waiter> Pair<W> {
    fn new(depth: usize) -> Arc<Self> {
        Arc::new(Self {
            completions: CompletionRing::new(depth),
            wake: WakeWord::new(),
            waiter: W::new(),
            wakes: Counter::new(0),
            orphan: Mutex::new(None),
            forgotten: Counter::new(0),
        })
    }

    fn notify(&self) {
        if self.wake.announced() == 0 {
            return;
        }
        if self.wake.take(W::BIT) != 0 && self.waiter.wake() {
            self.wakes.fetch_add(1, Ordering::Relaxed);
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

    /// Whether it may sleep, asked for the `n`th time.
    fn announce(&self, cursor: &Cursor, n: usize) -> bool {
        self.waiter.begin(n);
        self.wake.announce(W::BIT);
        if self.completions.has_ready(cursor, 0) {
            self.wake.retract(W::BIT);
            self.waiter.end();
            return false;
        }
        true
    }

    /// Drains, and sleeps, but so many times goes on without a wake. Returns what it got, and how often it was announced.
    fn wait(&self, ops: usize, mut spurious: usize) -> (Vec<u64>, usize) {
        let mut cursor = Cursor::default();
        let (mut got, mut n) = (Vec::new(), 0);
        loop {
            while let Some((op, _)) = self.completions.pop(&mut cursor) {
                got.push(op);
            }
            if got.len() == ops {
                return (got, n);
            }
            n += 1;
            if self.announce(&cursor, n) {
                if spurious > 0 {
                    spurious -= 1;
                    continue;
                }
                self.waiter.sleep();
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
fn worker<W: Waiter>(pair: &Arc<Pair<W>>, ops: Vec<u64>) -> thread::JoinHandle<()> {
    let pair = Arc::clone(pair);
    thread::spawn(move || {
        for op in ops {
            pair.completions.push_all(std::iter::once((op, op)));
            publish_fence();
            pair.notify();
        }
    })
}

/// Two workers, one completion each: who waits gets both, and is woken at most once for each time it was announced.
fn no_wake_is_lost<W: Waiter>(name: &str) {
    model(name, 2, Some(3), || {
        let pair = Pair::<W>::new(2);
        let workers = [0, 1].map(|op| worker(&pair, vec![op]));
        let (mut got, announced) = pair.wait(2, 0);
        for worker in workers {
            worker.join().unwrap();
        }
        got.sort();
        assert_eq!(got, [0, 1]);
        assert!(pair.wakes.load(Ordering::Relaxed) <= announced);
    });
}

/// One worker, one completion after the other, and so many looks without a wake.
fn one_after_the_other<W: Waiter>(name: &str, spurious: usize) {
    model(name, 1, Some(3), move || {
        let pair = Pair::<W>::new(2);
        let worker = worker(&pair, vec![0, 1]);
        assert_eq!(pair.wait(2, spurious).0, [0, 1]);
        worker.join().unwrap();
    });
}

#[test]
fn no_signal_is_lost() {
    no_wake_is_lost::<Event>("notify no_signal_is_lost");
}

#[test]
fn no_wake_of_a_task_is_lost() {
    no_wake_is_lost::<Task>("notify no_wake_of_a_task_is_lost");
}

/// A signal that was not waited for is cleared before the next sleep, and not taken for that one's.
#[test]
fn a_stale_signal_is_no_reason_to_sleep_on() {
    one_after_the_other::<Event>("notify a_stale_signal_is_no_reason_to_sleep_on", 0);
}

/// A waker that is renewed while the worker is on its way to it is woken all the same.
#[test]
fn a_renewed_waker_is_woken() {
    one_after_the_other::<Task>("notify a_renewed_waker_is_woken", 1);
}

/// A pair dropped while two workers complete its ops: they, or the drop, reap what is left, and the pair is forgotten once.
#[test]
fn an_orphan_is_reaped_by_the_last() {
    model("notify an_orphan_is_reaped_by_the_last", 2, Some(3), || {
        let pair = Pair::<Event>::new(2);
        let workers = [0, 1].map(|op| worker(&pair, vec![op]));
        pair.abandon(2);
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(pair.forgotten.load(Ordering::Relaxed), 1);
        assert!(pair.orphan.lock().unwrap().is_none());
    });
}
