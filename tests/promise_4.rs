//! Promise 4: merging adds no wait. An idle lane sends at once what is there, a busy one grows its batches by itself, bounded
//! by keys and bytes. Each op has its own result; whose op failed is never confused.

mod common_b;

use std::sync::{Arc, Barrier};
use std::time::Duration;

use common_b::*;
use moonring::store::{
    CallResult, DeleteBatch, LookupBatch, RetrieveBatch, SimOptions, Store, StoreBatch,
};
use moonring::{
    ClientError, Done, Engine, OpError, OpKind, StoreOutcome, Submission, block_on, store::direct,
};

#[test]
fn an_idle_lane_sends_one_op_at_once() {
    let watched = Watched::new(memory());
    put(&*watched, b"k", b"v");
    watched.take_calls();
    let (region, _pool) = slots(64, 1);
    let (engine, mut drivers) = Engine::builder(watched.clone())
        .region(region)
        .start_by_hand()
        .unwrap();
    let mut pair = engine.pair(8).unwrap();
    let client = engine.client();
    for round in 0..3 {
        submit(&mut pair, Submission::lookup(b"k").user_data(round));
        // One round of a worker, and nothing else that could help.
        assert!(drivers[0].poll_once());
        let done = pair.poll().expect("the op was sent in the first round");
        assert_eq!((done.user_data, done.result), (round, Ok(Done::Present)));
        let mut lookup = std::pin::pin!(client.lookup("k"));
        assert!(drivers[0].poll_once());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(lookup.as_mut().poll(&mut cx).is_ready());
        assert!(!drivers[0].poll_once());
    }
    let calls = watched.take_calls();
    assert_eq!(calls.len(), 6);
    assert!(calls.iter().all(|c| c.keys == [b"k"]));
}

#[test]
fn a_busy_lane_merges_what_queued_meanwhile() {
    within(HANG, "a busy lane merges", || {
        let sim = sim(memory(), SimOptions::default());
        let watched = Watched::new(sim.clone());
        let (region, pool) = slots(64, 64);
        for i in 0..40 {
            let key = format!("key-{i}");
            put(&*watched, key.as_bytes(), &content(key.as_bytes(), 64));
        }
        watched.take_calls();
        let config = config().dedicated(OpKind::Retrieve, 1);
        let engine = start(watched.clone(), config, &region);
        let gate = sim.gate().close(&[OpKind::Retrieve]);
        let mut plug = engine.pair(1).unwrap();
        submit(
            &mut plug,
            Submission::retrieve(b"key-0", pool.lend(64).unwrap()),
        );
        assert!(sim.gate().wait_inside(OpKind::Retrieve, 1, HANG));

        // While that call is under way: 30 ops of three pairs, 10 of a client.
        let mut pairs: Vec<_> = (0..3).map(|_| engine.pair(16).unwrap()).collect();
        let client = engine.client();
        let keys: Vec<String> = (0..40).map(|i| format!("key-{i}")).collect();
        let mut futures = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            let slot = canary_slot(&pool, 64);
            match pairs.get_mut(i % 4) {
                Some(pair) => submit(pair, Submission::retrieve(key, slot).user_data(i as u64)),
                None => futures.push((i, client.retrieve(key, slot))),
            }
        }
        gate.admit(2);
        for (p, pair) in pairs.iter_mut().enumerate() {
            for (nth, done) in reap(pair, 10).into_iter().enumerate() {
                let i = 4 * nth + p;
                assert_eq!(done.user_data, i as u64);
                assert_eq!(done.result, Ok(Done::Retrieved(64)));
                assert_holds(done.slot.unwrap(), &content(keys[i].as_bytes(), 64));
            }
        }
        for (i, future) in futures {
            let done = block_on(future);
            assert_eq!(done.result, Ok(64));
            assert_holds(done.slot.unwrap(), &content(keys[i].as_bytes(), 64));
        }
        reap(&mut plug, 1);
        let sizes: Vec<_> = watched.take_calls().iter().map(|c| c.keys.len()).collect();
        assert_eq!(sizes, [1, 40], "one call for all that queued meanwhile");
        let stats = engine.stats();
        let lane = stats.lane(OpKind::Retrieve);
        assert_eq!((lane.calls, lane.ops, lane.keys), (2, 41, 41));
        // The plug; three pairs and one client.
        assert_eq!(lane.callers, 1 + 4);
    });
}

