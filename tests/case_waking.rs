//! Case R11, and promise 9's "no wake is ever lost": sleep decided before the queue was looked at again, and N signals taken
//! for N wake-ups, cost others their wake-ups. Case R16: lookups beside a burst of stores.

mod common_b;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use common_b::*;
use moonring::store::{NullStore, SimOptions};
use moonring::{Done, Engine, EngineConfig, EventFd, OpKind, Pair, Submission, block_on};

/// The host's own event loop.
struct Epoll(OwnedFd);

impl Epoll {
    fn new(event: &EventFd, edge: bool) -> Self {
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(fd >= 0);
        let mut interest = libc::epoll_event {
            events: (libc::EPOLLIN | if edge { libc::EPOLLET } else { 0 }) as u32,
            u64: 1,
        };
        // SAFETY: the pointer is to one event.
        let done =
            unsafe { libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, event.as_raw_fd(), &mut interest) };
        assert_eq!(done, 0);
        // SAFETY: just opened, and nobody else has it.
        Self(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Whether the eventfd became readable in time.
    fn wait(&self, timeout: Duration) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let ms = timeout.as_millis() as i32;
        // SAFETY: the pointer is to one event.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, ms) };
        assert!(n >= 0, "{}", std::io::Error::last_os_error());
        n == 1
    }
}

/// How a caller waits for its completion.
#[derive(Clone, Copy, Debug)]
enum How {
    Wait,
    Poll,
    Level,
    Edge,
    Client,
}

/// The watchdog's patience. A machine that stalls for a second comes back by itself; a lost wake never does.
const DOG: Duration = Duration::from_secs(1);

/// `ops` single ops, one after the other, each waited for.
fn ping_pong(engine: &Engine, how: How, ops: u64) {
    let mut pair = engine.pair(1).unwrap();
    let event = pair.event_fd().unwrap();
    let epoll = Epoll::new(&event, matches!(how, How::Edge));
    let client = engine.client();
    let stalled = |i: u64, pair: &mut Pair| {
        // Nobody nudges anybody here: what was lost stays lost.
        std::thread::sleep(10 * DOG);
        let there = pair.poll().is_some();
        panic!("{how:?}: lost at op {i}; completion there: {there}, {pair:?}");
    };
    for i in 0..ops {
        if matches!(how, How::Client) {
            assert_eq!(client.blocking().lookup("k"), Ok(true));
            continue;
        }
        submit(&mut pair, Submission::lookup("k").user_data(i));
        let done = match how {
            How::Wait => {
                if pair.wait(1, Some(DOG)).is_err() && pair.wait(1, Some(10 * DOG)).is_err() {
                    stalled(i, &mut pair);
                }
                pair.poll()
            }
            How::Poll => {
                let start = Instant::now();
                loop {
                    if let Some(done) = pair.poll() {
                        break Some(done);
                    }
                    if start.elapsed() > 10 * DOG {
                        stalled(i, &mut pair);
                    }
                    std::thread::yield_now();
                }
            }
            How::Level | How::Edge => loop {
                if let Some(done) = pair.poll() {
                    break Some(done);
                }
                if pair.arm() && !epoll.wait(DOG) && !epoll.wait(10 * DOG) {
                    stalled(i, &mut pair);
                }
            },
            How::Client => None,
        };
        let done = done.expect("waited for");
        assert_eq!((done.user_data, done.result), (i, Ok(Done::Present)));
        assert!(pair.poll().is_none());
    }
}

fn null_engine(config: EngineConfig) -> Engine {
    let (region, _pool) = slots(64, 1);
    start(Arc::new(NullStore), config, &region)
}

#[test]
fn no_wake_is_lost_in_a_ping_pong() {
    within(HANG, "ping-pong", || {
        // No spinning: every op sleeps and is woken, on both sides.
        for spin_us in [0, 20] {
            let engine = null_engine(config().spin_us(spin_us));
            for how in [How::Wait, How::Poll, How::Level, How::Edge, How::Client] {
                ping_pong(&engine, how, sized(3000, 30_000));
            }
        }
    });
}

