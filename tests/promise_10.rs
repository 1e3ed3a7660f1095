//! Promise 10: bad input is refused at submit with its own error, bad configuration at start naming the field; nothing is
//! lost by it, and the engine goes on.

mod common;

use std::ptr;
use std::sync::Arc;

use common::*;
use moonring::config::CoreChoice;
use moonring::store::{MemoryOptions, MemoryStore, NullStore, SimOptions};
use moonring::{
    ClientError, Engine, EngineConfig, OpKind, PairError, Region, RegionOptions, SlotClass,
    SlotPool, StartError, Submission, SubmitError,
};

fn config() -> EngineConfig {
    EngineConfig::default()
        .num_workers(1)
        .cores(CoreChoice::None)
}

const MIB: usize = 1 << 20;

/// An engine whose store registers at most 16 MiB at once, with a region of 40 MiB.
struct Fixture {
    engine: Engine,
    region: Region,
    /// Slots of 1 MiB, one of them across the first boundary.
    pool: SlotPool,
    /// Of a region that the engine doesn't know.
    other: SlotPool,
}

fn fixture(needs_registration: bool) -> Fixture {
    let options = MemoryOptions {
        needs_registration,
        max_registration: Some(16 * MIB),
        ..MemoryOptions::default()
    };
    let store = Arc::new(MemoryStore::new(options).unwrap());
    let region = Region::allocate(RegionOptions::new(40 * MIB).prefault(false)).unwrap();
    let classes = [
        SlotClass {
            size: 15 * MIB + 512,
            count: 1,
        },
        SlotClass {
            size: MIB,
            count: 2,
        },
    ];
    let pool = region.slot_pool(&classes).unwrap();
    let (_, other) = slots(64, 1);
    let config = config().max_key(300).long_keys(1);
    let engine = Engine::builder(store).config(config).region(region.clone());
    Fixture {
        engine: engine.start().unwrap(),
        region,
        pool,
        other,
    }
}

