//! Promise 2: a completion is never lost and never overflows; credits are counted, and async callers wait for them.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use moonring::config::CoreChoice;
use moonring::store::{NullStore, SimOptions, SimStore};
use moonring::{Done, Engine, EngineConfig, OpKind, Submission, SubmitError, WaitError};

fn config() -> EngineConfig {
    EngineConfig::default()
        .num_workers(2)
        .cores(CoreChoice::None)
}

fn null_engine() -> Engine {
    let engine = Engine::builder(Arc::new(NullStore)).config(config());
    engine.start().unwrap()
}

/// An engine whose clients share few credits, and its store.
fn narrow(credits: usize) -> (Engine, Arc<SimStore>) {
    let sim = sim(SimOptions::default());
    let engine = Engine::builder(sim.clone()).config(config().ring_depth(credits));
    (engine.start().unwrap(), sim)
}

/// Case R5, io-uring#302: submission said yes, and the completion ring overflowed.
#[test]
fn of_depth_64_with_nobody_reaping_the_65th_is_refused_and_then_exactly_64_are_reaped() {
    let _dog = watchdog();
    let engine = null_engine();
    let mut pair = engine.pair(64).unwrap();
    for round in 0..50 {
        for id in 0..64 {
            pair.submit(Submission::lookup("key").user_data(id))
                .unwrap();
        }
        if round % 2 == 0 {
            // All have ended, and none is reaped: they still hold their credits.
            eventually(|| engine.stats().engine.in_flight == 0);
        }
        for _ in 0..10 {
            let refused = pair.submit(Submission::lookup("one more").user_data(99));
            let refused = refused.unwrap_err();
            assert_eq!(refused.reason, SubmitError::NoCredit { depth: 64 });
            assert_eq!(refused.op.key(), b"one more");
        }
        assert_eq!((pair.credits(), pair.in_flight()), (0, 64));
        assert_eq!(engine.stats().engine.credits_in_use, 64);
        pair.wait(64, None).unwrap();
        let mut tally = Tally::new(64);
        for done in pair.completions() {
            assert_eq!(done.result, Ok(Done::Present));
            tally.see(done.user_data);
        }
        tally.assert_all_seen();
        assert_eq!((pair.credits(), pair.in_flight()), (64, 0));
    }
    assert_eq!(engine.stats().engine.refused, 500);
    assert_at_rest(&engine);
}

#[test]
fn a_batch_of_100_into_64_free_places_accepts_a_prefix_and_each_other_op_comes_back() {
    let _dog = watchdog();
    let (region, pool) = slots(64, 100);
    let store = sim(SimOptions::default());
    let engine = Engine::builder(store).config(config()).region(region);
    let engine = engine.start().unwrap();
    let mut pair = engine.pair(64).unwrap();
    let mut back = Vec::new();
    let mut batch = pair.batch();
    assert_eq!(batch.credits(), 64);
    for id in 0..100u64 {
        let slot = pool.lend(64).unwrap();
        let at = slot.as_ptr();
        match batch.push(Submission::store(&id.to_le_bytes().map(|b| b | 1), slot).user_data(id)) {
            Ok(_) => assert!(id < 64, "{id} accepted"),
            Err(refused) => {
                assert!(id >= 64, "{id} refused");
                assert_eq!(refused.reason, SubmitError::NoCredit { depth: 64 });
                let slot = refused.op.into_slot().unwrap();
                assert_eq!(slot.as_ptr(), at);
                back.push(slot);
            }
        }
    }
    assert_eq!(batch.credits(), 0);
    batch.publish();
    assert_eq!((back.len(), pool.available()), (36, 0));
    pair.wait(64, None).unwrap();
    let mut tally = Tally::new(64);
    pair.completions()
        .for_each(|done| tally.see(done.user_data));
    tally.assert_all_seen();
    drop(back);
    assert_eq!(pool.available(), 100);
    assert_at_rest(&engine);
}

#[test]
fn a_credit_is_the_right_from_acceptance_until_the_completion_is_reaped() {
    let _dog = watchdog();
    let engine = null_engine();
    let mut pair = engine.pair(3).unwrap();
    for id in 0..3 {
        pair.submit(Submission::lookup("key").user_data(id))
            .unwrap();
    }
    for id in 3..3_000 {
        assert!(pair.submit(Submission::lookup("key")).is_err());
        pair.wait(1, None).unwrap();
        assert!(pair.poll().is_some());
        assert_eq!(pair.credits(), 1);
        pair.submit(Submission::lookup("key").user_data(id))
            .unwrap();
    }
    pair.wait(3, None).unwrap();
    assert_eq!(pair.completions().count(), 3);
    assert_at_rest(&engine);
}

