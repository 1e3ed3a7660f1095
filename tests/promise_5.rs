//! Promise 5: a key stands in a store call at most once. Of equal retrieves the one with the longest buffer, the leader, goes to
//! the store; each other is settled against its own buffer. Errors of the key or the call are inherited. Equal stores fold
//! only where span and length are identical.

mod common_b;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;

use common_b::*;
use moonring::store::sim::When;
use moonring::store::{MemoryStore, SimOptions, Store, direct};
use moonring::{
    ClientError, Done, Driver, Engine, OpError, OpKind, Region, SlotPool, Span, StoreOutcome,
    Submission, block_on,
};
use std::sync::Arc;

/// An engine that is driven by hand, on a watched memory store.
struct ByHand {
    memory: Arc<MemoryStore>,
    watched: Arc<Watched>,
    region: Region,
    pool: SlotPool,
    engine: Engine,
    driver: Driver,
}

fn by_hand() -> ByHand {
    let memory = memory();
    let watched = Watched::new(memory.clone());
    let (region, pool) = slots(2048, 64);
    let (engine, mut drivers) = Engine::builder(watched.clone())
        .config(config())
        .region(region.clone())
        .start_by_hand()
        .unwrap();
    ByHand {
        memory,
        watched,
        region,
        pool,
        engine,
        driver: drivers.remove(0),
    }
}

#[test]
fn a_key_stands_at_most_once_in_a_call_whatever_is_asked() {
    within(2 * HANG, "hot keys", || {
        let memory = memory();
        let options = SimOptions {
            delay: std::time::Duration::from_micros(20),
            ..SimOptions::default()
        };
        let watched = Watched::counting(sim(memory, options));
        let (region, pool) = slots(2048, 6 * 32);
        let engine = start(watched.clone(), config().num_workers(3), &region);
        // Objects of these lengths; what a key's object is never changes.
        let keys: Vec<(String, Vec<u8>)> = [1, 64, 1000, 1500]
            .map(|len| (format!("hot-{len}"), content(&[len as u8], len)))
            .into();
        let rounds = sized(150, 5000);
        std::thread::scope(|scope| {
            for t in 0..4 {
                let (engine, pool, keys) = (&engine, &pool, &keys);
                scope.spawn(move || {
                    let mut pair = engine.pair(32).unwrap();
                    let mut rng = Rng::new(t);
                    for _ in 0..rounds {
                        let mut batch = pair.batch();
                        let mut asked = Vec::new();
                        for i in 0..32 {
                            let k = rng.below(4);
                            let (key, object) = &keys[k];
                            let (len, op) = match rng.below(8) {
                                0 => (0, Submission::lookup(key)),
                                1 => (0, Submission::store(key, slot_of(pool, object))),
                                2 => (0, Submission::delete(key)),
                                3 => (0, Submission::delete(key).force()),
                                _ => {
                                    let len = [1, 63, 64, 999, 1000, 1500, 2048][rng.below(7)];
                                    (len, Submission::retrieve(key, canary_slot(pool, len)))
                                }
                            };
                            asked.push((k, len));
                            batch.push(op.user_data(i)).unwrap();
                        }
                        batch.publish();
                        for done in reap(&mut pair, 32) {
                            let (k, len) = asked[done.user_data as usize];
                            let missing = done.result == Err(OpError::NotFound);
                            match done.op {
                                OpKind::Retrieve if !missing => {
                                    let result = retrieved(&done);
                                    assert_settled(result, done.slot.unwrap(), len, &keys[k].1);
                                }
                                OpKind::Delete | OpKind::Retrieve => {
                                    assert!(missing || done.result == Ok(Done::Deleted));
                                }
                                _ => assert!(done.result.is_ok(), "{:?}", done.result),
                            }
                        }
                    }
                });
            }
            for t in 4..6 {
                let (client, pool, keys) = (engine.client(), &pool, &keys);
                scope.spawn(move || {
                    let mut rng = Rng::new(t);
                    let mut got = Vec::new();
                    for _ in 0..rounds {
                        let asked: Vec<_> = (0..16)
                            .map(|_| (rng.below(4), [1, 64, 1000, 2048][rng.below(4)]))
                            .collect();
                        let items = asked
                            .iter()
                            .map(|(k, len)| (&keys[*k].0, canary_slot(pool, *len)));
                        client.blocking().retrieve_many(items, &mut got);
                        for ((k, len), done) in asked.iter().zip(got.drain(..)) {
                            let result = match done.result {
                                Ok(len) => Ok(len),
                                Err(ClientError::Failed(OpError::NotFound)) => continue,
                                Err(ClientError::Failed(error)) => Err(error),
                                Err(error) => panic!("{error}"),
                            };
                            assert_settled(result, done.slot.unwrap(), *len, &keys[*k].1);
                        }
                    }
                });
            }
        });
        watched.assert_content();
        let stats = engine.stats();
        for op in OpKind::ALL {
            let lane = stats.lane(op);
            assert_eq!(lane.keys + lane.folded_ops, lane.ops);
            // Two slots are never the same span.
            assert_eq!(lane.folded_ops > 0, op != OpKind::Store, "{op}");
        }
        assert_eq!(
            watched.keys(),
            stats.lanes.iter().map(|l| l.keys).sum::<u64>()
        );
    });
}

