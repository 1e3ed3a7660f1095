//! Promise 8: after warm-up nothing is allocated by us, on any thread, for ops on pairs and clients with keys of 1 to 255 bytes.

mod common_b;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common_b::*;
use moonring::store::{
    CallResult, Capabilities, DeleteBatch, LookupBatch, NullStore, RetrieveBatch, Store, StoreBatch,
};
use moonring::{
    Client, Engine, LocalClient, OpKind, Pair, Reactor, Returned, Slot, StoreOutcome, Submission,
    block_on,
};

/// Counts what all threads allocate and free while it is told to.
struct Watching;

static WATCH: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Where the first one came from.
static FIRST: Mutex<Option<String>> = Mutex::new(None);

thread_local! {
    /// This thread is looking at where it is, which allocates.
    static LOOKING: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    // `try_with`: a thread that is going away has no cell any more.
    if !WATCH.load(SeqCst) || LOOKING.try_with(Cell::get).unwrap_or(true) {
        return;
    }
    // The test harness's own thread, which says after a minute that the test takes long.
    // SAFETY: system calls without arguments.
    if unsafe { libc::gettid() == libc::getpid() } {
        return;
    }
    if COUNT.fetch_add(1, SeqCst) == 0 {
        LOOKING.set(true);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("?");
        *FIRST.lock().unwrap() = Some(format!("on {name}:\n{}", Backtrace::force_capture()));
        LOOKING.set(false);
    }
}

// SAFETY: all calls go on to the system's allocator as they came.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static WATCHING: Watching = Watching;

/// Does `warm` rounds, then `watched` rounds in which nobody may allocate.
fn allocates_nothing(what: &str, warm: u64, watched: u64, mut round: impl FnMut(u64)) {
    (0..warm).for_each(&mut round);
    COUNT.store(0, SeqCst);
    WATCH.store(true, SeqCst);
    (warm..warm + watched).for_each(&mut round);
    WATCH.store(false, SeqCst);
    let (count, first) = (COUNT.load(SeqCst), FIRST.lock().unwrap().take());
    assert_eq!(count, 0, "{what}: the first {}", first.unwrap_or_default());
}

/// A store whose calls can be held, so that every worker is in one.
struct Held {
    inner: Arc<dyn Store>,
    holds: AtomicBool,
    inside: AtomicUsize,
}

impl Held {
    fn pass(&self) {
        if self.holds.load(SeqCst) {
            self.inside.fetch_add(1, SeqCst);
            eventually("the calls may return", || !self.holds.load(SeqCst));
        }
    }
}

impl Store for Held {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        self.pass();
        self.inner.batch_exists(batch)
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        self.pass();
        self.inner.batch_get_into(batch)
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        self.pass();
        self.inner.batch_put_from(batch)
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        self.pass();
        self.inner.batch_remove(batch)
    }
}

/// Keys of 1 to 255 bytes, one of each length.
fn keys() -> Vec<Vec<u8>> {
    (1..=255)
        .map(|len| vec![b'a' + (len % 26) as u8; len])
        .collect()
}

/// What a round works with, made once.
struct Bench {
    _engine: Engine,
    keys: Vec<Vec<u8>>,
    slots: Vec<Slot>,
    pair: Pair,
    client: Client,
    local: (LocalClient, Pin<Box<Reactor>>),
    /// Stores and deletes too: the store allocates nothing for them.
    writes: bool,
    there: Vec<Result<bool, moonring::ClientError>>,
    got: Vec<Returned<u64>>,
    stored: Vec<Returned<StoreOutcome>>,
    gone: Vec<Result<(), moonring::ClientError>>,
}

/// Ops in each round of each form.
const OPS: usize = 40;

