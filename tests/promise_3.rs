//! Promise 3: bytes of a span belong to the engine from acceptance to release; with slots the types say so.

mod common;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use common::*;
use moonring::config::CoreChoice;
use moonring::store::sim::When;
use moonring::store::{
    CallResult, DeleteBatch, LookupBatch, MemoryOptions, MemoryStore, NullStore, RetrieveBatch,
    SimOptions, Store, StoreBatch,
};
use moonring::{Engine, EngineConfig, OpKind, Region, Shutdown, Slot, SlotClass, Submission};

const LONG: Duration = Duration::from_secs(50);

fn config(workers: usize) -> EngineConfig {
    EngineConfig::default()
        .fail_fast_after(0) // Calls fail here for other reasons.
        .num_workers(workers)
        // Stores that fail on purpose are asked again and again.
        .fail_fast_after(0)
        .cores(CoreChoice::None)
}

#[test]
fn a_slot_moves_in_and_the_same_slot_comes_back_whatever_the_result() {
    let _dog = watchdog();
    let sim = sim(SimOptions {
        seed: 5,
        key_errors: When::rate(0.3),
        call_errors: When::rate(0.1),
        panics: When::rate(0.1),
        ..SimOptions::default()
    });
    let (region, pool) = slots(256, 8);
    let engine = Engine::builder(sim)
        .config(config(2))
        .region(region)
        .start()
        .unwrap();
    let (mut pair, client) = (engine.pair(8).unwrap(), engine.client());
    let same = |slot: &Slot, before: (usize, usize)| {
        assert_eq!((slot.as_ptr().addr(), slot.len()), before);
        assert_eq!(slot.capacity(), 256);
    };
    for round in 0..300usize {
        let key = format!("key {}", round % 7);
        let mut slots: Vec<_> = (0..8)
            .map(|i| pool.lend(1 + (round + i) % 256).unwrap())
            .collect();
        let before: Vec<_> = slots.iter().map(|s| (s.as_ptr().addr(), s.len())).collect();
        let at = slots.split_off(4);
        for (id, slot) in slots.into_iter().enumerate() {
            let op = match id % 2 {
                0 => Submission::store(&key, slot),
                _ => Submission::retrieve(&key, slot),
            };
            pair.submit(op.user_data(id as u64)).unwrap();
        }
        let mut at = at.into_iter();
        let stored = client.store(&key, at.next().unwrap());
        let got = client.retrieve(&key, at.next().unwrap());
        let exact = client.retrieve_exact(&key, at.next().unwrap());
        let mut out = Vec::new();
        let many = client.retrieve_many([(&key, at.next().unwrap())], &mut out);
        same(&moonring::block_on(stored).slot.unwrap(), before[4]);
        same(&moonring::block_on(got).slot.unwrap(), before[5]);
        same(&moonring::block_on(exact).slot.unwrap(), before[6]);
        moonring::block_on(many);
        same(out[0].slot.as_ref().unwrap(), before[7]);
        pair.wait(4, None).unwrap();
        for done in pair.completions() {
            same(&done.slot.unwrap(), before[done.user_data as usize]);
        }
    }
    assert_eq!(pool.available(), 8);
    assert_at_rest(&engine);
}

#[test]
fn the_slot_of_a_dropped_future_or_pair_returns_to_its_pool_by_itself_when_the_call_has_returned() {
    let _dog = watchdog();
    let sim = sim(SimOptions::default());
    let (region, pool) = slots(64, 4);
    let engine = Engine::builder(sim.clone())
        .config(config(1))
        .region(region)
        .start()
        .unwrap();
    let client = engine.client();
    for round in 0..6 {
        let gate = sim.gate().close(&OpKind::ALL);
        let (op, n) = match round % 3 {
            0 => {
                let mut op = Box::pin(client.retrieve("key", pool.lend(64).unwrap()));
                if round > 2 {
                    assert!(poll_with(&mut op, Waker::noop()).is_pending());
                }
                drop(op);
                (OpKind::Retrieve, 1)
            }
            1 => {
                let mut out = Vec::new();
                let items: Vec<_> = (0..3).map(|_| ("key", pool.lend(64).unwrap())).collect();
                let mut op = Box::pin(client.store_many(items, &mut out));
                assert!(poll_with(&mut op, Waker::noop()).is_pending());
                drop(op);
                (OpKind::Store, 3)
            }
            _ => {
                let mut pair = engine.pair(4).unwrap();
                for _ in 0..4 {
                    let op = Submission::retrieve("key", pool.lend(64).unwrap());
                    pair.submit(op).unwrap();
                }
                drop(pair);
                (OpKind::Retrieve, 4)
            }
        };
        assert!(sim.gate().wait_inside(op, 1, LONG));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(pool.available(), 4 - n, "the call may still write them");
        drop(gate);
        eventually(|| pool.available() == 4);
    }
    eventually(|| engine.stats().engine.credits_in_use == 0);
    assert_at_rest(&engine);
}

