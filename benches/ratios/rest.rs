//! What has no rival: allocations, and an engine that has nothing to do.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moonring::store::NullStore;
use moonring::{Engine, block_on};

use crate::measure::Side;
use crate::path::OnPair;

/// Counts what all threads allocate, while it is told to.
pub struct Counting;

static COUNT: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn count() {
    if COUNT.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: all calls go on to the system's allocator as they came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// Allocations in so many ops on a pair and as many of a client, each after half as many; per op.
pub fn allocations_per_op(engine: &Engine, keys: &[String], ops: usize) -> f64 {
    let mut side = OnPair::new(engine, keys, 256);
    let client = engine.client();
    let mut there = Vec::with_capacity(32);
    let mut round = |ops: usize| {
        let mut got = 0;
        while got < ops {
            while side.room() >= 32 {
                side.submit(32);
            }
            got += side.reap();
        }
        for keys in keys.chunks(32).cycle().take(ops / 32) {
            block_on(client.lookup_many(keys, &mut there));
            assert!(block_on(client.lookup(&keys[0])).is_ok());
        }
    };
    round(ops / 2);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    COUNT.store(true, Ordering::Relaxed);
    round(ops);
    COUNT.store(false, Ordering::Relaxed);
    (ALLOCATIONS.load(Ordering::Relaxed) - before) as f64 / (2 * ops) as f64
}

/// Per cent of a core that the process uses while an engine with default settings has nothing to do, after a burst.
pub fn idle_cpu(keys: &[String], time: Duration) -> f64 {
    let engine = Engine::builder(Arc::new(NullStore)).start();
    let engine = engine.expect("the null store needs nothing");
    let mut side = OnPair::new(&engine, keys, 256);
    side.submit(256);
    while side.room() < 256 {
        side.reap();
    }
    std::thread::sleep(Duration::from_millis(50));
    let (before, started) = (process_cpu(), Instant::now());
    std::thread::sleep(time);
    (process_cpu() - before).as_secs_f64() / started.elapsed().as_secs_f64() * 100.0
}

fn process_cpu() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a writable timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
