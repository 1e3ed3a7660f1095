//! The start of an engine: configuration, memory, workers; or an error that names what was wrong, and nothing left behind.

use std::sync::{Arc, mpsc};

use crate::circuit::FailFast;
use crate::clock::Clock;
use crate::config::{ConfigError, CoreChoice};
use crate::engine::{Closing, Engine, Shared, Spinners};
use crate::fork::ForkWord;
use crate::lane::{Group, Lane};
use crate::memory::{Given, Memory, RegistrationFailed};
use crate::pace::{self, Pace};
use crate::signals::BlockedSignals;
use crate::store::{Capabilities, RegisterError, Store};
use crate::timer::{Sweeper, Timer};
use crate::worker::{Driver, Worker};
use crate::{
    EngineConfig, HandClock, OpKind, Overlap, Region, RegionReport, affinity, exit, shutdown,
};

/// Why an engine did not start. Whatever had been set up before is taken back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A core was asked for that this thread may not use.
    #[error("moonring.cores: core {core} is not among the allowed ones {allowed:?}")]
    Core {
        /// The core.
        core: usize,
        /// What the calling thread's mask allows.
        allowed: Vec<usize>,
    },
    /// Two regions overlap without being the same.
    #[error("region {second} overlaps region {first}: {report}")]
    RegionsOverlap {
        /// The one given first, counted from 0.
        first: usize,
        /// The one given later.
        second: usize,
        /// Where they are.
        report: String,
    },
    /// The store did not register a piece of a region. The pieces before it were unregistered again.
    #[error(
        "region {region}: registering piece {piece} of {pieces} ({len} bytes at {addr:#x}) failed: {error}{}",
        left_note(.left)
    )]
    Registration {
        /// The region, counted from 0.
        region: usize,
        /// The piece, counted from 1.
        piece: usize,
        /// How many pieces the region has.
        pieces: usize,
        /// Address of the piece.
        addr: usize,
        /// Length of the piece in bytes.
        len: usize,
        /// The store's reason.
        error: RegisterError,
        /// Pieces that could not be unregistered again; they are leaked.
        left: Vec<String>,
    },
    /// A worker's thread could not be started.
    #[error("worker {name}: {error}")]
    Worker {
        /// The worker's name.
        name: String,
        /// The system's reason.
        error: std::io::Error,
    },
}

fn left_note(left: &[String]) -> String {
    match left {
        [] => String::new(),
        _ => format!("; taking back failed too: {}", left.join(", ")),
    }
}

/// How an engine was set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StartReport {
    /// The store's name.
    pub store: String,
    /// The version of what is behind the store, where it is known.
    pub store_version: Option<String>,
    /// What the store can do.
    pub capabilities: Capabilities,
    /// One entry per worker.
    pub workers: Vec<WorkerStart>,
    /// One entry per region that is in use.
    pub regions: Vec<RegionStart>,
    /// Regions that were given twice, or wrapped twice from the same bytes. They are registered once.
    pub identical_regions: usize,
    /// What deserves attention; also logged.
    pub warnings: Vec<String>,
}

/// A worker as it was started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStart {
    /// Its thread's name.
    pub name: String,
    /// The op kinds that it serves.
    pub ops: Vec<OpKind>,
    /// The core that it was to be pinned to; `None`: it is not pinned.
    pub core: Option<usize>,
    /// Whether the system pinned it.
    pub pinned: bool,
}

/// A region as it was registered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RegionStart {
    /// What was really got.
    pub region: RegionReport,
    /// Lengths in bytes of the pieces in which it was registered, in order.
    pub pieces: Vec<usize>,
}

/// Sets an engine up.
#[derive(Debug)]
#[must_use]
pub struct EngineBuilder {
    store: Arc<dyn Store>,
    config: EngineConfig,
    regions: Vec<Region>,
    warnings: Vec<String>,
    clock: Clock,
}

impl std::fmt::Debug for dyn Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Store").field(&self.name()).finish()
    }
}

/// A worker to be started.
struct Plan {
    name: String,
    group: usize,
    number: usize,
    core: Option<usize>,
    /// Sleeps until all workers of its group are in overdue calls.
    spare: bool,
}

