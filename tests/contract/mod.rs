//! The contract of a store, as a suite that any store can be run through.
//!
//! It makes every call through `store::direct`, by the rules that an engine keeps, and uses keys of its own prefix, so
//! that it can run on a store that others use. What stores may differ in is said by [`About`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::time::Duration;

use moonring::store::{Store, StoreHealth, direct};
use moonring::{OpError, StoreOutcome};

/// What the store under test can tell, and how to let its time pass.
pub struct About<'a> {
    /// For the report.
    pub name: &'a str,
    /// Starts every key, except the one of a single byte; not used by anybody else on this store.
    pub prefix: &'a str,
    /// `Stored` and `AlreadyThere` are told apart.
    pub tells_stored: bool,
    /// Retrieves and lookups take leases.
    pub leases: bool,
    /// How long a lease lasts at most.
    pub lease: Duration,
    /// Lets that much of the store's time pass.
    pub let_pass: &'a dyn Fn(Duration),
    /// `ShortBuffer` comes with the object's length.
    pub tells_object_len: bool,
    /// Wrong registrations are refused.
    pub checks_registration: bool,
}

/// What a run amounted to.
#[derive(Debug, Default)]
pub struct Ran {
    pub checks: usize,
    pub comparisons: usize,
}

type Check = fn(&Suite<'_>);

const CHECKS: &[(&str, Check)] = &[
    ("it can do what it is said to", capabilities),
    ("an empty list is an empty result", empty_lists),
    ("a missing key is absent, not found, not removed", missing),
    ("what was put is got, in all lengths", round_trip),
    ("an object is immutable", immutable),
    ("a missing key hides no other", mixed),
    ("a larger buffer: true length, tail untouched", larger),
    ("a short buffer: an error of its own", short),
    ("a put takes no lease", put_no_lease),
    ("a retrieve takes a lease that force breaks", lease_of_get),
    ("a lookup takes a lease that ends", lease_of_exists),
    ("a short retrieve takes a lease", lease_of_short_get),
    ("present, absent, leased: three results", three_results),
    ("a removed key is gone and can be put again", removed),
    ("odd keys are fine and distinct", odd_keys),
    ("300 keys: each its own result", many),
    ("callers at the same time", concurrent),
    ("puts of one key at the same time: one wins", same_key),
    ("wrong registrations are refused", registration),
];

/// Runs every check and says so; panics at the first that fails.
pub fn run(store: &dyn Store, about: &About<'_>) -> Ran {
    let arena = vec![0u8; 4 << 20];
    let suite = Suite {
        store,
        about,
        arena: RefCell::new(arena),
        check: Cell::new(""),
        compared: Cell::new(0),
    };
    let needs = store.capabilities().needs_registration;
    if needs {
        suite.with_arena(|base, len| {
            // SAFETY: the arena outlives the suite's calls; it is unregistered below, or leaked by a panic that ends the test.
            unsafe { store.register(base, len) }.expect("the arena registers");
        });
    }
    for (name, check) in CHECKS {
        suite.check.set(name);
        check(&suite);
    }
    if needs {
        suite.with_arena(|base, len| {
            // SAFETY: registered above with the same base and length; no call is under way.
            unsafe { store.unregister(base, len) }.expect("the arena unregisters");
        });
    }
    let ran = Ran {
        checks: CHECKS.len(),
        comparisons: suite.compared.get(),
    };
    println!(
        "contract: {}: {} checks, {} comparisons",
        about.name, ran.checks, ran.comparisons
    );
    ran
}

struct Suite<'a> {
    store: &'a dyn Store,
    about: &'a About<'a>,
    /// All buffers lie in it, as the store may need registered memory.
    arena: RefCell<Vec<u8>>,
    check: Cell<&'static str>,
    compared: Cell<usize>,
}

/// What buffers hold before a retrieve.
const POISON: u8 = 0xA5;

