//! Each example runs, and says what it should.

mod common;

use std::process::Command;

use common::{Server, watchdog};

/// Runs an example to its end, and returns what it printed.
fn run(example: &str, arguments: &[&str]) -> String {
    let output = Command::new(example).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{example}: {}: {errors}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn assert_says(said: &str, texts: &[&str]) {
    for text in texts {
        assert!(said.contains(text), "no '{text}' in:\n{said}");
    }
}

#[test]
fn hot_loop() {
    let _watchdog = watchdog();
    let said = run(env!("CARGO_BIN_EXE_hot_loop"), &[]);
    let counts = "stored 1600, found 1600, retrieved 1600, wrong 0, ";
    assert_says(&said, &[counts, "completed 4800, unreleased 0"]);
}

#[test]
fn epoll() {
    let _watchdog = watchdog();
    let said = run(env!("CARGO_BIN_EXE_epoll"), &[]);
    assert_says(&said, &["1000 requests served, slept "]);
}

#[test]
fn async_fd() {
    let _watchdog = watchdog();
    let said = run(env!("CARGO_BIN_EXE_async_fd"), &[]);
    assert_says(&said, &["500 hits of 1000 keys"]);
}

#[test]
fn local_tasks() {
    let _watchdog = watchdog();
    let said = run(env!("CARGO_BIN_EXE_local_tasks"), &[]);
    // 40 requests at a time, for 10 prompts: what the first four of each compute at once is there ever after.
    assert_says(&said, &[" of 6400 blocks were there, "]);
    let hits: usize = said.split(' ').next().unwrap().parse().unwrap();
    assert!((5760..=6240).contains(&hits), "{said}");
    assert_says(&said, &[&format!("{} ops", 6400 + 6400 - hits)]);
}

#[test]
fn threads() {
    let _watchdog = watchdog();
    let said = run(env!("CARGO_BIN_EXE_threads"), &[]);
    assert_says(
        &said,
        &["1600 blocks computed first, ", "at most 11200 could be"],
    );
}

#[test]
fn custom_store() {
    let _watchdog = watchdog();
    let folder = std::env::temp_dir().join(format!("moonring-files-{}", std::process::id()));
    let folder = folder.to_str().unwrap();
    let example = env!("CARGO_BIN_EXE_custom_store");
    let first = run(example, &[folder]);
    let second = run(example, &[folder]);
    std::fs::remove_dir_all(folder).unwrap();
    let both = ["4096 bytes read", "deleted twice: no object has this key"];
    assert_says(&first, &["0 of 16 blocks were there", "16 stored, 0 not"]);
    assert_says(&first, &both);
    // All but the deleted one are still there.
    assert_says(&second, &["15 of 16 blocks were there", "1 stored, 15 not"]);
    assert_says(&second, &both);
}

#[test]
fn metrics_server() {
    let _watchdog = watchdog();
    let server = Server::start(env!("CARGO_BIN_EXE_metrics_server"), &["127.0.0.1:0"]);
    let (status, ready) = server.get("/ready");
    assert_eq!((status, ready.as_str()), (200, "healthy\n"));
    let lookups = || {
        let (status, page) = server.get("/metrics");
        assert_eq!(status, 200);
        assert!(page.ends_with("# EOF\n"), "{page}");
        let series = "moonring_completions_total{op=\"lookup\",result=\"absent\"} ";
        let line = page.lines().find_map(|line| line.strip_prefix(series));
        line.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    let first = lookups();
    while lookups() <= first {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// An example that is longer is none.
#[test]
fn each_is_under_150_lines() {
    let mut examples = 0;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 150, "{}: {lines} lines", path.display());
        examples += 1;
    }
    assert_eq!(examples, 8);
}
