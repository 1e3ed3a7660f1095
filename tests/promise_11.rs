//! Promise 11: shutdown stops intake, finishes or cancels what is queued, waits for calls within a limit, unregisters, then
//! frees; it reports what it could not free. Twice, or from several threads, is harmless; use after it is an error.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::time::Duration;

use common::*;
use moonring::config::CoreChoice;
use moonring::store::{MemoryOptions, MemoryStore, SimOptions};
use moonring::{
    ClientError, Done, Engine, EngineConfig, OpError, OpKind, PairError, Region, Shutdown,
    ShutdownError, SlotClass, Submission, SubmitError, WaitError,
};

const LONG: Duration = Duration::from_secs(50);

fn config(workers: usize) -> EngineConfig {
    EngineConfig::default()
        .num_workers(workers)
        .cores(CoreChoice::None)
}

#[test]
fn drain_finishes_everything_that_was_accepted_then_unregisters_then_closes_the_store() {
    let _dog = watchdog();
    for round in 0..20 {
        let sim = sim(SimOptions::default());
        let spy = Spy::new(sim.clone(), |_| {});
        let (region, pool) = slots(64, 64);
        let (base, len) = (region.base().addr().get(), region.len());
        let config = config(2).max_batch(4);
        let engine = Engine::builder(spy.clone()).config(config).region(region);
        let engine = engine.start().unwrap();
        let gate = sim.gate().close(&OpKind::ALL);
        let (client, mut pair) = (engine.client(), engine.pair(64).unwrap());
        for id in 0..48u64 {
            let op = match id % 3 {
                0 => Submission::lookup("key"),
                1 => Submission::delete("key"),
                _ => Submission::retrieve("key", pool.lend(64).unwrap()),
            };
            pair.submit(op.user_data(id)).unwrap();
        }
        let ops: Vec<_> = (0..20).map(|_| client.lookup("key")).collect();
        let report = std::thread::scope(|scope| {
            let report = scope.spawn(|| engine.shutdown(Shutdown::Drain, LONG));
            eventually(|| engine.pair(1).is_err());
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
            drop(gate);
            report.join().unwrap().unwrap()
        });
        assert_eq!(
            (report.completed, report.cancelled, report.in_flight),
            (68, 0, 0)
        );
        assert_eq!(
            (&report.stuck_workers[..], &report.not_unregistered[..]),
            (&[][..], &[][..])
        );
        let mut tally = Tally::new(48);
        for done in pair.completions() {
            tally.see(done.user_data);
            assert_eq!(done.slot.is_some(), done.op == OpKind::Retrieve);
            let wanted = match done.op {
                OpKind::Lookup => Ok(Done::Absent),
                _ => Err(OpError::NotFound),
            };
            assert_eq!(done.result, wanted);
        }
        tally.assert_all_seen();
        for op in ops {
            assert_eq!(moonring::block_on(op), Ok(false));
        }
        assert_at_rest(&engine);
        assert_eq!(pool.available(), 64);
        let seen = spy.seen();
        let calls = seen.iter().filter(|s| matches!(s, Seen::Called(_))).count();
        assert_eq!(seen[0], Seen::Register(base, len));
        assert_eq!(
            seen[1 + calls..],
            [Seen::Unregister(base, len), Seen::Close]
        );
    }
}

