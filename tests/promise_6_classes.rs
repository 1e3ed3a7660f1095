//! Promise 6, the classes: of eight takes of an op kind at which background ops wait, they go first in one, however much
//! foreground there is, and in no more than that one, however much background there is.

mod common_b;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use common_b::*;
use moonring::store::SimOptions;
use moonring::{
    Class, Client, Done, Driver, Engine, EngineConfig, OpError, OpKind, Pair, Shutdown, SlotPool,
    Submission, SubmitError, block_on,
};

/// An op of this kind on this key, with a slot of `len` bytes where it needs one.
fn op<'k>(kind: OpKind, key: &'k str, pool: &SlotPool, len: usize) -> Submission<'k> {
    match kind {
        OpKind::Lookup => Submission::lookup(key),
        OpKind::Retrieve => Submission::retrieve(key, pool.lend(len).unwrap()),
        OpKind::Store => Submission::store(key, pool.lend(len).unwrap()),
        OpKind::Delete => Submission::delete(key),
    }
}

struct ByHand {
    watched: Arc<Watched>,
    pool: SlotPool,
    driver: Driver,
    engine: Engine,
}

impl ByHand {
    fn new(config: EngineConfig) -> Self {
        let watched = Watched::new(memory());
        let (region, pool) = slots(1024, 128);
        let (engine, mut drivers) = Engine::builder(watched.clone())
            .config(config)
            .region(region)
            .start_by_hand()
            .unwrap();
        Self {
            watched,
            pool,
            driver: drivers.remove(0),
            engine,
        }
    }

    /// The keys of the next take, which is one call.
    fn take(&mut self) -> Vec<String> {
        assert!(self.driver.poll_once());
        let mut calls = self.watched.take_calls();
        assert_eq!(calls.len(), 1);
        let keys = calls.remove(0).keys.into_iter();
        keys.map(|k| String::from_utf8(k).unwrap()).collect()
    }
}

/// A caller that always has ops of one kind and class queued, with keys `<class>-<number>`.
struct Endless {
    class: Class,
    kind: OpKind,
    len: usize,
    next: usize,
    way: Way,
}

enum Way {
    Pair(Box<Pair>),
    /// How many ops it keeps queued, and how many are.
    Client(Client, usize, usize),
}

impl Endless {
    fn new(class: Class, kind: OpKind, len: usize, way: Way) -> Self {
        Self {
            class,
            kind,
            len,
            next: 0,
            way,
        }
    }

    fn refill(&mut self, pool: &SlotPool) {
        loop {
            let key = format!("{}-{}", self.class, self.next);
            match &mut self.way {
                Way::Pair(pair) => {
                    pair.completions().for_each(drop);
                    if pair.credits() == 0 {
                        return;
                    }
                    let op = op(self.kind, &key, pool, self.len);
                    submit(pair, op.class(self.class));
                }
                Way::Client(client, want, queued) => {
                    if queued == want {
                        return;
                    }
                    // Dropped at once: the op goes on.
                    match self.kind {
                        OpKind::Lookup => drop(client.lookup(&key)),
                        OpKind::Delete => drop(client.delete(&key)),
                        OpKind::Retrieve => {
                            drop(client.retrieve(&key, pool.lend(self.len).unwrap()));
                        }
                        OpKind::Store => drop(client.store(&key, pool.lend(self.len).unwrap())),
                    }
                    *queued += 1;
                }
            }
            self.next += 1;
        }
    }

    fn saw(&mut self, keys: &[String]) {
        if let Way::Client(_, _, queued) = &mut self.way {
            let class = self.class.name();
            *queued -= keys.iter().filter(|k| k.starts_with(class)).count();
        }
    }
}

/// The keys of so many takes, with all of these callers full before each.
fn takes(engine: &mut ByHand, callers: &mut [Endless], n: usize) -> Vec<Vec<String>> {
    let mut takes = Vec::new();
    for _ in 0..n {
        callers.iter_mut().for_each(|c| c.refill(&engine.pool));
        let keys = engine.take();
        callers.iter_mut().for_each(|c| c.saw(&keys));
        takes.push(keys);
    }
    takes
}

fn is_background(key: &str) -> bool {
    key.starts_with("background")
}

