//! Cases C2 and C3 from the field, where the configuration meets the engine: counts are checked on every path, and an option
//! is applied, or it is said that it is not. What is parsed and refused is in `config_accepts.rs` and `config_refuses.rs`.

mod common;

use std::time::Duration;

use common::*;
use moonring::config::CoreChoice;
use moonring::store::{self, SimOptions};
use moonring::{
    Engine, EngineConfig, L2Adapter, OpKind, PairError, Region, RegionOptions, Shutdown,
    StartError, Submission, SubmitError,
};

const LONG: Duration = Duration::from_secs(50);

/// Starts what an `--l2-adapter` says.
fn start(json: &str) -> Engine {
    let adapter = L2Adapter::parse(json).unwrap();
    let opened = store::open(&adapter.store).unwrap();
    let region = Region::allocate(RegionOptions::new(64 << 10)).unwrap();
    let engine = Engine::builder(opened.store).config(adapter.engine.clone());
    let engine = engine.warnings(adapter.warnings().to_vec()).region(region);
    engine.start().unwrap()
}

fn names(engine: &Engine) -> Vec<&str> {
    let workers = &engine.start_report().workers;
    workers.iter().map(|worker| worker.name.as_str()).collect()
}

/// Threads of this process by their names.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

/// C2, LMCache#3227: worker counts were checked in one path only. The largest count is one that works.
#[test]
fn with_the_most_workers_that_are_allowed_every_one_is_woken_and_leaves() {
    let _dog = watchdog();
    let most = |count: usize| {
        EngineConfig::default()
            .cores(CoreChoice::None)
            .num_workers(count)
    };
    assert!(most(63).validate().is_err());
    for config in [most(62), most(1).dedicated(OpKind::Lookup, 62)] {
        let sim = sim(SimOptions::default());
        let engine = Engine::builder(sim.clone())
            .config(config.max_batch(1))
            .start()
            .unwrap();
        let mut pair = engine.pair(64).unwrap();
        for _ in 0..20 {
            // Long enough that all of them sleep.
            std::thread::sleep(Duration::from_millis(5));
            pair.submit(Submission::lookup("key")).unwrap();
            pair.wait(1, None).unwrap();
            assert!(pair.poll().is_some());
        }
        // As many ops in calls at a time as may be: each worker has one, or all but one where kinds share them.
        let gate = sim.gate().close(&[OpKind::Lookup]);
        let dedicated = engine.config().per_op_workers[OpKind::Lookup];
        let n = dedicated.unwrap_or(engine.config().num_workers - 1);
        let mut batch = pair.batch();
        for key in 0..n {
            batch
                .push(Submission::lookup(&format!("key {key}")))
                .unwrap();
        }
        batch.publish();
        assert!(
            sim.gate().wait_inside(OpKind::Lookup, n, LONG),
            "not all are at work"
        );
        drop(gate);
        pair.wait(n, None).unwrap();
        assert_eq!(pair.completions().count(), n);
        std::thread::sleep(Duration::from_millis(20));
        let report = engine.shutdown(Shutdown::Drain, LONG).unwrap();
        assert!(report.stuck_workers.is_empty(), "{report:?}");
    }
}

#[test]
fn what_json_refuses_the_builder_refuses_at_start_with_the_same_words() {
    let _dog = watchdog();
    let builder = |config: EngineConfig| {
        let error = Engine::builder(memory())
            .config(config)
            .start()
            .unwrap_err();
        assert!(matches!(error, StartError::Config(_)), "{error:?}");
        error.to_string()
    };
    let json = |text: &str| L2Adapter::parse(text).unwrap_err().to_string();
    let config = EngineConfig::default;
    for (of_json, of_builder) in [
        (
            r#"{"type": "memory", "num_workers": 0}"#,
            config().num_workers(0),
        ),
        (
            r#"{"type": "memory", "num_workers": 63}"#,
            config().num_workers(63),
        ),
        (
            r#"{"type": "memory", "per_op_workers": {"retrieve": 0}}"#,
            config().dedicated(OpKind::Retrieve, 0),
        ),
        (
            r#"{"type": "memory", "moonring": {"max_batch": 0}}"#,
            config().max_batch(0),
        ),
    ] {
        assert_eq!(json(of_json), builder(of_builder));
    }
}

