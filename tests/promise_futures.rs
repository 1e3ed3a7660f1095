//! What is promised of a client's futures: `Send`, runtime-free, woken by the last waker they saw, safe to drop at any time, and
//! the batch forms' results in the order of their items.

mod common_b;

use std::future::Future;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use common_b::*;
use moonring::store::{
    CallResult, DeleteBatch, LookupBatch, NullStore, RetrieveBatch, SimOptions, Store, StoreBatch,
};
use moonring::{
    Client, ClientError, Engine, EngineConfig, OpError, OpKind, Pair, Prefix, StoreOutcome,
    SubmitError, block_on,
};

/// A waker that counts.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Counting {
    fn new() -> (Arc<Self>, Waker) {
        let counting = Arc::new(Self::default());
        (Arc::clone(&counting), Waker::from(counting))
    }

    fn wakes(&self) -> usize {
        self.0.load(SeqCst)
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Polls all of them whenever any is woken, as `join!` does: most polls are spurious.
fn join<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(|f| (Box::pin(f), None)).collect();
    block_on(std::future::poll_fn(|cx| {
        let mut pending = false;
        for (future, output) in &mut futures {
            if output.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(value) => *output = Some(value),
                    Poll::Pending => pending = true,
                }
            }
        }
        match pending {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }));
    futures
        .into_iter()
        .filter_map(|(_, output)| output)
        .collect()
}

#[test]
fn futures_and_clients_are_send() {
    fn send<T: Send>(value: T) -> T {
        value
    }
    fn sync<T: Send + Sync + Clone>(_: &T) {}
    fn pair_is_send(pair: Pair) -> Pair {
        send(pair)
    }
    // Compiles only where `Pair` is not `Sync`: else there are two candidates.
    trait NotSync<A> {
        fn check() {}
    }
    impl<T: ?Sized> NotSync<()> for T {}
    struct IsSync;
    impl<T: ?Sized + Sync> NotSync<IsSync> for T {}
    <Pair as NotSync<_>>::check();

    let (region, pool) = slots(64, 8);
    let engine = start(Arc::new(NullStore), config(), &region);
    drop(pair_is_send(engine.pair(1).unwrap()));
    let client = engine.client();
    sync(&client);
    sync(&engine.store().clone());
    let slot = || pool.lend(8).unwrap();
    let (mut a, mut b, mut c, mut d) = (vec![], vec![], vec![], vec![]);
    block_on(send(async {
        assert_eq!(send(client.lookup("k")).await, Ok(true));
        assert_eq!(send(client.retrieve("k", slot())).await.result, Ok(8));
        assert_eq!(send(client.retrieve_exact("k", slot())).await.result, Ok(8));
        let stored = send(client.store("k", slot())).await.result;
        assert_eq!(stored, Ok(StoreOutcome::Accepted));
        assert_eq!(send(client.delete("k")).await, Ok(()));
        assert_eq!(send(client.delete_forced("k")).await, Ok(()));
        send(client.lookup_many(["a", "b"], &mut a)).await;
        send(client.retrieve_many([("a", slot())], &mut b)).await;
        send(client.store_many([("a", slot())], &mut c)).await;
        send(client.delete_many(["a"], &mut d)).await;
        let prefix = send(client.lookup_prefix(["a", "b"])).await;
        assert_eq!((prefix.len, prefix.unknown), (2, None));
    }));
    assert_eq!((a.len(), b.len(), c.len(), d.len()), (2, 1, 1, 1));
    // A future may outlive the thread that made it, and be finished by another.
    std::thread::scope(|scope| {
        let future = client.lookup("k");
        scope.spawn(|| assert_eq!(block_on(future), Ok(true)));
    });
}

