//! Moonring: an io_uring-style, lock-free submission engine in front of Mooncake Store.

mod error;
mod op;
pub mod stats;
pub mod store;

pub use error::{ClientError, OpError, Refused, SubmitError};
pub use op::{OpKind, StoreOutcome};
pub use stats::Stats;
