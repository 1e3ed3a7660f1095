//! Promise 1: every accepted op gets exactly one terminal completion, whatever happens; accepted = completed + in flight,
//! always; a refused op comes back whole. What threads do at random is in `promise_1_stress.rs`.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use moonring::config::CoreChoice;
use moonring::store::sim::{Fault, When};
use moonring::store::{NullStore, SimOptions, SimStore};
use moonring::{
    Client, Completion, Done, Engine, EngineConfig, OpError, OpKind, Pair, Shutdown, Slot,
    SlotPool, Submission, SubmitError,
};

const LONG: Duration = Duration::from_secs(50);

/// Without circuits: an op that is refused because calls fail is another matter.
fn config(workers: usize) -> EngineConfig {
    EngineConfig::default()
        .fail_fast_after(0)
        .num_workers(workers)
        // Stores that fail on purpose are asked again and again.
        .fail_fast_after(0)
        .cores(CoreChoice::None)
}

/// An engine on this sim, with 64 slots of 64 bytes.
fn start(sim: &Arc<SimStore>, config: EngineConfig) -> (Engine, SlotPool) {
    let (region, pool) = slots(64, 64);
    let engine = Engine::builder(sim.clone()).config(config).region(region);
    (engine.start().unwrap(), pool)
}

/// Ops of all kinds, by turns; keys repeat, so that some are folded.
fn op<'k>(n: u64, key: &'k [u8], slot: impl FnOnce() -> Slot) -> Submission<'k> {
    let op = match n % 4 {
        0 => Submission::lookup(key),
        1 => Submission::store(key, slot()),
        2 => Submission::retrieve(key, slot()),
        _ => Submission::delete(key),
    };
    op.user_data(n)
}

/// Does `n` ops through a pair and as many through a client; each must end once, with its slot. Returns how the pair's ended.
fn run(engine: &Engine, pool: &SlotPool, n: u64) -> Vec<Result<Done, OpError>> {
    std::thread::scope(|scope| {
        let by_pair = scope.spawn(|| {
            let mut pair = engine.pair(16).unwrap();
            let (mut tally, mut results) = (Tally::new(n as usize), Vec::new());
            let mut see = |done: Completion| {
                tally.see(done.user_data);
                assert_eq!(done.op as u64, [0, 2, 1, 3][done.user_data as usize % 4]);
                let has_bytes = matches!(done.op, OpKind::Retrieve | OpKind::Store);
                assert_eq!(done.slot.is_some(), has_bytes);
                assert!(!done.more);
                results.push(done.result);
            };
            for id in 0..n {
                if pair.credits() == 0 {
                    pair.wait(1 + id as usize % 16, None).unwrap();
                    pair.completions().for_each(&mut see);
                }
                let key = format!("key {}", id / 4 % 5);
                pair.submit(op(id, key.as_bytes(), || pool.lend(64).unwrap()))
                    .unwrap();
            }
            pair.wait(usize::MAX, None).unwrap();
            pair.completions().for_each(&mut see);
            tally.assert_all_seen();
            results
        });
        let client = engine.client();
        let client = client.blocking();
        for id in 0..n / 4 {
            let key = format!("key {}", id % 5);
            let _ = client.lookup(&key);
            let stored = client.store(&key, pool.lend(64).unwrap());
            let _ = client.retrieve(&key, stored.slot.unwrap()).slot.unwrap();
            let _ = client.delete_forced(&key);
        }
        by_pair.join().unwrap()
    })
}

fn assert_all_back(engine: &Engine, pool: &SlotPool, accepted: u64) {
    assert_eq!(engine.stats().engine.accepted, accepted);
    assert_at_rest(engine);
    assert_eq!(pool.available(), pool.total());
}

#[test]
fn every_accepted_op_gets_exactly_one_completion_when_keys_and_calls_fail() {
    let _dog = watchdog();
    let sim = sim(SimOptions {
        seed: 1,
        key_errors: When::rate(0.2),
        call_errors: When::rate(0.2),
        wrong_counts: When::rate(0.2),
        ..SimOptions::default()
    });
    let (engine, pool) = start(&sim, config(2));
    let results = run(&engine, &pool, 2_000);
    for error in [
        OpError::TransferFailed,
        OpError::RpcFailed,
        OpError::WrongResultCount,
    ] {
        assert!(results.contains(&Err(error)), "{error}");
    }
    for fault in [Fault::KeyError, Fault::CallError, Fault::WrongCount] {
        assert!(sim.report().count(fault) > 100);
    }
    assert_all_back(&engine, &pool, 4_000);
}

