//! What calls do when the master or the storage node is killed, stopped, closed or started again.
#![allow(missing_docs)]

mod common;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Client, Mooncake, Watchdog, eventually, set_up};

const LIMIT: Duration = Duration::from_secs(150);

fn run(test: &'static str, f: impl FnOnce(&Mooncake, &Client)) {
    if !set_up() {
        return;
    }
    let _watchdog = Watchdog::new(LIMIT, test);
    let mooncake = Mooncake::up(test, &[]);
    let client = Client::connected(&mooncake);
    assert_eq!(client.put(&[("old", b"bytes")]), Ok(vec![0]));
    f(&mooncake, &client);
}

#[test]
fn a_killed_master_fails_calls_and_serves_again_after_a_restart() {
    run("master-killed", |mooncake, client| {
        mooncake.command("kill-master");
        let start = Instant::now();
        assert_eq!(client.exists(&["old", "none"]), Ok(vec![-900; 2]));
        assert_eq!(client.get("old"), Err(-900));
        assert_eq!(client.put(&[("new", b"A")]), Ok(vec![-900]));
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{:?}",
            start.elapsed()
        );

        mooncake.command("start-master");
        let took = eventually(Duration::from_secs(20), "a put after the restart", || {
            client.put(&[("new", b"A")]) == Ok(vec![0])
        });
        println!("a put worked {took:?} after the restart");
        assert_eq!(client.get("new"), Ok(b"A".to_vec()));
        assert_eq!(client.get("old"), Err(-704));
    });
}

/// The proof that the interpreter lock is not held in a call: else a second client would stand still too.
#[test]
fn a_call_that_hangs_holds_up_no_other_client() {
    run("master-stopped", |mooncake, client| {
        let other = Mooncake::up("beside", &[]);
        let other = (Client::connected(&other), other);
        for (stop, cont) in [("stop-master", "cont-master"), ("stop-node", "cont-node")] {
            mooncake.command(stop);
            thread::scope(|scope| {
                let (sender, receiver) = mpsc::channel();
                scope.spawn(move || {
                    // The master answers lookups, the node hands bytes out.
                    let result = if stop == "stop-master" {
                        client.exists(&["old"]).unwrap()[0].into()
                    } else {
                        client.get_sized(&[("old", 5)]).unwrap()[0].0
                    };
                    sender.send(result).unwrap();
                });
                thread::sleep(Duration::from_millis(300));
                let start = Instant::now();
                assert_eq!(other.0.put(&[(stop, b"A")]), Ok(vec![0]));
                assert_eq!(other.0.get(stop), Ok(b"A".to_vec()));
                assert_eq!(other.0.remove(stop, true), 0);
                let took = start.elapsed();
                assert!(
                    took < Duration::from_secs(5),
                    "the other client took {took:?}"
                );
                assert!(receiver.try_recv().is_err(), "the call hangs still");
                mooncake.command(cont);
                let result = receiver
                    .recv_timeout(Duration::from_secs(30))
                    .expect("an end of the hanging call");
                assert_eq!(result, if stop == "stop-master" { 1 } else { 5 });
            });
        }
    });
}

#[test]
fn a_killed_node_fails_transfers_and_a_new_one_serves() {
    run("node-killed", |mooncake, client| {
        mooncake.command("kill-node");
        assert_eq!(
            client.exists(&["old"]),
            Ok(vec![1]),
            "the master does not know yet"
        );
        assert_eq!(client.get("old"), Err(-800));
        let took = eventually(
            Duration::from_secs(30),
            "the master forgets the node",
            || client.exists(&["old"]) == Ok(vec![0]),
        );
        println!("the master forgot the node after {took:?}");
        assert_eq!(client.get("old"), Err(-704));
        assert_eq!(client.put(&[("new", b"A")]), Ok(vec![-200]));

        mooncake.command("start-node");
        eventually(Duration::from_secs(20), "a put on the new node", || {
            client.put(&[("new", b"A")]) == Ok(vec![0])
        });
        assert_eq!(client.get("new"), Ok(b"A".to_vec()));
    });
}

#[test]
fn a_node_that_closes_takes_its_keys_along() {
    run("node-closed", |mooncake, client| {
        mooncake.command("close-node");
        assert_eq!(client.get("old"), Err(-704));
        assert_eq!(client.exists(&["old"]), Ok(vec![0]));
    });
}

#[test]
fn a_set_up_without_a_master_fails_with_a_code_and_can_be_tried_again() {
    run("no-master", |mooncake, _| {
        mooncake.command("kill-master");
        let client = Client::create();
        let mut pairs = mooncake.dictionary();
        // With a port of its own the client tries for seconds, without for minutes.
        pairs[0] = ("local_hostname", "127.0.0.1:17777");
        let start = Instant::now();
        assert_eq!(client.set_up(&pairs), -600);
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{:?}",
            start.elapsed()
        );
        assert_eq!(client.put(&[("key", b"A")]), Err(-600), "not set up");
        mooncake.command("start-master");
        assert_eq!(client.set_up(&mooncake.dictionary()), 0);
        eventually(Duration::from_secs(20), "a put", || {
            client.put(&[("key", b"A")]) == Ok(vec![0])
        });
    });
}
