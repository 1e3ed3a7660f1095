//! Merging: from many callers' ops to one store call, and back.
//!
//! A worker fills a batch with ops that it has claimed, of one kind. A key stands in a call at most once
//! (Mooncake fills only the last of several buffers of one key and reports success for all):
//!
//! | kind | equal keys |
//! | --- | --- |
//! | lookup | one key; all get its answer |
//! | retrieve | one key with the longest buffer, the **leader**'s; followers are copied out of it, each settled against its own buffer |
//! | store | folded where address and length are identical; others go in a further call |
//! | delete | one key where `force` is equal; others go in a further call |
//!
//! A leader's bytes are copied before any op of the batch is ended, so nobody has its buffer back yet. That holds also for ops
//! that were abandoned during the call: their bytes stay ours until [`Batch::end`] has found them, and they are
//! released.
//!
//! All arrays are made once, for the largest batch.

use std::ffi::c_char;

use moonring_rings::slots::{Ended, Held, Ticket};

use crate::circuit::Outcome;
use crate::clock::Clock;
use crate::inflight::{Descriptor, FORCE, OpTable, is_late};
use crate::stats::LaneRecorder;
use crate::store::{CallResult, Keys, RawResult, Store, UNSET};
use crate::{OpError, OpKind};

mod call;
mod lone;

use call::{call_store, error_of, guarded, settle_own, settle_retrieve};
pub(crate) use lone::Lone;

/// An op that this worker has claimed.
#[derive(Clone, Copy)]
struct Op {
    ticket: Ticket,
    held: Held<Descriptor>,
}

impl Op {
    const NONE: Self = Self {
        ticket: Ticket::from_word(0),
        held: Held::NONE,
    };

    /// Claims what a ring gave, a ticket of `table`.
    #[inline(always)]
    fn claim(
        table: &OpTable,
        ticket: Ticket,
        worker: usize,
        now: impl FnOnce() -> u64,
    ) -> Result<Self, Unclaimed> {
        // SAFETY: tickets in a ring are of its table.
        let deadline = unsafe { table.peek_deadline(ticket.index()) };
        if is_late(deadline, now) {
            // Of a later op than the ticket's, perhaps: then that one's ticket is no longer good for anything.
            return Err(Unclaimed::Late);
        }
        let held = table.ops().hold(ticket).ok_or(Unclaimed::Ended)?;
        let op = Self { ticket, held };
        // SAFETY: just claimed.
        unsafe { op.descriptor() }.set_worker(worker);
        Ok(op)
    }

    /// # Safety
    /// The op must be claimed by this worker, and not be finished.
    #[inline(always)]
    unsafe fn descriptor<'a>(self) -> &'a Descriptor {
        // SAFETY: the caller vouches that it is claimed: nobody writes the descriptor. Its table is that of a pair in the worker's
        // copy of the list, which is not renewed while the worker has ops, or the clients'.
        unsafe { &*self.held.descriptor() }
    }
}

/// Why what a ring gave was not claimed.
pub(crate) enum Unclaimed {
    /// Its time is up.
    Late,
    /// It has ended already.
    Ended,
}

/// Ops of one source that lie side by side in the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) source: usize,
    start: usize,
    end: usize,
}

/// What a batch may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) ops: usize,
    pub(crate) bytes: usize,
}

pub(crate) struct Batch {
    /// The first `len` are in use.
    ops: Box<[Op]>,
    len: usize,
    runs: Vec<Run>,
    bytes: usize,
    call: Call,
    /// No op of the batch shares its key, and all were in one call: op `i` has place `i`, and result `i` of the call.
    direct: bool,
    /// Otherwise: by op, its key's place in its call, and its result.
    places: Box<[u32]>,
    results: Box<[RawResult]>,
    /// Ops that must wait for a further call, by their index in `ops`.
    later: Vec<u32>,
    now: Vec<u32>,
    callers: Callers,
    /// When the batch's first store call began, in ticks.
    began: Option<u64>,
    /// Found in a ring when their time was up; not of this batch.
    late: Vec<Abandoned>,
    /// Abandoned while their call went on, to be released.
    abandoned: Vec<Abandoned>,
}

/// An op that is not ended as others are, and where it came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abandoned {
    pub(crate) source: usize,
    pub(crate) ticket: Ticket,
}

