//! `.hlog` and `.hgrm` files and the page about them: what they say is what the JSON says, whatever names they have.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{
    IntervalLogIterator, IntervalLogWriterBuilder, LogEntry, Tag,
};
use hdrhistogram::serialization::{Deserializer, V2DeflateSerializer};
use roxmltree::{Document, ParsingOptions};
use serde_json::Value;
use support::{Run, folder, is_documented, moonring, sample};

const OPS: [&str; 4] = ["lookup", "retrieve", "store", "delete"];

/// A run with all its files in a folder: `NAME.json`, `NAME.hlog` and `NAME/`.
fn recorded(folder: &Path, name: &str, args: &[&str]) -> (Run, Value) {
    let file = |end: &str| {
        folder
            .join(format!("{name}{end}"))
            .to_string_lossy()
            .into_owned()
    };
    let (json, hlog, hgrm) = (file(".json"), file(".hlog"), file(""));
    let outputs = [
        "--json",
        &json,
        "--hlog",
        &hlog,
        "--hgrm",
        &hgrm,
        "--interval",
        "0.1",
    ];
    let run = moonring(args.iter().chain(&outputs));
    assert_eq!(run.code, Some(0), "{run:?}");
    let report = fs::read_to_string(&json).expect("a report");
    (run, serde_json::from_str(&report).expect("JSON"))
}

/// Beginning and length of intervals, in seconds.
type Spans = Vec<(f64, f64)>;

/// The sum of each tag's histograms, and the intervals of each.
fn sums(hlog: &Path) -> BTreeMap<String, (Histogram<u64>, Spans)> {
    let bytes = fs::read(hlog).expect("a log");
    let mut sums: BTreeMap<String, (Histogram<u64>, Spans)> = BTreeMap::new();
    let (mut start, mut base) = (false, false);
    for entry in IntervalLogIterator::new(&bytes) {
        let interval = match entry.expect("a line of the log") {
            LogEntry::StartTime(_) => {
                start = true;
                continue;
            }
            LogEntry::BaseTime(_) => {
                base = true;
                continue;
            }
            LogEntry::Interval(interval) => interval,
        };
        let payload = STANDARD
            .decode(interval.encoded_histogram())
            .expect("base64");
        let histogram = Deserializer::new().deserialize(&mut payload.as_slice());
        let histogram: Histogram<u64> = histogram.expect("a histogram");
        let max_ms = histogram.max() as f64 / 1e6;
        assert!((interval.max() - max_ms).abs() < 0.001, "{interval:?}");
        let tag = interval.tag().expect("a tag").to_string();
        let span = [interval.start_timestamp(), interval.duration()];
        let [from, length] = span.map(|time| time.as_secs_f64());
        match sums.get_mut(&tag) {
            Some((sum, spans)) => {
                sum.add(&histogram).expect("the same bounds");
                spans.push((from, length));
            }
            None => {
                sums.insert(tag, (histogram, vec![(from, length)]));
            }
        }
    }
    assert!(start && base, "times of the beginning");
    sums
}

/// What the JSON says of a histogram of nanoseconds.
fn agrees(histogram: &Histogram<u64>, us: &Value, what: &str) {
    assert_eq!(us["count"].as_u64(), Some(histogram.len()), "{what}");
    for (name, quantile) in [
        ("p50", 0.5),
        ("p90", 0.9),
        ("p99", 0.99),
        ("p999", 0.999),
        ("max", 1.0),
    ] {
        let want = us[name].as_f64().expect("a number") * 1e3;
        let have = histogram.value_at_quantile(quantile) as f64;
        assert!(
            (have - want).abs() < 0.5,
            "{what} {name}: {have} ns, {want} ns"
        );
    }
}

