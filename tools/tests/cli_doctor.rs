//! `moonring doctor`: what is wrong is found in time, named, and told with what to do.

#[path = "../../tests/mooncake/mod.rs"]
mod mooncake;
mod support;

/// What `mooncake` shares with the other tests of the stores.
mod standin {
    pub use crate::support::required;
}

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use mooncake::Mooncake;
use serde_json::Value;
use support::{Run, folder, is_documented, moonring, run};

/// All that can lead to a library.
const VARIABLES: [&str; 5] = [
    "MOONCAKE_STORE_LIBRARY",
    "MOONRING_MOONCAKE_BRIDGE",
    "MOONRING_MOONCAKE_DIR",
    "XDG_DATA_HOME",
    "LD_LIBRARY_PATH",
];
/// The steps that need a library and a master.
const LATER: [&str; 4] = ["open", "start", "round_trip", "shutdown"];

/// A run, since it was started: far above what it waits for, and far below what it would without a limit.
#[track_caller]
fn in_seconds(start: Instant) {
    let took = start.elapsed();
    assert!(took < Duration::from_secs(30), "it took {took:?}");
}

/// A doctor's report, and how it ended.
struct Seen {
    run: Run,
    json: Value,
}

impl Seen {
    /// Runs it where no library is to be found but by these variables.
    fn doctor(variables: &[(&str, &Path)], args: &[&str]) -> Self {
        let mut command = support::command();
        for name in VARIABLES {
            command.env_remove(name);
        }
        command
            .env("HOME", "/nowhere")
            .envs(variables.iter().copied());
        let run = run(command.args(["doctor", "--json", "-"]).args(args));
        let json = serde_json::from_str(&run.stdout);
        let json: Value = json.unwrap_or_else(|e| panic!("{e}: {run:?}"));
        let seen = Self { run, json };
        seen.is_sound();
        seen
    }

    /// What holds for every report.
    fn is_sound(&self) {
        is_documented(&self.json);
        let page = std::fs::read_to_string(support::root().join("docs/cli.md")).expect("the page");
        let mut failed = Vec::new();
        for check in self.json["checks"].as_array().expect("a list") {
            is_documented(check);
            let text = |member: &str| check[member].as_str().unwrap_or_default();
            let (name, status) = (text("name"), text("status"));
            assert!(
                page.contains(&format!("`{name}`")),
                "{name} is not in docs/cli.md"
            );
            assert!(["ok", "warn", "fail"].contains(&status), "{check}");
            assert_ne!(text("found"), "", "{check}");
            // Whatever is not ok comes with what to do.
            assert_eq!(text("todo").is_empty(), status == "ok", "{check}");
            if status == "fail" {
                failed.push(name.to_owned());
            }
            // People are told the same.
            let line = |line: &str| {
                let mut words = line.split_whitespace();
                words.next() == Some(status)
                    && words.next() == Some(name)
                    && line.ends_with(text("found"))
            };
            assert!(
                self.run.stderr.lines().any(line),
                "{check}: {}",
                self.run.stderr
            );
            assert!(self.run.stderr.contains(text("todo")));
        }
        let ended = match failed.as_slice() {
            [] => (Some(0), String::new()),
            names => (Some(1), format!("moonring: failed: {}\n", names.join(", "))),
        };
        assert_eq!(self.run.code, ended.0, "{:?}", self.run);
        assert!(self.run.stderr.ends_with(&ended.1), "{}", self.run.stderr);
    }

    #[track_caller]
    fn check(&self, name: &str) -> &Value {
        let checks = self.json["checks"].as_array().expect("a list");
        let check = checks.iter().find(|check| check["name"] == name);
        check.unwrap_or_else(|| panic!("no {name} in {:#}", self.json))
    }

    /// A check of this status, whose line, with what to do, has these parts.
    #[track_caller]
    fn has(&self, name: &str, status: &str, parts: &[&str]) {
        let check = self.check(name);
        assert_eq!(check["status"], status, "{check:#}");
        let text = format!("{}\n{}", check["found"], check["todo"]);
        for part in parts {
            assert!(text.contains(part), "no {part:?} in {check:#}");
        }
    }