#[test]
fn batches_are_bounded_by_keys() {
    let watched = Watched::new(memory());
    let (region, _pool) = slots(64, 1);
    let (engine, mut drivers) = Engine::builder(watched.clone())
        .config(config().max_batch(8))
        .region(region)
        .start_by_hand()
        .unwrap();
    let mut pairs: Vec<_> = (0..3).map(|_| engine.pair(16).unwrap()).collect();
    for i in 0..21 {
        submit(&mut pairs[i % 3], Submission::lookup(&format!("{i}")));
    }
    while drivers[0].poll_once() {}
    let sizes: Vec<_> = watched.take_calls().iter().map(|c| c.keys.len()).collect();
    assert_eq!(sizes, [8, 8, 5]);
    for pair in &mut pairs {
        assert_eq!(pair.completions().count(), 7);
    }
}

#[test]
fn batches_are_bounded_by_bytes_and_one_larger_value_goes_alone() {
    let mut rng = Rng::new(4);
    for bound in [1, 999, 1000, 4096, 10_000] {
        let watched = Watched::new(memory());
        let (region, pool) = slots(4096, 128);
        let (engine, mut drivers) = Engine::builder(watched.clone())
            .config(config().max_batch(16).max_batch_bytes(bound))
            .region(region)
            .start_by_hand()
            .unwrap();
        let mut pairs: Vec<_> = (0..4).map(|_| engine.pair(64).unwrap()).collect();
        let client = engine.client();
        let keys: Vec<String> = (0..120).map(|i| i.to_string()).collect();
        let mut futures = Vec::new();
        let mut total = 0;
        for (i, key) in keys.iter().enumerate() {
            let len = [1, 10, 500, 999, 1000, 1001, 2048, 4096][rng.below(8)];
            total += len;
            let slot = slot_of(&pool, &vec![7; len]);
            match pairs.get_mut(i % 5) {
                Some(pair) => submit(pair, Submission::store(key, slot)),
                None => futures.push(client.store(key, slot)),
            }
        }
        let mut rounds = 0;
        while drivers[0].poll_once() {
            rounds += 1;
        }
        let calls = watched.take_calls();
        assert_eq!(calls.len(), rounds);
        assert_eq!(calls.iter().map(Call::bytes).sum::<usize>(), total);
        assert_eq!(calls.iter().map(|c| c.keys.len()).sum::<usize>(), 120);
        for call in &calls {
            assert!(call.keys.len() <= 16);
            assert!(
                call.bytes() <= bound || call.keys.len() == 1,
                "{} bytes in {:?} over {bound}",
                call.bytes(),
                call.lens
            );
        }
        if bound >= 1000 {
            assert!(calls.len() < 120, "nothing was merged");
        }
    }
}

/// Answers by what the key says: `ok-..`, `missing-..`, `busy-..`, `store-17-..`. Wrong in nothing else.
struct ByKey;

fn told(key: &[u8]) -> Result<(), OpError> {
    let key = std::str::from_utf8(key).unwrap();
    match key.split('-').collect::<Vec<_>>()[..] {
        ["ok", ..] => Ok(()),
        ["missing", ..] => Err(OpError::NotFound),
        ["busy", ..] => Err(OpError::Busy),
        ["leased", ..] => Err(OpError::Leased),
        ["code", n, ..] => Err(OpError::Store(n.parse().unwrap())),
        _ => panic!("{key}"),
    }
}

/// The bytes that the key's object has.
fn stamp(key: &[u8]) -> u64 {
    Rng::new(
        key.iter()
            .fold(1u64, |h, b| h.wrapping_mul(131).wrapping_add(u64::from(*b))),
    )
    .next()
}

impl Store for ByKey {
    fn name(&self) -> &str {
        "by key"
    }
    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            let there = match told(batch.key(i)) {
                Err(OpError::NotFound) => Ok(false),
                other => other.map(|()| true),
            };
            batch.set(i, there);
        }
        Ok(batch.len())
    }
    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            match told(batch.key(i)) {
                Ok(()) => {
                    let bytes = stamp(batch.key(i)).to_le_bytes();
                    batch.fill(i, &bytes);
                }
                Err(error) => batch.set(i, Err(error)),
            }
        }
        Ok(batch.len())
    }
    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            // The bytes must be those of this key.
            let good = batch.bytes(i) == stamp(batch.key(i)).to_le_bytes();
            let outcome = match good {
                true => told(batch.key(i)).map(|()| StoreOutcome::Stored),
                false => Err(OpError::ChecksumMismatch),
            };
            batch.set(i, outcome);
        }
        Ok(batch.len())
    }
    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            let gone = told(batch.key(i));
            batch.set(i, gone);
        }
        Ok(batch.len())
    }
}

