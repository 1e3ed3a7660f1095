//! A forked child: every call answers `Forked`, futures resolve to it, dropping anything there harms nobody, and the
//! parent goes on as if nothing had been.

mod common;
mod standin;

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use common::{Spy, assert_at_rest, eventually, in_a_child, memory, sim, slots, watchdog};
use moonring::store::{NullStore, SimOptions, Store, StoreHealth, direct};
use moonring::{
    Cancel, ClientError, Done, Engine, EngineConfig, HealthState, IfRunning, LocalClient, OpError,
    OpKind, PairError, Returned, Shutdown, ShutdownError, Stats, Submission, SubmitError,
    WaitError,
};
use standin::{Kind, Master, StandIn};

/// In a child: the number of the first check that fails is its exit code.
macro_rules! check {
    ($number:literal, $holds:expr) => {
        if !$holds {
            return $number;
        }
    };
}

/// The child's copy of something, to be dropped there. The parent's is left alone.
fn copy<T>(of: &T) -> T {
    // SAFETY: for use in a forked child, which has all memory for itself and doesn't use `of` afterwards.
    unsafe { std::ptr::read(of) }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

fn boxed<'a, T>(future: impl Future<Output = T> + 'a) -> Boxed<'a, T> {
    Box::pin(future)
}

fn poll<T>(future: &mut Boxed<'_, T>) -> Poll<T> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

fn is_readable(fd: i32) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

const LIMIT: Duration = Duration::from_secs(20);

const REFUSED: ClientError = ClientError::Refused(SubmitError::Forked);
const FORKED: ClientError = ClientError::Failed(OpError::Forked);

#[test]
fn each_call_in_a_child_answers_forked_and_nobody_else_notices() {
    let _watchdog = watchdog();
    let sim = sim(SimOptions::default());
    let spy = Spy::new(sim.clone(), |_| ());
    let (region, pool) = slots(64, 16);
    let config = EngineConfig::default().ring_depth(4).num_workers(2);
    let engine = Engine::builder(spy.clone())
        .config(config)
        .region(region.clone())
        .start()
        .unwrap();
    let client = engine.client();
    let mut pair = engine.pair(8).unwrap();

    // A completion that nobody has reaped, an eventfd, an op in a call, and one that was pushed and not published.
    pair.submit(Submission::delete("gone")).unwrap();
    pair.wait(1, None).unwrap();
    let fd = pair.event_fd().unwrap();
    let gate = sim.gate().close(&[OpKind::Store, OpKind::Lookup]);
    let ticket = pair
        .submit(Submission::store("a", pool.lend(64).unwrap()).user_data(1))
        .unwrap();
    assert!(sim.gate().wait_inside(OpKind::Store, 1, LIMIT));
    // An eventfd that is readable.
    let mut ready = engine.pair(1).unwrap();
    let ready_fd = ready.event_fd().unwrap();
    assert!(ready.arm());
    ready.submit(Submission::delete("gone")).unwrap();
    eventually(|| is_readable(ready_fd.as_raw_fd()));
    let mut other = engine.pair(8).unwrap();
    let mut batch = other.batch();
    batch.push(Submission::delete("staged")).unwrap();
    // Futures: one in a call, one refused, one that is done and not asked, one of many ops, one that waits for a credit.
    let mut stored = boxed(client.store("b", pool.lend(64).unwrap()));
    let mut was_refused = boxed(client.delete(""));
    let mut done = boxed(client.delete("gone"));
    eventually(|| engine.stats().lane(OpKind::Delete).count("not_found") == 3);
    let mut many = boxed(async {
        let mut answers = Vec::new();
        let keys = ["k0", "k1", "k2", "k3", "k4"];
        client.lookup_many(keys, &mut answers).await;
        answers
    });
    assert!(poll(&mut stored).is_pending() && poll(&mut many).is_pending());
    let mut waits = boxed(client.retrieve("b", pool.lend(64).unwrap()));
    assert!(poll(&mut waits).is_pending());
    eventually(|| spy.calls() == 5);
    assert_eq!(engine.stats().engine.credits_in_use, 4 + 4);
    assert!(!is_readable(fd.as_raw_fd()));
    let seen = spy.seen().len();

    let code = in_a_child(|| {
        let Err(refused) = pair.submit(Submission::lookup("x")) else {
            return 1;
        };
        check!(
            1,
            refused.reason == SubmitError::Forked && refused.op.key() == b"x"
        );
        check!(
            2,
            pair.poll().is_none() && pair.completions().next().is_none()
        );
        check!(3, pair.wait(1, None) == Err(WaitError::Forked));
        check!(4, pair.wait(0, None) == Err(WaitError::Forked));
        check!(5, !pair.arm() && pair.event_fd().is_err());
        check!(5, !ready.arm());
        check!(6, matches!(engine.pair(1), Err(PairError::Forked)));
        let ended = engine.shutdown(Shutdown::Drain, Duration::MAX);
        check!(7, ended == Err(ShutdownError::Forked));
        check!(8, engine.stats() == Stats::default());
        check!(
            21,
            pair.cancel(ticket, IfRunning::Abandon) == Cancel::Forked
        );
        check!(22, pair.cancel_all(1, IfRunning::Abandon) == 0);
        check!(23, engine.quarantined().is_empty());
        let health = engine.health();
        check!(
            25,
            health.state == HealthState::Down && health.reasons[0].contains("fork")
        );
        check!(9, client.blocking().lookup("x") == Err(REFUSED));
        check!(10, engine.client().blocking().delete("x") == Err(REFUSED));
        let prefix = moonring::block_on(client.lookup_prefix(["x"]));
        check!(11, prefix.unknown == Some(REFUSED));
        check!(12, pool.lend(1).is_none());
        // Of an op in flight the slot is the parent's; of one that waited it comes back.
        let Poll::Ready(back) = poll(&mut stored) else {
            return 13;
        };
        check!(14, back.result == Err(FORKED) && back.slot.is_none());
        check!(15, poll(&mut done) == Poll::Ready(Err(FORKED)));
        let empty = ClientError::Refused(SubmitError::EmptyKey);
        check!(16, poll(&mut was_refused) == Poll::Ready(Err(empty)));
        let all = [FORKED, FORKED, REFUSED, REFUSED, REFUSED].map(Err);
        check!(17, poll(&mut many) == Poll::Ready(all.to_vec()));
        let Poll::Ready(back) = poll(&mut waits) else {
            return 18;
        };
        check!(19, back.result == Err(REFUSED) && back.slot.is_some());
        // Nobody ends what is dropped, and the store hears nothing.
        let free = pool.available();
        drop(back);
        check!(24, pool.available() == free);
        drop((
            copy(&batch),
            copy(&pair),
            copy(&waits),
            copy(&many),
            copy(&stored),
        ));
        drop((copy(&engine), copy(&client), copy(&pool), copy(&region)));
        check!(20, spy.calls() == 5 && spy.seen().len() == seen);
        0
    });
    assert_eq!(code, 0);

    // Here all of it is still there.
    assert!(!is_readable(fd.as_raw_fd()), "the child signalled");
    assert!(is_readable(ready_fd.as_raw_fd()), "the child took a signal");
    assert!(ready.poll().is_some());
    assert!(pair.poll().is_some());
    assert!(pair.arm());
    batch.publish();
    drop(gate);
    pair.wait(1, None).unwrap();
    eventually(|| is_readable(fd.as_raw_fd()));
    assert!(pair.poll().unwrap().slot.is_some());
    other.wait(1, None).unwrap();
    assert_eq!(other.poll().unwrap().result, Err(OpError::NotFound));
    assert!(moonring::block_on(stored).result.is_ok());
    assert_eq!(
        moonring::block_on(done),
        Err(ClientError::Failed(OpError::NotFound))
    );
    assert_eq!(moonring::block_on(many), vec![Ok(false); 5]);
    assert_eq!(moonring::block_on(waits).result, Ok(64));
    assert!(moonring::block_on(was_refused).is_err());
    assert_at_rest(&engine);
    assert_eq!(pool.available(), 16);
    assert_eq!(
        engine.shutdown(Shutdown::Drain, LIMIT).unwrap().cancelled,
        0
    );
}

#[test]
fn a_childs_futures_of_a_pair_answer_forked_whether_or_not_they_had_ended() {
    let _watchdog = watchdog();
    let (engine, mut drivers) = Engine::builder(Arc::new(NullStore))
        .start_by_hand()
        .unwrap();
    let (client, reactor) = LocalClient::new(engine.pair(2).unwrap());
    let mut reactor = boxed(reactor);
    let op = |key| boxed(client.submit(Submission::lookup(key)));
    let (mut was_refused, mut done) = (op(""), op("done"));
    assert!(poll(&mut reactor).is_pending() && poll(&mut done).is_pending());
    assert!(drivers[0].poll_once() && poll(&mut reactor).is_pending());
    // One is done, and not asked.
    let (mut in_flight, mut waits) = (op("in flight"), op("waits"));
    assert!(poll(&mut in_flight).is_pending() && poll(&mut waits).is_pending());
    let code = in_a_child(|| {
        let mut new = op("new");
        let ends = |op: &mut Boxed<'_, Returned<Done>>| match poll(op) {
            Poll::Ready(Returned { result, slot }) if slot.is_none() => Some(result),
            _ => None,
        };
        check!(1, ends(&mut done) == Some(Err(FORKED)));
        check!(2, ends(&mut in_flight) == Some(Err(FORKED)));
        check!(3, ends(&mut waits) == Some(Err(REFUSED)));
        check!(4, ends(&mut was_refused).is_some_and(|r| r.is_err()));
        check!(5, ends(&mut new) == Some(Err(REFUSED)));
        check!(6, poll(&mut reactor).is_ready());
        0
    });
    assert_eq!(code, 0);
    assert!(poll(&mut done).is_ready());
    assert!(poll(&mut was_refused).is_ready());
    assert!(poll(&mut reactor).is_pending() && poll(&mut waits).is_pending());
    assert!(drivers[0].poll_once() && poll(&mut reactor).is_pending());
    assert!(poll(&mut in_flight).is_ready());
}

