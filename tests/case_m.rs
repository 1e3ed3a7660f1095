//! Cases M4 to M7 from the field: memory that is registered twice, in pieces, in part, or never. M1 and M3 are in
//! `promise_3.rs` and `promise_11.rs`.

mod common;

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use moonring::config::CoreChoice;
use moonring::store::sim::RegisterCall;
use moonring::store::{MemoryOptions, MemoryStore, SimOptions, SimStore, Store};
use moonring::{
    Done, Engine, EngineConfig, OpKind, Pair, Region, RegionOptions, Shutdown, SlotClass,
    SlotPoolOptions, StartError, Submission, SubmitError,
};

const LONG: Duration = Duration::from_secs(50);
const MIB: usize = 1 << 20;

fn config() -> EngineConfig {
    EngineConfig::default()
        .num_workers(1)
        .cores(CoreChoice::None)
}

/// A store that refuses any buffer that does not lie in one registered piece, and any registration that overlaps another.
fn strict() -> Arc<MemoryStore> {
    let options = MemoryOptions {
        needs_registration: true,
        ..MemoryOptions::default()
    };
    Arc::new(MemoryStore::new(options).unwrap())
}

fn start(store: Arc<dyn Store>, regions: &[&Region]) -> Result<Engine, StartError> {
    let builder = Engine::builder(store).config(config());
    let builder = regions
        .iter()
        .fold(builder, |b, region| b.region((*region).clone()));
    builder.start()
}

fn region(len: usize) -> Region {
    Region::allocate(RegionOptions::new(len).prefault(false)).unwrap()
}

/// A part of another region as a region of its own, which lives no longer than that one.
fn part(of: &Region, offset: usize, len: usize) -> Region {
    let start = of.base().as_ptr().wrapping_add(offset);
    // SAFETY: the owner keeps the memory mapped; the tests keep the parts' bytes apart.
    unsafe { Region::wrap(start, len, of.clone()) }.unwrap()
}

fn wait_one(pair: &mut Pair) -> Result<Done, moonring::OpError> {
    pair.wait(1, None).unwrap();
    pair.poll().unwrap().result
}

/// Stores from and retrieves into memory by its address.
fn round_trip(pair: &mut Pair, at: *mut u8, len: usize, key: &str) {
    // SAFETY: the tests' own region, which nobody else uses.
    unsafe {
        at.write_bytes(key.as_bytes()[0], len);
        pair.submit(Submission::store_foreign(key, at, len))
            .unwrap();
        assert!(wait_one(pair).is_ok());
        at.write_bytes(0, len);
        pair.submit(Submission::retrieve_foreign(key, at, len))
            .unwrap();
        assert_eq!(wait_one(pair), Ok(Done::Retrieved(len as u64)));
        let bytes = std::slice::from_raw_parts(at, len);
        assert!(bytes.iter().all(|&byte| byte == key.as_bytes()[0]));
    }
}

/// M4, Mooncake#3153: registering a range twice failed as overlapped, also when identical.
#[test]
fn an_identical_region_is_a_counted_no_op() {
    let _dog = watchdog();
    let store = strict();
    let a = region(MIB);
    let (pool, clone) = (
        a.slot_pool(&[SlotClass { size: 64, count: 2 }]).unwrap(),
        a.clone(),
    );
    // The same memory as a region of its own: what LMCache's descriptor is wrapped into twice.
    let wrapped = part(&a, 0, MIB);
    let engine = start(store.clone(), &[&a, &clone, &a, &wrapped]).unwrap();
    let report = engine.start_report();
    assert_eq!((report.identical_regions, report.regions.len()), (3, 1));
    assert_eq!(store.registrations(), 1);
    // Spans and slots of each of them are good.
    let mut pair = engine.pair(4).unwrap();
    pair.submit(Submission::store("a", pool.lend(64).unwrap()))
        .unwrap();
    assert!(wait_one(&mut pair).is_ok());
    for of in [&a, &wrapped] {
        // SAFETY: nobody else uses the span.
        pair.submit(unsafe { Submission::retrieve_span("a", of.span(4096, 64)) })
            .unwrap();
        assert_eq!(wait_one(&mut pair), Ok(Done::Retrieved(64)));
    }
    let report = engine.shutdown(Shutdown::Drain, LONG).unwrap();
    assert_eq!(
        (report.not_unregistered.len(), store.registrations()),
        (0, 0)
    );
}

