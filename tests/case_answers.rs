//! Field cases about what callers are told: S1, S3, S4, S7, S13, S14, F7.

mod common_b;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use common_b::*;
use moonring::store::memory::ManualClock;
use moonring::store::{
    CallResult, DeleteBatch, LookupBatch, MemoryOptions, MemoryStore, NullStore, RetrieveBatch,
    SimOptions, Store, StoreBatch,
};
use moonring::{ClientError, Done, OpError, OpKind, Pair, Slot, StoreOutcome, Submission};

/// Retrieves these, published together; the results in their order.
fn retrieve_all(pair: &mut Pair, items: Vec<(&str, Slot)>) -> Vec<(Result<u64, OpError>, Slot)> {
    let n = items.len();
    let mut batch = pair.batch();
    for (i, (key, slot)) in items.into_iter().enumerate() {
        batch
            .push(Submission::retrieve(key, slot).user_data(i as u64))
            .unwrap();
    }
    batch.publish();
    let done = reap(pair, n);
    done.into_iter()
        .map(|c| (retrieved(&c), c.slot.unwrap()))
        .collect()
}

#[test]
fn s1_one_key_several_times_in_one_get_fills_every_buffer() {
    within(HANG, "S1", || {
        let watched = Watched::new(memory());
        let object = content(b"k", 1000);
        put(&*watched, b"k", &object);
        let (region, pool) = slots(2048, 16);
        let engine = start(watched.clone(), config(), &region);
        let mut pair = engine.pair(16).unwrap();
        let client = engine.client();
        for lens in [
            [1000, 1000, 1000, 1000],
            [1000, 1001, 1500, 2048],
            [2048, 1500, 1001, 1000],
            [10, 1000, 999, 2048],
            [2048, 1, 1, 1],
            [999, 998, 997, 996],
        ] {
            let items = lens.map(|len| ("k", canary_slot(&pool, len)));
            let got = retrieve_all(&mut pair, items.into());
            for ((result, slot), len) in got.into_iter().zip(lens) {
                assert_settled(result, slot, len, &object);
            }
            // The same by a client's batch form.
            let items = lens.map(|len| ("k", canary_slot(&pool, len)));
            let mut out = Vec::new();
            client.blocking().retrieve_many(items, &mut out);
            for (done, len) in out.into_iter().zip(lens) {
                let result = done.result.map_err(|e| match e {
                    ClientError::Failed(error) => error,
                    ClientError::Refused(reason) => panic!("{reason}"),
                    _ => unreachable!(),
                });
                assert_settled(result, done.slot.unwrap(), len, &object);
            }
        }
        // [k, j, k], j missing.
        let items = ["k", "j", "k"].map(|key| (key, canary_slot(&pool, 1200)));
        let mut got = retrieve_all(&mut pair, items.into());
        let (missing, _) = got.remove(1);
        assert_eq!(missing, Err(OpError::NotFound));
        for (result, slot) in got {
            assert_settled(result, slot, 1200, &object);
        }
        watched.assert_content();
        assert!(engine.stats().lane(OpKind::Retrieve).folded_ops > 0);
    });
}

#[test]
fn s1_two_callers_merged_by_the_worker_both_get_their_copy() {
    within(HANG, "S1, two callers", || {
        let sim = sim(memory(), SimOptions::default());
        let watched = Watched::new(sim.clone());
        let object = content(b"k", 1000);
        put(&*watched, b"k", &object);
        let (region, pool) = slots(2048, 16);
        let config = config().dedicated(OpKind::Retrieve, 1);
        let engine = start(watched.clone(), config, &region);
        for lens in [[1000, 1000], [500, 1000], [1000, 1500], [2048, 500]] {
            let gate = sim.gate().close(&[OpKind::Retrieve]);
            let mut plug = engine.pair(1).unwrap();
            submit(&mut plug, Submission::retrieve("j", pool.lend(1).unwrap()));
            assert!(sim.gate().wait_inside(OpKind::Retrieve, 1, HANG));
            let both = std::thread::scope(|scope| {
                let callers = lens.map(|len| {
                    let (engine, pool) = (&engine, &pool);
                    scope.spawn(move || {
                        let mut pair = engine.pair(1).unwrap();
                        retrieve_all(&mut pair, vec![("k", canary_slot(pool, len))]).remove(0)
                    })
                });
                eventually("both are queued", || engine.stats().engine.in_flight == 3);
                drop(gate);
                callers.map(|caller| caller.join().unwrap())
            });
            for ((result, slot), len) in both.into_iter().zip(lens) {
                assert_settled(result, slot, len, &object);
            }
            reap(&mut plug, 1);
        }
        watched.assert_content();
        assert_eq!(engine.stats().lane(OpKind::Retrieve).folded_ops, 4);
    });
}

