//! What the calls return, on a real master and a storage node in a process of its own.
#![allow(missing_docs)]

mod common;

use std::ffi::{CString, c_int};
use std::ptr;
use std::time::Duration;

use common::{CANARY, Client, Mooncake, ReplicateConfig, Watchdog, bridge, set_up};

/// One Mooncake for all: each test has keys of its own.
fn with_client(test: &'static str, f: impl FnOnce(&Mooncake, &Client)) {
    if !set_up() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(120), test);
    let mooncake = Mooncake::up(test, &[]);
    f(&mooncake, &Client::connected(&mooncake));
}

#[test]
fn objects_come_back_and_the_master_counts_the_requests() {
    with_client("roundtrip", |mooncake, client| {
        let values: Vec<_> = (0..64_u8)
            .map(|i| (format!("key {i}"), vec![i; 4096 + usize::from(i)]))
            .collect();
        let before = mooncake.counter("master_batch_get_replica_list_items_total");
        assert_eq!(client.put(&values), Ok(vec![0; 64]));
        assert_eq!(
            client.exists(&values.iter().map(|(key, _)| key).collect::<Vec<_>>()),
            Ok(vec![1; 64])
        );
        let asked: Vec<_> = values
            .iter()
            .map(|(key, value)| (key, value.len()))
            .collect();
        for ((code, got), (key, value)) in
            client.get_sized(&asked).unwrap().into_iter().zip(&values)
        {
            assert_eq!(
                (code, &got),
                (i64::try_from(value.len()).unwrap(), value),
                "{key}"
            );
        }
        let after = mooncake.counter("master_batch_get_replica_list_items_total");
        assert_eq!(after - before, 64);
    });
}

#[test]
fn a_missing_key_fails_alone() {
    with_client("missing", |_, client| {
        assert_eq!(client.put(&[("there", b"bytes")]), Ok(vec![0]));
        let got = client
            .get_sized(&[("not there", 5), ("there", 5), ("not there either", 5)])
            .unwrap();
        assert_eq!(
            got.iter().map(|(code, _)| *code).collect::<Vec<_>>(),
            [-704, 5, -704]
        );
        assert_eq!(got[1].1, b"bytes");
        assert_eq!(client.exists(&["not there", "there"]), Ok(vec![0, 1]));
    });
}

#[test]
fn objects_are_immutable() {
    with_client("immutable", |_, client| {
        assert_eq!(client.put(&[("key", b"first")]), Ok(vec![0]));
        assert_eq!(client.put(&[("key", b"other")]), Ok(vec![0]));
        assert_eq!(client.get("key"), Ok(b"first".to_vec()));
    });
}

#[test]
fn lengths_are_told_apart() {
    with_client("lengths", |_, client| {
        assert_eq!(client.put(&[("key", b"0123456789")]), Ok(vec![0]));
        let got = client.get_sized(&[("key", 20)]).unwrap().remove(0);
        assert_eq!(got.0, 10);
        assert_eq!(&got.1[..10], b"0123456789");
        assert_eq!(got.1[10..], [CANARY; 10], "the tail is left alone");
        assert_eq!(client.get_sized(&[("key", 9)]).unwrap()[0].0, -600);
        // Also in a batch: the others are served.
        let got = client.get_sized(&[("key", 9), ("none", 9)]).unwrap();
        assert_eq!((got[0].0, got[1].0), (-600, -704));
    });
}

#[test]
fn nothing_is_stored_under_no_key_or_without_bytes() {
    with_client("empty", |_, client| {
        assert_eq!(client.put(&[("", b"bytes")]), Ok(vec![-600]));
        assert_eq!(client.put(&[("key", b"")]), Ok(vec![-600]));
        assert_eq!(client.exists(&["key"]), Ok(vec![0]));
        // Empty batches.
        assert_eq!(client.exists::<&str>(&[]), Ok(vec![]));
        assert_eq!(client.put::<&str, &str>(&[]), Ok(vec![]));
        assert_eq!(client.get_sized::<&str>(&[]), Ok(vec![]));
        assert_eq!(client.batch_remove::<&str>(&[], false), Ok(vec![]));
    });
}

#[test]
fn keys_of_any_bytes_are_keys_of_their_own() {
    with_client("keys", |_, client| {
        let long = "k".repeat(100_000);
        let keys: Vec<&[u8]> = vec![
            b"k",
            &long.as_bytes()[..1000],
            long.as_bytes(),
            b"with blanks",
            b" ",
            b"a/b@c%2Fd",
            b"a/b@c/d",
            b"new\nline",
            "\u{952e}\u{503c}".as_bytes(),
            // Not UTF-8, in three ways.
            b"\xff\xfe\x80",
            b"\xed\xa0\x80",
            b"\xc0\xaf",
        ];
        let values: Vec<_> = (0_u8..)
            .zip(&keys)
            .map(|(i, key)| (key, vec![i; 100]))
            .collect();
        assert_eq!(client.put(&values), Ok(vec![0; keys.len()]));
        assert_eq!(client.exists(&keys), Ok(vec![1; keys.len()]));
        for (key, value) in &values {
            assert_eq!(
                client.get(key).as_ref(),
                Ok(value),
                "{:?}",
                String::from_utf8_lossy(key)
            );
        }
        let removed = client.batch_remove(&keys, true);
        assert_eq!(removed, Ok(vec![0; keys.len()]));
        assert_eq!(client.exists(&keys), Ok(vec![0; keys.len()]));
    });
}

