//! The engine and its rings beside their rivals: one table of ratios, each the median of many turns in one run.
//!
//! `cargo bench --bench ratios` runs all, prints the table and fails where a bar is missed, or where a rival is slower than it was
//! seen to be, for then it is no rival. `-- --quick` is a short form that judges nothing. Words choose rows by their names:
//! `-- spsc condvar`.

mod condvar;
mod measure;
mod path;
mod rest;
mod rings;
mod sketch;
mod stores;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use condvar::CondvarEngine;
use measure::{
    Core, Effort, Outcome, Side, Turn, alternate, closed_loop, core, keys, pin, round_trips,
};
use path::{OnPair, PingPong, Tasks, client_tasks, engine, local_tasks};
use sketch::Sketch;
use stores::Stores;

#[global_allocator]
static COUNTING: rest::Counting = rest::Counting;

const IN_FLIGHT: usize = 256;

/// What a ratio must be, and what is wanted.
#[derive(Clone, Copy)]
enum Bar {
    AtLeast(f64, f64),
    AtMost(f64, f64),
    /// For comparison only.
    None,
}

/// What the rival must do, so that it is one: ops per second at least, or nanoseconds at most.
#[derive(Clone, Copy)]
enum Rival {
    Fast(f64),
    Quick(f64),
    Any,
}

#[derive(Clone, Copy)]
enum Unit {
    Rate,
    Time,
}

struct Row {
    what: &'static str,
    against: &'static str,
    bar: Bar,
    rival: Rival,
    unit: Unit,
    run: fn(Effort) -> Outcome,
}

