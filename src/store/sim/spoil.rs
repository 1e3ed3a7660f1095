//! The faults that spoil bytes, after the wrapped store's call went well.

use std::mem::MaybeUninit;

use super::fault::Dice;
use crate::store::RetrieveBatch;

/// The buffers of a batch as they were before the call.
pub(super) struct Before(Vec<Box<[MaybeUninit<u8>]>>);

impl Before {
    pub(super) fn new(batch: &RetrieveBatch<'_>) -> Self {
        let buffers = batch.bufs().iter().zip(batch.buf_lens());
        let copy = |(buf, len): (&*mut u8, &usize)| {
            // SAFETY: the batch's buffers are `len` bytes each, for this call alone. `MaybeUninit` takes what
            // the caller has not written yet.
            let buf = unsafe { std::slice::from_raw_parts(buf.cast::<MaybeUninit<u8>>(), *len) };
            Box::from(buf)
        };
        Self(buffers.map(copy).collect())
    }
}

/// A batch after a good call. One key is spoiled at most once.
pub(super) struct Spoiler<'a, 'b> {
    batch: &'a mut RetrieveBatch<'b>,
    spoiled: Vec<usize>,
}

impl<'a, 'b> Spoiler<'a, 'b> {
    pub(super) fn new(batch: &'a mut RetrieveBatch<'b>) -> Self {
        Self {
            batch,
            spoiled: Vec::new(),
        }
    }

    pub(super) fn key(&self, i: usize) -> Vec<u8> {
        self.batch.key(i).to_vec()
    }

    /// Gives one buffer back what was in it before the call; which.
    pub(super) fn unwrite(&mut self, dice: &mut Dice, before: &Before) -> Option<usize> {
        let (i, _) = pick(dice, &self.good())?;
        let old = before.0.get(i)?;
        let buf = self.batch.bufs()[i].cast::<MaybeUninit<u8>>();
        // SAFETY: `old` was copied from this buffer and has its length; the buffer is this call's alone until it
        // returns, and the wrapped store's call has returned.
        unsafe { std::ptr::copy_nonoverlapping(old.as_ptr(), buf, old.len()) };
        self.spoiled.push(i);
        Some(i)
    }

    /// Changes one byte; whose, and its offset.
    pub(super) fn flip(&mut self, dice: &mut Dice) -> Option<(usize, usize)> {
        let (i, len) = pick(dice, &self.good())?;
        let offset = dice.below(len);
        let mask = 1 + dice.below(255) as u8;
        // SAFETY: `offset` is below the length that the wrapped store has reported as written, which is not
        // over the buffer's; the buffer is this call's alone until it returns.
        unsafe { *self.batch.bufs()[i].add(offset) ^= mask };
        self.spoiled.push(i);
        Some((i, offset))
    }

    /// Exchanges two objects of equal length and unequal bytes; which.
    pub(super) fn swap(&mut self, dice: &mut Dice) -> Option<(usize, usize)> {
        let mut good = self.good();
        if good.is_empty() {
            return None;
        }
        let first = dice.below(good.len());
        good.rotate_left(first);
        let pairs = good.iter().enumerate();
        let mut pairs = pairs.flat_map(|(n, a)| good[n + 1..].iter().map(move |b| (a, b)));
        let bytes = |&(i, len): &(usize, usize)| {
            // SAFETY: the wrapped store has reported these bytes of the buffer as written; nobody writes them now.
            unsafe { std::slice::from_raw_parts(self.batch.bufs()[i].cast_const(), len) }
        };
        let (&(a, len), &(b, _)) = pairs.find(|(a, b)| a.1 == b.1 && bytes(a) != bytes(b))?;
        let bufs = self.batch.bufs();
        // SAFETY: both buffers hold at least `len` bytes, are this call's alone until it returns, and don't overlap:
        // each is for one key alone.
        unsafe { std::ptr::swap_nonoverlapping(bufs[a], bufs[b], len) };
        self.spoiled.extend([a, b]);
        Some((a, b))
    }

    /// Retrieves that went well and are not spoiled yet: index and true length.
    fn good(&self) -> Vec<(usize, usize)> {
        let good = |i: usize| {
            let len = usize::try_from(self.batch.keys.result(i).ok()?).ok()?;
            let holds = (1..=self.batch.buf_lens()[i]).contains(&len);
            (holds && !self.spoiled.contains(&i)).then_some((i, len))
        };
        (0..self.batch.len()).filter_map(good).collect()
    }
}

fn pick(dice: &mut Dice, good: &[(usize, usize)]) -> Option<(usize, usize)> {
    (!good.is_empty()).then(|| good[dice.below(good.len())])
}
