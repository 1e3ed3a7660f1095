//! How a pair accepts an op.
//!
//! There is one way, [`Pair::accept`], in two copies: one that does not tell why it refuses an op, and one for those that it has refused.

use std::{mem, ptr};

use moonring_rings::slots::Ticket;

use super::{Pair, ring_of};
use crate::engine::Shared;
use crate::inflight::{Fill, OpTable};
use crate::submission::{Buffer, Submission};
use crate::{Class, OpKind, Refused, SubmitError, key};

impl Pair {
    /// Accepts an op, which [`show`](Self::show) shows to the workers.
    ///
    /// The caller's code has the choice below, and no more: an op without bytes then need not lie in memory as a [`Submission`].
    #[inline(always)]
    pub(crate) fn stage<'k>(
        &mut self,
        submission: Submission<'k>,
    ) -> Result<Ticket, Refused<Submission<'k>>> {
        let Submission {
            op,
            key,
            buffer: Buffer::None,
            user_data,
            timeout,
            flags,
            class,
        } = submission
        else {
            return self.stage_bytes(submission);
        };
        mem::forget(submission); // There is no slot to give back.
        match self.accept_bare(op, class, key, user_data, timeout, flags) {
            Some(ticket) => Ok(ticket),
            None => self.stage_unusual(Submission {
                op,
                key,
                buffer: Buffer::None,
                user_data,
                timeout,
                flags,
                class,
            }),
        }
    }

    /// An op without bytes; it stays in registers. Nothing where it was not accepted, or has a long key.
    #[inline(never)]
    pub(crate) fn accept_bare(
        &mut self,
        op: OpKind,
        class: Class,
        key: &[u8],
        user_data: u64,
        timeout: u64,
        flags: u8,
    ) -> Option<Ticket> {
        let none = |_: &Shared| Ok((ptr::null_mut(), 0));
        let accepted: Result<_, Untold> =
            self.accept(op, class, key, user_data, timeout, flags, none);
        accepted.ok()
    }

    /// An op with a slot, or with memory of its caller's.
    #[inline(never)]
    fn stage_bytes<'k>(
        &mut self,
        mut submission: Submission<'k>,
    ) -> Result<Ticket, Refused<Submission<'k>>> {
        match self.take(&mut submission) {
            Ok(ticket) => Ok(ticket),
            Err(Untold) => self.stage_unusual(submission),
        }
    }

    /// An op that was not accepted at the first try: says why.
    #[cold]
    #[inline(never)]
    fn stage_unusual<'k>(
        &mut self,
        mut submission: Submission<'k>,
    ) -> Result<Ticket, Refused<Submission<'k>>> {
        self.stage_in_place(&mut submission).map_err(|reason| {
            let op = submission;
            Refused { reason, op }
        })
    }

    /// [`stage`](Self::stage), which takes no more than the op's slot; refused, the op is as it was.
    pub(crate) fn stage_in_place(
        &mut self,
        submission: &mut Submission<'_>,
    ) -> Result<Ticket, SubmitError> {
        let accepted = self.take(submission);
        if accepted.is_err() {
            self.count_refused();
        }
        accepted
    }

    /// Accepts an op and takes its slot; or leaves it as it is.
    #[inline(always)]
    fn take<R: Reason>(&mut self, submission: &mut Submission<'_>) -> Result<Ticket, R> {
        let &mut Submission {
            op,
            key,
            ref buffer,
            user_data,
            timeout,
            flags,
            class,
        } = submission;
        let bytes = |engine: &Shared| engine.target(op, buffer);
        let ticket = self.accept(op, class, key, user_data, timeout, flags, bytes)?;
        let buffer = mem::replace(&mut submission.buffer, Buffer::None);
        self.owner.keep_slot(ticket, buffer);
        Ok(ticket)
    }

    /// Accepts an op, without its slot. The first reason against it wins; nothing is taken from the owner before all is well. `bytes`:
    /// where its bytes are, if it may have them; asked last, for then it is accepted.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // they stay in registers
    fn accept<R: Reason>(
        &mut self,
        op: OpKind,
        class: Class,
        key: &[u8],
        user_data: u64,
        timeout: u64,
        flags: u8,
        bytes: impl FnOnce(&Shared) -> Result<(*mut u8, usize), SubmitError>,
    ) -> Result<Ticket, R> {
        let engine = &*self.engine;
        let owner = &mut *self.owner;
        let table = &self.shared.table;
        let ring = ring_of(op, class);
        if engine.is_closing() {
            return Err(R::of(|| engine.refusal()));
        }
        engine.check_lane(op).map_err(R::is)?;
        key::check_len(key, engine.config.max_key).map_err(R::is)?;
        let Some(index) = owner.free.last() else {
            let depth = owner.cells().len();
            return Err(R::of(|| SubmitError::NoCredit { depth }));
        };
        let mut long_place = None;
        if OpTable::is_long(key) {
            if R::TAKES_LONG_KEYS {
                long_place = owner.free_long.last();
            }
            if long_place.is_none() {
                let places = table.long_key_places();
                return Err(R::of(|| SubmitError::NoLongKeyPlace { places }));
            }
        }
        let Some(vacant) = self.producers[ring].vacant() else {
            return Err(R::of(|| SubmitError::RingFull { op, room: 0 }));
        };
        // SAFETY: index and place are free, and ours; the key's length was checked.
        let placed = unsafe { table.place_key(index, long_place, key, &engine.hasher) };
        let key = placed.map_err(|at| R::of(|| SubmitError::NulInKey { at }))?;
        let (buf, len) = bytes(engine).map_err(R::is)?;
        let submitted = self.staged.begin(&engine.clock);
        let deadline = engine.deadline(op, timeout, submitted);
        self.soonest = self.soonest.min(deadline);
        let fill = Fill {
            op,
            buf,
            len,
            flags,
            caller: self.shared.id as u16,
            submitted,
            deadline,
        };
        self.staged.rings |= 1 << ring;
        let entry = (index, long_place);
        // SAFETY: both are the last ones of the lists of free ones; the key was placed.
        Ok(unsafe { owner.put(&self.shared, vacant, entry, key, &fill, user_data) })
    }
}

/// Why an op is not accepted, or nothing of it: so that the way of those that are needs no room for the others'.
trait Reason: Sized {
    /// Whether ops with long keys have this way too.
    const TAKES_LONG_KEYS: bool;

    fn of(reason: impl FnOnce() -> SubmitError) -> Self;

    fn is(reason: SubmitError) -> Self {
        Self::of(|| reason)
    }
}

impl Reason for SubmitError {
    const TAKES_LONG_KEYS: bool = true;

    fn of(reason: impl FnOnce() -> SubmitError) -> Self {
        reason()
    }
}

/// No reason: the second try has it.
struct Untold;

impl Reason for Untold {
    const TAKES_LONG_KEYS: bool = false;

    #[inline(always)]
    fn of(_: impl FnOnce() -> SubmitError) -> Self {
        Self
    }
}