/// The rows. A rival's figure is the lower end of what was seen of it on a quiet machine of two cores near each other.
const ROWS: &[Row] = &[
    Row {
        what: "SPSC ring, tickets, bursts of 32",
        against: "rtrb, chunks",
        bar: Bar::AtLeast(1.0, 1.3),
        rival: Rival::Any,
        unit: Unit::Rate,
        run: |e| rings(e, 4, rings::spsc_bursts::<u64>, rings::rtrb_chunks::<u64>),
    },
    Row {
        what: "SPSC ring, 128 bytes, bursts of 32",
        against: "rtrb, chunks",
        bar: Bar::AtLeast(1.0, 1.3),
        rival: Rival::Fast(76e6),
        unit: Unit::Rate,
        run: |e| {
            rings(
                e,
                1,
                rings::spsc_bursts::<[u64; 16]>,
                rings::rtrb_chunks::<[u64; 16]>,
            )
        },
    },
    Row {
        what: "SPSC ring, tickets, one at a time",
        against: "rtrb, push/pop",
        bar: Bar::AtLeast(0.9, 1.1),
        rival: Rival::Any,
        unit: Unit::Rate,
        run: |e| rings(e, 2, rings::spsc_single::<u64>, rings::rtrb_single::<u64>),
    },
    Row {
        what: "SPSC ring, 128 bytes, one at a time",
        against: "rtrb, push/pop",
        bar: Bar::AtLeast(0.9, 1.1),
        rival: Rival::Any,
        unit: Unit::Rate,
        run: |e| {
            rings(
                e,
                1,
                rings::spsc_single::<[u64; 16]>,
                rings::rtrb_single::<[u64; 16]>,
            )
        },
    },
    Row {
        what: "MPMC ring, 2 producers, bursts of 16",
        against: "crossbeam ArrayQueue",
        bar: Bar::AtLeast(1.5, 3.0),
        rival: Rival::Fast(30e6),
        unit: Unit::Rate,
        run: |e| rings(e.crowded(), 1, rings::mpmc_bursts, rings::array_queue),
    },
    Row {
        what: "whole path, one op a submit, 256 in flight",
        against: "bare sketch",
        bar: Bar::AtLeast(0.4, 0.7),
        rival: Rival::Fast(17e6),
        unit: Unit::Rate,
        run: |e| sketch(e, 1),
    },
    Row {
        what: "whole path, bursts of 32",
        against: "bare sketch",
        bar: Bar::AtLeast(0.5, 0.8),
        rival: Rival::Fast(43e6),
        unit: Unit::Rate,
        run: |e| sketch(e, 32),
    },
    Row {
        what: "whole path, one op a submit, 1 worker",
        against: "condvar engine",
        bar: Bar::AtLeast(10.0, 50.0),
        rival: Rival::Fast(0.42e6),
        unit: Unit::Rate,
        run: |e| condvar(e, 1, 1),
    },
    Row {
        what: "whole path, one op a submit, 4 workers",
        against: "condvar engine with 4",
        bar: Bar::AtLeast(20.0, 100.0),
        rival: Rival::Fast(0.07e6),
        unit: Unit::Rate,
        run: |e| condvar(e.crowded(), 1, 4),
    },
    Row {
        what: "whole path, bursts of 32, 1 worker",
        against: "condvar engine, batches of 32",
        bar: Bar::AtLeast(3.0, 8.0),
        rival: Rival::Fast(3.2e6),
        unit: Unit::Rate,
        run: |e| condvar(e, 32, 1),
    },
    Row {
        what: "client, 256 tasks that await",
        against: "pair, one op a submit",
        bar: Bar::AtLeast(0.4, 0.7),
        rival: Rival::Any,
        unit: Unit::Rate,
        run: |e| client(e, 1, Tasks::Spawned { driver: false }),
    },
    Row {
        what: "local client, 256 tasks that await",
        against: "pair, one op a submit",
        bar: Bar::AtLeast(0.4, 0.7),
        rival: Rival::Any,
        unit: Unit::Rate,
        run: |e| local_client(e, false),
    },
    Row {
        what: "client, the same with an I/O driver",
        against: "pair, one op a submit",
        bar: Bar::None,
        rival: Rival::Any,
        unit: Unit::Rate,
        run: |e| client(e, 1, Tasks::Spawned { driver: true }),
    },
    Row {
        what: "client, the same with a driver and in a LocalSet",
        against: "pair, one op a submit",
        bar: Bar::None,
        rival: Rival::Any,
        unit: Unit::Rate,
        run: |e| client(e, 1, Tasks::InASet),
    },
    Row {
        what: "local client, the same with an I/O driver",
        against: "pair, one op a submit",
        bar: Bar::None,
        rival: Rival::Any,
        unit: Unit::Rate,
        run: |e| local_client(e, true),
    },
    Row {
        what: "client, 8 tasks with lookups of 32",
        against: "pair, bursts of 32",
        bar: Bar::None,
        rival: Rival::Any,
        unit: Unit::Rate,
        run: |e| client(e, 32, Tasks::Spawned { driver: false }),
    },
    Row {
        what: "round trip, spinning, p50",
        against: "ping-pong over two lines",
        bar: Bar::AtMost(6.0, 3.0),
        rival: Rival::Quick(200.0),
        unit: Unit::Time,
        run: spinning,
    },
    Row {
        what: "round trip, spinning, p50",
        against: "bare sketch",
        bar: Bar::None,
        rival: Rival::Quick(600.0),
        unit: Unit::Time,
        run: spinning_sketch,
    },
    Row {
        what: "round trip, parked, p50",
        against: "condvar engine",
        bar: Bar::AtMost(1.0, 0.7),
        rival: Rival::Any,
        unit: Unit::Time,
        run: parked,
    },
    Row {
        what: "lookups beside 200 stores, p99, pool of 4",
        against: "no stores",
        bar: Bar::AtMost(2.0, 1.2),
        rival: Rival::Any,
        unit: Unit::Time,
        run: |e| beside_stores(e, false, false, PACE),
    },
    Row {
        what: "the same, own worker",
        against: "no stores",
        bar: Bar::AtMost(1.3, 1.1),
        rival: Rival::Any,
        unit: Unit::Time,
        run: |e| beside_stores(e, true, false, PACE),
    },
    Row {
        what: "the same, pool of 4, one pipe for all calls",
        against: "no stores",
        bar: Bar::AtMost(2.0, 1.2),
        rival: Rival::Any,
        unit: Unit::Time,
        run: |e| beside_stores(e, false, true, PACE),
    },
    Row {
        what: "the same, own worker, one pipe for all calls",
        against: "no stores",
        bar: Bar::AtMost(1.3, 1.1),
        rival: Rival::Any,
        unit: Unit::Time,
        run: |e| beside_stores(e, true, true, PACE),
    },
    Row {
        what: "lookups without a pause beside 200 stores, pool of 4",
        against: "no stores",
        bar: Bar::None,
        rival: Rival::Any,
        unit: Unit::Time,
        run: |e| beside_stores(e, false, true, Duration::ZERO),
    },
    Row {
        what: "lookups without a pause, own worker",
        against: "no stores",
        bar: Bar::None,
        rival: Rival::Any,
        unit: Unit::Time,
        run: |e| beside_stores(e, true, true, Duration::ZERO),
    },
];

