//! Deadlines: how those who submit ops with one, and the timer that ends late ops, agree on when it must look.
//!
//! Each table has a [`Soonest`], the timer an [`Alarm`]. Who submits an op without a deadline touches neither; one with a
//! deadline costs a comparison, unless it is sooner than all others of its table.
//!
//! ```text
//!  submitter                                   timer
//!  1 the op is queued, with its deadline       1 the table's time has come: soonest = never    [sweep]
//!  2 fence(SeqCst)            [publication]    2 fence(SeqCst)
//!  3 sooner than `soonest`? lower it  [note]   3 look at all ops: end those that are late, lower `soonest` to the
//!  4 fence(SeqCst)                               next of the others
//!  5 sooner than the timer's `next`? wake it   4 next = the soonest of all tables              [set]
//!                                              5 fence(SeqCst); is one sooner now? from 1 on again
//!                                              6 sleep until `next`
//! ```
//! The fences of 2 forbid that the submitter sees the old `soonest` and the timer misses the op; the submitter's 4 and
//! the timer's 5 that the submitter sees the old `next` and the timer the old `soonest`.

use crate::sync::{AtomicBool, AtomicU64, Ordering, broken, fence};

/// Of an op without a deadline, of a table in which none has one, and of a timer that sleeps until it is woken.
pub const NEVER: u64 = u64::MAX;

/// The soonest deadline of a table: none of its ops has an earlier one, but for those of which it is told in a moment.
/// An op that has ended may have left its own here: then the timer looks for nothing, once.
#[derive(Debug)]
pub struct Soonest(AtomicU64);

impl Default for Soonest {
    fn default() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl Soonest {
    /// Tells of ops that were published, with the soonest of their deadlines; after the publication's fence
    /// ([`publish_fence`](crate::park::publish_fence)). True: the caller must wake the timer.
    #[inline]
    pub fn note(&self, deadline: u64, alarm: &Alarm) -> bool {
        // Relaxed, as all here: the fences order it.
        if deadline >= self.0.load(Ordering::Relaxed) {
            // The timer looks in time for that one, and finds this op too; or who lowered it is about to see to that.
            return false;
        }
        match broken("deadline-note-store") {
            false => _ = self.0.fetch_min(deadline, Ordering::Relaxed),
            true => self.0.store(deadline, Ordering::Relaxed),
        }
        if !broken("deadline-note-fence") {
            // Pairs with the fence in `Alarm::set`.
            fence(Ordering::SeqCst);
        }
        deadline < alarm.next.load(Ordering::Relaxed)
    }

    /// The timer's look at the table's ops, if its time has come by `now`. `look` ends the late ones and tells the
    /// soonest deadline of the others. Returns whether it was called.
    #[inline]
    pub fn sweep(&self, now: u64, look: impl FnOnce() -> u64) -> bool {
        if self.get() > now {
            return false;
        }
        // Before the look: an op that it misses is noted after this.
        self.0.store(NEVER, Ordering::Relaxed);
        if !broken("deadline-sweep-fence") {
            // Pairs with the fence of a publication: it sees that, or we see its ops.
            fence(Ordering::SeqCst);
        }
        let rest = look();
        match broken("deadline-sweep-store") {
            false => _ = self.0.fetch_min(rest, Ordering::Relaxed),
            true => self.0.store(rest, Ordering::Relaxed),
        }
        true
    }

    /// The soonest deadline.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// When the timer looks next, and whether it shall end.
#[derive(Debug)]
pub struct Alarm {
    next: AtomicU64,
    ended: AtomicBool,
}

impl Default for Alarm {
    fn default() -> Self {
        Self {
            next: AtomicU64::new(NEVER),
            ended: AtomicBool::new(false),
        }
    }
}

impl Alarm {
    /// The timer is about to sleep until `next`, the soonest deadline of all tables at its last look; `again` looks at
    /// them once more. False: look at the ops again, or end.
    pub fn set(&self, next: u64, again: impl FnOnce() -> u64) -> bool {
        self.next.store(next, Ordering::Relaxed);
        if !broken("deadline-set-fence") {
            // Pairs with the fences in `note` and `end`: they see `next`, and that the thread is there to be woken, or
            // we see what they have written.
            fence(Ordering::SeqCst);
        }
        broken("deadline-set-recheck") || !self.is_ended() && again() >= next
    }

    /// Tells the timer to end. The caller must wake it.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        if !broken("deadline-end-fence") {
            // Pairs with the fence in `set`.
            fence(Ordering::SeqCst);
        }
    }

    /// Whether the timer shall end.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}
