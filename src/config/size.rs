//! Sizes as people write them.

/// Why a string is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeError {
    /// It doesn't begin with an integer.
    #[error("not a number")]
    NotANumber,
    /// It is negative.
    #[error("negative")]
    Negative,
    /// It has a fraction.
    #[error("fractional")]
    Fractional,
    /// The unit is not known.
    #[error("of an unknown unit (known: B, KB, MB, GB, TB, each also as K or KiB)")]
    UnknownUnit,
    /// It doesn't fit into 64 bits.
    #[error("over 64 bits")]
    Overflow,
}

/// Reads a size in bytes: `"512"`, `"64MB"`, `"64 MiB"`, `"2g"`.
///
/// An integer, then one of B, K, KB, KiB, M, MB, MiB, G, GB, GiB, T, TB, TiB in any case, or no unit for bytes; blanks around
/// and between are fine. K is 2^10 bytes, M 2^20, G 2^30, T 2^40, with or without the `i`: so does Mooncake read its
/// own size strings (`string_to_byte_size` in its `utils.h`), and a size must not change its meaning on the
/// way there. Unlike there a fraction or an unknown unit is an error.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err(SizeError::Negative);
    }
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if digits.is_empty() {
        return Err(SizeError::NotANumber);
    }
    if unit.starts_with('.') {
        return Err(SizeError::Fractional);
    }
    let shift = match unit.trim_start().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(SizeError::UnknownUnit),
    };
    let number: u64 = digits.parse().map_err(|_| SizeError::Overflow)?;
    number.checked_mul(1 << shift).ok_or(SizeError::Overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_mean_what_mooncake_means() {
        const M: u64 = 1 << 20;
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("16 KB", 16 << 10),
            ("16k", 16 << 10),
            ("64MB", 64 * M),
            ("64 MiB", 64 * M),
            (" 64\tmib ", 64 * M),
            ("2GiB", 2 << 30),
            ("2g", 2 << 30),
            ("1 TB", 1 << 40),
            ("18446744073709551615", u64::MAX),
            ("16777215TiB", 16_777_215 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        use SizeError::*;
        for (text, error) in [
            ("", NotANumber),
            ("  ", NotANumber),
            ("MB", NotANumber),
            ("+5", NotANumber),
            (".5G", NotANumber),
            ("infinite", NotANumber),
            ("٣", NotANumber),
            ("-5", Negative),
            ("-64MB", Negative),
            ("1.5GB", Fractional),
            ("1.0", Fractional),
            ("1e9", UnknownUnit),
            ("5 XB", UnknownUnit),
            ("5 M B", UnknownUnit),
            ("5 5", UnknownUnit),
            ("0x10", UnknownUnit),
            ("5 MB\0", UnknownUnit),
            ("18446744073709551616", Overflow),
            ("16777216TiB", Overflow),
        ] {
            assert_eq!(parse_size(text), Err(error), "{text:?}");
        }
    }
}