#[test]
fn s3_a_second_store_of_a_key_says_so_and_changes_nothing() {
    within(HANG, "S3", || {
        let (region, pool) = slots(64, 4);
        let engine = start(memory(), config(), &region);
        let client = engine.client();
        let client = client.blocking();
        let a = client.store("k", slot_of(&pool, b"A"));
        assert_eq!(a.result, Ok(StoreOutcome::Stored));
        let b = client.store("k", slot_of(&pool, b"B, and longer"));
        assert_eq!(b.result, Ok(StoreOutcome::AlreadyThere));
        let got = client.retrieve("k", canary_slot(&pool, 64));
        assert_eq!(got.result, Ok(1));
        assert_holds(got.slot.unwrap(), b"A");
        // A store that can't tell claims nothing.
        let engine = start(Arc::new(NullStore), config(), &region);
        for _ in 0..2 {
            let done = engine.client().blocking().store("k", slot_of(&pool, b"A"));
            assert_eq!(done.result, Ok(StoreOutcome::Accepted));
        }
    });
}

/// A memory store whose leases last 10 s on a clock that stands still.
fn leasing() -> (Arc<MemoryStore>, ManualClock) {
    let clock = ManualClock::new();
    let options = MemoryOptions {
        lease: Duration::from_secs(10),
        clock: clock.clock(),
        ..MemoryOptions::default()
    };
    (Arc::new(MemoryStore::new(options).unwrap()), clock)
}

#[test]
fn s4_deleting_a_leased_key_needs_force_or_patience_and_nothing_probes_first() {
    within(HANG, "S4", || {
        let (memory, clock) = leasing();
        let watched = Watched::new(memory.clone());
        let (region, pool) = slots(64, 4);
        let engine = start(watched.clone(), config(), &region);
        let client = engine.client();
        let client = client.blocking();
        let failed = |error| Err(ClientError::Failed(error));
        for force in [false, true] {
            let stored = client.store("k", slot_of(&pool, b"v"));
            assert_eq!(stored.result, Ok(StoreOutcome::Stored));
            assert_eq!(client.lookup("k"), Ok(true), "takes the lease");
            watched.take_calls();
            // Had any of these probed, the lease would run from then on.
            for _ in 0..20 {
                assert_eq!(client.delete("k"), failed(OpError::Leased));
                clock.advance(Duration::from_millis(499));
            }
            match force {
                true => assert_eq!(client.delete_forced("k"), Ok(())),
                false => {
                    clock.advance(Duration::from_millis(21));
                    assert_eq!(client.delete("k"), Ok(()));
                }
            }
            assert_eq!(client.delete("k"), failed(OpError::NotFound));
            let calls = watched.take_calls();
            assert_eq!(calls.len(), 22, "one call each, and nothing else");
            assert!(calls.iter().all(|c| c.op == OpKind::Delete));
            assert_eq!(calls.iter().filter(|c| c.force).count(), usize::from(force));
        }
        let stats = engine.stats();
        let lane = stats.lane(OpKind::Delete);
        let counts = ["leased", "ok", "not_found"].map(|name| lane.count(name));
        assert_eq!(counts, [40, 2, 2]);
    });
}

#[test]
fn s14_present_absent_and_leased_are_three_results() {
    within(HANG, "S14", || {
        let (memory, _clock) = leasing();
        let (region, _pool) = slots(64, 4);
        let engine = start(memory.clone(), config(), &region);
        let client = engine.client();
        for by_pair in [false, true] {
            put(&*memory, b"present", b"v");
            put(&*memory, b"leased", b"v");
            assert_eq!(client.blocking().lookup("leased"), Ok(true));
            let keys = ["present", "absent", "leased"];
            let results = if by_pair {
                let mut pair = engine.pair(4).unwrap();
                let mut batch = pair.batch();
                for (i, key) in keys.iter().enumerate() {
                    let op = Submission::delete(key).user_data(i as u64);
                    batch.push(op).unwrap();
                }
                batch.publish();
                let done = reap(&mut pair, 3);
                let result =
                    |c: &moonring::Completion| c.result.map(|d| assert_eq!(d, Done::Deleted));
                done.iter().map(result).collect()
            } else {
                let mut out = Vec::new();
                client.blocking().delete_many(keys, &mut out);
                let failed = |e| match e {
                    ClientError::Failed(error) => error,
                    other => panic!("{other}"),
                };
                out.into_iter()
                    .map(|r| r.map_err(failed))
                    .collect::<Vec<_>>()
            };
            let expected = [Ok(()), Err(OpError::NotFound), Err(OpError::Leased)];
            assert_eq!(results, expected, "by pair: {by_pair}");
            assert_eq!(memory.objects(), 1);
        }
    });
}

