//! Failing fast: a kind of op whose calls keep failing or hang is answered at once, by itself works again when the store does,
//! and the engine says how it is.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::*;
use moonring::config::CoreChoice;
use moonring::store::{
    CallResult, Capabilities, DeleteBatch, LookupBatch, NullStore, RetrieveBatch, SimOptions,
    SimStore, Store, StoreBatch,
};
use moonring::{
    ClientError, Done, Engine, EngineConfig, HealthState, IfRunning, LaneHealth, OpError, OpKind,
    Pair, Region, RegionOptions, SlotPool, Submission, SubmitError, Unavailable, block_on,
};

/// Far above what anything here takes.
const LONG: Duration = Duration::from_secs(50);
const IN_PROGRESS: OpError = OpError::TimedOut { started: true };
const NEVER_STARTED: OpError = OpError::TimedOut { started: false };
const UNKNOWN: Result<bool, ClientError> = Err(ClientError::Failed(OpError::Unavailable));

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn config(workers: usize) -> EngineConfig {
    EngineConfig::default()
        .num_workers(workers)
        .cores(CoreChoice::None)
}

fn alone(op: OpKind, workers: usize) -> EngineConfig {
    config(1).dedicated(op, workers)
}

/// A store whose calls fail when they are told to, and that writes down how many keys each had. Behind it a sim's gate.
struct Moody {
    inner: Arc<SimStore>,
    error: Mutex<[Option<OpError>; 4]>,
    calls: Mutex<Vec<(OpKind, usize)>>,
}

impl Moody {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: sim(SimOptions::default()),
            error: Mutex::default(),
            calls: Mutex::default(),
        })
    }

    fn gate(&self) -> &moonring::store::sim::SimGate {
        self.inner.gate()
    }

    fn fail(&self, kinds: &[OpKind], error: OpError) {
        let mut table = self.error.lock().unwrap();
        kinds.iter().for_each(|op| table[op.index()] = Some(error));
    }

    fn heal(&self) {
        *self.error.lock().unwrap() = [None; 4];
    }

    /// Keys of each call of a kind since the last look.
    fn take(&self, op: OpKind) -> Vec<usize> {
        let mut calls = self.calls.lock().unwrap();
        let of = calls.iter().filter(|call| call.0 == op).map(|call| call.1);
        let of = of.collect();
        calls.retain(|call| call.0 != op);
        of
    }

    fn call(&self, op: OpKind, keys: usize, f: impl FnOnce() -> CallResult) -> CallResult {
        self.calls.lock().unwrap().push((op, keys));
        let error = self.error.lock().unwrap()[op.index()];
        match error {
            // Not without the gate: a call may hang, and then fail.
            Some(error) => f().and(Err(error)),
            None => f(),
        }
    }
}

impl Store for Moody {
    fn name(&self) -> &str {
        "moody"
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        self.call(OpKind::Lookup, batch.len(), || {
            self.inner.batch_exists(batch)
        })
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        let keys = batch.len();
        self.call(OpKind::Retrieve, keys, || self.inner.batch_get_into(batch))
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        let keys = batch.len();
        self.call(OpKind::Store, keys, || self.inner.batch_put_from(batch))
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        self.call(OpKind::Delete, batch.len(), || {
            self.inner.batch_remove(batch)
        })
    }
}

/// An engine on such a store, with 64 slots of 64 bytes.
fn start(config: EngineConfig) -> (Engine, Arc<Moody>, SlotPool) {
    let store = Moody::new();
    let (region, pool) = slots(64, 64);
    let engine = Engine::builder(store.clone()).config(config).region(region);
    (engine.start().unwrap(), store, pool)
}

fn lane(engine: &Engine, op: OpKind) -> LaneHealth {
    engine.health().lanes[op.index()]
}

fn is_open(engine: &Engine, op: OpKind) -> bool {
    lane(engine, op).open.is_some()
}

fn submission<'k>(op: OpKind, key: &'k str, pool: &SlotPool) -> Submission<'k> {
    let slot = || pool.lend(64).unwrap();
    match op {
        OpKind::Lookup => Submission::lookup(key),
        OpKind::Retrieve => Submission::retrieve(key, slot()),
        OpKind::Store => Submission::store(key, slot()),
        OpKind::Delete => Submission::delete(key),
    }
}

/// One op, to its end; or why it was refused.
fn one(pair: &mut Pair, op: Submission<'_>) -> Result<Result<Done, OpError>, SubmitError> {
    match pair.submit(op) {
        Ok(_) => {
            pair.wait(1, Some(LONG)).unwrap();
            Ok(pair.poll().unwrap().result)
        }
        Err(refused) => Err(refused.reason),
    }
}

fn refused(op: OpKind, why: Unavailable) -> Result<Result<Done, OpError>, SubmitError> {
    Err(SubmitError::Unavailable { op, why })
}