#[test]
fn cancel_ends_what_is_queued_as_shut_down_and_waits_for_calls_under_way() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let (region, pool) = slots(64, 8);
    let engine = Engine::builder(sim.clone()).config(config(1).max_batch(1));
    let engine = engine.region(region).start().unwrap();
    let gate = sim.gate().close(&OpKind::ALL);
    let (client, mut pair) = (engine.client(), engine.pair(64).unwrap());
    pair.submit(Submission::lookup("key").user_data(0)).unwrap();
    assert!(sim.gate().wait_inside(OpKind::Lookup, 1, LONG));
    for id in 1..9 {
        let slot = pool.lend(64).unwrap();
        pair.submit(Submission::retrieve("key", slot).user_data(id))
            .unwrap();
    }
    let op = client.lookup("key");
    let report = std::thread::scope(|scope| {
        let report = scope.spawn(|| engine.shutdown(Shutdown::Cancel, LONG));
        eventually(|| engine.pair(1).is_err());
        assert!(!report.is_finished());
        drop(gate);
        report.join().unwrap().unwrap()
    });
    assert_eq!(
        (report.completed, report.cancelled, report.in_flight),
        (10, 9, 0)
    );
    let mut tally = Tally::new(9);
    for done in pair.completions() {
        tally.see(done.user_data);
        match done.user_data {
            0 => assert_eq!(done.result, Ok(Done::Absent)),
            _ => assert_eq!(
                (done.result, done.slot.is_some()),
                (Err(OpError::ShutDown), true)
            ),
        }
    }
    tally.assert_all_seen();
    assert_eq!(
        moonring::block_on(op),
        Err(ClientError::Failed(OpError::ShutDown))
    );
    assert_eq!(
        sim.report().calls,
        [1, 0, 0, 0],
        "what was cancelled never reached the store"
    );
    assert_eq!(pool.available(), 8);
    assert_at_rest(&engine);
}

#[test]
fn shutdown_twice_and_from_several_threads_gives_the_same_report() {
    let _dog = watchdog();
    for _ in 0..20 {
        let sim = sim(SimOptions {
            delay: Duration::from_millis(1),
            ..SimOptions::default()
        });
        let spy = Spy::new(sim, |_| {});
        let (region, _pool) = slots(64, 8);
        let engine = Engine::builder(spy.clone())
            .config(config(2))
            .region(region)
            .start()
            .unwrap();
        let mut pair = engine.pair(8).unwrap();
        (0..8).for_each(|_| drop(pair.submit(Submission::lookup("key"))));
        let first = std::thread::scope(|scope| {
            let mode = |n: usize| [Shutdown::Drain, Shutdown::Cancel][n % 2];
            let threads: Vec<_> = (0..6)
                .map(|n| {
                    scope.spawn({
                        let engine = &engine;
                        move || engine.shutdown(mode(n), LONG)
                    })
                })
                .collect();
            let mut reports = threads.into_iter().map(|t| t.join().unwrap().unwrap());
            let first = reports.next().unwrap();
            assert!(reports.all(|report| report == first));
            first
        });
        assert_eq!(engine.shutdown(Shutdown::Cancel, Duration::ZERO), Ok(first));
        drop(engine);
        assert_eq!(spy.seen().iter().filter(|s| **s == Seen::Close).count(), 1);
        let unregistered = |s: &&Seen| matches!(s, Seen::Unregister(..));
        assert_eq!(spy.seen().iter().filter(unregistered).count(), 1);
    }
}

#[test]
fn use_after_shutdown_is_an_error_and_everything_comes_back() {
    let _dog = watchdog();
    for dropped in [false, true] {
        let (region, pool) = slots(64, 8);
        let engine = Engine::builder(memory())
            .config(config(1))
            .region(region)
            .start()
            .unwrap();
        let (client, mut pair) = (engine.client(), engine.pair(8).unwrap());
        let engine = match dropped {
            false => {
                engine.shutdown(Shutdown::Drain, LONG).unwrap();
                assert_eq!(engine.pair(1).unwrap_err(), PairError::ShutDown);
                assert_eq!(
                    engine.client().blocking().lookup("key"),
                    Err(SubmitError::ShutDown.into())
                );
                Some(engine)
            }
            true => {
                drop(engine);
                None
            }
        };
        let down = || ClientError::Refused(SubmitError::ShutDown);
        let refused = pair
            .submit(Submission::store("key", pool.lend(64).unwrap()))
            .unwrap_err();
        assert_eq!(refused.reason, SubmitError::ShutDown);
        assert!(refused.op.into_slot().is_some());
        let mut batch = pair.batch();
        assert_eq!(
            batch.push(Submission::lookup("key")).unwrap_err().reason,
            SubmitError::ShutDown
        );
        batch.publish();
        assert_eq!(pair.wait(1, None), Ok(()), "nothing is in flight");
        assert!(pair.poll().is_none() && !pair.arm());
        assert!(pair.event_fd().is_ok());
        let client = client.clone();
        let blocking = client.blocking();
        assert_eq!(blocking.lookup("key"), Err(down()));
        assert_eq!(blocking.delete("key"), Err(down()));
        let got = blocking.retrieve("key", pool.lend(64).unwrap());
        assert!(got.result == Err(down()) && got.slot.is_some());
        let mut out = Vec::new();
        let items = (0..3).map(|_| ("key", pool.lend(64).unwrap()));
        blocking.store_many(items, &mut out);
        assert!(
            out.iter()
                .all(|r| r.result == Err(down()) && r.slot.is_some())
        );
        assert_eq!(blocking.lookup_prefix(["a", "b"]).unknown, Some(down()));
        drop((got, out));
        assert_eq!(pool.available(), 8);
        if let Some(engine) = engine {
            assert_at_rest(&engine);
        }
    }
}

