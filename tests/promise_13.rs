//! Promise 13: nothing panics in a library path; a panicking store or waker ends neither a worker nor an op's
//! completion. What a worker's own panic does is tested in `src/worker.rs`, where one can be had.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

use common::*;
use moonring::config::CoreChoice;
use moonring::store::sim::When;
use moonring::store::{CallResult, NullStore, RegisterError, SimOptions, Store};
use moonring::store::{DeleteBatch, LookupBatch, RetrieveBatch, StoreBatch};
use moonring::{
    Done, Engine, EngineConfig, OpError, OpKind, Region, RegionOptions, Shutdown, StartError,
    Submission,
};

fn config() -> EngineConfig {
    EngineConfig::default()
        .num_workers(1)
        .cores(CoreChoice::None)
}

/// Case R1, LMCache#4342: what a dead worker owned never completed.
#[test]
fn a_store_that_panics_on_its_500th_call_of_1_000_fails_that_calls_ops_and_the_worker_goes_on() {
    let _dog = watchdog();
    let sim = sim(SimOptions {
        panics: When::calls([500]),
        ..SimOptions::default()
    });
    let config = config().max_batch(4);
    let (engine, mut drivers) = Engine::builder(sim.clone())
        .config(config)
        .start_by_hand()
        .unwrap();
    let mut pair = engine.pair(4_000).unwrap();
    let mut batch = pair.batch();
    for id in 0..4_000u32 {
        let key = format!("key {id}");
        batch
            .push(Submission::lookup(&key).user_data(id.into()))
            .unwrap();
    }
    batch.publish();
    let calls = std::iter::repeat_with(|| drivers[0].poll_once()).take_while(|worked| *worked);
    assert_eq!(calls.count(), 1_000);
    let mut tally = Tally::new(4_000);
    let mut panicked = Vec::new();
    for done in pair.completions() {
        tally.see(done.user_data);
        match done.result {
            Ok(Done::Absent) => {}
            Err(OpError::StorePanicked) => panicked.push(done.user_data),
            other => panic!("{other:?}"),
        }
    }
    tally.assert_all_seen();
    assert_eq!(
        panicked,
        [1996, 1997, 1998, 1999],
        "the ops of the 500th call"
    );
    assert_at_rest(&engine);
}

