//! The engine's sides of the comparisons: a pair, and a client's tasks on a current-thread runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use moonring::config::CoreChoice;
use moonring::store::NullStore;
use moonring::{Client, Done, Engine, EngineConfig, LocalClient, OpKind, Pair, Submission};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

use crate::measure::{Side, Turn, interruptions, pin};

/// An engine over the null store with so many workers for lookups, the first pinned as told.
pub fn engine(workers: usize, core: Option<usize>) -> Engine {
    let mut config = EngineConfig::default().dedicated(OpKind::Lookup, workers);
    // No shared pool, whose workers would come first in the list of cores. They sleep throughout.
    for op in [OpKind::Retrieve, OpKind::Store, OpKind::Delete] {
        config = config.dedicated(op, 1);
    }
    let cores = core.map_or(CoreChoice::None, |core| CoreChoice::List(vec![core]));
    Engine::builder(Arc::new(NullStore))
        .config(config.cores(cores))
        .start()
        .expect("the null store needs nothing")
}

pub struct OnPair<'k> {
    pub pair: Pair,
    keys: &'k [String],
    next: usize,
}

impl<'k> OnPair<'k> {
    pub fn new(engine: &Engine, keys: &'k [String], depth: usize) -> Self {
        Self {
            pair: engine.pair(depth).expect("there are few pairs"),
            keys,
            next: 0,
        }
    }
}

impl Side for OnPair<'_> {
    fn room(&self) -> usize {
        self.pair.credits()
    }

    fn submit(&mut self, n: usize) {
        let mut batch = self.pair.batch();
        for _ in 0..n {
            let key = &self.keys[self.next % self.keys.len()];
            let pushed = batch.push(Submission::lookup(key).user_data(self.next as u64));
            assert!(pushed.is_ok());
            self.next += 1;
        }
    }

    fn reap(&mut self) -> usize {
        let mut n = 0;
        while let Some(completion) = self.pair.poll() {
            std::hint::black_box(completion.user_data);
            assert!(completion.result.is_ok());
            n += 1;
        }
        n
    }
}

/// Tasks on one thread, each with lookups of `burst` keys one after the other, until the turn is over.
struct Load {
    keys: usize,
    tasks: usize,
    burst: usize,
    turn: Duration,
    started: Instant,
    /// Both are that thread's alone. Atomics, for a runtime's tasks are `Send`.
    done: AtomicU64,
    stop: AtomicBool,
}

impl Load {
    fn new(keys: usize, tasks: usize, burst: usize, turn: Duration) -> Arc<Self> {
        Arc::new(Self {
            keys,
            tasks,
            burst,
            turn,
            started: Instant::now(),
            done: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        })
    }

    /// A task's lookups that begin with key number `next`. Whether there is another after it.
    fn count(&self, next: &mut usize) -> bool {
        *next += self.tasks * self.burst;
        let done = self.done.load(Ordering::Relaxed) + self.burst as u64;
        self.done.store(done, Ordering::Relaxed);
        if done.is_multiple_of(2048) && self.started.elapsed() >= self.turn {
            self.stop.store(true, Ordering::Relaxed);
        }
        !self.stop.load(Ordering::Relaxed)
    }

    /// Runs what was spawned. Ops per second.
    fn run(&self, runtime: &Runtime, all: impl Future) -> Turn {
        let before = interruptions();
        runtime.block_on(all);
        let value = self.done.load(Ordering::Relaxed) as f64 / self.started.elapsed().as_secs_f64();
        let calm = interruptions() == before;
        Turn { value, calm }
    }
}

/// With an I/O `driver`, as a server's runtime has it, waking its thread from another is a system call.
fn runtime(driver: bool) -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    if driver {
        builder.enable_io();
    }
    builder.build().expect("a runtime of one thread")
}