#[test]
fn every_bad_op_is_refused_with_its_own_error_naming_op_and_values_and_nothing_is_lost() {
    let _dog = watchdog();
    let f = fixture(true);
    let mut pair = f.engine.pair(4).unwrap();
    let (retrieve, store) = (OpKind::Retrieve, OpKind::Store);
    let base = f.region.base().as_ptr();
    let region_len = f.region.len();
    let (too_long, long) = ([b'k'; 301], [b'l'; 256]);
    let raw = |op: OpKind, offset, len| {
        let span = f.region.span(offset, len);
        // SAFETY: all of these are refused.
        unsafe {
            match op {
                OpKind::Store => Submission::store_span("key", span),
                _ => Submission::retrieve_span("key", span),
            }
        }
    };
    let foreign = |op: OpKind, at: *mut u8, len| {
        // SAFETY: as above.
        unsafe {
            match op {
                OpKind::Store => Submission::store_foreign("key", at, len),
                _ => Submission::retrieve_foreign("key", at, len),
            }
        }
    };
    let outside = |op, offset, len| SubmitError::OutsideRegion {
        op,
        offset,
        len,
        region_len,
    };
    let across = |op, offset, len, boundary| SubmitError::AcrossRegistration {
        op,
        offset,
        len,
        boundary,
    };
    let unregistered = |op, at: *mut u8, len| SubmitError::NotRegistered {
        op,
        addr: at.addr(),
        len,
    };
    let edge = f.pool.lend(MIB).unwrap();
    let mut zero = f.pool.lend(1).unwrap();
    zero.set_len(0).unwrap();
    let edge_at = edge.span().offset;
    assert!(edge_at < 16 * MIB && edge_at + MIB > 16 * MIB);
    let stranger = f.other.lend(64).unwrap();
    let elsewhere = Region::allocate(RegionOptions::new(4096)).unwrap();
    // SAFETY: as above.
    let unknown_span = unsafe { Submission::store_span("key", elsewhere.span(0, 8)) };
    let mut host = [0u8; 64];
    let at = host.as_mut_ptr();

    let cases: Vec<(Submission<'_>, SubmitError, String)> = vec![
        (
            Submission::lookup(""),
            SubmitError::EmptyKey,
            "key: empty".into(),
        ),
        (
            Submission::delete("a\0b"),
            SubmitError::NulInKey { at: 1 },
            "key: NUL byte at offset 1".into(),
        ),
        (
            Submission::lookup("\0"),
            SubmitError::NulInKey { at: 0 },
            "key: NUL byte at offset 0".into(),
        ),
        (
            Submission::lookup(&too_long),
            SubmitError::KeyTooLong { len: 301, max: 300 },
            "key: 301 bytes, the limit max_key is 300".into(),
        ),
        (
            Submission::store("key", zero),
            SubmitError::ZeroLength { op: store },
            "store: the buffer has length zero".into(),
        ),
        (
            raw(retrieve, 0, 0),
            SubmitError::ZeroLength { op: retrieve },
            "retrieve: the buffer has length zero".into(),
        ),
        (
            foreign(store, base, 0),
            SubmitError::ZeroLength { op: store },
            "store: the buffer has length zero".into(),
        ),
        (
            raw(retrieve, region_len, 1),
            outside(retrieve, region_len, 1),
            format!("retrieve: span {region_len}+1 is outside the region of {region_len} bytes"),
        ),
        (
            raw(store, region_len - 1, 2),
            outside(store, region_len - 1, 2),
            format!(
                "store: span {}+2 is outside the region of {region_len} bytes",
                region_len - 1
            ),
        ),
        (
            raw(retrieve, 1, usize::MAX),
            outside(retrieve, 1, usize::MAX),
            format!(
                "retrieve: span 1+{} is outside the region of {region_len} bytes",
                usize::MAX
            ),
        ),
        (
            raw(store, usize::MAX, 2),
            outside(store, usize::MAX, 2),
            format!(
                "store: span {}+2 is outside the region of {region_len} bytes",
                usize::MAX
            ),
        ),
        (
            Submission::retrieve("key", stranger),
            SubmitError::UnknownRegion { op: retrieve },
            "retrieve: the region is not one of this engine's".into(),
        ),
        (
            unknown_span,
            SubmitError::UnknownRegion { op: store },
            "store: the region is not one of this engine's".into(),
        ),
        (
            raw(store, 16 * MIB - 1, 2),
            across(store, 16 * MIB - 1, 2, 16 * MIB),
            "store: span 16777215+2 crosses the registration boundary at 16777216".into(),
        ),
        (
            raw(retrieve, 0, 40 * MIB),
            across(retrieve, 0, 40 * MIB, 16 * MIB),
            "retrieve: span 0+41943040 crosses the registration boundary at 16777216".into(),
        ),
        (
            foreign(retrieve, base.wrapping_add(32 * MIB - 8), 9),
            across(retrieve, 32 * MIB - 8, 9, 32 * MIB),
            "retrieve: span 33554424+9 crosses the registration boundary at 33554432".into(),
        ),
        (
            Submission::store("key", edge),
            across(store, edge_at, MIB, 16 * MIB),
            format!("store: span {edge_at}+1048576 crosses the registration boundary at 16777216"),
        ),
        (
            foreign(store, at, 64),
            unregistered(store, at, 64),
            format!("store: 64 bytes at {at:p} are not inside one registered region"),
        ),
        (
            foreign(retrieve, ptr::null_mut(), 8),
            unregistered(retrieve, ptr::null_mut(), 8),
            "retrieve: 8 bytes at 0x0 are not inside one registered region".into(),
        ),
    ];
    let refused_before = f.engine.stats().engine.refused;
    let n = cases.len() as u64;
    let available = f.pool.available() + f.other.available();
    let slots = cases
        .iter()
        .filter(|(op, ..)| format!("{op:?}").contains("Slot("))
        .count();
    assert_eq!(slots, 3);
    for (op, reason, text) in cases {
        let (kind, key) = (op.op(), op.key());
        let refused = pair.submit(op).unwrap_err();
        assert_eq!(refused.reason, reason);
        assert_eq!(
            (refused.reason.to_string(), refused.to_string()),
            (text.clone(), text)
        );
        assert_eq!((refused.op.op(), refused.op.key()), (kind, key));
        // The credit is there, and the engine goes on: with a short key, and with the one long one.
        assert_eq!(pair.credits(), 4);
        pair.submit(Submission::lookup("key")).unwrap();
        pair.submit(Submission::lookup(&long)).unwrap();
        pair.wait(2, None).unwrap();
        assert!(pair.completions().all(|done| done.result.is_ok()));
    }
    // Slots came back with their ops.
    assert_eq!(f.pool.available() + f.other.available(), available + 3);
    assert_eq!(f.engine.stats().engine.refused, refused_before + n);
    assert_at_rest(&f.engine);
}

