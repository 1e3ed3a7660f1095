//! A caller's waker in our hands. Waking and dropping it run the caller's code; a panic of that code stops here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// A waker that is woken and dropped without a panic.
#[derive(Debug)]
pub(crate) struct OpWaker(Option<Waker>);

impl OpWaker {
    /// Clones the caller's waker, on the caller's thread: a panic of that is the caller's.
    pub(crate) fn of(waker: &Waker) -> Self {
        Self(Some(waker.clone()))
    }

    pub(crate) fn will_wake(&self, other: &Waker) -> bool {
        self.0.as_ref().is_some_and(|waker| waker.will_wake(other))
    }

    pub(crate) fn wake(mut self) {
        if let Some(waker) = self.0.take() {
            quietly(|| waker.wake());
        }
    }
}

impl Drop for OpWaker {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            quietly(|| drop(waker));
        }
    }
}

/// Runs foreign code whose panic shall harm nobody. The panic hook has told of it.
pub(crate) fn quietly(f: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
        drop_quietly(payload);
    }
}

/// Drops what may panic while it is dropped, as a panic's payload.
pub(crate) fn drop_quietly<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        // A payload whose drop panics gives a payload: that one is leaked rather than asked again.
        std::mem::forget(payload);
    }
}
