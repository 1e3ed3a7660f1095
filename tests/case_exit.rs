//! O5, Mooncake#3551: a process that ends with its engines busy ends soon, without a crash, with its own exit code, and what was in
//! flight has ended before. Each host is a process of its own: this test binary, started again.

mod common;
mod standin;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use common::{Seen, Spy, eventually, memory, one_run::one_run_of, sim, waker_of, watchdog_for};
use moonring::store::{SimOptions, SimStore, Store};
use moonring::{Engine, EngineConfig, OpKind, Submission};
use standin::{Kind, Master, StandIn};

/// In which a process must end, whatever its calls do.
const SOON: Duration = Duration::from_secs(5);
/// Far above what anything else takes.
const LONG: Duration = Duration::from_secs(20);
/// In seconds: a host that takes so long hangs, and is ended.
const HANGS: u32 = 15;
/// A host's end, or the ends of five that all hang.
const LIMIT: Duration = Duration::from_secs(120);
/// How long the exit hook waits.
const WAITS: Duration = Duration::from_secs(3);
/// The environment variable that says what the host is to do.
const HOST: &str = "MOONRING_TEST_EXIT_HOST";

/// How a host ended.
struct End {
    status: ExitStatus,
    /// What it printed since it was ready.
    said: String,
    /// Since it was ready.
    took: Duration,
    /// The same, and what it took to be ready.
    whole: Duration,
}

/// A host's end, which came soon.
#[track_caller]
fn host(what: &str, signal: Option<i32>) -> End {
    one_run_of(5, || match host_once(what, signal)? {
        end if end.took < SOON => Ok(end),
        End { status, took, .. } => Err(format!("{what}: {status} after {took:.2?}")),
    })
}

/// Starts a host, waits until it is ready, and, with a signal, sends it.
fn host_once(what: &str, signal: Option<i32>) -> Result<End, String> {
    let spawned = Instant::now();
    let mut child = Command::new(std::env::current_exe().expect("a test"))
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(HOST, what)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a host");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while line.trim_end() != "ready" {
        line.clear();
        let read = lines.read_line(&mut line).expect("text");
        if read == 0 {
            let status = child.wait().expect("its end");
            return Err(format!("{what}: it was not ready yet: {status}"));
        }
    }
    let ready = Instant::now();
    if let Some(signal) = signal {
        // SAFETY: our own child, which was not waited for.
        assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
    }
    let mut said = String::new();
    lines.read_to_string(&mut said).expect("text");
    let status = child.wait().expect("its end");
    let (took, whole) = (ready.elapsed(), spawned.elapsed());
    println!("{what}: {status} after {took:.2?}: {}", said.trim());
    Ok(End {
        status,
        said,
        took,
        whole,
    })
}

/// It ended in time, with this code, and all that was in flight had ended before.
#[track_caller]
fn ends_well(what: &str, signal: Option<i32>, code: i32) {
    let _watchdog = watchdog_for(LIMIT);
    let end = host(what, signal);
    assert_eq!(end.status.code(), Some(code), "{what}");
    let all = "returned true, closed true, at rest true";
    assert!(end.said.contains(all), "{what}: {}", end.said);
}

#[test]
fn the_return_from_main_with_a_leaked_busy_engine() {
    ends_well("return, leaked", None, 0);
}

#[test]
fn the_return_from_main_with_a_busy_engine_in_a_static() {
    ends_well("return, static", None, 0);
}

#[test]
fn exit_from_another_thread_under_load() {
    ends_well("exit", None, 7);
}

#[test]
fn sigterm_under_load_with_the_hosts_own_handler() {
    ends_well("handler", Some(libc::SIGTERM), 42);
}

#[test]
fn a_call_that_is_stuck_delays_the_end_by_no_more_than_the_limit() {
    let _watchdog = watchdog_for(LIMIT);
    let end = host("stuck", None);
    assert_eq!(end.status.code(), Some(9));
    assert!(end.whole >= WAITS, "it did not wait: {:?}", end.whole);
    // Nothing hangs after us here, so the host's handlers had their turn; and whoever waited for the op was told.
    let ops_only = "returned false, closed false, at rest true";
    assert!(end.said.contains(ops_only), "{}", end.said);
}

