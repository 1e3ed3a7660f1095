//! The contract suite on the embedded stores, and on stores that break it.

mod contract;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use contract::About;
use moonring::OpKind;
use moonring::store::memory::ManualClock;
use moonring::store::sim::When;
use moonring::store::{
    CallResult, Capabilities, DeleteBatch, LookupBatch, MemoryOptions, MemoryStore, RetrieveBatch,
    SimOptions, SimStore, Store, StoreBatch, direct,
};

const LEASE: Duration = Duration::from_secs(10);

fn about<'a>(name: &'a str, let_pass: &'a dyn Fn(Duration)) -> About<'a> {
    About {
        name,
        prefix: "contract",
        tells_stored: true,
        leases: true,
        lease: LEASE,
        let_pass,
        tells_object_len: true,
        checks_registration: true,
    }
}

fn memory(options: MemoryOptions) -> (Arc<MemoryStore>, ManualClock) {
    let clock = ManualClock::new();
    let options = MemoryOptions {
        lease: LEASE,
        clock: clock.clock(),
        ..options
    };
    (Arc::new(MemoryStore::new(options).unwrap()), clock)
}

/// Runs the suite; afterwards nothing is left.
fn run(name: &str, options: MemoryOptions, wrap: impl FnOnce(Arc<MemoryStore>) -> Arc<dyn Store>) {
    let (memory, clock) = memory(options);
    let store = wrap(memory.clone());
    let ran = contract::run(&*store, &about(name, &|by| clock.advance(by)));
    assert!(
        ran.checks >= 19 && ran.comparisons >= 400,
        "{name}: {ran:?}"
    );
    assert_eq!((memory.used_bytes(), memory.objects()), (0, 0), "{name}");
    assert_eq!(memory.registrations(), 0, "{name}");
}

#[test]
fn memory_keeps_the_contract() {
    run("memory", MemoryOptions::default(), |memory| memory);
}

#[test]
fn memory_of_one_shard_keeps_the_contract() {
    let options = MemoryOptions {
        shards: 1,
        ..MemoryOptions::default()
    };
    run("memory, one shard", options, |memory| memory);
}

#[test]
fn memory_that_needs_registration_keeps_the_contract() {
    let options = MemoryOptions {
        needs_registration: true,
        ..MemoryOptions::default()
    };
    run("memory, needs registration", options, |memory| memory);
}

#[test]
fn memory_with_a_real_clock_keeps_the_contract() {
    let lease = Duration::from_secs(1);
    let options = MemoryOptions {
        lease,
        ..MemoryOptions::default()
    };
    let store = MemoryStore::new(options).unwrap();
    let about = About {
        lease,
        ..about("memory, real clock", &std::thread::sleep)
    };
    contract::run(&store, &about);
}

#[test]
fn sim_without_faults_keeps_the_contract() {
    let options = SimOptions {
        delay: Duration::from_micros(10),
        delay_ns_per_key: 10.0,
        delay_ns_per_byte: 0.01,
        ..SimOptions::default()
    };
    run("sim over memory", MemoryOptions::default(), |memory| {
        Arc::new(SimStore::new(memory, options).unwrap())
    });
}

/// The suite must fail on this store, in this check.
fn must_fail(name: &str, check: &str, wrap: impl FnOnce(Arc<MemoryStore>) -> Arc<dyn Store>) {
    let (memory, clock) = memory(MemoryOptions::default());
    let store = wrap(memory);
    let let_pass = |by| clock.advance(by);
    let about = about(name, &let_pass);
    let run = AssertUnwindSafe(|| contract::run(&*store, &about));
    let failed = std::panic::catch_unwind(run).expect_err(name);
    let why = failed.downcast_ref::<String>().expect("a message");
    assert!(
        why.contains(check),
        "{name}: not by the check {check:?}: {why}"
    );
}