#[test]
fn every_accepted_op_gets_exactly_one_completion_when_the_store_panics() {
    let _dog = watchdog();
    let sim = sim(SimOptions {
        seed: 2,
        panics: When::rate(0.2),
        ..SimOptions::default()
    });
    let (engine, pool) = start(&sim, config(2));
    let results = run(&engine, &pool, 1_000);
    assert!(results.contains(&Err(OpError::StorePanicked)));
    assert!(sim.report().count(Fault::Panic) > 50);
    assert_all_back(&engine, &pool, 2_000);
}

#[test]
fn a_dropped_future_completes_its_op_once_and_its_slot_returns() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let (engine, pool) = start(&sim, config(2));
    let client = engine.client();
    let waker = std::task::Waker::noop();
    for round in 0..300 {
        // Dropped while queued or in the call, or whenever the worker has got to by then.
        let gate = (round % 2 == 0).then(|| sim.gate().close(&OpKind::ALL));
        let slot = || pool.lend(64).unwrap();
        let mut one = Box::pin(client.store("key", slot()));
        if round % 3 == 0 {
            let _ = poll_with(&mut one, waker);
        }
        let two = client.retrieve("key", slot());
        let (mut out, mut found) = (Vec::new(), Vec::new());
        let items: Vec<_> = (0..4).map(|_| ("key", slot())).collect();
        let mut many = Box::pin(client.retrieve_many(items, &mut out));
        let _ = poll_with(&mut many, waker);
        let mut keys = Box::pin(client.lookup_many(["a", "b"], &mut found));
        let _ = poll_with(&mut keys, waker);
        drop((one, two, many, keys));
        // What had ended by then is here, slots included.
        drop(out);
        drop(gate);
        eventually(|| pool.available() == pool.total());
    }
    eventually(|| engine.stats().engine.credits_in_use == 0);
    assert_all_back(&engine, &pool, 300 * 8);
}

#[test]
fn a_dropped_pair_completes_its_ops_once_and_their_slots_return() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let (engine, pool) = start(&sim, config(2).max_pairs(3));
    for round in 0..300u64 {
        let gate = (round % 2 == 0).then(|| sim.gate().close(&OpKind::ALL));
        let mut pair = engine.pair(16).unwrap();
        let mut batch = pair.batch();
        for id in 0..16 {
            batch
                .push(op(id, b"key", || pool.lend(64).unwrap()))
                .unwrap();
        }
        if round % 3 == 0 {
            // What was pushed is accepted, also where the batch is never dropped: the pair publishes it.
            std::mem::forget(batch);
        } else {
            drop(batch);
            if round % 3 == 1 && gate.is_none() {
                pair.wait(5, None).unwrap();
                assert!(pair.poll().is_some());
            }
        }
        drop(pair);
        drop(gate);
        // Its place in the list of pairs comes back too.
        eventually(|| engine.stats().engine.pairs == 0);
    }
    assert_all_back(&engine, &pool, 300 * 16);
}

/// Fills a pair and a client's futures with ops, one of them in a call that does not return.
fn fill<'a>(
    engine: &Engine,
    client: &'a Client,
    sim: &SimStore,
    pool: &SlotPool,
) -> (
    Pair,
    Vec<impl Future<Output = Result<bool, moonring::ClientError>> + 'a>,
) {
    let mut pair = engine.pair(32).unwrap();
    pair.submit(op(0, b"key", || unreachable!())).unwrap();
    assert!(sim.gate().wait_inside(OpKind::Lookup, 1, LONG));
    for id in 1..32 {
        pair.submit(op(id, b"key", || pool.lend(64).unwrap()))
            .unwrap();
    }
    (pair, (0..8).map(|_| client.lookup("key")).collect())
}

