//! Many producers over shared workers: each completion comes to its own producer, with its own `user_data` and its own bytes,
//! once.

mod common_b;

use common_b::*;
use moonring::{Completion, Done, Engine, Pair, SlotPool, Submission};

const PRODUCERS: u64 = 4;
const DEPTH: u64 = 32;
const KEYS: u64 = 256;

fn key(producer: u64, n: u64) -> String {
    format!("model@{producer}@{:x}", n % KEYS)
}

/// Single retrieves, with up to `DEPTH` in flight, each of a key that only this producer asks for.
fn produce(engine: &Engine, pool: &SlotPool, producer: u64, ops: u64) {
    let mut pair = engine.pair(DEPTH as usize).unwrap();
    let mut seen = vec![false; ops as usize];
    let (mut sent, mut came) = (0, 0);
    let mut take = |done: Completion, came: &mut u64| {
        assert_eq!(done.user_data >> 32, producer, "another producer's");
        let n = done.user_data & 0xffff_ffff;
        assert!(
            !std::mem::replace(&mut seen[n as usize], true),
            "twice: {n}"
        );
        assert_eq!(done.result, Ok(Done::Retrieved(16)));
        let slot = done.slot.unwrap();
        assert_eq!(slot[..8], producer.to_le_bytes());
        assert_eq!(slot[8..], (n % KEYS).to_le_bytes());
        *came += 1;
    };
    while came < ops {
        while sent < ops && pair.credits() > 0 {
            let key = key(producer, sent);
            let slot = pool.lend(16).unwrap();
            let op = Submission::retrieve(&key, slot).user_data(producer << 32 | sent);
            submit(&mut pair, op);
            sent += 1;
            while let Some(done) = poll_sometimes(&mut pair, sent) {
                take(done, &mut came);
            }
        }
        pair.wait(1, Some(HANG)).unwrap();
        while let Some(done) = pair.poll() {
            take(done, &mut came);
        }
    }
    assert!(seen.iter().all(|seen| *seen), "some never came");
    assert_eq!(pair.in_flight(), 0);
}

/// Reaps between submits in some stretches, and not in others.
fn poll_sometimes(pair: &mut Pair, sent: u64) -> Option<Completion> {
    (sent % 1000 < 500).then(|| pair.poll()).flatten()
}

fn each_to_its_own(ops: u64) {
    let store = memory();
    for producer in 0..PRODUCERS {
        for n in 0..KEYS {
            let object = [producer.to_le_bytes(), n.to_le_bytes()].concat();
            put(&*store, key(producer, n).as_bytes(), &object);
        }
    }
    let watched = Watched::counting(store);
    let (region, pool) = slots(16, (PRODUCERS * DEPTH) as usize);
    let engine = start(watched.clone(), config(), &region);
    std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let (engine, pool) = (&engine, &pool);
            scope.spawn(move || produce(engine, pool, producer, ops / PRODUCERS));
        }
    });
    let stats = engine.stats().engine;
    assert_eq!(
        (stats.accepted, stats.completed, stats.in_flight),
        (ops, ops, 0)
    );
    assert_eq!(stats.credits_in_use, 0);
    watched.assert_content();
}

#[test]
fn each_completion_comes_to_its_own_producer() {
    within(HANG, "own completions", || each_to_its_own(40_000));
}

#[test]
#[ignore = "a million ops: in release"]
fn release_a_million_completions_come_to_their_own_producers() {
    within(5 * HANG, "own completions", || each_to_its_own(1_000_000));
}