#[test]
fn the_suite_catches_spoiled_bytes_and_results() {
    let always = || When::rate(1.0);
    let round = "what was put is got";
    let cases: [(&str, &str, SimOptions); 6] = [
        (
            "flips",
            round,
            SimOptions {
                flips: always(),
                ..SimOptions::default()
            },
        ),
        (
            "unwritten",
            round,
            SimOptions {
                unwritten: always(),
                ..SimOptions::default()
            },
        ),
        (
            "swaps",
            "odd keys",
            SimOptions {
                swaps: always(),
                ..SimOptions::default()
            },
        ),
        (
            "wrong counts",
            "a missing key is absent",
            SimOptions {
                wrong_counts: always(),
                ..SimOptions::default()
            },
        ),
        (
            "delete errors",
            "a missing key is absent",
            SimOptions {
                key_errors: always().only(OpKind::Delete),
                ..SimOptions::default()
            },
        ),
        (
            "store call errors",
            round,
            SimOptions {
                call_errors: always().only(OpKind::Store),
                ..SimOptions::default()
            },
        ),
    ];
    for (name, check, options) in cases {
        must_fail(name, check, |memory| {
            Arc::new(SimStore::new(memory, options).unwrap())
        });
    }
}

/// Memory that breaks one promise.
struct Wrong {
    memory: Arc<MemoryStore>,
    how: How,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    Overwrites,
    LeasesAtPut,
    NoLeaseAtLookup,
    ForgetsForce,
    OneKeyIsAsGoodAsAnother,
    ZeroesTheTail,
}

impl Store for Wrong {
    fn name(&self) -> &str {
        "wrong"
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        if self.how == How::NoLeaseAtLookup {
            // A put of a key that is there tells so without a lease.
            for i in 0..batch.len() {
                let key = batch.key(i);
                let put = direct::put_from(&*self.memory, &[(key, b"?")]).unwrap();
                let there = put[0] != Ok(moonring::StoreOutcome::Stored);
                if !there {
                    direct::remove(&*self.memory, &[key], true).unwrap()[0].unwrap();
                }
                batch.set(i, Ok(there));
            }
            return Ok(batch.len());
        }
        self.memory.batch_exists(batch)
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        let answer = self.memory.batch_get_into(batch);
        for i in 0..batch.len() {
            match self.how {
                How::ZeroesTheTail => {
                    let mut whole = vec![0; batch.buf_lens()[i]];
                    let key = batch.key(i);
                    let got = direct::get_into(&*self.memory, &mut [(key, &mut whole)]).unwrap();
                    if got[0].is_ok() {
                        batch.fill(i, &whole);
                        batch.set(i, got[0]);
                    }
                }
                // Objects of 100 bytes all read as this.
                How::OneKeyIsAsGoodAsAnother if batch.buf_lens()[i] == 100 => {
                    batch.fill(i, &[1; 100]);
                }
                _ => {}
            }
        }
        answer
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            let key = batch.key(i);
            if self.how == How::Overwrites {
                direct::remove(&*self.memory, &[key], true).unwrap();
            }
        }
        let answer = self.memory.batch_put_from(batch);
        for i in 0..batch.len() {
            if self.how == How::LeasesAtPut {
                direct::exists(&*self.memory, &[batch.key(i)]).unwrap();
            }
        }
        answer
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        if self.how == How::ForgetsForce {
            for i in 0..batch.len() {
                let gone = direct::remove(&*self.memory, &[batch.key(i)], false).unwrap();
                batch.set(i, gone[0]);
            }
            return Ok(batch.len());
        }
        self.memory.batch_remove(batch)
    }
}

#[test]
fn the_suite_catches_broken_promises() {
    for (name, how, check) in [
        ("overwrites", How::Overwrites, "immutable"),
        ("leases at put", How::LeasesAtPut, "a put takes no lease"),
        (
            "no lease at lookup",
            How::NoLeaseAtLookup,
            "a lookup takes a lease",
        ),
        ("forgets force", How::ForgetsForce, "what was put is got"),
        ("one key", How::OneKeyIsAsGoodAsAnother, "odd keys"),
        (
            "zeroes the tail",
            How::ZeroesTheTail,
            "a larger buffer: true length, tail untouched",
        ),
    ] {
        must_fail(name, check, |memory| Arc::new(Wrong { memory, how }));
    }
}