impl EngineBuilder {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            config: EngineConfig::default(),
            regions: Vec::new(),
            warnings: Vec::new(),
            clock: Clock::new(quanta::Clock::new()),
        }
    }

    /// The configuration; the default without this.
    pub fn config(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self
    }

    /// Adds a region, to be registered with the store.
    pub fn region(mut self, region: Region) -> Self {
        self.regions.push(region);
        self
    }

    /// Adds warnings that belong into the report, as those of [`L2Adapter::warnings`](crate::L2Adapter::warnings).
    pub fn warnings(mut self, warnings: impl IntoIterator<Item = String>) -> Self {
        self.warnings.extend(warnings);
        self
    }

    /// Starts the engine. The cores of its workers are chosen from those of the calling thread.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left behind then, except memory that a store did not unregister, which is leaked.
    pub fn start(self) -> Result<Engine, StartError> {
        let (shared, plans) = self.set_up()?;
        spawn(shared, plans)
    }

    /// Sets the engine up without threads, for tests and for counting instructions: one [`Driver`] per group of workers
    /// (the shared pool, and each op kind with workers of its own), which does a round when it is told to.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_by_hand(mut self) -> Result<(Engine, Vec<Driver>), StartError> {
        self.config.validate()?;
        self.config.num_workers = 1;
        for op in OpKind::ALL {
            self.config.per_op_workers[op] = self.config.per_op_workers[op].and(Some(1));
        }
        self.by_hand()
    }

    /// A driver for each worker.
    fn by_hand(mut self) -> Result<(Engine, Vec<Driver>), StartError> {
        self.config.validate()?;
        self.config.cores = CoreChoice::None;
        let (shared, plans) = self.set_up()?;
        let shared = Arc::new(shared);
        let workers = plans.iter().filter(|plan| !plan.spare);
        let drivers = workers.enumerate().map(|(index, plan)| {
            let stats = Arc::clone(&shared.recorders[index]);
            Driver::new(Worker::new(
                Arc::clone(&shared),
                plan.group,
                plan.number,
                stats,
            ))
        });
        let drivers = drivers.collect();
        Ok((Engine { shared }, drivers))
    }

    /// [`start_by_hand`](Self::start_by_hand) on a clock that is moved by hand, too: nothing that happens then depends on the time
    /// that it takes. And with as many workers as are configured, each with a [`Driver`], group by group: the shared pool first.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_by_hand_on(
        mut self,
        clock: &HandClock,
    ) -> Result<(Engine, Vec<Driver>), StartError> {
        self.clock = Clock::new(clock.clock());
        self.by_hand()
    }

    fn set_up(self) -> Result<(Shared, Vec<Plan>), StartError> {
        self.config.validate()?;
        let config = self.config.effective();
        let allowed = affinity::allowed();
        let clock = self.clock;
        let timer = Timer::new(&clock);
        let (groups, lanes) = layout(&config, &timer);
        let cores = affinity::assign(
            &config.cores,
            &allowed,
            groups.iter().map(|g| g.workers).sum(),
        )?;
        let plans = plan(&groups, cores, config.fail_fast_after > 0);
        let (regions, identical) = distinct(self.regions)?;
        let capabilities = self.store.capabilities();
        let mut warnings = self.warnings;
        for warning in self.config.without_effect() {
            // JSON gives the same words.
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        let workers = plans.iter().filter(|plan| !plan.spare).count();
        warnings.extend(affinity::without_effect(&config, &allowed, workers));
        if capabilities.needs_registration {
            // Before it is registered, which makes all pages present: one fault after the other, inside one call.
            let registered = regions.iter().filter(|given| !given.identical);
            let absent = registered.filter(|given| !given.region.is_present());
            warnings.extend(absent.map(|given| {
                let i = given.at;
                format!("region {i} was not prefaulted: its registration takes long, and a page may lie on a far node (LMCache: --no-l1-use-lazy)")
            }));
        }
        let memory =
            Memory::register(&*self.store, capabilities, regions, config.max_registration)?;
        let mut report = StartReport {
            store: self.store.name().to_owned(),
            store_version: self.store.version(),
            capabilities,
            workers: Vec::new(),
            regions: memory.report(),
            identical_regions: identical,
            warnings,
        };
        report.warnings.extend(self.store.warnings());
        let closing = ForkWord::new(Closing::No as u64);
        report.warnings.extend(closing.warning());
        for plan in plans.iter().filter(|plan| !plan.spare) {
            report.workers.push(WorkerStart {
                name: plan.name.clone(),
                ops: groups[plan.group].ops.clone(),
                core: plan.core,
                pinned: plan.core.is_some(),
            });
        }
        let spinners = Spinners::new(allowed.len(), &config);
        let shared = Shared::new(
            config,
            self.store,
            memory,
            lanes,
            groups,
            spinners,
            closing,
            report,
            (clock, timer),
        );
        Ok((shared, plans))
    }
}