/// Opens the circuits of these kinds by calls that fail, and lets the store be well again.
fn open(store: &Moody, engine: &Engine, pair: &mut Pair, pool: &SlotPool, kinds: &[OpKind]) {
    store.fail(kinds, OpError::RpcFailed);
    for &op in kinds {
        for _ in 0..5 {
            let done = one(pair, submission(op, "key", pool));
            assert_eq!(done, Ok(Err(OpError::RpcFailed)));
        }
        assert!(is_open(engine, op), "{op}");
    }
    store.heal();
}

/// Ops of every kind, until each is answered by a call again.
#[track_caller]
fn assert_recovers(engine: &Engine, pair: &mut Pair, pool: &SlotPool) {
    let start = Instant::now();
    for op in OpKind::ALL {
        loop {
            match one(pair, submission(op, "key", pool)) {
                Ok(Ok(_) | Err(OpError::NotFound)) if !is_open(engine, op) => break,
                Ok(_) | Err(SubmitError::Unavailable { .. }) => {}
                Err(other) => panic!("{other}"),
            }
            let health = engine.health();
            assert!(start.elapsed() < LONG / 2, "{op} stays dead: {health:#?}");
            std::thread::sleep(ms(2));
        }
    }
    let health = engine.health();
    assert_eq!(
        (health.state, &*health.reasons),
        (HealthState::Healthy, &[][..])
    );
    assert!(health.lanes.iter().all(|lane| lane.overdue_calls == 0));
    assert_eq!(health.quarantined, 0);
}

#[test]
fn five_calls_in_a_row_that_fail_on_the_way_open_the_circuit_of_their_kind_and_nothing_else_does() {
    let _dog = watchdog();
    for error in [
        OpError::RpcFailed,
        OpError::RpcTimedOut,
        OpError::TransferFailed,
        OpError::Unavailable,
    ] {
        // No probe in this test.
        let (engine, store, pool) = start(config(2).fail_fast_ms(3_600_000));
        let mut pair = engine.pair(4).unwrap();
        for op in OpKind::ALL {
            let mut one = || one(&mut pair, submission(op, "key", &pool));
            for round in 0..2 {
                store.fail(&[op], error);
                for _ in 0..4 {
                    assert_eq!(one(), Ok(Err(error)));
                }
                // An answer, or an error that is none of the way, begins the count anew.
                match round {
                    0 => store.heal(),
                    _ => store.fail(&[op], OpError::NoSpace),
                }
                assert!(one().is_ok() && !is_open(&engine, op));
            }
            store.fail(&[op], OpError::StoreInternal);
            (0..8).for_each(|_| assert_eq!(one(), Ok(Err(OpError::StoreInternal))));
            assert!(!is_open(&engine, op));

            store.fail(&[op], error);
            store.take(op);
            (0..5).for_each(|_| assert_eq!(one(), Ok(Err(error))));
            assert_eq!(lane(&engine, op).open, Some(Unavailable::Failing));
            store.heal();
            let start = Instant::now();
            for _ in 0..20 {
                match op {
                    OpKind::Lookup => assert_eq!(one(), Ok(Err(OpError::Unavailable))),
                    _ => assert_eq!(one(), refused(op, Unavailable::Failing)),
                }
            }
            assert!(start.elapsed() < LONG / 10, "{:?}", start.elapsed());
            assert_eq!(store.take(op), [1; 5], "no call is made");
        }
        assert_eq!(pool.available(), 64, "refused ops come back whole");
        assert_at_rest(&engine);
    }
}

#[test]
fn what_is_queued_when_a_circuit_opens_ends_as_unavailable_without_a_call() {
    let _dog = watchdog();
    let config = alone(OpKind::Retrieve, 1)
        .max_batch(1)
        .fail_fast_ms(3_600_000);
    let (engine, store, pool) = start(config);
    let gate = store.gate().close(&[OpKind::Retrieve]);
    store.fail(&[OpKind::Retrieve], OpError::TransferFailed);
    let mut pair = engine.pair(32).unwrap();
    let client = engine.client();
    let mut batch = pair.batch();
    for id in 0..20 {
        let op = submission(OpKind::Retrieve, "key", &pool).user_data(id);
        batch.push(op).unwrap();
    }
    batch.publish();
    let futures: Vec<_> = (0..8)
        .map(|_| client.retrieve("key", pool.lend(64).unwrap()))
        .collect();
    drop(gate);
    pair.wait(20, Some(LONG)).unwrap();
    let mut ends: Vec<_> = pair.completions().map(|done| done.result).collect();
    for future in futures {
        match block_on(future).result {
            Err(ClientError::Failed(error)) => ends.push(Err(error)),
            other => panic!("{other:?}"),
        }
    }
    let of = |error| ends.iter().filter(|end| **end == Err(error)).count();
    assert_eq!(
        (of(OpError::TransferFailed), of(OpError::Unavailable)),
        (5, 23)
    );
    assert_eq!(store.take(OpKind::Retrieve), [1; 5]);
    assert_eq!(pool.available(), 64);
    assert_at_rest(&engine);
}

