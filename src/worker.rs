//! A worker: look for work, take a bounded handful, do it, report, maybe sleep.
//!
//! # Which lane next
//! A worker of the shared pool goes through [`TURNS`], one step per take: lookups every other time, each kind at
//! least once in eight. A kind with nothing to do passes its turn on.
//!
//! # Which class first
//! A take fills its batch from the foreground's queue, then from the background's with what is left of the bounds: a call may
//! hold ops of both. Of eight takes of a lane at which background waits, one has it the other way round.
//!
//! The lane counts those takes, for all its workers together. If each worker counted its own, a lane of n workers could pass
//! background over 7 n times in a row, and a worker that comes by seldom (deletes, in a pool) would bring it its turn
//! hardly ever. One count makes it 1 in 8 whoever comes, and foreground gives way no more often than that. It costs a
//! read-modify-write where background waits; where none does, a take looks at its ready bits, and that is all.
//! A turn that finds a ring's token taken passes that ring over, as every take does: its holder is just looking into it.
//!
//! # How much
//! Up to `max_batch` ops and `max_batch_bytes` bytes, from as many sources as it takes, beginning one
//! further each time. While another worker of the group is idle, no more than `share_bytes`, so that large
//! values are shared out; and where much is in flight, no more than one part of it, if it is better made as several calls at once. An idle lane sends at once what is there; a busy one finds more at each look. How many workers may be in
//! calls of one lane at once is learned where much is in flight: see [`crate::pace`].

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

mod lone;

use moonring_rings::park::publish_fence;
use moonring_rings::slots::{Ticket, Why};
use moonring_rings::spsc::{Consumer, Taker};

use crate::batch::{Batch, Bounds};
use crate::circuit::Permit;
use crate::engine::{Closing, Shared};
use crate::inflight::{NEVER, OpTable};
use crate::lane::{CLIENTS, Group, Lane, Queue};
use crate::pace::{Begun, Ended};
use crate::pair::PairShared;
use crate::pairs::Snapshot;
use crate::quarantine::Submitter;
use crate::stats::WorkerRecorder;
use crate::timer::Sweeper;
use crate::waker::OpWaker;
use crate::{Class, EngineConfig, OpError, OpKind};

/// The order of takes in a pool that serves several kinds: 4 in 8 lookups, 2 retrieves, 1 store, 1 delete.
const TURNS: [OpKind; 8] = {
    use OpKind::{Delete, Lookup, Retrieve, Store};
    [
        Lookup, Retrieve, Lookup, Store, Lookup, Retrieve, Lookup, Delete,
    ]
};

/// How long a worker of a closing engine waits between its looks, after the first hundred, while what is left is not for it.
const CLOSING_PAUSE: Duration = Duration::from_millis(2);

thread_local! {
    /// The engine that this thread works for, or is shutting down.
    static ENGINE: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
}

/// Whether the calling thread works for this engine: inside a waker or a store's call.
pub(crate) fn is_inside(engine: &Shared) -> bool {
    ENGINE
        .try_with(Cell::get)
        .is_ok_and(|e| std::ptr::eq(e, engine))
}

/// The calling thread works for an engine until this is dropped.
pub(crate) struct Inside {
    before: *const Shared,
}