#[test]
#[ignore = "a million ops each way: in release"]
fn release_a_million_ops_are_waited_for_level_triggered() {
    within(20 * HANG, "ping-pong, level", || {
        ping_pong(&null_engine(EngineConfig::default()), How::Level, 1_000_000);
    });
}

#[test]
#[ignore = "a million ops each way: in release"]
fn release_a_million_ops_are_waited_for_edge_triggered() {
    within(20 * HANG, "ping-pong, edge", || {
        ping_pong(&null_engine(EngineConfig::default()), How::Edge, 1_000_000);
    });
}

#[test]
#[ignore = "a million ops each way: in release"]
fn release_a_million_ops_are_waited_for_by_wait_and_by_futures() {
    within(20 * HANG, "ping-pong, wait", || {
        let engine = null_engine(config().spin_us(0));
        std::thread::scope(|scope| {
            scope.spawn(|| ping_pong(&engine, How::Wait, 1_000_000));
            scope.spawn(|| ping_pong(&engine, How::Client, 1_000_000));
        });
    });
}

#[test]
fn no_wake_is_lost_between_many_callers_with_pauses_of_all_lengths() {
    within(2 * HANG, "many callers", || {
        for config in [
            config().spin_us(0).num_workers(2),
            config().spin_us(5),
            config().dedicated(OpKind::Lookup, 2).max_batch(1),
        ] {
            let engine = null_engine(config);
            std::thread::scope(|scope| {
                for t in 0..6 {
                    let engine = &engine;
                    scope.spawn(move || {
                        let how = [How::Wait, How::Level, How::Edge, How::Client, How::Poll];
                        let mut rng = Rng::new(t);
                        for _ in 0..sized(20, 400) {
                            ping_pong(engine, how[rng.below(5)], 1 + rng.next() % 20);
                            // From below a park to beyond a spin.
                            let pause = Duration::from_nanos(rng.next() % 60_000);
                            let start = Instant::now();
                            while start.elapsed() < pause {
                                std::hint::spin_loop();
                            }
                        }
                    });
                }
            });
            assert_eq!(engine.stats().engine.in_flight, 0);
        }
    });
}

#[test]
fn three_completions_before_one_wake_are_all_seen() {
    within(HANG, "three completions", || {
        for edge in [false, true] {
            let sim = sim(memory(), SimOptions::default());
            let (region, _pool) = slots(64, 1);
            // Three ops of three kinds: three store calls, three signals' worth.
            let engine = start(sim.clone(), config(), &region);
            let mut pair = engine.pair(4).unwrap();
            let event = pair.event_fd().unwrap();
            let epoll = Epoll::new(&event, edge);
            for round in 0..sized(50, 500) {
                let gate = sim.gate().close(&OpKind::ALL);
                for i in 0..3 {
                    submit(&mut pair, Submission::lookup("k").user_data(i));
                    assert!(sim.gate().wait_inside(OpKind::Lookup, 1, HANG));
                }
                assert!(pair.arm(), "nothing is there");
                assert!(!epoll.wait(Duration::ZERO), "round {round}");
                drop(gate);
                // All three complete before the host looks.
                eventually("three completions", || {
                    let stats = engine.stats();
                    stats.engine.in_flight == 0
                });
                assert!(epoll.wait(HANG));
                // The count of signals says nothing: drain until empty.
                let mut seen: Vec<_> = reap(&mut pair, 3).iter().map(|c| c.user_data).collect();
                seen.sort_unstable();
                assert_eq!(seen, [0, 1, 2]);
                assert!(pair.arm(), "drained");
                assert!(!epoll.wait(Duration::ZERO), "no signal is left over");
                // Retract: the next round arms anew.
                submit(&mut pair, Submission::lookup("k"));
                assert!(epoll.wait(HANG));
                reap(&mut pair, 1);
            }
        }
    });
}

#[test]
fn arming_with_completions_there_says_so() {
    within(HANG, "arm", || {
        let engine = null_engine(config());
        let mut pair = engine.pair(4).unwrap();
        assert!(!pair.arm(), "without an eventfd there is nothing to arm");
        let event = pair.event_fd().unwrap();
        let epoll = Epoll::new(&event, false);
        submit(&mut pair, Submission::lookup("k"));
        pair.wait(1, Some(HANG)).unwrap();
        assert!(!epoll.wait(Duration::ZERO), "not armed, not signalled");
        assert!(!pair.arm(), "there is something to reap");
        reap(&mut pair, 1);
        assert!(pair.arm());
        assert!(!epoll.wait(Duration::ZERO));
    });
}