/// Knows nothing of keys that begin with `?`, in any kind of op.
struct HalfBlind(Arc<dyn Store>);

impl HalfBlind {
    fn blind(key: &[u8]) -> bool {
        key.starts_with(b"?")
    }
}

impl Store for HalfBlind {
    fn name(&self) -> &str {
        "half blind"
    }
    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        let answer = self.0.batch_exists(batch);
        for i in 0..batch.len() {
            if Self::blind(batch.key(i)) {
                batch.set(i, Err(OpError::RpcFailed));
            }
        }
        answer
    }
    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        self.0.batch_get_into(batch)
    }
    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        self.0.batch_put_from(batch)
    }
    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        self.0.batch_remove(batch)
    }
}

#[test]
fn s7_an_unknown_key_is_not_a_missing_one_and_hides_no_other() {
    within(HANG, "S7", || {
        let memory = memory();
        put(&*memory, b"yes", b"v");
        put(&*memory, b"also", b"v");
        let watched = Watched::new(Arc::new(HalfBlind(memory)));
        let (region, _pool) = slots(64, 1);
        let engine = start(watched.clone(), config(), &region);
        let client = engine.client();
        let client = client.blocking();
        let unknown = Err(ClientError::Failed(OpError::RpcFailed));
        let mut out = Vec::new();
        client.lookup_many(["yes", "?", "no", "also", "?again", "no"], &mut out);
        let expected = [Ok(true), unknown, Ok(false), Ok(true), unknown, Ok(false)];
        assert_eq!(out, expected);
        assert_eq!(client.lookup("?"), unknown);
        assert_eq!(client.lookup("no"), Ok(false));
        let prefix = client.lookup_prefix(["yes", "also", "?", "yes"]);
        assert_eq!((prefix.len, prefix.unknown), (2, unknown.err()));
        let mut pair = engine.pair(4).unwrap();
        for (i, key) in ["?", "yes", "no"].into_iter().enumerate() {
            submit(&mut pair, Submission::lookup(key).user_data(i as u64));
        }
        let answers: Vec<_> = reap(&mut pair, 3).iter().map(|c| c.result).collect();
        let expected = [Err(OpError::RpcFailed), Ok(Done::Present), Ok(Done::Absent)];
        assert_eq!(answers, expected);
        let stats = engine.stats();
        let lane = stats.lane(OpKind::Lookup);
        assert_eq!(lane.count("rpc_failed"), 5);
        assert_eq!(lane.ops, 15);
        watched.assert_content();
    });
}

#[test]
fn s13_a_value_of_another_size_than_the_reader_thinks() {
    within(HANG, "S13", || {
        let memory = memory();
        let object = content(b"k", 65_536);
        put(&*memory, b"k", &object);
        let (region, pool) = slots(128 << 10, 8);
        let engine = start(memory, config(), &region);
        let client = engine.client();
        let client = client.blocking();
        let mut pair = engine.pair(8).unwrap();
        let object_len = NonZeroU64::new(65_536);
        let short = OpError::ShortBuffer { object_len };
        let other = OpError::LengthMismatch { object_len };
        for (len, exact, expected) in [
            (32 << 10, false, Err(short)),
            (128 << 10, false, Ok(65_536)),
            (64 << 10, false, Ok(65_536)),
            (32 << 10, true, Err(short)),
            (128 << 10, true, Err(other)),
            (65_535, true, Err(short)),
            (65_537, true, Err(other)),
            (64 << 10, true, Ok(65_536)),
        ] {
            let op = Submission::retrieve("k", canary_slot(&pool, len));
            submit(&mut pair, if exact { op.exact() } else { op });
            let by_pair = reap(&mut pair, 1).remove(0);
            assert_eq!(retrieved(&by_pair), expected, "{len} {exact}");
            let by_client = match exact {
                true => client.retrieve_exact("k", canary_slot(&pool, len)),
                false => client.retrieve("k", canary_slot(&pool, len)),
            };
            assert_eq!(by_client.result, expected.map_err(ClientError::Failed));
            for slot in [by_pair.slot, by_client.slot] {
                let mut slot = slot.unwrap();
                assert_eq!(slot.len(), len, "the slot's length is its owner's");
                if expected.is_ok() {
                    assert_holds(slot, &object);
                } else {
                    slot.set_len(slot.capacity()).unwrap();
                    assert!(
                        slot[len..].iter().all(|b| *b == CANARY),
                        "behind the buffer"
                    );
                }
            }
        }
    });
}

