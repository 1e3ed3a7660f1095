//! The configuration: what is accepted, and that it means what it says.

use moonring::config::*;
use moonring::{EngineConfig, L2Adapter, OpKind};
use serde_json::{Value, json};

/// The first example of LMCache's Mooncake page: one shared pool.
const LMCACHE_SHARED: &str = r#"{
  "type": "mooncake_store",
  "num_workers": 4,
  "local_hostname": "node01",
  "metadata_server": "http://localhost:8080/metadata",
  "master_server_addr": "localhost:50051",
  "protocol": "tcp",
  "local_buffer_size": "3221225472",
  "global_segment_size": "3221225472"
}"#;

/// The second one: workers per op.
const LMCACHE_PER_OP: &str = r#"{
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

fn parse(json: &str) -> L2Adapter {
    L2Adapter::parse(json).unwrap_or_else(|e| panic!("{json}: {e}"))
}

fn mooncake(json: &str) -> MooncakeConfig {
    match parse(json).store {
        StoreConfig::MooncakeStore(mooncake) => mooncake,
        other => panic!("{json}: {other:?}"),
    }
}

fn sim(json: &str) -> SimConfig {
    match parse(json).store {
        StoreConfig::Sim(sim) => *sim,
        other => panic!("{json}: {other:?}"),
    }
}

fn pairs(config: &MooncakeConfig) -> Vec<(&str, &str)> {
    let pairs = config.forwarded.iter();
    pairs.map(|(k, v)| (k.as_str(), v.as_str())).collect()
}

#[test]
fn lmcaches_shared_pool_example() {
    let adapter = parse(LMCACHE_SHARED);
    assert_eq!(adapter.engine, EngineConfig::default());
    assert_eq!(adapter.engine.num_workers, 4);
    assert!(adapter.warnings().is_empty());
    assert!(!adapter.is_rdma());
    assert_eq!(
        pairs(&mooncake(LMCACHE_SHARED)),
        [
            ("local_hostname", "node01"),
            ("metadata_server", "http://localhost:8080/metadata"),
            ("master_server_addr", "localhost:50051"),
            ("protocol", "tcp"),
            ("local_buffer_size", "3221225472"),
            ("global_segment_size", "3221225472"),
        ]
    );
}

#[test]
fn lmcaches_per_op_example() {
    let engine = parse(LMCACHE_PER_OP).engine;
    assert_eq!(engine.num_workers, 4);
    let per_op = PerOp {
        lookup: Some(2),
        retrieve: Some(16),
        store: Some(4),
        delete: None,
    };
    assert_eq!(engine.per_op_workers, per_op);
    assert!(engine.has_shared_pool());
    assert_eq!(
        pairs(&mooncake(LMCACHE_PER_OP)),
        [
            ("local_hostname", "node01"),
            ("metadata_server", "http://localhost:8080/metadata"),
            ("master_server_addr", "localhost:50051"),
            ("protocol", "tcp"),
        ]
    );
}

#[test]
fn forwarded_values_become_strings() {
    let config = mooncake(
        r#"{"type": "mooncake_store", "z": 3221225472, "big": 123456789012345678901234567890,
            "exp": 1e9, "small": 1e-7, "half": 0.5, "whole": 2.0, "neg": -3, "yes": true, "no": false,
            "text": " as \"is\" é\n", "gone": null, "empty": "",
            "num_workers": 2, "per_op_workers": {"store": 1}, "eviction": {"policy": "lru"},
            "moonring": {"max_batch": 7}, "a.b/ü": "last"}"#,
    );
    assert_eq!(
        pairs(&config),
        [
            ("z", "3221225472"),
            ("big", "123456789012345678901234567890"),
            ("exp", "1000000000"),
            ("small", "0.0000001"),
            ("half", "0.5"),
            ("whole", "2.0"),
            ("neg", "-3"),
            ("yes", "true"),
            ("no", "false"),
            ("text", " as \"is\" é\n"),
            ("empty", ""),
            ("a.b/ü", "last"),
        ]
    );
    assert_eq!(config.get("exp"), Some("1000000000"));
    for ours in [
        "type",
        "num_workers",
        "per_op_workers",
        "eviction",
        "moonring",
        "gone",
    ] {
        assert_eq!(config.get(ours), None, "{ours}");
    }
}

