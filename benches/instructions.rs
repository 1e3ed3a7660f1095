//! Instructions per op, submit to completion, counted by callgrind: no clock, so the figure is the same on a busy machine.
//!
//! The round of the worker is driven by hand on the same thread, over the null store, with the default statistics and distinct
//! keys of 101 bytes. What the caller itself does (a submission, the look at what came back) is part of it.
//!
//! `cargo bench --bench instructions` counts all, prints a table and fails where a bar is missed; `-- NAME..` counts those whose
//! names contain one of the words, `-- --functions` also says which functions it was. The profile of each stays in `target/instructions/`; look at it by function or by line with
//! `callgrind_annotate` (the bench profile has line tables, so that inlined code is found under its own file).

use std::collections::HashMap;
use std::hint::black_box;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use moonring::store::NullStore;
use moonring::{
    Client, Completion, Done, Driver, Engine, EngineConfig, LocalClient, LocalOp, OpKind, Pair,
    Region, RegionOptions, SlotClass, Submission,
};

/// Ops that warm everything up: the caches of no interest here, but all that is done only once.
const WARM_UP: usize = 4_096;
const COUNTED: usize = 32_768;

/// A case: its name, its ops a burst, the most instructions an op that the project allows itself, what it wants, how it runs.
type Case = (&'static str, usize, Option<(u64, u64)>, fn(usize));

const CASES: &[Case] = &[
    ("pair-1", 1, Some((500, 300)), |n| pair(n, OpKind::Lookup)),
    ("pair-32", 32, Some((300, 150)), |n| pair(n, OpKind::Lookup)),
    ("pair-retrieve-1", 1, None, |n| pair(n, OpKind::Retrieve)),
    ("pair-retrieve-32", 32, None, |n| pair(n, OpKind::Retrieve)),
    ("client-1", 1, None, client),
    ("client-32", 32, None, client),
    ("client-many-32", 32, None, client_many),
    ("local-1", 1, None, local),
    ("local-32", 32, None, local),
];

/// All that is counted happens in here; callgrind knows it by its name.
#[inline(never)]
fn counted_by_callgrind(round: &mut dyn FnMut(), rounds: usize) {
    for _ in 0..rounds {
        round();
    }
}

fn count(burst: usize, mut round: impl FnMut()) {
    (0..WARM_UP / burst).for_each(|_| round());
    counted_by_callgrind(black_box(&mut round), COUNTED / burst);
}

fn engine(region: Option<Region>, op: OpKind) -> (Engine, Driver) {
    let config = EngineConfig::default().dedicated(op, 1);
    let mut builder = Engine::builder(Arc::new(NullStore)).config(config);
    if let Some(region) = region {
        builder = builder.region(region);
    }
    let (engine, mut drivers) = builder.start_by_hand().expect("the null store");
    // The shared pool comes first.
    (engine, drivers.pop().expect("a driver for each group"))
}

/// Distinct keys of 101 bytes, as long as LMCache's.
fn keys() -> Vec<String> {
    (0..4096).map(|i| format!("{i:0>101}")).collect()
}

fn pair(burst: usize, op: OpKind) {
    let keys = keys();
    let mut next = 0;
    if op == OpKind::Lookup {
        let (engine, mut driver) = engine(None, op);
        let mut pair = engine.pair(256).expect("a first pair");
        let mut keys = keys.iter().cycle();
        count(burst, || {
            let mut batch = pair.batch();
            for key in keys.by_ref().take(burst) {
                let pushed = batch.push(Submission::lookup(key).user_data(next as u64));
                assert!(pushed.is_ok());
                next += 1;
            }
            drop(batch);
            assert!(driver.poll_once());
            reap(&mut pair, burst, |_| {});
        });
        return;
    }
    let (count_, size) = (burst, 4096);
    let region = Region::allocate(RegionOptions::new(size * count_)).expect("a small region");
    let pool = region.slot_pool(&[SlotClass {
        size,
        count: count_,
    }]);
    let pool = pool.expect("as large as the region");
    let mut slots: Vec<_> = (0..burst).filter_map(|_| pool.lend(size)).collect();
    let (engine, mut driver) = engine(Some(region), op);
    let mut pair = engine.pair(256).expect("a first pair");
    count(burst, || {
        let mut batch = pair.batch();
        for slot in slots.drain(..) {
            let key = &keys[next % keys.len()];
            let pushed = batch.push(Submission::retrieve(key, slot).user_data(next as u64));
            assert!(pushed.is_ok());
            next += 1;
        }
        drop(batch);
        assert!(driver.poll_once());
        reap(&mut pair, burst, |slot| slots.push(slot));
    });
}

#[inline(always)]
fn reap(pair: &mut Pair, burst: usize, mut slot: impl FnMut(moonring::Slot)) {
    for _ in 0..burst {
        let Some(Completion {
            user_data,
            result: Ok(_),
            slot: back,
            ..
        }) = pair.poll()
        else {
            panic!("all were done, and went well");
        };
        black_box(user_data);
        if let Some(back) = back {
            slot(back);
        }
    }
}

/// Futures of single lookups, all begun before the worker's round and polled before and after it.
fn client(burst: usize) {
    let (engine, driver) = engine(None, OpKind::Lookup);
    let (client, keys) = (engine.client(), keys());
    // Leaked: what borrows them is kept in places made once.
    let (client, keys): (&'static Client, &'static [String]) =
        (Box::leak(Box::new(client)), keys.leak());
    count_futures(burst, driver, keys, |key| client.lookup(key));
}

fn count_futures<F: Future<Output = Result<bool, moonring::ClientError>>>(
    burst: usize,
    mut driver: Driver,
    keys: &'static [String],
    start: impl Fn(&'static String) -> F,
) {
    let mut places: Vec<Pin<Box<Option<F>>>> = (0..burst).map(|_| Box::pin(None)).collect();
    let mut next = 0;
    let mut context = Context::from_waker(Waker::noop());
    count(burst, || {
        for place in &mut places {
            place.set(Some(start(&keys[next % keys.len()])));
            next += 1;
            let future = place.as_mut().as_pin_mut().expect("just set");
            assert!(future.poll(&mut context).is_pending());
        }
        assert!(driver.poll_once());
        for place in &mut places {
            let future = place.as_mut().as_pin_mut().expect("set above");
            assert_eq!(future.poll(&mut context), Poll::Ready(Ok(true)));
            place.set(None);
        }
    });
}

/// Futures over a pair, with its reactor's turns where a runtime has them.
fn local(burst: usize) {
    let (engine, mut driver) = engine(None, OpKind::Lookup);
    let (client, reactor) = LocalClient::new(engine.pair(256).expect("a first pair"));
    let mut reactor = std::pin::pin!(reactor);
    // Leaked, as above.
    let (client, keys): (&'static LocalClient, &'static [String]) =
        (Box::leak(Box::new(client)), keys().leak());
    let mut places: Vec<Pin<Box<Option<LocalOp<'_>>>>> =
        (0..burst).map(|_| Box::pin(None)).collect();
    let mut next = 0;
    let mut context = Context::from_waker(Waker::noop());
    assert!(reactor.as_mut().poll(&mut context).is_pending());
    count(burst, || {
        for place in &mut places {
            let key = &keys[next % keys.len()];
            place.set(Some(client.submit(Submission::lookup(key))));
            next += 1;
            let future = place.as_mut().as_pin_mut().expect("just set");
            assert!(future.poll(&mut context).is_pending());
        }
        // Shows them; finds nothing yet; takes the ends.
        assert!(reactor.as_mut().poll(&mut context).is_pending());
        assert!(reactor.as_mut().poll(&mut context).is_pending());
        assert!(driver.poll_once());
        assert!(reactor.as_mut().poll(&mut context).is_pending());
        for place in &mut places {
            let future = place.as_mut().as_pin_mut().expect("set above");
            let Poll::Ready(ended) = future.poll(&mut context) else {
                panic!("woken, and not ready");
            };
            assert_eq!(ended.result, Ok(Done::Present));
            place.set(None);
        }
    });
}

/// One future for many lookups.
fn client_many(burst: usize) {
    let (engine, mut driver) = engine(None, OpKind::Lookup);
    let (client, keys) = (engine.client(), keys());
    let mut next = 0;
    let mut context = Context::from_waker(Waker::noop());
    let mut there = Vec::with_capacity(burst);
    count(burst, || {
        let at = next % keys.len();
        next += burst;
        {
            let many = std::pin::pin!(client.lookup_many(&keys[at..at + burst], &mut there));
            let mut many = many;
            assert!(many.as_mut().poll(&mut context).is_pending());
            assert!(driver.poll_once());
            assert!(many.as_mut().poll(&mut context).is_ready());
        }
        assert!(there.len() == burst && there.iter().all(|is| *is == Ok(true)));
        there.clear();
    });
}

/// Counts a case in a process of its own. Instructions per op, and the profile.
fn run(name: &str, dir: &Path) -> Result<(f64, String), String> {
    let out = dir.join(format!("{name}.callgrind"));
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--dump-instr=yes"])
        .args([
            "--collect-atstart=no",
            "--toggle-collect=*counted_by_callgrind*",
        ])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(this)
        .env("MOONRING_CASE", name)
        .output()
        .map_err(|e| format!("valgrind, which counts: {e}"))?;
    if !run.status.success() {
        return Err(String::from_utf8_lossy(&run.stderr).into_owned());
    }
    let profile = std::fs::read_to_string(&out).map_err(|e| e.to_string())?;
    let totals = profile.lines().find_map(|l| l.strip_prefix("totals: "));
    let totals: f64 = totals
        .and_then(|t| t.trim().parse().ok())
        .filter(|&t| t > 0.0)
        .ok_or("callgrind counted nothing: it did not see the function's name")?;
    Ok((totals / COUNTED as f64, profile))
}

/// What each function itself took, with all that was inlined into it; the most first.
fn functions(profile: &str) -> Vec<(String, f64)> {
    let (mut names, mut costs) = (HashMap::new(), HashMap::<String, u64>::new());
    let (mut current, mut of_call) = (String::new(), false);
    // A name stands behind its number the first time.
    let mut name = |text: &str| {
        let (number, name) = text.split_once(' ').unwrap_or((text, ""));
        if !name.is_empty() {
            names.insert(number.to_owned(), name.to_owned());
        }
        names.get(number).cloned().unwrap_or_default()
    };
    for line in profile.lines() {
        if let Some(text) = line.strip_prefix("fn=") {
            current = name(text);
        } else if let Some(text) = line.strip_prefix("cfn=") {
            name(text);
        } else if line.starts_with("calls=") {
            of_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            // The line behind `calls=` is what the callee took.
            if !std::mem::take(&mut of_call) {
                let cost = line.split(' ').nth(2).and_then(|c| c.parse().ok());
                *costs.entry(current.clone()).or_default() += cost.unwrap_or(0);
            }
        }
    }
    let mut costs: Vec<_> = costs
        .into_iter()
        .map(|(name, cost)| (name, cost as f64 / COUNTED as f64))
        .collect();
    costs.sort_by(|a, b| b.1.total_cmp(&a.1));
    costs
}

fn main() -> ExitCode {
    if let Ok(name) = std::env::var("MOONRING_CASE") {
        let case = CASES.iter().find(|case| case.0 == name);
        let (_, burst, _, run) = case.expect("a case's name");
        run(*burst);
        return ExitCode::SUCCESS;
    }
    let words: Vec<_> = std::env::args().skip(1).collect();
    let by_function = words.iter().any(|w| w == "--functions");
    let words: Vec<_> = words.iter().filter(|w| !w.starts_with('-')).collect();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/instructions");
    if let Err(error) = std::fs::create_dir_all(&dir) {
        eprintln!("{}: {error}", dir.display());
        return ExitCode::FAILURE;
    }
    let mut missed = false;
    println!(
        "{:<18} {:>10} {:>8} {:>6}",
        "case", "instr/op", "must be", "aim"
    );
    for (name, _, bar, _) in CASES {
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let (per_op, profile) = match run(name, &dir) {
            Ok(counted) => counted,
            Err(error) => {
                eprintln!("{name}: {error}");
                return ExitCode::FAILURE;
            }
        };
        let (must, aim) = bar.map_or((String::new(), String::new()), |(must, aim)| {
            (must.to_string(), aim.to_string())
        });
        let verdict = match *bar {
            Some((must, _)) if per_op > must as f64 => "missed",
            Some((_, aim)) if per_op > aim as f64 => "ok",
            Some(_) => "ok, aim reached",
            None => "",
        };
        missed |= verdict == "missed";
        println!("{name:<18} {per_op:>10.1} {must:>8} {aim:>6}  {verdict}");
        if by_function {
            for (function, cost) in functions(&profile).iter().take(14) {
                println!("{cost:>29.1} {function}");
            }
        }
    }
    println!("profiles: {}/NAME.callgrind", dir.display());
    match missed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}