/// Two callers, one key, the store held by a gate until both are queued.
#[test]
fn two_callers_of_one_key_make_one_call_and_each_is_settled_against_its_own_buffer() {
    within(HANG, "two callers", || {
        let sim = sim(memory(), SimOptions::default());
        let watched = Watched::new(sim.clone());
        let object = content(b"k", 1000);
        put(&*watched, b"k", &object);
        put(&*watched, b"plug", b"plug");
        let (region, pool) = slots(2048, 4);
        let config = config().dedicated(OpKind::Retrieve, 1);
        let engine = start(watched.clone(), config, &region);
        let mut plug = engine.pair(1).unwrap();
        let mut a = engine.pair(1).unwrap();
        let mut b = engine.pair(1).unwrap();
        let client = engine.client();
        let lens = [1, 500, 999, 1000, 1001, 1500, 2048];
        let cases = lens.map(|a| lens.map(|b| (a, b)));
        for (nth, (len_a, len_b)) in cases.into_iter().flatten().enumerate() {
            let gate = sim.gate().close(&[OpKind::Retrieve]);
            submit(
                &mut plug,
                Submission::retrieve("plug", pool.lend(4).unwrap()),
            );
            assert!(sim.gate().wait_inside(OpKind::Retrieve, 1, HANG));
            watched.take_calls();
            let before = engine.stats();
            let (slot_a, slot_b) = (canary_slot(&pool, len_a), canary_slot(&pool, len_b));
            submit(&mut a, Submission::retrieve("k", slot_a));
            // Pair and pair, pair and client.
            let of_client = match nth % 2 {
                0 => Some(client.retrieve("k", slot_b)),
                _ => {
                    submit(&mut b, Submission::retrieve("k", slot_b));
                    None
                }
            };
            assert_eq!(engine.stats().engine.in_flight, 3);
            drop(gate);
            let done = reap(&mut a, 1).remove(0);
            assert_settled(retrieved(&done), done.slot.unwrap(), len_a, &object);
            let (result, slot) = match of_client {
                Some(future) => {
                    let done = block_on(future);
                    let failed = |e| match e {
                        ClientError::Failed(error) => error,
                        other => panic!("{other}"),
                    };
                    (done.result.map_err(failed), done.slot)
                }
                None => {
                    let done = reap(&mut b, 1).remove(0);
                    (retrieved(&done), done.slot)
                }
            };
            assert_settled(result, slot.unwrap(), len_b, &object);
            reap(&mut plug, 1);
            let calls = watched.take_calls();
            assert_eq!(calls.len(), 1, "{calls:?}");
            assert_eq!(
                (&calls[0].keys, &calls[0].lens),
                (&vec![b"k".to_vec()], &vec![len_a.max(len_b)])
            );
            let stats = engine.stats().since(&before);
            let lane = stats.lane(OpKind::Retrieve);
            // The plug's call ends in this window, too.
            assert_eq!((lane.folded_ops, lane.callers), (1, 1 + 2));
            let copied = if len_a.min(len_b) >= 1000 { 1000 } else { 0 };
            assert_eq!(lane.folded_bytes, copied, "{len_a} {len_b}");
        }
    });
}

