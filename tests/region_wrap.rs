//! Wrapped memory: what is refused, who keeps it alive, and which addresses lie inside.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use moonring::{Origin, Overlap, Region, RegionError, SlotClass};
use proptest::prelude::*;

/// Host memory that counts its own death.
struct Host {
    bytes: *mut [u8],
    drops: Arc<AtomicUsize>,
    panics: bool,
}

// SAFETY: it owns the bytes behind the pointer; whoever uses them meanwhile does so by the region's rules.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

impl Host {
    fn new(len: usize) -> (Self, Arc<AtomicUsize>) {
        let drops = Arc::new(AtomicUsize::new(0));
        let host = Host {
            bytes: Box::into_raw(vec![0u8; len].into_boxed_slice()),
            drops: Arc::clone(&drops),
            panics: false,
        };
        (host, drops)
    }

    fn into_region(self) -> Region {
        let (start, len) = (self.bytes.cast(), self.bytes.len());
        // SAFETY: the bytes are initialised and this host's alone; they live as long as it.
        unsafe { Region::wrap(start, len, self) }.unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` in `new`.
        drop(unsafe { Box::from_raw(self.bytes) });
        self.drops.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "the host's owner panics in its drop");
    }
}

#[test]
fn what_can_not_be_a_region_is_refused_naming_the_argument() {
    let mut byte = 0u8;
    let at: *mut u8 = &mut byte;
    let wrap = |ptr, len| {
        // SAFETY: all of these are refused before any byte is touched.
        let error = unsafe { Region::wrap(ptr, len, ()) }.unwrap_err();
        assert!(matches!(error, RegionError::Invalid { .. }));
        error.to_string()
    };
    assert_eq!(wrap(ptr::null_mut(), 1), "ptr: null");
    assert_eq!(wrap(at, 0), "len: zero");
    for len in [
        usize::MAX,
        isize::MAX as usize + 1,
        usize::MAX - at.addr() + 1,
    ] {
        let text = wrap(at, len);
        assert!(text.starts_with(&format!("len: {len} bytes at ")), "{text}");
    }
    let high = ptr::without_provenance_mut(usize::MAX - 9);
    assert!(wrap(high, 10).starts_with("len: 10 bytes at "));
}

#[test]
fn the_owner_is_dropped_once_after_the_last_clone_pool_and_slot() {
    let (host, drops) = Host::new(4096);
    let region = host.into_region();
    let pool = region
        .slot_pool(&[SlotClass { size: 64, count: 4 }])
        .unwrap();
    let mut slot = pool.lend(64).unwrap();
    let other = pool.lend(64).unwrap();
    let clone = region.clone();
    let alive = || assert_eq!(drops.load(Ordering::SeqCst), 0);
    drop(region);
    alive();
    drop(clone);
    alive();
    drop(pool);
    alive();
    drop(other);
    alive();
    slot.fill(3);
    assert!(slot.iter().all(|&byte| byte == 3));
    drop(slot);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn a_refused_wrap_drops_the_owner() {
    let (host, drops) = Host::new(1);
    // SAFETY: refused before any byte is touched.
    unsafe { Region::wrap(ptr::null_mut(), 1, host) }.unwrap_err();
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn a_panicking_owner_does_not_take_the_last_holder_with_it() {
    let (mut host, drops) = Host::new(64);
    host.panics = true;
    drop(host.into_region());
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn a_wrapped_region_reports_the_hosts_memory() {
    let (host, _) = Host::new(100);
    let start = host.bytes.cast::<u8>();
    let region = host.into_region();
    let report = region.report();
    assert_eq!((report.address, report.len), (start.addr(), 100));
    assert_eq!(report.origin, Origin::Wrapped);
    assert_eq!((report.mapped, report.page_size), (None, None));
    assert_eq!((report.prefaulted, report.locked), (false, 0));
}

/// LMCache#1993.
#[test]
fn only_bytes_that_lie_inside_resolve() {
    let (host, _) = Host::new(1 << 16);
    let region = host.into_region();
    let (base, len) = (region.base().as_ptr().cast_const(), region.len());
    let page = 4096;

    assert_eq!(region.resolve(base, len), Some(0));
    assert_eq!(region.resolve(base.wrapping_add(1), len - 1), Some(1));
    assert_eq!(region.resolve(base.wrapping_add(len - 1), 1), Some(len - 1));

    assert_eq!(
        region.resolve(base.wrapping_sub(1), 2),
        None,
        "one byte before"
    );
    assert_eq!(
        region.resolve(base.wrapping_sub(1), 1),
        None,
        "one byte before"
    );
    assert_eq!(
        region.resolve(base.wrapping_add(len - page), page + 1),
        None,
        "last page too long"
    );
    assert_eq!(region.resolve(base, len + 1), None, "one byte too long");
    assert_eq!(
        region.resolve(base.wrapping_add(len), 1),
        None,
        "behind the end"
    );
    assert_eq!(region.resolve(ptr::null(), 1), None, "null");
    assert_eq!(region.resolve(ptr::null(), usize::MAX), None, "null");
    assert_eq!(
        region.resolve(base.wrapping_add(1), usize::MAX),
        None,
        "length overflow"
    );
    assert_eq!(
        region.resolve(base.wrapping_add(1), usize::MAX - base.addr()),
        None,
        "length overflow"
    );
    assert_eq!(region.resolve(base, 0), None, "zero bytes");
}

#[test]
fn a_gap_between_two_regions_belongs_to_neither() {
    let (host, _) = Host::new(300);
    let start = host.bytes.cast::<u8>();
    let host = Arc::new(host);
    let part = |offset: usize, len| {
        let owner = Arc::clone(&host);
        // SAFETY: part of the host's bytes, which live as long as the clone of it.
        unsafe { Region::wrap(start.wrapping_add(offset), len, owner) }.unwrap()
    };
    let (low, high) = (part(0, 100), part(200, 100));
    let at = |offset: usize| start.wrapping_add(offset);
    for (offset, len) in [
        (100, 100),
        (150, 1),
        (99, 102),
        (50, 200),
        (199, 2),
        (0, 300),
    ] {
        assert_eq!(low.resolve(at(offset), len), None, "{offset}+{len}");
        assert_eq!(high.resolve(at(offset), len), None, "{offset}+{len}");
    }
    assert_eq!(high.resolve(at(201), 99), Some(1));
}

/// Mooncake#3153: identical, a real overlap, neighbours.
#[test]
fn how_regions_overlap_is_told_apart() {
    let (host, _) = Host::new(300);
    let start = host.bytes.cast::<u8>();
    let host = Arc::new(host);
    let part = |offset: usize, len| {
        let owner = Arc::clone(&host);
        // SAFETY: part of the host's bytes, which live as long as the clone of it.
        unsafe { Region::wrap(start.wrapping_add(offset), len, owner) }.unwrap()
    };
    let region = part(100, 100);
    for (offset, len, how) in [
        (100, 100, Overlap::Identical),
        (0, 100, Overlap::Apart),
        (200, 100, Overlap::Apart),
        (0, 101, Overlap::Partial),
        (199, 101, Overlap::Partial),
        (100, 99, Overlap::Partial),
        (101, 99, Overlap::Partial),
        (0, 300, Overlap::Partial),
        (150, 1, Overlap::Partial),
    ] {
        let other = part(offset, len);
        assert_eq!(region.overlap(&other), how, "{offset}+{len}");
        assert_eq!(other.overlap(&region), how, "{offset}+{len}");
    }
}

#[test]
fn spans_outside_the_region_have_no_address_and_no_bytes() {
    let (host, _) = Host::new(100);
    let region = host.into_region();
    let (other, _) = Host::new(100);
    let other = other.into_region();
    for (offset, len, inside) in [
        (0, 100, true),
        (99, 1, true),
        (100, 0, true),
        (0, 101, false),
        (100, 1, false),
        (101, 0, false),
        (1, usize::MAX, false),
        (usize::MAX, 1, false),
        (usize::MAX, usize::MAX, false),
    ] {
        let span = region.span(offset, len);
        assert_eq!(
            (span.region, span.offset, span.len),
            (region.id(), offset, len)
        );
        assert_eq!(region.contains(span), inside, "{span:?}");
        let start = region.as_mut_ptr(span).map(|at| at.addr().get());
        let wanted = inside.then(|| region.base().addr().get() + offset);
        assert_eq!(start, wanted, "{span:?}");
        // SAFETY: nobody writes to the region.
        let slice = unsafe { region.as_slice(span) };
        assert_eq!(slice.map(<[u8]>::len), inside.then_some(len), "{span:?}");
        assert!(!other.contains(span));
        assert_eq!(other.as_mut_ptr(span), None);
    }
}

proptest! {
    /// Against the plain definition, in numbers that can't overflow.
    #[test]
    fn resolving_is_interval_arithmetic(before in -200i64..200, len in prop_oneof![0usize..300, Just(usize::MAX), Just(isize::MAX as usize)]) {
        let (host, _) = Host::new(100);
        let region = host.into_region();
        let at = region.base().as_ptr().wrapping_offset(isize::try_from(before).unwrap());
        let inside = before >= 0 && len > 0 && i128::from(before) + i128::try_from(len).unwrap() <= 100;
        let wanted = inside.then(|| usize::try_from(before).unwrap());
        prop_assert_eq!(region.resolve(at, len), wanted);
    }
}
