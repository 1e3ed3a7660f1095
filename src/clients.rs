//! The in-flight table that all clients share, its credits, and who waits for one.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering, fence};
use std::task::Waker;

use moonring_rings::credits::Credits;
use moonring_rings::park::publish_fence;
use moonring_rings::slots::{Finished, Progress, Ticket};
use moonring_rings::sync::UnsafeCell;
use moonring_rings::{Full, PushError};

use crate::engine::Shared;
use crate::inflight::{Fill, NEVER, OpTable, hidden};
use crate::lane::CLIENTS;
use crate::live::LiveSpans;
use crate::quarantine::error_of;
use crate::store::RawResult;
use crate::submission::{Buffer, Submission};
use crate::waker::OpWaker;
use crate::{EngineConfig, Slot, SubmitError, key};

/// Caller numbers below this are pairs'.
const FIRST_CALLER: u16 = 4096;

/// What an op's owner (its future, or the worker that finishes it when that is gone) keeps of it.
#[derive(Default)]
struct Cell {
    slot: Option<Slot>,
    long_place: Option<u32>,
    /// The next op of the same batch.
    next: Option<Ticket>,
}

pub(crate) struct Clients {
    pub(crate) table: OpTable,
    cells: Box<[UnsafeCell<Cell>]>,
    live: LiveSpans,
    credits: Credits,
    long_places: Credits,
    waiting: Waiting,
    callers: AtomicU16,
    refused: AtomicU64,
}

// SAFETY: a cell is touched only by who holds its entry's credit, see `moonring_rings::slots`.
unsafe impl Sync for Clients {}

impl Clients {
    pub(crate) fn new(config: &EngineConfig, live: LiveSpans) -> Self {
        let depth = config.ring_depth;
        let table = OpTable::new(depth, config.long_keys, config.max_key, true);
        Self {
            live,
            cells: (0..depth).map(|_| UnsafeCell::default()).collect(),
            credits: Credits::new(depth),
            long_places: Credits::new(table.long_key_places()),
            waiting: Waiting::default(),
            callers: AtomicU16::new(0),
            refused: AtomicU64::new(0),
            table,
        }
    }

