//! `moonring bench`: as many ops as asked for, each of which does its work.

mod support;

use serde_json::Value;
use support::{is_documented, moonring, one_run::one_run_of, with_json};

fn number(report: &Value, pointer: &str) -> u64 {
    let value = report.pointer(pointer).and_then(Value::as_u64);
    value.unwrap_or_else(|| panic!("no number {pointer} in {report:#}"))
}

fn bench(name: &str, args: &[&str]) -> Value {
    let args = [&["bench"], args].concat();
    let (run, report) = with_json(name, &args);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(run.stderr, "", "no warning");
    is_documented(&report);
    assert_eq!(number(&report, "/failed_ops"), 0);
    assert_eq!(number(&report, "/corrupt_values"), 0);
    assert_eq!(
        number(&report, "/engine/accepted"),
        number(&report, "/engine/completed")
    );
    assert_eq!(number(&report, "/engine/in_flight"), 0);
    assert_eq!(report["errors"], Value::Array(Vec::new()));
    let per_s = report["ops_per_s"].as_f64().expect("a number");
    let wall = report["wall_s"].as_f64().expect("a number");
    let ops = number(&report, "/ops") as f64;
    assert!((per_s * wall - ops).abs() < 0.5, "{report:#}");
    report
}

#[test]
fn every_op_of_every_kind_does_its_work_on_both_paths() {
    for path in ["pair", "client"] {
        for (op, code) in [
            ("lookup", "present"),
            ("retrieve", "ok"),
            ("store", "stored"),
            ("delete", "ok"),
            ("mixed", ""),
        ] {
            // 5,000 ops over 3 producers and 300 keys: many rounds, the last one partial, shares uneven.
            let report = bench(
                &format!("{op}_{path}"),
                &[
                    "--op",
                    op,
                    "--path",
                    path,
                    "--ops",
                    "5000",
                    "--producers",
                    "3",
                    "--keys",
                    "300",
                    "--depth",
                    "16",
                    "--value-bytes",
                    "1000",
                ],
            );
            assert_eq!(number(&report, "/ops"), 5000);
            let lane = |lane: &str, what: &str| number(&report, &format!("/lanes/{lane}/{what}"));
            let moved = |ops: u64| {
                let wall = report["wall_s"].as_f64().expect("a number");
                let gbytes = report["gbytes_per_s"].as_f64().expect("a number");
                let want = ops as f64 * 1000.0 / 1e9 / wall;
                assert!(
                    (gbytes - want).abs() <= want * 1e-9,
                    "{op}: {gbytes}, not {want}"
                );
            };
            if op == "mixed" {
                let ops: Vec<_> = ["lookup", "retrieve", "store", "delete"]
                    .map(|name| lane(name, "ops"))
                    .into();
                assert_eq!(ops.iter().sum::<u64>(), 5000);
                assert!(ops.iter().all(|n| (1150..=1350).contains(n)), "{ops:?}");
                assert_eq!(lane("lookup", "by_code/present"), ops[0]);
                assert_eq!(lane("retrieve", "by_code/ok"), ops[1]);
                assert_eq!(lane("store", "by_code/stored"), ops[2]);
                assert_eq!(lane("delete", "by_code/ok"), ops[3]);
                moved(ops[1] + ops[2]);
                continue;
            }
            assert_eq!(lane(op, "ops"), 5000);
            assert_eq!(lane(op, &format!("by_code/{code}")), 5000);
            assert_eq!(lane(op, "latency_us/count"), 5000);
            moved(match op {
                "retrieve" | "store" => 5000,
                _ => 0,
            });
            let rounds = if matches!(op, "store" | "delete") {
                17
            } else {
                1
            };
            assert_eq!(number(&report, "/rounds"), rounds);
            let verified = match op {
                "retrieve" => 300,
                // The last round's: 5,000 are 16 rounds of 300 and 200 more.
                "store" => 200,
                _ => 0,
            };
            assert_eq!(number(&report, "/verified_values"), verified, "{op}");
        }
    }
}

#[test]
fn a_bench_by_time_takes_that_time() {
    for op in ["lookup", "store"] {
        let report = bench(
            &format!("time_{op}"),
            &[
                "--op",
                op,
                "--seconds",
                "0.3",
                "--keys",
                "100",
                "--depth",
                "10",
            ],
        );
        let wall = report["wall_s"].as_f64().expect("a number");
        assert!((0.3..10.0).contains(&wall), "{wall} s, not 0.3");
        // What is in flight at first, at least.
        assert!(number(&report, "/ops") >= 10);
    }
}

