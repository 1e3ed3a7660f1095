//! Cancel: by ticket, by `user_data`, by dropping a future. Whatever it races with, an op ends once, and slot and credit
//! come back.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use common::*;
use moonring::config::CoreChoice;
use moonring::store::{SimOptions, SimStore};
use moonring::{
    Cancel, Completion, Done, Engine, EngineConfig, IfRunning, OpError, OpKind, Pair, SlotPool,
    Submission, SubmitError,
};

const LONG: Duration = Duration::from_secs(50);
const NEVER_STARTED: OpError = OpError::Cancelled { started: false };
const IN_PROGRESS: OpError = OpError::Cancelled { started: true };

fn config(workers: usize) -> EngineConfig {
    EngineConfig::default()
        .num_workers(workers)
        .cores(CoreChoice::None)
}

/// An engine on a sim, with 64 slots of 64 bytes.
fn start(config: EngineConfig) -> (Engine, Arc<SimStore>, SlotPool) {
    let sim = sim(SimOptions::default());
    let (region, pool) = slots(64, 64);
    let engine = Engine::builder(sim.clone()).config(config).region(region);
    (engine.start().unwrap(), sim, pool)
}

fn reap(pair: &mut Pair, n: usize) -> Vec<Completion> {
    pair.wait(n, Some(LONG)).unwrap();
    let all: Vec<_> = pair.completions().collect();
    assert_eq!(all.len(), n);
    all
}

#[test]
fn a_queued_op_that_is_cancelled_never_starts() {
    let _dog = watchdog();
    let (engine, sim, pool) = start(config(1).max_batch(1));
    let gate = sim.gate().close(&OpKind::ALL);
    let mut pair = engine.pair(8).unwrap();
    pair.submit(Submission::lookup("busy")).unwrap();
    assert!(sim.gate().wait_inside(OpKind::Lookup, 1, LONG));
    for running in [IfRunning::Wait, IfRunning::Abandon] {
        let op = Submission::store("key", pool.lend(64).unwrap());
        let ticket = pair.submit(op.user_data(5)).unwrap();
        assert_eq!(pair.cancel(ticket, running), Cancel::NeverStarted);
        // It has ended: there is nothing left to cancel, before and after it is reaped.
        assert_eq!(pair.cancel(ticket, running), Cancel::Ended);
        let end = &reap(&mut pair, 1)[0];
        assert_eq!((end.user_data, end.ticket), (5, ticket));
        assert_eq!(end.result, Err(NEVER_STARTED));
        assert!(end.slot.is_some() && !end.more && !end.release);
        assert_eq!(pair.cancel(ticket, running), Cancel::Ended);
    }
    drop(gate);
    assert_eq!(reap(&mut pair, 1)[0].result, Ok(Done::Absent));
    // Nor does it when a worker comes to what is left of it.
    assert_eq!(engine.client().blocking().lookup("key"), Ok(false));
    assert_eq!(sim.report().calls, [2, 0, 0, 0]);
    assert_at_rest(&engine);
    let cancelled = engine
        .stats()
        .lane(OpKind::Store)
        .count("cancelled_never_started");
    assert_eq!(cancelled, 2);
}