impl Bench {
    fn new(store: Arc<dyn Store>, writes: bool) -> Self {
        let keys = keys();
        for key in &keys {
            put(&*store, key, &[7; 100]);
        }
        let (region, pool) = slots(128, OPS);
        let held = Arc::new(Held {
            inner: store,
            holds: AtomicBool::new(true),
            inside: AtomicUsize::new(0),
        });
        let engine = Engine::builder(held.clone()).region(region);
        let engine = engine.start().unwrap();
        let (mut pair, client) = (engine.pair(64).unwrap(), engine.client());
        // A worker that has had no core yet is not warm: each is in a call at the same time once.
        assert_eq!(engine.start_report().workers.len(), OpKind::ALL.len());
        let ops = [
            Submission::lookup("missing"),
            Submission::retrieve("missing", pool.lend(128).unwrap()),
            Submission::store("stored", pool.lend(128).unwrap()),
            Submission::delete("stored"),
        ];
        for (n, op) in (1..).zip(ops) {
            submit(&mut pair, op);
            eventually("it is in a call", || held.inside.load(SeqCst) == n);
        }
        let (local, reactor) = LocalClient::new(engine.pair(OPS / 2).unwrap());
        held.holds.store(false, SeqCst);
        reap(&mut pair, OpKind::ALL.len());
        Self {
            keys,
            slots: (0..OPS).map(|_| pool.lend(128).unwrap()).collect(),
            pair,
            client,
            local: (local, Box::pin(reactor)),
            writes,
            there: Vec::new(),
            got: Vec::new(),
            stored: Vec::new(),
            gone: Vec::new(),
            _engine: engine,
        }
    }

    fn reap(&mut self, mut n: usize) {
        while n > 0 {
            self.pair.wait(1, Some(HANG)).unwrap();
            for done in self.pair.completions() {
                n -= 1;
                self.slots.extend(done.slot);
            }
        }
    }

    /// Op `i` of a pair in this round.
    fn op<'k>(&mut self, keys: &'k [Vec<u8>], round: u64, i: u64) -> Submission<'k> {
        let key = &keys[((round * 7 + i) % 255) as usize];
        let missing = (round + i).is_multiple_of(16);
        let key = if missing { &b"missing"[..] } else { key };
        let op = match i % 4 {
            0 => Submission::lookup(key),
            3 if self.writes => Submission::delete(key),
            2 if self.writes => Submission::store(key, self.slots.pop().unwrap()),
            _ => Submission::retrieve(key, self.slots.pop().unwrap()),
        };
        op.user_data(i)
    }

    /// Ops of a pair, one by one or in a batch.
    fn pair(&mut self, round: u64, in_batch: bool) {
        let keys = std::mem::take(&mut self.keys);
        let mut ops = [const { None }; OPS];
        for (i, place) in ops.iter_mut().enumerate() {
            *place = Some(self.op(&keys, round, i as u64));
        }
        let ops = ops.into_iter().flatten();
        if in_batch {
            let mut batch = self.pair.batch();
            ops.for_each(|op| assert!(batch.push(op).is_ok()));
        } else {
            ops.for_each(|op| assert!(self.pair.submit(op).is_ok()));
        }
        self.keys = keys;
        self.reap(OPS);
    }

    /// Single ops of a client: awaited, blocking, and several in flight.
    fn client(&mut self, round: u64) {
        let client = &self.client;
        let blocking = client.blocking();
        for i in 0..OPS as u64 / 8 {
            let key = &self.keys[((round * 5 + i) % 255) as usize];
            assert!(block_on(client.lookup(key)).unwrap());
            assert!(blocking.lookup(key).is_ok());
            for _ in 0..2 {
                let slot = self.slots.pop().unwrap();
                let done = block_on(client.retrieve(key, slot));
                self.slots.extend(done.slot);
            }
            let done = blocking.retrieve("missing", self.slots.pop().unwrap());
            self.slots.extend(done.slot);
            if self.writes {
                let done = blocking.store(key, self.slots.pop().unwrap());
                self.slots.extend(done.slot);
                assert!(blocking.delete(key).is_ok());
                assert!(block_on(client.delete_forced(key)).is_ok());
            } else {
                let two = (client.lookup(key), client.lookup("missing"));
                assert!(block_on(two.1).is_ok() && block_on(two.0).is_ok());
                drop(client.lookup("dropped"));
            }
        }
    }

    /// A pair's ops as futures, with their reactor, all polled in turn as a runtime would.
    fn local(&mut self, round: u64) {
        let (client, reactor) = &mut self.local;
        let mut cx = Context::from_waker(Waker::noop());
        let mut ops = [const { None }; OPS];
        for (i, place) in ops.iter_mut().enumerate() {
            let key = &self.keys[((round * 3 + i as u64) % 255) as usize];
            let op = match i % 2 {
                0 => Submission::lookup(key),
                _ => Submission::retrieve(key, self.slots.pop().unwrap()),
            };
            *place = Some(client.submit(op));
        }
        // More than there are credits for: some wait for one.
        while ops.iter().any(Option::is_some) {
            for place in &mut ops {
                if let Some(op) = place
                    && let Poll::Ready(done) = Pin::new(op).poll(&mut cx)
                {
                    assert!(done.result.is_ok());
                    self.slots.extend(done.slot);
                    *place = None;
                }
            }
            assert!(reactor.as_mut().poll(&mut cx).is_pending());
            std::thread::yield_now();
        }
    }

    /// The batch forms.
    fn many(&mut self, round: u64) {
        let start = (round * 3) as usize % (255 - OPS);
        let keys = &self.keys[start..start + OPS];
        let client = &self.client;
        client.blocking().lookup_many(keys, &mut self.there);
        assert_eq!(self.there.len(), OPS);
        let prefix = block_on(client.lookup_prefix(keys));
        assert_eq!(prefix.len, OPS);
        let items = keys.iter().zip(self.slots.drain(..));
        block_on(client.retrieve_many(items, &mut self.got));
        assert!(self.got.iter().all(|done| done.result.is_ok()));
        self.slots
            .extend(self.got.drain(..).filter_map(|done| done.slot));
        if self.writes {
            let items = keys.iter().zip(self.slots.drain(..));
            client.blocking().store_many(items, &mut self.stored);
            self.slots
                .extend(self.stored.drain(..).filter_map(|done| done.slot));
            block_on(client.delete_many(keys, &mut self.gone));
        }
        assert_eq!(self.slots.len(), OPS);
    }
}