/// Host memory that says when it is freed, and that knows whether it was registered then.
struct Host {
    bytes: *mut [u8],
    freed: Arc<AtomicBool>,
    store: Arc<MemoryStore>,
}

// SAFETY: it only owns the bytes.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

impl Host {
    fn region(len: usize, store: &Arc<MemoryStore>) -> (Region, Arc<AtomicBool>) {
        let freed = Arc::new(AtomicBool::new(false));
        let bytes = Box::into_raw(vec![0xcau8; len].into_boxed_slice());
        let host = Host {
            bytes,
            freed: Arc::clone(&freed),
            store: Arc::clone(store),
        };
        // SAFETY: the bytes live as long as the host.
        let region = unsafe { Region::wrap(bytes.cast(), len, host) };
        (region.unwrap(), freed)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Where it is still registered, the test hangs on this.
        if self.store.registrations() == 0 {
            self.freed.store(true, Ordering::SeqCst);
        }
        // SAFETY: made by `Box::into_raw`.
        drop(unsafe { Box::from_raw(self.bytes) });
    }
}

#[test]
fn a_wrapped_region_keeps_its_owner_alive_until_the_last_release_and_unregistration() {
    let _dog = watchdog();
    for last in ["engine", "slot", "pool", "completion", "call"] {
        let options = MemoryOptions {
            needs_registration: true,
            ..MemoryOptions::default()
        };
        let memory = Arc::new(MemoryStore::new(options).unwrap());
        let (region, freed) = Host::region(8192, &memory);
        let pool = region
            .slot_pool(&[SlotClass {
                size: 1024,
                count: 2,
            }])
            .unwrap();
        let go_on = Arc::new(AtomicBool::new(last != "call"));
        let store = Spy::new(memory, {
            let go_on = Arc::clone(&go_on);
            move |_| eventually(|| go_on.load(Ordering::SeqCst))
        });
        let engine = Engine::builder(store.clone())
            .config(config(1))
            .region(region);
        let engine = engine.start().unwrap();
        let mut pair = engine.pair(2).unwrap();
        pair.submit(Submission::store("key", pool.lend(1024).unwrap()))
            .unwrap();
        let alive = || assert!(!freed.load(Ordering::SeqCst), "{last}");
        alive();
        match last {
            "engine" => {
                drop((pair, pool));
                alive();
                drop(engine);
            }
            "slot" => {
                let mut slot = pool.lend(1024).unwrap();
                drop((engine, pair, pool));
                alive();
                slot.fill(1);
                drop(slot);
            }
            "pool" => {
                drop((engine, pair));
                alive();
                drop(pool);
            }
            "completion" => {
                engine.shutdown(Shutdown::Drain, LONG).unwrap();
                drop((engine, pool));
                alive();
                // The slot is in a completion that nobody has reaped.
                let done = pair.poll().unwrap();
                drop(pair);
                alive();
                assert!(done.slot.unwrap().iter().all(|&byte| byte == 0xca));
            }
            _ => {
                eventually(|| store.calls() == 1);
                engine.shutdown(Shutdown::Drain, Duration::ZERO).unwrap();
                drop((engine, pair, pool));
                alive();
                go_on.store(true, Ordering::SeqCst);
            }
        }
        eventually(|| freed.load(Ordering::SeqCst));
    }
}

/// A retrieve fills its buffers late, and whole.
struct Late(AtomicUsize);

