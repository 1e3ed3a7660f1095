//! docs/errors.md about the command line: each of its errors is caused here, and its message, cause and remedy stand there; each
//! message in the source stands there, too.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use support::{command, folder, one_run::one_run_of, root, run};

const PAGE: &str = include_str!("../../docs/errors.md");

/// The section about the command line.
fn section() -> &'static str {
    let (_, text) = PAGE
        .split_once("\n## The command line\n")
        .expect("a section");
    text.split("\n## ").next().expect("its text")
}

/// The rows: error, then message, cause and remedy.
fn rows() -> BTreeMap<&'static str, [&'static str; 3]> {
    let mut rows = BTreeMap::new();
    let lines = section().lines().filter(|line| line.starts_with('|'));
    for line in lines.skip(2) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [error, message, cause, remedy] = cells[..] else {
            panic!("not four cells: {line}");
        };
        let before = rows.insert(error.trim_matches('`'), [message, cause, remedy]);
        assert!(before.is_none(), "{error} stands twice");
    }
    rows
}

/// Whether a text is the pattern with something, or nothing, in place of each `{}`.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split("{}");
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let parts: Vec<_> = parts.collect();
    let Some((last, between)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in between {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn patterns_match_what_they_should() {
    assert!(matches("--salt: {}", "--salt: no"));
    assert!(matches(
        "{}:{}: {}: missing",
        "a.jsonl:3: timestamp: missing"
    ));
    assert!(!matches(
        "{}:{}: {}: missing",
        "a.jsonl:3: timestamp: twice"
    ));
    assert!(!matches("interrupted", "interrupted twice"));
    assert!(!matches("--json {}: {}", "--hlog a: no"));
}

/// A way to cause an error: the row, the exit code, the arguments.
struct Cause {
    row: &'static str,
    code: i32,
    args: Vec<String>,
}

/// Rows that no test causes, and why.
const NOT_CAUSED: [&str; 5] = [
    // A store call of over a minute.
    "hung",
    // Of our stores none lies about a delete.
    "not deleted",
    // A bench's keys differ.
    "folded",
    // By a signal: cli_interrupt.rs.
    "interrupted",
    // No argument; below.
    "standard output",
];

fn causes(folder: &Path) -> Vec<Cause> {
    let file = |name: &str, text: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, text).expect("a file");
        path.to_string_lossy().into_owned()
    };
    let cause = |row, code, args: &[&str]| Cause {
        row,
        code,
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
    };
    let bench = |row, args: &[&str]| cause(row, 2, &[&["bench"], args].concat());
    let json = |row, code, adapter: &str, args: &[&str]| {
        cause(row, code, &[args, &["--l2-adapter", adapter]].concat())
    };
    let short = ["bench", "--keys", "64", "--seconds", "0.05"];
    let sample = root().join("traces/sample.jsonl");
    let sample = sample.to_str().expect("a plain path");
    let mut causes = vec![
        json("adapter", 2, "{}", &short),
        bench(
            "region",
            &["--value-bytes", "4096", "--region-bytes", "1000TB"],
        ),
        json(
            "slots",
            2,
            r#"{"type": "memory", "moonring": {"max_registration": 100}}"#,
            &short,
        ),
        json(
            "start",
            2,
            r#"{"type": "memory", "moonring": {"cores": [1000]}}"#,
            &short,
        ),
        bench("small region", &["--region-bytes", "8192"]),
        bench("large region", &["--value-bytes", "1GB"]),
        bench("huge region", &["--value-bytes", "4000000TB"]),
        bench("json", &["--json", "/proc/none/x"]),
        bench("hlog", &["--hlog", "/proc/none/x"]),
        bench("hgrm", &["--hgrm", "/proc/none/x"]),
        json(
            "slot",
            1,
            r#"{"type": "sim", "delay_us": 50000, "moonring": {"timeout_ms": {"retrieve": 5}}}"#,
            &short,
        ),
        json(
            "slot",
            1,
            r#"{"type": "sim", "delay_us": 50000, "moonring": {"timeout_ms": {"retrieve": 5}}}"#,
            &["replay", sample, "--limit", "4"],
        ),
        json(
            "refused",
            1,
            // The calls that panic are no answers: the circuit opens.
            r#"{"type": "sim", "delay_us": 20000, "panics": {"rate": 1, "op": "lookup"},
                "moonring": {"timeout_ms": {"lookup": 1}, "fail_fast_after": 1, "fail_fast_ms": 60000}}"#,
            &["bench", "--op", "lookup", "--keys", "64", "--seconds", "5"],
        ),
        bench("a size", &["--value-bytes", "many"]),
        bench("no size", &["--value-bytes", "0"]),
        bench("seconds", &["--seconds", "0"]),
        bench("rate", &["--rate", "0"]),
        bench("interval", &["--interval", "0"]),
        cause("speed", 2, &["replay", sample, "--speed=-1"]),
        bench("--max-batch", &["--max-batch", "0"]),
        bench("long key", &["--key-bytes", "2000"]),
        bench("long keys", &["--key-bytes", "256"]),
        bench("short key", &["--key-bytes", "1"]),
        bench("few keys", &["--keys", "63"]),
        bench("few keys to compare", &["--keys", "127", "--compare"]),
        bench("mixed", &["--op", "mixed", "--compare"]),
        bench("sweep's sizes", &["--sweep=0"]),
        bench("mixed sweep", &["--op", "mixed", "--sweep"]),
        bench("rounds", &["--rounds", "3"]),
        bench("linger", &["--linger-us", "3", "--path", "client"]),
        json(
            "set-up",
            1,
            r#"{"type": "sim", "call_error_rate": 1}"#,
            &short,
        ),
        json(
            "wrong bytes",
            1,
            r#"{"type": "sim", "flip_bytes": {"rate": 1}}"#,
            &short,
        ),
        json(
            "corrupt",
            1,
            r#"{"type": "sim", "flip_bytes": {"rate": 1}}"#,
            &["replay", sample, "--limit", "50"],
        ),
        cause(
            "salt length",
            2,
            &["replay", sample, "--salt", &"s".repeat(101)],
        ),
        cause("salt", 2, &["replay", sample, "--salt", "a@b"]),
        cause("file", 2, &["replay", "/proc/none"]),
        cause("file", 2, &["report", "/proc/none"]),
        cause("file", 2, &["gen-trace", "--out", "/proc/none/x"]),
        cause("file", 2, &["man", "/proc/none"]),
        cause("directory", 2, &["replay", "/proc"]),
        // Nothing is mapped there.
        cause("unreadable", 2, &["replay", "/proc/self/mem"]),
        cause(
            "html",
            2,
            &["report", &file("r.json", REPORT), "--html", "/proc/none/x"],
        ),
        cause("no log", 2, &["report", &file("empty.hlog", b"")]),
        cause("bad log", 2, &["report", &file("bad.hlog", b"a,b,c\n")]),
        cause(
            "bad histogram",
            2,
            &["report", &file("bad2.hlog", b"Tag=x,0.0,1.0,1.0,AAAA\n")],
        ),
        cause(
            "other JSON",
            2,
            &["report", &file("o.json", b"{\"schema\": \"x\"}")],
        ),
        cause(
            "bad JSON",
            2,
            &["report", &file("b.json", b"{\"schema\": ")],
        ),
        cause(
            "bad interval",
            2,
            &[
                "report",
                &file(
                    "i.json",
                    br#"{"schema": "moonring.bench/1", "intervals": [{}]}"#,
                ),
            ],
        ),
        cause(
            "checks",
            1,
            &[
                "doctor",
                "--l2-adapter",
                r#"{"type": "memory", "moonring": {"cores": [1000]}}"#,
            ],
        ),
    ];
    // Each is one line of a trace.
    let field = |name: &str, value: &str| {
        let fields = ["timestamp", "input_length", "output_length", "hash_ids"];
        let fields = fields.map(|field| match field {
            _ if field == name => format!("\"{field}\": {value}"),
            "hash_ids" => "\"hash_ids\": [1]".into(),
            _ => format!("\"{field}\": 1"),
        });
        format!("{{{}}}\n", fields.join(", ")).into_bytes()
    };
    let long = vec![b' '; 17 << 20];
    let twice = br#"{"timestamp": 1, "timestamp": 2, "input_length": 1, "output_length": 1, "hash_ids": [1]}"#;
    let blank = [b"\n".to_vec(), field("", "")].concat();
    for (row, line) in [
        ("empty trace", Vec::new()),
        ("blank line", blank),
        ("long line", long),
        ("UTF-8", b"\xff\n".to_vec()),
        ("JSON", b"{\n".to_vec()),
        ("object", b"7\n".to_vec()),
        ("field", b"{}\n".to_vec()),
        ("field twice", twice.to_vec()),
        ("negative", field("timestamp", "-1")),
        ("no whole number", field("timestamp", "1.5")),
        ("other type", field("timestamp", "\"1\"")),
        ("ids", field("hash_ids", "7")),
    ] {
        let name = format!("{}.jsonl", row.replace(' ', "_"));
        causes.push(cause(row, 2, &["replay", &file(&name, &line)]));
    }
    let sweep = [
        "bench",
        "--sweep=4",
        "--rounds",
        "1",
        "--svg",
        "/proc/none/x",
    ];
    causes.push(cause("svg", 1, &[&sweep[..], &short[1..]].concat()));
    let logs: Vec<_> = (0..7)
        .map(|i| file(&format!("run{i}.json"), REPORT))
        .collect();
    let runs: Vec<_> = ["report"]
        .into_iter()
        .chain(logs.iter().map(String::as_str))
        .collect();
    causes.push(cause("runs", 2, &runs));
    let adapter = r#"{"type": "null", "moonring": {"max_pairs": 1}}"#;
    let two = ["--producers", "2", "--keys", "128"];
    causes.push(json(
        "--depth",
        2,
        adapter,
        &[&["bench"], &two[..]].concat(),
    ));
    causes
}

