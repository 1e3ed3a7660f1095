//! The engine's own knobs.

use serde_json::{Map, Value};

use super::ConfigError;
use super::json::{Field, Node, Object};
use super::limits::{Limits, MAX_BYTES, refuse};
use crate::lane::MAX_WORKERS;
use crate::{INLINE_KEY, OpKind};

/// One bit each in a group's wake word.
const WORKERS: Limits = Limits::integer(1, MAX_WORKERS as u64);
const MAX_BATCH: Limits = Limits::integer(1, 4096);
const MAX_BATCH_BYTES: Limits = Limits::size(1, MAX_BYTES);
const SHARE_BYTES: Limits = Limits::size(1, MAX_BYTES);
const RING_DEPTH: Limits = Limits::integer(1, 1 << 20);
const MAX_PAIRS: Limits = Limits::integer(1, 4096);
const SPIN_US: Limits = Limits::integer(0, 1_000_000);
const MAX_KEY: Limits = Limits::size(1, 1 << 20);
const LONG_KEYS: Limits = Limits::integer(0, 65_536);
const MAX_REGISTRATION: Limits = Limits::size(1, MAX_BYTES);
/// A day.
const TIMEOUT_MS: Limits = Limits::integer(1, 86_400_000);
const QUARANTINE_PERCENT: Limits = Limits::integer(1, 100);
const FAIL_FAST_AFTER: Limits = Limits::integer(0, 1_000_000);
const FAIL_FAST_MS: Limits = Limits::integer(1, 3_600_000);
/// An hour.
const SETUP_TIMEOUT: Limits = Limits::integer(1, 3600);
/// `CPU_SETSIZE` of Linux: a core id from 1024 on can't be pinned to.
const CORE: Limits = Limits::integer(0, 1023);

const CORES_WANTED: &str = "\"auto\", \"none\" or a list of core ids";

/// One value per op kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerOp<T> {
    /// Of lookups.
    pub lookup: T,
    /// Of retrieves.
    pub retrieve: T,
    /// Of stores.
    pub store: T,
    /// Of deletes.
    pub delete: T,
}

impl<T> std::ops::Index<OpKind> for PerOp<T> {
    type Output = T;

    fn index(&self, op: OpKind) -> &T {
        match op {
            OpKind::Lookup => &self.lookup,
            OpKind::Retrieve => &self.retrieve,
            OpKind::Store => &self.store,
            OpKind::Delete => &self.delete,
        }
    }
}

impl<T> std::ops::IndexMut<OpKind> for PerOp<T> {
    fn index_mut(&mut self, op: OpKind) -> &mut T {
        match op {
            OpKind::Lookup => &mut self.lookup,
            OpKind::Retrieve => &mut self.retrieve,
            OpKind::Store => &mut self.store,
            OpKind::Delete => &mut self.delete,
        }
    }
}

/// Which cores the workers are pinned to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CoreChoice {
    /// One worker per core of those that the thread calling `start` may use; surplus workers stay unpinned.
    #[default]
    Auto,
    /// No worker is pinned.
    None,
    /// Exactly these, in this order: ids from 0 to 1023, at least one, none twice.
    List(Vec<usize>),
}

