//! The in-flight table against a plain model of its states, and as the clients of an engine use it, under load.
#![cfg(not(loom))]

mod support;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

use moonring_rings::mpmc::Mpmc;
use moonring_rings::slots::{Credits, Done, Finished, MAX_DEPTH, Table, Ticket};
use proptest::prelude::*;
use support::{Alive, Counted, within};

const DEPTH: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Free,
    Queued,
    Running,
    Done,
}

/// What the table should hold of one entry.
#[derive(Clone, Debug)]
struct Op {
    phase: Phase,
    ticket: Option<Ticket>,
    waker: Option<u64>,
    detached: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Queue,
    Claim,
    ClaimOld,
    Finish,
    Register { same: bool },
    Detach,
    Reap,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Queue),
        3 => Just(Step::Claim),
        1 => Just(Step::ClaimOld),
        3 => Just(Step::Finish),
        3 => any::<bool>().prop_map(|same| Step::Register { same }),
        1 => Just(Step::Detach),
        3 => Just(Step::Reap),
    ]
}

proptest! {
    #![proptest_config(support::cases())]

    #[test]
    fn does_what_its_picture_says(
        steps in prop::collection::vec((0..DEPTH, step()), 0..300),
    ) {
        let alive = Alive::default();
        let table = Table::<u64, Counted>::new(DEPTH, |i| i as u64);
        let free = Op { phase: Phase::Free, ticket: None, waker: None, detached: false };
        let mut ops = vec![free.clone(); DEPTH];
        let mut old = Vec::new();
        let mut tickets = HashSet::new();
        let mut next = 0;
        for (index, step) in steps {
            let op = &mut ops[index];
            let owned = op.phase != Phase::Free && !op.detached;
            match (step, op.ticket) {
                (Step::Queue, _) if op.phase == Phase::Free => {
                    // SAFETY: the entry is free, and ours.
                    let ticket = unsafe {
                        table.with_mut(index as u32, |d| *d = 100);
                        table.queue(index as u32)
                    };
                    prop_assert_eq!(ticket.index() as usize, index);
                    prop_assert!(tickets.insert(ticket), "a ticket came twice");
                    prop_assert_eq!(Ticket::from_word(ticket.to_word()), ticket);
                    *op = Op { phase: Phase::Queued, ticket: Some(ticket), ..free.clone() };
                }
                (Step::Claim, Some(ticket)) => {
                    let claimed = table.claim(ticket);
                    prop_assert_eq!(claimed, op.phase == Phase::Queued);
                    if claimed {
                        op.phase = Phase::Running;
                    }
                }
                (Step::ClaimOld, _) => {
                    for &ticket in &old {
                        prop_assert!(!table.claim(ticket));
                    }
                }
                (Step::Finish, Some(ticket)) if op.phase == Phase::Running => {
                    // SAFETY: claimed, and finished once.
                    let finished = unsafe {
                        table.with_mut(index as u32, |d| *d += 1);
                        table.finish(ticket)
                    };
                    let waker = op.waker.take();
                    match finished {
                        Finished::Quiet => prop_assert!(waker.is_none() && !op.detached),
                        Finished::Wake(w) => prop_assert_eq!(Some(w.number), waker),
                        Finished::Detached(w) => prop_assert!(w.is_none() && op.detached),
                    }
                    op.phase = Phase::Done;
                    if op.detached {
                        // The worker recycles.
                        old.push(ticket);
                        *op = free.clone();
                    }
                }
                (Step::Register { same }, Some(ticket)) if owned => {
                    next += 1;
                    let mut asked = false;
                    let number = next;
                    // SAFETY: the op is ours.
                    let set = unsafe {
                        table.register(
                            ticket,
                            |old| {
                                asked = old.number == op.waker.unwrap_or(0);
                                same
                            },
                            || alive.value(number),
                        )
                    };
                    if op.phase == Phase::Done {
                        prop_assert_eq!(set, Err(Done));
                    } else {
                        prop_assert_eq!(set, Ok(()));
                        prop_assert_eq!(asked, op.waker.is_some());
                        if !(same && asked) {
                            op.waker = Some(number);
                        }
                    }
                }
                (Step::Detach, Some(ticket)) if owned => {
                    // SAFETY: the op is ours, and given up.
                    let detached = unsafe { table.detach(ticket) };
                    prop_assert_eq!(detached.is_err(), op.phase == Phase::Done);
                    if detached.is_ok() {
                        op.detached = true;
                        op.waker = None;
                    }
                }
                (Step::Reap, Some(ticket)) if op.phase == Phase::Done => {
                    // SAFETY: the op is ours, and done.
                    unsafe {
                        prop_assert_eq!(table.with_mut(index as u32, |d| *d), 101);
                        prop_assert!(table.reap(ticket), "no worker is at it");
                    }
                    old.push(ticket);
                    *op = free.clone();
                }
                _ => {}
            }
            for op in &ops {
                if let Some(ticket) = op.ticket {
                    prop_assert_eq!(table.is_done(ticket), op.phase == Phase::Done);
                }
            }
            let wakers = ops.iter().filter(|op| op.waker.is_some()).count();
            prop_assert_eq!(alive.count(), wakers as i64);
        }
        drop(table);
        prop_assert_eq!(alive.count(), 0);
    }

    /// Any word at all may come as a ticket.
    #[test]
    fn a_foreign_ticket_is_harmless(word in any::<u64>()) {
        let table = Table::<u64>::new(DEPTH, |_| 0);
        // SAFETY: the entries are free.
        let tickets: Vec<_> = (0..DEPTH as u32).map(|i| unsafe { table.queue(i) }).collect();
        let ticket = Ticket::from_word(word);
        prop_assert!(!table.is_done(ticket));
        prop_assert_eq!(table.claim(ticket), tickets.contains(&ticket));
    }
}

