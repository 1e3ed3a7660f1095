//! docs/configuration.md against the code: each key has one row, with the default and the range that the code has.

use std::collections::BTreeSet;
use std::path::Path;

use moonring::config::parse_size;
use moonring::{ConfigError, L2Adapter};
use serde_json::{Value, json};

const PAGE: &str = include_str!("../docs/configuration.md");
const ENGINE: &str = include_str!("../src/config/engine.rs");
const SET_UP: &str = include_str!("../src/store/mooncake/setup.rs");

/// A row of a table: its cells, trimmed.
fn cells(line: &str) -> Vec<&str> {
    let row = line.trim().trim_start_matches('|').trim_end_matches('|');
    row.split('|').map(str::trim).collect()
}

/// The rows below a heading of the page whose first cell is code, in order.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let start = format!("\n## {heading}\n");
    let (_, section) = PAGE.split_once(&start).expect(heading);
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with("| `"));
    lines.map(cells).collect()
}

fn key_of<'a>(row: &[&'a str]) -> &'a str {
    row[0].trim_matches('`')
}

fn refusal(adapter: &Value) -> ConfigError {
    L2Adapter::parse(&adapter.to_string()).expect_err("accepted")
}

/// The keys that an error for an unknown one lists.
fn known(error: &ConfigError) -> Vec<String> {
    let list = error.reason().strip_prefix("unknown key (want ");
    let list = list.and_then(|list| list.strip_suffix(")"));
    let list = list.unwrap_or_else(|| panic!("{error}"));
    list.split(", ").map(str::to_owned).collect()
}

/// What the code wants of a value, in the page's words. `place` builds the adapter around the value.
fn range(place: &dyn Fn(Value) -> Value) -> String {
    // No key takes such an object.
    let error = refusal(&place(json!({"?": 0})));
    let reason = error.reason();
    if let Some(kinds) = reason.strip_prefix("unknown key (want lookup, ") {
        assert_eq!(kinds, "retrieve, store, delete)");
        let of_one = range(&|value| place(json!({"lookup": value})));
        return format!("lookup, retrieve, store, delete: {of_one}");
    }
    let (_, want) = reason
        .split_once("(want ")
        .unwrap_or_else(|| panic!("{error}"));
    let want = want.strip_suffix(")").unwrap();
    let want = want.trim_end_matches(" bytes, as an integer or a string like \"64 MiB\"");
    if let Some(range) = want.strip_prefix("a size from ") {
        return match range.strip_suffix(&format!(" to {}", isize::MAX)) {
            Some(from) => format!("from {from}, a size"),
            None => format!("{range}, a size"),
        };
    }
    if let Some(range) = want.strip_prefix("a number from ") {
        return format!("{range}, a number");
    }
    want.trim_start_matches("an integer from ").to_owned()
}

/// Numbers without the commas between thousands.
fn plain(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let comma = |i: usize| {
        let digit = |at: usize| chars.get(at).is_some_and(char::is_ascii_digit);
        chars[i] == ',' && i > 0 && digit(i - 1) && digit(i + 1)
    };
    (0..chars.len())
        .filter(|&i| !comma(i))
        .map(|i| chars[i])
        .collect()
}

/// A default as the page gives it; `none` is null.
fn default_of(cell: &str) -> Value {
    let cell = plain(cell.trim_matches('`'));
    if cell == "none" {
        return Value::Null;
    }
    let value: Option<Value> = serde_json::from_str(&cell).ok();
    value.unwrap_or_else(|| {
        parse_size(&cell)
            .unwrap_or_else(|e| panic!("{cell}: {e}"))
            .into()
    })
}

/// Compares a section's rows with the keys, defaults and ranges of the code.
fn check(heading: &str, keys: &[String], defaults: &Value, place: &dyn Fn(&str, Value) -> Value) {
    let rows = rows(heading);
    let listed: Vec<&str> = rows.iter().map(|row| key_of(row)).collect();
    assert_eq!(
        listed, keys,
        "the keys of {heading}, in the order of the code"
    );
    for row in rows {
        let key = key_of(&row);
        let what = format!("{heading}, {key}");
        assert_eq!(row.len(), 5, "{what}: key, default, range, effect, why");
        assert!(row[3].len() > 10, "{what}: no effect is told");
        assert_eq!(
            plain(row[2]),
            range(&|value| place(key, value)),
            "{what}: range"
        );
        if row[1] == "needed" {
            continue;
        }
        let value = match &defaults[key] {
            Value::Object(none) if none.is_empty() => &Value::Null,
            value => value,
        };
        let told = default_of(row[1]);
        let same = told == *value
            || told
                .as_f64()
                .is_some_and(|told| value.as_f64() == Some(told));
        assert!(same, "{what}: default {told}, in the code {value}");
    }
}

fn of_type(kind: &str) -> impl Fn(&str, Value) -> Value + '_ {
    move |key, value| json!({"type": kind, key: value})
}

fn effective(kind: &str) -> Value {
    L2Adapter::parse(&json!({"type": kind}).to_string())
        .unwrap()
        .effective()
}

