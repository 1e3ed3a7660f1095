//! Ops that end before their store call returns, or before there was one: by a deadline, a cancel, a shutdown.
//!
//! ```text
//!             abandon                                  the call returns
//!   queued ──────────▶ ended, never started
//!  running ──────────▶ ended with MORE, in the list ──────────────────▶ released, off the list
//! ```
//! Abandoning and releasing are done under the lock of the list. So a release never comes before the end that it belongs
//! to, neither in a pair's completion ring nor at a future's waker, and the list is exact. The lock is taken by nobody whose op ends
//! as usual, and no waker is woken under it: what a waker does may need it.
//!
//! While an op is listed, its span is in **quarantine**: a store call may still write it. Whoever submits a span looks at
//! one count, and at the list where that isn't 0.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use moonring_rings::park::publish_fence;
use moonring_rings::slots::{self, Ticket, Why};

use crate::engine::Shared;
use crate::inflight::OpTable;
use crate::lane::CLIENTS;
use crate::pair::PairShared;
use crate::waker::OpWaker;
use crate::{OpError, OpKind, Slot};

/// How an op ends that was abandoned.
pub(crate) fn error_of(why: Why, started: bool) -> OpError {
    match why {
        Why::Deadline => OpError::TimedOut { started },
        Why::Cancel => OpError::Cancelled { started },
        Why::ShutDown => OpError::ShutDown,
    }
}

/// An op that has ended while a store call goes on with it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quarantined {
    /// The op's kind.
    pub op: OpKind,
    /// Its key.
    pub key: Vec<u8>,
    /// Address of its buffer; `None` for a lookup or a delete.
    pub addr: Option<usize>,
    /// Length of the buffer in bytes.
    pub len: usize,
    /// How it ended.
    pub ended_as: OpError,
    /// How long ago that was.
    pub age: Duration,
}

/// One entry of the list.
struct Held {
    source: usize,
    ticket: Ticket,
    op: OpKind,
    key: *const u8,
    key_len: usize,
    addr: usize,
    len: usize,
    ended_as: OpError,
    /// In ticks.
    since: u64,
    /// The worker whose call counts as overdue for it.
    worker: Option<usize>,
    /// Of a pair whose owner has reaped the end.
    slot: Option<Slot>,
}

// SAFETY: the pointer is to a key place that belongs to the op until it is released, which takes it off the list.
unsafe impl Send for Held {}

/// The list, and its sums for those who only look.
pub(crate) struct Quarantine {
    held: Mutex<Vec<Held>>,
    /// Entries with a span. Changed under the lock.
    spans: AtomicUsize,
    /// Their bytes, by op kind.
    bytes: [AtomicUsize; 4],
    /// All entries.
    ops: AtomicUsize,
    /// Odd while somebody abandons an op: it may have ended and not been counted yet.
    turns: AtomicU64,
}

/// How many entries fit before the list must grow.
const ROOM: usize = 1024;

impl Quarantine {
    pub(crate) fn new() -> Self {
        Self {
            held: Mutex::new(Vec::with_capacity(ROOM)),
            spans: AtomicUsize::new(0),
            bytes: [const { AtomicUsize::new(0) }; 4],
            ops: AtomicUsize::new(0),
            turns: AtomicU64::new(0),
        }
    }

    /// For a test of what takes it.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Held>> {
        self.held.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether any span is in quarantine. Relaxed: a submitter that may use such a span again has learnt of it by a
    /// completion, which comes after the count.
    #[inline(always)]
    pub(crate) fn is_any(&self) -> bool {
        self.spans.load(Ordering::Relaxed) != 0
    }

    /// Whether a byte of the span is in quarantine.
    #[cold]
    pub(crate) fn has(&self, addr: usize, len: usize) -> bool {
        let end = addr.saturating_add(len);
        self.lock()
            .iter()
            .any(|held| held.len > 0 && held.addr < end && addr < held.addr + held.len)
    }

    /// Bytes of one op kind.
    #[inline(always)]
    pub(crate) fn bytes(&self, op: OpKind) -> usize {
        self.bytes[op.index()].load(Ordering::Relaxed)
    }

    /// Ops that are listed.
    pub(crate) fn ops(&self) -> usize {
        self.ops.load(Ordering::Relaxed)
    }

    /// Waits until every op that the caller has seen abandoned is counted.
    pub(crate) fn settled(&self) {
        while self.turns.load(Ordering::Acquire) & 1 != 0 {
            std::thread::yield_now();
        }
    }

