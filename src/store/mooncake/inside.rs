//! Who is inside the library, so that a client is never destroyed under a call.

use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use crate::fork::ForkWord;

/// Calls may begin.
const OPEN: u64 = 1 << 63;
/// Always set, so that the word is never zero; a forked child finds neither.
const AT_HOME: u64 = 1 << 62;

/// Counts calls under way; once closed, none begins. In a forked child it is closed: the library's threads are not there.
pub(super) struct Inside {
    /// Calls under way, [`OPEN`] and [`AT_HOME`].
    state: ForkWord,
}

impl Default for Inside {
    fn default() -> Self {
        Self {
            state: ForkWord::new(OPEN | AT_HOME),
        }
    }
}

/// A call under way.
pub(super) struct Entered<'a>(&'a Inside);

impl Inside {
    /// `None`: closed.
    pub fn enter(&self) -> Option<Entered<'_>> {
        // One word for both, so that either `close` sees this call or this call sees that it is closed.
        let before = self.state.fetch_add(1, Acquire);
        let entered = Entered(self);
        (before & OPEN != 0).then_some(entered)
    }

    pub fn is_closed(&self) -> bool {
        self.state.load(Relaxed) & OPEN == 0
    }

    pub fn is_forked(&self) -> bool {
        self.state.load(Relaxed) & AT_HOME == 0
    }

    /// Lets no call begin any more. Returns whether it was this that closed it.
    pub fn close(&self) -> bool {
        self.state.fetch_and(!OPEN, AcqRel) & OPEN != 0
    }

    /// After [`close`](Self::close): waits until no call is under way; `false`: the limit came before.
    pub fn wait_empty(&self, limit: Duration) -> bool {
        let start = Instant::now();
        // Pairs with the release of each call that leaves: all it did has happened.
        while self.state.load(Acquire) != AT_HOME {
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