/// Batches of retrieves at random, against the rule in plain words.
#[test]
fn folded_retrieves_are_settled_by_the_rule_in_all_their_mixtures() {
    let mut t = by_hand();
    let mut pairs: Vec<_> = (0..3).map(|_| t.engine.pair(16).unwrap()).collect();
    let objects: HashMap<&str, Vec<u8>> = [("a", 1), ("b", 700), ("c", 1400)]
        .map(|(key, len)| (key, content(key.as_bytes(), len)))
        .into();
    for (key, object) in &objects {
        put(&*t.memory, key.as_bytes(), object);
    }
    let mut rng = Rng::new(5);
    for round in 0..sized(400, 5000) {
        let mut asked = Vec::new();
        for i in 0..1 + rng.below(40) {
            let key = ["a", "b", "c", "missing"][rng.below(4)];
            let len = [1, 2, 699, 700, 701, 1400, 2048][rng.below(7)];
            let exact = rng.below(4) == 0;
            let op = Submission::retrieve(key, canary_slot(&t.pool, len)).user_data(i as u64);
            let op = if exact { op.exact() } else { op };
            // Pairs of 16 credits: beyond that, the next one.
            let pair = i / 16;
            submit(&mut pairs[pair], op);
            asked.push((key, len, exact));
        }
        assert!(t.driver.poll_once());
        let calls = t.watched.take_calls();
        assert_eq!(calls.len(), 1, "round {round}");
        let keys: HashSet<_> = asked.iter().map(|(key, ..)| *key).collect();
        assert_eq!(calls[0].keys.len(), keys.len());
        for (key, len) in calls[0].keys.iter().zip(&calls[0].lens) {
            let of_key = asked.iter().filter(|(k, ..)| k.as_bytes() == key);
            assert_eq!(
                of_key.map(|(_, len, _)| *len).max(),
                Some(*len),
                "the longest leads"
            );
        }
        for done in pairs.iter_mut().flat_map(|p| p.completions()) {
            let (key, len, exact) = asked[done.user_data as usize];
            let result = retrieved(&done);
            let Some(object) = objects.get(key) else {
                assert_eq!(result, Err(OpError::NotFound));
                continue;
            };
            let object_len = NonZeroU64::new(object.len() as u64);
            match exact && object.len() < len {
                true => assert_eq!(result, Err(OpError::LengthMismatch { object_len })),
                false => assert_settled(result, done.slot.unwrap(), len, object),
            }
        }
        assert!(!t.driver.poll_once());
    }
    t.watched.assert_content();
}

#[test]
fn errors_of_the_key_and_of_the_call_are_inherited() {
    within(HANG, "inherited errors", || {
        let first = |kind| When::calls_of(kind, [1]);
        for kind in [OpKind::Lookup, OpKind::Retrieve, OpKind::Delete] {
            let none = SimOptions::default;
            for (options, error) in [
                (
                    SimOptions {
                        key_errors: first(kind),
                        ..none()
                    },
                    OpError::TransferFailed,
                ),
                (
                    SimOptions {
                        call_errors: first(kind),
                        ..none()
                    },
                    OpError::RpcFailed,
                ),
                (
                    SimOptions {
                        wrong_counts: first(kind),
                        ..none()
                    },
                    OpError::WrongResultCount,
                ),
                (
                    SimOptions {
                        panics: first(kind),
                        ..none()
                    },
                    OpError::StorePanicked,
                ),
            ] {
                let memory = memory();
                put(&*memory, b"k", &[7; 100]);
                let watched = Watched::new(sim(memory, options));
                let (region, pool) = slots(256, 8);
                let (engine, mut drivers) = Engine::builder(watched.clone())
                    .region(region)
                    .start_by_hand()
                    .unwrap();
                let mut pairs: Vec<_> = (0..2).map(|_| engine.pair(4).unwrap()).collect();
                for (i, len) in [100, 256, 10, 200].into_iter().enumerate() {
                    let op = match kind {
                        OpKind::Lookup => Submission::lookup("k"),
                        OpKind::Retrieve => Submission::retrieve("k", canary_slot(&pool, len)),
                        _ => Submission::delete("k"),
                    };
                    submit(&mut pairs[i % 2], op);
                }
                assert!(drivers[0].poll_once());
                for done in pairs.iter_mut().flat_map(|p| p.completions()) {
                    assert_eq!(done.result, Err(error), "{kind}");
                }
                let calls = watched.take_calls();
                assert_eq!((calls.len(), calls[0].keys.len()), (1, 1), "{kind} {error}");
                assert_eq!(engine.stats().lane(kind).folded_bytes, 0);
                watched.assert_content();
            }
        }
    });
}

