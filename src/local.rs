//! Ops of a pair as futures, for the tasks of one thread.
//!
//! The tasks of a thread share one pair. A future stages its op; the **reactor**, a task of its own, shows what was staged by one
//! publication, reaps what has ended, and wakes the tasks it belongs to. That is done on their own thread, where a wake is a push to the
//! runtime's own queue: no lock, no system call. Of a worker's wakes there is one for all that has come, the reactor's.
//!
//! ```text
//!   a task                              the reactor                           a worker
//!   stage the op                        show what is staged
//!   the reactor sleeps? wake it         reap: results to their cells
//!   Pending                             anything done? wake the tasks,
//!                                         and be polled again after them
//!                                       nothing for `spin_us`:
//!                                         announce, look again          ◀──── completions; announced? wake it
//!                                         sleep
//! ```
//!
//! # The cells
//! An op has a **cell** from its staging until its future has taken the result; so a future that is kept and not polled keeps its credit.
//!
//! ```text
//!          stage               the terminal notice              the future is polled
//!   FREE ─────────▶ PENDING ───────────────────────▶ ENDED ───────────────────────────▶ FREE
//!                      │ the future is dropped          │ the future is dropped            ▲
//!                      └────────────────────────────────┴──────────────────────────────────┘
//! ```
//! A notice that finds its cell free, or with another op's ticket, is nobody's. Without a free cell, or a credit of the pair (an op in
//! quarantine or of a dropped future keeps that, not its cell), an op waits in a queue. Who is **called** from its front has one kept for it until
//! it comes or is dropped.
//!
//! # What is others' code
//! Wakers are cloned, woken and dropped while nobody has the core borrowed: dropping one may drop a task with a future of ours in it.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::pair::{EndedOp, Notice};
use crate::store::{RawResult, UNSET};
use crate::submission::Buffer;
use crate::waker::OpWaker;
use crate::{
    Class, ClientError, Done, OpError, OpKind, Pair, Returned, Slot, Submission, SubmitError,
    Ticket, WaitError,
};

/// So many ops are shown at once, whoever else is still to have its turn: a worker is at them while the others of a long turn submit.
const SHOWN_TOGETHER: usize = 32;

/// A pair whose ops are futures, for all tasks of one thread: the way to the engine for a runtime of one thread, or one a core.
///
/// Cheaper than a [`Client`](crate::Client), whose futures may be anywhere: what the tasks of one turn submit is shown to the workers
/// together, and tasks are woken on their own thread. Not `Send`; make the pair on the thread that will use it. Clones
/// share the pair and its [`depth`](Pair::depth).
///
/// **Its [`Reactor`] must be spawned** on the same thread. Without it all works, but a future that waits asks to be polled again and
/// again.
///
/// # Futures
/// An op is accepted when [`submit`](LocalClient::submit) is called, if a credit is free, and shown to the workers when the reactor has its
/// turn. Without a free credit the future waits for one when it is polled; credits go to those who wait, in their order. A future
/// keeps its credit until it is polled after its op has ended, or dropped.
/// **Dropping a future does not cancel its op**: it goes on, and slot and credit return by themselves.
///
/// ```
/// # use std::sync::Arc;
/// # use moonring::{Done, Engine, LocalClient, Submission, store::NullStore};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let engine = Engine::builder(Arc::new(NullStore)).start()?;
/// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let tasks = tokio::task::LocalSet::new();
/// let (client, reactor) = LocalClient::new(engine.pair(256)?);
/// tasks.spawn_local(reactor);
/// let found = tasks.run_until(async move { client.submit(Submission::lookup("key")).await });
/// assert_eq!(runtime.block_on(found).result?, Done::Present);
/// # Ok(()) }
/// ```
pub struct LocalClient(Rc<RefCell<Core>>);

/// What moves a [`LocalClient`]'s ops: a future to be spawned on its thread. Ends when all clones of the client are gone.
///
/// Dropping it earlier leaves the client's futures to themselves: see there.
#[must_use = "a local client's ops are moved by its reactor: spawn it"]
pub struct Reactor(Rc<RefCell<Core>>);

/// An op of a [`LocalClient`].
#[must_use = "the op goes on by itself, but nobody learns how it ended"]
pub struct LocalOp<'a> {
    client: &'a LocalClient,
    state: State<'a>,
}