#[test]
fn a_store_that_moves_nothing_is_not_read_back() {
    for adapter in [
        r#"{"type": "null"}"#,
        r#"{"type": "sim", "inner": {"type": "null"}}"#,
    ] {
        let report = bench(
            "null",
            &["--l2-adapter", adapter, "--ops", "1000", "--keys", "128"],
        );
        assert_eq!(number(&report, "/verified_values"), 0);
    }
}

#[test]
fn long_keys_and_the_largest_batch_are_as_asked() {
    for path in ["pair", "client"] {
        // 700 bytes are beyond the inline keys, for which there are 16 places by default.
        let adapter = r#"{"type": "memory", "moonring": {"long_keys": 128}}"#;
        let report = bench(
            &format!("long_{path}"),
            &[
                "--path",
                path,
                "--l2-adapter",
                adapter,
                "--producers",
                "2",
                "--key-bytes",
                "700",
                "--ops",
                "2000",
                "--keys",
                "128",
                "--max-batch",
                "1",
            ],
        );
        assert_eq!(number(&report, "/lanes/retrieve/calls"), 2000);
        assert_eq!(number(&report, "/max_batch"), 1);
    }
}

/// Calls of 10 ms, whatever they hold: one key a call brings a sixteenth, so the sweep must find that, and which of its rows is which.
/// (Less than a half of it on a machine that takes most of those 10 ms once more for its own work.)
#[test]
fn a_sweep_measures_each_bound_beside_the_settings_as_they_are() {
    let adapter = r#"{"type": "sim", "delay_us": 10000, "moonring": {"max_batch": 32}}"#;
    for op in ["retrieve", "delete"] {
        let folder = support::folder(&format!("sweep_{op}"));
        let drawn = folder.join("sweep.svg");
        let svg = drawn.to_string_lossy();
        let args = ["--op", op, "--l2-adapter", adapter, "--sweep=1,16"];
        let more = ["--keys", "64", "--rounds", "3", "--seconds", "0.06"];
        let svg = ["--svg", &svg];
        let name = format!("sweep_json_{op}");
        let report = bench(&name, &[&args[..], &more[..], &svg[..]].concat());
        let settings = report["sweep"]["settings"].as_array().expect("rows");
        let name = |row: &Value| (row["fixed_max_batch"].as_u64(), row["adapt"].as_bool());
        let names: Vec<_> = settings.iter().map(name).collect();
        let fixed = |n, adapt| (Some(n), Some(adapt));
        let want = [
            fixed(1, true),
            fixed(16, true),
            fixed(1, false),
            fixed(16, false),
        ];
        assert_eq!(names[0], (None, Some(true)));
        assert_eq!(names[1..], want);
        let rate = |row: &Value| row["keys_per_s"]["median"].as_f64().expect("a rate");
        let rates: Vec<_> = settings.iter().map(rate).collect();
        assert!(
            rates[1] * 2.0 < rates[2] && rates[3] * 2.0 < rates[4],
            "{op}: keys/s as configured, and with 1, 16, 1 and 16 a call: {rates:?}"
        );
        for (row, most) in settings.iter().zip([32.0, 1.0, 16.0, 1.0, 16.0]) {
            let keys = row["keys_per_call"].as_f64().expect("a number");
            assert!(keys > 0.0 && keys <= most, "{row:#}");
        }
        assert_eq!(report["best_fixed_max_batch"], 16, "{report:#}");
        assert!(report["ratio_vs_best_fixed"].as_f64().expect("a ratio") > 0.1);
        let svg = std::fs::read_to_string(&drawn).expect("drawn");
        let svg = roxmltree::Document::parse(&svg).expect("well-formed");
        let lines = svg
            .descendants()
            .filter(|n| n.attribute("class") == Some("line s0"));
        assert_eq!(lines.count(), 2, "in the chart and in its legend");
    }
}

#[test]
fn ops_that_may_linger_share_calls() {
    let bench = |name, more: &[&str]| {
        let args = ["--op", "lookup", "--ops", "400", "--keys", "64"];
        let load = ["--producers", "4", "--depth", "1"];
        let report = bench(name, &[&args[..], &load[..], more].concat());
        number(&report, "/lanes/lookup/calls")
    };
    // All four wait for each other, unless one of them is through.
    let waiting = ["--linger-us", "2000000", "--linger-ops", "4"];
    let calls = bench("linger", &waiting);
    assert!((100..110).contains(&calls), "{calls}");
}

