//! Options of the embedded stores: `memory` and `sim`.

use serde_json::{Map, Value};

use super::ConfigError;
use super::json::{Field, Node, Object};
use super::limits::{Limits, MAX_BYTES};
use crate::OpKind;

const CAPACITY: Limits = Limits::size(1, MAX_BYTES);
/// A year: far from any overflow of the clock.
const LEASE_MS: Limits = Limits::integer(0, 31_536_000_000);
const SEED: Limits = Limits::integer(0, u64::MAX);
/// An hour.
const DELAY_US: Limits = Limits::integer(0, 3_600_000_000);
/// A minute.
const DELAY_NS_PER_KEY: Limits = Limits::integer(0, 60_000_000_000);
/// A thousand bytes a second.
const MAX_DELAY_NS_PER_BYTE: f64 = 1_000_000.0;
const CALL: Limits = Limits::integer(1, u64::MAX);

/// Options of the `memory` store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryConfig {
    /// `capacity`: bytes of objects that it holds. A size; default 2 GiB.
    pub capacity: u64,
    /// `lease_ms`: for how long after a retrieve or lookup an object can't be removed or evicted, in milliseconds.
    /// Default 10,000; at most a year.
    pub lease_ms: u64,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            capacity: 2 << 30,
            lease_ms: 10_000,
        }
    }
}

impl MemoryConfig {
    pub(super) const KEYS: [&str; 2] = ["capacity", "lease_ms"];

    pub(super) fn read(object: &mut Object) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        if let Some(field) = object.take("capacity") {
            config.capacity = field.number(CAPACITY)?;
        }
        if let Some(field) = object.take("lease_ms") {
            config.lease_ms = field.number(LEASE_MS)?;
        }
        Ok(config)
    }

    pub(super) fn write(&self, out: &mut Map<String, Value>) {
        out.insert("capacity".into(), self.capacity.into());
        out.insert("lease_ms".into(), self.lease_ms.into());
    }
}

/// The store that a `sim` wraps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InnerStore {
    /// Type `memory`.
    Memory(MemoryConfig),
    /// Type `null`.
    Null,
}

impl Default for InnerStore {
    fn default() -> Self {
        InnerStore::Memory(MemoryConfig::default())
    }
}

impl InnerStore {
    fn read(mut object: Object) -> Result<Self, ConfigError> {
        let wanted = "memory or null";
        let kind = object.require("type", wanted)?;
        match &kind.node {
            Node::Text(name) if name == "memory" => {
                let memory = MemoryConfig::read(&mut object)?;
                object.finish(&["type", "capacity", "lease_ms"])?;
                Ok(InnerStore::Memory(memory))
            }
            Node::Text(name) if name == "null" => {
                object.finish(&["type"])?;
                Ok(InnerStore::Null)
            }
            _ => Err(kind.refuse(wanted)),
        }
    }

    fn to_json(&self) -> Value {
        let mut out = Map::new();
        match self {
            InnerStore::Memory(memory) => {
                out.insert("type".into(), "memory".into());
                memory.write(&mut out);
            }
            InnerStore::Null => {
                out.insert("type".into(), "null".into());
            }
        }
        out.into()
    }
}

/// When a fault of a `sim` strikes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FaultWhen {
    /// `rate`: the share of calls, from 0 to 1.
    Rate(f64),
    /// `calls`: exactly these calls, counted from 1; at least one, none twice.
    Calls(Vec<u64>),
}

/// A fault of a `sim`, in JSON `{"rate": 0.01}` or `{"calls": [3, 7]}`, in both cases with an `op` if it is about one op kind only.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Fault {
    /// When it strikes.
    pub when: FaultWhen,
    /// `op`: the kind of the calls that are struck and counted; `None`: all kinds. Faults of bytes are about retrieves, whose
    /// buffers they spoil, whether that was said or not.
    pub op: Option<OpKind>,
}