#[test]
fn who_waits_for_a_credit_is_refused_when_the_engine_shuts_down() {
    let _dog = watchdog();
    for mode in [Shutdown::Drain, Shutdown::Cancel] {
        let sim = sim(SimOptions::default());
        let (region, pool) = slots(64, 4);
        let engine = Engine::builder(sim.clone()).config(config(1).ring_depth(1));
        let engine = engine.region(region).start().unwrap();
        let client = engine.client();
        let gate = sim.gate().close(&OpKind::ALL);
        let held = client.lookup("key");
        assert!(sim.gate().wait_inside(OpKind::Lookup, 1, LONG));
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                let (client, slot) = (client.clone(), pool.lend(64).unwrap());
                std::thread::spawn(move || client.blocking().retrieve("key", slot))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(10));
        // The call is stuck for longer than the limit.
        let report = engine.shutdown(mode, Duration::from_millis(20)).unwrap();
        assert_eq!(report.in_flight, 1);
        for waits in waiting {
            let got = waits.join().unwrap();
            assert_eq!(got.result, Err(SubmitError::ShutDown.into()));
            assert!(got.slot.is_some());
        }
        assert_eq!(pool.available(), 4);
        // The op in the call has ended at the limit too.
        assert_eq!(moonring::block_on(held), Err(OpError::ShutDown.into()));
        assert_eq!(engine.stats().engine.credits_in_use, 1);
        drop(gate);
        eventually(|| engine.stats().engine.credits_in_use == 0);
    }
}

#[test]
fn shutdown_from_a_waker_or_from_inside_a_stores_call_would_deadlock_and_says_so() {
    let _dog = watchdog();
    let engine: Arc<Mutex<Option<Arc<Engine>>>> = Arc::default();
    let (say, said) = mpsc::channel();
    let shut = {
        let engine = Arc::clone(&engine);
        move || {
            let engine = engine.lock().unwrap().clone().unwrap();
            say.send(engine.shutdown(Shutdown::Drain, LONG)).unwrap();
        }
    };
    let store = Spy::new(memory(), {
        let shut = shut.clone();
        move |op| {
            if op == OpKind::Delete {
                shut()
            }
        }
    });
    let started = Arc::new(Engine::builder(store).config(config(2)).start().unwrap());
    *engine.lock().unwrap() = Some(Arc::clone(&started));
    let client = started.client();
    // Inside a store's call.
    assert_eq!(
        client.blocking().delete("key"),
        Err(OpError::NotFound.into())
    );
    assert_eq!(said.recv().unwrap(), Err(ShutdownError::WouldDeadlock));
    // Inside a waker.
    let mut op = Box::pin(client.lookup("key"));
    if poll_with(&mut op, &waker_of(shut)).is_pending() {
        assert_eq!(said.recv().unwrap(), Err(ShutdownError::WouldDeadlock));
    }
    // It has harmed nothing.
    assert_eq!(client.blocking().lookup("key"), Ok(false));
    *engine.lock().unwrap() = None;
    assert!(
        started
            .shutdown(Shutdown::Drain, LONG)
            .unwrap()
            .stuck_workers
            .is_empty()
    );
}

