//! The in-flight table: one wake or a done that was seen, one who recycles, old tickets, credits.
//!
//! loom's cells watch descriptor and waker cell: two threads in one of them, or an access that isn't ordered after the
//! one before, fail the model.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::thread;
use moonring_rings::credits::Credits;
use moonring_rings::mpmc::Mpmc;
use moonring_rings::slots::{self, Finished, Table, Ticket};

use crate::{Counted, Drops, model};

/// The waker is a number: who gets it back must wake that one.
struct Ops {
    table: Table<u64, Counted, u64>,
}

impl Ops {
    fn new(depth: usize) -> Self {
        Self {
            table: Table::with_results(depth, |_| 7, 0, true),
        }
    }

    fn set_result(&self, index: u32, result: u64) {
        // SAFETY: loom finds out.
        unsafe { self.table.set_result(index, result) };
    }

    fn result(&self, index: u32) -> u64 {
        // SAFETY: loom finds out.
        unsafe { self.table.result(index) }
    }
}

impl std::ops::Deref for Ops {
    type Target = Table<u64, Counted, u64>;

    fn deref(&self) -> &Self::Target {
        &self.table
    }
}

fn table(depth: usize) -> Arc<Ops> {
    Arc::new(Ops::new(depth))
}

/// How an op ended for its worker.
#[derive(Debug, PartialEq)]
enum Ended {
    Quiet,
    Woke(usize),
    Recycled,
}

/// What a worker does with a ticket: hold, end, write the result, finish.
fn work(table: &Ops, ticket: Ticket) -> Ended {
    let held = table.hold(ticket).unwrap();
    // SAFETY: held, and ended and finished once.
    let finished = unsafe {
        assert_eq!(*held.descriptor(), 7, "the descriptor");
        assert_eq!(held.end(), slots::Ended::InTime);
        table.set_result(ticket.index(), 1);
        table.finish(ticket)
    };
    match finished {
        Finished::Quiet => Ended::Quiet,
        Finished::Wake(waker) => Ended::Woke(waker.number),
        Finished::Detached(_) => {
            // SAFETY: the entry is the worker's now.
            unsafe { table.with_mut(ticket.index(), |d| *d = 7) };
            table.set_result(ticket.index(), 0);
            Ended::Recycled
        }
    }
}

/// # Safety
/// The caller must own the op.
unsafe fn register(table: &Ops, ticket: Ticket, waker: Counted) -> bool {
    // SAFETY: as for this function.
    unsafe { table.register(ticket, |_| false, || waker) }.is_ok()
}

/// The owner has seen its op done: it reads the result and gives the entry back. True where it is the owner's to recycle.
///
/// # Safety
/// The caller must own the op, which must be done.
unsafe fn reap(table: &Ops, ticket: Ticket) -> bool {
    assert_eq!(table.result(ticket.index()), 1);
    table.set_result(ticket.index(), 0);
    // SAFETY: as for this function.
    unsafe { table.reap(ticket) }
}

/// The owner polls twice, with another waker the second time. Either the last waker it could leave is woken, or it
/// sees the op done; and one of the two recycles the entry.
#[test]
fn woken_once_or_seen_done() {
    model("slots woken_once_or_seen_done", 1, None, || {
        let drops = Drops::new(2);
        let table = table(1);
        // SAFETY: the entry is free.
        let ticket = unsafe { table.queue(0) };
        let worker = {
            let table = Arc::clone(&table);
            thread::spawn(move || work(&table, ticket))
        };
        // SAFETY: the op is this thread's until reaped.
        unsafe {
            let first = register(&table, ticket, drops.value(0));
            let second = first && register(&table, ticket, drops.value(1));
            if second {
                assert_eq!(worker.join().unwrap(), Ended::Woke(1));
                assert!(table.is_done(ticket) && reap(&table, ticket));
            } else {
                assert!(table.is_done(ticket));
                let ours = reap(&table, ticket);
                let ended = worker.join().unwrap();
                assert_eq!(ours, ended != Ended::Recycled);
                assert!(first || ended == Ended::Quiet);
            }
            // A waker that could not be left is dropped too.
            assert_eq!((drops.of(0), drops.of(1)), (1, usize::from(first)));
        }
    });
}