impl Inside {
    pub(crate) fn enter(engine: &Shared) -> Self {
        Self {
            before: ENGINE
                .try_with(|e| e.replace(engine))
                .unwrap_or(std::ptr::null()),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = ENGINE.try_with(|e| e.set(self.before));
    }
}

pub(crate) struct Worker {
    engine: Arc<Shared>,
    /// Its group, by its place in the engine's list.
    group: usize,
    /// Its number in the group.
    number: usize,
    stats: Arc<WorkerRecorder>,
    pairs: Snapshot,
    turn: usize,
    /// Where to begin among the sources of each lane's queues.
    first_source: [[usize; 2]; 4],
    batch: Batch,
    batch_op: OpKind,
    /// What may be done with the batch.
    permit: Permit,
    /// Makes no calls: see [`Worker::run_spare`].
    spare: bool,
    /// It runs on a caller's thread: nobody sends anything while it waits.
    by_hand: bool,
    /// The lane of `batch_op` counts this worker as a holder.
    holds: bool,
    begun: Begun,
    /// The batch left ops behind for which it had no room.
    left: bool,
    words: Vec<u64>,
    wakers: Vec<OpWaker>,
    /// Ops of the batch are being completed: some may have been.
    completing: bool,
    /// How often it found nothing to do while the engine was closing.
    closing_looks: u32,
}

/// A worker that a panic of our own ends does not take its ops along.
impl Drop for Worker {
    fn drop(&mut self) {
        let engine = Arc::clone(&self.engine);
        if std::thread::panicking() {
            // Its lane may have no worker left: nothing is accepted any more by the time that anybody sees how its ops ended.
            engine.set_closing(Closing::Cancel);
        }
        if self.holds {
            engine.lanes[self.batch_op.index()].release();
        }
        if !self.batch.is_empty() && !self.completing {
            self.batch.fail_all(OpError::StorePanicked);
            self.end(&engine, self.batch_op, engine.clock.raw());
            self.release(&engine);
            self.complete(&engine);
        }
    }
}

impl Worker {
    pub(crate) fn new(
        engine: Arc<Shared>,
        group: usize,
        number: usize,
        stats: Arc<WorkerRecorder>,
    ) -> Self {
        let max_batch = engine.config.max_batch;
        Self {
            batch: Batch::new(max_batch),
            batch_op: OpKind::Lookup,
            permit: Permit::Answer,
            spare: number == engine.groups[group].workers,
            by_hand: false,
            holds: false,
            begun: Begun::default(),
            left: false,
            completing: false,
            closing_looks: 0,
            words: Vec::with_capacity(max_batch),
            wakers: Vec::with_capacity(max_batch),
            pairs: Snapshot::default(),
            turn: number,
            first_source: [[0; 2]; 4],
            engine,
            group,
            number,
            stats,
        }
    }

    /// Works until the engine closes and nothing is left to do.
    pub(crate) fn run(mut self) {
        let engine = Arc::clone(&self.engine);
        // For good: also what comes after, the release of the memory, is done on this thread.
        std::mem::forget(Inside::enter(&engine));
        let group = &engine.groups[self.group];
        group.enrol(self.number);
        loop {
            if self.round(&engine, group) {
                continue;
            }
            if engine.is_closing() && self.is_drained(&engine, group) {
                return;
            }
            self.idle(&engine, group);
        }
    }

    /// The spare of a group: sleeps while one of its workers could still take something. When all are in overdue calls it answers
    /// what comes, without calls, so that nobody waits for them.
    pub(crate) fn run_spare(mut self) {
        let engine = Arc::clone(&self.engine);
        std::mem::forget(Inside::enter(&engine));
        let group = &engine.groups[self.group];
        group.enrol(self.number);
        // Pairs with the fence in `add_overdue`.
        publish_fence();
        while !engine.is_closing() {
            if !group.wants_spare() {
                // A wake that it was given is a worker's.
                if engine.has_work(group) {
                    group.wake_one();
                }
                std::thread::park();
            } else if !self.round(&engine, group) {
                group.announce(self.number);
                let stay = !group.wants_spare() || engine.has_work(group) || engine.is_closing();
                if stay || self.pairs.is_stale(&engine.pairs) {
                    group.retract(self.number);
                    std::thread::yield_now();
                } else {
                    group.sleep(self.number);
                }
            }
        }
    }

    /// One look, and one batch if there is something. Returns whether there was.
    #[inline(always)]
    fn round(&mut self, engine: &Shared, group: &Group) -> bool {
        if group.lingers() {
            self.ripen(engine, group);
        }
        self.pairs.refresh(&engine.pairs);
        match group.ops[..] {
            [op] => self.serve(&engine.lanes[op.index()], engine, group),
            _ => self.serve_next(engine, group),
        }
    }

    /// Serves the next lane that has work. Returns whether one had.
    #[inline(never)]
    fn serve_next(&mut self, engine: &Shared, group: &Group) -> bool {
        let turn = TURNS[self.turn % TURNS.len()];
        for op in std::iter::once(turn).chain(OpKind::ALL) {
            let lane = &engine.lanes[op.index()];
            if group.ops.contains(&op) && self.serve(lane, engine, group) {
                self.turn += 1;
                return true;
            }
        }
        false
    }

    /// Takes from one lane what there is, within bounds, and executes it. Returns whether there was something.
    #[inline(always)]
    fn serve(&mut self, lane: &Lane, engine: &Shared, group: &Group) -> bool {
        let lone = match lane.lone_bit() {
            Some(bit) => self.round_of_one(bit, lane, engine, group),
            None => None,
        };
        match lone {
            Some(did) => did,
            None => self.round_of_all(lane, engine, group),
        }
    }

