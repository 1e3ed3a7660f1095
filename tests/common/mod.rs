//! What the engine's tests share.

#![allow(dead_code)] // each test file uses a part of it

pub mod one_run;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use moonring::store::sim::SimGate;
use moonring::store::{
    CallResult, Capabilities, DeleteBatch, LookupBatch, MemoryOptions, MemoryStore, RegisterError,
    RetrieveBatch, SimOptions, SimStore, Store, StoreBatch,
};
use moonring::{Engine, OpKind, Pair, Region, RegionOptions, SlotClass, SlotPool, Submission};

/// Aborts the process, saying which test hangs, unless it is dropped within a minute.
#[must_use = "it watches until it is dropped"]
pub fn watchdog() -> impl Drop {
    watchdog_for(Duration::from_secs(60))
}

/// A watchdog with another limit.
#[must_use = "it watches until it is dropped"]
pub fn watchdog_for(limit: Duration) -> impl Drop {
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    watchdog_of(name, limit)
}

/// A watchdog that says what hangs in other words.
#[must_use = "it watches until it is dropped"]
pub fn watchdog_of(what: String, limit: Duration) -> impl Drop {
    struct Watchdog {
        _done: mpsc::Sender<()>,
    }
    impl Drop for Watchdog {
        fn drop(&mut self) {}
    }
    let (done, watched) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if watched.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Not `eprintln`: the harness captures that of a test that never ends.
            let text = format!("\nwatchdog: {what} hangs\n");
            // SAFETY: a plain write of readable bytes.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
            std::process::abort();
        }
    });
    Watchdog { _done: done }
}

/// Waits until `what` holds; the test's watchdog ends it otherwise.
pub fn eventually(mut what: impl FnMut() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Submits what `op` makes, with a time-out, until `inside` calls of its kind wait at the sim's gate: on a busy machine its time may
/// be up before a worker comes by. How many never started like that; their ends come too.
pub fn submit_into_call<'k>(
    engine: &Engine,
    pair: &mut Pair,
    gate: &SimGate,
    inside: usize,
    timeout: Duration,
    mut op: impl FnMut() -> Submission<'k>,
) -> usize {
    let kind = op().op();
    let late = || engine.stats().lane(kind).count("timed_out_never_started");
    let before = late();
    let mut timeout = timeout;
    loop {
        let seen = late();
        pair.submit(op().timeout(Some(timeout))).unwrap();
        eventually(|| gate.inside(kind) >= inside || late() > seen);
        if gate.inside(kind) >= inside {
            return (late() - before) as usize;
        }
        timeout *= 2;
    }
}

/// Nothing is in flight, and every accepted op was completed.
#[track_caller]
pub fn assert_at_rest(engine: &Engine) {
    let counts = engine.stats().engine;
    assert_eq!(counts.accepted, counts.completed);
    assert_eq!((counts.in_flight, counts.credits_in_use), (0, 0));
}

pub fn memory() -> Arc<MemoryStore> {
    let options = MemoryOptions {
        lease: Duration::ZERO,
        ..MemoryOptions::default()
    };
    Arc::new(MemoryStore::new(options).unwrap())
}

/// A sim over a memory store of its own.
pub fn sim(options: SimOptions) -> Arc<SimStore> {
    Arc::new(SimStore::new(memory(), options).unwrap())
}

/// A region of just so many slots.
pub fn slots(size: usize, count: usize) -> (Region, SlotPool) {
    let region = Region::allocate(RegionOptions::new(size.next_multiple_of(64) * count)).unwrap();
    let pool = region.slot_pool(&[SlotClass { size, count }]).unwrap();
    (region, pool)
}

/// Counts how often each id was seen.
pub struct Tally(Vec<u8>);

impl Tally {
    pub fn new(ids: usize) -> Self {
        Self(vec![0; ids])
    }

    #[track_caller]
    pub fn see(&mut self, id: u64) {
        let seen = &mut self.0[id as usize];
        *seen += 1;
        assert_eq!(*seen, 1, "id {id} came twice");
    }

    #[track_caller]
    pub fn assert_all_seen(&self) {
        let missing: Vec<_> = (0..self.0.len()).filter(|&id| self.0[id] == 0).collect();
        assert!(missing.is_empty(), "never came: {missing:?}");
    }
}

