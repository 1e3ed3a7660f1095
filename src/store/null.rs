//! The `null` store: answers at once, moves nothing.

use super::{CallResult, DeleteBatch, LookupBatch, RetrieveBatch, Store, StoreBatch};
use crate::StoreOutcome;

/// A store that answers at once and moves nothing, to measure what is around it.
///
/// Every key exists, every retrieve reports its buffer's length and leaves the buffer as it was, every store is
/// [`Accepted`](StoreOutcome::Accepted), every delete goes well.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullStore;

impl Store for NullStore {
    fn name(&self) -> &str {
        "null"
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            batch.set(i, Ok(true));
        }
        Ok(batch.len())
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            let len = batch.buf_lens()[i] as u64;
            batch.set(i, Ok(len));
        }
        Ok(batch.len())
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            batch.set(i, Ok(StoreOutcome::Accepted));
        }
        Ok(batch.len())
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        for i in 0..batch.len() {
            batch.set(i, Ok(()));
        }
        Ok(batch.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::direct;

    #[test]
    fn null_answers_all_and_moves_nothing() {
        let keys: [&[u8]; 2] = [b"a", b"b"];
        let mut a = [7u8; 3];
        let mut b = [8u8; 5];
        let got = direct::get_into(&NullStore, &mut [(b"a", &mut a), (b"b", &mut b)]);
        assert_eq!(got, Ok(vec![Ok(3), Ok(5)]));
        assert_eq!((a, b), ([7; 3], [8; 5]));
        let there = direct::exists(&NullStore, &keys);
        assert_eq!(there, Ok(vec![Ok(true), Ok(true)]));
        let put = direct::put_from(&NullStore, &[(b"a", &[1]), (b"b", &[2, 3])]);
        assert_eq!(put, Ok(vec![Ok(StoreOutcome::Accepted); 2]));
        assert_eq!(
            direct::remove(&NullStore, &keys, false),
            Ok(vec![Ok(()); 2])
        );
        assert_eq!(NullStore.name(), "null");
    }
}
