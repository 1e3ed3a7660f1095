//! From a configuration to a store.

use std::sync::Arc;
use std::time::Duration;

use super::sim::When;
use super::{MemoryOptions, MemoryStore, NullStore, OptionError, SimOptions, SimStore, Store};
use crate::config::{Fault, FaultWhen, InnerStore, MemoryConfig, SimConfig, StoreConfig};

/// A store that was opened by its configuration.
#[derive(Clone)]
#[non_exhaustive]
pub struct OpenedStore {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The same store, where it is a `sim`: for its gate, and for what it has done.
    pub sim: Option<Arc<SimStore>>,
}

/// Why a store could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An option that makes no sense.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The store is not part of this build.
    #[error("type: {name} is not part of this build; it has memory, null and sim")]
    NotBuilt {
        /// Its `type`.
        name: &'static str,
    },
}

/// Opens the store that a configuration names.
///
/// # Errors
/// [`OpenError`].
pub fn open(config: &StoreConfig) -> Result<OpenedStore, OpenError> {
    let store: Arc<dyn Store> = match config {
        StoreConfig::Memory(memory) => memory_store(memory)?,
        StoreConfig::Null => Arc::new(NullStore),
        StoreConfig::Sim(sim) => {
            let inner: Arc<dyn Store> = match &sim.inner {
                InnerStore::Memory(memory) => memory_store(memory)?,
                InnerStore::Null => Arc::new(NullStore),
            };
            let sim = Arc::new(SimStore::new(inner, sim_options(sim))?);
            return Ok(OpenedStore {
                store: sim.clone(),
                sim: Some(sim),
            });
        }
        StoreConfig::MooncakeStore(_) => {
            let name = config.type_name();
            return Err(OpenError::NotBuilt { name });
        }
    };
    Ok(OpenedStore { store, sim: None })
}

fn memory_store(config: &MemoryConfig) -> Result<Arc<MemoryStore>, OptionError> {
    let options = MemoryOptions {
        capacity: usize::try_from(config.capacity).unwrap_or(usize::MAX),
        lease: Duration::from_millis(config.lease_ms),
        ..MemoryOptions::default()
    };
    MemoryStore::new(options).map(Arc::new)
}

fn sim_options(config: &SimConfig) -> SimOptions {
    SimOptions {
        seed: config.seed,
        delay: Duration::from_micros(config.delay_us),
        delay_ns_per_key: config.delay_ns_per_key as f64,
        delay_ns_per_byte: config.delay_ns_per_byte,
        key_errors: When::rate(config.key_error_rate),
        call_errors: When::rate(config.call_error_rate),
        wrong_counts: when(&config.wrong_count),
        flips: when(&config.flip_bytes),
        unwritten: when(&config.unwritten),
        swaps: when(&config.swapped),
        panics: when(&config.panics),
        ..SimOptions::default()
    }
}

fn when(fault: &Option<Fault>) -> When {
    let Some(fault) = fault else {
        return When::default();
    };
    match (&fault.when, fault.op) {
        (FaultWhen::Rate(rate), None) => When::rate(*rate),
        (FaultWhen::Rate(rate), Some(op)) => When::rate(*rate).only(op),
        (FaultWhen::Calls(calls), None) => When::calls(calls.iter().copied()),
        (FaultWhen::Calls(calls), Some(op)) => When::calls_of(op, calls.iter().copied()),
    }
}

impl std::fmt::Debug for OpenedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OpenedStore").field(&self.store).finish()
    }
}