    /// A round as of one lane, whatever is to be done.
    #[inline(never)]
    fn round_of_all(&mut self, lane: &Lane, engine: &Shared, group: &Group) -> bool {
        let found = self.take_lane(lane, engine, group);
        if found {
            self.execute(engine, group, lane);
        }
        found
    }

    /// Makes ready what lingers and should go now: see [`crate::linger`].
    #[cold]
    fn ripen(&self, engine: &Shared, group: &Group) {
        let all = self.by_hand || engine.is_closing() || group.wants_spare();
        // Pairs with the publisher's, which sees why all go, or is seen.
        publish_fence();
        if engine.lingering_due(group) == NEVER {
            return;
        }
        let now = engine.clock.raw();
        for op in &group.ops {
            let lane = &engine.lanes[op.index()];
            if lane.is_ripe(if all { NEVER - 1 } else { now }) {
                lane.ripen();
            }
        }
    }

    /// Fills the batch from one lane, and holds the lane if there was something. Returns whether there was.
    #[inline(never)]
    fn take_lane(&mut self, lane: &Lane, engine: &Shared, group: &Group) -> bool {
        let foreground = lane.queue(Class::Foreground);
        let waits = lane.queue(Class::Background).is_ready();
        if !(waits || foreground.is_ready()) {
            return false;
        }
        let config = &engine.config;
        self.permit = lane.circuit.permit(self.spare, || engine.clock.raw());
        self.begun = lane.pace.begin();
        if self.permit != Permit::Answer && !lane.try_hold() {
            if self.permit != Permit::Probe {
                return false;
            }
            lane.circuit.give_back_probe();
            self.permit = Permit::Answer;
        }
        self.holds = self.permit != Permit::Answer;
        self.batch_op = lane.op;
        let shares = shares_out(lane, group);
        let mut bounds = Bounds {
            ops: match self.permit {
                Permit::Call(most) => most,
                Permit::Probe => 1,
                Permit::Answer => config.max_batch,
            },
            bytes: most_bytes(config, shares),
        };
        let most = bounds.ops;
        let splits = lane.pace.splits() && matches!(self.permit, Permit::Call(_));
        if splits {
            bounds.ops = self.share(lane).min(most);
        }
        let backgrounds_turn = waits && lane.is_backgrounds_turn();
        if backgrounds_turn {
            self.fill_background(lane, engine, bounds);
        }
        if !(backgrounds_turn && self.batch.is_full(bounds)) {
            self.fill(lane, Class::Foreground, engine, bounds);
        }
        // Foreground that another worker is just looking at comes before background: in a moment.
        let hidden = || self.batch.is_empty() && foreground.is_ready();
        if waits && !backgrounds_turn && !self.batch.is_full(bounds) && !hidden() {
            self.fill_background(lane, engine, bounds);
        }
        if self.batch.is_empty() {
            self.let_go(lane);
            if self.permit == Permit::Probe {
                lane.circuit.give_back_probe();
            }
            return false;
        }
        if splits {
            lane.pace.took(&mut self.begun, self.batch.len());
            bounds.ops = most; // Less is no want of room.
        }
        self.left = !shares && self.batch.is_full(bounds) && lane.is_ready();
        true
    }

    /// How many ops this worker takes, so that the others which may call find their part: see [`crate::pace`].
    #[cold]
    fn share(&self, lane: &Lane) -> usize {
        let mut queued = lane.queued_by_clients();
        for class in Class::ALL {
            let queue = lane.queue(class);
            for word in 0..queue.words() {
                let mut bits = queue.ready_word(word);
                while bits != 0 {
                    let source = word * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    let pair = self.pairs.taken(source);
                    queued += pair.map_or(0, |pair| pair.ring(lane.op, class).ready());
                }
            }
        }
        lane.pace.share(queued, lane.free_calls())
    }

    /// Holds the lane no more.
    #[inline(always)]
    fn let_go(&mut self, lane: &Lane) {
        if std::mem::take(&mut self.holds) {
            lane.release();
        }
    }

    /// A copy of its own, so that the foreground's is made for that class alone.
    #[inline(never)]
    fn fill_background(&mut self, lane: &Lane, engine: &Shared, bounds: Bounds) {
        self.fill(lane, Class::Background, engine, bounds);
    }

