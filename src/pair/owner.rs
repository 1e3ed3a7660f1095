//! What a pair's thread has alone: which entries are free, what it keeps of each op in flight, and where it is in the completion ring.

use moonring_rings::completion::Cursor;
use moonring_rings::slots::Ticket;
use moonring_rings::spsc::Vacant;

use super::{Counts, INDEX, MORE, PairShared, RELEASE};
use crate::engine::Shared;
use crate::inflight::{Fill, PlacedKey};
use crate::store::RawResult;
use crate::submission::{Buffer, Completion};
use crate::{Done, OpError, OpKind, Slot};

/// A worker's, once the pair is an orphan.
pub(super) struct Owner {
    pub(super) free: FreeList,
    pub(super) free_long: FreeList,
    cells: Box<[Cell]>,
    pub(super) cursor: Cursor,
}

/// What the owner keeps of an op in flight. What of it lies in the op's descriptor as well, would come from a worker's cache there.
pub(super) struct Cell {
    pub(super) ticket: Ticket,
    pub(super) user_data: u64,
    slot: Option<Slot>,
    long_place: Option<u32>,
    op: OpKind,
    /// Address and length of its bytes.
    #[cfg(debug_assertions)]
    bytes: Option<(usize, usize)>,
}

/// What stands in the completion ring.
pub(crate) enum Notice {
    /// An op went well; by its entry.
    Well { index: u32, value: u64 },
    /// The entry and flags.
    Other(u64),
}

/// An op of which a notice tells.
pub(crate) struct EndedOp {
    pub(crate) user_data: u64,
    pub(crate) op: OpKind,
    pub(crate) ticket: Ticket,
}

impl EndedOp {
    /// With no notice to follow, and none before.
    #[inline(always)]
    fn completion(&self, result: Result<Done, OpError>, slot: Option<Slot>) -> Completion {
        Completion {
            user_data: self.user_data,
            op: self.op,
            ticket: self.ticket,
            result,
            slot,
            more: false,
            release: false,
        }
    }
}

/// Free numbers; the last freed is used next: its lines are still warm.
pub(super) struct FreeList {
    /// The first `len` are in use.
    numbers: Box<[u32]>,
    len: usize,
}

impl FreeList {
    /// All below `count` are free.
    fn new(count: usize) -> Self {
        Self {
            numbers: (0..count as u32).rev().collect(),
            len: count,
        }
    }

    #[inline(always)]
    pub(super) fn last(&self) -> Option<u32> {
        self.numbers.get(self.len.wrapping_sub(1)).copied()
    }

    /// Takes what [`last`](Self::last) has shown.
    #[inline(always)]
    fn pop(&mut self) {
        self.len = self.len.saturating_sub(1);
    }

    #[inline(always)]
    fn push(&mut self, number: u32) {
        // None comes back twice, so there is always room.
        if let Some(place) = self.numbers.get_mut(self.len) {
            *place = number;
            self.len += 1;
        }
    }
}

impl Owner {
    pub(super) fn new(depth: usize, long_key_places: usize) -> Self {
        Self {
            free: FreeList::new(depth),
            free_long: FreeList::new(long_key_places),
            cells: (0..depth)
                .map(|index| Cell {
                    ticket: Ticket::before_first(index as u32),
                    user_data: 0,
                    slot: None,
                    long_place: None,
                    op: OpKind::Lookup,
                    #[cfg(debug_assertions)]
                    bytes: None,
                })
                .collect(),
            cursor: Cursor::default(),
        }
    }

    #[inline(always)]
    pub(super) fn in_flight(&self) -> usize {
        self.cells.len() - self.free.len
    }

    pub(super) fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Takes an entry that is free into use, and puts its op into the ring.
    ///
    /// # Safety
    /// `index` must be what `free` has last, and `long_place` the same of `free_long`, or none; the key must lie in the place.
    #[inline(always)]
    pub(super) unsafe fn put(
        &mut self,
        pair: &PairShared,
        ring: Vacant<'_, u64>,
        (index, long_place): (u32, Option<u32>),
        key: PlacedKey,
        fill: &Fill,
        user_data: u64,
    ) -> Ticket {
        self.free.pop();
        // Who sees the op queued sees it counted, by the Release in `queue_after`.
        Counts::add_one(&pair.counts.accepted);
        let cell = &mut self.cells[index as usize];
        // SAFETY: the index was free, as the caller vouches, and is ours; the cell has its last ticket.
        let ticket = unsafe { pair.table.queue_after(cell.ticket, key, fill) };
        ring.stage(ticket.to_word());
        cell.ticket = ticket;
        cell.user_data = user_data;
        cell.op = fill.op;
        if long_place.is_some() {
            self.free_long.pop();
            cell.long_place = long_place;
        }
        #[cfg(debug_assertions)]
        {
            cell.bytes = (fill.len > 0).then_some((fill.buf.addr(), fill.len));
        }
        ticket
    }

    /// Keeps the slot of an op that was accepted.
    #[inline(always)]
    pub(super) fn keep_slot(&mut self, ticket: Ticket, buffer: Buffer) {
        if let (Buffer::Slot(slot), Some(cell)) =
            (buffer, self.cells.get_mut(ticket.index() as usize))
        {
            cell.slot = Some(slot);
        }
    }

