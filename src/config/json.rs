//! JSON as it was written: numbers keep their digits, a key that stands twice is an error, and every value knows its path.
//!
//! serde_json's `Value` takes the last of two equal keys in silence and turns integers over 64 bits into
//! floats; its `arbitrary_precision` would change numbers for every crate in the build. Raw values do neither.

use std::collections::HashSet;
use std::fmt::{self, Display};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::ConfigError;
use super::limits::{Limits, refuse};
use super::size::parse_size;

/// The path of the whole text.
pub(super) const WHOLE: &str = "json";

/// Deeper nesting than any configuration has. Bounds both recursion and the reading of nested text anew at each level.
const MAX_DEPTH: usize = 16;

/// A JSON value.
#[derive(Debug)]
pub(super) enum Node {
    Null,
    Bool(bool),
    /// As written.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl Display for Node {
    /// The value for an error's text, cut to a length that fits a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Null => f.write_str("null"),
            Node::Bool(b) => b.fmt(f),
            Node::Number(n) => short(n).fmt(f),
            Node::Text(s) => write!(f, "the string \"{}\"", short(s)),
            Node::List(_) => f.write_str("a list"),
            Node::Object(_) => f.write_str("an object"),
        }
    }
}

/// One line, at most 40 characters of the original.
fn short(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}...", text[..at].escape_debug()),
        None => text.escape_debug().to_string(),
    }
}

/// A value and the path to it.
#[derive(Debug)]
pub(super) struct Field {
    pub path: String,
    pub node: Node,
}

/// The members of an object that nobody has taken yet.
#[derive(Debug)]
pub(super) struct Object {
    path: String,
    members: Vec<(String, Node)>,
}

/// Reads a text that must be one object.
pub(super) fn parse(json: &str) -> Result<Object, ConfigError> {
    // The whole first: it finds every error of syntax with its place in the text, without recursion.
    let raw: &RawValue = serde_json::from_str(json).map_err(|e| ConfigError::new(WHOLE, e))?;
    let node = build(raw, "", 0)?;
    let Node::Object(members) = node else {
        return Err(refuse(WHOLE, node, "an object"));
    };
    Ok(Object {
        path: String::new(),
        members,
    })
}

fn build(raw: &RawValue, path: &str, depth: usize) -> Result<Node, ConfigError> {
    let text = raw.get();
    let syntax = |e: serde_json::Error| ConfigError::new(or_whole(path), e);
    if depth > MAX_DEPTH {
        let reason = format_args!("nested deeper than {MAX_DEPTH} levels");
        return Err(ConfigError::new(or_whole(path), reason));
    }
    Ok(match text.as_bytes().first() {
        Some(b'{') => {
            let Members(raw) = serde_json::from_str(text).map_err(syntax)?;
            let mut seen = HashSet::with_capacity(raw.len());
            let mut members = Vec::with_capacity(raw.len());
            for (key, value) in raw {
                let path = join(path, &key);
                if !seen.insert(key.clone()) {
                    return Err(ConfigError::new(path, "stands twice"));
                }
                members.push((key, build(value, &path, depth + 1)?));
            }
            Node::Object(members)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).map_err(syntax)?;
            let items = items.into_iter().enumerate();
            Node::List(
                items
                    .map(|(i, item)| build(item, &format!("{path}[{i}]"), depth + 1))
                    .collect::<Result<_, _>>()?,
            )
        }
        Some(b'"') => Node::Text(serde_json::from_str(text).map_err(syntax)?),
        Some(b't') => Node::Bool(true),
        Some(b'f') => Node::Bool(false),
        Some(b'n') => Node::Null,
        _ => Node::Number(text.to_owned()),
    })
}

fn or_whole(path: &str) -> &str {
    if path.is_empty() { WHOLE } else { path }
}

fn join(path: &str, key: &str) -> String {
    let key = if key.is_empty() {
        "\"\"".to_owned()
    } else {
        short(key)
    };
    if path.is_empty() {
        key
    } else {
        format!("{path}.{key}")
    }
}