/// A second poll with the same waker leaves the one that lies there.
#[test]
fn the_same_waker_stays() {
    model("slots the_same_waker_stays", 1, None, || {
        let drops = Drops::new(1);
        let table = table(1);
        // SAFETY: the entry is free.
        let ticket = unsafe { table.queue(0) };
        let worker = {
            let table = Arc::clone(&table);
            thread::spawn(move || work(&table, ticket))
        };
        // SAFETY: the op is this thread's.
        unsafe {
            let first = register(&table, ticket, drops.value(0));
            let second = table.register(ticket, |old| old.number == 0, || unreachable!());
            let ended = if first && second.is_ok() {
                worker.join().unwrap()
            } else if first {
                table.reap(ticket);
                worker.join().unwrap()
            } else {
                Ended::Woke(0)
            };
            match second {
                Ok(()) => assert_eq!(ended, Ended::Woke(0)),
                Err(_) => assert!(table.is_done(ticket)),
            }
        }
    });
}

/// The owner goes away: either the worker recycles, or the owner finds the op done and recycles itself (or leaves it to the
/// worker that is still taking the waker).
#[test]
fn detached_is_recycled_once() {
    model("slots detached_is_recycled_once", 1, None, || {
        let drops = Drops::new(1);
        let table = table(1);
        // SAFETY: the entry is free.
        let ticket = unsafe { table.queue(0) };
        let worker = {
            let table = Arc::clone(&table);
            thread::spawn(move || work(&table, ticket))
        };
        // SAFETY: the op is this thread's until it is detached or reaped.
        unsafe {
            register(&table, ticket, drops.value(0));
            let ours = match table.detach(ticket) {
                Ok(()) => false,
                Err(_) => reap(&table, ticket),
            };
            let ended = worker.join().unwrap();
            assert_eq!(ours, ended != Ended::Recycled);
        }
        assert_eq!(drops.of(0), 1);
    });
}

/// The owner polls, sees the op done, and uses the entry again at once, while the worker of the op before may still be at
/// the waker that it found.
#[test]
fn used_again_while_the_worker_takes_the_waker() {
    let name = "slots used_again_while_the_worker_takes_the_waker";
    // SAFETY: the op is the caller's.
    used_again(name, |table, ticket| unsafe {
        table.is_done(ticket) && reap(table, ticket)
    });
}

/// The same by the shorter way.
#[test]
fn used_again_after_it_ended_quietly() {
    let name = "slots used_again_after_it_ended_quietly";
    used_again(name, |table, ticket| {
        // SAFETY: the op is the caller's.
        let ended = unsafe { table.ended_quietly(ticket) };
        if ended {
            assert_eq!(table.result(ticket.index()), 1);
            table.set_result(ticket.index(), 0);
        }
        ended
    });
}

/// `is_mine`: whether the op has ended, and its entry is the owner's.
fn used_again(name: &str, is_mine: fn(&Ops, Ticket) -> bool) {
    model(name, 1, None, move || {
        let drops = Drops::new(2);
        let table = table(1);
        // SAFETY: the entry is free.
        let ticket = unsafe { table.queue(0) };
        let worker = {
            let table = Arc::clone(&table);
            thread::spawn(move || work(&table, ticket))
        };
        // SAFETY: each op is this thread's until it is reaped or detached.
        unsafe {
            register(&table, ticket, drops.value(0));
            if is_mine(&table, ticket) {
                let again = table.queue(0);
                assert!(register(&table, again, drops.value(1)));
                assert!(!table.is_done(ticket) && !table.is_done(again));
                table.detach(again).unwrap();
            }
        }
        worker.join().unwrap();
    });
}

