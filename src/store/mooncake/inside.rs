//! Who is inside the library, so that a client is never destroyed under a call.

use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

const CLOSED: usize = 1 << (usize::BITS - 1);

/// Counts calls under way; once closed, none begins.
#[derive(Default)]
pub(super) struct Inside {
    /// Calls under way, and the bit [`CLOSED`].
    state: AtomicUsize,
}

/// A call under way.
pub(super) struct Entered<'a>(&'a Inside);

impl Inside {
    /// `None`: closed.
    pub fn enter(&self) -> Option<Entered<'_>> {
        // One word for both, so that either `close` sees this call or this call sees that it is closed.
        let before = self.state.fetch_add(1, Acquire);
        let entered = Entered(self);
        (before & CLOSED == 0).then_some(entered)
    }

    pub fn is_closed(&self) -> bool {
        self.state.load(Relaxed) & CLOSED != 0
    }

    /// Lets no call begin any more. Returns whether it was this that closed it.
    pub fn close(&self) -> bool {
        self.state.fetch_or(CLOSED, AcqRel) & CLOSED == 0
    }

    /// After [`close`](Self::close): waits until no call is under way; `false`: the limit came before.
    pub fn wait_empty(&self, limit: Duration) -> bool {
        let start = Instant::now();
        // Pairs with the release of each call that leaves: all it did has happened.
        while self.state.load(Acquire) != CLOSED {
            if start.elapsed() >= limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Pairs with `wait_empty`.
        self.0.state.fetch_sub(1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_waits_for_the_call_under_way_and_lets_none_begin() {
        let inside = Inside::default();
        let call = inside.enter();
        assert!(call.is_some() && !inside.is_closed());
        assert!(inside.close(), "the first");
        assert!(!inside.close(), "no more than once");
        assert!(inside.is_closed());
        assert!(inside.enter().is_none());
        assert!(!inside.wait_empty(Duration::from_millis(5)));
        drop(call);
        assert!(inside.wait_empty(Duration::ZERO));
        assert!(inside.enter().is_none());
        assert!(
            inside.wait_empty(Duration::ZERO),
            "refused calls are no calls"
        );
    }
}