/// The trap that the engine's folding is for; should it ever be mended, we want to know.
#[test]
fn a_key_twice_in_one_get_fills_only_the_last_buffer() {
    with_client("twice", |_, client| {
        assert_eq!(client.put(&[("key", b"bytes")]), Ok(vec![0]));
        let got = client
            .get_sized(&[("key", 5), ("key", 5), ("key", 5)])
            .unwrap();
        assert_eq!(
            got.iter().map(|(code, _)| *code).collect::<Vec<_>>(),
            [5, 5, 5]
        );
        assert_eq!(
            (got[0].1.as_slice(), got[1].1.as_slice()),
            (&[CANARY; 5][..], &[CANARY; 5][..])
        );
        assert_eq!(got[2].1, b"bytes");
        assert_eq!(client.put(&[("two", b"A"), ("two", b"B")]), Ok(vec![0, 0]));
        assert_eq!(client.get("two"), Ok(b"B".to_vec()));
    });
}

#[test]
fn a_lease_holds_a_key_until_force() {
    with_client("lease", |_, client| {
        assert_eq!(
            client.put(&[("a", b"A"), ("b", b"B"), ("c", b"C")]),
            Ok(vec![0; 3])
        );
        assert_eq!(client.remove("a", false), 0, "a put takes no lease");
        assert_eq!(client.remove("a", false), -704);
        assert_eq!(client.get("b"), Ok(b"B".to_vec()));
        assert_eq!(client.remove("b", false), -706);
        assert_eq!(
            client.batch_remove(&["b", "c", "none"], false),
            Ok(vec![-706, 0, -704])
        );
        assert_eq!(client.batch_remove(&["b", "none"], true), Ok(vec![0, -704]));
        assert_eq!(client.exists(&["a", "b", "c"]), Ok(vec![0; 3]));
    });
}

#[test]
fn regions_are_registered_once() {
    with_client("regions", |_, client| {
        let mut region = vec![0_u8; 1 << 20];
        let at = |offset: usize| region.as_ptr().wrapping_add(offset).cast_mut().cast();
        let (b, handle) = (bridge(), client.handle);
        // SAFETY: memory that outlives its registration; over tcp nothing reads it.
        unsafe {
            assert_eq!((b.register_buffer)(handle, at(0), 1 << 19), 0);
            assert_eq!((b.register_buffer)(handle, at(0), 1 << 19), -600, "again");
            assert_eq!(
                (b.register_buffer)(handle, at(4096), 1 << 19),
                -600,
                "overlapping"
            );
            assert_eq!(
                (b.register_buffer)(handle, at(1 << 19), 1 << 19),
                0,
                "a neighbour"
            );
            assert_eq!((b.unregister_buffer)(handle, at(0)), 0);
            assert_eq!((b.unregister_buffer)(handle, at(0)), -600, "unknown");
            assert_eq!((b.unregister_buffer)(handle, at(1 << 19)), 0);
        }
        region.clear();
    });
}

#[test]
fn a_replicate_config_is_passed_on() {
    with_client("replicas", |_, client| {
        let config = |replica_num, pin| ReplicateConfig {
            replica_num,
            with_soft_pin: pin,
            with_hard_pin: pin,
            preferred_segments: ptr::null(),
            preferred_segments_count: 0,
        };
        assert_eq!(
            client.put_with(&[("none", b"A")], &config(0, 0)),
            Ok(vec![-600])
        );
        assert_eq!(
            client.put_with(&[("one", b"A")], &config(1, 1)),
            Ok(vec![0])
        );
        let name = CString::new("127.0.0.1:1").unwrap();
        let segments = [name.as_ptr(), ptr::null()];
        let config = ReplicateConfig {
            preferred_segments: segments.as_ptr(),
            preferred_segments_count: 2,
            ..config(3, 0)
        };
        assert_eq!(
            client.put_with(&[("three", b"A")], &config),
            Ok(vec![0]),
            "more replicas than segments"
        );
        assert_eq!(client.get("three"), Ok(b"A".to_vec()));
    });
}

#[test]
fn a_full_store_says_so() {
    with_client("full", |_, client| {
        let value = vec![7_u8; 16 << 20];
        let codes: Vec<c_int> = (0..24)
            .flat_map(|i| {
                client
                    .put_with(&[(format!("{i}"), &value)], &PINNED)
                    .unwrap()
            })
            .collect();
        assert_eq!(codes[0], 0);
        assert_eq!(codes[23], -200, "{codes:?}");
    });
}

const PINNED: ReplicateConfig = ReplicateConfig {
    replica_num: 1,
    with_soft_pin: 0,
    with_hard_pin: 1,
    preferred_segments: ptr::null(),
    preferred_segments_count: 0,
};

