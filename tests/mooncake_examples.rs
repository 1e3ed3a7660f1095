//! LMCache's own examples of a `mooncake_store`, on a real Mooncake whose master is the metadata server too: only addresses
//! and sizes are others. And its third case, rdma, as far as a machine without a device goes.

mod mooncake;
mod standin;

use std::time::Duration;

use mooncake::{Mooncake, bridge};
use moonring::store::mooncake::rdma_devices;
use moonring::store::{self, OpenOptions};
use moonring::{Engine, L2Adapter, OpError, Region, RegionOptions, Shutdown, SlotClass};
use moonring::{OpKind, StoreOutcome};
use serde_json::{Map, Value};

const LIMIT: Duration = Duration::from_secs(150);
const KEYS: usize = 64;
const BYTES: usize = 4096;

/// "Shared pool (default)" of LMCache's page `mp/l2_storage/mooncake_store`.
const SHARED_POOL: &str = r#"{
    "type": "mooncake_store",
    "num_workers": 4,
    "local_hostname": "node01",
    "metadata_server": "http://localhost:8080/metadata",
    "master_server_addr": "localhost:50051",
    "protocol": "tcp",
    "local_buffer_size": "3221225472",
    "global_segment_size": "3221225472"
}"#;

/// "Per-operation pools (GET-heavy workload)" of the same page.
const PER_OPERATION_POOLS: &str = r#"{
    "type": "mooncake_store",
    "per_op_workers": {
        "lookup": 2,
        "retrieve": 16,
        "store": 4
    },
    "local_hostname": "node01",
    "metadata_server": "http://localhost:8080/metadata",
    "master_server_addr": "localhost:50051",
    "protocol": "tcp"
}"#;

/// Bytes that no other key has.
fn value(key: usize) -> Vec<u8> {
    let words = (0..BYTES / 8).map(|at| (key * BYTES + at).to_le_bytes());
    words.flatten().collect()
}

/// An example with this Mooncake's addresses, and 64 MiB where it has 3 GiB.
fn here(example: &str, mooncake: &Mooncake) -> String {
    let parse = |json: &str| serde_json::from_str::<Map<String, Value>>(json).expect("an object");
    let up = parse(&mooncake.json(&[]));
    let mut object = parse(example);
    for (key, value) in &mut object {
        match key.as_str() {
            "local_hostname" | "metadata_server" | "master_server_addr" => {
                value.clone_from(&up[key.as_str()]);
            }
            "local_buffer_size" | "global_segment_size" => *value = "64MB".into(),
            _ => {}
        }
    }
    let metadata = object["metadata_server"].as_str().expect("a text");
    assert!(metadata.starts_with("http://127.0.0.1:"), "{metadata}");
    Value::Object(object).to_string()
}