/// The engine's knobs, by JSON or by code; both are held to the same limits by the same check, [`validate`](Self::validate).
///
/// In JSON the first two stand in the adapter's object, as in LMCache, all others under its key `moonring`.
///
/// | name | default | range | effect |
/// | --- | --- | --- | --- |
/// | `num_workers` | 4 | 1 to 62 | threads of the shared pool, which serves all op kinds without workers of their own |
/// | `per_op_workers` | none | 1 to 62 each | threads of their own for `lookup`, `retrieve`, `store`, `delete` |
/// | `max_batch` | 256 | 1 to 4096 | most keys of one store call |
/// | `max_batch_bytes` | 64 MiB | a size over 0 | most bytes of one store call; a single larger value is a call of its own |
/// | `share_bytes` | 1 MiB | a size over 0 | a take stops at so many bytes while other workers of the lane are idle, so that large values are shared out; over `max_batch_bytes` it means that |
/// | `adapt` | true | | each op kind learns, while much is in flight, how many of its workers should be in calls at once, from what their calls bring; false: always as many as there is work for |
/// | `ring_depth` | 4096 | 1 to 1,048,576 | depth of the clients' rings and of their in-flight table, in ops; rounded up to a power of two |
/// | `max_pairs` | 512 | 1 to 4096 | most pairs open at a time |
/// | `spin_us` | 20 | 0 to 1,000,000 | microseconds that an idle worker or a waiter spins before it parks |
/// | `cores` | `"auto"` | `"auto"`, `"none"`, list of ids | cores that workers are pinned to, see [`CoreChoice`] |
/// | `busy_poll` | false | | workers poll instead of parking; costs cores |
/// | `max_key` | 1024 | 1 to 1 MiB, a size | longest key, in bytes |
/// | `long_keys` | 16 | 0 to 65,536 | per submitter: places for keys over 255 bytes |
/// | `max_registration` | none | a size over 0, or null | largest piece, in bytes, in which a region is registered; the smaller of this and the store's own limit |
/// | `timeout_ms` | none | 1 to 86,400,000 each | milliseconds that an op may take, by its kind: `{"lookup": 50, "retrieve": 500}`; an op's own timeout comes first |
/// | `quarantine_percent` | 25 | 1 to 100 | share of the regions' bytes that the timed out ops of one kind may keep in quarantine before more of that kind are refused |
/// | `fail_fast_after` | 5 | 0 to 1,000,000 | calls of a kind that must fail in transport one after the other before its circuit opens; 0: no circuit ever opens, and overdue calls change nothing |
/// | `fail_fast_ms` | 500 | 1 to 3,600,000 | milliseconds between the probes of an open circuit, a quarter more or less |
/// | `setup_timeout` | 30 | 1 to 3600 | seconds that opening the store may take |
///
/// ```
/// use moonring::{EngineConfig, OpKind};
///
/// let config = EngineConfig::default()
///     .dedicated(OpKind::Retrieve, 16)
///     .max_batch(64);
/// assert!(config.validate().is_ok());
/// let refused = config.max_batch(0).validate().unwrap_err();
/// assert_eq!(refused.to_string(), "moonring.max_batch: got 0 (want an integer from 1 to 4096)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineConfig {
    /// Threads of the shared pool.
    pub num_workers: usize,
    /// Threads of their own per op kind; `None`: the shared pool serves it.
    pub per_op_workers: PerOp<Option<usize>>,
    /// Most keys of one store call.
    pub max_batch: usize,
    /// Most bytes of one store call.
    pub max_batch_bytes: usize,
    /// Bytes at which a take stops while other workers of the lane are idle.
    pub share_bytes: usize,
    /// Each op kind learns how many of its workers should be in calls at once.
    pub adapt: bool,
    /// Depth, in ops, of the clients' rings and in-flight table.
    pub ring_depth: usize,
    /// Most pairs open at a time.
    pub max_pairs: usize,
    /// Microseconds of spinning before parking.
    pub spin_us: u32,
    /// Cores that workers are pinned to.
    pub cores: CoreChoice,
    /// Workers poll instead of parking.
    pub busy_poll: bool,
    /// Longest key in bytes.
    pub max_key: usize,
    /// Places for keys over 255 bytes, per submitter.
    pub long_keys: usize,
    /// Largest piece, in bytes, in which a region is registered; `None`: the store's own limit.
    pub max_registration: Option<usize>,
    /// Milliseconds that an op may take, by its kind; `None`: as long as it takes.
    pub timeout_ms: PerOp<Option<u32>>,
    /// Share of the regions' bytes, in percent, that ops of one kind may keep in quarantine before more of that kind are refused.
    pub quarantine_percent: u32,
    /// Calls that must fail in transport one after the other before their kind's circuit opens; 0: never.
    pub fail_fast_after: u32,
    /// Milliseconds between the probes of an open circuit.
    pub fail_fast_ms: u32,
    /// Seconds that opening the store may take.
    pub setup_timeout: u32,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            num_workers: 4,
            per_op_workers: PerOp::default(),
            max_batch: 256,
            max_batch_bytes: 64 << 20,
            share_bytes: 1 << 20,
            adapt: true,
            ring_depth: 4096,
            max_pairs: 512,
            spin_us: 20,
            cores: CoreChoice::Auto,
            busy_poll: false,
            max_key: 1024,
            long_keys: 16,
            max_registration: None,
            timeout_ms: PerOp::default(),
            quarantine_percent: 25,
            fail_fast_after: 5,
            fail_fast_ms: 500,
            setup_timeout: 30,
        }
    }
}