    /// Fills what is left of the batch from one queue: once round all its sources.
    #[inline(always)]
    fn fill(&mut self, lane: &Lane, class: Class, engine: &Shared, bounds: Bounds) {
        let queue = lane.queue(class);
        // From `first` on; so its word comes twice.
        let first = self.first_source[lane.op.index()][class.index()];
        let mut passed_over = None;
        let mut next = None;
        let words = queue.words();
        if words == 1 {
            let bits = queue.ready_word(0);
            // One source alone needs no order, if it is drained or the batch is full.
            if bits.is_power_of_two() {
                let source = bits.trailing_zeros() as usize;
                if !self.take_source(lane.op, class, queue, engine, source, bounds) {
                    self.first_source[lane.op.index()][class.index()] = source;
                } else if self.batch.is_full(bounds) {
                    self.first_source[lane.op.index()][class.index()] = (source + 1) % 64;
                }
                return;
            }
        }
        let mut word = first / 64;
        'round: for nth in 0..words + 1 {
            let mut bits = queue.ready_word(word);
            match nth {
                0 => bits &= !0 << (first % 64),
                n if n == words => bits &= !(!0 << (first % 64)),
                _ => {}
            }
            while bits != 0 {
                let source = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if !self.take_source(lane.op, class, queue, engine, source, bounds) {
                    passed_over.get_or_insert(source);
                }
                if self.batch.is_full(bounds) {
                    // Others come first next time.
                    next = Some((source + 1) % (words * 64));
                    break 'round;
                }
            }
            word = if word + 1 == words { 0 } else { word + 1 };
        }
        // Who was passed over comes first, and fits into the next batch that begins with this queue, however large its first
        // op is. Without this, smaller ops of those before it could keep it waiting for ever.
        if let Some(source) = passed_over.or(next) {
            self.first_source[lane.op.index()][class.index()] = source;
        }
    }

    /// Takes from one source, within what is left of the bounds. False where it has ops and not even the first fits.
    #[inline(never)]
    fn take_source(
        &mut self,
        op: OpKind,
        class: Class,
        queue: &Queue,
        engine: &Shared,
        source: usize,
        bounds: Bounds,
    ) -> bool {
        let max = bounds.ops - self.batch.len();
        let has_bytes = matches!(op, OpKind::Retrieve | OpKind::Store);
        // One op always fits into an empty batch, however large it is.
        let room = bounds.bytes.saturating_sub(self.batch.bytes());
        let alone = self.batch.is_empty();
        let fits = |table: &OpTable, word: u64, i: usize, used: &mut usize| {
            // SAFETY: `buf_len` is atomic; a later op's length only makes a wrong guess, which the ring then rejects.
            let len = unsafe { table.peek_len(Ticket::from_word(word).index()) };
            if i == 0 {
                *used = 0;
            }
            *used = used.saturating_add(len);
            *used <= room || (alone && i == 0)
        };
        let mut used = 0;
        if source == CLIENTS {
            queue.clear_ready(source);
            let table = &engine.clients.table;
            queue.clients.take_while(&mut self.words, |i, word| {
                i < max && (!has_bytes || fits(table, word, i, &mut used))
            });
            let left = queue.clients.has_ready();
            if left {
                queue.mark_ready(source);
            }
            self.batch
                .admit(source, table, &self.words, self.number, &engine.clock);
            while let Some(late) = self.batch.take_late() {
                engine.expire(Submitter::Clients, late.ticket, &mut self.wakers);
                // Their owners don't wait for the others' call.
                self.wake(engine);
            }
            return !left || !self.words.is_empty();
        }
        let Some(pair) = self.pairs.taken(source) else {
            // A bit that was set when its ring had been drained already, and whose pair is gone; or a new pair's.
            queue.clear_ready(source);
            if self.pairs.is_stale(&engine.pairs) {
                queue.mark_ready(source); // The next round has a new copy.
            }
            return true;
        };
        let place = (source / 64, 1 << (source % 64));
        let ring = pair.ring(op, class);
        let Some(mut taker) = self.open_ring(ring, queue, source, place, engine) else {
            return true;
        };
        let n = match has_bytes {
            false => max,
            true => (0..max)
                .take_while(|&i| {
                    let word = taker.peek(i).copied();
                    word.is_some_and(|word| fits(&pair.table, word, i, &mut used))
                })
                .count(),
        };
        self.words.clear();
        taker.take_into(&mut self.words, n);
        let left = taker.available() > 0;
        drop(taker);
        if left {
            queue.mark_ready(source);
        }
        self.batch
            .admit(source, &pair.table, &self.words, self.number, &engine.clock);
        while let Some(late) = self.batch.take_late() {
            engine.expire(Submitter::Pair(pair), late.ticket, &mut self.wakers);
        }
        if !self.wakers.is_empty() {
            // As above.
            self.wake(engine);
        }
        !left || !self.words.is_empty()
    }

