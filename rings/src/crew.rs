//! A crew: workers that sleep by one wake word, and whom to wake for new work.
//!
//! A worker is asleep (or about to be: its bit in the word is set), **busy** with a call that may take long, or **between**: it looks for work
//! before it goes busy again or to sleep. While one is between, new work wakes nobody. That spares the system calls where calls are
//! short, and merges more; where they are long, all that are awake are busy nearly always.
//!
//! ```text
//!   worker                                     who publishes
//!   take work                                  publish
//!   busy += 1                                  fence(SeqCst)          [publish_fence]
//!   fence(SeqCst)                              sleepers + busy = all, and one sleeps? wake one
//!   work left, and sleepers + busy = all?
//!       wake one
//!   the call
//!   busy -= 1, look for work again
//! ```
//!
//! Of a publication and each worker that goes busy, the fences let one see the other. So either the publisher finds all busy or asleep; or the
//! last of the workers to go busy after its look finds the work, and all others busy or asleep. Who goes to sleep announces that, and looks
//! again, as [`park`](crate::park) says.

use crossbeam_utils::CachePadded;

use crate::park::WakeWord;
use crate::sync::{AtomicUsize, Ordering, broken, fence};

/// One of the crew looks for work all the time: nobody needs to be woken.
pub const SPINNING: u64 = 1 << 63;

/// The crew.
#[derive(Debug)]
pub struct Crew {
    word: CachePadded<WakeWord>,
    busy: CachePadded<AtomicUsize>,
    members: usize,
}

impl Crew {
    /// A crew of so many, all of them between. Others may sleep by the same word, with bits of their own: they count as nobody of it,
    /// and are woken too often rather than too seldom.
    pub fn new(members: usize) -> Self {
        Self {
            word: CachePadded::new(WakeWord::new()),
            busy: CachePadded::new(AtomicUsize::new(0)),
            members,
        }
    }

    /// By which they sleep.
    #[inline]
    pub fn word(&self) -> &WakeWord {
        &self.word
    }

    /// How many are busy. A hint.
    #[inline]
    pub fn busy(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    /// A worker is about to go busy. Look for work that is left after this, and wake one if that [is needed](Self::needs_wake).
    #[inline]
    pub fn enter(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
        // One alone has nobody to wake.
        if self.members > 1 && !broken("crew-enter-fence") {
            // Pairs with `publish_fence`.
            fence(Ordering::SeqCst);
        }
    }

    /// It is between again, and looks for work.
    #[inline]
    pub fn leave(&self) {
        // Relaxed: should its next look come before this is seen, there is another after the fence of `enter` or of its announcement.
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// After a publication and its fence, or after [`enter`](Self::enter): whether one sleeps, none spins, and none is between.
    #[inline]
    pub fn needs_wake(&self) -> bool {
        let announced = self.word.announced();
        announced != 0 && announced & SPINNING == 0 && self.is_nobody_between(announced)
    }

    #[inline]
    fn is_nobody_between(&self, announced: u64) -> bool {
        let asleep = announced.count_ones() as usize;
        let needed = match broken("crew-between-one") {
            true => self.members + 1,
            false => self.members,
        };
        asleep + self.busy() >= needed
    }
}