    /// A number for a new client, for `callers_per_call`. They come round again after 61,440 clients.
    pub(crate) fn next_caller(&self) -> u16 {
        let n = self.callers.fetch_add(1, Ordering::Relaxed);
        FIRST_CALLER + n % (u16::MAX - FIRST_CALLER)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn credits_in_use(&self) -> usize {
        self.table.depth().saturating_sub(self.credits.free())
    }

    /// Accepts an op and puts it into the ring; [`Shared::publish_clients`] shows it. `credit` is one that was waited for,
    /// if the caller has one.
    ///
    /// Gives the op's deadline too, for the publication.
    ///
    /// On `Err` the submission is as it was, and the credit was given back.
    #[inline(never)]
    pub(crate) fn push(
        &self,
        engine: &Shared,
        submission: &mut Submission<'_>,
        credit: Option<u32>,
        caller: u16,
        submitted: u64,
    ) -> Result<(Ticket, u64), SubmitError> {
        self.accept(engine, submission, credit, caller, submitted)
    }

    /// [`push`](Self::push), for one who knows something of the submission.
    #[inline(always)]
    pub(crate) fn accept(
        &self,
        engine: &Shared,
        submission: &mut Submission<'_>,
        credit: Option<u32>,
        caller: u16,
        submitted: u64,
    ) -> Result<(Ticket, u64), SubmitError> {
        let op = submission.op;
        let checked = match engine.is_closing() {
            true => Err(engine.refusal()),
            false => engine
                .check_lane(op)
                .and_then(|()| key::check_len(submission.key, engine.config.max_key)),
        };
        if let Err(reason) = checked {
            // In a child no lock is taken, also not for those who wait for this credit.
            if let Some(index) = credit.filter(|_| reason != SubmitError::Forked) {
                self.give_back(index, None);
            }
            return Err(reason);
        }
        let depth = self.table.depth();
        let index = credit
            .or_else(|| self.credits.acquire())
            .ok_or(SubmitError::NoCredit { depth })?;
        let mut long_place = None;
        if OpTable::is_long(submission.key) {
            long_place = self.long_places.acquire();
            if long_place.is_none() {
                self.give_back(index, None);
                let places = self.table.long_key_places();
                return Err(SubmitError::NoLongKeyPlace { places });
            }
        }
        // SAFETY: credit and place were free, and are ours; the key's length was checked.
        let placed = unsafe {
            self.table
                .place_key(index, long_place, submission.key, &engine.hasher)
        };
        let ready = placed
            .map_err(|at| SubmitError::NulInKey { at })
            .and_then(|key| Ok((key, engine.target(op, &submission.buffer)?)));
        let (key, (buf, len)) = match ready {
            Ok(ready) => ready,
            Err(reason) => {
                self.give_back(index, long_place);
                return Err(reason);
            }
        };
        let deadline = engine.deadline(op, submission.timeout, submitted);
        let fill = Fill {
            op,
            // Unseen by the timer until the op is in its ring: only then it is accepted, and can be ended.
            deadline: hidden(deadline),
            buf,
            len,
            flags: submission.flags,
            caller,
            submitted,
        };
        // SAFETY: the credit was free, and is ours.
        let ticket = unsafe { self.table.queue(index, key, &fill) };
        self.table.ops().prefetch_mail(ticket);
        // The cell before the push: afterwards a worker may finish the op, though only a detached one touches the cell.
        self.with_cell(index, |cell| {
            cell.long_place = long_place;
            if let Buffer::Slot(slot) = std::mem::replace(&mut submission.buffer, Buffer::None) {
                cell.slot = Some(slot);
            }
        });
        let queue = engine.lanes[op.index()].queue(submission.class);
        match queue.clients.push(ticket.to_word()) {
            Ok(()) => {
                if deadline != NEVER {
                    // SAFETY: the op is its caller's, who does not know of it yet: the entry is not used again.
                    unsafe { self.table.set_deadline(index, deadline) };
                }
                Ok((ticket, deadline))
            }
            Err(error) => {
                if let (Some(slot), _) = self.release(index) {
                    submission.buffer = Buffer::Slot(slot);
                }
                self.give_back(index, long_place);
                Err(match error {
                    PushError::Full(Full { room, .. }) => SubmitError::RingFull { op, room },
                    PushError::Closed(_) => SubmitError::ShutDown,
                })
            }
        }
    }

    /// The caller must hold the entry's credit.
    #[inline(always)]
    fn with_cell<R>(&self, index: u32, f: impl FnOnce(&mut Cell) -> R) -> R {
        // SAFETY: this module's functions pass only indices whose credit they hold.
        self.cells[index as usize].with_mut(|cell| f(unsafe { &mut *cell }))
    }

    /// Takes slot and long place out of the cell: the op is over.
    fn release(&self, index: u32) -> (Option<Slot>, Option<u32>) {
        let (slot, place) = self.with_cell(index, |c| (c.slot.take(), c.long_place.take()));
        if let Some(slot) = &slot {
            self.live.remove(slot.as_ptr().addr(), slot.len());
        }
        (slot, place)
    }

    fn give_back(&self, index: u32, long_place: Option<u32>) {
        if let Some(place) = long_place {
            self.long_places.release(place);
        }
        self.pass_on(index);
    }

    /// Gives a credit to the first that waits for one, or else to all.
    #[inline]
    pub(crate) fn pass_on(&self, index: u32) {
        let mut index = Some(index);
        while let Some(credit) = index.take() {
            if self.waiting.is_anybody() {
                index = self.waiting.grant(credit);
                if index.is_some() {
                    // Nobody waits any more: once more.
                    continue;
                }
            } else {
                self.credits.release(credit);
            }
            // Pairs with the fence in `Waiting::register`: who queued up has seen the credit, or is seen here.
            fence(Ordering::SeqCst);
            if self.waiting.is_anybody() {
                index = self.credits.acquire();
            }
        }
    }

    /// Takes result and slot of an op that is done, and gives its credit back (or leaves that to the worker, where it is
    /// still about to take the op's waker).
    ///
    /// # Safety
    /// The caller must own the op, which must be done, and not use it again.
    pub(crate) unsafe fn reap(&self, ticket: Ticket) -> (RawResult, Option<Slot>) {
        let index = ticket.index();
        let result = match self.table.ops().progress(ticket) {
            Progress::Ended {
                why: Some((why, started)),
                more,
            } => {
                let error = Err(error_of(why, started));
                // SAFETY: the caller owns the op, which has ended.
                if more && !unsafe { self.table.ops().reap(ticket) } {
                    // A store call has its bytes: who releases it clears up.
                    return (error, None);
                }
                error
            }
            // SAFETY: the caller owns the op, which is done.
            _ => unsafe { self.table.ops().result(index) },
        };
        let (slot, place) = self.release(index);
        // SAFETY: as above.
        if unsafe { self.table.ops().reap(ticket) } {
            self.give_back(index, place);
        } else if let Some(place) = place {
            self.long_places.release(place);
        }
        (result, slot)
    }

    /// [`reap`](Self::reap) of an op that ended as its call did, and has neither slot nor long key; of others, nothing is done.
    ///
    /// # Safety
    /// The caller must own the op, and not use it again if it has its result.
    #[inline(always)]
    pub(crate) unsafe fn reap_bare(&self, ticket: Ticket) -> Option<RawResult> {
        let index = ticket.index();
        // SAFETY: the op is the caller's, so the ticket is of this table.
        let ended = unsafe { self.table.ops().ended_quietly(ticket) };
        if !ended || self.with_cell(index, |c| c.slot.is_some() || c.long_place.is_some()) {
            return None;
        }
        // SAFETY: the caller owns the op, which has ended.
        let result = unsafe { self.table.ops().result(index) };
        self.pass_on(index);
        Some(result)
    }

    /// Clears up after an op whose owner is gone, and gives its credit back.
    ///
    /// # Safety
    /// The entry must be the caller's, by [`Finished::Detached`].
    unsafe fn recycle(&self, index: u32) {
        let (slot, place) = self.release(index);
        drop(slot);
        self.give_back(index, place);
    }

    /// Ends ops. Their owners' wakers are put into `wakers`, to be woken when all are ended.
    ///
    /// # Safety
    /// The caller must have claimed and ended the tickets, which must be of this table and not abandoned, and not finished them.
    pub(crate) unsafe fn complete<'r>(
        &self,
        ends: impl Iterator<Item = (Ticket, &'r RawResult)>,
        wakers: &mut Vec<OpWaker>,
    ) {
        for (ticket, result) in ends {
            // SAFETY: the caller has ended the op.
            let finished = unsafe {
                self.table.ops().set_result(ticket.index(), *result);
                self.table.ops().finish(ticket)
            };
            self.after_end(ticket, finished, wakers);
        }
    }

    /// What is left to do when an op's end was told.
    #[inline]
    pub(crate) fn after_end(
        &self,
        ticket: Ticket,
        finished: Finished<OpWaker>,
        wakers: &mut Vec<OpWaker>,
    ) {
        match finished {
            Finished::Quiet => {}
            Finished::Wake(waker) => wakers.push(waker),
            Finished::Detached(waker) => {
                // Nobody needs this wake any more; but dropping a waker is user code, as waking it is.
                wakers.extend(waker);
                // SAFETY: as said by who gave us `finished`.
                unsafe { self.recycle(ticket.index()) };
            }
        }
    }

    /// Chains an op behind another of the same batch.
    ///
    /// # Safety
    /// The caller must own both ops.
    pub(crate) unsafe fn chain(&self, op: Ticket, next: Ticket) {
        self.with_cell(op.index(), |cell| cell.next = Some(next));
    }

    /// Ends the chain here; returns the op that was chained behind this one.
    ///
    /// # Safety
    /// The caller must own the op.
    pub(crate) unsafe fn unchain(&self, op: Ticket) -> Option<Ticket> {
        self.with_cell(op.index(), |cell| cell.next.take())
    }

    /// Gives a place in the queue for credits up, and passes on the credit that came meanwhile.
    pub(crate) fn leave_queue(&self, id: u64) {
        if let Some(index) = self.waiting.leave(id) {
            self.pass_on(index);
        }
    }

    /// Who waits for credits.
    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }
}

