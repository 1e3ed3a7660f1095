//! Moonring: an io_uring-style, lock-free submission engine in front of Mooncake Store.

pub mod config;
mod error;
mod op;
pub mod stats;
pub mod store;

pub use config::{ConfigError, EngineConfig, L2Adapter};
pub use error::{ClientError, OpError, Refused, SubmitError};
pub use op::{OpKind, StoreOutcome};
pub use stats::Stats;