/// Ends a load when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One probe at a time, of one key, and no more of them than the pause allows.
#[test]
fn an_open_circuit_lets_one_op_of_what_comes_through_now_and_then_and_closes_by_its_answer() {
    let _dog = watchdog();
    const PAUSE: u64 = 40;
    let (engine, store, pool) = start(config(4).fail_fast_ms(PAUSE as u32));
    let mut pair = engine.pair(4).unwrap();
    open(&store, &engine, &mut pair, &pool, &OpKind::ALL);
    store.fail(&OpKind::ALL, OpError::RpcFailed);
    store.calls.lock().unwrap().clear();
    let start = Instant::now();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for kind in OpKind::ALL {
            let (engine, pool, over) = (&engine, &pool, &over);
            scope.spawn(move || {
                let mut pair = engine.pair(8).unwrap();
                while !over.load(Ordering::Relaxed) {
                    let mut n = 0;
                    let mut batch = pair.batch();
                    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
                        n += usize::from(batch.push(submission(kind, key, pool)).is_ok());
                    }
                    batch.publish();
                    pair.wait(n, Some(LONG)).unwrap();
                    pair.completions().for_each(drop);
                    std::thread::sleep(ms(1));
                }
            });
        }
        // Also by a failure.
        let _over = Over(&over);
        std::thread::sleep(ms(400));
        for op in OpKind::ALL {
            let mut probes = Vec::new();
            // Some come, sooner or later.
            eventually(|| {
                probes.append(&mut store.take(op));
                probes.len() >= 2
            });
            let took = start.elapsed();
            println!("{op}: {} probes in {took:?}", probes.len());
            assert!(probes.iter().all(|keys| *keys == 1), "{op}: {probes:?}");
            // At most what the pause less a quarter allows.
            let most = took.as_millis() as u64 * 4 / (3 * PAUSE) + 2;
            assert!(probes.len() as u64 <= most, "{op}: {}", probes.len());
            assert!(is_open(&engine, op));
        }
        // One that hangs is the only one.
        let gate = store.gate().close(&OpKind::ALL);
        for op in OpKind::ALL {
            assert!(store.gate().wait_inside(op, 1, LONG), "{op}");
        }
        std::thread::sleep(ms(4 * PAUSE));
        for op in OpKind::ALL {
            assert_eq!(store.gate().inside(op), 1, "{op}");
        }
        store.heal();
        drop(gate);
        eventually(|| OpKind::ALL.iter().all(|op| !is_open(&engine, *op)));
    });
    assert_recovers(&engine, &mut pair, &pool);
    assert!(engine.health().lanes.iter().all(|lane| lane.opened == 1));
    assert_at_rest(&engine);
}

/// Full, leased, or unable: the store is there again, and its callers are to hear that.
#[test]
fn a_probe_that_reaches_the_store_closes_the_circuit_also_where_it_fails() {
    let _dog = watchdog();
    let (engine, store, pool) = start(config(2).fail_fast_ms(5));
    let mut pair = engine.pair(4).unwrap();
    open(&store, &engine, &mut pair, &pool, &[OpKind::Store]);
    store.fail(&[OpKind::Store], OpError::NoSpace);
    let op = OpKind::Store;
    eventually(|| one(&mut pair, submission(op, "key", &pool)) == Ok(Err(OpError::NoSpace)));
    eventually(|| !is_open(&engine, op));
    for _ in 0..20 {
        let done = one(&mut pair, submission(op, "key", &pool));
        assert_eq!(done, Ok(Err(OpError::NoSpace)));
    }
    assert_eq!(engine.health().state, HealthState::Down, "no store works");
    store.heal();
    assert_recovers(&engine, &mut pair, &pool);
}

#[test]
fn switched_off_no_circuit_opens_no_batch_shrinks_and_hanging_calls_are_waited_for() {
    let _dog = watchdog();
    let (engine, store, pool) = start(config(1).fail_fast_after(0));
    let mut pair = engine.pair(64).unwrap();
    store.fail(&OpKind::ALL, OpError::RpcFailed);
    for op in OpKind::ALL {
        for _ in 0..50 {
            let done = one(&mut pair, submission(op, "key", &pool));
            assert_eq!(done, Ok(Err(OpError::RpcFailed)));
        }
        assert_eq!(store.take(op), [1; 50]);
        assert!(!is_open(&engine, op));
    }
    store.heal();
    let gate = store.gate().close(&[OpKind::Retrieve]);
    let mut hung = hang(&engine, &store, &pool, OpKind::Retrieve, 1);
    assert_eq!(lane(&engine, OpKind::Retrieve).overdue_calls, 1);
    // The only worker hangs, and its ops are waited for.
    pair.submit(Submission::lookup("key")).unwrap();
    let retrieve = submission(OpKind::Retrieve, "key", &pool);
    pair.submit(retrieve).unwrap();
    std::thread::sleep(ms(100));
    assert!(
        pair.poll().is_none(),
        "nobody answers in the worker's place"
    );
    drop(gate);
    hung.wait(1, Some(LONG)).unwrap();
    assert!(hung.poll().unwrap().release);
    pair.wait(2, Some(LONG)).unwrap();
    let ends: Vec<_> = pair.completions().map(|done| done.result).collect();
    assert!(ends.contains(&Ok(Done::Absent)), "{ends:?}");
    assert!(ends.contains(&Err(OpError::NotFound)), "{ends:?}");
    assert_eq!(
        lane(&engine, OpKind::Retrieve).batch_bound,
        engine.config().max_batch
    );
    assert_recovers(&engine, &mut pair, &pool);
}

