//! The round of a worker that finds one op, and nothing unusual.
//!
//! Much of what a round does is for several ops: bounds, the order of sources, equal keys, runs of one submitter. An op alone would pay for
//! all of it. So where one ring of the foreground's has one entry, the worker takes it, calls the store and tells the answer, with no batch in
//! between.
//!
//! What is unusual is left to the round of a batch: ops of the background's, a circuit that is open or has halved its bound, a lane that is
//! paced, a spare, an engine that closes. What may happen while the op is executed is minded here as there: it is abandoned, a circuit
//! opens, the store panics, or we do.

use moonring_rings::park::publish_fence;
use moonring_rings::slots::Ticket;

use super::{Worker, go_busy, most_bytes, shares_out};
use crate::batch::{Batch, Lone, Unclaimed};
use crate::circuit::Outcome;
use crate::engine::Shared;
use crate::lane::{CLIENTS, Group, Lane};
use crate::pace::{Begun, Ended};
use crate::pair::PairShared;
use crate::quarantine::Submitter;
use crate::store::{RawResult, UNSET};
use crate::{Class, OpKind};

const BIT_OF_CLIENTS: u64 = 1 << CLIENTS;

impl Worker {
    /// The round, if it is one of these: whether there was something. `bit`: its source's.
    #[inline(always)]
    pub(super) fn round_of_one(
        &mut self,
        bit: u64,
        lane: &Lane,
        engine: &Shared,
        group: &Group,
    ) -> Option<bool> {
        // A copy for each, with no look at which it is.
        match bit {
            BIT_OF_CLIENTS => self.round_of::<false>(bit, lane, engine, group),
            _ => self.round_of::<true>(bit, lane, engine, group),
        }
    }

    /// `PAIR`: the source is a pair, not the clients.
    #[inline(never)]
    fn round_of<const PAIR: bool>(
        &mut self,
        bit: u64,
        lane: &Lane,
        engine: &Shared,
        group: &Group,
    ) -> Option<bool> {
        let source = match PAIR {
            true => bit.trailing_zeros() as usize,
            false => CLIENTS,
        };
        let pair = match PAIR {
            true => Some(self.pairs.taken(source)?),
            false => None,
        };
        let is_usual =
            !engine.is_closing() && !self.spare && !lane.pace.is_paced() && lane.circuit.is_usual();
        if !is_alone(pair, lane) || !is_usual {
            return None;
        }
        let begun = lane.pace.begin();
        let Some(hold) = lane.hold() else {
            return Some(false);
        };
        let Some(word) = self.take_one(pair, source, bit, lane, engine) else {
            return Some(false);
        };
        let ticket = Ticket::from_word(word);
        let from = pair.map_or(Submitter::Clients, Submitter::Pair);
        let table = from.table(engine);
        let lone = match Lone::claim(source, table, ticket, self.number, &engine.clock) {
            Ok(lone) => lone,
            Err(Unclaimed::Ended) => return Some(false),
            Err(Unclaimed::Late) => {
                drop(hold);
                engine.expire(from, ticket, &mut self.wakers);
                self.wake(engine);
                return Some(false);
            }
        };
        // SAFETY: claimed just now.
        let bytes = unsafe { lone.bytes() };
        let config = &engine.config;
        let is_large = || bytes >= most_bytes(config, shares_out(lane, group));
        if config.max_batch == 1 || (bytes > 0 && is_large()) {
            // As much as a batch holds: the next begins with the next source.
            self.first_source[lane.op.index()][Class::Foreground.index()] = (source + 1) % 64;
        }
        let owned = Owned {
            batch: &mut self.batch,
            batch_op: &mut self.batch_op,
            lane_op: lane.op,
            lone,
        };
        go_busy(engine, group);
        let mut result = UNSET;
        let stats = self.stats.lane(lane.op);
        // SAFETY: claimed above, and ended below.
        let times = unsafe {
            let (store, clock) = (&*engine.store, &engine.clock);
            lone.execute(lane.op, store, clock, stats, &mut result)
        };
        group.leave();
        drop(hold);
        #[cfg(test)]
        super::tests::die_if_told(engine);
        // From here on it is ended.
        std::mem::forget(owned);
        let call = Call {
            begun,
            times,
            bytes,
        };
        // SAFETY: once, and told below.
        let is_ours = unsafe { lone.end(times, &result, &engine.clock, stats) };
        // SAFETY: if not, it was abandoned, as its worker has just found.
        let overdue = !is_ours && unsafe { engine.release_op(from, ticket, &mut self.wakers) };
        call.learn(lane, &result, overdue);
        if is_ours {
            // SAFETY: claimed from this table, ended, and told only here.
            unsafe {
                match pair {
                    Some(pair) => pair.complete_one(ticket, &result),
                    None => {
                        let end = std::iter::once((ticket, &result));
                        engine.clients.complete(end, &mut self.wakers);
                    }
                }
            }
        }
        publish_fence();
        if let Some(pair) = pair {
            pair.notify(engine, &mut self.wakers);
        }
        if !self.wakers.is_empty() {
            self.wake(engine);
        }
        Some(true)
    }

    /// Clears the source's bit, and sets it again where more is left than what is taken.
    #[inline(always)]
    fn take_one(
        &self,
        pair: Option<&PairShared>,
        source: usize,
        bit: u64,
        lane: &Lane,
        engine: &Shared,
    ) -> Option<u64> {
        let queue = lane.queue(Class::Foreground);
        let (word, is_left) = match pair {
            Some(pair) => {
                let ring = pair.ring(lane.op, Class::Foreground);
                let mut taker = self.open_ring(ring, queue, source, (0, bit), engine)?;
                // Looked at after the bit was cleared: who publishes more than these sets it.
                let there = taker.available();
                (taker.pop(), there > 1)
            }
            None => {
                #[cfg(test)]
                super::tests::run_hook();
                queue.clear_bit(0, bit);
                (queue.clients.pop(), queue.clients.has_ready())
            }
        };
        if is_left {
            queue.mark_ready(source);
        }
        word
    }
}

/// Whether there is one. A hint: what comes in this moment is the next round's.
#[inline(always)]
fn is_alone(pair: Option<&PairShared>, lane: &Lane) -> bool {
    match pair {
        Some(pair) => pair.ring(lane.op, Class::Foreground).ready() == 1,
        None => lane.queue(Class::Foreground).clients.has_one_ready(),
    }
}

/// An op that its worker has, where a panic of our own ends the round: then it is for the worker's drop to end, as a batch is.
struct Owned<'a> {
    batch: &'a mut Batch,
    batch_op: &'a mut OpKind,
    lane_op: OpKind,
    lone: Lone,
}

impl Drop for Owned<'_> {
    #[cold]
    fn drop(&mut self) {
        *self.batch_op = self.lane_op;
        self.batch.take_in(self.lone);
    }
}

/// A call that was made.
struct Call {
    begun: Begun,
    times: (u64, u64),
    bytes: usize,
}

impl Call {
    /// Tells circuit and pace of its end.
    #[inline(always)]
    fn learn(self, lane: &Lane, result: &RawResult, overdue: bool) {
        let (since, now) = self.times;
        let outcome = Outcome::of(std::slice::from_ref(result).iter());
        lane.circuit
            .after_call(outcome, lane.circuit.usual(), overdue, || now);
        // Or nothing is learned of it.
        if !lane.pace.passes_over(self.begun) {
            let ended = Ended {
                begun: self.begun,
                since,
                ops: 1,
                bytes: self.bytes,
                left: false, // What has come since is no want of room.
            };
            lane.pace.end(ended, now);
        }
    }
}