macro_rules! setters {
    ($($name:ident: $type:ty,)*) => {$(
        #[doc = concat!("Sets [`", stringify!($name), "`](Self#structfield.", stringify!($name), ").")]
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.$name = $name;
            self
        }
    )*};
}

impl EngineConfig {
    setters! {
        num_workers: usize,
        max_batch: usize,
        max_batch_bytes: usize,
        share_bytes: usize,
        adapt: bool,
        ring_depth: usize,
        max_pairs: usize,
        spin_us: u32,
        cores: CoreChoice,
        busy_poll: bool,
        max_key: usize,
        long_keys: usize,
        max_registration: Option<usize>,
        quarantine_percent: u32,
        fail_fast_after: u32,
        fail_fast_ms: u32,
        setup_timeout: u32,
    }

    /// Gives the ops of a kind a time in milliseconds: its part of [`timeout_ms`](Self#structfield.timeout_ms).
    #[must_use]
    pub fn timeout_ms(mut self, op: OpKind, ms: u32) -> Self {
        self.timeout_ms[op] = Some(ms);
        self
    }

    /// Gives an op kind workers of its own: its part of [`per_op_workers`](Self#structfield.per_op_workers).
    #[must_use]
    pub fn dedicated(mut self, op: OpKind, workers: usize) -> Self {
        self.per_op_workers[op] = Some(workers);
        self
    }

    /// Checks every knob; the error names the first one out of its range, by its path in the JSON.
    pub fn validate(&self) -> Result<(), ConfigError> {
        WORKERS.check("num_workers", self.num_workers)?;
        for op in OpKind::ALL {
            if let Some(workers) = self.per_op_workers[op] {
                WORKERS.check(&format!("per_op_workers.{op}"), workers)?;
            }
        }
        MAX_BATCH.check("moonring.max_batch", self.max_batch)?;
        MAX_BATCH_BYTES.check("moonring.max_batch_bytes", self.max_batch_bytes)?;
        SHARE_BYTES.check("moonring.share_bytes", self.share_bytes)?;
        RING_DEPTH.check("moonring.ring_depth", self.ring_depth)?;
        MAX_PAIRS.check("moonring.max_pairs", self.max_pairs)?;
        SPIN_US.check("moonring.spin_us", self.spin_us as usize)?;
        check_cores(&self.cores)?;
        MAX_KEY.check("moonring.max_key", self.max_key)?;
        LONG_KEYS.check("moonring.long_keys", self.long_keys)?;
        if let Some(bytes) = self.max_registration {
            MAX_REGISTRATION.check("moonring.max_registration", bytes)?;
        }
        for op in OpKind::ALL {
            if let Some(ms) = self.timeout_ms[op] {
                TIMEOUT_MS.check(&format!("moonring.timeout_ms.{op}"), ms as usize)?;
            }
        }
        QUARANTINE_PERCENT.check(
            "moonring.quarantine_percent",
            self.quarantine_percent as usize,
        )?;
        FAIL_FAST_AFTER.check("moonring.fail_fast_after", self.fail_fast_after as usize)?;
        FAIL_FAST_MS.check("moonring.fail_fast_ms", self.fail_fast_ms as usize)?;
        SETUP_TIMEOUT.check("moonring.setup_timeout", self.setup_timeout as usize)?;
        Ok(())
    }

    /// The same with every knob at the value that the engine goes by: `ring_depth` a power of two, `share_bytes` not over
    /// `max_batch_bytes`, no `long_keys` where no key can be long. Nothing else changes.
    #[must_use]
    pub fn effective(&self) -> Self {
        let mut config = self.clone();
        // The depth of a valid configuration has a next power of two; an invalid one is kept to be refused.
        config.ring_depth = self
            .ring_depth
            .checked_next_power_of_two()
            .unwrap_or(self.ring_depth);
        config.share_bytes = self.share_bytes.min(self.max_batch_bytes);
        if self.max_key <= INLINE_KEY {
            config.long_keys = 0;
        }
        config
    }