/// Hangs so many calls of a kind, each with one op whose time is up; their ends are reaped.
fn hang(engine: &Engine, store: &Moody, pool: &SlotPool, op: OpKind, calls: usize) -> Pair {
    let (mut pair, gate) = (engine.pair(64).unwrap(), store.gate());
    // The first must not be overdue before the last is in a call: the circuit might open, and nothing comes through.
    let time = ms(if calls == 1 { 100 } else { 500 });
    let mut late = 0;
    for n in gate.inside(op) + 1..=gate.inside(op) + calls {
        let hangs = || submission(op, "hangs", pool);
        late += submit_into_call(engine, &mut pair, gate, n, time, hangs);
    }
    pair.wait(calls + late, Some(LONG)).unwrap();
    let ends: Vec<_> = pair.completions().collect();
    let of = |end| {
        ends.iter()
            .filter(|done| (done.result, done.more) == end)
            .count()
    };
    assert_eq!(of((Err(IN_PROGRESS), true)), calls, "{op}: {ends:?}");
    assert_eq!(of((Err(NEVER_STARTED), false)), late, "{op}: {ends:?}");
    pair
}

#[test]
fn half_of_the_workers_in_overdue_calls_open_the_circuit_until_they_are_back() {
    let _dog = watchdog();
    let config = alone(OpKind::Retrieve, 4).max_batch(1).fail_fast_ms(20);
    let (engine, store, pool) = start(config);
    let mut pair = engine.pair(4).unwrap();
    let op = OpKind::Retrieve;
    let gate = store.gate().close(&[op]);
    let first = hang(&engine, &store, &pool, op, 1);
    assert!(!is_open(&engine, op));
    assert_eq!(engine.health().state, HealthState::Degraded);
    let second = hang(&engine, &store, &pool, op, 1);
    assert_eq!(lane(&engine, op).open, Some(Unavailable::Overdue));
    let health = engine.health();
    println!("{:?}", health.reasons);
    assert_eq!(health.state, HealthState::Down, "nothing else was used");
    let reasons = [
        "retrieve: circuit open: its calls hang",
        "retrieve: 2 calls are overdue",
        "2 ops are in quarantine",
    ];
    assert_eq!(health.reasons, reasons);
    // Others go on, and then not all is lost.
    assert_eq!(engine.client().blocking().lookup("key"), Ok(false));
    assert_eq!(engine.health().state, HealthState::Degraded);
    // Refused but for a probe, which is one at a time.
    let refused = |pair: &mut Pair| match pair.submit(submission(op, "key", &pool)) {
        Ok(_) => false,
        Err(refused) => {
            let why = Unavailable::Overdue;
            assert_eq!(refused.reason, SubmitError::Unavailable { op, why });
            true
        }
    };
    eventually(|| !refused(&mut pair));
    assert!(store.gate().wait_inside(op, 3, LONG));
    for _ in 0..50 {
        assert!(refused(&mut pair));
        std::thread::sleep(ms(2));
    }
    assert_eq!(store.gate().inside(op), 3);
    // One back: fewer than half hang.
    drop(gate);
    eventually(|| !is_open(&engine, op));
    eventually(|| engine.health().quarantined == 0);
    for mut hung in [first, second] {
        hung.wait(1, Some(LONG)).unwrap();
        assert!(hung.poll().unwrap().release);
    }
    pair.wait(1, Some(LONG)).unwrap();
    pair.completions().for_each(drop);
    assert_recovers(&engine, &mut pair, &pool);
    assert_eq!(pool.available(), 64);
    assert_at_rest(&engine);
}

