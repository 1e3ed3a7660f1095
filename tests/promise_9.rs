//! Promise 9: idle costs nothing. Spin briefly, then park; wake only a sleeper. Busy polling is a choice. Workers that spin
//! never take the last core. (That no wake is ever lost: `case_waking.rs`.)

mod common_b;

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common_b::*;
use moonring::store::{NullStore, SimOptions};
use moonring::{Done, Engine, OpKind, Region, RegionOptions, Submission};

/// Tests of this file measure what the process does: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Threads of the engine before may be a moment from their end, which nobody waits for.
    eventually("no threads of engines", || workers().is_empty());
    one
}

/// CPU time of this process so far.
fn process_cpu() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is to memory for one `rusage`.
    let done = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    assert_eq!(done, 0);
    // SAFETY: the call above went well and filled it in.
    let usage = unsafe { usage.assume_init() };
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// The threads of engines in this process: name and directory.
fn workers() -> Vec<(String, std::path::PathBuf)> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let tasks = tasks.map(|task| task.unwrap().path());
    let named = tasks.filter_map(|dir| {
        let name = fs::read_to_string(dir.join("comm")).ok()?;
        name.starts_with("mr-")
            .then(|| (name.trim().to_owned(), dir))
    });
    named.collect()
}

/// CPU time of each worker, by its name.
fn worker_cpu() -> Vec<(String, Duration)> {
    let cpu = |dir: std::path::PathBuf| {
        let stat = fs::read_to_string(dir.join("schedstat")).unwrap();
        Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
    };
    let mut all: Vec<_> = workers().into_iter().map(|(n, d)| (n, cpu(d))).collect();
    all.sort();
    all
}

/// The time in which idle workers are watched.
const WINDOW: Duration = Duration::from_millis(500);

/// How much CPU time each worker has used since it was `before`.
fn worker_cpu_since(before: &[(String, Duration)]) -> Vec<Duration> {
    let used = before.iter().zip(worker_cpu()).map(|(old, new)| {
        assert_eq!(old.0, new.0, "the same workers");
        new.1 - old.1
    });
    used.collect()
}

/// How often workers gave their core away by themselves: went to sleep, that is.
fn sleeps() -> u64 {
    let of = |dir: std::path::PathBuf| -> u64 {
        let status = fs::read_to_string(dir.join("status")).unwrap();
        let line = status.lines().find(|l| l.starts_with("voluntary_ctxt"));
        line.unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    };
    workers().into_iter().map(|(_, dir)| of(dir)).sum()
}

/// An engine with default settings that did `ops` ops, 1,000 of them failing, and whose eventfd is armed, then uses
/// less than 1 % of a core.
fn did_much_then_idles(ops: u64, window: Duration) {
    let store = memory();
    put(&*store, b"there", &[7; 64]);
    let (region, pool) = slots(64, 64);
    let engine = Engine::builder(store).region(region).start().unwrap();
    let mut pair = engine.pair(64).unwrap();
    let _event = pair.event_fd().unwrap();
    let client = engine.client();
    let failing = ops / 1000;
    let (mut done, mut failed) = (0, 0);
    while done < ops {
        for i in 0..64 {
            let key = match (done + i) % failing {
                0 => "missing",
                _ => "there",
            };
            let slot = pool.lend(64).unwrap();
            submit(&mut pair, Submission::retrieve(key, slot));
        }
        let all = reap(&mut pair, 64);
        failed += all.iter().filter(|c| c.result.is_err()).count();
        done += 64;
    }
    assert!((1000..1100).contains(&failed), "{failed}");
    assert_eq!(client.blocking().lookup("there"), Ok(true));
    assert!(pair.arm());
    // What still spins may stop.
    std::thread::sleep(Duration::from_millis(20));
    let (before, start) = (process_cpu(), Instant::now());
    std::thread::sleep(window);
    let (used, took) = (process_cpu() - before, start.elapsed());
    assert!(used * 100 < took, "{used:?} of CPU time in {took:?}");
    // Still awake: the armed eventfd is signalled.
    submit(&mut pair, Submission::lookup("there"));
    assert_eq!(reap(&mut pair, 1)[0].result, Ok(Done::Present));
}

#[test]
fn an_engine_that_did_much_then_idles() {
    let _alone = alone();
    within(HANG, "idle", || {
        did_much_then_idles(20_000, Duration::from_secs(2))
    });
}

#[test]
#[ignore = "a million ops and 10 s: in release"]
fn release_an_engine_that_did_a_million_ops_then_uses_under_1_percent_of_a_core() {
    let _alone = alone();
    within(3 * HANG, "idle", || {
        did_much_then_idles(1_000_000, Duration::from_secs(10));
    });
}

