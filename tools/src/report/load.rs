//! Runs, as `.hlog` and `.json` files tell of them.
//!
//! An `.hlog` has whole distributions, over time; the JSON has summaries, and also batch sizes and how ops ended. Files
//! of one name (`a.hlog` and `a.json`) are of one run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry, LogIteratorError};
use moonring::OpError;
use moonring::stats::{CODE_NAMES, Histogram};
use serde_json::Value;

use crate::cli::Failure;

/// What a latency is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Submit to completion, or what else the tag stands for.
    Total,
    /// Submit to store call.
    Queue,
    /// A store call.
    Call,
    /// Submit until the caller has it.
    Caller,
    /// The same, from when the op was due.
    Corrected,
}

impl Part {
    /// All, in the order of a table.
    pub const ALL: [Part; 5] = [
        Part::Queue,
        Part::Call,
        Part::Total,
        Part::Caller,
        Part::Corrected,
    ];

    /// What follows the lane in a tag, and the name in the JSON.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Part::Total => ("", "latency_us"),
            Part::Queue => (".queue", "queue_us"),
            Part::Call => (".call", "call_us"),
            Part::Caller => (".caller", "caller_us"),
            Part::Corrected => (".corrected", "corrected_us"),
        }
    }

    /// Its name in the JSON of a run.
    pub const fn member(self) -> &'static str {
        self.names().1
    }

    /// For people.
    pub const fn title(self) -> &'static str {
        match self {
            Part::Total => "submit to completion",
            Part::Queue => "queue wait",
            Part::Call => "store call (per call)",
            Part::Caller => "as the caller sees it",
            Part::Corrected => "from when it was due (corrected)",
        }
    }
}

/// Latencies of a time, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// How many.
    pub count: f64,
    /// Their mean.
    pub mean: f64,
    /// Percentiles 50, 90, 99, 99.9 and 100.
    pub at: [f64; 5],
}

impl Summary {
    /// Quantiles of [`at`](Summary::at).
    pub const QUANTILES: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 1.0];

    fn of_histogram(ns: &Histogram<u64>) -> Self {
        Self {
            count: ns.len() as f64,
            mean: ns.mean() / 1e3,
            at: Self::QUANTILES.map(|q| ns.value_at_quantile(q) as f64 / 1e3),
        }
    }

    fn of_json(us: &Value) -> Option<Self> {
        let number = |name: &str| us.get(name).and_then(Value::as_f64);
        let at = ["p50", "p90", "p99", "p999", "max"].map(|name| number(name).unwrap_or(0.0));
        let count = number("count").filter(|count| *count > 0.0)?;
        Some(Self {
            count,
            mean: number("mean")?,
            at,
        })
    }
}

/// A part of the time; seconds from the run's beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// When it began.
    pub start: f64,
    /// How long it was.
    pub length: f64,
}

impl Span {
    /// Its end.
    pub fn end(self) -> f64 {
        self.start + self.length
    }

    /// `n` a second.
    pub fn rate(self, n: f64) -> f64 {
        if self.length > 0.0 {
            n / self.length
        } else {
            0.0
        }
    }
}

/// Latencies of one part of a lane.
#[derive(Clone, Debug, Default)]
pub struct Latency {
    /// Over the whole run.
    pub total: Summary,
    /// Quantile and microseconds, rising.
    pub curve: Vec<(f64, f64)>,
    /// Whether the curve has all percentiles, or those of a summary.
    pub whole: bool,
    /// Over time.
    pub spans: Vec<(Span, Summary)>,
}

/// Store calls, and how ops ended, in a part of the time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calls {
    /// Store calls.
    pub calls: f64,
    /// Ops in them.
    pub ops: f64,
    /// Keys in them.
    pub keys: f64,
    /// How ops ended.
    pub by_code: BTreeMap<String, f64>,
}

/// Outcomes that are none of the errors: the names before theirs.
fn went_well() -> &'static [&'static str] {
    let outcomes = CODE_NAMES.len() - OpError::NAMES.len();
    &CODE_NAMES[..outcomes]
}

impl Calls {
    fn of_json(lane: &Value) -> Self {
        let number = |name: &str| lane.get(name).and_then(Value::as_f64).unwrap_or(0.0);
        let codes = lane.get("by_code").and_then(Value::as_object);
        let codes = codes.into_iter().flatten();
        let calls = number("calls");
        Self {
            calls,
            ops: number("ops"),
            keys: lane
                .get("keys")
                .and_then(Value::as_f64)
                .unwrap_or_else(|| number("keys_per_call") * calls),
            by_code: codes
                .filter_map(|(name, n)| Some((name.clone(), n.as_f64()?)))
                .collect(),
        }
    }