impl Shared {
    /// Shows ops that were pushed into the lane's clients' ring to the workers, and the timer the soonest of their deadlines.
    #[inline]
    pub(crate) fn publish_clients(&self, op: crate::OpKind, class: crate::Class, soonest: u64) {
        let lane = &self.lanes[op.index()];
        publish_fence();
        if soonest != NEVER {
            self.timer.note(&self.clients.table, soonest);
        }
        lane.queue(class).mark_ready(CLIENTS);
        // No look at `lane.is_closed()`: the ring itself is closed before the last worker leaves.
        self.groups[lane.group].wake_for(lane);
    }
}

/// Futures that wait for a credit, first come first served: a credit that comes back is handed to the first of them,
/// and is nobody else's until that one has used it or given up. So a caller who gives credits back and wants new ones at once,
/// as a long batch does, queues up behind the others.
///
/// The lock is taken only when somebody waits.
#[derive(Default)]
pub(crate) struct Waiting {
    /// How many wait. Changed under the lock; read without it by `is_anybody`.
    count: AtomicUsize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    next: u64,
    wakers: VecDeque<(u64, OpWaker)>,
    /// Credits of those who have been woken and have not come yet.
    granted: Vec<(u64, u32)>,
}

impl Queue {
    fn take_granted(&mut self, id: u64) -> Option<u32> {
        let at = self.granted.iter().position(|(i, _)| *i == id)?;
        Some(self.granted.swap_remove(at).1)
    }
}

