//! The life of an op while everybody who may end it does so at once: the worker that completes it, a cancel, its deadline, a
//! shutdown; and its owner, a future or a pair. The steps are those of the engine (`quarantine.rs`, `clients.rs`, `pair.rs`,
//! `worker.rs`), with the lock of the quarantine.
//!
//! Of each model: the op ends once, and its owner learns of that end and no other; it sleeps until then and no longer; a
//! release follows where the end had MORE, and nowhere else; the entry is recycled once; its bytes are used again once, and not
//! before the store call is through with them. loom's cells watch bytes, descriptor, result, owner's cell and waker.

use std::sync::Mutex as Plain;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

use loom::cell::UnsafeCell;
use loom::sync::atomic::{
    AtomicUsize as LoomUsize,
    Ordering::{AcqRel, Acquire, Release},
};
use loom::sync::{Arc, Mutex};
use loom::thread::{self, Thread};
use moonring_rings::completion::{CompletionRing, Cursor};
use moonring_rings::credits::Credits;
use moonring_rings::mpmc::Mpmc;
use moonring_rings::park::publish_fence;
use moonring_rings::slots::{Abandoned, Done, Ended, Finished, Progress, Table, Ticket, Why};

use crate::model;
use crate::park::Sleepers;

const DESCRIPTOR: u64 = 7;

// Of a completion's word, beside the index.
const FAILED: u64 = 1 << 8;
const MORE: u64 = 1 << 9;
const RELEASE: u64 = 1 << 10;

/// How an op ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// As its call did.
    Call,
    /// It was abandoned; `true`: a call had it.
    Early(Why, bool),
}

/// To be woken once.
struct Waker {
    /// The owner's. Not of a future that may be dropped: that thread is in a `join` by then, which loom takes no wake for.
    thread: Option<Thread>,
    alive: std::sync::Arc<AtomicIsize>,
}

impl Waker {
    fn wake(self) {
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Relaxed);
    }
}

/// Of an op that was abandoned in its call.
struct Held {
    ticket: Ticket,
    /// A pair's, whose owner has reaped the end.
    slot: bool,
}

struct Engine {
    /// Completions go into the ring, or else to wakers.
    is_pair: bool,
    table: Table<u64, Waker, End>,
    /// What the store call of an op uses: see `bytes_of`.
    bytes: Vec<UnsafeCell<u64>>,
    /// The owner's, of a client: a slot lies in it.
    cells: Vec<UnsafeCell<bool>>,
    quarantine: Mutex<Vec<Held>>,
    /// Odd while somebody abandons an op.
    turns: LoomUsize,
    /// Ends, as the statistics count them. Only where there are few threads: it makes a model three times as large.
    counted: Option<LoomUsize>,
    completions: CompletionRing,
    sleepers: Sleepers,
    /// Of a client that submits several ops.
    credits: Option<Credits>,

    // What was seen; no part of the model.
    told: Plain<Vec<(Ticket, End)>>,
    released: AtomicUsize,
    recycled: AtomicUsize,
    reused: AtomicUsize,
    wakers: std::sync::Arc<AtomicIsize>,
}

impl Engine {
    fn new(is_pair: bool, depth: usize) -> Self {
        Self {
            is_pair,
            table: Table::with_results(depth, |_| DESCRIPTOR, End::Call, !is_pair),
            bytes: (0..2 * depth).map(|_| UnsafeCell::new(0)).collect(),
            cells: (0..depth).map(|_| UnsafeCell::new(true)).collect(),
            quarantine: Mutex::new(Vec::new()),
            turns: LoomUsize::new(0),
            counted: None,
            completions: CompletionRing::new(depth),
            sleepers: Sleepers::new(),
            credits: None,
            told: Plain::default(),
            released: AtomicUsize::new(0),
            recycled: AtomicUsize::new(0),
            reused: AtomicUsize::new(0),
            wakers: std::sync::Arc::default(),
        }
    }

    fn queue(&self, index: u32) -> Ticket {
        // SAFETY: the entry is free, and the caller's.
        unsafe { self.table.queue(index) }
    }

    fn end_of(&self, ticket: Ticket) -> End {
        let told = self.told.lock().unwrap();
        let of = told.iter().filter(|told| told.0 == ticket);
        let [(_, end)] = of.collect::<Vec<_>>()[..] else {
            panic!("an op ends once: {told:?}");
        };
        *end
    }