/// The least that is a report of a run.
const REPORT: &[u8] = br#"{"schema": "moonring.bench/1"}"#;

/// The error of a run: its last line that is one.
fn told(stderr: &str) -> &str {
    let ours = |line: &str| {
        let error = line.strip_prefix("moonring: ");
        error
            .is_some_and(|error| !error.starts_with("warning: ") && !error.starts_with("corrupt: "))
    };
    let line = stderr
        .lines()
        .rfind(|line| ours(line) || line.starts_with("error: "));
    let line = line.unwrap_or_else(|| panic!("no error in {stderr}"));
    line.strip_prefix("moonring: ").unwrap_or(line)
}

#[test]
fn each_error_has_a_row_with_its_message_its_cause_and_what_to_do() {
    let rows = rows();
    for (error, [_, cause, remedy]) in &rows {
        assert!(!cause.is_empty() && !remedy.is_empty(), "{error}");
    }
    let mut left: BTreeSet<_> = rows
        .keys()
        .map(|row| row.trim_start_matches("--"))
        .collect();
    for row in NOT_CAUSED {
        assert!(left.remove(row), "no row {row}");
    }
    for Cause { row, code, args } in causes(&folder("errors")) {
        let found = rows
            .get(row)
            .or_else(|| rows.get(format!("--{row}").as_str()));
        let [message, ..] = found.unwrap_or_else(|| panic!("no row {row}"));
        // Whether an op times out in its call or before it is a matter of time.
        let runs = match row {
            "slot" | "refused" => 5,
            _ => 1,
        };
        one_run_of(runs, || {
            let done = run(command().args(&args));
            assert_eq!(done.code, Some(code), "{row}: {done:?}");
            match told(&done.stderr) {
                told if matches(message, told) => Ok(()),
                told => Err(format!("{row}: {told:?}, the page has {message:?}")),
            }
        });
        left.remove(row.trim_start_matches("--"));
    }
    assert!(left.is_empty(), "nothing causes {left:?}");
}

