//! Promise 12: the host owns its signals, its environment, its threads' affinity and its process; nothing of ours changes
//! them. These are properties of the whole process, so the tests take turns.

mod common;

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use common::*;
use moonring::config::CoreChoice;
use moonring::store::SimOptions;
use moonring::{Engine, EngineConfig, OpKind, Shutdown, StartError, StartReport, Submission};

const LONG: Duration = Duration::from_secs(50);

fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

/// Runs the test again in a process of its own, and says whether this is that process.
fn in_own_process(test: &str) -> bool {
    const CHILD: &str = "MOONRING_TEST_ALONE";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let _alone = alone();
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let passed = out.status.success() && text.contains("1 passed");
    assert!(passed, "{text}{}", String::from_utf8_lossy(&out.stderr));
    false
}

fn start(config: EngineConfig) -> Engine {
    let engine = Engine::builder(sim(SimOptions::default())).config(config);
    engine.start().unwrap()
}

/// What /proc says of a thread, by field.
fn status(tid: i32) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap_or_default();
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

fn tids() -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// The engine's threads by name.
fn workers() -> BTreeMap<String, i32> {
    let named = tids()
        .into_iter()
        .map(|tid| (status(tid).remove("Name").unwrap_or_default(), tid));
    named.filter(|(name, _)| name.starts_with("mr-")).collect()
}

/// The same when there are so many: a new thread takes its name itself.
fn workers_when_there_are(n: usize) -> BTreeMap<String, i32> {
    eventually(|| workers().len() == n);
    workers()
}

/// The blocked signals of a thread, signal `n` as bit `n - 1`; `None` where it is gone.
fn blocked(tid: i32) -> Option<u64> {
    let status = status(tid);
    // A thread that is ending has let go of its signals already: the kernel then tells of no threads and no signals.
    if status.get("Threads")?.trim() == "0" {
        return None;
    }
    u64::from_str_radix(status.get("SigBlk")?, 16).ok()
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// All but those that can't be blocked, or that a fault raises on the thread itself; 32 and 33 are the C library's.
fn hosts_signals() -> u64 {
    let exempt = [
        libc::SIGKILL,
        libc::SIGSTOP,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGSYS,
        32,
        33,
    ];
    !exempt.into_iter().fold(0, |set, signal| set | bit(signal))
}

fn use_cores(cores: &[usize]) {
    // SAFETY: plain calls with a local set; the thread is the test's own.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        cores.iter().for_each(|&core| libc::CPU_SET(core, &mut set));
        let failed = libc::sched_setaffinity(0, size_of_val(&set), &set);
        assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Which cores a thread may use; 0: the calling one.
fn cores_of(tid: i32) -> Vec<usize> {
    // SAFETY: plain calls with a local set.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        let failed = libc::sched_getaffinity(tid, size_of_val(&set), &mut set);
        assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
        (0..libc::CPU_SETSIZE as usize)
            .filter(|&core| libc::CPU_ISSET(core, &set))
            .collect()
    }
}

/// Runs on a thread of its own, whose affinity is then nobody else's.
fn on_own_thread(f: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("host".into());
        thread.spawn_scoped(scope, f).unwrap().join().unwrap();
    });
}

/// All of the process that the host can see and that we have no business with.
#[derive(Debug, PartialEq)]
struct HostState {
    mask: u64,
    handlers: Vec<Option<(usize, u64, i32)>>,
    environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    folder: std::path::PathBuf,
    cores: Vec<(i32, Vec<usize>)>,
    limits: Vec<(u64, u64)>,
    umask: String,
    children: String,
    altstack: usize,
}

impl HostState {
    fn now(threads: &[i32]) -> Self {
        // SAFETY: plain calls that only read, into local structs of the right type.
        let (mask, handlers, limits, altstack) = unsafe {
            let mut set: libc::sigset_t = mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
            let mask = (1..=64)
                .filter(|&s| libc::sigismember(&set, s) == 1)
                .map(bit)
                .sum();
            let handler = |signal| {
                let mut action: libc::sigaction = mem::zeroed();
                let ok = libc::sigaction(signal, std::ptr::null(), &mut action) == 0;
                let blocks = (1..=64).filter(|&s| libc::sigismember(&action.sa_mask, s) == 1);
                ok.then(|| (action.sa_sigaction, blocks.map(bit).sum(), action.sa_flags))
            };
            let limit = |resource| {
                let mut limit: libc::rlimit = mem::zeroed();
                libc::getrlimit(resource, &mut limit);
                (limit.rlim_cur, limit.rlim_max)
            };
            let mut stack: libc::stack_t = mem::zeroed();
            libc::sigaltstack(std::ptr::null(), &mut stack);
            let limits = (0..16).map(limit).collect();
            (
                mask,
                (1..=64).map(handler).collect(),
                limits,
                stack.ss_sp.addr(),
            )
        };
        let children = format!("/proc/self/task/{}/children", std::process::id());
        Self {
            mask,
            handlers,
            environment: std::env::vars_os().collect(),
            folder: std::env::current_dir().unwrap(),
            cores: threads.iter().map(|&tid| (tid, cores_of(tid))).collect(),
            limits,
            umask: status(std::process::id() as i32)["Umask"].clone(),
            children: std::fs::read_to_string(children).unwrap_or_default(),
            altstack,
        }
    }
}