impl Suite<'_> {
    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}@{name}", self.about.prefix).into_bytes()
    }

    #[track_caller]
    fn eq<T: PartialEq + std::fmt::Debug>(&self, got: T, want: T) {
        self.compared.set(self.compared.get() + 1);
        assert_eq!(got, want, "{}: {}", self.about.name, self.check.get());
    }

    #[track_caller]
    fn is(&self, yes: bool, what: &str) {
        self.compared.set(self.compared.get() + 1);
        let check = self.check.get();
        assert!(yes, "{}: {check}: {what}", self.about.name);
    }

    fn with_arena(&self, f: impl FnOnce(NonNull<u8>, usize)) {
        let mut arena = self.arena.borrow_mut();
        let len = arena.len();
        f(NonNull::new(arena.as_mut_ptr()).expect("allocated"), len);
    }

    fn put_many(&self, items: &[(&[u8], &[u8])]) -> Vec<Result<StoreOutcome, OpError>> {
        let mut arena = self.arena.borrow_mut();
        let mut rest = arena.as_mut_slice();
        let mut placed: Vec<(&[u8], &[u8])> = Vec::new();
        for (key, bytes) in items {
            let (buf, after) = rest.split_at_mut(bytes.len());
            buf.copy_from_slice(bytes);
            placed.push((key, buf));
            rest = after;
        }
        direct::put_from(self.store, &placed).expect("a list that a store may see")
    }

    /// Result and buffer of each; buffers are poisoned first.
    fn get_many(&self, items: &[(&[u8], usize)]) -> Vec<(Result<u64, OpError>, Vec<u8>)> {
        let mut arena = self.arena.borrow_mut();
        let mut rest = arena.as_mut_slice();
        let mut placed: Vec<(&[u8], &mut [u8])> = Vec::new();
        for (key, len) in items {
            let (buf, after) = rest.split_at_mut(*len);
            buf.fill(POISON);
            placed.push((key, buf));
            rest = after;
        }
        let got = direct::get_into(self.store, &mut placed).expect("a list that a store may see");
        let bufs = placed.iter().map(|(_, buf)| buf.to_vec());
        got.into_iter().zip(bufs).collect()
    }

    fn exists_many(&self, keys: &[&[u8]]) -> Vec<Result<bool, OpError>> {
        direct::exists(self.store, keys).expect("a list that a store may see")
    }

    fn remove_many(&self, keys: &[&[u8]], force: bool) -> Vec<Result<(), OpError>> {
        direct::remove(self.store, keys, force).expect("a list that a store may see")
    }

    fn put(&self, key: &[u8], bytes: &[u8]) -> Result<StoreOutcome, OpError> {
        self.put_many(&[(key, bytes)])[0]
    }

    fn get(&self, key: &[u8], len: usize) -> (Result<u64, OpError>, Vec<u8>) {
        self.get_many(&[(key, len)]).swap_remove(0)
    }

    fn exists(&self, key: &[u8]) -> Result<bool, OpError> {
        self.exists_many(&[key])[0]
    }

    fn remove(&self, key: &[u8], force: bool) -> Result<(), OpError> {
        self.remove_many(&[key], force)[0]
    }

    /// What a put of a new key says.
    fn stored(&self) -> Result<StoreOutcome, OpError> {
        Ok(match self.about.tells_stored {
            true => StoreOutcome::Stored,
            false => StoreOutcome::Accepted,
        })
    }

    /// What a put of a key that is there says.
    fn already(&self) -> Result<StoreOutcome, OpError> {
        Ok(match self.about.tells_stored {
            true => StoreOutcome::AlreadyThere,
            false => StoreOutcome::Accepted,
        })
    }

    /// What a delete without force says during a lease.
    fn leased(&self) -> Result<(), OpError> {
        match self.about.leases {
            true => Err(OpError::Leased),
            false => Ok(()),
        }
    }

    fn short(&self, object_len: u64) -> Result<u64, OpError> {
        let object_len = self.about.tells_object_len.then_some(object_len);
        Err(OpError::ShortBuffer {
            object_len: object_len.and_then(std::num::NonZeroU64::new),
        })
    }

    /// The object is there, whole, and is removed.
    #[track_caller]
    fn holds_then_remove(&self, key: &[u8], bytes: &[u8]) {
        let got = self.get(key, bytes.len());
        self.eq(got, (Ok(bytes.len() as u64), bytes.to_vec()));
        self.eq(self.remove(key, true), Ok(()));
    }
}