#[test]
fn a_store_that_panics_again_and_again_ends_neither_a_worker_nor_an_ops_completion() {
    let _dog = watchdog();
    let sim = sim(SimOptions {
        seed: 11,
        panics: When::rate(0.5),
        ..SimOptions::default()
    });
    let (region, pool) = slots(64, 64);
    let engine = Engine::builder(sim.clone())
        .config(config())
        .region(region)
        .start()
        .unwrap();
    let client = engine.client();
    let mut pair = engine.pair(64).unwrap();
    let (mut good, mut bad) = (0, 0);
    for round in 0..150u32 {
        let key = format!("key {round}");
        let ops = [
            Submission::lookup(&key),
            Submission::retrieve(&key, pool.lend(64).unwrap()),
            Submission::store(&key, pool.lend(64).unwrap()),
            Submission::delete(&key),
        ];
        let mut batch = pair.batch();
        for op in ops {
            batch.push(op).unwrap();
        }
        batch.publish();
        let other = moonring::block_on(client.store(&key, pool.lend(64).unwrap()));
        pair.wait(4, None).unwrap();
        let results = pair.completions().map(|done| done.result.err());
        for error in results.chain([other.result.err().map(|e| match e {
            moonring::ClientError::Failed(e) => e,
            other => panic!("{other:?}"),
        })]) {
            match error {
                Some(OpError::StorePanicked) => bad += 1,
                Some(OpError::NotFound) | None => good += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(good + bad, 750);
    assert!(good > 100 && bad > 100, "{good} {bad}");
    assert_eq!(pool.available(), 64);
    assert_at_rest(&engine);
}

/// A panic's payload, or a waker's data, that panics when it is dropped.
struct Bomb(Arc<AtomicUsize>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        // With a payload of the same kind.
        std::panic::panic_any(Bomb(Arc::clone(&self.0)));
    }
}

#[test]
fn a_panic_payload_whose_drop_panics_harms_no_more_than_the_panic() {
    let _dog = watchdog();
    let dropped = Arc::new(AtomicUsize::new(0));
    let store = Spy::new(memory(), {
        let dropped = Arc::clone(&dropped);
        move |op| {
            if op == OpKind::Lookup {
                std::panic::panic_any(Bomb(Arc::clone(&dropped)));
            }
        }
    });
    let engine = Engine::builder(store).config(config()).start().unwrap();
    let client = engine.client();
    for n in 1..=20 {
        let panicked = moonring::ClientError::Failed(OpError::StorePanicked);
        assert_eq!(client.blocking().lookup("key"), Err(panicked));
        assert_eq!(dropped.load(Ordering::SeqCst), n);
        assert_eq!(
            client.blocking().delete("key"),
            Err(OpError::NotFound.into())
        );
    }
    assert_at_rest(&engine);
}

#[test]
fn a_waker_that_panics_harms_no_other_op_and_no_worker() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let engine = Engine::builder(sim.clone())
        .config(config())
        .start()
        .unwrap();
    let client = engine.client();
    let woken = Arc::new(AtomicUsize::new(0));
    for _ in 0..50 {
        let gate = sim.gate().close(&[OpKind::Lookup]);
        let mut ops: Vec<_> = (0..8).map(|_| Box::pin(client.lookup("key"))).collect();
        let before = woken.load(Ordering::SeqCst);
        for (n, op) in ops.iter_mut().enumerate() {
            let woken = Arc::clone(&woken);
            let waker = waker_of(move || {
                woken.fetch_add(1, Ordering::SeqCst);
                assert_ne!(n % 2, 0, "as told");
            });
            assert!(poll_with(op, &waker).is_pending());
        }
        drop(gate);
        eventually(|| woken.load(Ordering::SeqCst) == before + 8);
        for op in ops {
            assert_eq!(moonring::block_on(op), Ok(false));
        }
    }
    assert_at_rest(&engine);
}

/// A waker whose clone or drop panics while `armed`.
fn bad_waker(armed: &'static AtomicBool, clone_panics: bool) -> Waker {
    struct Bad {
        armed: &'static AtomicBool,
        clone_panics: bool,
    }
    fn data(bad: *const ()) -> Arc<Bad> {
        // SAFETY: all pointers of this vtable come from `Arc::into_raw`.
        unsafe { Arc::from_raw(bad.cast()) }
    }
    fn clone(bad: *const ()) -> RawWaker {
        let bad = std::mem::ManuallyDrop::new(data(bad));
        assert!(
            !(bad.clone_panics && bad.armed.load(Ordering::SeqCst)),
            "as told: clone"
        );
        let clone = Arc::clone(&bad);
        RawWaker::new(Arc::into_raw(clone).cast(), &VTABLE)
    }
    fn drop(bad: *const ()) {
        let bad = data(bad);
        assert!(
            bad.clone_panics || !bad.armed.load(Ordering::SeqCst),
            "as told: drop"
        );
    }
    fn wake_by_ref(_: *const ()) {}
    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, drop, wake_by_ref, drop);
    let bad = Arc::into_raw(Arc::new(Bad {
        armed,
        clone_panics,
    }));
    // SAFETY: the table's functions keep the contract of an `Arc`, panics apart.
    unsafe { Waker::from_raw(RawWaker::new(bad.cast(), &VTABLE)) }
}

