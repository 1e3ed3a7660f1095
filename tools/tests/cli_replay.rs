//! `moonring replay`: the counts of a trace come out, every byte is checked, and what is wrong is told.

mod support;

use std::fs;

use moonring_tools::keys::KeyMaker;
use moonring_tools::oracle::{self, Counts};
use moonring_tools::trace::Trace;
use serde_json::Value;
use support::{folder, is_documented, moonring, one_run::one_run_of, published, sample, with_json};

const PATHS: [&str; 2] = ["pair", "client"];

fn sample_arg() -> String {
    sample().to_string_lossy().into_owned()
}

fn number(report: &Value, pointer: &str) -> u64 {
    let value = report.pointer(pointer).and_then(Value::as_u64);
    value.unwrap_or_else(|| panic!("no number {pointer} in {report:#}"))
}

/// Every block counts once, and nothing is left over in the engine.
fn accounted(report: &Value) {
    let sum: u64 = [
        "/hit_blocks",
        "/late_misses",
        "/stored_blocks",
        "/no_space",
        "/failed_blocks",
    ]
    .iter()
    .map(|name| number(report, name))
    .sum();
    assert_eq!(sum, number(report, "/blocks"), "{report:#}");
    let engine = |name: &str| number(report, &format!("/engine/{name}"));
    assert_eq!(engine("accepted"), engine("completed"));
    assert_eq!(engine("in_flight"), 0);
    assert_eq!(
        number(report, "/request_us/count"),
        number(report, "/requests")
    );
}

/// The report of a replay, one request after the other, of a store that never evicts.
fn is_sequential(report: &Value, want: Counts, block_bytes: u64) {
    accounted(report);
    for (name, value) in [
        ("/requests", want.requests),
        ("/blocks", want.blocks),
        ("/hit_blocks", want.hit_blocks),
        ("/stored_blocks", want.stored_blocks),
        ("/late_misses", 0),
        ("/no_space", 0),
        ("/failed_blocks", 0),
        ("/corrupt_blocks", 0),
        ("/bytes_retrieved", want.hit_blocks * block_bytes),
        ("/bytes_stored", want.stored_blocks * block_bytes),
        ("/folded_bytes", 0),
        ("/lanes/lookup/ops", want.blocks),
        ("/lanes/retrieve/ops", want.hit_blocks),
        ("/lanes/retrieve/by_code/ok", want.hit_blocks),
        ("/lanes/retrieve/latency_us/count", want.hit_blocks),
        ("/lanes/store/ops", want.stored_blocks),
        ("/lanes/store/by_code/stored", want.stored_blocks),
        ("/lanes/delete/ops", 0),
        ("/engine/accepted", want.blocks * 2),
        ("/engine/refused", 0),
    ] {
        assert_eq!(number(report, name), value, "{name} in {report:#}");
    }
    let ratio = want.hit_blocks as f64 / want.blocks as f64;
    assert_eq!(report["hit_ratio"].as_f64(), Some(ratio));
    assert!(report["wall_s"].as_f64().is_some_and(|s| s > 0.0));
    assert_eq!(report["corrupt"], Value::Array(Vec::new()));
    assert_eq!(report["errors"], Value::Array(Vec::new()));
}

#[test]
fn the_sample_has_the_oracles_counts_on_both_paths() {
    let want = oracle::count(&Trace::load(&sample(), None).requests);
    for path in PATHS {
        let args = ["replay", &sample_arg(), "--path", path];
        let (run, report) = with_json(&format!("sample_{path}"), &args);
        assert_eq!(run.code, Some(0), "{run:?}");
        assert_eq!(run.stderr, "");
        is_sequential(&report, want, 4096);
        is_documented(&report);
        assert_eq!(report["path"], path);
        for line in ["hits", "request p99", "retrieve", "ok 4,446"] {
            assert!(run.stdout.contains(line), "no {line}: {}", run.stdout);
        }
    }
}

