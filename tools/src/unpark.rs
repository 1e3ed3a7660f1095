//! A waker for futures that a thread polls by itself.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

/// Wakes the thread of all futures. An unpark before the park is not lost: the park returns at once.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker that unparks the calling thread.
pub fn waker() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}
