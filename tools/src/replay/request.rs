//! One request of a trace, played: look up, retrieve and check, store what is missing.

use std::ops::DerefMut;

use moonring::{ClientError, OpError};

use super::tally::{Corrupt, Tally};
use crate::content::{Content, POISON};
use crate::keys::KeyMaker;

/// A fault of the run itself, after which it can't go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatal(pub String);

/// How a request's ops reach the engine.
///
/// Op `i` is that of `keys[i]` and `slots[i]`. All slots are there at the call, and again when it is done: a slot
/// that did not come back is [`Fatal`].
pub trait Path {
    /// An owned buffer of one block.
    type Slot: DerefMut<Target = [u8]>;

    /// How many leading keys are there. A key whose lookup failed is *unknown* and ends the count.
    async fn leading(&mut self, keys: &[Vec<u8>]) -> Result<usize, Fatal>;

    /// Reads each key into its slot; the results are the true lengths in bytes.
    async fn retrieve(
        &mut self,
        keys: &[Vec<u8>],
        slots: &mut [Option<Self::Slot>],
        results: &mut [Result<u64, ClientError>],
    ) -> Result<(), Fatal>;

    /// Stores each slot under its key; the values of the results mean nothing.
    async fn store(
        &mut self,
        keys: &[Vec<u8>],
        slots: &mut [Option<Self::Slot>],
        results: &mut [Result<u64, ClientError>],
    ) -> Result<(), Fatal>;
}

/// What all requests of a run have in common.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Makes the keys.
    pub keys: KeyMaker,
    /// See [`Content::new`].
    pub salt_seed: u64,
    /// Bytes of a block.
    pub block_bytes: usize,
}

/// The place of one request in flight: its path, its slots, and what it counts.
pub struct Seat<P: Path> {
    path: P,
    slots: Vec<Option<P::Slot>>,
    keys: Vec<Vec<u8>>,
    results: Vec<Result<u64, ClientError>>,
    /// What this seat's requests counted.
    pub tally: Tally,
}

impl<P: Path> Seat<P> {
    /// A seat for requests of at most `slots.len()` blocks.
    pub fn new(path: P, slots: Vec<P::Slot>) -> Self {
        Self {
            path,
            keys: vec![Vec::new(); slots.len()],
            results: vec![Ok(0); slots.len()],
            slots: slots.into_iter().map(Some).collect(),
            tally: Tally::default(),
        }
    }

    /// Plays request number `request` (from 1) of the trace, with the blocks `ids`.
    ///
    /// Each block counts in exactly one of hit, late miss, stored, no space and failed.
    pub async fn play(&mut self, rules: &Rules, request: u64, ids: &[u64]) -> Result<(), Fatal> {
        if ids.len() > self.slots.len() {
            let (need, have) = (ids.len(), self.slots.len());
            return Err(Fatal(format!(
                "request {request}: {need} blocks, but {have} slots"
            )));
        }
        for (id, key) in ids.iter().zip(&mut self.keys) {
            rules.keys.write(*id, key);
        }
        let leading = self.path.leading(&self.keys[..ids.len()]).await?;
        let (there, missing) = ids.split_at(leading.min(ids.len()));
        if !there.is_empty() {
            self.fetch(rules, request, there).await?;
        }
        if !missing.is_empty() {
            self.keep(rules, there.len(), missing).await?;
        }
        self.tally.requests += 1;
        self.tally.blocks += ids.len() as u64;
        Ok(())
    }