#[test]
fn every_accepted_op_gets_exactly_one_completion_when_the_engine_shuts_down() {
    let _dog = watchdog();
    for round in 0..40 {
        let sim = sim(SimOptions::default());
        let (engine, pool) = start(&sim, config(1 + round % 2).max_batch(4));
        let gate = sim.gate().close(&OpKind::ALL);
        let client = engine.client();
        let (mut pair, ops) = fill(&engine, &client, &sim, &pool);
        let mode = [Shutdown::Drain, Shutdown::Cancel][round % 2];
        let (limit, opens) = match round % 4 {
            // The limit is never met, met at once, or about when the call returns.
            0 | 1 => (LONG, Duration::ZERO),
            2 => (Duration::ZERO, Duration::from_millis(2)),
            _ => (Duration::from_micros(500), Duration::from_micros(500)),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(opens);
                drop(gate);
            });
            engine.shutdown(mode, limit).unwrap();
        });
        // Everything has ended by now; what hangs in calls is released later, each op once.
        let counts = engine.stats().engine;
        assert_eq!((counts.in_flight, counts.completed), (0, 40));
        let (mut ends, mut releases) = (Tally::new(32), Tally::new(32));
        let mut more = std::collections::HashSet::new();
        eventually(|| {
            for done in pair.completions() {
                if done.release {
                    assert!(more.remove(&done.user_data), "a release without its end");
                    releases.see(done.user_data);
                    assert!(!done.more && done.slot.is_none());
                } else {
                    ends.see(done.user_data);
                    if done.more {
                        more.insert(done.user_data);
                    }
                }
                assert!(!(done.more || done.release) || done.result == Err(OpError::ShutDown));
            }
            pair.in_flight() == 0
        });
        ends.assert_all_seen();
        assert!(
            more.is_empty(),
            "ended with MORE, and not released: {more:?}"
        );
        for op in ops {
            let _ = moonring::block_on(op);
        }
        // A late call of a worker has nothing left to complete.
        eventually(|| engine.stats().engine.credits_in_use == 0);
        assert!(pair.poll().is_none());
        assert_all_back(&engine, &pool, 40);
    }
}

#[test]
fn an_op_in_a_call_that_outlives_the_limit_ends_at_it_and_is_released_when_the_call_returns() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let (engine, pool) = start(&sim, config(1).max_batch(1));
    let gate = sim.gate().close(&OpKind::ALL);
    let client = engine.client();
    let (mut pair, ops) = fill(&engine, &client, &sim, &pool);
    let report = engine
        .shutdown(Shutdown::Drain, Duration::from_millis(5))
        .unwrap();
    assert_eq!(
        (report.completed, report.cancelled, report.in_flight),
        (40, 40, 1)
    );
    let [left] = &report.unreleased[..] else {
        panic!("{report:?}");
    };
    assert_eq!(
        (left.op, &left.key[..], left.addr, left.ended_as),
        (OpKind::Lookup, &b"key"[..], None, OpError::ShutDown)
    );
    let mut tally = Tally::new(32);
    for done in pair.completions() {
        assert_eq!(done.result, Err(OpError::ShutDown));
        // Only the one that the call has is not free yet.
        assert_eq!((done.more, done.release), (done.user_data == 0, false));
        tally.see(done.user_data);
    }
    tally.assert_all_seen();
    for op in ops {
        assert_eq!(moonring::block_on(op), Err(OpError::ShutDown.into()));
    }
    let counts = engine.stats().engine;
    assert_eq!(
        (counts.accepted, counts.completed, counts.in_flight),
        (40, 40, 0)
    );
    assert_eq!((counts.quarantined, counts.credits_in_use), (1, 1));
    assert_eq!((pair.in_flight(), pair.poll().is_none()), (1, true));
    drop(gate);
    let mut late = None;
    eventually(|| {
        late = late.take().or_else(|| pair.poll());
        late.is_some()
    });
    let late = late.unwrap();
    assert_eq!((late.user_data, late.result), (0, Err(OpError::ShutDown)));
    assert_eq!((late.more, late.release), (false, true));
    assert!(pair.poll().is_none());
    drop(late);
    assert_all_back(&engine, &pool, 40);
    assert_eq!(engine.quarantined(), []);
}

