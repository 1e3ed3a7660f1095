//! How ops per second and the time of an op change with the number of producers, the depth, the length of keys and of values.
//!
//! `cargo bench --bench scale` runs all series and prints a table with commas, one line a point; `-- NAME..` runs those series whose
//! names contain one of the words, `-- --quick` spends a tenth of the time. Keys are distinct, statistics on. Times are those of
//! every 16th op, or of each call of a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use moonring::store::{MemoryOptions, MemoryStore, NullStore, Store};
use moonring::{
    Client, Engine, EngineConfig, OpKind, Pair, Region, RegionOptions, Slot, SlotClass, Submission,
    block_on,
};

#[global_allocator]
static HEAP: heap::Counted = heap::Counted;

/// Bytes on the heap, to tell what a pair takes.
mod heap {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::sync::atomic::{AtomicUsize, Ordering};

    pub struct Counted;

    static BYTES: AtomicUsize = AtomicUsize::new(0);

    pub fn bytes() -> usize {
        BYTES.load(Ordering::Relaxed)
    }

    // SAFETY: all calls go on to the system's allocator as they came.
    unsafe impl GlobalAlloc for Counted {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            BYTES.fetch_add(layout.size(), Ordering::Relaxed);
            // SAFETY: the caller's contract is that of `System`.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
            BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
            // SAFETY: the caller's contract is that of `System`.
            unsafe { System.dealloc(ptr, layout) }
        }
    }
}

/// Keys in one call of a client: 512 clients have as many ops in flight as the default `ring_depth` allows.
const KEYS_A_CALL: usize = 8;

/// A point of a series.
struct Point {
    ops: u64,
    took: Duration,
    times: Histogram<u64>,
}

fn times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("sound bounds")
}

fn print(series: &str, x: impl std::fmt::Display, point: &Point, more: &str) {
    let us = |quantile| point.times.value_at_quantile(quantile) as f64 / 1e3;
    println!(
        "{series},{x},{:.0},{:.2},{:.2},{more}",
        point.ops as f64 / point.took.as_secs_f64(),
        us(0.5),
        us(0.99),
    );
}

fn keys(len: usize) -> &'static [String] {
    let keys: Vec<_> = (0..4096).map(|i| format!("{i:0>len$}")).collect();
    keys.leak()
}

fn engine(config: EngineConfig) -> Engine {
    Engine::builder(Arc::new(NullStore))
        .config(config)
        .start()
        .expect("the null store needs nothing")
}

fn one_worker() -> EngineConfig {
    EngineConfig::default().dedicated(OpKind::Lookup, 1)
}

/// Keeps pairs full with lookups, one op a submit, one pair after the other.
fn pairs(pairs: &mut [Pair], keys: &[String], time: Duration) -> Point {
    let clock = quanta::Clock::new();
    let mut times = times();
    let (mut ops, mut sent) = (0, 0);
    let started = Instant::now();
    let mut round = |pairs: &mut [Pair], submit: bool| {
        let mut busy = false;
        for pair in pairs {
            for done in pair.completions() {
                assert!(done.result.is_ok());
                ops += 1;
                if done.user_data != 0 {
                    times.saturating_record(clock.delta_as_nanos(done.user_data, clock.raw()));
                }
            }
            while submit && pair.credits() > 0 {
                let at = if sent % 16 == 0 { clock.raw() } else { 0 };
                let lookup = Submission::lookup(&keys[sent % keys.len()]).user_data(at);
                assert!(pair.submit(lookup).is_ok());
                sent += 1;
            }
            busy |= pair.in_flight() > 0;
        }
        busy
    };
    while started.elapsed() < time {
        (0..64).for_each(|_| {
            round(pairs, true);
        });
    }
    let took = started.elapsed();
    while round(pairs, false) {}
    Point { ops, took, times }
}

