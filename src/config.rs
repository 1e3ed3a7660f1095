//! The configuration: the `--l2-adapter` JSON and the engine's own knobs.
//!
//! [`L2Adapter::parse`] reads one JSON object. Its `type` names the store, `num_workers` and `per_op_workers` say how
//! many threads serve it, `moonring` holds the engine's knobs (the table is at [`EngineConfig`]), and the rest
//! belongs to the store:
//!
//! | `type` | further keys |
//! | --- | --- |
//! | `memory` | those of [`MemoryConfig`] |
//! | `null` | none |
//! | `sim` | those of [`SimConfig`] |
//! | `mooncake_store` | any; they go to Mooncake as strings, see [`MooncakeConfig`] |
//!
//! `eviction`, which LMCache knows, must be an object; it is neither applied nor forwarded, and one of the
//! [`warnings`](L2Adapter::warnings) says so.
//!
//! Nothing is accepted and then ignored in silence: an unknown key, a key that stands twice, a wrong type or a value out of
//! range is a [`ConfigError`] that names the field, and what was accepted but can have no effect is a warning.
//! Integers are strict: `2.0`, `"2"` and `true` are not 2.
//!
//! # Sizes
//! A size is an integer of bytes, or a string of an integer and a unit: `"512"`, `"64MB"`, `"64 MiB"`; see
//! [`parse_size`]. `MB` means 2^20 bytes as `MiB` does, because that is what Mooncake's own size strings mean.

mod adapter;
mod engine;
mod json;
mod limits;
mod mooncake;
mod size;
mod stores;

pub use adapter::{L2Adapter, StoreConfig};
pub use engine::{CoreChoice, EngineConfig, PerOp};
pub use mooncake::MooncakeConfig;
pub use size::{SizeError, parse_size};
pub use stores::{Fault, FaultWhen, InnerStore, MemoryConfig, SimConfig};

/// A configuration that was refused: the field, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct ConfigError {
    field: String,
    reason: String,
}

impl ConfigError {
    pub(crate) fn new(field: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self {
            field: field.into(),
            reason: reason.to_string(),
        }
    }

    /// Path of the field, as `moonring.max_batch` or `per_op_workers.get`; `json` where the text is no JSON object.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong with it, and what is wanted.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}
