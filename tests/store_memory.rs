//! What the memory store promises beyond the contract of all stores: capacity, eviction, leases on a clock, options,
//! registration.

use std::ptr::NonNull;
use std::time::Duration;

use moonring::store::memory::ManualClock;
use moonring::store::{MemoryOptions, MemoryStore, Store, direct};
use moonring::{OpError, StoreOutcome};

const STORED: Result<StoreOutcome, OpError> = Ok(StoreOutcome::Stored);
const LEASE: Duration = Duration::from_secs(10);

/// A store on a clock that stands still.
fn store(capacity: usize, shards: usize) -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new();
    let options = MemoryOptions {
        capacity,
        shards,
        clock: clock.clock(),
        ..MemoryOptions::default()
    };
    (MemoryStore::new(options).unwrap(), clock)
}

fn put(store: &MemoryStore, key: &str, len: usize) -> Result<StoreOutcome, OpError> {
    let bytes = vec![key.len() as u8; len];
    direct::put_from(store, &[(key.as_bytes(), &bytes)]).unwrap()[0]
}

fn get(store: &MemoryStore, key: &str, len: usize) -> Result<u64, OpError> {
    let mut buf = vec![0; len];
    direct::get_into(store, &mut [(key.as_bytes(), &mut buf)]).unwrap()[0]
}

fn exists(store: &MemoryStore, key: &str) -> bool {
    direct::exists(store, &[key.as_bytes()]).unwrap()[0].unwrap()
}

fn remove(store: &MemoryStore, key: &str, force: bool) -> Result<(), OpError> {
    direct::remove(store, &[key.as_bytes()], force).unwrap()[0]
}

/// Which of the keys are there, found out in a way that is no use of any: a put of a key that is there changes
/// nothing, and none can be put that needs more than the capacity.
fn present<'a>(store: &MemoryStore, keys: &[&'a str]) -> Vec<&'a str> {
    let too_long = store.capacity() + 1;
    let there = |key: &&&str| put(store, key, too_long) == Ok(StoreOutcome::AlreadyThere);
    keys.iter().filter(there).copied().collect()
}

#[test]
fn a_full_store_evicts_what_was_used_least_recently_across_all_shards() {
    for shards in [1, 2, 16, 1024] {
        let (store, clock) = store(8, shards);
        let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
        for key in keys {
            assert_eq!(put(&store, key, 1), STORED);
        }
        // Uses: a retrieve, a lookup, a retrieve that fails for a short buffer. No use: a put.
        assert_eq!(get(&store, "a", 1), Ok(1));
        assert!(exists(&store, "c"));
        assert_eq!(put(&store, "b", 1), Ok(StoreOutcome::AlreadyThere));
        clock.advance(LEASE);
        assert_eq!((store.used_bytes(), store.evictions()), (8, 0));
        for (new, evicted) in [
            ("i", "b"),
            ("j", "d"),
            ("k", "e"),
            ("l", "f"),
            ("m", "g"),
            ("n", "h"),
            ("o", "a"),
            ("p", "c"),
            ("q", "i"),
        ] {
            assert_eq!(
                present(&store, &[evicted]),
                [evicted],
                "{shards} shards, {new}"
            );
            assert_eq!(put(&store, new, 1), STORED);
            assert!(
                present(&store, &[evicted]).is_empty(),
                "{shards} shards, {new}"
            );
            assert_eq!((store.used_bytes(), store.objects()), (8, 8));
        }
        assert_eq!(store.evictions(), 9);
    }
}

#[test]
fn a_retrieve_that_fails_for_a_short_buffer_is_a_use() {
    let (store, clock) = store(6, 4);
    for key in ["a", "b", "c"] {
        assert_eq!(put(&store, key, 2), STORED);
    }
    assert!(get(&store, "a", 1).is_err());
    clock.advance(LEASE);
    assert_eq!(put(&store, "d", 2), STORED);
    assert_eq!(present(&store, &["a", "b", "c", "d"]), ["a", "c", "d"]);
}

#[test]
fn leased_objects_are_never_evicted_and_the_lease_ends_on_time() {
    let (store, clock) = store(4, 16);
    for key in ["a", "b", "c", "d"] {
        assert_eq!(put(&store, key, 1), STORED);
    }
    for key in ["a", "b", "d"] {
        assert_eq!(get(&store, key, 1), Ok(1));
    }
    // `c` is the only one without a lease, though not the oldest.
    assert_eq!(put(&store, "e", 1), STORED);
    assert_eq!(present(&store, &["a", "b", "c", "d"]), ["a", "b", "d"]);
    // Then `e` itself.
    assert_eq!(put(&store, "f", 1), STORED);
    assert!(exists(&store, "f"));
    assert_eq!(put(&store, "g", 1), Err(OpError::NoSpace));
    assert_eq!(store.evictions(), 2);
    clock.advance(LEASE - Duration::from_nanos(1));
    assert_eq!(put(&store, "g", 1), Err(OpError::NoSpace));
    assert_eq!(remove(&store, "a", false), Err(OpError::Leased));
    clock.advance(Duration::from_nanos(1));
    assert_eq!(put(&store, "g", 1), STORED);
    assert_eq!(present(&store, &["a", "b", "d", "f"]), ["b", "d", "f"]);
    assert_eq!(remove(&store, "b", false), Ok(()));
}