/// C3, LMCache#4952: an option was accepted and never applied. Each of them shows in what the engine does.
#[test]
fn each_option_is_applied() {
    let _dog = watchdog();
    let engine = start(r#"{"type": "memory", "num_workers": 3}"#);
    assert_eq!(
        names(&engine),
        ["mr-shared-0", "mr-shared-1", "mr-shared-2"]
    );
    drop(engine);

    let engine = start(
        r#"{"type": "memory", "num_workers": 1, "per_op_workers": {"retrieve": 2, "delete": 1}}"#,
    );
    let wanted = [
        "mr-shared-0",
        "mr-retrieve-0",
        "mr-retrieve-1",
        "mr-delete-0",
    ];
    assert_eq!(names(&engine), wanted);
    let running = threads();
    assert!(
        wanted
            .iter()
            .all(|name| running.iter().any(|thread| thread == name)),
        "{running:?}"
    );
    assert_eq!(
        engine.start_report().workers[0].ops,
        [OpKind::Lookup, OpKind::Store]
    );
    drop(engine);

    // All four kinds have their own: no shared thread starts.
    let engine = start(
        r#"{"type": "memory", "per_op_workers": {"lookup": 1, "retrieve": 1, "store": 1, "delete": 1}}"#,
    );
    assert_eq!(
        names(&engine),
        ["mr-lookup-0", "mr-retrieve-0", "mr-store-0", "mr-delete-0"]
    );
    drop(engine);

    let engine = start(
        r#"{"type": "memory", "moonring": {"max_key": 3, "max_pairs": 1, "ring_depth": 3, "cores": "none",
            "max_registration": "40 KiB"}}"#,
    );
    let client = engine.client();
    let reason = SubmitError::KeyTooLong { len: 4, max: 3 };
    assert_eq!(client.blocking().lookup("four"), Err(reason.into()));
    let _pair = engine.pair(1).unwrap();
    assert_eq!(engine.pair(1).unwrap_err(), PairError::TooMany { max: 1 });
    assert_eq!(
        engine.start_report().regions[0].pieces,
        [40 << 10, 24 << 10]
    );
    assert!(
        engine
            .start_report()
            .workers
            .iter()
            .all(|worker| worker.core.is_none())
    );
    // What it is rounded up to is what is printed.
    assert_eq!(engine.config().ring_depth, 4);
    drop((client, engine));

    let engine = start(r#"{"type": "memory", "moonring": {"long_keys": 1}}"#);
    let mut pair = engine.pair(4).unwrap();
    let long = [b'k'; 256];
    let mut batch = pair.batch();
    batch.push(Submission::lookup(&long)).unwrap();
    let refused = batch.push(Submission::lookup(&long)).unwrap_err();
    assert_eq!(refused.reason, SubmitError::NoLongKeyPlace { places: 1 });
}

#[test]
fn options_of_a_batch_bound_the_stores_calls() {
    let _dog = watchdog();
    let calls = |config: EngineConfig, by_bytes: bool| {
        let (region, pool) = slots(64, 16);
        let sim = sim(SimOptions::default());
        let engine = Engine::builder(sim.clone()).config(config).region(region);
        let (engine, mut drivers) = engine.start_by_hand().unwrap();
        let mut pair = engine.pair(16).unwrap();
        let mut batch = pair.batch();
        for key in 0..16 {
            let key = format!("{key}");
            let op = match by_bytes {
                true => Submission::store(&key, pool.lend(64).unwrap()),
                false => Submission::lookup(&key),
            };
            batch.push(op).unwrap();
        }
        batch.publish();
        while drivers.iter_mut().any(|driver| driver.poll_once()) {}
        sim.report().calls.iter().sum::<u64>()
    };
    let config = EngineConfig::default;
    assert_eq!(calls(config(), false), 1);
    assert_eq!(calls(config().max_batch(4), false), 4);
    assert_eq!(calls(config().max_batch(1), false), 16);
    assert_eq!(calls(config(), true), 1);
    assert_eq!(calls(config().max_batch_bytes(128), true), 8);
    assert_eq!(calls(config().max_batch_bytes(1), true), 16);
}