#[test]
fn the_published_trace_begins_with_its_published_counts_on_both_paths() {
    let Some(path) = published() else {
        return;
    };
    let trace = Trace::load(&path, Some(1000));
    let file = path.to_string_lossy();
    for path in PATHS {
        // Odd blocks, and small ones, for a debug build.
        let args = [
            "replay",
            &file,
            "--path",
            path,
            "--block-bytes",
            "99",
            "--limit",
            "1000",
        ];
        let (run, report) = with_json(&format!("published_{path}"), &args);
        assert_eq!(run.code, Some(0), "{run:?}");
        is_sequential(&report, oracle::count(&trace.requests), 99);
    }
}

#[test]
#[ignore = "needs optimised code"]
fn release_the_published_trace_has_its_published_counts_on_both_paths() {
    let Some(path) = published() else {
        return;
    };
    let trace = Trace::load(&path, None);
    let file = path.to_string_lossy();
    for path in PATHS {
        let args = ["replay", &file, "--path", path, "--block-bytes", "4096"];
        let (run, report) = with_json(&format!("published_all_{path}"), &args);
        assert_eq!(run.code, Some(0), "{run:?}");
        let want = oracle::count(&trace.requests);
        assert_eq!(
            (
                want.requests,
                want.blocks,
                want.hit_blocks,
                want.stored_blocks
            ),
            (12_031, 288_500, 105_710, 182_790)
        );
        is_sequential(&report, want, 4096);
        assert!(report["wall_s"].as_f64().is_some_and(|s| s < 60.0));
        assert!(number(&report, "/peak_memory_bytes") < 2 << 30);
        let args = [&args[..], &["--concurrency", "64"]].concat();
        let (run, report) = with_json(&format!("published_many_{path}"), &args);
        assert_eq!(run.code, Some(0), "{run:?}");
        no_block_is_lost(&report, want);
    }
}

/// Of a store that never evicts, with requests that overlap.
fn no_block_is_lost(report: &Value, want: Counts) {
    accounted(report);
    assert_eq!(number(report, "/blocks"), want.blocks);
    for zero in [
        "/corrupt_blocks",
        "/failed_blocks",
        "/late_misses",
        "/no_space",
    ] {
        assert_eq!(number(report, zero), 0, "{zero}");
    }
    // Requests that overlap can only miss what the other has not stored yet.
    assert!(number(report, "/hit_blocks") <= want.hit_blocks);
    let stored = number(report, "/lanes/store/by_code/stored");
    assert_eq!(stored, want.objects, "each object is stored once");
}

#[test]
fn many_requests_in_flight_lose_no_block() {
    for path in PATHS {
        let args = [
            "replay",
            &sample_arg(),
            "--path",
            path,
            "--concurrency",
            "64",
        ];
        let (run, report) = with_json(&format!("many_{path}"), &args);
        assert_eq!(run.code, Some(0), "{run:?}");
        let want = oracle::count(&Trace::load(&sample(), None).requests);
        no_block_is_lost(&report, want);
    }
}

/// Many requests in flight share retrieve calls: at most a quarter as many as one in flight makes.
fn callers_share_calls(trace: &str, delay_us: u32, more: &[&str]) {
    let adapter = format!(
        r#"{{"type": "sim", "delay_us": {delay_us}, "per_op_workers": {{"retrieve": 1}}}}"#
    );
    for path in PATHS {
        let run = |concurrency: &str| {
            let args = ["replay", trace, "--path", path, "--l2-adapter", &adapter];
            let args = [&args[..], &["--concurrency", concurrency], more].concat();
            let (run, report) = with_json(&format!("share_{delay_us}_{path}_{concurrency}"), &args);
            assert_eq!(run.code, Some(0), "{run:?}");
            accounted(&report);
            report
        };
        let one = run("1");
        let calls = |report: &Value| number(report, "/lanes/retrieve/calls");
        let single = calls(&one);
        // How many come together in a run is up to the machine, too.
        one_run_of(5, || {
            let many = run("64");
            let callers = many.pointer("/lanes/retrieve/callers_per_call");
            let callers = callers.and_then(Value::as_f64).expect("a number");
            let few = calls(&many);
            if few * 4 <= single && callers >= 4.0 {
                return Ok(());
            }
            Err(format!(
                "{path}: {few} calls of {callers} callers, {single} with one caller"
            ))
        });
    }
}

