//! Quarantine: bytes that a store call may still use after their op has ended are counted, listed, bounded, and nobody else's.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use moonring::config::CoreChoice;
use moonring::store::{SimOptions, SimStore};
use moonring::{
    Cancel, Completion, Engine, EngineConfig, HealthState, IfRunning, OpError, OpKind, Pair,
    Region, RegionOptions, Slot, SlotClass, SlotPool, Span, Submission, SubmitError, Unavailable,
    block_on,
};

const LONG: Duration = Duration::from_secs(50);
/// Longer than a worker may be kept from its core, so that a call has the op by then.
const TIME: Duration = Duration::from_millis(200);
const IN_PROGRESS: OpError = OpError::TimedOut { started: true };

fn config(workers: usize) -> EngineConfig {
    EngineConfig::default()
        .num_workers(workers)
        .cores(CoreChoice::None)
        // What refuses ops here is the quarantine.
        .fail_fast_after(0)
        .max_batch(1)
}

/// An engine on a sim, with 16 slots of 256 bytes and as many bytes that are in no slot.
fn start(config: EngineConfig) -> (Engine, Arc<SimStore>, SlotPool, Region) {
    let sim = sim(SimOptions::default());
    let region = Region::allocate(RegionOptions::new(16 * 512)).unwrap();
    let class = SlotClass {
        size: 256,
        count: 16,
    };
    let pool = region.slot_pool(&[class]).unwrap();
    let engine = Engine::builder(sim.clone()).config(config);
    let engine = engine.region(region.clone()).start().unwrap();
    (engine, sim, pool, region)
}

fn reap(pair: &mut Pair, n: usize) -> Vec<Completion> {
    pair.wait(n, Some(LONG)).unwrap();
    let all: Vec<_> = pair.completions().collect();
    assert_eq!(all.len(), n);
    all
}

/// What `slot` covers, as raw parts.
fn parts(slot: &Slot) -> (Span, usize, usize) {
    (slot.span(), slot.as_ptr().addr(), slot.len())
}

