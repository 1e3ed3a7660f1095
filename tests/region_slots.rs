//! Slots: each belongs to exactly one holder, lies where it should, and comes back by itself.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use moonring::{
    Pieces, Region, RegionError, RegionOptions, Slot, SlotClass, SlotPool, SlotPoolOptions,
};
use proptest::prelude::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn region(len: usize) -> Region {
    Region::allocate(RegionOptions::new(len)).unwrap()
}

fn class(size: usize, count: usize) -> SlotClass {
    SlotClass { size, count }
}

/// All slots of a pool, whatever their size.
fn lend_all(pool: &SlotPool) -> Vec<Slot> {
    std::iter::from_fn(|| pool.lend(0)).collect()
}

/// The bytes that a slot may hold, as offsets in its region.
fn place(slot: &Slot) -> Range<usize> {
    let offset = slot.span().offset;
    offset..offset + slot.capacity()
}

/// Ends the process when the test takes too long.
fn watchdog(limit: Duration) -> mpsc::Sender<()> {
    let (alive, over) = mpsc::channel::<()>();
    thread::spawn(move || {
        if over.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("WATCHDOG: the test hangs");
            std::process::abort();
        }
    });
    alive
}

#[test]
fn a_slot_reads_and_writes_its_own_bytes_of_the_region() {
    let region = region(MIB);
    let pool = region.slot_pool(&[class(4 * KIB, 2)]).unwrap();
    let mut slot = pool.lend(5).unwrap();
    assert_eq!((slot.len(), slot.capacity()), (5, 4 * KIB));
    slot.copy_from_slice(b"hello");
    let span = slot.span();
    assert_eq!((span.region, span.len), (region.id(), 5));
    assert_eq!(slot.region_id(), region.id());
    // SAFETY: nobody writes to the slot while the slice is used.
    assert_eq!(unsafe { region.as_slice(span) }.unwrap(), b"hello");
    assert_eq!(
        slot.as_ptr(),
        region.as_mut_ptr(span).unwrap().as_ptr().cast_const()
    );
    assert_eq!(slot.as_mut_ptr().cast_const(), slot.as_ptr());
    let text = format!("{slot:?}");
    assert!(
        text.contains("len: 5") && text.contains("capacity: 4096"),
        "{text}"
    );
}

#[test]
fn a_length_is_at_most_the_capacity_and_lending_sets_it_anew() {
    let region = region(MIB);
    let pool = region.slot_pool(&[class(100, 1)]).unwrap();
    let mut slot = pool.lend(100).unwrap();
    slot.fill(9);
    slot.set_len(10).unwrap();
    assert_eq!((slot.len(), slot.span().len), (10, 10));
    let error = slot.set_len(101).unwrap_err();
    assert_eq!((error.len, error.capacity), (101, 100));
    assert_eq!(
        error.to_string(),
        "len: 101 bytes, the slot's capacity is 100"
    );
    assert_eq!(slot.len(), 10);
    slot.set_len(0).unwrap();
    assert!(slot.is_empty());
    drop(slot);

    let mut slot = pool.lend(60).unwrap();
    assert_eq!(slot.len(), 60);
    slot.set_len(100).unwrap();
    // The bytes are whatever was there before.
    assert!(slot.iter().all(|&byte| byte == 9));
}