#[test]
fn callers_in_flight_together_share_store_calls() {
    // A slow store and little work for the processor, also in a debug build: what is waited for is the store.
    callers_share_calls(
        &sample_arg(),
        2000,
        &["--block-bytes", "64", "--limit", "200"],
    );
}

#[test]
#[ignore = "needs optimised code"]
fn release_callers_in_flight_together_share_store_calls() {
    if let Some(path) = published() {
        callers_share_calls(&path.to_string_lossy(), 200, &[]);
    }
}

/// The blocks that the sample's replay retrieves, in order: request (from 1), place in it, id.
fn hits() -> Vec<(u64, u64, u64)> {
    let mut there = std::collections::HashSet::new();
    let mut hits = Vec::new();
    for (request, i) in Trace::load(&sample(), None).requests.iter().zip(1..) {
        let ids = request.hash_ids.iter().copied();
        let leading = ids.clone().take_while(|id| there.contains(id));
        hits.extend(leading.zip(0..).map(|(id, block)| (i, block, id)));
        there.extend(ids);
    }
    hits
}

#[test]
fn corrupt_blocks_are_told_exactly() {
    let hits = hits();
    for path in PATHS {
        for fault in ["flip_bytes", "unwritten"] {
            // One key a call, one worker: call n serves the n-th hit.
            let adapter = format!(
                r#"{{"type": "sim", "{fault}": {{"calls": [5, 1, 4000]}},
                    "per_op_workers": {{"retrieve": 1}}, "moonring": {{"max_batch": 1}}}}"#
            );
            let args = [
                "replay",
                &sample_arg(),
                "--path",
                path,
                "--l2-adapter",
                &adapter,
                "--salt",
                "s",
            ];
            let (run, report) = with_json(&format!("{fault}_{path}"), &args);
            assert_eq!(run.code, Some(1), "{run:?}");
            accounted(&report);
            assert_eq!(number(&report, "/corrupt_blocks"), 3);
            assert_eq!(number(&report, "/hit_blocks"), hits.len() as u64);
            let keys = KeyMaker::new("s").expect("a salt");
            let listed = report["corrupt"].as_array().expect("a list");
            assert_eq!(listed.len(), 3);
            for (listed, n) in listed.iter().zip([1, 5, 4000]) {
                let (request, block, id) = hits[n - 1];
                assert_eq!(number(listed, "/request"), request);
                assert_eq!(number(listed, "/block"), block);
                assert_eq!(number(listed, "/id"), id);
                assert_eq!(listed["key"], keys.text(id));
                let found = number(listed, "/found");
                assert_eq!(found == 0x5A, fault == "unwritten", "{listed}");
                let line =
                    format!("moonring: corrupt: request {request}, block {block} (id {id}, ");
                assert!(run.stderr.contains(&line), "no {line}: {}", run.stderr);
            }
            assert!(run.stderr.ends_with("moonring: 3 corrupt blocks\n"));
        }
    }
}

#[test]
fn corrupt_blocks_are_those_that_the_sim_spoiled() {
    for path in PATHS {
        for (fault, blocks) in [("flip_bytes", 3), ("unwritten", 3), ("swapped", 6)] {
            // One request after the other and one worker: a call is a request's.
            let adapter = format!(
                r#"{{"type": "sim", "{fault}": {{"calls": [3, 50, 300]}}, "per_op_workers": {{"retrieve": 1}}}}"#
            );
            let args = [
                "replay",
                &sample_arg(),
                "--path",
                path,
                "--l2-adapter",
                &adapter,
            ];
            let (run, report) = with_json(&format!("spoiled_{fault}_{path}"), &args);
            assert_eq!(run.code, Some(1), "{run:?}");
            accounted(&report);
            is_documented(&report);
            is_documented(&report["corrupt"][0]);
            assert_eq!(number(&report, "/corrupt_blocks"), blocks);
            let text = |value: &Value| value.as_str().expect("a key").to_owned();
            let list = |name: &str| {
                let list = report.pointer(name).and_then(Value::as_array);
                list.expect("a list").clone()
            };
            let mut corrupt: Vec<_> = list("/corrupt").iter().map(|c| text(&c["key"])).collect();
            let spoiled = list("/sim/spoiled");
            assert_eq!(spoiled.len(), 3);
            let keys = spoiled
                .iter()
                .flat_map(|s| s["keys"].as_array().expect("keys"));
            let mut spoiled: Vec<_> = keys.map(text).collect();
            corrupt.sort();
            spoiled.sort();
            assert_eq!(corrupt, spoiled, "{fault}, {path}");
        }
    }
}

