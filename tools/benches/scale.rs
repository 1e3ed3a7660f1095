//! How ops per second and the time of an op change with the number of producers, the depth, the length of keys and of values.
//!
//! `cargo bench --bench scale` runs all series, five times one after the other, and prints a table of each; of a point stands there the
//! run with the highest rate, with its times. `-- NAME..` runs those series whose names contain one of the words, `-- --quick` is one run of
//! a tenth of the time. `-- --docs` writes the tables into docs/performance.md, too, and draws the plots in docs/plots from those of the page;
//! `-- --draw` only draws. Keys are distinct, statistics on. Times are those of every 16th op, or of each call of a client.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use moonring::store::{MemoryOptions, MemoryStore, NullStore, Store};
use moonring::{
    Client, Engine, EngineConfig, OpKind, Pair, Region, RegionOptions, Slot, SlotClass, Submission,
    block_on,
};
use moonring_tools::report::svg::{self, Axis, Chart};
use moonring_tools::table;

#[global_allocator]
static HEAP: heap::Counted = heap::Counted;

/// Bytes on the heap, to tell what a pair takes.
mod heap {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::sync::atomic::{AtomicUsize, Ordering};

    pub struct Counted;

    static BYTES: AtomicUsize = AtomicUsize::new(0);

    pub fn bytes() -> usize {
        BYTES.load(Ordering::Relaxed)
    }

    // SAFETY: all calls go on to the system's allocator as they came.
    unsafe impl GlobalAlloc for Counted {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            BYTES.fetch_add(layout.size(), Ordering::Relaxed);
            // SAFETY: the caller's contract is that of `System`.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
            BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
            // SAFETY: the caller's contract is that of `System`.
            unsafe { System.dealloc(ptr, layout) }
        }
    }
}

/// Keys in one call of a client: 512 clients have as many ops in flight as the default `ring_depth` allows.
const KEYS_A_CALL: usize = 8;

/// What one run of a point came to.
struct Point {
    ops: u64,
    took: Duration,
    times: Histogram<u64>,
}

impl Point {
    fn rate(&self) -> f64 {
        self.ops as f64 / self.took.as_secs_f64()
    }
}

fn times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("sound bounds")
}

fn keys(len: usize) -> &'static [String] {
    let keys: Vec<_> = (0..4096).map(|i| format!("{i:0>len$}")).collect();
    keys.leak()
}

fn engine(config: EngineConfig) -> Engine {
    Engine::builder(Arc::new(NullStore))
        .config(config)
        .start()
        .expect("the null store needs nothing")
}

fn one_worker() -> EngineConfig {
    EngineConfig::default().dedicated(OpKind::Lookup, 1)
}

/// Keeps pairs full with lookups, one op a submit, one pair after the other.
fn pairs(pairs: &mut [Pair], keys: &[String], time: Duration) -> Point {
    let clock = quanta::Clock::new();
    let mut times = times();
    let (mut ops, mut sent) = (0, 0);
    let started = Instant::now();
    let mut round = |pairs: &mut [Pair], submit: bool| {
        let mut busy = false;
        for pair in pairs {
            for done in pair.completions() {
                assert!(done.result.is_ok());
                ops += 1;
                if done.user_data != 0 {
                    times.saturating_record(clock.delta_as_nanos(done.user_data, clock.raw()));
                }
            }
            while submit && pair.credits() > 0 {
                let at = if sent % 16 == 0 { clock.raw() } else { 0 };
                let lookup = Submission::lookup(&keys[sent % keys.len()]).user_data(at);
                assert!(pair.submit(lookup).is_ok());
                sent += 1;
            }
            busy |= pair.in_flight() > 0;
        }
        busy
    };
    while started.elapsed() < time {
        (0..64).for_each(|_| {
            round(pairs, true);
        });
    }
    let took = started.elapsed();
    while round(pairs, false) {}
    Point { ops, took, times }
}

