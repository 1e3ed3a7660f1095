//! The in-flight table against a plain model of its states, and as the clients of an engine use it, under load.
#![cfg(not(loom))]

mod support;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::Duration;

use moonring_rings::credits::Credits;
use moonring_rings::mpmc::Mpmc;
use moonring_rings::slots::{
    Abandoned, Done, Ended, Finished, Held, MAX_DEPTH, Progress, Table, Ticket, Why,
};
use moonring_rings::sync::UnsafeCell;
use proptest::prelude::*;
use support::{Alive, Counted, within};

const DEPTH: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Free,
    Queued,
    Running,
    Ending,
    Done,
    Overdue,
    Releasing,
    Released,
}

impl Phase {
    /// The owner can see the op's end.
    fn has_ended(self) -> bool {
        use Phase::*;
        matches!(self, Done | Overdue | Releasing | Released)
    }

    /// A store call may use the op's bytes after its end was told.
    fn has_more(self) -> bool {
        matches!(self, Phase::Overdue | Phase::Releasing)
    }
}

/// What the table should hold of one entry.
#[derive(Clone, Debug)]
struct Op {
    phase: Phase,
    ticket: Option<Ticket>,
    waker: Option<u64>,
    detached: bool,
    why: Option<(Why, bool)>,
}

const FREE: Op = Op {
    phase: Phase::Free,
    ticket: None,
    waker: None,
    detached: false,
    why: None,
};