/// The log, the distributions and the intervals of the JSON are three views of what the JSON sums up.
fn all_agree(folder: &Path, name: &str, report: &Value, others: &[(&str, &str)]) {
    let sums = sums(&folder.join(format!("{name}.hlog")));
    let mut want: Vec<(String, Value)> = Vec::new();
    for op in OPS {
        for (end, member) in [
            ("", "latency_us"),
            (".queue", "queue_us"),
            (".call", "call_us"),
            (".caller", "caller_us"),
            (".corrected", "corrected_us"),
        ] {
            want.push((format!("{op}{end}"), report["lanes"][op][member].clone()));
        }
    }
    for (tag, pointer) in others {
        want.push((
            (*tag).into(),
            report.pointer(pointer).expect("a member").clone(),
        ));
    }
    want.retain(|(_, us)| us["count"].as_u64().is_some_and(|count| count > 0));
    let tags: Vec<_> = want.iter().map(|(tag, _)| tag.as_str()).collect();
    assert_eq!(tags.len(), sums.len(), "{tags:?} in {:?}", sums.keys());
    for (tag, us) in &want {
        let (histogram, spans) = &sums[tag];
        agrees(histogram, us, tag);
        for pair in spans.windows(2) {
            let [(from, length), (next, _)] = pair else {
                unreachable!()
            };
            assert!(from + length <= next + 0.002, "{tag}: {spans:?}");
        }
        let hgrm = fs::read_to_string(folder.join(name).join(format!("{tag}.hgrm")));
        let hgrm = hgrm.unwrap_or_else(|e| panic!("{tag}.hgrm: {e}"));
        let last = hgrm.lines().rfind(|line| !line.starts_with('#'));
        let last: Vec<f64> = last
            .expect("lines")
            .split_whitespace()
            .map(|cell| cell.parse().expect("a number"))
            .collect();
        let max = us["max"].as_f64().expect("a number");
        assert!((last[0] - max).abs() < 0.001, "{tag}: {last:?}, {us}");
        assert_eq!(last[1..], [1.0, histogram.len() as f64], "{tag}");
    }
    let intervals = report["intervals"].as_array().expect("a list");
    assert!(!intervals.is_empty(), "{report:#}");
    for op in OPS {
        for what in ["ops", "calls"] {
            let per_interval = intervals
                .iter()
                .map(|i| i["lanes"][op][what].as_u64().unwrap_or(0));
            let sum: u64 = per_interval.sum();
            assert_eq!(Some(sum), report["lanes"][op][what].as_u64(), "{op} {what}");
        }
    }
}

#[test]
fn a_log_of_a_bench_agrees_with_its_json() {
    let folder = folder("log_bench");
    let mut most = 0;
    for (name, more) in [
        ("closed", &["--op", "mixed", "--path", "pair"][..]),
        (
            "rate_pair",
            &["--op", "retrieve", "--path", "pair", "--rate", "2000"],
        ),
        (
            "rate_client",
            &["--op", "mixed", "--path", "client", "--rate", "2000"],
        ),
        (
            "rounds",
            &["--op", "store", "--path", "client", "--keys", "200"],
        ),
    ] {
        let args = [
            "bench",
            "--seconds",
            "0.45",
            "--producers",
            "2",
            "--depth",
            "32",
        ];
        let (_, report) = recorded(&folder, name, &[&args[..], more].concat());
        is_documented(&report);
        assert_eq!(report["interrupted"], false);
        assert!(report["began_unix_s"].as_f64() > Some(1e9));
        all_agree(&folder, name, &report, &[]);
        most = most.max(report["intervals"].as_array().map_or(0, Vec::len));
        let lane = &report["lanes"]["retrieve"];
        if name == "closed" {
            assert_eq!(lane["caller_us"]["count"], lane["latency_us"]["count"]);
            assert_eq!(lane["corrected_us"], Value::Null);
        }
        if name == "rate_pair" {
            assert_eq!(lane["caller_us"]["count"], report["ops"]);
            assert_eq!(lane["corrected_us"]["count"], report["ops"]);
        }
    }
    // Four or five of each, where none was kept from its core for so long.
    assert!(most > 1, "intervals that the log would not tell apart");
}

