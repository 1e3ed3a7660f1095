//! A pair's ops may wait for a fuller call: as many as asked for, the budget at most; nobody else waits for them, and what ends an op ends
//! these, too.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use moonring::store::sim::When;
use moonring::store::{NullStore, SimOptions};
use moonring::{
    Cancel, Done, Engine, EngineConfig, IfRunning, OpError, OpKind, Pair, PairOptions, Shutdown,
    Submission, WaitError,
};

/// Longer than any test: who waits so long waits for ever.
const LONG: Duration = Duration::from_secs(3600);
const LIMIT: Option<Duration> = Some(Duration::from_secs(30));

fn engine() -> Engine {
    Engine::builder(Arc::new(NullStore)).start().unwrap()
}

fn pair(engine: &Engine, ops: usize, budget: Duration) -> Pair {
    let options = PairOptions::new(16).linger(ops, budget);
    engine.pair_with(options).unwrap()
}

fn lookup(pair: &mut Pair, key: &str) {
    pair.submit(Submission::lookup(key)).unwrap();
}

fn calls(engine: &Engine, op: OpKind) -> u64 {
    engine.stats().lane(op).calls
}

/// Long enough for workers that would not wait.
fn pause() {
    std::thread::sleep(Duration::from_millis(30));
}

#[test]
fn ops_wait_until_there_are_enough_of_all_pairs_and_go_as_one_call() {
    let _watchdog = watchdog();
    let engine = engine();
    let (mut a, mut b) = (pair(&engine, 5, LONG), pair(&engine, 4, LONG));
    for round in 1..20 {
        lookup(&mut a, "a1");
        lookup(&mut a, "a2");
        lookup(&mut b, "b1");
        if round < 3 {
            pause();
        }
        assert_eq!(calls(&engine, OpKind::Lookup), round - 1);
        // Enough for b's, and a's go along.
        lookup(&mut a, "a3");
        a.wait(3, LIMIT).unwrap();
        b.wait(1, LIMIT).unwrap();
        assert_eq!((a.completions().count(), b.completions().count()), (3, 1));
        assert_eq!(calls(&engine, OpKind::Lookup), round);
    }
    assert_at_rest(&engine);
}

#[test]
fn a_burst_of_enough_does_not_wait() {
    let _watchdog = watchdog();
    let engine = engine();
    let mut pair = pair(&engine, 4, LONG);
    let mut batch = pair.batch();
    for key in ["a", "b", "c", "d"] {
        batch.push(Submission::lookup(key)).unwrap();
    }
    batch.publish();
    pair.wait(4, LIMIT).unwrap();
    assert_eq!(calls(&engine, OpKind::Lookup), 1);
}

#[test]
fn the_oldest_waits_its_budget_and_no_longer_and_takes_the_others_along() {
    let _watchdog = watchdog();
    let engine = engine();
    let budget = Duration::from_millis(600);
    let (mut a, mut b) = (pair(&engine, 99, LONG), pair(&engine, 99, budget));
    // Also where somebody has waited before with more patience.
    lookup(&mut a, "a");
    pause();
    let began = Instant::now();
    lookup(&mut b, "b1");
    pause();
    lookup(&mut b, "b2");
    b.wait(2, LIMIT).unwrap();
    let waited = began.elapsed();
    assert!(waited >= budget, "too early: after {waited:?}");
    a.wait(1, LIMIT).unwrap();
    assert_eq!(calls(&engine, OpKind::Lookup), 1);
}

#[test]
fn ops_that_may_not_wait_go_at_once_and_take_those_of_their_kind_along() {
    let _watchdog = watchdog();
    let engine = engine();
    let mut waits = pair(&engine, 99, LONG);
    let mut hurries = engine.pair(4).unwrap();
    lookup(&mut waits, "waits");
    hurries.submit(Submission::delete("other kind")).unwrap();
    hurries.wait(1, LIMIT).unwrap();
    pause();
    assert!(waits.poll().is_none());
    lookup(&mut hurries, "hurries");
    hurries.wait(2, LIMIT).unwrap();
    waits.wait(1, LIMIT).unwrap();
    // The client's, too.
    lookup(&mut waits, "waits");
    engine.client().blocking().lookup("key").unwrap();
    waits.wait(2, LIMIT).unwrap();
    assert_eq!(calls(&engine, OpKind::Lookup), 2);
}

#[test]
fn who_sleeps_until_then_and_is_needed_elsewhere_is_replaced() {
    let _watchdog = watchdog();
    let store = sim(SimOptions::default());
    let config = EngineConfig::default().num_workers(2);
    let engine = Engine::builder(store.clone()).config(config);
    let engine = engine.start().unwrap();
    let mut waits = pair(&engine, 99, Duration::from_millis(40));
    let mut other = engine.pair(4).unwrap();
    for _ in 0..10 {
        let closed = store.gate().close(&[OpKind::Delete]);
        lookup(&mut waits, "key");
        std::thread::sleep(Duration::from_millis(10));
        // One of the two workers is in this call, whichever it was; the other must not sleep for ever.
        other.submit(Submission::delete("key")).unwrap();
        assert!(store.gate().wait_inside(OpKind::Delete, 1, LONG));
        waits.wait(1, LIMIT).unwrap();
        assert_eq!(waits.completions().count(), 1);
        drop(closed);
        other.wait(1, LIMIT).unwrap();
        assert_eq!(other.completions().count(), 1);
    }
}

