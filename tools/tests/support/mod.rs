//! What the tests of the command line share.
#![allow(dead_code)] // each test file uses a part

#[path = "../../../tests/common/one_run.rs"]
pub mod one_run;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// The project's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tools/ lies in the project's root")
}

/// The project's own trace.
pub fn sample() -> PathBuf {
    root().join("traces/sample.jsonl")
}

/// The published trace, from `MOONRING_TRACES` or beside the project. Where it is missing the test is skipped
/// aloud, or fails if `MOONRING_REQUIRE` lists `traces`.
pub fn published() -> Option<PathBuf> {
    let folder = std::env::var_os("MOONRING_TRACES")
        .map_or_else(|| root().join("../shared/traces"), PathBuf::from);
    let path = folder.join("conversation_trace.jsonl");
    if path.is_file() {
        return Some(path);
    }
    assert!(
        !required("traces"),
        "{} is missing, and MOONRING_REQUIRE asks for traces",
        path.display()
    );
    // Not `eprintln`, which the test harness keeps to itself.
    let mut aloud = std::io::stderr();
    let _ = writeln!(aloud, "SKIPPED: {} is missing", path.display());
    None
}

/// Whether `MOONRING_REQUIRE` forbids to skip it.
pub fn required(what: &str) -> bool {
    let list = std::env::var("MOONRING_REQUIRE").unwrap_or_default();
    list.split(',').any(|item| item.trim() == what)
}

/// A folder for one test's files, empty.
pub fn folder(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder for the test");
    path
}

/// What a run of the binary ended with.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Every member of a report stands in the page about the command line.
pub fn is_documented(report: &serde_json::Value) {
    let page = std::fs::read_to_string(root().join("docs/cli.md")).expect("the page");
    for name in report.as_object().expect("an object").keys() {
        assert!(
            page.contains(&format!("`{name}`")),
            "{name} is not in docs/cli.md"
        );
    }
}

/// Runs the binary with `--json` and reads what it wrote.
pub fn with_json(test: &str, args: &[&str]) -> (Run, serde_json::Value) {
    let file = folder(test).join("report.json");
    let json = ["--json", &file.to_string_lossy()].map(String::from);
    let run = moonring(args.iter().map(|arg| (*arg).to_owned()).chain(json));
    let text = std::fs::read_to_string(&file);
    let text = text.unwrap_or_else(|e| panic!("no report: {e}; {run:?}"));
    let report = serde_json::from_str(&text);
    (run, report.expect("JSON"))
}

/// The binary, to be given arguments and an environment.
pub fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_moonring"))
}

/// In which a run ends, also on a machine that does many other things.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs the binary with no terminal. One that takes over [`LIMIT`] is killed, and the test fails.
pub fn moonring<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    run(command().args(args))
}

/// Runs a [`command`] in the same way.
pub fn run(command: &mut Command) -> Run {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let pid = child.id();
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if ended.recv_timeout(LIMIT).is_err() {
            let threads = threads(pid);
            // By its id: the child can't be reached while its output is being read.
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
            return Some(threads);
        }
        None
    });
    let Output {
        status,
        stdout,
        stderr,
    } = child_output(&mut child);
    let _ = done.send(());
    let hung = watchdog.join().expect("the watchdog");
    let run = Run {
        code: status.code(),
        stdout: String::from_utf8(stdout).expect("text"),
        stderr: String::from_utf8(stderr).expect("text"),
    };
    if let Some(threads) = hung {
        panic!("killed by the watchdog: {command:?}: {run:?}\n{threads}");
    }
    run
}

/// What each thread of a process is at: its name, its state, where it sleeps, and how long it has run and waited for a core, in ns.
fn threads(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let tasks = tasks.map(|task| {
        let of = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let status = of("status");
        let state = status.lines().find(|line| line.starts_with("State:"));
        let (name, wchan, times) = (of("comm"), of("wchan"), of("schedstat"));
        let (name, times) = (name.trim(), times.trim());
        format!("{name}: {}, {wchan}, {times}\n", state.unwrap_or("gone"))
    });
    tasks.collect()
}

fn child_output(child: &mut std::process::Child) -> Output {
    use std::io::Read;
    let mut stderr_pipe = child.stderr.take().expect("a pipe");
    let reader = std::thread::spawn(move || {
        let mut stderr = Vec::new();
        stderr_pipe.read_to_end(&mut stderr).expect("stderr");
        stderr
    });
    let mut stdout = Vec::new();
    let pipe = child.stdout.as_mut().expect("a pipe");
    pipe.read_to_end(&mut stdout).expect("stdout");
    let stderr = reader.join().expect("the reader of stderr");
    let status = child.wait().expect("an exit status");
    Output {
        status,
        stdout,
        stderr,
    }
}