/// Depths that are no power of two, and the least: laps of the rings and of the completion ring don't lose any.
#[test]
fn no_completion_is_lost_in_pairs_of_odd_depths() {
    let _dog = watchdog();
    let engine = null_engine();
    for depth in [1, 2, 3, 5, 33] {
        let mut pair = engine.pair(depth).unwrap();
        let mut tally = Tally::new(2_000);
        let mut next = 0;
        let mut rng = Rng::new(depth as u64);
        while next < 2_000 || pair.in_flight() > 0 {
            let burst = rng.below(depth + 1);
            let mut batch = pair.batch();
            for _ in 0..burst {
                let op = match rng.below(3) {
                    0 => Submission::lookup("key"),
                    1 => Submission::delete("key"),
                    _ => Submission::lookup("another key"),
                };
                if next == 2_000 || batch.push(op.user_data(next)).is_err() {
                    break;
                }
                next += 1;
            }
            batch.publish();
            let wanted = rng.below(depth + 1);
            pair.wait(wanted, None).unwrap();
            pair.completions()
                .for_each(|done| tally.see(done.user_data));
        }
        tally.assert_all_seen();
    }
    assert_at_rest(&engine);
}

#[test]
fn waiting_for_more_than_is_in_flight_waits_for_all_and_a_timeout_says_so() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let engine = Engine::builder(sim.clone())
        .config(config())
        .start()
        .unwrap();
    let mut pair = engine.pair(8).unwrap();
    assert_eq!(pair.wait(5, None), Ok(()), "nothing is in flight");
    let gate = sim.gate().close(&[OpKind::Lookup]);
    pair.submit(Submission::lookup("key")).unwrap();
    for limit in [0, 1, 30] {
        let limit = Duration::from_millis(limit);
        let (result, took) = timed(|| pair.wait(1, Some(limit)));
        assert_eq!(result, Err(WaitError::TimedOut));
        assert!(took >= limit);
    }
    drop(gate);
    // The longest time there is doesn't overflow.
    assert_eq!(pair.wait(usize::MAX, Some(Duration::MAX)), Ok(()));
    assert_eq!(pair.completions().count(), 1);
}

#[test]
fn async_callers_wait_for_credits_without_burning_cpu() {
    let _dog = watchdog();
    let (engine, sim) = narrow(2);
    let client = engine.client();
    let gate = sim.gate().close(&[OpKind::Lookup]);
    let held = [client.lookup("a"), client.lookup("b")];
    let waiter = std::thread::spawn({
        let client = engine.client();
        move || {
            let before = thread_cpu();
            let found = client.blocking().lookup("c");
            (found, thread_cpu() - before)
        }
    });
    std::thread::sleep(Duration::from_millis(400));
    assert!(!waiter.is_finished());
    drop(gate);
    for op in held {
        assert_eq!(moonring::block_on(op), Ok(false));
    }
    let (found, cpu) = waiter.join().unwrap();
    assert_eq!(found, Ok(false));
    assert!(cpu < Duration::from_millis(40), "{cpu:?} of 400 ms");
    assert_at_rest(&engine);
}

#[test]
fn a_thread_in_wait_burns_no_cpu() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let engine = Engine::builder(sim.clone())
        .config(config())
        .start()
        .unwrap();
    let gate = sim.gate().close(&[OpKind::Lookup]);
    let mut pair = engine.pair(1).unwrap();
    pair.submit(Submission::lookup("key")).unwrap();
    let before = thread_cpu();
    let limit = Duration::from_millis(400);
    assert_eq!(pair.wait(1, Some(limit)), Err(WaitError::TimedOut));
    let cpu = thread_cpu() - before;
    assert!(cpu < Duration::from_millis(40), "{cpu:?} of 400 ms");
    drop(gate);
}