#[test]
fn of_eight_takes_background_gets_one_and_foreground_the_others_however_full_both_are() {
    let ways: [fn(&Engine, Class) -> Way; 2] = [
        |engine, _| Way::Pair(Box::new(engine.pair(8).unwrap())),
        |engine, class| match class {
            Class::Foreground => Way::Client(engine.client(), 8, 0),
            Class::Background => Way::Client(engine.client().background(), 8, 0),
        },
    ];
    for kind in OpKind::ALL {
        for max_batch in [1, 3] {
            for (fore, back) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let mut engine = ByHand::new(config().max_batch(max_batch));
                let mut callers =
                    [(Class::Foreground, fore), (Class::Background, back)].map(|(class, way)| {
                        Endless::new(class, kind, 64, ways[way](&engine.engine, class))
                    });
                let takes = takes(&mut engine, &mut callers, 80);
                for window in takes.windows(8) {
                    let back = window
                        .iter()
                        .filter(|keys| keys.iter().all(|k| is_background(k)));
                    assert_eq!(back.count(), 1, "{kind}, {max_batch} in a call: {window:?}");
                    let fore = window
                        .iter()
                        .filter(|keys| !keys.iter().any(|k| is_background(k)));
                    assert_eq!(fore.count(), 7, "{kind}, {max_batch} in a call: {window:?}");
                }
                let full = |keys: &Vec<String>| keys.len() == max_batch;
                assert!(takes.iter().all(full), "{takes:?}");
                // In each class in the order of submission, for there is one source.
                for class in Class::ALL {
                    let keys = takes.iter().flatten();
                    let of_class: Vec<_> = keys.filter(|k| k.starts_with(class.name())).collect();
                    let sent = (0..of_class.len()).map(|i| format!("{class}-{i}"));
                    assert!(sent.eq(of_class.into_iter().cloned()));
                }
            }
        }
    }
}

#[test]
fn a_single_op_waits_for_one_take_of_the_other_class_or_for_seven() {
    for (class, other, limit) in [
        (Class::Foreground, Class::Background, 2),
        (Class::Background, Class::Foreground, 8),
    ] {
        let mut engine = ByHand::new(config().max_batch(1));
        let pair = Way::Pair(Box::new(engine.engine.pair(4).unwrap()));
        let mut others = [Endless::new(other, OpKind::Lookup, 0, pair)];
        let mut pair = engine.engine.pair(1).unwrap();
        for offset in 0..16 {
            takes(&mut engine, &mut others, offset);
            submit(&mut pair, Submission::lookup("it").class(class));
            let waited = (1..).find(|_| takes(&mut engine, &mut others, 1)[0] == ["it"]);
            assert!(waited.unwrap() <= limit, "{class}: {waited:?} takes");
            assert!(pair.poll().is_some());
        }
    }
}

#[test]
fn background_is_not_held_back_where_there_is_no_foreground() {
    let mut engine = ByHand::new(config().max_batch(2));
    let mut pair = engine.engine.pair(4).unwrap();
    for i in 0..20 {
        let keys = [format!("{i}-0"), format!("{i}-1")];
        for key in &keys {
            submit(&mut pair, Submission::lookup(key).background());
        }
        assert_eq!(engine.take(), keys);
        assert_eq!(pair.completions().count(), 2);
    }
}

#[test]
fn a_call_holds_both_classes_foreground_first_with_what_is_left_for_background() {
    let mut engine = ByHand::new(config().max_batch(5).max_batch_bytes(1000));
    let mut pair = engine.engine.pair(16).unwrap();
    let mut other = engine.engine.pair(16).unwrap();
    let send = |pair: &mut Pair, pool: &SlotPool, key: &str, class, len| {
        submit(pair, op(OpKind::Store, key, pool, len).class(class));
    };
    for (key, class) in [
        ("b0", Class::Background),
        ("b1", Class::Background),
        ("f0", Class::Foreground),
        ("f1", Class::Foreground),
    ] {
        send(&mut pair, &engine.pool, key, class, 64);
    }
    send(&mut other, &engine.pool, "f2", Class::Foreground, 64);
    send(&mut other, &engine.pool, "b2", Class::Background, 64);
    assert_eq!(engine.take(), ["f0", "f1", "f2", "b0", "b1"]);
    // A key of both classes stands once in the call, and each op has its answer.
    submit(&mut pair, Submission::lookup("f0").user_data(100));
    submit(
        &mut pair,
        Submission::lookup("f0").background().user_data(101),
    );
    let calls = [engine.take(), engine.take()];
    assert!(calls.contains(&vec!["f0".to_owned()]) && calls.contains(&vec!["b2".to_owned()]));
    let done = reap(&mut pair, 6);
    for lookup in done.iter().filter(|c| c.user_data >= 100) {
        assert_eq!(lookup.result, Ok(Done::Present));
    }
    // What has no room beside foreground's bytes waits.
    send(&mut pair, &engine.pool, "b3", Class::Background, 600);
    send(&mut pair, &engine.pool, "f3", Class::Foreground, 600);
    assert_eq!([engine.take(), engine.take()], [["f3"], ["b3"]]);
}