struct Core {
    pair: Pair,
    /// How many ops were staged and not shown.
    unshown: usize,
    cells: Box<[Cell]>,
    free: Vec<u32>,
    waiting: VecDeque<Waiting>,
    next_place: u64,
    /// How many were called and have not come.
    called: usize,
    reactor: Presence,
    /// Since when the reactor has found nothing.
    idle_since: Option<Instant>,
    /// To be woken once the core is let go.
    wakers: Vec<OpWaker>,
}

/// No enum: its parts are written and taken one by one, and never moved together.
struct Cell {
    phase: Phase,
    /// Of the op that it waits for, or waited for last.
    ticket: Ticket,
    /// While it is pending.
    waker: Option<OpWaker>,
    /// Once it has ended.
    kind: OpKind,
    result: RawResult,
    slot: Option<Slot>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free,
    Pending,
    Ended,
}

impl Cell {
    fn new() -> Self {
        Self {
            phase: Phase::Free,
            ticket: Ticket::from_word(0),
            waker: None,
            kind: OpKind::Lookup,
            result: UNSET,
            slot: None,
        }
    }

    /// Whether it waits for the end of this op.
    #[inline(always)]
    fn is_of(&self, op: Ticket) -> bool {
        self.phase == Phase::Pending && self.ticket == op
    }
}

/// An op in the queue. Places only grow.
struct Waiting {
    place: u64,
    waker: OpWaker,
}

enum Presence {
    Absent,
    /// It has been woken, or asked for another turn.
    Awake,
    Asleep(OpWaker),
}

enum Started {
    InFlight(u32),
    NoCredit,
    Refused(SubmitError),
}

enum State<'k> {
    /// By its cell.
    InFlight(u32),
    Taken,
    Unstarted(Unstarted<'k>),
}

enum Unstarted<'k> {
    /// No credit yet; its place in the queue, if it has been polled.
    Waiting(Submission<'k>, Option<u64>),
    Refused(SubmitError, Option<Slot>),
}

/// Has the core for `f`, and wakes who is to be woken after that.
#[inline(always)]
fn with<R>(core: &RefCell<Core>, f: impl FnOnce(&mut Core) -> R) -> R {
    let mut borrowed = core.borrow_mut();
    let result = f(&mut borrowed);
    let_go(core, borrowed);
    result
}

#[inline(always)]
fn let_go(core: &RefCell<Core>, borrowed: RefMut<'_, Core>) {
    let any = !borrowed.wakers.is_empty();
    drop(borrowed);
    if any {
        wake_all(core);
    }
}

#[inline(never)]
fn wake_all(core: &RefCell<Core>) {
    let mut wakers = mem::take(&mut core.borrow_mut().wakers);
    wakers.drain(..).for_each(OpWaker::wake);
    // Its room is used again.
    core.borrow_mut().wakers = wakers;
}

impl LocalClient {
    /// Makes a pair into a client and its reactor. What the pair has in flight goes on, and nobody is told how it ends.
    pub fn new(pair: Pair) -> (Self, Reactor) {
        let depth = pair.depth();
        let core = Core {
            pair,
            unshown: 0,
            cells: (0..depth).map(|_| Cell::new()).collect(),
            free: (0..depth as u32).rev().collect(),
            waiting: VecDeque::new(),
            next_place: 0,
            called: 0,
            reactor: Presence::Absent,
            idle_since: None,
            wakers: Vec::with_capacity(depth),
        };
        let core = Rc::new(RefCell::new(core));
        (Self(Rc::clone(&core)), Reactor(core))
    }

    /// Submits an op. Its [`user_data`](Submission::user_data) is not used.
    ///
    /// How it ended, and its slot, come when the future is awaited; an op that was refused gives its slot back there.
    #[inline(always)]
    pub fn submit<'a>(&'a self, submission: Submission<'a>) -> LocalOp<'a> {
        let Submission {
            op,
            key,
            buffer: Buffer::None,
            timeout,
            flags,
            class,
            ..
        } = submission
        else {
            return self.submit_any(submission);
        };
        mem::forget(submission); // There is no slot to give back.
        match self.submit_bare(op, class, key, timeout, flags) {
            Some(cell) => LocalOp {
                client: self,
                state: State::InFlight(cell),
            },
            None => self.submit_any(Submission {
                op,
                key,
                buffer: Buffer::None,
                user_data: 0,
                timeout,
                flags,
                class,
            }),
        }
    }

