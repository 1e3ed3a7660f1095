//! Field cases about what callers are told, on a real Mooncake with a storage node in another process: S1, S3, S4, S7, S13, S14,
//! F7, and odd keys. They are in `case_answers.rs` for the stores that are built in.

mod common_b;
mod mooncake;
mod standin;

use std::time::Duration;

use common_b::{CANARY, assert_holds, canary_slot, content, reap, retrieved, slot_of, submit};
use mooncake::{Mooncake, Rig, eventually};
use moonring::config::CoreChoice;
use moonring::{
    Client, ClientError, Done, Engine, EngineConfig, OpError, OpKind, Pair, Region, RegionOptions,
    Slot, SlotClass, StoreOutcome, Submission, SubmitError,
};

const LIMIT: Duration = Duration::from_secs(120);
/// What a machine that is busy needs for a call.
const SOON: Duration = Duration::from_secs(20);

fn config() -> EngineConfig {
    EngineConfig::default().cores(CoreChoice::None)
}

fn accepted(client: &Client, rig: &Rig, key: &str, bytes: &[u8]) {
    let done = client.blocking().store(key, slot_of(&rig.slots, bytes));
    assert_eq!(done.result, Ok(StoreOutcome::Accepted), "{key}");
}

fn failed<T>(error: OpError) -> Result<T, ClientError> {
    Err(ClientError::Failed(error))
}

/// Retrieves these, published together; the results in their order.
fn retrieve_all(pair: &mut Pair, items: Vec<(&str, Slot)>) -> Vec<(Result<u64, OpError>, Slot)> {
    let n = items.len();
    let mut batch = pair.batch();
    for (i, (key, slot)) in items.into_iter().enumerate() {
        batch
            .push(Submission::retrieve(key, slot).user_data(i as u64))
            .unwrap();
    }
    batch.publish();
    let done = reap(pair, n);
    done.into_iter()
        .map(|c| (retrieved(&c), c.slot.unwrap()))
        .collect()
}

/// Fails unless this is the right answer for a buffer of `len` bytes. Mooncake itself does not tell how long an object is that
/// does not fit; where another buffer was long enough, the engine knows.
fn assert_settled(result: Result<u64, OpError>, mut slot: Slot, len: usize, object: &[u8]) {
    if object.len() <= len {
        assert_eq!(result, Ok(object.len() as u64), "{len}");
        return assert_holds(slot, object);
    }
    match result {
        Err(OpError::ShortBuffer { object_len }) => {
            assert!(object_len.is_none_or(|told| told.get() == object.len() as u64));
        }
        other => panic!("{len}: {other:?}"),
    }
    slot.set_len(slot.capacity()).unwrap();
    let behind = slot[len..].iter().all(|byte| *byte == CANARY);
    assert!(behind, "bytes behind a short buffer were touched");
}

/// S1, Mooncake#3876: its own batch fills one of the buffers and calls all of them successful.
#[test]
fn s1_one_key_several_times_in_one_get_fills_every_buffer() {
    let Some(mooncake) = Mooncake::up("s1", &["--segment", "64MB"], LIMIT) else {
        return;
    };
    let config = config().dedicated(OpKind::Retrieve, 1);
    let rig = Rig::start_with(config, mooncake.open(), 2048, 16);
    let client = rig.engine.client();
    let object = content(b"k", 1000);
    accepted(&client, &rig, "k", &object);
    accepted(&client, &rig, "plug", b"bytes");
    let mut pair = rig.engine.pair(16).unwrap();
    for lens in [
        [1000, 1000, 1000, 1000],
        [2048, 1500, 1001, 1000],
        [10, 1000, 999, 2048],
        [999, 998, 997, 996],
    ] {
        let items = lens.map(|len| ("k", canary_slot(&rig.slots, len)));
        let got = retrieve_all(&mut pair, items.into());
        for ((result, slot), len) in got.into_iter().zip(lens) {
            assert_settled(result, slot, len, &object);
        }
    }
    let items = ["k", "j", "k"].map(|key| (key, canary_slot(&rig.slots, 1200)));
    let mut got = retrieve_all(&mut pair, items.into());
    assert_eq!(got.remove(1).0, Err(OpError::NotFound));
    for (result, slot) in got {
        assert_settled(result, slot, 1200, &object);
    }

    // Two callers whom the worker merges: both wait while it is in a call to a node that does not answer.
    for lens in [[1000, 1000], [500, 1000], [2048, 500]] {
        let stats = rig.engine.stats();
        let folded = |stats: &moonring::Stats| stats.lane(OpKind::Retrieve).folded_ops;
        let before = mooncake.counters();
        mooncake.command("stop-node");
        let mut plug = rig.engine.pair(1).unwrap();
        submit(
            &mut plug,
            Submission::retrieve("plug", canary_slot(&rig.slots, 5)),
        );
        eventually(SOON, "the worker is in the call", || {
            let now = mooncake.counters();
            now.since(&before, "batch_get_replica_list_items") == 1
        });
        let both = std::thread::scope(|scope| {
            let callers = lens.map(|len| {
                let rig = &rig;
                scope.spawn(move || {
                    let mut pair = rig.engine.pair(1).unwrap();
                    retrieve_all(&mut pair, vec![("k", canary_slot(&rig.slots, len))]).remove(0)
                })
            });
            let both = || rig.engine.stats().engine.in_flight == 3;
            eventually(SOON, "both are queued", both);
            mooncake.command("cont-node");
            callers.map(|caller| caller.join().unwrap())
        });
        for ((result, slot), len) in both.into_iter().zip(lens) {
            assert_settled(result, slot, len, &object);
        }
        assert_eq!(reap(&mut plug, 1)[0].result, Ok(Done::Retrieved(5)));
        assert_eq!(folded(&rig.engine.stats()) - folded(&stats), 1);
    }
}