#[test]
fn the_smallest_class_that_fits_is_lent_from_then_the_next() {
    let region = region(MIB);
    // In any order.
    let pool = region
        .slot_pool(&[class(4 * KIB, 1), class(64, 1), class(64 * KIB, 1)])
        .unwrap();
    assert_eq!((pool.total(), pool.available()), (3, 3));
    for (size, capacity) in [
        (0, Some(64)),
        (64, Some(64)),
        (65, Some(4 * KIB)),
        (4 * KIB + 1, Some(64 * KIB)),
        (64 * KIB + 1, None),
        (usize::MAX, None),
    ] {
        assert_eq!(pool.capacity_for(size), capacity, "{size}");
        assert_eq!(
            pool.lend(size).map(|slot| slot.capacity()),
            capacity,
            "{size}"
        );
    }
    let small = pool.lend(64).unwrap();
    let middle = pool.lend(64).unwrap();
    let large = pool.lend(64).unwrap();
    assert_eq!(
        [small.capacity(), middle.capacity(), large.capacity()],
        [64, 4 * KIB, 64 * KIB]
    );
    assert_eq!(large.len(), 64);
    assert!(pool.lend(1).is_none());
    assert_eq!((pool.total(), pool.available()), (3, 0));
    // Each goes back to its own class.
    drop(middle);
    assert_eq!(pool.lend(64).map(|slot| slot.capacity()), Some(4 * KIB));
    assert!(pool.lend(4 * KIB + 1).is_none());
    drop((small, large));
    assert_eq!(pool.available(), 3);
}

#[test]
fn slots_of_all_pools_of_a_region_lie_apart_and_inside() {
    let region = region(MIB);
    let pools = [
        region
            .slot_pool(&[class(100, 50), class(3 * KIB, 7)])
            .unwrap(),
        region.slot_pool(&[class(1, 33)]).unwrap(),
        region.slot_pool(&[class(64 * KIB, 3)]).unwrap(),
    ];
    let slots: Vec<Slot> = pools.iter().flat_map(lend_all).collect();
    assert_eq!(slots.len(), 50 + 7 + 33 + 3);
    let mut places: Vec<_> = slots.iter().map(place).collect();
    places.sort_by_key(|place| place.start);
    for pair in places.windows(2) {
        assert!(pair[0].end <= pair[1].start, "{pair:?}");
    }
    let end = places.last().unwrap().end;
    let uncarved = region.uncarved();
    assert_eq!((uncarved.offset, uncarved.len), (end, MIB - end));
    for slot in &slots {
        assert_eq!(slot.as_ptr().addr() % 64, 0);
    }
}

#[test]
fn classes_that_do_not_fit_are_refused_with_need_and_room_and_carve_nothing() {
    let region = region(10 * KIB);
    region.slot_pool(&[class(4 * KIB, 1)]).unwrap();
    for count in [2, 1 << 40, usize::MAX] {
        let error = region.slot_pool(&[class(4 * KIB, count)]).unwrap_err();
        let RegionError::NoRoom { need, room } = error else {
            panic!("{error}");
        };
        assert_eq!(need, (4 * KIB).saturating_mul(count));
        assert_eq!(room, 6 * KIB);
        assert_eq!(
            error.to_string(),
            format!("classes: the slots need at least {need} bytes, the region has room for 6144")
        );
    }
    let error = region.slot_pool(&[class(usize::MAX, 1)]).unwrap_err();
    assert!(matches!(error, RegionError::NoRoom { .. }), "{error}");
    // Only the alignment makes it too long: 60 + padding + 6 KiB - 60.
    let error = region
        .slot_pool(&[class(60, 1), class(6 * KIB - 60, 1)])
        .unwrap_err();
    assert!(
        matches!(error, RegionError::NoRoom { need, room } if need == 6 * KIB + 4 && room == 6 * KIB),
        "{error}"
    );
    // Nothing of the above took room; now the rest fits to the last byte.
    let pool = region.slot_pool(&[class(2 * KIB, 3)]).unwrap();
    assert_eq!(pool.total(), 3);
    assert_eq!(region.uncarved().len, 0);
}

#[test]
fn classes_and_options_that_can_not_be_are_refused_naming_the_field() {
    let region = region(MIB);
    let text = |classes: &[SlotClass], options| {
        let error = region.slot_pool_with(classes, options).unwrap_err();
        error.to_string()
    };
    let default = SlotPoolOptions::default;
    assert_eq!(text(&[], default()), "classes: none");
    assert_eq!(
        text(&[class(1, 1), class(0, 1)], default()),
        "classes[1].size: zero"
    );
    assert_eq!(text(&[class(1, 0)], default()), "classes[0].count: zero");
    assert_eq!(
        text(&[class(1, 1)], default().align(0)),
        "align: 0 is not a power of two"
    );
    assert_eq!(
        text(&[class(1, 1)], default().align(48)),
        "align: 48 is not a power of two"
    );
    let pieces = NonZeroUsize::new(4 * KIB).unwrap();
    assert_eq!(
        text(
            &[class(1, 1), class(4 * KIB + 1, 1)],
            default().max_registration(pieces)
        ),
        "classes[1].size: 4097 bytes fit between no two registration boundaries"
    );
    assert_eq!(region.uncarved().len, MIB);
}