    /// An op without bytes, in registers. Its cell; nothing where it was not accepted at once.
    #[inline(never)]
    fn submit_bare(
        &self,
        op: OpKind,
        class: Class,
        key: &[u8],
        timeout: u64,
        flags: u8,
    ) -> Option<u32> {
        with(&self.0, |core| {
            if !core.has_credit() {
                return None;
            }
            let cell = *core.free.last()?;
            let user_data = u64::from(cell);
            let ticket = core
                .pair
                .accept_bare(op, class, key, user_data, timeout, flags)?;
            core.began(cell, ticket);
            Some(cell)
        })
    }

    #[inline(never)]
    fn submit_any<'a>(&'a self, mut submission: Submission<'a>) -> LocalOp<'a> {
        let state = match with(&self.0, |core| core.start(&mut submission)) {
            Started::InFlight(cell) => State::InFlight(cell),
            Started::NoCredit => State::Unstarted(Unstarted::Waiting(submission, None)),
            Started::Refused(reason) => {
                State::Unstarted(Unstarted::Refused(reason, submission.into_slot()))
            }
        };
        LocalOp {
            client: self,
            state,
        }
    }

    /// How many ops can be in flight.
    pub fn depth(&self) -> usize {
        self.0.borrow().cells.len()
    }

    /// How many ops could be submitted now without waiting.
    pub fn credits(&self) -> usize {
        let core = self.0.borrow();
        core.credits().saturating_sub(core.called)
    }
}

impl Clone for LocalClient {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl Drop for LocalClient {
    fn drop(&mut self) {
        // The last but the reactor.
        if Rc::strong_count(&self.0) == 2 {
            with(&self.0, Core::wake_reactor);
        }
    }
}

impl Core {
    /// Free cells that have a credit.
    fn credits(&self) -> usize {
        self.free.len().min(self.pair.credits())
    }

    /// Whether one of them is not kept for somebody.
    #[inline(always)]
    fn has_credit(&self) -> bool {
        self.credits() > self.called
    }

    fn start(&mut self, submission: &mut Submission<'_>) -> Started {
        match self.has_credit() || self.pair.is_closing() {
            true => self.stage(submission),
            false => Started::NoCredit,
        }
    }

    fn stage(&mut self, submission: &mut Submission<'_>) -> Started {
        let Some(cell) = self.free.last().copied() else {
            // Only where it would be refused anyway: who has a credit, or was called, finds a cell.
            return Started::Refused(self.pair.refuse());
        };
        submission.user_data = u64::from(cell);
        match self.pair.stage_in_place(submission) {
            Ok(ticket) => {
                self.began(cell, ticket);
                Started::InFlight(cell)
            }
            Err(reason) => Started::Refused(reason),
        }
    }

    /// An op was accepted, with the last of the free cells.
    #[inline(always)]
    fn began(&mut self, index: u32, ticket: Ticket) {
        self.free.pop();
        let cell = &mut self.cells[index as usize];
        (cell.phase, cell.ticket) = (Phase::Pending, ticket);
        self.unshown += 1;
        if self.unshown == SHOWN_TOGETHER {
            self.show();
        }
        if !matches!(self.reactor, Presence::Awake) {
            self.wake_reactor();
        }
    }

    /// There is something for the reactor to do.
    #[cold]
    fn wake_reactor(&mut self) {
        match mem::replace(&mut self.reactor, Presence::Awake) {
            Presence::Awake => {}
            Presence::Asleep(waker) => self.wakers.push(waker),
            Presence::Absent => {
                self.reactor = Presence::Absent;
                self.show();
            }
        }
    }

    /// Shows what is staged. Whether there was something.
    fn show(&mut self) -> bool {
        self.unshown = 0;
        self.pair.show()
    }

    /// Shows what is staged, and takes what has ended. Whether there was anything.
    fn turn(&mut self) -> bool {
        let mut any = self.show();
        while let Some(notice) = self.pair.next_notice() {
            any = true;
            match notice {
                Notice::Well { index, value } => {
                    let (op, slot) = self.pair.end_well(index);
                    self.settle(op, Ok(value), slot);
                }
                Notice::Other(word) => self.settle_other(word),
            }
        }
        if any {
            self.idle_since = None;
            self.call();
        }
        any
    }