#[test]
fn the_last_waker_is_woken_and_no_other() {
    within(HANG, "wakers", || {
        let sim = sim(memory(), SimOptions::default());
        let (region, _pool) = slots(64, 1);
        let engine = start(sim.clone(), config().ring_depth(2), &region);
        let client = engine.client();
        let mut out = Vec::new();
        for stage in ["in flight", "waiting", "many"] {
            let gate = sim.gate().close(&[OpKind::Lookup]);
            // All credits are others' where the op shall wait for one.
            let others: Vec<_> = match stage {
                "waiting" => vec![client.lookup("x"), client.lookup("y")],
                _ => vec![],
            };
            let mut one = pin!(async { client.lookup("k").await.map(drop) });
            let mut many = pin!(async {
                client.lookup_many(["a", "b", "c", "d"], &mut out).await;
                Ok(())
            });
            let mut future: Pin<&mut dyn Future<Output = Result<(), ClientError>>> = match stage {
                "many" => many.as_mut(),
                _ => one.as_mut(),
            };
            let wakers: Vec<_> = (0..5).map(|_| Counting::new()).collect();
            for (_, waker) in &wakers {
                assert!(poll(future.as_mut(), waker).is_pending());
            }
            // The same once more changes nothing.
            assert!(poll(future.as_mut(), &wakers[4].1).is_pending());
            drop(gate);
            others
                .into_iter()
                .for_each(|f| assert_eq!(block_on(f), Ok(false)));
            // Poll only when woken, always with the last waker.
            let mut polls = 0;
            loop {
                eventually(stage, || wakers[4].0.wakes() > polls);
                polls = wakers[4].0.wakes();
                if poll(future.as_mut(), &wakers[4].1).is_ready() {
                    break;
                }
            }
            for (nth, (counting, _)) in wakers[..4].iter().enumerate() {
                assert_eq!(counting.wakes(), 0, "{stage}: waker {nth}");
            }
            // Their clones are gone too: nobody keeps a waker that it doesn't need.
            for (counting, waker) in wakers {
                drop(waker);
                assert_eq!(Arc::strong_count(&counting), 1, "{stage}");
            }
        }
        assert_eq!(out, [Ok(false); 4]);
    });
}

#[test]
fn waiting_for_a_credit_polls_nothing_until_there_is_one() {
    within(HANG, "waiting", || {
        let sim = sim(memory(), SimOptions::default());
        let (region, _pool) = slots(64, 1);
        let engine = start(sim.clone(), config().ring_depth(1), &region);
        let client = engine.client();
        let gate = sim.gate().close(&[OpKind::Lookup]);
        let first = client.lookup("first");
        let (counting, waker) = Counting::new();
        let mut second = pin!(client.lookup("second"));
        assert!(poll(second.as_mut(), &waker).is_pending());
        // Refused for want of a credit is what a pair says; a future waits, and counts nothing.
        assert_eq!(engine.stats().engine.refused, 0);
        assert_eq!(engine.stats().engine.accepted, 1);
        gate.admit(1);
        assert_eq!(block_on(first), Ok(false));
        eventually("woken for the credit", || counting.wakes() == 1);
        assert!(poll(second.as_mut(), &waker).is_pending());
        assert_eq!(engine.stats().engine.accepted, 2);
        drop(gate);
        eventually("woken for its end", || counting.wakes() == 2);
        assert_eq!(poll(second.as_mut(), &waker), Poll::Ready(Ok(false)));
    });
}

#[test]
fn a_future_can_be_dropped_at_each_stage_and_its_op_goes_on() {
    within(HANG, "dropped futures", || {
        let memory = memory();
        let sim = sim(memory.clone(), SimOptions::default());
        let (region, pool) = slots(64, 4);
        let config = config().dedicated(OpKind::Store, 1).ring_depth(2);
        let engine = start(sim.clone(), config, &region);
        let client = engine.client();
        let slot = |byte: u8| slot_of(&pool, &[byte; 8]);
        for polled in [false, true] {
            let look = |future: Pin<&mut dyn Future<Output = _>>| {
                if polled {
                    assert!(poll(future, Waker::noop()).is_pending());
                }
            };
            let gate = sim.gate().close(&[OpKind::Store]);
            let name = |stage: &str| format!("{stage}-{polled}");
            let (running, queued, waiting, done) = (
                name("running"),
                name("queued"),
                name("waiting"),
                name("done"),
            );
            {
                let mut running = Box::pin(client.store(&running, slot(1)));
                assert!(sim.gate().wait_inside(OpKind::Store, 1, HANG));
                let mut queued = Box::pin(client.store(&queued, slot(2)));
                let mut waiting = Box::pin(client.store(&waiting, slot(3)));
                look(running.as_mut());
                look(queued.as_mut());
                look(waiting.as_mut());
                assert_eq!(pool.available(), 1);
                assert_eq!(engine.stats().engine.credits_in_use, 2);
                drop(waiting);
                assert_eq!(pool.available(), 2, "its slot never left");
                drop(queued);
                drop(running);
                assert_eq!(
                    pool.available(),
                    2,
                    "these slots are the engine's until the end"
                );
            }
            drop(gate);
            eventually("all credits and slots are back", || {
                engine.stats().engine.credits_in_use == 0 && pool.available() == 4
            });
            let gate = sim.gate().close(&[OpKind::Store]);
            let mut finished = Box::pin(client.store(&done, slot(4)));
            look(finished.as_mut());
            drop(gate);
            eventually("done", || engine.stats().engine.in_flight == 0);
            assert_eq!(engine.stats().engine.credits_in_use, 1);
            drop(finished);
            assert_eq!(engine.stats().engine.credits_in_use, 0);
            assert_eq!(pool.available(), 4);
            let there = |key: &String| block_on(client.lookup(key)).unwrap();
            assert_eq!(
                [&running, &queued, &waiting, &done].map(there),
                [true, true, false, true]
            );
        }
        assert_eq!(memory.objects(), 6);
    });
}