#[test]
fn a_lease_is_renewed_by_each_use_and_a_remove_that_fails_is_none() {
    let (store, clock) = store(100, 4);
    assert_eq!(put(&store, "a", 1), STORED);
    assert!(exists(&store, "a"));
    clock.advance(LEASE / 2);
    assert_eq!(get(&store, "a", 1), Ok(1));
    clock.advance(LEASE / 2);
    assert_eq!(remove(&store, "a", false), Err(OpError::Leased));
    clock.advance(LEASE / 2);
    assert_eq!(remove(&store, "a", false), Ok(()));
}

#[test]
fn a_lease_of_zero_leases_nothing_and_the_longest_never_ends() {
    let clock = ManualClock::new();
    let with = |lease| {
        let options = MemoryOptions {
            capacity: 1,
            lease,
            clock: clock.clock(),
            ..MemoryOptions::default()
        };
        MemoryStore::new(options).unwrap()
    };
    let none = with(Duration::ZERO);
    assert_eq!(put(&none, "a", 1), STORED);
    assert_eq!(get(&none, "a", 1), Ok(1));
    assert_eq!(put(&none, "b", 1), STORED);
    assert!(exists(&none, "b"));
    assert_eq!(remove(&none, "b", false), Ok(()));

    let ever = with(Duration::MAX);
    clock.advance(LEASE);
    assert_eq!(put(&ever, "a", 1), STORED);
    assert!(exists(&ever, "a"));
    clock.advance(Duration::from_secs(1 << 32));
    assert_eq!(remove(&ever, "a", false), Err(OpError::Leased));
    assert_eq!(put(&ever, "b", 1), Err(OpError::NoSpace));
    assert_eq!(remove(&ever, "a", true), Ok(()));
}

#[test]
fn capacity_is_exact_and_counts_the_values_alone() {
    let (store, _) = store(10, 4);
    let long_key = "k".repeat(1000);
    assert_eq!(put(&store, &long_key, 10), STORED);
    assert_eq!(store.used_bytes(), 10);
    assert_eq!(remove(&store, &long_key, false), Ok(()));
    assert_eq!(store.used_bytes(), 0);
    assert_eq!(put(&store, "a", 4), STORED);
    assert_eq!(put(&store, "b", 6), STORED);
    assert_eq!((store.used_bytes(), store.evictions()), (10, 0));
    // One byte more evicts one object; two more would not fit with the other leased.
    assert_eq!(put(&store, "c", 1), STORED);
    assert_eq!((store.used_bytes(), store.evictions()), (7, 1));
    assert!(exists(&store, "b") && exists(&store, "c"));
    assert_eq!(put(&store, "d", 4), Err(OpError::NoSpace));
    assert_eq!(put(&store, "d", 3), STORED);
    assert_eq!((store.used_bytes(), store.objects()), (10, 3));
}

#[test]
fn an_object_beyond_the_capacity_evicts_nothing() {
    let (store, _) = store(4, 4);
    assert_eq!(put(&store, "a", 2), STORED);
    assert_eq!(put(&store, "b", 5), Err(OpError::NoSpace));
    assert_eq!(put(&store, "b", 4), STORED);
    assert_eq!((store.evictions(), store.used_bytes()), (1, 4));
    assert_eq!(present(&store, &["a", "b"]), ["b"]);
}

#[test]
fn one_large_put_evicts_as_many_as_it_needs_and_no_more() {
    let (store, _) = store(100, 16);
    for i in 0..100 {
        assert_eq!(put(&store, &format!("small-{i}"), 1), STORED);
    }
    assert_eq!(put(&store, "large", 37), STORED);
    assert_eq!((store.evictions(), store.objects()), (37, 64));
    for i in 0..100 {
        let key = format!("small-{i}");
        assert_eq!(present(&store, &[&key]).len(), usize::from(i >= 37), "{i}");
    }
}

#[test]
fn of_a_batch_that_does_not_fit_each_key_has_its_own_result() {
    // F7: 30 of 32 fit, two don't.
    let (store, _) = store(30, 4);
    let keys: Vec<String> = (0..32).map(|i| format!("key-{i}")).collect();
    let items: Vec<(&[u8], &[u8])> = keys.iter().map(|k| (k.as_bytes(), &b"x"[..])).collect();
    assert_eq!(
        direct::put_from(&store, &items[..30]).unwrap(),
        vec![STORED; 30]
    );
    let all: Vec<&[u8]> = items.iter().map(|i| i.0).collect();
    direct::exists(&store, &all[..30]).unwrap();
    let put = direct::put_from(&store, &items).unwrap();
    assert_eq!(put[..30], vec![Ok(StoreOutcome::AlreadyThere); 30]);
    assert_eq!(put[30..], vec![Err(OpError::NoSpace); 2]);
}