/// Wakers that write down who was woken.
#[derive(Clone, Default)]
pub struct WakeLog(Arc<Mutex<Vec<usize>>>);

impl WakeLog {
    pub fn waker(&self, id: usize) -> Waker {
        struct Logged(WakeLog, usize);
        impl Wake for Logged {
            fn wake(self: Arc<Self>) {
                self.0.0.lock().unwrap().push(self.1);
            }
        }
        Waker::from(Arc::new(Logged(self.clone(), id)))
    }

    pub fn woken(&self) -> Vec<usize> {
        self.0.lock().unwrap().clone()
    }
}

/// One poll with this waker.
pub fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// A waker that does what it is told, once a wake.
pub fn waker_of(f: impl Fn() + Send + Sync + 'static) -> Waker {
    struct Call<F>(F);
    impl<F: Fn() + Send + Sync + 'static> Wake for Call<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    Waker::from(Arc::new(Call(f)))
}

/// CPU time that the calling thread has used.
pub fn thread_cpu() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a writable timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Pseudo-random numbers: SplitMix64.
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

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// What a [`Spy`] saw, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Register(usize, usize),
    Unregister(usize, usize),
    /// A call of this kind returned.
    Called(OpKind),
    Close,
}

type Hook = Box<dyn Fn(OpKind) + Send + Sync>;

/// A store that writes down registrations, the ends of calls and its closing, and runs a hook inside each call.
pub struct Spy {
    inner: Arc<dyn Store>,
    hook: Hook,
    seen: Mutex<Vec<Seen>>,
    calls: AtomicU64,
}

impl Spy {
    pub fn new(inner: Arc<dyn Store>, hook: impl Fn(OpKind) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            inner,
            hook: Box::new(hook),
            seen: Mutex::default(),
            calls: AtomicU64::new(0),
        })
    }

    pub fn seen(&self) -> Vec<Seen> {
        let seen = self.seen.lock();
        seen.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls that have begun.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    fn see(&self, what: Seen) {
        let seen = self.seen.lock();
        seen.unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn call(&self, op: OpKind, call: impl FnOnce() -> CallResult) -> CallResult {
        self.calls.fetch_add(1, Ordering::SeqCst);
        (self.hook)(op);
        let answer = call();
        self.see(Seen::Called(op));
        answer
    }
}

impl Store for Spy {
    fn name(&self) -> &str {
        "spy"
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    unsafe fn register(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        self.see(Seen::Register(base.addr().get(), len));
        // SAFETY: the caller vouches for it.
        unsafe { self.inner.register(base, len) }
    }

    unsafe fn unregister(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        self.see(Seen::Unregister(base.addr().get(), len));
        // SAFETY: the caller vouches for it.
        unsafe { self.inner.unregister(base, len) }
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        self.call(OpKind::Lookup, || self.inner.batch_exists(batch))
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        self.call(OpKind::Retrieve, || self.inner.batch_get_into(batch))
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        self.call(OpKind::Store, || self.inner.batch_put_from(batch))
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        self.call(OpKind::Delete, || self.inner.batch_remove(batch))
    }

    fn close(&self) {
        self.inner.close();
        self.see(Seen::Close);
    }
}

/// How long something took.
pub fn timed<R>(f: impl FnOnce() -> R) -> (R, Duration) {
    let start = Instant::now();
    let result = f();
    (result, start.elapsed())
}

/// Runs `f` in a forked child, which reports by its exit code; a child that hangs fails the test. The child
/// has one thread, so `f` may use only what holds no lock of another one: no output, no panic. (The allocator
/// sees to itself.)
#[track_caller]
pub fn in_a_child(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs `f`, which keeps to the above, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let code = f();
        // SAFETY: no preconditions.
        unsafe { libc::_exit(code) };
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut status = 0;
        // SAFETY: `status` is live; the child is ours.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            0 => {
                // SAFETY: our own child, which was not waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
                panic!("the child hangs");
            }
            _ if libc::WIFEXITED(status) => return libc::WEXITSTATUS(status),
            _ => panic!("the child was killed by signal {}", libc::WTERMSIG(status)),
        }
    }
}