/// In a pool for all kinds no kind holds all workers, so the last one is there; but it sleeps.
#[test]
fn what_waits_for_a_place_in_a_shared_pool_is_answered_when_the_circuit_opens() {
    let _dog = watchdog();
    let (engine, store, pool) = start(config(4).max_batch(1).fail_fast_ms(3_600_000));
    let gate = store.gate().close(&[OpKind::Lookup]);
    let (mut hung, mut late) = (engine.pair(16).unwrap(), 0);
    for n in 1..=3 {
        let hangs = || Submission::lookup("hangs");
        late += submit_into_call(&engine, &mut hung, store.gate(), n, ms(500), hangs);
    }
    let mut pair = engine.pair(8).unwrap();
    for _ in 0..8 {
        pair.submit(Submission::lookup("key")).unwrap();
    }
    let waiting = engine.client();
    let lookup = waiting.lookup("key");
    std::thread::sleep(ms(100));
    let none = pair.wait(1, Some(Duration::ZERO)).is_err();
    assert!(none || is_open(&engine, OpKind::Lookup));
    hung.wait(3 + late, Some(LONG)).unwrap();
    // Nothing else comes that would wake anybody.
    let start = Instant::now();
    let waited = pair.wait(8, Some(LONG / 2));
    assert_eq!(waited, Ok(()), "nobody answers what was queued");
    println!("answered {:?} after the circuit opened", start.elapsed());
    for done in pair.completions() {
        assert_eq!(done.result, Err(OpError::Unavailable));
    }
    assert_eq!(block_on(lookup), UNKNOWN);
    drop(gate);
    // Two of the three back are enough for the circuit.
    eventually(|| engine.health().quarantined == 0);
    assert_recovers(&engine, &mut pair, &pool);
}

/// Where all workers hang in overdue calls, a thread that makes no calls answers in their place.
fn a_spare_answers(config: EngineConfig, hangs: &[(OpKind, usize)], answered: OpKind) {
    let (engine, store, pool) = start(config.max_batch(1).fail_fast_ms(10));
    let mut pair = engine.pair(16).unwrap();
    let client = engine.client();
    for round in 0..4 {
        let gate = store.gate().close(&OpKind::ALL);
        let hung: Vec<_> = hangs
            .iter()
            .map(|&(op, calls)| hang(&engine, &store, &pool, op, calls))
            .collect();
        if engine
            .start_report()
            .workers
            .iter()
            .all(|worker| worker.ops.len() == 4)
        {
            let health = engine.health();
            assert_eq!(health.state, HealthState::Down, "{:?}", health.reasons);
        }
        let calls = store.take(answered).len();
        let mut slowest = Duration::ZERO;
        for n in 0..40 {
            let start = Instant::now();
            match answered {
                OpKind::Lookup if n % 2 == 0 => {
                    assert_eq!(client.blocking().lookup("key"), UNKNOWN);
                }
                _ => match one(&mut pair, submission(answered, "key", &pool)) {
                    Ok(Err(OpError::Unavailable)) | Err(SubmitError::Unavailable { .. }) => {}
                    other => panic!("{other:?}"),
                },
            }
            slowest = slowest.max(start.elapsed());
            if n % 10 == 9 {
                std::thread::sleep(ms(5));
            }
        }
        println!("{hangs:?} round {round}: slowest {slowest:?}, {calls} calls before");
        assert!(slowest < LONG / 5, "{slowest:?}");
        assert!(store.take(answered).is_empty(), "no call is made");
        drop(gate);
        eventually(|| engine.health().quarantined == 0);
        for (mut hung, (_, calls)) in hung.into_iter().zip(hangs) {
            hung.wait(*calls, Some(LONG)).unwrap();
            assert!(hung.completions().all(|done| done.release));
        }
        assert_recovers(&engine, &mut pair, &pool);
    }
    assert_eq!(pool.available(), 64);
    assert_at_rest(&engine);
}

#[test]
fn a_spare_answers_for_a_pool_of_one() {
    let _dog = watchdog();
    a_spare_answers(config(1), &[(OpKind::Retrieve, 1)], OpKind::Lookup);
    a_spare_answers(config(1), &[(OpKind::Store, 1)], OpKind::Retrieve);
}

#[test]
fn a_spare_answers_for_a_shared_pool_that_several_kinds_hang() {
    let _dog = watchdog();
    let hangs = [(OpKind::Retrieve, 1), (OpKind::Store, 1)];
    a_spare_answers(config(2), &hangs, OpKind::Lookup);
    let hangs = [(OpKind::Lookup, 3), (OpKind::Delete, 1)];
    a_spare_answers(config(4), &hangs, OpKind::Lookup);
}

#[test]
fn a_spare_answers_for_workers_of_one_kind() {
    let _dog = watchdog();
    let lookups = alone(OpKind::Lookup, 1);
    a_spare_answers(lookups, &[(OpKind::Lookup, 1)], OpKind::Lookup);
    let lookups = alone(OpKind::Lookup, 2);
    a_spare_answers(lookups, &[(OpKind::Lookup, 2)], OpKind::Lookup);
}