/// A clone's panic is the caller's own, and reaches it; a drop's is told by the panic hook only.
#[test]
fn a_waker_whose_clone_or_drop_panics_costs_no_credit_and_no_slot() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let (region, pool) = slots(64, 8);
    let config = config().ring_depth(4);
    let engine = Engine::builder(sim.clone()).config(config);
    let engine = engine.region(region).start().unwrap();
    let client = engine.client();
    static ARMED: AtomicBool = AtomicBool::new(false);
    fn armed(f: impl FnOnce()) -> bool {
        ARMED.store(true, Ordering::SeqCst);
        let panicked = catch_unwind(AssertUnwindSafe(f)).is_err();
        ARMED.store(false, Ordering::SeqCst);
        panicked
    }
    /// Polls with a bad waker, and makes it be replaced by another where its drop is what panics.
    fn disturb(op: &mut (impl Future + Unpin), bad: &Waker, clone_panics: bool) {
        if !clone_panics {
            assert!(poll_with(op, bad).is_pending());
        }
        let waker = if clone_panics { bad } else { Waker::noop() };
        let panicked = armed(|| assert!(poll_with(op, waker).is_pending()));
        assert_eq!(panicked, clone_panics);
    }
    for clone_panics in [true, false] {
        let gate = sim.gate().close(&[OpKind::Retrieve]);
        let bad = bad_waker(&ARMED, clone_panics);
        let retrieve = || Box::pin(client.retrieve("key", pool.lend(64).unwrap()));
        let mut op = retrieve();
        disturb(&mut op, &bad, clone_panics);
        drop(op);
        // A batch that is dropped with the bad waker at its head: the ops behind it are given up too.
        let mut out = Vec::new();
        let items: Vec<_> = (0..3).map(|_| ("key", pool.lend(64).unwrap())).collect();
        let mut batch = Box::pin(client.retrieve_many(items, &mut out));
        disturb(&mut batch, &bad, clone_panics);
        if !clone_panics {
            assert!(poll_with(&mut batch, &bad).is_pending());
        }
        assert!(!armed(|| drop(batch)));
        // All four credits are in use: this one waits for one.
        assert_eq!(engine.stats().engine.credits_in_use, 4);
        let mut waits = retrieve();
        disturb(&mut waits, &bad, clone_panics);
        drop(waits);
        drop(gate);
        eventually(|| engine.stats().engine.credits_in_use == 0);
        assert_eq!(pool.available(), 8);
    }
    // And goes on.
    let slot = pool.lend(64).unwrap();
    let got = client.blocking().retrieve("key", slot);
    assert_eq!(got.result, Err(OpError::NotFound.into()));
    assert_at_rest(&engine);
}

/// A waker can be the last owner of another waiting future, whose drop comes back to the queue.
#[test]
fn a_waker_whose_drop_ends_another_waiting_caller_does_not_deadlock() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let config = config().ring_depth(1);
    let engine = Engine::builder(sim.clone()).config(config).start().unwrap();
    let client: &'static _ = Box::leak(Box::new(engine.client()));
    let _gate = sim.gate().close(&[OpKind::Lookup]);
    let _held = client.lookup("key");
    let mut other = Box::pin(client.lookup("key"));
    assert!(poll_with(&mut other, Waker::noop()).is_pending());
    let owner = Mutex::new(Some(other));
    let owning = waker_of(move || drop(owner.lock().unwrap().take()));
    let mut waits = Box::pin(client.lookup("key"));
    assert!(poll_with(&mut waits, &owning).is_pending());
    drop(owning);
    // The queue has the last clone: now it drops that.
    assert!(poll_with(&mut waits, Waker::noop()).is_pending());
}

/// The worker drops the wakers of futures that are gone: none of its own business.
#[test]
fn a_waker_whose_drop_panics_in_a_workers_hands_harms_nobody() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let engine = Engine::builder(sim.clone())
        .config(config())
        .start()
        .unwrap();
    let client = engine.client();
    static ARMED: AtomicBool = AtomicBool::new(false);
    for _ in 0..50 {
        let gate = sim.gate().close(&[OpKind::Lookup]);
        let mut ops: Vec<_> = (0..8).map(|_| Box::pin(client.lookup("key"))).collect();
        let bad = bad_waker(&ARMED, false);
        for op in &mut ops {
            assert!(poll_with(op, &bad).is_pending());
        }
        ARMED.store(true, Ordering::SeqCst);
        drop(gate);
        eventually(|| engine.stats().engine.in_flight == 0);
        // The worker is done with these wakers when it has done another round.
        let mut pair = engine.pair(1).unwrap();
        pair.submit(Submission::lookup("key")).unwrap();
        pair.wait(1, None).unwrap();
        ARMED.store(false, Ordering::SeqCst);
        for op in ops {
            assert_eq!(moonring::block_on(op), Ok(false));
        }
    }
    assert_at_rest(&engine);
}