#[test]
fn all_corrupt_blocks_are_counted_where_not_all_are_listed() {
    let adapter = r#"{"type": "sim", "flip_bytes": {"rate": 1}, "moonring": {"max_batch": 1}}"#;
    let args = ["replay", &sample_arg(), "--l2-adapter", adapter];
    let (run, report) = with_json("all_corrupt", &args);
    assert_eq!(run.code, Some(1));
    let corrupt = number(&report, "/corrupt_blocks");
    assert_eq!(corrupt, number(&report, "/hit_blocks"));
    let told =
        "moonring: 4,446 corrupt blocks; 20 of them are told above, 1000 are listed in the JSON\n";
    assert!(run.stderr.ends_with(told), "{}", run.stderr);
    assert_eq!(report["corrupt"].as_array().map(Vec::len), Some(1000));
    assert_eq!(run.stderr.matches("moonring: corrupt: ").count(), 20);
}

#[test]
fn failing_ops_are_counted_and_not_corrupt() {
    for path in PATHS {
        let adapter = r#"{"type": "sim", "seed": 3, "key_error_rate": 0.05, "call_error_rate": 0.02,
                          "panics": {"rate": 0.01}, "wrong_count": {"rate": 0.01}}"#;
        let args = [
            "replay",
            &sample_arg(),
            "--path",
            path,
            "--l2-adapter",
            adapter,
            "--concurrency",
            "8",
        ];
        let (run, report) = with_json(&format!("failing_{path}"), &args);
        assert_eq!(run.code, Some(0), "{run:?}");
        accounted(&report);
        assert!(number(&report, "/failed_blocks") > 0);
        assert!(number(&report, "/hit_blocks") > 0);
        // What is unknown is not taken for there: nothing is retrieved that was not stored.
        assert_eq!(number(&report, "/late_misses"), 0);
        assert_eq!(number(&report, "/corrupt_blocks"), 0);
    }
}

#[test]
fn a_store_that_evicts_gives_late_misses_and_no_wrong_byte() {
    for path in PATHS {
        // The sample has 3,433 different blocks. There is room for 128, fewer than the requests in flight store.
        let adapter = r#"{"type": "memory", "capacity": "512 KiB", "lease_ms": 0}"#;
        let args = [
            "replay",
            &sample_arg(),
            "--path",
            path,
            "--l2-adapter",
            adapter,
            "--concurrency",
            "64",
        ];
        let (run, report) = with_json(&format!("evicting_{path}"), &args);
        assert_eq!(run.code, Some(0), "{run:?}");
        accounted(&report);
        assert_eq!(number(&report, "/corrupt_blocks"), 0);
        let want = oracle::count(&Trace::load(&sample(), None).requests);
        assert!(number(&report, "/hit_blocks") > 0);
        let late = number(&report, "/late_misses");
        assert!(late > 0, "{report:#}");
        assert_eq!(number(&report, "/lanes/retrieve/by_code/not_found"), late);
        assert!(number(&report, "/stored_blocks") > want.stored_blocks);
    }
}

#[test]
fn blocks_lie_across_no_registration_boundary() {
    let adapter = r#"{"type": "memory", "moonring": {"max_registration": 10000}}"#;
    let args = ["replay", &sample_arg(), "--l2-adapter", adapter];
    let (run, report) = with_json("registration", &args);
    assert_eq!(run.code, Some(0), "{run:?}");
    let want = oracle::count(&Trace::load(&sample(), None).requests);
    is_sequential(&report, want, 4096);
}