/// A worker that has seen a ready bit, and looks into the ring of the pair that had it last, must not take the bit from
/// the pair that came into its place.
#[test]
fn no_wake_is_lost_when_pairs_come_and_go() {
    within(2 * HANG, "pairs come and go", || {
        let engine = null_engine(config().spin_us(0).dedicated(OpKind::Lookup, 3));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                let engine = &engine;
                scope.spawn(move || {
                    for round in 0..sized(2000, 60_000) {
                        let mut pair = engine.pair(4).unwrap();
                        // Two publications: the second may set a bit whose op is taken already.
                        submit(&mut pair, Submission::lookup("a"));
                        submit(&mut pair, Submission::lookup("b"));
                        if pair.wait(2, Some(DOG)).is_err() {
                            let late = pair.wait(2, Some(10 * DOG));
                            assert_eq!(late, Ok(()), "lost in round {round}: {pair:?}");
                        }
                    }
                });
            }
        });
    });
}

/// A worker that is kept in a waker, which is others' code, is not counted on: what comes then wakes another.
#[test]
fn ops_go_on_while_a_worker_is_kept_in_a_waker() {
    struct Keeps(Mutex<mpsc::Receiver<()>>, mpsc::SyncSender<()>);
    impl Wake for Keeps {
        fn wake(self: Arc<Self>) {
            self.1.send(()).unwrap();
            self.0.lock().unwrap().recv().unwrap();
        }
    }
    within(HANG, "a waker that blocks", || {
        let sim = sim(Arc::new(NullStore), SimOptions::default());
        let (region, _pool) = slots(64, 1);
        let engine = start(sim.clone(), config().num_workers(2), &region);
        let client = engine.client();
        let (go, waits) = mpsc::sync_channel(1);
        let (says, is_kept) = mpsc::sync_channel(1);
        let waker = Waker::from(Arc::new(Keeps(Mutex::new(waits), says)));
        // Its waker must be there before it ends.
        let gate = sim.gate().close(&[OpKind::Lookup]);
        let mut kept = pin!(client.lookup("a"));
        let polled = kept.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        drop(gate);
        is_kept.recv().unwrap();
        let mut pair = engine.pair(1).unwrap();
        for _ in 0..100 {
            submit(&mut pair, Submission::lookup("b"));
            assert_eq!(reap(&mut pair, 1)[0].result, Ok(Done::Present));
            // Long enough for the other worker to fall asleep, now and then.
            std::thread::sleep(Duration::from_micros(200));
        }
        go.send(()).unwrap();
        assert_eq!(block_on(kept), Ok(true));
    });
}

/// Case R16: lookups that have a worker of their own, or share a pool, are not blocked behind stores.
#[test]
fn r16_lookups_go_on_while_all_store_workers_are_blocked() {
    within(HANG, "R16", || {
        for config in [
            config().dedicated(OpKind::Lookup, 1).num_workers(2),
            config().dedicated(OpKind::Store, 4).num_workers(1),
            config().num_workers(2),
        ] {
            let sim = sim(memory(), SimOptions::default());
            let (region, pool) = slots(4096, 210);
            let engine = start(sim.clone(), config, &region);
            let gate = sim.gate().close(&[OpKind::Store]);
            let mut pair = engine.pair(256).unwrap();
            for i in 0..200 {
                let slot = pool.lend(4096).unwrap();
                submit(&mut pair, Submission::store(&i.to_string(), slot));
            }
            assert!(sim.gate().wait_inside(OpKind::Store, 1, HANG));
            let client = engine.client();
            let mut lookups = engine.pair(1).unwrap();
            for i in 0..200 {
                assert_eq!(client.blocking().lookup(&i.to_string()), Ok(false));
                submit(&mut lookups, Submission::lookup("k"));
                assert_eq!(reap(&mut lookups, 1)[0].result, Ok(Done::Absent));
            }
            drop(gate);
            reap(&mut pair, 200);
        }
    });
}