    fn count_end(&self, ticket: Ticket, end: End) {
        if let Some(counted) = &self.counted {
            counted.fetch_add(1, Relaxed);
        }
        self.told.lock().unwrap().push((ticket, end));
    }

    /// Each op has bytes of its own, also where it has another's entry.
    fn bytes_of(&self, ticket: Ticket) -> &UnsafeCell<u64> {
        let earlier = (ticket.generation() as usize - 1) * self.table.depth();
        &self.bytes[earlier + ticket.index() as usize]
    }

    /// The bytes are their owner's again, who uses them at once.
    fn reuse(&self, ticket: Ticket) {
        // SAFETY: loom finds out.
        self.bytes_of(ticket).with_mut(|b| unsafe { *b = 0 });
        self.reused.fetch_add(1, Relaxed);
    }

    /// The entry is free: the next op is filled in, and its credit may be another's.
    fn recycle(&self, index: u32) {
        // SAFETY: loom finds out.
        unsafe { self.table.with_mut(index, |d| *d = DESCRIPTOR) };
        // SAFETY: as above.
        unsafe { self.table.set_result(index, End::Call) };
        // SAFETY: as above.
        self.cells[index as usize].with_mut(|c| unsafe { *c = true });
        self.recycled.fetch_add(1, Relaxed);
        if let Some(credits) = &self.credits {
            credits.release(index);
        }
    }

    /// `Shared::abandon`.
    fn abandon(&self, ticket: Ticket, why: Why, running: bool, wakers: &mut Vec<Waker>) {
        let mut list = self.quarantine.lock().unwrap();
        self.turns.fetch_add(1, AcqRel);
        let mut ended = None;
        match self.table.abandon(ticket, why, running) {
            None => {}
            Some(Abandoned::NeverStarted(finished)) => {
                self.count_end(ticket, End::Early(why, false));
                match self.is_pair {
                    false => ended = Some(finished),
                    true => self.push_end(ticket, End::Early(why, false)),
                }
            }
            Some(Abandoned::Running(waker)) => {
                wakers.extend(waker);
                // SAFETY: nobody writes it; loom finds out.
                let descriptor = unsafe { *self.table.peek(ticket.index()) };
                assert_eq!(descriptor, DESCRIPTOR);
                self.count_end(ticket, End::Early(why, true));
                list.push(Held {
                    ticket,
                    slot: false,
                });
                if self.is_pair {
                    self.push_end(ticket, End::Early(why, true));
                }
            }
        }
        self.turns.fetch_add(1, Release);
        drop(list);
        if let Some(finished) = ended {
            self.after_end(ticket, finished, wakers);
        }
    }

    /// `Quarantine::settled`: what has been seen to end is counted then.
    fn settled(&self) {
        while self.turns.load(Acquire) & 1 != 0 {
            thread::yield_now();
        }
    }

    fn abandon_and_wake(&self, ticket: Ticket, why: Why, running: bool) {
        let mut wakers = Vec::new();
        self.abandon(ticket, why, running, &mut wakers);
        self.wake(wakers);
    }

