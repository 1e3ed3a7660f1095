//! The whole `--l2-adapter` object.

use serde_json::{Map, Value};

use super::json::{self, Node};
use super::{ConfigError, EngineConfig, MemoryConfig, MooncakeConfig, SimConfig};

const TYPES: &str = "memory, null, sim or mooncake_store";
/// The keys that every type takes.
const COMMON: [&str; 5] = [
    "type",
    "num_workers",
    "per_op_workers",
    "eviction",
    "moonring",
];

/// The store that was chosen, with its options.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum StoreConfig {
    /// Type `memory`: the embedded store.
    Memory(MemoryConfig),
    /// Type `null`: answers at once and moves nothing.
    Null,
    /// Type `sim`: wraps another store and misbehaves as told.
    Sim(Box<SimConfig>),
    /// Type `mooncake_store`.
    MooncakeStore(MooncakeConfig),
}

impl StoreConfig {
    /// The name in the JSON's `type`.
    pub fn type_name(&self) -> &'static str {
        match self {
            StoreConfig::Memory(_) => "memory",
            StoreConfig::Null => "null",
            StoreConfig::Sim(_) => "sim",
            StoreConfig::MooncakeStore(_) => "mooncake_store",
        }
    }
}

/// A parsed `--l2-adapter` object: LMCache's `mooncake_store` adapter, the embedded stores, and the engine's knobs.
///
/// ```
/// use moonring::L2Adapter;
///
/// let adapter = L2Adapter::parse(
///     r#"{"type": "memory", "capacity": "64 MiB", "per_op_workers": {"retrieve": 16}}"#,
/// )?;
/// assert_eq!(adapter.engine.per_op_workers.retrieve, Some(16));
/// assert_eq!(adapter.effective()["capacity"], 64 << 20);
///
/// let refused = L2Adapter::parse(r#"{"type": "memory", "per_op_workers": {"get": 16}}"#);
/// assert_eq!(
///     refused.unwrap_err().to_string(),
///     "per_op_workers.get: unknown key (want lookup, retrieve, store, delete)",
/// );
/// # Ok::<(), moonring::ConfigError>(())
/// ```
///
/// The default is the `memory` store with all defaults.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct L2Adapter {
    /// The store.
    pub store: StoreConfig,
    /// The engine's knobs, as given.
    pub engine: EngineConfig,
    warnings: Vec<String>,
}

impl Default for L2Adapter {
    fn default() -> Self {
        Self {
            store: StoreConfig::Memory(MemoryConfig::default()),
            engine: EngineConfig::default(),
            warnings: Vec::new(),
        }
    }
}

impl L2Adapter {
    /// Reads and checks an adapter's JSON; see the [module's page](super) for what it takes.
    ///
    /// # Errors
    /// The first thing found to be wrong, with the field's path.
    pub fn parse(json: &str) -> Result<Self, ConfigError> {
        let mut object = json::parse(json)?;
        let mut warnings = Vec::new();
        let kind = object.require("type", TYPES)?;
        let Node::Text(name) = &kind.node else {
            return Err(kind.refuse(TYPES));
        };
        let engine = EngineConfig::read(&mut object, &mut warnings)?;
        if let Some(field) = object.take("eviction") {
            let path = field.path.clone();
            field.object()?;
            warnings.push(format!(
                "{path}: neither applied nor forwarded; eviction is the host's, by the delete lane"
            ));
        }
        let store = match name.as_str() {
            "memory" => {
                let memory = MemoryConfig::read(&mut object)?;
                object.finish(&known(&MemoryConfig::KEYS))?;
                StoreConfig::Memory(memory)
            }
            "null" => {
                object.finish(&COMMON)?;
                StoreConfig::Null
            }
            "sim" => {
                let sim = SimConfig::read(&mut object)?;
                object.finish(&known(&SimConfig::KEYS))?;
                StoreConfig::Sim(Box::new(sim))
            }
            "mooncake_store" => StoreConfig::MooncakeStore(MooncakeConfig::read(object)?),
            _ => return Err(kind.refuse(TYPES)),
        };
        Ok(Self {
            store,
            engine,
            warnings,
        })
    }

    /// What was accepted but has no effect, a sentence each with the field's path; to be logged once at start.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether the store moves bytes by RDMA, see [`MooncakeConfig::is_rdma`].
    pub fn is_rdma(&self) -> bool {
        matches!(&self.store, StoreConfig::MooncakeStore(mooncake) if mooncake.is_rdma())
    }

    /// Checks the memory region for the store, see [`MooncakeConfig::check_region`]. The embedded stores need none.
    pub fn check_region(&self, region: Option<(usize, usize)>) -> Result<(), ConfigError> {
        match &self.store {
            StoreConfig::MooncakeStore(mooncake) => mooncake.check_region(region),
            _ => Ok(()),
        }
    }

    /// The effective configuration: every knob at the value that counts, sizes in bytes, always in the same order.
    ///
    /// It is itself an adapter's JSON, and its own effective configuration. What has no effect is left out: `eviction`, the
    /// `num_workers` of a shared pool that no op kind is left to, faults that were not asked for.
    pub fn effective(&self) -> Value {
        let engine = self.engine.effective();
        let mut out = Map::new();
        out.insert("type".into(), self.store.type_name().into());
        engine.write_workers(&mut out);
        match &self.store {
            StoreConfig::Memory(memory) => memory.write(&mut out),
            StoreConfig::Null => {}
            StoreConfig::Sim(sim) => sim.write(&mut out),
            StoreConfig::MooncakeStore(mooncake) => {
                for (key, value) in &mooncake.forwarded {
                    out.insert(key.clone(), value.clone().into());
                }
            }
        }
        out.insert("moonring".into(), engine.knobs_to_json());
        out.into()
    }
}

fn known<'a>(of_type: &[&'a str]) -> Vec<&'a str> {
    COMMON.iter().chain(of_type).copied().collect()
}
