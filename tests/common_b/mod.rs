//! What the tests of merging, folding, waking and answers share.
#![allow(dead_code)] // each test binary uses its part

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use moonring::store::{
    CallResult, Capabilities, DeleteBatch, LookupBatch, MemoryOptions, MemoryStore, RegisterError,
    RetrieveBatch, SimOptions, SimStore, Store, StoreBatch,
};
use moonring::{
    Completion, Done, Engine, EngineConfig, OpError, OpKind, Pair, Region, RegionOptions, Slot,
    SlotClass, SlotPool, Submission,
};

/// How long anything may take before a test counts as hung. Far above what a loaded machine needs.
pub const HANG: Duration = Duration::from_secs(60);

/// Runs `test`; where that takes longer than `limit`, says so and ends the process.
pub fn within<R>(limit: Duration, what: &str, test: impl FnOnce() -> R) -> R {
    let (done, waiting) = channel::<()>();
    let name = what.to_owned();
    let dog = std::thread::spawn(move || {
        if waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            // Not `eprintln`: the harness captures that of a test that never ends.
            let text = format!("\nWATCHDOG: {name} did not end within {limit:?}\n");
            // SAFETY: a plain write of readable bytes.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
            std::process::abort();
        }
    });
    let result = test();
    drop(done);
    dog.join().unwrap();
    result
}

/// Waits until `holds`; fails naming `what` where it never does.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < HANG, "never: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// In debug builds `debug`, else `release`.
pub fn sized(debug: u64, release: u64) -> u64 {
    if cfg!(debug_assertions) {
        debug
    } else {
        release
    }
}

/// A small generator of numbers, good enough to choose cases. The same seed gives the same numbers.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// One store call as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub op: OpKind,
    pub keys: Vec<Vec<u8>>,
    /// Lengths of the buffers; empty where the kind has none.
    pub lens: Vec<usize>,
    pub force: bool,
}

impl Call {
    pub fn bytes(&self) -> usize {
        self.lens.iter().sum()
    }
}

/// A store that watches the calls of another: writes them down, and complains about every breach of what the
/// [`Store`] trait promises to stores.
pub struct Watched {
    inner: Arc<dyn Store>,
    /// Whether calls are written down, or only counted.
    keep: bool,
    calls: Mutex<Vec<Call>>,
    counts: [AtomicU64; 4],
    /// Keys in all calls.
    keys: AtomicU64,
    complaints: Mutex<Vec<String>>,
}

impl Watched {
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Self::with(inner, true)
    }

    /// One that only counts calls, for long runs.
    pub fn counting(inner: Arc<dyn Store>) -> Arc<Self> {
        Self::with(inner, false)
    }

    fn with(inner: Arc<dyn Store>, keep: bool) -> Arc<Self> {
        Arc::new(Self {
            inner,
            keep,
            calls: Mutex::default(),
            counts: Default::default(),
            keys: AtomicU64::new(0),
            complaints: Mutex::default(),
        })
    }

    /// The calls since the last look.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn count(&self, op: OpKind) -> u64 {
        self.counts[op.index()].load(Relaxed)
    }

    pub fn keys(&self) -> u64 {
        self.keys.load(Relaxed)
    }

    /// Fails where anything was wrong with any call.
    pub fn assert_content(&self) {
        let complaints = self
            .complaints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        assert!(complaints.is_empty(), "{complaints:#?}");
    }

    fn see<'k>(
        &self,
        op: OpKind,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        bufs: impl Iterator<Item = (usize, usize)> + Clone,
        force: bool,
    ) {
        self.counts[op.index()].fetch_add(1, Relaxed);
        self.keys.fetch_add(keys.clone().count() as u64, Relaxed);
        let complain = |what: String| {
            let complaints = self.complaints.lock();
            let mut complaints = complaints.unwrap_or_else(PoisonError::into_inner);
            if complaints.len() < 10 {
                complaints.push(format!("{op}: {what}"));
            }
        };
        let mut seen = HashSet::new();
        for key in keys.clone() {
            if !seen.insert(key) {
                complain(format!(
                    "key {:?} stands twice",
                    String::from_utf8_lossy(key)
                ));
            }
            if key.is_empty() || key.contains(&0) {
                complain(format!("key {key:?}"));
            }
        }
        if seen.is_empty() {
            complain("a call without keys".to_owned());
        }
        if op == OpKind::Retrieve {
            let mut sorted: Vec<_> = bufs.clone().collect();
            sorted.sort_unstable();
            if let Some(two) = sorted.windows(2).find(|w| w[0].0 + w[0].1 > w[1].0) {
                complain(format!("buffers overlap: {two:?}"));
            }
        }
        if bufs.clone().any(|(addr, len)| addr == 0 || len == 0) {
            complain("a null or empty buffer".to_owned());
        }
        if self.keep {
            self.calls
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Call {
                    op,
                    keys: keys.map(<[u8]>::to_vec).collect(),
                    lens: bufs.map(|(_, len)| len).collect(),
                    force,
                });
        }
    }
}

impl Store for Watched {
    fn name(&self) -> &str {
        "watched"
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    unsafe fn register(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.inner.register(base, len) }
    }