    /// Takes one completion and gives its credit back.
    #[inline(always)]
    pub(super) fn reap(&mut self, pair: &PairShared, shared: &Shared) -> Option<Completion> {
        let (index, value) = match self.next_notice(pair)? {
            Notice::Well { index, value } => (index, value),
            Notice::Other(word) => return self.reap_other(word, pair, shared),
        };
        if self.cells[index as usize].slot.is_some() {
            return self.reap_slot(index, value, pair, shared);
        }
        let op = self.ended(index);
        self.free(index, pair, shared);
        Done::with_raw(op.op, value, |done| Some(op.completion(Ok(done), None)))
    }

    /// The same of an op with a slot: a copy of its own, for those without need no room for one.
    #[inline(never)]
    fn reap_slot(
        &mut self,
        index: u32,
        value: u64,
        pair: &PairShared,
        shared: &Shared,
    ) -> Option<Completion> {
        let op = self.ended(index);
        self.free(index, pair, shared);
        let slot = &mut self.cells[index as usize].slot;
        Done::with_raw(op.op, value, |done| {
            Some(op.completion(Ok(done), slot.take()))
        })
    }

    /// Takes one notice. Its op is to be ended, by [`end_well`](Self::end_well) or [`end_other`](Self::end_other).
    #[inline(always)]
    pub(super) fn next_notice(&mut self, pair: &PairShared) -> Option<Notice> {
        let (word, value) = pair.completions.pop(&mut self.cursor)?;
        match word & !INDEX {
            0 => Some(Notice::Well {
                index: word as u32,
                value,
            }),
            _ => Some(Notice::Other(word)),
        }
    }

    #[inline(always)]
    fn ended(&self, index: u32) -> EndedOp {
        let cell = &self.cells[index as usize];
        EndedOp {
            user_data: cell.user_data,
            op: cell.op,
            ticket: cell.ticket,
        }
    }

    /// [`reap`](Self::reap) of an op that did not go well. Always some: so that it is the last thing that `reap` does.
    #[cold]
    #[inline(never)]
    fn reap_other(&mut self, word: u64, pair: &PairShared, shared: &Shared) -> Option<Completion> {
        let (op, raw, slot) = self.end_other(word, pair, shared);
        Some(Completion {
            more: word & MORE != 0,
            release: word & RELEASE != 0,
            ..op.completion(Completion::result_of(op.op, raw), slot)
        })
    }

    /// An op that went well, and its slot: its credit is free.
    #[inline(always)]
    pub(super) fn end_well(
        &mut self,
        index: u32,
        pair: &PairShared,
        shared: &Shared,
    ) -> (EndedOp, Option<Slot>) {
        self.free(index, pair, shared);
        (self.ended(index), self.take_slot(index))
    }

    /// One that did not, how it ended, and its slot, if this was its last notice.
    #[cold]
    pub(super) fn end_other(
        &mut self,
        word: u64,
        pair: &PairShared,
        shared: &Shared,
    ) -> (EndedOp, RawResult, Option<Slot>) {
        let index = (word & INDEX) as u32;
        // SAFETY: the completion says that the op is done; its entry is this owner's, who has not used it again yet.
        let raw = unsafe { pair.table.ops().result(index) };
        let slot = match word & MORE != 0 {
            true => {
                self.cells[index as usize].keep(pair, shared);
                None
            }
            false => {
                self.free(index, pair, shared);
                self.take_slot(index)
            }
        };
        (self.ended(index), raw, slot)
    }

    #[inline(always)]
    fn take_slot(&mut self, index: u32) -> Option<Slot> {
        // Most ops have none: nothing is moved then.
        match &mut self.cells[index as usize].slot {
            None => None,
            slot => slot.take(),
        }
    }

    /// An op has had its last notice: its credit is free. Its slot is still to be taken.
    #[inline(always)]
    fn free(&mut self, index: u32, pair: &PairShared, shared: &Shared) {
        #[cfg(not(debug_assertions))]
        let _ = shared;
        let cell = &mut self.cells[index as usize];
        if let Some(place) = cell.long_place {
            cell.long_place = None;
            self.free_long.push(place);
        }
        #[cfg(debug_assertions)]
        if let Some((addr, len)) = cell.bytes.take() {
            shared.memory.live().remove(addr, len);
        }
        self.free.push(index);
        // It is used next, and lies in the cache of the worker that has ended it.
        pair.table.ops().prefetch(cell.ticket);
        Counts::add_one(&pair.counts.reaped);
    }
}

impl Cell {
    /// The op is over, and its bytes are still in use: the slot goes where the release finds it.
    #[cold]
    fn keep(&mut self, pair: &PairShared, shared: &Shared) {
        #[cfg(debug_assertions)]
        {
            self.bytes = None; // Whoever releases the op takes them off the list.
        }
        if let Some(slot) = self.slot.take() {
            shared.quarantine.keep(pair.source(), self.ticket, slot);
        }
    }
}
