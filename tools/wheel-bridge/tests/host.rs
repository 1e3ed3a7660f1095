//! What the bridge does to its host: nothing. Each case is a process of its own, this test binary started again.
#![allow(missing_docs)]

mod common;

use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, fs, ptr, thread};

use common::{Bridge, Client, Mooncake, VENV, Watchdog, bridge, library, project, set_up, venv};

/// Set in the child, to what the test wants to say to it.
const CHILD: &str = "BRIDGE_TEST_CHILD";

/// In the parent: starts `test` again as a child and returns its end and output. `None`: this is the child.
fn in_child(test: &str, word: &str, venv: Option<&Path>) -> Option<(ExitStatus, String)> {
    if env::var_os(CHILD).is_some() {
        return None;
    }
    let mut command = Command::new(env::current_exe().expect("a path"));
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, word);
    if let Some(venv) = venv {
        command.env(VENV, venv);
    }
    Some(finish(command))
}

fn finish(mut command: Command) -> (ExitStatus, String) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut errors = child.stderr.take().expect("a pipe");
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        errors.read_to_end(&mut text).expect("its output");
        text
    });
    let mut text = Vec::new();
    child
        .stdout
        .take()
        .expect("a pipe")
        .read_to_end(&mut text)
        .expect("its output");
    text.extend(reader.join().expect("the reader"));
    (
        child.wait().expect("its end"),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[test]
fn the_seam_is_exported_whole() {
    if !set_up() {
        return;
    }
    let header =
        fs::read_to_string(project().join("src/store/mooncake/seam.h")).expect("the seam's header");
    let mut names = Vec::new();
    for (at, _) in header.match_indices("(") {
        let name = header[..at]
            .rsplit(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
            .unwrap_or_default();
        if name.starts_with("mooncake_store_") || name.starts_with("moonring_mooncake_") {
            names.push(name);
        }
    }
    assert!(names.len() == 13, "{names:?}");
    for name in names {
        // SAFETY: only looked up.
        unsafe {
            bridge()
                .library
                .get::<*const ()>(name)
                .unwrap_or_else(|_| panic!("{name}"))
        };
    }
}

#[test]
fn the_version_of_the_wheel_is_told() {
    if !set_up() {
        return;
    }
    let wheel = fs::read_to_string(venv().join("wheel")).expect("what set-up installed");
    let (name, version) = wheel
        .trim()
        .rsplit(' ')
        .next()
        .and_then(|wheel| wheel.split_once("=="))
        .expect("NAME==VERSION");
    assert_eq!(bridge().version(), Some(format!("{version} ({name})")));
}

static TERMINATED: AtomicBool = AtomicBool::new(false);

extern "C" fn terminate(_: libc::c_int) {
    TERMINATED.store(true, Ordering::Relaxed);
}

/// What must not change: signal mask and handlers, processors, locale, environment, working folder.
fn look() -> Vec<String> {
    let status = fs::read_to_string("/proc/thread-self/status").expect("this thread's status");
    let kept = ["SigBlk", "SigIgn", "SigCgt", "Cpus_allowed:"];
    let mut all: Vec<_> = status
        .lines()
        .filter(|line| kept.iter().any(|name| line.starts_with(name)))
        .map(str::to_owned)
        .collect();
    for signal in 1..=31 {
        // SAFETY: only reads, into a value of which zeroes are valid.
        let handler = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, ptr::null(), &raw mut action);
            action.sa_sigaction
        };
        all.push(format!("handler of {signal}: {handler:x}"));
    }
    // SAFETY: only asks; no other thread sets it.
    let locale = unsafe { std::ffi::CStr::from_ptr(libc::setlocale(libc::LC_ALL, ptr::null())) };
    all.push(format!("{locale:?}"));
    all.push(format!("{:?}", env::vars_os().collect::<Vec<_>>()));
    all.push(format!("{:?}", env::current_dir()));
    all
}

