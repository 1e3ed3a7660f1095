//! Memory that was registered: disjoint ranges by address.

use std::collections::BTreeMap;

use crate::store::RegisterError;

/// Registered ranges: length by address, none overlapping another.
#[derive(Debug, Default)]
pub(super) struct Registrations(BTreeMap<usize, usize>);

impl Registrations {
    pub(super) fn add(
        &mut self,
        base: usize,
        len: usize,
        max: Option<usize>,
    ) -> Result<(), RegisterError> {
        let new = show(base, len);
        if len == 0 {
            return Err(RegisterError::new(format!("{new}: length zero")));
        }
        let Some(end) = base.checked_add(len) else {
            return Err(RegisterError::new(format!(
                "{new}: beyond the address space"
            )));
        };
        if let Some(max) = max.filter(|max| len > *max) {
            return Err(RegisterError::new(format!(
                "{new}: longer than max_registration, {max} bytes"
            )));
        }
        // As ranges are disjoint, the last that begins before our end is the only one that can reach into ours.
        if let Some((&b, &l)) = self.0.range(..end).next_back()
            && b + l > base
        {
            let old = show(b, l);
            return Err(RegisterError::new(if (b, l) == (base, len) {
                format!("{new} is registered already, as {old}")
            } else {
                format!("{new} overlaps {old}, which is registered")
            }));
        }
        self.0.insert(base, len);
        Ok(())
    }

    pub(super) fn remove(&mut self, base: usize, len: usize) -> Result<(), RegisterError> {
        let asked = show(base, len);
        match self.0.get(&base) {
            Some(&l) if l == len => {
                self.0.remove(&base);
                Ok(())
            }
            Some(&l) => Err(RegisterError::new(format!(
                "{asked} is not registered; {} is",
                show(base, l)
            ))),
            None => Err(RegisterError::new(format!("{asked} is not registered"))),
        }
    }

    /// Whether all of it lies in one registered range.
    pub(super) fn covers(&self, addr: usize, len: usize) -> bool {
        match self.0.range(..=addr).next_back() {
            // No overflow: `addr >= base`.
            Some((&b, &l)) => addr - b <= l && len <= l - (addr - b),
            None => false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

fn show(base: usize, len: usize) -> String {
    format!("memory {base:#x}+{len}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(result: Result<(), RegisterError>) -> String {
        result.unwrap_err().reason
    }

    #[test]
    fn neighbours_are_fine_and_overlaps_name_both_ranges() {
        let mut r = Registrations::default();
        r.add(0x1000, 0x100, None).unwrap();
        r.add(0x1100, 0x100, None).unwrap();
        r.add(0xf00, 0x100, None).unwrap();
        assert_eq!(r.len(), 3);
        for (base, len) in [
            (0x1000, 0x100),
            (0x1001, 1),
            (0xfff, 2),
            (0x11ff, 1),
            (0x100, 0x10000),
        ] {
            let why = reason(r.add(base, len, None));
            assert!(why.contains(&show(base, len)), "{why}");
            assert!(why.matches("memory 0x").count() == 2, "{why}");
        }
        let twice = reason(r.add(0x1000, 0x100, None));
        assert!(twice.contains("registered already"), "{twice}");
        let over = reason(r.add(0x10ff, 1, None));
        assert!(over.contains("overlaps memory 0x1000+256"), "{over}");
        assert_eq!(r.len(), 3);
        r.add(0x1200, 1, None).unwrap();
    }

    #[test]
    fn zero_length_overflow_and_too_long_are_refused() {
        let mut r = Registrations::default();
        assert!(reason(r.add(0x1000, 0, None)).contains("length zero"));
        let why = reason(r.add(usize::MAX - 1, 2, None));
        assert!(why.contains("address space"), "{why}");
        let why = reason(r.add(0x1000, 17, Some(16)));
        assert!(why.contains("max_registration, 16 bytes"), "{why}");
        r.add(0x1000, 16, Some(16)).unwrap();
    }

    #[test]
    fn only_what_was_registered_can_be_unregistered_and_once() {
        let mut r = Registrations::default();
        r.add(0x1000, 0x100, None).unwrap();
        assert!(reason(r.remove(0x1001, 0xff)).contains("not registered"));
        let why = reason(r.remove(0x1000, 0xff));
        assert!(why.contains("0x1000+255") && why.contains("0x1000+256"));
        r.remove(0x1000, 0x100).unwrap();
        assert!(reason(r.remove(0x1000, 0x100)).contains("not registered"));
        r.add(0x1000, 0x100, None).unwrap();
    }

    #[test]
    fn covered_means_within_one_range() {
        let mut r = Registrations::default();
        r.add(0x1000, 0x100, None).unwrap();
        r.add(0x1100, 0x100, None).unwrap();
        for (addr, len) in [(0x1000, 0x100), (0x1001, 0xff), (0x10ff, 1), (0x1100, 1)] {
            assert!(r.covers(addr, len), "{addr:#x}+{len}");
        }
        for (addr, len) in [
            (0xfff, 1),
            (0x1000, 0x101),
            (0x10ff, 2),
            (0x1200, 1),
            (0x1001, usize::MAX),
            (usize::MAX, 2),
        ] {
            assert!(!r.covers(addr, len), "{addr:#x}+{len}");
        }
    }
}