/// Where tasks are.
#[derive(Clone, Copy)]
pub enum Tasks {
    /// The runtime's own. It has an I/O driver, or not.
    Spawned { driver: bool },
    /// In a `LocalSet`, on a runtime with an I/O driver: the set is woken once for many of its tasks.
    InASet,
}

/// Tasks of a client.
pub fn client_tasks(
    client: &Client,
    keys: &'static [String],
    tasks: usize,
    burst: usize,
    turn: Duration,
    place: Tasks,
) -> Turn {
    let runtime = match place {
        Tasks::Spawned { driver } => runtime(driver),
        Tasks::InASet => runtime(true),
    };
    let set = LocalSet::new();
    let load = Load::new(keys.len(), tasks, burst, turn);
    let task = |task| {
        let (client, load) = (client.clone(), Arc::clone(&load));
        let lookups = async move {
            let mut there = Vec::with_capacity(burst);
            let mut next = task * burst;
            loop {
                let at = next % load.keys;
                if burst == 1 {
                    assert_eq!(client.lookup(&keys[at]).await, Ok(true));
                } else {
                    client.lookup_many(&keys[at..at + burst], &mut there).await;
                    assert!(there.iter().all(|is| *is == Ok(true)));
                }
                if !load.count(&mut next) {
                    break;
                }
            }
        };
        match place {
            Tasks::Spawned { .. } => runtime.spawn(lookups),
            Tasks::InASet => set.spawn_local(lookups),
        }
    };
    let spawned: Vec<_> = (0..tasks).map(task).collect();
    let all = async {
        for task in spawned {
            task.await.expect("no panic");
        }
    };
    match place {
        Tasks::Spawned { .. } => load.run(&runtime, all),
        Tasks::InASet => load.run(&runtime, set.run_until(all)),
    }
}

/// Tasks that share a pair: its ops as futures.
pub fn local_tasks(
    engine: &Engine,
    keys: &'static [String],
    tasks: usize,
    turn: Duration,
    driver: bool,
) -> Turn {
    let runtime = runtime(driver);
    let load = Load::new(keys.len(), tasks, 1, turn);
    let local = LocalSet::new();
    let pair = engine.pair(tasks).expect("there are few pairs");
    let (client, reactor) = LocalClient::new(pair);
    local.spawn_local(reactor);
    for mut next in 0..tasks {
        let (client, load) = (client.clone(), Arc::clone(&load));
        local.spawn_local(async move {
            loop {
                let key = &keys[next % load.keys];
                let found = client.submit(Submission::lookup(key)).await;
                assert_eq!(found.result, Ok(Done::Present));
                if !load.count(&mut next) {
                    break;
                }
            }
        });
    }
    drop(client);
    load.run(&runtime, local)
}

/// A ping-pong of two threads over two cache lines: the other one's side, until this is dropped.
pub struct PingPong {
    lines: Arc<Lines>,
    turn: u64,
}

#[derive(Default)]
struct Lines {
    ping: CachePadded<AtomicU64>,
    pong: CachePadded<AtomicU64>,
    stop: AtomicBool,
}

impl PingPong {
    pub fn new(core: Option<usize>) -> Self {
        let lines = Arc::new(Lines::default());
        let other = Arc::clone(&lines);
        std::thread::spawn(move || {
            pin(core);
            let mut seen = 0;
            while !other.stop.load(Ordering::Relaxed) {
                let ping = other.ping.load(Ordering::Acquire);
                if ping != seen {
                    seen = ping;
                    other.pong.store(ping, Ordering::Release);
                }
            }
        });
        Self { lines, turn: 0 }
    }

    pub fn round_trip(&mut self) {
        self.turn += 1;
        self.lines.ping.store(self.turn, Ordering::Release);
        while self.lines.pong.load(Ordering::Acquire) != self.turn {}
    }
}

impl Drop for PingPong {
    fn drop(&mut self) {
        self.lines.stop.store(true, Ordering::Relaxed);
    }
}