    /// What comes after, without the lock.
    fn wake(&self, wakers: Vec<Waker>) {
        if self.is_pair {
            publish_fence();
            self.sleepers.wake_all();
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// `PairShared::push_end`.
    fn push_end(&self, ticket: Ticket, end: End) {
        let index = ticket.index();
        // SAFETY: loom finds out.
        unsafe { self.table.set_result(index, end) };
        let more = match end {
            End::Early(_, true) => MORE,
            _ => 0,
        };
        self.push(u64::from(index) | FAILED | more);
    }

    fn push(&self, word: u64) {
        self.completions.push_all(std::iter::once((word, 0)));
    }

    /// `Clients::after_end`.
    fn after_end(&self, ticket: Ticket, finished: Finished<Waker>, wakers: &mut Vec<Waker>) {
        match finished {
            Finished::Quiet => {}
            Finished::Wake(waker) => wakers.push(waker),
            Finished::Detached(waker) => {
                wakers.extend(waker);
                self.free_slot(ticket);
                self.recycle(ticket.index());
            }
        }
    }

    /// `Clients::release`, and the slot is lent again.
    fn free_slot(&self, ticket: Ticket) {
        // SAFETY: loom finds out.
        let take = |c: *mut bool| unsafe { std::mem::take(&mut *c) };
        if self.cells[ticket.index() as usize].with_mut(take) {
            self.reuse(ticket);
        }
    }

    /// A worker's round with a batch of these, from the claims to the wakes.
    fn work(&self, tickets: &[Ticket]) {
        let hold = |&ticket| Some((ticket, self.table.hold(ticket)?));
        let batch: Vec<_> = tickets.iter().filter_map(hold).collect();
        for look in 0..2 {
            // The store call: at its begin, and at its end.
            for &(ticket, held) in &batch {
                // SAFETY: held: nobody writes; loom finds out.
                let descriptor = unsafe { *held.descriptor() };
                assert_eq!(descriptor, DESCRIPTOR);
                self.bytes_of(ticket).with_mut(|b| {
                    // SAFETY: loom finds out.
                    let was = unsafe { std::mem::replace(&mut *b, look + 1) };
                    assert_eq!(was, look, "used again during the call");
                });
            }
        }
        let (mut in_time, mut late) = (Vec::new(), Vec::new());
        for (ticket, held) in batch {
            // SAFETY: held, and ended once.
            match unsafe { held.end() } {
                Ended::InTime => in_time.push(ticket),
                Ended::Abandoned => late.push(ticket),
            }
        }
        let mut wakers = Vec::new();
        for ticket in in_time {
            self.count_end(ticket, End::Call);
            if self.is_pair {
                self.push(u64::from(ticket.index()));
                continue;
            }
            // SAFETY: loom finds out.
            unsafe { self.table.set_result(ticket.index(), End::Call) };
            // SAFETY: ended, and finished once.
            let finished = unsafe { self.table.finish(ticket) };
            self.after_end(ticket, finished, &mut wakers);
        }
        for ticket in late {
            self.release(ticket, &mut wakers);
        }
        self.wake(wakers);
    }

    /// `Shared::release_op`.
    fn release(&self, ticket: Ticket, wakers: &mut Vec<Waker>) {
        let mut list = self.quarantine.lock().unwrap();
        let at = list.iter().position(|held| held.ticket == ticket);
        let held = list.swap_remove(at.expect("listed until it is released"));
        self.released.fetch_add(1, Relaxed);
        let mut ended = None;
        if self.is_pair {
            if held.slot {
                self.reuse(ticket);
            }
            self.push(u64::from(ticket.index()) | FAILED | RELEASE);
        } else {
            // SAFETY: ended, and finished once.
            ended = Some(unsafe { self.table.finish(ticket) });
        }
        drop(list);
        if let Some(finished) = ended {
            self.after_end(ticket, finished, wakers);
        }
    }

    // The owner as a client.

    /// A poll: `Err` where the op has ended.
    fn register(&self, ticket: Ticket, thread: Option<Thread>) -> Result<(), Done> {
        let waker = || {
            self.wakers.fetch_add(1, Relaxed);
            Waker {
                thread,
                alive: self.wakers.clone(),
            }
        };
        // SAFETY: the op is this thread's.
        unsafe { self.table.register(ticket, |_| false, waker) }
    }

    /// A future that is polled, sleeps until it is woken, and is polled again. One that nobody wakes fails the model as a
    /// deadlock.
    fn wait(&self, ticket: Ticket) -> End {
        while self.register(ticket, Some(thread::current())).is_ok() {
            thread::park();
        }
        self.reap(ticket)
    }

    /// A future that is polled and dropped.
    fn give_up(&self, ticket: Ticket) {
        let _ = self.register(ticket, None);
        // SAFETY: the op is this thread's.
        if unsafe { self.table.detach(ticket) } == Err(Done) {
            self.reap(ticket);
        }
    }

    /// `Clients::reap`.
    fn reap(&self, ticket: Ticket) -> End {
        let index = ticket.index();
        let end = match self.table.progress(ticket) {
            Progress::Ended {
                why: Some((why, started)),
                more,
            } => {
                assert!(started || !more);
                let end = End::Early(why, started);
                // SAFETY: the op is this thread's, and has ended.
                if more && !unsafe { self.table.reap(ticket) } {
                    return end;
                }
                end
            }
            Progress::Ended { why: None, more } => {
                assert!(!more);
                // SAFETY: loom finds out.
                unsafe { self.table.result(index) }
            }
            other => panic!("ended, and yet {other:?}"),
        };
        self.free_slot(ticket);
        // SAFETY: as above.
        if unsafe { self.table.reap(ticket) } {
            self.recycle(index);
        }
        end
    }

    // The owner as a pair.

    /// `Owner::reap`: a notice, if there is one; true with the last of its op.
    fn pop(&self, owner: &mut Owner) -> Option<(u32, End, bool)> {
        let (word, _) = self.completions.pop(&mut owner.cursor)?;
        let index = word as u32 & 0xFF;
        let (more, release) = (word & MORE != 0, word & RELEASE != 0);
        let op = &mut owner.ops[index as usize];
        let end = match word & FAILED {
            0 => End::Call,
            // SAFETY: loom finds out.
            _ => unsafe { self.table.result(index) },
        };
        match op.end {
            None => assert!(!release, "a release before the end"),
            Some(before) => assert!(release && before == end, "a second end"),
        }
        assert_eq!(more || release, matches!(end, End::Early(_, true)));
        op.end = Some(end);
        let slot = std::mem::take(&mut op.slot);
        if more {
            if slot {
                self.keep(op.ticket);
            }
            return Some((index, end, false));
        }
        if slot || owner.raw {
            self.reuse(op.ticket);
        }
        self.recycle(index);
        Some((index, end, true))
    }

    /// `Quarantine::keep`: the slot goes back when the op is released, or at once where it has been.
    fn keep(&self, ticket: Ticket) {
        let mut list = self.quarantine.lock().unwrap();
        let held = list.iter_mut().find(|held| held.ticket == ticket);
        let listed = held.map(|held| held.slot = true).is_some();
        drop(list);
        if !listed {
            self.reuse(ticket);
        }
    }

    /// Sleeps until all ops in flight are over, release notices included. `Pair::wait`, again and again.
    fn wait_all(&self, owner: &mut Owner, mut ops: usize) {
        self.sleepers.enrol(0, &thread::current());
        while ops > 0 {
            if let Some((_, _, over)) = self.pop(owner) {
                ops -= usize::from(over);
                continue;
            }
            self.sleepers.word().announce(1);
            match self.completions.has_ready(&owner.cursor, 0) {
                true => _ = self.sleepers.word().retract(1),
                false => self.sleepers.sleep(0),
            }
        }
    }
}

/// What a pair's thread has alone.
struct Owner {
    cursor: Cursor,
    /// The host's memory, which it may use again after the last notice. Else a slot.
    raw: bool,
    ops: Vec<Op>,
}

struct Op {
    ticket: Ticket,
    slot: bool,
    end: Option<End>,
}

impl Owner {
    fn new(raw: bool, tickets: &[Ticket]) -> Self {
        let op = |&ticket| Op {
            ticket,
            slot: !raw,
            end: None,
        };
        Self {
            cursor: Cursor::default(),
            raw,
            ops: tickets.iter().map(op).collect(),
        }
    }
}

/// Who ends an op.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Complete,
    Cancel,
    Deadline,
    ShutDown,
    /// Its owner cancels it before it waits or goes: no thread of its own. Of a client only what is queued, as its future is
    /// dropped.
    Owner,
}

impl By {
    fn run(self, engine: &Engine, tickets: &[Ticket]) {
        let pending = |ticket: &Ticket| {
            // SAFETY: the index is below the depth.
            unsafe { engine.table.pending(ticket.index()) }
        };
        match self {
            By::Complete => engine.work(tickets),
            By::Owner => engine.abandon_and_wake(tickets[0], Why::Cancel, engine.is_pair),
            By::Cancel => {
                for &ticket in tickets {
                    engine.abandon_and_wake(ticket, Why::Cancel, true);
                }
            }
            By::Deadline => {
                let mut wakers = Vec::new();
                for (ticket, _) in tickets.iter().filter_map(pending) {
                    engine.abandon(ticket, Why::Deadline, true, &mut wakers);
                }
                engine.wake(wakers);
            }
            By::ShutDown => {
                // What is in the rings first, then what is in calls.
                for &ticket in tickets {
                    engine.abandon_and_wake(ticket, Why::ShutDown, false);
                }
                for (ticket, running) in tickets.iter().filter_map(pending) {
                    if running || engine.is_pair {
                        engine.abandon_and_wake(ticket, Why::ShutDown, true);
                    }
                }
            }
        }
    }
}

/// Whose op it is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Whose {
    /// A future that is awaited.
    Future,
    /// One that is dropped.
    Dropped,
    /// A pair, with a slot.
    Slot,
    /// A pair, with raw memory.
    Raw,
}