#[test]
fn many_can_be_dropped_at_each_stage() {
    within(HANG, "dropped batches", || {
        let memory = memory();
        let sim = sim(memory.clone(), SimOptions::default());
        let (region, pool) = slots(64, 16);
        let config = config()
            .dedicated(OpKind::Store, 1)
            .ring_depth(8)
            .max_batch(2);
        let engine = start(sim.clone(), config, &region);
        let client = engine.client();
        // Admit so many calls of two ops before the future is dropped: 8 ops have credits, 4 wait for one.
        for calls in 0..=6 {
            let keys: Vec<String> = (0..12).map(|i| format!("{calls}-{i}")).collect();
            let items: Vec<_> = keys.iter().map(|k| (k, slot_of(&pool, &[1; 8]))).collect();
            let mut out = Vec::new();
            let gate = sim.gate().close(&[OpKind::Store]);
            let mut future = Box::pin(client.store_many(items, &mut out));
            let ready = poll(future.as_mut(), Waker::noop());
            assert!(ready.is_pending());
            for call in 1..=calls {
                gate.admit(1);
                eventually("a call's ops are done", || {
                    // What was done is collected, and more submitted.
                    let ready = poll(future.as_mut(), Waker::noop()).is_ready();
                    ready
                        || engine.stats().lane(OpKind::Store).calls as usize
                            == 6 * calls_before(calls) + call
                });
            }
            drop(future);
            drop(gate);
            eventually("all credits and slots are back", || {
                let lost: usize = out
                    .iter()
                    .filter(|r: &&moonring::Returned<_>| r.slot.is_some())
                    .count();
                engine.stats().engine.credits_in_use == 0 && pool.available() + lost == 16
            });
            out.clear();
            assert_eq!(pool.available(), 16);
            // Forget what this round did.
            engine_calls_to(&engine, 6 * calls_before(calls + 1), &client);
        }
    });

    /// Rounds before this one, all of them brought to the same number of calls.
    fn calls_before(round: usize) -> usize {
        round
    }

    /// Makes store calls until there were `calls`, so that the next round can count from there.
    fn engine_calls_to(engine: &Engine, calls: usize, _client: &Client) {
        let (made, wanted) = (engine.stats().lane(OpKind::Store).calls as usize, calls);
        assert!(made <= wanted, "{made} calls, {wanted} wanted");
        let mut pair = engine.pair(1).unwrap();
        let byte = 7u8;
        for _ in made..wanted {
            // SAFETY: the byte outlives the op, which is reaped below, and nobody writes it.
            let op = unsafe { moonring::Submission::store_foreign("filler", &byte, 1) };
            submit(&mut pair, op);
            reap(&mut pair, 1);
        }
    }
}

/// Answers lookups by the key: `bad..` is unknown, `no..` is not there, others are.
struct Moody;

impl Store for Moody {
    fn name(&self) -> &str {
        "moody"
    }
    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            let answer = match batch.key(i) {
                [b'b', ..] => Err(OpError::Busy),
                [b'n', ..] => Ok(false),
                _ => Ok(true),
            };
            batch.set(i, answer);
        }
        Ok(batch.len())
    }
    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        NullStore.batch_get_into(batch)
    }
    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        NullStore.batch_put_from(batch)
    }
    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        NullStore.batch_remove(batch)
    }
}

