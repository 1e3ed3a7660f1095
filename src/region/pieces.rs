//! How a region is cut where a store takes no registration as large as the region.

use std::num::NonZeroUsize;

/// A region's length cut into pieces that one registration takes each.
///
/// Offsets and lengths are in bytes from the region's start. All pieces have one length, except the last,
/// which may be shorter. A span that crosses from one piece into the next can't be used: some devices would
/// cut it without a word.
///
/// ```
/// use moonring::Pieces;
/// use std::num::NonZeroUsize;
///
/// const MIB: usize = 1 << 20;
/// let limit = NonZeroUsize::new(16 * MIB).unwrap();
/// let lens: Vec<usize> = Pieces::cut(40 * MIB, limit).iter().map(|(_, len)| len).collect();
/// assert_eq!(lens, [16 * MIB, 16 * MIB, 8 * MIB]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Not zero, unless `len` is.
    piece: usize,
    len: usize,
}

impl Pieces {
    /// One piece: the store has no limit.
    pub const fn whole(len: usize) -> Self {
        Self { piece: len, len }
    }

    /// Pieces of at most `max` bytes.
    pub const fn cut(len: usize, max: NonZeroUsize) -> Self {
        let max = max.get();
        let piece = if max < len { max } else { len };
        Self { piece, len }
    }

    /// How many pieces.
    pub const fn count(&self) -> usize {
        if self.len == 0 {
            return 0;
        }
        self.len.div_ceil(self.piece)
    }

    /// Offset and length of each piece, in order. Reversed it gives the order to unregister in.
    pub fn iter(
        &self,
    ) -> impl DoubleEndedIterator<Item = (usize, usize)> + ExactSizeIterator + use<> {
        let Self { piece, len } = *self;
        (0..self.count()).map(move |i| {
            // No overflow: `i` is under the count, so the offset is under `len`.
            let offset = i * piece;
            (offset, piece.min(len - offset))
        })
    }

    /// The offset of the first boundary that a span crosses, `None` when it lies in one piece.
    ///
    /// The span must be inside the region; for another one the answer says nothing.
    pub const fn crossing(&self, offset: usize, len: usize) -> Option<usize> {
        // The usual case, without a division.
        if self.piece >= self.len {
            return None;
        }
        let in_piece = offset % self.piece;
        let left = self.piece - in_piece;
        if len <= left {
            return None;
        }
        offset.checked_add(left)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: usize = 1 << 20;

    fn cut(len: usize, max: usize) -> Pieces {
        Pieces::cut(len, NonZeroUsize::new(max).unwrap())
    }

    #[test]
    fn forty_mib_with_a_limit_of_sixteen_is_16_16_8() {
        let pieces = cut(40 * MIB, 16 * MIB);
        assert_eq!(pieces.count(), 3);
        assert_eq!(
            pieces.iter().collect::<Vec<_>>(),
            [(0, 16 * MIB), (16 * MIB, 16 * MIB), (32 * MIB, 8 * MIB)]
        );
        assert_eq!(pieces.iter().next_back(), Some((32 * MIB, 8 * MIB)));
    }

    #[test]
    fn a_span_across_sixteen_mib_crosses_and_its_neighbours_do_not() {
        let pieces = cut(40 * MIB, 16 * MIB);
        assert_eq!(pieces.crossing(16 * MIB - 1, 2), Some(16 * MIB));
        assert_eq!(pieces.crossing(0, 16 * MIB + 1), Some(16 * MIB));
        assert_eq!(pieces.crossing(0, 40 * MIB), Some(16 * MIB));
        assert_eq!(pieces.crossing(17 * MIB, 16 * MIB), Some(32 * MIB));
        assert_eq!(pieces.crossing(0, 16 * MIB), None);
        assert_eq!(pieces.crossing(16 * MIB - 1, 1), None);
        assert_eq!(pieces.crossing(16 * MIB, 16 * MIB), None);
        assert_eq!(pieces.crossing(32 * MIB, 8 * MIB), None);
    }

    #[test]
    fn a_limit_at_or_over_the_length_makes_one_piece() {
        for pieces in [
            Pieces::whole(40),
            cut(40, 40),
            cut(40, 41),
            cut(40, usize::MAX),
        ] {
            assert_eq!(pieces.iter().collect::<Vec<_>>(), [(0, 40)]);
            assert_eq!(pieces.crossing(0, 40), None);
        }
        assert_eq!(cut(41, 40).iter().collect::<Vec<_>>(), [(0, 40), (40, 1)]);
    }

    #[test]
    fn no_length_has_no_pieces() {
        assert_eq!(cut(0, 16).count(), 0);
        assert_eq!(Pieces::whole(0).iter().count(), 0);
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let pieces = cut(usize::MAX, usize::MAX - 1);
        assert_eq!(
            pieces.iter().collect::<Vec<_>>(),
            [(0, usize::MAX - 1), (usize::MAX - 1, 1)]
        );
        assert_eq!(pieces.crossing(0, usize::MAX), Some(usize::MAX - 1));
        // Not inside the region: any answer will do, but it must be one.
        let _ = pieces.crossing(usize::MAX, usize::MAX);
    }

    proptest! {
        #[test]
        fn pieces_cover_the_length_without_gap_or_overlap(len in 1usize..1 << 40, max in 1usize << 20..1 << 41) {
            let pieces = cut(len, max);
            let mut end = 0;
            for (offset, piece) in pieces.iter() {
                prop_assert_eq!(offset, end);
                prop_assert!(piece > 0 && piece <= max);
                end = offset + piece;
            }
            prop_assert_eq!(end, len);
            prop_assert_eq!(pieces.iter().len(), pieces.count());
        }

        /// Against the plain definition: a boundary is the start of a piece other than the first.
        #[test]
        fn crossing_is_the_first_boundary_strictly_inside(
            len in 1usize..500, max in 1usize..500, a in 0usize..500, b in 0usize..500
        ) {
            let (start, end) = (a.min(b).min(len), a.max(b).min(len));
            let pieces = cut(len, max);
            let first = pieces.iter().map(|(offset, _)| offset).find(|&o| start < o && o < end);
            prop_assert_eq!(pieces.crossing(start, end - start), first);
        }
    }
}