#[test]
fn every_knob_is_read() {
    let adapter = parse(
        r#"{"type": "null", "num_workers": 62, "per_op_workers": {"delete": 62, "lookup": 1},
            "moonring": {"max_batch": 4096, "max_batch_bytes": "1 GB", "share_bytes": 1, "adapt": false, "ring_depth": 1048576,
              "max_pairs": 4096, "spin_us": 1000000, "cores": [4, 0, 1023], "busy_poll": true, "max_key": "1MiB",
              "long_keys": 65536, "max_registration": "16MB",
              "timeout_ms": {"delete": 86400000, "lookup": 1}, "quarantine_percent": 100,
              "fail_fast_after": 1000000, "fail_fast_ms": 3600000, "setup_timeout": 3600}}"#,
    );
    let built = EngineConfig::default()
        .num_workers(62)
        .dedicated(OpKind::Delete, 62)
        .dedicated(OpKind::Lookup, 1)
        .max_batch(4096)
        .max_batch_bytes(1 << 30)
        .adapt(false)
        .share_bytes(1)
        .ring_depth(1 << 20)
        .max_pairs(4096)
        .spin_us(1_000_000)
        .cores(CoreChoice::List(vec![4, 0, 1023]))
        .busy_poll(true)
        .max_key(1 << 20)
        .long_keys(65_536)
        .max_registration(Some(16 << 20))
        .timeout_ms(OpKind::Delete, 86_400_000)
        .timeout_ms(OpKind::Lookup, 1)
        .quarantine_percent(100)
        .fail_fast_after(1_000_000)
        .fail_fast_ms(3_600_000)
        .setup_timeout(3600);
    assert_eq!(built.validate(), Ok(()));
    assert_eq!(adapter.engine, built);
    assert!(adapter.warnings().is_empty());
}

#[test]
fn the_lowest_values_are_in_range() {
    let adapter = parse(
        r#"{"type": "null", "num_workers": 1, "per_op_workers": {},
            "moonring": {"max_batch": 1, "max_batch_bytes": 1, "share_bytes": 1, "ring_depth": 1, "max_pairs": 1,
              "spin_us": 0, "cores": "none", "max_key": 1, "long_keys": 0, "max_registration": null,
              "timeout_ms": {"retrieve": 1, "store": null}, "quarantine_percent": 1,
              "fail_fast_after": 0, "fail_fast_ms": 1}}"#,
    );
    assert_eq!(adapter.engine.per_op_workers, PerOp::default());
    assert_eq!(adapter.engine.cores, CoreChoice::None);
    assert_eq!(adapter.engine.max_registration, None);
    assert_eq!(adapter.engine.long_keys, 0);
    let timeouts = OpKind::ALL.map(|op| adapter.engine.timeout_ms[op]);
    assert_eq!(timeouts, [None, Some(1), None, None]);
    assert_eq!(adapter.engine.quarantine_percent, 1);
    let fail_fast = (adapter.engine.fail_fast_after, adapter.engine.fail_fast_ms);
    assert_eq!(fail_fast, (0, 1));
    assert!(adapter.warnings().is_empty());
    let auto = parse(r#"{"type": "null", "moonring": {"cores": "auto"}}"#);
    assert_eq!(auto.engine.cores, CoreChoice::Auto);
}