/// Bytes that differ from those of every other `seed`, also when shifted.
fn content(seed: usize, len: usize) -> Vec<u8> {
    let mut x = seed as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(next).collect()
}

fn capabilities(s: &Suite<'_>) {
    let can = s.store.capabilities();
    s.eq(can.tells_stored, s.about.tells_stored);
    s.eq(can.leases, s.about.leases);
    s.eq(s.store.health(), StoreHealth::Healthy);
    s.is(!s.store.name().is_empty(), "it has a name");
}

fn empty_lists(s: &Suite<'_>) {
    s.eq(s.exists_many(&[]), vec![]);
    s.eq(s.get_many(&[]), vec![]);
    s.eq(s.put_many(&[]), vec![]);
    s.eq(s.remove_many(&[], true), vec![]);
}

fn missing(s: &Suite<'_>) {
    let key = s.key("missing");
    s.eq(s.exists(&key), Ok(false));
    s.eq(s.get(&key, 10).0, Err(OpError::NotFound));
    s.eq(s.remove(&key, false), Err(OpError::NotFound));
    s.eq(s.remove(&key, true), Err(OpError::NotFound));
}

fn round_trip(s: &Suite<'_>) {
    for len in [1, 2, 7, 4095, 4096, 4097, 65_536, 1 << 20] {
        let key = s.key(&format!("round-{len}"));
        let bytes = content(len, len);
        s.eq(s.put(&key, &bytes), s.stored());
        s.eq(s.exists(&key), Ok(true));
        s.holds_then_remove(&key, &bytes);
        s.eq(s.exists(&key), Ok(false));
    }
}

fn immutable(s: &Suite<'_>) {
    let key = s.key("immutable");
    let bytes = content(1, 5000);
    s.eq(s.put(&key, &bytes), s.stored());
    for len in [5000, 4999, 1, 9000] {
        s.eq(s.put(&key, &content(2, len)), s.already());
    }
    let got = s.get(&key, 9000);
    s.eq(got.0, Ok(5000));
    s.eq(&got.1[..5000], &bytes[..]);
    s.holds_then_remove(&key, &bytes);
}

fn mixed(s: &Suite<'_>) {
    let [a, b, c] = ["mixed-a", "mixed-b", "mixed-c"].map(|name| s.key(name));
    let (x, z) = (content(3, 300), content(4, 400));
    s.eq(s.put_many(&[(&a, &x), (&c, &z)]), vec![s.stored(); 2]);
    let keys: [&[u8]; 3] = [&a, &b, &c];
    s.eq(s.exists_many(&keys), vec![Ok(true), Ok(false), Ok(true)]);
    let got = s.get_many(&[(&a, 300), (&b, 300), (&c, 400)]);
    s.eq(&got[0], &(Ok(300), x));
    s.eq(got[1].0, Err(OpError::NotFound));
    s.eq(&got[2], &(Ok(400), z.clone()));
    // One is there already, one is new.
    let put = s.put_many(&[(&b, &z), (&a, &z)]);
    s.eq(put, vec![s.stored(), s.already()]);
    s.eq(s.remove_many(&keys, true), vec![Ok(()); 3]);
}

