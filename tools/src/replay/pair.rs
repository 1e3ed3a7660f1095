//! Requests over pairs: each request in flight has a thread and a pair of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use moonring::{ClientError, Completion, Done, Pair, Slot, Submission, SubmitError, block_on};

use super::Run;
use super::pace::Pace;
use super::request::{Fatal, Path, Seat};
use super::tally::Tally;
use crate::interrupt;
use crate::record::book::Series;

/// A pair as a request's path. Its futures never wait: the thread does.
struct PairPath {
    pair: Pair,
    /// Which keys are there, reused.
    there: Vec<bool>,
}

impl PairPath {
    /// Submits ops `0..n` in bursts as large as the pair takes, and waits for all of them.
    ///
    /// `make` makes op `i`; `ended` gets the result and the slot of each.
    fn burst<'k>(
        &mut self,
        n: usize,
        mut make: impl FnMut(usize) -> Result<Submission<'k>, Fatal>,
        mut ended: impl FnMut(usize, Result<Done, ClientError>, Option<Slot>),
    ) -> Result<(), Fatal> {
        let mut held: Option<Submission<'k>> = None;
        let mut next = 0;
        loop {
            let mut in_flight = self.pair.in_flight();
            let mut batch = self.pair.batch();
            while next < n {
                let op = match held.take() {
                    Some(op) => op,
                    None => make(next)?.user_data(next as u64),
                };
                match batch.push(op) {
                    Ok(_) => in_flight += 1,
                    Err(refused) => match refused.reason {
                        // Room comes with the completions of what is in flight.
                        SubmitError::NoCredit { .. } | SubmitError::RingFull { .. }
                            if in_flight > 0 =>
                        {
                            held = Some(refused.op);
                            break;
                        }
                        reason => ended(next, Err(reason.into()), refused.op.into_slot()),
                    },
                }
                next += 1;
            }
            batch.publish();
            if in_flight == 0 {
                return Ok(());
            }
            let wanted = if next < n { 1 } else { in_flight };
            self.pair
                .wait(wanted, None)
                .map_err(|e| Fatal(e.to_string()))?;
            for Completion {
                user_data,
                result,
                slot,
                ..
            } in self.pair.completions()
            {
                ended(user_data as usize, result.map_err(ClientError::from), slot);
            }
        }
    }

    /// One op with a slot per key.
    fn transfer<'k>(
        &mut self,
        keys: &'k [Vec<u8>],
        slots: &mut [Option<Slot>],
        results: &mut [Result<u64, ClientError>],
        make: impl Fn(&'k Vec<u8>, Slot) -> Submission<'k>,
    ) -> Result<(), Fatal> {
        // Slots are taken when an op is made and come back when it ended.
        let slots = std::cell::RefCell::new(slots);
        self.burst(
            keys.len(),
            |i| match slots.borrow_mut()[i].take() {
                Some(slot) => Ok(make(&keys[i], slot)),
                None => Err(Fatal("a slot did not come back".into())),
            },
            |i, result, slot| {
                slots.borrow_mut()[i] = slot;
                results[i] = result.map(|done| match done {
                    Done::Retrieved(len) => len,
                    _ => 0,
                });
            },
        )
    }
}

impl Path for PairPath {
    type Slot = Slot;

    async fn leading(&mut self, keys: &[Vec<u8>]) -> Result<usize, Fatal> {
        let mut there = std::mem::take(&mut self.there);
        there.clear();
        there.resize(keys.len(), false);
        let done = self.burst(
            keys.len(),
            |i| Ok(Submission::lookup(&keys[i])),
            |i, result, _| there[i] = result == Ok(Done::Present),
        );
        let leading = there.iter().take_while(|there| **there).count();
        self.there = there;
        done.map(|()| leading)
    }

    async fn retrieve(
        &mut self,
        keys: &[Vec<u8>],
        slots: &mut [Option<Slot>],
        results: &mut [Result<u64, ClientError>],
    ) -> Result<(), Fatal> {
        self.transfer(keys, slots, results, Submission::retrieve)
    }

    async fn store(
        &mut self,
        keys: &[Vec<u8>],
        slots: &mut [Option<Slot>],
        results: &mut [Result<u64, ClientError>],
    ) -> Result<(), Fatal> {
        self.transfer(keys, slots, results, Submission::store)
    }
}

/// Plays a trace with a thread and a pair per request in flight. What was counted before an error counts.
pub fn play(run: &Run<'_>) -> (Tally, Result<(), Fatal>) {
    let pace = Pace::new(run.requests, run.speed);
    let failed = AtomicBool::new(false);
    let one = || -> (Tally, Result<(), Fatal>) {
        let book = run.watch.books().book();
        let mut seat = match run.slots().and_then(|slots| {
            let pair = run.engine.pair(run.largest.max(1));
            let pair = pair.map_err(|e| Fatal(e.to_string()))?;
            let path = PairPath {
                pair,
                there: Vec::new(),
            };
            Ok(Seat::new(path, slots))
        }) {
            Ok(seat) => seat,
            Err(fatal) => return (Tally::default(), Err(fatal)),
        };
        // Relaxed: a hint to stop early, nothing is read because of it.
        while !failed.load(Ordering::Relaxed)
            && let Some(due) = pace.next()
        {
            if let Some(at) = due.at {
                interrupt::sleep_until(at);
            }
            if interrupt::pressed() {
                break;
            }
            let began = due.began();
            let ids = &due.request.hash_ids;
            if let Err(fatal) = block_on(seat.play(run.rules, due.number, ids)) {
                failed.store(true, Ordering::Relaxed);
                return (seat.tally, Err(fatal));
            }
            book.open().record(Series::Request, began.elapsed(), 1);
            run.progress.inc(1);
        }
        (seat.tally, Ok(()))
    };
    let mut all = Tally::default();
    let mut ended = Ok(());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..run.concurrency).map(|_| scope.spawn(one)).collect();
        for thread in threads {
            match thread.join() {
                Ok((tally, result)) => {
                    all.add(tally);
                    ended = std::mem::replace(&mut ended, Ok(())).and(result);
                }
                Err(_) => ended = Err(Fatal("a thread of the replay panicked".into())),
            }
        }
    });
    (all, ended)
}
