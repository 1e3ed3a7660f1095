//! What was required and not got is an error that names the limit, its value and the need. In a process of its
//! own, as it lowers limits.

use std::io::Write;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;

use moonring::{MemLock, Region, RegionError, RegionOptions};

const MIB: usize = 1 << 20;
/// Says what was not tested, and why, past the test harness, which shows no output of tests that pass.
fn skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
}

/// Lowers the process's soft limit of locked memory, at most to 1 MiB. Returns it.
fn lower_the_lock_limit() -> usize {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    let limit = LIMIT.get_or_init(|| set_soft_limit(libc::RLIMIT_MEMLOCK, 1 << 20));
    usize::try_from(*limit).unwrap()
}

/// Sets a soft limit, to the hard one where that is lower. Returns it.
fn set_soft_limit(resource: libc::__rlimit_resource_t, value: u64) -> u64 {
    // SAFETY: `limit` is a live `rlimit`, written by the first call and read by the second.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(resource, &mut limit), 0);
        limit.rlim_cur = value.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(resource, &limit), 0);
        limit.rlim_cur
    }
}

/// Runs `f` on a thread that may not lock more than the limit, as root may otherwise. A capability that is
/// dropped on one thread stays with all others.
fn without_the_right_to_lock<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    /// Of `linux/capability.h`.
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    thread::scope(|scope| {
        scope
            .spawn(|| {
                let header = [VERSION_3, 0];
                // Effective, permitted, inheritable; for the lower and the upper 32 capabilities.
                let mut sets = [[0u32; 3]; 2];
                // SAFETY: header and sets have the layout that version 3 of the interface has, and are live.
                unsafe {
                    let get = libc::syscall(libc::SYS_capget, &header, &mut sets);
                    assert_eq!(get, 0, "{}", std::io::Error::last_os_error());
                    sets[0][0] &= !(1 << CAP_IPC_LOCK);
                    let set = libc::syscall(libc::SYS_capset, &header, &sets);
                    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
                }
                f()
            })
            .join()
            .unwrap()
    })
}

#[test]
fn a_required_lock_over_the_limit_is_refused_naming_limit_value_and_need() {
    let lowered = lower_the_lock_limit();
    let options = RegionOptions::new(4 * MIB).mlock(MemLock::Require);
    let error = without_the_right_to_lock(|| Region::allocate(options)).unwrap_err();
    let text = error.to_string();
    let RegionError::MemLock { need, limit, .. } = error else {
        panic!("{text}");
    };
    assert_eq!((need, limit), (4 * MIB, Some(lowered as u64)));
    let wanted = format!("mlock: need 4194304 bytes, RLIMIT_MEMLOCK is {lowered} bytes (");
    assert!(text.starts_with(&wanted), "{text}");
}

#[test]
fn a_tried_lock_over_the_limit_locks_nothing_and_says_so() {
    let lowered = lower_the_lock_limit();
    let options = RegionOptions::new(4 * MIB).mlock(MemLock::Try);
    let region = without_the_right_to_lock(|| Region::allocate(options)).unwrap();
    let report = region.report();
    assert_eq!(report.locked, 0);
    assert_eq!(report.notes.len(), 1);
    let wanted = format!("RLIMIT_MEMLOCK is {lowered} bytes");
    assert!(report.notes[0].contains(&wanted), "{report:?}");
    assert!(report.prefaulted);
}

#[test]
fn a_lock_within_the_limit_needs_no_right() {
    let need = lower_the_lock_limit() / 4;
    if need == 0 {
        skipped("a lock within the limit (the hard RLIMIT_MEMLOCK is 0)");
        return;
    }
    let options = RegionOptions::new(need).mlock(MemLock::Require);
    let region = without_the_right_to_lock(|| Region::allocate(options)).unwrap();
    assert_eq!(Some(region.report().locked), region.report().mapped);
}

/// Set in the child process of the next test.
const CHILD: &str = "MOONRING_TEST_ADDRESS_LIMIT";

#[test]
fn no_address_space_left_is_refused_naming_rlimit_as() {
    const LIMIT: u64 = 8 << 30;
    if std::env::var_os(CHILD).is_some() {
        set_soft_limit(libc::RLIMIT_AS, LIMIT);
        let options = RegionOptions::new(16 << 30).prefault(false);
        println!("refused: {}", Region::allocate(options).unwrap_err());
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            "no_address_space_left_is_refused_naming_rlimit_as",
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(
        text.contains("refused: len: need 17179869184 bytes, RLIMIT_AS is 8589934592 bytes: "),
        "{text}"
    );
}
