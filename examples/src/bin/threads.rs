//! Threads that block: each has a client, and calls as if the store were a map. What they ask at the same time goes into one store call.
//!
//! `cargo run -p moonring-examples --bin threads`

use std::error::Error;
use std::time::Duration;

use moonring::{
    ClientError, Engine, L2Adapter, OpError, OpKind, Region, RegionOptions, Shutdown, SlotClass,
    SlotPool, store,
};

const THREADS: usize = 8;
const REQUESTS: usize = 100;
const BLOCKS: usize = 16;
const BLOCK: usize = 4096;

/// What the model would compute for this block.
fn compute(id: usize, block: &mut [u8]) {
    block.fill(id as u8);
}

/// Serves one request: what is there is read, what is missing computed and stored. Returns how many blocks were read.
fn serve(
    client: &moonring::Client,
    slots: &SlotPool,
    first: usize,
) -> Result<usize, Box<dyn Error + Send + Sync>> {
    let calls = client.blocking();
    let ids = first..first + BLOCKS;
    let keys: Vec<String> = ids.clone().map(|id| format!("model@0@0@{id:x}")).collect();
    let hits = calls.lookup_prefix(&keys).len;
    let mut read = 0;
    for (at, (id, key)) in ids.zip(&keys).enumerate() {
        let mut slot = slots
            .lend(BLOCK)
            .ok_or("more slots are lent than there are")?;
        if at < hits {
            let got = calls.retrieve_exact(key, slot);
            match (got.result, got.slot) {
                (Ok(_), Some(block)) if block.iter().all(|&byte| byte == id as u8) => {
                    read += 1;
                    continue;
                }
                // It was evicted since: a miss like others.
                (Err(ClientError::Failed(OpError::NotFound)), Some(back)) => slot = back,
                (result, _) => return Err(format!("block {id}: {result:?}").into()),
            }
        }
        compute(id, &mut slot);
        calls.store(key, slot).result?;
    }
    Ok(read)
}

fn main() -> Result<(), Box<dyn Error>> {
    // Lookups have two threads of their own; the other kinds share four.
    let adapter = L2Adapter::parse(
        r#"{"type": "memory", "capacity": "256 MiB", "per_op_workers": {"lookup": 2}}"#,
    )?;
    let region = Region::allocate(RegionOptions::new(THREADS * BLOCK))?;
    let (size, count) = (BLOCK, THREADS);
    let slots = region.slot_pool(&[SlotClass { size, count }])?;
    let store = store::open(&adapter.store)?.store;
    let engine = Engine::builder(store)
        .config(adapter.engine)
        .region(region)
        .start()?;

    let read = std::thread::scope(|scope| {
        let serving: Vec<_> = (0..THREADS)
            .map(|_| {
                let (client, slots) = (engine.client(), slots.clone());
                scope.spawn(move || {
                    // All threads have the same requests.
                    let served =
                        (0..REQUESTS).map(|request| serve(&client, &slots, request * BLOCKS));
                    served.sum::<Result<usize, _>>()
                })
            })
            .collect();
        let joined = serving
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a thread panicked")?);
        joined.sum::<Result<usize, Box<dyn Error + Send + Sync>>>()
    });
    let read = read.map_err(|error| error.to_string())?;
    let stats = engine.stats();
    let stored = stats.lane(OpKind::Store).count("stored");
    println!(
        "{stored} blocks computed first, {read} read; at most {} could be",
        (THREADS - 1) * REQUESTS * BLOCKS
    );
    println!(
        "{:.2} lookups per store call",
        stats.lane(OpKind::Lookup).ops_per_call()
    );
    engine.shutdown(Shutdown::Drain, Duration::from_secs(5))?;
    Ok(())
}
