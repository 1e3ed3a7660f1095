//! An axum server: a request's KV blocks are fetched by prefix, missing ones computed and stored; slots are moved in and out.
//!
//! `cargo run --release -p moonring-examples --bin axum_server -- 127.0.0.1:8000 '{"type": "memory"}'`, then
//! `curl -d '{"hash_ids": [1, 2, 3]}' -H 'content-type: application/json' http://127.0.0.1:8000/prefill`.
//! Ctrl-C or SIGTERM: requests under way are answered, then it ends.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Json, State};
use axum::http::StatusCode;
use axum::{Router, routing::post};
use moonring::{
    Client, Engine, L2Adapter, Region, RegionOptions, Shutdown, Slot, SlotClass, SlotPool,
};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

/// Bytes of a block's keys and values; a real model has some MiB.
pub const BLOCK: usize = 4096;
/// How many blocks all requests have in memory at a time.
pub const SLOTS: usize = 2048;

/// What all requests share.
pub struct App {
    client: Client,
    slots: SlotPool,
    /// One permit per slot: requests wait here for room, in their order.
    room: Semaphore,
}

/// A line of a trace is one, too.
#[derive(Deserialize)]
struct Request {
    hash_ids: Vec<u64>,
}

/// Blocks that were read, blocks that were computed, and the sum of all bytes, as a decoder would read them.
type Answer = Json<(usize, usize, u64)>;
type Refusal = (StatusCode, &'static str);

/// What the model computes for a block.
fn compute(id: u64, block: &mut [u8]) {
    block.as_chunks_mut().0.fill(id.to_le_bytes());
}

fn sum(block: &[u8]) -> u64 {
    let words = block.as_chunks().0.iter().copied().map(u64::from_le_bytes);
    words.fold(0, u64::wrapping_add)
}

async fn prefill(
    State(app): State<Arc<App>>,
    Json(Request { hash_ids: ids }): Json<Request>,
) -> Result<Answer, Refusal> {
    if ids.len() > app.slots.total() {
        return Err((StatusCode::PAYLOAD_TOO_LARGE, "more blocks than slots"));
    }
    let room = app.room.acquire_many(ids.len() as u32).await;
    let _room = room.map_err(|_| (StatusCode::SERVICE_UNAVAILABLE, "closing"))?;
    let keys: Vec<String> = ids.iter().map(|id| format!("model@0@0@{id:x}")).collect();

    // Slots move into the ops, and come back with the results.
    let hits = app.client.lookup_prefix(&keys).await.len;
    let lent = keys[..hits].iter().map(|key| Ok((key, app.lend()?)));
    let lent = lent.collect::<Result<Vec<_>, Refusal>>()?;
    let mut got = Vec::with_capacity(hits);
    app.client.retrieve_many(lent, &mut got).await;
    // What was evicted since, or does not come in time, is a miss like others.
    let mut got = got.into_iter().map(|back| back.result.ok().and(back.slot));

    let (mut reused, mut computed, mut total) = (0, Vec::new(), 0_u64);
    for (&id, key) in ids.iter().zip(&keys) {
        if let Some(block) = got.next().flatten() {
            reused += 1;
            total = total.wrapping_add(sum(&block));
            continue;
        }
        let mut slot = app.lend()?;
        compute(id, &mut slot);
        total = total.wrapping_add(sum(&slot));
        computed.push((key, slot));
    }
    let answer = (reused, computed.len(), total);
    // The request is served whether these are stored or not; the statistics tell how they ended.
    app.client.store_many(computed, &mut Vec::new()).await;
    Ok(Json(answer))
}

impl App {
    /// On an engine that has the slots' region.
    pub fn new(engine: &Engine, slots: SlotPool) -> Self {
        let (client, room) = (engine.client(), Semaphore::new(slots.total()));
        Self {
            client,
            slots,
            room,
        }
    }

    /// A slot that a call still writes after its op timed out is back later than its permit.
    fn lend(&self) -> Result<Slot, Refusal> {
        let slot = self.slots.lend(BLOCK);
        slot.ok_or((StatusCode::SERVICE_UNAVAILABLE, "all slots are in use"))
    }

    /// Serves until `end`, then until the requests under way are answered.
    pub async fn serve(
        self,
        listener: TcpListener,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let router = Router::new().route("/prefill", post(prefill));
        let serving = axum::serve(listener, router.with_state(Arc::new(self)));
        serving.with_graceful_shutdown(end).await
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut given = std::env::args().skip(1);
    let address = given.next().unwrap_or_else(|| "127.0.0.1:8000".into());
    let json = given.next();
    let adapter = L2Adapter::parse(json.as_deref().unwrap_or(r#"{"type": "memory"}"#))?;
    let region = Region::allocate(RegionOptions::new(SLOTS * BLOCK))?;
    let (size, count) = (BLOCK, SLOTS);
    let slots = region.slot_pool(&[SlotClass { size, count }])?;
    let store = moonring::store::open(&adapter.store)?.store;
    let engine = Engine::builder(store).config(adapter.engine);
    let engine = engine.region(region).start()?;

    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let end = async move {
        tokio::select! { _ = interrupt.recv() => (), _ = terminate.recv() => () }
    };
    App::new(&engine, slots).serve(listener, end).await?;
    let report = engine.shutdown(Shutdown::Drain, Duration::from_secs(10))?;
    println!(
        "drained: {} ops, {} left",
        report.completed, report.in_flight
    );
    Ok(())
}
