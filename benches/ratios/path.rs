//! The engine's sides of the comparisons: a pair, and a client's tasks on a current-thread runtime.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use moonring::config::CoreChoice;
use moonring::store::NullStore;
use moonring::{Client, Done, Engine, EngineConfig, LocalClient, OpKind, Pair, Submission};
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

/// So many tasks on tokio's current-thread runtime, each with lookups of `burst` keys one after the other; ops per second.
/// With an I/O `driver`, as a server's runtime has it, waking that thread from another is a system call.
/// `make` gives a task its way to look up the keys from a number on, and spawns what that needs.
pub fn tasks<L: AsyncFnMut(usize) + 'static>(
    keys: usize,
    tasks: usize,
    burst: usize,
    turn: Duration,
    driver: bool,
    make: impl FnOnce(&LocalSet) -> Vec<L>,
) -> Turn {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    if driver {
        builder.enable_io();
    }
    let runtime = builder.build().expect("a runtime of one thread");
    let (done, stop) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let local = LocalSet::new();
    let before = interruptions();
    let started = Instant::now();
    for (task, mut lookup) in make(&local).into_iter().enumerate() {
        let (done, stop) = (Rc::clone(&done), Rc::clone(&stop));
        local.spawn_local(async move {
            let mut next = task * burst;
            while !stop.get() {
                lookup(next % keys).await;
                next += tasks * burst;
                done.set(done.get() + burst as u64);
                if done.get() % 2048 == 0 && started.elapsed() >= turn {
                    stop.set(true);
                }
            }
        });
    }
    runtime.block_on(local);
    let value = done.get() as f64 / started.elapsed().as_secs_f64();
    let calm = interruptions() == before;
    Turn { value, calm }
}

/// Tasks of a client.
pub fn client_tasks(
    client: &Client,
    keys: &'static [String],
    n: usize,
    burst: usize,
    turn: Duration,
    driver: bool,
) -> Turn {
    tasks(keys.len(), n, burst, turn, driver, |_| {
        let task = |_| {
            let client = client.clone();
            let mut there = Vec::with_capacity(burst);
            async move |at: usize| {
                if burst == 1 {
                    assert_eq!(client.lookup(&keys[at]).await, Ok(true));
                } else {
                    client.lookup_many(&keys[at..at + burst], &mut there).await;
                    assert!(there.iter().all(|is| *is == Ok(true)));
                }
            }
        };
        (0..n).map(task).collect()
    })
}

/// Tasks that share a pair: its ops as futures.
pub fn local_tasks(
    engine: &Engine,
    keys: &'static [String],
    n: usize,
    turn: Duration,
    driver: bool,
) -> Turn {
    tasks(keys.len(), n, 1, turn, driver, |local| {
        let pair = engine.pair(n).expect("there are few pairs");
        let (client, reactor) = LocalClient::new(pair);
        local.spawn_local(reactor);
        let task = |_| {
            let client = client.clone();
            async move |at: usize| {
                let found = client.submit(Submission::lookup(&keys[at])).await;
                assert_eq!(found.result, Ok(Done::Present));
            }
        };
        (0..n).map(task).collect()
    })
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