/// Leaving one out changes no other's number.
#[test]
fn a_region_that_fails_is_named_by_its_place_among_those_that_were_given() {
    let _dog = watchdog();
    let options = SimOptions {
        fail_register_at: Some(2),
        ..SimOptions::default()
    };
    let (a, b) = (region(4096), region(4096));
    let wrapped = part(&a, 0, 4096);
    let error = start(sim_over(strict(), options), &[&a, &a, &wrapped, &b]).unwrap_err();
    assert!(
        matches!(error, StartError::Registration { region: 3, .. }),
        "{error}"
    );
}

#[test]
fn a_real_overlap_is_a_clear_error_before_anything_is_registered() {
    let _dog = watchdog();
    let whole = region(MIB);
    for (offset, len) in [(0, MIB / 2), (MIB / 2, MIB / 2), (4096, 4096), (MIB - 1, 1)] {
        let inner = part(&whole, offset, len);
        let spy = Spy::new(strict(), |_| {});
        let neighbour = region(4096);
        let error = start(spy.clone(), &[&neighbour, &whole, &inner]).unwrap_err();
        let StartError::RegionsOverlap { first, second, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((*first, *second), (1, 2));
        let text = error.to_string();
        let start = format!(
            "region 2 overlaps region 1: {MIB} bytes at {:p} and {len} bytes at {:p}",
            whole.base(),
            inner.base()
        );
        assert_eq!(text, start);
        assert_eq!(spy.seen(), []);
    }
}

#[test]
fn neighbouring_regions_are_fine_and_each_is_used() {
    let _dog = watchdog();
    let whole = region(3 * 8192);
    let parts: Vec<_> = (0..3).map(|i| part(&whole, i * 8192, 8192)).collect();
    let store = strict();
    let engine = start(store.clone(), &[&parts[1], &parts[0], &parts[2]]).unwrap();
    assert_eq!(
        (
            store.registrations(),
            engine.start_report().identical_regions
        ),
        (3, 0)
    );
    let mut pair = engine.pair(1).unwrap();
    for (i, part) in parts.iter().enumerate() {
        round_trip(&mut pair, part.base().as_ptr(), 8192, &format!("{i}"));
    }
    drop(engine);
    assert_eq!(store.registrations(), 0);
}

#[test]
fn two_engines_over_one_region_in_one_process_work_or_say_why_not() {
    let _dog = watchdog();
    let whole = region(8192);
    // Stores of their own: both work, at the same time, on their own spans.
    let (one, two) = (strict(), strict());
    let a = start(one.clone(), &[&whole]).unwrap();
    let b = start(two.clone(), &[&whole]).unwrap();
    std::thread::scope(|scope| {
        for (engine, offset) in [(&a, 0), (&b, 4096)] {
            let at = whole.base().addr().get() + offset;
            scope.spawn(move || {
                let mut pair = engine.pair(1).unwrap();
                for n in 0..100 {
                    round_trip(
                        &mut pair,
                        ptr::with_exposed_provenance_mut(at),
                        4096,
                        &format!("{n}"),
                    );
                }
            });
        }
    });
    // One store: it knows the range already, and says so.
    let error = start(one.clone(), &[&whole]).unwrap_err();
    let StartError::Registration {
        region,
        piece,
        pieces,
        error,
        left,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((region, piece, pieces, left.len()), (0, 1, 1, 0));
    assert!(error.reason.contains("is registered already"), "{error}");
    // The first engine has lost nothing by that.
    assert_eq!(one.registrations(), 1);
    let mut pair = a.pair(1).unwrap();
    round_trip(&mut pair, whole.base().as_ptr(), 4096, "z");
    drop((a, b));
    assert_eq!((one.registrations(), two.registrations()), (0, 0));
    // And when the first is gone, another one can have the store.
    drop(start(one, &[&whole]).unwrap());
}

fn sim_over(store: Arc<MemoryStore>, options: SimOptions) -> Arc<SimStore> {
    Arc::new(SimStore::new(store, options).unwrap())
}

/// M5, Mooncake#2017: a region over the device limit is cut silently; values across the cut fail by address.
#[test]
fn a_40_mib_region_with_a_limit_of_16_registers_as_16_16_8_and_no_span_crosses() {
    let _dog = watchdog();
    let whole = region(40 * MIB);
    let base = whole.base().addr().get();
    // The limit of the store, of the configuration, and the smaller of both.
    for (of_store, of_config, wanted) in [
        (Some(16 * MIB), None, vec![16, 16, 8]),
        (None, Some(16 * MIB), vec![16, 16, 8]),
        (Some(16 * MIB), Some(32 * MIB), vec![16, 16, 8]),
        (Some(16 * MIB), Some(10 * MIB), vec![10, 10, 10, 10]),
        (None, None, vec![40]),
    ] {
        let options = SimOptions {
            max_registration: of_store,
            ..SimOptions::default()
        };
        let sim = sim_over(strict(), options);
        let config = config().max_registration(of_config);
        let engine = Engine::builder(sim.clone())
            .config(config)
            .region(whole.clone());
        let engine = engine.start().unwrap();
        let wanted: Vec<_> = wanted.iter().map(|mib| mib * MIB).collect();
        assert_eq!(engine.start_report().regions[0].pieces, wanted);
        let starts: Vec<_> = wanted
            .iter()
            .scan(base, |at, len| {
                *at += len;
                Some(*at - len)
            })
            .collect();
        let call = |(&base, &len): (&usize, &usize), register| RegisterCall {
            register,
            base,
            len,
            ok: true,
        };
        let calls = |register| {
            starts
                .iter()
                .zip(&wanted)
                .map(move |piece| call(piece, register))
        };
        assert_eq!(sim.register_log(), calls(true).collect::<Vec<_>>());

        let mut pair = engine.pair(2).unwrap();
        let boundaries: Vec<_> = starts[1..].iter().map(|at| at - base).collect();
        for &boundary in &boundaries {
            for (offset, len) in [
                (boundary - 1, 2),
                (boundary - 4096, 8192),
                (boundary - 8, 9),
            ] {
                let reason = |op| SubmitError::AcrossRegistration {
                    op,
                    offset,
                    len,
                    boundary,
                };
                let span = whole.span(offset, len);
                // SAFETY: refused.
                let (r, s) = unsafe {
                    (
                        Submission::retrieve_span("k", span),
                        Submission::store_span("k", span),
                    )
                };
                assert_eq!(pair.submit(r).unwrap_err().reason, reason(OpKind::Retrieve));
                assert_eq!(pair.submit(s).unwrap_err().reason, reason(OpKind::Store));
            }
            // Up to the boundary and from it on: the store takes them.
            let at = whole.base().as_ptr().wrapping_add(boundary);
            round_trip(&mut pair, at.wrapping_sub(4096), 4096, "before");
            round_trip(&mut pair, at, 4096, "after");
        }
        // One span as long as a piece; one byte more is across.
        round_trip(&mut pair, whole.base().as_ptr(), wanted[0], "whole piece");
        if let Some(&boundary) = boundaries.first() {
            // SAFETY: refused.
            let op = unsafe { Submission::store_span("k", whole.span(0, boundary + 1)) };
            let reason = pair.submit(op).unwrap_err().reason;
            let (op, offset, len) = (OpKind::Store, 0, boundary + 1);
            assert_eq!(
                reason,
                SubmitError::AcrossRegistration {
                    op,
                    offset,
                    len,
                    boundary
                }
            );
        }
        engine.shutdown(Shutdown::Drain, LONG).unwrap();
        let log = sim.register_log();
        let mut wanted: Vec<_> = calls(false).collect();
        wanted.reverse();
        assert_eq!(log[wanted.len()..], wanted);
    }
}

#[test]
fn slots_laid_out_for_the_limit_never_cross_and_all_of_them_work() {
    let _dog = watchdog();
    let whole = region(8 * 4096);
    let options = SlotPoolOptions::default().max_registration(8192.try_into().unwrap());
    let classes = [SlotClass {
        size: 3000,
        count: 8,
    }];
    let pool = whole.slot_pool_with(&classes, options).unwrap();
    let config = config().max_registration(Some(8192));
    let engine = Engine::builder(strict())
        .config(config)
        .region(whole)
        .start()
        .unwrap();
    let client = engine.client();
    let mut held = Vec::new();
    for n in 0..8 {
        let stored = client
            .blocking()
            .store(&format!("{n}"), pool.lend(3000).unwrap());
        assert!(stored.result.is_ok(), "{n}: {stored:?}");
        held.push(stored.slot);
    }
}

/// M6, sglang#33264: a failed registration was only logged, and a half registered region not taken back.
#[test]
fn when_the_third_of_four_pieces_fails_start_fails_naming_it_and_the_first_two_are_taken_back_in_reverse()
 {
    let _dog = watchdog();
    // Unregistering goes well, or fails at the first or the second of the two.
    for fail_unregister_at in [None, Some(1), Some(2)] {
        let store = strict();
        let options = SimOptions {
            max_registration: Some(MIB),
            fail_register_at: Some(3),
            fail_unregister_at,
            ..SimOptions::default()
        };
        let sim = sim_over(store.clone(), options);
        let whole = region(4 * MIB);
        let base = whole.base().addr().get();
        let error = start(sim.clone(), &[&whole]).unwrap_err();
        let text = error.to_string();
        let StartError::Registration {
            region,
            piece,
            pieces,
            addr,
            len,
            error,
            left,
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(
            (region, piece, pieces, addr, len),
            (0, 3, 4, base + 2 * MIB, MIB)
        );
        assert!(
            error.reason.contains("registration 3 fails, as told"),
            "{error}"
        );
        let named =
            format!("region 0: registering piece 3 of 4 (1048576 bytes at {addr:#x}) failed: ");
        assert!(text.starts_with(&named), "{text}");

        let call = |register, nth: usize, ok| RegisterCall {
            register,
            base: base + nth * MIB,
            len: MIB,
            ok,
        };
        let taken_back = |nth: u64| fail_unregister_at != Some(nth);
        let wanted = [
            call(true, 0, true),
            call(true, 1, true),
            call(true, 2, false),
            call(false, 1, taken_back(1)),
            call(false, 0, taken_back(2)),
        ];
        assert_eq!(sim.register_log(), wanted);
        match fail_unregister_at {
            None => assert!(left.is_empty() && !text.contains("taking back")),
            Some(nth) => {
                assert_eq!(left.len(), 1);
                let kept = base + if nth == 1 { MIB } else { 0 };
                assert!(
                    left[0].starts_with(&format!("1048576 bytes at {kept:#x}: ")),
                    "{left:?}"
                );
                assert!(
                    text.contains("; taking back failed too: 1048576 bytes at "),
                    "{text}"
                );
            }
        }
        // What the store still has is leaked, not handed back to the system: it may be written at any time.
        let wait = usize::from(fail_unregister_at.is_some());
        assert_eq!(store.registrations(), wait);
        drop(whole);
        assert_eq!(is_mapped(base), fail_unregister_at.is_some());
    }
}

/// The same at the end: what is not unregistered is told of and leaked, and the rest is unregistered all the same.
#[test]
fn what_can_not_be_unregistered_at_shutdown_is_named_and_leaked_and_the_rest_is_taken_back() {
    let _dog = watchdog();
    let store = strict();
    let options = SimOptions {
        max_registration: Some(MIB),
        fail_unregister_at: Some(2),
        ..SimOptions::default()
    };
    let sim = sim_over(store.clone(), options);
    let whole = region(3 * MIB);
    let base = whole.base().addr().get();
    let engine = start(sim.clone(), &[&whole]).unwrap();
    drop(whole);
    let report = engine.shutdown(Shutdown::Drain, LONG).unwrap();
    assert_eq!(report.not_unregistered.len(), 1);
    let named = format!(
        "1048576 bytes at {:#x}: sim: unregistration 2 fails",
        base + MIB
    );
    assert!(report.not_unregistered[0].starts_with(&named), "{report:?}");
    let order: Vec<_> = sim.register_log()[3..]
        .iter()
        .map(|c| (c.base - base) / MIB)
        .collect();
    assert_eq!((order, store.registrations()), (vec![2, 1, 0], 1));
    drop(engine);
    assert!(is_mapped(base + MIB));
}

/// Whether a page is mapped in this process.
fn is_mapped(addr: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let hex = |s| usize::from_str_radix(s, 16).unwrap();
        (hex(start)..hex(end)).contains(&addr) && rest.starts_with("rw")
    })
}

/// M7, LMCache#1993: transfers from memory that was never registered.
#[test]
fn memory_that_is_not_in_one_registered_region_is_refused_with_its_address() {
    let _dog = watchdog();
    const PAGE: usize = 4096;
    // Two regions with a page between them that is mapped, but in no region.
    let whole = region(9 * PAGE);
    let (a, b) = (part(&whole, 0, 4 * PAGE), part(&whole, 5 * PAGE, 4 * PAGE));
    let store = strict();
    let engine = start(store, &[&a, &b]).unwrap();
    let mut pair = engine.pair(2).unwrap();
    let base = a.base().as_ptr();
    let at = |offset: usize| base.wrapping_add(offset);
    let last_page = at(3 * PAGE);
    for (what, at, len) in [
        ("one byte before", base.wrapping_sub(1), 1),
        ("one byte before, and the first", base.wrapping_sub(1), 2),
        ("the last page, too long", last_page, PAGE + 1),
        ("one byte behind", at(4 * PAGE), 1),
        ("the gap", at(4 * PAGE), PAGE),
        ("across the gap", at(4 * PAGE - 1), PAGE + 2),
        ("both regions", base, 9 * PAGE),
        ("one byte before the second", at(5 * PAGE - 1), 2),
        ("behind the second", at(9 * PAGE), 1),
        ("null", ptr::null_mut(), PAGE),
        ("null, one byte", ptr::null_mut(), 1),
        ("a length that overflows", base, usize::MAX),
        (
            "an end that is just beyond the address space",
            base,
            usize::MAX - base.addr() + 1,
        ),
        (
            "the last address",
            ptr::without_provenance_mut(usize::MAX),
            1,
        ),
    ] {
        for op in [OpKind::Retrieve, OpKind::Store] {
            // SAFETY: all of these are refused.
            let submission = unsafe {
                match op {
                    OpKind::Store => Submission::store_foreign("key", at, len),
                    _ => Submission::retrieve_foreign("key", at, len),
                }
            };
            let refused = pair.submit(submission).unwrap_err();
            let addr = at.addr();
            assert_eq!(
                refused.reason,
                SubmitError::NotRegistered { op, addr, len },
                "{what}"
            );
            let text =
                format!("{op}: {len} bytes at {addr:#x} are not inside one registered region");
            assert_eq!(refused.to_string(), text, "{what}");
        }
    }
    assert_eq!(pair.credits(), 2);
    for (what, at, len) in [
        ("all of the first", base, 4 * PAGE),
        ("base + 1", at(1), 4 * PAGE - 1),
        ("the last byte", at(4 * PAGE - 1), 1),
        ("the last page", last_page, PAGE),
        ("all of the second", at(5 * PAGE), 4 * PAGE),
    ] {
        round_trip(&mut pair, at, len, what);
    }
    assert_at_rest(&engine);
}