#[test]
fn keys_of_every_store() {
    let keys = known(&refusal(&json!({"type": "null", "?": 0})));
    let rows = rows("Every store");
    assert_eq!(rows.iter().map(|row| key_of(row)).collect::<Vec<_>>(), keys);
    for row in rows {
        let key = key_of(&row);
        match key {
            // Those of `moonring` have their own table.
            "moonring" => continue,
            "type" => assert_eq!(row[2], range(&|value| json!({"type": value}))),
            "eviction" => {
                let error = refusal(&json!({"type": "null", "eviction": 1}));
                assert!(error.reason().ends_with("(want an object)"), "{error}");
                assert_eq!(row[2], "an object");
            }
            _ => assert_eq!(row[2], range(&|value| of_type("null")(key, value)), "{key}"),
        }
    }
    let workers = &effective("null")["num_workers"];
    assert!(PAGE.contains(&format!("\n| `num_workers` | {workers} |")));
    assert_eq!(effective("null")["per_op_workers"], json!({}));
}

#[test]
fn knobs() {
    let keys = known(&refusal(&json!({"type": "null", "moonring": {"?": 0}})));
    let defaults = &effective("null")["moonring"];
    // None is missing in the effective configuration either.
    let effective: Vec<&String> = defaults.as_object().unwrap().keys().collect();
    assert_eq!(effective, keys.iter().collect::<Vec<_>>());
    check(
        "`moonring`",
        &keys,
        defaults,
        &|key, value| json!({"type": "null", "moonring": {key: value}}),
    );
}

#[test]
fn keys_of_the_embedded_stores() {
    for kind in ["memory", "sim"] {
        let keys = known(&refusal(&json!({"type": kind, "?": 0})));
        let of_all = known(&refusal(&json!({"type": "null", "?": 0})));
        let own: Vec<String> = keys
            .into_iter()
            .filter(|key| !of_all.contains(key))
            .collect();
        let place = of_type(kind);
        check(
            &format!("`{kind}`"),
            &own,
            &effective(kind),
            &|key, value| match key {
                // It wants a type first.
                "inner" => place(key, json!({"type": value})),
                _ => place(key, value),
            },
        );
    }
}

/// The quoted words behind `start` in a source, up to the next `];`.
fn quoted(source: &'static str, start: &str) -> Vec<&'static str> {
    let (_, list) = source.split_once(start).expect(start);
    let list = list.split("];").next().unwrap();
    list.split('"').skip(1).step_by(2).collect()
}

#[test]
fn keys_of_mooncake() {
    let of_code: BTreeSet<&str> = quoted(SET_UP, "OFFICIAL_KEYS: [&str; 7] = [")
        .into_iter()
        .collect();
    assert_eq!(of_code.len(), 7);
    let rows = rows("`mooncake_store`");
    assert_eq!(
        rows.iter().map(|row| key_of(row)).collect::<BTreeSet<_>>(),
        of_code
    );
    let master = quoted(SET_UP, "DEFAULT_MASTER: &str =")[0];
    assert!(PAGE.contains(&format!("| `master_server_addr` | `{master}` |")));
}

/// All texts in quotes in the Rust files of a folder.
fn texts(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            let source = std::fs::read_to_string(&path).unwrap();
            found.extend(source.split('"').map(str::to_owned));
        }
    }
}

#[test]
fn environment() {
    let mut found = BTreeSet::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    texts(&root.join("src"), &mut found);
    texts(&root.join("build"), &mut found);
    let is_variable = |text: &str| {
        let prefixed = ["MOONCAKE_", "MOONRING_", "MC_", "BUILD_"]
            .iter()
            .any(|p| text.starts_with(p));
        prefixed && text.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    };
    let read: BTreeSet<&str> = found
        .iter()
        .map(String::as_str)
        .filter(|text| is_variable(text))
        .collect();
    assert!(read.len() > 5, "{read:?}");
    let told: BTreeSet<&str> = rows("Environment").iter().map(|row| key_of(row)).collect();
    assert_eq!(told, read);
}

/// The table of `EngineConfig` in rustdoc says the same, in other words: names and defaults.
#[test]
fn rustdoc() {
    let doc = ENGINE
        .lines()
        .filter_map(|line| line.strip_prefix("/// | `"));
    let mut rows = doc.map(|line| cells(line.trim_end_matches('|')));
    let mut keys = known(&refusal(&json!({"type": "null", "moonring": {"?": 0}})));
    keys.splice(
        0..0,
        ["num_workers".to_owned(), "per_op_workers".to_owned()],
    );
    let adapter = effective("null");
    for key in keys {
        let row = rows.next().unwrap_or_else(|| panic!("{key}: no row"));
        assert_eq!(key_of(&row), key);
        let value = adapter["moonring"]
            .get(&key)
            .unwrap_or(&adapter[key.as_str()]);
        match value {
            Value::Object(none) if none.is_empty() => assert_eq!(row[1], "none", "{key}"),
            value => assert_eq!(default_of(row[1]), *value, "{key}"),
        }
    }
    assert_eq!(rows.next(), None);
}