/// What is queued when the limit comes is ended by the thread that shuts down, which then runs the wakers.
#[test]
fn a_waker_run_by_the_thread_that_shuts_down_can_not_make_it_wait_for_itself() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let engine = Engine::builder(sim.clone()).config(config(1).max_batch(1).ring_depth(2));
    let engine = Arc::new(engine.start().unwrap());
    let client = engine.client();
    let gate = sim.gate().close(&OpKind::ALL);
    let stuck = client.lookup("key");
    assert!(sim.gate().wait_inside(OpKind::Lookup, 1, LONG));
    let (say, said) = mpsc::channel();
    let waker = || {
        let (engine, say) = (Arc::clone(&engine), say.clone());
        waker_of(move || say.send(engine.shutdown(Shutdown::Drain, LONG)).unwrap())
    };
    let mut queued = Box::pin(client.lookup("queued"));
    assert!(poll_with(&mut queued, &waker()).is_pending());
    let mut waits = Box::pin(client.lookup("waits for a credit"));
    assert!(poll_with(&mut waits, &waker()).is_pending());
    let report = engine
        .shutdown(Shutdown::Drain, Duration::from_millis(10))
        .unwrap();
    assert_eq!((report.in_flight, report.stuck_workers.len()), (1, 1));
    for _ in 0..2 {
        assert_eq!(said.recv().unwrap(), Err(ShutdownError::WouldDeadlock));
    }
    assert_eq!(
        poll_with(&mut queued, Waker::noop()),
        Poll::Ready(Err(OpError::ShutDown.into()))
    );
    assert_eq!(
        poll_with(&mut waits, Waker::noop()),
        Poll::Ready(Err(SubmitError::ShutDown.into()))
    );
    assert_eq!(moonring::block_on(stuck), Err(OpError::ShutDown.into()));
    drop(gate);
    eventually(|| engine.stats().engine.credits_in_use == 0);
}

#[test]
fn an_engine_dropped_inside_a_waker_does_not_hang() {
    let _dog = watchdog();
    for _ in 0..20 {
        let sim = sim(SimOptions::default());
        let spy = Spy::new(sim.clone(), |_| {});
        let (region, _pool) = slots(64, 1);
        let engine = Engine::builder(spy.clone())
            .config(config(2))
            .region(region)
            .start()
            .unwrap();
        let client = engine.client();
        let gate = sim.gate().close(&[OpKind::Lookup]);
        let mut op = Box::pin(client.lookup("key"));
        let engine = Mutex::new(Some(engine));
        let waker = waker_of(move || drop(engine.lock().unwrap().take()));
        assert!(poll_with(&mut op, &waker).is_pending());
        drop((waker, gate));
        // Another thread does the waiting: the store is closed in the end.
        eventually(|| spy.seen().last() == Some(&Seen::Close));
        assert_eq!(moonring::block_on(op), Ok(false));
        assert_eq!(
            client.blocking().lookup("key"),
            Err(SubmitError::ShutDown.into())
        );
    }
}

/// Host memory that says when it is freed.
struct Host {
    bytes: *mut [u8],
    freed: Arc<AtomicBool>,
}

// SAFETY: it only owns the bytes.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

impl Host {
    fn region(len: usize) -> (Region, Arc<AtomicBool>) {
        let freed = Arc::new(AtomicBool::new(false));
        let bytes = Box::into_raw(vec![0xcau8; len].into_boxed_slice());
        let host = Host {
            bytes,
            freed: Arc::clone(&freed),
        };
        // SAFETY: the bytes live as long as the host.
        (
            unsafe { Region::wrap(bytes.cast(), len, host) }.unwrap(),
            freed,
        )
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.freed.store(true, Ordering::SeqCst);
        // SAFETY: made by `Box::into_raw`.
        drop(unsafe { Box::from_raw(self.bytes) });
    }
}