#[test]
fn s3_a_second_store_of_a_key_is_accepted_and_changes_nothing() {
    let Some(mooncake) = Mooncake::up("s3", &["--segment", "64MB"], LIMIT) else {
        return;
    };
    let rig = Rig::start_with(config(), mooncake.open(), 64, 4);
    assert!(!rig.engine.start_report().capabilities.tells_stored);
    let client = rig.engine.client();
    accepted(&client, &rig, "k", b"A");
    for other in [&b"B"[..], b"B, and longer"] {
        // Never `Stored`: Mooncake does not tell whether it was there.
        accepted(&client, &rig, "k", other);
        let got = client.blocking().retrieve("k", canary_slot(&rig.slots, 64));
        assert_eq!(got.result, Ok(1));
        assert_holds(got.slot.unwrap(), b"A");
    }
}

/// S4, SpecForge#832: deleting failed under a lease, a probe renewed it, and a retry called "not found" a failure.
#[test]
fn s4_s14_leased_not_found_and_deleted_are_three_results_and_nothing_probes_before_a_delete() {
    let options = ["--segment", "64MB", "--", "--default_kv_lease_ttl=5000"];
    let Some(mooncake) = Mooncake::up("s4", &options, LIMIT) else {
        return;
    };
    let rig = Rig::start_with(config(), mooncake.open(), 64, 4);
    let client = rig.engine.client();
    let blocking = client.blocking();

    for key in ["present", "leased", "forced"] {
        accepted(&client, &rig, key, b"v");
    }
    // Before the leases begin: asking for it takes its time.
    let before = mooncake.counters();
    assert_eq!(blocking.lookup("forced"), Ok(true));
    assert_eq!(blocking.lookup("leased"), Ok(true), "takes the lease");
    let mut out = Vec::new();
    blocking.delete_many(["present", "absent", "leased"], &mut out);
    let wanted = [Ok(()), failed(OpError::NotFound), failed(OpError::Leased)];
    assert_eq!(out, wanted);
    assert_eq!(blocking.delete("present"), failed(OpError::NotFound));
    assert_eq!(blocking.delete("forced"), failed(OpError::Leased));
    assert_eq!(blocking.delete_forced("forced"), Ok(()));
    let mut asked = 6;
    // Had any of these probed, the lease would run from then on, and no delete would ever go well.
    eventually(SOON, "the lease ends", || {
        asked += 1;
        match blocking.delete("leased") {
            Err(ClientError::Failed(OpError::Leased)) => false,
            other => {
                assert_eq!(other, Ok(()));
                true
            }
        }
    });
    let after = mooncake.counters();
    assert_eq!(after.since(&before, "remove_requests"), asked);
    for (other, own) in [
        ("batch_exist_key_items", 2),
        ("exist_key_requests", 0),
        ("batch_get_replica_list_items", 0),
        ("get_replica_list_requests", 0),
    ] {
        assert_eq!(after.since(&before, other), own, "{other}");
    }
    let mut out = Vec::new();
    blocking.lookup_many(["present", "leased", "forced"], &mut out);
    assert_eq!(out, [Ok(false); 3]);
}

