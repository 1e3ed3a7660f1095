//! What is promised of statistics: histograms and codes add up to the ops; callers are counted exactly for pairs; a snapshot
//! while the engine runs contradicts neither itself nor an earlier one.

mod common_b;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use common_b::*;
use moonring::store::sim::When;
use moonring::store::{SimOptions, Store};
use moonring::{Engine, OpKind, Stats, Submission};

/// What must hold of any snapshot.
fn assert_consistent(stats: &Stats) {
    let engine = stats.engine;
    assert!(engine.completed <= engine.accepted, "{engine:?}");
    assert_eq!(engine.in_flight, engine.accepted - engine.completed);
    let completed: u64 = stats.lanes.iter().map(|lane| lane.completed()).sum();
    assert_eq!(completed, engine.completed);
    for lane in &stats.lanes {
        let by_code: u64 = lane.by_code().map(|(_, n)| n).sum();
        assert_eq!(by_code, lane.completed());
        let (queue, total) = (lane.queue().len(), lane.total().len());
        assert!(by_code <= lane.ops, "{by_code} results of {} ops", lane.ops);
        assert!(by_code <= total, "{by_code} results, {total} times");
        assert!(by_code <= queue, "{by_code} results, {queue} waits");
        assert!(lane.keys_per_call() <= lane.ops_per_call() * 1.5 + 4.0);
    }
}

/// What must hold of any two snapshots.
fn assert_grew(old: &Stats, new: &Stats) {
    let counts = |s: &Stats| {
        let e = s.engine;
        let mut all = vec![e.accepted, e.completed, e.refused];
        for lane in &s.lanes {
            all.extend([
                lane.ops,
                lane.calls,
                lane.keys,
                lane.callers,
                lane.folded_ops,
            ]);
            all.extend([lane.folded_bytes, lane.bytes, lane.completed()]);
            all.extend([lane.queue().len(), lane.call().len(), lane.total().len()]);
        }
        all
    };
    for (i, (old, new)) in counts(old).into_iter().zip(counts(new)).enumerate() {
        assert!(old <= new, "count {i}: {old}, later {new}");
    }
}

/// Once nothing is in flight, all counts agree exactly.
fn assert_adds_up(stats: &Stats) {
    assert_consistent(stats);
    assert_eq!(stats.engine.in_flight, 0);
    assert_eq!(stats.engine.accepted, stats.engine.completed);
    for lane in &stats.lanes {
        assert_eq!(lane.completed(), lane.ops, "{}", lane.op);
        assert_eq!(lane.queue().len(), lane.ops, "{}", lane.op);
        assert_eq!(lane.total().len(), lane.ops, "{}", lane.op);
        assert_eq!(lane.call().len(), lane.calls, "{}", lane.op);
        assert_eq!(lane.keys + lane.folded_ops, lane.ops, "{}", lane.op);
        assert!(lane.callers >= lane.calls && lane.callers <= lane.ops);
        let json = lane.to_json();
        assert_eq!(json["latency_us"]["count"], lane.ops);
        assert_eq!(json["queue_us"]["count"], lane.ops);
        assert_eq!(json["call_us"]["count"], lane.calls);
        let by_code = json["by_code"].as_object().unwrap();
        let sum: u64 = by_code.values().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(sum, lane.ops);
    }
}

/// Mixed work: good and bad keys, folded ones, calls that fail, futures that are dropped.
fn work(engine: &Engine, pool: &moonring::SlotPool, thread: u64, go_on: impl Fn(u64) -> bool) {
    let mut pair = engine.pair(64).unwrap();
    let client = engine.client();
    let mut rng = Rng::new(thread);
    for round in (0..).take_while(|round| go_on(*round)) {
        let mut batch = pair.batch();
        let keys: Vec<String> = (0..64).map(|_| format!("{}", rng.below(40))).collect();
        for (i, key) in keys.iter().enumerate() {
            let slot = || pool.lend(64).unwrap();
            let op = match (round + i as u64) % 4 {
                0 => Submission::lookup(key),
                1 => Submission::retrieve(key, slot()),
                2 => Submission::store(key, slot()),
                _ => Submission::delete(key),
            };
            batch.push(op).unwrap();
        }
        batch.publish();
        drop(client.lookup("dropped"));
        if round % 8 == 0 {
            drop(client.retrieve("kept", pool.lend(64).unwrap()));
            assert!(client.blocking().delete("missing").is_err());
        }
        // Half of them one by one, so that calls of all sizes are made.
        reap(&mut pair, 64);
        for _ in 0..4 {
            submit(
                &mut pair,
                Submission::retrieve("missing", pool.lend(1).unwrap()),
            );
            reap(&mut pair, 1);
        }
        assert!(pair.submit(Submission::lookup("")).is_err());
    }
}

/// Fails too often for circuits, which answer without calls.
fn troubled_store() -> std::sync::Arc<dyn Store> {
    let options = SimOptions {
        seed: 9,
        key_errors: When::rate(0.2),
        call_errors: When::rate(0.05),
        wrong_counts: When::rate(0.05),
        ..SimOptions::default()
    };
    sim(memory(), options)
}

