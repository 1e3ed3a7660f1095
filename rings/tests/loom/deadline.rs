//! Submitters with deadlines and the timer, as the engine uses them (`timer.rs`): no op outlives its deadline while the timer
//! sleeps.
//!
//! Time is the timer's own: it goes on when the timer sleeps until a moment, and then to that moment. Beyond the horizon
//! nothing comes but a wake: a timer that is not woken for an op it should end sleeps for ever, a deadlock that loom reports.

use std::sync::Mutex as Plain;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::*};
use loom::thread::{self, Thread};
use moonring_rings::deadline::{Alarm, NEVER, Soonest};
use moonring_rings::park::publish_fence;
use moonring_rings::slots::{Table, Why};

use crate::model;

/// The timer doesn't live to see it.
const HORIZON: u64 = 100;

struct Ops {
    /// The descriptor is the deadline.
    table: Table<AtomicU64>,
    soonest: Soonest,
}

struct Engine {
    tables: Vec<Ops>,
    alarm: Alarm,
    /// The timer's thread, and whether it has said which that is.
    thread: Plain<Option<Thread>>,
    enrolled: AtomicU64,
}

impl Engine {
    fn new(depths: &[usize]) -> Arc<Self> {
        let ops = |&depth| Ops {
            table: Table::new(depth, |_| AtomicU64::new(NEVER)),
            soonest: Soonest::default(),
        };
        Arc::new(Self {
            tables: depths.iter().map(ops).collect(),
            alarm: Alarm::default(),
            thread: Plain::new(None),
            enrolled: AtomicU64::new(0),
        })
    }

    /// What a submitter does, with an entry of its own.
    fn submit(&self, (table, index): (usize, u32), deadline: u64) {
        let ops = &self.tables[table];
        // SAFETY: the entry is free, and this thread's.
        let ticket = unsafe { ops.table.queue(index) };
        // A client's deadline comes after the op is in the ring, a pair's before.
        // SAFETY: the field is atomic.
        unsafe { (*ops.table.peek(ticket.index())).store(deadline, Relaxed) };
        publish_fence();
        if ops.soonest.note(deadline, &self.alarm) {
            self.wake();
        }
    }

    fn wake(&self) {
        if self.enrolled.load(Acquire) != 0 {
            self.thread.lock().unwrap().as_ref().unwrap().unpark();
        }
    }

    /// Ends the late ops of a table; counts them.
    fn look(&self, ops: &Ops, now: u64, ended: &mut usize) -> u64 {
        let mut soonest = NEVER;
        for index in 0..ops.table.depth() as u32 {
            // SAFETY: below the depth, and the field is atomic.
            let (pending, deadline) = unsafe {
                let pending = ops.table.pending(index);
                (pending, (*ops.table.peek(index)).load(Relaxed))
            };
            let Some((ticket, _)) = pending else { continue };
            if deadline > now {
                soonest = soonest.min(deadline);
            } else if ops.table.abandon(ticket, Why::Deadline, true).is_some() {
                *ended += 1;
            }
        }
        soonest
    }

    fn soonest(&self) -> u64 {
        let of = self.tables.iter().map(|ops| ops.soonest.get());
        of.fold(NEVER, u64::min)
    }

    /// The timer's thread, until it has ended `ops` ops, or is told to end.
    fn timer(&self, mut now: u64, ops: usize) {
        *self.thread.lock().unwrap() = Some(thread::current());
        self.enrolled.store(1, Release);
        let mut ended = 0;
        while !self.alarm.is_ended() {
            for ops in &self.tables {
                ops.soonest.sweep(now, || self.look(ops, now, &mut ended));
            }
            if ended == ops {
                return;
            }
            let next = self.soonest();
            if !self.alarm.set(next, || self.soonest()) {
                continue;
            }
            match next {
                ..HORIZON => now = now.max(next),
                _ => thread::park(),
            }
        }
    }
}

type Other = thread::JoinHandle<()>;

fn timer(engine: &Arc<Engine>, ops: usize) -> Other {
    let engine = Arc::clone(engine);
    thread::spawn(move || engine.timer(10, ops))
}

fn submitter(engine: &Arc<Engine>, entry: (usize, u32), deadline: u64) -> Other {
    let engine = Arc::clone(engine);
    thread::spawn(move || engine.submit(entry, deadline))
}

fn join(others: impl IntoIterator<Item = Other>) {
    for other in others {
        other.join().unwrap();
    }
}

/// The timer sleeps for good, or is about to, when the first deadlines come; the second may see the first's.
#[test]
fn the_first_deadlines_wake_the_timer() {
    let name = "deadline the_first_deadlines_wake_the_timer";
    model(name, 2, Some(3), || {
        let engine = Engine::new(&[2]);
        let others = [timer(&engine, 2), submitter(&engine, (0, 0), 20)];
        engine.submit((0, 1), 30);
        join(others);
    });
}

/// One is sooner than what the timer sleeps for, the other is sooner by too little, or the other way round.
#[test]
fn a_sooner_deadline_wakes_the_timer() {
    let name = "deadline a_sooner_deadline_wakes_the_timer";
    model(name, 2, Some(2), || {
        let engine = Engine::new(&[3]);
        engine.submit((0, 2), HORIZON + 2);
        let others = [timer(&engine, 1), submitter(&engine, (0, 0), 50)];
        engine.submit((0, 1), HORIZON + 1);
        join(others);
        assert!(engine.soonest() <= HORIZON + 1, "noted, and forgotten");
    });
}

/// The timer looks at the table for one op while another comes that is no sooner than that.
#[test]
fn an_op_that_comes_during_a_look() {
    let name = "deadline an_op_that_comes_during_a_look";
    model(name, 1, None, || {
        let engine = Engine::new(&[2]);
        engine.submit((0, 0), 5);
        let timer = timer(&engine, 2);
        engine.submit((0, 1), 7);
        join([timer]);
    });
}

/// Two tables, one timer: what is sooner in the one is not hidden by the other.
#[test]
fn two_tables() {
    model("deadline two_tables", 2, Some(2), || {
        let engine = Engine::new(&[1, 1]);
        let others = [timer(&engine, 2), submitter(&engine, (0, 0), 40)];
        engine.submit((1, 0), 30);
        join(others);
    });
}

/// The engine is shut down while its timer starts, looks, or sleeps, and while a deadline comes.
#[test]
fn the_timer_ends() {
    model("deadline the_timer_ends", 2, Some(3), || {
        let engine = Engine::new(&[1]);
        let others = [timer(&engine, 2), submitter(&engine, (0, 0), 20)];
        engine.alarm.end();
        engine.wake();
        join(others);
    });
}

/// A worker takes the op, or ends it, as its time comes: one of the two ends it.
#[test]
fn a_worker_is_as_fast() {
    model("deadline a_worker_is_as_fast", 2, Some(3), || {
        let engine = Engine::new(&[1]);
        let timer = timer(&engine, 1);
        engine.submit((0, 0), 20);
        let worker = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || {
                let table = &engine.tables[0].table;
                // SAFETY: below the depth.
                let Some((ticket, _)) = (unsafe { table.pending(0) }) else {
                    return;
                };
                let Some(held) = table.hold(ticket) else {
                    return;
                };
                // SAFETY: held.
                if unsafe { held.end() } == moonring_rings::slots::Ended::InTime {
                    // The timer has nothing to end.
                    engine.alarm.end();
                    engine.wake();
                }
            })
        };
        join([timer, worker]);
        // SAFETY: below the depth.
        assert_eq!(unsafe { engine.tables[0].table.pending(0) }, None);
    });
}