    #[cold]
    fn settle_other(&mut self, word: u64) {
        let (op, result, slot) = self.pair.end_other(word);
        self.settle(op, result, slot);
    }

    #[inline(always)]
    fn settle(&mut self, op: EndedOp, result: RawResult, slot: Option<Slot>) {
        let index = op.user_data as usize;
        // A release, an op of a dropped future, and one that the pair had in flight before have no cell.
        let Some(cell) = self.cells.get_mut(index) else {
            return;
        };
        if !cell.is_of(op.ticket) {
            return;
        }
        cell.phase = Phase::Ended;
        (cell.kind, cell.result) = (op.op, result);
        if slot.is_some() {
            cell.slot = slot;
        }
        if let Some(waker) = cell.waker.take() {
            self.wakers.push(waker);
        }
    }

    /// Calls those who wait, as many as there are credits; all, where each will be refused.
    #[inline(never)]
    fn call(&mut self) {
        while !self.waiting.is_empty() && (self.has_credit() || self.pair.is_closing()) {
            self.called += 1;
            let first = self.waiting.pop_front();
            self.wakers.extend(first.map(|first| first.waker));
        }
    }

    /// Starts an op whose turn it is; else it has, or gets, a place in the queue with this waker. Returns a waker to be dropped, too.
    fn wait(
        &mut self,
        submission: &mut Submission<'_>,
        place: &mut Option<u64>,
        waker: OpWaker,
    ) -> (Started, Option<OpWaker>) {
        let Some(place) = *place else {
            let started = self.start(submission);
            if !matches!(started, Started::NoCredit) {
                return (started, Some(waker));
            }
            *place = Some(self.next_place);
            let place = self.next_place;
            self.next_place += 1;
            self.waiting.push_back(Waiting { place, waker });
            return (started, None);
        };
        if self.is_called(place) {
            self.called -= 1;
            let started = self.stage(submission);
            if matches!(started, Started::Refused(..)) {
                self.call(); // What was kept for it is another's.
            }
            return (started, Some(waker));
        }
        let it = self.waiting.iter_mut().find(|it| it.place == place);
        let before = it.map(|it| mem::replace(&mut it.waker, waker));
        (Started::NoCredit, before)
    }

    /// Whether the place is in the queue no more.
    fn is_called(&self, place: u64) -> bool {
        self.waiting.front().is_none_or(|first| first.place > place)
    }

    /// Takes a place out of the queue. Returns its waker, if it was in it.
    fn leave(&mut self, place: u64) -> Option<Waiting> {
        if self.is_called(place) {
            self.called -= 1;
            self.call();
            return None;
        }
        let at = self.waiting.iter().position(|it| it.place == place)?;
        self.waiting.remove(at)
    }

    fn is_alone(&self) -> bool {
        matches!(self.reactor, Presence::Absent)
    }

    #[inline(always)]
    fn has_ended(&self, index: u32) -> bool {
        self.cells[index as usize].phase == Phase::Ended
    }

    /// How an op ended that has. Its cell is free then.
    fn take(&mut self, index: u32) -> (OpKind, RawResult, Option<Slot>) {
        self.free(index);
        let cell = &mut self.cells[index as usize];
        (cell.kind, cell.result, cell.slot.take())
    }

    #[inline(always)]
    fn free(&mut self, index: u32) {
        self.cells[index as usize].phase = Phase::Free;
        self.free.push(index);
        if !self.waiting.is_empty() {
            self.call();
        }
    }

    /// Nobody waits for the op any more. What is left of it is to be dropped.
    fn give_up(&mut self, index: u32) -> (Option<OpWaker>, Option<Slot>) {
        let cell = &mut self.cells[index as usize];
        let left = (cell.waker.take(), cell.slot.take());
        self.free(index);
        left
    }

