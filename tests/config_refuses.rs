//! The configuration: what is refused, by its field, in the same words for JSON and builder.

use moonring::config::*;
use moonring::{ConfigError, EngineConfig, L2Adapter, OpKind};

fn refused(json: &str) -> ConfigError {
    match L2Adapter::parse(json) {
        Ok(adapter) => panic!("accepted {json}: {adapter:?}"),
        Err(error) => error,
    }
}

#[track_caller]
fn assert_refused(json: &str, message: &str) {
    assert_eq!(refused(json).to_string(), message, "{json}");
}

const WORKERS: &str = "want an integer from 1 to 62";

/// What no worker count may be, as JSON and as told.
const BAD_COUNTS: [(&str, &str); 12] = [
    ("0", "0"),
    ("-1", "-1"),
    ("\"2\"", "the string \"2\""),
    ("2.0", "2.0"),
    ("2e0", "2e0"),
    ("true", "true"),
    ("null", "null"),
    ("[2]", "a list"),
    ("{}", "an object"),
    ("63", "63"),
    ("18446744073709551617", "18446744073709551617"),
    ("-0", "-0"),
];

#[test]
fn worker_counts() {
    for (value, told) in BAD_COUNTS {
        for kind in ["memory", "null", "sim", "mooncake_store"] {
            assert_refused(
                &format!(r#"{{"type": "{kind}", "num_workers": {value}}}"#),
                &format!("num_workers: got {told} ({WORKERS})"),
            );
        }
        for op in OpKind::ALL {
            assert_refused(
                &format!(r#"{{"type": "mooncake_store", "per_op_workers": {{"{op}": {value}}}}}"#),
                &format!("per_op_workers.{op}: got {told} ({WORKERS})"),
            );
        }
    }
    for key in ["Lookup", "get", "lookup ", "num_workers", "moonring"] {
        assert_refused(
            &format!(r#"{{"type": "mooncake_store", "per_op_workers": {{"{key}": 2}}}}"#),
            &format!("per_op_workers.{key}: unknown key (want lookup, retrieve, store, delete)"),
        );
    }
    for (value, told) in [
        ("4", "4"),
        ("null", "null"),
        ("[]", "a list"),
        ("\"{}\"", "the string \"{}\""),
    ] {
        assert_refused(
            &format!(r#"{{"type": "null", "per_op_workers": {value}}}"#),
            &format!("per_op_workers: got {told} (want an object)"),
        );
    }
}

/// The builder refuses what JSON refuses, word for word.
#[test]
fn builder_and_json_agree() {
    type Change = fn(EngineConfig) -> EngineConfig;
    let cases: &[(&str, Change)] = &[
        (r#""num_workers": 0"#, |c| c.num_workers(0)),
        (r#""num_workers": 63"#, |c| c.num_workers(63)),
        (r#""per_op_workers": {"lookup": 0}"#, |c| {
            c.dedicated(OpKind::Lookup, 0)
        }),
        (r#""per_op_workers": {"retrieve": 63}"#, |c| {
            c.dedicated(OpKind::Retrieve, 63)
        }),
        (r#""per_op_workers": {"store": 0}"#, |c| {
            c.dedicated(OpKind::Store, 0)
        }),
        (r#""per_op_workers": {"delete": 1000}"#, |c| {
            c.dedicated(OpKind::Delete, 1000)
        }),
        (r#""moonring": {"max_batch": 0}"#, |c| c.max_batch(0)),
        (r#""moonring": {"max_batch": 4097}"#, |c| c.max_batch(4097)),
        (r#""moonring": {"max_batch_bytes": 0}"#, |c| {
            c.max_batch_bytes(0)
        }),
        (
            r#""moonring": {"max_batch_bytes": 9223372036854775808}"#,
            |c| c.max_batch_bytes(1 << 63),
        ),
        (r#""moonring": {"share_bytes": 0}"#, |c| c.share_bytes(0)),
        (r#""moonring": {"ring_depth": 0}"#, |c| c.ring_depth(0)),
        (r#""moonring": {"ring_depth": 1048577}"#, |c| {
            c.ring_depth(1_048_577)
        }),
        (r#""moonring": {"max_pairs": 0}"#, |c| c.max_pairs(0)),
        (r#""moonring": {"max_pairs": 4097}"#, |c| c.max_pairs(4097)),
        (r#""moonring": {"spin_us": 1000001}"#, |c| {
            c.spin_us(1_000_001)
        }),
        (r#""moonring": {"cores": []}"#, |c| {
            c.cores(CoreChoice::List(vec![]))
        }),
        (r#""moonring": {"cores": [0, 2, 0]}"#, |c| {
            c.cores(CoreChoice::List(vec![0, 2, 0]))
        }),
        (r#""moonring": {"cores": [0, 1024]}"#, |c| {
            c.cores(CoreChoice::List(vec![0, 1024]))
        }),
        (r#""moonring": {"max_key": 0}"#, |c| c.max_key(0)),
        (r#""moonring": {"max_key": 1048577}"#, |c| {
            c.max_key(1_048_577)
        }),
        (r#""moonring": {"long_keys": 65537}"#, |c| {
            c.long_keys(65_537)
        }),
        (r#""moonring": {"timeout_ms": {"lookup": 0}}"#, |c| {
            c.timeout_ms(OpKind::Lookup, 0)
        }),
        (r#""moonring": {"timeout_ms": {"delete": 86400001}}"#, |c| {
            c.timeout_ms(OpKind::Delete, 86_400_001)
        }),
        (r#""moonring": {"quarantine_percent": 0}"#, |c| {
            c.quarantine_percent(0)
        }),
        (r#""moonring": {"quarantine_percent": 101}"#, |c| {
            c.quarantine_percent(101)
        }),
        (r#""moonring": {"fail_fast_after": 1000001}"#, |c| {
            c.fail_fast_after(1_000_001)
        }),
        (r#""moonring": {"fail_fast_ms": 0}"#, |c| c.fail_fast_ms(0)),
        (r#""moonring": {"fail_fast_ms": 3600001}"#, |c| {
            c.fail_fast_ms(3_600_001)
        }),
        (r#""moonring": {"setup_timeout": 0}"#, |c| {
            c.setup_timeout(0)
        }),
        (r#""moonring": {"setup_timeout": 3601}"#, |c| {
            c.setup_timeout(3601)
        }),
        (r#""moonring": {"max_registration": 0}"#, |c| {
            c.max_registration(Some(0))
        }),
    ];
    for (json, change) in cases {
        let of_json = refused(&format!(r#"{{"type": "null", {json}}}"#));
        let of_builder = change(EngineConfig::default()).validate().expect_err(json);
        assert_eq!(of_json, of_builder);
        // The field is the one that the JSON names.
        let named = json.trim_start_matches(r#""moonring": {"#);
        let named = named.split('"').nth(1).unwrap();
        assert!(of_json.field().contains(named), "{json}: {of_json}");
    }
}

#[test]
fn engine_knobs() {
    for (knob, message) in [
        (
            r#""max_batch": 0"#,
            "moonring.max_batch: got 0 (want an integer from 1 to 4096)",
        ),
        (
            r#""max_batch": "128""#,
            "moonring.max_batch: got the string \"128\" (want an integer from 1 to 4096)",
        ),
        (
            r#""max_batch": 1.5"#,
            "moonring.max_batch: got 1.5 (want an integer from 1 to 4096)",
        ),
        (
            r#""ring_depth": "4 K""#,
            "moonring.ring_depth: got the string \"4 K\" (want an integer from 1 to 1048576)",
        ),
        (
            r#""max_pairs": false"#,
            "moonring.max_pairs: got false (want an integer from 1 to 4096)",
        ),
        (
            r#""spin_us": -5"#,
            "moonring.spin_us: got -5 (want an integer from 0 to 1000000)",
        ),
        (
            r#""spin_us": 4294967296"#,
            "moonring.spin_us: got 4294967296 (want an integer from 0 to 1000000)",
        ),
        (
            r#""long_keys": null"#,
            "moonring.long_keys: got null (want an integer from 0 to 65536)",
        ),
        (
            r#""adapt": 0"#,
            "moonring.adapt: got 0 (want true or false)",
        ),
        (
            r#""busy_poll": 1"#,
            "moonring.busy_poll: got 1 (want true or false)",
        ),
        (
            r#""busy_poll": "true""#,
            "moonring.busy_poll: got the string \"true\" (want true or false)",
        ),
        (
            r#""busy_poll": null"#,
            "moonring.busy_poll: got null (want true or false)",
        ),
        (
            r#""cores": "all""#,
            "moonring.cores: got the string \"all\" (want \"auto\", \"none\" or a list of core ids)",
        ),
        (
            r#""cores": 2"#,
            "moonring.cores: got 2 (want \"auto\", \"none\" or a list of core ids)",
        ),
        (
            r#""cores": null"#,
            "moonring.cores: got null (want \"auto\", \"none\" or a list of core ids)",
        ),
        (
            r#""cores": []"#,
            "moonring.cores: got an empty list (want \"auto\", \"none\" or a list of core ids)",
        ),
        (
            r#""cores": [0, 2, 4, 2]"#,
            "moonring.cores[3]: core 2 stands twice",
        ),
        (
            r#""cores": [0, "1"]"#,
            "moonring.cores[1]: got the string \"1\" (want an integer from 0 to 1023)",
        ),
        (
            r#""cores": [-1]"#,
            "moonring.cores[0]: got -1 (want an integer from 0 to 1023)",
        ),
        (
            r#""cores": [1024]"#,
            "moonring.cores[0]: got 1024 (want an integer from 0 to 1023)",
        ),
        (
            r#""timeout_ms": 50"#,
            "moonring.timeout_ms: got 50 (want an object)",
        ),
        (
            r#""timeout_ms": null"#,
            "moonring.timeout_ms: got null (want an object)",
        ),
        (
            r#""timeout_ms": {"lookup": 0}"#,
            "moonring.timeout_ms.lookup: got 0 (want an integer from 1 to 86400000)",
        ),
        (
            r#""timeout_ms": {"retrieve": 86400001}"#,
            "moonring.timeout_ms.retrieve: got 86400001 (want an integer from 1 to 86400000)",
        ),
        (
            r#""timeout_ms": {"store": "500"}"#,
            "moonring.timeout_ms.store: got the string \"500\" (want an integer from 1 to 86400000)",
        ),
        (
            r#""timeout_ms": {"delete": 0.5}"#,
            "moonring.timeout_ms.delete: got 0.5 (want an integer from 1 to 86400000)",
        ),
        (
            r#""timeout_ms": {"get": 5}"#,
            "moonring.timeout_ms.get: unknown key (want lookup, retrieve, store, delete)",
        ),
        (
            r#""quarantine_percent": 0"#,
            "moonring.quarantine_percent: got 0 (want an integer from 1 to 100)",
        ),
        (
            r#""quarantine_percent": 101"#,
            "moonring.quarantine_percent: got 101 (want an integer from 1 to 100)",
        ),
        (
            r#""quarantine_percent": "25%""#,
            "moonring.quarantine_percent: got the string \"25%\" (want an integer from 1 to 100)",
        ),
        (
            r#""quarantine_percent": null"#,
            "moonring.quarantine_percent: got null (want an integer from 1 to 100)",
        ),
        (
            r#""fail_fast_after": -1"#,
            "moonring.fail_fast_after: got -1 (want an integer from 0 to 1000000)",
        ),
        (
            r#""fail_fast_after": 1000001"#,
            "moonring.fail_fast_after: got 1000001 (want an integer from 0 to 1000000)",
        ),
        (
            r#""fail_fast_after": false"#,
            "moonring.fail_fast_after: got false (want an integer from 0 to 1000000)",
        ),
        (
            r#""fail_fast_ms": 0"#,
            "moonring.fail_fast_ms: got 0 (want an integer from 1 to 3600000)",
        ),
        (
            r#""fail_fast_ms": 3600001"#,
            "moonring.fail_fast_ms: got 3600001 (want an integer from 1 to 3600000)",
        ),
        (
            r#""max_bach": 5"#,
            "moonring.max_bach: unknown key (want max_batch, max_batch_bytes, share_bytes, adapt, ring_depth, max_pairs, \
             spin_us, cores, busy_poll, max_key, long_keys, max_registration, timeout_ms, quarantine_percent, \
             fail_fast_after, fail_fast_ms, setup_timeout)",
        ),
    ] {
        assert_refused(
            &format!(r#"{{"type": "mooncake_store", "moonring": {{{knob}}}}}"#),
            message,
        );
    }
    // Those that stand beside `moonring`, not in it.
    for key in ["num_workers", "per_op_workers", "type", "eviction"] {
        let error = refused(&format!(
            r#"{{"type": "null", "moonring": {{"{key}": 1}}}}"#
        ));
        assert_eq!(error.field(), format!("moonring.{key}"));
        assert!(error.reason().starts_with("unknown key"), "{error}");
    }
    for value in ["null", "[]", "true", "1"] {
        let error = refused(&format!(r#"{{"type": "null", "moonring": {value}}}"#));
        assert_eq!(error.field(), "moonring");
    }
}

#[test]
fn sizes() {
    let fields = [
        ("memory", "capacity", ""),
        ("null", "moonring.max_batch_bytes", "moonring"),
        ("null", "moonring.share_bytes", "moonring"),
        ("null", "moonring.max_key", "moonring"),
        ("null", "moonring.max_registration", "moonring"),
        ("sim", "inner.capacity", "inner"),
    ];
    for (kind, field, parent) in fields {
        for (value, told) in [
            ("0", "got 0 (want a size from 1 to "),
            ("-1", "got -1 (want a size from 1 to "),
            ("1.5", "got 1.5 (want a size from 1 to "),
            ("1e6", "got 1e6 (want a size from 1 to "),
            ("true", "got true (want a size from 1 to "),
            ("[1]", "got a list (want a size from 1 to "),
            (
                "18446744073709551616",
                "got 18446744073709551616 (want a size from 1 to ",
            ),
            (
                "9223372036854775808",
                "got 9223372036854775808 (want a size from 1 to ",
            ),
            ("\"0\"", "got the string \"0\" (want a size from 1 to "),
            (
                "\"-64MB\"",
                "got the string \"-64MB\", which is negative (want a size from 1 to ",
            ),
            (
                "\"1.5GB\"",
                "got the string \"1.5GB\", which is fractional (want a size from 1 to ",
            ),
            (
                "\"64 XB\"",
                "got the string \"64 XB\", which is of an unknown unit (known: B, KB, MB, GB, TB, each also as K or \
                 KiB) (want a size from 1 to ",
            ),
            (
                "\"99999999 TB\"",
                "got the string \"99999999 TB\", which is over 64 bits (want a size from 1 to ",
            ),
            (
                "\"\"",
                "got the string \"\", which is not a number (want a size from 1 to ",
            ),
            (
                "\"8388608 TB\"",
                "got the string \"8388608 TB\" (want a size from 1 to ",
            ),
        ] {
            let key = field.rsplit('.').next().unwrap();
            let json = match parent {
                "" => format!(r#"{{"type": "{kind}", "{key}": {value}}}"#),
                "inner" => format!(
                    r#"{{"type": "{kind}", "inner": {{"type": "memory", "{key}": {value}}}}}"#
                ),
                _ => format!(r#"{{"type": "{kind}", "{parent}": {{"{key}": {value}}}}}"#),
            };
            let error = refused(&json);
            assert_eq!(error.field(), field, "{json}");
            assert!(error.reason().starts_with(told), "{json}: {error}");
        }
    }
}

#[test]
fn the_type() {
    let want = "(want memory, null, sim or mooncake_store)";
    assert_refused("{}", &format!("type: missing {want}"));
    for (value, told) in [
        ("\"redis\"", "the string \"redis\""),
        ("\"Memory\"", "the string \"Memory\""),
        ("\"\"", "the string \"\""),
        ("null", "null"),
        ("3", "3"),
        ("[\"memory\"]", "a list"),
    ] {
        assert_refused(
            &format!(r#"{{"type": {value}}}"#),
            &format!("type: got {told} {want}"),
        );
    }
}

#[test]
fn unknown_keys_of_our_own_types() {
    let common = "type, num_workers, per_op_workers, eviction, moonring";
    let sim = "inner, seed, delay_us, delay_ns_per_key, delay_ns_per_byte, pipe_us, pipe_ns_per_key, pipe_ns_per_byte, \
               key_error_rate, call_error_rate, wrong_count, flip_bytes, unwritten, swapped, panics";
    for (kind, known) in [
        ("memory", format!("{common}, capacity, lease_ms")),
        ("null", common.to_owned()),
        ("sim", format!("{common}, {sim}")),
    ] {
        for key in ["protocol", "Capacity", "num_worker", "", "a\\nb"] {
            let shown = match key {
                "" => "\"\"",
                key => key,
            };
            assert_refused(
                &format!(r#"{{"type": "{kind}", "{key}": null}}"#),
                &format!("{shown}: unknown key (want {known})"),
            );
        }
    }
    // What belongs to another type.
    assert_eq!(
        refused(r#"{"type": "null", "capacity": 1}"#).field(),
        "capacity"
    );
    assert_eq!(
        refused(r#"{"type": "memory", "delay_us": 1}"#).field(),
        "delay_us"
    );
    assert_eq!(
        refused(r#"{"type": "sim", "capacity": 1}"#).field(),
        "capacity"
    );
}

#[test]
fn eviction_must_be_an_object() {
    for kind in ["memory", "null", "sim", "mooncake_store"] {
        for (value, told) in [
            ("null", "null"),
            ("true", "true"),
            ("\"LRU\"", "the string \"LRU\""),
            ("[]", "a list"),
            ("0", "0"),
        ] {
            assert_refused(
                &format!(r#"{{"type": "{kind}", "eviction": {value}}}"#),
                &format!("eviction: got {told} (want an object)"),
            );
        }
    }
}

#[test]
fn keys_that_stand_twice() {
    for (json, field) in [
        (r#"{"type": "null", "type": "null"}"#, "type"),
        (
            r#"{"type": "mooncake_store", "protocol": "tcp", "protocol": "rdma"}"#,
            "protocol",
        ),
        (
            r#"{"type": "mooncake_store", "protocol": "tcp", "p\u0072otocol": "tcp"}"#,
            "protocol",
        ),
        (r#"{"type": "mooncake_store", "x": null, "x": null}"#, "x"),
        (
            r#"{"num_workers": 1, "type": "null", "num_workers": 2}"#,
            "num_workers",
        ),
        (
            r#"{"type": "null", "per_op_workers": {"store": 1, "store": 1}}"#,
            "per_op_workers.store",
        ),
        (
            r#"{"type": "null", "moonring": {"spin_us": 1, "max_key": 9, "spin_us": 1}}"#,
            "moonring.spin_us",
        ),
        (
            r#"{"type": "sim", "inner": {"type": "null", "type": "memory"}}"#,
            "inner.type",
        ),
        (
            r#"{"type": "sim", "panics": {"rate": 0, "rate": 1}}"#,
            "panics.rate",
        ),
        (
            r#"{"type": "null", "eviction": {"a": [{"b": 1, "b": 2}]}}"#,
            "eviction.a[0].b",
        ),
    ] {
        assert_refused(json, &format!("{field}: stands twice"));
    }
}

#[test]
fn what_cannot_be_forwarded() {
    let want = "want a string, a number, true, false or null";
    for (member, message) in [
        (
            r#""rdma_devices": ["mlx5_0"]"#,
            format!("rdma_devices: got a list ({want})"),
        ),
        (r#""extra": {}"#, format!("extra: got an object ({want})")),
        (
            r#""size": 1e400"#,
            "size: got 1e400 (want a number of less than 400 digits)".to_owned(),
        ),
        (
            r#""local_hostname": "a\u0000b""#,
            "local_hostname: got the string \"a\\0b\" (want a string without NUL)".to_owned(),
        ),
        (
            r#""a\u0000b": 1"#,
            "a\\0b: not a key for Mooncake (want one that is neither empty nor holds a NUL)"
                .to_owned(),
        ),
        (
            r#""": 1"#,
            "\"\": not a key for Mooncake (want one that is neither empty nor holds a NUL)"
                .to_owned(),
        ),
    ] {
        assert_refused(
            &format!(r#"{{"type": "mooncake_store", {member}}}"#),
            &message,
        );
    }
}

#[test]
fn options_of_memory_and_sim() {
    let rate = "(want a number from 0 to 1)";
    for (json, message) in [
        (
            r#"{"type": "memory", "lease_ms": -1}"#,
            "lease_ms: got -1 (want an integer from 0 to 31536000000)".to_owned(),
        ),
        (
            r#"{"type": "memory", "lease_ms": "10s"}"#,
            "lease_ms: got the string \"10s\" (want an integer from 0 to 31536000000)".to_owned(),
        ),
        (
            r#"{"type": "memory", "lease_ms": 18446744073709551615}"#,
            "lease_ms: got 18446744073709551615 (want an integer from 0 to 31536000000)".to_owned(),
        ),
        (
            r#"{"type": "sim", "inner": "memory"}"#,
            "inner: got the string \"memory\" (want an object)".to_owned(),
        ),
        (
            r#"{"type": "sim", "inner": {}}"#,
            "inner.type: missing (want memory or null)".to_owned(),
        ),
        (
            r#"{"type": "sim", "inner": {"type": "sim"}}"#,
            "inner.type: got the string \"sim\" (want memory or null)".to_owned(),
        ),
        (
            r#"{"type": "sim", "inner": {"type": "memory", "num_workers": 1}}"#,
            "inner.num_workers: unknown key (want type, capacity, lease_ms)".to_owned(),
        ),
        (
            r#"{"type": "sim", "inner": {"type": "null", "capacity": 1}}"#,
            "inner.capacity: unknown key (want type)".to_owned(),
        ),
        (
            r#"{"type": "sim", "seed": -1}"#,
            "seed: got -1 (want an integer from 0 to 18446744073709551615)".to_owned(),
        ),
        (
            r#"{"type": "sim", "seed": 1.5}"#,
            "seed: got 1.5 (want an integer from 0 to 18446744073709551615)".to_owned(),
        ),
        (
            r#"{"type": "sim", "delay_us": "200us"}"#,
            "delay_us: got the string \"200us\" (want an integer from 0 to 3600000000)".to_owned(),
        ),
        (
            r#"{"type": "sim", "delay_us": 3600000001}"#,
            "delay_us: got 3600000001 (want an integer from 0 to 3600000000)".to_owned(),
        ),
        (
            r#"{"type": "sim", "delay_ns_per_key": -1}"#,
            "delay_ns_per_key: got -1 (want an integer from 0 to 60000000000)".to_owned(),
        ),
        (
            r#"{"type": "sim", "delay_ns_per_byte": -0.1}"#,
            "delay_ns_per_byte: got -0.1 (want a number from 0 to 1000000)".to_owned(),
        ),
        (
            r#"{"type": "sim", "delay_ns_per_byte": 1e999}"#,
            "delay_ns_per_byte: got 1e999 (want a number from 0 to 1000000)".to_owned(),
        ),
        (
            r#"{"type": "sim", "key_error_rate": 1.01}"#,
            format!("key_error_rate: got 1.01 {rate}"),
        ),
        (
            r#"{"type": "sim", "call_error_rate": "0.1"}"#,
            format!("call_error_rate: got the string \"0.1\" {rate}"),
        ),
        (
            r#"{"type": "sim", "call_error_rate": -1}"#,
            format!("call_error_rate: got -1 {rate}"),
        ),
    ] {
        assert_refused(json, &message);
    }
}

#[test]
fn faults_of_the_sim() {
    let known = "(want rate, calls, op)";
    let calls = "(want a list of call numbers, counted from 1)";
    let call = "(want an integer from 1 to 18446744073709551615)";
    for fault in [
        "wrong_count",
        "flip_bytes",
        "unwritten",
        "swapped",
        "panics",
    ] {
        for (value, message) in [
            ("0.5", ": got 0.5 (want an object)".to_owned()),
            ("null", ": got null (want an object)".to_owned()),
            ("{}", ": neither rate nor calls is given".to_owned()),
            (
                r#"{"op": "retrieve"}"#,
                ": neither rate nor calls is given".to_owned(),
            ),
            (r#"{"rates": 1}"#, format!(".rates: unknown key {known}")),
            (
                r#"{"rate": 1, "seed": 1}"#,
                format!(".seed: unknown key {known}"),
            ),
            (
                r#"{"rate": 1, "calls": [1]}"#,
                ".calls: given along with rate (want one of the two)".to_owned(),
            ),
            (
                r#"{"rate": 2}"#,
                ".rate: got 2 (want a number from 0 to 1)".to_owned(),
            ),
            (
                r#"{"rate": "1%"}"#,
                ".rate: got the string \"1%\" (want a number from 0 to 1)".to_owned(),
            ),
            (r#"{"calls": 3}"#, format!(".calls: got 3 {calls}")),
            (
                r#"{"calls": []}"#,
                format!(".calls: got an empty list {calls}"),
            ),
            (r#"{"calls": [0]}"#, format!(".calls[0]: got 0 {call}")),
            (
                r#"{"calls": [3, 7.0]}"#,
                format!(".calls[1]: got 7.0 {call}"),
            ),
            (
                r#"{"calls": [3, 7, 3]}"#,
                ".calls[2]: call 3 stands twice".to_owned(),
            ),
        ] {
            assert_refused(
                &format!(r#"{{"type": "sim", "{fault}": {value}}}"#),
                &format!("{fault}{message}"),
            );
        }
    }
    // A fault of bytes struck nothing at any other op.
    for fault in ["flip_bytes", "unwritten", "swapped"] {
        assert_refused(
            &format!(r#"{{"type": "sim", "{fault}": {{"rate": 1, "op": "store"}}}}"#),
            &format!("{fault}.op: got the string \"store\" (want retrieve)"),
        );
    }
    for fault in ["wrong_count", "panics"] {
        for (value, told) in [
            ("\"get\"", "the string \"get\""),
            ("1", "1"),
            ("null", "null"),
        ] {
            assert_refused(
                &format!(r#"{{"type": "sim", "{fault}": {{"rate": 1, "op": {value}}}}}"#),
                &format!("{fault}.op: got {told} (want lookup, retrieve, store, delete)"),
            );
        }
    }
}

#[test]
fn what_is_no_object() {
    for (json, told) in [
        ("[]", "a list"),
        ("null", "null"),
        ("\"memory\"", "the string \"memory\""),
        ("3", "3"),
        ("[{\"type\": \"memory\"}]", "a list"),
    ] {
        assert_refused(json, &format!("json: got {told} (want an object)"));
    }
    for json in [
        "",
        "  ",
        "{",
        "{\"type\": \"memory\"",
        "{\"type\": \"memory\"} x",
        "{\"type\": \"memory\",}",
        "{'type': 'memory'}",
        "{\"type\": memory}",
        "{\"type\": \"null\", \"num_workers\": 01}",
        "{\"type\": \"null\", \"num_workers\": NaN}",
        "memory",
    ] {
        let error = refused(json);
        assert_eq!(error.field(), "json", "{json}: {error}");
        assert!(error.reason().contains("line 1 column"), "{json}: {error}");
    }
    // A lone surrogate is a string that no Rust string can hold.
    assert_eq!(
        refused(r#"{"type": "mooncake_store", "x": "\ud800"}"#).field(),
        "x"
    );
}

#[test]
fn errors_stay_one_short_line() {
    let long = "x\\n".repeat(100_000);
    for json in [
        format!(r#"{{"type": "{long}"}}"#),
        format!(r#"{{"type": "null", "{long}": 1}}"#),
        format!(r#"{{"type": "null", "num_workers": "{long}"}}"#),
        format!(r#"{{"type": "mooncake_store", "{long}": []}}"#),
        format!(
            r#"{{"type": "null", "num_workers": {}}}"#,
            "9".repeat(100_000)
        ),
    ] {
        let message = refused(&json).to_string();
        assert!(message.len() < 300, "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn deep_nesting_is_refused_not_recursed_into() {
    for deep in [
        format!("{}{}", "[".repeat(200_000), "]".repeat(200_000)),
        format!(
            r#"{{"type": "null", "eviction": {}1{}}}"#,
            "{\"a\":".repeat(100_000),
            "}".repeat(100_000)
        ),
    ] {
        let error = refused(&deep);
        assert_eq!(error.reason(), "nested deeper than 16 levels");
    }
    let nested = |levels| {
        L2Adapter::parse(&format!(
            r#"{{"type": "null", "eviction": {}1{}}}"#,
            "{\"a\":".repeat(levels),
            "}".repeat(levels)
        ))
    };
    assert!(nested(15).is_ok());
    assert!(nested(16).is_err());
}
