//! An op that a worker executes alone: what [`Batch`](super::Batch) does of several, in fewer steps.

use moonring_rings::slots::{Ended, Ticket};

use super::call::{call_store, error_of, guarded, settle_own};
use super::{Op, Unclaimed};
use crate::OpKind;
use crate::clock::Clock;
use crate::inflight::{FORCE, OpTable};
use crate::stats::LaneRecorder;
use crate::store::{Keys, RawResult, Store, UNSET};

/// An op that its worker executes without a batch around it.
#[derive(Clone, Copy)]
pub(crate) struct Lone {
    pub(super) source: usize,
    pub(super) op: Op,
}

impl Lone {
    /// Claims what a ring gave, a ticket of `table`.
    #[inline(always)]
    pub(crate) fn claim(
        source: usize,
        table: &OpTable,
        ticket: Ticket,
        worker: usize,
        clock: &Clock,
    ) -> Result<Self, Unclaimed> {
        let op = Op::claim(table, ticket, worker, || clock.raw())?;
        Ok(Self { source, op })
    }

    /// Length of its buffer.
    ///
    /// # Safety
    /// It must not be finished.
    #[inline(always)]
    pub(crate) unsafe fn bytes(&self) -> usize {
        // SAFETY: it is claimed; the caller vouches for the rest.
        unsafe { self.op.descriptor() }.len()
    }

    /// A store call for this op, and its result. Returns when it began and returned, in ticks.
    ///
    /// # Safety
    /// It must not be ended.
    #[inline(always)]
    pub(crate) unsafe fn execute(
        &self,
        kind: OpKind,
        store: &dyn Store,
        clock: &Clock,
        stats: &LaneRecorder,
        result: &mut RawResult,
    ) -> (u64, u64) {
        // SAFETY: it is claimed; the caller vouches for the rest.
        let d = unsafe { self.op.descriptor() };
        *result = UNSET;
        let began = clock.raw();
        // Little is captured: what is built of it, is built inside.
        let place = &mut *result;
        let answer = guarded(kind, &[d.len()], move || {
            let (key, key_len) = ([d.key.cast()], [d.key_len as usize]);
            let force = kind == OpKind::Delete && d.flags() & FORCE != 0;
            // SAFETY: the key stays as it is until the op is finished. Its buffer was vouched for when it was accepted, and is not
            // released.
            unsafe {
                let keys = Keys::new(&key, &key_len, std::slice::from_mut(place));
                call_store(kind, store, keys, &[d.buf], &[d.len()], force)
            }
        });
        let ended = clock.raw();
        stats.call_of_one(clock.delta_as_nanos(began, ended));
        if let Some(error) = error_of(answer, 1) {
            *result = Err(error);
        }
        if matches!(kind, OpKind::Retrieve | OpKind::Store) {
            let moved = settle_own(kind, d, d.len(), result);
            if moved > 0 {
                stats.moved(moved);
            }
        }
        (began, ended)
    }

    /// Claims its end, and counts how it ended. False where it was abandoned before: it is to be released.
    ///
    /// # Safety
    /// Once, and before it is finished.
    #[inline(always)]
    pub(crate) unsafe fn end(
        &self,
        (began, ended): (u64, u64),
        result: &RawResult,
        clock: &Clock,
        stats: &LaneRecorder,
    ) -> bool {
        // SAFETY: it is claimed; the caller vouches for the rest.
        let submitted = unsafe { self.op.descriptor() }.submitted;
        // SAFETY: as above.
        if unsafe { self.op.held.end() } == Ended::Abandoned {
            return false;
        }
        stats.op_waits(clock.delta_as_nanos(submitted, began), 1);
        stats.op_totals(clock.delta_as_nanos(submitted, ended), 1);
        // Comes last, as in `Batch::end`.
        stats.result(result, 1);
        true
    }
}
