//! The configuration: whatever is given, parsing never panics, and what it accepts prints as what it means.

use moonring::L2Adapter;
use proptest::collection::vec;
use proptest::prelude::*;

/// Parses; if that went well, the effective configuration is a fixed point and holds in every part.
fn check(json: &str) -> Result<bool, TestCaseError> {
    let Ok(adapter) = L2Adapter::parse(json) else {
        return Ok(false);
    };
    prop_assert_eq!(adapter.engine.validate(), Ok(()));
    let printed = adapter.effective().to_string();
    match L2Adapter::parse(&printed) {
        Err(error) => prop_assert!(false, "{json} prints as {printed}, refused: {error}"),
        Ok(again) => {
            prop_assert_eq!(again.effective().to_string(), printed);
            prop_assert_eq!(&again.store, &adapter.store);
            prop_assert!(
                again.warnings().is_empty(),
                "{json}: {:?}",
                again.warnings()
            );
        }
    }
    Ok(true)
}

fn key() -> impl Strategy<Value = String> {
    let names = "type num_workers per_op_workers eviction moonring capacity lease_ms inner seed delay_us \
        delay_ns_per_key delay_ns_per_byte pipe_us pipe_ns_per_key pipe_ns_per_byte key_error_rate call_error_rate wrong_count flip_bytes unwritten swapped \
        panics rate calls op lookup retrieve store delete max_batch max_batch_bytes share_bytes adapt ring_depth \
        max_pairs spin_us cores busy_poll max_key long_keys max_registration setup_timeout protocol local_hostname";
    let names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
    prop_oneof![9 => prop::sample::select(names), 1 => any::<String>()]
}

fn bool() -> BoxedStrategy<String> {
    any::<bool>().prop_map(|b| b.to_string()).boxed()
}

fn quoted(text: String) -> String {
    serde_json::Value::from(text).to_string()
}

fn object(value: impl Strategy<Value = String> + 'static) -> impl Strategy<Value = String> {
    vec((key(), value), 0..5).prop_map(|members| {
        let members: Vec<String> = members
            .into_iter()
            .map(|(k, v)| format!("{}: {v}", quoted(k)))
            .collect();
        format!("{{{}}}", members.join(", "))
    })
}

/// JSON text of any shape, with the words of the configuration in it.
fn any_json() -> impl Strategy<Value = String> {
    const WORDS: [&str; 19] = [
        "\"memory\"",
        "\"null\"",
        "\"sim\"",
        "\"mooncake_store\"",
        "\"auto\"",
        "\"none\"",
        "\"retrieve\"",
        "\"rdma\"",
        "\"64 MiB\"",
        "null",
        "true",
        "false",
        "0",
        "1",
        "2",
        "-1",
        "1e400",
        "0.5",
        "1e-3",
    ];
    let leaf = prop_oneof![
        prop::sample::select(WORDS.as_slice()).prop_map(str::to_owned),
        any::<u64>().prop_map(|n| n.to_string()),
        any::<i64>().prop_map(|n| n.to_string()),
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,5})?([eE][+-]?[0-9]{1,4})?",
        any::<String>().prop_map(quoted),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(", "))),
            object(inner),
        ]
    })
}