impl Op {
    fn progress(&self) -> Progress {
        match self.phase {
            Phase::Free => Progress::Gone,
            Phase::Queued => Progress::Queued,
            Phase::Running | Phase::Ending => Progress::Running,
            phase => Progress::Ended {
                why: self.why,
                more: phase.has_more(),
            },
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Queue,
    Claim,
    Old,
    Abandon { why: Why, running: bool },
    End,
    Finish,
    Register { same: bool },
    Detach,
    Reap,
}

fn step() -> impl Strategy<Value = Step> {
    let why = prop_oneof![Just(Why::Deadline), Just(Why::Cancel), Just(Why::ShutDown)];
    prop_oneof![
        3 => Just(Step::Queue),
        3 => Just(Step::Claim),
        1 => Just(Step::Old),
        2 => (why, any::<bool>()).prop_map(|(why, running)| Step::Abandon { why, running }),
        3 => Just(Step::End),
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
        steps in prop::collection::vec((0..DEPTH, step()), 0..150),
    ) {
        let alive = Alive::default();
        let table = Table::<u64, Counted>::new(DEPTH, |i| i as u64);
        let mut ops = vec![FREE; DEPTH];
        let mut old = Vec::new();
        let mut tickets = HashSet::new();
        let mut next = 0;
        let mut held = [Held::NONE; DEPTH];
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
                    *op = Op { phase: Phase::Queued, ticket: Some(ticket), ..FREE };
                }
                (Step::Claim, Some(ticket)) => {
                    let claimed = table.hold(ticket);
                    prop_assert_eq!(claimed.is_some(), op.phase == Phase::Queued);
                    if let Some(claimed) = claimed {
                        held[index] = claimed;
                        op.phase = Phase::Running;
                    }
                }
                (Step::Old, _) => {
                    for &ticket in &old {
                        prop_assert!(table.hold(ticket).is_none());
                        prop_assert!(table.abandon(ticket, Why::Cancel, true).is_none());
                    }
                }
                (Step::Abandon { why, running }, Some(ticket)) => {
                    let abandoned = table.abandon(ticket, why, running);
                    match op.phase {
                        Phase::Queued => {
                            let Some(Abandoned::NeverStarted(finished)) = abandoned else {
                                panic!("{abandoned:?}");
                            };
                            (op.phase, op.why) = (Phase::Done, Some((why, false)));
                            if finish(op, finished)? {
                                old.push(ticket);
                            }
                        }
                        Phase::Running if running => {
                            let Some(Abandoned::Running(waker)) = abandoned else {
                                panic!("{abandoned:?}");
                            };
                            prop_assert_eq!(waker.map(|w| w.number), op.waker.take());
                            (op.phase, op.why) = (Phase::Overdue, Some((why, true)));
                        }
                        _ => prop_assert!(abandoned.is_none()),
                    }
                }
                (Step::End, Some(_)) if matches!(op.phase, Phase::Running | Phase::Overdue) => {
                    // SAFETY: held, and ended once.
                    let ended = unsafe { held[index].end() };
                    let (expected, phase) = match op.phase {
                        Phase::Running => (Ended::InTime, Phase::Ending),
                        _ => (Ended::Abandoned, Phase::Releasing),
                    };
                    prop_assert_eq!(ended, expected);
                    op.phase = phase;
                }
                (Step::Finish, Some(ticket)) if matches!(op.phase, Phase::Ending | Phase::Releasing) => {
                    // SAFETY: ended, and finished once.
                    let finished = unsafe { table.finish(ticket) };
                    op.phase = match op.phase {
                        Phase::Ending => Phase::Done,
                        _ => Phase::Released,
                    };
                    if finish(op, finished)? {
                        old.push(ticket);
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
                    if op.phase.has_ended() {
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
                    prop_assert_eq!(detached.is_err(), op.phase.has_ended());
                    if detached.is_ok() {
                        op.detached = true;
                        op.waker = None;
                    }
                }
                (Step::Reap, Some(ticket)) if owned && op.phase.has_ended() => {
                    // SAFETY: the op is ours, and has ended.
                    let free = unsafe { table.reap(ticket) };
                    // Nobody is at the waker; a call may be.
                    prop_assert_eq!(free, !op.phase.has_more());
                    if free {
                        // SAFETY: nobody else has the entry.
                        unsafe { table.with_mut(index as u32, |d| assert_eq!(*d, 100)) };
                        old.push(ticket);
                        *op = FREE;
                    } else {
                        op.detached = true;
                    }
                }
                _ => {}
            }
            for (index, op) in ops.iter().enumerate() {
                if let Some(ticket) = op.ticket {
                    prop_assert_eq!(table.is_done(ticket), op.phase.has_ended());
                    prop_assert_eq!(table.progress(ticket), op.progress());
                    // SAFETY: below the depth.
                    let pending = unsafe { table.pending(index as u32) };
                    let expected = match op.phase {
                        Phase::Queued => Some((ticket, false)),
                        Phase::Running => Some((ticket, true)),
                        _ => None,
                    };
                    prop_assert_eq!(pending, expected);
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
        let ours = tickets.contains(&ticket);
        prop_assert!(!table.is_done(ticket));
        prop_assert_eq!(table.progress(ticket) == Progress::Gone, !ours);
        prop_assert_eq!(table.hold(ticket).is_some(), ours);
        prop_assert_eq!(table.abandon(ticket, Why::Cancel, true).is_some(), ours);
    }
}

/// Checks what the step that told an op's end gave against the model. True where the entry was the caller's, to recycle.
fn finish(op: &mut Op, finished: Finished<Counted>) -> Result<bool, TestCaseError> {
    let waker = op.waker.take();
    match finished {
        Finished::Quiet => prop_assert!(waker.is_none() && !op.detached),
        Finished::Wake(w) => prop_assert_eq!(Some(w.number), waker),
        Finished::Detached(w) => prop_assert!(w.is_none() && op.detached),
    }
    let recycle = op.detached;
    if recycle {
        *op = FREE;
    }
    Ok(recycle)
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
    /// Written by the worker that has ended the op, read by the owner that has seen its end.
    results: Vec<UnsafeCell<u64>>,
    ring: Mpmc,
    /// Held by who abandons an op, and by who finishes one that was abandoned in its call.
    quarantine: Mutex<()>,
    abandoned: AtomicU64,
    recycled: AtomicU64,
    over: AtomicBool,
}

// SAFETY: who may touch a result is decided by the op's word.
unsafe impl Sync for Engine {}

impl Engine {
    fn new(depth: usize) -> Self {
        Self {
            credits: Credits::new(depth),
            table: Table::new(depth, |_| 0),
            results: (0..depth).map(|_| UnsafeCell::new(0)).collect(),
            // An op that was abandoned leaves a tombstone.
            ring: Mpmc::new(4 * depth),
            quarantine: Mutex::new(()),
            abandoned: AtomicU64::new(0),
            recycled: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// How many ops ended in time.
    fn work(&self) -> u64 {
        let (mut in_time, mut words) = (0, Vec::with_capacity(4));
        while !self.ring.is_drained() {
            if self.ring.take_while(&mut words, |_, _| true) == 0 {
                std::thread::yield_now();
                continue;
            }
            for ticket in words.drain(..).map(Ticket::from_word) {
                let Some(held) = self.table.hold(ticket) else {
                    continue;
                };
                // SAFETY: held, and ended and finished once.
                unsafe {
                    let value = *held.descriptor();
                    match held.end() {
                        Ended::InTime => {
                            self.results[ticket.index() as usize]
                                .with_mut(|r| *r = value.wrapping_mul(3));
                            in_time += 1;
                            self.after_end(ticket, self.table.finish(ticket));
                        }
                        Ended::Abandoned => {
                            let _lock = self.quarantine.lock().unwrap();
                            self.after_end(ticket, self.table.finish(ticket));
                        }
                    }
                }
            }
        }
        in_time
    }

    fn after_end(&self, ticket: Ticket, finished: Finished<Waker>) {
        match finished {
            Finished::Quiet => {}
            Finished::Wake(waker) => waker.wake(),
            Finished::Detached(_) => {
                self.recycled.fetch_add(1, Ordering::Relaxed);
                self.credits.release(ticket.index());
            }
        }
    }

    /// Abandons an op here and there, queued or running.
    fn sweep(&self) {
        for (turn, why) in [Why::Deadline, Why::Cancel, Why::ShutDown]
            .into_iter()
            .cycle()
            .enumerate()
        {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            let index = (turn % self.table.depth()) as u32;
            // SAFETY: below the depth.
            if let Some((ticket, _)) = unsafe { self.table.pending(index) } {
                let _lock = self.quarantine.lock().unwrap();
                let abandoned = self.table.abandon(ticket, why, turn % 5 > 1);
                self.abandoned
                    .fetch_add(u64::from(abandoned.is_some()), Ordering::Relaxed);
                match abandoned {
                    None => {}
                    Some(Abandoned::NeverStarted(finished)) => self.after_end(ticket, finished),
                    Some(Abandoned::Running(waker)) => waker.into_iter().for_each(Waker::wake),
                }
            }
            std::thread::yield_now();
        }
    }

    /// Submits `n` ops one after the other; waits for some, polls for some, gives some up. Returns how many others have to
    /// recycle.
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
                while self.ring.push(ticket.to_word()).is_err() {
                    std::thread::yield_now();
                }
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
                match self.table.progress(ticket) {
                    Progress::Ended { why: None, more } => {
                        assert!(!more);
                        let result = self.results[index as usize].with(|r| *r);
                        assert_eq!(result, value.wrapping_mul(3));
                    }
                    progress => assert!(matches!(progress, Progress::Ended { .. })),
                }
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
    const EACH: u64 = 2_500;
    within(
        Duration::from_secs(120),
        "in-flight table under load",
        || {
            for depth in [1, 2, 8] {
                let engine = Engine::new(depth);
                let (in_time, left): (u64, u64) = std::thread::scope(|s| {
                    let engine = &engine;
                    let workers = [(); 2].map(|()| s.spawn(|| engine.work()));
                    s.spawn(|| engine.sweep());
                    let owners = [1, 2, 3].map(|salt| s.spawn(move || engine.submit(EACH, salt)));
                    let left = owners.into_iter().map(|o| o.join().unwrap()).sum();
                    engine.ring.close();
                    let in_time = workers.into_iter().map(|w| w.join().unwrap()).sum();
                    engine.over.store(true, Ordering::Relaxed);
                    (in_time, left)
                });
                let abandoned = engine.abandoned.into_inner();
                assert_eq!(in_time + abandoned, 3 * EACH);
                assert!(in_time > 0 && abandoned > 0, "{in_time}, {abandoned}");
                assert_eq!(engine.recycled.into_inner(), left);
                assert_eq!(engine.credits.free(), depth);
            }
        },
    );
}
