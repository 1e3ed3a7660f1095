//! Many tasks on one thread, as a server with a runtime per core has them: they share a pair, whose ops are futures.
//!
//! What the tasks of one turn of the runtime submit is shown to the workers together, and each task is woken on its own thread. On
//! several threads, or where tasks move between them, a `Client` is the way (see axum_server.rs).
//!
//! `cargo run -p moonring-examples --bin local_tasks`

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use moonring::store::{MemoryOptions, MemoryStore};
use moonring::{
    Done, Engine, LocalClient, Region, RegionOptions, Shutdown, SlotClass, SlotPool, Submission,
};
use tokio::task::{LocalSet, spawn_local};

const BLOCK: usize = 4096;

/// One request: its blocks from the store, or computed and stored. How many there were.
async fn request(client: LocalClient, slots: SlotPool, prompt: usize) -> Result<usize, String> {
    let mut hits = 0;
    for block in 0..16 {
        let key = format!("prompt-{}-block-{block}", prompt % 10);
        let slot = slots.lend(BLOCK).ok_or("all slots are lent")?;
        let got = client.submit(Submission::retrieve(&key, slot)).await;
        // `None` only where a call may still write it; it returns to its pool by itself.
        let mut slot = got.slot.ok_or("the slot is in quarantine")?;
        match got.result {
            Ok(Done::Retrieved(len)) if len == BLOCK as u64 => {
                assert_eq!(slot[0], block as u8);
                hits += 1;
            }
            // Not there, or unknown: computed, and stored for others. Should that fail, nobody is worse off.
            _ => {
                slot.fill(block as u8);
                let _ = client.submit(Submission::store(&key, slot)).await;
            }
        }
    }
    Ok(hits)
}

fn main() -> Result<(), Box<dyn Error>> {
    let region = Region::allocate(RegionOptions::new(1 << 20))?;
    let (size, count) = (BLOCK, 64);
    let slots = region.slot_pool(&[SlotClass { size, count }])?;
    let store = MemoryStore::new(MemoryOptions::default())?;
    let engine = Engine::builder(Arc::new(store)).region(region).start()?;

    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let tasks = LocalSet::new();
    let (client, reactor) = LocalClient::new(engine.pair(64)?);
    tasks.spawn_local(reactor);
    let hits = tasks.run_until(async {
        let mut hits = 0;
        for _ in 0..10 {
            let start = |prompt| spawn_local(request(client.clone(), slots.clone(), prompt));
            for request in (0..40).map(start).collect::<Vec<_>>() {
                hits += request.await??;
            }
        }
        Ok::<_, Box<dyn Error>>(hits)
    });
    let hits = runtime.block_on(hits)?;
    let asked = engine.stats().engine.completed;
    println!("{hits} of 6400 blocks were there, {asked} ops");
    engine.shutdown(Shutdown::Drain, Duration::from_secs(5))?;
    Ok(())
}
