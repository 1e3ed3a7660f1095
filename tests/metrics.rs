//! Feature `prometheus`: what a scrape tells is what the statistics have, in the conventions' form; and docs/grafana.json
//! asks only for what there is.

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use moonring::metrics::{BUCKETS, Metrics};
use moonring::store::SimOptions;
use moonring::store::sim::When;
use moonring::{Engine, OpError, OpKind, Shutdown};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use serde_json::Value;

const DASHBOARD: &str = include_str!("../docs/grafana.json");
const RUSTDOC: &str = include_str!("../src/metrics.rs");
const OPERATING: &str = include_str!("../docs/operating.md");

fn registry(engine: &Engine) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics::new(engine)));
    registry
}

fn scrape(registry: &Registry) -> String {
    let mut page = String::new();
    text::encode(&mut page, registry).unwrap();
    page
}

/// The value of a series by its full name.
#[track_caller]
fn value(page: &str, series: &str) -> f64 {
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{page}"))
        .parse()
        .unwrap()
}

/// An engine that did some of everything, and its page.
fn used() -> (Engine, String) {
    let store = common::sim(SimOptions {
        call_errors: When::calls_of(OpKind::Store, [2]),
        ..SimOptions::default()
    });
    let (region, pool) = common::slots(64, 4);
    let engine = Engine::builder(store).region(region).start().unwrap();
    let client = engine.client();
    let client = client.blocking();
    let slot = client.store("a", pool.lend(40).unwrap()).slot.unwrap();
    let failed = client.store("b", slot);
    assert!(failed.result.is_err());
    assert_eq!(client.lookup("a"), Ok(true));
    assert_eq!(client.lookup("b"), Ok(false));
    assert_eq!(client.retrieve("a", failed.slot.unwrap()).result, Ok(40));
    assert_eq!(client.delete("b"), Err(OpError::NotFound.into()));
    assert!(client.lookup("").is_err());
    let page = scrape(&registry(&engine));
    (engine, page)
}

#[test]
fn a_scrape_tells_what_the_statistics_have() {
    let _watchdog = common::watchdog();
    let (engine, page) = used();
    let stats = engine.stats();
    assert_eq!(value(&page, "moonring_accepted_total"), 6.0);
    assert_eq!(value(&page, "moonring_refused_total"), 1.0);
    assert_eq!(value(&page, "moonring_in_flight_ops"), 0.0);
    assert_eq!(value(&page, "moonring_pairs"), 0.0);
    let results = [
        ("store", "stored"),
        ("lookup", "present"),
        ("lookup", "absent"),
        ("retrieve", "ok"),
        ("delete", "not_found"),
    ];
    for (op, result) in results {
        let series = format!("moonring_completions_total{{op=\"{op}\",result=\"{result}\"}}");
        assert_eq!(value(&page, &series), 1.0, "{series}");
    }
    for lane in &stats.lanes {
        let op = lane.op;
        let of = |name: &str| value(&page, &format!("moonring_{name}{{op=\"{op}\"}}"));
        assert_eq!(of("store_calls_total"), lane.calls as f64);
        assert_eq!(of("called_ops_total"), lane.ops as f64);
        assert_eq!(of("keys_total"), lane.keys as f64);
        assert_eq!(of("transferred_bytes_total"), lane.bytes as f64);
        assert_eq!(of("batch_bound_keys"), engine.config().max_batch as f64);
        for (name, histogram) in [
            ("op", lane.total()),
            ("queue", lane.queue()),
            ("store_call", lane.call()),
        ] {
            let count = of(&format!("{name}_duration_seconds_count"));
            assert_eq!(count, histogram.len() as f64);
            let sum = of(&format!("{name}_duration_seconds_sum"));
            let wanted = histogram.mean() * histogram.len() as f64 / 1e9;
            assert!(
                (sum - wanted).abs() <= wanted * 0.01,
                "{name} of {op}: {sum}, {wanted}"
            );
            let bucket = |le: &str| {
                value(
                    &page,
                    &format!("moonring_{name}_duration_seconds_bucket{{le=\"{le}\",op=\"{op}\"}}"),
                )
            };
            assert_eq!(bucket("+Inf"), count);
            assert_eq!(bucket("60.0"), count);
        }
    }
    assert_eq!(
        value(&page, "moonring_transferred_bytes_total{op=\"retrieve\"}"),
        40.0
    );
    assert_eq!(BUCKETS.len(), 24);
}