/// Cases M1 and F3: what a hanging call may still write is listed, refused to others, and let go when it returns.
#[test]
fn bytes_in_quarantine_are_listed_counted_and_refused_until_their_call_returns() {
    let _dog = watchdog();
    let (engine, sim, pool, region) = start(config(1).dedicated(OpKind::Retrieve, 2));
    let (mut pair, mut other) = (engine.pair(8).unwrap(), engine.pair(8).unwrap());
    let client = engine.client();
    let gate = sim.gate().close(&[OpKind::Retrieve]);
    let slot = pool.lend(256).unwrap();
    let (span, addr, len) = parts(&slot);
    let op = Submission::retrieve("by a pair", slot);
    pair.submit(op.user_data(4).timeout(Some(TIME))).unwrap();
    assert!(sim.gate().wait_inside(OpKind::Retrieve, 1, LONG));
    let slot = pool.lend(100).unwrap();
    let (other_span, other_addr, other_len) = parts(&slot);
    let got = client.with_timeout(Some(TIME));
    let got = got.blocking().retrieve("by a client", slot);
    assert_eq!(got.result, Err(IN_PROGRESS.into()));
    assert!(got.slot.is_none());
    let end = &reap(&mut pair, 1)[0];
    assert!(end.more && end.slot.is_none() && end.result == Err(IN_PROGRESS));

    // Both are listed, with all that belongs to them.
    std::thread::sleep(Duration::from_millis(5));
    let mut listed = engine.quarantined();
    listed.sort_by_key(|q| q.key.clone());
    let facts: Vec<_> = (listed.iter())
        .map(|q| (q.op, &q.key[..], q.addr, q.len, q.ended_as))
        .collect();
    assert_eq!(
        facts,
        [
            (
                OpKind::Retrieve,
                &b"by a client"[..],
                Some(other_addr),
                other_len,
                IN_PROGRESS
            ),
            (
                OpKind::Retrieve,
                &b"by a pair"[..],
                Some(addr),
                len,
                IN_PROGRESS
            ),
        ]
    );
    for held in &listed {
        let age = held.age;
        assert!(age >= Duration::from_millis(4) && age < LONG, "{age:?}");
    }
    assert_eq!(engine.stats().engine.quarantined, 2);
    assert_eq!(engine.stats().to_json()["engine"]["quarantined"], 2);
    assert_eq!(pool.available(), 14);

    // A byte of them is enough, by a pair or another, of any kind that has bytes, by span or by address.
    let refused = |pair: &mut Pair, op: Submission<'_>| {
        let kind = op.op();
        let refused = pair.submit(op).unwrap_err();
        let SubmitError::Quarantined { op, addr, len } = refused.reason else {
            panic!("{refused}");
        };
        assert_eq!(op, kind);
        (addr, len)
    };
    let base = region.base().as_ptr().addr();
    let at = addr - base;
    let last = region.span(at + len - 1, 1);
    let across = region.span(at.saturating_sub(8), len + 8);
    for pair in [&mut pair, &mut other] {
        // SAFETY: refused, or else of bytes that no one else uses.
        unsafe {
            for span in [span, last, across] {
                let got = refused(pair, Submission::retrieve_span("x", span));
                assert_eq!(got, (base + span.offset, span.len));
                refused(pair, Submission::store_span("x", span));
            }
            refused(pair, Submission::retrieve_span("x", other_span));
            let raw = std::ptr::with_exposed_provenance_mut::<u8>(addr + 7);
            assert_eq!(
                refused(pair, Submission::retrieve_foreign("x", raw, 3)),
                (addr + 7, 3)
            );
            refused(pair, Submission::store_foreign("x", raw, 1));
        }
    }
    // Beside them is free, and so are ops without bytes; and the bytes behind the length that a slot was given.
    let beyond = other_addr - base + other_len;
    let free = [
        region.span(beyond, 256 - other_len),
        region.span(16 * 256, 256),
    ];
    for span in free {
        // SAFETY: nobody else uses these bytes, and they are initialised.
        other
            .submit(unsafe { Submission::store_span("beside", span) })
            .unwrap();
    }
    other.submit(Submission::lookup("x")).unwrap();
    assert!(reap(&mut other, 3).iter().all(|done| done.result.is_ok()));

    drop(gate);
    let release = &reap(&mut pair, 1)[0];
    assert_eq!((release.user_data, release.release), (4, true));
    eventually(|| engine.stats().engine.quarantined == 0);
    assert_eq!(engine.quarantined(), []);
    eventually(|| pool.available() == 16);
    // SAFETY: released, and in no slot that is lent.
    unsafe {
        pair.submit(Submission::retrieve_span("x", span)).unwrap();
        other
            .submit(Submission::store_span("x", other_span))
            .unwrap();
    }
    reap(&mut pair, 1);
    reap(&mut other, 1);
    assert_at_rest(&engine);
}

/// Raw spans: the notice says when the bytes are their owner's again, and comes once, however late the end is reaped.
#[test]
fn a_raw_spans_release_is_told_once_and_after_its_end() {
    let _dog = watchdog();
    for reap_late in [false, true] {
        let (engine, sim, _pool, region) = start(config(1));
        let mut pair = engine.pair(2).unwrap();
        let gate = sim.gate().close(&[OpKind::Store]);
        let span = region.span(0, 64);
        // SAFETY: nobody else uses the bytes before the release.
        let op = unsafe { Submission::store_span("key", span) };
        let ticket = pair.submit(op.user_data(1)).unwrap();
        assert!(sim.gate().wait_inside(OpKind::Store, 1, LONG));
        assert_eq!(pair.cancel(ticket, IfRunning::Abandon), Cancel::Abandoned);
        let mut gate = Some(gate);
        if reap_late {
            // The call returns before anybody looks.
            gate = None;
            eventually(|| engine.stats().engine.quarantined == 0);
        }
        let end = pair.poll().unwrap();
        let cancelled = Err(OpError::Cancelled { started: true });
        assert_eq!(
            (end.result, end.more, end.release),
            (cancelled, true, false)
        );
        if !reap_late {
            assert!(pair.poll().is_none());
            // SAFETY: it is refused.
            let refused = pair.submit(unsafe { Submission::retrieve_span("key", span) });
            let reason = refused.unwrap_err().reason;
            assert!(
                matches!(reason, SubmitError::Quarantined { .. }),
                "{reason}"
            );
        }
        drop(gate.take());
        let release = &reap(&mut pair, 1)[0];
        assert_eq!(
            (release.result, release.more, release.release),
            (cancelled, false, true)
        );
        assert!(pair.poll().is_none());
        // SAFETY: released.
        pair.submit(unsafe { Submission::retrieve_span("key", span) })
            .unwrap();
        assert!(reap(&mut pair, 1)[0].result.is_ok());
        assert_at_rest(&engine);
    }
}