    /// Errors by name.
    pub fn errors(&self) -> impl Iterator<Item = (&str, f64)> {
        let all = self.by_code.iter().map(|(name, n)| (name.as_str(), *n));
        all.filter(|(name, n)| *n > 0.0 && !went_well().contains(name))
    }
}

/// A lane of a run, or another tag of a log.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// Its latencies.
    pub latency: BTreeMap<Part, Latency>,
    /// Over the whole run; `None` without a JSON.
    pub calls: Option<Calls>,
    /// Over time.
    pub spans: Vec<(Span, Calls)>,
    /// Ops a second of the measured time; `None`: count them over the whole.
    pub rate: Option<f64>,
    /// What a bench does in this lane beside what it measures.
    pub aside: bool,
}

/// The latencies that matter most to a caller, of those that all of these lanes have: others can't be compared.
pub fn headline<'a>(lanes: impl Iterator<Item = &'a Lane> + Clone) -> Option<Part> {
    let order = [
        Part::Corrected,
        Part::Caller,
        Part::Total,
        Part::Queue,
        Part::Call,
    ];
    let all_have = |part: &Part| lanes.clone().all(|lane| lane.latency.contains_key(part));
    order.into_iter().find(all_have)
}

/// A run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The files' common name.
    pub name: String,
    /// By tag: lanes, `request`, and what else a log has. The empty name is that of what has no tag.
    pub lanes: BTreeMap<String, Lane>,
    /// When it began, in seconds since 1970.
    pub began_unix_s: Option<f64>,
    /// What was done: names and values.
    pub facts: Vec<(String, String)>,
    /// Only turns of it were the engine's: `bench --compare`, `bench --sweep`.
    pub in_turns: bool,
    /// What was not as it should be.
    pub errors: Vec<String>,
}

impl Run {
    /// How long it was, as far as its spans tell.
    pub fn seconds(&self) -> f64 {
        let latency = self.lanes.values().flat_map(|lane| lane.latency.values());
        let latency = latency.flat_map(|latency| latency.spans.iter().map(|(span, _)| span.end()));
        let calls = self.lanes.values().flat_map(|lane| &lane.spans);
        latency
            .chain(calls.map(|(span, _)| span.end()))
            .fold(0.0, f64::max)
    }
}

/// Reads the files; runs are in the order in which they are named first.
///
/// # Errors
/// A file can't be read, or is neither of the two.
pub fn load(files: &[impl AsRef<Path>]) -> Result<Vec<Run>, Failure> {
    let mut runs: Vec<Run> = Vec::new();
    for path in files {
        let path = path.as_ref();
        let failed = |what: String| Failure::input(format!("{}: {what}", path.display()));
        let name = path.with_extension("").to_string_lossy().into_owned();
        let bytes = fs::read(path).map_err(|e| failed(e.to_string()))?;
        let at = match runs.iter().position(|run| run.name == name) {
            Some(at) => at,
            None => {
                runs.push(Run {
                    name,
                    ..Run::default()
                });
                runs.len() - 1
            }
        };
        let run = &mut runs[at];
        match bytes.trim_ascii_start().first() {
            Some(b'{') => json(run, &bytes).map_err(failed)?,
            _ => hlog(run, &bytes).map_err(failed)?,
        }
    }
    // What the directory says twice is no part of a name, unless it is what tells two apart.
    let short = |run: &Run| {
        let name = Path::new(&run.name).file_name();
        name.map_or_else(
            || run.name.clone(),
            |name| name.to_string_lossy().into_owned(),
        )
    };
    let shorts: Vec<_> = runs.iter().map(short).collect();
    for (run, name) in runs.iter_mut().zip(&shorts) {
        if shorts.iter().filter(|other| *other == name).count() == 1 {
            run.name.clone_from(name);
        }
    }
    Ok(runs)
}

/// A tag's lane and part.
fn split(tag: &str) -> (&str, Part) {
    let parts = [Part::Queue, Part::Call, Part::Caller, Part::Corrected];
    let found = parts.into_iter().find_map(|part| {
        let lane = tag.strip_suffix(part.names().0)?;
        Some((lane, part))
    });
    found.unwrap_or((tag, Part::Total))
}

