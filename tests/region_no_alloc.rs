//! Lending a slot and giving it back allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use moonring::{Region, RegionOptions, SlotClass};

/// Counts this thread's allocations.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all calls go on to the system's allocator as they came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is going away has no counter any more.
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn lending_and_returning_allocates_nothing() {
    let region = Region::allocate(RegionOptions::new(1 << 20)).unwrap();
    let classes = [
        SlotClass { size: 64, count: 3 },
        SlotClass {
            size: 4096,
            count: 3,
        },
    ];
    let pool = region.slot_pool(&classes).unwrap();
    let before = COUNT.get();
    assert_ne!(before, 0, "the counter counts");
    let mut lent = 0;
    for round in 0..10_000usize {
        let mut slots = [const { None }; 8];
        for slot in &mut slots {
            *slot = pool.lend(round % 4096);
            lent += usize::from(slot.is_some());
        }
    }
    assert_eq!(COUNT.get(), before);
    assert!(lent >= 30_000, "{lent}");
}