#[test]
fn the_documented_defaults() {
    assert_eq!(L2Adapter::default(), parse(r#"{"type": "memory"}"#));
    assert_eq!(
        L2Adapter::default().effective(),
        json!({
            "type": "memory",
            "num_workers": 4,
            "per_op_workers": {},
            "capacity": 2147483648_u64,
            "lease_ms": 10000,
            "moonring": {
                "max_batch": 256,
                "max_batch_bytes": 67108864,
                "share_bytes": 1048576,
                "adapt": true,
                "ring_depth": 4096,
                "max_pairs": 512,
                "spin_us": 20,
                "cores": "auto",
                "busy_poll": false,
                "max_key": 1024,
                "long_keys": 16,
                "max_registration": null,
                "timeout_ms": {},
                "quarantine_percent": 25,
                "fail_fast_after": 5,
                "fail_fast_ms": 500,
                "setup_timeout": 30,
            },
        })
    );
    assert_eq!(EngineConfig::default().validate(), Ok(()));
}

#[test]
fn the_effective_configuration_prints_in_one_order() {
    let adapter = parse(
        r#"{"moonring": {"timeout_ms": {"store": 500, "delete": null, "lookup": 50}, "cores": [1]}, "lease_ms": 0, "capacity": "64 MiB", "per_op_workers": {"store": 2, "lookup": 1},
            "num_workers": 3, "type": "memory"}"#,
    );
    assert_eq!(
        adapter.effective().to_string(),
        concat!(
            r#"{"type":"memory","num_workers":3,"per_op_workers":{"lookup":1,"store":2},"capacity":67108864,"#,
            r#""lease_ms":0,"moonring":{"max_batch":256,"max_batch_bytes":67108864,"share_bytes":1048576,"adapt":true,"#,
            r#""ring_depth":4096,"max_pairs":512,"spin_us":20,"cores":[1],"busy_poll":false,"max_key":1024,"#,
            r#""long_keys":16,"max_registration":null,"timeout_ms":{"lookup":50,"store":500},"#,
            r#""quarantine_percent":25,"fail_fast_after":5,"fail_fast_ms":500,"setup_timeout":30}}"#
        )
    );
}

#[test]
fn effective_values_are_those_that_count() {
    let knob = |json: &str, name: &str| parse(json).effective()["moonring"][name].clone();
    for (given, effective) in [
        (1, 1),
        (3, 4),
        (4096, 4096),
        (4097, 8192),
        (1048575, 1048576),
    ] {
        let json = format!(r#"{{"type": "null", "moonring": {{"ring_depth": {given}}}}}"#);
        assert_eq!(knob(&json, "ring_depth"), effective, "{given}");
        assert_eq!(
            parse(&json).engine.ring_depth,
            given,
            "as given in the struct"
        );
    }
    // The default share is over a small bound of the batch: no warning, but the bound is what counts.
    let small = r#"{"type": "null", "moonring": {"max_batch_bytes": "64K"}}"#;
    assert_eq!(knob(small, "share_bytes"), 65536);
    assert!(parse(small).warnings().is_empty());
    // Nobody is left to the shared pool: no number of it is shown.
    let all = r#"{"type": "null", "per_op_workers": {"lookup": 1, "retrieve": 1, "store": 1, "delete": 1}}"#;
    assert!(!parse(all).engine.has_shared_pool());
    assert_eq!(parse(all).effective().get("num_workers"), None);
}

#[test]
fn what_has_no_effect_is_warned_of_once() {
    for kind in ["memory", "null", "sim", "mooncake_store"] {
        let adapter = parse(&format!(
            r#"{{"type": "{kind}", "eviction": {{"policy": "LRU", "x": [1, {{}}]}}}}"#
        ));
        assert_eq!(
            adapter.warnings(),
            ["eviction: neither applied nor forwarded; eviction is the host's, by the delete lane"],
            "{kind}"
        );
        assert_eq!(adapter.effective().get("eviction"), None, "{kind}");
    }
    let dedicated = r#""per_op_workers": {"lookup": 1, "retrieve": 1, "store": 1, "delete": 1}, "type": "null""#;
    assert!(parse(&format!("{{{dedicated}}}")).warnings().is_empty());
    assert_eq!(
        parse(&format!(r#"{{"num_workers": 4, {dedicated}}}"#)).warnings(),
        ["num_workers: no effect, because every op kind has workers of its own"]
    );
    assert_eq!(
        parse(r#"{"type": "null", "moonring": {"share_bytes": 9, "max_batch_bytes": 8}}"#)
            .warnings(),
        ["moonring.share_bytes: no effect, because it is over max_batch_bytes"]
    );
}

#[test]
fn the_memory_store() {
    let memory = |json: &str| match parse(json).store {
        StoreConfig::Memory(memory) => (memory.capacity, memory.lease_ms),
        other => panic!("{other:?}"),
    };
    assert_eq!(memory(r#"{"type": "memory"}"#), (2 << 30, 10_000));
    assert_eq!(
        memory(r#"{"type": "memory", "capacity": "256MB", "lease_ms": 0}"#),
        (256 << 20, 0)
    );
    assert_eq!(
        memory(r#"{"type": "memory", "capacity": "256 MiB"}"#),
        memory(r#"{"type": "memory", "capacity": 268435456}"#)
    );
}

#[test]
fn the_sim_store() {
    assert_eq!(sim(r#"{"type": "sim"}"#), SimConfig::default());
    assert_eq!(
        SimConfig::default().inner,
        InnerStore::Memory(MemoryConfig::default())
    );
    let all = sim(
        r#"{"type": "sim", "inner": {"type": "memory", "capacity": "1G", "lease_ms": 5},
            "seed": 18446744073709551615, "delay_us": 200, "delay_ns_per_key": 30, "delay_ns_per_byte": 0.125,
            "pipe_us": 31, "pipe_ns_per_key": 32, "pipe_ns_per_byte": 0.5,
            "key_error_rate": 0.01, "call_error_rate": 1e-3,
            "wrong_count": {"rate": 0.5}, "flip_bytes": {"calls": [3, 7]}, "unwritten": {"op": "retrieve", "rate": 1},
            "swapped": {"rate": 0}, "panics": {"calls": [500], "op": "store"}}"#,
    );
    let InnerStore::Memory(inner) = &all.inner else {
        panic!("{all:?}");
    };
    assert_eq!((inner.capacity, inner.lease_ms), (1 << 30, 5));
    assert_eq!(all.seed, u64::MAX);
    assert_eq!((all.delay_us, all.delay_ns_per_key), (200, 30));
    assert_eq!(all.delay_ns_per_byte, 0.125);
    assert_eq!((all.pipe_us, all.pipe_ns_per_key), (31, 32));
    assert_eq!(all.pipe_ns_per_byte, 0.5);
    assert_eq!((all.key_error_rate, all.call_error_rate), (0.01, 0.001));
    let fault = |fault: &Option<Fault>| fault.clone().map(|f| (f.when, f.op));
    let retrieve = Some(OpKind::Retrieve);
    assert_eq!(
        fault(&all.wrong_count),
        Some((FaultWhen::Rate(0.5), None)),
        "any op"
    );
    assert_eq!(
        fault(&all.flip_bytes),
        Some((FaultWhen::Calls(vec![3, 7]), retrieve)),
        "of retrieves without saying so"
    );
    assert_eq!(
        fault(&all.unwritten),
        Some((FaultWhen::Rate(1.0), retrieve))
    );
    assert_eq!(fault(&all.swapped), Some((FaultWhen::Rate(0.0), retrieve)));
    assert_eq!(
        fault(&all.panics),
        Some((FaultWhen::Calls(vec![500]), Some(OpKind::Store)))
    );
    assert_eq!(
        sim(r#"{"type": "sim", "inner": {"type": "null"}}"#).inner,
        InnerStore::Null
    );
}

#[test]
fn the_effective_configuration_parses_to_itself() {
    for json in [
        LMCACHE_SHARED,
        LMCACHE_PER_OP,
        r#"{"type": "null", "per_op_workers": {"lookup": 1, "retrieve": 2, "store": 3, "delete": 4}}"#,
        r#"{"type": "memory", "capacity": "3 GB", "moonring": {"ring_depth": 5, "max_registration": "16 MB"}}"#,
        r#"{"type": "mooncake_store", "n": 1e3, "t": true, "u": "\u0001 é", "eviction": {}}"#,
        r#"{"type": "sim", "inner": {"type": "null"}, "delay_ns_per_byte": 0.1, "key_error_rate": 1e-7,
            "panics": {"calls": [9, 1], "op": "lookup"}, "flip_bytes": {"rate": 0.25}}"#,
    ] {
        let first = parse(json).effective();
        let second = parse(&first.to_string());
        assert_eq!(second.effective().to_string(), first.to_string());
        assert!(second.warnings().is_empty(), "{json}");
    }
}

/// A field of every object of the effective configuration, with another value than the default: none is lost.
#[test]
fn nothing_is_accepted_and_dropped() {
    let given: Value = json!({
        "type": "sim", "num_workers": 2, "per_op_workers": {"lookup": 3, "retrieve": 4, "store": 5},
        "inner": {"type": "memory", "capacity": 7, "lease_ms": 8},
        "seed": 9, "delay_us": 10, "delay_ns_per_key": 11, "delay_ns_per_byte": 12.5,
        "pipe_us": 32, "pipe_ns_per_key": 33, "pipe_ns_per_byte": 34.5,
        "key_error_rate": 0.25, "call_error_rate": 0.5,
        "wrong_count": {"calls": [1], "op": "delete"}, "flip_bytes": {"calls": [2], "op": "retrieve"},
        "unwritten": {"calls": [3], "op": "retrieve"}, "swapped": {"calls": [4], "op": "retrieve"},
        "panics": {"rate": 0.125, "op": "lookup"},
        "moonring": {
            "max_batch": 13, "max_batch_bytes": 14, "share_bytes": 12, "adapt": false, "ring_depth": 16, "max_pairs": 17,
            "spin_us": 18, "cores": [19, 20], "busy_poll": true, "max_key": 2100, "long_keys": 22,
            "max_registration": 23, "timeout_ms": {"lookup": 25, "retrieve": 26, "store": 27, "delete": 28},
            "quarantine_percent": 29, "fail_fast_after": 30, "fail_fast_ms": 31, "setup_timeout": 24,
        },
    });
    assert_eq!(parse(&given.to_string()).effective(), given);
}

#[test]
fn rdma_demands_a_region_and_tcp_none() {
    let rdma = parse(r#"{"type": "mooncake_store", "protocol": "rdma"}"#);
    assert!(rdma.is_rdma());
    for (region, told) in [
        (None, "none was given"),
        (Some((0, 4096)), "its pointer is null"),
        (Some((0, 0)), "its pointer is null"),
        (Some((4096, 0)), "its size is 0"),
    ] {
        let error = rdma.check_region(region).expect_err(told);
        assert_eq!(error.field(), "protocol");
        assert_eq!(
            error.reason(),
            format!("\"rdma\" needs a memory region to register, and {told}")
        );
    }
    assert_eq!(rdma.check_region(Some((4096, 1))), Ok(()));
    for none_needed in [
        r#"{"type": "mooncake_store", "protocol": "tcp"}"#,
        r#"{"type": "mooncake_store"}"#,
        r#"{"type": "mooncake_store", "protocol": null}"#,
        r#"{"type": "memory"}"#,
        r#"{"type": "sim"}"#,
    ] {
        let adapter = parse(none_needed);
        assert!(!adapter.is_rdma());
        assert_eq!(adapter.check_region(None), Ok(()));
        assert_eq!(adapter.check_region(Some((0, 0))), Ok(()));
    }
}