fn gettid() -> i32 {
    // SAFETY: a plain system call.
    unsafe { libc::gettid() }
}

#[test]
fn signals_environment_affinity_and_process_are_the_same_before_during_and_after() {
    let _dog = watchdog();
    // The first engine of its process: what it changes for good, later ones would find changed.
    let name = "signals_environment_affinity_and_process_are_the_same_before_during_and_after";
    if !in_own_process(name) {
        return;
    }
    on_own_thread(|| {
        let other = AtomicI32::new(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                other.store(gettid(), Ordering::SeqCst);
                eventually(|| done.load(Ordering::SeqCst));
            });
            // Also where an assertion fails: the scope waits for that thread.
            let _ends = Sets(&done);
            eventually(|| other.load(Ordering::SeqCst) != 0);
            let threads = [
                gettid(),
                other.load(Ordering::SeqCst),
                std::process::id() as i32,
            ];
            let before = HostState::now(&threads);
            let files = count_files();
            for config in [
                EngineConfig::default(),
                EngineConfig::default().dedicated(OpKind::Store, 2),
            ] {
                let engine = start(config);
                assert_eq!(HostState::now(&threads), before, "after start");
                let mut pair = engine.pair(4).unwrap();
                let event = pair.event_fd().unwrap();
                pair.submit(Submission::lookup("key")).unwrap();
                pair.wait(1, None).unwrap();
                assert_eq!(engine.client().blocking().lookup("key"), Ok(false));
                assert_eq!(HostState::now(&threads), before, "after ops");
                engine.shutdown(Shutdown::Drain, LONG).unwrap();
                drop((engine, pair, event));
                assert_eq!(HostState::now(&threads), before, "after shutdown");
                eventually(|| workers().is_empty());
                eventually(|| count_files() == files);
            }
        });
    });
}

struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn count_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);
static ON_A_WORKER: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handler(_: i32) {
    let mut name = [0u8; 16];
    // SAFETY: async-signal-safe, into 16 writable bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    if name.starts_with(b"mr-") {
        ON_A_WORKER.fetch_add(1, Ordering::SeqCst);
    }
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn workers_block_the_hosts_signals_so_that_its_handlers_run_on_its_own_threads() {
    let _dog = watchdog();
    let _alone = alone();
    on_own_thread(|| {
        // SAFETY: a handler that is async-signal-safe, for a signal that nobody else uses here.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = handler as extern "C" fn(i32) as usize;
            assert_eq!(
                libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()),
                0
            );
        }
        let engine = start(EngineConfig::default().num_workers(4));
        let workers = workers_when_there_are(4 + 2);
        // The timer and the spare too: wakers run on them.
        for name in ["mr-timer", "mr-shared-spare"] {
            assert!(workers.contains_key(name), "{workers:?}");
        }
        for (name, tid) in &workers {
            let missing = hosts_signals() & !blocked(*tid).unwrap();
            assert_eq!(missing, 0, "{name} does not block {missing:#x}");
            let faults =
                bit(libc::SIGSEGV) | bit(libc::SIGBUS) | bit(libc::SIGFPE) | bit(libc::SIGILL);
            assert_eq!(
                blocked(*tid).unwrap() & faults,
                0,
                "blocking a fault's signal is undefined"
            );
        }
        let client = engine.client();
        for n in 1..=100 {
            let op = client.lookup("key");
            // SAFETY: a plain system call.
            assert_eq!(unsafe { libc::kill(libc::getpid(), libc::SIGUSR1) }, 0);
            assert_eq!(moonring::block_on(op), Ok(false));
            eventually(|| HANDLED.load(Ordering::SeqCst) == n);
        }
        assert_eq!(ON_A_WORKER.load(Ordering::SeqCst), 0);
        // SAFETY: as above: back to what it was.
        unsafe { libc::signal(libc::SIGUSR1, libc::SIG_DFL) };
    });
}

/// From its first instruction on. In a process of its own, so that each new thread is the engine's: this test, again.
#[test]
fn a_worker_blocks_the_hosts_signals_from_its_first_moment_on() {
    let _dog = watchdog();
    if !in_own_process("a_worker_blocks_the_hosts_signals_from_its_first_moment_on") {
        return;
    }
    let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let hosts = tids();
            ready.store(true, Ordering::SeqCst);
            let (mut looks, mut bare) = (0, Vec::new());
            while !done.load(Ordering::SeqCst) {
                for tid in tids().into_iter().filter(|tid| !hosts.contains(tid)) {
                    let Some(blocked) = blocked(tid) else {
                        continue;
                    };
                    looks += 1;
                    if hosts_signals() & !blocked != 0 {
                        bare.push(format!("{tid} {blocked:#x}"));
                    }
                }
            }
            (looks, bare)
        });
        eventually(|| ready.load(Ordering::SeqCst));
        for _ in 0..10 {
            let engine = start(EngineConfig::default().num_workers(62));
            engine.shutdown(Shutdown::Drain, LONG).unwrap();
        }
        done.store(true, Ordering::SeqCst);
        let (looks, bare) = sampler.join().unwrap();
        assert!(looks > 100, "{looks} looks");
        assert!(
            bare.is_empty(),
            "{} of {looks} times: {:?}",
            bare.len(),
            bare.first()
        );
    });
}