/// Writes nothing and says that it wrote more than the buffer holds.
struct Liar;

impl Store for Liar {
    fn name(&self) -> &str {
        "liar"
    }
    fn batch_exists(
        &self,
        _: &mut moonring::store::LookupBatch<'_>,
    ) -> moonring::store::CallResult {
        Err(OpError::Unsupported)
    }
    fn batch_get_into(
        &self,
        batch: &mut moonring::store::RetrieveBatch<'_>,
    ) -> moonring::store::CallResult {
        for i in 0..batch.len() {
            let more = batch.buf_lens()[i] as u64 + 1;
            batch.set(i, Ok(more));
        }
        Ok(batch.len())
    }
    fn batch_put_from(
        &self,
        _: &mut moonring::store::StoreBatch<'_>,
    ) -> moonring::store::CallResult {
        Err(OpError::Unsupported)
    }
    fn batch_remove(
        &self,
        _: &mut moonring::store::DeleteBatch<'_>,
    ) -> moonring::store::CallResult {
        Err(OpError::Unsupported)
    }
}

#[test]
fn an_impossible_length_copies_nothing() {
    let (region, pool) = slots(256, 8);
    let (engine, mut drivers) = Engine::builder(Arc::new(Liar))
        .region(region)
        .start_by_hand()
        .unwrap();
    let mut pair = engine.pair(4).unwrap();
    for len in [100, 50, 100] {
        submit(
            &mut pair,
            Submission::retrieve("k", canary_slot(&pool, len)),
        );
    }
    assert!(drivers[0].poll_once());
    for done in pair.completions() {
        assert_eq!(done.result, Err(OpError::BadResult));
        assert_holds(done.slot.unwrap(), b"");
    }
    let stats = engine.stats();
    assert_eq!(stats.lane(OpKind::Retrieve).folded_bytes, 0);
    assert_eq!(stats.lane(OpKind::Retrieve).bytes, 0);
}