/// An iterator is the caller's code. What it gave before its panic was accepted, so it is executed.
#[test]
fn a_batchs_iterator_that_panics_leaves_no_accepted_op_behind() {
    let _dog = watchdog();
    let (engine, mut drivers) = Engine::builder(Arc::new(NullStore))
        .config(config())
        .start_by_hand()
        .unwrap();
    let client = engine.client();
    let mut out = Vec::new();
    let keys = (0..5).map(|n| match n {
        3 => panic!("as told"),
        n => format!("key {n}"),
    });
    let batch = client.lookup_many(keys, &mut out);
    assert!(catch_unwind(AssertUnwindSafe(|| moonring::block_on(batch))).is_err());
    assert_eq!(engine.stats().engine.accepted, 3);
    while drivers[0].poll_once() {}
    assert_at_rest(&engine);
}

/// A store that panics where it is told to.
struct Panicky {
    register: Option<usize>,
    unregister: bool,
    close: bool,
    registered: AtomicUsize,
    unregistered: AtomicUsize,
    closed: AtomicUsize,
}

impl Panicky {
    fn new(register: Option<usize>, unregister: bool, close: bool) -> Arc<Self> {
        Arc::new(Self {
            register,
            unregister,
            close,
            registered: AtomicUsize::new(0),
            unregistered: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
        })
    }
}

impl Store for Panicky {
    fn name(&self) -> &str {
        "panicky"
    }
    fn capabilities(&self) -> moonring::store::Capabilities {
        memory().capabilities()
    }
    unsafe fn register(&self, _: std::ptr::NonNull<u8>, _: usize) -> Result<(), RegisterError> {
        let n = self.registered.fetch_add(1, Ordering::SeqCst) + 1;
        assert_ne!(self.register, Some(n), "as told: register");
        Ok(())
    }
    unsafe fn unregister(&self, _: std::ptr::NonNull<u8>, _: usize) -> Result<(), RegisterError> {
        self.unregistered.fetch_add(1, Ordering::SeqCst);
        assert!(!self.unregister, "as told: unregister");
        Ok(())
    }
    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        NullStore.batch_exists(batch)
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
    fn close(&self) {
        self.closed.fetch_add(1, Ordering::SeqCst);
        assert!(!self.close, "as told: close");
    }
}

#[test]
fn a_store_that_panics_while_registering_fails_the_start_and_what_was_registered_is_taken_back() {
    let _dog = watchdog();
    let region = || Region::allocate(RegionOptions::new(4 << 20)).unwrap();
    let store = Panicky::new(Some(3), false, false);
    let config = config().max_registration(Some(1 << 20));
    let started = Engine::builder(store.clone())
        .config(config.clone())
        .region(region())
        .start();
    let Err(StartError::Registration {
        piece,
        pieces,
        error,
        left,
        ..
    }) = started
    else {
        panic!("started");
    };
    assert_eq!((piece, pieces), (3, 4));
    assert!(error.reason.contains("panicked"), "{error}");
    // Whether the store has the third is unknown: it is leaked, which is said.
    assert!(
        left.len() == 1 && left[0].contains("may be registered"),
        "{left:?}"
    );
    assert_eq!(store.unregistered.load(Ordering::SeqCst), 2);
    // Taking back panics too: both are tried, both are named.
    let store = Panicky::new(Some(3), true, false);
    let started = Engine::builder(store.clone())
        .config(config)
        .region(region())
        .start();
    let Err(StartError::Registration { left, .. }) = started else {
        panic!("started");
    };
    assert_eq!(
        (left.len(), store.unregistered.load(Ordering::SeqCst)),
        (3, 2)
    );
}

#[test]
fn a_store_that_panics_while_unregistering_or_closing_does_not_stop_a_shutdown() {
    let _dog = watchdog();
    for drop_it in [false, true] {
        let store = Panicky::new(None, true, true);
        let config = config().max_registration(Some(1 << 20));
        let region = Region::allocate(RegionOptions::new(4 << 20)).unwrap();
        let engine = Engine::builder(store.clone())
            .config(config)
            .region(region)
            .start()
            .unwrap();
        if drop_it {
            drop(engine);
        } else {
            let report = engine
                .shutdown(Shutdown::Drain, Duration::from_secs(30))
                .unwrap();
            assert_eq!(report.not_unregistered.len(), 4, "{report:?}");
            assert!(
                report.not_unregistered[0].contains("panicked"),
                "{report:?}"
            );
        }
        assert_eq!(store.unregistered.load(Ordering::SeqCst), 4);
        assert_eq!(store.closed.load(Ordering::SeqCst), 1);
    }
}
