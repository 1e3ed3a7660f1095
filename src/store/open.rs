//! From a configuration to a store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::sim::When;
use super::{
    MemoryOptions, MemoryStore, MooncakeError, MooncakeStore, NullStore, OptionError, SimOptions,
    SimStore, Store, mooncake,
};
use crate::config::{
    EngineConfig, Fault, FaultWhen, InnerStore, MemoryConfig, SimConfig, StoreConfig,
};

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
    /// Mooncake, or what leads to it.
    #[error(transparent)]
    Mooncake(#[from] MooncakeError),
}

/// What a store is opened with beside its configuration. Only the `mooncake_store` has use for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// How long opening may take. Default 30 s.
    pub setup_timeout: Duration,
    /// Mooncake's library; `None`: it is looked for, see [`mooncake`].
    pub library: Option<PathBuf>,
    /// Address and length in bytes of the region that the engine will be started with. `protocol: "rdma"` demands one.
    pub region: Option<(usize, usize)>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            setup_timeout: seconds(&EngineConfig::default()),
            library: None,
            region: None,
        }
    }
}

impl OpenOptions {
    /// With the limit that the engine's configuration has.
    #[must_use]
    pub fn new(config: &EngineConfig) -> Self {
        Self {
            setup_timeout: seconds(config),
            ..Self::default()
        }
    }

    /// Sets [`library`](Self#structfield.library).
    #[must_use]
    pub fn library(mut self, path: impl Into<PathBuf>) -> Self {
        self.library = Some(path.into());
        self
    }

    /// Sets [`region`](Self#structfield.region).
    #[must_use]
    pub fn region(mut self, base: *const u8, len: usize) -> Self {
        self.region = Some((base as usize, len));
        self
    }

    /// Sets [`setup_timeout`](Self#structfield.setup_timeout).
    #[must_use]
    pub fn setup_timeout(mut self, limit: Duration) -> Self {
        self.setup_timeout = limit;
        self
    }
}

fn seconds(config: &EngineConfig) -> Duration {
    Duration::from_secs(config.setup_timeout.into())
}

/// The largest piece, in bytes, in which the store of this configuration will register memory, before it is opened; `None`: no
/// limit. For those who lay a region out before they open the store.
pub fn max_registration(config: &StoreConfig) -> Option<usize> {
    match config {
        StoreConfig::MooncakeStore(_) => mooncake::max_registration(),
        _ => None,
    }
}

/// Opens the store that a configuration names, with the default [`OpenOptions`].
///
/// # Errors
/// [`OpenError`].
pub fn open(config: &StoreConfig) -> Result<OpenedStore, OpenError> {
    open_with(config, &OpenOptions::default())
}

/// Opens the store that a configuration names.
///
/// # Errors
/// [`OpenError`].
pub fn open_with(config: &StoreConfig, options: &OpenOptions) -> Result<OpenedStore, OpenError> {
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
        StoreConfig::MooncakeStore(config) => Arc::new(MooncakeStore::open(config, options)?),
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
        pipe: Duration::from_micros(config.pipe_us),
        pipe_ns_per_key: config.pipe_ns_per_key as f64,
        pipe_ns_per_byte: config.pipe_ns_per_byte,
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