#[test]
fn each_op_has_its_own_result_and_nobody_gets_anothers() {
    within(HANG, "mixed keys of several callers", || {
        let (region, pool) = slots(64, 400);
        let watched = Watched::counting(Arc::new(ByKey));
        let engine = start(watched.clone(), config().num_workers(3), &region);
        let rounds = sized(150, 2000);
        let key_of = |caller: usize, n: u64, rng: &mut Rng| {
            let kind = ["ok", "ok", "missing", "busy", "leased", "code-17", "code-9"];
            // Some keys are the same for all callers.
            match rng.below(4) {
                0 => format!("{}-shared-{}", kind[rng.below(7)], rng.below(3)),
                _ => format!("{}-{caller}-{n}", kind[rng.below(7)]),
            }
        };
        let expect = |op: OpKind, key: &str| -> Result<Done, OpError> {
            match (op, told(key.as_bytes())) {
                (OpKind::Lookup, Err(OpError::NotFound)) => Ok(Done::Absent),
                (_, Err(error)) => Err(error),
                (OpKind::Lookup, Ok(())) => Ok(Done::Present),
                (OpKind::Retrieve, Ok(())) => Ok(Done::Retrieved(8)),
                (OpKind::Store, Ok(())) => Ok(Done::Store(StoreOutcome::Stored)),
                (OpKind::Delete, Ok(())) => Ok(Done::Deleted),
            }
        };
        std::thread::scope(|scope| {
            for caller in 0..3 {
                let (engine, pool) = (&engine, &pool);
                scope.spawn(move || {
                    let mut pair = engine.pair(64).unwrap();
                    let mut rng = Rng::new(caller as u64);
                    for round in 0..rounds {
                        let ops: Vec<_> = (0..64)
                            .map(|n| {
                                let op = OpKind::ALL[rng.below(4)];
                                (op, key_of(caller, round * 64 + n, &mut rng))
                            })
                            .collect();
                        let mut batch = pair.batch();
                        for (i, (op, key)) in ops.iter().enumerate() {
                            let submission = match op {
                                OpKind::Lookup => Submission::lookup(key),
                                OpKind::Retrieve => {
                                    Submission::retrieve(key, canary_slot(pool, 64))
                                }
                                OpKind::Store => {
                                    let bytes = stamp(key.as_bytes()).to_le_bytes();
                                    Submission::store(key, slot_of(pool, &bytes))
                                }
                                OpKind::Delete => Submission::delete(key),
                            };
                            batch.push(submission.user_data(i as u64)).unwrap();
                        }
                        batch.publish();
                        for (i, done) in reap(&mut pair, 64).into_iter().enumerate() {
                            let (op, key) = &ops[i];
                            assert_eq!((done.user_data, done.op), (i as u64, *op));
                            assert_eq!(done.result, expect(*op, key), "{op} {key}");
                            if done.result == Ok(Done::Retrieved(8)) {
                                let bytes = stamp(key.as_bytes()).to_le_bytes();
                                assert_holds(done.slot.unwrap(), &bytes);
                            }
                        }
                    }
                });
            }
            for caller in 3..5 {
                let client = engine.client();
                let pool = &pool;
                scope.spawn(move || {
                    let mut rng = Rng::new(caller as u64);
                    let (mut there, mut got) = (Vec::new(), Vec::new());
                    for round in 0..rounds {
                        let keys: Vec<_> = (0..16)
                            .map(|n| key_of(caller, round * 16 + n, &mut rng))
                            .collect();
                        client.blocking().lookup_many(&keys, &mut there);
                        let items = keys.iter().map(|key| (key, canary_slot(pool, 64)));
                        client.blocking().retrieve_many(items, &mut got);
                        for (i, (key, got)) in keys.iter().zip(got.drain(..)).enumerate() {
                            let expected = told(key.as_bytes());
                            let present = match expected {
                                Err(OpError::NotFound) => Ok(false),
                                other => other.map(|()| true),
                            };
                            assert_eq!(there[i], present.map_err(ClientError::Failed), "{key}");
                            let eight = expected.map(|()| 8).map_err(ClientError::Failed);
                            assert_eq!(got.result, eight, "{key}");
                            if expected.is_ok() {
                                let bytes = stamp(key.as_bytes()).to_le_bytes();
                                assert_holds(got.slot.unwrap(), &bytes);
                            }
                        }
                    }
                });
            }
        });
        watched.assert_content();
        let stats = engine.stats();
        assert_eq!(stats.engine.in_flight, 0);
        assert_eq!(stats.engine.accepted, rounds * (3 * 64 + 2 * 32));
        let merged = OpKind::ALL.map(|op| stats.lane(op).callers_per_call());
        assert!(merged.iter().any(|n| *n > 1.0), "never merged: {merged:?}");
    });
}

