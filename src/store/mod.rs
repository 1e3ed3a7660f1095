//! The [`Store`] trait: what executes batches.
//!
//! A store answers batched, synchronous calls from several worker threads at once. It sees whole batches in
//! which **no key stands twice**, writes one result per key into the batch, and returns how many results it has
//! for it. The engine around it takes care of rings, merging, folding and completions, and survives a
//! store that panics, returns an error, or returns nonsense.
//!
//! # Writing one
//! ```
//! use std::{collections::HashMap, sync::Mutex};
//! use moonring::{OpError, StoreOutcome, store::*};
//!
//! #[derive(Default)]
//! struct Map(Mutex<HashMap<Vec<u8>, Vec<u8>>>);
//!
//! impl Store for Map {
//!     fn name(&self) -> &str { "map" }
//!     fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
//!         let map = self.0.lock().unwrap();
//!         for i in 0..batch.len() {
//!             batch.set(i, Ok(map.contains_key(batch.key(i))));
//!         }
//!         Ok(batch.len())
//!     }
//!     fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
//!         let map = self.0.lock().unwrap();
//!         for i in 0..batch.len() {
//!             match map.get(batch.key(i)) {
//!                 Some(object) => batch.fill(i, object),
//!                 None => batch.set(i, Err(OpError::NotFound)),
//!             }
//!         }
//!         Ok(batch.len())
//!     }
//!     fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
//!         let mut map = self.0.lock().unwrap();
//!         for i in 0..batch.len() {
//!             map.entry(batch.key(i).to_vec()).or_insert_with(|| batch.bytes(i).to_vec());
//!             batch.set(i, Ok(StoreOutcome::Accepted));
//!         }
//!         Ok(batch.len())
//!     }
//!     fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
//!         let mut map = self.0.lock().unwrap();
//!         for i in 0..batch.len() {
//!             let gone = map.remove(batch.key(i)).map(drop).ok_or(OpError::NotFound);
//!             batch.set(i, gone);
//!         }
//!         Ok(batch.len())
//!     }
//! }
//! ```

mod batch;
pub mod direct;
pub mod memory;
pub mod mooncake;
mod null;
mod open;
mod option_error;
pub mod sim;

pub use batch::{DeleteBatch, LookupBatch, RetrieveBatch, StoreBatch};
#[allow(unused_imports)] // the worker's, which is not written yet
pub(crate) use batch::{Keys, RawResult, UNSET};
pub use memory::{MemoryOptions, MemoryStore};
pub use mooncake::{MooncakeError, MooncakeStore};
pub use null::NullStore;
pub use open::{OpenError, OpenOptions, OpenedStore, max_registration, open, open_with};
pub use option_error::OptionError;
pub use sim::{SimOptions, SimStore};

use std::ptr::NonNull;

use crate::OpError;

/// What a batched call returns: the number of results that the store has for the batch, which should be
/// the number of its keys, or one error for the whole call.
///
/// Any other number makes every key of the call [`OpError::WrongResultCount`]; an `Err` becomes every key's
/// error, whatever was set before.
pub type CallResult = Result<usize, OpError>;

/// What a store can do. Asked once, at start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Buffers must lie in registered memory; foreign buffers are refused.
    pub needs_registration: bool,
    /// The largest piece of memory, in bytes, that one registration takes; `None`: no limit.
    pub max_registration: Option<usize>,
    /// A put tells [`Stored`](crate::StoreOutcome::Stored) from
    /// [`AlreadyThere`](crate::StoreOutcome::AlreadyThere).
    pub tells_stored: bool,
    /// A delete knows the difference that `force` makes.
    pub leases: bool,
}

/// How a store says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreHealth {
    /// All is well, as far as the store knows.
    Healthy,
    /// It answers, but not as it should; the reason.
    Degraded(String),
    /// It can't serve; the reason.
    Down(String),
}

/// A failed registration or unregistration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct RegisterError {
    /// The store's reason, with its code where it has one.
    pub reason: String,
}

impl RegisterError {
    /// A failure with this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
        }
    }
}

/// What executes batches. See the [module's page](self).
///
/// # The engine's side of the contract
/// - No key stands twice in one call; keys are non-empty and hold no NUL byte; buffers have a length over zero.
/// - Buffers of a retrieve are for this call alone to write, those of a store are not written by
///   anybody, until the call returns. No pointer may be kept after that.
/// - Calls come from several threads at once. After [`close`](Store::close) none comes.
///
/// A panic in a call fails that call's keys as [`OpError::StorePanicked`] and nothing else.
pub trait Store: Send + Sync + 'static {
    /// The store's name for reports, as in the configuration's `type`.
    fn name(&self) -> &str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// The version of what is behind it, where it is known.
    fn version(&self) -> Option<String> {
        None
    }

    /// What deserved attention so far, for the start report: asked once, after the memory was registered.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Makes memory known to the store. Called at start, for each piece of each region.
    ///
    /// # Safety
    /// `base` must point to `len` mapped bytes that stay mapped until
    /// [`unregister`](Store::unregister) has returned for them.
    unsafe fn register(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        let _ = (base, len);
        Ok(())
    }

    /// Forgets memory that was registered.
    ///
    /// # Safety
    /// `base` and `len` must be those of a successful [`register`](Store::register), and no call that uses this
    /// memory may be under way.
    unsafe fn unregister(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        let _ = (base, len);
        Ok(())
    }

    /// Which keys exist.
    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult;

    /// Reads objects into buffers.
    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult;

    /// Writes objects from buffers.
    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult;

    /// Removes objects.
    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult;

    /// How the store is, from what it knows; makes no call elsewhere.
    fn health(&self) -> StoreHealth {
        StoreHealth::Healthy
    }

    /// The last thing that the engine calls, once, after the last batch and the last unregistration.
    fn close(&self) {}
}
