//! What the engine is compared with: threads that call the same store without it.

use std::time::{Duration, Instant};

use moonring::store::{
    Store,
    direct::{DirectError, PreparedBuffers, PreparedKeys},
};
use moonring::{OpKind, Slot, StoreOutcome};

use super::race::{Lap, race};
use crate::bench::plan::{Counts, Values};
use crate::content::POISON;
use crate::interrupt;

/// So many threads, each with keys of its own, of which it gives so many to each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival {
    /// Threads that call.
    pub threads: usize,
    /// Keys of a call; of the last call of a pass over a thread's keys, what is left.
    pub batch: usize,
}

/// One call per key: the faster of these counts.
const PER_KEY: [usize; 2] = [1, 4];
/// Batches made by hand: the best of these counts of threads times these sizes.
const HAND_BATCHED: ([usize; 3], [usize; 4]) = ([1, 2, 4], [32, 64, 128, 256]);
/// With fewer keys some thread could not fill the smallest batch.
pub const LEAST_KEYS: u32 = 128;

impl Rival {
    /// All whose every thread can fill a batch out of its share of `keys` keys.
    pub fn all(keys: usize) -> Vec<Self> {
        let (threads, batches) = HAND_BATCHED;
        let per_key = PER_KEY.map(|threads| Self { threads, batch: 1 });
        let hand_batched = threads.into_iter().flat_map(|threads| {
            let batches = batches.into_iter();
            batches.map(move |batch| Self { threads, batch })
        });
        let all = per_key.into_iter().chain(hand_batched);
        all.filter(|rival| rival.batch <= keys / rival.threads)
            .collect()
    }

    /// How many buffers it works with.
    pub fn bufs(self) -> usize {
        self.threads * self.batch
    }
}

/// What all rivals work on.
#[derive(Debug)]
pub struct Work<'a> {
    pub op: OpKind,
    pub store: &'a dyn Store,
    /// Those of all producers, in order.
    pub keys: &'a [&'a [u8]],
    pub values: Values,
}

/// How far a rival goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// Over all keys once, or until the time is over.
    Once(Duration),
    /// Over all keys again and again, until the time is over.
    Cycle(Duration),
    /// Over all keys once; retrieved values are checked. Not timed.
    Checked {
        /// Whether the store gives the bytes back at all.
        bytes: bool,
    },
}

impl Rival {
    /// Sends it over the course. `slots` are [`bufs`](Self::bufs) or more, or none where the op moves no bytes.
    ///
    /// # Errors
    /// A list that no store may see, or a thread that panicked.
    pub fn run(self, work: &Work<'_>, slots: &mut [Slot], course: Course) -> Result<Lap, String> {
        let Self { threads, batch } = self;
        let mut slots = slots.chunks_mut(batch);
        // Laid out before the clock runs.
        let runners = (0..threads).map(|thread| {
            let cut = |thread: usize| thread * work.keys.len() / threads;
            let own = &work.keys[cut(thread)..cut(thread + 1)];
            let calls = own
                .chunks(batch)
                .map(|keys| PreparedKeys::new(keys.iter().copied()));
            let slots = slots.next().unwrap_or_default();
            Ok(Runner {
                work,
                first: cut(thread) as u64,
                calls: calls.collect::<Result<_, _>>()?,
                bufs: PreparedBuffers::new(slots.iter_mut().map(|slot| &mut slot[..]))?,
            })
        });
        let runners = runners.collect::<Result<Vec<_>, DirectError>>();
        let runners = runners.map_err(|e| e.to_string())?;
        race(
            runners
                .into_iter()
                .map(|runner| move |began| runner.run(began, course)),
        )
    }
}

/// One thread of a rival.
struct Runner<'a> {
    work: &'a Work<'a>,
    /// Its first key's number.
    first: u64,
    calls: Vec<PreparedKeys>,
    bufs: PreparedBuffers<'a>,
}

