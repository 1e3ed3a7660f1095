//! The memory store against a model that is too simple to be wrong: one caller, a clock that stands still.

use std::cell::Cell;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::time::Duration;

use moonring::store::memory::ManualClock;
use moonring::store::{MemoryOptions, MemoryStore, direct};
use moonring::{OpError, StoreOutcome};
use proptest::collection::vec;
use proptest::prelude::*;

const CAPACITY: usize = 64;
const LEASE: u64 = 100;

#[derive(Clone, Debug)]
enum Step {
    Exists(Vec<u8>),
    Get(Vec<(u8, usize)>),
    Put(Vec<(u8, usize)>),
    Remove(Vec<u8>, bool),
    Advance(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 1u8..=20;
    let step = prop_oneof![
        2 => vec(key(), 0..5).prop_map(Step::Exists),
        4 => vec((key(), 1usize..30), 0..5).prop_map(Step::Get),
        8 => vec((key(), 1usize..=20), 0..5).prop_map(Step::Put),
        1 => vec((key(), 60usize..70), 1..2).prop_map(Step::Put),
        4 => (vec(key(), 0..5), any::<bool>()).prop_map(|(keys, force)| Step::Remove(keys, force)),
        2 => (0u64..150).prop_map(Step::Advance),
    ];
    vec(step, 1..120)
}

#[derive(Debug)]
struct Object {
    bytes: Vec<u8>,
    lease_end: u64,
}

#[derive(Debug, Default)]
struct Model {
    now: u64,
    objects: HashMap<u8, Object>,
    /// Keys, the least recently used first.
    order: Vec<u8>,
    evictions: u64,
}

impl Model {
    fn used(&self) -> usize {
        self.objects.values().map(|o| o.bytes.len()).sum()
    }

    fn touch(&mut self, key: u8) -> Option<&Object> {
        let object = self.objects.get_mut(&key)?;
        object.lease_end = self.now + LEASE;
        self.order.retain(|k| *k != key);
        self.order.push(key);
        Some(object)
    }

    fn get(&mut self, key: u8, len: usize) -> Result<Vec<u8>, OpError> {
        let object = self.touch(key).ok_or(OpError::NotFound)?;
        let object_len = NonZeroU64::new(object.bytes.len() as u64);
        let fits = object.bytes.len() <= len;
        let bytes = fits.then(|| object.bytes.clone());
        bytes.ok_or(OpError::ShortBuffer { object_len })
    }

    fn drop_object(&mut self, key: u8) {
        self.objects.remove(&key);
        self.order.retain(|k| *k != key);
    }

    fn put(&mut self, key: u8, bytes: Vec<u8>) -> Result<StoreOutcome, OpError> {
        if self.objects.contains_key(&key) {
            return Ok(StoreOutcome::AlreadyThere);
        }
        if bytes.len() > CAPACITY {
            return Err(OpError::NoSpace);
        }
        while self.used() + bytes.len() > CAPACITY {
            let unleased = |k: &&u8| self.objects[*k].lease_end <= self.now;
            let oldest = self.order.iter().find(unleased).copied();
            self.drop_object(oldest.ok_or(OpError::NoSpace)?);
            self.evictions += 1;
        }
        let object = Object {
            bytes,
            lease_end: 0,
        };
        self.objects.insert(key, object);
        self.order.push(key);
        Ok(StoreOutcome::Stored)
    }

