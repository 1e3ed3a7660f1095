//! Lingering: what was published and may wait for company is not ready yet. It has a bit of its own for each source, and a time at which
//! it is due.
//!
//! ```text
//!   publisher                                    worker, at the begin of a round
//!   push to the ring                             anything due? then, if it should go now
//!   bit, count, then due time                      due = never, fence, take the bits, make those sources ready
//!   fence(SeqCst)
//!   enough? ready bit, wake, as always           worker, before it sleeps
//!   else: due sooner than before?                announce, fence, look for work
//!     wake the lingerer, or a sleeper            anything due, and no lingerer yet? be it, fence, sleep until then
//!                                                  be it no more, retract, look again
//! ```
//! The time comes after the bit, so who takes the time away finds the bit. A publisher that moves the time forward either sees the lingerer,
//! which it then wakes, or the lingerer sees that time: both have a fence between. Who takes the place of no lingerer, because there
//! still is one, is seen asleep by it before it goes busy, and woken then if something is due.
//!
//! The count is a hint: it may be too high, and then a call begins early.

use crossbeam_utils::CachePadded;

use crate::deadline::NEVER;
use crate::park::WakeWord;
use crate::sync::{AtomicU64, AtomicUsize, Ordering, broken, fence, ordering};

/// What lingers of one kind of work, in so many queues of sources.
#[derive(Debug)]
pub struct Lingering<const QUEUES: usize> {
    /// By queue, a bit for each source.
    sources: [Box<[AtomicU64]>; QUEUES],
    count: AtomicU64,
    /// The least that is enough for one of them.
    enough: AtomicU64,
    /// When the first of them is due; [`NEVER`]: nothing lingers.
    due: AtomicU64,
}

/// What becomes of what may linger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// There is enough now.
    Enough,
    /// It waits.
    Waits {
        /// Nothing is due before it.
        first: bool,
    },
}

impl<const QUEUES: usize> Lingering<QUEUES> {
    /// For so many sources.
    pub fn new(sources: usize) -> Self {
        let bits = |_| {
            (0..sources.div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect()
        };
        Self {
            sources: std::array::from_fn(bits),
            count: AtomicU64::new(0),
            enough: AtomicU64::new(NEVER),
            due: AtomicU64::new(NEVER),
        }
    }

    /// So much more of a source, which is in its ring. A fence comes after this.
    pub fn add(&self, queue: usize, source: usize, n: u64, enough: u64, due: u64) -> Added {
        let late = broken("linger-add-late");
        if !late {
            self.set_bit(queue, source);
        }
        let n = self.count.fetch_add(n, Ordering::Relaxed) + n;
        let enough = self.enough.fetch_min(enough, Ordering::Relaxed).min(enough);
        // Release pairs with the Acquire in `ripen`: who takes the time away finds the bit.
        let order = ordering!(Release, "linger-add-due" => Relaxed);
        let before = self.due.fetch_min(due, order);
        if late {
            self.set_bit(queue, source);
        }
        match n >= enough {
            true => Added::Enough,
            false => Added::Waits {
                first: due < before,
            },
        }
    }

    #[inline(always)]
    fn set_bit(&self, queue: usize, source: usize) {
        // Release pairs with the Acquire of the swap in `ripen`: who finds it finds the ring filled.
        let order = ordering!(Release, "linger-add-bit" => Relaxed);
        self.sources[queue][source / 64].fetch_or(1 << (source % 64), order);
    }

    /// When the first is due; [`NEVER`]: nothing lingers.
    #[inline]
    pub fn due(&self) -> u64 {
        self.due.load(Ordering::Relaxed)
    }

    /// Takes all that lingers: `ready` is told of each queue and source.
    pub fn ripen(&self, mut ready: impl FnMut(usize, usize)) {
        let early = broken("linger-ripen-early");
        if !early {
            self.forget();
        }
        for (queue, words) in self.sources.iter().enumerate() {
            for (word, bits) in words.iter().enumerate() {
                let mut bits = match bits.load(Ordering::Relaxed) {
                    0 => continue,
                    _ => bits.swap(0, ordering!(Acquire, "linger-ripen-bits" => Relaxed)),
                };
                while bits != 0 {
                    ready(queue, word * 64 + bits.trailing_zeros() as usize);
                    bits &= bits - 1;
                }
            }
        }
        if early {
            self.forget();
        }
    }

    fn forget(&self) {
        // Acquire: the bit of each time that is taken away here is seen after this. Who adds later sets the time again.
        self.due
            .swap(NEVER, ordering!(Acquire, "linger-ripen-due" => Relaxed));
        self.enough.store(NEVER, Ordering::Relaxed);
        self.count.store(0, Ordering::Relaxed);
    }
}

/// The one of a crew that sleeps until what lingers is due.
#[derive(Debug)]
pub struct Lingerer(CachePadded<AtomicUsize>);

const NOBODY: usize = usize::MAX;

impl Default for Lingerer {
    fn default() -> Self {
        Self::new()
    }
}

impl Lingerer {
    /// Nobody.
    pub fn new() -> Self {
        Self(CachePadded::new(AtomicUsize::new(NOBODY)))
    }

    /// Who it is. A publisher whose [`Added::Waits`] is the first wakes it after its fence, or else one that sleeps if that
    /// [is needed](crate::crew::Crew::needs_wake). A worker looks after [`enter`](crate::crew::Crew::enter).
    #[inline]
    pub fn who(&self) -> Option<usize> {
        match self.0.load(Ordering::Relaxed) {
            NOBODY => None,
            worker => Some(worker),
        }
    }

    /// Sleeps as the lingerer, if there is none. The worker is announced by the bit of its number, and has looked for work since. `sleep`
    /// looks when something is due, and sleeps until then or until the worker is woken.
    pub fn linger(&self, word: &WakeWord, worker: usize, sleep: impl FnOnce()) -> bool {
        let relaxed = Ordering::Relaxed;
        let taken = self.0.compare_exchange(NOBODY, worker, relaxed, relaxed);
        if taken.is_err() {
            return false;
        }
        if !broken("linger-begin-fence") {
            // Pairs with the publisher's: it sees the lingerer, or `sleep` sees the time of what it published.
            fence(Ordering::SeqCst);
        }
        sleep();
        self.0.store(NOBODY, relaxed);
        // Whoever took it has woken this worker, and it looks for work now, after a fence: so it sees what found no lingerer. Who still
        // found one, and sleeps, is seen asleep after the fence of `Crew::enter`.
        word.retract(1 << worker);
        true
    }
}
