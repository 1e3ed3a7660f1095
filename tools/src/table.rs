//! Plain text for people: aligned columns and numbers that read well.

use std::fmt::Write;

/// Columns aligned by their widest cell: the first to the left, the others to the right.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&str]) -> Self {
        let mut table = Self::default();
        table.row(headings.iter().map(|h| (*h).to_owned()));
        table
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The text, each line ended.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(c));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (c, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                // Writing to a String can't fail.
                let _ = match c {
                    0 => write!(line, "{cell:<width$}"),
                    _ => write!(line, "  {cell:>width$}"),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// `1234567` as `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of bytes with a binary unit: `4 KiB`, `1.5 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match value.fract() == 0.0 {
        true => format!("{value} {}", UNITS[unit]),
        false => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// Microseconds with three significant digits and a unit: `1.23 us`, `45.6 ms`, `7.89 s`.
pub fn micros(us: f64) -> String {
    let (value, unit) = match us {
        _ if us < 1e3 => (us, "us"),
        _ if us < 1e6 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    let decimals = match value {
        _ if value < 10.0 => 2,
        _ if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["lane", "ops"]);
        table.row(["retrieve", "12,345"].map(String::from));
        table.row(["store"].map(String::from));
        let want = "lane         ops\nretrieve  12,345\nstore\n";
        assert_eq!(table.text(), want);
    }

    #[test]
    fn numbers_read_well() {
        let counts = [0, 999, 1000, 182_790, 1_000_000].map(count);
        assert_eq!(counts, ["0", "999", "1,000", "182,790", "1,000,000"]);
        let sizes = [0, 4096, 1536, 3 << 30].map(bytes);
        assert_eq!(sizes, ["0 B", "4 KiB", "1.5 KiB", "3 GiB"]);
        let times = [0.0, 1.234, 45.61, 999.4, 1500.0, 2e6].map(micros);
        let want = [
            "0.00 us", "1.23 us", "45.6 us", "999 us", "1.50 ms", "2.00 s",
        ];
        assert_eq!(times, want);
    }
}