fn larger(s: &Suite<'_>) {
    let key = s.key("larger");
    let bytes = content(5, 65_536);
    s.eq(s.put(&key, &bytes), s.stored());
    for len in [65_537, 131_072] {
        let (got, buf) = s.get(&key, len);
        s.eq(got, Ok(65_536));
        s.eq(&buf[..65_536], &bytes[..]);
        s.is(buf[65_536..].iter().all(|b| *b == POISON), "tail untouched");
    }
    s.eq(s.remove(&key, true), Ok(()));
}

fn short(s: &Suite<'_>) {
    let (key, other) = (s.key("short"), s.key("short-other"));
    let (bytes, small) = (content(6, 65_536), content(7, 10));
    let put = s.put_many(&[(&key, &bytes), (&other, &small)]);
    s.eq(put, vec![s.stored(); 2]);
    for len in [1, 32_768, 65_535] {
        let got = s.get_many(&[(&key, len), (&other, 10)]);
        s.eq(got[0].0, s.short(65_536));
        s.eq(&got[1], &(Ok(10), small.clone()));
    }
    s.holds_then_remove(&key, &bytes);
    s.eq(s.remove(&other, true), Ok(()));
}

fn put_no_lease(s: &Suite<'_>) {
    let key = s.key("put-no-lease");
    s.eq(s.put(&key, b"bytes"), s.stored());
    s.eq(s.put(&key, b"again"), s.already());
    s.eq(s.remove(&key, false), Ok(()));
    s.eq(s.exists(&key), Ok(false));
}

fn lease_of_get(s: &Suite<'_>) {
    let key = s.key("lease-get");
    s.eq(s.put(&key, b"bytes"), s.stored());
    s.eq(s.get(&key, 5).0, Ok(5));
    s.eq(s.remove(&key, false), s.leased());
    if s.about.leases {
        s.eq(s.get(&key, 5), (Ok(5), b"bytes".to_vec()));
        s.eq(s.remove(&key, true), Ok(()));
    }
    s.eq(s.exists(&key), Ok(false));
}

fn lease_of_exists(s: &Suite<'_>) {
    let key = s.key("lease-exists");
    s.eq(s.put(&key, b"bytes"), s.stored());
    s.eq(s.exists(&key), Ok(true));
    s.eq(s.remove(&key, false), s.leased());
    if s.about.leases {
        (s.about.let_pass)(s.about.lease);
        s.eq(s.remove(&key, false), Ok(()));
    }
}

fn lease_of_short_get(s: &Suite<'_>) {
    let key = s.key("lease-short");
    s.eq(s.put(&key, b"bytes"), s.stored());
    s.eq(s.get(&key, 4).0, s.short(5));
    s.eq(s.remove(&key, false), s.leased());
    if s.about.leases {
        s.eq(s.remove(&key, true), Ok(()));
    }
}

fn three_results(s: &Suite<'_>) {
    let [a, b, c] = ["three-a", "three-b", "three-c"].map(|name| s.key(name));
    s.eq(s.put_many(&[(&a, b"a"), (&c, b"c")]), vec![s.stored(); 2]);
    s.eq(s.get(&c, 1).0, Ok(1));
    let got = s.remove_many(&[&a, &b, &c], false);
    s.eq(got, vec![Ok(()), Err(OpError::NotFound), s.leased()]);
    if s.about.leases {
        let got = s.remove_many(&[&a, &c], true);
        s.eq(got, vec![Err(OpError::NotFound), Ok(())]);
    }
}

fn removed(s: &Suite<'_>) {
    let key = s.key("removed");
    s.eq(s.put(&key, b"first"), s.stored());
    s.eq(s.remove(&key, false), Ok(()));
    s.eq(s.remove(&key, false), Err(OpError::NotFound));
    s.eq(s.get(&key, 5).0, Err(OpError::NotFound));
    s.eq(s.put(&key, b"other bytes"), s.stored());
    s.holds_then_remove(&key, b"other bytes");
}