#[test]
fn misuse_is_an_error_and_no_crash() {
    with_client("misuse", |mooncake, client| {
        let b = bridge();
        let fresh = Client::create();
        // Mooncake itself crashes here.
        assert_eq!(fresh.put(&[("key", b"A")]), Err(-600));
        assert_eq!(b.last_error().as_deref(), Some("this store is not set up"));
        assert_eq!(fresh.get_sized(&[("key", 1)]), Err(-600));
        assert_eq!(fresh.exists(&["key"]), Err(-600));
        assert_eq!(fresh.remove("key", true), -600);
        // SAFETY: NULLs where the functions look for them.
        unsafe {
            assert_eq!((b.health_check)(fresh.handle), 1);
            assert_eq!(b.last_error(), None, "of a call that went well");
            assert_eq!(
                (b.batch_is_exist)(ptr::null_mut(), ptr::null(), 1, ptr::null_mut()),
                -1
            );
            assert_eq!(
                (b.batch_is_exist)(client.handle, ptr::null(), 1, ptr::null_mut()),
                -1
            );
            assert_eq!(b.last_error().as_deref(), Some("keys is NULL"));
            let keys = [c"key".as_ptr(), ptr::null()];
            let mut results = [0; 2];
            assert_eq!(
                (b.batch_is_exist)(client.handle, keys.as_ptr(), 2, results.as_mut_ptr()),
                -1
            );
            assert_eq!(b.last_error().as_deref(), Some("keys[1] is NULL"));
            assert_eq!(
                (b.batch_is_exist)(client.handle, keys.as_ptr(), 1, ptr::null_mut()),
                -1
            );
            assert_eq!((b.remove)(client.handle, ptr::null(), 0), -1);
            (b.destroy)(ptr::null_mut());
        }
        assert_eq!(
            client.set_up(&mooncake.dictionary()),
            -600,
            "a second set-up"
        );
        assert_eq!(client.put(&[("key", b"A")]), Ok(vec![0]));
    });
}

#[test]
fn set_up_reads_its_dictionary_and_its_arguments() {
    with_client("setup", |mooncake, _| {
        let client = Client::create();
        let without = |name: &str| {
            mooncake
                .dictionary()
                .into_iter()
                .filter(|(key, _)| *key != name)
                .collect::<Vec<_>>()
        };
        assert_eq!(client.set_up(&without("local_hostname")), -600);
        assert_eq!(client.set_up(&without("metadata_server")), -600);
        assert!(
            bridge()
                .last_error()
                .is_some_and(|error| error.contains("-600"))
        );
        // A failed set-up may be tried again, and an unknown key is Mooncake's business.
        let mut pairs = mooncake.dictionary();
        pairs.push(("no_key_of_mooncake", "\u{952e}"));
        assert_eq!(client.set_up(&pairs), 0);
        assert_eq!(client.put(&[("dictionary", b"A")]), Ok(vec![0]));

        let plain = Client::create();
        let own = |text: &str| CString::new(text).unwrap();
        let (metadata, master) = (own(&mooncake.metadata), own(&mooncake.master));
        // SAFETY: living strings.
        let code = unsafe {
            (bridge().setup)(
                plain.handle,
                c"127.0.0.1".as_ptr(),
                metadata.as_ptr(),
                0,
                16 << 20,
                ptr::null(),
                ptr::null(),
                master.as_ptr(),
            )
        };
        assert_eq!(code, 0, "{:?}", bridge().last_error());
        assert_eq!(plain.get("dictionary"), Ok(b"A".to_vec()));
        // SAFETY: a living client.
        assert_eq!(unsafe { (bridge().health_check)(plain.handle) }, 0);
    });
}

#[test]
fn four_threads_share_a_client() {
    with_client("threads", |_, client| {
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                scope.spawn(move || {
                    for round in 0..50_u8 {
                        let values: Vec<_> = (0..8_u8)
                            .map(|i| {
                                (
                                    format!("{thread} {round} {i}"),
                                    [thread, round, i].repeat(1000),
                                )
                            })
                            .collect();
                        assert_eq!(client.put(&values), Ok(vec![0; 8]));
                        let asked: Vec<_> = values
                            .iter()
                            .map(|(key, value)| (key, value.len()))
                            .collect();
                        for ((code, got), (key, value)) in
                            client.get_sized(&asked).unwrap().iter().zip(&values)
                        {
                            assert_eq!((*code, got), (3000, value), "{key}");
                        }
                    }
                });
            }
        });
    });
}

/// The metadata server of the master itself, over HTTP.
#[test]
fn an_http_metadata_server_serves_too() {
    if !set_up() {
        return;
    }
    let _watchdog = Watchdog::new(Duration::from_secs(120), "http");
    let mooncake = Mooncake::up("http", &["--http-metadata"]);
    assert!(
        mooncake.metadata.starts_with("http://127.0.0.1:"),
        "{}",
        mooncake.metadata
    );
    let client = Client::connected(&mooncake);
    assert_eq!(client.put(&[("key", b"bytes")]), Ok(vec![0]));
    assert_eq!(client.get("key"), Ok(b"bytes".to_vec()));
}
