//! The error of an option that makes no sense.

/// An option that makes no sense; names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct OptionError {
    /// The field's name, as in the options struct.
    pub field: &'static str,
    /// What is wrong with its value, which it repeats.
    pub reason: String,
}

impl OptionError {
    pub(crate) fn new(field: &'static str, reason: impl Into<String>) -> Self {
        Self {
            field,
            reason: reason.into(),
        }
    }
}