#[test]
fn waiting_for_a_call_of_a_second_costs_under_5_percent() {
    let _alone = alone();
    within(HANG, "a call of 1 s", || {
        let options = SimOptions {
            delay: Duration::from_secs(1),
            ..SimOptions::default()
        };
        let (region, _pool) = slots(64, 1);
        let engine = Engine::builder(sim(memory(), options))
            .region(region)
            .start()
            .unwrap();
        let client = engine.client();
        let mut pair = engine.pair(1).unwrap();
        let (before, start) = (process_cpu(), Instant::now());
        std::thread::scope(|scope| {
            scope.spawn(|| client.blocking().lookup("a"));
            scope.spawn(|| client.blocking().delete("b"));
            submit(&mut pair, Submission::lookup("c"));
            pair.wait(1, None).unwrap();
        });
        let (used, took) = (process_cpu() - before, start.elapsed());
        assert!(took >= Duration::from_secs(1));
        assert!(used * 20 < took, "{used:?} of CPU time in {took:?}");
    });
}

/// Sets the cores that this thread may use.
fn use_cores(cores: &[usize]) {
    // SAFETY: a set of zeros is an empty set; the calls stay inside it, as ids are below its size.
    let done = unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        for &core in cores {
            libc::CPU_SET(core, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    assert_eq!(done, 0);
}

/// Starts an engine of so many threads on a thread that may use `cores`, and gives the CPU time of its workers while idle:
/// within half a second, and until the busiest of them has used `least`, however busy the machine is.
fn idle_on(
    cores: &[usize],
    config: moonring::EngineConfig,
    threads: usize,
    least: Duration,
) -> Vec<Duration> {
    eventually("the last engine's threads are gone", || {
        workers().is_empty()
    });
    std::thread::scope(|scope| {
        let test = scope.spawn(|| {
            use_cores(cores);
            let region = Region::allocate(RegionOptions::new(4096)).unwrap();
            let engine = start(std::sync::Arc::new(NullStore), config, &region);
            eventually("all have their names", || workers().len() == threads);
            let before = worker_cpu();
            std::thread::sleep(WINDOW);
            let mut used = Vec::new();
            eventually("one of them polls", || {
                used = worker_cpu_since(&before);
                used.iter().max() >= Some(&least)
            });
            let mut pair = engine.pair(4).unwrap();
            for kind in [Submission::lookup("k"), Submission::delete("k")] {
                submit(&mut pair, kind);
                assert!(reap(&mut pair, 1)[0].result.is_ok());
            }
            used
        });
        test.join().unwrap()
    })
}

#[test]
fn spinning_never_takes_the_last_core() {
    let _alone = alone();
    within(HANG, "spinners", || {
        let cores: Vec<usize> = core_affinity::get_core_ids()
            .unwrap()
            .into_iter()
            .map(|core| core.id)
            .collect();
        let busy = || config().busy_poll(true);
        // Those that used a core about as much as the busiest, which has used 20 ms of one.
        let polls = |cores: &[usize], config, threads| {
            let used = idle_on(cores, config, threads, Duration::from_millis(20));
            let most = used.iter().max().copied().unwrap_or_default();
            used.into_iter().filter(|cpu| *cpu * 4 > most).count()
        };
        let nobody = |cores: &[usize], config, threads| {
            let used = idle_on(cores, config, threads, Duration::ZERO);
            let sum: Duration = used.iter().sum();
            assert!(sum * 50 < WINDOW, "{used:?} in {WINDOW:?}");
        };
        // The workers, their spare, and the timer.
        let shared = 4 + 2;
        // One core: nobody polls, though told to.
        nobody(&cores[..1], busy(), shared);
        if cores.len() < 2 {
            eprintln!("SKIPPED: the rest of this test needs two cores");
            return;
        }
        // Two cores: one worker polls, whatever the number of workers and of their groups.
        assert_eq!(polls(&cores[..2], busy().num_workers(1), 1 + 2), 1);
        assert_eq!(polls(&cores[..2], busy(), shared), 1);
        let groups = OpKind::ALL
            .into_iter()
            .fold(busy(), |config, kind| config.dedicated(kind, 2));
        assert_eq!(polls(&cores[..2], groups, 4 * (2 + 1) + 1), 1);
        // Not told to: nobody.
        nobody(&cores[..2], config(), shared);
    });
}

#[test]
fn a_submit_wakes_no_worker_that_may_not_take_the_op() {
    let _alone = alone();
    within(HANG, "useless wakes", || {
        let sim = sim(memory(), SimOptions::default());
        let (region, _pool) = slots(64, 1);
        let engine = start(sim.clone(), config().max_batch(1), &region);
        let gate = sim.gate().close(&[OpKind::Delete]);
        let mut pair = engine.pair(1024).unwrap();
        let client = engine.client();
        for i in 0..3 {
            submit(&mut pair, Submission::delete("key"));
            assert!(sim.gate().wait_inside(OpKind::Delete, i + 1, HANG));
        }
        // Three of four workers are in deletes. The fourth sleeps and may take none.
        std::thread::sleep(Duration::from_millis(10));
        let before = sleeps();
        let mut futures = Vec::new();
        for _ in 0..200 {
            submit(&mut pair, Submission::delete("key"));
            futures.push(client.delete("key"));
            std::thread::sleep(Duration::from_micros(100));
        }
        let woken = sleeps() - before;
        assert!(woken < 20, "{woken} wakes for 400 ops that nobody may take");
        // It is woken for what it may take.
        assert_eq!(client.blocking().lookup("key"), Ok(false));
        drop(gate);
        reap(&mut pair, 203);
        for future in futures {
            assert!(moonring::block_on(future).is_err(), "no such object");
        }
    });
}

#[test]
fn a_shutdown_that_waits_for_calls_costs_under_5_percent() {
    let _alone = alone();
    within(HANG, "a slow shutdown", || {
        let sim = sim(memory(), SimOptions::default());
        let (region, _pool) = slots(64, 1);
        let engine = start(sim.clone(), config().max_batch(1), &region);
        let gate = sim.gate().close(&[OpKind::Delete]);
        let mut pair = engine.pair(8).unwrap();
        for _ in 0..8 {
            submit(&mut pair, Submission::delete("key"));
        }
        assert!(sim.gate().wait_inside(OpKind::Delete, 3, HANG));
        // Three workers are in deletes; the fourth may take none of the other five, and can't leave before they are taken.
        let (before, start) = (process_cpu(), Instant::now());
        let limit = Duration::from_secs(1);
        let report = engine.shutdown(moonring::Shutdown::Drain, limit).unwrap();
        let (used, took) = (process_cpu() - before, start.elapsed());
        assert_eq!(
            (report.in_flight, report.stuck_workers.len()),
            (3, 3),
            "{report:?}"
        );
        assert!(used * 20 < took, "{used:?} of CPU time in {took:?}");
        // Who is in no call has left, and the timer.
        eventually("the timer has left", || workers().len() <= 3);
        let names: Vec<_> = workers().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        // The eight have ended; the three in calls are released later.
        let ends = reap(&mut pair, 8);
        assert!(ends.iter().all(|done| !done.release));
        assert_eq!(ends.iter().filter(|done| done.more).count(), 3);
        drop(gate);
        eventually("the calls have returned", || {
            engine.stats().engine.quarantined == 0
        });
        let releases = reap(&mut pair, 3);
        assert!(releases.iter().all(|done| done.release));
        assert_eq!(pair.in_flight(), 0);
    });
}

/// O2, Mooncake#1033: waiting pegged a core. Here all workers hang in calls whose time is up, and the spare is there for them.
#[test]
fn an_engine_whose_workers_all_hang_idles_and_so_it_does_after_that() {
    let _alone = alone();
    within(HANG, "hanging", || {
        let sim = sim(memory(), SimOptions::default());
        let (region, pool) = slots(64, 4);
        let engine = Engine::builder(sim.clone()).region(region);
        let engine = engine.config(config().num_workers(1)).start().unwrap();
        let mut pair = engine.pair(4).unwrap();
        let client = engine.client();
        let idles = |what: &str| {
            std::thread::sleep(Duration::from_millis(20));
            let (before, start) = (process_cpu(), Instant::now());
            std::thread::sleep(Duration::from_secs(1));
            let (used, took) = (process_cpu() - before, start.elapsed());
            println!("{what}: {used:?} of CPU time in {took:?}");
            assert!(
                used * 100 < took,
                "{what}: {used:?} of CPU time in {took:?}"
            );
        };
        let gate = sim.gate().close(&[OpKind::Retrieve]);
        let op = Submission::retrieve("key", pool.lend(64).unwrap());
        submit(&mut pair, op.timeout(Some(Duration::from_millis(300))));
        assert!(sim.gate().wait_inside(OpKind::Retrieve, 1, HANG));
        assert!(reap(&mut pair, 1)[0].more);
        idles("all workers hang");
        assert!(client.blocking().lookup("key").is_err());
        idles("the spare has answered");
        drop(gate);
        assert!(reap(&mut pair, 1)[0].release);
        assert_eq!(client.blocking().lookup("key"), Ok(false));
        idles("they are back");
    });
}