#[test]
fn waiting_callers_are_woken_in_order() {
    let _dog = watchdog();
    let (engine, sim) = narrow(1);
    let client = engine.client();
    let gate = sim.gate().close(&[OpKind::Lookup]);
    let log = WakeLog::default();
    let mut first = Box::pin(client.lookup("first"));
    let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(client.lookup("waits"))).collect();
    for (id, op) in waiting.iter_mut().enumerate() {
        assert!(poll_with(op, &log.waker(id)).is_pending());
        // Polled again before its turn it keeps its place.
        assert!(poll_with(op, &log.waker(id)).is_pending());
    }
    assert_eq!(engine.stats().engine.credits_in_use, 1);
    drop(gate);
    assert_eq!(moonring::block_on(first.as_mut()), Ok(false));
    // Each credit that comes back wakes one, the one that has waited longest.
    for (id, op) in waiting.iter_mut().enumerate() {
        assert_eq!(log.woken(), (0..=id).collect::<Vec<_>>());
        assert_eq!(moonring::block_on(op.as_mut()), Ok(false));
    }
    drop(waiting);
    assert_at_rest(&engine);
}

#[test]
fn a_dropped_waiting_caller_passes_its_wake_on() {
    let _dog = watchdog();
    let (engine, sim) = narrow(1);
    let client = engine.client();
    let gate = sim.gate().close(&[OpKind::Lookup]);
    let log = WakeLog::default();
    let first = client.lookup("first");
    let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(client.lookup("waits"))).collect();
    for (id, op) in waiting.iter_mut().enumerate() {
        assert!(poll_with(op, &log.waker(id)).is_pending());
    }
    // One that was not woken yet has nothing to pass on.
    drop(waiting.remove(2));
    drop(gate);
    assert_eq!(moonring::block_on(first), Ok(false));
    assert_eq!(log.woken(), [0]);
    drop(waiting.remove(0));
    assert_eq!(log.woken(), [0, 1]);
    drop(waiting.remove(0));
    assert_eq!(log.woken(), [0, 1, 3]);
    assert_eq!(moonring::block_on(waiting.remove(0)), Ok(false));
    assert_at_rest(&engine);
}

/// A batch that waits behind another takes no credit out of turn, however often it is polled.
#[test]
fn a_batch_takes_no_credit_out_of_turn() {
    let _dog = watchdog();
    let (engine, sim) = narrow(2);
    let client = engine.client();
    let log = WakeLog::default();
    let gate = sim.gate().close(&[OpKind::Lookup]);
    let one = client.lookup("a");
    let two = client.lookup("b");
    let mut ahead = Box::pin(client.lookup("ahead"));
    assert!(poll_with(&mut ahead, &log.waker(0)).is_pending());
    let mut out = Vec::new();
    let mut batch = Box::pin(client.lookup_many(["c", "d"], &mut out));
    assert!(poll_with(&mut batch, &log.waker(1)).is_pending());
    drop(gate);
    assert_eq!(moonring::block_on(one), Ok(false));
    assert_eq!(log.woken(), [0]);
    assert!(poll_with(&mut batch, &log.waker(1)).is_pending());
    assert_eq!(engine.stats().engine.accepted, 2);
    assert_eq!(moonring::block_on(two), Ok(false));
    assert_eq!(log.woken(), [0, 1]);
    // The batch's turn has come; so has that of the one ahead, who need not hurry.
    moonring::block_on(batch.as_mut());
    drop(batch);
    assert_eq!(out, [Ok(false); 2]);
    assert_eq!(moonring::block_on(ahead), Ok(false));
    assert_at_rest(&engine);
}

#[test]
fn callers_without_number_share_few_credits_and_all_are_served() {
    let _dog = watchdog();
    let (engine, _) = narrow(4);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let client = engine.client();
            std::thread::spawn(move || {
                let mut out = Vec::new();
                for n in 0..150 {
                    if n % 3 == 0 {
                        client
                            .blocking()
                            .lookup_many((0..9).map(|_| "key"), &mut out);
                        assert_eq!(out, [Ok(false); 9]);
                    } else {
                        assert_eq!(client.blocking().lookup("key"), Ok(false));
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(engine.stats().engine.accepted, 8 * (50 * 9 + 100));
    assert_eq!(engine.stats().engine.refused, 0, "waiting is no refusal");
    assert_at_rest(&engine);
}

/// A pair is one thread's at a time: Send, not Sync.
const _: fn() = || {
    trait SyncIsAmbiguous<A> {
        fn check() {}
    }
    impl<T: ?Sized> SyncIsAmbiguous<()> for T {}
    impl<T: ?Sized + Sync> SyncIsAmbiguous<u8> for T {}
    let _ = <moonring::Pair as SyncIsAmbiguous<_>>::check;
    fn is_send<T: Send>() {}
    is_send::<moonring::Pair>();
};
