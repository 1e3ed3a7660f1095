//! A pair in a task of tokio's: its eventfd in an `AsyncFd`. One task owns the rings; it takes a batch of keys, and answers with the hits.
//!
//! For one op at a time a `Client` is simpler (see axum_server.rs); a pair is for a task that has many.
//!
//! `cargo run -p moonring-examples --bin async_fd`

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use moonring::store::{MemoryOptions, MemoryStore};
use moonring::{
    Done, Engine, EventFd, Pair, Region, RegionOptions, Shutdown, SlotClass, Submission,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

/// Keys, and where the answer goes.
type Question = (Vec<String>, oneshot::Sender<Vec<bool>>);

struct Rings {
    pair: Pair,
    ready: AsyncFd<EventFd>,
}

impl Rings {
    fn new(engine: &Engine, depth: usize) -> Result<Self, Box<dyn Error>> {
        let pair = engine.pair(depth)?;
        // SAFETY: an `EventFd` keeps its descriptor open, and gives the same one for as long as it lives.
        let ready = unsafe { AsyncFd::register(pair.event_fd()?) };
        let ready = ready.map_err(std::io::Error::from)?;
        Ok(Self { pair, ready })
    }

    /// Waits until there is something to reap, without a thread.
    async fn something(&mut self) -> std::io::Result<()> {
        // Armed after the ring was drained. `false`: something came in between.
        if self.pair.arm() {
            self.ready.readable().await?.clear_ready();
        }
        Ok(())
    }

    async fn lookup(&mut self, keys: &[String]) -> Result<Vec<bool>, Box<dyn Error + Send + Sync>> {
        let mut hits = vec![false; keys.len()];
        let (mut submitted, mut answered) = (0, 0);
        while answered < keys.len() {
            // As many as there are credits, by one publication.
            let mut batch = self.pair.batch();
            while submitted < keys.len() && batch.credits() > 0 {
                let op = Submission::lookup(&keys[submitted]).user_data(submitted as u64);
                batch.push(op).map_err(|refused| refused.reason)?;
                submitted += 1;
            }
            batch.publish();
            let mut reaped = 0;
            while let Some(completion) = self.pair.poll() {
                // An error is "unknown": no hit, but no "no" either. This host takes it for a miss.
                hits[completion.user_data as usize] = completion.result == Ok(Done::Present);
                reaped += 1;
            }
            answered += reaped;
            if reaped == 0 {
                self.something().await?;
            }
        }
        Ok(hits)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let region = Region::allocate(RegionOptions::new(1 << 20))?;
    let (size, count) = (64, 64);
    let slots = region.slot_pool(&[SlotClass { size, count }])?;
    let store = MemoryStore::new(MemoryOptions::default())?;
    let engine = Engine::builder(Arc::new(store)).region(region).start()?;
    let client = engine.client();
    for even in (0..1000).step_by(2) {
        let slot = slots.lend(64).ok_or("all slots are lent")?;
        client.store(&format!("key-{even}"), slot).await.result?;
    }

    let (ask, mut questions) = mpsc::channel::<Question>(16);
    let mut rings = Rings::new(&engine, 64)?;
    let owner = async move {
        while let Some((keys, answer)) = questions.recv().await {
            let Ok(hits) = rings.lookup(&keys).await else {
                break;
            };
            // Whoever asked may have gone.
            let _ = answer.send(hits);
        }
    };
    let askers = async {
        let mut hits = 0;
        for part in 0..10 {
            let keys = (100 * part..100 * (part + 1))
                .map(|i| format!("key-{i}"))
                .collect();
            let (answer, answered) = oneshot::channel();
            ask.send((keys, answer)).await?;
            hits += answered.await?.into_iter().filter(|&hit| hit).count();
        }
        drop(ask);
        Ok::<_, Box<dyn Error>>(hits)
    };
    let ((), hits) = tokio::join!(owner, askers);
    println!("{} hits of 1000 keys", hits?);
    engine.shutdown(Shutdown::Drain, Duration::from_secs(5))?;
    Ok(())
}
