//! Ctrl-C: a run ends in good order, with what it has done so far.

mod support;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{command, folder, one_run::one_run_of, sample};

/// When Ctrl-C is pressed.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// While it sets up: so long after its files are there.
    SettingUp(Duration),
    /// While it measures: so long after the log has its header.
    Running(Duration),
}

/// A run that does not outlive its test, which may fail.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SOON: Duration = Duration::from_millis(300);

/// Starts the binary, waits until then, and presses Ctrl-C so often. Its report, its exit, standard error.
fn interrupted(
    folder: &Path,
    args: &[&str],
    when: When,
    presses: u32,
) -> (Option<Value>, std::process::ExitStatus, String) {
    let (json, hlog) = (folder.join("a.json"), folder.join("a.hlog"));
    let mut running = command()
        .args(args)
        .arg("--json")
        .arg(&json)
        .arg("--hlog")
        .arg(&hlog)
        .args(["--interval", "0.1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map(Running)
        .expect("the binary starts");
    let child = &mut running.0;
    // The log has a header from the beginning of the run on.
    wait(child, "did not begin", |_| {
        let file = fs::metadata(&hlog);
        file.is_ok_and(|file| file.len() > 0 || matches!(when, When::SettingUp(_)))
    });
    let (When::SettingUp(delay) | When::Running(delay)) = when;
    thread::sleep(delay);
    let file = fs::metadata(&hlog).expect("the log");
    assert_eq!(file.len() > 0, matches!(when, When::Running(_)), "too late");
    for press in 0..presses {
        if press > 0 {
            // Two signals that wait together are one.
            thread::sleep(SOON);
        }
        let pid = child.id().to_string();
        let sent = Command::new("kill").args(["-INT", &pid]).status();
        assert!(sent.expect("kill runs").success());
    }
    wait(child, "did not end", |child| {
        child.try_wait().expect("a child").is_some()
    });
    let status = child.wait().expect("an exit");
    let mut stderr = String::new();
    let pipe = child.stderr.as_mut().expect("a pipe");
    pipe.read_to_string(&mut stderr).expect("text");
    let report = fs::read_to_string(&json).expect("the file");
    let report = (!report.is_empty()).then(|| serde_json::from_str(&report).expect("JSON"));
    (report, status, stderr)
}

/// The report of a run that was interrupted once while it measured, and ended in good order.
fn told(name: &str, folder: &Path, args: &[&str], when: When) -> Value {
    let (report, status, stderr) = interrupted(folder, args, when, 1);
    assert_eq!(status.code(), Some(130), "{name}: {stderr}");
    assert!(stderr.contains("interrupted"), "{name}: {stderr}");
    let report = report.expect("a report");
    assert_eq!(report["interrupted"], true, "{name}");
    report
}

fn wait(child: &mut Child, what: &str, mut over: impl FnMut(&mut Child) -> bool) {
    let start = Instant::now();
    while !over(child) {
        if start.elapsed() > Duration::from_secs(60) {
            panic!("{what} within a minute");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_bench_tells_what_it_measured() {
    for (name, more) in [
        ("pair", &["--path", "pair"][..]),
        ("client", &["--path", "client"]),
        ("rounds", &["--op", "store", "--keys", "500"]),
        ("rate", &["--rate", "1000"]),
        // The next op is due in a minute.
        ("slow_pair", &["--rate", "0.01", "--op", "lookup"]),
        (
            "slow_client",
            &["--rate", "0.01", "--op", "lookup", "--path", "client"],
        ),
    ] {
        let folder = folder(&format!("interrupt_bench_{name}"));
        let args = [&["bench", "--seconds", "600"][..], more].concat();
        let report = told(name, &folder, &args, When::Running(SOON));
        assert_eq!(report["errors"], Value::Array(Vec::new()), "{name}");
        assert_eq!(report["failed_ops"], 0, "{name}");
        assert!(report["ops"].as_u64() >= Some(1), "{name}: {report:#}");
        assert!(report["wall_s"].as_f64() < Some(60.0), "{name}");
        let engine = &report["engine"];
        assert_eq!(engine["accepted"], engine["completed"], "{name}");
        assert!(
            !report["intervals"].as_array().expect("a list").is_empty(),
            "{name}"
        );
    }
}

/// The report of a run that was interrupted after a round, and before all: after so many milliseconds, or more in the next run.
#[track_caller]
fn has_rounds(op: &str, after_ms: [u64; 3], run: impl Fn(When) -> Value) -> Value {
    let mut delays = after_ms.into_iter();
    one_run_of(after_ms.len(), || {
        let delay = Duration::from_millis(delays.next().expect("one a run"));
        match run(When::Running(delay)) {
            report if report["rounds"].as_u64() > Some(0) => Ok(report),
            _ => Err(format!("{op}: no round in {delay:?}")),
        }
    })
}

/// Rounds of half a millisecond a contestant, of which the first few are over.
#[test]
fn a_comparison_tells_the_rounds_that_were_over() {
    for op in ["retrieve", "delete"] {
        let args = [
            "bench",
            "--compare",
            "--op",
            op,
            "--keys",
            "128",
            "--value-bytes",
            "64",
            "--seconds",
            "1",
            "--rounds",
            "2000",
        ];
        // All rounds take 9 s at least. On a busy machine the first one may not be over soon.
        let report = has_rounds(op, [500, 2_000, 8_000], |when| {
            let folder = folder(&format!("interrupt_compare_{op}"));
            told(op, &folder, &args, when)
        });
        assert_eq!(report["errors"], Value::Array(Vec::new()), "{op}");
        assert_eq!(report["failed_ops"], 0, "{op}");
        let rounds = report["rounds"].as_u64().expect("a number");
        assert!(
            rounds < 2000,
            "{op}: all {rounds} rounds, of which one was cut"
        );
        assert_eq!(report["compare"]["rounds"], rounds, "{op}");
        let ratio = report["ratio_vs_per_key"].as_f64();
        assert!(ratio > Some(0.0), "{op}: {ratio:?}");
        // Each was measured in the same rounds: the cut one counts for none.
        let lines = |kind: &str| report["compare"][kind].as_array().expect("a list").clone();
        for line in lines("per_key").into_iter().chain(lines("hand_batched")) {
            assert!(line["keys"].as_u64() >= Some(rounds), "{op}: {line}");
            assert_eq!(line["failed_keys"], 0, "{op}: {line}");
        }
        assert!(
            !report["intervals"].as_array().expect("a list").is_empty(),
            "{op}"
        );
        assert_eq!(report["engine"]["in_flight"], 0, "{op}");
    }
}

/// Rounds of half a millisecond a setting, of which the first few are over.
#[test]
fn a_sweep_tells_the_rounds_that_were_over() {
    for op in ["retrieve", "delete"] {
        // All rounds take 2 s at least. On a busy machine the first one may not be over soon; there all of them take longer.
        let report = has_rounds(op, [300, 2_000, 8_000], |when| {
            let folder = folder(&format!("interrupt_sweep_{op}"));
            let drawn = folder.join("a.svg");
            let svg = drawn.to_string_lossy();
            // Little time and small values: before the first round each setting warms up, and a delete's values are stored again and again.
            let args = ["bench", "--sweep=4,16", "--op", op, "--keys", "128"];
            let few = ["--value-bytes", "64", "--seconds", "0.4", "--rounds", "800"];
            let args = [&args[..], &few, &["--svg", &svg]].concat();
            let report = told(op, &folder, &args, when);
            let rounds = report["rounds"].as_u64();
            assert_eq!(drawn.is_file(), rounds > Some(0), "{op}: {rounds:?}");
            report
        });
        assert_eq!(report["errors"], Value::Array(Vec::new()), "{op}");
        assert_eq!(report["failed_ops"], 0, "{op}");
        let rounds = report["rounds"].as_u64().expect("a number");
        assert!(
            rounds < 800,
            "{op}: all {rounds} rounds, of which one was cut"
        );
        assert_eq!(report["sweep"]["rounds"], rounds, "{op}");
        let ratio = report["ratio_vs_best_fixed"].as_f64();
        assert!(ratio > Some(0.0), "{op}: {ratio:?}");
        // Each was measured in the same rounds: the cut one counts for none.
        let settings = report["sweep"]["settings"].as_array().expect("a list");
        assert_eq!(settings.len(), 5, "{op}");
        for line in settings {
            assert!(line["keys"].as_u64() >= Some(rounds), "{op}: {line}");
            assert_eq!(line["failed_keys"], 0, "{op}: {line}");
        }
        let intervals = report["intervals"].as_array().expect("a list");
        assert!(!intervals.is_empty(), "{op}");
        let engine = &report["engine"];
        assert_eq!(engine["accepted"], engine["completed"], "{op}");
    }
}

/// The first setting alone would warm up for four minutes, and no run is waited for longer than one.
#[test]
fn a_sweep_that_has_no_round_yet_says_so_and_nothing_is_wrong() {
    for op in ["retrieve", "store", "delete"] {
        let folder = folder(&format!("interrupt_sweep_early_{op}"));
        let svg = folder.join("a.svg");
        let svg = svg.to_string_lossy();
        let args = ["bench", "--sweep", "--op", op, "--seconds", "600"];
        let when = When::SettingUp(Duration::from_millis(500));
        let args = [&args[..], &["--svg", &svg]].concat();
        let (report, status, stderr) = interrupted(&folder, &args, when, 1);
        assert_eq!(status.code(), Some(130), "{op}: {stderr}");
        let report = report.expect("a report");
        assert_eq!(report["errors"], Value::Array(Vec::new()), "{op}");
        assert_eq!(report["rounds"], 0, "{op}");
        assert_eq!(report["ratio_vs_best_fixed"], Value::Null, "{op}");
        assert_eq!(report["best_fixed_max_batch"], Value::Null, "{op}");
        assert!(!Path::new(&*svg).exists(), "{op}: of nothing");
    }
}

/// A look at all keys by one thread, one call per key, would take over two minutes, and no run is waited for longer than one.
#[test]
fn a_comparison_that_has_no_round_yet_says_so_and_nothing_is_wrong() {
    for op in ["retrieve", "store", "delete"] {
        let folder = folder(&format!("interrupt_compare_early_{op}"));
        let adapter = r#"{"type": "sim", "delay_us": 150000}"#;
        let args = [
            "bench",
            "--compare",
            "--op",
            op,
            "--keys",
            "1024",
            "--depth",
            "1024",
            "--l2-adapter",
            adapter,
        ];
        let when = When::SettingUp(Duration::from_millis(500));
        let (report, status, stderr) = interrupted(&folder, &args, when, 1);
        assert_eq!(status.code(), Some(130), "{op}: {stderr}");
        let report = report.expect("a report");
        assert_eq!(report["errors"], Value::Array(Vec::new()), "{op}");
        assert_eq!(report["rounds"], 0, "{op}");
        assert_eq!(report["ratio_vs_per_key"], Value::Null, "{op}");
        assert_eq!(report["ratio_vs_hand_batched"], Value::Null, "{op}");
        assert_eq!(report["corrupt_values"], 0, "{op}");
    }
}

#[test]
fn a_replay_tells_what_it_played() {
    let sample = sample().to_string_lossy().into_owned();
    for path in ["pair", "client"] {
        let folder = folder(&format!("interrupt_replay_{path}"));
        // The sample is of some minutes.
        let args = [
            "replay",
            &sample,
            "--path",
            path,
            "--speed",
            "1",
            "--concurrency",
            "4",
        ];
        let report = told(path, &folder, &args, When::Running(SOON));
        let requests = report["requests"].as_u64().expect("a number");
        assert!((1..400).contains(&requests), "{path}: {requests}");
        assert_eq!(report["request_us"]["count"], requests, "{path}");
        assert_eq!(report["engine"]["in_flight"], 0, "{path}");
    }
}

/// The store takes ten minutes: the first Ctrl-C waits for it, the second does not.
#[test]
fn the_second_one_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    let folder = folder("interrupt_twice");
    let sample = sample().to_string_lossy().into_owned();
    let adapter = r#"{"type": "sim", "delay_us": 600000000}"#;
    let args = ["replay", &sample, "--l2-adapter", adapter];
    let (report, status, stderr) = interrupted(&folder, &args, When::Running(SOON), 2);
    assert_eq!(
        (status.code(), status.signal()),
        (None, Some(2)),
        "{stderr}"
    );
    assert_eq!(report, None);
}