impl Fault {
    /// `only`: the one op kind for which this fault has a meaning.
    fn read(field: Field, only: Option<OpKind>) -> Result<Self, ConfigError> {
        let path = field.path.clone();
        let mut object = field.object()?;
        let op = match object.take("op") {
            None => only,
            Some(field) => Some(read_op(&field, only)?),
        };
        let when = match (object.take("rate"), object.take("calls")) {
            (Some(rate), None) => FaultWhen::Rate(rate.real(1.0)?),
            (None, Some(calls)) => FaultWhen::Calls(read_calls(calls)?),
            (Some(_), Some(calls)) => {
                return Err(ConfigError::new(
                    calls.path,
                    "given along with rate (want one of the two)",
                ));
            }
            (None, None) => {
                object.finish(&["rate", "calls", "op"])?;
                return Err(ConfigError::new(path, "neither rate nor calls is given"));
            }
        };
        object.finish(&["rate", "calls", "op"])?;
        Ok(Self { when, op })
    }

    fn to_json(&self) -> Value {
        let mut out = Map::new();
        match &self.when {
            FaultWhen::Rate(rate) => out.insert("rate".into(), (*rate).into()),
            FaultWhen::Calls(calls) => out.insert("calls".into(), calls.clone().into()),
        };
        if let Some(op) = self.op {
            out.insert("op".into(), op.name().into());
        }
        out.into()
    }
}

fn read_op(field: &Field, only: Option<OpKind>) -> Result<OpKind, ConfigError> {
    let ops = match &only {
        Some(op) => std::slice::from_ref(op),
        None => &OpKind::ALL,
    };
    let found = match &field.node {
        Node::Text(name) => ops.iter().find(|op| op.name() == name),
        _ => None,
    };
    found.copied().ok_or_else(|| {
        let names: Vec<_> = ops.iter().map(|op| op.name()).collect();
        field.refuse(names.join(", "))
    })
}

fn read_calls(field: Field) -> Result<Vec<u64>, ConfigError> {
    let path = field.path.clone();
    let wanted = "a list of call numbers, counted from 1";
    let items = field.items().map_err(|field| field.refuse(wanted))?;
    let mut calls = Vec::with_capacity(items.len());
    let mut seen = std::collections::HashSet::new();
    for item in items {
        let call = item.number(CALL)?;
        if !seen.insert(call) {
            return Err(ConfigError::new(
                item.path,
                format_args!("call {call} stands twice"),
            ));
        }
        calls.push(call);
    }
    if calls.is_empty() {
        return Err(super::limits::refuse(&path, "an empty list", wanted));
    }
    Ok(calls)
}

/// Options of the `sim` store, which wraps another one and misbehaves by a seed. Absent faults never strike.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SimConfig {
    /// `inner`: the wrapped store, an object with the `type` `memory` or `null` and that store's options. Default: `memory`.
    pub inner: InnerStore,
    /// `seed` of all that is random. Default 0.
    pub seed: u64,
    /// `delay_us`: microseconds that each call takes. Default 0; at most an hour.
    pub delay_us: u64,
    /// `delay_ns_per_key`: nanoseconds more per key. Default 0; at most a minute.
    pub delay_ns_per_key: u64,
    /// `delay_ns_per_byte`: nanoseconds more per byte of the buffers, fractions allowed (0.1 is 10 GB/s). Default 0; at most
    /// 1,000,000.
    pub delay_ns_per_byte: f64,
    /// `pipe_us`: microseconds that each call puts into a pipe that all calls share, one after the other. Default 0; at most an hour.
    pub pipe_us: u64,
    /// `pipe_ns_per_key`: nanoseconds more in the pipe per key. Default 0; at most a minute.
    pub pipe_ns_per_key: u64,
    /// `pipe_ns_per_byte`: nanoseconds more in the pipe per byte of the buffers, fractions allowed (1 is 1 GB/s for all calls
    /// together). Default 0; at most 1,000,000.
    pub pipe_ns_per_byte: f64,
    /// `key_error_rate`: share of keys that fail, from 0 to 1. Default 0.
    pub key_error_rate: f64,
    /// `call_error_rate`: share of calls that fail as a whole, from 0 to 1. Default 0.
    pub call_error_rate: f64,
    /// `wrong_count`: the call reports another number of results than keys.
    pub wrong_count: Option<Fault>,
    /// `flip_bytes`: bytes of retrieved objects are damaged.
    pub flip_bytes: Option<Fault>,
    /// `unwritten`: buffers of successful retrieves stay as they were.
    pub unwritten: Option<Fault>,
    /// `swapped`: objects of a retrieve land in each other's buffers.
    pub swapped: Option<Fault>,
    /// `panics`: the call panics.
    pub panics: Option<Fault>,
}