/// Nanoseconds of a ping-pong between the two cores up to which they are near, as those were for which the bars are meant.
const NEAR: f64 = 200.0;

/// Nanoseconds of a ping-pong between the two cores that are used.
fn distance() -> f64 {
    let (first, last) = (core(Core::First), core(Core::Last));
    let measure = move || {
        pin(last);
        let mut other = PingPong::new(first);
        round_trips(3_000, || other.round_trip()).value
    };
    std::thread::spawn(measure).join().unwrap_or(f64::NAN)
}

/// From one lookup to the next, beside the stores: longer than workers spin.
const PACE: Duration = Duration::from_micros(200);

fn rings(effort: Effort, factor: u64, ours: fn(u64) -> Turn, theirs: fn(u64) -> Turn) -> Outcome {
    // About as long as a turn, at 80 million a second.
    let n = (effort.turn.as_micros() as u64 * 80 * factor).next_multiple_of(32);
    alternate(effort, || ours(n), || theirs(n))
}

fn sketch(effort: Effort, burst: usize) -> Outcome {
    let (keys, first, last) = (keys(), core(Core::First), core(Core::Last));
    let engine = engine(1, first);
    let mut ours = OnPair::new(&engine, &keys, IN_FLIGHT);
    pin(last);
    alternate(
        effort,
        || closed_loop(&mut ours, burst, effort.turn),
        // Made anew each time: its worker never sleeps.
        || {
            closed_loop(
                &mut Sketch::new(&keys, IN_FLIGHT, first),
                burst,
                effort.turn,
            )
        },
    )
}

fn condvar(effort: Effort, burst: usize, workers: usize) -> Outcome {
    let keys = keys();
    let (first, last) = (core(Core::First), core(Core::Last));
    let worker = first.filter(|_| workers == 1);
    let engine = engine(workers, worker);
    let mut ours = OnPair::new(&engine, &keys, IN_FLIGHT);
    let mut theirs = CondvarEngine::new(&keys, IN_FLIGHT, workers, worker);
    pin(last);
    alternate(
        effort,
        || closed_loop(&mut ours, burst, effort.turn),
        || closed_loop(&mut theirs, burst, effort.turn),
    )
}

fn client(effort: Effort, burst: usize, place: Tasks) -> Outcome {
    let keys: &'static [String] = keys().leak();
    let (first, last) = (core(Core::First), core(Core::Last));
    let engine = engine(1, first);
    let client = engine.client();
    let mut pair = OnPair::new(&engine, keys, IN_FLIGHT);
    pin(last);
    alternate(
        effort,
        || {
            let tasks = IN_FLIGHT / burst;
            client_tasks(&client, keys, tasks, burst, effort.turn, place)
        },
        || closed_loop(&mut pair, burst, effort.turn),
    )
}

