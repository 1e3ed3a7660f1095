//! `moonring bench`: as many ops as asked for, each of which does its work.

mod support;

use serde_json::Value;
use support::{is_documented, moonring, with_json};

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
        assert!((0.3..10.0).contains(&wall), "{wall}");
        assert!(number(&report, "/ops") > 100);
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
    ] {
        assert_eq!(moonring([&["bench"], args].concat()).code, Some(2));
    }
}
