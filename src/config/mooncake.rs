//! What goes to Mooncake.

use super::ConfigError;
use super::json::{Field, Node, Object};

/// Options of the `mooncake_store`: every key of the JSON that is not the adapter's own.
///
/// They reach Mooncake's set-up as strings, in the order given: strings as they are, `true` and `false`, numbers in full.
/// A number without an exponent is forwarded digit for digit as it was written, however long; one with an exponent
/// is written out (`1e9` is `1000000000`), since Mooncake reads its integers up to the first letter. `null`
/// leaves a key out. Objects, lists, and NUL bytes, which the C interface would cut at, are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MooncakeConfig {
    /// Keys and values as they are forwarded; no key twice.
    pub forwarded: Vec<(String, String)>,
}

impl MooncakeConfig {
    /// Takes all that is left of the adapter's object.
    pub(super) fn read(rest: Object) -> Result<Self, ConfigError> {
        let mut forwarded = Vec::new();
        for (key, field) in rest.rest() {
            if key.is_empty() || key.contains('\0') {
                return Err(ConfigError::new(
                    field.path,
                    "not a key for Mooncake (want one that is neither empty nor holds a NUL)",
                ));
            }
            if let Some(value) = forward(&field)? {
                forwarded.push((key, value));
            }
        }
        Ok(Self { forwarded })
    }

    /// The value that is forwarded for this key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let (_, value) = self.forwarded.iter().find(|(k, _)| k == key)?;
        Some(value)
    }

    /// Whether `protocol` is exactly `rdma`, the one spelling that Mooncake takes.
    pub fn is_rdma(&self) -> bool {
        self.get("protocol") == Some("rdma")
    }

    /// Checks the memory region that the store is to be created with: pointer and bytes.
    ///
    /// `protocol: "rdma"` demands one; there is no falling back to tcp, which demands none.
    pub fn check_region(&self, region: Option<(usize, usize)>) -> Result<(), ConfigError> {
        if !self.is_rdma() {
            return Ok(());
        }
        let wrong = match region {
            None => "none was given",
            Some((0, _)) => "its pointer is null",
            Some((_, 0)) => "its size is 0",
            Some(_) => return Ok(()),
        };
        Err(ConfigError::new(
            "protocol",
            format_args!("\"rdma\" needs a memory region to register, and {wrong}"),
        ))
    }
}

/// The string for Mooncake; `None` for null.
fn forward(field: &Field) -> Result<Option<String>, ConfigError> {
    let wanted = "a string, a number, true, false or null";
    let value = match &field.node {
        Node::Null => return Ok(None),
        Node::Bool(b) => b.to_string(),
        Node::Number(n) => {
            in_full(n).ok_or_else(|| field.refuse("a number of less than 400 digits"))?
        }
        Node::Text(s) if s.contains('\0') => return Err(field.refuse("a string without NUL")),
        Node::Text(s) => s.clone(),
        Node::List(_) | Node::Object(_) => return Err(field.refuse(wanted)),
    };
    Ok(Some(value))
}

/// A JSON number without exponent, of exactly the same value. `None` where that would be absurdly long.
fn in_full(number: &str) -> Option<String> {
    let Some((mantissa, exponent)) = number.split_once(['e', 'E']) else {
        return Some(number.to_owned());
    };
    // Past every double.
    let exponent = exponent.parse::<isize>().ok().filter(|e| e.abs() < 400)?;
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    // How many of the digits stand before the point.
    let point = whole.len().checked_add_signed(exponent);
    let (whole, fraction) = match point {
        None => {
            let zeros = exponent.unsigned_abs() - whole.len();
            (String::new(), format!("{}{digits}", "0".repeat(zeros)))
        }
        Some(point) if point < digits.len() => {
            let (whole, fraction) = digits.split_at(point);
            (whole.to_owned(), fraction.to_owned())
        }
        Some(point) => (format!("{digits:0<point$}"), String::new()),
    };
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        whole => whole,
    };
    Some(if fraction.is_empty() {
        format!("{sign}{whole}")
    } else {
        format!("{sign}{whole}.{fraction}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_written_in_full() {
        for (written, full) in [
            ("0", "0"),
            ("-0", "-0"),
            ("3221225472", "3221225472"),
            ("18446744073709551616", "18446744073709551616"),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
            ("2.0", "2.0"),
            ("0.1", "0.1"),
            ("0.95", "0.95"),
            ("-12.50", "-12.50"),
            ("1e9", "1000000000"),
            ("1E+9", "1000000000"),
            ("1.5e3", "1500"),
            ("1.2345e2", "123.45"),
            ("123456789012345678e3", "123456789012345678000"),
            ("1e-7", "0.0000001"),
            ("-2.5e-1", "-0.25"),
            ("25e-1", "2.5"),
            ("0.5e1", "5"),
            ("0e5", "0"),
            ("1e0", "1"),
            ("12e-2", "0.12"),
        ] {
            assert_eq!(in_full(written).as_deref(), Some(full), "{written}");
        }
        assert_eq!(in_full("1e399").map(|s| s.len()), Some(400));
        for absurd in ["1e400", "1e-400", "1e99999999999999999999", "0e1000000"] {
            assert_eq!(in_full(absurd), None, "{absurd}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn writing_out_an_exponent_keeps_the_value(
            mantissa in "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,20})?",
            exponent in -300i32..280,
        ) {
            let number = format!("{mantissa}e{exponent}");
            let full = in_full(&number).unwrap();
            prop_assert!(!full.contains(['e', 'E']), "{number} -> {full}");
            prop_assert_eq!(full.parse::<f64>(), number.parse::<f64>(), "{} -> {}", number, full);
            // Still a JSON number.
            prop_assert!(serde_json::from_str::<serde_json::Value>(&full).is_ok(), "{full}");
        }
    }
}
