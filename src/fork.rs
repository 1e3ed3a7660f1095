//! How a forked child knows that it is one, without a system call: by a word that it finds as zero.
//!
//! A child has the memory of its parent as it was, but none of its threads: nothing that is queued ends, and a lock that
//! another thread held at that moment is never let go. So all that could wait there looks at such a word first.

use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// A word on a page of its own, which the kernel wipes in a child (`MADV_WIPEONFORK`, Linux 4.14).
///
/// It derefs to the atomic. Zero says "in a child": who writes other values, writes none there.
pub(crate) struct ForkWord {
    word: NonNull<AtomicU64>,
    /// Why it is plain memory, which a child finds as it was.
    plain: Option<String>,
}

// SAFETY: an owned atomic, as a `Box<AtomicU64>`.
unsafe impl Send for ForkWord {}
// SAFETY: as above.
unsafe impl Sync for ForkWord {}

impl ForkWord {
    /// A word with this value, which is not zero.
    pub(crate) fn new(value: u64) -> Self {
        let (word, plain) = match wiped_page() {
            Ok(page) => (page, None),
            Err(reason) => (
                NonNull::from(Box::leak(Box::new(AtomicU64::new(0)))),
                Some(reason),
            ),
        };
        let new = Self { word, plain };
        new.store(value, Ordering::Relaxed);
        new
    }

    /// Why forked children are not told apart; `None`: they are.
    pub(crate) fn warning(&self) -> Option<String> {
        let reason = self.plain.as_ref()?;
        Some(format!(
            "a forked child will not know that it is one: {reason}"
        ))
    }

    /// Whether this is a child of the process that made the word.
    #[inline(always)]
    pub(crate) fn is_wiped(&self) -> bool {
        // Relaxed: the child has one thread when it begins, and the zero is there before it does.
        self.load(Ordering::Relaxed) == 0
    }
}

impl Deref for ForkWord {
    type Target = AtomicU64;

    #[inline(always)]
    fn deref(&self) -> &AtomicU64 {
        // SAFETY: the page, or the box, is given back only in `drop`; any bytes are an atomic.
        unsafe { self.word.as_ref() }
    }
}

impl Drop for ForkWord {
    fn drop(&mut self) {
        if self.plain.is_some() {
            // SAFETY: `new` took it out of a box, and nobody uses it after this.
            drop(unsafe { Box::from_raw(self.word.as_ptr()) });
            return;
        }
        // SAFETY: `wiped_page` mapped it, and nobody uses it after this. A child has the page too, as its own.
        unsafe { libc::munmap(self.word.as_ptr().cast(), size_of::<AtomicU64>()) };
    }
}