#[test]
fn histograms_and_codes_add_up_to_the_ops() {
    within(HANG, "adding up", || {
        let (region, pool) = slots(64, 600);
        let engine = start(troubled_store(), config().fail_fast_after(0), &region);
        std::thread::scope(|scope| {
            for t in 0..4 {
                let (engine, pool) = (&engine, &pool);
                scope.spawn(move || work(engine, pool, t, |round| round < 30));
            }
        });
        eventually("all ops end", || engine.stats().engine.credits_in_use == 0);
        let stats = engine.stats();
        assert_adds_up(&stats);
        let expected = 4 * (30 * (64 + 1 + 4) + 4 * 2);
        assert_eq!(stats.engine.accepted, expected);
        assert_eq!(stats.engine.refused, 4 * 30);
        assert_eq!((stats.engine.pairs, stats.engine.clients), (0, 0));
        let retrieve = stats.lane(OpKind::Retrieve);
        for code in [
            "not_found",
            "transfer_failed",
            "rpc_failed",
            "wrong_result_count",
        ] {
            assert!(retrieve.count(code) > 0, "no {code}: {retrieve:?}");
        }
        assert!(stats.lanes.iter().any(|lane| lane.folded_ops > 0));
    });
}

struct StopAtDrop<'a>(&'a AtomicBool);

impl Drop for StopAtDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_snapshot_of_a_running_engine_is_never_contradictory() {
    look_while_it_runs(30);
}

#[test]
#[ignore = "1,500 snapshots: in release"]
fn release_no_snapshot_of_a_running_engine_is_contradictory() {
    look_while_it_runs(1500);
}

fn look_while_it_runs(snapshots: u64) {
    within(3 * HANG, "snapshots", || {
        let (region, pool) = slots(64, 600);
        let engine = start(troubled_store(), config().fail_fast_after(0), &region);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for t in 0..4 {
                let (engine, pool, stop) = (&engine, &pool, &stop);
                scope.spawn(move || work(engine, pool, t, |_| !stop.load(SeqCst)));
            }
            // Stops the others also where an assertion fails.
            let _stop = StopAtDrop(&stop);
            let mut last = engine.stats();
            for _ in 0..snapshots {
                let stats = engine.stats();
                assert_consistent(&stats);
                assert_grew(&last, &stats);
                last = stats;
            }
        });
        eventually("all ops end", || engine.stats().engine.credits_in_use == 0);
        assert_adds_up(&engine.stats());
    });
}

#[test]
fn callers_per_call_is_exact_for_pairs() {
    let (region, _pool) = slots(64, 1);
    let (engine, mut drivers) = Engine::builder(memory())
        .region(region)
        .start_by_hand()
        .unwrap();
    let mut pairs: Vec<_> = (0..70).map(|_| engine.pair(8).unwrap()).collect();
    let clients: Vec<_> = (0..3).map(|_| engine.client()).collect();
    let mut sum = 0;
    let mut calls = 0;
    for (of_pairs, of_clients) in [(1, 0), (2, 0), (70, 0), (3, 3), (0, 2), (64, 1)] {
        for _ in 0..2 {
            // Two ops each: a caller counts once.
            for pair in &mut pairs[..of_pairs] {
                submit(pair, Submission::lookup("a"));
                submit(pair, Submission::lookup("b"));
            }
            for client in clients[..of_clients].iter().chain(&clients[..of_clients]) {
                drop(client.lookup("c"));
            }
            // 128 ops a call at most: from 64 pairs on, it takes two.
            let before = engine.stats().lane(OpKind::Lookup).callers;
            while drivers[0].poll_once() {
                calls += 1;
            }
            let callers = engine.stats().lane(OpKind::Lookup).callers - before;
            assert_eq!(callers as usize, of_pairs + of_clients);
            sum += callers;
            pairs
                .iter_mut()
                .for_each(|p| p.completions().for_each(drop));
        }
    }
    let stats = engine.stats();
    let lane = stats.lane(OpKind::Lookup);
    assert_eq!((lane.callers, lane.calls), (sum, calls));
    assert_eq!(lane.callers_per_call(), sum as f64 / calls as f64);
}

#[test]
fn folded_bytes_and_moved_bytes_are_told_apart() {
    let store = memory();
    put(&*store, b"k", &[7; 1000]);
    let (region, pool) = slots(2000, 8);
    let (engine, mut drivers) = Engine::builder(store)
        .region(region)
        .start_by_hand()
        .unwrap();
    let mut pair = engine.pair(8).unwrap();
    // The leader's buffer is the longest; it alone is strict, and fails. The bytes moved all the same.
    submit(
        &mut pair,
        Submission::retrieve("k", pool.lend(1500).unwrap()).exact(),
    );
    submit(
        &mut pair,
        Submission::retrieve("k", pool.lend(1200).unwrap()),
    );
    submit(
        &mut pair,
        Submission::retrieve("k", pool.lend(1000).unwrap()),
    );
    submit(&mut pair, Submission::retrieve("k", pool.lend(10).unwrap()));
    assert!(drivers[0].poll_once());
    let ok = pair.completions().filter(|c| c.result.is_ok()).count();
    assert_eq!(ok, 2);
    let stats = engine.stats();
    let lane = stats.lane(OpKind::Retrieve);
    assert_eq!(
        (lane.calls, lane.keys, lane.ops, lane.folded_ops),
        (1, 1, 4, 3)
    );
    assert_eq!((lane.bytes, lane.folded_bytes), (1000, 2000));
}

#[test]
fn what_is_queued_is_a_gauge_of_its_kind() {
    let (engine, mut drivers) = Engine::builder(memory())
        .start_by_hand()
        .expect("a memory store");
    let queued = || engine.health().lanes.map(|lane| lane.queued);
    let mut pair = engine.pair(8).unwrap();
    let client = engine.client();
    assert_eq!(queued(), [0; 4]);
    submit(&mut pair, Submission::lookup("a"));
    submit(&mut pair, Submission::lookup("b").background());
    submit(&mut pair, Submission::delete("c"));
    let _op = client.lookup("d");
    assert_eq!(queued(), [3, 0, 0, 1]);
    while drivers[0].poll_once() {}
    assert_eq!(queued(), [0; 4]);
}
