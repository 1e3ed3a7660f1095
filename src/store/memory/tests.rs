//! What only the inside of the store shows.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;

use super::*;
use crate::store::{Keys, UNSET, direct};

impl MemoryStore {
    /// Bytes and objects of all shards at one moment, counted anew. Nobody else holds two shards' locks.
    fn count(&self) -> (usize, usize) {
        let shards: Vec<_> = self.shards.iter().map(|shard| lock(shard)).collect();
        let bytes = shards.iter().map(|shard| shard.count_bytes()).sum();
        (bytes, shards.iter().map(|shard| shard.len()).sum())
    }
}

fn store(options: MemoryOptions) -> MemoryStore {
    MemoryStore::new(options).unwrap()
}

/// Fails loudly if `f` takes longer than a minute.
fn within_a_minute(f: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        f();
        let _ = done.send(());
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = wait.recv_timeout(Duration::from_secs(60)) {
        panic!("hung: no end after a minute");
    }
    thread.join().unwrap();
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }
}

/// The bytes of a key: their length and content follow from it.
fn content(key: u64) -> Vec<u8> {
    vec![key as u8; 1 + (key as usize * 37) % 900]
}

#[test]
fn capacity_holds_and_bytes_are_right_with_callers_at_the_same_time() {
    const CAPACITY: usize = 20_000;
    const KEYS: u64 = 200;
    for lease in [Duration::ZERO, Duration::from_millis(5)] {
        within_a_minute(move || {
            let store = store(MemoryOptions {
                capacity: CAPACITY,
                lease,
                shards: 4,
                ..MemoryOptions::default()
            });
            let stop = AtomicBool::new(false);
            let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
            std::thread::scope(|scope| {
                let watcher = scope.spawn(|| {
                    let mut most = 0;
                    while !stop.load(Relaxed) {
                        most = most.max(store.used_bytes());
                        // What the shards hold is never more than what is counted.
                        let held = store.count().0;
                        assert!(held <= CAPACITY, "{held} bytes in {CAPACITY}");
                        std::thread::yield_now();
                    }
                    most
                });
                let threads: Vec<_> = (1..=4)
                    .map(|t| {
                        scope.spawn({
                            let store = &store;
                            move || worker(store, t)
                        })
                    })
                    .collect();
                for thread in threads {
                    for (what, n) in thread.join().unwrap() {
                        *counts.entry(what).or_default() += n;
                    }
                }
                stop.store(true, Relaxed);
                let most = watcher.join().unwrap();
                assert!(most <= CAPACITY, "{most} bytes used of {CAPACITY}");
                assert!(most > CAPACITY / 2, "the store never filled: {most}");
            });
            let (bytes, objects) = store.count();
            assert_eq!((store.used_bytes(), store.objects()), (bytes, objects));
            // Conservation: what was stored was evicted, removed, or is there.
            let gone = store.evictions() + counts["removed"];
            assert_eq!(counts["stored"], gone + objects as u64, "{counts:?}");
            assert!(
                store.evictions() > 1000 && counts["got"] > 1000,
                "{counts:?}"
            );
            println!(
                "stress, lease {lease:?}: {counts:?}, {} evictions",
                store.evictions()
            );
            for key in 0..KEYS {
                let _ = direct::remove(&store, &[&name(key)], true).unwrap();
            }
            assert_eq!((store.used_bytes(), store.count()), (0, (0, 0)));
        });
    }

    fn name(key: u64) -> Vec<u8> {
        format!("key-{key}").into_bytes()
    }

    fn worker(store: &MemoryStore, seed: u64) -> BTreeMap<&'static str, u64> {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut counts =
            BTreeMap::from([("stored", 0), ("removed", 0), ("got", 0), ("no space", 0)]);
        let mut count = |what| *counts.entry(what).or_insert(0) += 1;
        for _ in 0..15_000 {
            let key = rng.below(KEYS);
            let bytes = content(key);
            match rng.below(10) {
                0..5 => match direct::put_from(store, &[(&name(key), &bytes)]).unwrap()[0] {
                    Ok(StoreOutcome::Stored) => count("stored"),
                    Ok(StoreOutcome::AlreadyThere) => {}
                    Err(OpError::NoSpace) => count("no space"),
                    other => panic!("{other:?}"),
                },
                5..8 => {
                    let mut buf = vec![0; 1000];
                    match direct::get_into(store, &mut [(&name(key), &mut buf)]).unwrap()[0] {
                        Ok(len) => {
                            assert_eq!(&buf[..len as usize], &bytes[..], "key {key}");
                            count("got");
                        }
                        other => assert_eq!(other, Err(OpError::NotFound)),
                    }
                }
                8 => {
                    direct::exists(store, &[&name(key)]).unwrap()[0].unwrap();
                }
                _ => {
                    match direct::remove(store, &[&name(key)], key.is_multiple_of(2)).unwrap()[0] {
                        Ok(()) => count("removed"),
                        other => assert!(matches!(other, Err(OpError::NotFound | OpError::Leased))),
                    }
                }
            }
        }
        counts
    }
}