#[test]
fn equal_stores_fold_only_where_span_and_length_are_identical() {
    let mut t = by_hand();
    let base = t.region.uncarved();
    let mut pair = t.engine.pair(16).unwrap();
    let span = |offset: usize, len: usize| Span {
        offset: base.offset + offset,
        len,
        ..base
    };
    // SAFETY: no op is in flight, and no slot lies in what is uncarved.
    let bytes = unsafe {
        let start = t.region.as_mut_ptr(base).unwrap();
        std::slice::from_raw_parts_mut(start.as_ptr(), base.len)
    };
    bytes[..200].copy_from_slice(&content(b"bytes", 200));
    let bytes = bytes[..200].to_vec();
    let stored = Ok(Done::Store(StoreOutcome::Stored));
    let there = Ok(Done::Store(StoreOutcome::AlreadyThere));
    let (a, b) = (span(0, 100), span(100, 100));
    let (shorter, shifted) = (span(0, 99), span(1, 100));
    for (nth, (spans, calls, results)) in [
        (vec![a, a], vec![1], vec![stored, stored]),
        (vec![a, b], vec![1, 1], vec![stored, there]),
        (vec![a, shorter], vec![1, 1], vec![stored, there]),
        (vec![shorter, a], vec![1, 1], vec![stored, there]),
        (vec![a, shifted], vec![1, 1], vec![stored, there]),
        (vec![a, b, a], vec![1, 1], vec![stored, there, stored]),
        (
            vec![a, b, b, a],
            vec![1, 1],
            vec![stored, there, there, stored],
        ),
        (
            vec![a, b, shorter, b],
            vec![1, 1, 1],
            vec![stored, there, there, there],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("key-{nth}");
        for (i, &span) in spans.iter().enumerate() {
            // SAFETY: nobody writes these bytes while the ops are in flight.
            let op = unsafe { Submission::store_span(&key, span) };
            submit(&mut pair, op.user_data(i as u64));
        }
        // Beside it an op of another key, which shares the first call.
        let other = format!("other-{nth}");
        submit(
            &mut pair,
            Submission::store(&other, t.pool.lend(1).unwrap()).user_data(99),
        );
        assert!(t.driver.poll_once());
        let mut got: Vec<_> = reap(&mut pair, spans.len() + 1);
        assert_eq!(got.pop().unwrap().result, stored);
        let got: Vec<_> = got.iter().map(|c| c.result).collect();
        assert_eq!(got, results, "case {nth}");
        let seen = t.watched.take_calls();
        let mut expected = calls.clone();
        expected[0] += 1;
        assert_eq!(
            seen.iter().map(|c| c.keys.len()).collect::<Vec<_>>(),
            expected
        );
        // The first won.
        let mut buf = [0; 200];
        let len = spans[0].len;
        let got = direct::get_into(&*t.memory, &mut [(key.as_bytes(), &mut buf)]).unwrap();
        assert_eq!(got, [Ok(len as u64)]);
        let start = spans[0].offset - base.offset;
        assert_eq!(buf[..len], bytes[start..start + len]);
    }
    t.watched.assert_content();
    // Folded: one of [a, a], one of [a, b, a], two of [a, b, b, a], one of [a, b, shorter, b].
    let stats = t.engine.stats();
    let lane = stats.lane(OpKind::Store);
    assert_eq!((lane.folded_ops, lane.folded_bytes), (5, 0));
    assert_eq!(lane.keys + lane.folded_ops, lane.ops);
}

#[test]
fn equal_stores_from_two_slots_go_in_two_calls_and_the_first_wins() {
    within(HANG, "two stores", || {
        let sim = sim(memory(), SimOptions::default());
        let watched = Watched::new(sim.clone());
        let (region, pool) = slots(64, 8);
        let config = config().dedicated(OpKind::Store, 1);
        let engine = start(watched.clone(), config, &region);
        let gate = sim.gate().close(&[OpKind::Store]);
        let mut pair = engine.pair(4).unwrap();
        submit(
            &mut pair,
            Submission::store("plug", slot_of(&pool, b"plug")),
        );
        assert!(sim.gate().wait_inside(OpKind::Store, 1, HANG));
        // One caller, so that it is known which was first.
        submit(
            &mut pair,
            Submission::store("k", slot_of(&pool, b"first")).user_data(1),
        );
        submit(
            &mut pair,
            Submission::store("k", slot_of(&pool, b"other")).user_data(2),
        );
        drop(gate);
        let done = reap(&mut pair, 3);
        assert_eq!(done[1].result, Ok(Done::Store(StoreOutcome::Stored)));
        assert_eq!(done[2].result, Ok(Done::Store(StoreOutcome::AlreadyThere)));
        assert_eq!(watched.take_calls().len(), 3);
        submit(&mut pair, Submission::retrieve("k", canary_slot(&pool, 64)));
        let got = reap(&mut pair, 1).remove(0);
        assert_eq!(got.result, Ok(Done::Retrieved(5)));
        assert_holds(got.slot.unwrap(), b"first");
        watched.assert_content();
    });
}

#[test]
fn equal_deletes_fold_where_force_is_equal_and_go_in_a_further_call_where_not() {
    for forced_first in [false, true] {
        let mut t = by_hand();
        let mut pair = t.engine.pair(16).unwrap();
        for key in ["j", "k", "l"] {
            put(&*t.memory, key.as_bytes(), b"v");
        }
        let delete = |key: &'static str, force: bool| match force {
            true => Submission::delete(key).force(),
            false => Submission::delete(key),
        };
        for (i, (key, force)) in [
            ("j", forced_first),
            ("k", forced_first),
            ("k", !forced_first),
            ("k", forced_first),
            ("l", !forced_first),
        ]
        .into_iter()
        .enumerate()
        {
            submit(&mut pair, delete(key, force).user_data(i as u64));
        }
        assert!(t.driver.poll_once());
        let calls = t.watched.take_calls();
        let seen: Vec<_> = calls.iter().map(|c| (c.force, c.keys.concat())).collect();
        let expected = [
            (forced_first, b"jk".to_vec()),
            (!forced_first, b"kl".to_vec()),
        ];
        assert_eq!(seen, expected);
        let results: Vec<_> = reap(&mut pair, 5).iter().map(|c| c.result).collect();
        let (gone, missing) = (Ok(Done::Deleted), Err(OpError::NotFound));
        assert_eq!(results, [gone, gone, missing, gone, gone]);
        assert_eq!(t.engine.stats().lane(OpKind::Delete).folded_ops, 1);
        t.watched.assert_content();

        // Also where no key stands twice.
        for (key, force) in [("m", forced_first), ("n", !forced_first)] {
            put(&*t.memory, key.as_bytes(), b"v");
            submit(&mut pair, delete(key, force));
        }
        assert!(t.driver.poll_once());
        let calls = t.watched.take_calls();
        let seen: Vec<_> = calls.iter().map(|c| (c.force, c.keys.concat())).collect();
        let expected = [
            (forced_first, b"m".to_vec()),
            (!forced_first, b"n".to_vec()),
        ];
        assert_eq!(seen, expected);
    }
}