impl Store for Late {
    fn name(&self) -> &str {
        "late"
    }
    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        NullStore.batch_exists(batch)
    }
    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        if self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(4) {
            std::thread::yield_now();
        }
        for i in 0..batch.len() {
            batch.fill(i, &vec![0xee; batch.buf_lens()[i]]);
        }
        Ok(batch.len())
    }
    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        NullStore.batch_put_from(batch)
    }
    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        NullStore.batch_remove(batch)
    }
}

/// Case M1, tokio-uring#158: a dropped future's buffer goes to somebody else while it is still written.
#[test]
fn futures_dropped_at_once_whose_slots_are_used_again_leave_canaries_intact_over_10_000_rounds() {
    let _dog = watchdog();
    let (region, pool) = slots(128, 8);
    let engine = Engine::builder(Arc::new(Late(AtomicUsize::new(0)))).config(config(2));
    let engine = engine.region(region).start().unwrap();
    let client = engine.client();
    let mut pair = engine.pair(8).unwrap();
    let mut mine = VecDeque::new();
    let mut rng = Rng::new(1);
    for round in 0..10_000usize {
        let mut slot = None;
        eventually_now(|| {
            slot = pool.lend(128);
            slot.is_some()
        });
        let mut slot = slot.unwrap();
        let canary = round as u8 & 0x7f;
        slot.fill(canary);
        mine.push_back((slot, canary));
        if mine.len() < 4 {
            continue;
        }
        let (slot, canary) = mine.pop_front().unwrap();
        assert!(
            slot.iter().all(|&byte| byte == canary),
            "round {round}: {slot:?} {canary}"
        );
        let key = format!("key {}", round % 3);
        match rng.below(5) {
            0 => drop(client.retrieve(&key, slot)),
            1 => {
                let mut op = Box::pin(client.retrieve(&key, slot));
                let _ = poll_with(&mut op, Waker::noop());
            }
            2 => {
                let mut out = Vec::new();
                let mut op = Box::pin(client.retrieve_many([(&key, slot)], &mut out));
                let _ = poll_with(&mut op, Waker::noop());
            }
            3 => drop(client.retrieve(&key, slot)),
            _ => {
                pair.submit(Submission::retrieve(&key, slot)).unwrap();
                // A new one now and then: what is in flight is nobody's then.
                if rng.below(2) == 0 {
                    pair = engine.pair(8).unwrap();
                } else {
                    pair.wait(1, None).unwrap();
                    pair.completions().for_each(drop);
                }
            }
        }
    }
    drop(mine);
    eventually(|| pool.available() == 8);
}

/// As `eventually`, for what takes no time.
fn eventually_now(mut what: impl FnMut() -> bool) {
    while !what() {
        std::thread::yield_now();
    }
}

#[cfg(debug_assertions)]
mod debug_builds {
    use super::*;
    use moonring::SubmitError;
    use moonring::{Pair, RegionOptions, Span};

    fn retrieve(pair: &mut Pair, span: Span) -> Result<(), SubmitError> {
        // SAFETY: the store moves nothing, and the test doesn't look at the bytes.
        let op = unsafe { Submission::retrieve_span("key", span) };
        pair.submit(op).map(drop).map_err(|refused| refused.reason)
    }

    fn store(pair: &mut Pair, span: Span) -> Result<(), SubmitError> {
        // SAFETY: as above; the region starts as zeros.
        let op = unsafe { Submission::store_span("key", span) };
        pair.submit(op).map(drop).map_err(|refused| refused.reason)
    }

    fn overlap(op: OpKind, span: Span) -> Result<(), SubmitError> {
        Err(SubmitError::Overlap {
            op,
            offset: span.offset,
            len: span.len,
        })
    }