    fn add(&self, list: &mut Vec<Held>, held: Held) {
        if held.len > 0 {
            self.spans.fetch_add(1, Ordering::Relaxed);
            self.bytes[held.op.index()].fetch_add(held.len, Ordering::Relaxed);
        }
        list.push(held);
        self.ops.store(list.len(), Ordering::Relaxed);
    }

    fn remove(&self, list: &mut Vec<Held>, source: usize, ticket: Ticket) -> Option<Held> {
        let is_it = |held: &Held| held.source == source && held.ticket == ticket;
        let held = list.swap_remove(list.iter().position(is_it)?);
        if held.len > 0 {
            self.spans.fetch_sub(1, Ordering::Relaxed);
            self.bytes[held.op.index()].fetch_sub(held.len, Ordering::Relaxed);
        }
        self.ops.store(list.len(), Ordering::Relaxed);
        Some(held)
    }

    /// Takes the slot of a pair's op whose end was reaped with MORE: it goes back to its pool when the op is released, or
    /// at once where it has been.
    pub(crate) fn keep(&self, source: usize, ticket: Ticket, slot: Slot) {
        let mut list = self.lock();
        let mut held = list.iter_mut();
        let held = held.find(|held| held.source == source && held.ticket == ticket);
        let at_once = match held {
            Some(held) => held.slot.replace(slot),
            None => Some(slot),
        };
        drop(list);
        drop(at_once);
    }
}

/// Of the source of an op: the clients' table, or a pair.
#[derive(Clone, Copy)]
pub(crate) enum Submitter<'a> {
    Clients,
    Pair(&'a PairShared),
}

impl<'a> Submitter<'a> {
    pub(crate) fn table(self, engine: &'a Shared) -> &'a OpTable {
        match self {
            Submitter::Clients => &engine.clients.table,
            Submitter::Pair(pair) => &pair.table,
        }
    }

    fn source(self) -> usize {
        match self {
            Submitter::Clients => CLIENTS,
            Submitter::Pair(pair) => pair.source(),
        }
    }
}

impl Shared {
    /// Ends an op that is queued, or, if `running`, one that is in a store call. Whether a call had taken it; `None`: it
    /// has ended already, or is running and shall go on.
    ///
    /// The caller wakes `wakers`, and calls [`PairShared::notify`] for a pair after a [`publish_fence`]; both without a lock.
    #[cold]
    pub(crate) fn abandon(
        &self,
        submitter: Submitter<'_>,
        ticket: Ticket,
        why: Why,
        running: bool,
        wakers: &mut Vec<OpWaker>,
    ) -> Option<bool> {
        let table = submitter.table(self);
        if ticket.index() as usize >= table.depth() {
            return None;
        }
        // SAFETY: the index was checked. It is this op's kind where it can be abandoned at all: generations only grow.
        let op = unsafe { table.peek_op(ticket.index()) };
        let quarantine = &self.quarantine;
        let mut list = quarantine.lock();
        // Release pairs with the Acquire in `settled`.
        quarantine.turns.fetch_add(1, Ordering::AcqRel);
        let done = table.ops().abandon(ticket, why, running);
        let (mut ended, mut overdue) = (None, None);
        let started = match done {
            None => None,
            Some(slots::Abandoned::NeverStarted(finished)) => {
                let error = error_of(why, false);
                self.count_end(op, error, None);
                match submitter {
                    Submitter::Clients => ended = Some(finished),
                    // SAFETY: we have just ended the op.
                    Submitter::Pair(pair) => unsafe { pair.push_end(ticket, error, false) },
                }
                Some(false)
            }
            Some(slots::Abandoned::Running(waker)) => {
                let error = error_of(why, true);
                wakers.extend(waker);
                // SAFETY: a worker has the op, and can't finish it before we let the lock go: nobody writes.
                let d = unsafe { &*table.ops().peek(ticket.index()) };
                let since = self.clock.raw();
                self.count_end(op, error, Some((d.submitted, since)));
                let worker = (why == Why::Deadline).then(|| d.worker());
                let held = Held {
                    source: submitter.source(),
                    ticket,
                    op,
                    key: d.key,
                    key_len: d.key_len as usize,
                    addr: d.buf.addr(),
                    len: d.len(),
                    ended_as: error,
                    since,
                    worker,
                    slot: None,
                };
                quarantine.add(&mut list, held);
                let lane = &self.lanes[op.index()];
                if worker.is_some_and(|w| self.groups[lane.group].add_overdue(w, op)) {
                    lane.circuit.add_overdue(since);
                    overdue = Some(lane);
                }
                if let Submitter::Pair(pair) = submitter {
                    // SAFETY: we have just ended the op.
                    unsafe { pair.push_end(ticket, error, true) };
                }
                Some(true)
            }
        };
        quarantine.turns.fetch_add(1, Ordering::Release);
        drop(list);
        if let Some(lane) = overdue {
            // What waits for a place among the lane's holders may need none any more, as the circuit is open; or has one, as this
            // call counts no more where the lane is paced. The fence as for a release.
            publish_fence();
            if lane.is_ready() {
                self.groups[lane.group].wake_for(lane);
            }
        }
        if let Some(finished) = ended {
            // Hands the credit to who waits for one, and wakes it.
            self.clients.after_end(ticket, finished, wakers);
        }
        started
    }

