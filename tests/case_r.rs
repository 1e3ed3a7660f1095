//! Cases R1, R3 and R6 from the field: what rings and their ends got wrong elsewhere. R5 is in `promise_2.rs`, the
//! panicking store of R1 in `promise_13.rs`, the worker that dies for good in `src/worker.rs`.

mod common;

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use moonring::config::CoreChoice;
use moonring::store::sim::{Fault, When};
use moonring::store::{NullStore, SimOptions};
use moonring::{
    ClientError, Engine, EngineConfig, EventFd, OpError, OpKind, Pair, Shutdown, StartError,
    Submission, SubmitError, WaitError, block_on,
};

const LONG: Duration = Duration::from_secs(50);

fn config(workers: usize) -> EngineConfig {
    EngineConfig::default()
        .fail_fast_after(0) // Calls fail here for other reasons.
        .num_workers(workers)
        // Stores that fail on purpose are asked again and again.
        .fail_fast_after(0)
        .cores(CoreChoice::None)
}

/// R1, LMCache#4342: a worker that cannot start. It needs a process that may not have much memory: this test, again.
#[test]
fn a_worker_that_can_not_be_started_fails_the_start_naming_it_and_nothing_is_left() {
    let _dog = watchdog();
    const CHILD: &str = "MOONRING_TEST_FEW_STACKS";
    let name = "a_worker_that_can_not_be_started_fails_the_start_naming_it_and_nothing_is_left";
    if std::env::var_os(CHILD).is_none() {
        let out = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .env("RUST_MIN_STACK", (256 << 20).to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(
            out.status.success() && text.contains("1 passed"),
            "{text}{}",
            String::from_utf8_lossy(&out.stderr)
        );
        return;
    }
    // Stacks of 256 MiB: two or three workers find room, the eighth doesn't.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status
        .lines()
        .find_map(|l| l.strip_prefix("VmSize:"))
        .unwrap();
    let kib: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    let limit = libc::rlimit {
        rlim_cur: (kib << 10) + (900 << 20),
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: a plain call with a readable struct; the process is this test's own.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let spy = Spy::new(memory(), |_| {});
    let (region, _pool) = slots(64, 1);
    let piece = (region.base().addr().get(), region.len());
    let started = Engine::builder(spy.clone())
        .config(config(8))
        .region(region)
        .start();
    let Err(StartError::Worker { name, error }) = started else {
        panic!("started: {started:?}");
    };
    assert!(
        name.starts_with("mr-shared-") && name != "mr-shared-0",
        "{name}: {error}"
    );
    assert_eq!(
        spy.seen(),
        [
            Seen::Register(piece.0, piece.1),
            Seen::Unregister(piece.0, piece.1)
        ]
    );
    eventually(|| threads() == before);
    // The same process can start a smaller one.
    let engine = Engine::builder(spy).config(config(1)).start().unwrap();
    assert_eq!(engine.client().blocking().lookup("key"), Ok(false));
}

/// Waits for the descriptor in an epoll of its own; false: the time was up.
fn epoll_wait(fd: RawFd, edge: bool, timeout: i32) -> bool {
    // SAFETY: plain system calls on descriptors that live through them, with pointers to local structs.
    unsafe {
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | if edge { libc::EPOLLET } else { 0 }) as u32,
            u64: 7,
        };
        assert_eq!(
            libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event),
            0
        );
        let mut events = [event];
        let n = libc::epoll_wait(epoll, events.as_mut_ptr(), 1, timeout);
        libc::close(epoll);
        assert!(n >= 0, "{}", std::io::Error::last_os_error());
        n == 1
    }
}