/// Foreground always leaves a little room, which is never enough for them.
#[test]
fn large_background_values_of_many_pairs_get_their_turns() {
    const PAIRS: usize = 6;
    let mut engine = ByHand::new(config().max_batch_bytes(1000));
    let pair = Way::Pair(Box::new(engine.engine.pair(8).unwrap()));
    let mut fore = [Endless::new(Class::Foreground, OpKind::Store, 64, pair)];
    let mut pairs: Vec<_> = (0..PAIRS).map(|_| engine.engine.pair(2).unwrap()).collect();
    let mut last = [0; PAIRS];
    for take in 1..=400 {
        for (i, pair) in pairs.iter_mut().enumerate() {
            pair.completions().for_each(drop);
            while pair.credits() > 0 {
                // Pair 3's does not fit beside any other.
                let len = if i == 3 { 1000 } else { 500 };
                let key = format!("background-{i}-{}", pair.credits());
                submit(
                    pair,
                    op(OpKind::Store, &key, &engine.pool, len).background(),
                );
            }
        }
        for key in takes(&mut engine, &mut fore, 1).iter().flatten() {
            if let ["background", i, _] = key.split('-').collect::<Vec<_>>()[..] {
                last[i.parse::<usize>().unwrap()] = take;
            }
        }
        let oldest = last.iter().min().unwrap();
        assert!(take - oldest <= 8 * (PAIRS + 1), "{last:?} at {take}");
    }
}

/// Nothing else is in the rings that could have shown them.
#[test]
fn background_ops_of_the_many_forms_and_of_a_leaked_batch_are_shown_to_workers() {
    let mut engine = ByHand::new(config());
    let back = engine.engine.client().background();
    let mut answers = Vec::new();
    let mut many = pin!(back.lookup_many(["many"], &mut answers));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(many.as_mut().poll(&mut cx).is_pending());
    assert_eq!(engine.take(), ["many"]);
    assert!(many.poll(&mut cx).is_ready());

    let mut pair = engine.engine.pair(1).unwrap();
    let mut batch = pair.batch();
    batch
        .push(Submission::lookup("leaked").background())
        .unwrap();
    std::mem::forget(batch);
    drop(pair);
    assert_eq!(engine.take(), ["leaked"]);
    assert_eq!(engine.engine.stats().engine.in_flight, 0);
}

#[test]
fn all_ops_of_a_background_client_are_background() {
    let mut engine = ByHand::new(config());
    let client = engine.engine.client();
    let back = client.background();
    let (clone, twice) = (back.clone(), back.background());
    let (mut lookups, mut retrieves, mut deletes, mut stores) = <_>::default();
    let slot = |key: &'static str| (key, engine.pool.lend(8).unwrap());
    let mut cx = Context::from_waker(Waker::noop());
    // All of background first; the many forms submit when they are polled.
    let mut r = pin!(back.retrieve_many([slot("b")], &mut retrieves));
    assert!(r.as_mut().poll(&mut cx).is_pending());
    let (mut s, mut d) = (
        pin!(back.store_many([slot("b")], &mut stores)),
        pin!(back.delete_many(["b"], &mut deletes)),
    );
    assert!(s.as_mut().poll(&mut cx).is_pending());
    assert!(d.as_mut().poll(&mut cx).is_pending());
    let mut l = pin!(clone.lookup_many(["b0"], &mut lookups));
    assert!(l.as_mut().poll(&mut cx).is_pending());
    let mut p = pin!(back.lookup_prefix(["b1"]));
    assert!(p.as_mut().poll(&mut cx).is_pending());
    let one = (
        back.lookup("b2"),
        back.retrieve("b3", slot("").1),
        clone.retrieve_exact("b4", slot("").1),
        twice.store("b5", slot("").1),
        back.delete("b6"),
    );
    // The many forms of a foreground client, and its single ops.
    drop(client.lookup("f"));
    drop(client.retrieve("f", slot("").1));
    drop(client.clone().store("f", slot("").1));
    drop(client.delete("f"));
    drop(one);
    let mut calls = Vec::new();
    while engine.driver.poll_once() {
        calls.extend(engine.watched.take_calls());
    }
    for kind in OpKind::ALL {
        let of_kind: Vec<_> = calls.iter().filter(|c| c.op == kind).collect();
        assert_eq!(of_kind.len(), 1, "{calls:?}");
        let keys = &of_kind[0].keys;
        assert_eq!(keys[0], b"f", "{kind}: {keys:?}");
        let wanted = if kind == OpKind::Store || kind == OpKind::Delete {
            3
        } else {
            4
        };
        assert_eq!(keys.len(), wanted, "{kind}: {keys:?}");
    }
    for done in [r.poll(&mut cx), s.poll(&mut cx), d.poll(&mut cx)] {
        assert!(done.is_ready());
    }
    assert!(l.poll(&mut cx).is_ready() && p.poll(&mut cx).is_ready());
    assert_eq!(engine.engine.stats().engine.in_flight, 0);
}