/// S13, lmdeploy#4930: the stored value has another size than the reader thinks.
#[test]
fn s13_a_value_of_another_size_than_the_reader_thinks() {
    let Some(mooncake) = Mooncake::up("s13", &["--segment", "64MB"], LIMIT) else {
        return;
    };
    let rig = Rig::start_with(config(), mooncake.open(), 128 << 10, 8);
    let client = rig.engine.client();
    let object = content(b"k", 65_536);
    accepted(&client, &rig, "k", &object);
    let mut pair = rig.engine.pair(8).unwrap();
    // Mooncake does not tell how long an object is that does not fit.
    let short = OpError::ShortBuffer { object_len: None };
    let other = OpError::LengthMismatch {
        object_len: std::num::NonZeroU64::new(65_536),
    };
    for (len, exact, wanted) in [
        (32 << 10, false, Err(short)),
        (128 << 10, false, Ok(65_536)),
        (64 << 10, false, Ok(65_536)),
        (32 << 10, true, Err(short)),
        (128 << 10, true, Err(other)),
        (65_535, true, Err(short)),
        (65_537, true, Err(other)),
        (64 << 10, true, Ok(65_536)),
    ] {
        let op = Submission::retrieve("k", canary_slot(&rig.slots, len));
        submit(&mut pair, if exact { op.exact() } else { op });
        let by_pair = reap(&mut pair, 1).remove(0);
        assert_eq!(retrieved(&by_pair), wanted, "{len} {exact}");
        let slot = canary_slot(&rig.slots, len);
        let by_client = match exact {
            true => client.blocking().retrieve_exact("k", slot),
            false => client.blocking().retrieve("k", slot),
        };
        assert_eq!(by_client.result, wanted.map_err(ClientError::Failed));
        for slot in [by_pair.slot, by_client.slot] {
            let mut slot = slot.unwrap();
            if wanted.is_ok() {
                assert_holds(slot, &object);
            } else {
                slot.set_len(slot.capacity()).unwrap();
                let behind = slot[len..].iter().all(|byte| *byte == CANARY);
                assert!(behind, "{len}: behind the buffer");
            }
        }
    }
}

/// F7, sglang#38347: 2 of 32 keys were gone, and the whole engine was restarted.
#[test]
fn f7_two_keys_of_thirty_two_gone_cost_only_those_two() {
    let Some(mooncake) = Mooncake::up("f7-get", &["--segment", "64MB"], LIMIT) else {
        return;
    };
    let config = config().dedicated(OpKind::Retrieve, 1);
    let rig = Rig::start_with(config, mooncake.open(), 4096, 32);
    let client = rig.engine.client();
    let keys: Vec<String> = (0..32).map(|i| format!("key-{i}")).collect();
    let bytes = |i: usize| content(keys[i].as_bytes(), 4096);
    let items = (0..32).map(|i| (&keys[i], slot_of(&rig.slots, &bytes(i))));
    let mut out = Vec::new();
    client.blocking().store_many(items, &mut out);
    assert!(out.iter().all(|done| done.result.is_ok()), "{out:?}");
    drop(out);
    for gone in [5, 17] {
        assert_eq!(client.blocking().delete(&keys[gone]), Ok(()));
    }
    let mut pair = rig.engine.pair(32).unwrap();
    let items = (0..32).map(|i| (keys[i].as_str(), canary_slot(&rig.slots, 4096)));
    for (i, (result, slot)) in retrieve_all(&mut pair, items.collect())
        .into_iter()
        .enumerate()
    {
        match i {
            5 | 17 => assert_eq!(result, Err(OpError::NotFound)),
            _ => assert_settled(result, slot, 4096, &bytes(i)),
        }
    }
    let stats = rig.engine.stats();
    let lane = stats.lane(OpKind::Retrieve);
    assert_eq!((lane.calls, lane.keys), (1, 32), "one call for all");
}

#[test]
fn f7_two_stores_that_do_not_fit_cost_only_those_two() {
    let Some(mooncake) = Mooncake::up("f7-put", &["--segment", "32MB"], LIMIT) else {
        return;
    };
    // More than the node has.
    const HUGE: usize = 40 << 20;
    let region = Region::allocate(RegionOptions::new(100 << 20).prefault(false)).unwrap();
    let classes = [(4096, 32), (HUGE, 2)].map(|(size, count)| SlotClass { size, count });
    let slots = region.slot_pool(&classes).unwrap();
    let config = config().max_batch_bytes(256 << 20);
    let engine = Engine::builder(mooncake.open())
        .config(config.dedicated(OpKind::Store, 1))
        .region(region);
    let engine = engine.start().unwrap();
    let client = engine.client();
    let keys: Vec<String> = (0..32).map(|i| format!("key-{i}")).collect();
    let mut pair = engine.pair(32).unwrap();
    let mut batch = pair.batch();
    for (i, key) in keys.iter().enumerate() {
        let slot = match i {
            5 | 17 => slots.lend(HUGE).unwrap(),
            _ => slot_of(&slots, &content(key.as_bytes(), 4096)),
        };
        let op = Submission::store(key, slot).user_data(i as u64);
        batch.push(op).unwrap();
    }
    batch.publish();
    for done in reap(&mut pair, 32) {
        let i = done.user_data;
        match i {
            5 | 17 => assert_eq!(done.result, Err(OpError::NoSpace), "{i}"),
            _ => assert_eq!(done.result, Ok(Done::Store(StoreOutcome::Accepted)), "{i}"),
        }
    }
    let stats = engine.stats();
    assert_eq!(stats.lane(OpKind::Store).calls, 1, "one call for all");
    let mut evicted = Vec::new();
    for (i, key) in keys.iter().enumerate() {
        let got = client.blocking().retrieve(key, canary_slot(&slots, 4096));
        match (i, got.result) {
            (5 | 17, result) => assert_eq!(result, failed(OpError::NotFound)),
            (_, Ok(len)) => {
                assert_eq!(len, 4096, "{i}");
                assert_holds(got.slot.unwrap(), &content(key.as_bytes(), 4096));
            }
            (_, result) => {
                assert_eq!(result, failed(OpError::NotFound), "{i}");
                evicted.push(i);
            }
        }
    }
    // A put for which there is no room makes the master evict a share of the objects without a lease: soon, not at once.
    let evictions = mooncake.counters().of("successful_evictions");
    assert!(
        evicted.is_empty() || (evictions > 0 && evicted.len() <= 5),
        "{evicted:?} are gone, {evictions} evictions"
    );
}