    /// What can have no effect, of the knobs that are not as by default: the warnings that JSON gives for what stands there.
    pub(crate) fn without_effect(&self) -> Vec<String> {
        let default = Self::default();
        let mut warnings = Vec::new();
        if self.num_workers != default.num_workers {
            self.warn_of_workers(&mut warnings);
        }
        if self.share_bytes != default.share_bytes {
            self.warn_of_share(&mut warnings);
        }
        if self.long_keys != default.long_keys {
            self.warn_of_long_keys(&mut warnings);
        }
        warnings
    }

    fn warn_of_workers(&self, warnings: &mut Vec<String>) {
        if !self.has_shared_pool() {
            warnings.push(
                "num_workers: no effect, because every op kind has workers of its own".to_owned(),
            );
        }
    }

    fn warn_of_share(&self, warnings: &mut Vec<String>) {
        if self.share_bytes > self.max_batch_bytes {
            warnings.push(
                "moonring.share_bytes: no effect, because it is over max_batch_bytes".to_owned(),
            );
        }
    }

    fn warn_of_long_keys(&self, warnings: &mut Vec<String>) {
        if self.long_keys > 0 && self.max_key <= INLINE_KEY {
            warnings.push(format!(
                "moonring.long_keys: no effect, because max_key is not over {INLINE_KEY}"
            ));
        }
    }

    /// Whether any op kind is left to the shared pool.
    pub fn has_shared_pool(&self) -> bool {
        OpKind::ALL
            .iter()
            .any(|&op| self.per_op_workers[op].is_none())
    }

