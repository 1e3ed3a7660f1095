//! O5's neighbour, fork, with a real Mooncake open: a child that ends by `exec` or `_exit` is fine, and the parent notices nothing. (One
//! that ends by `exit` runs what Mooncake does then: SIGSEGV was seen.)

mod common;
mod common_b;
mod mooncake;
mod standin;

use std::process::Command;
use std::time::Duration;

use common::in_a_child;
use common_b::slot_of;
use mooncake::{Mooncake, Rig};
use moonring::store::{Store, direct};
use moonring::{ClientError, OpError, Shutdown, ShutdownError, StoreOutcome, SubmitError};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn children_that_exec_or_exit_at_once_leave_the_parent_and_its_client_alone() {
    let Some(mooncake) = Mooncake::up("fork", &["--segment", "64MB"], LIMIT) else {
        return;
    };
    let store = mooncake.open();
    let rig = Rig::start(store.clone(), 1 << 16, 16);
    let client = rig.engine.client();
    let put = |key: &str| {
        let slot = slot_of(&rig.slots, &[7; 1 << 16]);
        let stored = client.blocking().store(key, slot);
        assert_eq!(stored.result, Ok(StoreOutcome::Accepted));
    };
    put("before");
    std::thread::scope(|scope| {
        // Calls are under way at each fork.
        let load = scope.spawn(|| {
            for i in 0..400 {
                put(&format!("key-{}", i % 20));
            }
        });
        let mut forks = 0;
        while !load.is_finished() {
            let code = in_a_child(|| {
                let forked = ClientError::Refused(SubmitError::Forked);
                if client.blocking().lookup("before") != Err(forked) {
                    return 1;
                }
                let there = direct::exists(&*store, &[b"before"]);
                if there.is_ok_and(|there| there != [Err(OpError::Forked)]) {
                    return 2;
                }
                store.close();
                i32::from(
                    rig.engine.shutdown(Shutdown::Cancel, LIMIT) != Err(ShutdownError::Forked),
                )
            });
            assert_eq!(code, 0);
            assert!(Command::new("/bin/true").status().unwrap().success());
            let code = in_a_child(|| {
                // SAFETY: a list that ends in null, of strings that end in NUL.
                unsafe {
                    libc::execl(
                        c"/bin/sh".as_ptr(),
                        c"sh".as_ptr(),
                        c"-c".as_ptr(),
                        c"exit 9".as_ptr(),
                        std::ptr::null::<libc::c_char>(),
                    )
                }
            });
            assert_eq!(code, 9);
            forks += 1;
        }
        println!("{forks} times three children");
        assert!(forks > 0);
    });
    assert_eq!(client.blocking().lookup("before"), Ok(true));
    put("after");
    let got = client
        .blocking()
        .retrieve("after", rig.slots.lend(1 << 16).unwrap());
    assert!(got.slot.unwrap().iter().all(|&byte| byte == 7));
    let report = rig.engine.shutdown(Shutdown::Drain, LIMIT).unwrap();
    assert_eq!((report.cancelled, report.in_flight), (0, 0));
}
