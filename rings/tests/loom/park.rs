//! The wake word: no wake is lost, none is given twice, and a wake brings along what was published before it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize as LoomUsize, Ordering::Relaxed};
use loom::thread::{self, Thread};
use moonring_rings::crew::Crew;
use moonring_rings::park::{WakeWord, publish_fence};

use crate::model;

/// Threads that sleep by a wake word, one bit each.
pub(crate) struct Sleepers {
    /// Two workers.
    pub(crate) crew: Crew,
    /// Set by each thread before it first announces itself. Not a part of the model.
    threads: Mutex<Vec<Option<Thread>>>,
}

impl Sleepers {
    pub(crate) fn new() -> Self {
        Self {
            crew: Crew::new(2),
            threads: Mutex::new(vec![None; 3]),
        }
    }

    pub(crate) fn word(&self) -> &WakeWord {
        self.crew.word()
    }

    pub(crate) fn enrol(&self, n: usize, thread: &Thread) {
        self.threads.lock().unwrap()[n] = Some(thread.clone());
    }

    /// Sleeps until somebody has cleared the bit. A thread that nobody wakes fails the model as a deadlock.
    pub(crate) fn sleep(&self, n: usize) {
        while self.word().peek(1 << n) != 0 {
            thread::park();
        }
    }

    pub(crate) fn unpark(&self, n: usize) {
        let thread = self.threads.lock().unwrap()[n].clone();
        thread.expect("announced after it enrolled").unpark();
    }

    pub(crate) fn wake_one(&self) -> bool {
        let taken = self.word().take_one(!0 >> 1);
        taken.inspect(|&n| self.unpark(n as usize)).is_some()
    }

    pub(crate) fn wake_all(&self) {
        let taken = self.word().take(!0 >> 1);
        (0..3)
            .filter(|n| taken >> n & 1 != 0)
            .for_each(|n| self.unpark(n));
    }
}

/// Work as a count, taken by who looks. The orderings say nothing: all order must come from the wake word.
struct Work {
    published: LoomUsize,
    taken: LoomUsize,
    over: AtomicBool,
    sleepers: Sleepers,
    total: usize,
}

impl Work {
    fn new(total: usize) -> Self {
        Self {
            published: LoomUsize::new(0),
            taken: LoomUsize::new(0),
            over: AtomicBool::new(false),
            sleepers: Sleepers::new(),
            total,
        }
    }

    fn publish(&self) {
        self.published.fetch_add(1, Relaxed);
        publish_fence();
        self.sleepers.wake_one();
    }

    /// Takes one piece; the last one tells the others that it is over.
    fn take(&self) -> bool {
        let mut taken = self.taken.load(Relaxed);
        while taken < self.published.load(Relaxed) {
            match self
                .taken
                .compare_exchange(taken, taken + 1, Relaxed, Relaxed)
            {
                Ok(_) => {
                    if taken + 1 == self.total {
                        self.over.store(true, Relaxed);
                        publish_fence();
                        self.sleepers.wake_all();
                    }
                    return true;
                }
                Err(now) => taken = now,
            }
        }
        false
    }

    /// Takes a piece and is busy for good, or sees that it is over.
    fn sleeper(&self, n: usize) -> bool {
        self.sleepers.enrol(n, &thread::current());
        loop {
            if self.take() {
                return true;
            }
            self.sleepers.word().announce(1 << n);
            let look_again = self.taken.load(Relaxed) < self.published.load(Relaxed);
            if look_again || self.over.load(Relaxed) {
                self.sleepers.word().retract(1 << n);
                if self.over.load(Relaxed) {
                    return false;
                }
                thread::yield_now();
                continue;
            }
            self.sleepers.sleep(n);
        }
    }
}

/// One publication, two sleepers: one takes it, and nobody sleeps for ever.
#[test]
fn two_sleepers_one_publication() {
    model("park two_sleepers_one_publication", 2, Some(3), || {
        let work = Arc::new(Work::new(1));
        let sleepers = [0, 1].map(|n| {
            let work = Arc::clone(&work);
            thread::spawn(move || work.sleeper(n))
        });
        work.publish();
        let took = sleepers.map(|s| s.join().unwrap());
        assert!(took[0] ^ took[1]);
    });
}

/// Two publications from two threads, each for one of two sleepers that are busy for good afterwards.
#[test]
fn two_sleepers_two_publications() {
    model("park two_sleepers_two_publications", 3, Some(2), || {
        let work = Arc::new(Work::new(2));
        let sleepers = [0, 1].map(|n| {
            let work = Arc::clone(&work);
            thread::spawn(move || work.sleeper(n))
        });
        let publisher = {
            let work = Arc::clone(&work);
            thread::spawn(move || work.publish())
        };
        work.publish();
        publisher.join().unwrap();
        let took = sleepers.map(|s| s.join().unwrap());
        assert!(took[0] && took[1]);
    });
}

/// Two who publish, one announcement: it is taken by at most one of them, and the sleeper's own retraction tells by whom.
#[test]
fn an_announcement_is_woken_at_most_once() {
    model(
        "park an_announcement_is_woken_at_most_once",
        2,
        None,
        || {
            let word = Arc::new(WakeWord::new());
            let wakes = std::sync::Arc::new(AtomicUsize::new(0));
            let publishers = [(); 2].map(|()| {
                let (word, wakes) = (Arc::clone(&word), wakes.clone());
                thread::spawn(move || {
                    publish_fence();
                    if word.take_one(0b11) == Some(1) {
                        wakes.fetch_add(1, Ordering::Relaxed);
                    }
                })
            });
            word.announce(0b10);
            let woken = word.retract(0b10) == 0;
            for publisher in publishers {
                publisher.join().unwrap();
            }
            assert_eq!(wakes.load(Ordering::Relaxed), usize::from(woken));
            assert_eq!(word.announced(), 0);
        },
    );
}

/// Whoever finds its bit cleared sees what the waker had published, with no other order between the two.
#[test]
fn a_wake_brings_along_what_was_published() {
    model(
        "park a_wake_brings_along_what_was_published",
        2,
        None,
        || {
            let shared = Arc::new((WakeWord::new(), UnsafeCell::new(0)));
            let publisher = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    // SAFETY: read only after the wake below.
                    shared.1.with_mut(|c| unsafe { *c = 7 });
                    publish_fence();
                    shared.0.take(0b1) != 0
                })
            };
            // Another sleeper's steps in between must not break the chain.
            let other = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.0.announce(0b10);
                    shared.0.retract(0b10);
                })
            };
            shared.0.announce(0b1);
            let woken = shared.0.peek(0b1) == 0 || shared.0.retract(0b1) == 0;
            if woken {
                // SAFETY: written before the bit was cleared.
                shared.1.with(|c| assert_eq!(unsafe { *c }, 7));
            }
            assert_eq!(publisher.join().unwrap(), woken);
            other.join().unwrap();
        },
    );
}
