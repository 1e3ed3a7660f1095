//! O5, Mooncake#3551, on a real Mooncake: the host's own handler gets SIGTERM, its exit code counts, and a process that ends with
//! the engine busy ends soon and without a crash. Each host is a process of its own: this test binary, started again.

mod common_b;
mod mooncake;
mod standin;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common_b::{canary_slot, slot_of, submit};
use mooncake::{Mooncake, Rig, within};
use moonring::config::CoreChoice;
use moonring::store::OpenOptions;
use moonring::{Done, EngineConfig, Pair, Shutdown, StoreOutcome, Submission};

const LIMIT: Duration = Duration::from_secs(120);
/// In which a process must end, whatever its calls do.
const SOON: Duration = Duration::from_secs(15);

/// The environment variable with the host's JSON.
const HOST: &str = "MOONRING_TEST_HOST";
/// Whether it is to end by `exit`, rather than by returning from `main`.
const BY_EXIT: &str = "MOONRING_TEST_BY_EXIT";

/// A host that was started, and what it prints.
struct Host {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Host {
    fn start(mooncake: &Mooncake, test: &str, by_exit: bool) -> Self {
        let variables = [
            (HOST, &*mooncake.json(&[])),
            (BY_EXIT, if by_exit { "1" } else { "" }),
        ];
        let mut child = mooncake::child(test, &variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a host");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, lines }
    }

    /// Reads until it has said so.
    fn hear(&mut self, word: &str) {
        let mut heard = String::new();
        while !heard.lines().any(|line| line.ends_with(word)) {
            let read = self.lines.read_line(&mut heard).expect("text");
            assert!(read > 0, "it ended before it said {word:?}: {heard}");
        }
    }

    fn go_on(&mut self) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        stdin.write_all(b"go on\n").expect("it reads");
    }

    /// Its exit code, `None` if a signal ended it; and the rest of what it printed.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("text");
        (self.child.wait().expect("its end").code(), rest)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // One that a failing test leaves would wait for ever.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a host: an engine; `None`: the test was not started as one.
fn rig() -> Option<Rig> {
    let json = std::env::var(HOST).ok()?;
    let options = OpenOptions::default().library(mooncake::bridge());
    let config = EngineConfig::default().cores(CoreChoice::None);
    Some(Rig::start_with(
        config,
        mooncake::open(&json, &options),
        1 << 20,
        16,
    ))
}

fn say(word: &str) {
    // Past the harness, which captures by line.
    println!("\n{word}");
}

/// Stores and a retrieve that can't end before the node goes on.
fn submit_some(rig: &Rig, pair: &mut Pair) {
    submit(
        pair,
        Submission::retrieve("there", canary_slot(&rig.slots, 1 << 20)),
    );
    for key in ["a", "b", "c"] {
        let slot = slot_of(&rig.slots, &vec![7; 1 << 20]);
        submit(pair, Submission::store(key, slot));
    }
}

static TERMINATED: AtomicBool = AtomicBool::new(false);

extern "C" fn terminate(_: libc::c_int) {
    TERMINATED.store(true, Relaxed);
}

#[test]
#[ignore = "run by o5_a_hosts_own_handler_gets_sigterm_and_its_ops_complete"]
fn child_with_a_handler() {
    if std::env::var_os(HOST).is_none() {
        return;
    }
    // SAFETY: the handler only stores.
    unsafe { libc::signal(libc::SIGTERM, terminate as *const () as usize) };
    let Some(rig) = rig() else { return };
    let mut pair = rig.engine.pair(8).unwrap();
    let put = Submission::store("there", slot_of(&rig.slots, &vec![7; 1 << 20]));
    submit(&mut pair, put);
    pair.wait(1, None).unwrap();
    assert_eq!(
        pair.poll().unwrap().result,
        Ok(Done::Store(StoreOutcome::Accepted))
    );
    say("ready");
    // Here the parent stops the node.
    std::io::stdin().read_line(&mut String::new()).unwrap();
    submit_some(&rig, &mut pair);
    say("busy");
    while !TERMINATED.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(pair.in_flight(), 4, "all are in flight still");
    say("handled");
    pair.wait(4, None).unwrap();
    let results: Vec<_> = pair.completions().map(|done| done.result).collect();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let report = rig.engine.shutdown(Shutdown::Drain, LIMIT).unwrap();
    say(&format!("completed {}", report.completed));
    std::process::exit(42);
}

#[test]
fn o5_a_hosts_own_handler_gets_sigterm_and_its_ops_complete() {
    let Some(mooncake) = Mooncake::up("o5-term", &["--segment", "64MB"], LIMIT) else {
        return;
    };
    let mut host = Host::start(&mooncake, "child_with_a_handler", false);
    host.hear("ready");
    mooncake.command("stop-node");
    host.go_on();
    host.hear("busy");
    std::thread::sleep(Duration::from_millis(200));
    let pid = libc::pid_t::try_from(host.child.id()).expect("a pid");
    // SAFETY: our own child, which was not waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    host.hear("handled");
    mooncake.command("cont-node");
    let (code, output) = host.end();
    assert_eq!(code, Some(42), "{output}");
    assert!(output.contains("completed 5"), "{output}");
}

#[test]
#[ignore = "run by o5_a_process_that_ends_with_the_engine_busy_ends_soon"]
fn child_that_ends_busy() {
    let Some(rig) = rig() else { return };
    let by_exit = std::env::var(BY_EXIT).is_ok_and(|by_exit| !by_exit.is_empty());
    let mut pair = rig.engine.pair(8).unwrap();
    let put = Submission::store("there", slot_of(&rig.slots, &vec![7; 1 << 20]));
    submit(&mut pair, put);
    pair.wait(1, None).unwrap();
    say("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    pair.completions().for_each(drop);
    submit_some(&rig, &mut pair);
    std::thread::sleep(Duration::from_millis(300));
    // The engine goes on; nobody shuts it down.
    std::mem::forget((pair, rig));
    say("ending");
    if by_exit {
        std::process::exit(7);
    }
}

#[test]
fn o5_a_process_that_ends_with_the_engine_busy_ends_soon() {
    let Some(mooncake) = Mooncake::up("o5-exit", &["--segment", "64MB"], LIMIT) else {
        return;
    };
    // The calls hang in a transfer, in a question to the master, or nowhere.
    for who in ["node", "master", ""] {
        for by_exit in [true, false] {
            let mut host = Host::start(&mooncake, "child_that_ends_busy", by_exit);
            host.hear("ready");
            if !who.is_empty() {
                mooncake.command(&format!("stop-{who}"));
            }
            host.go_on();
            host.hear("ending");
            let what = format!("the end, {who:?} stopped, by exit: {by_exit}");
            let (code, output) = within(SOON, &what, || host.end());
            // The harness's own code for a test that went well is 0.
            assert_eq!(code, Some(if by_exit { 7 } else { 0 }), "{what}: {output}");
            if !who.is_empty() {
                mooncake.command(&format!("cont-{who}"));
            }
        }
    }
}
