//! Promise 1 at random: producers that come and go, ops of all kinds, a store that errs and panics, a shutdown at any moment.
//! At the end everything adds up. `MOONRING_SEED` runs one seed, which is said by a failure.

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use common::*;
use moonring::config::CoreChoice;
use moonring::store::sim::When;
use moonring::store::{MemoryOptions, MemoryStore, SimOptions, SimStore};
use moonring::{
    Client, ClientError, Completion, Done, Engine, EngineConfig, OpError, OpKind, Pair, Shutdown,
    Slot, SlotClass, SlotPool, StoreOutcome, Submission, SubmitError, Unavailable, block_on,
};

const SLOT: usize = 512;
const SLOTS: usize = 96;

/// Length and bytes of an object follow from its key: whatever is stored and retrieved in whatever order, they must match.
fn len_of(key: &str) -> usize {
    1 + key
        .bytes()
        .fold(7usize, |h, b| h.wrapping_mul(31) ^ usize::from(b))
        % SLOT
}

fn byte_of(key: &str, at: usize) -> u8 {
    (key.len() ^ at.wrapping_mul(7) ^ usize::from(key.as_bytes()[at % key.len()])) as u8
}

/// What all producers share.
struct Field {
    engine: Engine,
    pool: SlotPool,
    stop: AtomicBool,
    /// Ops that are known to have been accepted; what became of a future that was dropped nobody knows.
    accepted: AtomicU64,
    unknown: AtomicU64,
}

impl Field {
    fn key(rng: &mut Rng) -> String {
        let n = rng.below(40);
        match rng.below(20) {
            0 => format!("{n:0>280}"),
            _ => format!("key {n}"),
        }
    }

    /// A slot with the object's bytes, to store; poison, to retrieve into.
    fn slot(&self, rng: &mut Rng, key: &str, op: OpKind) -> Option<Slot> {
        let mut slot = self.pool.lend(len_of(key))?;
        match op {
            OpKind::Store => slot
                .iter_mut()
                .enumerate()
                .for_each(|(at, b)| *b = byte_of(key, at)),
            _ => {
                let len = [SLOT, len_of(key), 1 + rng.below(SLOT)][rng.below(3)];
                slot.set_len(len).unwrap();
                slot.fill(0x55);
            }
        }
        Some(slot)
    }

    fn submission<'k>(&self, rng: &mut Rng, key: &'k str) -> Option<Submission<'k>> {
        Some(match rng.below(4) {
            0 => Submission::lookup(key),
            1 => Submission::retrieve(key, self.slot(rng, key, OpKind::Retrieve)?),
            2 => Submission::store(key, self.slot(rng, key, OpKind::Store)?),
            _ if rng.below(2) == 0 => Submission::delete(key).force(),
            _ => Submission::delete(key),
        })
    }

    fn add(&self, accepted: u64) {
        self.accepted.fetch_add(accepted, Ordering::Relaxed);
    }

    fn check_read(key: &str, slot: &Slot, len: u64) {
        assert_eq!(len, len_of(key) as u64, "{key}");
        for (at, byte) in slot.iter().take(len as usize).enumerate() {
            assert_eq!(*byte, byte_of(key, at), "{key} at {at}");
        }
        assert!(
            slot[len as usize..].iter().all(|byte| *byte == 0x55),
            "{key}: its tail"
        );
    }
}

/// What can come of an op here. Anything else is a fault of the engine.
fn check_error(error: OpError) {
    assert!(
        matches!(
            error,
            OpError::NotFound
                | OpError::Leased
                | OpError::NoSpace
                | OpError::ShortBuffer { .. }
                | OpError::TransferFailed
                | OpError::RpcFailed
                | OpError::WrongResultCount
                | OpError::StorePanicked
                | OpError::Unavailable
                | OpError::ShutDown
        ),
        "{error:?}"
    );
}

/// One pair's life.
struct PairRun<'a> {
    field: &'a Field,
    pair: Pair,
    keys: Vec<String>,
    seen: HashSet<u64>,
    /// Ended with MORE, and not released.
    held: HashSet<u64>,
    accepted: u64,
}