/// What was queued before all workers hang is answered as well.
#[test]
fn a_spare_answers_what_was_queued_before() {
    let _dog = watchdog();
    let (engine, store, pool) = start(config(1).max_batch(1));
    let mut pair = engine.pair(16).unwrap();
    for _ in 0..20 {
        let gate = store.gate().close(&[OpKind::Retrieve]);
        let mut hung = engine.pair(16).unwrap();
        let hangs = || submission(OpKind::Retrieve, "hangs", &pool);
        let late = submit_into_call(&engine, &mut hung, store.gate(), 1, ms(20), hangs);
        for _ in 0..8 {
            pair.submit(Submission::lookup("key")).unwrap();
        }
        pair.wait(8, Some(LONG)).unwrap();
        assert!(
            pair.completions()
                .all(|done| done.result == Err(OpError::Unavailable))
        );
        drop(gate);
        hung.wait(2 + late, Some(LONG)).unwrap();
        assert_recovers(&engine, &mut pair, &pool);
    }
}

#[test]
fn after_an_overdue_call_batches_are_halved_and_grow_again_with_calls_in_time() {
    let _dog = watchdog();
    let (engine, store, pool) = start(alone(OpKind::Store, 1).max_batch(16));
    let op = OpKind::Store;
    for want in [8, 4, 2, 1, 1] {
        let gate = store.gate().close(&[op]);
        let hung = hang(&engine, &store, &pool, op, 1);
        drop(gate);
        eventually(|| lane(&engine, op).batch_bound == want && !is_open(&engine, op));
        eventually(|| engine.health().quarantined == 0);
        drop(hung);
    }
    let mut pair = engine.pair(64).unwrap();
    store.take(op);
    let names: Vec<_> = (0..60).map(|n| format!("key-{n}")).collect();
    let mut batch = pair.batch();
    for name in &names {
        batch.push(submission(op, name, &pool)).unwrap();
    }
    batch.publish();
    pair.wait(60, Some(LONG)).unwrap();
    pair.completions().for_each(drop);
    assert_eq!(store.take(op), [1, 2, 4, 8, 16, 16, 13]);
    assert_eq!(lane(&engine, op).batch_bound, 16);
}

/// The right to the one probe must not be lost with an op that comes to nothing.
#[test]
fn a_probe_that_came_to_nothing_is_followed_by_another() {
    let _dog = watchdog();
    let store = Moody::new();
    let (region, pool) = slots(64, 64);
    let engine = Engine::builder(store.clone()).region(region);
    let engine = engine.config(config(1).fail_fast_ms(1));
    let (engine, mut drivers) = engine.start_by_hand().unwrap();
    let mut pair = engine.pair(8).unwrap();
    let client = engine.client();
    let op = OpKind::Retrieve;
    store.fail(&[op], OpError::RpcFailed);
    for _ in 0..5 {
        pair.submit(submission(op, "key", &pool)).unwrap();
        assert!(drivers[0].poll_once());
        assert_eq!(pair.poll().unwrap().result, Err(OpError::RpcFailed));
    }
    assert!(is_open(&engine, op));
    let due = || std::thread::sleep(ms(3));
    let mut lets_in = |pair: &mut Pair, what: &str| {
        due();
        store.take(op);
        let let_in = pair.submit(submission(op, "key", &pool));
        assert!(
            let_in.is_ok(),
            "after {what}: {:?}",
            let_in.map_err(|r| r.reason)
        );
        // What came to nothing takes a look of its own.
        for _ in 0..4 {
            drivers[0].poll_once();
        }
        let ends: Vec<_> = pair.completions().map(|done| done.result).collect();
        assert!(
            ends.contains(&Err(OpError::RpcFailed)),
            "{ends:?} after {what}"
        );
        assert_eq!(store.take(op), [1], "a probe after {what}");
    };
    lets_in(&mut pair, "nothing");

    // Cancelled while it was queued: a tombstone.
    due();
    let ticket = pair.submit(submission(op, "key", &pool)).unwrap();
    pair.cancel(ticket, IfRunning::Wait);
    assert!(pair.poll().is_some());
    lets_in(&mut pair, "a tombstone");

    // Late when it was taken.
    due();
    let hurried = submission(op, "key", &pool).timeout(Some(Duration::ZERO));
    pair.submit(hurried).unwrap();
    lets_in(&mut pair, "one that was late");

    // A future that was dropped.
    due();
    let cancelling = client.with_cancel_on_drop();
    drop(cancelling.retrieve("key", pool.lend(64).unwrap()));
    lets_in(&mut pair, "a dropped future");
    eventually(|| pool.available() == 64);
}

/// Deadlines at every moment of an op's life, calls that fail and hang by chance: nothing of it stays behind.
#[test]
fn after_a_storm_no_circuit_stays_open_and_no_call_overdue() {
    let _dog = watchdog_for(LONG * 2);
    let seeds = std::env::var("MOONRING_STORM_SEEDS").ok();
    let seeds: u64 = seeds.map_or(4, |n| n.parse().expect("a number"));
    for seed in 0..seeds {
        let config = match seed % 4 {
            0 => config(4).max_batch(4),
            1 => config(1).max_batch(8),
            2 => alone(OpKind::Lookup, 2).max_batch(2),
            _ => config(3).busy_poll(true),
        };
        storm(seed, config.fail_fast_ms(2));
    }
}

