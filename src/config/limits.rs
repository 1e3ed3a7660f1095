//! What an integer knob may be, and the words that refuse it, for JSON and builder alike.

use std::fmt::{self, Display};

use super::ConfigError;

/// No piece of memory is larger: Rust's own limit for an object.
pub(super) const MAX_BYTES: u64 = isize::MAX as u64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Count,
    Bytes,
}

/// The inclusive range of an integer or a size.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    min: u64,
    max: u64,
    unit: Unit,
}

impl Limits {
    /// An integer.
    pub const fn integer(min: u64, max: u64) -> Self {
        Self {
            min,
            max,
            unit: Unit::Count,
        }
    }

    /// A number of bytes, which JSON may also give as a size string.
    pub const fn size(min: u64, max: u64) -> Self {
        Self {
            min,
            max,
            unit: Unit::Bytes,
        }
    }

    pub fn takes_size_strings(self) -> bool {
        self.unit == Unit::Bytes
    }

    pub fn contains(self, value: u64) -> bool {
        (self.min..=self.max).contains(&value)
    }

    /// The builder's check; JSON reads with [`Field::number`](super::json::Field::number).
    pub fn check(self, field: &str, value: usize) -> Result<(), ConfigError> {
        if self.contains(value as u64) {
            return Ok(());
        }
        Err(refuse(field, value, self))
    }
}

impl Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, max, unit } = self;
        match unit {
            Unit::Count => write!(f, "an integer from {min} to {max}"),
            Unit::Bytes => write!(
                f,
                "a size from {min} to {max} bytes, as an integer or a string like \"64 MiB\""
            ),
        }
    }
}

/// The one form of all refusals of a value.
pub(super) fn refuse(field: &str, got: impl Display, want: impl Display) -> ConfigError {
    ConfigError::new(field, format_args!("got {got} (want {want})"))
}