impl PairRun<'_> {
    fn see(&mut self, done: Completion) {
        if done.release {
            assert!(self.held.remove(&done.user_data) && done.slot.is_none());
            return;
        }
        if done.more {
            self.held.insert(done.user_data);
        }
        assert!(
            self.seen.insert(done.user_data),
            "{} came twice",
            done.user_data
        );
        let key = &self.keys[done.user_data as usize];
        let has_bytes = matches!(done.op, OpKind::Retrieve | OpKind::Store);
        // Only a shutdown ends an op before its call.
        if done.more {
            assert_eq!(done.result, Err(OpError::ShutDown));
        }
        assert_eq!(done.slot.is_some(), has_bytes && !done.more);
        match (done.op, done.result) {
            (OpKind::Lookup, Ok(Done::Present | Done::Absent)) => {}
            (OpKind::Retrieve, Ok(Done::Retrieved(len))) => {
                Field::check_read(key, &done.slot.unwrap(), len);
            }
            (OpKind::Store, Ok(Done::Store(StoreOutcome::Stored | StoreOutcome::AlreadyThere))) => {
            }
            (OpKind::Delete, Ok(Done::Deleted)) => {}
            (_, Err(error)) => check_error(error),
            other => panic!("{other:?}"),
        }
    }

    fn reap(&mut self) {
        while let Some(done) = self.pair.poll() {
            self.see(done);
        }
    }

    /// Submits a few ops; false: the engine is shut down.
    fn push(&mut self, rng: &mut Rng, n: usize) -> bool {
        let mut batch = self.pair.batch();
        let mut open = true;
        for _ in 0..n {
            let key = Field::key(rng);
            let Some(op) = self.field.submission(rng, &key) else {
                break;
            };
            let id = self.keys.len() as u64;
            match batch.push(op.user_data(id)) {
                Ok(_) => {
                    self.accepted += 1;
                    self.keys.push(key);
                }
                Err(refused) => {
                    assert_eq!(refused.op.key(), key.as_bytes());
                    match refused.reason {
                        SubmitError::NoCredit { .. }
                        | SubmitError::NoLongKeyPlace { .. }
                        | SubmitError::Unavailable {
                            why: Unavailable::Failing,
                            ..
                        } => {}
                        SubmitError::ShutDown => open = false,
                        other => panic!("{other:?}"),
                    }
                    break;
                }
            }
        }
        match rng.below(8) {
            0 => std::mem::forget(batch),
            _ => batch.publish(),
        }
        open
    }
}

fn run_pair(field: &Field, rng: &mut Rng) {
    let depth = 1 + rng.below(24);
    let Ok(pair) = field.engine.pair(depth) else {
        return;
    };
    let event = (rng.below(3) == 0).then(|| pair.event_fd().unwrap());
    let mut run = PairRun {
        field,
        pair,
        keys: Vec::new(),
        seen: HashSet::new(),
        held: HashSet::new(),
        accepted: 0,
    };
    for _ in 0..rng.below(12) {
        let n = 1 + rng.below(depth + 2);
        if !run.push(rng, n) {
            break;
        }
        match rng.below(4) {
            0 => run.reap(),
            1 => {
                let timeout = Duration::from_micros(rng.below(300) as u64);
                let _ = run.pair.wait(1 + rng.below(depth), Some(timeout));
                run.reap();
            }
            2 if event.is_some() => {
                run.reap();
                run.pair.arm();
            }
            _ => {}
        }
    }
    // What was pushed and forgotten is published by the next batch, or by the pair's end.
    let all = rng.below(2) == 0;
    if all {
        drop(run.pair.batch());
        run.push(rng, 1);
        while run.pair.in_flight() > 0 && !field.stop.load(Ordering::Relaxed) {
            let _ = run.pair.wait(1, Some(Duration::from_millis(1)));
            run.reap();
        }
    }
    field.add(run.accepted);
}

/// Then a call may have its slot.
fn is_shut_down<T>(result: &Result<T, ClientError>) -> bool {
    matches!(result, Err(ClientError::Failed(OpError::ShutDown)))
}

/// How a client's op ended; whether it was accepted is known then.
fn see_client<T>(field: &Field, result: &Result<T, ClientError>) -> bool {
    match result {
        Ok(_) => field.add(1),
        Err(ClientError::Failed(error)) => {
            check_error(*error);
            field.add(1);
        }
        Err(ClientError::Refused(
            SubmitError::NoLongKeyPlace { .. }
            | SubmitError::Unavailable {
                why: Unavailable::Failing,
                ..
            },
        )) => {}
        Err(ClientError::Refused(SubmitError::ShutDown)) => return false,
        other => panic!("{:?}", other.as_ref().err()),
    }
    true
}

fn see_all<'r, T: 'r>(
    field: &Field,
    results: impl Iterator<Item = &'r Result<T, ClientError>>,
) -> bool {
    // All of them, also behind one that was refused.
    results.filter(|result| !see_client(field, result)).count() == 0
}

/// Polls now and then, drops now and then; `None`: it was dropped.
fn drive<F: Future>(rng: &mut Rng, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    for _ in 0..rng.below(3) {
        if let std::task::Poll::Ready(output) = poll_with(&mut future, Waker::noop()) {
            return Some(output);
        }
        std::thread::yield_now();
    }
    (rng.below(4) > 0).then(|| block_on(future))
}

