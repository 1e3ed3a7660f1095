//! What the memory store costs in memory: none per call, and a bounded amount per object. One test, so that nothing
//! else runs in this process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use moonring::store::{MemoryOptions, MemoryStore, NullStore, Store, direct};

/// Counts allocations and the bytes that are allocated.
struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Resident bytes of this process.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// About 100 bytes, as LMCache's.
fn key(i: usize) -> String {
    format!("meta-llama/Llama-3.1-8B-Instruct@0@0@{i:064x}")
}

fn allocations(f: impl FnOnce()) -> usize {
    let before = CALLS.load(Relaxed);
    f();
    CALLS.load(Relaxed) - before
}

#[test]
fn an_hour_of_chat_fits_and_calls_allocate_nothing() {
    const OBJECTS: usize = 182_790;
    const LEN: usize = 4096;
    let store = MemoryStore::new(MemoryOptions::default()).unwrap();
    assert!((100..=110).contains(&key(0).len()));
    let bytes = [1u8; LEN];
    let (before, allocated) = (resident(), BYTES.load(Relaxed));
    let mut puts = 0;
    for first in (0..OBJECTS).step_by(90) {
        let names: Vec<String> = (first..first + 90).map(key).collect();
        let items: Vec<(&[u8], &[u8])> = names.iter().map(|n| (n.as_bytes(), &bytes[..])).collect();
        let put = |store: &dyn Store| {
            allocations(|| {
                let put = direct::put_from(store, &items).unwrap();
                assert!(put.iter().all(Result::is_ok));
            })
        };
        let on_null = put(&NullStore);
        puts += put(&store) - on_null;
    }
    let (grown, allocated) = (resident() - before, BYTES.load(Relaxed) - allocated);
    assert_eq!((store.objects(), store.evictions()), (OBJECTS, 0));
    assert_eq!(store.used_bytes(), OBJECTS * LEN);
    let overhead = (allocated - OBJECTS * (LEN + key(0).len())) / OBJECTS;
    println!(
        "footprint: {OBJECTS} objects of {LEN} bytes, keys of {} bytes: {} MiB resident, {overhead} bytes an object \
         beyond key and value, {puts} allocations in {OBJECTS} puts",
        key(0).len(),
        grown >> 20,
    );
    assert!(grown < 1 << 30, "{grown} bytes resident");
    assert!(overhead < 130, "{overhead} bytes an object");
    // One an object, and now and then a growing table or slab.
    assert!(puts < OBJECTS + 1000, "{puts} allocations");

    // `direct` allocates for its own; what the store allocates is the difference to one that does nothing.
    let names: Vec<String> = (0..64).map(key).collect();
    let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let mut bufs = vec![[0u8; LEN]; 64];
    let mut get = |store: &dyn Store, len: usize| {
        allocations(|| {
            let bufs = bufs.iter_mut().map(|buf| &mut buf[..len]);
            let mut items: Vec<(&[u8], &mut [u8])> = names.iter().copied().zip(bufs).collect();
            direct::get_into(store, &mut items).unwrap();
        })
    };
    for len in [LEN, 100] {
        assert_eq!(get(&store, len), get(&NullStore, len), "retrieves of {len}");
    }
    let exists = |store: &dyn Store| allocations(|| drop(direct::exists(store, &names).unwrap()));
    assert_eq!(exists(&store), exists(&NullStore), "lookups");
    let items: Vec<(&[u8], &[u8])> = names.iter().map(|name| (*name, &bytes[..])).collect();
    let put_again =
        |store: &dyn Store| allocations(|| drop(direct::put_from(store, &items).unwrap()));
    assert_eq!(
        put_again(&store),
        put_again(&NullStore),
        "stores of what is there"
    );
    let remove =
        |store: &dyn Store| allocations(|| drop(direct::remove(store, &names, true).unwrap()));
    assert_eq!(remove(&store), remove(&NullStore), "deletes");
    assert_eq!(store.objects(), OBJECTS - 64);

    drop(store);
    let left = BYTES.load(Relaxed) as isize;
    println!("footprint: {left} bytes allocated after the store is dropped");
    assert!(left < 4 << 20, "{left} bytes were not freed");
}
