//! Moonring: an io_uring-style, lock-free submission engine in front of Mooncake Store.

mod affinity;
mod batch;
mod client;
mod clients;
pub mod config;
mod engine;
mod error;
mod future;
mod inflight;
mod key;
mod lane;
mod memory;
mod notify;
mod op;
mod pair;
mod pairs;
mod region;
mod shutdown;
mod slot;
mod start;
pub mod stats;
pub mod store;
mod submission;
mod worker;

pub use client::{AsKey, Blocking, Client, Prefix, Returned};
pub use config::{ConfigError, EngineConfig, L2Adapter};
pub use engine::{Engine, PairError};
pub use error::{ClientError, OpError, Refused, SubmitError};
pub use future::block_on;
pub use key::INLINE_KEY;
pub use moonring_rings::slots::Ticket;
pub use notify::EventFd;
pub use op::{OpKind, StoreOutcome};
pub use pair::{Pair, PairBatch, WaitError};
pub use region::{
    HugePages, MemLock, Origin, Overlap, Pieces, Region, RegionError, RegionOptions, RegionReport,
    Span,
};
pub use shutdown::{Shutdown, ShutdownError, ShutdownReport};
pub use slot::{Slot, SlotClass, SlotLenError, SlotPool, SlotPoolOptions};
pub use start::{EngineBuilder, RegionStart, StartError, StartReport, WorkerStart};
pub use stats::Stats;
pub use submission::{Completion, Done, Submission};
pub use worker::Driver;