#[test]
fn health_and_circuits() {
    let _watchdog = common::watchdog();
    let store = common::sim(SimOptions {
        call_errors: When::rate(1.0),
        ..SimOptions::default()
    });
    let config = moonring::EngineConfig::default().fail_fast_after(2);
    let engine = Engine::builder(store).config(config).start().unwrap();
    let registry = registry(&engine);
    let healthy = scrape(&registry);
    assert_eq!(value(&healthy, "moonring_health{state=\"healthy\"}"), 1.0);
    assert_eq!(value(&healthy, "moonring_circuit_open{op=\"lookup\"}"), 0.0);
    for _ in 0..2 {
        let _ = engine.client().blocking().lookup("key");
    }
    common::eventually(|| value(&scrape(&registry), "moonring_circuit_open{op=\"lookup\"}") == 1.0);
    let page = scrape(&registry);
    assert_eq!(value(&page, "moonring_health{state=\"healthy\"}"), 0.0);
    assert_eq!(value(&page, "moonring_health{state=\"down\"}"), 1.0);
    assert_eq!(
        value(&page, "moonring_circuit_opened_total{op=\"lookup\"}"),
        1.0
    );
    assert_eq!(value(&page, "moonring_circuit_open{op=\"store\"}"), 0.0);
    engine
        .shutdown(Shutdown::Cancel, Duration::from_secs(10))
        .unwrap();
    drop(engine);
    assert_eq!(scrape(&registry), "# EOF\n", "an engine that is gone");
}

/// The names of the metrics of a page, as they are asked for: with `_total`, `_bucket`, `_sum`, `_count`.
fn names(page: &str) -> BTreeSet<&str> {
    let series = page.lines().filter(|line| !line.starts_with('#'));
    series
        .map(|line| line.split(['{', ' ']).next().unwrap())
        .collect()
}

/// All words of a text that begin with `moonring_`.
fn asked(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("moonring_")).collect()
}

fn strings<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| strings(item, key, found)),
        Value::Object(map) => {
            found.extend(map.get(key).and_then(Value::as_str));
            map.values().for_each(|item| strings(item, key, found));
        }
        _ => {}
    }
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let (_engine, page) = used();
    let there = names(&page);
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut queries = Vec::new();
    strings(&dashboard, "expr", &mut queries);
    assert!(queries.len() >= 10, "{queries:?}");
    let mut used = BTreeSet::new();
    for query in queries {
        assert!(!asked(query).is_empty(), "{query}");
        used.extend(asked(query));
    }
    let missing: Vec<_> = used.difference(&there).collect();
    assert!(missing.is_empty(), "the dashboard asks for {missing:?}");
    // Panels have places of their own.
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels
        .iter()
        .map(|panel| panel["id"].as_u64().unwrap())
        .collect();
    let places: BTreeSet<_> = panels
        .iter()
        .map(|panel| panel["gridPos"].to_string())
        .collect();
    assert_eq!((ids.len(), places.len()), (panels.len(), panels.len()));
}

#[test]
fn the_docs_name_what_there_is() {
    let (_engine, page) = used();
    let of_types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let types: BTreeSet<_> = of_types
        .map(|line| match line.split_once(' ').unwrap() {
            (name, "counter") => format!("{name}_total"),
            (name, _) => name.to_owned(),
        })
        .collect();
    let table = RUSTDOC
        .lines()
        .filter(|line| line.starts_with("//! | `moonring_"));
    let told: BTreeSet<_> = table.flat_map(asked).map(str::to_owned).collect();
    assert_eq!(told, types, "the table in src/metrics.rs");
    let there = names(&page);
    let missing: Vec<_> = asked(OPERATING)
        .into_iter()
        .filter(|name| !there.contains(name))
        .collect();
    assert!(missing.is_empty(), "docs/operating.md: {missing:?}");
}
