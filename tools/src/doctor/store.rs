//! The store: Mooncake's library, its master, and the store itself, opened and served by an engine.

use std::sync::Arc;
use std::time::Duration;

use moonring::config::{L2Adapter, MooncakeConfig, StoreConfig};
use moonring::store::mooncake::{DEFAULT_MASTER, MooncakeLibrary, probe_master};
use moonring::store::{self, MooncakeError, OpenError, OpenOptions, OpenedStore};
use moonring::{Engine, Region, RegionOptions, Shutdown, SlotClass, SlotPool};

use super::Exam;
use super::report::Check;
use super::trip;
use crate::session;

/// What a step that has a limit of its own may take beyond it.
const MARGIN: Duration = Duration::from_secs(2);
/// How long Mooncake's client may take to be torn down, beyond the limit of calls that are under way.
const TEAR_DOWN: Duration = Duration::from_secs(15);

const HOW_TO_GET: &str = "have Mooncake in one of these ways: set MOONCAKE_STORE_LIBRARY to a libmooncake_store.so \
    (Mooncake built with WITH_STORE_C_SHARED); run `tools/mooncake setup` for the PyPI wheel; or build with \
    BUILD_MOONCAKE=1 (docs/mooncake.md)";

/// The steps, each of which needs those before it. Only a Mooncake has a master.
const STEPS: [&str; 6] = [
    "library",
    "master",
    "open",
    "start",
    "round_trip",
    "shutdown",
];

/// Everything about the store, as far as it goes; each step takes at most about `limit`.
pub fn examine(exam: &mut Exam, adapter: &L2Adapter, limit: Duration) {
    let mooncake = match &adapter.store {
        StoreConfig::MooncakeStore(config) => Some(config.clone()),
        _ => None,
    };
    let has_master = mooncake.is_some();
    steps(exam, adapter, mooncake, limit);
    let made = |name| exam.report.checks.iter().any(|check| check.name == name);
    let steps = STEPS
        .into_iter()
        .filter(|&name| name != "master" || has_master);
    exam.report.not_tried = steps.filter(|&name| !made(name)).collect();
}

/// `None`: it went no further.
fn steps(
    exam: &mut Exam,
    adapter: &L2Adapter,
    mooncake: Option<MooncakeConfig>,
    limit: Duration,
) -> Option<()> {
    let needed = mooncake.is_some();
    exam.check("library", limit, move |_| library(needed));
    // Who hangs while opening a library holds the loader's lock, for which much else would wait.
    exam.goes_on()?;
    if let Some(config) = mooncake {
        exam.check("master", limit, move |_| master(&config));
    }
    exam.report.all_passed(&["library", "master"])?;
    let opened = exam.step("open", limit + MARGIN, {
        let adapter = adapter.clone();
        move |_| open(&adapter, limit)
    });
    let opened = match opened? {
        Ok(opened) => opened,
        Err(hangs) => {
            exam.abandoned |= hangs;
            return None;
        }
    };
    let started = exam.step("start", limit, {
        let adapter = adapter.clone();
        move |_| start(&adapter, opened)
    });
    let Started { engine, slots } = started??;
    let moves_bytes = !session::is_null(adapter);
    exam.check("round_trip", limit, {
        let engine = Arc::clone(&engine);
        move |progress| trip::check(&engine, &slots, moves_bytes, progress)
    });
    exam.check("shutdown", limit + TEAR_DOWN, move |_| {
        shut_down(&engine, limit)
    });
    Some(())
}

/// Whether a library is found, how, and which.
fn library(needed: bool) -> Check {
    const NAME: &str = "library";
    match MooncakeLibrary::find(None) {
        Ok(library) => {
            let version = library.version.as_deref().unwrap_or("not told");
            let takes = match library.takes_dictionary {
                true => "every key of the configuration",
                false => "seven keys of the configuration",
            };
            let MooncakeLibrary { path, origin, .. } = &library;
            Check::ok(
                NAME,
                format!("{path}, found by {origin}; version {version}; takes {takes}"),
            )
        }
        Err(MooncakeError::NoLibrary { tried }) if !needed => Check::ok(
            NAME,
            format!(
                "no Mooncake library, and none is needed; tried {}",
                tried.join(", ")
            ),
        ),
        Err(MooncakeError::NoLibrary { tried }) => Check::fail(
            NAME,
            format!("no Mooncake library: tried {}", tried.join(", ")),
            HOW_TO_GET,
        ),
        Err(error) if needed => Check::fail(NAME, error.to_string(), HOW_TO_GET),
        Err(error) => Check::warn(NAME, error.to_string(), HOW_TO_GET),
    }
}