    /// The reactor is gone: all who wait look for themselves.
    fn go_without_reactor(&mut self) -> Presence {
        self.show();
        for cell in &mut self.cells {
            self.wakers.extend(cell.waker.take());
        }
        // They keep their places, and are in nobody's hands: each asks for its next turn itself.
        let waiting = self.waiting.iter_mut();
        let noop = || OpWaker::of(Waker::noop());
        self.wakers
            .extend(waiting.map(|it| mem::replace(&mut it.waker, noop())));
        mem::replace(&mut self.reactor, Presence::Absent)
    }
}

impl<'a> LocalOp<'a> {
    /// One that has not ended when it is polled, or has more to give back than its result.
    #[inline(never)]
    fn poll_others(&mut self, index: u32, cx: &mut Context<'_>) -> Poll<Returned<Done>> {
        let core = &self.client.0;
        {
            let borrowed = core.borrow();
            if borrowed.is_alone() || borrowed.pair.is_forked() {
                drop(borrowed);
                return self.poll_alone(index, cx);
            }
            if borrowed.has_ended(index) {
                drop(borrowed);
                let (op, result, slot) = with(core, |core| core.take(index));
                self.state = State::Taken;
                return Poll::Ready(Returned::of(op, result, slot));
            }
            let known = &borrowed.cells[index as usize].waker;
            if known
                .as_ref()
                .is_some_and(|known| known.will_wake(cx.waker()))
            {
                return Poll::Pending;
            }
        }
        let known = OpWaker::of(cx.waker());
        let (waits, unused) = {
            let mut core = core.borrow_mut();
            let alone = core.is_alone();
            let cell = &mut core.cells[index as usize];
            match cell.phase == Phase::Pending && !alone {
                true => (true, cell.waker.replace(known)),
                // The clone has polled or dropped the reactor: nobody else wakes this task.
                false => (false, Some(known)),
            }
        };
        drop(unused);
        if !waits {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// There is no reactor, or this is a forked child.
    #[cold]
    fn poll_alone(&mut self, index: u32, cx: &mut Context<'_>) -> Poll<Returned<Done>> {
        let core = &self.client.0;
        if core.borrow().pair.is_forked() {
            return self.forked();
        }
        let ended = with(core, |core| {
            core.turn();
            core.has_ended(index).then(|| core.take(index))
        });
        let Some((op, result, slot)) = ended else {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        self.state = State::Taken;
        Poll::Ready(Returned::of(op, result, slot))
    }

    /// One that has no credit, or never will.
    #[cold]
    fn poll_unstarted(&mut self, cx: &mut Context<'_>) -> Poll<Returned<Done>> {
        let core = &self.client.0;
        if core.borrow().pair.is_forked() {
            return self.forked();
        }
        let (reason, slot) = match mem::replace(&mut self.state, State::Taken) {
            State::Unstarted(Unstarted::Waiting(mut submission, mut place)) => {
                let waker = OpWaker::of(cx.waker());
                let (started, before, alone) = with(core, |core| {
                    let alone = core.is_alone();
                    if alone {
                        core.turn();
                    }
                    let (started, before) = core.wait(&mut submission, &mut place, waker);
                    (started, before, alone)
                });
                drop(before);
                match started {
                    Started::InFlight(index) => {
                        self.state = State::InFlight(index);
                        return self.poll_others(index, cx);
                    }
                    Started::NoCredit => {
                        self.state = State::Unstarted(Unstarted::Waiting(submission, place));
                        if alone {
                            cx.waker().wake_by_ref();
                        }
                        return Poll::Pending;
                    }
                    Started::Refused(reason) => (reason, submission.into_slot()),
                }
            }
            State::Unstarted(Unstarted::Refused(reason, slot)) => (reason, slot),
            // Polled again after its end: there is nothing to wait for, and panicking is not for a library.
            State::InFlight(_) | State::Taken => return Poll::Pending,
        };
        let result = Err(reason.into());
        Poll::Ready(Returned { result, slot })
    }

    /// How it ends in a forked child. A slot that was accepted is the parent's.
    #[cold]
    fn forked(&mut self) -> Poll<Returned<Done>> {
        let (result, slot) = match mem::replace(&mut self.state, State::Taken) {
            State::Unstarted(Unstarted::Waiting(submission, _)) => {
                (Err(SubmitError::Forked.into()), submission.into_slot())
            }
            State::Unstarted(Unstarted::Refused(reason, slot)) => (Err(reason.into()), slot),
            State::InFlight(_) => (Err(ClientError::Failed(OpError::Forked)), None),
            State::Taken => return Poll::Pending,
        };
        Poll::Ready(Returned { result, slot })
    }

    /// Dropped before its end.
    #[cold]
    fn give_up(&mut self) {
        let core = &self.client.0;
        match self.state {
            State::InFlight(index) => {
                let left = with(core, |core| core.give_up(index));
                drop(left);
            }
            State::Unstarted(Unstarted::Waiting(_, Some(place))) => {
                let left = with(core, |core| core.leave(place));
                drop(left);
            }
            _ => {}
        }
    }
}

impl Future for LocalOp<'_> {
    type Output = Returned<Done>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Returned<Done>> {
        let State::InFlight(index) = self.state else {
            return self.poll_unstarted(cx);
        };
        let core = &self.client.0;
        let mut borrowed = core.borrow_mut();
        let cell = &borrowed.cells[index as usize];
        let (op, Ok(value)) = (cell.kind, cell.result) else {
            drop(borrowed);
            return self.poll_others(index, cx);
        };
        if cell.phase != Phase::Ended || cell.slot.is_some() || borrowed.pair.is_forked() {
            drop(borrowed);
            return self.poll_others(index, cx);
        }
        borrowed.free(index);
        let_go(core, borrowed);
        // There was nothing in it to be dropped.
        mem::forget(mem::replace(&mut self.state, State::Taken));
        Done::with_raw(op, value, |done| {
            Poll::Ready(Returned {
                result: Ok(done),
                slot: None,
            })
        })
    }
}

impl Drop for LocalOp<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !matches!(self.state, State::Taken) {
            self.give_up();
        }
    }
}

impl Future for Reactor {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let core = &self.0;
        loop {
            if Rc::strong_count(core) == 1 || core.borrow().pair.is_forked() {
                return Poll::Ready(());
            }
            let (again, before) = with(core, |core| {
                let before = mem::replace(&mut core.reactor, Presence::Awake);
                (core.turn() || core.spins(), before)
            });
            drop(before);
            if again {
                // Those who were woken come first; what they submit is then shown together.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let wakers = [(); 2].map(|()| OpWaker::of(cx.waker()));
            let (sleeps, before) = with(core, |core| core.sleep(wakers));
            drop(before);
            if sleeps {
                return Poll::Pending;
            }
        }
    }
}

impl Core {
    /// Whether the reactor, which has found nothing, is to look again after the other tasks rather than sleep.
    fn spins(&mut self) -> bool {
        let spin = self.pair.spin();
        if self.pair.in_flight() == 0 || spin.is_zero() {
            return false;
        }
        let now = Instant::now();
        now - *self.idle_since.get_or_insert(now) < spin
    }

