//! A run over time: samples at intervals, an `.hlog`, and how far it is.
//!
//! ```text
//! the run:   ── set up ── begin ──────────────────────── end ── verify ──
//! recorder:                 ├ interval ┼ interval ┼ interv ┤ writes the last, ends
//! ```
//!
//! Between two snapshots lies an interval; the sum of all intervals is exactly what [`Watch::end`] returns.

pub mod book;
pub mod hlog;
mod sample;

use std::io::{LineWriter, Write};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use hdrhistogram::serialization::V2DeflateSerializer;
use indicatif::ProgressBar;
use moonring::stats::Histogram;
use moonring::{Engine, Stats};

use crate::cli::Failure;
use book::{Books, Latencies, Series};
use hlog::{Hlog, Outputs};
pub use sample::{Sample, lanes_json};

/// What a run writes beside its report.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Write latencies over time as an HdrHistogram log, a tag per lane
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub hlog: Option<PathBuf>,
    /// Write percentile distributions into this folder, a .hgrm file per lane
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub hgrm: Option<PathBuf>,
    /// Length of an interval of the log and of the JSON, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = interval, help_heading = "Output")]
    pub interval: f64,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("must be a number of seconds from 0.01 to 3600".into()),
    }
}

impl RecordArgs {
    /// Makes the files.
    ///
    /// # Errors
    /// One of them can't be made.
    pub fn outputs(&self) -> Result<Outputs, Failure> {
        Outputs::create(self.hlog.as_deref(), self.hgrm.as_deref())
    }
}

/// The state of all counts at one moment.
#[derive(Clone, Debug)]
struct Snapshot {
    at: Instant,
    stats: Stats,
    callers: Latencies,
}

/// How far the run is.
#[derive(Debug, Default)]
struct Stage {
    first: Option<(Snapshot, SystemTime)>,
    last: Option<Snapshot>,
    /// Also of a run that never began.
    over: bool,
}

/// What the run tells its recorder.
#[derive(Debug)]
pub struct Watch<'a> {
    engine: &'a Engine,
    books: Books,
    stage: Mutex<Stage>,
    changed: Condvar,
}

/// What was recorded of a run.
#[derive(Debug, Default)]
pub struct Recorded {
    /// What happened between beginning and end.
    pub stats: Stats,
    /// The callers' latencies in that time.
    pub callers: Latencies,
    /// The intervals.
    pub samples: Vec<Sample>,
    /// From beginning to end.
    pub time: Duration,
    /// When the run began, in seconds since 1970.
    pub began_unix_s: Option<f64>,
    /// Why the log is not whole.
    pub error: Option<String>,
}

impl Recorded {
    /// All histograms of the run, with their tags.
    pub fn histograms(&self) -> impl Iterator<Item = (String, &Histogram<u64>)> {
        histograms(&self.stats, &self.callers)
    }
}

fn histograms<'a>(
    stats: &'a Stats,
    callers: &'a Latencies,
) -> impl Iterator<Item = (String, &'a Histogram<u64>)> {
    let lanes = stats.lanes.iter().flat_map(|lane| {
        let tag = |part: &str| format!("{}{part}", lane.op);
        [
            (tag(""), lane.total()),
            (tag(".queue"), lane.queue()),
            (tag(".call"), lane.call()),
        ]
    });
    let callers = Series::all().filter_map(|series| Some((series.tag(), callers.get(series)?)));
    lanes.chain(callers)
}

/// Where a bar stands, from the time since the beginning and the callers' ops so far.
pub type Position = fn(Duration, u64) -> u64;

/// How a run shows how far it is.
pub struct Progress {
    /// The bar; hidden where standard error is no terminal.
    pub bar: ProgressBar,
    /// Where it stands; `None`: the run moves it.
    pub position: Option<Position>,
}

/// How often a bar on a terminal moves.
const TICK: Duration = Duration::from_millis(100);