/// Whether the master listens.
fn master(config: &MooncakeConfig) -> Check {
    const NAME: &str = "master";
    let given = config.get("master_server_addr");
    let addr = given.unwrap_or(DEFAULT_MASTER);
    let default = match given {
        Some(_) => "",
        None => " (the default: the JSON has no master_server_addr)",
    };
    match probe_master(addr) {
        Ok(true) => Check::ok(NAME, format!("listens at {addr}{default}")),
        Ok(false) => Check::warn(
            NAME,
            format!("{addr} is no host:port; left to Mooncake, which may take minutes"),
            "give host:port, unless this is a high-availability set-up",
        ),
        Err(error) => Check::fail(
            NAME,
            format!("{error}{default}"),
            format!(
                "start mooncake_master at {addr} (by hand: `tools/mooncake up`), correct master_server_addr, or let a \
                 firewall pass it"
            ),
        ),
    }
}

/// Opens the store for the trip's region. `Err(true)`: what opens it hangs, and was left to itself.
fn open(adapter: &L2Adapter, limit: Duration) -> (Check, Result<(OpenedStore, Region), bool>) {
    const NAME: &str = "open";
    let region = match Region::allocate(RegionOptions::new(trip::REGION_BYTES)) {
        Ok(region) => region,
        Err(error) => {
            let check = Check::fail(
                NAME,
                format!("region: {error}"),
                "see the limit that it names",
            );
            return (check, Err(false));
        }
    };
    let options = OpenOptions::new(&adapter.engine).region(region.base().as_ptr(), region.len());
    let limit = options.setup_timeout.min(limit);
    let options = options.setup_timeout(limit);
    match store::open_with(&adapter.store, &options) {
        Ok(opened) => {
            let mut found = opened.store.name().to_owned();
            if let Some(version) = opened.store.version() {
                found += &format!(", version {version}");
            }
            (Check::ok(NAME, found), Ok((opened, region)))
        }
        Err(error) => {
            let hangs = matches!(error, OpenError::Mooncake(MooncakeError::TimedOut { .. }));
            let todo = match &error {
                _ if hangs => {
                    "see whether the master serves (it listens) and metadata_server answers; --timeout and \
                     moonring.setup_timeout give it longer"
                }
                OpenError::Mooncake(MooncakeError::Setup { .. } | MooncakeError::Create { .. }) => {
                    "see above what Mooncake wrote; metadata_server must answer, local_hostname must be a name of this \
                     machine, rdma needs a device"
                }
                _ => "correct the field that it names",
            };
            (Check::fail(NAME, error.to_string(), todo), Err(hangs))
        }
    }
}

/// An engine, and what it serves the trip from.
struct Started {
    engine: Arc<Engine>,
    slots: SlotPool,
}

fn start(adapter: &L2Adapter, (opened, region): (OpenedStore, Region)) -> (Check, Option<Started>) {
    const NAME: &str = "start";
    let class = SlotClass {
        size: trip::SLOT_BYTES,
        count: trip::SLOTS,
    };
    let slots = match region.slot_pool(&[class]) {
        Ok(slots) => slots,
        Err(error) => {
            let todo = "please report it: the region is the doctor's own";
            return (Check::fail(NAME, format!("slots: {error}"), todo), None);
        }
    };
    let started = Engine::builder(opened.store)
        .config(adapter.engine.clone())
        .region(region)
        .start();
    let engine = match started {
        Ok(engine) => Arc::new(engine),
        Err(error) => {
            let todo = "correct what it names; over rdma a registration needs memlock and a device";
            return (Check::fail(NAME, error.to_string(), todo), None);
        }
    };
    let report = engine.start_report();
    let pinned = report.workers.iter().filter(|worker| worker.pinned).count();
    let found = format!("{} workers, {pinned} pinned", report.workers.len());
    let check = match report.warnings.as_slice() {
        [] => Check::ok(NAME, found),
        warnings => Check::warn(
            NAME,
            format!("{found}; {}", warnings.join("; ")),
            "each of these says what it is about",
        ),
    };
    (check, Some(Started { engine, slots }))
}

fn shut_down(engine: &Engine, limit: Duration) -> Check {
    const NAME: &str = "shutdown";
    let todo = "see above, and in the store's logs, what it wrote";
    match engine.shutdown(Shutdown::Drain, limit) {
        Ok(report) if report.in_flight > 0 => {
            let workers = report.stuck_workers.join(", ");
            let found = format!("a store call has not returned (worker {workers})");
            Check::fail(NAME, found, todo)
        }
        Ok(report) if !report.not_unregistered.is_empty() => {
            let pieces = report.not_unregistered.join(", ");
            Check::warn(NAME, format!("not unregistered: {pieces}"), todo)
        }
        Ok(_) => Check::ok(NAME, "all is given back"),
        Err(error) => Check::fail(NAME, error.to_string(), todo),
    }
}
