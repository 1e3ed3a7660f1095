//! The engine: what all its parts share, and the handle that users hold.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::client::OpOptions;
use crate::clients::Clients;
use crate::clock::Clock;
use crate::fork::ForkWord;
use crate::inflight::{HIDDEN, NEVER};
use crate::key::KeyHasher;
use crate::lane::{Group, Lane};
use crate::memory::Memory;
use crate::pair::PairShared;
use crate::pairs::Pairs;
use crate::quarantine::Quarantine;
use crate::shutdown::{self, ShutdownReport};
use crate::stats::{Intake, WorkerRecorder};
use crate::store::{RawResult, Store};
use crate::submission::{Buffer, LANE_TIMEOUT, NO_TIMEOUT};
use crate::timer::Timer;
use crate::{
    Client, EngineBuilder, EngineConfig, Health, OpError, OpKind, Pair, PairOptions, Quarantined,
    Shutdown, ShutdownError, StartReport, Stats, SubmitError, Unavailable, worker,
};

/// Whether ops are taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Closing {
    /// This is a child of the engine's process: what a wiped page says.
    Forked = 0,
    No = 1,
    /// No more intake; what is queued is executed.
    Drain = 2,
    /// No more intake; what is queued ends as shut down.
    Cancel = 3,
}

/// What pairs, clients and workers share. Lives until the last of them is gone.
pub(crate) struct Shared {
    pub(crate) config: EngineConfig,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) memory: Memory,
    pub(crate) clock: Clock,
    pub(crate) hasher: KeyHasher,
    /// One per op kind.
    pub(crate) lanes: [Lane; 4],
    pub(crate) groups: Vec<Group>,
    pub(crate) clients: Clients,
    pub(crate) pairs: Pairs,
    pub(crate) spinners: Spinners,
    pub(crate) quarantine: Quarantine,
    pub(crate) timer: Timer,
    /// Of each lane, in ticks; [`NEVER`]: none.
    timeouts: [u64; 4],
    /// Most bytes of one kind in quarantine before its ops are refused.
    quarantine_limit: usize,
    /// One per worker, and one for ops that end without a worker (under `ended`'s lock).
    pub(crate) recorders: Vec<Arc<WorkerRecorder>>,
    ended: Mutex<()>,
    /// Clients that exist, by their engine handles.
    pub(crate) client_handles: AtomicU64,
    /// A [`Closing`]. Written by `shutdown`, read before each submission and each batch.
    closing: ForkWord,
    /// All workers have left, or their time was up: nobody waits for completions any more.
    closed: AtomicBool,
    /// Workers that have not left, by their numbers in the start report.
    pub(crate) working: Mutex<Vec<usize>>,
    pub(crate) left: Condvar,
    /// The report of the shutdown that has been done. Held while it goes on.
    pub(crate) ending: Mutex<Option<ShutdownReport>>,
    /// What could not be unregistered; `None` until somebody has tried.
    pub(crate) released: Mutex<Option<Vec<String>>>,
    pub(crate) report: StartReport,
}

impl Shared {
    #[allow(clippy::too_many_arguments)] // the one place where an engine is put together
    pub(crate) fn new(
        config: EngineConfig,
        store: Arc<dyn Store>,
        memory: Memory,
        lanes: [Lane; 4],
        groups: Vec<Group>,
        spinners: Spinners,
        closing: ForkWord,
        report: StartReport,
        (clock, timer): (Clock, Timer),
    ) -> Self {
        // Each group has a spare.
        let workers: usize = groups.iter().map(|g| g.workers + 1).sum();
        let timeouts = OpKind::ALL.map(|op| {
            let timeout = config.timeout_ms[op];
            timeout.map_or(NEVER, |ms| timer.ticks(u64::from(ms) * 1_000_000))
        });
        let quarantine_limit = match memory.len() {
            // There is nothing that it could be a share of.
            0 => usize::MAX,
            len => len / 100 * config.quarantine_percent as usize,
        };
        Self {
            clients: Clients::new(&config, memory.live().clone()),
            clock,
            timer,
            timeouts,
            quarantine_limit,
            quarantine: Quarantine::new(),
            hasher: KeyHasher::new(),
            pairs: Pairs::default(),
            recorders: (0..=workers)
                .map(|_| Arc::new(WorkerRecorder::new()))
                .collect(),
            ended: Mutex::new(()),
            client_handles: AtomicU64::new(0),
            closing,
            closed: AtomicBool::new(false),
            working: Mutex::new(Vec::new()),
            left: Condvar::new(),
            ending: Mutex::new(None),
            released: Mutex::new(None),
            config,
            store,
            memory,
            lanes,
            groups,
            spinners,
            report,
        }
    }