/// A page of zeros here and in every child.
fn wiped_page() -> Result<NonNull<AtomicU64>, String> {
    // The kernel rounds the length up to a page.
    let len = size_of::<AtomicU64>();
    let failed = |call: &str| format!("{call}: {}", std::io::Error::last_os_error());
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at a place of the kernel's choice touches no memory in use.
    let page = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
    let word = match NonNull::new(page.cast::<AtomicU64>()) {
        Some(word) if page != libc::MAP_FAILED => word,
        _ => return Err(failed("mmap")),
    };
    // SAFETY: the page was just mapped; the advice changes nothing in this process.
    if unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) } != 0 {
        let reason = failed("madvise(MADV_WIPEONFORK)");
        // SAFETY: nobody else has its address.
        unsafe { libc::munmap(page, len) };
        return Err(reason);
    }
    Ok(word)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;
    use crate::store::{MemoryOptions, MemoryStore, SimOptions, SimStore};
    use crate::{Engine, EngineConfig, OpKind, Region, RegionOptions, SlotClass, Submission};

    /// The exit code of a forked child that runs `f`; one that hangs is ended by a signal, which has no code.
    fn in_a_child(f: impl FnOnce() -> i32) -> Option<i32> {
        // SAFETY: the child runs `f`, which takes no lock that another thread may hold, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no preconditions.
            unsafe {
                libc::alarm(5);
                libc::_exit(f());
            }
        }
        let mut status = 0;
        // SAFETY: `status` is live; the child is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
    }

    #[test]
    fn a_child_finds_zero_and_the_parent_what_it_wrote() {
        let word = ForkWord::new(7);
        assert_eq!((word.warning(), word.is_wiped()), (None, false));
        assert_eq!(in_a_child(|| i32::from(word.is_wiped())), Some(1));
        assert_eq!(word.load(Ordering::Relaxed), 7);
    }

    type Boxed<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

    fn poll(future: &mut Boxed<'_>) -> Poll<()> {
        future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    }

    /// As if other threads held every lock at the moment of the fork: this one holds them. Futures of each state are polled in the
    /// child, and others of the same dropped.
    #[test]
    fn a_child_takes_no_lock() {
        let memory = MemoryStore::new(MemoryOptions::default()).unwrap();
        let sim = Arc::new(SimStore::new(Arc::new(memory), SimOptions::default()).unwrap());
        let region = Region::allocate(RegionOptions::new(1 << 12)).unwrap();
        let class = SlotClass {
            size: 64,
            count: 16,
        };
        let pool = region.slot_pool(&[class]).unwrap();
        let engine = Engine::builder(sim.clone()).region(region);
        let engine = engine
            .config(EngineConfig::default().ring_depth(16))
            .start()
            .unwrap();
        let client = engine.client().with_cancel_on_drop();
        let retrieve = || -> Boxed<'_> {
            let op = client.retrieve("k", pool.lend(64).unwrap());
            Box::pin(async { drop(op.await) })
        };
        let many = || -> Boxed<'_> {
            Box::pin(async {
                client.lookup_prefix(["k"]).await;
            })
        };
        let mut ended = [retrieve(), retrieve()];
        while engine.stats().engine.completed < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let gate = sim.gate().close(&OpKind::ALL);
        let mut pair = engine.pair(4).unwrap();
        let ticket = pair.submit(Submission::store("k", pool.lend(64).unwrap()));
        let ticket = ticket.unwrap();
        let mut in_flight = [retrieve(), retrieve(), many(), many()];
        assert!(in_flight.iter_mut().all(|future| poll(future).is_pending()));
        let _full = [(); 10].map(|()| client.delete("k"));
        let mut waiting = [retrieve(), retrieve(), many(), many()];
        assert!(waiting.iter_mut().all(|future| poll(future).is_pending()));

        let counts = engine.stats().engine;
        assert_eq!((counts.credits_in_use, counts.accepted), (17, 17));

        let shared = &*engine.shared;
        let held = (
            shared.clients.waiting().hold(),
            shared.quarantine.hold(),
            shared.pairs.hold(),
            shared.memory.live().hold(),
            (
                shared.ending.lock(),
                shared.working.lock(),
                shared.released.lock(),
            ),
        );
        fn copy<T>(of: &T) -> T {
            // SAFETY: for the child, whose own copies these are; it drops each once.
            unsafe { ptr::read(of) }
        }
        let code = in_a_child(|| {
            for futures in [&mut ended[..], &mut in_flight, &mut waiting] {
                for (i, future) in futures.iter_mut().enumerate() {
                    if i % 2 == 0 && poll(future).is_pending() {
                        return 1;
                    }
                    drop(copy(future));
                }
            }
            let abandon = crate::IfRunning::Abandon;
            let calls = [
                engine.pair(1).is_err(),
                engine.quarantined().is_empty(),
                engine.stats().engine.accepted == 0,
                engine
                    .shutdown(crate::Shutdown::Cancel, Duration::ZERO)
                    .is_err(),
                pair.cancel(ticket, abandon) == crate::Cancel::Forked,
                pair.wait(1, None).is_err(),
                pair.poll().is_none(),
                client.blocking().lookup("k").is_err(),
            ];
            drop((copy(&pair), copy(&client), copy(&engine)));
            calls.iter().position(|ok| !ok).map_or(0, |i| 10 + i as i32)
        });
        drop(held);
        drop(gate);
        assert_eq!(code, Some(0));
    }

    #[test]
    fn a_word_without_a_page_is_a_word_and_says_so() {
        let word = ForkWord {
            word: NonNull::from(Box::leak(Box::new(AtomicU64::new(1)))),
            plain: Some("mmap: no".to_owned()),
        };
        assert!(!word.is_wiped());
        assert_eq!(word.fetch_add(1, Ordering::Relaxed), 1);
        let warning = word.warning().expect("a warning");
        assert!(warning.ends_with("mmap: no"), "{warning}");
    }
}
