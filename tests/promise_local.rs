//! What is promised of a pair as futures: `Pair::poll_ready`, and `LocalClient` with its reactor. Each op ends once and with its own
//! result, its task is woken on its own thread, credits go to those who wait in their order, and futures may be dropped at any time.

mod common_b;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use common_b::*;
use moonring::store::{NullStore, SimOptions};
use moonring::{
    ClientError, Done, Driver, Engine, IfRunning, LocalClient, OpError, OpKind, Reactor, Returned,
    Shutdown, StoreOutcome, Submission, SubmitError, WaitError, block_on,
};
use tokio::task::LocalSet;

/// A waker that counts, and knows who woke it last.
#[derive(Default)]
struct Counting {
    wakes: AtomicUsize,
    by: Mutex<Option<ThreadId>>,
}

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        *self.by.lock().unwrap() = Some(thread::current().id());
        self.wakes.fetch_add(1, SeqCst);
    }
}

impl Counting {
    fn new() -> (Arc<Self>, Waker) {
        let counting = Arc::new(Self::default());
        (Arc::clone(&counting), Waker::from(counting))
    }

    fn wakes(&self) -> usize {
        self.wakes.load(SeqCst)
    }

    fn woken_here(&self) -> bool {
        *self.by.lock().unwrap() == Some(thread::current().id())
    }
}

fn poll<F: Future>(future: &mut Pin<Box<F>>, waker: &Waker) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(waker))
}

fn by_hand(store: Arc<dyn moonring::store::Store>) -> (Engine, Driver) {
    // A reactor that finds nothing sleeps at once.
    let config = config().dedicated(OpKind::Lookup, 1).spin_us(0);
    let builder = Engine::builder(store).config(config);
    let (engine, mut drivers) = builder.start_by_hand().unwrap();
    (engine, drivers.pop().unwrap())
}

fn local(engine: &Engine, depth: usize) -> (LocalClient, Pin<Box<Reactor>>) {
    let (client, reactor) = LocalClient::new(engine.pair(depth).unwrap());
    (client, Box::pin(reactor))
}

/// Runs tasks with a reactor on tokio's current-thread runtime.
fn run<R>(client_of: (LocalClient, Reactor), tasks: impl AsyncFnOnce(LocalClient) -> R) -> R {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let set = LocalSet::new();
    let (client, reactor) = client_of;
    let reactor = set.spawn_local(reactor);
    runtime.block_on(set.run_until(async {
        let result = tasks(client).await;
        // All clones of the client are gone.
        reactor.await.unwrap();
        result
    }))
}

const FOUND: Result<Done, ClientError> = Ok(Done::Present);

#[test]
fn each_kind_ends_as_a_pairs_does_and_refusals_give_the_slot_back() {
    within(HANG, "kinds", || {
        let (region, pool) = slots(4096, 4);
        let engine = start(memory(), config(), &region);
        let tasks = async |client: LocalClient| {
            let slot = slot_of(&pool, b"hello");
            let stored = client.submit(Submission::store("key", slot)).await;
            assert_eq!(stored.result, Ok(Done::Store(StoreOutcome::Stored)));
            let slot = stored.slot.unwrap();
            let got = client.submit(Submission::retrieve("key", slot)).await;
            assert_eq!(got.result, Ok(Done::Retrieved(5)));
            assert_eq!(&got.slot.unwrap()[..], b"hello");
            let found = client.submit(Submission::lookup("key")).await;
            assert_eq!(found.result, FOUND);
            let gone = client.submit(Submission::delete("key")).await;
            assert_eq!(gone.result, Ok(Done::Deleted));
            let again = client.submit(Submission::delete("key")).await;
            assert_eq!(again.result, Err(ClientError::Failed(OpError::NotFound)));
            let slot = pool.lend(5).unwrap();
            let refused = client.submit(Submission::retrieve("", slot)).await;
            assert!(matches!(refused.result, Err(ClientError::Refused(_))));
            assert!(refused.slot.is_some());
        };
        run(LocalClient::new(engine.pair(4).unwrap()), tasks);
        assert_eq!(pool.available(), pool.total());
    });
}