#[test]
fn two_puts_at_once_never_take_the_last_room_twice() {
    within_a_minute(|| {
        const CAPACITY: usize = 100;
        let store = store(MemoryOptions {
            capacity: CAPACITY,
            ..MemoryOptions::default()
        });
        // Of two objects of 60 bytes one must go before the other comes.
        let run = |key: &[u8]| {
            for _ in 0..60_000 {
                let _ = direct::put_from(&store, &[(key, &[1; 60])]).unwrap();
                let used = store.used_bytes();
                assert!(used <= CAPACITY, "{used} bytes used of {CAPACITY}");
                let _ = direct::remove(&store, &[key], true).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| run(b"a"));
            scope.spawn(|| run(b"b"));
        });
        assert_eq!((store.used_bytes(), store.count()), (0, (0, 0)));
    });
}

#[test]
fn one_key_is_stored_once_by_many_and_read_whole() {
    within_a_minute(|| {
        let store = store(MemoryOptions::default());
        let barrier = std::sync::Barrier::new(4);
        for round in 0..500u64 {
            let key = round.to_string();
            let stored = std::thread::scope(|scope| {
                let put = |thread: u8| {
                    barrier.wait();
                    let put =
                        direct::put_from(&store, &[(key.as_bytes(), &[thread; 64])]).unwrap()[0];
                    let mut buf = [0xFF; 64];
                    let got = direct::get_into(&store, &mut [(key.as_bytes(), &mut buf)]);
                    assert_eq!(got.unwrap()[0], Ok(64));
                    assert!(buf.iter().all(|b| *b == buf[0]), "torn: {buf:?}");
                    (put == Ok(StoreOutcome::Stored), buf[0])
                };
                let threads: Vec<_> = (0..4).map(|t| scope.spawn(move || (t, put(t)))).collect();
                let all = threads.into_iter().map(|t| t.join().unwrap());
                all.collect::<Vec<_>>()
            });
            let winners: Vec<u8> = stored.iter().filter(|s| s.1.0).map(|s| s.0).collect();
            assert_eq!(winners.len(), 1, "{stored:?}");
            // Who reads after a put, reads the winner's bytes.
            assert!(stored.iter().all(|s| s.1.1 == winners[0]), "{stored:?}");
        }
        assert_eq!((store.used_bytes(), store.objects()), (500 * 64, 500));
    });
}

/// One call of a kind that `direct` refuses to make.
fn raw_put(
    store: &MemoryStore,
    key: &'static std::ffi::CStr,
    bytes: &[u8],
) -> Result<u64, OpError> {
    let (keys, key_lens): ([*const c_char; 1], _) = ([key.as_ptr()], [key.count_bytes()]);
    let mut results = [UNSET];
    // SAFETY: a static C string and its length; one entry each.
    let keys = unsafe { Keys::new(&keys, &key_lens, &mut results) };
    let (bufs, lens) = ([bytes.as_ptr()], [bytes.len()]);
    // SAFETY: a slice's pointer and length, borrowed for the call.
    let mut batch = unsafe { StoreBatch::new(keys, &bufs, &lens) };
    assert_eq!(store.batch_put_from(&mut batch), Ok(1));
    results[0]
}

#[test]
fn an_empty_key_or_object_is_an_invalid_argument() {
    let store = store(MemoryOptions::default());
    assert_eq!(raw_put(&store, c"key", b""), Err(OpError::InvalidArgument));
    assert_eq!(raw_put(&store, c"", b"x"), Err(OpError::InvalidArgument));
    assert_eq!(store.count(), (0, 0));
    assert!(raw_put(&store, c"key", b"x").is_ok());
    assert_eq!(store.count(), (1, 1));
}

#[test]
fn keys_spread_over_all_shards() {
    for shards in [1, 3, 16, 1024] {
        let store = store(MemoryOptions {
            shards,
            ..MemoryOptions::default()
        });
        for i in 0..100 * shards {
            let key = format!("model@0@0@{i:064x}");
            direct::put_from(&store, &[(key.as_bytes(), b"x")]).unwrap();
        }
        let lens: Vec<usize> = store.shards.iter().map(|shard| lock(shard).len()).collect();
        // 100 each on average, standard deviation 10.
        assert!(
            lens.iter().all(|n| (40..=160).contains(n)) || shards == 1,
            "{lens:?}"
        );
        assert_eq!(lens.iter().sum::<usize>(), 100 * shards);
    }
}

#[test]
fn nodes_are_used_again() {
    let mut shard = Shard::new();
    for round in 0..1000u64 {
        for key in 0..8u8 {
            let object = Object::new(&[key], &[key; 10]);
            let hash = u64::from(key) << 7;
            assert!(matches!(
                shard.insert(hash, &[key], object, round),
                Inserted::Yes
            ));
        }
        for key in 0..8u8 {
            let hash = u64::from(key) << 7;
            assert!(matches!(
                shard.remove(hash, &[key], 0, false),
                Removed::Yes(_)
            ));
        }
    }
    assert_eq!(shard.len(), 0);
    assert!(shard.capacity() <= 8, "{} nodes", shard.capacity());
}

#[test]
fn equal_hashes_are_told_apart_by_their_keys() {
    let mut shard = Shard::new();
    let keys: Vec<Vec<u8>> = (1..=50).map(|n| vec![b'k'; n]).collect();
    for (stamp, key) in keys.iter().enumerate() {
        let inserted = shard.insert(42, key, Object::new(key, key), stamp as u64);
        assert!(matches!(inserted, Inserted::Yes));
    }
    for key in &keys {
        let object = shard.touch(42, key, 100, 0).unwrap();
        assert_eq!(object.bytes(), key);
    }
    for key in &keys {
        match shard.remove(42, key, 0, false) {
            Removed::Yes(object) => assert_eq!(object.bytes(), key),
            _ => panic!("not removed"),
        }
    }
}