/// The arrays of one store call: place `i` of each belongs to one key.
struct Call {
    /// How many places are in use.
    len: usize,
    keys: Box<[*const c_char]>,
    key_lens: Box<[usize]>,
    bufs: Box<[*mut u8]>,
    buf_lens: Box<[usize]>,
    results: Box<[RawResult]>,
    /// The op, by its index, whose buffer the key's is.
    leaders: Box<[u32]>,
    seen: Seen,
}

// SAFETY: the pointers are to ops that the worker which owns the batch has claimed; the batch is empty when it moves.
unsafe impl Send for Batch {}

impl Batch {
    pub(crate) fn new(max_ops: usize) -> Self {
        Self {
            ops: vec![Op::NONE; max_ops].into(),
            len: 0,
            direct: false,
            places: vec![0; max_ops].into(),
            results: vec![UNSET; max_ops].into(),
            runs: Vec::with_capacity(max_ops),
            bytes: 0,
            call: Call {
                len: 0,
                keys: vec![std::ptr::null(); max_ops].into(),
                key_lens: vec![0; max_ops].into(),
                bufs: vec![std::ptr::null_mut(); max_ops].into(),
                buf_lens: vec![0; max_ops].into(),
                results: vec![UNSET; max_ops].into(),
                leaders: vec![0; max_ops].into(),
                seen: Seen::new(max_ops),
            },
            began: None,
            late: Vec::with_capacity(max_ops),
            abandoned: Vec::with_capacity(max_ops),
            later: Vec::with_capacity(max_ops),
            now: Vec::with_capacity(max_ops),
            callers: Callers::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_full(&self, bounds: Bounds) -> bool {
        self.len >= bounds.ops || (self.len > 0 && self.bytes >= bounds.bytes)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Claims what a ring gave and takes it in as one run; entries whose op has ended already are left out, and those
    /// whose time is up go to [`late`](Self::take_late).
    ///
    /// The words must be tickets of `table`, and no more than the batch has room for.
    #[inline(always)]
    pub(crate) fn admit(
        &mut self,
        source: usize,
        table: &OpTable,
        words: &[u64],
        worker: usize,
        clock: &Clock,
    ) {
        let start = self.len;
        let mut now = None;
        let mut bytes = 0;
        let free = self.ops.get_mut(start..).unwrap_or_default();
        debug_assert!(words.len() <= free.len());
        let room = free.len();
        let mut free = free.iter_mut();
        for &word in words {
            let ticket = Ticket::from_word(word);
            let now = || *now.get_or_insert_with(|| clock.raw());
            let op = match Op::claim(table, ticket, worker, now) {
                Ok(op) => op,
                Err(Unclaimed::Late) => {
                    self.late.push(Abandoned { source, ticket });
                    continue;
                }
                Err(Unclaimed::Ended) => continue,
            };
            // SAFETY: just claimed.
            bytes += unsafe { op.descriptor() }.len();
            if let Some(place) = free.next() {
                *place = op;
            }
        }
        let end = start + (room - free.len());
        if start < end {
            self.len = end;
            self.bytes += bytes;
            self.runs.push(Run { source, start, end });
        }
    }

    /// Takes in an op that its worker claimed outside of a batch.
    pub(crate) fn take_in(&mut self, Lone { source, op }: Lone) {
        debug_assert!(self.is_empty());
        if let Some(place) = self.ops.first_mut() {
            *place = op;
            self.len = 1;
            let (start, end) = (0, 1);
            self.runs.push(Run { source, start, end });
        }
    }

    /// By op.
    #[inline(always)]
    fn results(&self) -> &[RawResult] {
        let results = match self.direct {
            true => &self.call.results,
            false => &self.results,
        };
        &results[..self.len]
    }

    /// How the calls went, by the results of all ops that are left.
    #[inline(always)]
    pub(crate) fn outcome(&self) -> Outcome {
        Outcome::of(self.results().iter())
    }

    /// Ops whose time was up when they were taken from their ring.
    pub(crate) fn take_late(&mut self) -> Option<Abandoned> {
        self.late.pop()
    }

    /// Claims the ends of all ops: from here on none is abandoned. Those that were before leave the batch, for
    /// [`take_abandoned`](Self::take_abandoned). Counts how the others ended, and how long they waited and took until `now`.
    #[inline(always)]
    pub(crate) fn end(&mut self, kind: OpKind, clock: &Clock, stats: &LaneRecorder, now: u64) {
        let began = self.began.take();
        let times = |submitted: u64, n: u64| {
            if n > 0 {
                count_times(submitted, began, now, n, clock, stats);
            }
        };
        // Ops published together share a time.
        let (mut time, mut n) = (0, 0);
        let (runs, ops) = (&self.runs, &mut self.ops);
        for run in runs {
            for op in &mut ops[run.start..run.end] {
                // SAFETY: the op is claimed, see `admit`.
                let submitted = unsafe { op.descriptor() }.submitted;
                // SAFETY: the op was claimed by `admit`, and is ended only here.
                if unsafe { op.held.end() } == Ended::Abandoned {
                    op.held = Held::NONE;
                    let (source, ticket) = (run.source, op.ticket);
                    self.abandoned.push(Abandoned { source, ticket });
                    continue;
                }
                if submitted != time {
                    times(time, n);
                    (time, n) = (submitted, 0);
                }
                n += 1;
            }
        }
        times(time, n);
        if !self.abandoned.is_empty() {
            self.leave_out_abandoned();
        }
        // Results come last: a reader who sees one finds the op's times.
        if self.len > 0 {
            self.count_results(kind, stats);
        }
    }

    #[inline(always)]
    fn count_results(&self, kind: OpKind, stats: &LaneRecorder) {
        // Lookups say 0 or 1, stores 0, 1 or 2; what others say is a length or nothing.
        let most = match kind {
            OpKind::Lookup | OpKind::Store => 2,
            OpKind::Retrieve | OpKind::Delete => 0,
        };
        // Most ops end alike.
        let (mut counts, mut value, mut n) = ([0; 3], 0, 0);
        let mut failed = false;
        for result in self.results() {
            let Ok(this) = result else {
                failed = true;
                continue;
            };
            let this = (*this).min(most);
            if this != value {
                counts[value as usize] += n;
                (value, n) = (this, 0);
            }
            n += 1;
        }
        counts[value as usize] += n;
        if failed {
            self.count_failed(stats);
        }
        for (value, &n) in counts.iter().enumerate() {
            if n > 0 {
                stats.result(&Ok(value as u64), n);
            }
        }
    }

    #[cold]
    fn count_failed(&self, stats: &LaneRecorder) {
        for result in self.results().iter().filter(|result| result.is_err()) {
            stats.result(result, 1);
        }
    }

    #[cold]
    fn leave_out_abandoned(&mut self) {
        let results = match self.direct {
            true => &mut self.call.results,
            false => &mut self.results,
        };
        let mut kept = 0;
        for run in &mut self.runs {
            let start = kept;
            for i in run.start..run.end {
                if !self.ops[i].held.is_none() {
                    self.ops.swap(kept, i);
                    results.swap(kept, i);
                    kept += 1;
                }
            }
            (run.start, run.end) = (start, kept);
        }
        self.len = kept;
    }

    pub(crate) fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }

    /// Ops that were abandoned while their call went on: each is to be released.
    pub(crate) fn take_abandoned(&mut self) -> Option<Abandoned> {
        self.abandoned.pop()
    }

    /// Ends every op with `error`, without a store call.
    pub(crate) fn fail_all(&mut self, error: OpError) {
        self.direct = false;
        self.results[..self.len].fill(Err(error));
    }

    /// Executes the ops; afterwards each has its result. Returns when the last store call returned, in ticks.
    #[inline(always)]
    pub(crate) fn execute(
        &mut self,
        kind: OpKind,
        store: &dyn Store,
        clock: &Clock,
        stats: &LaneRecorder,
    ) -> u64 {
        self.call.clear();
        self.callers.clear();
        let alone = self.place_alone(kind);
        if alone < self.len {
            self.direct = false;
            return self.execute_folded(kind, store, clock, stats, alone);
        }
        self.direct = true;
        let force = kind == OpKind::Delete && self.force_of(0);
        let ended = self.call(kind, store, clock, stats, self.len, force);
        if matches!(kind, OpKind::Retrieve | OpKind::Store) {
            self.settle_direct(kind, stats);
        }
        ended
    }

    /// Gives ops places of their own, op `i` place `i`, up to the first whose key has one already, or whose `force` is another than the
    /// first op's. Returns how many.
    #[inline(always)]
    fn place_alone(&mut self, kind: OpKind) -> usize {
        let ops = &self.ops[..self.len];
        // SAFETY: the ops are claimed, see `admit`.
        let descriptor = |op: &Op| unsafe { op.descriptor() };
        let first = ops.first().map_or(0, |op| descriptor(op).flags());
        let call = &mut self.call;
        let mut seen = call.seen.open();
        let mut placed = 0;
        for ((op, key), key_len) in ops.iter().zip(&mut call.keys).zip(&mut call.key_lens) {
            let d = descriptor(op);
            if kind == OpKind::Delete && (d.flags() ^ first) & FORCE != 0 {
                break;
            }
            let is_other = |other: u32| is_equal(d, descriptor(&ops[other as usize]));
            let equal = seen.find_or_insert(d.hash, placed as u32, is_other);
            if equal.is_some() {
                break;
            }
            *key = d.key.cast();
            *key_len = d.key_len as usize;
            self.callers.add(d.caller);
            placed += 1;
        }
        if matches!(kind, OpKind::Retrieve | OpKind::Store) {
            let bufs = call.bufs.iter_mut().zip(&mut call.buf_lens);
            for (op, (buf, len)) in ops[..placed].iter().zip(bufs) {
                let d = descriptor(op);
                (*buf, *len) = (d.buf, d.len());
            }
        }
        call.len = placed;
        placed
    }

    /// The first `placed` ops have places of their own; of the others, some share them, or must wait for a further call.
    #[inline(never)]
    fn execute_folded(
        &mut self,
        kind: OpKind,
        store: &dyn Store,
        clock: &Clock,
        stats: &LaneRecorder,
        placed: usize,
    ) -> u64 {
        let all = 0..self.len as u32;
        for (i, place) in self.places[..placed].iter_mut().enumerate() {
            *place = i as u32;
            self.call.leaders[i] = i as u32;
        }
        let force = kind == OpKind::Delete && self.force_of(0);
        self.place(kind, placed as u32..self.len as u32, force);
        let mut ended = self.pass(kind, store, clock, stats, all, force);
        // Rare: equal keys that can't be folded. Each round settles at least the first of them.
        while let Some(&first) = self.later.first() {
            std::mem::swap(&mut self.later, &mut self.now);
            self.later.clear();
            self.call.clear();
            self.callers.clear();
            let now = std::mem::take(&mut self.now);
            let force = kind == OpKind::Delete && self.force_of(first as usize);
            self.place(kind, now.iter().copied(), force);
            ended = self.pass(kind, store, clock, stats, now.iter().copied(), force);
            self.now = now;
        }
        ended
    }

    fn force_of(&self, op: usize) -> bool {
        // SAFETY: the op is claimed, see `admit`.
        let d = unsafe { self.ops[op].descriptor() };
        d.flags() & FORCE != 0
    }

    /// Finds places for these; those that can't be in this call go to `later`.
    fn place(&mut self, kind: OpKind, todo: impl Iterator<Item = u32>, force: bool) {
        for i in todo {
            // SAFETY: the op is claimed, see `admit`.
            let d = unsafe { self.ops[i as usize].descriptor() };
            let waits = kind == OpKind::Delete && self.force_of(i as usize) != force;
            let place = match waits {
                true => LATER,
                false => self.call.place(kind, i, d, &self.ops),
            };
            self.places[i as usize] = place;
            match place {
                LATER => self.later.push(i),
                _ => self.callers.add(d.caller),
            }
        }
    }

    /// One store call for those of `todo` that have places; their results.
    fn pass(
        &mut self,
        kind: OpKind,
        store: &dyn Store,
        clock: &Clock,
        stats: &LaneRecorder,
        todo: impl ExactSizeIterator<Item = u32>,
        force: bool,
    ) -> u64 {
        let ops = todo.len() - self.later.len();
        let ended = self.call(kind, store, clock, stats, ops, force);
        self.settle(kind, todo, stats);
        ended
    }

    /// The store call, for so many ops: fills the call's results.
    #[inline(always)]
    fn call(
        &mut self,
        kind: OpKind,
        store: &dyn Store,
        clock: &Clock,
        stats: &LaneRecorder,
        ops: usize,
        force: bool,
    ) -> u64 {
        let keys = self.call.len;
        let begin = clock.raw();
        let answer = self.call.run(kind, store, force);
        let end = clock.raw();

        self.began.get_or_insert(begin);
        let call_ns = clock.delta_as_nanos(begin, end);
        stats.call(keys as u64, ops as u64, self.callers.count, call_ns);
        if let Some(error) = error_of(answer, keys) {
            self.call.results[..keys].fill(Err(error));
        }
        end
    }

    /// Gives each op of a pass its own result.
    fn settle(&mut self, kind: OpKind, todo: impl Iterator<Item = u32>, stats: &LaneRecorder) {
        let (mut folded, mut folded_bytes, mut moved) = (0, 0, 0);
        for i in todo {
            let at = self.places[i as usize];
            if at == LATER {
                continue;
            }
            let place = at as usize;
            let leads = self.call.leaders[place] == i;
            folded += u64::from(!leads);
            let mut result = self.call.results[place];
            // SAFETY: the op is claimed, see `admit`.
            let d = unsafe { self.ops[i as usize].descriptor() };
            match kind {
                OpKind::Retrieve => {
                    if let Ok(len) = result {
                        let from = (self.call.bufs[place], self.call.buf_lens[place]);
                        result = settle_retrieve(d, len, from, leads);
                        if leads && len <= from.1 as u64 {
                            // Also where it is not the length that the leader wanted.
                            moved += len;
                        } else if result.is_ok() {
                            folded_bytes += len;
                        }
                    }
                }
                OpKind::Store if result.is_ok() && leads => moved += d.len() as u64,
                _ => {}
            }
            self.results[i as usize] = result;
        }
        if folded > 0 {
            stats.folded(folded, folded_bytes);
        }
        if moved > 0 {
            stats.moved(moved);
        }
    }

    /// The same where each op has its own place: the call's results become the ops'.
    #[inline(always)]
    fn settle_direct(&mut self, kind: OpKind, stats: &LaneRecorder) {
        let mut moved = 0;
        let call = &mut self.call;
        let results = call.results[..self.len].iter_mut().zip(&call.buf_lens);
        for (op, (result, &buf_len)) in self.ops.iter().zip(results) {
            // SAFETY: the op is claimed, see `admit`.
            let d = unsafe { op.descriptor() };
            moved += settle_own(kind, d, buf_len, result);
        }
        if moved > 0 {
            stats.moved(moved);
        }
    }

    /// When the first store call of its ops began, in ticks, until they are [ended](Self::end).
    pub(crate) fn began(&self) -> Option<u64> {
        self.began
    }

    /// Tickets and results of a run.
    #[inline(always)]
    pub(crate) fn ends(
        &self,
        run: Run,
    ) -> impl ExactSizeIterator<Item = (Ticket, &RawResult)> + '_ {
        let ops = self.ops[run.start..run.end].iter();
        let results = self.results()[run.start..run.end].iter();
        ops.map(|op| op.ticket).zip(results)
    }

    /// Forgets everything, after all ops were finished.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.runs.clear();
        self.bytes = 0;
    }
}

