//! What is mapped, and when it is not: our L1 is not inherited by children, a child that drops its copy of a handle
//! unmaps nothing, and the last handle unmaps all.

mod common;

use common::in_a_child;
use moonring::{Region, RegionOptions, SlotClass};

fn is_mapped(address: *mut u8) -> bool {
    // `mincore` wants the page's start.
    // SAFETY: no preconditions.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let address = address.wrapping_sub(address.addr() % page);
    let mut byte = 0;
    // SAFETY: `mincore` only looks at the page table, and writes one byte for one page.
    unsafe { libc::mincore(address.cast(), 1, &mut byte) == 0 }
}

#[test]
fn a_child_has_no_page_of_the_region_and_the_parent_keeps_all() {
    let region = Region::allocate(RegionOptions::new(1 << 20)).unwrap();
    let pool = region
        .slot_pool(&[SlotClass {
            size: 4096,
            count: 1,
        }])
        .unwrap();
    let mut slot = pool.lend(4096).unwrap();
    slot.fill(7);
    let address = region.base().as_ptr();
    let code = in_a_child(|| {
        i32::from(is_mapped(address)) | i32::from(is_mapped(address.wrapping_sub(1))) << 1
    });
    assert_eq!(code, 0, "1: the region is there; 2: so is its guard");
    assert!(slot.iter().all(|&byte| byte == 7));
}

#[test]
fn a_child_that_drops_its_handle_unmaps_nothing() {
    const LEN: usize = 1 << 20;
    let region = Region::allocate(RegionOptions::new(LEN)).unwrap();
    let address = region.base().as_ptr();
    let handle = Some(region);
    let code = in_a_child(|| {
        // The child's own memory, where the region was.
        // SAFETY: NOREPLACE maps only what is free.
        let own = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            libc::mmap(address.cast(), LEN, libc::PROT_READ, flags, -1, 0)
        };
        if own != address.cast() {
            return 2;
        }
        // SAFETY: the parent's handle is left alone; this is the child's copy of it, which it has for itself.
        drop(unsafe { std::ptr::read(&handle) });
        i32::from(!is_mapped(address))
    });
    assert_eq!(code, 0, "1: unmapped; 2: could not be set up");
    assert!(is_mapped(address));
    drop(handle);
}

/// In a child, where no other thread can map something at the place that was given back.
#[test]
fn nothing_is_left_mapped_when_the_last_handle_is_gone() {
    const LEN: usize = 1 << 16;
    let code = in_a_child(|| {
        let Ok(region) = Region::allocate(RegionOptions::new(LEN).align(1 << 20)) else {
            return 2;
        };
        let address = region.base().as_ptr();
        let guards = [address.wrapping_sub(1), address.wrapping_add(LEN)];
        let clone = region.clone();
        drop(region);
        if !is_mapped(address) || !guards.iter().all(|&guard| is_mapped(guard)) {
            return 3;
        }
        drop(clone);
        i32::from(is_mapped(address) || guards.iter().any(|&guard| is_mapped(guard)))
    });
    assert_eq!(
        code, 0,
        "1: still mapped; 2: not allocated; 3: unmapped too early"
    );
}

/// The guards: what runs past the region's ends faults, and reads nothing of other memory.
#[test]
fn a_step_past_the_region_is_a_fault() {
    let region = Region::allocate(RegionOptions::new(1 << 16)).unwrap();
    let start = region.base().as_ptr();
    let mut pipe = [0; 2];
    // SAFETY: `pipe` has room for the two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // The kernel reads the byte for us and answers EFAULT instead of a signal.
    // SAFETY: the call reads one byte or refuses.
    let readable = |at: *mut u8| unsafe { libc::write(pipe[1], at.cast(), 1) == 1 };
    assert!(readable(start) && readable(start.wrapping_add(region.len() - 1)));
    assert!(!readable(start.wrapping_sub(1)));
    assert!(!readable(start.wrapping_add(region.len())));
}