/// Mooncake#2017.
#[test]
fn no_slot_lies_across_a_registration_boundary() {
    let region = region(40 * MIB);
    let limit = NonZeroUsize::new(16 * MIB).unwrap();
    let options = SlotPoolOptions::default().max_registration(limit);
    // Five of 3 MiB fit into 16 MiB, two into the last 8.
    let pool = region
        .slot_pool_with(&[class(3 * MIB, 12)], options)
        .unwrap();
    let pieces = Pieces::cut(region.len(), limit);
    let slots = lend_all(&pool);
    assert_eq!(slots.len(), 12);
    for slot in &slots {
        let place = place(slot);
        assert_eq!(pieces.crossing(place.start, place.len()), None, "{place:?}");
    }
}

#[test]
fn a_pool_may_go_while_slots_are_out() {
    let region = region(MIB);
    let pool = region.slot_pool(&[class(KIB, 2)]).unwrap();
    let clone = pool.clone();
    let mut slot = pool.lend(KIB).unwrap();
    let other = clone.lend(KIB).unwrap();
    assert!(clone.lend(KIB).is_none(), "clones share their slots");
    drop(region);
    drop(pool);
    drop(other);
    assert_eq!(clone.available(), 1);
    drop(clone);
    slot.fill(1);
    assert!(slot.iter().all(|&byte| byte == 1));
}

#[test]
fn handles_and_slots_go_to_any_thread() {
    fn assert_send_sync<T: Send + Sync + 'static>() {}
    assert_send_sync::<Region>();
    assert_send_sync::<SlotPool>();
    assert_send_sync::<Slot>();
}

/// A slot can't be copied, so it can't come back twice.
#[test]
fn a_slot_is_not_clone() {
    trait AmbiguousIfClone<A> {
        fn check() {}
    }
    impl<T> AmbiguousIfClone<()> for T {}
    impl<T: Clone> AmbiguousIfClone<u8> for T {}
    // Doesn't compile if both of the above hold for a slot.
    <Slot as AmbiguousIfClone<_>>::check();
}