/// Dropped in the child without being polled there: futures of each state.
#[test]
fn a_child_drops_futures_that_it_never_polled() {
    let _watchdog = watchdog();
    let sim = sim(SimOptions::default());
    let (region, pool) = slots(64, 4);
    let config = EngineConfig::default().ring_depth(1);
    let engine = Engine::builder(sim.clone())
        .config(config)
        .region(region)
        .start()
        .unwrap();
    let client = engine.client();
    let gate = sim.gate().close(&[OpKind::Store]);
    let mut flies = boxed(client.store("a", pool.lend(64).unwrap()));
    let mut waits = boxed(client.store("b", pool.lend(64).unwrap()));
    let mut many = boxed(client.lookup_prefix(["a", "b"]));
    for pending in [poll(&mut flies).is_pending(), poll(&mut waits).is_pending()] {
        assert!(pending);
    }
    assert!(poll(&mut many).is_pending());
    let code = in_a_child(|| {
        drop((copy(&flies), copy(&waits), copy(&many)));
        drop((copy(&client), copy(&pool), copy(&engine)));
        0
    });
    assert_eq!(code, 0);
    drop(gate);
    assert!(moonring::block_on(flies).result.is_ok());
    assert!(moonring::block_on(waits).result.is_ok());
    assert_eq!(moonring::block_on(many).unknown, None);
    assert_eq!(pool.available(), 4);
    assert_at_rest(&engine);
}