#[test]
fn warnings_are_told_and_end_nothing() {
    let adapter = r#"{"type": "memory", "eviction": {"policy": "lru"}}"#;
    let args = [
        "replay",
        &sample_arg(),
        "--limit",
        "5",
        "--l2-adapter",
        adapter,
    ];
    let (run, _) = with_json("warnings", &args);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(
        run.stderr.starts_with("moonring: warning: eviction: "),
        "{}",
        run.stderr
    );
}

#[test]
fn refused_keys_fail_and_the_run_goes_on() {
    for path in PATHS {
        let adapter = r#"{"type": "memory", "moonring": {"max_key": 50}}"#;
        let args = [
            "replay",
            &sample_arg(),
            "--path",
            path,
            "--l2-adapter",
            adapter,
        ];
        let (run, report) = with_json(&format!("refused_{path}"), &args);
        assert_eq!(run.code, Some(0), "{run:?}");
        accounted(&report);
        let blocks = number(&report, "/blocks");
        assert_eq!(number(&report, "/failed_blocks"), blocks);
        assert_eq!(number(&report, "/engine/refused"), 2 * blocks);
    }
}

#[test]
fn a_recorded_pace_is_kept() {
    let trace = Trace::load(&sample(), None);
    let (first, last) = (trace.requests.first(), trace.requests.last());
    let recorded = last.expect("some").timestamp - first.expect("some").timestamp;
    for path in PATHS {
        let args = [
            "replay",
            &sample_arg(),
            "--path",
            path,
            "--speed",
            "40",
            "--concurrency",
            "4",
            "--block-bytes",
            "64",
        ];
        let (run, report) = with_json(&format!("pace_{path}"), &args);
        assert_eq!(run.code, Some(0), "{run:?}");
        accounted(&report);
        let wall = report["wall_s"].as_f64().expect("a number");
        assert!(wall >= recorded as f64 / 1e3 / 40.0, "{wall} s");
    }
}

#[test]
fn each_run_has_its_own_salt_unless_given() {
    let salt = |name: &str, more: &[&str]| {
        let sample = sample_arg();
        let args = [&["replay", &sample, "--limit", "3"], more].concat();
        let (run, report) = with_json(name, &args);
        let salt = report["salt"].as_str().expect("a salt").to_owned();
        assert!(run.stdout.contains(&format!("salt {salt}")));
        salt
    };
    assert_ne!(salt("salt_1", &[]), salt("salt_2", &[]));
    assert_eq!(salt("salt_3", &["--salt", "mine"]), "mine");
}

#[test]
fn json_to_standard_output_stands_there_alone() {
    let run = moonring(["replay", &sample_arg(), "--limit", "5", "--json", "-"]);
    assert_eq!(run.code, Some(0));
    let report: Value = serde_json::from_str(&run.stdout).expect("JSON alone");
    assert_eq!(number(&report, "/requests"), 5);
    assert!(run.stderr.contains("requests"), "the table: {}", run.stderr);
}