#[test]
fn standard_output_that_is_full_is_told() {
    let full = fs::File::create("/dev/full").expect("Linux");
    let mut child = command()
        .arg("gen-trace")
        .stdin(Stdio::null())
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    for _ in 0..6000 {
        if child.try_wait().expect("a child").is_some() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let done = child.wait_with_output().expect("an exit");
    assert_eq!(done.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(
        matches(rows()["standard output"][0], told(&stderr)),
        "{stderr}"
    );
}

/// Literals behind these are messages.
const BEFORE: [&str; 6] = [
    "Failure::input(",
    "Failure::run(",
    "Fatal(",
    "Err(",
    "error(",
    "failed(",
];

/// The message that begins here, each `{..}` of it as `{}`; `None`: it is none.
fn literal(code: &str) -> Option<String> {
    let code = code.trim_start();
    let code = code.strip_prefix("format!(").unwrap_or(code).trim_start();
    let mut chars = code.strip_prefix('"')?.chars().peekable();
    let (mut text, mut inside) = (String::new(), false);
    while let Some(c) = chars.next() {
        match c {
            '"' => return Some(text),
            '\\' => match chars.next()? {
                // A line that goes on.
                '\n' => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                c => text.push(c),
            },
            '{' => {
                inside = true;
                text.push_str("{}");
            }
            '}' => inside = false,
            _ if inside => {}
            c => text.push(c),
        }
    }
    None
}

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            found.push((path.display().to_string(), code.to_owned()));
        }
    }
}

/// A message that the test above does not know would have no row.
#[test]
fn each_message_in_the_source_stands_in_the_page() {
    let mut files = Vec::new();
    sources(&root().join("tools/src"), &mut files);
    let section = section();
    let mut messages = 0;
    for (file, code) in &files {
        // What `doctor` finds has what to do beside it.
        if file.contains("/doctor/") {
            continue;
        }
        for before in BEFORE {
            for (at, _) in code.match_indices(before) {
                let Some(message) = literal(&code[at + before.len()..]) else {
                    continue;
                };
                // No words: what wraps another.
                if !message.contains(char::is_alphabetic) {
                    continue;
                }
                messages += 1;
                assert!(
                    section.contains(&message),
                    "{file}: {message:?} is not in docs/errors.md"
                );
            }
        }
    }
    assert!(messages > 45, "only {messages} found");
}