/// How long `n` ops waited and took that were submitted together. Apart, so that the loop over the ops keeps its registers.
#[inline(never)]
fn count_times(
    submitted: u64,
    began: Option<u64>,
    now: u64,
    n: u64,
    clock: &Clock,
    stats: &LaneRecorder,
) {
    if let Some(began) = began {
        stats.op_waits(clock.delta_as_nanos(submitted, began), n);
    }
    stats.op_totals(clock.delta_as_nanos(submitted, now), n);
}

/// The place of an op that can't be in this call.
const LATER: u32 = u32::MAX;

impl Call {
    fn clear(&mut self) {
        self.len = 0;
        self.seen.clear();
    }

    /// Finds the op's place: a new one, that of an equal key, or [`LATER`].
    fn place(&mut self, kind: OpKind, index: u32, d: &Descriptor, ops: &[Op]) -> u32 {
        let new = self.len;
        let equal = self
            .seen
            .open()
            .find_or_insert(d.hash, new as u32, |place| {
                // SAFETY: the leader is claimed, see `Batch::admit`.
                let leader = unsafe { ops[self.leaders[place as usize] as usize].descriptor() };
                is_equal(leader, d)
            });
        let Some(place) = equal else {
            self.len += 1;
            self.keys[new] = d.key.cast();
            self.key_lens[new] = d.key_len as usize;
            self.bufs[new] = d.buf;
            self.buf_lens[new] = d.len();
            self.leaders[new] = index;
            return new as u32;
        };
        let at = place as usize;
        match kind {
            OpKind::Retrieve if d.len() > self.buf_lens[at] => {
                self.bufs[at] = d.buf;
                self.buf_lens[at] = d.len();
                self.leaders[at] = index;
            }
            OpKind::Store if d.buf != self.bufs[at] || d.len() != self.buf_lens[at] => {
                return LATER;
            }
            _ => {}
        }
        place
    }