/// Opens a store by its JSON, and an engine on it, and serves from it. What the start report warned of.
fn serves(mooncake: &Mooncake, name: &str, json: &str, workers: &[(OpKind, usize)]) -> Vec<String> {
    let adapter = L2Adapter::parse(json).expect("LMCache's JSON");
    assert_eq!(adapter.warnings(), [] as [String; 0]);
    let region = Region::allocate(RegionOptions::new(2 * KEYS * BYTES)).expect("memory");
    let class = SlotClass {
        size: BYTES,
        count: 2 * KEYS,
    };
    let slots = region.slot_pool(&[class]).expect("slots");
    let options = OpenOptions::new(&adapter.engine).library(bridge());
    let options = options.region(region.base().as_ptr(), region.len());
    let opened = store::open_with(&adapter.store, &options).expect("it opens");
    let engine = Engine::builder(opened.store)
        .config(adapter.engine.clone())
        .region(region)
        .start()
        .expect("it starts");
    for &(op, count) in workers {
        let serving = engine.start_report().workers.iter();
        let serving = serving.filter(|worker| worker.ops.contains(&op)).count();
        assert_eq!(serving, count, "{name}: workers of {op}");
    }

    let before = mooncake.counters();
    let keys: Vec<_> = (0..KEYS).map(|i| format!("{name}@0@{i:064x}")).collect();
    let bytes: Vec<_> = (0..KEYS).map(value).collect();
    let client = engine.client();
    let client = client.blocking();
    let there = |want: bool| {
        let mut found = Vec::new();
        client.lookup_many(&keys, &mut found);
        assert_eq!(found, vec![Ok(want); KEYS], "{name}");
    };

    there(false);
    let mut stored = Vec::new();
    let values = keys.iter().zip(&bytes).map(|(key, bytes)| {
        let mut slot = slots.lend(BYTES).expect("a slot");
        slot.copy_from_slice(bytes);
        (key, slot)
    });
    client.store_many(values.collect::<Vec<_>>(), &mut stored);
    for done in &stored {
        assert_eq!(done.result, Ok(StoreOutcome::Accepted), "{name}");
    }
    drop(stored);
    there(true);
    let mut got = Vec::new();
    let buffers = keys
        .iter()
        .map(|key| (key, slots.lend(BYTES).expect("a slot")));
    client.retrieve_many(buffers.collect::<Vec<_>>(), &mut got);
    for (got, bytes) in got.iter().zip(&bytes) {
        assert_eq!(got.result, Ok(BYTES as u64), "{name}");
        assert!(got.slot.as_deref() == Some(bytes), "{name}: wrong bytes");
    }
    // Just read, so leased: only a forced delete takes them.
    assert_eq!(client.delete(&keys[0]), Err(OpError::Leased.into()));
    for key in &keys {
        assert_eq!(client.delete_forced(key), Ok(()), "{name}: {key}");
    }
    there(false);

    let after = mooncake.counters();
    let keys = KEYS as u64;
    for (counter, count) in [
        ("batch_exist_key_items", 3 * keys),
        ("batch_put_end_items", keys),
        ("batch_get_replica_list_items", keys),
        ("remove_requests", keys + 1),
    ] {
        assert_eq!(after.since(&before, counter), count, "{name}: {counter}");
    }
    let warnings = engine.start_report().warnings.clone();
    let ended = engine.shutdown(Shutdown::Drain, Duration::from_secs(10));
    let ended = ended.expect("it ends");
    assert_eq!((ended.in_flight, ended.not_unregistered.len()), (0, 0));
    warnings
}

#[test]
fn both_examples_of_lmcache_serve_with_the_http_metadata_server() {
    let options = ["--http-metadata", "--segment", "64MB"];
    let Some(mooncake) = Mooncake::up("examples", &options, LIMIT) else {
        return;
    };
    let json = here(SHARED_POOL, &mooncake);
    let warnings = serves(&mooncake, "shared", &json, &OpKind::ALL.map(|op| (op, 4)));
    assert_eq!(warnings, [] as [String; 0]);

    let json = here(PER_OPERATION_POOLS, &mooncake);
    let workers = [
        (OpKind::Lookup, 2),
        (OpKind::Retrieve, 16),
        (OpKind::Store, 4),
        // What has no workers of its own is the shared pool's, LMCache's default of 4.
        (OpKind::Delete, 4),
    ];
    let warnings = serves(&mooncake, "per-op", &json, &workers);
    assert_eq!(warnings, [] as [String; 0]);
}

#[test]
fn rdma_without_a_region_fails_at_creation_and_without_a_device_warns() {
    let options = ["--http-metadata", "--segment", "64MB"];
    let Some(mooncake) = Mooncake::up("rdma", &options, LIMIT) else {
        return;
    };
    let json = here(PER_OPERATION_POOLS, &mooncake).replace(r#""tcp""#, r#""rdma""#);
    let adapter = L2Adapter::parse(&json).expect("JSON");
    let options = OpenOptions::new(&adapter.engine).library(bridge());
    let refused = store::open_with(&adapter.store, &options).map(drop);
    let refused = refused.expect_err("no region").to_string();
    assert!(
        refused.starts_with("protocol: \"rdma\" needs a memory region"),
        "{refused}"
    );

    if !rdma_devices().is_empty() {
        println!("SKIPPED: this machine has RDMA devices");
        return;
    }
    // Mooncake opens, takes tcp and says nothing. We do.
    let warnings = serves(&mooncake, "rdma", &json, &[]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("no RDMA device"), "{warnings:?}");
}