#[test]
fn when_all_places_for_long_keys_are_in_use_a_long_key_is_refused_and_a_short_one_is_not() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    for places in [0, 2] {
        let config = config().long_keys(places).ring_depth(8);
        let engine = Engine::builder(sim.clone()).config(config).start().unwrap();
        let gate = sim.gate().close(&OpKind::ALL);
        let (mut pair, client) = (engine.pair(8).unwrap(), engine.client());
        let long: Vec<_> = (0..8u8).map(|i| vec![b'a' + i; 256 + i as usize]).collect();
        let reason = SubmitError::NoLongKeyPlace { places };
        let held: Vec<_> = long[..places]
            .iter()
            .map(|key| client.lookup(key))
            .collect();
        for key in &long[..places] {
            pair.submit(Submission::lookup(key)).unwrap();
        }
        for _ in 0..10 {
            let refused = pair.submit(Submission::lookup(&long[7])).unwrap_err();
            assert_eq!(refused.reason, reason);
            assert_eq!(refused.op.key(), &long[7][..]);
            assert_eq!(client.blocking().lookup(&long[7]), Err(reason.into()));
        }
        assert_eq!(
            reason.to_string(),
            format!("key: all {places} places for keys over 255 bytes are in use (long_keys)")
        );
        // 255 bytes need none; the credits are untouched.
        let short = client.lookup(&long[0][..255]);
        pair.submit(Submission::lookup(&long[0][..255])).unwrap();
        assert_eq!(pair.credits(), 8 - places - 1);
        assert_eq!(
            engine.stats().engine.credits_in_use,
            2 * (places as u64 + 1)
        );
        drop(gate);
        assert_eq!(moonring::block_on(short), Ok(false));
        for op in held {
            assert_eq!(moonring::block_on(op), Ok(false));
        }
        pair.wait(usize::MAX, None).unwrap();
        pair.completions().for_each(drop);
        // The places are back, for both.
        for key in &long[..places] {
            assert_eq!(client.blocking().lookup(key), Ok(false));
            pair.submit(Submission::lookup(key)).unwrap();
        }
        pair.wait(usize::MAX, None).unwrap();
        pair.completions().for_each(drop);
        assert_at_rest(&engine);
    }
}

#[test]
fn a_client_refuses_the_same_and_gives_the_slot_back() {
    let _dog = watchdog();
    let f = fixture(true);
    let client = f.engine.client();
    let blocking = client.blocking();
    let too_long = [b'k'; 301];
    let refused = |reason| ClientError::Refused(reason);
    assert_eq!(blocking.lookup(""), Err(refused(SubmitError::EmptyKey)));
    assert_eq!(
        blocking.delete("a\0"),
        Err(refused(SubmitError::NulInKey { at: 1 }))
    );
    let reason = SubmitError::KeyTooLong { len: 301, max: 300 };
    assert_eq!(blocking.lookup(&too_long), Err(refused(reason)));
    assert_eq!(refused(reason).to_string(), format!("refused: {reason}"));

    let edge = f.pool.lend(MIB).unwrap();
    let mut zero = f.pool.lend(1).unwrap();
    zero.set_len(0).unwrap();
    let back = blocking.retrieve("key", zero);
    assert_eq!(
        back.result,
        Err(refused(SubmitError::ZeroLength {
            op: OpKind::Retrieve
        }))
    );
    assert_eq!(back.slot.unwrap().len(), 0);
    let back = blocking.store("key", f.other.lend(64).unwrap());
    assert_eq!(
        back.result,
        Err(refused(SubmitError::UnknownRegion { op: OpKind::Store }))
    );
    drop(back.slot.unwrap());
    let offset = edge.span().offset;
    let back = blocking.retrieve_exact("key", edge);
    let reason = SubmitError::AcrossRegistration {
        op: OpKind::Retrieve,
        offset,
        len: MIB,
        boundary: 16 * MIB,
    };
    assert_eq!(back.result, Err(refused(reason)));
    drop(back.slot.unwrap());
    // In a batch each fails alone.
    let mut out = Vec::new();
    blocking.lookup_many(["a", "", "b", "c\0", "d"], &mut out);
    let nul = refused(SubmitError::NulInKey { at: 1 });
    assert_eq!(
        out,
        [
            Ok(false),
            Err(refused(SubmitError::EmptyKey)),
            Ok(false),
            Err(nul),
            Ok(false)
        ]
    );
    assert_eq!(f.engine.stats().engine.refused, 8);
    assert_eq!(f.other.available(), 1);
    assert_at_rest(&f.engine);
}