#[test]
fn accepted_is_completed_plus_in_flight_in_every_snapshot() {
    let _dog = watchdog();
    let sim = sim(SimOptions {
        seed: 3,
        key_errors: When::rate(0.3),
        ..SimOptions::default()
    });
    let (engine, pool) = start(&sim, config(2));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut last, mut in_flight) = (engine.stats().engine, Vec::new());
            while !done.load(Ordering::SeqCst) {
                let now = engine.stats().engine;
                assert_eq!(now.accepted, now.completed + now.in_flight);
                assert!(now.accepted >= last.accepted && now.completed >= last.completed);
                in_flight.push(now.in_flight);
                last = now;
            }
            in_flight
        });
        for _ in 0..4 {
            run(&engine, &pool, 1_000);
        }
        // Pairs that come and go take their counts with them into the sum.
        for _ in 0..200 {
            let mut pair = engine.pair(1).unwrap();
            pair.submit(Submission::lookup("key")).unwrap();
        }
        eventually(|| engine.stats().engine.in_flight == 0);
        done.store(true, Ordering::SeqCst);
        // It is a gauge: of 17 ops that can be in flight it does not tell of hundreds, unless its reader was interrupted.
        let in_flight = reader.join().unwrap();
        let far_off = in_flight.iter().filter(|n| **n > 2 * 17).count();
        assert!(in_flight.iter().any(|n| *n > 0));
        assert!(far_off <= in_flight.len() / 8, "{in_flight:?}");
    });
    eventually(|| engine.stats().engine.pairs == 0);
    assert_all_back(&engine, &pool, 8_200);
}

#[test]
fn a_refused_op_comes_back_whole() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let (engine, pool) = start(&sim, config(1));
    let gate = sim.gate().close(&OpKind::ALL);
    let mut pair = engine.pair(1).unwrap();
    let mut slot = pool.lend(64).unwrap();
    slot.copy_from_slice(&[7; 64]);
    slot.set_len(40).unwrap();
    let span = slot.span();
    // Bad input, then no credit: each time the same op, whole.
    let refuse = |pair: &mut Pair, key: &[u8], slot: Slot, reason: SubmitError| {
        let refused = pair
            .submit(Submission::store(key, slot).user_data(9))
            .unwrap_err();
        assert_eq!(refused.reason, reason);
        assert_eq!((refused.op.op(), refused.op.key()), (OpKind::Store, key));
        let slot = refused.op.into_slot().unwrap();
        assert!(slot.span() == span && slot[..] == [7; 40]);
        slot
    };
    let slot = refuse(&mut pair, b"", slot, SubmitError::EmptyKey);
    let slot = refuse(&mut pair, b"k\0", slot, SubmitError::NulInKey { at: 1 });
    pair.submit(Submission::lookup("key")).unwrap();
    let slot = refuse(&mut pair, b"key", slot, SubmitError::NoCredit { depth: 1 });
    // It can be submitted as it is.
    drop(gate);
    pair.wait(1, None).unwrap();
    pair.completions().for_each(drop);
    let refused = pair
        .submit(Submission::store("", slot).user_data(9))
        .unwrap_err();
    let slot = refused.op.into_slot().unwrap();
    pair.submit(Submission::store("key", slot).user_data(9))
        .unwrap();
    pair.wait(1, None).unwrap();
    let done = pair.poll().unwrap();
    assert!(done.result.is_ok() && done.user_data == 9);
    // The same for a client.
    let client = engine.client();
    let back = client.blocking().store("a\0b", done.slot.unwrap());
    assert_eq!(back.result, Err(SubmitError::NulInKey { at: 1 }.into()));
    assert!(back.slot.unwrap().span() == span);
    assert_eq!(engine.stats().engine.refused, 5);
    assert_all_back(&engine, &pool, 2);
}

/// A refused op that is not submitted again is one value: dropping it gives the slot back.
#[test]
fn a_refused_op_that_is_dropped_loses_nothing() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let (engine, pool) = start(&sim, config(1));
    let mut pair = engine.pair(1).unwrap();
    for _ in 0..200 {
        assert!(
            pair.submit(Submission::store("", pool.lend(64).unwrap()))
                .is_err()
        );
    }
    assert_eq!(pair.credits(), 1);
    assert_all_back(&engine, &pool, 0);
}

#[test]
fn pairs_that_come_and_go_are_served_each_in_the_place_of_another() {
    let _dog = watchdog();
    let engine = Engine::builder(Arc::new(NullStore))
        .config(config(2))
        .start()
        .unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    let mut pair = engine.pair(1).unwrap();
                    pair.submit(Submission::lookup("key")).unwrap();
                    pair.wait(1, None).unwrap();
                    assert!(pair.poll().is_some());
                }
            });
        }
    });
    assert_eq!(engine.stats().engine.accepted, 4_000);
    assert_at_rest(&engine);
}