fn storm(seed: u64, config: EngineConfig) {
    let (engine, store, pool) = start(config);
    let (over, wait) = (AtomicBool::new(false), ms(400));
    std::thread::scope(|scope| {
        for producer in 0..3 {
            let (engine, pool, over) = (&engine, &pool, &over);
            scope.spawn(move || {
                let mut rng = Rng::new(seed << 8 | producer);
                let mut pair = engine.pair(32).unwrap();
                let client = engine.client();
                let mut tickets = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    for _ in 0..1 + rng.below(12) {
                        let kind = OpKind::ALL[rng.below(4)];
                        let op = match (kind, pool.lend(64)) {
                            (OpKind::Lookup, _) => Submission::lookup("key"),
                            (OpKind::Retrieve, Some(slot)) => Submission::retrieve("key", slot),
                            (OpKind::Store, Some(slot)) => Submission::store("key", slot),
                            _ => Submission::delete("key"),
                        };
                        let time = Duration::from_micros(rng.below(400) as u64);
                        let op = match rng.below(4) {
                            0 => op.timeout(None),
                            _ => op.timeout(Some(time)),
                        };
                        tickets.extend(pair.submit(op));
                    }
                    let hurried = client.with_timeout(Some(ms(rng.below(2) as u64)));
                    drop(hurried.lookup("key"));
                    if let (0, Some(ticket)) = (rng.below(3), tickets.pop()) {
                        pair.cancel(ticket, IfRunning::Abandon);
                    }
                    tickets.clear();
                    let _ = pair.wait(1, Some(ms(1)));
                    pair.completions().for_each(drop);
                }
                while pair.in_flight() > 0 {
                    pair.wait(1, Some(LONG)).unwrap();
                    pair.completions().for_each(drop);
                }
            });
        }
        let mut rng = Rng::new(!seed);
        let start = Instant::now();
        while start.elapsed() < wait {
            let kind = OpKind::ALL[rng.below(4)];
            match rng.below(4) {
                0 => store.fail(&[kind], OpError::RpcFailed),
                1 => store.fail(&[kind], OpError::NoSpace),
                2 => store.heal(),
                _ => {
                    let gate = store.gate().close(&OpKind::ALL[..1 + rng.below(4)]);
                    std::thread::sleep(ms(rng.below(8) as u64));
                    drop(gate);
                }
            }
            std::thread::sleep(ms(rng.below(3) as u64));
        }
        store.heal();
        over.store(true, Ordering::Relaxed);
    });
    eventually(|| engine.stats().engine.quarantined == 0);
    eventually(|| engine.stats().engine.credits_in_use == 0);
    let overdue = OpKind::ALL.map(|op| lane(&engine, op).overdue_calls);
    assert_eq!(overdue, [0; 4], "seed {seed}");
    let mut pair = engine.pair(4).unwrap();
    assert_recovers(&engine, &mut pair, &pool);
    // The spare sleeps again, and workers make the calls.
    store.calls.lock().unwrap().clear();
    for _ in 0..20 {
        let done = one(&mut pair, Submission::lookup("key").timeout(None));
        assert!(matches!(done, Ok(Ok(_))), "seed {seed}: {done:?}");
    }
    assert_eq!(store.take(OpKind::Lookup), [1; 20]);
    assert_eq!(pool.available(), 64);
    let opened: Vec<_> = engine.health().lanes.iter().map(|l| l.opened).collect();
    println!("seed {seed}: circuits opened {opened:?}");
    assert_at_rest(&engine);
}

