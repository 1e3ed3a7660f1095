//! What only a look inside shows: rare interleavings, and a worker that dies of our own panic.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use super::*;
use crate::store::{
    CallResult, DeleteBatch, LookupBatch, NullStore, RetrieveBatch, SimOptions, SimStore, Store,
    StoreBatch,
};
use crate::{
    ClientError, Done, Engine, EngineConfig, Shutdown, SlotClass, Submission, SubmitError, block_on,
};

/// Panics where a bug of ours would: a store named `fatal` asks for it.
pub(super) fn die_if_told(engine: &Shared) {
    assert_ne!(engine.store.name(), "fatal", "as told by the test");
}

thread_local! {
    static HOOK: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// What a test wants to happen just before a worker clears the ready bit of a pair, or that of the clients for one op.
pub(super) fn run_hook() {
    if let Some(hook) = HOOK.take() {
        hook();
    }
}

/// A bit was left by a pair whose ring was drained already; in the moment before the worker clears it, that pair goes
/// and another takes its place, which sees the old bit and sets none.
#[test]
fn a_new_pairs_op_is_not_lost_with_the_ready_bit_of_the_pair_before_it() {
    let engine = Engine::builder(Arc::new(NullStore));
    let (engine, mut drivers) = engine.start_by_hand().unwrap();
    let mut old = engine.pair(1).unwrap();
    old.submit(Submission::lookup("key")).unwrap();
    assert!(drivers[0].poll_once());
    assert!(old.poll().is_some());
    let lane = &engine.shared.lanes[OpKind::Lookup.index()];
    lane.queue(Class::Foreground).mark_ready(1);
    let engine = Arc::new(engine);
    let new = Arc::new(Mutex::new(None));
    HOOK.set(Some(Box::new({
        let (engine, new) = (Arc::clone(&engine), Arc::clone(&new));
        move || {
            drop(old);
            let mut pair = engine.pair(1).unwrap();
            pair.submit(Submission::lookup("key")).unwrap();
            *new.lock().unwrap() = Some(pair);
        }
    })));
    drivers[0].poll_once();
    let mut new = new.lock().unwrap().take().unwrap();
    drivers[0].poll_once();
    assert!(new.poll().is_some());
}

/// The worker has seen one op alone; in the moment before it clears the bit another comes, which sees the bit still set.
#[test]
fn what_comes_while_an_op_is_taken_alone_is_the_next_rounds() {
    let config = EngineConfig::default().dedicated(OpKind::Lookup, 1);
    let engine = Engine::builder(Arc::new(NullStore)).config(config);
    let (engine, mut drivers) = engine.start_by_hand().unwrap();
    let driver = &mut drivers[1];

    let pair = Arc::new(Mutex::new(engine.pair(2).unwrap()));
    let submit = |pair: &Mutex<crate::Pair>| {
        let mut pair = pair.lock().unwrap();
        pair.submit(Submission::lookup("key")).unwrap();
    };
    submit(&pair);
    let other = Arc::clone(&pair);
    HOOK.set(Some(Box::new(move || submit(&other))));
    for _ in 0..2 {
        assert!(driver.poll_once());
        assert!(pair.lock().unwrap().poll().is_some());
    }
    assert!(!driver.poll_once());

    let client = engine.client();
    let first = client.lookup("key");
    let second = Arc::new(Mutex::new(None));
    HOOK.set(Some(Box::new({
        let (client, second) = (engine.client(), Arc::clone(&second));
        move || {
            let mut op = Box::pin(async move { client.lookup("key").await });
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(op.as_mut().poll(&mut cx).is_pending());
            *second.lock().unwrap() = Some(op);
        }
    })));
    assert!(driver.poll_once() && driver.poll_once() && !driver.poll_once());
    assert_eq!(block_on(first), Ok(true));
    let second = second.lock().unwrap().take().unwrap();
    assert_eq!(block_on(second), Ok(true));
}

/// However often one source has an op alone, it is taken together with those of others.
#[test]
fn an_op_is_alone_only_where_no_other_source_and_no_other_class_has_one() {
    let config = EngineConfig::default().dedicated(OpKind::Lookup, 1);
    let engine = Engine::builder(Arc::new(NullStore)).config(config);
    let (engine, mut drivers) = engine.start_by_hand().unwrap();
    let driver = &mut drivers[1];
    let mut pairs: Vec<_> = (0..3).map(|_| engine.pair(2).unwrap()).collect();
    let mut round = |pairs: &mut [crate::Pair], ops: &[(usize, Class)]| {
        for &(pair, class) in ops {
            let op = Submission::lookup("key").class(class);
            pairs[pair].submit(op).unwrap();
        }
        assert!(driver.poll_once());
        for &(pair, _) in ops {
            assert!(pairs[pair].poll().is_some(), "of {ops:?}");
        }
    };
    use Class::{Background, Foreground};
    round(&mut pairs, &[(0, Foreground)]);
    round(&mut pairs, &[(0, Background)]);
    round(&mut pairs, &[(0, Foreground), (0, Background)]);
    round(&mut pairs, &[(0, Foreground), (0, Foreground)]);
    round(&mut pairs, &[(0, Foreground), (1, Foreground)]);
    // Now the bits of some are in another word.
    pairs.resize_with(70, || engine.pair(2).unwrap());
    round(&mut pairs, &[(69, Foreground)]);
    round(&mut pairs, &[(0, Foreground), (69, Foreground)]);
    let shared = &engine.shared;
    let group = shared.lanes[OpKind::Lookup.index()].group;
    assert_eq!(shared.groups[group].calls(), 0);
}

/// One wake is for both, and who takes the first into a call wakes another for the second.
#[test]
fn an_op_alone_in_a_call_keeps_no_op_of_another_kind_waiting() {
    let sim = SimStore::new(Arc::new(NullStore), SimOptions::default()).unwrap();
    let sim = Arc::new(sim);
    let config = EngineConfig::default().num_workers(2).spin_us(0);
    let engine = Engine::builder(sim.clone()).config(config).start().unwrap();
    let mut pair = engine.pair(2).unwrap();
    for _ in 0..20 {
        let gate = sim.gate().close(&[OpKind::Lookup, OpKind::Delete]);
        let mut batch = pair.batch();
        batch.push(Submission::lookup("key")).unwrap();
        batch.push(Submission::delete("key")).unwrap();
        batch.publish();
        for op in [OpKind::Lookup, OpKind::Delete] {
            assert!(sim.gate().wait_inside(op, 1, LONG), "{op}");
        }
        drop(gate);
        pair.wait(2, Some(LONG)).unwrap();
        assert_eq!(pair.completions().count(), 2);
        // Until both sleep.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What ends an op alone without a call: its time, the engine's end, a spare.
#[test]
fn an_op_alone_is_not_called_for_too_late_at_the_end_or_by_a_spare() {
    let timed_out = OpError::TimedOut { started: false };
    let unavailable = OpError::Unavailable;
    for expected in [timed_out, OpError::ShutDown, unavailable] {
        let config = EngineConfig::default().dedicated(OpKind::Lookup, 1);
        let engine = Engine::builder(Arc::new(NullStore)).config(config);
        let (engine, _drivers) = engine.start_by_hand().unwrap();
        let shared = &engine.shared;
        let group = shared.lanes[OpKind::Lookup.index()].group;
        let number = usize::from(expected == unavailable);
        let recorder = Arc::clone(&shared.recorders[0]);
        let mut worker = Worker::new(Arc::clone(shared), group, number, recorder);
        let (mut pair, client) = (engine.pair(1).unwrap(), engine.client());
        let timeout = (expected == timed_out).then(|| Duration::from_millis(1));
        let client = client.with_timeout(timeout);

        if expected != OpError::ShutDown {
            let op = Submission::lookup("key").timeout(timeout);
            pair.submit(op).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            worker.round(shared, &shared.groups[group]);
            assert_eq!(pair.poll().unwrap().result, Err(expected));
        }
        let asked = client.lookup("key");
        std::thread::sleep(Duration::from_millis(2));
        if expected == OpError::ShutDown {
            shared.set_closing(Closing::Cancel);
        }
        worker.round(shared, &shared.groups[group]);
        worker.round(shared, &shared.groups[group]);
        assert_eq!(block_on(asked), Err(expected.into()));
        assert_eq!(engine.stats().lane(OpKind::Lookup).calls, 0);
    }
}

#[test]
fn an_op_alone_that_is_in_time_lets_batches_grow_again() {
    let engine = Engine::builder(Arc::new(NullStore));
    let (engine, mut drivers) = engine.start_by_hand().unwrap();
    let circuit = &engine.shared.lanes[OpKind::Lookup.index()].circuit;
    let bound = || circuit.look(0).batch_bound;
    let most = bound();
    circuit.after_call(
        crate::circuit::Outcome::Answered,
        circuit.usual(),
        true,
        || 0,
    );
    assert!(bound() < most);
    let mut pair = engine.pair(1).unwrap();
    pair.submit(Submission::lookup("key")).unwrap();
    assert!(drivers[0].poll_once() && pair.poll().is_some());
    assert_eq!(bound(), most);
}

#[test]
fn bytes_of_an_op_alone_are_counted_and_its_length_is_that_of_the_object() {
    let region = crate::Region::allocate(crate::RegionOptions::new(1 << 12)).unwrap();
    let class = SlotClass { size: 64, count: 2 };
    let pool = region.slot_pool(&[class]).unwrap();
    let store = crate::store::MemoryStore::new(crate::store::MemoryOptions::default()).unwrap();
    let config = EngineConfig::default().num_workers(1);
    let engine = Engine::builder(Arc::new(store))
        .config(config)
        .region(region);
    let (engine, mut drivers) = engine.start_by_hand().unwrap();
    let mut pair = engine.pair(1).unwrap();
    let mut one = |op: Submission<'_>| {
        pair.submit(op).unwrap();
        assert!(drivers[0].poll_once());
        pair.poll().unwrap().result
    };
    let stored = one(Submission::store("key", pool.lend(40).unwrap()));
    assert!(matches!(stored, Ok(Done::Store(_))), "{stored:?}");
    let read = one(Submission::retrieve("key", pool.lend(64).unwrap()));
    assert_eq!(read, Ok(Done::Retrieved(40)));
    let read = one(Submission::retrieve("key", pool.lend(8).unwrap()));
    let object_len = std::num::NonZeroU64::new(40);
    assert_eq!(read, Err(OpError::ShortBuffer { object_len }));
    let stats = engine.stats();
    assert_eq!(stats.lane(OpKind::Store).bytes, 40);
    assert_eq!(stats.lane(OpKind::Retrieve).bytes, 40);
}

/// If each worker counted its own takes, these would take 56 foreground ops in a row.
#[test]
fn of_eight_takes_background_gets_one_whichever_workers_make_them() {
    let config = EngineConfig::default()
        .max_batch(1)
        .dedicated(OpKind::Lookup, 1);
    let engine = Engine::builder(Arc::new(NullStore)).config(config);
    let (engine, drivers) = engine.start_by_hand().unwrap();
    let shared = &engine.shared;
    let group = shared.lanes[OpKind::Lookup.index()].group;
    let mut workers: Vec<_> = (0..8)
        .map(|_| {
            Worker::new(
                Arc::clone(shared),
                group,
                0,
                Arc::clone(&shared.recorders[0]),
            )
        })
        .collect();
    drop(drivers);
    let mut pairs = Class::ALL.map(|class| (class, engine.pair(4).unwrap()));
    let mut background = Vec::new();
    for take in 0..80 {
        for (class, pair) in &mut pairs {
            while pair.credits() > 0 {
                pair.submit(Submission::lookup("key").class(*class))
                    .unwrap();
            }
        }
        assert!(workers[take % 8].round(shared, &shared.groups[group]));
        let done = pairs.each_mut().map(|(_, pair)| pair.completions().count());
        assert_eq!(done.iter().sum::<usize>(), 1);
        background.push(done[Class::Background.index()]);
    }
    for window in background.windows(8) {
        assert_eq!(window.iter().sum::<usize>(), 1, "{background:?}");
    }
}

/// Kills its worker once, after the call that it is told to.
struct Fatal {
    calls: AtomicUsize,
    fatal_call: usize,
    died: AtomicBool,
    gate: Mutex<()>,
    closed: AtomicBool,
}

impl Fatal {
    fn new(fatal_call: usize) -> Arc<Self> {
        Arc::new(Self {
            calls: AtomicUsize::new(0),
            fatal_call,
            died: AtomicBool::new(false),
            gate: Mutex::new(()),
            closed: AtomicBool::new(false),
        })
    }

    fn call(&self, len: usize) -> CallResult {
        drop(self.gate.lock());
        self.calls.fetch_add(1, SeqCst);
        Ok(len)
    }
}

impl Store for Fatal {
    fn name(&self) -> &str {
        // Once is enough.
        let fatal = self.calls.load(SeqCst) >= self.fatal_call && !self.died.swap(true, SeqCst);
        if fatal { "fatal" } else { "mortal" }
    }
    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        let n = NullStore.batch_exists(batch)?;
        self.call(n)
    }
    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        let n = NullStore.batch_get_into(batch)?;
        self.call(n)
    }
    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        let n = NullStore.batch_put_from(batch)?;
        self.call(n)
    }
    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        let n = NullStore.batch_remove(batch)?;
        self.call(n)
    }
    fn close(&self) {
        self.closed.store(true, SeqCst);
    }
}