fn nothing_is_allocated(warm_ops: u64, ops: u64) {
    // A put into the memory store must allocate: its objects are the caller's.
    for (name, store, writes) in [
        ("null", Arc::new(NullStore) as Arc<dyn Store>, true),
        ("memory", memory_with(Duration::from_secs(1)), false),
    ] {
        let mut bench = Bench::new(store, writes);
        let rounds = |ops: u64| ops.div_ceil(OPS as u64);
        let (warm, watched) = (rounds(warm_ops), rounds(ops));
        allocates_nothing(
            &format!("{name}, pair, one by one"),
            warm,
            watched,
            |round| {
                bench.pair(round, false);
            },
        );
        allocates_nothing(
            &format!("{name}, pair, in batches"),
            warm,
            watched,
            |round| {
                bench.pair(round, true);
            },
        );
        allocates_nothing(
            &format!("{name}, a pair's futures"),
            warm,
            watched,
            |round| {
                bench.local(round);
            },
        );
        allocates_nothing(&format!("{name}, client"), warm, watched, |round| {
            bench.client(round);
        });
        allocates_nothing(
            &format!("{name}, client, batch forms"),
            warm,
            watched,
            |round| {
                bench.many(round);
            },
        );
    }
}

#[test]
fn nothing_is_allocated_after_warm_up() {
    within(3 * HANG, "counting allocations", || {
        nothing_is_allocated(2_000, 8_000)
    });
}

#[test]
#[ignore = "a million ops of each form: in release"]
fn release_nothing_is_allocated_over_a_million_ops() {
    within(10 * HANG, "counting allocations", || {
        nothing_is_allocated(10_000, 1_000_000)
    });
}