#[test]
fn what_became_due_while_all_workers_were_in_calls_goes_when_one_is_back() {
    let _watchdog = watchdog();
    let store = sim(SimOptions::default());
    let config = EngineConfig::default().dedicated(OpKind::Lookup, 1);
    let engine = Engine::builder(store.clone()).config(config);
    let engine = engine.start().unwrap();
    let mut waits = pair(&engine, 99, Duration::from_millis(10));
    let mut other = engine.pair(4).unwrap();
    let closed = store.gate().close(&[OpKind::Lookup]);
    lookup(&mut other, "other");
    assert!(store.gate().wait_inside(OpKind::Lookup, 1, LONG));
    lookup(&mut waits, "key");
    pause();
    drop(closed);
    waits.wait(1, LIMIT).unwrap();
}

#[test]
fn an_op_with_a_timeout_waits_no_longer_than_half_of_it() {
    let _watchdog = watchdog();
    let engine = engine();
    let mut pair = pair(&engine, 99, LONG);
    let op = Submission::lookup("key").timeout(Some(Duration::from_secs(2)));
    pair.submit(op).unwrap();
    pair.wait(1, LIMIT).unwrap();
    assert_eq!(pair.poll().unwrap().result, Ok(Done::Present));
}

#[test]
fn it_can_be_cancelled_and_what_is_left_of_it_harms_nobody() {
    let _watchdog = watchdog();
    let engine = engine();
    // The cancelled op is still counted, so one of the next two may go alone, and the other then waits its budget.
    let mut pair = pair(&engine, 2, Duration::from_millis(100));
    let ticket = pair.submit(Submission::lookup("key")).unwrap();
    assert_eq!(pair.cancel(ticket, IfRunning::Wait), Cancel::NeverStarted);
    assert_eq!(
        pair.poll().unwrap().result,
        Err(OpError::Cancelled { started: false })
    );
    lookup(&mut pair, "a");
    lookup(&mut pair, "b");
    pair.wait(2, LIMIT).unwrap();
    drop(pair);
    assert_at_rest(&engine);
}

#[test]
fn shutdown_waits_for_no_budget() {
    let _watchdog = watchdog();
    for (mode, ok) in [(Shutdown::Drain, true), (Shutdown::Cancel, false)] {
        let engine = engine();
        let mut pair = pair(&engine, 99, LONG);
        lookup(&mut pair, "key");
        pause();
        let report = engine.shutdown(mode, Duration::from_secs(20)).unwrap();
        assert!(report.took < Duration::from_secs(15), "{report:?}");
        assert_eq!(pair.poll().unwrap().result.is_ok(), ok);
    }
}

#[test]
fn a_dropped_pair_waits_for_nobody() {
    let _watchdog = watchdog();
    let engine = engine();
    let mut pair = pair(&engine, 99, LONG);
    lookup(&mut pair, "key");
    drop(pair);
    eventually(|| calls(&engine, OpKind::Lookup) == 1);
}

#[test]
fn where_the_circuit_is_open_the_answer_comes_at_once() {
    let _watchdog = watchdog();
    let store = sim(SimOptions {
        call_errors: When::rate(1.0),
        ..SimOptions::default()
    });
    let config = EngineConfig::default()
        .fail_fast_after(2)
        .fail_fast_ms(3_600_000);
    let engine = Engine::builder(store).config(config).start().unwrap();
    let mut waits = pair(&engine, 99, LONG);
    let mut other = engine.pair(4).unwrap();
    lookup(&mut other, "other");
    other.wait(1, LIMIT).unwrap();
    for key in ["queued as it opens", "after that"] {
        lookup(&mut waits, key);
        lookup(&mut other, "other");
        waits.wait(1, LIMIT).unwrap();
        assert!(waits.poll().unwrap().result.is_err());
    }
    lookup(&mut waits, "alone");
    waits.wait(1, LIMIT).unwrap();
}

#[test]
fn a_worker_driven_by_hand_waits_for_nobody() {
    let (engine, mut drivers) = Engine::builder(Arc::new(NullStore))
        .start_by_hand()
        .unwrap();
    let mut pair = pair(&engine, 99, LONG);
    lookup(&mut pair, "key");
    assert!(drivers[0].poll_once());
    assert!(pair.poll().is_some());
}

#[test]
fn ops_without_budget_or_company_wait_for_nothing() {
    let _watchdog = watchdog();
    let engine = engine();
    for (ops, budget) in [(0, LONG), (1, LONG), (9, Duration::ZERO)] {
        let mut pair = pair(&engine, ops, budget);
        lookup(&mut pair, "key");
        pair.wait(1, LIMIT).unwrap();
    }
}

#[test]
fn wait_min_comes_back_with_less_once_the_minimum_is_over() {
    let _watchdog = watchdog();
    let store = sim(SimOptions::default());
    let engine = Engine::builder(store.clone()).start().unwrap();
    let mut pair = engine.pair(4).unwrap();
    let closed = store.gate().close(&[OpKind::Delete]);
    let ms = Duration::from_millis;
    pair.submit(Submission::delete("key")).unwrap();
    let (waited, took) = timed(|| pair.wait_min(1, ms(10), Some(ms(60))));
    assert_eq!(waited, Err(WaitError::TimedOut));
    assert!(took >= ms(60), "{took:?}");
    lookup(&mut pair, "key");
    let (waited, took) = timed(|| pair.wait_min(2, ms(50), None));
    assert_eq!((waited, pair.completions().count()), (Ok(()), 1));
    assert!(took >= ms(50), "{took:?}");
    drop(closed);
    lookup(&mut pair, "key");
    assert_eq!(pair.wait_min(2, LONG, None), Ok(()));
    assert_eq!(pair.completions().count(), 2);
}