#[test]
fn lookup_prefix_tells_what_ended_it() {
    within(HANG, "prefixes", || {
        let (region, _pool) = slots(64, 1);
        for depth in [1, 2, 64] {
            let engine = start(Arc::new(Moody), config().ring_depth(depth), &region);
            let client = engine.client();
            let busy = Some(ClientError::Failed(OpError::Busy));
            let empty = Some(ClientError::Refused(SubmitError::EmptyKey));
            for (keys, len, unknown) in [
                (&[][..], 0, None),
                (&["y1", "y2", "y3"], 3, None),
                (&["y1", "no", "y3"], 1, None),
                (&["no", "bad", "y"], 0, None),
                (&["y1", "y2", "bad", "y4", "no"], 2, busy),
                (&["bad", "y"], 0, busy),
                (&["y1", "", "y3"], 1, empty),
                (&["y1", "no", "", "bad"], 1, None),
                (&["y1", "y2", "y3", "y4", "y5", "bad", "no"], 5, busy),
            ] {
                let prefix = client.blocking().lookup_prefix(keys);
                assert_eq!(prefix, Prefix { len, unknown }, "{keys:?}");
            }
        }
    });
}

#[test]
fn many_items_keep_their_order_beyond_the_credits_and_around_refused_ones() {
    within(HANG, "many", || {
        let (region, pool) = slots(64, 128);
        for depth in [1, 2, 4, 7, 64, 256] {
            let config = config().ring_depth(depth).max_key(32).max_batch(3);
            let engine = start(memory(), config, &region);
            let client = engine.client();
            let mut rng = Rng::new(depth as u64);
            let keys: Vec<String> = (0..100)
                .map(|i| match rng.below(5) {
                    0 => ["", "nul\0", "a key that is too long for max_key"][rng.below(3)].into(),
                    _ => format!("key-{i}"),
                })
                .collect();
            let refusal = |key: &String| match key.len() {
                0 => Some(SubmitError::EmptyKey),
                4 if key.contains('\0') => Some(SubmitError::NulInKey { at: 3 }),
                len @ 33.. => Some(SubmitError::KeyTooLong { len, max: 32 }),
                _ => None,
            };
            assert!(keys.iter().any(|k| refusal(k).is_some()));
            let expect = |key: &String| match refusal(key) {
                Some(reason) => Err(ClientError::Refused(reason)),
                None => Ok(()),
            };
            // Every second key is stored; each object is a byte of its index, in a slot of its own length.
            let stored = |i: usize| i.is_multiple_of(2);
            let mut out = Vec::new();
            let items = keys.iter().enumerate().filter(|(i, _)| stored(*i));
            let items = items.map(|(i, key)| (key, slot_of(&pool, &[i as u8; 16])));
            client
                .blocking()
                .store_many(items.collect::<Vec<_>>(), &mut out);
            for (nth, done) in out.drain(..).enumerate() {
                let outcome = expect(&keys[2 * nth]).map(|()| StoreOutcome::Stored);
                assert_eq!(done.result, outcome);
                // Its own slot, also where it was refused.
                assert_eq!(done.slot.unwrap()[..], [2 * nth as u8; 16]);
            }
            let mut there = Vec::new();
            client.blocking().lookup_many(&keys, &mut there);
            let mut got = Vec::new();
            let items = keys.iter().enumerate();
            let items = items.map(|(i, key)| (key, canary_slot(&pool, 1 + i % 32)));
            client.blocking().retrieve_many(items, &mut got);
            assert_eq!((there.len(), got.len()), (100, 100));
            for (i, done) in got.into_iter().enumerate() {
                assert_eq!(there[i], expect(&keys[i]).map(|()| stored(i)));
                let mut slot = done.slot.unwrap();
                assert_eq!(slot.len(), 1 + i % 32);
                let result = expect(&keys[i]).and_then(|()| match (stored(i), slot.len()) {
                    (false, _) => Err(ClientError::Failed(OpError::NotFound)),
                    (true, 16..) => Ok(16),
                    (true, _) => Err(ClientError::Failed(OpError::ShortBuffer {
                        object_len: NonZeroU64::new(16),
                    })),
                });
                assert_eq!(done.result, result, "{i}");
                if result.is_ok() {
                    slot.set_len(16).unwrap();
                    assert_eq!(slot[..], [i as u8; 16]);
                }
            }
            let mut gone = Vec::new();
            client.blocking().delete_many(&keys, &mut gone);
            for (i, gone) in gone.iter().enumerate() {
                let result = expect(&keys[i]).and_then(|()| match stored(i) {
                    true => Ok(()),
                    false => Err(ClientError::Failed(OpError::NotFound)),
                });
                assert_eq!(*gone, result, "{i}");
            }
            assert_eq!(engine.stats().engine.credits_in_use, 0);
        }
    });
}