#[test]
fn depth_is_bounded_by_what_a_ticket_can_name() {
    assert_eq!(Table::<()>::new(3, |_| ()).depth(), 3);
    assert_eq!(Table::<()>::new(0, |_| ()).depth(), 0);
    let last = Ticket::from_word(MAX_DEPTH as u64 - 1);
    assert_eq!(
        (last.index() as usize, last.generation()),
        (MAX_DEPTH - 1, 0)
    );
    assert_eq!(Ticket::from_word(MAX_DEPTH as u64).index(), 0);
}

#[test]
fn credits_are_handed_out_once() {
    let credits = Credits::new(3);
    let mut all: Vec<_> = std::iter::from_fn(|| credits.acquire()).collect();
    all.sort();
    assert_eq!(all, [0, 1, 2]);
    assert_eq!(credits.free(), 0);
    credits.release(1);
    assert_eq!(
        (credits.free(), credits.acquire(), credits.acquire()),
        (1, Some(1), None)
    );
}

/// Wakes a thread.
struct Waker(Thread, Arc<AtomicBool>);

impl Waker {
    fn wake(self) {
        self.1.store(true, Ordering::Release);
        self.0.unpark();
    }
}

struct Engine {
    credits: Credits,
    table: Table<u64, Waker>,
    ring: Mpmc,
    recycled: AtomicU64,
}

impl Engine {
    fn work(&self) -> u64 {
        let (mut done, mut words) = (0, Vec::with_capacity(4));
        while !self.ring.is_drained() {
            if self.ring.take_while(&mut words, |_, _| true) == 0 {
                std::thread::yield_now();
                continue;
            }
            for &word in &words {
                let ticket = Ticket::from_word(word);
                assert!(self.table.claim(ticket), "nobody else has it");
                // SAFETY: just claimed, and finished once.
                let finished = unsafe {
                    self.table
                        .with_mut(ticket.index(), |d| *d = d.wrapping_mul(3));
                    self.table.finish(ticket)
                };
                match finished {
                    Finished::Quiet => {}
                    Finished::Wake(waker) => waker.wake(),
                    Finished::Detached(_) => {
                        self.recycled.fetch_add(1, Ordering::Relaxed);
                        self.credits.release(ticket.index());
                    }
                }
                done += 1;
            }
        }
        done
    }

    /// Submits `n` ops one after the other; waits for some, polls for some, gives some up. Returns how many the worker has
    /// to recycle.
    fn submit(&self, n: u64, salt: u64) -> u64 {
        let woken = Arc::new(AtomicBool::new(false));
        let waker = || Waker(std::thread::current(), Arc::clone(&woken));
        let mut left = 0;
        for i in 0..n {
            let index = loop {
                match self.credits.acquire() {
                    Some(index) => break index,
                    None => std::thread::yield_now(),
                }
            };
            let value = salt << 32 | i;
            // SAFETY: the credit is ours; then the op, until it is reaped or given up.
            unsafe {
                self.table.with_mut(index, |d| *d = value);
                let ticket = self.table.queue(index);
                self.ring.push(ticket.to_word()).unwrap();
                let mut done = false;
                if i % 3 == 0 {
                    // A future that is polled and dropped.
                    let _ = self.table.register(ticket, |_| false, waker);
                    if self.table.detach(ticket).is_ok() {
                        left += 1;
                        continue;
                    }
                    done = true;
                }
                while !done {
                    // Twice: the second waker replaces the first.
                    woken.store(false, Ordering::Relaxed);
                    done = self.table.register(ticket, |_| i % 2 == 0, waker).is_err()
                        || self.table.register(ticket, |_| false, waker).is_err();
                    if i % 3 == 1 {
                        // Polled by chance, without a wake.
                        done = done || self.table.is_done(ticket);
                    } else if !done {
                        while !woken.load(Ordering::Acquire) {
                            std::thread::park();
                        }
                    }
                }
                assert!(self.table.is_done(ticket));
                self.table
                    .with_mut(index, |d| assert_eq!(*d, value.wrapping_mul(3)));
                if self.table.reap(ticket) {
                    self.credits.release(index);
                } else {
                    left += 1;
                }
            }
        }
        left
    }
}

#[test]
fn each_op_ends_once_and_its_credit_comes_back_under_load() {
    const EACH: u64 = 4_000;
    within(
        Duration::from_secs(120),
        "in-flight table under load",
        || {
            for depth in [1, 2, 8] {
                let engine = Engine {
                    credits: Credits::new(depth),
                    table: Table::new(depth, |_| 0),
                    ring: Mpmc::new(depth),
                    recycled: AtomicU64::new(0),
                };
                let (done, left): (u64, u64) = std::thread::scope(|s| {
                    let engine = &engine;
                    let workers = [(); 2].map(|()| s.spawn(|| engine.work()));
                    let owners = [1, 2, 3].map(|salt| s.spawn(move || engine.submit(EACH, salt)));
                    let left = owners.into_iter().map(|o| o.join().unwrap()).sum();
                    engine.ring.close();
                    (workers.into_iter().map(|w| w.join().unwrap()).sum(), left)
                });
                assert_eq!(done, 3 * EACH);
                assert_eq!(engine.recycled.load(Ordering::Relaxed), left);
                assert_eq!(engine.credits.free(), depth);
            }
        },
    );
}