    fn remove(&mut self, key: u8, force: bool) -> Result<(), OpError> {
        let object = self.objects.get(&key).ok_or(OpError::NotFound)?;
        if !force && object.lease_end > self.now {
            return Err(OpError::Leased);
        }
        self.drop_object(key);
        Ok(())
    }
}

/// No store sees a key twice in a call.
fn once<T>(items: Vec<T>, key: impl Fn(&T) -> u8) -> Vec<T> {
    let mut seen = [false; 256];
    let mut first = |item: &T| !std::mem::replace(&mut seen[key(item) as usize], true);
    items.into_iter().filter(|i| first(i)).collect()
}

fn name(key: u8) -> Vec<u8> {
    vec![b'k'; key as usize]
}

#[derive(Default)]
struct Covered {
    ops: u64,
    evictions: u64,
    leased: u64,
    no_space: u64,
    short: u64,
}

fn run(steps: Vec<Step>, shards: usize, covered: &mut Covered) -> Result<(), TestCaseError> {
    let clock = ManualClock::new();
    let options = MemoryOptions {
        capacity: CAPACITY,
        lease: Duration::from_nanos(LEASE),
        shards,
        clock: clock.clock(),
        ..MemoryOptions::default()
    };
    let store = MemoryStore::new(options).expect("good options");
    let mut model = Model::default();
    for (n, step) in steps.into_iter().enumerate() {
        match step {
            Step::Exists(keys) => {
                let keys = once(keys, |k| *k);
                let names: Vec<_> = keys.iter().map(|k| name(*k)).collect();
                let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
                let got = direct::exists(&store, &names).expect("a list");
                let want: Vec<_> = keys.iter().map(|k| Ok(model.touch(*k).is_some())).collect();
                covered.ops += keys.len() as u64;
                prop_assert_eq!(got, want);
            }
            Step::Get(items) => {
                let items = once(items, |i| i.0);
                let names: Vec<_> = items.iter().map(|i| name(i.0)).collect();
                let mut bufs: Vec<Vec<u8>> = items.iter().map(|i| vec![0xEE; i.1]).collect();
                let mut call: Vec<(&[u8], &mut [u8])> = Vec::new();
                for (name, buf) in names.iter().zip(&mut bufs) {
                    call.push((name, buf));
                }
                let got = direct::get_into(&store, &mut call).expect("a list");
                for (((key, len), got), buf) in items.iter().zip(got).zip(bufs) {
                    let want = model.get(*key, *len);
                    covered.ops += 1;
                    covered.short += u64::from(matches!(want, Err(OpError::ShortBuffer { .. })));
                    prop_assert_eq!(got, want.as_ref().map(|b| b.len() as u64).map_err(|e| *e));
                    let mut whole = want.unwrap_or_default();
                    whole.resize(*len, 0xEE);
                    prop_assert_eq!(buf, whole);
                }
            }
            Step::Put(items) => {
                let items = once(items, |i| i.0);
                let names: Vec<_> = items.iter().map(|i| name(i.0)).collect();
                // The bytes tell which put they are of.
                let bytes: Vec<_> = items.iter().map(|i| vec![n as u8; i.1]).collect();
                let call: Vec<(&[u8], &[u8])> = names
                    .iter()
                    .zip(&bytes)
                    .map(|(k, b)| (&k[..], &b[..]))
                    .collect();
                let got = direct::put_from(&store, &call).expect("a list");
                for ((item, bytes), got) in items.iter().zip(bytes).zip(got) {
                    let want = model.put(item.0, bytes);
                    covered.ops += 1;
                    covered.no_space += u64::from(want == Err(OpError::NoSpace));
                    prop_assert_eq!(got, want);
                }
            }
            Step::Remove(keys, force) => {
                let keys = once(keys, |k| *k);
                let names: Vec<_> = keys.iter().map(|k| name(*k)).collect();
                let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
                let got = direct::remove(&store, &names, force).expect("a list");
                let want: Vec<_> = keys.iter().map(|k| model.remove(*k, force)).collect();
                covered.ops += keys.len() as u64;
                covered.leased +=
                    want.iter().filter(|r| **r == Err(OpError::Leased)).count() as u64;
                prop_assert_eq!(got, want);
            }
            Step::Advance(by) => {
                clock.advance(Duration::from_nanos(by));
                model.now += by;
            }
        }
        prop_assert_eq!(store.used_bytes(), model.used());
        prop_assert_eq!(store.objects(), model.objects.len());
        prop_assert_eq!(store.evictions(), model.evictions);
    }
    covered.evictions += model.evictions;
    Ok(())
}

#[test]
fn memory_does_what_the_model_does() {
    let covered = Cell::new(Covered::default());
    let config = ProptestConfig {
        cases: 600,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let shards = prop_oneof![Just(1usize), Just(3), Just(16)];
    let result = runner.run(&(steps(), shards), |(steps, shards)| {
        let mut sum = covered.take();
        let result = run(steps, shards, &mut sum);
        covered.set(sum);
        result
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let c = covered.into_inner();
    println!(
        "model: {} ops, {} evictions, {} leased, {} without space, {} short buffers",
        c.ops, c.evictions, c.leased, c.no_space, c.short
    );
    let all = [c.evictions, c.leased, c.no_space, c.short];
    assert!(all.iter().all(|n| *n > 250), "the steps miss what matters");
}