/// So many clients, each a task on one current-thread runtime with a call of [`KEYS_A_CALL`] lookups after the other.
fn clients_as_tasks(
    client: &Client,
    clients: usize,
    keys: &'static [String],
    time: Duration,
) -> Point {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let local = tokio::task::LocalSet::new();
    let (ops, stop) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let all_times = Rc::new(RefCell::new(times()));
    let started = Instant::now();
    for task in 0..clients {
        let (client, times) = (client.clone(), Rc::clone(&all_times));
        let (ops, stop) = (Rc::clone(&ops), Rc::clone(&stop));
        local.spawn_local(async move {
            let (mut next, mut there) = (task * KEYS_A_CALL, Vec::with_capacity(KEYS_A_CALL));
            while !stop.get() {
                let at = next % keys.len();
                next += clients * KEYS_A_CALL;
                let call = Instant::now();
                client
                    .lookup_many(&keys[at..at + KEYS_A_CALL], &mut there)
                    .await;
                assert!(there.iter().all(Result::is_ok));
                times
                    .borrow_mut()
                    .saturating_record(call.elapsed().as_nanos() as u64);
                ops.set(ops.get() + KEYS_A_CALL as u64);
                stop.set(stop.get() || started.elapsed() >= time);
            }
        });
    }
    runtime.expect("a runtime without drivers").block_on(local);
    Point {
        ops: ops.get(),
        took: started.elapsed(),
        times: all_times.take_histogram(),
    }
}

trait TakeHistogram {
    fn take_histogram(&self) -> Histogram<u64>;
}

impl TakeHistogram for std::rc::Rc<std::cell::RefCell<Histogram<u64>>> {
    fn take_histogram(&self) -> Histogram<u64> {
        self.replace(times())
    }
}