/// Ends the load, also after a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Threads that take every lock that there is, over and over, and slots.
#[test]
fn of_100_forks_under_load_no_child_waits_for_a_lock_and_no_op_is_lost() {
    let _watchdog = watchdog();
    let (region, pool) = slots(64, 64);
    let config = EngineConfig::default().ring_depth(2).num_workers(2);
    let engine = Engine::builder(memory())
        .config(config)
        .region(region)
        .start()
        .unwrap();
    let client = engine.client();
    let over = AtomicBool::new(false);
    let (submitted, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    let load = |thread: usize| {
        let key = format!("key-{thread}");
        while !over.load(Relaxed) {
            let Some(slot) = pool.lend(64) else { continue };
            submitted.fetch_add(1, Relaxed);
            match thread % 2 {
                // Two credits for these threads: they queue up for them.
                0 => {
                    let back = client.blocking().store(&key, slot);
                    ended.fetch_add(u64::from(back.result.is_ok()), Relaxed);
                }
                // Pairs come and go, one of them with its op in flight.
                _ => {
                    let mut pair = engine.pair(2).unwrap();
                    let op = Submission::store(&key, slot).timeout(Some(LIMIT));
                    let ticket = pair.submit(op).unwrap();
                    if submitted.load(Relaxed).is_multiple_of(3) {
                        ended.fetch_add(1, Relaxed);
                        continue;
                    }
                    pair.wait(1, None).unwrap();
                    ended.fetch_add(u64::from(pair.poll().unwrap().result.is_ok()), Relaxed);
                    // These take the lock of what is in quarantine.
                    pair.cancel(ticket, IfRunning::Abandon);
                    engine.quarantined();
                    engine.stats();
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let load = &load;
            scope.spawn(move || load(thread));
        }
        let _ends = Ends(&over);
        for round in 0..100 {
            let mut pair = engine.pair(4).unwrap();
            pair.submit(Submission::lookup("key-0")).unwrap();
            let impatient = client.with_cancel_on_drop();
            let mut flies = boxed(impatient.lookup("key-1"));
            let mut waits = boxed(client.lookup("key-2"));
            let mut kept = boxed(impatient.lookup("key-3"));
            let asked = poll(&mut waits).is_pending();
            let _ = poll(&mut kept);
            let slot = pool.lend(64);
            std::thread::sleep(Duration::from_micros(round * 37 % 1000));
            let code = in_a_child(|| {
                let op = Submission::lookup("x");
                check!(
                    1,
                    pair.submit(op)
                        .is_err_and(|e| e.reason == SubmitError::Forked)
                );
                check!(2, pair.wait(1, None) == Err(WaitError::Forked));
                check!(3, matches!(engine.pair(1), Err(PairError::Forked)));
                check!(4, engine.stats() == Stats::default());
                check!(8, engine.quarantined().is_empty());
                check!(9, pair.cancel_all(0, IfRunning::Abandon) == 0);
                check!(
                    5,
                    poll(&mut flies).is_ready() && (!asked || poll(&mut waits).is_ready())
                );
                check!(6, client.blocking().lookup("x") == Err(REFUSED));
                check!(7, engine.shutdown(Shutdown::Cancel, LIMIT).is_err());
                drop((
                    copy(&slot),
                    copy(&pair),
                    copy(&kept),
                    copy(&client),
                    copy(&engine),
                ));
                0
            });
            assert_eq!(code, 0, "round {round}");
            drop(slot);
        }
    });
    assert!(submitted.load(Relaxed) >= 100);
    assert_eq!(submitted.load(Relaxed), ended.load(Relaxed));
    eventually(|| pool.available() == 64);
    eventually(|| engine.stats().engine.credits_in_use == 0);
    assert_at_rest(&engine);
}

#[test]
fn a_child_that_execs_is_fine_and_so_is_one_that_starts_an_engine_of_its_own() {
    let _watchdog = watchdog();
    let sim = sim(SimOptions::default());
    let engine = Engine::builder(sim.clone()).start().unwrap();
    let client = engine.client();
    let gate = sim.gate().close(&[OpKind::Lookup]);
    let mut looks = boxed(client.lookup("a"));
    assert!(poll(&mut looks).is_pending());
    let mut command = Command::new("/bin/true");
    assert!(command.status().unwrap().success());
    let forked = client.clone();
    // SAFETY: runs in the child, and takes no lock.
    unsafe {
        command.pre_exec(move || match forked.blocking().lookup("a") {
            Err(REFUSED) => Ok(()),
            _ => Err(std::io::ErrorKind::Other.into()),
        })
    };
    assert!(command.status().unwrap().success());
    let code = in_a_child(|| {
        let (region, pool) = slots(64, 1);
        let Ok(own) = Engine::builder(memory()).region(region).start() else {
            return 1;
        };
        let stored = own.client().blocking().store("a", pool.lend(64).unwrap());
        check!(2, stored.result.is_ok());
        check!(3, own.client().blocking().lookup("a") == Ok(true));
        check!(4, client.blocking().lookup("a") == Err(REFUSED));
        let ended = own.shutdown(Shutdown::Drain, LIMIT);
        check!(5, ended.is_ok_and(|report| report.completed == 2));
        0
    });
    assert_eq!(code, 0);
    drop(gate);
    assert_eq!(moonring::block_on(looks), Ok(false));
}

#[test]
fn a_worker_that_is_driven_by_hand_does_nothing_in_a_child() {
    let (engine, mut drivers) = Engine::builder(memory()).start_by_hand().unwrap();
    let mut pair = engine.pair(1).unwrap();
    pair.submit(Submission::lookup("a")).unwrap();
    let code = in_a_child(|| i32::from(drivers.iter_mut().any(|driver| driver.poll_once())));
    assert_eq!(code, 0);
    assert!(drivers[0].poll_once());
    assert_eq!(pair.poll().unwrap().result, Ok(Done::Absent));
}

#[test]
fn a_child_neither_calls_nor_destroys_mooncakes_client() {
    let _watchdog = watchdog();
    let Some(library) = StandIn::compile(Kind::Store) else {
        return;
    };
    let store = library.open(&Master::listen().config("")).unwrap();
    direct::put_from(&store, &[(b"key", b"bytes")]).unwrap();
    let code = in_a_child(|| {
        let start = Instant::now();
        let there = direct::exists(&store, &[b"key"]);
        check!(1, there.is_ok_and(|there| there == [Err(OpError::Forked)]));
        check!(
            2,
            matches!(store.health(), StoreHealth::Down(reason) if reason.contains("fork"))
        );
        store.close();
        drop(copy(&store));
        check!(3, library.clients() == 1);
        // Nor did anything wait for calls of the parent.
        check!(4, start.elapsed() < Duration::from_secs(5));
        0
    });
    assert_eq!(code, 0);
    assert_eq!(library.clients(), 1);
    assert_eq!(direct::exists(&store, &[b"key"]).unwrap(), [Ok(true)]);
    drop(store);
    assert_eq!(library.clients(), 0);
}