    /// The store call.
    #[inline(always)]
    fn run(&mut self, kind: OpKind, store: &dyn Store, force: bool) -> CallResult {
        let n = self.len;
        self.results[..n].fill(UNSET);
        // SAFETY: places point to keys that stay as they are until their ops are finished, after this call; the slices
        // have one length.
        let keys =
            unsafe { Keys::new(&self.keys[..n], &self.key_lens[..n], &mut self.results[..n]) };
        let (bufs, lens) = (&self.bufs[..n], &self.buf_lens[..n]);
        guarded(kind, lens, move || {
            // SAFETY: each buffer belongs to an op that was accepted and not released: its submitter vouched that nobody else touches
            // it. No buffer stands twice, for no op does.
            unsafe { call_store(kind, store, keys, bufs, lens, force) }
        })
    }
}

#[inline]
fn is_equal(a: &Descriptor, b: &Descriptor) -> bool {
    a.hash == b.hash && key_of(a) == key_of(b)
}

fn key_of(d: &Descriptor) -> &[u8] {
    // SAFETY: `OpTable::queue` wrote the key there; the op is claimed, so it stays.
    unsafe { std::slice::from_raw_parts(d.key, d.key_len as usize) }
}

/// Which hashes are in a call: open addressing, emptied by a new stamp.
struct Seen {
    slots: Box<[(u32, u32)]>,
    stamp: u32,
}