#[test]
fn what_the_tasks_of_one_turn_submit_is_one_call_and_each_is_woken_once_on_its_own_thread() {
    let store = Watched::new(Arc::new(NullStore));
    let (engine, mut driver) = by_hand(store.clone());
    let (client, mut reactor) = local(&engine, 64);
    let (reacted, reactors_waker) = Counting::new();
    assert!(poll(&mut reactor, &reactors_waker).is_pending());
    assert_eq!(reacted.wakes(), 0, "it sleeps, for nothing is there");
    let keys: Vec<_> = (0..20).map(|i| format!("key {i}")).collect();
    let mut ops: Vec<_> = keys
        .iter()
        .map(|key| {
            (
                Box::pin(client.submit(Submission::lookup(key))),
                Counting::new(),
            )
        })
        .collect();
    for (op, (_, waker)) in &mut ops {
        assert!(poll(op, waker).is_pending());
    }
    assert_eq!(reacted.wakes(), 1, "by the first of them");
    assert!(!driver.poll_once(), "nothing was shown yet");
    assert!(poll(&mut reactor, &reactors_waker).is_pending());
    assert_eq!(reacted.wakes(), 2, "it asks for a turn after the tasks");
    assert!(poll(&mut reactor, &reactors_waker).is_pending());
    // The call, on another thread.
    thread::scope(|scope| scope.spawn(|| while driver.poll_once() {}).join().unwrap());
    let calls: Vec<_> = store.take_calls().iter().map(|c| c.keys.len()).collect();
    assert_eq!(calls, [20]);
    assert_eq!(reacted.wakes(), 3);
    assert!(!reacted.woken_here());
    assert!(ops.iter().all(|(_, (woken, _))| woken.wakes() == 0));
    assert!(poll(&mut reactor, &reactors_waker).is_pending());
    for (op, (woken, waker)) in &mut ops {
        assert_eq!(woken.wakes(), 1);
        assert!(woken.woken_here());
        let Poll::Ready(Returned { result, .. }) = poll(op, waker) else {
            panic!("woken, and not ready");
        };
        assert_eq!(result, FOUND);
        // Again after its end: nothing.
        assert!(poll(op, waker).is_pending());
    }
    drop(ops);
    assert_eq!(client.credits(), 64);
    drop(client);
    assert!(poll(&mut reactor, &reactors_waker).is_ready());
}

#[test]
fn a_long_turn_is_shown_in_parts_before_it_ends() {
    let store = Watched::new(Arc::new(NullStore));
    let (engine, mut driver) = by_hand(store.clone());
    let (client, mut reactor) = local(&engine, 128);
    assert!(poll(&mut reactor, Waker::noop()).is_pending());
    let keys: Vec<_> = (0..100).map(|i| format!("key {i}")).collect();
    let lookup = |key| Box::pin(client.submit(Submission::lookup(key)));
    let ops: Vec<_> = keys.iter().map(lookup).collect();
    assert!(driver.poll_once(), "nothing was shown");
    assert!(!driver.poll_once(), "the rest was shown too early");
    assert!(poll(&mut reactor, Waker::noop()).is_pending());
    assert!(driver.poll_once(), "the rest was not shown");
    let calls: Vec<_> = store.take_calls().iter().map(|c| c.keys.len()).collect();
    assert_eq!(calls, [96, 4]);
    drop(ops);
}