/// A pair that is dropped meanwhile, or a future, leaves nothing behind.
#[test]
fn a_slot_finds_its_way_back_whoever_has_gone_by_then() {
    let _dog = watchdog();
    for round in 0..4 {
        let (engine, sim, pool, _region) = start(config(1).dedicated(OpKind::Store, 2));
        let gate = sim.gate().close(&[OpKind::Store]);
        let client = engine.client().with_timeout(Some(TIME));
        let mut pair = engine.pair(2).unwrap();
        let op = Submission::store("by a pair", pool.lend(256).unwrap());
        pair.submit(op.timeout(Some(TIME))).unwrap();
        let future = client.store("by a client", pool.lend(256).unwrap());
        assert!(sim.gate().wait_inside(OpKind::Store, 2, LONG));
        let (mut pair, mut future) = (Some(pair), Some(future));
        if round == 0 {
            // Before their time is up.
            (pair, future) = (None, None);
        }
        eventually(|| engine.stats().engine.quarantined == 2);
        if round == 1 {
            assert!(pair.as_mut().unwrap().poll().unwrap().more);
            assert!(block_on(future.take().unwrap()).slot.is_none());
        }
        if round <= 2 {
            (pair, future) = (None, None);
        }
        assert_eq!(pool.available(), 14);
        assert_eq!(engine.quarantined().len(), 2);
        drop(gate);
        eventually(|| engine.stats().engine.quarantined == 0);
        if let Some(mut pair) = pair {
            // The end was not reaped before the release: the slot is dropped with it.
            let both = reap(&mut pair, 2);
            assert!(both[0].more && both[1].release);
            assert!(both.iter().all(|done| done.slot.is_none()));
        }
        if let Some(future) = future {
            // Its owner comes late, and gets the slot after all.
            let stored = block_on(future);
            assert_eq!(stored.result, Err(IN_PROGRESS.into()));
            drop(stored);
        }
        eventually(|| pool.available() == 16);
        eventually(|| engine.stats().engine.credits_in_use == 0);
        assert_at_rest(&engine);
    }
}

#[test]
fn a_lane_with_more_than_its_share_in_quarantine_takes_no_ops_until_it_is_less() {
    let _dog = watchdog();
    // 8 KiB, of which 10 % are three slots of 256 bytes, and a bit.
    let lanes = config(1)
        .dedicated(OpKind::Retrieve, 5)
        .dedicated(OpKind::Store, 2)
        .quarantine_percent(10);
    let (engine, sim, pool, region) = start(lanes);
    let mut pair = engine.pair(16).unwrap();
    let client = engine.client();
    let gate = sim.gate().close(&[OpKind::Retrieve]);
    let retrieve = |pair: &mut Pair, len| {
        let op = Submission::retrieve("key", pool.lend(len).unwrap());
        pair.submit(op.timeout(Some(TIME))).map_err(|r| r.reason)
    };
    for held in 1..=3 {
        retrieve(&mut pair, 256).unwrap();
        assert!(reap(&mut pair, 1)[0].more);
        assert_eq!(engine.quarantined().len(), held);
    }
    // At 768 of 819 bytes one more is taken; that is more than its share.
    retrieve(&mut pair, 256).unwrap();
    assert!(reap(&mut pair, 1)[0].more);
    let full = SubmitError::Unavailable {
        op: OpKind::Retrieve,
        why: Unavailable::Quarantine,
    };
    for _ in 0..3 {
        assert_eq!(retrieve(&mut pair, 1), Err(full));
        let slot = pool.lend(64).unwrap();
        let got = client.blocking().retrieve("key", slot);
        assert_eq!(got.result, Err(full.into()));
        assert!(got.slot.is_some(), "a refused op comes back whole");
        // SAFETY: it is refused.
        let raw = unsafe { Submission::retrieve_span("key", region.span(16 * 256, 8)) };
        assert_eq!(pair.submit(raw).unwrap_err().reason, full);
    }
    // Other lanes go on, and what the full one has in calls does.
    let stored = client.blocking().store("key", pool.lend(64).unwrap());
    assert!(stored.result.is_ok());
    drop(stored);
    assert_eq!(client.blocking().lookup("key"), Ok(true));
    pair.submit(Submission::delete("nothing")).unwrap();
    assert_eq!(reap(&mut pair, 1)[0].result, Err(OpError::NotFound));
    let health = engine.health();
    assert_eq!(
        (health.state, health.quarantined),
        (HealthState::Degraded, 4)
    );
    // With one less it takes ops again.
    gate.admit(1);
    assert!(reap(&mut pair, 1)[0].release);
    assert_eq!(engine.quarantined().len(), 3);
    let slot = pool.lend(64).unwrap();
    pair.submit(Submission::retrieve("key", slot)).unwrap();
    drop(gate);
    let mut last = reap(&mut pair, 4);
    last.retain(|done| !done.release);
    assert!(last.len() == 1 && last[0].result.is_ok(), "{last:?}");
    drop(last);
    assert_eq!(pool.available(), 16);
    eventually(|| engine.stats().engine.quarantined == 0);
    assert_at_rest(&engine);
}