/// What [`Waiting::register`] found.
pub(crate) enum Registered {
    /// In the queue, under this number. Try for a credit again.
    Waits(u64),
    /// This credit has been handed over; the place in the queue is gone.
    Has(u32),
}

impl Waiting {
    /// For a test of what takes the lock.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.queue.lock()
    }

    #[inline]
    fn is_anybody(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Queues up, or renews the waker of `id`.
    pub(crate) fn register(&self, id: Option<u64>, waker: &Waker) -> Registered {
        // Cloning and dropping wakers is user code, which may come back here: not under the lock.
        let mut waker = OpWaker::of(waker);
        let mut queue = self.queue.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(index) = id.and_then(|id| queue.take_granted(id)) {
            return Registered::Has(index);
        }
        let waiting = id.and_then(|id| queue.wakers.iter_mut().find(|(i, _)| *i == id));
        let id = match waiting {
            Some((id, old)) => {
                std::mem::swap(old, &mut waker);
                *id
            }
            None => {
                queue.next += 1;
                let id = queue.next;
                queue.wakers.push_back((id, waker));
                self.count.store(queue.wakers.len(), Ordering::Relaxed);
                id
            }
        };
        drop(queue);
        // Pairs with the fence in `pass_on`: a credit given back after our next try is handed to us.
        fence(Ordering::SeqCst);
        Registered::Waits(id)
    }

    /// Leaves the queue. A credit that has been handed over meanwhile is the caller's, to pass on.
    fn leave(&self, id: u64) -> Option<u32> {
        let mut queue = self.queue.lock().unwrap_or_else(|e| e.into_inner());
        let at = queue.wakers.iter().position(|(i, _)| *i == id);
        let waker = at.and_then(|at| queue.wakers.remove(at));
        self.count.store(queue.wakers.len(), Ordering::Relaxed);
        let index = queue.take_granted(id);
        drop(queue);
        drop(waker);
        index
    }

    /// Hands a credit to the first that waits, and wakes it. The credit comes back where nobody does.
    #[cold]
    fn grant(&self, index: u32) -> Option<u32> {
        let mut queue = self.queue.lock().unwrap_or_else(|e| e.into_inner());
        let Some((id, waker)) = queue.wakers.pop_front() else {
            return Some(index);
        };
        queue.granted.push((id, index));
        self.count.store(queue.wakers.len(), Ordering::Relaxed);
        drop(queue);
        waker.wake();
        None
    }

    /// Wakes everybody, for the end.
    pub(crate) fn notify_all(&self) {
        let mut queue = self.queue.lock().unwrap_or_else(|e| e.into_inner());
        let all = std::mem::take(&mut queue.wakers);
        self.count.store(0, Ordering::Relaxed);
        drop(queue);
        for (_, waker) in all {
            waker.wake();
        }
    }
}