impl SimConfig {
    pub(super) const KEYS: [&str; 15] = [
        "inner",
        "seed",
        "delay_us",
        "delay_ns_per_key",
        "delay_ns_per_byte",
        "pipe_us",
        "pipe_ns_per_key",
        "pipe_ns_per_byte",
        "key_error_rate",
        "call_error_rate",
        "wrong_count",
        "flip_bytes",
        "unwritten",
        "swapped",
        "panics",
    ];

    pub(super) fn read(object: &mut Object) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        if let Some(field) = object.take("inner") {
            config.inner = InnerStore::read(field.object()?)?;
        }
        for (key, limits, knob) in [
            ("seed", SEED, &mut config.seed),
            ("delay_us", DELAY_US, &mut config.delay_us),
            (
                "delay_ns_per_key",
                DELAY_NS_PER_KEY,
                &mut config.delay_ns_per_key,
            ),
            ("pipe_us", DELAY_US, &mut config.pipe_us),
            (
                "pipe_ns_per_key",
                DELAY_NS_PER_KEY,
                &mut config.pipe_ns_per_key,
            ),
        ] {
            if let Some(field) = object.take(key) {
                *knob = field.number(limits)?;
            }
        }
        for (key, max, knob) in [
            (
                "delay_ns_per_byte",
                MAX_DELAY_NS_PER_BYTE,
                &mut config.delay_ns_per_byte,
            ),
            (
                "pipe_ns_per_byte",
                MAX_DELAY_NS_PER_BYTE,
                &mut config.pipe_ns_per_byte,
            ),
            ("key_error_rate", 1.0, &mut config.key_error_rate),
            ("call_error_rate", 1.0, &mut config.call_error_rate),
        ] {
            if let Some(field) = object.take(key) {
                *knob = field.real(max)?;
            }
        }
        let retrieve = Some(OpKind::Retrieve);
        for (key, only, knob) in [
            ("wrong_count", None, &mut config.wrong_count),
            ("flip_bytes", retrieve, &mut config.flip_bytes),
            ("unwritten", retrieve, &mut config.unwritten),
            ("swapped", retrieve, &mut config.swapped),
            ("panics", None, &mut config.panics),
        ] {
            if let Some(field) = object.take(key) {
                *knob = Some(Fault::read(field, only)?);
            }
        }
        Ok(config)
    }

    pub(super) fn write(&self, out: &mut Map<String, Value>) {
        let mut put = |key: &str, value: Value| out.insert(key.into(), value);
        put("inner", self.inner.to_json());
        put("seed", self.seed.into());
        put("delay_us", self.delay_us.into());
        put("delay_ns_per_key", self.delay_ns_per_key.into());
        put("delay_ns_per_byte", self.delay_ns_per_byte.into());
        put("pipe_us", self.pipe_us.into());
        put("pipe_ns_per_key", self.pipe_ns_per_key.into());
        put("pipe_ns_per_byte", self.pipe_ns_per_byte.into());
        put("key_error_rate", self.key_error_rate.into());
        put("call_error_rate", self.call_error_rate.into());
        for (key, fault) in [
            ("wrong_count", &self.wrong_count),
            ("flip_bytes", &self.flip_bytes),
            ("unwritten", &self.unwritten),
            ("swapped", &self.swapped),
            ("panics", &self.panics),
        ] {
            if let Some(fault) = fault {
                put(key, fault.to_json());
            }
        }
    }
}