    /// Retrieves and checks the leading blocks.
    async fn fetch(&mut self, rules: &Rules, request: u64, ids: &[u64]) -> Result<(), Fatal> {
        let n = ids.len();
        let (keys, slots) = (&self.keys[..n], &mut self.slots[..n]);
        for slot in slots.iter_mut().flatten() {
            slot.fill(POISON);
        }
        let results = &mut self.results[..n];
        results.fill(Err(OpError::BadResult.into()));
        self.path.retrieve(keys, slots, results).await?;
        for (block, ((&id, slot), result)) in ids.iter().zip(slots).zip(results).enumerate() {
            let len = match result {
                Ok(len) => *len,
                Err(ClientError::Failed(OpError::NotFound)) => {
                    self.tally.late_misses += 1;
                    continue;
                }
                Err(_) => {
                    self.tally.failed_blocks += 1;
                    continue;
                }
            };
            self.tally.hit_blocks += 1;
            self.tally.bytes_retrieved += len;
            let Some(slot) = slot.as_deref() else {
                return Err(Fatal(format!(
                    "request {request}: a slot did not come back"
                )));
            };
            let mismatch = Content::new(id, rules.salt_seed).check(slot).err();
            if len != rules.block_bytes as u64 || mismatch.is_some() {
                self.tally.corrupt(|| Corrupt {
                    request,
                    block: block as u64,
                    id,
                    key: rules.keys.text(id),
                    len,
                    mismatch,
                });
            }
        }
        Ok(())
    }