#[test]
fn exit_from_inside_a_waker() {
    let _watchdog = watchdog_for(LIMIT);
    let end = host("waker", None);
    assert_eq!(end.status.code(), Some(11));
}

#[test]
fn a_call_that_comes_back_after_an_earlier_shutdown_is_waited_for() {
    ends_well("shut down before", None, 13);
}

#[test]
fn a_forked_child_that_ends_by_exit_waits_for_nothing() {
    ends_well("forked", None, 6);
}

#[test]
fn the_client_of_a_library_is_gone_before_its_own_handlers_run() {
    let _watchdog = watchdog_for(LIMIT);
    if StandIn::compile(Kind::Faulty).is_none() {
        return;
    }
    let end = host("library", None);
    assert_eq!(end.status.code(), Some(3));
    assert!(!end.said.contains("teardown with a client"), "{}", end.said);
}

#[test]
fn a_call_that_is_stuck_in_a_library_is_not_torn_down_under() {
    let _watchdog = watchdog_for(LIMIT);
    if StandIn::compile(Kind::Faulty).is_none() {
        return;
    }
    let end = host("library, stuck", None);
    assert_eq!(end.status.code(), Some(4));
    assert!(end.whole >= WAITS, "it did not wait: {:?}", end.whole);
    assert!(!end.said.contains("teardown"), "{}", end.said);
}

// ---- the hosts ----------------------------------------------------------------------------------------------------------

static SPY: OnceLock<Arc<Spy>> = OnceLock::new();
static ENGINE: OnceLock<Engine> = OnceLock::new();
/// The host's process: in a forked child the spy's lock may be held for ever, by a worker that is not there.
static HOST_PROCESS: AtomicU32 = AtomicU32::new(0);
/// Where the signal handler writes.
static PIPE: AtomicI32 = AtomicI32::new(-1);

fn say(text: &str) {
    // Not `println`: this is also called when Rust's own output has been shut down.
    let text = format!("\n{text}\n");
    // SAFETY: a plain write of readable bytes.
    unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
}

/// The host's own exit handler: registered before the engine starts, it runs after ours.
extern "C" fn at_exit() {
    if HOST_PROCESS.load(Relaxed) != std::process::id() {
        return;
    }
    let Some(spy) = SPY.get() else { return };
    let seen = spy.seen();
    let closed = seen.last() == Some(&Seen::Close);
    let returned = seen.iter().filter(|what| matches!(what, Seen::Called(_)));
    let returned = spy.calls() > 0 && returned.count() as u64 == spy.calls();
    let at_rest = ENGINE.get().is_none_or(|engine| {
        let counts = engine.stats().engine;
        counts.accepted > 0 && counts.accepted == counts.completed
    });
    say(&format!(
        "returned {returned}, closed {closed}, at rest {at_rest}"
    ));
}

/// An engine whose calls take a millisecond.
fn start(options: SimOptions) -> (Engine, Arc<SimStore>) {
    let sim = sim(options);
    let spy = SPY.get_or_init(|| {
        HOST_PROCESS.store(std::process::id(), Relaxed);
        // SAFETY: a function of this program.
        unsafe { libc::atexit(at_exit) };
        Spy::new(sim.clone(), |_| ())
    });
    let config = EngineConfig::default().num_workers(2);
    let engine = Engine::builder(spy.clone()).config(config).start().unwrap();
    (engine, sim)
}

fn slow() -> SimOptions {
    SimOptions {
        delay: Duration::from_millis(1),
        ..SimOptions::default()
    }
}