#[test]
fn empty_batches_end_at_once() {
    let (region, _pool) = slots(64, 1);
    let (engine, _drivers) = Engine::builder(Arc::new(NullStore))
        .region(region)
        .start_by_hand()
        .unwrap();
    let client = engine.client();
    // Nobody works in this engine.
    let mut out = vec![Ok(true)];
    client.blocking().lookup_many([] as [&str; 0], &mut out);
    assert!(out.is_empty());
    let prefix = client.blocking().lookup_prefix([] as [&str; 0]);
    assert_eq!((prefix.len, prefix.unknown), (0, None));
}

#[test]
fn the_place_of_a_long_key_comes_back_with_its_op() {
    let engine = Engine::builder(Arc::new(NullStore))
        .config(config().long_keys(1))
        .start()
        .unwrap();
    let client = engine.client();
    let keys = ["a", "b", "c"].map(|letter| letter.repeat(300));
    let mut there = Vec::new();
    for key in &keys {
        assert_eq!(client.blocking().lookup(key), Ok(true));
        assert_eq!(client.blocking().delete(key), Ok(()));
        block_on(client.lookup_many([key], &mut there));
        assert_eq!(there, [Ok(true)]);
    }
}

#[test]
fn a_clients_delete_is_forced_at_once_and_after_a_wait_for_its_credit() {
    let store = memory_with(HANG);
    for key in ["now", "then"] {
        put(&*store, key.as_bytes(), b"leased");
    }
    let engine = Engine::builder(store)
        .config(config().ring_depth(1))
        .start()
        .unwrap();
    let client = engine.client();
    for key in ["now", "then"] {
        // What was looked up has a lease.
        assert_eq!(client.blocking().lookup(key), Ok(true));
    }
    let leased = Err(ClientError::Failed(OpError::Leased));
    assert_eq!(client.blocking().delete("now"), leased);
    let (now, then) = (client.delete_forced("now"), client.delete_forced("then"));
    assert_eq!(block_on(now), Ok(()));
    assert_eq!(block_on(then), Ok(()));
}

#[test]
fn block_on_can_be_nested() {
    within(HANG, "nested", || {
        let (region, _pool) = slots(64, 1);
        let engine = start(Arc::new(NullStore), config(), &region);
        let client = engine.client();
        for _ in 0..100 {
            let outer = client.lookup("outer");
            let all = block_on(async {
                let first = block_on(async { block_on(client.lookup("inner")) });
                (first, outer.await, client.blocking().lookup("k"))
            });
            assert_eq!(all, (Ok(true), Ok(true), Ok(true)));
        }
    });
}

#[test]
fn an_iterator_that_panics_leaves_no_op_behind() {
    within(HANG, "panicking iterator", || {
        let (region, pool) = slots(64, 8);
        let engine = start(Arc::new(NullStore), config(), &region);
        let client = engine.client();
        let items = (0..5).map(|i| match i {
            3 => panic!("as the test wants"),
            _ => ("key", pool.lend(8).unwrap()),
        });
        let mut out = Vec::new();
        let blocking = AssertUnwindSafe(|| client.blocking().store_many(items, &mut out));
        assert!(catch_unwind(blocking).is_err());
        // Three were accepted, and nobody submits anything that would help them along.
        eventually("the three ops end", || engine.stats().engine.in_flight == 0);
        assert_eq!(engine.stats().engine.accepted, 3);
        drop(out);
        eventually("the slots are back", || pool.available() == 8);
        assert_eq!(engine.stats().engine.credits_in_use, 0);
    });
}