#[test]
fn the_host_is_left_as_it_was() {
    if !set_up() {
        return;
    }
    match in_child("the_host_is_left_as_it_was", "look", None) {
        Some((status, output)) => assert!(status.success(), "{output}"),
        None => {
            let _watchdog = Watchdog::new(Duration::from_secs(60), "the host");
            let mooncake = Mooncake::up("host", &[]);
            // SAFETY: the handler only stores.
            unsafe { libc::signal(libc::SIGTERM, terminate as *const () as usize) };
            let before = look();
            let client = Client::connected(&mooncake);
            assert_eq!(client.put(&[("key", b"A")]), Ok(vec![0]));
            assert_eq!(client.get("key"), Ok(b"A".to_vec()));
            assert!(bridge().version().is_some(), "{:?}", bridge().last_error());
            assert_eq!(look(), before);
            // To the process, so to any of its threads, of Mooncake's too.
            // SAFETY: a signal to ourselves, with a handler.
            unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
            common::eventually(Duration::from_secs(5), "the host's handler", || {
                TERMINATED.load(Ordering::Relaxed)
            });
            assert_eq!(client.get("key"), Ok(b"A".to_vec()), "the client lives on");
            drop(client);
            assert_eq!(look(), before);
        }
    }
}

/// Ends this process with 7 while `busy` runs in four threads; with 9 if that takes 5 s.
fn exit_while(busy: impl Fn(usize) + Sync) -> ! {
    thread::scope(|scope| {
        for thread in 0..4 {
            let busy = &busy;
            scope.spawn(move || busy(thread));
        }
        thread::sleep(Duration::from_millis(500));
        thread::spawn(|| {
            thread::sleep(Duration::from_secs(5));
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(9) };
        });
        std::process::exit(7)
    })
}

/// In the parent: the child ends with its own code, and what it started is ended. `Some` in the child.
fn exits(test: &str) -> Option<(Mooncake, Client)> {
    if !set_up() {
        return None;
    }
    let name = common::instance(test);
    if let Some((status, output)) = in_child(test, &name, None) {
        common::run(&name, &["down"]);
        assert_eq!(status.code(), Some(7), "{status} {output}");
        return None;
    }
    let mooncake = Mooncake::named(&env::var(CHILD).expect("the name"), &[]);
    let client = Client::connected(&mooncake);
    assert_eq!(client.put(&[("key", [1; 4096])]), Ok(vec![0]));
    Some((mooncake, client))
}

#[test]
fn a_host_may_exit_while_calls_run() {
    if let Some((_mooncake, client)) = exits("a_host_may_exit_while_calls_run") {
        exit_while(|thread| {
            for round in 0.. {
                let _ = client.get("key");
                let _ = client.put(&[(format!("{thread} {round}"), [1; 4096])]);
            }
        })
    }
}

#[test]
fn a_host_may_exit_while_calls_hang() {
    if let Some((mooncake, client)) = exits("a_host_may_exit_while_calls_hang") {
        mooncake.command("stop-node");
        exit_while(|_| drop(client.get("key")))
    }
}