/// Threads that submit as fast as they can, until the engine ends them or the process does.
fn load(engine: &Engine) {
    for thread in 0..2 {
        let mut pair = engine.pair(64).unwrap();
        let client = engine.client();
        std::thread::spawn(move || {
            loop {
                let key = format!("key-{thread}");
                if pair.submit(Submission::lookup(&key)).is_err() && pair.credits() > 0 {
                    std::thread::park();
                }
                pair.completions().for_each(drop);
            }
        });
        std::thread::spawn(move || {
            while client.blocking().lookup("key").is_ok() {}
            std::thread::park();
        });
    }
    while engine.stats().engine.completed < 200 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

extern "C" fn on_signal(_: libc::c_int) {
    let pipe = PIPE.load(Relaxed);
    // SAFETY: one readable byte.
    unsafe { libc::write(pipe, b"!".as_ptr().cast(), 1) };
}

#[test]
#[ignore = "run by the tests of this file"]
fn child() {
    let Ok(what) = std::env::var(HOST) else {
        return;
    };
    // One that hangs does not outlive its test.
    // SAFETY: has no preconditions.
    unsafe { libc::alarm(HANGS) };
    match &*what {
        "return, leaked" => {
            let (engine, _) = start(slow());
            load(&engine);
            std::mem::forget(engine);
            say("ready");
        }
        "return, static" => {
            load(ENGINE.get_or_init(|| start(slow()).0));
            say("ready");
        }
        "exit" => {
            load(ENGINE.get_or_init(|| start(slow()).0));
            say("ready");
            std::thread::spawn(|| std::process::exit(7));
            std::thread::sleep(Duration::from_secs(60));
        }
        "handler" => {
            let mut pipe = [0; 2];
            // SAFETY: room for two descriptors.
            assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
            PIPE.store(pipe[1], Relaxed);
            // SAFETY: the handler only writes.
            unsafe { libc::signal(libc::SIGTERM, on_signal as *const () as usize) };
            load(ENGINE.get_or_init(|| start(slow()).0));
            say("ready");
            let mut byte = 0u8;
            // SAFETY: room for one byte.
            while unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) } != 1 {}
            std::process::exit(42);
        }
        "stuck" => {
            let (engine, sim) = start(SimOptions::default());
            let engine = ENGINE.get_or_init(|| engine);
            let (second, _) = start(SimOptions::default());
            std::mem::forget(sim.gate().close(&[OpKind::Lookup]));
            for engine in [engine, &second] {
                let mut pair = engine.pair(1).unwrap();
                pair.submit(Submission::lookup("a")).unwrap();
                std::mem::forget(pair);
            }
            assert!(sim.gate().wait_inside(OpKind::Lookup, 2, LONG));
            say("ready");
            std::process::exit(9);
        }
        "waker" => {
            let (engine, _) = start(slow());
            let client = engine.client();
            let waker = waker_of(|| std::process::exit(11));
            let mut looks = Box::pin(client.lookup("a"));
            say("ready");
            let _ = common::poll_with(&mut looks, &waker);
            std::thread::sleep(Duration::from_secs(60));
        }
        "shut down before" => {
            let (engine, sim) = start(SimOptions::default());
            let gate = sim.gate().close(&[OpKind::Lookup]);
            let mut pair = engine.pair(1).unwrap();
            pair.submit(Submission::lookup("a")).unwrap();
            assert!(sim.gate().wait_inside(OpKind::Lookup, 1, LONG));
            let ended = engine.shutdown(moonring::Shutdown::Cancel, Duration::ZERO);
            assert_eq!(ended.unwrap().stuck_workers.len(), 1);
            drop((pair, engine));
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(500));
                drop(gate);
            });
            say("ready");
            std::process::exit(13);
        }
        "forked" => {
            load(ENGINE.get_or_init(|| start(slow()).0));
            let start = Instant::now();
            let code = common::in_a_child(|| {
                // Its copy of the host's handler has nothing to say.
                // SAFETY: has no preconditions; nothing but handlers of this program runs.
                unsafe {
                    libc::close(1);
                    libc::exit(5)
                }
            });
            assert_eq!(code, 5);
            assert!(start.elapsed() < WAITS);
            say("ready");
            std::process::exit(6);
        }
        "library" | "library, stuck" => {
            let stuck = what == "library, stuck";
            let library = StandIn::compile(Kind::Faulty).unwrap();
            // The first engine needs no library: the hook is there when the library comes.
            let first = Engine::builder(memory()).start().unwrap();
            let store = Arc::new(library.open(&Master::listen().config("")).unwrap());
            let engine = Engine::builder(store as Arc<dyn Store>).start().unwrap();
            library.set("calls_hang", i64::from(stuck));
            let client = engine.client();
            let mut looks = Box::pin(client.lookup("a"));
            let waker = waker_of(|| ());
            let _ = common::poll_with(&mut looks, &waker);
            eventually(|| library.count("calls") > 0);
            eventually(|| (library.count("in_call") > 0) == stuck);
            std::mem::forget((first, engine));
            say("ready");
            std::process::exit(if stuck { 4 } else { 3 });
        }
        other => panic!("no host {other:?}"),
    }
}