fn odd_keys(s: &Suite<'_>) {
    let mut keys: Vec<Vec<u8>> = [
        "",
        " ",
        "  ",
        " leading",
        "trailing ",
        "trailing",
        "two  blanks",
        "two blanks",
        "a/b",
        "a//b",
        "/a/b",
        "../b",
        "a@b@0@1f",
        "a%2Fb",
        "a%2fb",
        "a%00b",
        "a\nb",
        "a\r\nb",
        "a\tb",
        "键值缓存",
        "键值缓",
        "Aa",
        "aa",
        "a\\b",
        "\"a\"",
        "a'b",
        "{\"a\": 1}",
        "a*",
        ".*",
    ]
    .map(|odd| s.key(odd))
    .to_vec();
    let long = |last| [s.key(&"k".repeat(999 - s.key("").len())), vec![last]].concat();
    keys.extend([long(b'x'), long(b'y')]);
    s.eq(keys[keys.len() - 1].len(), 1000);
    // No prefix fits in one byte: it may be left from another run.
    keys.push(b"~".to_vec());
    let _ = s.remove(b"~", true);
    let distinct: BTreeSet<_> = keys.iter().collect();
    s.eq(distinct.len(), keys.len());

    // Put one by one, then got in one batch, so that a key taken for another would show.
    for (i, key) in keys.iter().enumerate() {
        s.eq(s.exists(key), Ok(false));
        s.eq(s.put(key, &content(i, 100)), s.stored());
    }
    let items: Vec<(&[u8], usize)> = keys.iter().map(|key| (&key[..], 100)).collect();
    for (i, got) in s.get_many(&items).into_iter().enumerate() {
        s.eq(got, (Ok(100), content(i, 100)));
    }
    for (i, key) in keys.iter().enumerate() {
        s.holds_then_remove(key, &content(i, 100));
        s.eq(s.exists(key), Ok(false));
    }
}

fn many(s: &Suite<'_>) {
    let key = |i: usize| s.key(&format!("many-{i}"));
    let len = |i: usize| 1 + i * 7;
    let keys: Vec<Vec<u8>> = (0..300).map(key).collect();
    let bytes: Vec<Vec<u8>> = (0..300).map(|i| content(i, len(i))).collect();
    // Every third stays missing.
    let there = |i: &usize| !i.is_multiple_of(3);
    let items: Vec<(&[u8], &[u8])> = (0..300)
        .filter(there)
        .map(|i| (&keys[i][..], &bytes[i][..]))
        .collect();
    s.eq(s.put_many(&items), vec![s.stored(); 200]);
    let all: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let wanted: Vec<_> = (0..300).map(|i| Ok(there(&i))).collect();
    s.eq(s.exists_many(&all), wanted);
    let items: Vec<(&[u8], usize)> = (0..300).map(|i| (all[i], len(i))).collect();
    for (i, got) in s.get_many(&items).into_iter().enumerate() {
        match there(&i) {
            true => s.eq(got, (Ok(len(i) as u64), bytes[i].clone())),
            false => s.eq(got.0, Err(OpError::NotFound)),
        }
    }
    let gone = |i| there(&i).then_some(()).ok_or(OpError::NotFound);
    s.eq(s.remove_many(&all, true), (0..300).map(gone).collect());
}