#[test]
fn options_that_make_no_sense_are_refused_by_name() {
    let good = MemoryOptions::default;
    for (options, field) in [
        (
            MemoryOptions {
                capacity: 0,
                ..good()
            },
            "capacity",
        ),
        (
            MemoryOptions {
                shards: 0,
                ..good()
            },
            "shards",
        ),
        (
            MemoryOptions {
                shards: 1025,
                ..good()
            },
            "shards",
        ),
        (
            MemoryOptions {
                max_registration: Some(0),
                ..good()
            },
            "max_registration",
        ),
    ] {
        let error = MemoryStore::new(options).unwrap_err();
        assert_eq!(error.field, field);
        assert!(
            error.to_string().starts_with(&format!("{field}: ")),
            "{error}"
        );
    }
    let default = good();
    assert_eq!((default.capacity, default.lease), (2 << 30, LEASE));
    assert!(!default.needs_registration && default.max_registration.is_none());
}

fn register(store: &MemoryStore, memory: &mut [u8]) -> Result<(), String> {
    let base = NonNull::new(memory.as_mut_ptr()).unwrap();
    // SAFETY: the tests' memory outlives its registration's use.
    unsafe { store.register(base, memory.len()) }.map_err(|e| e.reason)
}

fn unregister(store: &MemoryStore, memory: &mut [u8]) -> Result<(), String> {
    let base = NonNull::new(memory.as_mut_ptr()).unwrap();
    // SAFETY: no call uses the memory; what was not registered is refused, as the tests want to see.
    unsafe { store.unregister(base, memory.len()) }.map_err(|e| e.reason)
}

#[test]
fn registering_twice_or_overlapping_is_an_error_that_names_both_ranges() {
    let (store, _) = store(100, 1);
    let mut memory = vec![0; 300];
    let at = |i: usize, memory: &[u8]| format!("{:#x}+", memory[i..].as_ptr().addr());
    register(&store, &mut memory[100..200]).unwrap();
    register(&store, &mut memory[..100]).unwrap();
    register(&store, &mut memory[200..]).unwrap();
    let why = register(&store, &mut memory[100..200]).unwrap_err();
    assert!(why.contains("already"), "{why}");
    let why = register(&store, &mut memory[199..201]).unwrap_err();
    let both = [at(199, &memory) + "2", at(200, &memory) + "100"];
    assert!(both.iter().all(|r| why.contains(r)), "{why}");
    let why = unregister(&store, &mut memory[100..199]).unwrap_err();
    assert!(why.contains("not registered"), "{why}");
    assert_eq!(store.registrations(), 3);
    for part in [0..100, 100..200, 200..300] {
        unregister(&store, &mut memory[part]).unwrap();
    }
    let why = unregister(&store, &mut memory[..100]).unwrap_err();
    assert!(why.contains("not registered"), "{why}");
    assert_eq!(store.registrations(), 0);
}

#[test]
fn a_piece_longer_than_max_registration_is_refused() {
    let options = MemoryOptions {
        max_registration: Some(16),
        ..MemoryOptions::default()
    };
    let store = MemoryStore::new(options).unwrap();
    assert_eq!(store.capabilities().max_registration, Some(16));
    let mut memory = [0; 40];
    let why = register(&store, &mut memory).unwrap_err();
    assert!(why.contains("max_registration, 16 bytes"), "{why}");
    for part in [0..16, 16..32, 32..40] {
        register(&store, &mut memory[part]).unwrap();
    }
}

#[test]
fn where_registration_is_needed_a_buffer_must_lie_in_one_piece() {
    let options = MemoryOptions {
        needs_registration: true,
        ..MemoryOptions::default()
    };
    let store = MemoryStore::new(options).unwrap();
    assert!(store.capabilities().needs_registration);
    let mut memory = [7; 40];
    register(&store, &mut memory[8..16]).unwrap();
    register(&store, &mut memory[16..32]).unwrap();
    let bad = OpError::InvalidArgument;
    for (part, good) in [
        (8..16, true),
        (16..32, true),
        (9..10, true),
        (7..15, false),
        (15..17, false),
        (31..33, false),
        (32..40, false),
    ] {
        let key = format!("{part:?}");
        let put = direct::put_from(&store, &[(key.as_bytes(), &memory[part.clone()])]);
        let want = if good { STORED } else { Err(bad) };
        assert_eq!(put.unwrap()[0], want, "{key}");
        assert_eq!(exists(&store, &key), good, "{key}");
    }
    for (part, want) in [(8..16, Ok(1)), (15..17, Err(bad)), (7..9, Err(bad))] {
        let mut items: [(&[u8], &mut [u8]); 1] = [(b"9..10", &mut memory[part])];
        assert_eq!(direct::get_into(&store, &mut items).unwrap()[0], want);
    }
    unregister(&store, &mut memory[8..16]).unwrap();
    let got = direct::get_into(&store, &mut [(b"9..10", &mut memory[8..16])]);
    assert_eq!(got.unwrap()[0], Err(bad));
}