fn local_client(effort: Effort, driver: bool) -> Outcome {
    let keys: &'static [String] = keys().leak();
    let (first, last) = (core(Core::First), core(Core::Last));
    let engine = engine(1, first);
    let mut pair = OnPair::new(&engine, keys, IN_FLIGHT);
    pin(last);
    alternate(
        effort,
        || local_tasks(&engine, keys, IN_FLIGHT, effort.turn, driver),
        || closed_loop(&mut pair, 1, effort.turn),
    )
}

fn one_at_a_time(side: &mut impl Side) {
    side.submit(1);
    while side.reap() == 0 {
        std::hint::spin_loop();
    }
}

fn spinning(effort: Effort) -> Outcome {
    let (keys, first, last) = (keys(), core(Core::First), core(Core::Last));
    let engine = engine(1, first);
    let mut ours = OnPair::new(&engine, &keys, 1);
    pin(last);
    alternate(
        effort,
        || round_trips(effort.samples * 50, || one_at_a_time(&mut ours)),
        || {
            let mut theirs = PingPong::new(first);
            round_trips(effort.samples * 50, || theirs.round_trip())
        },
    )
}

fn spinning_sketch(effort: Effort) -> Outcome {
    let (keys, first, last) = (keys(), core(Core::First), core(Core::Last));
    let engine = engine(1, first);
    let mut ours = OnPair::new(&engine, &keys, 1);
    pin(last);
    alternate(
        effort,
        || round_trips(effort.samples * 50, || one_at_a_time(&mut ours)),
        || {
            let mut theirs = Sketch::new(&keys, 1, first);
            round_trips(effort.samples * 50, || one_at_a_time(&mut theirs))
        },
    )
}

/// Both sides have been asleep for some time when an op comes.
fn parked(effort: Effort) -> Outcome {
    let (keys, first, last) = (keys(), core(Core::First), core(Core::Last));
    let engine = engine(1, first);
    let mut ours = OnPair::new(&engine, &keys, 1);
    let mut theirs = CondvarEngine::new(&keys, 1, 1, first);
    pin(last);
    let clock = quanta::Clock::new();
    let asleep = |round_trip: &mut dyn FnMut()| {
        let times = (0..effort.samples).map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            let started = clock.raw();
            round_trip();
            clock.delta_as_nanos(started, clock.raw()) as f64
        });
        measure::spread(times.collect()).median.into()
    };
    alternate(
        effort,
        || {
            asleep(&mut || {
                ours.submit(1);
                ours.pair.wait(1, None).expect("the engine is open");
                assert_eq!(ours.reap(), 1);
            })
        },
        || {
            asleep(&mut || {
                theirs.submit(1);
                theirs.wait();
                while theirs.reap() == 0 {}
            })
        },
    )
}

fn beside_stores(mut effort: Effort, own_worker: bool, one_pipe: bool, pace: Duration) -> Outcome {
    // A turn takes about a second.
    (effort.turns, effort.repeats) = (effort.turns.div_ceil(5), 0);
    let keys = keys();
    let stores = Stores::new(stores::config(own_worker), one_pipe, pace);
    let stores = std::cell::RefCell::new(stores);
    // As long as a burst.
    let quiet = Duration::from_micros(if one_pipe { 4200 } else { 1400 }) * effort.stores as u32;
    alternate(
        effort,
        || stores.borrow_mut().burst(effort.stores, &keys),
        || stores.borrow_mut().quiet(quiet, &keys),
    )
}

fn bar(ratio: f64) -> String {
    match ratio.is_nan() {
        true => String::new(),
        false => ratio.to_string(),
    }
}