#[test]
fn what_stands_before_a_bad_line_is_played_and_reported() {
    let text = fs::read_to_string(sample()).expect("the sample");
    let lines: Vec<_> = text.lines().collect();
    let want = oracle::count(&Trace::load(&sample(), Some(69)).requests);
    for (name, bad, what) in [
        (
            "json",
            "{\"timestamp\": 5,",
            "not JSON: EOF while parsing a value at column 16",
        ),
        ("missing", r#"{"timestamp": 5}"#, "input_length: missing"),
        (
            "negative",
            r#"{"timestamp": 5, "input_length": 1, "output_length": -1, "hash_ids": []}"#,
            "output_length: -1 is negative",
        ),
        (
            "type",
            r#"{"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": "x"}"#,
            "hash_ids: expected an array, found a string",
        ),
    ] {
        let file = folder(&format!("bad_{name}")).join("trace.jsonl");
        let text = [&lines[..69], &[bad], &lines[69..]].concat().join("\n");
        fs::write(&file, text).expect("a trace");
        let file = file.to_string_lossy();
        let (run, report) = with_json(&format!("bad_{name}_json"), &["replay", &file]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert_eq!(run.stderr, format!("moonring: {file}:70: {what}\n"));
        assert_eq!(
            report["errors"],
            serde_json::json!([format!("{file}:70: {what}")])
        );
        accounted(&report);
        assert_eq!(number(&report, "/requests"), 69);
        assert_eq!(number(&report, "/hit_blocks"), want.hit_blocks);
        assert!(run.stdout.contains("requests"), "a table: {}", run.stdout);
    }
}

#[test]
fn bad_input_is_told_in_one_line_and_ends_with_2() {
    let here = folder("bad_input");
    let file = |name: &str, bytes: &[u8]| {
        let path = here.join(name);
        fs::write(&path, bytes).expect("a file");
        path.to_string_lossy().into_owned()
    };
    let empty = file("empty.jsonl", b"");
    let blank = file("blank.jsonl", b"\n\n");
    let binary = file("binary.jsonl", b"\xff\xfe\n");
    let folder = here.to_string_lossy().into_owned();
    let sample = sample_arg();
    for (args, told) in [
        (vec![&*empty], format!("{empty}: is empty: no requests")),
        (vec![&*blank], format!("{blank}: is empty: no requests")),
        (vec![&*binary], format!("{binary}:1: not UTF-8 at byte 0")),
        (vec![&*folder], format!("{folder}: is a directory, not a trace")),
        (
            vec!["/no/such/file"],
            "/no/such/file: No such file or directory (os error 2)".into(),
        ),
        (
            vec![&*sample, "--concurrency", "4", "--region-bytes", "1MiB"],
            "--region-bytes: the region needs 1.3 MiB (1327104 bytes) for 4 requests in flight x 81 \
             blocks x 4 KiB, it has 1 MiB (1048576 bytes)"
                .into(),
        ),
        (
            vec![&*sample, "--concurrency", "64", "--block-bytes", "1MiB"],
            "the region needs 5.1 GiB (5435817984 bytes) for 64 requests in flight x 81 blocks x 1 \
             MiB, and unasked it has at most 1 GiB (1073741824 bytes): give --region-bytes 5435817984"
                .into(),
        ),
        (
            vec![&*sample, "--concurrency", "64", "--block-bytes", "16777215TiB"],
            "the region would need more than the address space holds (64 requests in flight x 81 \
             blocks x 16777215 TiB)"
                .into(),
        ),
        (
            vec![&*sample, "--json", "/no/such/folder/x"],
            "--json /no/such/folder/x: No such file or directory (os error 2)".into(),
        ),
    ] {
        let run = moonring([&["replay"], &args[..]].concat());
        assert_eq!(run.code, Some(2), "{args:?}: {run:?}");
        assert_eq!(run.stderr, format!("moonring: {told}\n"), "{args:?}");
        assert_eq!(run.stdout, "");
    }
    for (adapter, field) in [
        ("", "json"),
        ("[]", "json"),
        (r#"{"type": "file"}"#, "type"),
        (r#"{"type": "memory", "capacty": 1}"#, "capacty"),
        (r#"{"type": "memory", "num_workers": 0}"#, "num_workers"),
    ] {
        let run = moonring(["replay", &sample, "--l2-adapter", adapter]);
        assert_eq!(run.code, Some(2), "{adapter}: {run:?}");
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
        let start = format!("moonring: --l2-adapter: {field}: ");
        assert!(run.stderr.starts_with(&start), "{adapter}: {}", run.stderr);
    }
    for args in [
        ["--speed", "-1"],
        ["--speed", "nan"],
        ["--concurrency", "0"],
        ["--limit", "0"],
        ["--block-bytes", "0"],
        ["--salt", "a@b"],
        ["--path", "ring"],
    ] {
        let run = moonring([&["replay", &sample], &args[..]].concat());
        assert_eq!(run.code, Some(2), "{args:?}: {run:?}");
        assert!(run.stderr.contains(args[0]), "{}", run.stderr);
    }
}