/// `create` in a child, where nothing of Python runs yet; the reason why it fails.
fn reason_for(test: &str, venv: &Path) -> Option<String> {
    match in_child(test, "create", Some(venv)) {
        Some((status, output)) => {
            assert!(status.success(), "{output}");
            let reason = output
                .lines()
                .find_map(|line| line.strip_prefix("REASON: "));
            Some(
                reason
                    .unwrap_or_else(|| panic!("no reason in {output}"))
                    .to_owned(),
            )
        }
        None => {
            let bridge = Bridge::open(&library());
            // SAFETY: no precondition.
            assert!(unsafe { (bridge.create)() }.is_null());
            println!("\nREASON: {}", bridge.last_error().expect("a reason"));
            assert_eq!(bridge.version(), None);
            None
        }
    }
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// As set-up lays them: nobody needs to name the venv.
#[test]
fn a_venv_beside_the_bridge_is_found() {
    if !set_up() {
        return;
    }
    let test = "a_venv_beside_the_bridge_is_found";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("beside");
    if env::var_os(CHILD).is_none() {
        let folder = self::folder("beside");
        std::os::unix::fs::symlink(venv(), folder.join("venv")).expect("a link");
        fs::copy(library(), folder.join("bridge.so")).expect("a copy");
    }
    // An empty name is none.
    if let Some((status, output)) = in_child(test, "", Some(Path::new(""))) {
        assert!(status.success(), "{output}");
    } else {
        let bridge = Bridge::open(&folder.join("bridge.so"));
        assert!(bridge.version().is_some(), "{:?}", bridge.last_error());
    }
}

#[test]
fn a_missing_venv_is_told_with_what_to_do() {
    if !set_up() {
        return;
    }
    if let Some(reason) = reason_for(
        "a_missing_venv_is_told_with_what_to_do",
        Path::new("/no/such/venv"),
    ) {
        assert!(
            reason.contains("/no/such/venv") && reason.contains("tools/mooncake setup"),
            "{reason}"
        );
        assert!(reason.contains("MOONRING_MOONCAKE_VENV"), "{reason}");
    }
}

#[test]
fn a_venv_of_another_python_is_told() {
    if !set_up() {
        return;
    }
    let venv = folder("other-python");
    fs::write(venv.join("pyvenv.cfg"), "home = /usr/bin\n").expect("a file");
    if let Some(reason) = reason_for("a_venv_of_another_python_is_told", &venv) {
        assert!(reason.contains("is not of Python 3."), "{reason}");
    }
}

#[test]
fn a_venv_whose_python_is_gone_is_told() {
    if !set_up() {
        return;
    }
    let python = fs::read_dir(venv().join("lib"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .file_name();
    let venv = folder("gone-python");
    fs::create_dir_all(venv.join("lib").join(python).join("site-packages")).expect("folders");
    fs::write(venv.join("pyvenv.cfg"), "home = /no/such/bin\n").expect("a file");
    if let Some(reason) = reason_for("a_venv_whose_python_is_gone_is_told", &venv) {
        println!("{reason}");
        assert!(
            reason.contains("mooncake.store") || reason.contains("can't start Python"),
            "{reason}"
        );
    }
}

#[test]
fn a_venv_without_the_wheel_is_told() {
    if !set_up() {
        return;
    }
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-wheel");
    if env::var_os(CHILD).is_none() {
        let _ = fs::remove_dir_all(&venv);
        let mut command = Command::new(common::venv().join("bin/python"));
        let (status, output) = finish({
            command.args(["-m", "venv", "--without-pip"]).arg(&venv);
            command
        });
        assert!(status.success(), "{output}");
    }
    if let Some(reason) = reason_for("a_venv_without_the_wheel_is_told", &venv) {
        assert!(reason.contains("can't import mooncake.store"), "{reason}");
        assert!(
            reason.contains("no-wheel") && reason.contains("ModuleNotFoundError"),
            "{reason}"
        );
    }
}

/// A host that is itself a Python, not of our venv: its interpreter is used, and finds our wheel.
#[test]
fn a_python_host_is_used() {
    if !set_up() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(60), "a Python host");
    let program = "
import ctypes, sys
bridge = ctypes.CDLL(sys.argv[1])
bridge.mooncake_store_create.restype = ctypes.c_void_p
bridge.moonring_mooncake_last_error.restype = ctypes.c_char_p
store = bridge.mooncake_store_create()
assert store, bridge.moonring_mooncake_last_error()
bridge.mooncake_store_destroy(ctypes.c_void_p(store))
print('served', sys.prefix)
";
    let home = fs::read_to_string(venv().join("pyvenv.cfg")).expect("the venv's settings");
    let home = home
        .lines()
        .find_map(|line| line.strip_prefix("home = "))
        .expect("its Python");
    let mut command = Command::new(Path::new(home).join("python3"));
    command.args(["-c", program]).arg(library());
    let (status, output) = finish(command);
    assert!(
        status.success() && output.contains("served"),
        "{status}: {output}"
    );
}