#[test]
fn damaged_values_are_found_in_the_end() {
    let adapter = r#"{"type": "sim", "flip_bytes": {"rate": 1}, "moonring": {"max_batch": 1}}"#;
    let args = [
        "bench",
        "--l2-adapter",
        adapter,
        "--ops",
        "100",
        "--keys",
        "64",
    ];
    let (run, report) = with_json("damaged", &args);
    assert_eq!(run.code, Some(1));
    assert_eq!(number(&report, "/corrupt_values"), 64);
    assert_eq!(run.stderr, "moonring: 64 values have wrong bytes\n");
}

#[test]
fn ops_that_did_no_work_are_told() {
    let adapter = r#"{"type": "sim", "key_error_rate": 0.5}"#;
    let args = [
        "bench",
        "--l2-adapter",
        adapter,
        "--op",
        "delete",
        "--ops",
        "64",
        "--keys",
        "64",
    ];
    let run = moonring(args);
    // Half of the set-up's stores fail, which ends the run.
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("set-up: "), "{}", run.stderr);
    assert_eq!(run.stderr.lines().count(), 1);
    let (run, report) = with_json(
        "no_work",
        &[
            "bench",
            "--l2-adapter",
            adapter,
            "--op",
            "store",
            "--ops",
            "64",
            "--keys",
            "64",
        ],
    );
    let failed = number(&report, "/failed_ops");
    assert!((1..64).contains(&failed), "{failed}");
    assert_eq!(
        run.stderr,
        format!("moonring: warning: {failed} of 64 ops did not do their work; see the results\n")
    );
}

/// A comparison with all that it promises, whatever was compared.
fn compare(name: &str, args: &[&str]) -> Value {
    let report = bench(name, &[&["--compare"], args].concat());
    assert_eq!(number(&report, "/folds"), 0);
    let compare = &report["compare"];
    assert_eq!(number(compare, "/rounds"), number(&report, "/rounds"));
    let engine = &compare["engine"];
    assert_eq!(number(engine, "/keys"), number(&report, "/ops"));
    let in_order = |quartiles: &Value| {
        let of = |name: &str| quartiles[name].as_f64().expect("a number");
        let (q1, median, q3) = (of("q1"), of("median"), of("q3"));
        assert!(0.0 < q1 && q1 <= median && median <= q3, "{quartiles}");
        median
    };
    in_order(&engine["keys_per_s"]);
    assert_eq!(number(engine, "/failed_keys"), 0);
    for (kind, ratio) in [
        ("per_key", "ratio_vs_per_key"),
        ("hand_batched", "ratio_vs_hand_batched"),
    ] {
        let lines = compare[kind].as_array().expect("a list");
        let mut best = Vec::new();
        let mut medians = Vec::new();
        for line in lines {
            assert!(number(line, "/keys") > 0, "{line}");
            assert_eq!(number(line, "/failed_keys"), 0);
            assert_eq!(number(line, "/corrupt_values"), 0);
            let median = in_order(&line["keys_per_s"]);
            let engine_ratio = in_order(&line["engine_ratio"]);
            medians.push(median);
            if line["best"] == Value::Bool(true) {
                best.push((median, engine_ratio));
            }
        }
        let [(median, engine_ratio)] = best[..] else {
            panic!("{} are the best of {kind}", best.len());
        };
        assert!(medians.iter().all(|other| *other <= median), "{medians:?}");
        assert_eq!(report[ratio].as_f64(), Some(engine_ratio), "{kind}");
    }
    report
}

/// `threads x batch_keys` of each line.
fn lines(report: &Value, kind: &str) -> Vec<(u64, u64)> {
    let lines = report["compare"][kind].as_array().expect("a list");
    let of = |line| (number(line, "/threads"), number(line, "/batch_keys"));
    lines.iter().map(of).collect()
}