/// The engine's turns are in it, and between them nothing.
#[test]
fn a_log_of_a_comparison_agrees_with_its_json() {
    let folder = folder("log_compare");
    for op in ["lookup", "store"] {
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
            "0.1",
            "--rounds",
            "4",
        ];
        let (_, report) = recorded(&folder, op, &args);
        all_agree(&folder, op, &report, &[]);
        let lane = &report["lanes"][op];
        // A store's rounds have nothing else in their lane, and none of the warm-up's.
        assert_eq!(lane["ops"], report["ops"], "{op}");
        assert!(report["ops"].as_u64() > Some(0), "{op}");
        let page = page(&folder, &[&format!("{op}.hlog"), &format!("{op}.json")]);
        for told in [
            "times one call per key",
            "times the best by hand",
            "in turns with others",
        ] {
            assert!(page.contains(told), "{op}: no {told}");
        }
        // Taking a caller's times would make the engine slower than what it is compared with.
        assert_eq!(lane.get("caller_us"), None, "{op}");
    }
}

/// The turns of the settings as configured are in it, and nothing of the others.
#[test]
fn a_log_of_a_sweep_is_of_the_settings_as_configured() {
    let folder = folder("log_sweep");
    for op in ["lookup", "store"] {
        let args = ["bench", "--sweep=4,16", "--op", op, "--keys", "128"];
        let more = ["--seconds", "0.2", "--rounds", "4"];
        let (_, report) = recorded(&folder, op, &[&args[..], &more].concat());
        all_agree(&folder, op, &report, &[]);
        let lane = &report["lanes"][op];
        let keys = &report["sweep"]["settings"][0]["keys"];
        assert_eq!([&lane["ops"], &report["ops"]], [keys; 2], "{op}");
        assert!(report["ops"].as_u64() > Some(0), "{op}");
        let page = page(&folder, &[&format!("{op}.hlog"), &format!("{op}.json")]);
        for told in ["times the best fixed bound", "in turns with others"] {
            assert!(page.contains(told), "{op}: no {told}");
        }
        assert_eq!(lane.get("caller_us"), None, "{op}");
    }
}

#[test]
fn a_log_of_a_replay_agrees_with_its_json() {
    let folder = folder("log_replay");
    let sample = sample();
    for path in ["pair", "client"] {
        let args = ["replay", &sample.to_string_lossy(), "--path", path];
        let delay = r#"{"type": "sim", "delay_us": 200}"#;
        let (_, report) = recorded(
            &folder,
            path,
            &[&args[..], &["--l2-adapter", delay]].concat(),
        );
        is_documented(&report);
        all_agree(&folder, path, &report, &[("request", "/request_us")]);
    }
}

#[test]
fn ops_at_a_rate_come_at_that_rate() {
    for path in ["pair", "client"] {
        let folder = folder(&format!("rate_{path}"));
        let args = [
            "bench",
            "--rate",
            "500",
            "--ops",
            "250",
            "--producers",
            "2",
            "--path",
            path,
        ];
        let (_, report) = recorded(&folder, "a", &args);
        // The last of 250 is due after 498 ms.
        let wall = report["wall_s"].as_f64().expect("a number");
        assert!((0.497..5.0).contains(&wall), "{wall}");
        assert_eq!(report["ops"], 250);
        assert_eq!(report["unstarted_ops"], 0);
        assert_eq!(report["rate"], 500.0);
    }
}

