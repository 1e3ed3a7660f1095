//! Moonring: an io_uring-style, lock-free submission engine in front of Mooncake Store.

mod error;
mod op;
mod region;
mod slot;
pub mod store;

pub use error::{ClientError, OpError, Refused, SubmitError};
pub use op::{OpKind, StoreOutcome};
pub use region::{
    HugePages, MemLock, Origin, Overlap, Pieces, Region, RegionError, RegionOptions, RegionReport,
    Span,
};
pub use slot::{Slot, SlotClass, SlotLenError, SlotPool, SlotPoolOptions};