#[test]
fn a_comparison_measures_every_op_kind_beside_the_engine_and_checks_all_values() {
    for path in ["pair", "client"] {
        for op in ["lookup", "retrieve", "store", "delete"] {
            let report = compare(
                &format!("compare_{op}_{path}"),
                &[
                    "--op",
                    op,
                    "--path",
                    path,
                    "--seconds",
                    "0.004",
                    "--rounds",
                    "2",
                    "--producers",
                    "2",
                    "--keys",
                    "300",
                    "--value-bytes",
                    "100",
                ],
            );
            assert_eq!(number(&report, "/rounds"), 2);
            assert_eq!(lines(&report, "per_key"), [(1, 1), (4, 1)]);
            // 300 keys are 75 for each of 4 threads.
            let want = [
                (1, 32),
                (1, 64),
                (1, 128),
                (1, 256),
                (2, 32),
                (2, 64),
                (2, 128),
                (4, 32),
                (4, 64),
            ];
            assert_eq!(lines(&report, "hand_batched"), want);
            let moves = matches!(op, "retrieve" | "store");
            let values = if moves { 300 } else { 0 };
            assert_eq!(number(&report, "/verified_values"), values, "{op}");
            for kind in ["per_key", "hand_batched"] {
                for line in report["compare"][kind].as_array().expect("a list") {
                    assert_eq!(number(line, "/verified_values"), values, "{op} {line}");
                }
            }
        }
    }
}

#[test]
fn enough_keys_are_measured_in_batches_of_every_size() {
    let args = [
        "--op",
        "lookup",
        "--seconds",
        "0.02",
        "--keys",
        "1024",
        "--l2-adapter",
        r#"{"type": "null"}"#,
    ];
    let report = compare("compare_all", &args);
    assert_eq!(number(&report, "/rounds"), 21);
    let all: Vec<_> = [1, 2, 4]
        .iter()
        .flat_map(|threads| [32, 64, 128, 256].map(|batch| (*threads, batch)))
        .collect();
    assert_eq!(lines(&report, "hand_batched"), all);
}

/// On a busy machine a measurement of few calls may be off by any factor.
#[test]
fn where_a_call_costs_the_same_whatever_it_holds_rates_follow_keys_in_flight() {
    one_run_of(5, rates_follow_keys_in_flight);
}

fn rates_follow_keys_in_flight() -> Result<(), String> {
    let within = |what: &str, number: f64, least: f64, most: f64| match number {
        n if n >= least && n <= most => Ok(()),
        n => Err(format!("{what}: {n}, not {least} to {most}")),
    };
    // 5 ms a call: what is left of a rate is how many keys are in a call, times the threads.
    let adapter = r#"{"type": "sim", "delay_us": 5000}"#;
    let report = compare(
        "compare_sim",
        &[
            "--l2-adapter",
            adapter,
            "--op",
            "lookup",
            "--keys",
            "256",
            "--producers",
            "4",
            "--depth",
            "64",
            "--seconds",
            "0.12",
            "--rounds",
            "3",
        ],
    );
    let median = |kind: &str, (threads, batch): (u64, u64)| {
        let at = lines(&report, kind);
        let at = at.iter().position(|line| *line == (threads, batch));
        let line = &report["compare"][kind][at.expect("measured")];
        line["keys_per_s"]["median"].as_f64().expect("a number")
    };
    let one = median("per_key", (1, 1));
    // Sleeps are long by up to a few ms on a busy machine, never short.
    within("one", one, 20.0, 201.0)?;
    for (threads, batch) in [(1, 32), (1, 256), (4, 32), (4, 64)] {
        let times = median("hand_batched", (threads, batch)) / one;
        let want = (threads * batch) as f64;
        let what = format!("{threads} x {batch}");
        within(&what, times, want / 3.0, want * 3.0)?;
    }
    within("four", median("per_key", (4, 1)) / one, 1.3, 12.0)?;
    // 256 in flight against 4.
    let ratio = report["ratio_vs_per_key"].as_f64().expect("a number");
    within("per key", ratio, 8.0, 200.0)?;
    // As many in flight.
    let ratio = report["ratio_vs_hand_batched"].as_f64().expect("a number");
    within("hand-made", ratio, 0.1, 2.0)
}

#[test]
fn values_that_come_damaged_to_a_direct_call_are_found_too() {
    let adapter = r#"{"type": "sim", "flip_bytes": {"calls": [1], "op": "retrieve"}}"#;
    let args = [
        "bench",
        "--compare",
        "--l2-adapter",
        adapter,
        "--keys",
        "128",
        "--seconds",
        "0.01",
        "--rounds",
        "1",
    ];
    let (run, report) = with_json("compare_damaged", &args);
    // The first retrieve of all is the first contestant's: one call per key, by one thread.
    assert_eq!(number(&report, "/compare/per_key/0/corrupt_values"), 1);
    assert_eq!(number(&report, "/compare/per_key/1/corrupt_values"), 0);
    assert_eq!(number(&report, "/corrupt_values"), 1);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(run.stderr, "moonring: 1 values have wrong bytes\n");
}