#[test]
fn f7_two_keys_of_thirty_two_gone_cost_only_those_two() {
    within(HANG, "F7, retrieves", || {
        let memory = memory();
        let keys: Vec<String> = (0..32).map(|i| format!("key-{i}")).collect();
        for key in &keys {
            put(&*memory, key.as_bytes(), &content(key.as_bytes(), 4096));
        }
        let gone: Vec<&[u8]> = vec![keys[5].as_bytes(), keys[17].as_bytes()];
        moonring::store::direct::remove(&*memory, &gone, true).unwrap();
        let watched = Watched::new(sim(memory, SimOptions::default()));
        let (region, pool) = slots(4096, 32);
        let engine = start(watched.clone(), config().num_workers(1), &region);
        let mut pair = engine.pair(32).unwrap();
        let items = keys.iter().map(|k| (k.as_str(), canary_slot(&pool, 4096)));
        let by_pair = retrieve_all(&mut pair, items.collect());
        let check = |i: usize, result: Result<u64, OpError>, slot: Slot| match i {
            5 | 17 => assert_eq!(result, Err(OpError::NotFound)),
            _ => assert_settled(result, slot, 4096, &content(keys[i].as_bytes(), 4096)),
        };
        for (i, (result, slot)) in by_pair.into_iter().enumerate() {
            check(i, result, slot);
        }
        let mut out = Vec::new();
        let items = keys.iter().map(|k| (k, canary_slot(&pool, 4096)));
        engine.client().blocking().retrieve_many(items, &mut out);
        assert_eq!(out.len(), 32);
        for (i, done) in out.into_iter().enumerate() {
            let result = done.result.map_err(|e| match e {
                ClientError::Failed(error) => error,
                other => panic!("{other}"),
            });
            check(i, result, done.slot.unwrap());
        }
        assert!(watched.take_calls().iter().any(|c| c.keys.len() == 32));
    });
}

#[test]
fn f7_two_stores_that_do_not_fit_cost_only_those_two() {
    within(HANG, "F7, stores", || {
        let options = MemoryOptions {
            capacity: 100_000,
            lease: Duration::ZERO,
            ..MemoryOptions::default()
        };
        let memory = Arc::new(MemoryStore::new(options).unwrap());
        let watched = Watched::new(sim(memory.clone(), SimOptions::default()));
        let (region, pool) = slots(200_000, 32);
        let engine = start(watched.clone(), config().num_workers(1), &region);
        let keys: Vec<String> = (0..32).map(|i| format!("key-{i}")).collect();
        // Two are longer than the whole store.
        let len = |i: usize| if [3, 30].contains(&i) { 150_000 } else { 1000 };
        let items = keys.iter().enumerate();
        let items = items.map(|(i, k)| (k, slot_of(&pool, &content(k.as_bytes(), len(i)))));
        let mut out = Vec::new();
        engine.client().blocking().store_many(items, &mut out);
        for (i, done) in out.drain(..).enumerate() {
            let expected = match len(i) {
                1000 => Ok(StoreOutcome::Stored),
                _ => Err(ClientError::Failed(OpError::NoSpace)),
            };
            assert_eq!(done.result, expected, "{i}");
            // The slot is back, with the bytes that were to be stored.
            assert!(done.slot.unwrap()[..] == content(keys[i].as_bytes(), len(i)));
        }
        assert!(watched.take_calls().iter().any(|c| c.keys.len() > 1));
        assert_eq!(memory.objects(), 30);
        let mut pair = engine.pair(32).unwrap();
        let items = keys.iter().map(|k| (k.as_str(), canary_slot(&pool, 1000)));
        for (i, (result, slot)) in retrieve_all(&mut pair, items.collect())
            .into_iter()
            .enumerate()
        {
            match len(i) {
                1000 => assert_settled(result, slot, 1000, &content(keys[i].as_bytes(), 1000)),
                _ => assert_eq!(result, Err(OpError::NotFound)),
            }
        }
    });
}