/// Keys of all sorts reach the master as they are; what can't be a key is refused alone. And a bad key hides no other (S7).
#[test]
fn s7_keys_of_all_sorts_round_trip_and_what_is_no_key_is_refused_alone() {
    let Some(mooncake) = Mooncake::up("keys", &["--segment", "64MB"], LIMIT) else {
        return;
    };
    let rig = Rig::start_with(config(), mooncake.open(), 256, 64);
    let client = rig.engine.client();
    let long = "k".repeat(1000);
    let keys = [
        "k",
        &long,
        &long[..999],
        "two  blanks",
        "two blanks",
        " ",
        "trailing ",
        "a/b",
        "/a//b",
        "a@b@0@1f",
        "a%2Fb",
        "a%2fb",
        "new\nline",
        "new\r\nline",
        "键值缓存",
        "键值缓",
    ];
    // What can't be a key stands between the others in each batch.
    let nul = "a\0b";
    let mut all: Vec<&str> = vec![nul];
    for key in keys {
        all.extend([key, ""]);
    }
    let refused = |key: &str| -> Option<ClientError> {
        match key {
            "" => Some(SubmitError::EmptyKey.into()),
            key => Some(
                SubmitError::NulInKey {
                    at: key.find('\0')?,
                }
                .into(),
            ),
        }
    };
    let blocking = client.blocking();
    let before = mooncake.counters();
    let mut there = Vec::new();
    for wanted in [false, true] {
        blocking.lookup_many(&all, &mut there);
        for (key, answer) in all.iter().zip(&there) {
            assert_eq!(*answer, refused(key).map_or(Ok(wanted), Err), "{key:?}");
        }
        if wanted {
            break;
        }
        let items = all
            .iter()
            .map(|key| (*key, slot_of(&rig.slots, &content(key.as_bytes(), 200))));
        let mut stored = Vec::new();
        blocking.store_many(items, &mut stored);
        for (key, done) in all.iter().zip(&stored) {
            let wanted = refused(key).map_or(Ok(StoreOutcome::Accepted), Err);
            assert_eq!(done.result, wanted, "{key:?}");
        }
    }
    // In the other order, so that a key taken for another would show.
    let items = all
        .iter()
        .rev()
        .map(|key| (*key, canary_slot(&rig.slots, 256)));
    let mut got = Vec::new();
    blocking.retrieve_many(items, &mut got);
    for (key, done) in all.iter().rev().zip(got) {
        match refused(key) {
            Some(refused) => assert_eq!(done.result, Err(refused), "{key:?}"),
            None => {
                assert_eq!(done.result, Ok(200), "{key:?}");
                assert_holds(done.slot.unwrap(), &content(key.as_bytes(), 200));
            }
        }
    }
    let mut gone = Vec::new();
    blocking.delete_many(keys, &mut gone);
    assert!(
        gone.iter().all(|done| *done == failed(OpError::Leased)),
        "{gone:?}"
    );
    for key in keys {
        assert_eq!(blocking.delete_forced(key), Ok(()), "{key:?}");
    }
    // The master saw each key, and no other.
    let counters = mooncake.counters();
    let saw = |name| counters.since(&before, name);
    let n = keys.len() as u64;
    assert_eq!(saw("batch_exist_key_items"), 2 * n);
    assert_eq!(saw("batch_put_end_items"), n);
    assert_eq!(saw("batch_get_replica_list_items"), n);
    assert_eq!(saw("remove_requests"), 2 * n);
}