/// The store takes 20 ms a key and is asked for 200 keys a second, 4 times what it can do. Who asks only when an answer has come sees
/// some 80 ms; what was due waits for half a second.
#[test]
fn latencies_at_a_rate_count_the_wait_of_what_was_due() {
    for path in ["pair", "client"] {
        let folder = folder(&format!("corrected_{path}"));
        let adapter =
            r#"{"type": "sim", "delay_us": 20000, "num_workers": 1, "moonring": {"max_batch": 1}}"#;
        let args = [
            "bench",
            "--op",
            "lookup",
            "--rate",
            "200",
            "--seconds",
            "1",
            "--keys",
            "4",
            "--depth",
            "4",
            "--path",
            path,
            "--l2-adapter",
            adapter,
        ];
        let (run, report) = recorded(&folder, "a", &args);
        let lane = &report["lanes"]["lookup"];
        let max = |member: &str| lane[member]["max"].as_f64().expect("a number");
        assert!(max("corrected_us") > 500_000.0, "{lane:#}");
        // However slow the machine is: each op is later than the one before, by three quarters of what a call takes.
        let mean = |member: &str| lane[member]["mean"].as_f64().expect("a number");
        assert!(
            mean("corrected_us") > mean("caller_us") + 200_000.0,
            "{lane:#}"
        );
        let unstarted = report["unstarted_ops"].as_u64().expect("a number");
        let ops = report["ops"].as_u64().expect("a number");
        assert!(
            (199..=201).contains(&(unstarted + ops)),
            "{unstarted} and {ops}"
        );
        assert!(run.stderr.contains("were due and not started"), "{run:?}");
    }
}

fn report(args: &[&str]) -> Run {
    moonring([&["report"], args].concat())
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_string_lossy().into_owned()
}

/// The page of these files, as text; it is well-formed, and fetches and runs nothing.
fn page(folder: &Path, files: &[&str]) -> String {
    let html = path(folder, "page.html");
    let files: Vec<_> = files.iter().map(|name| path(folder, name)).collect();
    let files = files.iter().map(String::as_str);
    let run = report(&files.chain(["--html", &html]).collect::<Vec<_>>());
    assert_eq!(run.code, Some(0), "{run:?}");
    let page = fs::read_to_string(&html).expect("a page");
    let xml = parse(&page);
    for element in xml.descendants().filter(|node| node.is_element()) {
        let name = element.tag_name().name();
        assert!(
            ![
                "script", "link", "img", "iframe", "object", "a", "base", "form"
            ]
            .contains(&name),
            "{name}"
        );
        for attribute in element.attributes() {
            let name = attribute.name();
            assert!(
                !name.starts_with("on") && !["src", "href", "style"].contains(&name),
                "{name}"
            );
        }
    }
    assert!(!page.contains("url(") && !page.contains("@import"));
    page
}

fn parse(page: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(page, options).expect("well-formed")
}

fn texts(page: &str, element: &str) -> Vec<String> {
    let xml = parse(page);
    let elements = xml
        .descendants()
        .filter(|node| node.has_tag_name(("http://www.w3.org/1999/xhtml", element)));
    elements
        .map(|node| {
            node.descendants()
                .filter(|node| node.is_text())
                .filter_map(|node| node.text())
                .collect()
        })
        .collect()
}