/// A rate in millions of ops a second, or a time in microseconds.
fn figure(row: &Row, value: f64) -> String {
    match row.unit {
        Unit::Rate => format!("{:.2} M/s", value / 1e6),
        Unit::Time => format!("{:.2} us", value / 1e3),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|a| a == "--quick" || a == "--test");
    let words: Vec<_> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let effort = match quick {
        true => Effort {
            turns: 5,
            turn: Duration::from_millis(4),
            samples: 20,
            stores: 40,
            repeats: 3,
            limit: Duration::from_millis(500),
        },
        false => Effort {
            turns: 51,
            turn: Duration::from_millis(5),
            samples: 100,
            stores: stores::STORES,
            repeats: 30,
            limit: Duration::from_secs(15),
        },
    };
    let started = Instant::now();
    let mut missed = Vec::new();
    println!(
        "{:<53} | {:<30} | {:<21} | {:<7} | {:<6} | {:<23} | verdict",
        "what", "against", "median (quartiles)", "must be", "aim", "ours, theirs"
    );
    for row in ROWS {
        let named = |word: &&String| {
            row.what.contains(word.as_str()) || row.against.contains(word.as_str())
        };
        if !words.is_empty() && !words.iter().any(named) {
            continue;
        }
        // A virtual machine's cores may lie near each other on the host or not, and may move.
        let patience = Instant::now() + effort.limit * 4;
        let (outcome, distance) = loop {
            let before = distance();
            if before > NEAR && !quick && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(500));
                continue;
            }
            // On a thread of its own, that may pin itself.
            let outcome = std::thread::spawn(move || (row.run)(effort)).join();
            let Ok(outcome) = outcome else {
                return ExitCode::FAILURE;
            };
            let distance = distance().max(before);
            if distance <= NEAR || quick || Instant::now() >= patience {
                break (outcome, distance);
            }
        };
        let ratio = outcome.ratio;
        let (must, aim, verdict) = match row.bar {
            Bar::AtLeast(must, aim) => (must, aim, (ratio.median >= must, ratio.median >= aim)),
            Bar::AtMost(must, aim) => (must, aim, (ratio.median <= must, ratio.median <= aim)),
            Bar::None => (f64::NAN, f64::NAN, (true, false)),
        };
        let is_rival = match row.rival {
            Rival::Fast(rate) => outcome.theirs.median >= rate,
            Rival::Quick(ns) => outcome.theirs.median <= ns,
            Rival::Any => true,
        };
        let verdict = match (is_rival, verdict) {
            (false, _) => "the rival is too slow",
            (_, (false, _)) => "MISSED",
            (_, (true, true)) => "aim",
            _ if must.is_nan() => "",
            _ => "ok",
        };
        if verdict == "MISSED" || !is_rival {
            missed.push(row.what);
        }
        let mut note = String::new();
        if outcome.disturbed > 0.0 {
            let share = outcome.disturbed * 100.0;
            note += &format!("; busy machine: {share:.0} % of the turns disturbed");
        }
        if distance > NEAR {
            note += &format!("; cores {distance:.0} ns from each other and back");
        }
        println!(
            "{:<53} | {:<30} | {:>6.2} ({:.2} to {:.2}) | {:<7} | {:<6} | {:>10}, {:>10} | {verdict}{note}",
            row.what,
            row.against,
            ratio.median,
            ratio.low,
            ratio.high,
            bar(must),
            bar(aim),
            figure(row, outcome.ours.median),
            figure(row, outcome.theirs.median),
        );
    }
    if words.is_empty() {
        let keys = keys();
        let allocations = rest::allocations_per_op(&engine(1, None), &keys, 100_000);
        println!("allocations per op: {allocations} (must be 0)");
        let idle = rest::idle_cpu(&keys, effort.turn * 400);
        println!(
            "idle CPU, default settings: {idle:.3} % of a core (must be under 1, aim under 0.1)"
        );
        if allocations > 0.0 || idle >= 1.0 {
            missed.push("allocations, idle CPU");
        }
    }
    println!("took {:.0} s", started.elapsed().as_secs_f64());
    if quick {
        println!("the short form judges nothing");
        return ExitCode::SUCCESS;
    }
    match missed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