/// Fails loudly where the test would hang.
fn eventually(mut what: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(50), "hangs");
        std::thread::yield_now();
    }
}

/// Case R1, LMCache#4342: a worker dies, what it owned never completes, and later ops are accepted into nothing.
#[test]
fn a_worker_that_dies_of_our_own_panic_shuts_the_engine_down_and_every_op_completes() {
    for (workers, dedicated) in [(1, None), (3, None), (1, Some(OpKind::Lookup))] {
        let store = Fatal::new(3);
        let mut config = EngineConfig::default().num_workers(workers).max_batch(4);
        if let Some(op) = dedicated {
            config = config.dedicated(op, 1);
        }
        let region = crate::Region::allocate(crate::RegionOptions::new(1 << 16)).unwrap();
        let class = SlotClass {
            size: 64,
            count: 64,
        };
        let pool = region.slot_pool(&[class]).unwrap();
        let engine = Engine::builder(store.clone()).config(config).region(region);
        let engine = engine.start().unwrap();
        let (mut pair, client) = (engine.pair(64).unwrap(), engine.client());
        let gate = store.gate.lock().unwrap();
        for id in 0..32 {
            let slot = pool.lend(64).unwrap();
            pair.submit(Submission::lookup("key").user_data(id))
                .unwrap();
            pair.submit(Submission::store("key", slot).user_data(32 + id))
                .unwrap();
        }
        let ops: Vec<_> = (0..16)
            .map(|_| client.retrieve("key", pool.lend(64).unwrap()))
            .collect();
        drop(gate);

        eventually(|| pair.wait(64, Some(Duration::from_secs(1))).is_ok());
        let (mut seen, mut panicked) = ([false; 64], 0);
        for done in pair.completions() {
            assert!(!std::mem::replace(&mut seen[done.user_data as usize], true));
            match done.result {
                Ok(Done::Present | Done::Store(_)) | Err(OpError::ShutDown) => {}
                Err(OpError::StorePanicked) => panicked += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, [true; 64]);
        for op in ops {
            match block_on(op).result {
                Ok(64) | Err(ClientError::Failed(OpError::ShutDown)) => {}
                Err(ClientError::Failed(OpError::StorePanicked)) => panicked += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(
            (1..=4).contains(&panicked),
            "{panicked}: the dead worker's batch"
        );
        // Nothing is accepted into nothing.
        eventually(|| pair.submit(Submission::lookup("key")).is_err());
        let refused = pair.submit(Submission::lookup("key")).unwrap_err();
        assert_eq!(refused.reason, SubmitError::ShutDown);
        assert_eq!(
            block_on(client.lookup("key")),
            Err(SubmitError::ShutDown.into())
        );
        let report = engine
            .shutdown(Shutdown::Drain, Duration::from_secs(50))
            .unwrap();
        assert_eq!((report.in_flight, report.stuck_workers.len()), (0, 0));
        assert!(store.closed.load(SeqCst));
        pair.wait(usize::MAX, None).unwrap();
        pair.completions().for_each(drop);
        let counts = engine.stats().engine;
        assert_eq!((counts.in_flight, counts.credits_in_use), (0, 0));
        assert_eq!(counts.accepted, counts.completed);
        assert_eq!(pool.available(), 64);
    }
}

#[test]
fn whoever_sees_that_a_worker_has_died_finds_the_engine_closed() {
    for _ in 0..20 {
        let config = EngineConfig::default().num_workers(1);
        let engine = Engine::builder(Fatal::new(1))
            .config(config)
            .start()
            .unwrap();
        let (mut pair, client) = (engine.pair(1).unwrap(), engine.client());
        assert_eq!(
            block_on(client.lookup("key")),
            Err(OpError::StorePanicked.into())
        );
        assert_eq!(
            block_on(client.lookup("key")),
            Err(SubmitError::ShutDown.into())
        );
        let refused = pair.submit(Submission::lookup("key")).unwrap_err();
        assert_eq!(refused.reason, SubmitError::ShutDown);
    }
}

/// The rings are closed a moment after the engine says that it is closing.
#[test]
fn a_clients_op_that_meets_a_closed_ring_comes_back_with_its_slot_and_its_credit() {
    let region = crate::Region::allocate(crate::RegionOptions::new(1 << 12)).unwrap();
    let class = SlotClass { size: 64, count: 1 };
    let pool = region.slot_pool(&[class]).unwrap();
    let engine = Engine::builder(Arc::new(NullStore)).region(region);
    let (engine, _drivers) = engine.start_by_hand().unwrap();
    let lane = &engine.shared.lanes[OpKind::Store.index()];
    lane.queue(Class::Foreground).clients.close();
    let client = engine.client();
    let key = [b'k'; 256];
    for _ in 0..20 {
        // Beside that, its long place: there are 16.
        let back = block_on(client.store(&key, pool.lend(64).unwrap()));
        assert_eq!(back.result, Err(SubmitError::ShutDown.into()));
        assert!(back.slot.is_some());
    }
    let counts = engine.stats().engine;
    assert_eq!(
        (counts.accepted, counts.credits_in_use, counts.refused),
        (0, 0, 20)
    );
}

/// The engine is then shut down on a thread that runs the wakers of what was queued: one of them may drop it.
#[test]
fn an_engine_dropped_by_a_waker_while_it_dies_does_not_hang() {
    struct Drops(Mutex<Option<Engine>>);
    impl std::task::Wake for Drops {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
        }
    }
    let store = Fatal::new(1);
    let config = EngineConfig::default().num_workers(1).max_batch(1);
    let engine = Engine::builder(store.clone())
        .config(config)
        .start()
        .unwrap();
    let client = engine.client();
    let gate = store.gate.lock().unwrap();
    let first = client.lookup("key");
    let mut queued = Box::pin(client.lookup("key"));
    let waker = std::task::Waker::from(Arc::new(Drops(Mutex::new(Some(engine)))));
    let mut cx = std::task::Context::from_waker(&waker);
    assert!(queued.as_mut().poll(&mut cx).is_pending());
    drop((waker, gate));
    eventually(|| store.closed.load(SeqCst));
    assert_eq!(block_on(first), Err(OpError::StorePanicked.into()));
    assert_eq!(block_on(queued), Err(OpError::ShutDown.into()));
}

/// Lookups wait at a gate, and the lane has learned to make one call at a time, which take so long on average.
fn one_at_a_time(mean: Duration) -> (Engine, Arc<SimStore>) {
    let sim = SimStore::new(Arc::new(NullStore), SimOptions::default()).unwrap();
    let sim = Arc::new(sim);
    let engine = Engine::builder(sim.clone()).start().unwrap();
    let shared = &engine.shared;
    let lane = &shared.lanes[OpKind::Lookup.index()];
    let mean = shared.timer.ticks(mean.as_nanos() as u64);
    lane.pace.learned(1, mean, shared.clock.raw());
    (engine, sim)
}

const NEVER_STUCK: Duration = Duration::from_secs(1000);
const LONG: Duration = Duration::from_secs(50);

#[test]
fn what_comes_while_the_one_call_goes_on_is_the_next_call() {
    let (engine, sim) = one_at_a_time(NEVER_STUCK);
    let gate = sim.gate().close(&[OpKind::Lookup]);
    let client = engine.client();
    let first = client.lookup("first");
    assert!(sim.gate().wait_inside(OpKind::Lookup, 1, LONG));
    let keys: Vec<_> = (0..20).map(|i| format!("other {i}")).collect();
    let others: Vec<_> = keys.iter().map(|key| client.lookup(key)).collect();
    let lane = &engine.shared.lanes[OpKind::Lookup.index()];
    assert!(lane.is_ready() && !lane.has_work() && !lane.try_hold());
    drop(gate);
    assert!(block_on(first).is_ok());
    for other in others {
        assert!(block_on(other).is_ok());
    }
    let stats = engine.stats();
    let stats = stats.lane(OpKind::Lookup);
    assert_eq!((stats.calls, stats.keys), (2, 21));
}

#[test]
fn the_one_call_is_over_when_its_answers_are_out() {
    struct Looks {
        shared: Arc<Shared>,
        could_be_held: AtomicUsize,
    }
    impl std::task::Wake for Looks {
        fn wake(self: Arc<Self>) {
            let lane = &self.shared.lanes[OpKind::Lookup.index()];
            let free = usize::from(lane.can_be_held());
            self.could_be_held.store(1 + free, SeqCst);
        }
    }
    for paced in [false, true] {
        let (engine, sim) = one_at_a_time(NEVER_STUCK);
        let shared = Arc::clone(&engine.shared);
        let lane = &shared.lanes[OpKind::Lookup.index()];
        if !paced {
            // All that it could take.
            lane.pace.learned(3, 0, shared.clock.raw());
            assert!(lane.try_hold() && lane.try_hold());
        }
        let gate = sim.gate().close(&[OpKind::Lookup]);
        let looks = Arc::new(Looks {
            shared: Arc::clone(&shared),
            could_be_held: AtomicUsize::new(0),
        });
        let client = engine.client();
        let mut op = Box::pin(client.lookup("key"));
        let waker = std::task::Waker::from(Arc::clone(&looks));
        let mut cx = std::task::Context::from_waker(&waker);
        assert!(op.as_mut().poll(&mut cx).is_pending());
        drop(gate);
        eventually(|| looks.could_be_held.load(SeqCst) > 0);
        assert_eq!(looks.could_be_held.load(SeqCst) == 2, !paced);
        eventually(|| lane.can_be_held());
        drop(op);
    }
}

/// A call that hangs would otherwise keep all others waiting that come after it.
#[test]
fn what_waits_for_the_one_call_goes_on_when_it_hangs() {
    let (engine, sim) = one_at_a_time(Duration::ZERO);
    let _gate = sim.gate().close(&[OpKind::Lookup]);
    let client = engine.client();
    let mut ops = Vec::new();
    for (n, key) in [(1, "first"), (2, "second"), (3, "third")] {
        ops.push(client.lookup(key));
        assert!(
            sim.gate().wait_inside(OpKind::Lookup, n, LONG),
            "call {n}, while all others hang"
        );
    }
}

#[test]
fn who_sends_again_at_once_is_in_the_next_call() {
    let (engine, sim) = one_at_a_time(NEVER_STUCK);
    let gate = sim.gate().close(&[OpKind::Lookup]);
    let mut pairs = [8, 8].map(|depth| engine.pair(depth).unwrap());
    let send = |pair: &mut crate::Pair| {
        let mut batch = pair.batch();
        for i in 0..8 {
            batch.push(Submission::lookup(&format!("{i}"))).unwrap();
        }
        batch.publish();
    };
    send(&mut pairs[0]);
    assert!(sim.gate().wait_inside(OpKind::Lookup, 1, LONG));
    send(&mut pairs[1]);
    drop(gate);
    let mut answers = 0;
    eventually(|| {
        answers += std::iter::from_fn(|| pairs[0].poll()).count();
        answers == 8
    });
    std::thread::sleep(Duration::from_millis(20));
    send(&mut pairs[0]);
    for pair in &mut pairs {
        eventually(|| {
            while pair.poll().is_some() {}
            pair.in_flight() == 0
        });
    }
    let stats = engine.stats();
    assert_eq!(stats.lane(OpKind::Lookup).calls, 2);
}

#[test]
fn what_waits_for_the_one_call_goes_on_when_it_is_overdue() {
    let (engine, sim) = one_at_a_time(NEVER_STUCK);
    let _gate = sim.gate().close(&[OpKind::Lookup]);
    let mut pair = engine.pair(1).unwrap();
    let op = Submission::lookup("hangs").timeout(Some(Duration::from_millis(50)));
    pair.submit(op).unwrap();
    assert!(sim.gate().wait_inside(OpKind::Lookup, 1, LONG));
    let client = engine.client();
    let _op = client.lookup("waits");
    assert!(sim.gate().wait_inside(OpKind::Lookup, 2, LONG));
    assert_eq!(
        engine.health().lanes[OpKind::Lookup.index()].overdue_calls,
        1
    );
}