/// Cores of the workers by their report, and that the kernel says the same.
fn pinned(report: &StartReport) -> Vec<Option<usize>> {
    // And the timer, and each group's spare.
    let groups: std::collections::BTreeSet<_> = report.workers.iter().map(|w| &w.ops).collect();
    let threads = workers_when_there_are(report.workers.len() + 1 + groups.len());
    for worker in &report.workers {
        let tid = threads[&worker.name];
        if let Some(core) = worker.core {
            assert_eq!(
                (cores_of(tid), worker.pinned),
                (vec![core], true),
                "{worker:?}"
            );
        } else {
            assert!(!worker.pinned, "{worker:?}");
        }
    }
    report.workers.iter().map(|worker| worker.core).collect()
}

#[test]
fn workers_are_pinned_within_the_mask_of_the_thread_that_calls_start_and_no_host_thread_is() {
    let _dog = watchdog();
    let _alone = alone();
    on_own_thread(|| {
        let all = cores_of(0);
        let config = || EngineConfig::default().num_workers(3);
        // All that the host's thread may use: one worker a core, in order; the surplus is not pinned.
        let engine = start(config());
        let mut wanted: Vec<_> = all.iter().copied().map(Some).take(3).collect();
        wanted.resize(3, None);
        assert_eq!(pinned(engine.start_report()), wanted);
        assert_eq!(cores_of(0), all);
        for name in ["mr-timer", "mr-shared-spare"] {
            assert_eq!(cores_of(workers()[name]), all, "{name} is not pinned");
        }
        drop(engine);
        eventually(|| workers().is_empty());

        // A taskset of one core: each of them in turn.
        for &core in &all {
            use_cores(&[core]);
            let engine = start(config().dedicated(OpKind::Lookup, 1));
            let report = engine.start_report();
            assert_eq!(pinned(report), [Some(core), None, None, None]);
            assert_eq!(report.workers[3].ops, [OpKind::Lookup]);
            for (name, tid) in workers() {
                assert_eq!(cores_of(tid), [core], "{name} leaves the mask");
            }
            assert_eq!(cores_of(0), [core]);
            drop(engine);
            eventually(|| workers().is_empty());
        }

        // The mask is read once: what the host does later with its own is its business.
        use_cores(&all);
        let engine = start(config());
        use_cores(&all[..1]);
        assert_eq!(pinned(engine.start_report()), wanted);
        drop(engine);
        eventually(|| workers().is_empty());

        // Nobody is pinned where nobody shall be.
        use_cores(&all);
        let engine = start(config().cores(CoreChoice::None));
        assert_eq!(pinned(engine.start_report()), [None; 3]);
        for (name, tid) in workers() {
            assert_eq!(cores_of(tid), all, "{name}");
        }
    });
}

#[test]
fn an_explicit_list_of_cores_is_followed_in_its_order_and_a_core_outside_is_refused_by_name() {
    let _dog = watchdog();
    let _alone = alone();
    on_own_thread(|| {
        let all = cores_of(0);
        let list = |cores: &[usize]| {
            let config = EngineConfig::default().num_workers(2);
            let config = config.cores(CoreChoice::List(cores.to_vec()));
            let store = Spy::new(memory(), |_| {});
            let (region, _pool) = slots(64, 1);
            let engine = Engine::builder(store.clone())
                .config(config)
                .region(region)
                .start();
            (engine, store)
        };
        let backwards: Vec<_> = all.iter().rev().copied().take(2).collect();
        let (engine, _) = list(&backwards);
        let engine = engine.unwrap();
        let mut wanted: Vec<_> = backwards.iter().copied().map(Some).collect();
        wanted.resize(2, None);
        assert_eq!(pinned(engine.start_report()), wanted);
        drop(engine);
        eventually(|| workers().is_empty());

        let refused = |cores: &[usize], core: usize, allowed: &[usize]| {
            let (engine, store) = list(cores);
            let error = engine.unwrap_err();
            let text =
                format!("moonring.cores: core {core} is not among the allowed ones {allowed:?}");
            assert_eq!(error.to_string(), text);
            assert!(matches!(error, StartError::Core { core: c, .. } if c == core));
            assert_eq!(store.seen(), [], "nothing was registered for it");
            assert!(workers().is_empty());
        };
        refused(&[all[0], 1023], 1023, &all);
        if let [first, second, ..] = all[..] {
            // There is such a core, but not for this thread.
            use_cores(&[first]);
            refused(&[second], second, &[first]);
            assert_eq!(cores_of(0), [first]);
        } else {
            println!(
                "skipped: a core of this machine that the thread may not use; it has one core"
            );
        }
    });
}