#[test]
fn a_forced_and_a_plain_delete_of_a_leased_key_each_get_their_own_answer() {
    let memory = memory_with(std::time::Duration::from_secs(3600));
    put(&*memory, b"k", b"v");
    assert_eq!(direct::exists(&*memory, &[b"k"]).unwrap(), [Ok(true)]);
    let (region, _pool) = slots(64, 1);
    let (engine, mut drivers) = Engine::builder(memory)
        .region(region)
        .start_by_hand()
        .unwrap();
    let mut pair = engine.pair(4).unwrap();
    for (i, op) in [
        Submission::delete("k"),
        Submission::delete("k").force(),
        Submission::delete("k"),
    ]
    .into_iter()
    .enumerate()
    {
        submit(&mut pair, op.user_data(i as u64));
    }
    assert!(drivers[0].poll_once());
    let results: Vec<_> = reap(&mut pair, 3).iter().map(|c| c.result).collect();
    let leased = Err(OpError::Leased);
    assert_eq!(results, [leased, Ok(Done::Deleted), leased]);
}

#[test]
fn equal_lookups_fold_and_all_get_the_answer() {
    let mut t = by_hand();
    put(&*t.memory, b"there", b"v");
    let mut pairs: Vec<_> = (0..3).map(|_| t.engine.pair(16).unwrap()).collect();
    let client = t.engine.client();
    let mut futures = Vec::new();
    for i in 0..40 {
        let key = ["there", "missing"][i % 2];
        match pairs.get_mut(i % 4) {
            Some(pair) => submit(pair, Submission::lookup(key).user_data(i as u64)),
            None => futures.push((i, client.lookup(key))),
        }
    }
    assert!(t.driver.poll_once());
    let answers = [Done::Present, Done::Absent];
    for done in pairs.iter_mut().flat_map(|p| p.completions()) {
        assert_eq!(done.result, Ok(answers[done.user_data as usize % 2]));
    }
    for (i, future) in futures {
        assert_eq!(block_on(future), Ok(i % 2 == 0));
    }
    let calls = t.watched.take_calls();
    assert_eq!((calls.len(), calls[0].keys.len()), (1, 2));
    assert_eq!(t.engine.stats().lane(OpKind::Lookup).folded_ops, 38);
}

#[test]
fn the_exact_flag_is_each_ops_own() {
    let mut t = by_hand();
    let object = content(b"k", 1000);
    put(&*t.memory, b"k", &object);
    let mut pair = t.engine.pair(16).unwrap();
    let object_len = NonZeroU64::new(1000);
    let short = Err(OpError::ShortBuffer { object_len });
    let mismatch = Err(OpError::LengthMismatch { object_len });
    let ok = Ok(Done::Retrieved(1000));
    // The leader is strict or not, among followers that are strict or not.
    for strict_leader in [false, true] {
        let leader = (
            1500,
            strict_leader,
            if strict_leader { mismatch } else { ok },
        );
        let cases = [
            leader,
            (1000, true, ok),
            (1000, false, ok),
            (1001, true, mismatch),
            (1001, false, ok),
            (999, true, short),
            (999, false, short),
        ];
        for (i, (len, exact, _)) in cases.iter().enumerate() {
            let op = Submission::retrieve("k", canary_slot(&t.pool, *len)).user_data(i as u64);
            submit(&mut pair, if *exact { op.exact() } else { op });
        }
        assert!(t.driver.poll_once());
        for (done, (len, exact, result)) in reap(&mut pair, 7).into_iter().zip(cases) {
            assert_eq!(done.result, result, "{len} {exact}");
            if result.is_ok() {
                assert_holds(done.slot.unwrap(), &object);
            }
        }
        assert_eq!(t.watched.take_calls().len(), 1);
    }
}