#[test]
fn keys_that_fail_in_a_direct_call_are_told() {
    // Five failed calls in a row would open the circuit, and ops be refused.
    let adapter = r#"{"type": "sim", "call_error_rate": 0.2, "moonring": {"fail_fast_after": 0}}"#;
    let args = [
        "bench",
        "--compare",
        "--l2-adapter",
        adapter,
        "--op",
        "store",
        "--keys",
        "128",
        "--seconds",
        "0.01",
        "--rounds",
        "2",
    ];
    let (run, report) = with_json("compare_failed", &args);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(number(&report, "/compare/per_key/0/failed_keys") > 0);
    assert!(run.stderr.contains("ops did not do their work"), "{run:?}");
}

#[test]
fn the_table_of_a_comparison_has_all_of_it() {
    let run = moonring([
        "bench",
        "--compare",
        "--op",
        "lookup",
        "--keys",
        "1024",
        "--seconds",
        "0.01",
        "--rounds",
        "1",
    ]);
    assert_eq!(run.code, Some(0), "{run:?}");
    for told in [
        "one call per key, 4 threads",
        "batches of 256 keys, 4 threads",
        "engine's ratio",
        "folds 0",
    ] {
        assert!(run.stdout.contains(told), "{told}: {}", run.stdout);
    }
    assert_eq!(run.stdout.matches("  * ").count(), 2, "{}", run.stdout);
}

#[test]
fn bad_input_is_told_in_one_line_and_ends_with_2() {
    for (args, told) in [
        (
            &["--keys", "100", "--producers", "4"][..],
            "--keys: 100 are 25 a producer, --depth 64 needs as many",
        ),
        (
            &["--key-bytes", "1"],
            "--key-bytes: 4096 different keys need at least 2 bytes, have 1",
        ),
        (
            &["--key-bytes", "2000"],
            "--key-bytes: 2000, but moonring.max_key is 1024",
        ),
        (
            &["--key-bytes", "256", "--path", "client", "--producers", "2"],
            "--key-bytes: with more than 255, moonring.long_keys must be at least 128, is 16",
        ),
        (
            &["--value-bytes", "4096", "--region-bytes", "8192"],
            "--region-bytes: the region needs 256 KiB (262144 bytes) for 1 producers x 64 ops in flight \
             x 4 KiB, it has 8 KiB (8192 bytes)",
        ),
        (
            &["--compare", "--keys", "1024", "--region-bytes", "8192"],
            "--region-bytes: the region needs 4.2 MiB (4456448 bytes) for 1 producers x 64 ops in flight \
             and 1024 buffers of hand-made batches x 4 KiB, it has 8 KiB (8192 bytes)",
        ),
        (
            &["--compare", "--keys", "127"],
            "--keys: 127, --compare needs at least 128, 32 for each of 4 threads",
        ),
        (
            &["--sweep", "--op", "mixed"],
            "--sweep: not with --op mixed, one op kind is swept",
        ),
        (
            &["--rounds", "3"],
            "--rounds: only with --compare or --sweep",
        ),
        (
            &["--linger-us", "3", "--path", "client"],
            "--linger-us: only with --path pair",
        ),
        (
            &["--compare", "--op", "mixed"],
            "--compare: not with --op mixed, one op kind is compared",
        ),
    ] {
        let run = moonring([&["bench"], args].concat());
        assert_eq!(run.code, Some(2), "{run:?}");
        assert_eq!(run.stderr, format!("moonring: {told}\n"));
    }
    let run = moonring(["bench", "--max-batch", "0"]);
    assert_eq!(run.code, Some(2));
    assert!(
        run.stderr
            .starts_with("moonring: --max-batch: moonring.max_batch: ")
    );
    for args in [
        &["--ops", "5", "--seconds", "1"][..],
        &["--seconds", "0"],
        &["--op", "get"],
        &["--producers", "0"],
        &["--sweep", "--compare"],
        &["--sweep", "--max-batch", "3"],
        &["--svg", "a.svg"],
        &["--linger-ops", "3"],
        &["--compare", "--rounds", "0"],
        &["--compare", "--ops", "100"],
    ] {
        assert_eq!(moonring([&["bench"], args].concat()).code, Some(2));
    }
}