fn hlog(run: &mut Run, bytes: &[u8]) -> Result<(), String> {
    // The reader takes no blank lines, and wants the last one ended, too.
    let lines = bytes.split(|byte| *byte == b'\n');
    let mut text = Vec::with_capacity(bytes.len() + 1);
    for line in lines.filter(|line| !line.trim_ascii().is_empty()) {
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    let mut deserializer = Deserializer::new();
    let mut sums: BTreeMap<String, Histogram<u64>> = BTreeMap::new();
    let mut spans: BTreeMap<String, Vec<(Span, Summary)>> = BTreeMap::new();
    let (mut start, mut base, mut first) = (None, None, None);
    for entry in IntervalLogIterator::new(&text) {
        let entry = entry.map_err(|LogIteratorError::ParseError { offset }| {
            let line = text[..offset.min(text.len())].split(|byte| *byte == b'\n').count();
            format!("is no JSON of a run, and no HdrHistogram log: see line {line} of those that are not blank")
        })?;
        let interval = match entry {
            LogEntry::StartTime(time) => {
                start = Some(time.as_secs_f64());
                continue;
            }
            LogEntry::BaseTime(time) => {
                base = Some(time.as_secs_f64());
                continue;
            }
            LogEntry::Interval(interval) => interval,
        };
        let tag = interval.tag().map_or("", |tag| tag.as_str());
        let failed = |e: &dyn std::fmt::Display| format!("the histogram of tag {tag:?}: {e}");
        let bytes = STANDARD.decode(interval.encoded_histogram());
        let bytes = bytes.map_err(|e| failed(&e))?;
        let histogram: Histogram<u64> = deserializer
            .deserialize(&mut bytes.as_slice())
            .map_err(|e| failed(&e))?;
        // Intervals count from the first one; it began with the run, or another lane's did.
        let begin = interval.start_timestamp().as_secs_f64();
        let first = *first.get_or_insert(begin);
        let span = Span {
            start: begin - if base.is_some() { 0.0 } else { first },
            length: interval.duration().as_secs_f64(),
        };
        let summary = Summary::of_histogram(&histogram);
        spans
            .entry(tag.to_owned())
            .or_default()
            .push((span, summary));
        match sums.get_mut(tag) {
            Some(sum) => sum.add(&histogram).map_err(|e| failed(&e))?,
            None => {
                let mut sum = histogram;
                // Those that follow may reach further.
                sum.auto(true);
                sums.insert(tag.to_owned(), sum);
            }
        }
    }
    if sums.is_empty() {
        return Err("has no interval of an HdrHistogram log, and is no JSON of a run".into());
    }
    run.began_unix_s = run.began_unix_s.or(start).or(base);
    for (tag, histogram) in sums {
        let (lane, part) = split(&tag);
        let lane = run.lanes.entry(lane.to_owned()).or_default();
        let latency = Latency {
            total: Summary::of_histogram(&histogram),
            curve: curve(&histogram),
            whole: true,
            spans: spans.remove(&tag).unwrap_or_default(),
        };
        lane.latency.insert(part, latency);
    }
    Ok(())
}

fn curve(ns: &Histogram<u64>) -> Vec<(f64, f64)> {
    let steps = ns.iter_quantiles(5);
    let points = steps.map(|step| {
        let us = step.value_iterated_to() as f64 / 1e3;
        (step.quantile_iterated_to(), us)
    });
    points.collect()
}

fn json(run: &mut Run, bytes: &[u8]) -> Result<(), String> {
    let report: Value = serde_json::from_slice(bytes).map_err(|e| format!("no JSON: {e}"))?;
    let schema = report.get("schema").and_then(Value::as_str).unwrap_or("");
    if !matches!(schema, "moonring.bench/1" | "moonring.replay/1") {
        return Err(format!(
            "is no report of bench or replay: schema is {schema:?}"
        ));
    }
    run.began_unix_s = report
        .get("began_unix_s")
        .and_then(Value::as_f64)
        .or(run.began_unix_s);
    facts(run, &report);
    for error in report
        .get("errors")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        run.errors.extend(error.as_str().map(str::to_owned));
    }
    let lanes = report.get("lanes").and_then(Value::as_object);
    for (name, lane) in lanes.into_iter().flatten() {
        let calls = Calls::of_json(lane);
        if calls.by_code.values().sum::<f64>() > 0.0 || calls.calls > 0.0 {
            let to = run.lanes.entry(name.clone()).or_default();
            add_total(to, lane);
            to.calls = Some(calls);
            match report.get("op").and_then(Value::as_str) {
                None | Some("mixed") => {}
                Some(op) if op == name => to.rate = report.get("ops_per_s").and_then(Value::as_f64),
                Some(_) => to.aside = true,
            }
        }
    }
    if let Some(summary) = report.get("request_us").and_then(Summary::of_json) {
        let lane = run.lanes.entry("request".into()).or_default();
        lane.latency
            .entry(Part::Total)
            .or_insert_with(|| summarized(summary));
    }
    let intervals = report.get("intervals").and_then(Value::as_array);
    for interval in intervals.into_iter().flatten() {
        let number = |name: &str| interval.get(name).and_then(Value::as_f64);
        let (Some(start), Some(length)) = (number("start_s"), number("length_s")) else {
            return Err("intervals: start_s or length_s is missing".into());
        };
        let span = Span { start, length };
        let lanes = interval.get("lanes").and_then(Value::as_object);
        for (name, json) in lanes.into_iter().flatten() {
            let lane = run.lanes.entry(name.clone()).or_default();
            lane.spans.push((span, Calls::of_json(json)));
            for part in Part::ALL {
                add_span(lane, part, span, json.get(part.names().1));
            }
        }
        if let Some(json) = interval.get("request_us") {
            let lane = run.lanes.entry("request".into()).or_default();
            add_span(lane, Part::Total, span, Some(json));
        }
    }
    Ok(())
}