/// So many clients, each a task on one current-thread runtime with a call of [`KEYS_A_CALL`] lookups after the other.
fn clients_as_tasks(
    client: &Client,
    clients: usize,
    keys: &'static [String],
    time: Duration,
) -> Point {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let local = tokio::task::LocalSet::new();
    let (ops, stop) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let all_times = Rc::new(RefCell::new(times()));
    let started = Instant::now();
    for task in 0..clients {
        let (client, times) = (client.clone(), Rc::clone(&all_times));
        let (ops, stop) = (Rc::clone(&ops), Rc::clone(&stop));
        local.spawn_local(async move {
            let (mut next, mut there) = (task * KEYS_A_CALL, Vec::with_capacity(KEYS_A_CALL));
            while !stop.get() {
                let at = next % keys.len();
                next += clients * KEYS_A_CALL;
                let call = Instant::now();
                client
                    .lookup_many(&keys[at..at + KEYS_A_CALL], &mut there)
                    .await;
                assert!(there.iter().all(Result::is_ok));
                times
                    .borrow_mut()
                    .saturating_record(call.elapsed().as_nanos() as u64);
                ops.set(ops.get() + KEYS_A_CALL as u64);
                stop.set(stop.get() || started.elapsed() >= time);
            }
        });
    }
    runtime.expect("a runtime without drivers").block_on(local);
    Point {
        ops: ops.get(),
        took: started.elapsed(),
        times: all_times.take_histogram(),
    }
}

trait TakeHistogram {
    fn take_histogram(&self) -> Histogram<u64>;
}

impl TakeHistogram for std::rc::Rc<std::cell::RefCell<Histogram<u64>>> {
    fn take_histogram(&self) -> Histogram<u64> {
        self.replace(times())
    }
}