    /// The names of the checks that were made, in order.
    fn names(&self) -> Vec<&str> {
        let checks = self.json["checks"].as_array().expect("a list");
        let names = checks.iter().map(|check| check["name"].as_str());
        names.map(|name| name.expect("a name")).collect()
    }

    #[track_caller]
    fn not_tried(&self, steps: &[&str]) {
        assert_eq!(
            self.json["not_tried"],
            Value::from(steps.to_vec()),
            "{:#}",
            self.json
        );
    }
}

fn mooncake_json(master: &str, more: &str) -> String {
    format!(
        r#"{{"type": "mooncake_store", "local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE",
             "master_server_addr": "{master}"{more}}}"#
    )
}

#[test]
fn a_machine_without_a_mooncake_serves_the_memory_store() {
    let seen = Seen::doctor(&[], &[]);
    assert_eq!(seen.run.code, Some(0));
    let names = [
        "configuration",
        "cores",
        "memlock",
        "huge_pages",
        "library",
        "open",
        "start",
        "round_trip",
        "shutdown",
    ];
    assert_eq!(seen.names(), names);
    seen.not_tried(&[]);
    seen.has(
        "configuration",
        "ok",
        &["memory", "no Mooncake was asked for"],
    );
    let allowed = moonring::allowed_cores().len();
    seen.has(
        "cores",
        check_status(&seen, "cores"),
        &[&format!("{allowed} allowed"), "4 workers"],
    );
    let tried = "/nowhere/.local/share/moonring/libmoonring_wheel_bridge.so";
    seen.has(
        "library",
        "ok",
        &[
            "none is needed",
            "libmooncake_store.so on the loader's path",
            tried,
        ],
    );
    seen.has("open", "ok", &["memory"]);
    seen.has("round_trip", "ok", &["4 KiB", "right bytes"]);
    assert_eq!(seen.json["l2_adapter"]["type"], "memory");
    assert_eq!(seen.json["region_bytes"], 1u64 << 30);
    let took = seen.check("round_trip")["took_ms"]
        .as_f64()
        .expect("a number");
    assert!(took > 0.0);
}

/// For checks that depend on the machine.
fn check_status<'a>(seen: &'a Seen, name: &str) -> &'a str {
    seen.check(name)["status"].as_str().expect("a status")
}

#[test]
fn a_missing_library_and_a_master_that_is_not_there_are_told_at_once() {
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = gone.local_addr().expect("bound").to_string();
    drop(gone);
    let start = Instant::now();
    let seen = Seen::doctor(&[], &["--l2-adapter", &mooncake_json(&addr, "")]);
    in_seconds(start);
    let ways = [
        "libmooncake_store.so on the loader's path",
        "MOONCAKE_STORE_LIBRARY",
        "tools/mooncake setup",
        "BUILD_MOONCAKE=1",
    ];
    seen.has("library", "fail", &ways);
    seen.has(
        "master",
        "fail",
        &[&addr, "refused", "mooncake_master", "master_server_addr"],
    );
    seen.not_tried(&LATER);
}

#[test]
fn a_master_that_listens_is_told_apart_from_one_that_can_not_be_tried() {
    let master = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = master.local_addr().expect("bound").to_string();
    let seen = Seen::doctor(&[], &["--l2-adapter", &mooncake_json(&addr, "")]);
    seen.has("master", "ok", &[&addr]);
    let seen = Seen::doctor(&[], &["--l2-adapter", &mooncake_json("etcd://here", "")]);
    seen.has("master", "warn", &["etcd://here"]);
    seen.has("library", "fail", &[]);
    let seen = Seen::doctor(
        &[],
        &[
            "--l2-adapter",
            r#"{"type": "mooncake_store", "master_server_addr": null}"#,
        ],
    );
    assert!(
        seen.check("master")["found"]
            .as_str()
            .is_some_and(|found| found.contains("127.0.0.1:50051"))
    );
}