/// Two workers and one ticket, while the owner sets and clears flags in the same word.
#[test]
fn claimed_once() {
    model("slots claimed_once", 2, Some(4), || {
        let drops = Drops::new(2);
        let table = table(1);
        // SAFETY: the entry is free.
        let ticket = unsafe { table.queue(0) };
        let workers = [(); 2].map(|()| {
            let table = Arc::clone(&table);
            thread::spawn(move || table.hold(ticket).is_some())
        });
        // SAFETY: the op is this thread's.
        unsafe {
            assert!(register(&table, ticket, drops.value(0)));
            table.detach(ticket).unwrap();
        }
        let held = workers.map(|w| w.join().unwrap());
        assert!(held[0] ^ held[1]);
    });
}

/// A worker comes late with the ticket of an op that is over, whose entry is in use again.
#[test]
fn an_old_ticket_is_harmless() {
    model("slots an_old_ticket_is_harmless", 1, None, || {
        let table = table(1);
        // SAFETY: the entry is free.
        let old = unsafe { table.queue(0) };
        assert_eq!(work(&table, old), Ended::Quiet);
        let late = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                assert!(table.hold(old).is_none());
            })
        };
        // SAFETY: the op is done, and this thread's.
        let new = unsafe { table.queue(0) };
        let held = table.hold(new).expect("nobody else has this ticket");
        // SAFETY: held.
        unsafe {
            held.end();
            table.finish(new);
        }
        assert!(!table.is_done(old) && table.is_done(new));
        late.join().unwrap();
    });
}

/// The claim alone shows the descriptor to the worker, even where the ticket came by a way that orders nothing; and `is_done`
/// alone shows the result to the owner.
#[test]
fn claim_shows_the_descriptor_and_done_the_result() {
    let name = "slots claim_shows_the_descriptor_and_done_the_result";
    model(name, 1, None, || {
        let table = table(1);
        let mail = Arc::new(AtomicU64::new(0));
        let worker = {
            let (table, mail) = (Arc::clone(&table), Arc::clone(&mail));
            thread::spawn(move || {
                let word = mail.load(Relaxed);
                if word != 0 {
                    let ticket = Ticket::from_word(word);
                    let held = table.hold(ticket).unwrap();
                    // SAFETY: held.
                    unsafe {
                        assert_eq!(*held.descriptor(), 9);
                        held.end();
                        table.set_result(0, 8);
                        table.finish(ticket);
                    }
                }
            })
        };
        // SAFETY: the entry is this thread's while free and when done.
        unsafe {
            table.with_mut(0, |d| *d = 9);
            let ticket = table.queue(0);
            mail.store(ticket.to_word(), Relaxed);
            if table.is_done(ticket) {
                assert_eq!(table.result(0), 8);
            }
        }
        worker.join().unwrap();
    });
}

/// The way of a client's op whose future is dropped: credit, table, ring, worker, and the credit comes back for the next op.
#[test]
fn a_detached_ops_credit_comes_back() {
    model("slots a_detached_ops_credit_comes_back", 1, None, || {
        let drops = Drops::new(2);
        let shared = Arc::new((Credits::new(1), Ops::new(1), Mpmc::new(1)));
        let submit = |shared: &(Credits, Ops, Mpmc)| {
            let index = shared.0.acquire()?;
            // SAFETY: the credit is ours.
            let ticket = unsafe {
                shared.1.with_mut(index, |d| *d = 7);
                shared.1.queue(index)
            };
            shared.2.push(ticket.to_word()).unwrap();
            Some(ticket)
        };
        let worker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let Some(word) = shared.2.pop() else { return };
                let ticket = Ticket::from_word(word);
                if work(&shared.1, ticket) == Ended::Recycled {
                    shared.0.release(ticket.index());
                }
            })
        };
        let mut left = 1;
        for number in 0..2 {
            let Some(ticket) = submit(&shared) else {
                break; // The op before isn't done.
            };
            // SAFETY: the op is this thread's until it is detached or reaped.
            unsafe {
                register(&shared.1, ticket, drops.value(number));
                if shared.1.detach(ticket).is_err() && reap(&shared.1, ticket) {
                    shared.0.release(ticket.index());
                }
            }
        }
        worker.join().unwrap();
        // What the worker didn't take is in the ring, and holds the credit.
        left -= shared.2.len();
        assert_eq!(shared.0.free(), left);
    });
}