/// By one that spins, by one that is about to sleep, by one that sleeps.
#[test]
fn a_background_op_alone_is_found_by_a_worker() {
    within(HANG, "background ops one by one", || {
        for spin_us in [0, 20, 500] {
            let (region, _) = slots(64, 1);
            let config = config().num_workers(1).spin_us(spin_us);
            let engine = start(memory(), config, &region);
            let back = engine.client().background();
            let mut pair = engine.pair(1).unwrap();
            for i in 0..400 {
                assert_eq!(back.blocking().lookup("key"), Ok(false));
                submit(&mut pair, Submission::lookup("key").background());
                reap(&mut pair, 1);
                std::thread::sleep(Duration::from_micros(i % 40));
            }
        }
    });
}

#[test]
fn shutdown_ends_queued_background_ops_by_its_workers() {
    within(HANG, "shutdown", || {
        for mode in [Shutdown::Drain, Shutdown::Cancel] {
            let sim = sim(memory(), SimOptions::default());
            let (region, pool) = slots(64, 64);
            let engine = start(sim.clone(), config().num_workers(2).max_batch(1), &region);
            let gate = sim.gate().close(&OpKind::ALL);
            let mut pair = engine.pair(64).unwrap();
            let back = engine.client().background();
            for kind in OpKind::ALL {
                for _ in 0..8 {
                    submit(&mut pair, op(kind, "key", &pool, 64).background());
                }
            }
            let futures: Vec<_> = (0..20).map(|_| back.lookup("key")).collect();
            let report = std::thread::scope(|scope| {
                let report = scope.spawn(|| engine.shutdown(mode, HANG / 6));
                eventually("no intake", || engine.pair(1).is_err());
                drop(gate);
                report.join().unwrap().unwrap()
            });
            assert_eq!((report.completed, report.in_flight), (52, 0));
            assert_eq!(report.cancelled == 0, mode == Shutdown::Drain);
            assert_eq!(reap(&mut pair, 32).len(), 32);
            let ended = futures.into_iter().map(block_on);
            assert_eq!(
                ended.filter(Result::is_ok).count() == 20,
                mode == Shutdown::Drain
            );
            assert_eq!(pool.available(), 64);
            let counts = engine.stats().engine;
            assert_eq!((counts.accepted, counts.credits_in_use), (52, 0));
        }
    });
}

/// No worker comes: the shutdown ends what is queued, and what is not even shown.
#[test]
fn shutdown_ends_queued_background_ops_without_workers() {
    within(HANG, "shutdown", || {
        let ByHand {
            engine,
            pool,
            driver,
            ..
        } = ByHand::new(config());
        let (mut pair, mut late) = (engine.pair(64).unwrap(), engine.pair(64).unwrap());
        let back = engine.client().background();
        let mut batch = late.batch();
        for kind in OpKind::ALL {
            for _ in 0..8 {
                submit(&mut pair, op(kind, "key", &pool, 64).background());
                batch.push(op(kind, "key", &pool, 64).background()).unwrap();
            }
        }
        let future = back.lookup("key");
        let report = engine.shutdown(Shutdown::Drain, Duration::ZERO).unwrap();
        assert_eq!((report.completed, report.cancelled), (65, 65));
        // Accepted before, and ended; shown after the lanes were closed.
        drop(batch);
        assert_eq!(engine.stats().engine.accepted, 65);
        for pair in [&mut pair, &mut late] {
            for done in reap(pair, 32) {
                assert_eq!(done.result, Err(OpError::ShutDown));
            }
        }
        assert_eq!(block_on(future), Err(OpError::ShutDown.into()));
        assert_eq!(
            block_on(back.lookup("key")),
            Err(SubmitError::ShutDown.into())
        );
        assert_eq!(pool.available(), 128);
        drop(driver);
    });
}