    /// Becomes the consumer of a pair's ring and clears its bit; the bit is set (again) where that comes to nothing.
    #[inline(always)]
    fn open_ring<'r>(
        &self,
        ring: &'r Consumer<u64>,
        queue: &Queue,
        source: usize,
        (word, bit): (usize, u64),
        engine: &Shared,
    ) -> Option<Taker<'r, u64>> {
        let Some(taker) = ring.try_lock() else {
            // Another worker is copying tickets out; it sets the bit again if it leaves some.
            std::hint::spin_loop();
            return None;
        };
        #[cfg(test)]
        tests::run_hook();
        queue.clear_bit(word, bit);
        if self.pairs.is_stale(&engine.pairs) {
            // Looked at after the bit was cleared: it may be that of a pair which has taken this one's place, and which
            // need not set it again.
            drop(taker);
            queue.mark_ready(source);
            return None;
        }
        Some(taker)
    }

    /// Executes the batch and completes its ops.
    #[inline(never)]
    fn execute(&mut self, engine: &Shared, group: &Group, lane: &Lane) {
        let op = lane.op;
        let mut called = false;
        let now = if engine.closing() == Closing::Cancel {
            self.batch.fail_all(OpError::ShutDown);
            engine.clock.raw()
        } else if self.permit == Permit::Answer {
            self.batch.fail_all(OpError::Unavailable);
            engine.clock.raw()
        } else {
            called = true;
            go_busy(engine, group);
            let now = self
                .batch
                .execute(op, &*engine.store, &engine.clock, self.stats.lane(op));
            group.leave();
            now
        };
        // While workers are kept from calls, what producers send when they see these answers shall be one call, not several:
        // the lane is held until all are out.
        let holds_back = self.holds && lane.pace.holds_back();
        if !holds_back {
            self.let_go(lane);
        }
        #[cfg(test)]
        tests::die_if_told(engine);
        let outcome = self.batch.outcome();
        let ended = Ended {
            begun: self.begun,
            since: self.batch.began().unwrap_or(now),
            ops: self.batch.len(),
            bytes: self.batch.bytes(),
            left: self.left,
        };
        self.end(engine, op, now);
        let overdue = self.batch.has_abandoned() && self.release(engine);
        if called {
            lane.circuit
                .after_call(outcome, self.permit, overdue, || now);
            lane.pace.end(ended, now);
        }
        let gather_time = match called && !self.by_hand {
            true => lane.pace.gather_time(),
            false => 0,
        };
        let queued = match gather_time {
            0 => 0,
            _ => self.queued(lane),
        };
        self.complete(engine);
        if gather_time > 0 {
            self.aside(engine, group, |this| {
                this.gather(engine, group, lane, gather_time, queued);
            });
        }
        self.batch.clear();
        self.completing = false;
        if holds_back {
            self.let_go(lane);
            // Pairs with the publishers': they see that the lane can be held, or this worker sees next what they have published.
            publish_fence();
        }
    }

    /// Does what is no store call, and may take its time.
    fn aside(&mut self, engine: &Shared, group: &Group, work: impl FnOnce(&mut Self)) {
        group.is_aside();
        go_busy(engine, group);
        work(self);
        group.leave();
        group.is_back();
    }

    /// Releases the ops of the batch that were abandoned. Whether its call was overdue.
    #[cold]
    fn release(&mut self, engine: &Shared) -> bool {
        let mut overdue = false;
        while let Some(op) = self.batch.take_abandoned() {
            let from = self.pairs.taken(op.source);
            let from = from.map_or(Submitter::Clients, Submitter::Pair);
            // SAFETY: the batch claimed the op and has found that it was abandoned.
            overdue |= unsafe { engine.release_op(from, op.ticket, &mut self.wakers) };
        }
        overdue
    }

    /// Claims the ends of the batch's ops, and counts them.
    #[inline(always)]
    fn end(&mut self, engine: &Shared, op: OpKind, now: u64) {
        let stats = self.stats.lane(op);
        self.batch.end(op, &engine.clock, stats, now);
        self.completing = true;
    }

    #[inline(never)]
    fn complete(&mut self, engine: &Shared) {
        for &run in self.batch.runs() {
            let ends = self.batch.ends(run);
            match self.pairs.taken(run.source) {
                // SAFETY: the batch claimed these tickets from this source's table and finishes them once.
                Some(pair) => unsafe { pair.complete(ends) },
                // SAFETY: as above; source 0 is the clients'.
                None => unsafe { engine.clients.complete(ends, &mut self.wakers) },
            }
        }
        publish_fence();
        for run in self.batch.runs() {
            if let Some(pair) = self.pairs.taken(run.source) {
                pair.notify(engine, &mut self.wakers);
            }
        }
        if !self.wakers.is_empty() {
            self.wake(engine);
        }
    }

    /// Wakes those whose ops were completed: others' code, which may take its time.
    fn wake(&mut self, engine: &Shared) {
        self.aside(engine, &engine.groups[self.group], |this| {
            this.wakers.drain(..).for_each(OpWaker::wake);
        });
    }

    /// How many ops those have queued that the batch's are of. A hint.
    fn queued(&self, lane: &Lane) -> usize {
        let queues = |source| match self.pairs.taken(source) {
            Some(pair) => pair.queued(lane.op),
            None => lane.queued_by_clients(),
        };
        let runs = self.batch.runs().iter();
        runs.map(|run| queues(run.source)).sum()
    }

    /// Waits until those send again whose ops have just been completed: see [`crate::pace`]. `before`: what they had queued before.
    #[cold]
    fn gather(&self, engine: &Shared, group: &Group, lane: &Lane, time: u64, before: usize) {
        let ops = self.batch.len();
        let enough = (before + ops).min(engine.config.max_batch);
        let others = || group.ops.iter().filter(|&&op| op != lane.op);
        let is_needed = || {
            let has_work = others().any(|op| engine.lanes[op.index()].has_work());
            (has_work && group.is_all_busy()) || engine.is_closing()
        };
        let began = engine.clock.raw();
        let mut queued = before;
        while queued < enough && !is_needed() && engine.clock.raw().wrapping_sub(began) < time {
            std::thread::yield_now();
            queued = self.queued(lane);
        }
        lane.pace.gathered(queued >= enough.min(before + ops / 2));
    }

    /// At the end: nothing is queued, and nothing can come.
    fn is_drained(&self, engine: &Shared, group: &Group) -> bool {
        group.ops.iter().all(|op| {
            let lane = &engine.lanes[op.index()];
            // A closed lane's rest is ended by others: its ready bits mean nothing any more.
            lane.is_closed() || (lane.is_drained() && !lane.is_ready())
        })
    }

    /// Nothing to do: spins for a while if it may, then sleeps.
    fn idle(&mut self, engine: &Shared, group: &Group) {
        if engine.is_closing() && !engine.has_work(group) {
            // What is left is not for this worker: others' calls must end first, or the limit must come.
            self.closing_looks = self.closing_looks.saturating_add(1);
            match self.closing_looks {
                ..100 => std::thread::yield_now(),
                _ => std::thread::sleep(CLOSING_PAUSE),
            }
            return;
        }
        if engine.spinners.try_start(group) {
            let found = self.spin(engine, group);
            engine.spinners.stop(group);
            if found {
                return;
            }
        }
        group.announce(self.number);
        // A bit whose ring another worker holds counts as work: that worker is about to let it go. So this
        // thread gives way instead of sleeping.
        if engine.has_work(group) || engine.is_closing() || self.pairs.is_stale(&engine.pairs) {
            group.retract(self.number);
            std::thread::yield_now();
            return;
        }
        if group.lingers() && engine.lingering_due(group) != NEVER {
            let time = || {
                let due = engine.lingering_due(group);
                let now = engine.clock.raw();
                Duration::from_nanos(engine.clock.delta_as_nanos(now.min(due), due))
            };
            if group.linger(self.number, time) {
                return;
            }
        }
        if engine.is_paced(group) && group.nap(self.number, engine.patience(group)) {
            engine.watch(group);
            return;
        }
        group.sleep(self.number);
    }

    fn spin(&self, engine: &Shared, group: &Group) -> bool {
        let limit = Duration::from_micros(u64::from(engine.config.spin_us)).as_nanos() as u64;
        let start = engine.clock.raw();
        loop {
            for _ in 0..32 {
                if engine.has_work(group) || engine.is_closing() {
                    return true;
                }
                if group.lingers() && engine.is_ripe(group) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if !engine.config.busy_poll
                && engine.clock.delta_as_nanos(start, engine.clock.raw()) >= limit
            {
                return false;
            }
        }
    }
}