#[test]
fn credits_go_to_those_who_wait_in_their_order_and_none_is_lost_by_a_drop() {
    let (engine, mut driver) = by_hand(Arc::new(NullStore));
    let (client, mut reactor) = local(&engine, 1);
    let noop = Waker::noop();
    assert!(poll(&mut reactor, noop).is_pending());
    let turn = |driver: &mut Driver, reactor: &mut Pin<Box<Reactor>>| {
        for _ in 0..2 {
            assert!(poll(reactor, noop).is_pending());
            driver.poll_once();
        }
        assert!(poll(reactor, noop).is_pending());
    };
    let lookup = |key| Box::pin(client.submit(Submission::lookup(key)));
    let (woken, wakers): (Vec<_>, Vec<_>) = (0..5).map(|_| Counting::new()).unzip();
    let mut first = lookup("first");
    let mut waiting: Vec<_> = ["a", "b", "c", "d"].map(lookup).into_iter().collect();
    for (op, waker) in waiting.iter_mut().zip(&wakers) {
        assert!(poll(op, waker).is_pending());
    }
    turn(&mut driver, &mut reactor);
    assert_eq!(woken[0].wakes(), 0, "the result keeps the credit");
    assert!(poll(&mut first, noop).is_ready());
    assert_eq!(woken[0].wakes(), 1);
    assert_eq!(client.credits(), 0, "kept for who was called");
    let mut late = lookup("late");
    assert!(poll(&mut late, &wakers[4]).is_pending());
    // The one that was called is dropped, and one in the middle.
    drop(waiting.remove(0));
    assert_eq!(woken[1].wakes(), 1);
    drop(waiting.remove(1));
    assert_eq!(woken[2].wakes(), 0);
    // Out of turn: stays where it is.
    assert!(poll(&mut waiting[1], &wakers[3]).is_pending());
    assert!(poll(&mut waiting[0], &wakers[1]).is_pending(), "in flight");
    turn(&mut driver, &mut reactor);
    assert!(poll(&mut waiting[0], &wakers[1]).is_ready());
    assert_eq!((woken[3].wakes(), woken[4].wakes()), (1, 0));
    // In flight, and dropped: its end gives the credit back.
    assert!(poll(&mut waiting[1], &wakers[3]).is_pending());
    waiting.clear();
    assert_eq!(woken[4].wakes(), 0);
    turn(&mut driver, &mut reactor);
    assert_eq!(woken[4].wakes(), 1);
    assert!(poll(&mut late, &wakers[4]).is_pending());
    turn(&mut driver, &mut reactor);
    assert!(poll(&mut late, &wakers[4]).is_ready());
    assert_eq!(client.credits(), 1);
    assert_eq!(engine.stats().lane(OpKind::Lookup).completed(), 4);
}

#[test]
fn who_is_refused_when_its_turn_comes_passes_it_on() {
    let (engine, mut driver) = by_hand(Arc::new(NullStore));
    let (client, mut reactor) = local(&engine, 1);
    let noop = Waker::noop();
    assert!(poll(&mut reactor, noop).is_pending());
    let lookup = |key| Box::pin(client.submit(Submission::lookup(key)));
    let (mut first, mut bad, mut next) = (lookup("first"), lookup("a\0b"), lookup("next"));
    let ((bad_woken, bads), (next_woken, nexts)) = (Counting::new(), Counting::new());
    assert!(poll(&mut bad, &bads).is_pending());
    assert!(poll(&mut next, &nexts).is_pending());
    assert!(poll(&mut reactor, noop).is_pending());
    assert!(driver.poll_once());
    assert!(poll(&mut reactor, noop).is_pending());
    assert!(poll(&mut first, noop).is_ready());
    assert_eq!((bad_woken.wakes(), next_woken.wakes()), (1, 0));
    let Poll::Ready(Returned { result, .. }) = poll(&mut bad, &bads) else {
        panic!("neither refused nor ended");
    };
    let refused = Err(ClientError::Refused(SubmitError::NulInKey { at: 1 }));
    assert_eq!((result, next_woken.wakes()), (refused, 1));
}