#[test]
fn the_page_has_each_lane_and_each_figure() {
    let folder = folder("page");
    // What is deleted and looked up fails now and then, so that there are errors to show.
    let adapter = r#"{"type": "sim", "delay_us": 100, "key_error_rate": 0.02, "seed": 5}"#;
    let bench = [
        "bench",
        "--op",
        "store",
        "--ops",
        "2000",
        "--keys",
        "500",
        "--l2-adapter",
        adapter,
    ];
    recorded(&folder, "before", &bench);
    recorded(&folder, "after", &bench);
    let trace = sample().to_string_lossy().into_owned();
    recorded(&folder, "replay", &["replay", &trace]);

    let one = page(&folder, &["replay.json", "replay.hlog"]);
    let heads = texts(&one, "h2");
    assert_eq!(heads, ["replay", "lookup", "retrieve", "store", "request"]);
    let charts = texts(&one, "figcaption");
    for chart in [
        "Latency by percentile",
        "Where the time goes",
        "Throughput over time",
        "Batch sizes over time",
        "Latency over time",
    ] {
        assert!(
            charts.iter().any(|text| text.starts_with(chart)),
            "{chart}: {charts:?}"
        );
    }
    assert!(one.contains("No op ended with an error."));

    let two = page(
        &folder,
        &["before.hlog", "before.json", "after.json", "after.hlog"],
    );
    let heads = texts(&two, "h2");
    assert_eq!(heads, ["before", "after", "store", "delete"]);
    let charts = texts(&two, "figcaption");
    let count = |chart: &str| charts.iter().filter(|text| text.starts_with(chart)).count();
    // One for both runs, or a panel each; two lanes.
    assert_eq!(count("Latency by percentile"), 2);
    assert_eq!(count("Latency over time"), 4);
    assert!(count("Errors over time") >= 2, "{charts:?}");
    assert!(two.contains("transfer_failed"));
    assert!(two.contains("ratio to the first"));
    assert!(!two.contains(">none<"), "each has errors to show");
    let well = ["bench", "--op", "store", "--ops", "2000", "--keys", "500"];
    recorded(&folder, "well", &well);
    let one_of_two = page(&folder, &["before.json", "well.json"]);
    assert!(one_of_two.contains(">none<"), "an empty panel says so");

    // A replay has no latencies of callers: runs are compared by what both have.
    let mixed = page(&folder, &["before.hlog", "replay.hlog"]);
    assert!(mixed.contains("Latency submit to completion."));
    assert!(log_only(&folder).contains("Latency as the caller sees it."));

    // Each alone will do, and says what is missing.
    let log = log_only(&folder);
    assert!(log.contains("batch sizes and errors are not known"));
    assert!(!log.contains("five percentiles only"));
    let json = page(&folder, &["before.json"]);
    assert!(json.contains("five percentiles only: no .hlog was given"));
    assert!(
        texts(&json, "figcaption")
            .iter()
            .any(|text| text.starts_with("Latency over time"))
    );
}

fn log_only(folder: &Path) -> String {
    page(folder, &["before.hlog"])
}

#[test]
fn ratios_are_to_the_run_named_first() {
    let folder = folder("ratios");
    for (name, us) in [("slow", 3000_u64), ("fast", 1000)] {
        write_log(&folder.join(format!("{name}.hlog")), &[("retrieve", us)]);
    }
    for (files, want) in [
        (["slow.hlog", "fast.hlog"], 1.0 / 3.0),
        (["fast.hlog", "slow.hlog"], 3.0),
    ] {
        let files = files.map(|name| path(&folder, name));
        let run = report(&[&files[0], &files[1], "--json", "-"]);
        assert_eq!(run.code, Some(0), "{run:?}");
        let summary: Value = serde_json::from_str(&run.stdout).expect("JSON");
        is_documented(&summary);
        assert_eq!(summary["schema"], "moonring.report/1");
        let ratio = |run: usize| {
            summary["runs"][run]["lanes"]["retrieve"]["latency_us"]["ratio"]["p50"].as_f64()
        };
        assert_eq!(ratio(0), Some(1.0));
        let ratio = ratio(1).expect("a ratio");
        assert!((ratio / want - 1.0).abs() < 0.02, "{ratio}, not {want}");
        assert!(
            run.stderr.contains(&format!("{want:.2}x")),
            "{}",
            run.stderr
        );
    }
}

/// A log of another program: 100 latencies for each tag in each of two intervals, in microseconds.
fn write_log(path: &Path, tags: &[(&str, u64)]) {
    let mut out = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut writer = IntervalLogWriterBuilder::new()
        .add_comment("<!-- not ours -->")
        .begin_log_with(&mut out, &mut serializer)
        .expect("a header");
    for second in 0..2 {
        for (tag, us) in tags {
            let mut histogram = Histogram::<u64>::new(3).expect("three digits");
            histogram.record_n(us * 1000, 100).expect("it grows");
            let from = std::time::Duration::from_secs(second);
            let length = std::time::Duration::from_secs(1);
            let written = writer.write_histogram(&histogram, from, length, Tag::new(tag));
            written.expect("a line");
        }
    }
    fs::write(path, out).expect("a file");
}