#[test]
fn a_running_op_ends_as_its_call_does_or_at_once_as_the_caller_chooses() {
    let _dog = watchdog();
    let (engine, sim, pool) = start(config(2).max_batch(1));
    let mut pair = engine.pair(1).unwrap();
    for running in [IfRunning::Wait, IfRunning::Abandon] {
        let gate = sim.gate().close(&[OpKind::Store]);
        let op = Submission::store("key", pool.lend(64).unwrap());
        let ticket = pair.submit(op).unwrap();
        assert!(sim.gate().wait_inside(OpKind::Store, 1, LONG));
        if running == IfRunning::Wait {
            assert_eq!(pair.cancel(ticket, running), Cancel::Running);
            assert!(pair.poll().is_none());
            drop(gate);
            let end = &reap(&mut pair, 1)[0];
            assert!(end.result.is_ok() && !end.more && end.slot.is_some());
        } else {
            assert_eq!(pair.cancel(ticket, running), Cancel::Abandoned);
            let end = &reap(&mut pair, 1)[0];
            assert_eq!((end.result, end.ticket), (Err(IN_PROGRESS), ticket));
            assert!(end.more && !end.release && end.slot.is_none());
            // A second time there is nothing to end.
            assert_eq!(pair.cancel(ticket, running), Cancel::Ended);
            assert!(pair.poll().is_none());
            assert_eq!((pair.credits(), pool.available()), (0, 63));
            let listed = engine.quarantined();
            assert_eq!(listed.len(), 1);
            assert_eq!(listed[0].ended_as, IN_PROGRESS);
            drop(gate);
            let release = &reap(&mut pair, 1)[0];
            assert_eq!((release.result, release.ticket), (Err(IN_PROGRESS), ticket));
            assert!(release.release && !release.more && release.slot.is_none());
        }
        assert_eq!(pair.cancel(ticket, running), Cancel::Ended);
        assert!(pair.poll().is_none());
        assert_eq!((pair.credits(), pool.available()), (1, 64));
    }
    assert_at_rest(&engine);
    assert_eq!(engine.quarantined(), []);
}

#[test]
fn an_op_that_has_ended_is_said_to_have_ended_reaped_or_not() {
    let _dog = watchdog();
    let (engine, _sim, _pool) = start(config(1));
    let (mut pair, mut other) = (engine.pair(4).unwrap(), engine.pair(4).unwrap());
    for running in [IfRunning::Wait, IfRunning::Abandon] {
        let ticket = pair.submit(Submission::lookup("key")).unwrap();
        pair.wait(1, None).unwrap();
        assert_eq!(pair.cancel(ticket, running), Cancel::Ended);
        assert_eq!(pair.cancel_all(0, running), 0);
        assert_eq!(reap(&mut pair, 1)[0].result, Ok(Done::Absent));
        assert_eq!(pair.cancel(ticket, running), Cancel::Ended);
        assert_eq!(pair.cancel_all(0, running), 0);
        // Its place is another's by now, in the pair or in another one.
        let next = pair.submit(Submission::lookup("key")).unwrap();
        assert_eq!(ticket.index(), next.index());
        assert_eq!(pair.cancel(ticket, running), Cancel::Ended);
        assert_eq!(other.cancel(next, running), Cancel::Ended);
        assert_eq!(reap(&mut pair, 1)[0].result, Ok(Done::Absent));
    }
    assert_at_rest(&engine);
}

#[test]
fn cancelling_by_user_data_ends_all_that_have_it_and_nothing_else() {
    let _dog = watchdog();
    let (engine, sim, pool) = start(config(1).dedicated(OpKind::Retrieve, 2).max_batch(1));
    for running in [IfRunning::Wait, IfRunning::Abandon] {
        let gate = sim.gate().close(&OpKind::ALL);
        let mut pair = engine.pair(32).unwrap();
        let mut retrieve = |n: usize, user_data: u64| {
            for _ in 0..n {
                let op = Submission::retrieve("key", pool.lend(64).unwrap());
                pair.submit(op.user_data(user_data)).unwrap();
            }
        };
        retrieve(2, 7);
        assert!(sim.gate().wait_inside(OpKind::Retrieve, 2, LONG));
        retrieve(8, 7);
        retrieve(8, 8);
        let abandon = running == IfRunning::Abandon;
        let cancelled = 8 + 2 * usize::from(abandon);
        assert_eq!(pair.cancel_all(9, running), 0);
        assert_eq!(pair.cancel_all(7, running), cancelled);
        assert_eq!(pair.cancel_all(7, running), 0);
        let ends = reap(&mut pair, cancelled);
        assert!(ends.iter().all(|done| done.user_data == 7));
        let queued = ends.iter().filter(|d| d.result == Err(NEVER_STARTED));
        assert_eq!(queued.count(), 8);
        assert_eq!(ends.iter().filter(|d| d.more).count(), cancelled - 8);
        drop(ends);
        drop(gate);
        let mut left = reap(&mut pair, 10);
        left.sort_by_key(|done| done.user_data);
        for (n, done) in left.iter().enumerate() {
            let wanted = match (n < 2, abandon) {
                (true, true) => IN_PROGRESS,
                _ => OpError::NotFound,
            };
            assert_eq!(done.result, Err(wanted));
            assert_eq!(done.release, n < 2 && abandon);
        }
    }
    assert_eq!(pool.available(), 64);
    assert_at_rest(&engine);
}