/// The shortest time over which is measured what calls bring: many times what a thread waits for a core.
const WINDOW_NS: u64 = 10_000_000;
/// A paced lane without an end of a call for less is never stuck: longer than a worker is kept from its core.
const PATIENCE_NS: u64 = 20_000_000;

/// The groups of workers, and the lanes that they serve.
fn layout(config: &EngineConfig, timer: &Timer) -> (Vec<Group>, [Lane; 4]) {
    let mut groups = Vec::new();
    let shared: Vec<_> = OpKind::ALL
        .into_iter()
        .filter(|&op| config.per_op_workers[op].is_none())
        .collect();
    // In a pool for several kinds none may hold all workers.
    let bounded = shared.len() > 1 && config.num_workers > 1;
    if !shared.is_empty() {
        groups.push(Group::new(shared, config.num_workers));
    }
    let lanes = OpKind::ALL.map(|op| {
        let (group, max_holders) = match config.per_op_workers[op] {
            Some(workers) => {
                groups.push(Group::new(vec![op], workers));
                (groups.len() - 1, u32::MAX)
            }
            None if bounded => (0, config.num_workers as u32 - 1),
            None => (0, u32::MAX),
        };
        let workers = config.per_op_workers[op].unwrap_or(config.num_workers);
        let rules = FailFast {
            after: config.fail_fast_after,
            pause: timer.ticks(u64::from(config.fail_fast_ms) * 1_000_000),
            max_batch: config.max_batch,
            overdue: (workers as u32 / 2).max(1),
        };
        let pace = match config.adapt {
            true => Pace::new(
                max_holders.min(workers as u32),
                pace::Rules {
                    window: timer.ticks(WINDOW_NS),
                    patience: timer.ticks(PATIENCE_NS),
                },
            ),
            false => Pace::off(),
        };
        let (depth, pairs) = (config.ring_depth, config.max_pairs);
        Lane::new(op, group, depth, pairs, max_holders, pace, rules)
    });
    (groups, lanes)
}

/// The threads of the workers, and their spares where there are any.
fn plan(groups: &[Group], cores: Vec<Option<usize>>, with_spares: bool) -> Vec<Plan> {
    let mut cores = cores.into_iter();
    let (mut plans, mut spares) = (Vec::new(), Vec::new());
    for (g, group) in groups.iter().enumerate() {
        // Thread names are cut at 15 bytes.
        let name = match group.ops[..] {
            [op] => op.name(),
            _ => "shared",
        };
        for number in 0..group.workers {
            plans.push(Plan {
                name: format!("mr-{name}-{number}"),
                group: g,
                number,
                core: cores.next().flatten(),
                spare: false,
            });
        }
        spares.push(Plan {
            name: format!("mr-{name}-spare"),
            group: g,
            number: group.workers,
            core: None,
            spare: true,
        });
    }
    if with_spares {
        // Behind the others, which the report lists.
        plans.append(&mut spares);
    }
    plans
}

/// Leaves out regions that were given twice, marks those that have the bytes of another, and refuses those that overlap
/// in part. Also returns how many are identical to one before.
fn distinct(regions: Vec<Region>) -> Result<(Vec<Given>, usize), StartError> {
    let mut kept: Vec<Given> = Vec::new();
    let mut twice = 0;
    'next: for (at, region) in regions.into_iter().enumerate() {
        let mut identical = false;
        for other in &kept {
            match other.region.overlap(&region) {
                Overlap::Apart => {}
                Overlap::Identical if other.region.id() == region.id() => {
                    twice += 1;
                    continue 'next;
                }
                Overlap::Identical => identical = true,
                Overlap::Partial => {
                    return Err(StartError::RegionsOverlap {
                        first: other.at,
                        second: at,
                        report: format!(
                            "{} bytes at {:p} and {} bytes at {:p}",
                            other.region.len(),
                            other.region.base(),
                            region.len(),
                            region.base()
                        ),
                    });
                }
            }
        }
        twice += usize::from(identical);
        kept.push(Given {
            region,
            at,
            identical,
        });
    }
    Ok((kept, twice))
}

