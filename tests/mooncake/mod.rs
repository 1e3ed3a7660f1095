//! A real Mooncake of a test's own: a master and a storage node, out of the PyPI wheel, started and ended by `tools/mooncake`.
//!
//! A test file that uses it declares `mod standin;` too.

#![allow(dead_code)] // each test file uses its part

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use moonring::config::StoreConfig;
use moonring::store::{MooncakeStore, OpenOptions};
use moonring::{Engine, EngineConfig, L2Adapter, Region, RegionOptions, SlotClass, SlotPool};

use crate::standin::required;

/// How long the master remembers a storage node that is gone, and how late it may be.
pub const CLIENT_TTL: Duration = Duration::from_secs(10);
/// What a call takes at most whose master is gone: 4.4 s were measured; more on a busy machine.
pub const DEAD_MASTER: Duration = Duration::from_secs(15);
/// In which a master or a node that was started again serves, at the latest.
pub const RESTART: Duration = Duration::from_secs(20);

/// A master and a storage node. They end when it is dropped, after a panic too, and when the test takes too long.
pub struct Mooncake {
    name: String,
    json: String,
    _watchdog: mpsc::Sender<()>,
}

impl Mooncake {
    /// `None`, said aloud: there is no Mooncake on this machine. `options` are those of `tools/mooncake up`; after `limit` the
    /// test counts as hanging.
    pub fn up(test: &str, options: &[&str], limit: Duration) -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        if !is_set_up() {
            return None;
        }
        // Of its own among the tests of this process, and of those that run beside it.
        let number = COUNT.fetch_add(1, Relaxed);
        let name = format!("test-{}-{number}-{test}", std::process::id());
        let watchdog = watch(name.clone(), limit);
        let output = tool(&name, &[&["up"], options].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tools/mooncake up: {text}");
        let json = String::from_utf8(output.stdout).expect("JSON");
        assert_eq!(json.lines().count(), 1, "{json}");
        Some(Self {
            name,
            json,
            _watchdog: watchdog,
        })
    }

    /// The `--l2-adapter` JSON; `more` is put in, or takes the place of what is there.
    pub fn json(&self, more: &[(&str, &str)]) -> String {
        let parsed = serde_json::from_str(&self.json);
        let mut object: serde_json::Map<_, _> = parsed.expect("an object");
        for (key, value) in more {
            object.insert((*key).to_owned(), (*value).into());
        }
        serde_json::Value::Object(object).to_string()
    }

    /// Opens a store: a client that lends no memory.
    pub fn open(&self) -> Arc<MooncakeStore> {
        self.open_with(&[])
    }

    /// Opens a store with more of a configuration.
    pub fn open_with(&self, more: &[(&str, &str)]) -> Arc<MooncakeStore> {
        open(&self.json(more), &OpenOptions::default().library(bridge()))
    }

    /// Runs a command of `tools/mooncake` on it.
    pub fn command(&self, command: &str) -> String {
        let output = tool(&self.name, &[command]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tools/mooncake {command}: {text}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// What the master itself has counted since its start.
    pub fn counters(&self) -> Counters {
        let text = self.command("metrics");
        let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
        Counters(
            lines
                .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
                .collect(),
        )
    }
}

impl Drop for Mooncake {
    fn drop(&mut self) {
        let output = tool(&self.name, &["down"]);
        if !output.status.success() {
            eprintln!("tools/mooncake down: {output:?}");
        }
    }
}

/// The master's counters by name.
#[derive(Clone, Debug)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// One of them: `master_<name>_total`.
    #[track_caller]
    pub fn of(&self, name: &str) -> u64 {
        let name = format!("master_{name}_total");
        let value = self.0.get(&name);
        *value.unwrap_or_else(|| panic!("{name} is none of {:?}", self.0.keys()))
    }

    /// What came to one of them since an earlier look.
    #[track_caller]
    pub fn since(&self, earlier: &Self, name: &str) -> u64 {
        let before = earlier.of(name);
        let now = self.of(name).checked_sub(before);
        now.unwrap_or_else(|| panic!("{name} went down from {before}"))
    }
}

/// Opens a store by its JSON.
pub fn open(json: &str, options: &OpenOptions) -> Arc<MooncakeStore> {
    let adapter = L2Adapter::parse(json).expect("good JSON");
    let StoreConfig::MooncakeStore(config) = &adapter.store else {
        panic!("{:?}", adapter.store);
    };
    Arc::new(MooncakeStore::open(config, options).expect("it opens"))
}

/// An engine over a store, with a region of just so many slots.
pub struct Rig {
    pub engine: Engine,
    pub region: Region,
    pub slots: SlotPool,
}

impl Rig {
    /// With the configuration's defaults.
    pub fn start(store: Arc<MooncakeStore>, size: usize, count: usize) -> Self {
        Self::start_with(EngineConfig::default(), store, size, count)
    }