#[test]
fn memory_outside_is_taken_where_the_store_needs_no_registration_but_never_null_or_endless() {
    let _dog = watchdog();
    let f = fixture(false);
    let mut pair = f.engine.pair(4).unwrap();
    let mut host = *b"host memory";
    // SAFETY: the host's bytes live and stay as they are until the op is reaped.
    let op = unsafe { Submission::store_foreign("key", host.as_ptr(), host.len()) };
    pair.submit(op).unwrap();
    pair.wait(1, None).unwrap();
    assert!(pair.poll().unwrap().result.is_ok());
    host.fill(0);
    // SAFETY: as above, and nobody else looks at them.
    let op = unsafe { Submission::retrieve_foreign("key", host.as_mut_ptr(), host.len()) };
    pair.submit(op).unwrap();
    pair.wait(1, None).unwrap();
    assert!(pair.poll().unwrap().result.is_ok());
    assert_eq!(&host, b"host memory");
    for (at, len) in [
        (0, 1),
        (0, usize::MAX),
        (usize::MAX, 1),
        (usize::MAX - 7, 8),
        (16, usize::MAX),
    ] {
        // SAFETY: refused.
        let op =
            unsafe { Submission::retrieve_foreign("key", ptr::without_provenance_mut(at), len) };
        let reason = pair.submit(op).unwrap_err().reason;
        let (op, addr) = (OpKind::Retrieve, at);
        assert_eq!(reason, SubmitError::NotRegistered { op, addr, len });
    }
    assert_at_rest(&f.engine);
}

#[test]
fn bad_configuration_is_refused_at_start_naming_the_field() {
    let _dog = watchdog();
    let good = config;
    let cases: [(EngineConfig, &str); 20] = [
        (good().num_workers(0), "num_workers"),
        (good().num_workers(63), "num_workers"),
        (good().dedicated(OpKind::Delete, 0), "per_op_workers.delete"),
        (
            good().dedicated(OpKind::Lookup, 1_000),
            "per_op_workers.lookup",
        ),
        (good().max_batch(0), "moonring.max_batch"),
        (good().max_batch(4097), "moonring.max_batch"),
        (good().max_batch_bytes(0), "moonring.max_batch_bytes"),
        (good().share_bytes(0), "moonring.share_bytes"),
        (good().ring_depth(0), "moonring.ring_depth"),
        (good().ring_depth((1 << 20) + 1), "moonring.ring_depth"),
        (good().max_pairs(0), "moonring.max_pairs"),
        (good().max_pairs(4097), "moonring.max_pairs"),
        (good().spin_us(1_000_001), "moonring.spin_us"),
        (good().max_key(0), "moonring.max_key"),
        (good().max_key((1 << 20) + 1), "moonring.max_key"),
        (good().long_keys(65_537), "moonring.long_keys"),
        (
            good().max_registration(Some(0)),
            "moonring.max_registration",
        ),
        (good().cores(CoreChoice::List(vec![])), "moonring.cores"),
        (
            good().cores(CoreChoice::List(vec![0, 0])),
            "moonring.cores[1]",
        ),
        (
            good().cores(CoreChoice::List(vec![1024])),
            "moonring.cores[0]",
        ),
    ];
    for (bad, field) in cases {
        let spy = Spy::new(memory(), |_| {});
        let (region, _pool) = slots(64, 1);
        let start = |by_hand: bool| {
            let builder = Engine::builder(spy.clone())
                .config(bad.clone())
                .region(region.clone());
            match by_hand {
                true => builder.start_by_hand().map(drop),
                false => builder.start().map(drop),
            }
        };
        for by_hand in [false, true] {
            let error = start(by_hand).unwrap_err();
            assert!(
                error.to_string().starts_with(&format!("{field}: ")),
                "{error}"
            );
            let StartError::Config(error) = error else {
                panic!("{error:?}");
            };
            assert_eq!(error.field(), field);
        }
        assert_eq!(spy.seen(), [], "nothing was registered for it");
    }
}

#[test]
fn a_pair_that_can_not_be_is_refused_naming_the_limit() {
    let _dog = watchdog();
    let engine = Engine::builder(Arc::new(NullStore))
        .config(config().max_pairs(2))
        .start()
        .unwrap();
    let max = Engine::MAX_PAIR_DEPTH;
    for depth in [0, max + 1, usize::MAX] {
        let error = engine.pair(depth).unwrap_err();
        assert_eq!(error, PairError::Depth { depth, max });
        assert_eq!(
            error.to_string(),
            format!("pair: depth {depth}, allowed are 1 to {max}")
        );
    }
    let (a, _b) = (engine.pair(1).unwrap(), engine.pair(max).unwrap());
    let error = engine.pair(1).unwrap_err();
    assert_eq!(error, PairError::TooMany { max: 2 });
    assert_eq!(
        error.to_string(),
        "pair: 2 pairs are open, the limit max_pairs"
    );
    drop(a);
    assert!(engine.pair(1).is_ok());
}