#[test]
fn hostile_names_are_text() {
    let folder = folder("hostile");
    let tags = [
        "<script>alert(1)</script>",
        "\"onload='x'",
        "]]>&amp;</style><b>",
        "a\u{1}\u{8}b\u{202e}c",
    ];
    let name = "\"><img src=x onerror='alert(1)'>&<.hlog";
    write_log(&folder.join(name), &tags.map(|tag| (tag, 1000)));
    write_log(&folder.join("b.hlog"), &[("retrieve", 1000)]);
    let page = page(&folder, &[name, "b.hlog"]);
    let heads = texts(&page, "h2");
    for tag in &tags[..3] {
        assert!(heads.iter().any(|head| head == tag), "{tag} in {heads:?}");
    }
    let stem = name.strip_suffix(".hlog").expect("an end");
    assert!(heads.iter().any(|head| head == stem), "{heads:?}");
    // Where XML has no place for a character, a mark stands for it.
    assert!(
        heads
            .iter()
            .any(|head| head.starts_with("a\u{fffd}\u{fffd}b")),
        "{heads:?}"
    );
}

#[test]
fn files_that_are_none_of_a_run_are_told() {
    let folder = folder("none");
    write_log(&folder.join("good.hlog"), &[("retrieve", 1000)]);
    let good = fs::read(folder.join("good.hlog")).expect("a log");
    let files: [(&str, Vec<u8>, &str); 7] = [
        ("empty.hlog", Vec::new(), "has no interval"),
        (
            "text.hlog",
            b"hello\nworld\n".to_vec(),
            "no HdrHistogram log: see line 1",
        ),
        (
            "noise.hlog",
            b"Tag=a,0.1,1.0,2.0,!!!!\n".to_vec(),
            "the histogram of tag \"a\"",
        ),
        (
            "cut.hlog",
            good[..good.len() / 2].to_vec(),
            "the histogram of tag \"retrieve\"",
        ),
        ("cut.json", b"{\"schema\": ".to_vec(), "no JSON"),
        (
            "other.json",
            b"{\"schema\": \"moonring.doctor/1\"}".to_vec(),
            "is no report of bench or replay",
        ),
        (
            "odd.json",
            b"{\"schema\": \"moonring.bench/1\", \"intervals\": [{}]}".to_vec(),
            "start_s",
        ),
    ];
    for (name, bytes, want) in files {
        let file = folder.join(name);
        fs::write(&file, bytes).expect("a file");
        let file = file.to_string_lossy();
        let run = report(&[&file]);
        assert_eq!(run.code, Some(2), "{name}: {run:?}");
        assert!(
            run.stderr.contains(want) && run.stderr.contains(&*file),
            "{name}: {run:?}"
        );
    }
    let missing = path(&folder, "missing.hlog");
    assert_eq!(report(&[&missing]).code, Some(2));
    assert_eq!(report(&[]).code, Some(2));
    let seven: Vec<PathBuf> = (0..7).map(|i| folder.join(format!("r{i}.hlog"))).collect();
    for file in &seven {
        write_log(file, &[("retrieve", 1)]);
    }
    let seven: Vec<_> = seven
        .iter()
        .map(|file| file.to_string_lossy().into_owned())
        .collect();
    let run = report(&seven.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(
        run.code == Some(2) && run.stderr.contains("7 runs: at most 6"),
        "{run:?}"
    );
}

#[test]
fn bad_outputs_are_refused_before_the_run() {
    for option in ["--hlog", "--hgrm"] {
        let args = ["bench", "--seconds", "600", option, "/proc/none/x"];
        let run = moonring(args);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains(option), "{run:?}");
    }
    for bad in ["0", "-1", "x", "1e10", "nan"] {
        for option in ["--rate", "--interval"] {
            let run = moonring(["bench", &format!("{option}={bad}")]);
            assert_eq!(run.code, Some(2), "{option} {bad}: {run:?}");
        }
    }
}
