//! A task that waits for a pair by `poll_ready`: completion ring, wake word, and the waker in its place, as the engine has them.
//!
//! ```text
//!   worker                                   the task
//!   push the completion                      drain until empty
//!   fence(SeqCst)                            put the waker into its place, under a lock
//!   AWAITED? clear it,                       announce AWAITED, fence(SeqCst)
//!     take the waker out, under the lock     completion there? retract
//!     wake it                                none? sleep until it is woken
//! ```
//! A worker may find a waker that was renewed since the announcement which it took: the task is woken by that one, and looks again. It may
//! find none, where another was quicker. A task that sleeps for ever looks again and again, until loom gives up with that model.

use std::sync::atomic::{AtomicUsize as Counter, Ordering};

use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::sync::{Arc, Mutex};
use loom::thread;
use moonring_rings::completion::{CompletionRing, Cursor};
use moonring_rings::park::{WakeWord, publish_fence};

use crate::model;

const AWAITED: u64 = 1 << 3;

struct Pair {
    completions: CompletionRing,
    wake: WakeWord,
    /// A waker, by its number: that of the poll which it is of.
    waker: Mutex<Option<usize>>,
    /// The task is to be polled.
    woken: AtomicBool,
    wakes: Counter,
}

impl Pair {
    fn new(depth: usize) -> Arc<Self> {
        Arc::new(Self {
            completions: CompletionRing::new(depth),
            wake: WakeWord::new(),
            waker: Mutex::new(None),
            woken: AtomicBool::new(false),
            wakes: Counter::new(0),
        })
    }

    fn notify(&self) {
        if self.wake.announced() != 0 && self.wake.take(AWAITED) != 0 {
            let waker = self.waker.lock().unwrap().take();
            if waker.is_some() {
                self.wakes.fetch_add(1, Ordering::Relaxed);
                // Its own order says nothing: all must come from the rings.
                self.woken.store(true, Relaxed);
            }
        }
    }

    /// Whether the task may sleep.
    fn poll_ready(&self, cursor: &Cursor, poll: usize) -> bool {
        *self.waker.lock().unwrap() = Some(poll);
        self.wake.announce(AWAITED);
        if self.completions.has_ready(cursor, 0) {
            self.wake.retract(AWAITED);
            *self.waker.lock().unwrap() = None;
            return false;
        }
        true
    }

    /// The task, and the runtime that polls it when it was woken, and so often without. Returns what it got, and how often it was polled.
    fn task(&self, ops: usize, mut spurious: usize) -> (Vec<u64>, usize) {
        let mut cursor = Cursor::default();
        let (mut got, mut polls) = (Vec::new(), 0);
        loop {
            while let Some((op, _)) = self.completions.pop(&mut cursor) {
                got.push(op);
            }
            if got.len() == ops {
                return (got, polls);
            }
            polls += 1;
            if self.poll_ready(&cursor, polls) {
                if spurious > 0 {
                    spurious -= 1;
                    continue;
                }
                while !self.woken.load(Relaxed) {
                    thread::yield_now();
                }
                self.woken.swap(false, Relaxed);
            }
        }
    }
}

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

/// Two workers, one completion each: the task gets both, and is woken at most once for each time it asked.
#[test]
fn no_wake_of_a_task_is_lost() {
    model("task no_wake_of_a_task_is_lost", 2, Some(3), || {
        let pair = Pair::new(2);
        let workers = [0, 1].map(|op| worker(&pair, vec![op]));
        let (mut got, polls) = pair.task(2, 0);
        for worker in workers {
            worker.join().unwrap();
        }
        got.sort();
        assert_eq!(got, [0, 1]);
        assert!(pair.wakes.load(Ordering::Relaxed) <= polls);
    });
}

/// One worker after the other's completion, and a poll without a wake: a waker that is renewed while the worker is on its way to it is
/// woken all the same.
#[test]
fn a_renewed_waker_is_woken() {
    model("task a_renewed_waker_is_woken", 1, Some(3), || {
        let pair = Pair::new(2);
        let worker = worker(&pair, vec![0, 1]);
        assert_eq!(pair.task(2, 1).0, [0, 1]);
        worker.join().unwrap();
    });
}
