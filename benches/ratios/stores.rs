//! Lookups beside a burst of large stores, on a simulated store whose bytes take their time.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use moonring::store::{
    CallResult, Capabilities, DeleteBatch, LookupBatch, NullStore, RegisterError, RetrieveBatch,
    SimOptions, SimStore, Store, StoreBatch,
};
use moonring::{
    Engine, EngineConfig, OpKind, Pair, Region, RegionOptions, SlotClass, SlotPool, Submission,
};

use crate::measure::Turn;

pub const STORES: usize = 200;
const VALUE: usize = 4 << 20;

/// One pipe for all calls that move bytes: each waits until the one before is through. The sim itself lets calls sleep beside
/// each other.
struct OnePipe {
    sim: SimStore,
    pipe: Mutex<()>,
}

impl Store for OnePipe {
    fn name(&self) -> &str {
        "one pipe"
    }
    fn capabilities(&self) -> Capabilities {
        self.sim.capabilities()
    }
    unsafe fn register(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        // SAFETY: the caller vouches for it.
        unsafe { self.sim.register(base, len) }
    }
    unsafe fn unregister(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        // SAFETY: the caller vouches for it.
        unsafe { self.sim.unregister(base, len) }
    }
    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        self.sim.batch_exists(batch)
    }
    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        let _pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        self.sim.batch_get_into(batch)
    }
    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        let _pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        self.sim.batch_put_from(batch)
    }
    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        self.sim.batch_remove(batch)
    }
}

pub struct Stores {
    _engine: Engine,
    pool: SlotPool,
    lookups: Pair,
    stores: Pair,
    pace: Duration,
}

impl Stores {
    /// `pace` is the time from a lookup's submission to the next; 0: the next comes at once.
    pub fn new(config: EngineConfig, one_pipe: bool, pace: Duration) -> Self {
        let options = SimOptions {
            delay_ns_per_byte: 1.0, // 1 GB/s
            ..SimOptions::default()
        };
        let sim = SimStore::new(Arc::new(NullStore), options).expect("a fair delay");
        let store: Arc<dyn Store> = match one_pipe {
            false => Arc::new(sim),
            true => Arc::new(OnePipe {
                sim,
                pipe: Mutex::new(()),
            }),
        };
        // Nobody writes the bytes, so there are no pages behind them.
        let region = Region::allocate(RegionOptions::new(STORES * VALUE)).expect("address space");
        let class = SlotClass {
            size: VALUE,
            count: STORES,
        };
        let pool = region.slot_pool(&[class]).expect("as large as the region");
        let engine = Engine::builder(store).config(config).region(region);
        let engine = engine.start().expect("a sound configuration");
        Self {
            lookups: engine.pair(1).expect("a first pair"),
            stores: engine.pair(STORES).expect("a second pair"),
            _engine: engine,
            pool,
            pace,
        }
    }

    /// Nanoseconds that 99 of 100 lookups stay below, while there is nothing else.
    pub fn quiet(&mut self, time: Duration, keys: &[String]) -> Turn {
        let end = Instant::now() + time;
        let times = lookups(&mut self.lookups, self.pace, keys, || Instant::now() >= end);
        p99(times).into()
    }

    /// The same while a burst of so many stores is done, [`STORES`] at most.
    pub fn burst(&mut self, n: usize, keys: &[String]) -> Turn {
        let through = AtomicBool::new(false);
        let Self {
            stores,
            lookups: pair,
            pool,
            pace,
            ..
        } = self;
        let times = std::thread::scope(|s| {
            s.spawn(|| {
                let mut batch = stores.batch();
                for key in &keys[..n] {
                    let slot = pool.lend(VALUE).expect("all came back");
                    assert!(batch.push(Submission::store(key, slot)).is_ok());
                }
                drop(batch);
                stores.wait(n, None).expect("the sim does not fail");
                assert_eq!(stores.completions().filter(|c| c.result.is_ok()).count(), n);
                through.store(true, Ordering::Relaxed);
            });
            lookups(pair, *pace, keys, || through.load(Ordering::Relaxed))
        });
        p99(times).into()
    }
}

fn p99(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() * 99 / 100]
}

/// One lookup after the other; nanoseconds of each. One that is late because the one before took so long is counted from when it
/// was due.
fn lookups(pair: &mut Pair, pace: Duration, keys: &[String], stop: impl Fn() -> bool) -> Vec<f64> {
    let mut times = Vec::new();
    let mut due = Instant::now();
    for key in keys.iter().cycle() {
        if stop() {
            break;
        }
        let now = Instant::now();
        let late = now > due && !pace.is_zero();
        if now < due {
            std::thread::sleep(due - now);
        }
        let from = if late { due } else { Instant::now() };
        assert!(pair.submit(Submission::lookup(key)).is_ok());
        pair.wait(1, None).expect("the sim does not fail");
        assert!(pair.poll().is_some_and(|c| c.result.is_ok()));
        let end = Instant::now();
        times.push((end - from).as_nanos() as f64);
        due = from + pace;
    }
    assert!(!times.is_empty());
    times
}

/// The default pool of 4, or lookups with a worker of their own beside it.
pub fn config(own_worker: bool) -> EngineConfig {
    match own_worker {
        false => EngineConfig::default(),
        true => EngineConfig::default().dedicated(OpKind::Lookup, 1),
    }
}
