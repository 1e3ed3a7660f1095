//! The contract suite on a real Mooncake: against a storage node of another process, with real transfers over tcp, and in one
//! process that is the storage node too. Each time the master's own counters say that it was asked what the suite asked.
//!
//! By hand it runs against a Mooncake of your own, whose `--l2-adapter` JSON is in `MOONRING_TEST_L2_ADAPTER`:
//! `cargo test --test mooncake_real -- --ignored`.

mod contract;
mod mooncake;
mod standin;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use contract::About;
use mooncake::Mooncake;
use moonring::L2Adapter;
use moonring::store::{
    self, CallResult, Capabilities, DeleteBatch, LookupBatch, OpenOptions, RegisterError,
    RetrieveBatch, Store, StoreBatch, StoreHealth,
};

/// The suite takes 10 s, most of it waiting for a lease to end.
const LIMIT: Duration = Duration::from_secs(150);
/// Long enough for a slow machine to do two things within it.
const LEASE: &str = "--default_kv_lease_ttl=4000";

/// Counts the keys that pass.
struct Counting {
    store: Arc<dyn Store>,
    exists: AtomicU64,
    get: AtomicU64,
    put: AtomicU64,
    remove: AtomicU64,
}

impl Counting {
    fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            exists: AtomicU64::new(0),
            get: AtomicU64::new(0),
            put: AtomicU64::new(0),
            remove: AtomicU64::new(0),
        }
    }
}

impl Store for Counting {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    unsafe fn register(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        // SAFETY: the caller vouches for it.
        unsafe { self.store.register(base, len) }
    }

    unsafe fn unregister(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        // SAFETY: the caller vouches for it.
        unsafe { self.store.unregister(base, len) }
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        self.exists.fetch_add(batch.len() as u64, Relaxed);
        self.store.batch_exists(batch)
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        self.get.fetch_add(batch.len() as u64, Relaxed);
        self.store.batch_get_into(batch)
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        self.put.fetch_add(batch.len() as u64, Relaxed);
        self.store.batch_put_from(batch)
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        self.remove.fetch_add(batch.len() as u64, Relaxed);
        self.store.batch_remove(batch)
    }

    fn health(&self) -> StoreHealth {
        self.store.health()
    }

    fn close(&self) {
        self.store.close();
    }
}

fn keeps_the_contract(name: &str, store: &dyn Store, lease: Duration) {
    let ran = contract::run(
        store,
        &About {
            name,
            prefix: &format!("contract-{}", std::process::id()),
            tells_stored: false,
            leases: true,
            lease,
            let_pass: &std::thread::sleep,
            tells_object_len: false,
            // Over tcp a failed registration is a warning.
            checks_registration: false,
        },
    );
    assert!(ran.checks >= 19 && ran.comparisons >= 400, "{ran:?}");
}

/// Runs the suite on a store of this Mooncake, and compares with what the master has counted.
fn on(name: &str, mooncake: &Mooncake, more: &[(&str, &str)]) {
    let store = mooncake.open_with(more);
    println!("version: {:?}", store.version());
    let before = mooncake.counters();
    let counting = Counting::new(store);
    // The lease, and what the master's clock may be late.
    keeps_the_contract(name, &counting, Duration::from_millis(4_500));
    let after = mooncake.counters();
    let counted = |name| after.since(&before, name);
    for (count, name) in [
        (&counting.exists, "batch_exist_key_items"),
        (&counting.get, "batch_get_replica_list_items"),
        (&counting.put, "batch_put_start_items"),
        (&counting.remove, "remove_requests"),
    ] {
        let count = count.load(Relaxed);
        assert!(count > 300, "{name}: {count}");
        assert_eq!(counted(name), count, "{name}");
    }
    // What was new is written to its end; what was there already is not begun.
    let begun = counted("batch_put_start_items") - counted("batch_put_start_failed_items");
    assert_eq!(counted("batch_put_end_items"), begun);
    assert_eq!(counted("batch_put_end_failed_items"), 0);
    counting.close();
}

#[test]
fn two_processes_keep_the_contract_and_the_master_counts_every_key() {
    let options = ["--segment", "128MB", "--", LEASE];
    let Some(mooncake) = Mooncake::up("contract-two", &options, LIMIT) else {
        return;
    };
    on("mooncake, two processes", &mooncake, &[]);
}

#[test]
fn one_process_that_lends_the_memory_itself_keeps_the_contract_too() {
    let options = ["--", LEASE];
    let Some(mooncake) = Mooncake::up("contract-one", &options, LIMIT) else {
        return;
    };
    // What is stored has nowhere to go but to us.
    mooncake.command("close-node");
    on(
        "mooncake, one process",
        &mooncake,
        &[("global_segment_size", "128MB")],
    );
}

#[test]
#[ignore = "by hand, with MOONRING_TEST_L2_ADAPTER"]
fn a_mooncake_of_your_own_keeps_the_contract() {
    let Ok(json) = std::env::var("MOONRING_TEST_L2_ADAPTER") else {
        println!("SKIPPED: no JSON in MOONRING_TEST_L2_ADAPTER");
        return;
    };
    let adapter = L2Adapter::parse(&json).expect("the JSON of MOONRING_TEST_L2_ADAPTER");
    let options = OpenOptions::new(&adapter.engine);
    let opened = store::open_with(&adapter.store, &options).expect("it opens");
    // Mooncake's default lease.
    keeps_the_contract(
        "mooncake, your own",
        &*opened.store,
        Duration::from_millis(10_500),
    );
    opened.store.close();
}