    /// The reactor sleeps until one of these is woken, by a worker or a task; false where there is something to do. What is
    /// returned is to be dropped.
    fn sleep(&mut self, wakers: [OpWaker; 2]) -> (bool, [Option<OpWaker>; 2]) {
        let [worker, task] = wakers;
        let before = self.pair.set_task(Some(worker));
        if self.unshown > 0 {
            return (false, [before, Some(task)]);
        }
        match self.pair.await_ready() {
            Poll::Ready(Ok(())) if self.pair.in_flight() > 0 => {
                return (false, [before, Some(task)]);
            }
            // Whoever waits for a credit would be refused.
            Poll::Ready(Err(WaitError::ShutDown)) => self.call(),
            // Woken by a worker; or only by a task, where nothing is in flight.
            _ => {}
        }
        self.idle_since = None;
        self.reactor = Presence::Asleep(task);
        (true, [before, None])
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        let before = with(&self.0, Core::go_without_reactor);
        drop(before);
    }
}

impl fmt::Debug for LocalClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalClient")
            .field("depth", &self.depth())
            .field("credits", &self.credits())
            .finish()
    }
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor")
            .field("clients", &(Rc::strong_count(&self.0) - 1))
            .finish()
    }
}

impl fmt::Debug for LocalOp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::InFlight(_) => "in flight",
            State::Unstarted(Unstarted::Waiting(..)) => "waiting",
            State::Unstarted(Unstarted::Refused(..)) => "refused",
            State::Taken => "taken",
        };
        f.debug_struct("LocalOp").field("state", &state).finish()
    }
}