/// The same with a thread for each client, which blocks.
fn clients_as_threads(client: &Client, clients: usize, keys: &[String], time: Duration) -> Point {
    let (ops, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut all = times();
    let started = Instant::now();
    let took = std::thread::scope(|s| {
        let (ops, stop) = (&ops, &stop);
        let thread = |number: usize| {
            let client = client.clone();
            move || {
                let mut times = times();
                let (mut next, mut there) = (number * KEYS_A_CALL, Vec::with_capacity(KEYS_A_CALL));
                while !stop.load(Ordering::Relaxed) {
                    let at = next % keys.len();
                    next += clients * KEYS_A_CALL;
                    let call = Instant::now();
                    block_on(client.lookup_many(&keys[at..at + KEYS_A_CALL], &mut there));
                    assert!(there.iter().all(Result::is_ok));
                    times.saturating_record(call.elapsed().as_nanos() as u64);
                    ops.fetch_add(KEYS_A_CALL as u64, Ordering::Relaxed);
                }
                times
            }
        };
        let threads: Vec<_> = (0..clients).map(|number| s.spawn(thread(number))).collect();
        std::thread::sleep(time.saturating_sub(started.elapsed()));
        stop.store(true, Ordering::Relaxed);
        let took = started.elapsed();
        for thread in threads {
            let _ = all.add(thread.join().expect("no panic"));
        }
        took
    });
    Point {
        ops: ops.into_inner(),
        took,
        times: all,
    }
}

/// Of retrieves of values of one size: no more than 512 MiB.
fn in_flight(size: usize) -> usize {
    (512 << 20).min(256 * size) / size
}

/// Keeps retrieves of values of one size in flight.
fn values(store: Arc<dyn Store>, size: usize, time: Duration) -> Point {
    let in_flight = in_flight(size);
    let region = Region::allocate(RegionOptions::new(in_flight * size.next_multiple_of(64)));
    let region = region.expect("so much memory");
    let count = in_flight;
    let pool = region
        .slot_pool(&[SlotClass { size, count }])
        .expect("as large as the region");
    let engine = Engine::builder(store)
        .config(EngineConfig::default())
        .region(region);
    let engine = engine.start().expect("a sound configuration");
    let mut pair = engine.pair(in_flight).expect("a first pair");
    let mut free: Vec<Slot> = (0..in_flight).filter_map(|_| pool.lend(size)).collect();
    let keys = keys(101);
    // What is read is written first: no more objects than fit.
    let objects = in_flight.min(keys.len());
    for key in &keys[..objects] {
        let slot = free.pop().expect("one comes back each time");
        assert!(pair.submit(Submission::store(key, slot)).is_ok());
        pair.wait(1, None).expect("the engine is open");
        free.extend(pair.poll().and_then(|done| done.slot));
    }
    let clock = quanta::Clock::new();
    let mut times = times();
    let (mut ops, mut sent) = (0, 0);
    let started = Instant::now();
    loop {
        let on = started.elapsed() < time;
        while let (true, Some(slot)) = (on, free.pop()) {
            let retrieve = Submission::retrieve(&keys[sent % objects], slot).user_data(clock.raw());
            assert!(pair.submit(retrieve).is_ok());
            sent += 1;
        }
        if !on && pair.in_flight() == 0 {
            break;
        }
        let _ = pair.wait(1, None);
        for done in pair.completions() {
            assert!(done.result.is_ok(), "{:?}", done.result);
            times.saturating_record(clock.delta_as_nanos(done.user_data, clock.raw()));
            free.extend(done.slot);
            ops += 1;
        }
    }
    let took = started.elapsed();
    Point { ops, took, times }
}

/// Of a point by its x and its rate.
type Note = fn(usize, f64) -> String;

/// A series: how its points are measured, and what its table and plot say.
struct Series {
    name: &'static str,
    /// Heading of the table's first column.
    heading: &'static str,
    xs: &'static [usize],
    run: fn(usize, Duration) -> Point,
    /// A column of its own: what it is, and what it says of a point.
    note: Option<(&'static str, Note)>,
}

const NUMBERS: &[usize] = &[1, 2, 4, 16, 64, 512];

const SIZES: &[usize] = &[
    1,
    64,
    1 << 10,
    4 << 10,
    64 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
];

const SERIES: [Series; 7] = [
    Series {
        name: "clients as tasks",
        heading: "clients (tasks on one runtime, calls of 8 keys; times are of calls)",
        xs: NUMBERS,
        run: |clients, time| {
            let engine = engine(one_worker());
            clients_as_tasks(&engine.client(), clients, keys(101), time)
        },
        note: None,
    },
    Series {
        name: "clients as threads",
        heading: "clients (threads that block, calls of 8 keys; times are of calls)",
        xs: NUMBERS,
        run: |clients, time| {
            let engine = engine(one_worker());
            clients_as_threads(&engine.client(), clients, keys(101), time)
        },
        note: None,
    },
    Series {
        name: "pairs",
        heading: "pairs of depth 64, one thread",
        xs: NUMBERS,
        run: |n, time| {
            let engine = engine(one_worker());
            pairs(&mut opened(&engine, n), keys(101), time)
        },
        note: None,
    },
    Series {
        name: "depth",
        heading: "depth of one pair, one op a submit",
        xs: &[1, 2, 4, 16, 64, 256, 1024, 4096],
        run: |depth, time| {
            let engine = engine(one_worker());
            let pair = engine.pair(depth).expect("a first pair");
            pairs(&mut [pair], keys(101), time)
        },
        note: None,
    },
    Series {
        name: "key length",
        heading: "key length in bytes, 256 in flight",
        xs: &[16, 32, 64, 101, 128, 255, 256, 512, 1024],
        run: |len, time| {
            let engine = engine(one_worker().long_keys(256));
            let pair = engine.pair(256).expect("a first pair");
            pairs(&mut [pair], keys(len), time)
        },
        note: None,
    },
    Series {
        name: "value size, null",
        heading: "value size in bytes, `null`",
        xs: SIZES,
        run: |size, time| values(Arc::new(NullStore), size, time),
        note: Some(("in flight", |size, _| in_flight(size).to_string())),
    },
    Series {
        name: "value size, memory",
        heading: "value size in bytes, `memory`",
        xs: SIZES,
        run: |size, time| {
            let store = MemoryStore::new(MemoryOptions::default());
            values(Arc::new(store.expect("defaults")), size, time)
        },
        note: Some(("in flight; GB/s", |size, rate| {
            format!("{}; {:.2}", in_flight(size), rate * size as f64 / 1e9)
        })),
    },
];

/// What one of 512 pairs takes on the heap.
fn pair_bytes() -> usize {
    let engine = engine(one_worker());
    // What the engine's threads take at their start is no pair's.
    std::thread::sleep(Duration::from_millis(200));
    let before = heap::bytes();
    let all = opened(&engine, 512);
    (heap::bytes() - before) / all.len()
}

fn opened(engine: &Engine, n: usize) -> Vec<Pair> {
    let pair = |_| engine.pair(64).expect("up to 512");
    (0..n).map(pair).collect()
}

/// The runs of one point, as numbers.
#[derive(Default)]
struct Runs {
    rates: Vec<f64>,
    /// Of the run with the highest rate.
    best: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Runs {
    fn add(&mut self, point: &Point) {
        let (rate, us) = (point.rate(), |quantile| {
            point.times.value_at_quantile(quantile) as f64 / 1e3
        });
        if rate > self.best {
            (self.best, self.p50_us, self.p99_us) = (rate, us(0.5), us(0.99));
        }
        self.rates.push(rate);
    }
}

/// A rate: `2.820 M`, or all of its digits.
fn rate(per_s: f64) -> String {
    match per_s >= 1e5 {
        true => format!("{:.3} M", per_s / 1e6),
        false => table::count(per_s.round() as u64),
    }
}

/// The table of a series, as Markdown.
fn table(series: &Series, points: &[Runs]) -> String {
    let (note, rule) = match series.note {
        Some((heading, _)) => (format!(" {heading} |"), " --- |"),
        None => (String::new(), ""),
    };
    let heading = series.heading;
    let mut table = format!(
        "| {heading} | ops/s | p50, us | p99, us |{note}\n| --- | --- | --- | --- |{rule}\n"
    );
    for (&x, runs) in series.xs.iter().zip(points) {
        let note = series.note.map(|(_, note)| note(x, runs.best));
        // Writing to a String can't fail.
        let _ = writeln!(
            table,
            "| {} | {} | {:.2} | {:.2} |{}",
            table::count(x as u64),
            rate(runs.best),
            runs.p50_us,
            runs.p99_us,
            note.map_or(String::new(), |note| format!(" {note} |"))
        );
    }
    table
}

/// A row of a table of the page.
struct Row {
    x: f64,
    /// What stands in the cells.
    told: [String; 3],
    per_s: f64,
    p99_us: f64,
}

/// Where the table of a series stands in the page.
fn place(page: &str, series: &Series) -> Option<std::ops::Range<usize>> {
    let from = page.find(&format!("| {} |", series.heading))?;
    let to = page[from..].find("\n\n").map(|end| from + end + 1);
    Some(from..to.unwrap_or(page.len()))
}

/// The rows of that table.
fn rows(page: &str, series: &Series) -> Option<Vec<Row>> {
    let lines = page[place(page, series)?].lines().skip(2);
    let number = |text: &str| match text.strip_suffix(" M") {
        Some(millions) => Some(millions.parse::<f64>().ok()? * 1e6),
        None => text.replace(',', "").parse().ok(),
    };
    let row = |line: &str| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let mut cell = |nth| cells.nth(nth).map(str::to_owned);
        let told = [cell(0)?, cell(0)?, cell(1)?];
        let [x, per_s, p99_us] = [0, 1, 2].map(|i: usize| number(&told[i]));
        Some(Row {
            x: x?,
            per_s: per_s?,
            p99_us: p99_us?,
            told,
        })
    };
    lines.map(row).collect()
}

/// What the last point, of 512, keeps of the best one's rate: by the table, and within each run.
fn kept(points: &[Runs]) -> String {
    let of_best = |rate: fn(&Runs, usize) -> f64, run: usize| {
        let rates = points.iter().map(|runs| rate(runs, run));
        let last = points.last().map_or(0.0, |runs| rate(runs, run));
        format!("{:.2}", last / rates.fold(0.0, f64::max))
    };
    let runs = points.last().map_or(0, |runs| runs.rates.len());
    let each = (0..runs).map(|run| of_best(|runs, run| runs.rates[run], run));
    format!(
        "512 have {} of the best one's rate; within the runs {}.",
        of_best(|runs, _| runs.best, 0),
        each.collect::<Vec<_>>().join(", ")
    )
}

/// One plot: of one or two series, ops/s above p99.
struct Plot {
    file: &'static str,
    title: &'static str,
    /// Names of the series, and of their lines if there are two.
    lines: &'static [(&'static str, &'static str)],
    x: &'static str,
    /// A mark at each so many doublings.
    doublings: i32,
    mark: fn(f64) -> String,
    p99: &'static str,
}

const OF_CALLS: &str = "p99 of a call of 8 keys";
const OF_OPS: &str = "p99 of an op, from submit to completion";

fn bytes(n: f64) -> String {
    table::bytes(n as u64)
}

const PLOTS: [Plot; 6] = [
    Plot {
        file: "scale-clients-tasks.svg",
        title: "Clients, each a task on one runtime, lookups on null",
        lines: &[("clients as tasks", "")],
        x: "clients",
        doublings: 1,
        mark: svg::number,
        p99: OF_CALLS,
    },
    Plot {
        file: "scale-clients-threads.svg",
        title: "Clients, each a thread that blocks, lookups on null",
        lines: &[("clients as threads", "")],
        x: "clients",
        doublings: 1,
        mark: svg::number,
        p99: OF_CALLS,
    },
    Plot {
        file: "scale-pairs.svg",
        title: "Pairs of depth 64 of one thread, lookups on null",
        lines: &[("pairs", "")],
        x: "pairs",
        doublings: 1,
        mark: svg::number,
        p99: OF_OPS,
    },
    Plot {
        file: "scale-depth.svg",
        title: "Depth of one pair, lookups on null",
        lines: &[("depth", "")],
        x: "ops in flight",
        doublings: 2,
        mark: svg::number,
        p99: OF_OPS,
    },
    Plot {
        file: "scale-key-length.svg",
        title: "Length of keys, one pair, 256 lookups in flight on null",
        lines: &[("key length", "")],
        x: "bytes of a key",
        doublings: 1,
        mark: svg::number,
        p99: OF_OPS,
    },
    Plot {
        file: "scale-value-size.svg",
        title: "Size of values, one pair, retrieves, up to 256 in flight",
        lines: &[
            ("value size, null", "null: nothing is moved"),
            ("value size, memory", "memory: values are copied"),
        ],
        x: "size of a value",
        doublings: 4,
        mark: bytes,
        p99: OF_OPS,
    },
];

/// Draws a plot of the page's tables.
fn draw(plot: &Plot, page: &str) -> Option<String> {
    let rows = |name: &str| {
        let series = SERIES.iter().find(|series| series.name == name)?;
        rows(page, series)
    };
    let lines = plot.lines.iter().map(|(name, _)| rows(name));
    let lines: Vec<Vec<Row>> = lines.collect::<Option<_>>()?;
    let range = |of: fn(&Row) -> f64| {
        let values = lines.iter().flatten().map(of);
        values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        })
    };
    let (low, high) = range(|row| row.x);
    let x = || Axis::doubling(low, high, plot.doublings, plot.x, plot.mark);
    let (least, most) = range(|row| row.per_s);
    // From 0 where the eye can compare heights.
    let rates = match most / least > 100.0 {
        true => Axis::decades([least, most].into_iter(), svg::short),
        false => Axis::linear(most, 4.0, "", svg::short),
    };
    let mut rates = Chart::new(x(), rates, false);
    let (least, most) = range(|row| row.p99_us);
    let mut times = Chart::new(x(), Axis::latency([least, most].into_iter()), false);
    let mut legend = Vec::new();
    for (i, (rows, (_, name))) in lines.iter().zip(plot.lines).enumerate() {
        let class = ["s0", "s1"][i % 2];
        let line = |y: fn(&Row) -> f64, cell: usize, unit: &str| {
            let told = |row: &Row| format!("{}: {} {unit}", row.told[0], row.told[cell]);
            let points = rows.iter().map(|row| (row.x, y(row), told(row)));
            points.collect::<Vec<_>>()
        };
        rates.line(&line(|row| row.per_s, 1, "ops/s"), class, true, None);
        times.line(&line(|row| row.p99_us, 2, "us"), class, true, None);
        if !name.is_empty() {
            legend.push((class, *name));
        }
    }
    let charts = vec![("ops/s", rates), (plot.p99, times)];
    Some(svg::alone(plot.title, &legend, charts))
}

