//! A soak: errors, cancels, deadlines, and producers that come and go, for as long as `MOONRING_SOAK_SECONDS` says. Whatever was
//! accepted is completed, the memory stays as it is, and nothing is left at the end.
//!
//! One test in a file of its own: the memory that it looks at is the process's.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Rng, assert_at_rest, eventually, watchdog_for};
use moonring::config::CoreChoice;
use moonring::store::sim::When;
use moonring::store::{MemoryOptions, MemoryStore, SimOptions, SimStore};
use moonring::{
    Class, Client, ClientError, Engine, EngineConfig, IfRunning, OpError, OpKind, Pair, Region,
    RegionOptions, Slot, SlotClass, SlotPool, Submission, Ticket, block_on,
};

const SLOTS: usize = 512;
const SLOT: usize = 4096;
const KEYS: usize = 300;
const PRODUCERS: u64 = 4;

/// The short form's; `tools/check-long` has ten minutes.
const SHORT: Duration = Duration::from_secs(4);

struct Field {
    engine: Engine,
    pool: SlotPool,
    stop: AtomicBool,
    /// What producers were told.
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    accepted: AtomicU64,
    /// Ends that a producer saw; the others' pairs and futures were dropped before.
    seen: AtomicU64,
    unseen: AtomicU64,
    /// By an error that was injected.
    failed: AtomicU64,
    /// Circuits were open.
    unavailable: AtomicU64,
    cancelled: AtomicU64,
    timed_out: AtomicU64,
    pairs: AtomicU64,
    clients: AtomicU64,
}

impl Counts {
    fn add(count: &AtomicU64, n: u64) {
        count.fetch_add(n, Ordering::Relaxed);
    }

    fn see(&self, error: Option<OpError>) {
        Self::add(&self.seen, 1);
        match error {
            None | Some(OpError::NotFound | OpError::Leased | OpError::NoSpace) => {}
            Some(OpError::ShortBuffer { .. }) => {}
            Some(OpError::Cancelled { .. }) => Self::add(&self.cancelled, 1),
            Some(OpError::TimedOut { .. }) => Self::add(&self.timed_out, 1),
            Some(OpError::Unavailable) => Self::add(&self.unavailable, 1),
            Some(_) => Self::add(&self.failed, 1),
        }
    }
}

fn key(rng: &mut Rng) -> String {
    // A few long ones.
    match rng.below(50) {
        0 => format!("soak@{:0300}", rng.below(KEYS)),
        _ => format!("soak@{}", rng.below(KEYS)),
    }
}

/// Most ops may take as long as they do, the others up to 2 ms.
fn timeout(rng: &mut Rng) -> Option<Duration> {
    (rng.below(3) == 0).then(|| Duration::from_micros(rng.below(2_000) as u64))
}

impl Field {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn lend(&self, rng: &mut Rng) -> Option<Slot> {
        let mut slot = self.pool.lend(1 + rng.below(SLOT))?;
        let byte = rng.below(256) as u8;
        slot[0] = byte;
        if let Some(last) = slot.last_mut() {
            *last = byte;
        }
        Some(slot)
    }
}

fn submission<'k>(field: &Field, rng: &mut Rng, key: &'k str) -> Option<Submission<'k>> {
    let submission = match rng.below(10) {
        0..4 => Submission::lookup(key),
        4..7 => Submission::retrieve(key, field.lend(rng)?),
        7..9 => Submission::store(key, field.lend(rng)?),
        _ => Submission::delete(key).force(),
    };
    let class = Class::ALL[rng.below(2)];
    let submission = submission.class(class);
    Some(match timeout(rng) {
        None => submission,
        timeout => submission.timeout(timeout),
    })
}

/// A pair's life: some hundred ops; a part of them is cancelled; one life in four ends with ops in flight.
fn run_pair(field: &Field, rng: &mut Rng) {
    let Ok(mut pair) = field.engine.pair(1 + rng.below(64)) else {
        return;
    };
    Counts::add(&field.counts.pairs, 1);
    let mut open = HashMap::new();
    for _ in 0..200 + rng.below(800) {
        if field.is_over() {
            break;
        }
        let mut batch = pair.batch();
        for _ in 0..1 + rng.below(8) {
            let key = key(rng);
            let Some(submission) = submission(field, rng, &key) else {
                continue;
            };
            // Refused: no credit, most often. Its slot goes back.
            if let Ok(ticket) = batch.push(submission) {
                Counts::add(&field.counts.accepted, 1);
                open.insert(ticket, false);
            }
        }
        drop(batch);
        if rng.below(4) == 0 {
            cancel_some(&mut pair, rng, &open);
        }
        if pair.credits() == 0 || rng.below(8) == 0 {
            let _ = pair.wait(1, Some(Duration::from_millis(5)));
        }
        reap(field, &mut pair, &mut open);
    }
    if rng.below(4) == 0 {
        let unseen = open.values().filter(|ended| !**ended).count();
        Counts::add(&field.counts.unseen, unseen as u64);
        return;
    }
    while pair.in_flight() > 0 {
        let _ = pair.wait(1, Some(Duration::from_millis(50)));
        reap(field, &mut pair, &mut open);
    }
    assert!(open.is_empty(), "ops of a pair without an end: {open:?}");
}