/// Cancelling threads against workers and deadlines: one end each, one release where it is announced, whoever wins.
#[test]
fn every_op_ends_once_whatever_a_cancel_races_with() {
    let _dog = watchdog();
    let (engine, store, _) = {
        let store = Spy::new(memory(), {
            // Calls of all lengths up to 100 us.
            let rng = Mutex::new(Rng::new(3));
            move |_| {
                let wait = rng.lock().unwrap().below(100);
                let until = std::time::Instant::now() + Duration::from_micros(wait as u64);
                while std::time::Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
        });
        let (region, pool) = slots(64, 4 * 16);
        let config = config(2).max_batch(3).fail_fast_after(0);
        let engine = Engine::builder(store.clone()).config(config).region(region);
        (engine.start().unwrap(), store, pool)
    };
    let rounds = if cfg!(debug_assertions) {
        1_500
    } else {
        10_000
    };
    // How often a cancel found an op queued, abandoned it, let it run, came too late.
    let found: [AtomicU64; 4] = Default::default();
    let seen = || found.each_ref().map(|n| n.load(Ordering::Relaxed));
    std::thread::scope(|scope| {
        for seed in 0..4u64 {
            let (engine, store, found) = (&engine, &store, &found);
            scope.spawn(move || {
                let (mut rng, mut pair) = (Rng::new(seed), engine.pair(16).unwrap());
                let mut round = 0;
                // On a machine where workers are late a cancel rarely finds an op that runs: as long as it takes.
                while round < rounds || seen().iter().any(|&n| n <= 20) {
                    let calls = store.calls();
                    let n = 1 + rng.below(8);
                    let mut tickets = Vec::new();
                    let mut batch = pair.batch();
                    for id in 0..n {
                        let timeout = Duration::from_micros(rng.below(200) as u64);
                        let timeout = (rng.below(4) == 0).then_some(timeout);
                        let op = Submission::lookup("key").user_data(id as u64);
                        match batch.push(op.timeout(timeout)) {
                            Ok(ticket) => tickets.push(ticket),
                            // Full of what was cancelled, until a worker comes by.
                            Err(refused) => {
                                let full = matches!(refused.reason, SubmitError::RingFull { .. });
                                assert!(full, "{refused}");
                                break;
                            }
                        }
                    }
                    batch.publish();
                    let n = tickets.len();
                    if n == 0 {
                        std::thread::yield_now();
                        continue;
                    }
                    round += 1;
                    for _ in 0..rng.below(2_000) {
                        std::hint::spin_loop();
                    }
                    if rng.below(8) == 0 {
                        // Not before a call has begun, if one does.
                        for _ in 0..1_000 {
                            if store.calls() > calls {
                                break;
                            }
                            std::thread::yield_now();
                        }
                    }
                    let mut cancelled = vec![None; n];
                    for _ in 0..n {
                        let id = rng.below(n);
                        let running = [IfRunning::Wait, IfRunning::Abandon][rng.below(2)];
                        let cancel = pair.cancel(tickets[id], running);
                        found[cancel as usize].fetch_add(1, Ordering::Relaxed);
                        assert!(cancel != Cancel::Abandoned || running == IfRunning::Abandon);
                        if matches!(cancel, Cancel::NeverStarted | Cancel::Abandoned) {
                            assert_eq!(cancelled[id].replace(cancel), None, "cancelled twice");
                        }
                    }
                    let (mut ends, mut more) = (Tally::new(n), vec![false; n]);
                    while pair.in_flight() > 0 {
                        pair.wait(1, Some(LONG)).unwrap();
                        for done in pair.completions() {
                            let id = done.user_data as usize;
                            assert_eq!(done.ticket, tickets[id]);
                            if done.release {
                                assert!(std::mem::take(&mut more[id]), "a release without MORE");
                                continue;
                            }
                            ends.see(done.user_data);
                            more[id] = done.more;
                            match (done.result, cancelled[id]) {
                                (Err(NEVER_STARTED), Some(Cancel::NeverStarted)) => {}
                                (Err(IN_PROGRESS), Some(Cancel::Abandoned)) => {}
                                (Ok(Done::Absent) | Err(OpError::TimedOut { .. }), None) => {}
                                other => panic!("{other:?}"),
                            }
                        }
                    }
                    ends.assert_all_seen();
                    assert!(!more.contains(&true), "MORE, and no release");
                }
            });
        }
    });
    println!("never started, abandoned, running, ended: {:?}", seen());
    assert_eq!(engine.stats().engine.quarantined, 0);
    assert_at_rest(&engine);
}

#[test]
fn a_dropped_future_cancels_its_op_only_where_the_client_says_so() {
    let _dog = watchdog();
    let (engine, sim, pool) = start(config(1).dedicated(OpKind::Store, 1).max_batch(1));
    let client = engine.client();
    for cancels in [false, true] {
        let client = match cancels {
            false => client.clone(),
            true => client.with_cancel_on_drop(),
        };
        let clone = client.clone(); // What was asked for holds for clones too.
        let calls = || sim.report().calls[OpKind::Store.index()];
        let (gate, before) = (sim.gate().close(&[OpKind::Store]), calls());
        let running = client.store("running", pool.lend(64).unwrap());
        assert!(sim.gate().wait_inside(OpKind::Store, 1, LONG));
        let queued = clone.store("queued", pool.lend(64).unwrap());
        let mut polled = Box::pin(client.store("polled", pool.lend(64).unwrap()));
        assert!(poll_with(&mut polled, Waker::noop()).is_pending());
        let (mut out, items) = (Vec::new(), ["many 1", "many 2"]);
        let items: Vec<_> = items.map(|key| (key, pool.lend(64).unwrap())).into();
        let mut many = Box::pin(client.store_many(items, &mut out));
        assert!(poll_with(&mut many, Waker::noop()).is_pending());
        drop((running, queued, polled, many));
        if cancels {
            // What was queued is back when the drop returns; what runs goes on, with its slot.
            assert_eq!((pool.available(), engine.quarantined().len()), (63, 0));
            assert_eq!(engine.stats().engine.credits_in_use, 1);
        } else {
            assert_eq!(pool.available(), 64 - 5);
        }
        drop(gate);
        eventually(|| engine.stats().engine.credits_in_use == 0);
        assert_eq!(pool.available(), 64);
        assert_at_rest(&engine);
        assert_eq!(calls() - before, if cancels { 1 } else { 5 });
    }
    for key in ["running", "queued", "polled", "many 1", "many 2"] {
        assert_eq!(client.blocking().lookup(key), Ok(true), "{key}");
    }
}

/// The credit that a cancelled op gives back goes to who waits for one.
#[test]
fn a_cancelled_future_hands_its_credit_on() {
    let _dog = watchdog();
    let (engine, sim, _pool) = start(config(1).max_batch(1).ring_depth(2));
    let client = engine.client().with_cancel_on_drop();
    let gate = sim.gate().close(&[OpKind::Lookup]);
    let running = client.lookup("running");
    assert!(sim.gate().wait_inside(OpKind::Lookup, 1, LONG));
    let queued = client.lookup("queued");
    let log = WakeLog::default();
    let mut waits = Box::pin(client.lookup("waits"));
    assert!(poll_with(&mut waits, &log.waker(3)).is_pending());
    assert!(log.woken().is_empty());
    drop(queued);
    assert_eq!(log.woken(), [3]);
    assert!(poll_with(&mut waits, &log.waker(3)).is_pending());
    drop(gate);
    assert_eq!(moonring::block_on(running), Ok(false));
    assert_eq!(moonring::block_on(waits), Ok(false));
    assert_eq!(sim.report().calls, [2, 0, 0, 0]);
    assert_at_rest(&engine);
}

/// Who is handed a credit is woken without a lock of the engine: its waker may ask it anything.
#[test]
fn a_waker_that_is_handed_a_credit_may_use_the_engine() {
    let _dog = watchdog();
    // The credit comes of a queued op that is late, or of a call that returns.
    for released in [false, true] {
        let credits = if released { 1 } else { 2 };
        let (engine, sim, pool) = start(config(1).max_batch(1).ring_depth(credits));
        let engine = Arc::new(engine);
        let client = engine.client();
        let gate = sim.gate().close(&[OpKind::Lookup]);
        let hurried = client.with_timeout(Some(Duration::from_millis(200)));
        let first = match released {
            true => hurried.lookup("running"),
            false => client.lookup("running"),
        };
        assert!(sim.gate().wait_inside(OpKind::Lookup, 1, LONG));
        if !released {
            // Given up, so that nobody but the engine recycles it.
            drop(hurried.lookup("queued"));
        }
        let said = Arc::new(AtomicBool::new(false));
        let waker = waker_of({
            let (engine, said, pool) = (Arc::clone(&engine), Arc::clone(&said), pool.clone());
            move || {
                let counts = engine.stats().engine;
                assert!(counts.completed <= counts.accepted);
                let _ = engine.quarantined();
                // Looks at the list, if there is one.
                drop(engine.client().store("key", pool.lend(64).unwrap()));
                said.store(true, Ordering::SeqCst);
            }
        });
        let mut waits = Box::pin(client.lookup("waits"));
        assert!(poll_with(&mut waits, &waker).is_pending());
        let gate = match released {
            true => {
                // Its time is up; its credit comes back when its call returns.
                assert!(moonring::block_on(first).is_err());
                assert!(!said.load(Ordering::SeqCst));
                drop(gate);
                None
            }
            false => Some(gate),
        };
        eventually(|| said.load(Ordering::SeqCst));
        drop(gate);
        assert_eq!(moonring::block_on(waits), Ok(false));
        eventually(|| engine.stats().engine.credits_in_use <= 1);
    }
}

/// Cases M1 and M3, LMCache#5263 and tokio-uring#158: a dropped future's buffer goes to somebody else while it is written.
#[test]
fn a_slot_whose_future_was_dropped_is_nobodys_until_its_call_has_let_it_go() {
    let _dog = watchdog();
    let store = memory();
    let (region, pool) = slots(64, 8);
    let spy = Spy::new(store, |op| {
        if op == OpKind::Retrieve {
            std::thread::yield_now();
        }
    });
    let config = config(2).max_batch(4).fail_fast_after(0);
    let engine = Engine::builder(spy.clone()).config(config).region(region);
    let engine = engine.start().unwrap();
    let client = engine.client();
    let mut slot = pool.lend(64).unwrap();
    slot.fill(0xee);
    assert!(client.blocking().store("key", slot).result.is_ok());
    let rounds = if cfg!(debug_assertions) {
        2_500
    } else {
        10_000
    };
    std::thread::scope(|scope| {
        for seed in 0..4u64 {
            let (client, pool) = (client.clone(), &pool);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                let cancels = client.with_cancel_on_drop();
                let impatient = client.with_timeout(Some(Duration::from_micros(30)));
                let hasty = cancels.with_timeout(Some(Duration::from_micros(30)));
                let mut round = 0;
                while round < rounds {
                    let Some(mut slot) = pool.lend(64) else {
                        std::thread::yield_now();
                        continue;
                    };
                    // A canary in a slot that is ours: who still writes it is found out.
                    let canary = seed as u8 + 1;
                    slot.fill(canary);
                    for _ in 0..rng.below(300) {
                        std::hint::spin_loop();
                    }
                    assert!(slot.iter().all(|&b| b == canary), "{slot:?}");
                    let by = [&client, &cancels, &impatient, &hasty][rng.below(4)];
                    let mut future = Box::pin(by.retrieve("key", slot));
                    for _ in 0..rng.below(3) {
                        let polled = poll_with(&mut future, Waker::noop());
                        let Poll::Ready(got) = polled else { continue };
                        if let (Ok(len), Some(slot)) = (got.result, &got.slot) {
                            assert_eq!((len, &slot[..]), (64, &[0xee; 64][..]));
                        }
                        break;
                    }
                    drop(future);
                    round += 1;
                }
            });
        }
    });
    eventually(|| engine.stats().engine.credits_in_use == 0);
    assert_eq!((pool.available(), engine.quarantined().len()), (8, 0));
    assert_at_rest(&engine);
}