/// Large values are shared out, where another worker may take them.
#[inline(always)]
fn shares_out(lane: &Lane, group: &Group) -> bool {
    group.has_idle() && lane.can_be_held()
}

#[inline(always)]
fn most_bytes(config: &EngineConfig, shares: bool) -> usize {
    match shares {
        true => config.share_bytes.min(config.max_batch_bytes),
        false => config.max_batch_bytes,
    }
}

/// What this worker leaves behind must not wait until it is back.
#[inline(always)]
fn go_busy(engine: &Shared, group: &Group) {
    group.enter();
    if group.needs_wake() {
        wake_for_rest(engine, group);
    }
}

/// Wakes a sleeper, if there is something for it.
#[inline(never)]
fn wake_for_rest(engine: &Shared, group: &Group) {
    if engine.has_work(group) || engine.needs_watcher(group) || engine.needs_lingerer(group) {
        group.wake_one();
    }
}

/// A worker that is driven by hand: see [`EngineBuilder::start_by_hand`](crate::EngineBuilder::start_by_hand).
pub struct Driver {
    worker: Worker,
    sweeper: Sweeper,
    /// The worker's: apart from it, so that a round needs no reference of its own.
    engine: Arc<Shared>,
}

impl Driver {
    pub(crate) fn new(mut worker: Worker) -> Self {
        worker.by_hand = true;
        Self {
            engine: Arc::clone(&worker.engine),
            worker,
            sweeper: Sweeper::new(),
        }
    }