    /// Stores the blocks behind the leading ones.
    async fn keep(&mut self, rules: &Rules, leading: usize, ids: &[u64]) -> Result<(), Fatal> {
        let n = ids.len();
        let (keys, slots) = (&self.keys[leading..leading + n], &mut self.slots[..n]);
        for (&id, slot) in ids.iter().zip(slots.iter_mut().flatten()) {
            Content::new(id, rules.salt_seed).fill(slot);
        }
        let results = &mut self.results[..n];
        results.fill(Err(OpError::BadResult.into()));
        self.path.store(keys, slots, results).await?;
        for result in results {
            match result {
                Ok(_) => {
                    self.tally.stored_blocks += 1;
                    self.tally.bytes_stored += rules.block_bytes as u64;
                }
                Err(ClientError::Failed(OpError::NoSpace)) => self.tally.no_space += 1,
                Err(_) => self.tally.failed_blocks += 1,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{Mismatch, salt_seed};
    use crate::oracle;
    use crate::rng::Rng;
    use crate::trace::Request;
    use moonring::block_on;
    use std::collections::HashMap;

    type Op = Box<dyn FnMut(u64, &mut Vec<u8>) -> Result<(), ClientError>>;

    /// A store without an engine. `on_retrieve` and `on_store` see the number of the op and the object.
    struct Fake {
        objects: HashMap<Vec<u8>, Vec<u8>>,
        unknown: Option<u64>,
        on_retrieve: Op,
        on_store: Op,
        retrieves: u64,
        stores: u64,
        loses_slots: bool,
        /// Added to each reported length.
        lies_by: u64,
    }

    impl Default for Fake {
        fn default() -> Self {
            Self {
                objects: HashMap::new(),
                unknown: None,
                on_retrieve: Box::new(|_, _| Ok(())),
                on_store: Box::new(|_, _| Ok(())),
                retrieves: 0,
                stores: 0,
                loses_slots: false,
                lies_by: 0,
            }
        }
    }

    impl Path for Fake {
        type Slot = Vec<u8>;

        async fn leading(&mut self, keys: &[Vec<u8>]) -> Result<usize, Fatal> {
            Ok(keys
                .iter()
                .take_while(|key| self.objects.contains_key(*key))
                .count()
                .min(self.unknown.map_or(usize::MAX, |n| n as usize)))
        }

        async fn retrieve(
            &mut self,
            keys: &[Vec<u8>],
            slots: &mut [Option<Vec<u8>>],
            results: &mut [Result<u64, ClientError>],
        ) -> Result<(), Fatal> {
            assert_eq!((keys.len(), keys.len()), (slots.len(), results.len()));
            for ((key, slot), result) in keys.iter().zip(slots).zip(results) {
                let buffer = slot.as_mut().expect("a slot");
                assert!(buffer.iter().all(|&byte| byte == POISON));
                let mut object = self.objects[key].clone();
                let done = (self.on_retrieve)(self.retrieves, &mut object);
                self.retrieves += 1;
                if done.is_ok() {
                    buffer[..object.len()].copy_from_slice(&object);
                }
                *result = done.map(|()| object.len() as u64 + self.lies_by);
                if self.loses_slots {
                    *slot = None;
                }
            }
            Ok(())
        }

        async fn store(
            &mut self,
            keys: &[Vec<u8>],
            slots: &mut [Option<Vec<u8>>],
            results: &mut [Result<u64, ClientError>],
        ) -> Result<(), Fatal> {
            assert_eq!((keys.len(), keys.len()), (slots.len(), results.len()));
            for ((key, slot), result) in keys.iter().zip(slots).zip(results) {
                let mut object = slot.clone().expect("a slot");
                let done = (self.on_store)(self.stores, &mut object);
                self.stores += 1;
                if done.is_ok() {
                    self.objects.entry(key.clone()).or_insert(object);
                }
                *result = done.map(|()| 0);
            }
            Ok(())
        }
    }

    const BYTES: usize = 100;

    fn rules() -> Rules {
        Rules {
            keys: KeyMaker::new("salt").expect("a salt"),
            salt_seed: salt_seed("salt"),
            block_bytes: BYTES,
        }
    }

    fn seat(path: Fake) -> Seat<Fake> {
        Seat::new(path, vec![vec![0; BYTES]; 12])
    }

    /// Stores `1, 2, 3, 4`, then plays them again.
    fn twice(path: Fake) -> Tally {
        let mut seat = seat(path);
        for request in [1, 2] {
            block_on(seat.play(&rules(), request, &[1, 2, 3, 4])).expect("a good run");
        }
        assert_eq!(seat.tally.accounted(), 8, "every block is accounted for");
        seat.tally
    }

    #[test]
    fn counts_are_those_of_the_oracle() {
        let mut rng = Rng::new(5);
        // Ids of a small range: with gaps, twins, and empty requests.
        let requests: Vec<_> = (0..300)
            .map(|_| Request {
                timestamp: 0,
                input_length: 0,
                output_length: 0,
                hash_ids: (0..rng.below(12)).map(|_| rng.below(150)).collect(),
            })
            .collect();
        let mut seat = seat(Fake::default());
        for (i, request) in requests.iter().enumerate() {
            block_on(seat.play(&rules(), i as u64, &request.hash_ids)).expect("a good run");
        }
        let want = oracle::count(&requests);
        let tally = &seat.tally;
        assert_eq!(tally.requests, want.requests);
        assert_eq!(tally.blocks, want.blocks);
        assert_eq!(tally.hit_blocks, want.hit_blocks);
        assert_eq!(tally.stored_blocks, want.stored_blocks);
        assert_eq!(tally.accounted(), want.blocks);
        assert_eq!((tally.corrupt_blocks, tally.failed_blocks), (0, 0));
        assert_eq!(tally.bytes_retrieved, want.hit_blocks * BYTES as u64);
        assert_eq!(tally.bytes_stored, want.stored_blocks * BYTES as u64);
        assert_eq!(seat.path.objects.len() as u64, want.objects);
    }

    #[test]
    fn each_outcome_has_its_own_count() {
        let fail = |n: u64, error: OpError| -> Op {
            Box::new(move |op, _| if op == n { Err(error.into()) } else { Ok(()) })
        };
        let tally = twice(Fake {
            on_retrieve: fail(2, OpError::NotFound),
            ..Fake::default()
        });
        assert_eq!((tally.hit_blocks, tally.late_misses), (3, 1));
        let tally = twice(Fake {
            on_retrieve: fail(2, OpError::TransferFailed),
            ..Fake::default()
        });
        assert_eq!((tally.hit_blocks, tally.failed_blocks), (3, 1));
        let tally = twice(Fake {
            on_store: fail(2, OpError::NoSpace),
            ..Fake::default()
        });
        // 3 is missing in the second request, so 3 and 4 are stored, the latter behind the gap.
        assert_eq!((tally.stored_blocks, tally.no_space), (5, 1));
        let tally = twice(Fake {
            on_store: fail(2, OpError::RpcFailed),
            ..Fake::default()
        });
        assert_eq!((tally.stored_blocks, tally.failed_blocks), (5, 1));
        // Unknown is neither a hit nor a failed block: it is stored.
        let tally = twice(Fake {
            unknown: Some(1),
            ..Fake::default()
        });
        assert_eq!((tally.hit_blocks, tally.stored_blocks), (1, 7));
        assert_eq!(tally.corrupt_blocks, 0);
    }

    fn corrupt(on_retrieve: impl FnMut(u64, &mut Vec<u8>) + 'static) -> Vec<Corrupt> {
        let mut on_retrieve = on_retrieve;
        let tally = twice(Fake {
            on_retrieve: Box::new(move |op, object| {
                on_retrieve(op, object);
                Ok(())
            }),
            ..Fake::default()
        });
        assert_eq!(tally.hit_blocks, 4, "what is corrupt is a hit, too");
        assert_eq!(tally.corrupt_blocks, tally.corrupt.len() as u64);
        tally.corrupt
    }

    #[test]
    fn wrong_bytes_are_told_with_their_block() {
        let mut good = vec![0; BYTES];
        Content::new(3, rules().salt_seed).fill(&mut good);
        let expected = good[77];
        let found = corrupt(|op, object| {
            if op == 2 {
                object[77] ^= 4;
            }
        });
        let want = Corrupt {
            request: 2,
            block: 2,
            id: 3,
            key: rules().keys.text(3),
            len: BYTES as u64,
            mismatch: Some(Mismatch {
                offset: 77,
                expected,
                found: expected ^ 4,
            }),
        };
        assert_eq!(found, [want]);
        let text = found[0].to_string();
        assert!(
            text.starts_with("request 2, block 2 (id 3, key Qwen/"),
            "{text}"
        );
        assert!(
            text.contains("byte 77 is 0x") && !text.contains("never"),
            "{text}"
        );
    }

    #[test]
    fn cut_unwritten_and_swapped_blocks_are_corrupt() {
        let found = corrupt(|op, object| {
            if op == 1 {
                object.truncate(99);
            }
        });
        let (first, m) = (&found[0], found[0].mismatch.expect("poison at the end"));
        assert_eq!((found.len(), first.id, first.len, m.offset), (1, 2, 99, 99));
        assert!(first.to_string().contains("never written"), "{first}");
        // All four unwritten: the object has the poison that the buffer had.
        let found = corrupt(|_, object| object.fill(POISON));
        assert_eq!(found.iter().map(|c| c.id).collect::<Vec<_>>(), [1, 2, 3, 4]);
        // Two blocks in each other's place.
        let mut first = None;
        let found = corrupt(move |op, object| match op {
            0 => first = Some(object.clone()),
            1 => *object = first.take().expect("the first object"),
            _ => {}
        });
        assert_eq!((found.len(), found[0].id), (1, 2));
    }

    #[test]
    fn a_wrong_length_is_corrupt_even_where_the_bytes_are_right() {
        let tally = twice(Fake {
            lies_by: 1,
            ..Fake::default()
        });
        assert_eq!((tally.hit_blocks, tally.corrupt_blocks), (4, 4));
        let first = tally.corrupt[0].to_string();
        assert!(
            first.ends_with("the reported length 101 is wrong"),
            "{first}"
        );
    }

    #[test]
    fn a_run_that_cannot_go_on_says_so() {
        let mut seat = seat(Fake {
            loses_slots: true,
            ..Fake::default()
        });
        block_on(seat.play(&rules(), 1, &[1])).expect("nothing to lose yet");
        let lost = block_on(seat.play(&rules(), 2, &[1]));
        assert_eq!(
            lost,
            Err(Fatal("request 2: a slot did not come back".into()))
        );
        let large = block_on(seat.play(&rules(), 3, &[0; 13]));
        assert_eq!(
            large,
            Err(Fatal("request 3: 13 blocks, but 12 slots".into()))
        );
    }
}