#[test]
fn an_option_without_effect_is_a_warning_of_the_start_whoever_gave_it() {
    let _dog = watchdog();
    let warnings = |config: EngineConfig| {
        let engine = Engine::builder(memory()).config(config).start().unwrap();
        engine.start_report().warnings.clone()
    };
    let all = |config: EngineConfig| OpKind::ALL.iter().fold(config, |c, &op| c.dedicated(op, 1));
    let config = || EngineConfig::default().cores(CoreChoice::None);
    assert_eq!(warnings(config()), [""; 0]);
    assert_eq!(warnings(all(config())), [""; 0]);
    assert_eq!(
        warnings(all(config().num_workers(3))),
        ["num_workers: no effect, because every op kind has workers of its own"]
    );
    assert_eq!(
        warnings(config().share_bytes(9).max_batch_bytes(8)),
        ["moonring.share_bytes: no effect, because it is over max_batch_bytes"]
    );
    assert_eq!(
        warnings(config().long_keys(3).max_key(255)),
        ["moonring.long_keys: no effect, because max_key is not over 255"]
    );
    let effective = config().long_keys(3).max_key(255).effective();
    assert_eq!(effective.long_keys, 0, "and it is not printed as if it had");
    // By JSON the same, once.
    for (json, warning) in [
        (
            r#"{"type": "memory", "num_workers": 3, "per_op_workers": {"lookup": 1, "retrieve": 1, "store": 1, "delete": 1}}"#,
            "num_workers: no effect, because every op kind has workers of its own",
        ),
        (
            r#"{"type": "memory", "moonring": {"long_keys": 16, "max_key": 255}}"#,
            "moonring.long_keys: no effect, because max_key is not over 255",
        ),
        (
            r#"{"type": "memory", "moonring": {"share_bytes": 9, "max_batch_bytes": 8}}"#,
            "moonring.share_bytes: no effect, because it is over max_batch_bytes",
        ),
    ] {
        assert_eq!(start(json).start_report().warnings, [warning]);
    }
}

#[test]
fn cores_that_no_worker_gets_and_polling_that_nobody_may_do_are_warnings() {
    let _dog = watchdog();
    // The calling thread's mask decides, so this is done on threads of its own.
    let warnings = |mask: &[usize], config: EngineConfig| {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                use_cores(mask);
                let engine = Engine::builder(memory()).config(config).start().unwrap();
                engine.start_report().warnings.clone()
            });
            thread.join().unwrap()
        })
    };
    let all = my_cores();
    let config = || EngineConfig::default().num_workers(1);
    assert_eq!(
        warnings(&all[..1], config().busy_poll(true)),
        [
            "moonring.busy_poll: no effect, because workers that spin never take the last core, and there is one"
        ]
    );
    if all.len() < 2 {
        println!("skipped: more cores than workers; this machine has one core");
        return;
    }
    let two = &all[..2];
    assert_eq!(warnings(two, config().busy_poll(true)), [""; 0]);
    assert_eq!(
        warnings(two, config().cores(CoreChoice::List(two.to_vec()))),
        [format!(
            "moonring.cores: no effect of core {}, because there are fewer workers than cores",
            two[1]
        )]
    );
    assert_eq!(
        warnings(
            two,
            config()
                .num_workers(2)
                .cores(CoreChoice::List(two.to_vec()))
        ),
        [""; 0]
    );
}

fn use_cores(cores: &[usize]) {
    // SAFETY: plain calls with a local set; the thread is the test's own.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cores.iter().for_each(|&core| libc::CPU_SET(core, &mut set));
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

fn my_cores() -> Vec<usize> {
    // SAFETY: plain calls with a local set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize)
            .filter(|&core| libc::CPU_ISSET(core, &set))
            .collect()
    }
}
