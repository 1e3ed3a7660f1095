//! Promise 6: starvation is bounded. In a shared pool of n >= 2 workers no op kind holds more than n - 1 of them; takes go
//! round the kinds, lookups first, each kind at least 1 in 8; and nobody among many callers waits for ever.

mod common_b;

use std::sync::Arc;
use std::time::Duration;

use common_b::*;
use moonring::store::SimOptions;
use moonring::{Done, Driver, Engine, OpKind, Pair, SlotPool, Submission};

/// An op of this kind on this key, with a slot of `len` bytes where it needs one.
fn op<'k>(kind: OpKind, key: &'k str, pool: &SlotPool, len: usize) -> Submission<'k> {
    match kind {
        OpKind::Lookup => Submission::lookup(key),
        OpKind::Retrieve => Submission::retrieve(key, pool.lend(len).unwrap()),
        OpKind::Store => Submission::store(key, pool.lend(len).unwrap()),
        OpKind::Delete => Submission::delete(key),
    }
}

#[test]
fn no_kind_holds_more_than_all_but_one_of_a_shared_pool() {
    within(HANG, "blocked kinds", || {
        for workers in [2, 3, 4] {
            for blocked in OpKind::ALL {
                let sim = sim(memory(), SimOptions::default());
                let (region, pool) = slots(64, 32);
                // One op a call, so that there is work for every worker.
                let config = config().num_workers(workers).max_batch(1);
                let engine = start(sim.clone(), config, &region);
                let gate = sim.gate().close(&[blocked]);
                let mut stuck = engine.pair(16).unwrap();
                for i in 0..12 {
                    submit(&mut stuck, op(blocked, &format!("{i}"), &pool, 64));
                }
                assert!(sim.gate().wait_inside(blocked, workers - 1, HANG));
                // All other kinds are served meanwhile, again and again.
                let mut pair = engine.pair(16).unwrap();
                let client = engine.client();
                for round in 0..20 {
                    for kind in OpKind::ALL.into_iter().filter(|k| *k != blocked) {
                        submit(&mut pair, op(kind, &format!("other-{round}"), &pool, 64));
                    }
                    reap(&mut pair, 3);
                    if blocked != OpKind::Lookup {
                        assert_eq!(client.blocking().lookup("nothing"), Ok(false));
                    }
                }
                assert_eq!(sim.gate().inside(blocked), workers - 1, "{blocked}");
                drop(gate);
                reap(&mut stuck, 12);
            }
        }
    });
}

#[test]
fn a_pool_of_one_and_a_pool_of_one_kind_use_all_their_workers() {
    within(HANG, "whole pools", || {
        let all_but = |kind: OpKind| OpKind::ALL.into_iter().filter(move |k| *k != kind);
        for (config, inside) in [
            (config().num_workers(1), 1),
            (config().dedicated(OpKind::Retrieve, 3), 3),
            // The shared pool serves retrieves alone.
            (
                all_but(OpKind::Retrieve).fold(config().num_workers(3), |c, k| c.dedicated(k, 1)),
                3,
            ),
        ] {
            let sim = sim(memory(), SimOptions::default());
            let (region, pool) = slots(64, 8);
            let engine = start(sim.clone(), config.max_batch(1), &region);
            let _gate = sim.gate().close(&[OpKind::Retrieve]);
            let mut pair = engine.pair(8).unwrap();
            for i in 0..6 {
                submit(&mut pair, op(OpKind::Retrieve, &format!("{i}"), &pool, 64));
            }
            assert!(sim.gate().wait_inside(OpKind::Retrieve, inside, HANG));
        }
    });
}

/// Keeps `n` ops of each of `kinds` queued by a pair of its own, and tells the kind of each take.
struct Endless {
    pairs: Vec<(OpKind, Pair)>,
    pool: SlotPool,
    watched: Arc<Watched>,
    driver: Driver,
    _engine: Engine,
}

impl Endless {
    fn new(kinds: &[OpKind]) -> Self {
        let watched = Watched::new(memory());
        let (region, pool) = slots(64, 64);
        let (engine, mut drivers) = Engine::builder(watched.clone())
            .config(config().max_batch(1))
            .region(region)
            .start_by_hand()
            .unwrap();
        let pairs = kinds.iter().map(|k| (*k, engine.pair(4).unwrap()));
        Self {
            pairs: pairs.collect(),
            pool,
            watched,
            driver: drivers.remove(0),
            _engine: engine,
        }
    }

    fn take(&mut self) -> OpKind {
        for (kind, pair) in &mut self.pairs {
            while pair.credits() > 0 {
                submit(pair, op(*kind, "key", &self.pool, 64));
            }
        }
        assert!(self.driver.poll_once());
        for (_, pair) in &mut self.pairs {
            pair.completions().for_each(drop);
        }
        let calls = self.watched.take_calls();
        assert_eq!(calls.len(), 1);
        calls[0].op
    }
}

#[test]
fn takes_go_round_the_kinds_and_each_gets_one_in_eight() {
    let mut endless = Endless::new(&OpKind::ALL);
    let takes: Vec<_> = (0..800).map(|_| endless.take()).collect();
    for window in takes.windows(8) {
        for kind in OpKind::ALL {
            assert!(window.contains(&kind), "no {kind} in {window:?}");
        }
    }
    let lookups = takes.iter().filter(|k| **k == OpKind::Lookup).count();
    assert_eq!(lookups, 400, "lookups come first: every other take");
    // With any two or three kinds, too.
    for kinds in [
        &[OpKind::Lookup, OpKind::Delete][..],
        &[OpKind::Retrieve, OpKind::Store],
        &[OpKind::Store, OpKind::Delete],
        &[OpKind::Lookup, OpKind::Retrieve, OpKind::Delete],
    ] {
        let mut endless = Endless::new(kinds);
        let takes: Vec<_> = (0..100).map(|_| endless.take()).collect();
        for window in takes.windows(8) {
            for kind in kinds {
                assert!(window.contains(kind), "no {kind} in {window:?}");
            }
        }
    }
}

