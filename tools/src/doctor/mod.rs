//! `moonring doctor`: whether this machine and this store will do, and what to do if not.

mod machine;
mod report;
mod store;
mod trip;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use moonring::config::{L2Adapter, StoreConfig};
use moonring::store::mooncake::rdma_devices;
use moonring::{MemoryLimits, OpKind};

use crate::cli::Failure;
use crate::session::{self, JsonOut};
use report::{Check, Report};

/// How long a check of the machine may take: it only reads what the kernel tells.
const MACHINE_LIMIT: Duration = Duration::from_secs(5);

/// What `doctor` is told.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The store and the engine, as JSON; without it the memory store
    #[arg(long, value_name = "JSON")]
    l2_adapter: Option<String>,
    /// Size of the host's region, by which memlock and huge pages are judged
    #[arg(long, value_name = "SIZE", value_parser = session::size, default_value = "1 GiB")]
    region_bytes: u64,
    /// Seconds that each step with the store may take; opening has no more than moonring.setup_timeout
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    timeout: u32,
    /// Write the report as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs `doctor`.
///
/// # Errors
/// Bad input, or a check that failed.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let asked = args.l2_adapter.as_deref();
    let adapter = asked.map(session::adapter).transpose()?;
    let adapter = adapter.unwrap_or_default();
    let json = JsonOut::open(args.json.as_deref())?;
    let Exam {
        report,
        abandoned,
        spinner,
    } = examine(&adapter, args);
    spinner.finish_and_clear();
    let ended = json.write(&report, &report.text());
    let ended = ended.and_then(|()| report.ended());
    if abandoned {
        end_now(ended);
    }
    ended
}

fn examine(adapter: &L2Adapter, args: &DoctorArgs) -> Exam {
    let mut exam = Exam {
        report: Report {
            schema: "moonring.doctor/1",
            l2_adapter: adapter.effective(),
            region_bytes: args.region_bytes,
            checks: Vec::new(),
            not_tried: Vec::new(),
        },
        abandoned: false,
        spinner: spinner(),
    };
    exam.check("configuration", MACHINE_LIMIT, {
        let (adapter, asked) = (adapter.clone(), args.l2_adapter.is_some());
        move |_| configuration(&adapter, asked)
    });
    let (workers, region, rdma) = (workers(adapter), args.region_bytes, adapter.is_rdma());
    exam.check("cores", MACHINE_LIMIT, move |_| {
        machine::Cores::read(workers).check()
    });
    exam.check("memlock", MACHINE_LIMIT, move |_| {
        machine::memlock(&MemoryLimits::read(), region, rdma)
    });
    exam.check("huge_pages", MACHINE_LIMIT, move |_| {
        machine::huge_pages(&MemoryLimits::read(), region)
    });
    if let StoreConfig::MooncakeStore(config) = &adapter.store
        && rdma
    {
        let wanted = config.get("rdma_devices").map(str::to_owned);
        exam.check("rdma", MACHINE_LIMIT, move |_| {
            let may_open = Path::new("/dev/infiniband").exists();
            machine::rdma(&rdma_devices(), may_open, wanted.as_deref())
        });
    }
    store::examine(&mut exam, adapter, Duration::from_secs(args.timeout.into()));
    exam
}

/// What the configuration names, and what in it has no effect.
fn configuration(adapter: &L2Adapter, asked: bool) -> Check {
    const NAME: &str = "configuration";
    let store = adapter.store.type_name();
    let mut found = match (asked, &adapter.store) {
        (false, _) => {
            format!("no --l2-adapter: the embedded {store} store; no Mooncake was asked for")
        }
        (true, StoreConfig::MooncakeStore(_)) => store.to_owned(),
        (true, _) => format!("the embedded {store} store; no Mooncake was asked for"),
    };
    match adapter.warnings() {
        [] => Check::ok(NAME, found),
        warnings => {
            found += &format!("; {}", warnings.join("; "));
            Check::warn(NAME, found, "take out what has no effect")
        }
    }
}

/// How many workers the engine will have.
fn workers(adapter: &L2Adapter) -> usize {
    let engine = &adapter.engine;
    let dedicated = OpKind::ALL.map(|op| engine.per_op_workers[op]);
    let shared = match dedicated.contains(&None) {
        true => engine.num_workers,
        false => 0,
    };
    shared + dedicated.into_iter().flatten().sum::<usize>()
}

/// What a check is at, for when it hangs.
#[derive(Clone, Default)]
struct Progress(Arc<Mutex<&'static str>>);

impl Progress {
    fn at(&self, doing: &'static str) {
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = doing;
    }

    /// Empty, or the words and a colon.
    fn text(&self) -> String {
        match *self.0.lock().unwrap_or_else(|e| e.into_inner()) {
            "" => String::new(),
            doing => format!("{doing}: "),
        }
    }
}

/// The examination under way.
struct Exam {
    report: Report,
    /// A step that took too long was left to itself, and may hang in a library.
    abandoned: bool,
    spinner: ProgressBar,
}

/// What is being looked at, on a terminal only: a step may take its whole limit.
fn spinner() -> ProgressBar {
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

impl Exam {
    /// `None`: something hangs.
    fn goes_on(&self) -> Option<()> {
        (!self.abandoned).then_some(())
    }

    /// Makes a check, on a thread of its own. One that takes longer than its limit has failed, and is left to itself.
    fn check(
        &mut self,
        name: &'static str,
        limit: Duration,
        check: impl FnOnce(&Progress) -> Check + Send + 'static,
    ) {
        self.step(name, limit, |progress| (check(progress), ()));
    }

    /// As [`check`](Self::check), for one that finds something that is needed further on.
    fn step<T: Send + 'static>(
        &mut self,
        name: &'static str,
        limit: Duration,
        check: impl FnOnce(&Progress) -> (Check, T) + Send + 'static,
    ) -> Option<T> {
        self.spinner.set_message(name);
        let start = Instant::now();
        let (send, receive) = sync_channel(1);
        let progress = Progress::default();
        let doing = progress.clone();
        let spawned = std::thread::Builder::new()
            .name(format!("doctor-{name}"))
            .spawn(move || {
                // Nobody waits for one that comes too late.
                let _ = send.send(check(&doing));
            });
        let ended = match spawned {
            Err(error) => Err((
                format!("no thread could be started: {error}"),
                "raise the limit of processes (ulimit -u, the cgroup's pids.max)".to_owned(),
            )),
            Ok(_) => receive.recv_timeout(limit).map_err(|error| match error {
                RecvTimeoutError::Timeout => {
                    self.abandoned = true;
                    (
                        format!("{}not done after {} s", progress.text(), limit.as_secs_f64()),
                        "see above, and in the store's logs, what it wrote; --timeout gives it longer".to_owned(),
                    )
                }
                RecvTimeoutError::Disconnected => (
                    "panicked, see above".to_owned(),
                    "please report it, with what it wrote".to_owned(),
                ),
            }),
        };
        let (check, value) = match ended {
            Ok((check, value)) => (check, Some(value)),
            Err((found, todo)) => (Check::fail(name, found, todo), None),
        };
        self.report.add(check, start.elapsed());
        value
    }
}

/// Ends the process, though something of ours hangs in a library. An orderly end might wait for that: the loader's lock is
/// held while a library is opened, and an exit takes it.
fn end_now(ended: Result<(), Failure>) -> ! {
    let code = match ended {
        Ok(()) => 0,
        Err(failure) => failure.tell(),
    };
    let _ = std::io::stdout().flush();
    // SAFETY: ends the process; nothing that is left undone outlives it.
    unsafe { libc::_exit(code.into()) }
}