#[test]
fn what_is_no_library_is_told_with_its_path_and_who_named_it() {
    let no_library = support::root().join("Cargo.toml");
    let master = TcpListener::bind("127.0.0.1:0").expect("a port");
    let json = mooncake_json(&master.local_addr().expect("bound").to_string(), "");
    for variable in ["MOONCAKE_STORE_LIBRARY", "MOONRING_MOONCAKE_BRIDGE"] {
        let named = [(variable, no_library.as_path())];
        let parts = [variable, "Cargo.toml", "invalid ELF header"];
        let seen = Seen::doctor(&named, &["--l2-adapter", &json]);
        seen.has("library", "fail", &parts);
        seen.has("master", "ok", &[]);
        seen.not_tried(&LATER);
        // Who asked for no Mooncake has no need of it, and may want to know.
        let seen = Seen::doctor(&named, &[]);
        seen.has("library", "warn", &parts);
        seen.has("round_trip", "ok", &[]);
    }
}

#[test]
fn a_library_that_hangs_is_given_up_and_the_process_ends_all_the_same() {
    let folder = folder("doctor_hangs");
    let (source, library) = (folder.join("hangs.c"), folder.join("libhangs.so"));
    let hangs = "#include <unistd.h>\n__attribute__((constructor)) static void hang(void) { sleep(600); }\n";
    std::fs::write(&source, hangs).expect("written");
    // The linker of every Rust program.
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        assert!(!support::required("compiler"), "cc is required");
        eprintln!("SKIPPED: no cc");
        return;
    }
    let named = [("MOONCAKE_STORE_LIBRARY", library.as_path())];
    let start = Instant::now();
    let seen = Seen::doctor(&named, &["--timeout", "1"]);
    in_seconds(start);
    seen.has("library", "fail", &["not done after 1 s", "--timeout"]);
    seen.not_tried(&LATER);
    // Nor is anything else tried that may need the loader.
    let json = mooncake_json("localhost:1", "");
    let seen = Seen::doctor(&named, &["--timeout", "1", "--l2-adapter", &json]);
    assert_eq!(seen.names().last(), Some(&"library"));
}