fn cancel_some(pair: &mut Pair, rng: &mut Rng, open: &HashMap<Ticket, bool>) {
    let running = [IfRunning::Wait, IfRunning::Abandon][rng.below(2)];
    for ticket in open.keys() {
        if rng.below(15) == 0 {
            pair.cancel(*ticket, running);
        }
    }
}

/// `open`: whether an op's end was seen, and its release was not.
fn reap(field: &Field, pair: &mut Pair, open: &mut HashMap<Ticket, bool>) {
    while let Some(done) = pair.poll() {
        let before = match done.more {
            true => open.insert(done.ticket, true),
            false => open.remove(&done.ticket),
        };
        // The first notice, or the release of an op whose end said that it comes.
        assert_eq!(before, Some(done.release), "{done:?}");
        if !done.release {
            field.counts.see(done.result.err());
        }
    }
}

/// A client's life: ops one by one, in batches, and futures that are dropped.
fn run_client(field: &Field, rng: &mut Rng) {
    let mut client = field.engine.client();
    Counts::add(&field.counts.clients, 1);
    if rng.below(2) == 0 {
        client = client.with_timeout(timeout(rng));
    }
    if rng.below(3) == 0 {
        client = client.background();
    }
    for _ in 0..20 + rng.below(80) {
        if field.is_over() {
            return;
        }
        match rng.below(3) {
            0 => one(field, rng, &client),
            1 => many(field, rng, &client),
            _ => dropped(field, rng, &client.with_cancel_on_drop()),
        }
    }
}

fn see<T>(field: &Field, result: &Result<T, ClientError>) {
    match result {
        Err(ClientError::Refused(_)) => {}
        other => {
            Counts::add(&field.counts.accepted, 1);
            let error = other.as_ref().err().map(|error| match error {
                ClientError::Failed(error) => *error,
                other => panic!("{other}"),
            });
            field.counts.see(error);
        }
    }
}

fn one(field: &Field, rng: &mut Rng, client: &Client) {
    let key = key(rng);
    match (rng.below(3), field.lend(rng)) {
        (0, Some(slot)) => see(field, &block_on(client.store(&key, slot)).result),
        (1, Some(slot)) => see(field, &block_on(client.retrieve(&key, slot)).result),
        _ => see(field, &block_on(client.lookup(&key))),
    }
}

fn many(field: &Field, rng: &mut Rng, client: &Client) {
    let keys: Vec<String> = (0..1 + rng.below(40)).map(|_| key(rng)).collect();
    let mut found = Vec::new();
    block_on(client.lookup_many(&keys, &mut found));
    assert_eq!(found.len(), keys.len());
    found.iter().for_each(|result| see(field, result));
}

/// Futures that are polled once, if ever, and dropped.
fn dropped(field: &Field, rng: &mut Rng, client: &Client) {
    let key = key(rng);
    if let Some(slot) = field.lend(rng) {
        let mut future = Box::pin(client.store(&key, slot));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        if rng.below(2) == 0
            && let std::task::Poll::Ready(returned) = future.as_mut().poll(&mut cx)
        {
            see(field, &returned.result);
        }
    }
}

/// Memory that is resident, in bytes.
fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: f64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096.0
}

/// Least squares: how much is added in a second.
fn slope(samples: &[(f64, f64)]) -> f64 {
    let n = samples.len() as f64;
    let mean = |f: fn(&(f64, f64)) -> f64| samples.iter().map(f).sum::<f64>() / n;
    let (x, y) = (mean(|s| s.0), mean(|s| s.1));
    let (mut up, mut down) = (0.0, 0.0);
    for sample in samples {
        up += (sample.0 - x) * (sample.1 - y);
        down += (sample.0 - x) * (sample.0 - x);
    }
    up / down
}