/// Writes what was measured into the page, and draws the plots from all that stands there.
fn document(measured: &[Vec<Runs>]) -> std::io::Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let path = docs.join("performance.md");
    let mut page = std::fs::read_to_string(&path)?;
    for (series, points) in SERIES.iter().zip(measured) {
        if let (Some(place), false) = (place(&page, series), points.is_empty()) {
            page.replace_range(place, &table(series, points));
        }
    }
    std::fs::write(path, &page)?;
    for plot in &PLOTS {
        let missing = || std::io::Error::other(format!("no table for {}", plot.file));
        let drawn = draw(plot, &page).ok_or_else(missing)?;
        std::fs::write(docs.join("plots").join(plot.file), drawn)?;
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let given = |option: &str| arguments.iter().any(|a| a == option);
    let quick = given("--quick") || given("--test");
    let words: Vec<_> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|w| name.contains(w.as_str()));
    let (runs, ms) = match quick {
        _ if given("--draw") => (0, 0),
        true => (1, 100),
        false => (5, 1000),
    };
    let time = Duration::from_millis(ms);
    let mut measured: Vec<Vec<Runs>> = SERIES.iter().map(|_| Vec::new()).collect();
    // All points of a run are within seconds of their neighbours, and the runs of a point minutes apart.
    for _ in 0..runs {
        let all = SERIES.iter().zip(&mut measured);
        for (series, points) in all.filter(|(series, _)| wanted(series.name)) {
            points.resize_with(series.xs.len(), Runs::default);
            for (&x, runs) in series.xs.iter().zip(points) {
                runs.add(&(series.run)(x, time));
            }
        }
    }
    for (series, points) in SERIES.iter().zip(&measured) {
        if !points.is_empty() {
            println!("{}", table(series, points));
        }
        if series.xs == NUMBERS && !points.is_empty() {
            println!("{}\n", kept(points));
        }
        if series.name == "pairs" && !points.is_empty() {
            println!("{} bytes a pair\n", pair_bytes());
        }
    }
    if given("--docs") || given("--draw") {
        document(&measured)?;
    }
    Ok(())
}