/// Starts the workers; all are at work, and pinned, when this returns.
fn spawn(mut shared: Shared, plans: Vec<Plan>) -> Result<Engine, StartError> {
    // Pinning is tried before the report is sealed: each worker says how it went, then waits for its engine.
    let mut engines = Vec::new();
    let (said, results) = mpsc::channel();
    let mut failed = None;
    let blocked = BlockedSignals::new();
    for (index, plan) in plans.into_iter().enumerate() {
        let (give, engine) = mpsc::channel::<Arc<Shared>>();
        let said = said.clone();
        let stats = Arc::clone(&shared.recorders[index]);
        let name = plan.name.clone();
        let body = move || {
            // If the starter is gone, so is the engine.
            let _ = said.send((index, plan.core.is_none_or(affinity::pin)));
            drop(said);
            let Ok(engine) = engine.recv() else { return };
            let leaving = Leaving {
                engine: Arc::clone(&engine),
                index,
            };
            let worker = Worker::new(engine, plan.group, plan.number, stats);
            match plan.spare {
                false => worker.run(),
                true => worker.run_spare(),
            }
            drop(leaving);
        };
        match std::thread::Builder::new().name(name.clone()).spawn(body) {
            Ok(_) => engines.push(give),
            Err(error) => {
                failed = Some(StartError::Worker { name, error });
                break;
            }
        }
    }
    let (give_timer, engine) = mpsc::channel::<Arc<Shared>>();
    let timer = move || {
        let Ok(engine) = engine.recv() else { return };
        Sweeper::new().run(&engine);
    };
    let name = "mr-timer".to_owned();
    if failed.is_none()
        && let Err(error) = std::thread::Builder::new().name(name.clone()).spawn(timer)
    {
        failed = Some(StartError::Worker { name, error });
    }
    drop(blocked);
    drop(said);
    for (index, pinned) in results {
        let Some(worker) = shared.report.workers.get_mut(index) else {
            continue; // A spare, which is never pinned.
        };
        worker.pinned &= pinned;
        if let (Some(core), false) = (worker.core, pinned) {
            let warning = format!("{}: could not be pinned to core {core}", worker.name);
            shared.report.warnings.push(warning);
        }
    }
    if let Some(error) = failed {
        // The threads that did start end when their channels close.
        drop(engines);
        // SAFETY: no worker has begun, so no call is under way, and none comes.
        unsafe { shared.memory.unregister(&*shared.store) };
        return Err(error);
    }
    for warning in &shared.report.warnings {
        tracing::warn!("{warning}");
    }
    let shared = Arc::new(shared);
    *shared.working.lock().unwrap_or_else(|e| e.into_inner()) = (0..engines.len()).collect();
    let _ = give_timer.send(Arc::clone(&shared));
    for give in engines {
        // The worker waits for it.
        let _ = give.send(Arc::clone(&shared));
    }
    exit::register(&shared);
    Ok(Engine { shared })
}

/// Tells the engine that a worker is gone, however it went.
struct Leaving {
    engine: Arc<Shared>,
    index: usize,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A panic of our own code. Its lane may have no worker left, so nothing may be queued any more.
            tracing::error!("a worker ended by a panic; the engine shuts down");
            shutdown::shutdown_elsewhere(&self.engine);
        }
        self.engine.worker_left(self.index);
    }
}

impl From<RegistrationFailed> for StartError {
    fn from(failed: RegistrationFailed) -> Self {
        StartError::Registration {
            region: failed.region,
            piece: failed.piece + 1,
            pieces: failed.pieces,
            addr: failed.addr,
            len: failed.len,
            error: failed.error,
            left: failed.left,
        }
    }
}

impl Memory {
    fn report(&self) -> Vec<RegionStart> {
        let start = |(region, pieces): (&Region, &crate::Pieces)| RegionStart {
            region: region.report().clone(),
            pieces: pieces.iter().map(|(_, len)| len).collect(),
        };
        self.regions().map(start).collect()
    }
}