fn summarized(total: Summary) -> Latency {
    let curve = Summary::QUANTILES.into_iter().zip(total.at);
    Latency {
        total,
        curve: curve.collect(),
        whole: false,
        spans: Vec::new(),
    }
}

/// Latencies of the whole run, where no log has told them better.
fn add_total(lane: &mut Lane, json: &Value) {
    for part in Part::ALL {
        if let Some(summary) = json.get(part.names().1).and_then(Summary::of_json) {
            lane.latency
                .entry(part)
                .or_insert_with(|| summarized(summary));
        }
    }
}

/// Latencies over time, where no log has told them.
fn add_span(lane: &mut Lane, part: Part, span: Span, json: Option<&Value>) {
    if let Some(summary) = json.and_then(Summary::of_json)
        && let Some(latency) = lane.latency.get_mut(&part)
        && !latency.whole
    {
        latency.spans.push((span, summary));
    }
}

/// What was done, for the head of the page.
fn facts(run: &mut Run, report: &Value) {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    for (name, title) in [
        ("op", "op"),
        ("trace", "trace"),
        ("path", "path"),
        ("producers", "producers"),
        ("depth", "in flight each"),
        ("concurrency", "requests in flight"),
        ("speed", "speed"),
        ("rate", "asked for, ops/s"),
        ("keys", "keys"),
        ("key_bytes", "bytes of a key"),
        ("value_bytes", "bytes of a value"),
        ("block_bytes", "bytes of a block"),
        ("max_batch", "max batch"),
        ("ops", "ops"),
        ("failed_ops", "failed ops"),
        ("unstarted_ops", "not started in time"),
        ("requests", "requests"),
        ("blocks", "blocks"),
        ("hit_ratio", "hit ratio"),
        ("failed_blocks", "failed blocks"),
        ("no_space", "no space"),
        ("corrupt_blocks", "corrupt blocks"),
        ("corrupt_values", "corrupt values"),
        ("wall_s", "seconds"),
        ("ops_per_s", "ops/s"),
        ("gbytes_per_s", "GB/s"),
        ("ratio_vs_per_key", "times one call per key"),
        ("ratio_vs_hand_batched", "times the best by hand"),
        ("ratio_vs_best_fixed", "times the best fixed bound"),
    ] {
        match report.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::Number(number)) => {
                let number = number.as_f64().unwrap_or(0.0);
                run.facts.push((title.into(), super::svg::number(number)));
            }
            Some(value) => run.facts.push((title.into(), text(value))),
        }
    }
    if let Some(store) = report.pointer("/l2_adapter/type") {
        run.facts.insert(0, ("store".into(), text(store)));
    }
    run.in_turns = ["compare", "sweep"]
        .iter()
        .any(|turns| report.get(turns).is_some());
    if report.get("interrupted") == Some(&Value::Bool(true)) {
        run.errors
            .push("interrupted by Ctrl-C: this is what was measured before".into());
    }
}