fn run_client(field: &Field, rng: &mut Rng, client: &Client) {
    for _ in 0..rng.below(20) {
        let key = Field::key(rng);
        let n = 1 + rng.below(12);
        let keys: Vec<_> = (0..n).map(|_| Field::key(rng)).collect();
        let unknown = |ops: usize| field.unknown.fetch_add(ops as u64, Ordering::Relaxed);
        let open = match rng.below(8) {
            0 => drive(rng, client.lookup(&key))
                .map_or_else(|| unknown(1) < u64::MAX, |r| see_client(field, &r)),
            1 => {
                let Some(slot) = field.slot(rng, &key, OpKind::Retrieve) else {
                    continue;
                };
                match drive(rng, client.retrieve(&key, slot)) {
                    None => unknown(1) < u64::MAX,
                    Some(got) => {
                        if let Ok(len) = got.result {
                            Field::check_read(&key, got.slot.as_ref().unwrap(), len);
                        }
                        assert!(got.slot.is_some() || is_shut_down(&got.result));
                        see_client(field, &got.result)
                    }
                }
            }
            2 => {
                let Some(slot) = field.slot(rng, &key, OpKind::Store) else {
                    continue;
                };
                match drive(rng, client.store(&key, slot)) {
                    None => unknown(1) < u64::MAX,
                    Some(put) => {
                        assert!(put.slot.is_some() || is_shut_down(&put.result));
                        see_client(field, &put.result)
                    }
                }
            }
            3 => drive(rng, client.delete_forced(&key))
                .map_or_else(|| unknown(1) < u64::MAX, |r| see_client(field, &r)),
            4 => {
                let mut out = Vec::new();
                match drive(rng, client.lookup_many(&keys, &mut out)) {
                    None => unknown(n) < u64::MAX,
                    Some(()) => {
                        assert_eq!(out.len(), n);
                        see_all(field, out.iter())
                    }
                }
            }
            5 | 6 => {
                let op = [OpKind::Retrieve, OpKind::Store][rng.below(2)];
                let mut items = Vec::new();
                for key in &keys {
                    items.extend(field.slot(rng, key, op).map(|slot| (key, slot)));
                }
                let wanted: Vec<_> = items.iter().map(|(key, _)| key.to_owned()).collect();
                if op == OpKind::Store {
                    let mut out = Vec::new();
                    match drive(rng, client.store_many(items, &mut out)) {
                        None => unknown(n) < u64::MAX,
                        Some(()) => {
                            assert_eq!(out.len(), wanted.len());
                            see_all(field, out.iter().map(|r| &r.result))
                        }
                    }
                } else {
                    let mut out = Vec::new();
                    match drive(rng, client.retrieve_many(items, &mut out)) {
                        None => unknown(n) < u64::MAX,
                        Some(()) => {
                            assert_eq!(out.len(), wanted.len());
                            for (got, key) in out.iter().zip(&wanted) {
                                if let Ok(len) = got.result {
                                    Field::check_read(key, got.slot.as_ref().unwrap(), len);
                                }
                            }
                            see_all(field, out.iter().map(|r| &r.result))
                        }
                    }
                }
            }
            _ => {
                let prefix = drive(rng, client.lookup_prefix(&keys));
                unknown(n);
                prefix.is_none_or(|p| p.unknown != Some(SubmitError::ShutDown.into()))
            }
        };
        if !open {
            return;
        }
    }
}

fn start(rng: &mut Rng, seed: u64) -> (Arc<Spy>, Field) {
    let options = MemoryOptions {
        capacity: 4 << 10,
        lease: Duration::from_micros(rng.below(2) as u64 * 200),
        needs_registration: rng.below(2) == 0,
        max_registration: Some(16 << 10),
        ..MemoryOptions::default()
    };
    let mut rate = |most: f64| [0.0, most / 4.0, most][rng.below(3)];
    let sim = SimOptions {
        seed,
        key_errors: When::rate(rate(0.2)),
        call_errors: When::rate(rate(0.1)),
        wrong_counts: When::rate(rate(0.05)),
        panics: When::rate(rate(0.02)),
        delay: Duration::from_micros(rate(40.0) as u64),
        ..SimOptions::default()
    };
    let memory = Arc::new(MemoryStore::new(options).unwrap());
    let spy = Spy::new(Arc::new(SimStore::new(memory, sim).unwrap()), |_| {});
    let region = moonring::Region::allocate(moonring::RegionOptions::new(SLOT * SLOTS)).unwrap();
    let pool = region
        .slot_pool(&[SlotClass {
            size: SLOT,
            count: SLOTS,
        }])
        .unwrap();
    let mut config = EngineConfig::default()
        .cores(CoreChoice::None)
        .num_workers(1 + rng.below(4))
        .max_batch(1 + rng.below(16))
        .max_batch_bytes(1 + rng.below(8 << 10))
        .share_bytes(1 + rng.below(4 << 10))
        .ring_depth(1 + rng.below(32))
        .max_pairs(1 + rng.below(8))
        .long_keys(rng.below(3))
        .fail_fast_after([0, 2, 5][rng.below(3)])
        .fail_fast_ms(1 + rng.below(4) as u32)
        .spin_us(rng.below(2) as u32 * 20);
    for op in OpKind::ALL {
        if rng.below(4) == 0 {
            config = config.dedicated(op, 1 + rng.below(2));
        }
    }
    let engine = Engine::builder(spy.clone()).config(config).region(region);
    let field = Field {
        engine: engine.start().unwrap(),
        pool,
        stop: AtomicBool::new(false),
        accepted: AtomicU64::new(0),
        unknown: AtomicU64::new(0),
    };
    (spy, field)
}