#[test]
fn with_endless_lookups_any_single_op_of_another_kind_is_taken_within_eight() {
    for kind in [OpKind::Retrieve, OpKind::Store, OpKind::Delete] {
        let mut endless = Endless::new(&[OpKind::Lookup]);
        let mut pair = endless._engine.pair(1).unwrap();
        for offset in 0..8 {
            (0..offset).for_each(|_| assert_eq!(endless.take(), OpKind::Lookup));
            submit(&mut pair, op(kind, "key", &endless.pool, 64));
            let takes = (1..).find(|_| endless.take() == kind).unwrap();
            assert!(takes <= 8, "{kind} after {takes} takes");
            assert!(pair.poll().is_some());
        }
    }
}

/// Many sources that always have more: pairs 1 to n, and the clients' ring. Returns the longest that any waited, in takes.
fn longest_wait(
    pairs: usize,
    max_batch: usize,
    max_bytes: usize,
    len_of: fn(usize) -> usize,
) -> usize {
    let watched = Watched::new(memory());
    let (region, pool) = slots(1024, pairs * 4 + 8);
    let config = config().max_batch(max_batch).max_batch_bytes(max_bytes);
    let (engine, mut drivers) = Engine::builder(watched.clone())
        .config(config)
        .region(region)
        .start_by_hand()
        .unwrap();
    let mut pairs: Vec<_> = (0..pairs).map(|_| engine.pair(4).unwrap()).collect();
    let client = engine.client();
    let client_key = format!("{}", pairs.len());
    let keys: Vec<String> = (0..pairs.len()).map(|i| i.to_string()).collect();
    let mut last_served = vec![0; pairs.len() + 1];
    let mut longest = 0;
    for take in 1..=600 {
        for (i, pair) in pairs.iter_mut().enumerate() {
            while pair.credits() > 0 {
                let slot = pool.lend(len_of(i)).unwrap();
                submit(pair, Submission::store(&keys[i], slot));
            }
        }
        // Dropped at once: the op goes on, and its slot comes back by itself.
        if pool.available() > 0 && take == last_served[pairs.len()] + 1 {
            drop(client.store(&client_key, pool.lend(len_of(pairs.len())).unwrap()));
        }
        assert!(drivers[0].poll_once());
        for pair in &mut pairs {
            pair.completions().for_each(drop);
        }
        for key in watched.take_calls().iter().flat_map(|c| &c.keys) {
            let i: usize = std::str::from_utf8(key).unwrap().parse().unwrap();
            last_served[i] = take;
        }
        let oldest = last_served.iter().min().unwrap();
        longest = longest.max(take - oldest);
    }
    longest
}

#[test]
fn among_a_hundred_pairs_none_starves() {
    // Seven ops a call, four from each pair: after 100 pairs' worth of takes all have had their turn.
    for max_batch in [1, 3, 7, 128] {
        let longest = longest_wait(100, max_batch, 64 << 20, |_| 64);
        assert!(longest <= 101, "{longest} takes, max_batch {max_batch}");
    }
}

#[test]
fn among_pairs_with_large_values_none_starves() {
    // No two values fit into one call.
    let longest = longest_wait(10, 128, 1000, |_| 600);
    assert!(longest <= 12, "{longest} takes");
    // One large value among small ones, which always leave too little room for it.
    let longest = longest_wait(10, 128, 1000, |i| if i == 5 { 1000 } else { 64 });
    assert!(longest <= 12, "{longest} takes");
    let longest = longest_wait(70, 128, 1000, |i| [900, 64, 500, 1000][i % 4]);
    assert!(longest <= 72, "{longest} takes");
}

#[test]
fn lookups_are_answered_while_stores_without_end_are_made() {
    within(HANG, "lookups beside stores", || {
        let options = SimOptions {
            delay: Duration::from_millis(2),
            ..SimOptions::default()
        };
        let sim = sim(memory(), options);
        let (region, pool) = slots(64, 64);
        let watched = Watched::new(sim);
        let config = config().num_workers(1).max_batch(1);
        let engine = start(watched.clone(), config, &region);
        let mut stores = engine.pair(32).unwrap();
        let mut lookups = engine.pair(1).unwrap();
        let mut so_far = 0;
        for i in 0..30 {
            while stores.credits() > 0 {
                submit(&mut stores, op(OpKind::Store, "key", &pool, 64));
            }
            submit(&mut lookups, Submission::lookup(&format!("{i}")));
            let before = watched.count(OpKind::Store);
            assert_eq!(reap(&mut lookups, 1)[0].result, Ok(Done::Absent));
            // By the order of the calls: this thread may have slept meanwhile.
            let calls = watched.take_calls();
            let stores_of = |calls: &[Call]| {
                let stores = calls.iter().filter(|call| call.op == OpKind::Store);
                stores.count() as u64
            };
            let at = calls.iter().position(|call| call.op == OpKind::Lookup);
            let at_lookup = so_far + stores_of(&calls[..at.unwrap()]);
            so_far += stores_of(&calls);
            let between = at_lookup.saturating_sub(before);
            assert!(between <= 8, "{between} stores before one lookup");
            stores.completions().for_each(drop);
        }
    });
}