impl Seen {
    fn new(max: usize) -> Self {
        Self {
            slots: vec![(0, 0); (max * 2).next_power_of_two()].into_boxed_slice(),
            stamp: 1,
        }
    }

    #[inline(always)]
    fn open(&mut self) -> SeenIn<'_> {
        SeenIn {
            slots: &mut self.slots,
            stamp: self.stamp,
        }
    }

    fn clear(&mut self) {
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.slots.fill((0, 0));
            self.stamp = 1;
        }
    }
}

/// Those of one call.
struct SeenIn<'a> {
    slots: &'a mut [(u32, u32)],
    stamp: u32,
}

impl SeenIn<'_> {
    /// The place that was inserted with this hash and for which `equal` says yes; or inserts `place`.
    #[inline]
    fn find_or_insert(
        &mut self,
        hash: u64,
        place: u32,
        equal: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize;
        // Ends: there are twice as many slots as places.
        loop {
            // SAFETY: `at & mask` is below the number of slots, a power of two, see `new`.
            let slot = unsafe { self.slots.get_unchecked_mut(at & mask) };
            if slot.0 != self.stamp {
                *slot = (self.stamp, place);
                return None;
            }
            if equal(slot.1) {
                return Some(slot.1);
            }
            at = at.wrapping_add(1);
        }
    }
}

/// Counts the different callers of a call. Caller numbers share 8,192 places: beyond that many callers, a
/// few may be counted as one.
struct Callers {
    stamps: Box<[u32]>,
    stamp: u32,
    count: u64,
    last: u32,
}

impl Callers {
    fn new() -> Self {
        Self {
            stamps: vec![0; 8192].into_boxed_slice(),
            stamp: 0,
            count: 0,
            last: u32::MAX,
        }
    }

    fn clear(&mut self) {
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.stamps.fill(0);
            self.stamp = 1;
        }
        self.count = 0;
        self.last = u32::MAX;
    }

    #[inline]
    fn add(&mut self, caller: u16) {
        if u32::from(caller) == self.last {
            return;
        }
        self.last = u32::from(caller);
        let stamp = &mut self.stamps[caller as usize % 8192];
        if *stamp != self.stamp {
            *stamp = self.stamp;
            self.count += 1;
        }
    }
}