/// Runs `work` with a recorder beside it.
pub fn watched<T>(
    engine: &Engine,
    interval: Duration,
    outputs: &mut Outputs,
    progress: &Progress,
    work: impl FnOnce(&Watch<'_>) -> T,
) -> (T, Recorded) {
    let watch = Watch {
        engine,
        books: Books::default(),
        stage: Mutex::default(),
        changed: Condvar::new(),
    };
    let hlog = outputs.take_hlog();
    thread::scope(|scope| {
        let recorder = scope.spawn(|| watch.record(interval, hlog, progress));
        // However the work ends, the recorder must.
        let over = Over(&watch);
        let done = work(&watch);
        drop(over);
        let recorded = recorder.join().unwrap_or_else(|_| Recorded {
            error: Some("the recorder panicked".into()),
            ..Recorded::default()
        });
        (done, recorded)
    })
}

struct Over<'w, 'e>(&'w Watch<'e>);

impl Drop for Over<'_, '_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Watch<'_> {
    /// Where callers record their latencies.
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// The run begins; the second time nothing happens.
    pub fn begin(&self) {
        let mut stage = self.stage();
        if stage.first.is_none() {
            stage.first = Some((self.snapshot(), SystemTime::now()));
            self.changed.notify_all();
        }
    }

    /// The run is over: what is counted from now on does not count; the second time nothing happens.
    pub fn end(&self) {
        let mut stage = self.stage();
        if !stage.over {
            stage.over = true;
            stage.last = stage.first.is_some().then(|| self.snapshot());
            self.changed.notify_all();
        }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            at: Instant::now(),
            stats: self.engine.stats(),
            callers: self.books.read(),
        }
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        lock(&self.stage)
    }

    /// The recorder's thread.
    fn record(
        &self,
        interval: Duration,
        hlog: Option<(PathBuf, std::fs::File)>,
        progress: &Progress,
    ) -> Recorded {
        progress.bar.set_message("setting up  ");
        let Some((first, began)) = self.wait_for_begin() else {
            return Recorded::default();
        };
        // What is left is told by the pace since the beginning; a run that moves the bar itself has begun to.
        if progress.position.is_some() {
            progress.bar.reset();
        }
        progress.bar.set_message("");
        let (path, file) = hlog.unzip();
        // Each interval is in the file when it is over: a run that is killed leaves what it had.
        let mut file = file.map(LineWriter::new);
        let mut serializer = V2DeflateSerializer::new();
        let hlog = file
            .as_mut()
            .map(|file| Hlog::begin(began, file, &mut serializer));
        let (hlog, failed) = match hlog.transpose() {
            Ok(hlog) => (hlog, None),
            Err(e) => (None, Some(e)),
        };
        let mut tape = Tape {
            first: first.clone(),
            until: first.clone(),
            pending: None,
            samples: Vec::new(),
            hlog,
            failed,
        };
        let mut ticks = 1;
        let end = loop {
            let next = first.at + interval.saturating_mul(ticks);
            match self.wait_until(next, progress, first.at) {
                Some(end) => break end,
                None => tape.tick(self.snapshot()),
            }
            // A machine that stood still skips what it missed.
            let passed = first.at.elapsed().as_nanos() / interval.as_nanos().max(1);
            ticks = u32::try_from(passed)
                .unwrap_or(u32::MAX)
                .saturating_add(1)
                .max(ticks + 1);
        };
        progress.bar.set_message("ending  ");
        tape.end(&end, interval);
        let Tape {
            samples, failed, ..
        } = tape;
        let flushed = file.as_mut().map(Write::flush).transpose();
        let error = failed.or(flushed.err());
        Recorded {
            stats: end.stats.since(&first.stats),
            callers: end.callers.since(&first.callers),
            samples,
            time: end.at - first.at,
            began_unix_s: began
                .duration_since(SystemTime::UNIX_EPOCH)
                .ok()
                .map(|since| since.as_secs_f64()),
            error: error.map(|e| {
                let path = path.unwrap_or_default();
                format!("--hlog {}: {e}", path.display())
            }),
        }
    }

    /// `None`: it was over before it began.
    fn wait_for_begin(&self) -> Option<(Snapshot, SystemTime)> {
        let waiting = |stage: &mut Stage| stage.first.is_none() && !stage.over;
        let stage = self.changed.wait_while(self.stage(), waiting);
        stage.unwrap_or_else(PoisonError::into_inner).first.clone()
    }

    /// Waits until then, moving the bar; the last snapshot if the run is over.
    fn wait_until(&self, then: Instant, progress: &Progress, began: Instant) -> Option<Snapshot> {
        let shown = progress.position.filter(|_| !progress.bar.is_hidden());
        let mut stage = self.stage();
        loop {
            if let Some(last) = &stage.last {
                return Some(last.clone());
            }
            let left = then.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let nap = if shown.is_some() {
                left.min(TICK)
            } else {
                left
            };
            let waited = self.changed.wait_timeout(stage, nap);
            stage = waited.unwrap_or_else(PoisonError::into_inner).0;
            if let Some(position) = shown {
                let ops = self.books.read().ops();
                progress.bar.set_position(position(began.elapsed(), ops));
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The intervals, as they end.
struct Tape<'a, W: Write> {
    first: Snapshot,
    /// What is sampled and written so far goes to here.
    until: Snapshot,
    /// The end of an interval that is not written yet: the run's last bit may be too short for one of its own.
    pending: Option<Snapshot>,
    samples: Vec<Sample>,
    hlog: Option<Hlog<'a, W>>,
    failed: Option<std::io::Error>,
}

impl<W: Write> Tape<'_, W> {
    /// An interval ends.
    fn tick(&mut self, now: Snapshot) {
        if let Some(pending) = self.pending.replace(now) {
            self.emit(pending);
        }
    }

    /// The run ends: a bit of less than half an interval is part of the one before it.
    fn end(&mut self, end: &Snapshot, interval: Duration) {
        if let Some(pending) = self.pending.take()
            && end.at.saturating_duration_since(pending.at) >= interval / 2
        {
            self.emit(pending);
        }
        self.emit(end.clone());
    }

    fn emit(&mut self, to: Snapshot) {
        let start = self.until.at - self.first.at;
        let length = to.at.saturating_duration_since(self.until.at);
        let stats = to.stats.since(&self.until.stats);
        let callers = to.callers.since(&self.until.callers);
        self.samples
            .push(Sample::new(start, length, &stats, &callers));
        if let (Some(hlog), None) = (&mut self.hlog, &self.failed) {
            let written = hlog.interval(start, length, histograms(&stats, &callers));
            self.failed = written.err();
        }
        self.until = to;
    }
}