fn is_readable(fd: &EventFd) -> bool {
    epoll_wait(fd.as_raw_fd(), false, 0)
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: a plain system call.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// An engine with a pair whose one op is in a call that does not return, and its armed eventfd.
fn stuck() -> (Engine, moonring::store::sim::ClosedGate, Pair, EventFd) {
    let sim = sim(SimOptions::default());
    let engine = Engine::builder(sim.clone())
        .config(config(1))
        .start()
        .unwrap();
    let gate = sim.gate().close(&[OpKind::Lookup]);
    let mut pair = engine.pair(4).unwrap();
    let event = pair.event_fd().unwrap();
    pair.submit(Submission::lookup("key").user_data(1)).unwrap();
    assert!(sim.gate().wait_inside(OpKind::Lookup, 1, LONG));
    assert!(pair.arm() && !is_readable(&event));
    (engine, gate, pair, event)
}

/// R3, LMCache#3119: close reused the eventfd's number while a late signal was under way.
#[test]
fn the_eventfd_outlives_pair_engine_and_the_last_completion_until_its_last_handle_is_gone() {
    let _dog = watchdog();
    let (engine, gate, pair, event) = stuck();
    let fd = event.as_raw_fd();
    let other = event.clone();
    drop((pair, event));
    assert!(is_open(fd));
    engine
        .shutdown(Shutdown::Cancel, Duration::from_millis(1))
        .unwrap();
    drop(engine);
    // A completion is still to come, and with it a signal: nobody else may get the number until then.
    let taken: Vec<_> = (0..64)
        .map(|_| std::fs::File::open("/dev/null").unwrap())
        .collect();
    assert!(taken.iter().all(|file| file.as_raw_fd() != fd));
    drop(gate);
    std::thread::sleep(Duration::from_millis(20));
    assert!(is_open(fd) && is_readable(&other));
    drop(other);
    eventually(|| !is_open(fd));
}

#[test]
fn the_eventfd_is_readable_once_the_engine_is_closed_and_stays_so() {
    let _dog = watchdog();
    let (engine, gate, mut pair, event) = stuck();
    engine
        .shutdown(Shutdown::Drain, Duration::from_millis(1))
        .unwrap();
    assert!(is_readable(&event));
    for _ in 0..3 {
        // Whoever goes on with arm and sleep does not sleep any more.
        assert!(!pair.arm());
        assert!(is_readable(&event));
    }
    drop(gate);
    eventually(|| pair.poll().is_some());
    assert!(is_readable(&event));
    // One that is opened only now knows it too.
    let late = Engine::builder(memory()).config(config(1)).start().unwrap();
    let pair = late.pair(1).unwrap();
    late.shutdown(Shutdown::Drain, LONG).unwrap();
    assert!(is_readable(&pair.event_fd().unwrap()));
}

#[test]
fn close_wakes_every_waiter_also_in_epoll_wait_without_a_timeout() {
    let _dog = watchdog();
    for by_drop in [false, true] {
        let (engine, gate, pair, event) = stuck();
        let mut others: Vec<_> = (0..3).map(|_| engine.pair(1).unwrap()).collect();
        let fds: Vec<_> = others.iter().map(|pair| pair.event_fd().unwrap()).collect();
        let mut waits = others.pop().unwrap();
        waits.submit(Submission::lookup("other key")).unwrap();
        let gate = std::sync::Mutex::new(Some(gate));
        std::thread::scope(|scope| {
            let mut sleepers = Vec::new();
            for edge in [false, true] {
                let fd = event.as_raw_fd();
                sleepers.push(scope.spawn(move || epoll_wait(fd, edge, -1)));
            }
            for (pair, fd) in others.iter_mut().zip(&fds) {
                assert!(pair.arm());
                let fd = fd.as_raw_fd();
                sleepers.push(scope.spawn(move || epoll_wait(fd, true, -1)));
            }
            let waiter = scope.spawn(|| waits.wait(1, None));
            std::thread::sleep(Duration::from_millis(20));
            assert!(sleepers.iter().all(|s| !s.is_finished()));
            if by_drop {
                // Dropping waits for the call under way.
                let open = scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(5));
                    gate.lock().unwrap().take();
                });
                drop(engine);
                open.join().unwrap();
                assert_eq!(waiter.join().unwrap(), Ok(()));
            } else {
                engine
                    .shutdown(Shutdown::Cancel, Duration::from_millis(1))
                    .unwrap();
                // It was queued, so it has ended; or its call is stuck, and that is said.
                assert!(matches!(
                    waiter.join().unwrap(),
                    Ok(()) | Err(WaitError::ShutDown)
                ));
            }
            for sleeper in sleepers {
                assert!(sleeper.join().unwrap());
            }
        });
        drop(pair);
    }
}

#[test]
fn dropping_a_pair_wakes_who_sleeps_on_its_eventfd() {
    let _dog = watchdog();
    let (_engine, gate, pair, event) = stuck();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| epoll_wait(event.as_raw_fd(), true, -1));
        std::thread::sleep(Duration::from_millis(10));
        assert!(!sleeper.is_finished());
        drop(pair);
        assert!(sleeper.join().unwrap());
    });
    drop(gate);
}