/// The same with a thread for each client, which blocks.
fn clients_as_threads(client: &Client, clients: usize, keys: &[String], time: Duration) -> Point {
    let (ops, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut all = times();
    let started = Instant::now();
    let took = std::thread::scope(|s| {
        let (ops, stop) = (&ops, &stop);
        let thread = |number: usize| {
            let client = client.clone();
            move || {
                let mut times = times();
                let (mut next, mut there) = (number * KEYS_A_CALL, Vec::with_capacity(KEYS_A_CALL));
                while !stop.load(Ordering::Relaxed) {
                    let at = next % keys.len();
                    next += clients * KEYS_A_CALL;
                    let call = Instant::now();
                    block_on(client.lookup_many(&keys[at..at + KEYS_A_CALL], &mut there));
                    assert!(there.iter().all(Result::is_ok));
                    times.saturating_record(call.elapsed().as_nanos() as u64);
                    ops.fetch_add(KEYS_A_CALL as u64, Ordering::Relaxed);
                }
                times
            }
        };
        let threads: Vec<_> = (0..clients).map(|number| s.spawn(thread(number))).collect();
        std::thread::sleep(time.saturating_sub(started.elapsed()));
        stop.store(true, Ordering::Relaxed);
        let took = started.elapsed();
        for thread in threads {
            let _ = all.add(thread.join().expect("no panic"));
        }
        took
    });
    Point {
        ops: ops.into_inner(),
        took,
        times: all,
    }
}

/// Keeps retrieves of values of one size in flight.
fn values(store: Arc<dyn Store>, size: usize, time: Duration) -> (Point, usize) {
    // No more than 512 MiB.
    let in_flight = (512 << 20).min(256 * size) / size;
    let region = Region::allocate(RegionOptions::new(in_flight * size.next_multiple_of(64)));
    let region = region.expect("so much memory");
    let count = in_flight;
    let pool = region
        .slot_pool(&[SlotClass { size, count }])
        .expect("as large as the region");
    let engine = Engine::builder(store)
        .config(EngineConfig::default())
        .region(region);
    let engine = engine.start().expect("a sound configuration");
    let mut pair = engine.pair(in_flight).expect("a first pair");
    let mut free: Vec<Slot> = (0..in_flight).filter_map(|_| pool.lend(size)).collect();
    let keys = keys(101);
    // What is read is written first: no more objects than fit.
    let objects = in_flight.min(keys.len());
    for key in &keys[..objects] {
        let slot = free.pop().expect("one comes back each time");
        assert!(pair.submit(Submission::store(key, slot)).is_ok());
        pair.wait(1, None).expect("the engine is open");
        free.extend(pair.poll().and_then(|done| done.slot));
    }
    let clock = quanta::Clock::new();
    let mut times = times();
    let (mut ops, mut sent) = (0, 0);
    let started = Instant::now();
    loop {
        let on = started.elapsed() < time;
        while let (true, Some(slot)) = (on, free.pop()) {
            let retrieve = Submission::retrieve(&keys[sent % objects], slot).user_data(clock.raw());
            assert!(pair.submit(retrieve).is_ok());
            sent += 1;
        }
        if !on && pair.in_flight() == 0 {
            break;
        }
        let _ = pair.wait(1, None);
        for done in pair.completions() {
            assert!(done.result.is_ok(), "{:?}", done.result);
            times.saturating_record(clock.delta_as_nanos(done.user_data, clock.raw()));
            free.extend(done.slot);
            ops += 1;
        }
    }
    let took = started.elapsed();
    (Point { ops, took, times }, in_flight)
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|a| a == "--quick" || a == "--test");
    let words: Vec<_> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|w| name.contains(w.as_str()));
    let time = Duration::from_millis(if quick { 100 } else { 1000 });
    let keys_101 = keys(101);
    println!("series,x,ops_per_s,p50_us,p99_us,note");

    for series in ["clients as tasks", "clients as threads"] {
        if !wanted(series) {
            continue;
        }
        for clients in [1, 2, 4, 16, 64, 512] {
            let engine = engine(one_worker());
            let client = engine.client();
            let point = match series {
                "clients as tasks" => clients_as_tasks(&client, clients, keys_101, time),
                _ => clients_as_threads(&client, clients, keys_101, time),
            };
            print(series, clients, &point, "times are of calls of 8 keys");
        }
    }
    if wanted("pairs") {
        for n in [1, 2, 4, 16, 64, 512] {
            let engine = engine(one_worker());
            let before = heap::bytes();
            let mut all: Vec<_> = (0..n)
                .map(|_| engine.pair(64).expect("up to 512"))
                .collect();
            let each = (heap::bytes() - before) / n;
            let point = pairs(&mut all, keys_101, time);
            print(
                "pairs of depth 64",
                n,
                &point,
                &format!("{each} bytes a pair"),
            );
        }
    }
    if wanted("depth") {
        for depth in [1, 2, 4, 16, 64, 256, 1024, 4096] {
            let engine = engine(one_worker());
            let pair = engine.pair(depth).expect("a first pair");
            print("depth", depth, &pairs(&mut [pair], keys_101, time), "");
        }
    }
    if wanted("key length") {
        for len in [16, 32, 64, 101, 128, 255, 256, 512, 1024] {
            let engine = engine(one_worker().long_keys(256));
            let pair = engine.pair(256).expect("a first pair");
            print(
                "key length",
                len,
                &pairs(&mut [pair], keys(len), time),
                "256 in flight",
            );
        }
    }
    for series in ["value size, null", "value size, memory"] {
        if !wanted(series) {
            continue;
        }
        for size in [
            1,
            64,
            1 << 10,
            4 << 10,
            64 << 10,
            1 << 20,
            4 << 20,
            16 << 20,
            64 << 20,
        ] {
            let store: Arc<dyn Store> = match series {
                "value size, null" => Arc::new(NullStore),
                _ => Arc::new(MemoryStore::new(MemoryOptions::default()).expect("defaults")),
            };
            let (point, in_flight) = values(store, size, time);
            let rate = point.ops as f64 * size as f64 / point.took.as_secs_f64() / 1e9;
            print(
                series,
                size,
                &point,
                &format!("{in_flight} in flight; {rate:.2} GB/s"),
            );
        }
    }
}