    #[test]
    fn a_raw_retrieve_that_overlaps_a_span_in_flight_is_refused_and_two_stores_may_read_the_same() {
        let _dog = watchdog();
        let region = Region::allocate(RegionOptions::new(4096)).unwrap();
        let engine = Engine::builder(Arc::new(NullStore)).region(region.clone());
        let (engine, mut drivers) = engine.start_by_hand().unwrap();
        let (mut a, mut b) = (engine.pair(8).unwrap(), engine.pair(8).unwrap());
        let span = |offset, len| region.span(offset, len);
        let (retrieved, stored) = (OpKind::Retrieve, OpKind::Store);

        retrieve(&mut a, span(100, 100)).unwrap();
        for over in [
            (100, 100),
            (199, 1),
            (0, 101),
            (150, 10),
            (0, 4096),
            (100, 1),
        ] {
            let over = span(over.0, over.1);
            assert_eq!(
                retrieve(&mut b, over),
                overlap(retrieved, over),
                "any pair is asked"
            );
            assert_eq!(store(&mut b, over), overlap(stored, over));
            // By its address it is the same span.
            let at = region.as_mut_ptr(over).unwrap().as_ptr();
            // SAFETY: as above.
            let op = unsafe { Submission::retrieve_foreign("key", at, over.len) };
            assert_eq!(
                b.submit(op).unwrap_err().reason,
                overlap(retrieved, over).unwrap_err()
            );
        }
        // Neighbours are fine.
        retrieve(&mut b, span(0, 100)).unwrap();
        store(&mut b, span(200, 100)).unwrap();
        // Two stores read the same bytes, whole or in part; no retrieve may write them.
        store(&mut a, span(200, 100)).unwrap();
        store(&mut a, span(250, 500)).unwrap();
        assert_eq!(
            retrieve(&mut a, span(299, 1)),
            overlap(retrieved, span(299, 1))
        );

        // The bytes are the engine's until the completion is reaped, not only until the call returns.
        while drivers[0].poll_once() {}
        assert_eq!(
            retrieve(&mut b, span(100, 100)),
            overlap(retrieved, span(100, 100))
        );
        a.completions().for_each(drop);
        retrieve(&mut b, span(100, 100)).unwrap();
        // One of the two readers is still not reaped.
        assert_eq!(
            retrieve(&mut a, span(200, 1)),
            overlap(retrieved, span(200, 1))
        );
        b.completions().for_each(drop);
        retrieve(&mut a, span(200, 1)).unwrap();
        // Of a pair that is dropped the span is released when its op ends.
        retrieve(&mut b, span(1000, 8)).unwrap();
        drop(b);
        assert_eq!(
            retrieve(&mut a, span(1000, 8)),
            overlap(retrieved, span(1000, 8))
        );
        while drivers[0].poll_once() {}
        retrieve(&mut a, span(1000, 8)).unwrap();
        // What was refused counts nowhere.
        assert_eq!((a.in_flight(), engine.stats().engine.refused), (2, 22));
    }

    #[test]
    fn a_raw_span_that_overlaps_a_slot_in_flight_is_refused() {
        let _dog = watchdog();
        let region = Region::allocate(RegionOptions::new(4096)).unwrap();
        let pool = region
            .slot_pool(&[SlotClass { size: 64, count: 4 }])
            .unwrap();
        let engine = Engine::builder(Arc::new(NullStore)).region(region.clone());
        let (engine, mut drivers) = engine.start_by_hand().unwrap();
        let (mut pair, client) = (engine.pair(8).unwrap(), engine.client());
        let spans: Vec<_> = {
            let slots: Vec<_> = (0..4).map(|_| pool.lend(64).unwrap()).collect();
            slots.iter().map(Slot::span).collect()
        };
        pair.submit(Submission::retrieve("a", pool.lend(64).unwrap()))
            .unwrap();
        let mut stores = Box::pin(client.store("b", pool.lend(64).unwrap()));
        drop(client.retrieve("c", pool.lend(64).unwrap()));
        for (at, span) in spans.iter().enumerate() {
            if at < 3 {
                assert_eq!(
                    retrieve(&mut pair, *span),
                    overlap(OpKind::Retrieve, *span),
                    "{at}"
                );
            }
        }
        // A slot in flight that is only read may be read by others.
        store(&mut pair, spans[1]).unwrap();
        while drivers[0].poll_once() {}
        // The one that was given up has ended by itself; the others end when they are reaped.
        retrieve(&mut pair, spans[2]).unwrap();
        assert!(retrieve(&mut pair, spans[0]).is_err());
        pair.completions().for_each(drop);
        assert!(retrieve(&mut pair, spans[1]).is_err());
        assert!(poll_with(&mut stores, Waker::noop()).is_ready());
        retrieve(&mut pair, spans[1]).unwrap();
        retrieve(&mut pair, spans[0]).unwrap();
    }
}
