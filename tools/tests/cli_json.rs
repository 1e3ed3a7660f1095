//! The JSON of each command is what docs/cli.md says, and stays so: `schemas.txt` lists each field with its types. A field may
//! be added to it; one that goes, or changes its type, makes the schema `/2`. `MOONRING_WRITE_SCHEMAS=1` writes the list anew.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;
use support::{folder, moonring, root, sample};

/// Of each field of a schema, by its path, the types that it had.
type Fields = BTreeMap<String, BTreeSet<&'static str>>;

/// Members of these are named by data: op kinds, tags, codes, faults.
const MAPS: [&str; 3] = ["lanes", "by_code", "faults"];

/// Of latencies in microseconds.
const SUMMARY: [&str; 7] = ["count", "mean", "p50", "p90", "p99", "p999", "max"];

fn collect(path: &str, value: &Value, fields: &mut Fields) {
    let name = path.rsplit('.').next().unwrap_or(path);
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(members) if SUMMARY.iter().all(|name| members.contains_key(*name)) => {
            "summary"
        }
        Value::Object(_) => "object",
    };
    fields.entry(path.to_owned()).or_default().insert(kind);
    match value {
        Value::Array(items) => {
            for item in items {
                collect(&format!("{path}[]"), item, fields);
            }
        }
        // Its keys are those of docs/configuration.md.
        Value::Object(_) if name == "l2_adapter" => {}
        Value::Object(members) => {
            let summary = |member: &str| kind == "summary" && SUMMARY.contains(&member);
            for (member, value) in members.iter().filter(|(member, _)| !summary(member)) {
                let member = if MAPS.contains(&name) { "*" } else { member };
                collect(&format!("{path}.{member}"), value, fields);
            }
        }
        _ => {}
    }
}

/// Runs each command, in all ways that add fields; the fields of each schema.
fn written(folder: &Path) -> BTreeMap<String, Fields> {
    let sample = sample().to_string_lossy().into_owned();
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let flips = r#"{"type": "sim", "flip_bytes": {"rate": 1, "op": "retrieve"}}"#;
    let fails = r#"{"type": "memory", "moonring": {"cores": [1000]}}"#;
    let short = ["--keys", "128", "--seconds", "0.1", "--interval", "0.05"];
    let bench = |more: &[&'static str]| -> Vec<String> {
        let args = ["bench"].iter().chain(&short).chain(more);
        args.map(|arg| (*arg).to_owned()).collect()
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let runs: Vec<(&str, i32, Vec<String>)> = vec![
        ("closed", 0, bench(&["--op", "mixed"])),
        ("rate", 0, bench(&["--rate", "1000"])),
        ("compare", 0, bench(&["--compare", "--rounds", "2"])),
        (
            "sweep",
            0,
            bench(&[
                "--sweep=4,8",
                "--rounds",
                "2",
                "--linger-us",
                "5",
                "--linger-ops",
                "4",
            ]),
        ),
        ("replay", 0, words(&["replay", &sample, "--limit", "40"])),
        (
            "corrupt",
            1,
            words(&["replay", &sample, "--limit", "60", "--l2-adapter", flips]),
        ),
        ("trace", 0, words(&["gen-trace", "--out", &file("t.jsonl")])),
        ("doctor", 0, words(&["doctor"])),
        ("ill", 1, words(&["doctor", "--l2-adapter", fails])),
        (
            "report",
            0,
            words(&[
                "report",
                &file("closed.json"),
                &file("rate.json"),
                &file("replay.json"),
            ]),
        ),
    ];
    let mut schemas: BTreeMap<String, Fields> = BTreeMap::new();
    for (name, code, args) in runs {
        let json = file(&format!("{name}.json"));
        let run = moonring(args.into_iter().chain(["--json".to_owned(), json.clone()]));
        assert_eq!(run.code, Some(code), "{name}: {run:?}");
        let text = fs::read_to_string(json).expect("a report");
        let report: Value = serde_json::from_str(&text).expect("JSON");
        let schema = report["schema"].as_str().expect("a schema").to_owned();
        collect("", &report, schemas.entry(schema).or_default());
    }
    schemas
}

/// A line of the list: schema, path, types.
fn lines(schemas: &BTreeMap<String, Fields>) -> BTreeSet<String> {
    let lines = schemas.iter().flat_map(|(schema, fields)| {
        fields
            .iter()
            .filter(|(path, _)| !path.is_empty())
            .map(move |(path, types)| {
                let types: Vec<_> = types.iter().copied().collect();
                format!("{schema} {} {}", &path[1..], types.join("|"))
            })
    });
    lines.collect()
}

#[test]
fn each_field_is_listed_and_documented_and_none_has_gone() {
    let schemas = written(&folder("json"));
    let names: Vec<_> = schemas.keys().map(String::as_str).collect();
    let want = ["bench", "doctor", "gen-trace", "replay", "report"];
    assert_eq!(names, want.map(|name| format!("moonring.{name}/1")));
    let have = lines(&schemas);
    let list = root().join("tools/tests/schemas.txt");
    if std::env::var_os("MOONRING_WRITE_SCHEMAS").is_some() {
        let text: Vec<_> = have.iter().map(String::as_str).collect();
        fs::write(&list, text.join("\n") + "\n").expect("written");
    }
    let listed = fs::read_to_string(&list).expect("the list");
    let listed: BTreeSet<_> = listed.lines().map(str::to_owned).collect();
    let gone: Vec<_> = listed.difference(&have).collect();
    assert!(gone.is_empty(), "gone, or of another type: {gone:#?}");
    let new: Vec<_> = have.difference(&listed).collect();
    assert!(new.is_empty(), "not in schemas.txt: {new:#?}");

    // In code, whole: `p50` in `count, mean, p50`.
    let page = fs::read_to_string(root().join("docs/cli.md")).expect("the page");
    let code = page.split('`').skip(1).step_by(2);
    let words = code.flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_'));
    let words: BTreeSet<_> = words.collect();
    let named = schemas.values().flat_map(Fields::keys).map(|path| {
        let name = path.rsplit('.').next().unwrap_or(path);
        name.trim_end_matches("[]")
    });
    let names: BTreeSet<_> = named
        .chain(SUMMARY)
        .filter(|name| !matches!(*name, "" | "*"))
        .collect();
    let untold: Vec<_> = names.difference(&words).collect();
    assert!(untold.is_empty(), "not in docs/cli.md: {untold:?}");
}