/// One op; each of `by` but the owner is a thread.
fn one_op(name: &str, whose: Whose, by: &'static [By], bound: Option<usize>) {
    let others = || by.iter().filter(|&&by| by != By::Owner);
    model(name, others().count(), bound, move || {
        let is_pair = matches!(whose, Whose::Slot | Whose::Raw);
        let mut engine = Engine::new(is_pair, 1);
        if others().count() < 3 {
            engine.counted = Some(LoomUsize::new(0));
        }
        let engine = Arc::new(engine);
        let ticket = engine.queue(0);
        let threads: Vec<_> = others()
            .map(|by| {
                let engine = Arc::clone(&engine);
                thread::spawn(move || by.run(&engine, &[ticket]))
            })
            .collect();
        if by.contains(&By::Owner) {
            By::Owner.run(&engine, &[ticket]);
        }
        let end = match whose {
            Whose::Future => {
                let end = engine.wait(ticket);
                if let Some(counted) = &engine.counted {
                    engine.settled();
                    assert_eq!(counted.load(Relaxed), 1, "seen, and not counted");
                }
                Some(end)
            }
            Whose::Dropped => {
                engine.give_up(ticket);
                None
            }
            Whose::Slot | Whose::Raw => {
                let mut owner = Owner::new(whose == Whose::Raw, &[ticket]);
                engine.wait_all(&mut owner, 1);
                owner.ops[0].end
            }
        };
        for thread in threads {
            thread.join().unwrap();
        }
        let told = engine.end_of(ticket);
        assert!(end.is_none_or(|end| end == told), "{end:?}, {told:?}");
        if !by.contains(&By::Complete) {
            assert!(matches!(told, End::Early(_, false)));
        }
        over(&engine, 1);
    });
}