impl Runner<'_> {
    fn run(mut self, began: Instant, course: Course) -> Result<Counts, String> {
        let mut counts = Counts::default();
        if let Course::Checked { bytes } = course {
            for call in 0..self.calls.len() {
                if interrupt::pressed() {
                    break;
                }
                self.call_checked(call, bytes, &mut counts)
                    .map_err(|e| e.to_string())?;
            }
            return Ok(counts);
        }
        let (limit, again) = match course {
            Course::Cycle(limit) => (limit, !self.calls.is_empty()),
            Course::Once(limit) => (limit, false),
            Course::Checked { .. } => return Ok(counts),
        };
        let mut clock = Clock::new(began, limit);
        loop {
            for call in 0..self.calls.len() {
                if clock.is_over() {
                    return Ok(counts);
                }
                self.call(call, &mut counts).map_err(|e| e.to_string())?;
            }
            if !again {
                return Ok(counts);
            }
        }
    }

    /// Fills the buffers of a retrieve with poison first, and looks at what is in them afterwards.
    fn call_checked(
        &mut self,
        call: usize,
        bytes: bool,
        counts: &mut Counts,
    ) -> Result<(), DirectError> {
        if !bytes || self.work.op != OpKind::Retrieve {
            return self.call(call, counts);
        }
        let values = self.work.values;
        let first = self.first + (call * self.calls[0].len()) as u64;
        let keys = &mut self.calls[call];
        for i in 0..keys.len() {
            if let Some(buf) = self.bufs.get_mut(i) {
                buf.fill(POISON);
            }
        }
        let lens: Vec<_> = keys.get_into(self.work.store, &mut self.bufs)?.collect();
        for (i, len) in lens.into_iter().enumerate() {
            counts.ops += 1;
            if len != Ok(values.bytes as u64) {
                counts.failed += 1;
                continue;
            }
            let value = values.content(first + i as u64);
            let buf = self.bufs.get_mut(i);
            let right = buf.is_some_and(|buf| value.check(buf).is_ok());
            counts.corrupt += u64::from(!right);
        }
        Ok(())
    }

    #[inline]
    fn call(&mut self, call: usize, counts: &mut Counts) -> Result<(), DirectError> {
        let (keys, store) = (&mut self.calls[call], self.work.store);
        let bytes = self.work.values.bytes as u64;
        let (n, well, moved) = match self.work.op {
            OpKind::Lookup => tally(keys.exists(store), |there| there, 0),
            OpKind::Retrieve => {
                let lens = keys.get_into(store, &mut self.bufs)?;
                tally(lens, |len| len == bytes, bytes)
            }
            OpKind::Store => {
                let is_new = |o| matches!(o, StoreOutcome::Stored | StoreOutcome::Accepted);
                tally(keys.put_from(store, &self.bufs)?, is_new, bytes)
            }
            OpKind::Delete => tally(keys.remove(store, false), |()| true, 0),
        };
        counts.ops += n;
        counts.failed += n - well;
        counts.bytes += moved;
        Ok(())
    }
}

/// How many results, how many of keys for which the work was done, and the bytes of those.
fn tally<T, E>(
    results: impl ExactSizeIterator<Item = Result<T, E>>,
    is_done: impl Fn(T) -> bool,
    bytes: u64,
) -> (u64, u64, u64) {
    let n = results.len() as u64;
    let well = results.filter_map(Result::ok).map(is_done);
    let well = well.filter(|done| *done).count() as u64;
    (n, well, well * bytes)
}

/// Tells when the time is over, or Ctrl-C was pressed. Between very short calls it reads the clock only now and then, so that it is not the
/// reading that is measured.
struct Clock {
    over: Instant,
    last: Instant,
    stride: u32,
    skip: u32,
}

/// Looks at the clock may be so far apart.
const LOOK_EVERY: Duration = Duration::from_micros(20);
const MAX_STRIDE: u32 = 64;

impl Clock {
    fn new(began: Instant, limit: Duration) -> Self {
        Self {
            over: began + limit,
            last: began,
            stride: 1,
            skip: 0,
        }
    }

    #[inline]
    fn is_over(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        let now = Instant::now();
        self.stride = match now - self.last < LOOK_EVERY {
            true => (self.stride * 2).min(MAX_STRIDE),
            false => 1,
        };
        (self.last, self.skip) = (now, self.stride - 1);
        now >= self.over || interrupt::pressed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use moonring::store::{MemoryOptions, MemoryStore, direct};

    #[test]
    fn every_rival_can_fill_its_batches() {
        let all = Rival::all(1024);
        assert_eq!(all.len(), 2 + 12);
        assert_eq!(all.iter().map(|rival| rival.bufs()).max(), Some(1024));
        let least = Rival::all(LEAST_KEYS as usize);
        let hand_batched = least.iter().filter(|rival| rival.batch > 1);
        let of = |threads, batch| Rival { threads, batch };
        let want = [
            of(1, 32),
            of(1, 64),
            of(1, 128),
            of(2, 32),
            of(2, 64),
            of(4, 32),
        ];
        assert_eq!(hand_batched.copied().collect::<Vec<_>>(), want);
    }

    fn keys(n: usize) -> Vec<Vec<u8>> {
        (0..n).map(|i| format!("key{i}").into_bytes()).collect()
    }

    /// Runs a rival on a memory store of `n` keys and no slots.
    fn run(n: usize, op: OpKind, rival: Rival, course: Course) -> Counts {
        let store = MemoryStore::new(MemoryOptions::default()).expect("a store");
        let keys = keys(n);
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let items: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (*key, &b"value"[..])).collect();
        direct::put_from(&store, &items).expect("stored");
        let values = Values {
            bytes: 5,
            one_for_all: true,
        };
        let work = Work {
            op,
            store: &store,
            keys: &keys,
            values,
        };
        rival.run(&work, &mut [], course).expect("went well").counts
    }

    #[test]
    fn once_is_each_key_once_whatever_the_shares() {
        let hour = Duration::from_secs(3600);
        for (threads, batch) in [(1, 1), (4, 1), (3, 7), (2, 32)] {
            let counts = run(
                100,
                OpKind::Delete,
                Rival { threads, batch },
                Course::Once(hour),
            );
            assert_eq!((counts.ops, counts.failed), (100, 0), "{threads} {batch}");
        }
    }

    #[test]
    fn a_cycle_ends_when_the_time_is_over_and_no_time_is_one_look() {
        let rival = Rival {
            threads: 2,
            batch: 8,
        };
        let ms = Duration::from_millis(20);
        let counts = run(100, OpKind::Lookup, rival, Course::Cycle(ms));
        assert!(counts.ops > 100 && counts.failed == 0, "{counts:?}");
        let counts = run(100, OpKind::Lookup, rival, Course::Cycle(Duration::ZERO));
        assert_eq!(counts.ops, 0);
    }
}