fn concurrent(s: &Suite<'_>) {
    let store = s.store;
    let prefix = s.about.prefix;
    let mut arena = s.arena.borrow_mut();
    let round = |thread: usize, i: usize, arena: &mut [u8]| {
        let key = format!("{prefix}@concurrent-{thread}-{i}").into_bytes();
        let bytes = content(thread * 1000 + i, 2000 + i);
        let (put, get) = arena.split_at_mut(bytes.len());
        put.copy_from_slice(&bytes);
        let stored = direct::put_from(store, &[(&key, put)]).expect("a list")[0];
        let buf = &mut get[..bytes.len()];
        buf.fill(POISON);
        let got = direct::get_into(store, &mut [(&key, buf)]).expect("a list")[0];
        let gone = direct::remove(store, &[&key], true).expect("a list")[0];
        let good = stored.is_ok() && got == Ok(bytes.len() as u64) && *buf == *bytes;
        good && gone == Ok(())
    };
    let good: Vec<bool> = std::thread::scope(|scope| {
        let chunks = arena.chunks_exact_mut(1 << 20).take(4).enumerate();
        let spawn = |(thread, arena): (usize, _)| {
            let arena: &mut [u8] = arena;
            scope.spawn(move || (0..50).all(|i| round(thread, i, &mut *arena)))
        };
        let threads: Vec<_> = chunks.map(spawn).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, bool>| t.join().expect("no panic");
        threads.into_iter().map(join).collect()
    });
    s.eq(good, vec![true; 4]);
}

fn same_key(s: &Suite<'_>) {
    for round in 0..20 {
        let key = s.key(&format!("same-{round}"));
        let outcomes: Vec<_> = {
            let mut arena = s.arena.borrow_mut();
            let barrier = std::sync::Barrier::new(4);
            let (store, key, barrier) = (s.store, &key, &barrier);
            std::thread::scope(|scope| {
                let chunks = arena.chunks_exact_mut(1 << 20).take(4).enumerate();
                let threads: Vec<_> = chunks
                    .map(|(thread, arena)| {
                        let buf = &mut arena[..8192];
                        buf.copy_from_slice(&content(thread, 8192));
                        let buf = &*buf;
                        scope.spawn(move || {
                            barrier.wait();
                            direct::put_from(store, &[(key, buf)]).expect("a list")[0]
                        })
                    })
                    .collect();
                threads
                    .into_iter()
                    .map(|t| t.join().expect("no panic"))
                    .collect()
            })
        };
        if s.about.tells_stored {
            let of = |want| outcomes.iter().filter(|o| **o == Ok(want)).count();
            s.eq(of(StoreOutcome::Stored), 1);
            s.eq(of(StoreOutcome::AlreadyThere), 3);
        } else {
            s.eq(outcomes.clone(), vec![Ok(StoreOutcome::Accepted); 4]);
        }
        let (got, buf) = s.get(&key, 8192);
        s.eq(got, Ok(8192));
        let of = (0..4).find(|thread| content(*thread, 8192) == buf);
        s.is(of.is_some(), "the bytes are those of one put, whole");
        if s.about.tells_stored {
            let winner = outcomes.iter().position(|o| *o == Ok(StoreOutcome::Stored));
            s.eq(of, winner);
        }
        s.eq(s.remove(&key, true), Ok(()));
    }
}

fn registration(s: &Suite<'_>) {
    if !s.about.checks_registration {
        println!("contract: {}: SKIPPED: registration", s.about.name);
        return;
    }
    let mut memory = vec![0u8; 64 << 10];
    let len = memory.len();
    let base = NonNull::new(memory.as_mut_ptr()).expect("allocated");
    let inside = NonNull::new(memory[1..].as_mut_ptr()).expect("allocated");
    // SAFETY: `memory` outlives the registration, which is undone below.
    let register = |base, len| unsafe { s.store.register(base, len) };
    // SAFETY: no call uses `memory`; what is not registered is to be refused.
    let unregister = |base, len| unsafe { s.store.unregister(base, len) };
    s.is(unregister(base, len).is_err(), "unknown: refused");
    s.eq(register(base, len), Ok(()));
    s.is(register(base, len).is_err(), "the same again: refused");
    s.is(
        register(inside, len - 1).is_err(),
        "overlapping: refused, not cut",
    );
    s.eq(unregister(base, len), Ok(()));
    s.is(unregister(base, len).is_err(), "twice: refused");
    s.eq(register(base, len), Ok(()));
    s.eq(unregister(base, len), Ok(()));
}