/// All ops are over: nothing is left, and nothing was done twice.
fn over(engine: &Engine, ops: usize) {
    let told = engine.told.lock().unwrap();
    assert_eq!(told.len(), ops);
    let more = told.iter().filter(|t| matches!(t.1, End::Early(_, true)));
    assert_eq!(engine.released.load(Relaxed), more.count(), "releases");
    assert_eq!(engine.recycled.load(Relaxed), ops, "recycled");
    assert_eq!(engine.reused.load(Relaxed), ops, "reused");
    assert_eq!(engine.wakers.load(Relaxed), 0, "wakers");
    assert!(engine.quarantine.lock().unwrap().is_empty());
}

/// A module for each set of those who end an op, with a model for each owner. With three threads, a pair has either a slot or
/// raw memory: nobody but the pair itself tells them apart before the release.
macro_rules! lives {
    ($($name:ident: $by:expr, $bound:expr => $($owner:ident)+;)+) => {$(
        mod $name {
            use super::{By::*, Whose::*, one_op};

            $(
                #[test]
                fn $owner() {
                    let name = concat!("life ", stringify!($name), " ", stringify!($owner));
                    one_op(name, lives!($owner), &$by, $bound);
                }
            )+
        }
    )+};
    (a_future) => { Future };
    (a_dropped_future) => { Dropped };
    (a_pair) => { Slot };
    (a_pair_with_raw_memory) => { Raw };
}

lives! {
    complete_cancel: [Complete, Cancel], Some(3) => a_future a_dropped_future a_pair a_pair_with_raw_memory;
    complete_deadline: [Complete, Deadline], Some(3) => a_future a_dropped_future a_pair a_pair_with_raw_memory;
    complete_shutdown: [Complete, ShutDown], Some(3) => a_future a_dropped_future a_pair a_pair_with_raw_memory;
    cancel_deadline: [Cancel, Deadline], Some(3) => a_future a_dropped_future a_pair;
    cancel_shutdown: [Cancel, ShutDown], Some(3) => a_future a_dropped_future a_pair;
    deadline_shutdown: [Deadline, ShutDown], Some(3) => a_future a_dropped_future a_pair;
    complete_cancel_deadline: [Complete, Cancel, Deadline], Some(2) => a_future a_dropped_future a_pair;
    complete_cancel_shutdown: [Complete, Cancel, ShutDown], Some(2) => a_future a_dropped_future a_pair;
    complete_deadline_shutdown: [Complete, Deadline, ShutDown], Some(2) => a_future a_dropped_future a_pair_with_raw_memory;
    cancel_deadline_shutdown: [Cancel, Deadline, ShutDown], Some(2) => a_future a_dropped_future a_pair;
    all_four: [Complete, Deadline, ShutDown, Owner], Some(2) => a_dropped_future a_pair;
}