/// Each slot is held by one thread at a time: its canary, written whole, is there whole until it is given back.
/// Slots are also handed on to another thread, which returns them.
#[test]
fn a_slot_has_one_holder_at_a_time_under_contention() {
    const SLOTS: usize = 8;
    const ROUNDS: u32 = if cfg!(debug_assertions) {
        20_000
    } else {
        200_000
    };
    let _alive = watchdog(Duration::from_secs(120));
    let region = region(MIB);
    let pool = region
        .slot_pool(&[class(256, SLOTS / 2), class(512, SLOTS / 2)])
        .unwrap();
    let (hand_on, handed) = mpsc::sync_channel::<(Slot, u32)>(2);
    let check = |slot: &Slot, canary: u32| {
        for bytes in slot.chunks_exact(4) {
            assert_eq!(
                bytes,
                canary.to_le_bytes(),
                "another holder wrote here: {slot:?}"
            );
        }
    };
    // By offset; a second holder of a place is seen even where it doesn't write.
    let held: Vec<AtomicBool> = (0..MIB / 64).map(|_| AtomicBool::new(false)).collect();
    let flag = |slot: &Slot| &held[slot.span().offset / 64];
    let lent: u32 = thread::scope(|scope| {
        let lenders: Vec<_> = (0..4u32)
            .map(|thread| {
                let (pool, hand_on) = (pool.clone(), hand_on.clone());
                scope.spawn(move || {
                    let mut lent = 0;
                    for round in 0..ROUNDS {
                        let Some(mut slot) = pool.lend(200 + (round as usize % 2) * 200) else {
                            thread::yield_now();
                            continue;
                        };
                        lent += 1;
                        assert!(!flag(&slot).swap(true, Ordering::Relaxed), "{slot:?}");
                        let canary = thread << 24 | round;
                        for bytes in slot.chunks_exact_mut(4) {
                            bytes.copy_from_slice(&canary.to_le_bytes());
                        }
                        if round % 8 == 0 {
                            thread::yield_now();
                        }
                        check(&slot, canary);
                        if round % 3 == 0 {
                            hand_on.send((slot, canary)).unwrap();
                        } else {
                            flag(&slot).store(false, Ordering::Relaxed);
                        }
                    }
                    lent
                })
            })
            .collect();
        drop(hand_on);
        scope.spawn(|| {
            for (slot, canary) in handed {
                check(&slot, canary);
                flag(&slot).store(false, Ordering::Relaxed);
            }
        });
        lenders
            .into_iter()
            .map(|lender| lender.join().unwrap())
            .sum()
    });
    assert!(lent > ROUNDS, "the pool was empty nearly always: {lent}");
    assert_eq!(pool.available(), SLOTS);
    let mut places: Vec<_> = lend_all(&pool)
        .iter()
        .map(|slot| place(slot).start)
        .collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), SLOTS, "each came back once");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever fits is laid out aligned, inside, apart, across no boundary, and complete.
    #[test]
    fn a_layout_keeps_its_promises(
        classes in prop::collection::vec((1usize..5000, 1usize..20), 1..5),
        align in 0u32..13,
        max in prop::option::of(4096usize..70_000),
        misaligned in 0usize..100,
    ) {
        let align = 1usize << align;
        let memory: Box<[u8]> = vec![0; 200_000].into();
        let len = memory.len() - misaligned;
        let memory = Box::into_raw(memory);
        // SAFETY: the bytes are initialised and ours alone, and are freed below, after the last use.
        let region = unsafe { Region::wrap(memory.cast::<u8>().add(misaligned), len, ()) }.unwrap();
        let classes: Vec<_> = classes.into_iter().map(|(size, count)| class(size, count)).collect();
        let mut options = SlotPoolOptions::default().align(align);
        let mut pieces = Pieces::whole(len);
        if let Some(max) = max.and_then(NonZeroUsize::new) {
            options = options.max_registration(max);
            pieces = Pieces::cut(len, max);
        }
        match region.slot_pool_with(&classes, options) {
            Ok(pool) => {
                let slots = lend_all(&pool);
                let mut sizes: Vec<_> = slots.iter().map(Slot::capacity).collect();
                sizes.sort_unstable();
                let mut wanted: Vec<_> = classes.iter().flat_map(|c| vec![c.size; c.count]).collect();
                wanted.sort_unstable();
                prop_assert_eq!(sizes, wanted);
                let mut places: Vec<_> = slots.iter().map(place).collect();
                places.sort_by_key(|place| place.start);
                prop_assert!(places.last().unwrap().end <= len);
                for pair in places.windows(2) {
                    prop_assert!(pair[0].end <= pair[1].start);
                }
                for slot in &slots {
                    prop_assert_eq!(slot.as_ptr().addr() % align, 0);
                    let place = place(slot);
                    prop_assert_eq!(pieces.crossing(place.start, place.len()), None);
                }
            }
            Err(RegionError::NoRoom { need, room }) => prop_assert!(need > room && room == len),
            // Only where a slot and its alignment fill more than a piece.
            Err(RegionError::Invalid { field, .. }) => {
                prop_assert!(field.ends_with(".size"));
                let largest = classes.iter().map(|c| c.size).max().unwrap();
                prop_assert!(max.is_some_and(|max| largest + align > max));
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
        drop(region);
        // SAFETY: made by `Box::into_raw` above; region, pool and slots are gone.
        drop(unsafe { Box::from_raw(memory) });
    }
}