/// R6, LMCache#2635: after an error a batch was queued again although half of it had run.
#[test]
fn each_id_completes_once_over_10_000_half_failing_batches() {
    let _dog = watchdog();
    let sim = sim(SimOptions {
        seed: 6,
        key_errors: When::rate(0.5),
        call_errors: When::rate(0.1),
        ..SimOptions::default()
    });
    let engine = Engine::builder(sim.clone())
        .config(config(2))
        .start()
        .unwrap();
    const BATCHES: u64 = 10_000;
    let failed = std::thread::scope(|scope| {
        let by_pair = scope.spawn(|| {
            let mut pair = engine.pair(64).unwrap();
            let (mut tally, mut failed) = (Tally::new(BATCHES as usize / 2 * 4), 0);
            for batch in 0..BATCHES / 2 {
                while pair.credits() < 4 {
                    pair.wait(1, None).unwrap();
                    for done in pair.completions() {
                        tally.see(done.user_data);
                        failed += u64::from(done.result.is_err());
                    }
                }
                let mut staged = pair.batch();
                for id in batch * 4..batch * 4 + 4 {
                    let key = id.to_le_bytes().map(|b| b | 0x40);
                    staged.push(Submission::lookup(&key).user_data(id)).unwrap();
                }
            }
            pair.wait(64, None).unwrap();
            for done in pair.completions() {
                tally.see(done.user_data);
                failed += u64::from(done.result.is_err());
            }
            tally.assert_all_seen();
            failed
        });
        let client = engine.client();
        let (mut out, mut failed) = (Vec::new(), 0);
        for _ in 0..BATCHES / 2 {
            client
                .blocking()
                .lookup_many(["a", "b", "c", "d"], &mut out);
            assert_eq!(out.len(), 4);
            failed += out.iter().filter(|r| r.is_err()).count() as u64;
        }
        failed + by_pair.join().unwrap()
    });
    assert!(
        (BATCHES * 4 * 2 / 5..BATCHES * 4 * 7 / 10).contains(&failed),
        "{failed}"
    );
    assert!(sim.report().count(Fault::KeyError) > BATCHES);
    assert_eq!(engine.stats().engine.accepted, BATCHES * 4);
    assert_at_rest(&engine);
}

/// R6: close raced against push; the counter of ops in flight wrapped below 0.
fn close_raced_against_push(rounds: u64) {
    let _dog = watchdog_for(Duration::from_secs(180 + rounds / 20));
    let (accepted, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    for round in 0..rounds {
        let engine = Engine::builder(Arc::new(NullStore)).config(config(1 + round as usize % 2));
        let engine = engine.start().unwrap();
        let mut pair = engine.pair(8).unwrap();
        let client = engine.client();
        let started = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                started.fetch_add(1, Ordering::SeqCst);
                let mut ids = 0;
                let mut seen = std::collections::HashSet::new();
                let mut see = |done: moonring::Completion| {
                    assert!(seen.insert(done.user_data), "{} came twice", done.user_data);
                };
                loop {
                    let mut batch = pair.batch();
                    let full = loop {
                        match batch.push(Submission::lookup("key").user_data(ids)) {
                            Ok(_) => ids += 1,
                            Err(refused) => break refused.reason,
                        }
                    };
                    batch.publish();
                    if full == SubmitError::ShutDown {
                        break;
                    }
                    pair.wait(1, None).unwrap();
                    pair.completions().for_each(&mut see);
                }
                pair.wait(usize::MAX, None).unwrap();
                pair.completions().for_each(&mut see);
                assert_eq!((ids, pair.in_flight()), (seen.len() as u64, 0));
                accepted.fetch_add(ids, Ordering::SeqCst);
            });
            scope.spawn(|| {
                started.fetch_add(1, Ordering::SeqCst);
                let mut out = Vec::new();
                loop {
                    let one = block_on(client.lookup("key"));
                    client.blocking().lookup_many(["a", "b", "c"], &mut out);
                    let mut ended = false;
                    for result in out.iter().chain([&one]) {
                        match result {
                            Ok(_) | Err(ClientError::Failed(OpError::ShutDown)) => {
                                accepted.fetch_add(1, Ordering::SeqCst);
                            }
                            Err(ClientError::Refused(SubmitError::ShutDown)) => {
                                refused.fetch_add(1, Ordering::SeqCst);
                                ended = true;
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                    if ended {
                        break;
                    }
                }
            });
            eventually(|| started.load(Ordering::SeqCst) == 2);
            let mode = [Shutdown::Drain, Shutdown::Cancel][round as usize / 2 % 2];
            let report = engine.shutdown(mode, LONG).unwrap();
            assert_eq!((report.in_flight, report.stuck_workers.len()), (0, 0));
        });
        assert_at_rest(&engine);
        assert_eq!(
            engine.stats().engine.accepted,
            accepted.swap(0, Ordering::SeqCst)
        );
    }
}

#[test]
fn close_raced_against_push_leaves_nothing_in_flight_and_completes_each_accepted_op_once() {
    close_raced_against_push(300);
}

#[test]
#[ignore = "takes long without optimisation"]
fn release_close_raced_against_push_10_000_times() {
    close_raced_against_push(10_000);
}