fn start() -> Field {
    let memory = MemoryOptions {
        capacity: 512 << 10,
        lease: Duration::from_micros(100),
        ..MemoryOptions::default()
    };
    let sim = SimOptions {
        seed: 5,
        delay: Duration::from_micros(20),
        key_errors: When::rate(0.05),
        // Circuits open at five of these in a row, and close again.
        call_errors: When::rate(0.01),
        panics: When::rate(0.0001),
        ..SimOptions::default()
    };
    let memory = Arc::new(MemoryStore::new(memory).unwrap());
    let store = Arc::new(SimStore::new(memory, sim).unwrap());
    let region = Region::allocate(RegionOptions::new(SLOT * SLOTS)).unwrap();
    let class = SlotClass {
        size: SLOT,
        count: SLOTS,
    };
    let pool = region.slot_pool(&[class]).unwrap();
    let config = EngineConfig::default()
        .cores(CoreChoice::None)
        .num_workers(3)
        .dedicated(OpKind::Lookup, 1)
        .max_batch(32)
        .ring_depth(256)
        .max_pairs(16)
        .fail_fast_ms(10);
    let engine = Engine::builder(store).config(config).region(region);
    Field {
        engine: engine.start().unwrap(),
        pool,
        stop: AtomicBool::new(false),
        counts: Counts::default(),
    }
}

/// A panic of the sim is told by the default hook, thousands of times: those are meant.
fn silence_the_store() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let name = std::thread::current().name().unwrap_or("").to_owned();
        if !name.starts_with("mr-") {
            told(info);
        }
    }));
}

#[test]
fn what_is_accepted_is_completed_and_the_memory_stays_as_it_is() {
    let seconds = std::env::var("MOONRING_SOAK_SECONDS").ok();
    let length = seconds.map_or(SHORT, |s| Duration::from_secs(s.parse().expect("seconds")));
    let _dog = watchdog_for(length + Duration::from_secs(120));
    silence_the_store();
    let field = start();
    let began = Instant::now();
    let mut samples = Vec::new();
    std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let field = &field;
            scope.spawn(move || {
                let mut rng = Rng::new(producer);
                while !field.is_over() {
                    match rng.below(2) {
                        0 => run_pair(field, &mut rng),
                        _ => run_client(field, &mut rng),
                    }
                }
            });
        }
        while began.elapsed() < length {
            std::thread::sleep(Duration::from_millis(100));
            samples.push((began.elapsed().as_secs_f64(), resident()));
        }
        field.stop.store(true, Ordering::Relaxed);
    });
    // Ops of pairs and futures that were dropped go on.
    eventually(|| field.engine.stats().engine.credits_in_use == 0);
    eventually(|| field.pool.available() == field.pool.total());
    assert_at_rest(&field.engine);
    let gauges = field.engine.stats().engine;
    assert_eq!(
        (gauges.quarantined, gauges.pairs, gauges.clients),
        (0, 0, 0)
    );
    assert!(field.engine.quarantined().is_empty());

    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let counts = &field.counts;
    let (accepted, seen) = (count(&counts.accepted), count(&counts.seen));
    // Dropped futures' ops are counted by the engine alone.
    assert!(gauges.accepted >= accepted);
    assert_eq!(accepted, seen + count(&counts.unseen));
    // What is warm after a quarter of the time stays as it is.
    let warm = &samples[samples.len() / 4..];
    let (first, last) = (warm[0], warm[warm.len() - 1]);
    let slope = slope(warm);
    println!(
        "soak of {:.0} s: {} ops accepted and completed ({seen} ends seen: {} failed, {} unavailable, {} cancelled, {} timed out), {} pairs and {} clients came and went; \
         resident {:.1} MiB, slope {:+.2} KiB/s",
        began.elapsed().as_secs_f64(),
        gauges.accepted,
        count(&counts.failed),
        count(&counts.unavailable),
        count(&counts.cancelled),
        count(&counts.timed_out),
        count(&counts.pairs),
        count(&counts.clients),
        last.1 / 1048576.0,
        slope / 1024.0,
    );
    // Over the whole time not more than what heaps of a few threads waver by.
    let grown = slope * (last.0 - first.0);
    assert!(
        grown < 4e6,
        "the memory grows: {grown:.0} bytes in {:.0} s",
        last.0 - first.0
    );
    let share = |n: u64| n as f64 / seen as f64;
    let failed = share(count(&counts.failed));
    let cancelled = share(count(&counts.cancelled));
    assert!((0.01..0.2).contains(&failed), "{failed} failed");
    // More of them come in time while ops wait longer, as on a machine whose cores others use.
    assert!((0.01..0.5).contains(&cancelled), "{cancelled} cancelled");
    assert!(count(&counts.timed_out) > 0 && count(&counts.pairs) > PRODUCERS);
    let report = field
        .engine
        .shutdown(moonring::Shutdown::Drain, Duration::from_secs(5))
        .unwrap();
    assert_eq!((report.in_flight, report.completed), (0, gauges.accepted));
}