#[test]
fn credits_are_never_lost_between_futures_that_wait_and_futures_that_are_dropped() {
    within(2 * HANG, "credits", || {
        let (region, _pool) = slots(64, 1);
        for depth in [1, 2, 3] {
            let config = EngineConfig::default().ring_depth(depth).spin_us(0);
            let engine = start(Arc::new(NullStore), config, &region);
            std::thread::scope(|scope| {
                for t in 0..4 {
                    let client = engine.client();
                    scope.spawn(move || {
                        let mut rng = Rng::new(t);
                        let mut out = Vec::new();
                        for _ in 0..sized(300, 5000) {
                            match rng.below(4) {
                                0 => drop(client.lookup("dropped at once")),
                                1 => {
                                    // Polled now and then, and dropped wherever that got it.
                                    let mut op = pin!(client.lookup("dropped"));
                                    for _ in 0..rng.below(4) {
                                        if poll(op.as_mut(), Waker::noop()).is_ready() {
                                            break;
                                        }
                                        std::thread::yield_now();
                                    }
                                }
                                2 => {
                                    let some = (0..1 + rng.below(6)).map(|_| client.lookup("k"));
                                    assert!(join(some).iter().all(|r| *r == Ok(true)));
                                }
                                _ => {
                                    client.blocking().lookup_many(["a", "b", "c"], &mut out);
                                    assert_eq!(out, [Ok(true); 3]);
                                }
                            }
                        }
                    });
                }
            });
            eventually("all credits are back", || {
                engine.stats().engine.credits_in_use == 0
            });
        }
    });
}

/// Drives an engine by hand, with this many credits.
fn by_hand(depth: usize) -> (Engine, moonring::Driver) {
    let (region, _pool) = slots(64, 1);
    let (engine, mut drivers) = Engine::builder(Arc::new(NullStore))
        .config(config().ring_depth(depth))
        .region(region)
        .start_by_hand()
        .unwrap();
    (engine, drivers.remove(0))
}

#[test]
fn a_long_batch_does_not_keep_others_from_credits() {
    for depth in [1, 2, 4] {
        let (engine, mut driver) = by_hand(depth);
        let client = engine.client();
        let waker = Waker::noop();
        let mut hog = pin!(client.lookup_prefix(std::iter::repeat("hog")));
        assert!(poll(hog.as_mut(), waker).is_pending());
        assert_eq!(engine.stats().engine.credits_in_use, depth as u64);
        let mut single = pin!(client.lookup("single"));
        for _ in 0..3 {
            assert!(poll(single.as_mut(), waker).is_pending());
            // The batch collects what ended and goes on with the credits that come back, all but the one that somebody
            // waits for.
            assert!(driver.poll_once());
            assert!(poll(hog.as_mut(), waker).is_pending());
            assert!(poll(single.as_mut(), waker).is_pending(), "submitted now");
            assert!(poll(hog.as_mut(), waker).is_pending());
            assert!(driver.poll_once());
            assert_eq!(poll(single.as_mut(), waker), Poll::Ready(Ok(true)));
            // The batch takes all credits again, before the next one comes.
            assert!(poll(hog.as_mut(), waker).is_pending());
            single.set(client.lookup("single"));
        }
    }
}

#[test]
fn credits_go_to_those_who_wait_in_their_order() {
    let (engine, mut driver) = by_hand(1);
    let client = engine.client();
    let mut first = Box::pin(client.lookup("first"));
    let mut waiting: Vec<_> = (0..6)
        .map(|_| (Box::pin(client.lookup("k")), Counting::new()))
        .collect();
    for (future, (_, waker)) in &mut waiting {
        assert!(poll(future.as_mut(), waker).is_pending());
    }
    assert!(driver.poll_once());
    assert!(poll(first.as_mut(), Waker::noop()).is_ready());
    // Polls of others, however early and often, take nothing from the one whose turn it is.
    let mut waiting = std::collections::VecDeque::from(waiting);
    while !waiting.is_empty() {
        let woken: Vec<_> = waiting.iter().map(|(_, (c, _))| c.wakes()).collect();
        let mut expected = vec![0; woken.len()];
        expected[0] = 1;
        assert_eq!(woken, expected, "the first is woken, and nobody else");
        for (future, (_, waker)) in waiting.iter_mut().skip(1).rev() {
            assert!(poll(future.as_mut(), waker).is_pending());
        }
        let mut late = pin!(client.lookup("late"));
        assert!(poll(late.as_mut(), Waker::noop()).is_pending());
        assert_eq!(engine.stats().engine.in_flight, 0, "nobody barged in");
        let (mut turn, (_, waker)) = waiting.pop_front().unwrap();
        // Every other one gives up when its turn has come: the next one's has come then.
        if waiting.len().is_multiple_of(2) {
            assert!(poll(turn.as_mut(), &waker).is_pending());
            assert_eq!(engine.stats().engine.in_flight, 1);
            assert!(driver.poll_once());
            assert!(poll(turn.as_mut(), &waker).is_ready());
        } else {
            drop(turn);
        }
    }
    eventually("the credit is back", || {
        engine.stats().engine.credits_in_use == 0
    });
}