/// Returns how many ops were accepted.
fn stress(seed: u64, length: Duration) -> u64 {
    let _dog = watchdog_of(
        format!("stress with MOONRING_SEED={seed}"),
        Duration::from_secs(60),
    );
    println!("MOONRING_SEED={seed}");
    let mut rng = Rng::new(seed);
    let (spy, field) = start(&mut rng, seed);
    let until = length.mul_f64(0.2 + 0.8 * rng.below(100) as f64 / 100.0);
    std::thread::scope(|scope| {
        for producer in 0..4u64 {
            let field = &field;
            scope.spawn(move || {
                let mut rng = Rng::new(seed.wrapping_mul(1_000) + producer);
                let mut client = field.engine.client();
                while !field.stop.load(Ordering::Relaxed) {
                    match rng.below(3) {
                        0 => run_pair(field, &mut rng),
                        1 => run_client(field, &mut rng, &client),
                        _ => {
                            client = field.engine.client();
                            run_pair(field, &mut rng);
                        }
                    }
                }
            });
        }
        std::thread::sleep(until);
        let mode = [Shutdown::Drain, Shutdown::Cancel][rng.below(2)];
        let limit = [
            Duration::ZERO,
            Duration::from_micros(200),
            Duration::from_secs(30),
        ][rng.below(3)];
        let engine = &field.engine;
        let other =
            scope.spawn(move || engine.shutdown(Shutdown::Cancel, Duration::from_millis(1)));
        let report = engine.shutdown(mode, limit).unwrap();
        assert_eq!(other.join().unwrap().unwrap(), report);
        // Producers go on for a while after the end: everything is refused then.
        std::thread::sleep(Duration::from_millis(2));
        field.stop.store(true, Ordering::Relaxed);
    });

    let Field {
        engine,
        pool,
        accepted,
        unknown,
        ..
    } = field;
    let at_rest = |counts: moonring::stats::EngineCounts| {
        (
            counts.in_flight,
            counts.credits_in_use,
            counts.pairs,
            counts.clients,
        )
    };
    eventually(|| at_rest(engine.stats().engine) == (0, 0, 0, 0));
    let stats = engine.stats();
    let counts = stats.engine;
    assert_eq!(counts.accepted, counts.completed);
    assert_eq!(
        stats.lanes.iter().map(|lane| lane.completed()).sum::<u64>(),
        counts.completed
    );
    let (known, unknown) = (accepted.into_inner(), unknown.into_inner());
    assert!(
        (known..=known + unknown).contains(&counts.accepted),
        "{known} {unknown} {counts:?}"
    );
    assert_eq!(pool.available(), SLOTS);
    eventually(|| spy.seen().last() == Some(&Seen::Close));
    drop(engine);
    let seen = spy.seen();
    let registered = seen
        .iter()
        .filter(|s| matches!(s, Seen::Register(..)))
        .count();
    let end = &seen[seen.len() - registered - 1..];
    assert!(
        end[..registered]
            .iter()
            .all(|s| matches!(s, Seen::Unregister(..))),
        "{end:?}"
    );
    assert_eq!(registered, 3);
    println!(
        "accepted {}, refused {}, store calls {}",
        counts.accepted,
        counts.refused,
        spy.calls()
    );
    counts.accepted
}

fn seeds(n: u64, length: Duration) {
    if let Ok(seed) = std::env::var("MOONRING_SEED") {
        stress(seed.parse().unwrap(), length);
        return;
    }
    // Others at each run; the failing one is told.
    let first = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let seeds = (first * 1_000..).take(n as usize);
    let accepted: u64 = seeds.map(|seed| stress(seed, length)).sum();
    assert!(accepted > 20 * n, "{accepted}: next to nothing was done");
}

#[test]
fn everything_adds_up_whatever_20_seeds_do() {
    seeds(20, Duration::from_millis(100));
}

#[test]
#[ignore = "takes long without optimisation"]
fn release_everything_adds_up_whatever_200_seeds_do() {
    seeds(200, Duration::from_millis(150));
}