/// Ops without bytes are listed and counted too, and refuse nobody anything.
#[test]
fn a_hanging_lookup_is_listed_and_holds_no_bytes() {
    let _dog = watchdog();
    let (engine, sim, pool, _region) = start(config(2).quarantine_percent(1));
    let gate = sim.gate().close(&[OpKind::Lookup]);
    let client = engine.client().with_timeout(Some(TIME));
    let long_key = "k".repeat(300);
    assert_eq!(client.blocking().lookup(&long_key), Err(IN_PROGRESS.into()));
    let listed = engine.quarantined();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (listed[0].op, listed[0].addr, listed[0].len),
        (OpKind::Lookup, None, 0)
    );
    assert_eq!(listed[0].key, long_key.as_bytes());
    let stored = client.with_timeout(None);
    let stored = stored.blocking().store("key", pool.lend(256).unwrap());
    assert!(stored.result.is_ok());
    drop(gate);
    eventually(|| engine.stats().engine.quarantined == 0);
    eventually(|| engine.stats().engine.credits_in_use == 0);
    assert_at_rest(&engine);
}

/// Callers whose ops were merged into one call: the one whose time is up gets no byte of its buffer back before the call is
/// over, and those who wait get theirs right.
#[test]
fn of_callers_merged_into_one_call_each_ends_by_its_own_time() {
    let _dog = watchdog();
    let (engine, sim, pool, _region) =
        start(config(1).max_batch(16).dedicated(OpKind::Retrieve, 1));
    let client = engine.client();
    let mut slot = pool.lend(256).unwrap();
    slot.fill(7);
    assert!(client.blocking().store("key", slot).result.is_ok());
    let gate = sim.gate().close(&[OpKind::Retrieve]);
    let mut pair = engine.pair(8).unwrap();
    pair.submit(Submission::retrieve("other", pool.lend(64).unwrap()))
        .unwrap();
    assert!(sim.gate().wait_inside(OpKind::Retrieve, 1, LONG));
    // Behind it, four of one key in one call. The one with the longest buffer, which is the call's, gives up first.
    let mut batch = pair.batch();
    for (id, len) in [(1, 64), (2, 256), (3, 128), (4, 256)] {
        let mut slot = pool.lend(len).unwrap();
        slot.fill(0x55);
        let op = Submission::retrieve("key", slot).user_data(id);
        batch.push(op).unwrap();
    }
    batch.publish();
    gate.admit(1);
    assert_eq!(reap(&mut pair, 1)[0].result, Err(OpError::NotFound));
    assert!(sim.gate().wait_inside(OpKind::Retrieve, 1, LONG));
    assert_eq!(pair.cancel_all(2, IfRunning::Abandon), 1);
    assert_eq!(pair.cancel_all(3, IfRunning::Abandon), 1);
    assert_eq!(reap(&mut pair, 2).iter().filter(|d| d.more).count(), 2);
    assert_eq!(pool.available(), 12);
    drop(gate);
    let mut rest = reap(&mut pair, 4);
    rest.sort_by_key(|done| done.user_data);
    let short = OpError::ShortBuffer {
        object_len: std::num::NonZeroU64::new(256),
    };
    assert_eq!(rest[0].result, Err(short));
    assert!(rest[1].release && rest[2].release);
    let got = rest[3].slot.as_ref().unwrap();
    assert!(rest[3].result.is_ok() && got.iter().all(|&b| b == 7));
    drop(rest);
    assert_eq!(pool.available(), 16);
    assert_at_rest(&engine);
}