/// O4, LMCache#5119: a store that failed every write looked healthy.
#[test]
fn o4_a_store_that_fails_every_write_is_seen_in_counts_gauges_and_health() {
    let _dog = watchdog();
    let (engine, store, pool) = start(config(4).max_batch(1));
    let mut pair = engine.pair(64).unwrap();
    assert_eq!(engine.health().state, HealthState::Healthy);
    store.fail(&[OpKind::Store], OpError::NoSpace);
    let begin = Instant::now();
    for _ in 0..30 {
        let op = submission(OpKind::Store, "key", &pool);
        assert_eq!(one(&mut pair, op), Ok(Err(OpError::NoSpace)));
        let op = submission(OpKind::Retrieve, "other", &pool);
        assert_eq!(one(&mut pair, op), Ok(Err(OpError::NotFound)));
    }
    let (stats, health) = (engine.stats(), engine.health());
    let took = begin.elapsed();
    assert!(took < LONG / 5, "{took:?}");
    assert_eq!(stats.lane(OpKind::Store).count("no_space"), 30);
    assert_eq!(stats.lane(OpKind::Retrieve).count("not_found"), 30);
    assert_eq!((stats.engine.accepted, stats.engine.completed), (60, 60));
    assert_eq!((stats.engine.in_flight, stats.engine.quarantined), (0, 0));
    assert_eq!(health.state, HealthState::Degraded);
    assert_eq!(health.reasons, ["store: the last 30 calls failed"]);
    assert_eq!(health.lanes[OpKind::Store.index()].failed_calls, 30);

    // What is in calls, and what has ended in one.
    let gate = store.gate().close(&[OpKind::Store]);
    let mut hung = hang(&engine, &store, &pool, OpKind::Store, 1);
    pair.submit(submission(OpKind::Store, "key", &pool))
        .unwrap();
    assert!(store.gate().wait_inside(OpKind::Store, 2, LONG));
    let gauges = engine.stats().engine;
    assert_eq!((gauges.in_flight, gauges.quarantined), (1, 1));
    let reasons = engine.health().reasons;
    assert!(
        reasons.contains(&"store: 1 calls are overdue".to_owned()),
        "{reasons:?}"
    );
    assert!(
        reasons.contains(&"1 ops are in quarantine".to_owned()),
        "{reasons:?}"
    );
    drop(gate);
    hung.wait(1, Some(LONG)).unwrap();
    assert!(hung.poll().unwrap().release);
    pair.wait(1, Some(LONG)).unwrap();
    pair.completions().for_each(drop);
    // Nothing works any more.
    store.fail(&OpKind::ALL, OpError::StoreInternal);
    for op in OpKind::ALL {
        let _ = one(&mut pair, submission(op, "key", &pool));
    }
    assert_eq!(engine.health().state, HealthState::Down);
    store.heal();
    assert_recovers(&engine, &mut pair, &pool);
    assert_at_rest(&engine);
}

/// 200 stores of 4 MiB, each of which takes 5 ms, and lookups beside them: how long they took, how many store calls had begun
/// between submission and end of each, and how long it was till the stores were done.
fn lookups_beside_stores(config: EngineConfig) -> (Vec<Duration>, Vec<u64>, Duration) {
    const LEN: usize = 4 << 20;
    let options = SimOptions {
        delay_ns_per_byte: 5e6 / LEN as f64,
        ..SimOptions::default()
    };
    let sim = Arc::new(SimStore::new(Arc::new(NullStore), options).unwrap());
    let region = Region::allocate(RegionOptions::new(LEN)).unwrap();
    let span = region.span(0, LEN);
    let config = config.max_batch_bytes(4 * LEN);
    let engine = Engine::builder(sim.clone()).config(config).region(region);
    let engine = engine.start().unwrap();
    let mut pair = engine.pair(200).unwrap();
    let keys: Vec<_> = (0..200).map(|n| format!("block-{n}")).collect();
    let mut batch = pair.batch();
    for key in &keys {
        // SAFETY: nobody writes the span, and a new region's bytes are 0.
        batch
            .push(unsafe { Submission::store_span(key, span) })
            .unwrap();
    }
    let start = Instant::now();
    batch.publish();
    let client = engine.client();
    let calls = || sim.report().calls_of(OpKind::Store);
    let (mut times, mut passed) = (Vec::new(), Vec::new());
    while engine.stats().lane(OpKind::Store).completed() < 200 {
        let (begin, before) = (Instant::now(), calls());
        assert!(client.blocking().lookup("other").is_ok());
        times.push(begin.elapsed());
        passed.push(calls() - before);
        std::thread::sleep(ms(1));
    }
    let took = start.elapsed();
    pair.wait(200, Some(LONG)).unwrap();
    assert!(pair.completions().all(|done| done.result.is_ok()));
    times.sort_unstable();
    passed.sort_unstable();
    (times, passed, took)
}

/// R16, LMCache#3227: a burst of stores in a shared pool made lookups wait.
#[test]
fn r16_lookups_go_on_during_200_stores_of_4_mib() {
    let _dog = watchdog();
    for (name, config, bound) in [
        (
            "a worker of their own",
            config(2).dedicated(OpKind::Lookup, 1),
            None,
        ),
        ("a shared pool of 4", config(4), None),
        // One call is under way, and at most one more comes first.
        ("a shared pool of 1", config(1), Some(2)),
    ] {
        let (times, passed, took) = lookups_beside_stores(config);
        // The median: any single one may be of a thread that had no core for a while.
        let most = passed[passed.len() / 2];
        let p = |percent: usize| times[(times.len() * percent).div_ceil(100) - 1];
        println!(
            "{name}: {} lookups in {took:.2?}: p50 {:.2?}, p99 {:.2?}, max {:.2?}; {most} store calls began meanwhile",
            times.len(),
            p(50),
            p(99),
            p(100)
        );
        match bound {
            // A busy machine, too, delays most lookups by a part only of what the stores take.
            None => assert!(p(90) < (took / 4).max(ms(250)), "{name}: {:?}", p(90)),
            Some(calls) => assert!(most <= calls, "{name}: {most}"),
        }
    }
}