    pub fn start_with(
        config: EngineConfig,
        store: Arc<MooncakeStore>,
        size: usize,
        count: usize,
    ) -> Self {
        let options = RegionOptions::new(size.next_multiple_of(64) * count).prefault(false);
        let region = Region::allocate(options).expect("memory");
        let slots = region.slot_pool(&[SlotClass { size, count }]);
        let engine = Engine::builder(store)
            .config(config)
            .region(region.clone())
            .start();
        Self {
            engine: engine.expect("it starts"),
            slots: slots.expect("slots"),
            region,
        }
    }
}

/// The project's root: the tests of `tools/` use this file too.
fn project() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let roots = package.ancestors();
    let mut roots = roots.filter(|folder| folder.join("tools/mooncake").is_file());
    roots.next().expect("tools/mooncake")
}

/// The folder that `tools/mooncake setup` filled.
pub fn state() -> PathBuf {
    std::env::var_os("MOONRING_MOONCAKE_DIR")
        .map_or_else(|| project().join("target/mooncake"), PathBuf::from)
}

/// The bridge to the wheel.
pub fn bridge() -> PathBuf {
    state().join("libmoonring_wheel_bridge.so")
}

/// False, said aloud: `tools/mooncake setup` was not run.
pub fn is_set_up() -> bool {
    if bridge().is_file() && state().join("venv/wheel").is_file() {
        return true;
    }
    let missing = format!(
        "no real Mooncake in {}: tools/mooncake setup",
        state().display()
    );
    assert!(!required("mooncake"), "{missing}");
    eprintln!("SKIPPED: {missing}");
    false
}

fn tool(instance: &str, arguments: &[&str]) -> Output {
    Command::new(project().join("tools/mooncake"))
        .args(arguments)
        .env("MOONRING_MOONCAKE_INSTANCE", instance)
        .env("MOONRING_MOONCAKE_DIR", state())
        .stdin(Stdio::null())
        .output()
        .expect("tools/mooncake runs")
}

/// A test of this file, marked `ignore`, in a process of its own.
pub fn child(test: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test"));
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(variables.iter().copied())
        .stdin(Stdio::null());
    command
}

/// Past the limit, ends Mooncake, which would outlive us, and then the process, saying which test hangs.
fn watch(instance: String, limit: Duration) -> mpsc::Sender<()> {
    let (done, watched) = mpsc::channel();
    std::thread::spawn(move || {
        if watched.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Not `eprintln`: the harness captures that of a test that never ends.
            let text = format!("\nwatchdog: {instance} hangs\n");
            // SAFETY: a plain write of readable bytes.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
            tool(&instance, &["down"]);
            std::process::abort();
        }
    });
    done
}

/// Runs something that must end within a limit, and says how long it took.
#[track_caller]
pub fn within<R>(limit: Duration, what: &str, f: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = f();
    let took = start.elapsed();
    println!("{what}: {took:.2?}");
    assert!(took <= limit, "{what}: {took:?}, more than {limit:?}");
    result
}

/// Asks again and again until the answer is `true`, at most for a limit. The time that it took.
#[track_caller]
pub fn eventually(limit: Duration, what: &str, mut is: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is() {
        let waited = start.elapsed();
        assert!(waited < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("{what}: after {:.2?}", start.elapsed());
    start.elapsed()
}