/// Two ops in one call, of which any may be late.
fn a_batch(name: &str, is_pair: bool) {
    model(name, 2, Some(2), move || {
        let engine = Arc::new(Engine::new(is_pair, 2));
        let tickets = [engine.queue(0), engine.queue(1)];
        let threads = [By::Complete, By::Deadline].map(|by| {
            let engine = Arc::clone(&engine);
            thread::spawn(move || by.run(&engine, &tickets))
        });
        if is_pair {
            let mut owner = Owner::new(false, &tickets);
            engine.wait_all(&mut owner, 2);
            for op in owner.ops {
                assert_eq!(op.end, Some(engine.end_of(op.ticket)));
            }
        } else {
            for ticket in tickets {
                assert_eq!(engine.wait(ticket), engine.end_of(ticket));
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        over(&engine, 2);
    });
}

#[test]
fn a_batch_of_a_pair() {
    a_batch("life a_batch_of_a_pair", true);
}

#[test]
fn a_batch_of_a_client() {
    a_batch("life a_batch_of_a_client", false);
}

/// A client's entry is used twice, while the timer has the ticket of the first op, or of the second, and comes late with it.
fn a_clients_entry_again(name: &str, waits: bool) {
    model(name, 2, Some(2), move || {
        let mut engine = Engine::new(false, 1);
        engine.credits = Some(Credits::new(1));
        let engine = Arc::new((engine, Mpmc::new(2)));
        let submit = |(engine, ring): &(Engine, Mpmc)| {
            let index = engine.credits.as_ref()?.acquire()?;
            let ticket = engine.queue(index);
            ring.push(ticket.to_word()).unwrap();
            Some(ticket)
        };
        let pop = |ring: &Mpmc| ring.pop().map(Ticket::from_word);
        let mut tickets = vec![submit(&engine).unwrap()];
        let worker = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || {
                while let Some(ticket) = pop(&engine.1) {
                    engine.0.work(&[ticket]);
                }
            })
        };
        let timer = {
            let (engine, first) = (Arc::clone(&engine), tickets[0]);
            thread::spawn(move || {
                By::Deadline.run(&engine.0, &[first]);
                By::Cancel.run(&engine.0, &[first]);
            })
        };
        match waits {
            true => _ = engine.0.wait(tickets[0]),
            false => engine.0.give_up(tickets[0]),
        }
        if let Some(again) = submit(&engine) {
            tickets.push(again);
            engine.0.give_up(again);
        }
        worker.join().unwrap();
        timer.join().unwrap();
        while let Some(ticket) = pop(&engine.1) {
            engine.0.work(&[ticket]);
        }
        for &ticket in &tickets {
            engine.0.end_of(ticket);
        }
        assert_eq!(engine.0.credits.as_ref().unwrap().free(), 1);
        over(&engine.0, tickets.len());
    });
}

#[test]
fn an_awaited_entry_again() {
    a_clients_entry_again("life an_awaited_entry_again", true);
}

#[test]
fn a_dropped_entry_again() {
    a_clients_entry_again("life a_dropped_entry_again", false);
}

/// A pair's entry is used again as soon as it may be, while the timer comes for the second op, or late for the first, and a
/// worker finds the tombstone of the first.
#[test]
fn a_pairs_entry_again() {
    model("life a_pairs_entry_again", 2, Some(3), || {
        let engine = Arc::new(Engine::new(true, 1));
        let first = engine.queue(0);
        let threads = [By::Complete, By::Deadline].map(|by| {
            let engine = Arc::clone(&engine);
            thread::spawn(move || {
                by.run(&engine, &[first]);
                if by == By::Deadline {
                    By::Cancel.run(&engine, &[first]);
                }
            })
        });
        let mut owner = Owner::new(false, &[first]);
        engine.wait_all(&mut owner, 1);
        assert_eq!(owner.ops[0].end, Some(engine.end_of(first)));
        let again = engine.queue(0);
        owner.ops = Owner::new(false, &[again]).ops;
        engine.work(&[again]);
        engine.wait_all(&mut owner, 1);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(owner.ops[0].end, Some(engine.end_of(again)));
        over(&engine, 2);
    });
}