    #[inline(always)]
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed) != Closing::No as u64
    }

    /// Whether this is a child of the engine's process. It may take no lock then, and tell nobody anything.
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.closing.is_wiped()
    }

    /// Why an engine that [`is_closing`](Self::is_closing) takes no op.
    #[cold]
    pub(crate) fn refusal(&self) -> SubmitError {
        match self.closing() {
            Closing::Forked => SubmitError::Forked,
            _ => SubmitError::ShutDown,
        }
    }

    pub(crate) fn closing(&self) -> Closing {
        match self.closing.load(Ordering::Relaxed) {
            0 => Closing::Forked,
            1 => Closing::No,
            2 => Closing::Drain,
            _ => Closing::Cancel,
        }
    }

    pub(crate) fn set_closing(&self, closing: Closing) {
        let later = |now: u64| (now != Closing::Forked as u64).then_some(now.max(closing as u64));
        // `Err` in a child, where it stays as it is.
        let _ = self
            .closing
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether a worker of this group would find something to do.
    #[inline]
    pub(crate) fn has_work(&self, group: &Group) -> bool {
        let mut ops = group.ops.iter();
        ops.any(|op| self.lanes[op.index()].has_work())
    }

    /// Whether a lane of this group may keep idle workers from calls.
    #[inline]
    pub(crate) fn is_paced(&self, group: &Group) -> bool {
        let mut ops = group.ops.iter();
        ops.any(|op| self.lanes[op.index()].pace.holds_back())
    }

    /// Whether a sleeper of this group should become its watcher.
    #[inline]
    pub(crate) fn needs_watcher(&self, group: &Group) -> bool {
        self.is_paced(group) && !group.is_watched()
    }

    /// Whether something lingers and nobody sleeps until it is due.
    #[inline]
    pub(crate) fn needs_lingerer(&self, group: &Group) -> bool {
        group.lingers() && !group.has_lingerer() && self.lingering_due(group) != NEVER
    }

    /// When what lingers is due; [`NEVER`]: nothing does.
    #[cold]
    pub(crate) fn lingering_due(&self, group: &Group) -> u64 {
        let ops = group.ops.iter();
        let due = ops.map(|op| self.lanes[op.index()].lingering.due());
        due.min().unwrap_or(NEVER)
    }

    /// Whether something that lingers should go now.
    #[cold]
    pub(crate) fn is_ripe(&self, group: &Group) -> bool {
        self.lingering_due(group) <= self.clock.raw()
    }

    /// The shortest time after which a call of this group is stuck.
    #[cold]
    pub(crate) fn patience(&self, group: &Group) -> Duration {
        let ops = group.ops.iter();
        let paces = ops.map(|op| &self.lanes[op.index()].pace);
        let paces = paces.filter(|pace| pace.holds_back());
        let shortest = paces.map(|pace| pace.patience()).min().unwrap_or(0);
        self.clock.delta(0, shortest)
    }

    /// The watcher's look. It looks for work after this, with a fence between.
    #[cold]
    pub(crate) fn watch(&self, group: &Group) {
        let now = self.clock.raw();
        for op in &group.ops {
            let lane = &self.lanes[op.index()];
            lane.pace.watch(lane.holders(), now);
        }
        fence(Ordering::SeqCst);
    }

    /// Counts an op that ends without a worker, before its completion is published. `times`: when it was submitted, and now, of
    /// one that a store call has.
    pub(crate) fn count_end(&self, op: OpKind, error: OpError, times: Option<(u64, u64)>) {
        let result: RawResult = Err(error);
        let _one = self.ended.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(stats) = self.recorders.last() {
            // The lock makes us its one writer.
            if let Some((submitted, now)) = times {
                let ns = self.clock.delta_as_nanos(submitted, now);
                stats.lane(op).op_totals(ns, 1);
            }
            stats.lane(op).result(&result, 1);
        }
    }

    /// Entries in the rings of each op kind. A hint.
    pub(crate) fn queued(&self) -> [usize; 4] {
        // They are the parent's; and the pairs' lock may have been taken when the child was made.
        if self.is_forked() {
            return [0; 4];
        }
        let pairs = self.pairs.all();
        OpKind::ALL.map(|op| {
            let of_pairs = pairs.iter().map(|pair| pair.queued(op)).sum::<usize>();
            of_pairs + self.lanes[op.index()].queued_by_clients()
        })
    }

    /// When the time of an op is up, in ticks.
    #[inline]
    pub(crate) fn deadline(&self, op: OpKind, timeout: u64, submitted: u64) -> u64 {
        let ticks = match timeout {
            LANE_TIMEOUT => self.timeouts[op.index()],
            NO_TIMEOUT => NEVER,
            ns => self.timer.ticks(ns),
        };
        if ticks == NEVER {
            return NEVER;
        }
        match submitted.saturating_add(ticks) {
            // Centuries from now. The top bit is `hidden`'s.
            HIDDEN.. => NEVER,
            deadline => deadline,
        }
    }

    /// Whether the lane takes ops. Lookups are always taken: they are answered *unknown*.
    #[inline(always)]
    pub(crate) fn check_lane(&self, op: OpKind) -> Result<(), SubmitError> {
        match op != OpKind::Lookup && self.lanes[op.index()].circuit.is_open() {
            true => self.check_open_lane(op),
            false => Ok(()),
        }
    }

    #[cold]
    fn check_open_lane(&self, op: OpKind) -> Result<(), SubmitError> {
        let refused = self.lanes[op.index()].circuit.refuses(self.clock.raw());
        refused.map_or(Ok(()), |why| Err(SubmitError::Unavailable { op, why }))
    }

    /// Where an op's bytes are, if it may have them. Hands on by value what it finds in `buffer`, so that the submission around it
    /// needs no place in memory where this is inlined.
    #[inline(always)]
    pub(crate) fn target(
        &self,
        op: OpKind,
        buffer: &Buffer,
    ) -> Result<(*mut u8, usize), SubmitError> {
        match *buffer {
            // Ops without bytes have none in quarantine.
            Buffer::None => Ok((std::ptr::null_mut(), 0)),
            Buffer::Slot(ref slot) => {
                self.check_quarantine(op, || None)?;
                self.memory.span(op, slot.span())
            }
            Buffer::Span(span) => {
                self.check_quarantine(op, || Some((self.memory.address_of(span)?, span.len)))?;
                self.memory.span(op, span)
            }
            Buffer::Foreign { ptr, len } => {
                self.check_quarantine(op, || Some((ptr.addr(), len)))?;
                self.memory.foreign(op, ptr, len)
            }
        }
    }

    /// `raw`: address and length of memory that was not given as a slot.
    #[inline(always)]
    fn check_quarantine(
        &self,
        op: OpKind,
        raw: impl FnOnce() -> Option<(usize, usize)>,
    ) -> Result<(), SubmitError> {
        match self.quarantine.is_any() {
            true => self.check_some_quarantine(op, raw()),
            false => Ok(()),
        }
    }

    #[cold]
    fn check_some_quarantine(
        &self,
        op: OpKind,
        raw: Option<(usize, usize)>,
    ) -> Result<(), SubmitError> {
        if self.quarantine.bytes(op) > self.quarantine_limit {
            let why = Unavailable::Quarantine;
            return Err(SubmitError::Unavailable { op, why });
        }
        match raw {
            Some((addr, len)) if self.quarantine.has(addr, len) => {
                Err(SubmitError::Quarantined { op, addr, len })
            }
            _ => Ok(()),
        }
    }

    /// Ends what the pair has queued in a lane to which no worker comes any more.
    #[cold]
    pub(crate) fn end_queued(&self, pair: &PairShared, op: OpKind) {
        // A child's worker would be waited for in vain.
        if !self.is_forked() {
            worker::end_queued(self, pair, op);
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        // Who saw an op end finds it counted.
        self.quarantine.settled();
        Stats::read(&self.recorders, || {
            let pairs = self.pairs.counts();
            let queues = self.lanes.iter().flat_map(|lane| &lane.queues);
            let by_clients: u64 = queues.map(|queue| queue.clients.pushed()).sum();
            Intake {
                accepted: pairs.accepted + by_clients,
                refused: pairs.refused + self.clients.refused(),
                quarantined: self.quarantine.ops() as u64,
                credits_in_use: pairs.credits_in_use + self.clients.credits_in_use() as u64,
                pairs: pairs.pairs,
                clients: self.client_handles.load(Ordering::Relaxed),
            }
        })
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("store", &self.store.name())
            .field("closing", &self.closing())
            .finish_non_exhaustive()
    }
}

/// Who may spin: one worker of a group at a time, and never on the last core.
pub(crate) struct Spinners {
    active: AtomicUsize,
    limit: usize,
}

impl Spinners {
    /// At most `cores - 1` spin; none where nobody shall.
    pub(crate) fn new(cores: usize, config: &EngineConfig) -> Self {
        let anybody = config.busy_poll || config.spin_us > 0;
        Self {
            active: AtomicUsize::new(0),
            limit: if anybody { cores.saturating_sub(1) } else { 0 },
        }
    }

    /// Relaxed throughout: a count, and nothing else.
    pub(crate) fn try_start(&self, group: &Group) -> bool {
        if self.active.load(Ordering::Relaxed) >= self.limit {
            return false;
        }
        if self.active.fetch_add(1, Ordering::Relaxed) < self.limit && group.start_spinning() {
            return true;
        }
        self.active.fetch_sub(1, Ordering::Relaxed);
        false
    }

    pub(crate) fn stop(&self, group: &Group) {
        group.stop_spinning();
        self.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why no pair could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PairError {
    /// The depth is zero or more than [`Engine::MAX_PAIR_DEPTH`].
    #[error("pair: depth {depth}, allowed are 1 to {max}")]
    Depth {
        /// What was asked for.
        depth: usize,
        /// The most that is allowed.
        max: usize,
    },
    /// As many pairs are open as `max_pairs` allows.
    #[error("pair: {max} pairs are open, the limit max_pairs")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// The engine no longer takes ops.
    #[error("pair: the engine is shut down")]
    ShutDown,
    /// The engine is that of the process that forked this one.
    #[error("pair: the engine belongs to the parent of this forked process")]
    Forked,
}

/// A running engine: rings, workers and a store.
///
/// Threads submit through a [`Pair`] of their own, tasks through a [`Client`]. Dropping the engine shuts it down
/// ([`Shutdown::Cancel`], at most [`Engine::DROP_LIMIT`]); pairs and clients that are left then get
/// [`SubmitError::ShutDown`].
///
/// # Fork
/// An engine belongs to the process that started it. In a forked child each call answers `Forked`, futures of
/// ops in flight resolve to [`OpError::Forked`], and dropping any part of it frees the child's copy and
/// does nothing else; the parent notices nothing. A child may start an engine of its own, on a store of its own.
///
/// # The end of the process
/// Whoever returns from `main` or calls `exit` without a shutdown gets one: [`Shutdown::Cancel`], at most 3 s for all engines together.
/// What holds for a client library that is at work then, stands in `docs/mooncake.md`.
#[derive(Debug)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

impl Engine {
    /// Most ops in flight of one pair.
    pub const MAX_PAIR_DEPTH: usize = 1 << 16;

    /// How long dropping the engine waits for store calls to return.
    pub const DROP_LIMIT: Duration = Duration::from_secs(5);

    /// Begins to set up an engine on this store.
    pub fn builder(store: Arc<dyn Store>) -> EngineBuilder {
        EngineBuilder::new(store)
    }

    /// What was set up, and how: workers and their cores, regions, warnings.
    pub fn start_report(&self) -> &StartReport {
        &self.shared.report
    }

    /// The configuration as it is in effect.
    pub fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// A pair for one thread, with at most `depth` ops in flight (of all kinds together).
    ///
    /// # Errors
    /// [`PairError`].
    pub fn pair(&self, depth: usize) -> Result<Pair, PairError> {
        self.pair_with(PairOptions::new(depth))
    }

    /// A pair with options.
    ///
    /// # Errors
    /// [`PairError`].
    pub fn pair_with(&self, options: PairOptions) -> Result<Pair, PairError> {
        let PairOptions { depth, linger } = options;
        let max = Self::MAX_PAIR_DEPTH;
        if depth == 0 || depth > max {
            return Err(PairError::Depth { depth, max });
        }
        if self.shared.is_closing() {
            return Err(match self.shared.is_forked() {
                true => PairError::Forked,
                false => PairError::ShutDown,
            });
        }
        let max = self.shared.config.max_pairs;
        let make = |id: usize| {
            for lane in &self.shared.lanes {
                lane.open_source(id + 1);
            }
            Pair::new(Arc::clone(&self.shared), id, depth)
        };
        let linger = linger.filter(|(ops, budget)| *ops > 1 && !budget.is_zero());
        let pair = self.shared.pairs.add(max, make);
        let mut pair = pair.ok_or(PairError::TooMany { max })?;
        if let Some((ops, budget)) = linger {
            let ns = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
            let ops = ops.min(self.shared.config.max_batch) as u32;
            self.shared.groups.iter().for_each(Group::may_linger);
            pair.may_linger(ops, self.shared.timer.ticks(ns));
        }
        Ok(pair)
    }

    /// A client for any number of tasks and threads.
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(&self.shared), OpOptions::default())
    }

    /// How the engine does, by what its calls brought. Makes no call.
    pub fn health(&self) -> Health {
        Health::of(&self.shared)
    }

    /// The ops that have ended while a store call still has them, and their bytes: in quarantine until it returns. None in a
    /// forked child: they are the parent's.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        if self.shared.is_forked() {
            return Vec::new();
        }
        self.shared.quarantined()
    }

    /// A snapshot of all counts. Makes no worker wait. In a forked child all counts are 0: they are the parent's.
    pub fn stats(&self) -> Stats {
        if self.shared.is_forked() {
            return Stats::default();
        }
        self.shared.stats()
    }

    /// Stops intake, finishes or cancels what is queued, waits for store calls under way, unregisters the memory.
    ///
    /// Returns after `limit` at the latest (plus what the store takes to unregister): store calls that have not
    /// returned by then are in the report, their memory stays registered and mapped until they do. Harmless when
    /// called again, or from several threads: all get the report of the first call, once it is done.
    ///
    /// # Errors
    /// [`ShutdownError::WouldDeadlock`] from one of the engine's own workers: inside a waker or a store's call;
    /// [`ShutdownError::Forked`] in a forked child, where nothing is done.
    pub fn shutdown(
        &self,
        mode: Shutdown,
        limit: Duration,
    ) -> Result<ShutdownReport, ShutdownError> {
        shutdown::shutdown(&self.shared, mode, limit)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        shutdown::drop_engine(&self.shared);
    }
}