/// All members of an object in the order written, equal keys included.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(All)
    }
}

impl Object {
    /// Takes the member with this key out.
    pub fn take(&mut self, key: &str) -> Option<Field> {
        let at = self.members.iter().position(|(k, _)| k == key)?;
        let (key, node) = self.members.remove(at);
        Some(Field {
            path: join(&self.path, &key),
            node,
        })
    }

    /// Takes a member that must be there.
    pub fn require(&mut self, key: &str, want: impl Display) -> Result<Field, ConfigError> {
        self.take(key).ok_or_else(|| {
            ConfigError::new(join(&self.path, key), format_args!("missing (want {want})"))
        })
    }

    /// Refuses what nobody took. `known`: the keys that were looked for.
    pub fn finish(self, known: &[&str]) -> Result<(), ConfigError> {
        match self.members.first() {
            None => Ok(()),
            Some((key, _)) => Err(ConfigError::new(
                join(&self.path, key),
                format_args!("unknown key (want {})", known.join(", ")),
            )),
        }
    }

    /// What nobody took, with paths.
    pub fn rest(self) -> impl Iterator<Item = (String, Field)> {
        let Self { path, members } = self;
        members.into_iter().map(move |(key, node)| {
            let path = join(&path, &key);
            (key, Field { path, node })
        })
    }
}

impl Field {
    /// The error that this value is not what is wanted.
    pub fn refuse(&self, want: impl Display) -> ConfigError {
        refuse(&self.path, &self.node, want)
    }

    /// An integer within limits; a size string too where the limits are of bytes.
    pub fn number(&self, limits: Limits) -> Result<u64, ConfigError> {
        let number = match &self.node {
            // `u64` takes digits only: no sign, fraction or exponent.
            Node::Number(n) => n.parse().ok(),
            Node::Text(s) if limits.takes_size_strings() => Some(parse_size(s).map_err(|e| {
                refuse(
                    &self.path,
                    format_args!("{}, which is {e}", self.node),
                    limits,
                )
            })?),
            _ => None,
        };
        number
            .filter(|&n| limits.contains(n))
            .ok_or_else(|| self.refuse(limits))
    }

    /// A [`number`](Self::number) of a knob whose limits a `usize` holds.
    pub fn count(&self, limits: Limits) -> Result<usize, ConfigError> {
        usize::try_from(self.number(limits)?).map_err(|_| self.refuse(limits))
    }

    /// [`number`](Self::number) for limits below 2^32.
    pub fn u32(&self, limits: Limits) -> Result<u32, ConfigError> {
        u32::try_from(self.number(limits)?).map_err(|_| self.refuse(limits))
    }

    /// A number from 0 to `max`, with or without a fraction.
    pub fn real(&self, max: f64) -> Result<f64, ConfigError> {
        let number = match &self.node {
            Node::Number(n) => n.parse::<f64>().ok(),
            _ => None,
        };
        number
            .filter(|n| (0.0..=max).contains(n))
            .ok_or_else(|| self.refuse(format_args!("a number from 0 to {max}")))
    }

    /// `true` or `false`.
    pub fn bool(&self) -> Result<bool, ConfigError> {
        match self.node {
            Node::Bool(b) => Ok(b),
            _ => Err(self.refuse("true or false")),
        }
    }

    /// An object.
    pub fn object(self) -> Result<Object, ConfigError> {
        match self.node {
            Node::Object(members) => Ok(Object {
                path: self.path,
                members,
            }),
            _ => Err(self.refuse("an object")),
        }
    }

    /// The items of a list, with paths; the field itself back if it is no list.
    pub fn items(self) -> Result<Vec<Field>, Field> {
        match self.node {
            Node::List(items) => Ok(items
                .into_iter()
                .enumerate()
                .map(|(i, node)| Field {
                    path: format!("{}[{i}]", self.path),
                    node,
                })
                .collect()),
            _ => Err(self),
        }
    }
}