    unsafe fn unregister(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.inner.unregister(base, len) }
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        let keys = (0..batch.len()).map(|i| batch.key(i));
        self.see(OpKind::Lookup, keys, std::iter::empty(), false);
        self.inner.batch_exists(batch)
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        let keys = (0..batch.len()).map(|i| batch.key(i));
        let bufs = batch.bufs().iter().map(|p| p.addr());
        let bufs = bufs.zip(batch.buf_lens().iter().copied());
        self.see(OpKind::Retrieve, keys, bufs, false);
        self.inner.batch_get_into(batch)
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        let keys = (0..batch.len()).map(|i| batch.key(i));
        let bufs = batch.bufs().iter().map(|p| p.addr());
        let bufs = bufs.zip(batch.buf_lens().iter().copied());
        self.see(OpKind::Store, keys, bufs, false);
        self.inner.batch_put_from(batch)
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        let keys = (0..batch.len()).map(|i| batch.key(i));
        let force = batch.force();
        self.see(OpKind::Delete, keys, std::iter::empty(), force);
        self.inner.batch_remove(batch)
    }

    fn close(&self) {
        self.inner.close();
    }
}

/// A memory store without leases, unless told otherwise.
pub fn memory() -> Arc<MemoryStore> {
    memory_with(Duration::ZERO)
}

pub fn memory_with(lease: Duration) -> Arc<MemoryStore> {
    let options = MemoryOptions {
        lease,
        capacity: 256 << 20,
        ..MemoryOptions::default()
    };
    Arc::new(MemoryStore::new(options).unwrap())
}

pub fn sim(inner: Arc<dyn Store>, options: SimOptions) -> Arc<SimStore> {
    Arc::new(SimStore::new(inner, options).unwrap())
}

/// Puts an object into a store, past any engine.
pub fn put(store: &dyn Store, key: &[u8], bytes: &[u8]) {
    let done = moonring::store::direct::put_from(store, &[(key, bytes)]).unwrap();
    assert!(done[0].is_ok(), "{done:?}");
}

/// The bytes of a key's object, from the key and a length.
pub fn content(key: &[u8], len: usize) -> Vec<u8> {
    let mut rng = Rng::new(
        key.iter()
            .fold(7u64, |h, b| h.wrapping_mul(31) + u64::from(*b)),
    );
    (0..len).map(|_| rng.next() as u8).collect()
}

/// A region with slots of one size, for one engine.
pub fn slots(size: usize, count: usize) -> (Region, SlotPool) {
    let options = RegionOptions::new(size.next_multiple_of(64) * count + 4096).prefault(false);
    let region = Region::allocate(options).unwrap();
    let pool = region.slot_pool(&[SlotClass { size, count }]).unwrap();
    (region, pool)
}

pub fn config() -> EngineConfig {
    // Tests share their cores with each other.
    EngineConfig::default().cores(moonring::config::CoreChoice::None)
}

pub fn start(store: Arc<dyn Store>, config: EngineConfig, region: &Region) -> Engine {
    Engine::builder(store)
        .config(config)
        .region(region.clone())
        .start()
        .unwrap()
}

pub const CANARY: u8 = 0xEE;

/// A slot of this length, all of it (to its capacity) filled with [`CANARY`].
pub fn canary_slot(pool: &SlotPool, len: usize) -> Slot {
    let mut slot = pool.lend(len).expect("a free slot");
    slot.set_len(slot.capacity()).unwrap();
    slot.fill(CANARY);
    slot.set_len(len).unwrap();
    slot
}

/// A slot with these bytes.
pub fn slot_of(pool: &SlotPool, bytes: &[u8]) -> Slot {
    let mut slot = pool.lend(bytes.len()).expect("a free slot");
    slot.copy_from_slice(bytes);
    slot
}

/// Fails unless the slot holds `object` and canaries behind it, up to its capacity.
pub fn assert_holds(mut slot: Slot, object: &[u8]) {
    slot.set_len(slot.capacity()).unwrap();
    assert!(
        slot[..object.len()] == *object,
        "the object's bytes are not those in the buffer"
    );
    let touched = slot[object.len()..].iter().position(|b| *b != CANARY);
    assert_eq!(touched, None, "bytes behind the object were touched");
}

/// Fails unless what a retrieve of `object` must say about a buffer of `len` bytes is what it said.
pub fn assert_settled(result: Result<u64, OpError>, slot: Slot, len: usize, object: &[u8]) {
    if object.len() > len {
        let object_len = std::num::NonZeroU64::new(object.len() as u64);
        assert_eq!(result, Err(OpError::ShortBuffer { object_len }), "{len}");
        let mut slot = slot;
        slot.set_len(slot.capacity()).unwrap();
        let touched = slot[len..].iter().position(|b| *b != CANARY);
        assert_eq!(touched, None, "bytes behind a short buffer were touched");
    } else {
        assert_eq!(result, Ok(object.len() as u64), "{len}");
        assert_holds(slot, object);
    }
}

/// Submits; refusals fail the test.
pub fn submit(pair: &mut Pair, submission: Submission<'_>) {
    if let Err(refused) = pair.submit(submission) {
        panic!("refused: {refused}");
    }
}

/// Waits for `n` completions and returns them in the order of their `user_data`.
pub fn reap(pair: &mut Pair, n: usize) -> Vec<Completion> {
    let mut all = Vec::new();
    while all.len() < n {
        pair.wait(1, Some(HANG)).unwrap();
        all.extend(pair.completions());
    }
    assert_eq!(all.len(), n);
    all.sort_by_key(|c| c.user_data);
    all
}

/// A retrieve's result as a client would see it.
pub fn retrieved(completion: &Completion) -> Result<u64, OpError> {
    completion.result.map(|done| match done {
        Done::Retrieved(len) => len,
        other => panic!("{other:?}"),
    })
}