    /// Ends the ops whose time is up, as the timer does that such an engine has not.
    pub fn expire(&mut self) {
        let _inside = Inside::enter(&self.engine);
        self.sweeper.look(&self.engine);
    }

    /// Does one round of a worker on this thread: takes one batch, if there is work, executes and completes it.
    /// Returns whether there was; never in a forked child.
    pub fn poll_once(&mut self) -> bool {
        let engine = &*self.engine;
        if engine.is_forked() {
            return false;
        }
        let _inside = Inside::enter(engine);
        self.worker.round(engine, &engine.groups[self.worker.group])
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("ops", &self.engine.groups[self.worker.group].ops)
            .finish()
    }
}

/// Ends what a pair has queued of one kind without a store call, when no worker will come. Returns how many.
pub(crate) fn end_queued(engine: &Shared, pair: &PairShared, op: OpKind) -> usize {
    let ended = Class::ALL.map(|class| end_ring(engine, pair, op, class));
    ended.iter().sum()
}

fn end_ring(engine: &Shared, pair: &PairShared, op: OpKind, class: Class) -> usize {
    let mut ended = 0;
    let mut wakers = Vec::new(); // Of a task that waits for the pair.
    loop {
        let Some(mut taker) = pair.ring(op, class).try_lock() else {
            // Somebody else is ending them.
            std::thread::yield_now();
            continue;
        };
        let Some(word) = taker.pop() else {
            drop(taker);
            wakers.into_iter().for_each(OpWaker::wake);
            return ended;
        };
        drop(taker);
        let (from, ticket) = (Submitter::Pair(pair), Ticket::from_word(word));
        // No worker comes, so none has it.
        let done = engine.abandon(from, ticket, Why::ShutDown, false, &mut wakers);
        if done.is_some() {
            publish_fence();
            pair.notify(engine, &mut wakers);
            ended += 1;
        }
    }
}

/// The same for a clients' ring.
pub(crate) fn end_queued_clients(engine: &Shared, queue: &Queue) -> usize {
    let mut wakers = Vec::new();
    let mut ended = 0;
    while let Some(word) = queue.clients.pop() {
        let (from, ticket) = (Submitter::Clients, Ticket::from_word(word));
        let done = engine.abandon(from, ticket, Why::ShutDown, false, &mut wakers);
        ended += usize::from(done.is_some());
    }
    wakers.into_iter().for_each(OpWaker::wake);
    ended
}

#[cfg(test)]
mod tests;