#[test]
fn a_store_that_gives_back_what_it_was_not_given_fails() {
    for (fault, told) in [
        (r#""flip_bytes": {"rate": 1}"#, "retrieve: byte "),
        (r#""unwritten": {"rate": 1}"#, "retrieve: byte 0 is 0x5a"),
        (r#""call_error_rate": 1"#, "lookup before the store: "),
        // The second call is the store, the fourth the retrieve, the fifth the delete.
        (r#""panics": {"calls": [2]}"#, "store: the store panicked"),
        (
            r#""wrong_count": {"calls": [1], "op": "retrieve"}"#,
            "retrieve: the store returned a wrong number",
        ),
        (
            r#""panics": {"calls": [1], "op": "delete"}"#,
            "delete: the store panicked",
        ),
        (
            r#""inner": {"type": "memory", "capacity": 4095}"#,
            "store: the store has no space left",
        ),
    ] {
        let json = format!(r#"{{"type": "sim", {fault}}}"#);
        let seen = Seen::doctor(&[], &["--l2-adapter", &json]);
        seen.has("round_trip", "fail", &[told, "moonring-doctor/"]);
        seen.has("shutdown", "ok", &[]);
        assert_eq!(seen.run.code, Some(1));
    }
}

#[test]
fn a_store_that_hangs_is_told_with_the_op_and_the_process_ends() {
    let json = r#"{"type": "sim", "delay_us": 600000000}"#;
    let start = Instant::now();
    let seen = Seen::doctor(&[], &["--l2-adapter", json, "--timeout", "1"]);
    in_seconds(start);
    seen.has("round_trip", "fail", &["lookup: not done after 1 s"]);
    seen.has("shutdown", "fail", &["has not returned"]);
}

#[test]
fn what_has_no_effect_or_moves_no_bytes_is_a_warning() {
    let seen = Seen::doctor(
        &[],
        &["--l2-adapter", r#"{"type": "null", "eviction": {}}"#],
    );
    assert_eq!(seen.run.code, Some(0));
    seen.has("configuration", "warn", &["null", "eviction"]);
    seen.has("round_trip", "warn", &["moves none"]);
}

#[test]
fn rdma_without_a_device_fails_though_mooncake_would_take_tcp() {
    if !moonring::store::mooncake::rdma_devices().is_empty() {
        println!("SKIPPED: this machine has RDMA devices");
        return;
    }
    let json = mooncake_json("127.0.0.1:1", r#", "protocol": "rdma""#);
    let seen = Seen::doctor(&[], &["--l2-adapter", &json]);
    seen.has("rdma", "fail", &["/sys/class/infiniband", "tcp"]);
}

#[test]
fn bad_input_is_told_in_one_line_and_ends_with_2() {
    for (args, told) in [
        (
            &["--l2-adapter", r#"{"type": "mooncake"#][..],
            "--l2-adapter: json: ",
        ),
        (
            &["--l2-adapter", r#"{"type": "redis"}"#],
            "--l2-adapter: type: ",
        ),
        (
            &[
                "--l2-adapter",
                r#"{"type": "memory", "moonring": {"max_batch": 0}}"#,
            ],
            "--l2-adapter: moonring.max_batch: ",
        ),
        (
            &["--json", "/nowhere/report.json"],
            "--json /nowhere/report.json: ",
        ),
    ] {
        let run = moonring([&["doctor"], args].concat());
        assert_eq!(run.code, Some(2), "{run:?}");
        assert_eq!(
            (run.stdout.as_str(), run.stderr.lines().count()),
            ("", 1),
            "{run:?}"
        );
        assert!(
            run.stderr.starts_with(&format!("moonring: {told}")),
            "{run:?}"
        );
    }
    for args in [
        ["--timeout", "0"],
        ["--region-bytes", "much"],
        ["--region-bytes", "0"],
    ] {
        assert_eq!(moonring([&["doctor"], &args[..]].concat()).code, Some(2));
    }
}

#[test]
fn a_real_mooncake_is_found_and_what_it_lacks_is_told() {
    let Some(real) = Mooncake::up("doctor", &["--segment", "64MB"], Duration::from_secs(100))
    else {
        return;
    };
    let bridge = mooncake::bridge();
    let state = mooncake::state();
    let json = real.json(&[]);
    let before = real.counters();
    for (variable, path, origin) in [
        ("MOONCAKE_STORE_LIBRARY", &bridge, "MOONCAKE_STORE_LIBRARY"),
        ("MOONRING_MOONCAKE_DIR", &state, "tools/mooncake setup"),
    ] {
        let seen = Seen::doctor(&[(variable, path)], &["--l2-adapter", &json]);
        assert_eq!(seen.run.code, Some(0), "{:?}", seen.run);
        seen.has(
            "library",
            "ok",
            &[
                &bridge.to_string_lossy(),
                &format!("found by {origin}"),
                "version 0.",
                "every key",
            ],
        );
        seen.has("master", "ok", &["127.0.0.1:"]);
        seen.has("open", "ok", &["mooncake_store, version 0."]);
        seen.has("round_trip", "ok", &["right bytes"]);
        seen.not_tried(&[]);
    }
    // It was the real one, and nothing stays there.
    let after = real.counters();
    for (name, count) in [
        ("batch_put_end_items", 2),
        ("batch_exist_key_items", 6),
        ("batch_get_replica_list_items", 2),
        ("remove_requests", 2),
        ("remove_failures", 0),
    ] {
        assert_eq!(after.since(&before, name), count, "{name}");
    }

    let library = [("MOONCAKE_STORE_LIBRARY", bridge.as_path())];
    real.command("close-node");
    let seen = Seen::doctor(&library, &["--l2-adapter", &json]);
    seen.has("round_trip", "fail", &["no space", "storage node"]);
    seen.has("shutdown", "ok", &[]);
    // It listens, and serves nobody.
    real.command("stop-master");
    let start = Instant::now();
    let seen = Seen::doctor(&library, &["--l2-adapter", &json, "--timeout", "2"]);
    in_seconds(start);
    seen.has(
        "open",
        "fail",
        &["not open after 2 s", "whether the master serves"],
    );
    real.command("kill-master");
    let seen = Seen::doctor(&library, &["--l2-adapter", &json]);
    seen.has("master", "fail", &["refused"]);
    seen.not_tried(&LATER);
}