/// Cases M1 and M3, LMCache#5263 and tokio-uring#158: a buffer goes to somebody else while it is still written.
#[test]
fn a_limit_of_10_ms_against_longer_calls_names_the_stuck_workers_and_frees_nothing_of_theirs() {
    let _dog = watchdog();
    for drop_all in [false, true] {
        let (region, freed) = Host::region(4096 + 64);
        let pool = region
            .slot_pool(&[SlotClass {
                size: 1024,
                count: 4,
            }])
            .unwrap();
        let options = MemoryOptions {
            needs_registration: true,
            ..MemoryOptions::default()
        };
        let memory = Arc::new(MemoryStore::new(options).unwrap());
        let in_call = Arc::new(AtomicUsize::new(0));
        let go_on = Arc::new(AtomicBool::new(false));
        let store = Spy::new(memory.clone(), {
            let (freed, in_call, memory) = (
                Arc::clone(&freed),
                Arc::clone(&in_call),
                Arc::clone(&memory),
            );
            let go_on = Arc::clone(&go_on);
            move |op| {
                if op == OpKind::Retrieve {
                    in_call.fetch_add(1, Ordering::SeqCst);
                    eventually(|| go_on.load(Ordering::SeqCst));
                    // The call is about to write: everything is still there.
                    assert!(!freed.load(Ordering::SeqCst));
                    assert_eq!(memory.registrations(), 1);
                }
            }
        });
        let config = config(1).dedicated(OpKind::Retrieve, 2).max_batch(1);
        let engine = Engine::builder(store.clone())
            .config(config)
            .region(region)
            .start()
            .unwrap();
        let client = engine.client();
        let mut slot = pool.lend(1024).unwrap();
        slot.fill(7);
        assert!(client.blocking().store("key", slot).result.is_ok());
        let mut pair = engine.pair(4).unwrap();
        let mut spans = Vec::new();
        for id in 0..3 {
            let slot = pool.lend(1024).unwrap();
            spans.push(slot.as_ptr().addr());
            pair.submit(Submission::retrieve("key", slot).user_data(id))
                .unwrap();
        }
        eventually(|| in_call.load(Ordering::SeqCst) == 2);

        let limit = Duration::from_millis(10);
        let (report, took) = timed(|| engine.shutdown(Shutdown::Drain, limit).unwrap());
        assert!(took >= limit);
        assert_eq!((report.in_flight, report.cancelled), (2, 3));
        // They are named, with their bytes.
        let mut left: Vec<_> = (report.unreleased.iter())
            .map(|q| (q.op, &q.key[..], q.addr.unwrap(), q.len, q.ended_as))
            .collect();
        left.sort_by_key(|l| l.2);
        let mut held = spans[..2].to_vec();
        held.sort();
        for (left, addr) in left.iter().zip(&held) {
            let ended = OpError::ShutDown;
            assert_eq!(*left, (OpKind::Retrieve, &b"key"[..], *addr, 1024, ended));
        }
        for name in ["mr-retrieve-0", "mr-retrieve-1"] {
            assert!(report.stuck_workers.iter().any(|w| w == name), "{report:?}");
        }
        assert!(report.not_unregistered.is_empty());
        let unregistered = |s: &Seen| matches!(s, Seen::Unregister(..) | Seen::Close);
        assert!(!store.seen().iter().any(unregistered), "{:?}", store.seen());
        // All have ended. The one that no call had taken has its slot; the others' are nobody's.
        let mut ends = Tally::new(3);
        for done in pair.completions() {
            ends.see(done.user_data);
            let taken = done.user_data < 2;
            assert_eq!(done.result, Err(OpError::ShutDown));
            assert_eq!(
                (done.more, done.release, done.slot.is_none()),
                (taken, false, taken)
            );
        }
        ends.assert_all_seen();
        assert_eq!((pool.available(), pair.in_flight()), (2, 2));
        assert_eq!(pair.wait(2, None), Err(WaitError::ShutDown));

        let mut rest = Some((engine, client, pair, pool));
        if drop_all {
            rest = None;
        }
        assert!(!freed.load(Ordering::SeqCst));
        go_on.store(true, Ordering::SeqCst);
        eventually(|| store.seen().last() == Some(&Seen::Close));
        let seen = store.seen();
        let begin = seen.iter().position(unregistered).unwrap();
        assert_eq!(seen[begin - 2..begin], [Seen::Called(OpKind::Retrieve); 2]);
        assert_eq!(
            seen.len(),
            begin + 2,
            "one unregistration, then the closing"
        );
        if let Some((_engine, _client, mut pair, pool)) = rest {
            // Each stuck op has its one release notice. Its slot has found its way back by itself.
            let mut tally = Tally::new(2);
            for done in pair.completions() {
                tally.see(done.user_data);
                assert_eq!((done.more, done.release), (false, true));
                assert_eq!(done.result, Err(OpError::ShutDown));
                assert!(done.slot.is_none());
            }
            tally.assert_all_seen();
            assert_eq!((pool.available(), pair.in_flight()), (4, 0));
        }
        eventually(|| freed.load(Ordering::SeqCst));
    }
}