#[test]
fn large_values_are_shared_out_between_idle_workers() {
    within(HANG, "eight stores of 8 MiB", || {
        let sim = sim(memory(), SimOptions::default());
        let (region, pool) = slots(8 << 20, 8);
        let config = config().dedicated(OpKind::Store, 4);
        let engine = start(sim.clone(), config, &region);
        let gate = sim.gate().close(&[OpKind::Store]);
        let mut pair = engine.pair(8).unwrap();
        let mut batch = pair.batch();
        for i in 0..8 {
            let slot = pool.lend(8 << 20).unwrap();
            batch
                .push(Submission::store(&format!("{i}"), slot))
                .unwrap();
        }
        batch.publish();
        assert!(
            sim.gate().wait_inside(OpKind::Store, 4, HANG),
            "only {} calls at once",
            sim.gate().inside(OpKind::Store)
        );
        drop(gate);
        for done in reap(&mut pair, 8) {
            assert_eq!(done.result, Ok(Done::Store(StoreOutcome::Stored)));
        }
    });
}

/// Three of four shared workers may serve stores at a time: the fourth is idle, and of no use to them.
#[test]
fn a_worker_that_may_not_serve_the_lane_splits_no_batch() {
    within(HANG, "shared pool", || {
        let sim = sim(memory(), SimOptions::default());
        let watched = Watched::new(sim.clone());
        let (region, pool) = slots(64 << 10, 103);
        // 64 KiB a value, 1 MiB to share, 64 MiB a call at most.
        let engine = start(watched.clone(), config(), &region);
        let gate = sim.gate().close(&[OpKind::Store]);
        let mut pair = engine.pair(128).unwrap();
        for i in 0..3 {
            let slot = pool.lend(64 << 10).unwrap();
            submit(&mut pair, Submission::store(&format!("plug-{i}"), slot));
            assert!(sim.gate().wait_inside(OpKind::Store, i + 1, HANG));
        }
        let mut batch = pair.batch();
        for i in 0..100 {
            let slot = pool.lend(64 << 10).unwrap();
            batch
                .push(Submission::store(&format!("{i}"), slot))
                .unwrap();
        }
        batch.publish();
        gate.admit(1);
        assert!(sim.gate().wait_inside(OpKind::Store, 3, HANG));
        eventually("a fourth call", || watched.count(OpKind::Store) == 4);
        drop(gate);
        reap(&mut pair, 103);
        let sizes: Vec<_> = watched.take_calls().iter().map(|c| c.keys.len()).collect();
        assert_eq!(sizes, [1, 1, 1, 100]);
    });
}

/// 640 retrieves of `callers` callers at a time, on a store that takes 200 us a call, with one retrieve worker. Returns the
/// number of store calls, and callers per call.
fn calls_of(callers: usize, by_client: bool) -> (u64, f64) {
    let options = SimOptions {
        delay: Duration::from_micros(200),
        ..SimOptions::default()
    };
    let memory = memory();
    let keys: Vec<String> = (0..640).map(|i| format!("key-{i}")).collect();
    for key in &keys {
        put(&*memory, key.as_bytes(), &content(key.as_bytes(), 64));
    }
    let (region, pool) = slots(64, 64);
    let config = config().dedicated(OpKind::Retrieve, 1);
    let engine = start(sim(memory, options), config, &region);
    let barrier = Barrier::new(callers);
    std::thread::scope(|scope| {
        for mine in keys.chunks(640 / callers) {
            let (engine, pool, barrier) = (&engine, &pool, &barrier);
            scope.spawn(move || {
                let client = engine.client();
                let mut pair = engine.pair(1).unwrap();
                barrier.wait();
                for key in mine {
                    let slot = canary_slot(pool, 64);
                    let slot = if by_client {
                        let done = client.blocking().retrieve(key, slot);
                        assert_eq!(done.result, Ok(64));
                        done.slot
                    } else {
                        submit(&mut pair, Submission::retrieve(key, slot));
                        let done = reap(&mut pair, 1).remove(0);
                        assert_eq!(done.result, Ok(Done::Retrieved(64)));
                        done.slot
                    };
                    assert_holds(slot.unwrap(), &content(key.as_bytes(), 64));
                }
            });
        }
    });
    let stats = engine.stats();
    let lane = stats.lane(OpKind::Retrieve);
    assert_eq!(lane.ops, 640);
    (lane.calls, lane.callers_per_call())
}

#[test]
fn sixty_four_callers_make_at_most_a_quarter_of_the_calls_of_one() {
    within(HANG, "64 callers", || {
        for by_client in [false, true] {
            let (alone, one) = calls_of(1, by_client);
            assert_eq!((alone, one), (640, 1.0));
            let (together, callers) = calls_of(64, by_client);
            assert!(
                together * 4 <= alone,
                "{together} against {alone}, client: {by_client}"
            );
            assert!(callers >= 4.0, "{callers}, client: {by_client}");
        }
    });
}

#[test]
fn the_store_of_these_tests_answers_by_key() {
    let there = direct::exists(&ByKey, &[b"ok-1", b"missing-1", b"code-17-x"]).unwrap();
    assert_eq!(there, [Ok(true), Ok(false), Err(OpError::Store(17))]);
}
