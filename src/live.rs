//! The spans of ops in flight. Debug builds refuse a span that overlaps one of them, unless both are only read; release
//! builds keep no list.

#[cfg(debug_assertions)]
use std::sync::{Arc, Mutex, MutexGuard};

use crate::OpKind;

/// A handle: clones mean the same list.
#[derive(Clone, Default)]
pub(crate) struct LiveSpans {
    #[cfg(debug_assertions)]
    spans: Arc<Mutex<Spans>>,
}

#[cfg(debug_assertions)]
#[derive(Default)]
struct Spans {
    /// By address.
    sorted: Vec<Live>,
    /// Length of the longest that ever was.
    longest: usize,
}

#[cfg(debug_assertions)]
struct Live {
    addr: usize,
    len: usize,
    written: bool,
}

#[cfg(debug_assertions)]
impl LiveSpans {
    /// For a test of what takes it.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Spans> {
        self.spans.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds a span; false where it overlaps another.
    pub(crate) fn add(&self, op: OpKind, addr: usize, len: usize) -> bool {
        let written = op == OpKind::Retrieve;
        let mut spans = self.lock();
        let longest = spans.longest;
        let end = spans.sorted.partition_point(|live| live.addr < addr + len);
        let begin = spans
            .sorted
            .partition_point(|live| live.addr + longest <= addr);
        let near = spans.sorted.get(begin..end).unwrap_or_default();
        if near
            .iter()
            .any(|live| live.addr + live.len > addr && (live.written || written))
        {
            return false;
        }
        let at = spans.sorted.partition_point(|live| live.addr <= addr);
        spans.sorted.insert(at, Live { addr, len, written });
        spans.longest = longest.max(len);
        true
    }

    /// Takes a span off the list. Of equal ones, which are then only read, any is as good as another.
    pub(crate) fn remove(&self, addr: usize, len: usize) {
        let mut spans = self.lock();
        let begin = spans.sorted.partition_point(|live| live.addr < addr);
        let found = spans.sorted[begin..]
            .iter()
            .take_while(|live| live.addr == addr)
            .position(|live| live.len == len);
        if let Some(at) = found {
            spans.sorted.remove(begin + at);
        }
    }
}

#[cfg(not(debug_assertions))]
impl LiveSpans {
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized + '_ {}

    #[inline(always)]
    pub(crate) fn add(&self, _: OpKind, _: usize, _: usize) -> bool {
        true
    }

    #[inline(always)]
    pub(crate) fn remove(&self, _: usize, _: usize) {}
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    /// Against the plain definition.
    #[test]
    fn a_span_is_added_unless_a_byte_of_it_is_written_by_either() {
        let spans = LiveSpans::default();
        let mut plain: Vec<(usize, usize, bool)> = Vec::new();
        let mut seed = 7u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) % n) as usize
        };
        let (mut added, mut refused) = (0, 0);
        for _ in 0..20_000 {
            if below(3) == 0 && !plain.is_empty() {
                let (addr, len, _) = plain.swap_remove(below(plain.len() as u64));
                spans.remove(addr, len);
                continue;
            }
            let (addr, len) = (below(200), 1 + below(12));
            let op = [OpKind::Retrieve, OpKind::Store][below(2)];
            let written = op == OpKind::Retrieve;
            let fits = plain
                .iter()
                .all(|&(a, l, w)| a + l <= addr || addr + len <= a || !(w || written));
            assert_eq!(spans.add(op, addr, len), fits);
            if fits {
                plain.push((addr, len, written));
                added += 1;
            } else {
                refused += 1;
            }
        }
        assert!(added > 1_000 && refused > 1_000);
        assert_eq!(spans.lock().sorted.len(), plain.len());
    }
}
