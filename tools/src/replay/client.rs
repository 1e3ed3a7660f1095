//! Requests over clients: all of them are futures on one thread.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use moonring::{Client, ClientError, Returned, Slot, StoreOutcome};

use super::Run;
use super::pace::{Due, Pace};
use super::request::{Fatal, Path, Seat};
use super::tally::Tally;
use crate::interrupt;
use crate::record::book::{Book, Series};
use crate::unpark;

/// A client as a request's path. The results' memory is reused.
struct ClientPath {
    client: Client,
    got: Vec<Returned<u64>>,
    put: Vec<Returned<StoreOutcome>>,
}

impl Path for ClientPath {
    type Slot = Slot;

    async fn leading(&mut self, keys: &[Vec<u8>]) -> Result<usize, Fatal> {
        Ok(self.client.lookup_prefix(keys).await.len)
    }

    async fn retrieve(
        &mut self,
        keys: &[Vec<u8>],
        slots: &mut [Option<Slot>],
        results: &mut [Result<u64, ClientError>],
    ) -> Result<(), Fatal> {
        all_there(slots)?;
        let ops = keys.iter().zip(slots.iter_mut().filter_map(Option::take));
        self.client.retrieve_many(ops, &mut self.got).await;
        for (i, returned) in self.got.drain(..).enumerate() {
            slots[i] = returned.slot;
            results[i] = returned.result;
        }
        Ok(())
    }

    async fn store(
        &mut self,
        keys: &[Vec<u8>],
        slots: &mut [Option<Slot>],
        results: &mut [Result<u64, ClientError>],
    ) -> Result<(), Fatal> {
        all_there(slots)?;
        let ops = keys.iter().zip(slots.iter_mut().filter_map(Option::take));
        self.client.store_many(ops, &mut self.put).await;
        for (i, returned) in self.put.drain(..).enumerate() {
            slots[i] = returned.slot;
            results[i] = returned.result.map(|_| 0);
        }
        Ok(())
    }
}

fn all_there(slots: &[Option<Slot>]) -> Result<(), Fatal> {
    match slots.iter().all(Option::is_some) {
        true => Ok(()),
        false => Err(Fatal("a slot did not come back".into())),
    }
}

/// One request in its seat, which comes back.
async fn play_one<'a>(
    run: &Run<'a>,
    book: &Book,
    mut seat: Seat<ClientPath>,
    due: Due<'a>,
) -> (Seat<ClientPath>, Result<(), Fatal>) {
    let began = due.began();
    let ids = &due.request.hash_ids;
    let played = seat.play(run.rules, due.number, ids).await;
    if played.is_ok() {
        book.open().record(Series::Request, began.elapsed(), 1);
        run.progress.inc(1);
    }
    (seat, played)
}

/// Plays a trace on this thread, with a future and a client per request in flight. What was counted before
/// an error counts.
pub fn play(run: &Run<'_>) -> (Tally, Result<(), Fatal>) {
    let mut all = Tally::default();
    let seats = (0..run.concurrency).map(|_| {
        let path = ClientPath {
            client: run.engine.client(),
            got: Vec::new(),
            put: Vec::new(),
        };
        Ok(Seat::new(path, run.slots()?))
    });
    let mut free: Vec<_> = match seats.collect::<Result<_, Fatal>>() {
        Ok(seats) => seats,
        Err(fatal) => return (all, Err(fatal)),
    };
    let book = run.watch.books().book();
    let pace = Pace::new(run.requests, run.speed);
    let waker = unpark::waker();
    let mut cx = Context::from_waker(&waker);
    let mut playing = FuturesUnordered::new();
    let mut next = pace.next();
    let mut ended = Ok(());
    loop {
        if interrupt::pressed() {
            next = None;
        }
        // Start what is due and has a seat.
        let mut wait = None;
        while let Some(due) = next {
            wait = due.wait();
            if wait.is_some() {
                break;
            }
            let Some(seat) = free.pop() else { break };
            playing.push(play_one(run, &book, seat, due));
            next = if ended.is_ok() { pace.next() } else { None };
        }
        match Pin::new(&mut playing).poll_next(&mut cx) {
            Poll::Ready(Some((seat, Ok(())))) => free.push(seat),
            Poll::Ready(Some((seat, Err(fatal)))) => {
                free.push(seat);
                ended = Err(fatal);
                next = None;
            }
            Poll::Ready(None) if next.is_none() => break,
            // Nothing is in flight, or nothing has ended: sleep until a waker or the next request's time.
            Poll::Ready(None) | Poll::Pending => match wait {
                Some(wait) => thread::park_timeout(wait.min(interrupt::NAP)),
                None => thread::park(),
            },
        }
    }
    drop(playing);
    for seat in free {
        all.add(seat.tally);
    }
    (all, ended)
}