/// A configuration that parses, of every type and with every knob in its range.
fn valid_json() -> impl Strategy<Value = String> {
    let member = |name: &'static str, value: BoxedStrategy<String>| {
        prop::option::of(value).prop_map(move |value| value.map(|v| format!("\"{name}\": {v}")))
    };
    let number = |range: std::ops::RangeInclusive<u64>| range.prop_map(|n| n.to_string()).boxed();
    let size = |max: u64| {
        prop_oneof![
            (1..=max).prop_map(|n| n.to_string()),
            (
                1..=max >> 10,
                prop::sample::select(["K", " KB", "KiB"].as_slice())
            )
                .prop_map(|(n, unit)| format!("\"{n}{unit}\"")),
        ]
        .boxed()
    };
    let rate = || {
        (0.0..=1.0f64)
            .prop_map(|r| serde_json::Value::from(r).to_string())
            .boxed()
    };
    let joined = |members: Vec<Option<String>>| {
        let members: Vec<String> = members.into_iter().flatten().collect();
        members.join(", ")
    };
    let braced = move |members: Vec<Option<String>>| format!("{{{}}}", joined(members));
    let workers = || number(1..=62);
    let per_op = vec![
        member("lookup", workers()),
        member("retrieve", workers()),
        member("store", workers()),
        member("delete", workers()),
    ]
    .prop_map(braced);
    let cores = prop_oneof![
        Just("\"auto\"".to_owned()),
        Just("\"none\"".to_owned()),
        prop::collection::hash_set(0..1024u32, 1..6)
            .prop_map(|ids| format!("{ids:?}").replace(['{', '}'], ""))
            .prop_map(|ids| format!("[{ids}]")),
    ];
    let moonring = vec![
        member("max_batch", number(1..=4096)),
        member("max_batch_bytes", size(1 << 40)),
        member("share_bytes", size(1 << 40)),
        member("ring_depth", number(1..=1 << 20)),
        member("max_pairs", number(1..=4096)),
        member("spin_us", number(0..=1_000_000)),
        member("cores", cores.boxed()),
        member("adapt", bool()),
        member("busy_poll", bool()),
        member("max_key", size(1 << 20)),
        member("long_keys", number(0..=65_536)),
        member("max_registration", size(1 << 50)),
        member("setup_timeout", number(1..=3600)),
    ]
    .prop_map(braced);
    let common = vec![
        member("num_workers", workers()),
        member("per_op_workers", per_op.boxed()),
        member("moonring", moonring.boxed()),
        member("eviction", Just("{}".to_owned()).boxed()),
    ];
    let memory = move || {
        vec![
            member("capacity", size(1 << 50)),
            member("lease_ms", number(0..=1_000_000)),
        ]
        .prop_map(joined)
    };
    let fault = move |op: &'static str| {
        let op = prop::option::of(Just(op));
        prop_oneof![
            (rate(), op.clone()).prop_map(|(r, op)| match op {
                Some(op) => format!("{{\"rate\": {r}, \"op\": \"{op}\"}}"),
                None => format!("{{\"rate\": {r}}}"),
            }),
            (prop::collection::btree_set(1..=u64::MAX, 1..5), op).prop_map(|(calls, op)| {
                let calls: Vec<_> = calls.into_iter().collect();
                match op {
                    Some(op) => format!("{{\"calls\": {calls:?}, \"op\": \"{op}\"}}"),
                    None => format!("{{\"calls\": {calls:?}}}"),
                }
            }),
        ]
        .boxed()
    };
    let inner = prop_oneof![
        Just("{\"type\": \"null\"}".to_owned()),
        memory().prop_map(|options| match options.as_str() {
            "" => "{\"type\": \"memory\"}".to_owned(),
            options => format!("{{\"type\": \"memory\", {options}}}"),
        }),
    ];
    let sim = vec![
        member("inner", inner.boxed()),
        member("seed", number(0..=u64::MAX)),
        member("delay_us", number(0..=1_000_000)),
        member("delay_ns_per_key", number(0..=1_000_000)),
        member("delay_ns_per_byte", rate()),
        member("pipe_us", number(0..=1_000_000)),
        member("pipe_ns_per_key", number(0..=1_000_000)),
        member("pipe_ns_per_byte", rate()),
        member("key_error_rate", rate()),
        member("call_error_rate", rate()),
        member("wrong_count", fault("store")),
        member("flip_bytes", fault("retrieve")),
        member("unwritten", fault("retrieve")),
        member("swapped", fault("retrieve")),
        member("panics", fault("delete")),
    ]
    .prop_map(joined);
    let forwarded = vec![
        member("protocol", Just("\"rdma\"".to_owned()).boxed()),
        member("global_segment_size", number(0..=u64::MAX)),
        member("x_float", rate()),
        member("x_text", "[^\0]*".prop_map(quoted).boxed()),
        member("x_null", Just("null".to_owned()).boxed()),
    ]
    .prop_map(joined);
    let store = prop_oneof![
        memory().prop_map(|options| ("memory", options)),
        Just(("null", String::new())),
        sim.prop_map(|options| ("sim", options)),
        forwarded.prop_map(|options| ("mooncake_store", options)),
    ];
    (store, common.prop_map(joined)).prop_map(|((kind, options), common)| {
        let parts = [format!("\"type\": \"{kind}\""), options, common];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        format!("{{{}}}", parts.join(", "))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text(text in any::<String>()) {
        check(&text)?;
    }

    #[test]
    fn any_json_text(json in any_json()) {
        check(&json)?;
    }

    #[test]
    fn any_members_after_a_type(
        kind in prop::sample::select(["memory", "null", "sim", "mooncake_store"].as_slice()),
        members in object(any_json()),
    ) {
        let rest = members.strip_prefix('{').unwrap_or_default();
        let comma = if rest == "}" { "" } else { "," };
        check(&format!("{{\"type\": \"{kind}\"{comma} {rest}"))?;
    }

    #[test]
    fn valid_configurations_parse_and_print_as_themselves(json in valid_json()) {
        prop_assert!(check(&json)?, "{json}: {}", L2Adapter::parse(&json).unwrap_err());
    }

    #[test]
    fn valid_configurations_with_a_byte_changed(json in valid_json(), at in any::<prop::sample::Index>(), byte in 0x20u8..0x7f) {
        let mut bytes = json.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        check(&String::from_utf8_lossy(&bytes))?;
    }
}