#[test]
fn many_tasks_over_few_credits_all_get_their_own_bytes() {
    within(HANG, "many tasks", || {
        let store = memory();
        let keys: Vec<_> = (0..64).map(|i| format!("key {i}")).collect();
        for key in &keys {
            put(&*store, key.as_bytes(), &content(key.as_bytes(), 64));
        }
        let (region, pool) = slots(64, 64);
        let engine = start(store, config(), &region);
        let rounds = sized(100, 2_000);
        let done = Rc::new(Cell::new(0));
        let tasks = async |client: LocalClient| {
            let tasks: Vec<_> = (0..40u64)
                .map(|task| {
                    let (client, pool, keys) = (client.clone(), pool.clone(), keys.clone());
                    let done = Rc::clone(&done);
                    tokio::task::spawn_local(async move {
                        let mut rng = Rng::new(task);
                        for _ in 0..rounds {
                            let key = &keys[rng.below(keys.len())];
                            let slot = pool.lend(64).unwrap();
                            let mut op = Box::pin(client.submit(Submission::retrieve(key, slot)));
                            match rng.below(8) {
                                0 => continue, // Dropped before it was polled,
                                1 => {
                                    // or after.
                                    let once = std::future::poll_fn(|cx| {
                                        Poll::Ready(op.as_mut().poll(cx).is_ready())
                                    });
                                    once.await;
                                    continue;
                                }
                                _ => {}
                            }
                            let got = op.await;
                            assert_eq!(got.result, Ok(Done::Retrieved(64)));
                            assert_eq!(got.slot.unwrap()[..], content(key.as_bytes(), 64));
                            done.set(done.get() + 1);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        };
        run(LocalClient::new(engine.pair(8).unwrap()), tasks);
        assert!(done.get() > 40 * rounds / 2);
        engine.shutdown(Shutdown::Drain, HANG).unwrap();
        assert_eq!(pool.available(), pool.total());
    });
}

#[test]
fn without_a_reactor_futures_look_for_themselves_also_when_it_is_dropped_in_between() {
    within(HANG, "no reactor", || {
        let engine = Engine::builder(Arc::new(NullStore)).start().unwrap();
        let (client, reactor) = LocalClient::new(engine.pair(1).unwrap());
        let lookup = || client.submit(Submission::lookup("key"));
        assert_eq!(block_on(lookup()).result, FOUND, "before its first turn");
        let mut reactor = Box::pin(reactor);
        let (_, reactors_waker) = Counting::new();
        assert!(poll(&mut reactor, &reactors_waker).is_pending());
        let (mut one, mut two) = (Box::pin(lookup()), Box::pin(lookup()));
        let ((woken_one, waker_one), (woken_two, waker_two)) = (Counting::new(), Counting::new());
        assert!(poll(&mut one, &waker_one).is_pending());
        assert!(poll(&mut two, &waker_two).is_pending());
        drop(reactor);
        assert_eq!((woken_one.wakes(), woken_two.wakes()), (1, 1));
        assert_eq!(block_on(one).result, FOUND);
        assert_eq!(block_on(two).result, FOUND);
        assert_eq!(block_on(lookup()).result, FOUND);
    });
}

/// An op whose time is up in its call; again, with more time, where no worker came by before.
async fn late_in_its_call<'k>(
    client: &LocalClient,
    op: impl Fn() -> Submission<'k>,
) -> Returned<Done> {
    let mut timeout = Duration::from_millis(20);
    loop {
        let ended = client.submit(op().timeout(Some(timeout))).await;
        match ended.result {
            Err(ClientError::Failed(OpError::TimedOut { started: true })) => return ended,
            Err(ClientError::Failed(OpError::TimedOut { started: false })) => timeout *= 2,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_op_whose_time_is_up_in_a_call_ends_at_once_and_its_credit_comes_with_the_release() {
    within(HANG, "quarantine", || {
        let sim = sim(memory(), SimOptions::default());
        let (region, pool) = slots(64, 1);
        let engine = start(sim.clone(), config(), &region);
        let gate = sim.gate().close(&[OpKind::Retrieve]);
        let tasks = async |client: LocalClient| {
            let op = || Submission::retrieve("key", pool.lend(64).unwrap());
            let ended = late_in_its_call(&client, op).await;
            assert!(ended.slot.is_none());
            assert_eq!((client.credits(), pool.available()), (0, 0));
            let mut waiting = Box::pin(client.submit(Submission::lookup("key")));
            let (woken, waker) = Counting::new();
            assert!(poll(&mut waiting, &waker).is_pending());
            drop(gate);
            assert_eq!(waiting.await.result, Ok(Done::Absent));
            drop(woken);
        };
        run(LocalClient::new(engine.pair(1).unwrap()), tasks);
        eventually("the slot is back", || pool.available() == 1);
    });
}

#[test]
fn a_shutdown_ends_what_is_in_flight_and_what_waits() {
    within(HANG, "shutdown", || {
        let sim = sim(memory(), SimOptions::default());
        let (region, _pool) = slots(64, 1);
        let engine = start(sim.clone(), config(), &region);
        let pair = engine.pair(1).unwrap();
        let gate = sim.gate().close(&[OpKind::Lookup]);
        let tasks = async |client: LocalClient| {
            let lookup = |key: &'static str| {
                let client = client.clone();
                let op = async move { client.submit(Submission::lookup(key)).await.result };
                tokio::task::spawn_local(op)
            };
            let (running, waiting) = (lookup("running"), lookup("waiting"));
            let shutdown = thread::spawn(move || {
                assert!(sim.gate().wait_inside(OpKind::Lookup, 1, HANG));
                // The call doesn't return within the limit.
                engine.shutdown(Shutdown::Drain, Duration::from_millis(20))
            });
            let in_call = Err(ClientError::Failed(OpError::ShutDown));
            assert_eq!(running.await.unwrap(), in_call);
            let refused = Err(ClientError::Refused(SubmitError::ShutDown));
            assert_eq!(waiting.await.unwrap(), refused);
            assert_eq!(lookup("after").await.unwrap(), refused);
            drop(gate);
            let _ = shutdown.join().unwrap();
        };
        run(LocalClient::new(pair), tasks);
    });
}

#[test]
fn who_waits_for_the_credit_of_an_op_in_quarantine_is_refused_at_the_engines_end() {
    within(HANG, "closed", || {
        let sim = sim(memory(), SimOptions::default());
        let (region, _pool) = slots(64, 1);
        let engine = start(sim.clone(), config(), &region);
        let pair = engine.pair(1).unwrap();
        let gate = sim.gate().close(&[OpKind::Lookup]);
        let tasks = async |client: LocalClient| {
            let hangs = late_in_its_call(&client, || Submission::lookup("hangs")).await;
            assert!(hangs.slot.is_none());
            // The call goes on, and keeps the only credit.
            let waits = client.clone();
            let waiting = async move { waits.submit(Submission::lookup("waits")).await.result };
            let waiting = tokio::task::spawn_local(waiting);
            tokio::task::yield_now().await;
            let shutdown =
                thread::spawn(move || engine.shutdown(Shutdown::Drain, Duration::from_millis(20)));
            let refused = Err(ClientError::Refused(SubmitError::ShutDown));
            assert_eq!(waiting.await.unwrap(), refused);
            drop(gate);
            let _ = shutdown.join().unwrap();
        };
        run(LocalClient::new(pair), tasks);
    });
}

#[test]
fn a_waker_that_owns_a_future_of_the_same_client_may_be_dropped_by_it() {
    type Task = Box<dyn Future<Output = Returned<Done>> + Unpin>;
    /// As a task's waker may be the last to own the task, with all that is in it.
    struct Owner(Rc<RefCell<Option<Task>>>);
    // SAFETY: the test has one thread.
    unsafe impl Send for Owner {}
    // SAFETY: as above.
    unsafe impl Sync for Owner {}
    impl Wake for Owner {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.take();
        }
    }
    let (engine, mut driver) = by_hand(Arc::new(NullStore));
    let (client, mut reactor) = local(&engine, 8);
    let client: &'static LocalClient = Box::leak(Box::new(client));
    let owner = || {
        let owned: Task = Box::new(Box::pin(client.submit(Submission::lookup("owned"))));
        Waker::from(Arc::new(Owner(Rc::new(RefCell::new(Some(owned))))))
    };
    // Woken, renewed, given up with its future: each time the waker is the last to know the other future.
    let mut ops: Vec<_> = (0..3)
        .map(|_| Box::pin(client.submit(Submission::lookup("key"))))
        .collect();
    for op in &mut ops {
        assert!(poll(op, &owner()).is_pending());
    }
    assert!(poll(&mut ops[0], Waker::noop()).is_pending());
    drop(ops.pop());
    for _ in 0..3 {
        assert!(poll(&mut reactor, &owner()).is_pending());
        driver.poll_once();
    }
    for op in &mut ops {
        assert!(poll(op, &owner()).is_ready());
    }
    drop(ops);
    // The owned ones went with their owners, and give their credits back.
    for _ in 0..4 {
        assert!(poll(&mut reactor, Waker::noop()).is_pending());
        driver.poll_once();
    }
    assert_eq!(client.credits(), 8);
}

#[test]
fn a_waker_whose_clone_moves_or_drops_the_reactor_wakes_its_task() {
    type Hook = Rc<RefCell<Option<Box<dyn FnOnce()>>>>;
    fn clone(hook: *const ()) -> RawWaker {
        // SAFETY: the test keeps the hook, and counts no owners of its wakers.
        let next = unsafe { &*hook.cast::<RefCell<Option<Box<dyn FnOnce()>>>>() }.take();
        if let Some(next) = next {
            next();
        }
        RawWaker::new(hook, &VTABLE)
    }
    fn wake(_: *const ()) {
        WAKES.with(|wakes| wakes.set(wakes.get() + 1));
    }
    const VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake, |_| {});
    thread_local!(static WAKES: Cell<usize> = const { Cell::new(0) });

    let (engine, mut driver) = by_hand(Arc::new(NullStore));
    for drops in [false, true] {
        let (client, mut reactor) = local(&engine, 8);
        let hook = Hook::default();
        // SAFETY: the functions are for such a pointer, on this thread alone; the hook outlives its wakers.
        let waker = unsafe { Waker::from_raw(RawWaker::new(Rc::as_ptr(&hook).cast(), &VTABLE)) };
        let mut op = Box::pin(client.submit(Submission::lookup("key")));
        assert!(poll(&mut reactor, Waker::noop()).is_pending());
        assert!(driver.poll_once());
        *hook.borrow_mut() = Some(Box::new(move || match drops {
            true => drop(reactor),
            false => {
                assert!(poll(&mut reactor, Waker::noop()).is_pending());
                mem::forget(reactor); // It stays, and is not polled again.
            }
        }));
        let before = WAKES.get();
        assert!(poll(&mut op, &waker).is_pending());
        assert_eq!(WAKES.get() - before, 1, "dropped: {drops}");
        let Poll::Ready(found) = poll(&mut op, &waker) else {
            panic!("woken, and not ready (dropped: {drops})");
        };
        assert_eq!(found.result, FOUND);
    }
}

#[test]
fn a_task_that_polls_with_another_waker_is_woken_by_that() {
    let (engine, mut driver) = by_hand(Arc::new(NullStore));
    let (client, mut reactor) = local(&engine, 8);
    let ((before, old), (now, new)) = (Counting::new(), Counting::new());
    let mut op = Box::pin(client.submit(Submission::lookup("key")));
    assert!(poll(&mut reactor, Waker::noop()).is_pending());
    for waker in [&old, &new, &new] {
        assert!(poll(&mut op, waker).is_pending());
    }
    assert!(driver.poll_once());
    assert!(poll(&mut reactor, Waker::noop()).is_pending());
    assert_eq!((before.wakes(), now.wakes()), (0, 1));
    assert!(poll(&mut op, &new).is_ready());
}

#[test]
fn a_dropped_future_leaves_neither_its_waker_nor_its_slot() {
    let (region, pool) = slots(64, 1);
    let config = config().dedicated(OpKind::Retrieve, 1).spin_us(0);
    let builder = Engine::builder(Arc::new(NullStore)).config(config);
    let (engine, mut drivers) = builder.region(region).start_by_hand().unwrap();
    let driver = drivers.last_mut().unwrap();
    let (client, mut reactor) = local(&engine, 1);
    let (counting, waker) = Counting::new();
    assert!(poll(&mut reactor, Waker::noop()).is_pending());
    // Dropped before its op ended, and after.
    for ended in [false, true] {
        let slot = pool.lend(64).unwrap();
        let mut op = Box::pin(client.submit(Submission::retrieve("key", slot)));
        assert!(poll(&mut op, &waker).is_pending());
        assert!(poll(&mut reactor, Waker::noop()).is_pending());
        let mut op = Some(op).filter(|_| ended);
        assert_eq!(Arc::strong_count(&counting), if ended { 3 } else { 2 });
        assert!(driver.poll_once());
        assert!(poll(&mut reactor, Waker::noop()).is_pending());
        assert_eq!(pool.lend(64).is_none(), ended, "an ended op has its slot");
        op.take();
        assert!(pool.lend(64).is_some());
        assert_eq!(client.credits(), 1);
    }
}

#[test]
fn an_op_without_bytes_keeps_its_class_and_its_timeout() {
    let mut config = config().dedicated(OpKind::Lookup, 1).spin_us(0);
    config.max_batch = 1;
    let builder = Engine::builder(Arc::new(NullStore)).config(config);
    let (engine, mut drivers) = builder.start_by_hand().unwrap();
    let driver = drivers.last_mut().unwrap();
    let (client, mut reactor) = local(&engine, 8);
    let noop = Waker::noop();
    assert!(poll(&mut reactor, noop).is_pending());
    let lookup = |op| Box::pin(client.submit(op));
    let mut later = lookup(Submission::lookup("later").background());
    let mut sooner = lookup(Submission::lookup("sooner"));
    let mut round = |op: &mut _| {
        assert!(poll(&mut reactor, noop).is_pending());
        assert!(driver.poll_once());
        assert!(poll(&mut reactor, noop).is_pending());
        poll(op, noop)
    };
    assert!(round(&mut sooner).is_ready());
    assert!(poll(&mut later, noop).is_pending());
    assert!(round(&mut later).is_ready());
    let late = Submission::lookup("late").timeout(Some(Duration::ZERO));
    let mut late = lookup(late);
    assert!(poll(&mut reactor, noop).is_pending());
    driver.expire();
    assert!(poll(&mut reactor, noop).is_pending());
    let Poll::Ready(ended) = poll(&mut late, noop) else {
        panic!("its time is up");
    };
    let timed_out = OpError::TimedOut { started: false };
    assert_eq!(ended.result, Err(ClientError::Failed(timed_out)));
}

#[test]
fn a_forced_delete_is_forced_at_once_and_after_a_wait_for_its_credit() {
    let store = memory_with(HANG);
    for key in ["now", "then"] {
        put(&*store, key.as_bytes(), b"leased");
    }
    let config = config().dedicated(OpKind::Delete, 1).spin_us(0);
    let builder = Engine::builder(store).config(config);
    let (engine, mut drivers) = builder.start_by_hand().unwrap();
    let (client, mut reactor) = local(&engine, 1);
    let noop = Waker::noop();
    assert!(poll(&mut reactor, noop).is_pending());
    let mut turn = || {
        assert!(poll(&mut reactor, noop).is_pending());
        for driver in &mut drivers {
            driver.poll_once();
        }
        assert!(poll(&mut reactor, noop).is_pending());
    };
    let mut ended = |op: Submission<'static>, key: &'static str| {
        let mut first = Box::pin(client.submit(op));
        let mut second = Box::pin(client.submit(Submission::delete(key).force()));
        assert!(poll(&mut first, noop).is_pending() && poll(&mut second, noop).is_pending());
        turn();
        let Poll::Ready(first) = poll(&mut first, noop) else {
            panic!("the first has ended");
        };
        assert!(poll(&mut second, noop).is_pending(), "has its credit now");
        turn();
        match poll(&mut second, noop) {
            Poll::Ready(second) => [first.result, second.result],
            Poll::Pending => panic!("the second has ended"),
        }
    };
    // What was looked up has a lease.
    let lookup = Submission::lookup("then");
    assert_eq!(ended(lookup, "then"), [FOUND, Ok(Done::Deleted)]);
    let leased = Err(ClientError::Failed(OpError::Leased));
    assert_eq!(ended(Submission::lookup("now"), "gone")[0], FOUND);
    assert_eq!(ended(Submission::delete("now"), "gone")[0], leased);
    let forced = Submission::delete("now").force();
    assert_eq!(ended(forced, "gone")[0], Ok(Done::Deleted));
}

#[test]
fn what_the_pair_had_in_flight_before_is_nobodys() {
    let (engine, mut driver) = by_hand(Arc::new(NullStore));
    let mut pair = engine.pair(8).unwrap();
    for user_data in 0..4 {
        submit(&mut pair, Submission::lookup("old").user_data(user_data));
    }
    let (client, reactor) = LocalClient::new(pair);
    let mut reactor = Box::pin(reactor);
    assert_eq!(client.credits(), 4);
    assert!(poll(&mut reactor, Waker::noop()).is_pending());
    let mut ops: Vec<_> = (0..4)
        .map(|_| Box::pin(client.submit(Submission::lookup("new"))))
        .collect();
    // Only the old ones, whose numbers are those of the new ones, have been shown.
    assert!(driver.poll_once());
    assert!(poll(&mut reactor, Waker::noop()).is_pending());
    assert!(
        ops.iter_mut()
            .all(|op| poll(op, Waker::noop()).is_pending())
    );
    assert!(driver.poll_once());
    assert!(poll(&mut reactor, Waker::noop()).is_pending());
    assert!(ops.iter_mut().all(|op| poll(op, Waker::noop()).is_ready()));
    assert_eq!(client.credits(), 8);
}

#[test]
fn a_task_that_awaits_a_pair_is_woken_by_each_way_that_an_op_ends() {
    within(HANG, "poll_ready", || {
        let sim = sim(memory(), SimOptions::default());
        let (region, _pool) = slots(64, 1);
        let engine = start(sim.clone(), config(), &region);
        let mut pair = engine.pair(4).unwrap();
        let ready =
            |pair: &mut moonring::Pair| block_on(std::future::poll_fn(|cx| pair.poll_ready(cx)));
        assert_eq!(ready(&mut pair), Ok(()), "nothing is in flight");
        let (woken, waker) = Counting::new();
        let mut cx = Context::from_waker(&waker);
        let gate = sim.gate().close(&[OpKind::Lookup]);
        submit(&mut pair, Submission::lookup("called"));
        assert!(sim.gate().wait_inside(OpKind::Lookup, 1, HANG));
        // A call's return.
        assert!(pair.poll_ready(&mut cx).is_pending());
        assert_eq!(woken.wakes(), 0);
        drop(gate);
        eventually("a wake by the call's end", || woken.wakes() == 1);
        assert_eq!(pair.poll_ready(&mut cx), Poll::Ready(Ok(())));
        reap(&mut pair, 1);
        // A cancel.
        let gate = sim.gate().close(&[OpKind::Lookup]);
        let ticket = pair.submit(Submission::lookup("cancelled")).unwrap();
        assert!(pair.poll_ready(&mut cx).is_pending());
        pair.cancel(ticket, IfRunning::Abandon);
        assert_eq!(woken.wakes(), 2);
        pair.poll().unwrap();
        // A deadline.
        let timeout = Some(Duration::from_millis(10));
        submit(&mut pair, Submission::lookup("late").timeout(timeout));
        assert_eq!(ready(&mut pair), Ok(()));
        drop(gate);
        while pair.in_flight() > 0 {
            assert_eq!(ready(&mut pair), Ok(()));
            pair.completions().for_each(drop);
        }
        // The engine's end, with a call that doesn't return.
        let gate = sim.gate().close(&[OpKind::Lookup]);
        submit(&mut pair, Submission::lookup("hanging"));
        assert!(sim.gate().wait_inside(OpKind::Lookup, 1, HANG));
        let woken_before = woken.wakes();
        assert!(pair.poll_ready(&mut cx).is_pending());
        let _ = engine.shutdown(Shutdown::Cancel, Duration::from_millis(10));
        assert!(woken.wakes() > woken_before);
        let ended = pair.poll().unwrap();
        assert!(ended.more);
        assert_eq!(
            pair.poll_ready(&mut cx),
            Poll::Ready(Err(WaitError::ShutDown))
        );
        drop(gate);
    });
}

#[test]
fn a_waker_is_not_kept_by_a_pair_that_is_ready_or_dropped() {
    let (engine, mut driver) = by_hand(Arc::new(NullStore));
    let mut pair = engine.pair(4).unwrap();
    let (woken, waker) = Counting::new();
    submit(&mut pair, Submission::lookup("key"));
    assert!(
        pair.poll_ready(&mut Context::from_waker(&waker))
            .is_pending()
    );
    drop(pair);
    drop(waker);
    assert_eq!(Arc::strong_count(&woken), 1);
    assert!(driver.poll_once());
    assert_eq!(woken.wakes(), 0);
}

/// No wake is lost between a task that goes to sleep and workers that complete: many rounds of one op.
#[test]
fn no_wake_of_the_reactor_is_lost() {
    within(HANG, "wakes", || {
        let engine = Engine::builder(Arc::new(NullStore))
            .config(config())
            .start()
            .unwrap();
        let rounds = sized(5_000, 200_000);
        let tasks = async |client: LocalClient| {
            for _ in 0..rounds {
                assert_eq!(client.submit(Submission::lookup("key")).await.result, FOUND);
            }
        };
        run(LocalClient::new(engine.pair(2).unwrap()), tasks);
    });
}
