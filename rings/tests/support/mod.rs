//! What the plain tests share.
#![allow(dead_code)] // not every test file uses all of it

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Failing inputs are printed whole, not kept in files.
pub fn cases() -> proptest::test_runner::Config {
    proptest::test_runner::Config {
        failure_persistence: None,
        ..Default::default()
    }
}

/// Runs `f`; a hang ends the whole test process with a message that says where.
pub fn within<R>(limit: Duration, what: &str, f: impl FnOnce() -> R) -> R {
    let done = Arc::new(AtomicBool::new(false));
    let watch = {
        let (done, what) = (Arc::clone(&done), what.to_owned());
        move || {
            let start = Instant::now();
            while !done.load(Ordering::Relaxed) {
                if start.elapsed() > limit {
                    eprintln!("{what}: still running after {limit:?}, a hang; aborting");
                    std::process::abort();
                }
                std::thread::park_timeout(Duration::from_millis(200));
            }
        }
    };
    let watchdog = std::thread::spawn(watch);
    // Also where `f` panics: the watchdog must not outlive it.
    struct Done(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);
    impl Drop for Done {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
            if let Some(watchdog) = self.1.take() {
                watchdog.thread().unpark();
                let _ = watchdog.join();
            }
        }
    }
    let _done = Done(done, Some(watchdog));
    f()
}

/// How many values are alive.
#[derive(Clone, Debug, Default)]
pub struct Alive(Arc<AtomicI64>);

/// A value on the heap that counts itself. Dropped twice, the count goes wrong, and the allocator notices.
#[derive(Debug)]
pub struct Counted {
    pub number: u64,
    alive: Alive,
    _heap: Box<u64>,
}

impl Alive {
    pub fn value(&self, number: u64) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted {
            number,
            alive: self.clone(),
            _heap: Box::new(number),
        }
    }

    pub fn count(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert_eq!(*self._heap, self.number, "dropped twice");
        self.alive.0.fetch_sub(1, Ordering::Relaxed);
    }
}
