//! Moonring: an io_uring-style, lock-free submission engine in front of Mooncake Store, the distributed KV-cache store of
//! LLM serving.
//!
//! Callers write operation descriptors (lookup, retrieve, store, delete) into lock-free rings and go on. Pinned workers drain
//! the rings, **merge what many callers asked** into few batched store calls against one registered memory region, and
//! answer through a completion ring, an eventfd, or `.await`.
//!
//! # What is promised
//! 1. Every accepted op gets exactly one terminal completion, whatever happens: store error, store panic, deadline, cancel,
//!    shutdown, dropped future; and exactly one release notice if and only if that completion carried
//!    [`more`](Completion::more). A refused op comes back whole.
//! 2. No completion is lost, and none overflows: [`depth`](Pair::depth) counts credits, and there is room for the notices of
//!    each.
//! 3. The bytes of an op belong to the engine until the op is released; with slots the types say so. An op whose time is up
//!    during a store call ends then, and its bytes are in quarantine until the call returns.
//! 4. Merging adds no wait: an idle lane sends at once what is there, a busy one grows its batches by itself. Each op has its
//!    own result. A batch waits for its slowest key, and an op with a deadline no longer than that.
//! 5. A key stands in a store call at most once; each of several equal retrieves is settled against its own buffer.
//! 6. **No order is promised** between accepted ops, not even of one key: wait for a completion before depending on it.
//!    Starvation is bounded: in a shared pool no kind holds all workers, and each gets at least 1 take in 8; background ops
//!    ([`Class`]) get at least 1 in 8 of the takes of their kind at which they wait.
//! 7. A lookup answers yes, no or unknown; an error is never "no".
//! 8. After warm-up nothing is allocated by the engine for ops on pairs and clients with keys of 1 to 255 bytes.
//! 9. Idle costs nothing: spin briefly, then park; wake only a sleeper; no wake is lost.
//! 10. Bad input is refused at submit, bad configuration at start, each with an error that names it.
//! 11. [`shutdown`](Engine::shutdown) stops intake, ends what is queued, waits for calls in progress, unregisters, then frees,
//!     and reports what it could not free.
//! 12. The host owns its signals, its environment, its threads' affinity and its process.
//! 13. Nothing panics in a library path; a panicking store or waker ends neither a worker nor an op's completion.
//!
//! # A tour
//! - [`Region`] is the memory, allocated here or wrapped from the host's; [`SlotPool`] lends [`Slot`]s of it.
//! - [`Engine::builder`] takes a store (see [`store`]), an [`EngineConfig`] (or all from JSON: [`L2Adapter`]) and regions.
//! - A [`Pair`] is one thread's own rings: [`submit`](Pair::submit) or [`batch`](Pair::batch), then [`poll`](Pair::poll),
//!   [`wait`](Pair::wait), or an [`event_fd`](Pair::event_fd) in the host's own loop. A [`LocalClient`] makes its ops futures, for the tasks of
//!   one thread.
//! - A [`Client`] is for tasks: futures without a runtime, many keys at once, and [`blocking`](Client::blocking) twins.
//! - [`Stats`] are read without making a worker wait, and so is [`Engine::health`]; with the feature `prometheus` they are
//!   metrics, with `spans` each store call is a `tracing` span.
//! - What can go wrong has a type for each kind of call: [`StartError`], [`SubmitError`], [`OpError`], [`WaitError`], [`ShutdownError`].
//! - [`Engine::shutdown`] ends it, and tells what it could not free.
//!
//! The repository has hosts of every kind as examples (a hot loop, epoll, `AsyncFd`, tasks of one thread, axum, threads), and guides: `docs/embedding.md`,
//! `docs/operating.md`, `docs/configuration.md`, `docs/errors.md`.
//!
//! ```
//! use std::sync::Arc;
//! use moonring::store::{MemoryOptions, MemoryStore};
//! use moonring::{Engine, Region, RegionOptions, SlotClass};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let region = Region::allocate(RegionOptions::new(1 << 20))?;
//! let slots = region.slot_pool(&[SlotClass { size: 4096, count: 64 }])?;
//! let store = MemoryStore::new(MemoryOptions::default())?;
//! let engine = Engine::builder(Arc::new(store)).region(region).start()?;
//! let client = engine.client();
//!
//! moonring::block_on(async {
//!     let mut slot = slots.lend(5).ok_or("all slots are lent")?;
//!     slot.copy_from_slice(b"block");
//!     client.store("model@0@0@1f", slot).await.result?;
//!
//!     let keys = ["model@0@0@1f", "model@0@0@2e"];
//!     assert_eq!(client.lookup_prefix(keys).await.len, 1);
//!
//!     let slot = slots.lend(5).ok_or("all slots are lent")?;
//!     let got = client.retrieve("model@0@0@1f", slot).await;
//!     assert_eq!(got.result?, 5);
//!     assert_eq!(&got.slot.ok_or("still written")?[..], b"block");
//!     Ok(())
//! })
//! # }
//! ```
//!
mod affinity;
mod batch;
mod circuit;
mod class;
mod client;
mod clients;
mod clock;
pub mod config;
mod engine;
mod error;
#[cfg(test)]
mod error_docs;
mod exit;
mod fork;
mod future;
mod hand_clock;
mod health;
mod inflight;
mod key;
mod lane;
mod linger;
mod live;
mod local;
mod memory;
#[cfg(feature = "prometheus")]
pub mod metrics;
mod notify;
mod op;
mod pace;
mod pair;
mod pairs;
mod quarantine;
mod region;
mod shutdown;
mod signals;
mod slot;
#[cfg(feature = "spans")]
mod spans;
mod start;
pub mod stats;
pub mod store;
mod submission;
mod timer;
mod waker;
mod worker;

pub use affinity::allowed as allowed_cores;
pub use circuit::LaneHealth;
pub use class::Class;
pub use client::{AsKey, Blocking, Client, Prefix, Returned};
pub use config::{ConfigError, EngineConfig, L2Adapter};
pub use engine::{Engine, PairError};
pub use error::{ClientError, OpError, Refused, SubmitError, Unavailable};
pub use future::block_on;
pub use hand_clock::HandClock;
pub use health::{Health, HealthState};
pub use key::INLINE_KEY;
pub use local::{LocalClient, LocalOp, Reactor};
pub use moonring_rings::slots::Ticket;
pub use notify::EventFd;
pub use op::{OpKind, StoreOutcome};
pub use pair::{Cancel, IfRunning, Pair, PairBatch, PairOptions, WaitError};
pub use quarantine::Quarantined;
pub use region::{
    HugePages, MemLock, MemoryLimits, Origin, Overlap, Pieces, Region, RegionError, RegionOptions,
    RegionReport, Span,
};
pub use shutdown::{Shutdown, ShutdownError, ShutdownReport};
pub use slot::{Slot, SlotClass, SlotLenError, SlotPool, SlotPoolOptions};
pub use start::{EngineBuilder, RegionStart, StartError, StartReport, WorkerStart};
pub use stats::Stats;
pub use submission::{Completion, Done, Submission};
pub use worker::Driver;