    /// Releases an op that was abandoned during its call, which has returned. Whether that call was overdue.
    ///
    /// # Safety
    /// The caller must have claimed and ended the op, and not finished it.
    #[cold]
    pub(crate) unsafe fn release_op(
        &self,
        submitter: Submitter<'_>,
        ticket: Ticket,
        wakers: &mut Vec<OpWaker>,
    ) -> bool {
        let mut list = self.quarantine.lock();
        let mut held = self
            .quarantine
            .remove(&mut list, submitter.source(), ticket);
        let overdue = held.as_ref().and_then(|held| Some((held.worker?, held.op)));
        if let Some((worker, op)) = overdue {
            // What was added for this entry, not what this worker is: one that has only just claimed an op has not told yet.
            let lane = &self.lanes[op.index()];
            if self.groups[lane.group].remove_overdue(worker, op) {
                lane.circuit.remove_overdue();
            }
        }
        let mut ended = None;
        match submitter {
            Submitter::Clients => {
                // SAFETY: as for this function; who abandoned it held the lock.
                ended = Some(unsafe { self.clients.table.ops().finish(ticket) });
            }
            Submitter::Pair(pair) => {
                if let Some(held) = &mut held {
                    // Before the slot can be lent again, and before the notice.
                    pair.forget_bytes(self, held.addr, held.len);
                    // To its pool. Its region lives on with the engine, so no code of the host's runs here.
                    drop(held.slot.take());
                }
                pair.push_release(ticket);
            }
        }
        drop(list);
        if let Some(finished) = ended {
            // As in `abandon`.
            self.clients.after_end(ticket, finished, wakers);
        }
        overdue.is_some()
    }

    /// Ends a pair's or the clients' op whose time was up before a worker took it.
    #[cold]
    pub(crate) fn expire(
        &self,
        submitter: Submitter<'_>,
        ticket: Ticket,
        wakers: &mut Vec<OpWaker>,
    ) {
        let ended = self.abandon(submitter, ticket, Why::Deadline, false, wakers);
        if let (Some(_), Submitter::Pair(pair)) = (ended, submitter) {
            publish_fence();
            pair.notify(self, wakers);
        }
    }

    /// Ends all that is in store calls, and what pairs have queued or staged, at the end of the engine. What clients have
    /// queued may not be in its ring yet, and come to nothing: the rings tell of it.
    pub(crate) fn abandon_all(&self) {
        let mut wakers = Vec::new();
        let sweep = |submitter: Submitter<'_>, wakers: &mut Vec<OpWaker>| {
            let table = submitter.table(self);
            for index in 0..table.depth() as u32 {
                // SAFETY: below the depth.
                match unsafe { table.ops().pending(index) } {
                    Some((ticket, running)) if running || submitter.source() != CLIENTS => {
                        self.abandon(submitter, ticket, Why::ShutDown, true, wakers);
                    }
                    _ => {}
                }
            }
        };
        sweep(Submitter::Clients, &mut wakers);
        for pair in self.pairs.all() {
            sweep(Submitter::Pair(&pair), &mut wakers);
            publish_fence();
            pair.notify(self, &mut wakers);
        }
        wakers.into_iter().for_each(OpWaker::wake);
    }

    /// What is in quarantine now.
    pub(crate) fn quarantined(&self) -> Vec<Quarantined> {
        let now = self.clock.raw();
        let list = self.quarantine.lock();
        list.iter()
            .map(|held| Quarantined {
                op: held.op,
                // SAFETY: the key lies there until the op is released, for which the lock is needed.
                key: unsafe { std::slice::from_raw_parts(held.key, held.key_len) }.to_vec(),
                addr: (held.len > 0).then_some(held.addr),
                len: held.len,
                ended_as: held.ended_as,
                age: self.clock.delta(held.since, now),
            })
            .collect()
    }
}