#[test]
fn only_workers_in_calls_are_named_as_stuck() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let config = config(3)
        .dedicated(OpKind::Retrieve, 2)
        .dedicated(OpKind::Lookup, 1);
    let engine = Engine::builder(sim.clone()).config(config).start().unwrap();
    let gate = sim.gate().close(&[OpKind::Lookup]);
    let op = engine.client();
    let op = op.lookup("key");
    assert!(sim.gate().wait_inside(OpKind::Lookup, 1, LONG));
    let report = engine
        .shutdown(Shutdown::Cancel, Duration::from_secs(1))
        .unwrap();
    assert_eq!(report.stuck_workers, ["mr-lookup-0"]);
    assert_eq!(report.unreleased.len(), 1);
    assert_eq!(moonring::block_on(op), Err(OpError::ShutDown.into()));
    drop(gate);
}

#[test]
fn the_longest_and_the_shortest_limit_are_limits_too() {
    let _dog = watchdog();
    for limit in [Duration::MAX, Duration::ZERO] {
        let spy = Spy::new(memory(), |_| {});
        let engine = Engine::builder(spy.clone())
            .config(config(2))
            .start()
            .unwrap();
        let mut pair = engine.pair(64).unwrap();
        for _ in 0..64 {
            pair.submit(Submission::lookup("key")).unwrap();
        }
        engine.shutdown(Shutdown::Drain, limit).unwrap();
        assert_eq!(pair.wait(64, None), Ok(()));
        assert_eq!(pair.completions().count(), 64);
        eventually(|| spy.seen().last() == Some(&Seen::Close));
        assert_at_rest(&engine);
    }
}

/// An op is accepted when it is pushed, and ends even if its batch is published after the end.
#[test]
fn a_batch_that_is_published_after_shutdown_ends_as_shut_down() {
    let _dog = watchdog();
    for abandon in [false, true] {
        let (region, pool) = slots(64, 4);
        let engine = Engine::builder(memory())
            .config(config(1))
            .region(region)
            .start()
            .unwrap();
        let mut pair = engine.pair(4).unwrap();
        let mut batch = pair.batch();
        for id in 0..4 {
            let slot = pool.lend(64).unwrap();
            batch
                .push(Submission::store("key", slot).user_data(id))
                .unwrap();
        }
        engine.shutdown(Shutdown::Drain, LONG).unwrap();
        batch.publish();
        if abandon {
            drop(pair);
        } else {
            let mut tally = Tally::new(4);
            for done in pair.completions() {
                tally.see(done.user_data);
                assert_eq!(done.result, Err(OpError::ShutDown));
            }
            tally.assert_all_seen();
        }
        assert_eq!(pool.available(), 4);
        assert_at_rest(&engine);
    }
}
