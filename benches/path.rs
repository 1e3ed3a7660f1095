//! The whole path, from submit to completion, over the null store: what the engine itself costs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use moonring::store::NullStore;
use moonring::{Engine, EngineConfig, OpKind, Pair, Submission};

const IN_FLIGHT: usize = 256;

fn engine() -> Engine {
    Engine::builder(Arc::new(NullStore))
        .config(EngineConfig::default().dedicated(OpKind::Lookup, 1))
        .start()
        .expect("the null store needs nothing")
}

/// Distinct keys of 101 bytes, as long as LMCache's.
fn keys() -> Vec<String> {
    (0..4096).map(|i| format!("{i:0>101}")).collect()
}

/// Keeps `IN_FLIGHT` lookups in flight, in bursts, until `n` are done.
fn closed_loop(pair: &mut Pair, keys: &[String], burst: usize, n: u64) -> Duration {
    let started = Instant::now();
    let (mut sent, mut got) = (0, 0);
    while got < n {
        while sent < n && pair.credits() >= burst {
            let mut batch = pair.batch();
            for _ in 0..burst {
                let key = &keys[sent as usize % keys.len()];
                batch
                    .push(Submission::lookup(key).user_data(sent))
                    .expect("there are credits");
                sent += 1;
            }
        }
        match pair.poll() {
            Some(_) => got += 1,
            None => std::hint::spin_loop(),
        }
    }
    started.elapsed()
}

fn throughput(c: &mut Criterion) {
    let keys = keys();
    let mut group = c.benchmark_group("null store, 256 in flight, 1 producer, 1 worker");
    group.throughput(Throughput::Elements(1));
    for burst in [1, 32] {
        group.bench_function(format!("bursts of {burst}"), |b| {
            let engine = engine();
            let mut pair = engine.pair(IN_FLIGHT).expect("a first pair");
            b.iter_custom(|n| {
                let n = n.next_multiple_of(burst as u64);
                closed_loop(&mut pair, &keys, burst, n)
            });
        });
    }
    group.finish();
}

fn round_trip(c: &mut Criterion) {
    let keys = keys();
    let mut group = c.benchmark_group("null store, one op at a time");
    group.bench_function("pair, spinning", |b| {
        let engine = engine();
        let mut pair = engine.pair(1).expect("a first pair");
        b.iter_custom(|n| closed_loop(&mut pair, &keys, 1, n));
    });
    group.bench_function("client, blocking", |b| {
        let engine = engine();
        let client = engine.client();
        let mut next = 0;
        b.iter(|| {
            next += 1;
            client.blocking().lookup(&keys[next % keys.len()])
        });
    });
    group.finish();
}

criterion_group!(benches, throughput, round_trip);
criterion_main!(benches);