    /// Reads `num_workers`, `per_op_workers` and `moonring`. Adds to `warnings` what can have no effect.
    pub(super) fn read(
        adapter: &mut Object,
        warnings: &mut Vec<String>,
    ) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        let num_workers = adapter.take("num_workers");
        if let Some(field) = &num_workers {
            config.num_workers = field.count(WORKERS)?;
        }
        if let Some(field) = adapter.take("per_op_workers") {
            let mut object = field.object()?;
            for op in OpKind::ALL {
                if let Some(field) = object.take(op.name()) {
                    config.per_op_workers[op] = Some(field.count(WORKERS)?);
                }
            }
            object.finish(&OpKind::ALL.map(OpKind::name))?;
        }
        if num_workers.is_some() {
            config.warn_of_workers(warnings);
        }
        if let Some(field) = adapter.take("moonring") {
            config.read_knobs(field.object()?, warnings)?;
        }
        config.validate()?;
        Ok(config)
    }

    fn read_knobs(
        &mut self,
        mut knobs: Object,
        warnings: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        for (key, limits, knob) in [
            ("max_batch", MAX_BATCH, &mut self.max_batch),
            (
                "max_batch_bytes",
                MAX_BATCH_BYTES,
                &mut self.max_batch_bytes,
            ),
            ("ring_depth", RING_DEPTH, &mut self.ring_depth),
            ("max_pairs", MAX_PAIRS, &mut self.max_pairs),
            ("max_key", MAX_KEY, &mut self.max_key),
        ] {
            if let Some(field) = knobs.take(key) {
                *knob = field.count(limits)?;
            }
        }
        if let Some(field) = knobs.take("long_keys") {
            self.long_keys = field.count(LONG_KEYS)?;
            self.warn_of_long_keys(warnings);
        }
        if let Some(field) = knobs.take("share_bytes") {
            self.share_bytes = field.count(SHARE_BYTES)?;
            self.warn_of_share(warnings);
        }
        if let Some(field) = knobs.take("adapt") {
            self.adapt = field.bool()?;
        }
        if let Some(field) = knobs.take("spin_us") {
            self.spin_us = field.u32(SPIN_US)?;
        }
        if let Some(field) = knobs.take("cores") {
            self.cores = read_cores(field)?;
        }
        if let Some(field) = knobs.take("busy_poll") {
            self.busy_poll = field.bool()?;
        }
        if let Some(field) = knobs.take("max_registration") {
            self.max_registration = match field.node {
                Node::Null => None,
                _ => Some(field.count(MAX_REGISTRATION)?),
            };
        }
        if let Some(field) = knobs.take("timeout_ms") {
            let mut per_op = field.object()?;
            for op in OpKind::ALL {
                if let Some(field) = per_op.take(op.name()) {
                    self.timeout_ms[op] = match field.node {
                        Node::Null => None,
                        _ => Some(field.u32(TIMEOUT_MS)?),
                    };
                }
            }
            per_op.finish(&OpKind::ALL.map(OpKind::name))?;
        }
        if let Some(field) = knobs.take("quarantine_percent") {
            self.quarantine_percent = field.u32(QUARANTINE_PERCENT)?;
        }
        if let Some(field) = knobs.take("fail_fast_after") {
            self.fail_fast_after = field.u32(FAIL_FAST_AFTER)?;
        }
        if let Some(field) = knobs.take("fail_fast_ms") {
            self.fail_fast_ms = field.u32(FAIL_FAST_MS)?;
        }
        if let Some(field) = knobs.take("setup_timeout") {
            self.setup_timeout = field.u32(SETUP_TIMEOUT)?;
        }
        knobs.finish(&[
            "max_batch",
            "max_batch_bytes",
            "share_bytes",
            "adapt",
            "ring_depth",
            "max_pairs",
            "spin_us",
            "cores",
            "busy_poll",
            "max_key",
            "long_keys",
            "max_registration",
            "timeout_ms",
            "quarantine_percent",
            "fail_fast_after",
            "fail_fast_ms",
            "setup_timeout",
        ])
    }

    /// Writes `num_workers` and `per_op_workers`, as they are.
    pub(super) fn write_workers(&self, out: &mut Map<String, Value>) {
        if self.has_shared_pool() {
            out.insert("num_workers".into(), self.num_workers.into());
        }
        let mut per_op = Map::new();
        for op in OpKind::ALL {
            if let Some(workers) = self.per_op_workers[op] {
                per_op.insert(op.name().into(), workers.into());
            }
        }
        out.insert("per_op_workers".into(), per_op.into());
    }

    /// The value of `moonring`.
    pub(super) fn knobs_to_json(&self) -> Value {
        let cores: Value = match &self.cores {
            CoreChoice::Auto => "auto".into(),
            CoreChoice::None => "none".into(),
            CoreChoice::List(ids) => ids.clone().into(),
        };
        serde_json::json!({
            "max_batch": self.max_batch,
            "max_batch_bytes": self.max_batch_bytes,
            "share_bytes": self.share_bytes,
            "adapt": self.adapt,
            "ring_depth": self.ring_depth,
            "max_pairs": self.max_pairs,
            "spin_us": self.spin_us,
            "cores": cores,
            "busy_poll": self.busy_poll,
            "max_key": self.max_key,
            "long_keys": self.long_keys,
            "max_registration": self.max_registration,
            "timeout_ms": per_op_json(&self.timeout_ms),
            "quarantine_percent": self.quarantine_percent,
            "fail_fast_after": self.fail_fast_after,
            "fail_fast_ms": self.fail_fast_ms,
            "setup_timeout": self.setup_timeout,
        })
    }
}

fn per_op_json(values: &PerOp<Option<u32>>) -> Value {
    let set = OpKind::ALL.into_iter();
    let set = set.filter_map(|op| Some((op.name().to_owned(), values[op]?.into())));
    Value::Object(set.collect())
}

fn read_cores(field: Field) -> Result<CoreChoice, ConfigError> {
    match &field.node {
        Node::Text(word) if word == "auto" => return Ok(CoreChoice::Auto),
        Node::Text(word) if word == "none" => return Ok(CoreChoice::None),
        _ => {}
    }
    let items = field.items().map_err(|field| field.refuse(CORES_WANTED))?;
    let ids = items.iter().map(|item| item.count(CORE));
    Ok(CoreChoice::List(ids.collect::<Result<_, _>>()?))
}

fn check_cores(cores: &CoreChoice) -> Result<(), ConfigError> {
    let CoreChoice::List(ids) = cores else {
        return Ok(());
    };
    if ids.is_empty() {
        return Err(refuse("moonring.cores", "an empty list", CORES_WANTED));
    }
    for (i, &id) in ids.iter().enumerate() {
        let field = format!("moonring.cores[{i}]");
        CORE.check(&field, id)?;
        if ids.iter().take(i).any(|&earlier| earlier == id) {
            return Err(ConfigError::new(
                field,
                format_args!("core {id} stands twice"),
            ));
        }
    }
    Ok(())
}
