//! The futures of a client's ops: one op, many ops, and a way to block on either.

use std::cell::Cell;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use moonring_rings::slots::{Done, Ticket, Why};

use crate::client::{AsKey, Client, OpOptions, client_result, submission_of};
use crate::clients::Registered;
use crate::engine::Shared;
use crate::inflight::NEVER;
use crate::quarantine::Submitter;
use crate::submission::{Buffer, Submission};
use crate::waker::OpWaker;
use crate::{Class, ClientError, OpError, OpKind, Slot, SubmitError};

/// How an op ended, and its slot.
pub(crate) type Ended = (Result<u64, ClientError>, Option<Slot>);

/// A place in the queue for credits, and the credit that came of it; both are given up when dropped.
struct Place<'a> {
    engine: &'a Shared,
    id: Option<u64>,
    credit: Option<u32>,
}

impl<'a> Place<'a> {
    fn new(engine: &'a Shared) -> Self {
        Self {
            engine,
            id: None,
            credit: None,
        }
    }

    /// Queues up, or renews the waker, unless a credit has come. Try again after this.
    fn wait(&mut self, waker: &Waker) {
        if self.credit.is_none() {
            match self.engine.clients.waiting().register(self.id, waker) {
                Registered::Waits(id) => self.id = Some(id),
                Registered::Has(credit) => (self.id, self.credit) = (None, Some(credit)),
            }
        }
    }

    /// Needs no credit any more.
    fn leave(&mut self) {
        let (id, credit) = (self.id.take(), self.credit.take());
        if (id.is_none() && credit.is_none()) || self.engine.is_forked() {
            return;
        }
        if let Some(id) = id {
            self.engine.clients.leave_queue(id);
        }
        if let Some(credit) = credit {
            self.engine.clients.pass_on(credit);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// One op.
pub(crate) struct Op<'a> {
    client: &'a Client,
    state: State<'a>,
}

enum State<'a> {
    InFlight(Ticket),
    Taken,
    Unstarted(Unstarted<'a>),
}

enum Unstarted<'a> {
    /// No credit yet.
    Waiting(Submission<'a>, Place<'a>),
    Refused(SubmitError, Option<Slot>),
}

impl<'a> Op<'a> {
    /// Submits the op if there is a credit.
    #[inline(always)]
    pub(crate) fn start(client: &'a Client, submission: Submission<'a>) -> Self {
        let Submission {
            op,
            key,
            buffer: Buffer::None,
            flags,
            ..
        } = submission
        else {
            return Self::start_any(client, submission);
        };
        mem::forget(submission); // There is no slot to give back.
        match Self::push_bare(client, op, key, flags) {
            Some(ticket) => Self {
                client,
                state: State::InFlight(ticket),
            },
            None => Self::start_any(client, bare(op, key, flags, client.options)),
        }
    }

    /// An op without bytes, in registers; nothing where it was not accepted.
    #[inline(never)]
    fn push_bare(client: &Client, op: OpKind, key: &[u8], flags: u8) -> Option<Ticket> {
        Self::push(client, &mut bare(op, key, flags, client.options), None).ok()
    }

    #[inline(never)]
    fn start_any(client: &'a Client, submission: Submission<'a>) -> Self {
        let submission = client.options.apply(submission);
        let state = Self::submit(client, submission, Place::new(&client.engine));
        Self { client, state }
    }

    /// Submits with the credit of a place, if it has one; else with one that is free, if there is one.
    fn submit(
        client: &'a Client,
        mut submission: Submission<'a>,
        mut place: Place<'a>,
    ) -> State<'a> {
        let credit = place.credit.take();
        match Self::push(client, &mut submission, credit) {
            Ok(ticket) => {
                place.leave();
                State::InFlight(ticket)
            }
            Err(reason) => Self::not_started(client, submission, place, reason),
        }
    }

    #[inline(always)]
    fn push(
        client: &Client,
        submission: &mut Submission<'_>,
        credit: Option<u32>,
    ) -> Result<Ticket, SubmitError> {
        let engine = &*client.engine;
        let now = engine.clock.raw();
        let clients = &engine.clients;
        let (ticket, deadline) = clients.accept(engine, submission, credit, client.caller, now)?;
        engine.publish_clients(submission.op, submission.class, deadline);
        Ok(ticket)
    }

    #[cold]
    fn not_started(
        client: &Client,
        submission: Submission<'a>,
        place: Place<'a>,
        reason: SubmitError,
    ) -> State<'a> {
        match reason {
            SubmitError::NoCredit { .. } => State::Unstarted(Unstarted::Waiting(submission, place)),
            _ => {
                client.engine.clients.count_refused();
                State::Unstarted(Unstarted::Refused(reason, submission.into_slot()))
            }
        }
    }
}

fn bare(op: OpKind, key: &[u8], flags: u8, options: OpOptions) -> Submission<'_> {
    Submission {
        flags,
        ..submission_of(op, key, None, options)
    }
}

/// How an op that was in flight ends in a forked child. Its slot is the parent's.
const FORKED: Ended = (Err(ClientError::Failed(OpError::Forked)), None);

impl Op<'_> {
    /// How it ends in a forked child.
    #[cold]
    fn forked(&mut self) -> Poll<Ended> {
        match mem::replace(&mut self.state, State::Taken) {
            State::Unstarted(Unstarted::Waiting(submission, _)) => {
                Poll::Ready((Err(SubmitError::Forked.into()), submission.into_slot()))
            }
            State::Unstarted(Unstarted::Refused(reason, slot)) => {
                Poll::Ready((Err(reason.into()), slot))
            }
            State::InFlight(_) => Poll::Ready(FORKED),
            State::Taken => Poll::Pending,
        }
    }
}

impl Future for Op<'_> {
    type Output = Ended;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        let this = &mut *self;
        let engine = &*this.client.engine;
        let State::InFlight(ticket) = this.state else {
            return this.poll_unstarted(cx);
        };
        if engine.is_forked() {
            return this.forked();
        }
        // It is written in any case: with the waker's flag, or by the entry's next op.
        engine.clients.table.ops().prefetch(ticket);
        // SAFETY: the op is this future's, and forgotten once it is reaped.
        let Some(raw) = (unsafe { engine.clients.reap_bare(ticket) }) else {
            return this.poll_in_flight(ticket, cx);
        };
        // There was nothing in it to be dropped.
        mem::forget(mem::replace(&mut this.state, State::Taken));
        Poll::Ready((client_result(raw), None))
    }
}

impl Op<'_> {
    #[inline(never)]
    fn poll_in_flight(&mut self, ticket: Ticket, cx: &mut Context<'_>) -> Poll<Ended> {
        let clients = &self.client.engine.clients;
        let (same, make) = waker_of(cx);
        // SAFETY: the op is this future's until it is reaped. It stays so where the waker's clone panics.
        match unsafe { clients.table.ops().register(ticket, same, make) } {
            Ok(()) => Poll::Pending,
            Err(Done) => {
                self.state = State::Taken;
                // SAFETY: the op is ours and done, and the state forgets it.
                let (raw, slot) = unsafe { clients.reap(ticket) };
                Poll::Ready((client_result(raw), slot))
            }
        }
    }

    #[cold]
    fn poll_unstarted(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        if self.client.engine.is_forked() {
            return self.forked();
        }
        match mem::replace(&mut self.state, State::Taken) {
            State::Unstarted(Unstarted::Waiting(submission, mut place)) => {
                place.wait(cx.waker());
                self.state = Self::submit(self.client, submission, place);
                match self.state {
                    State::Unstarted(Unstarted::Waiting(..)) => Poll::Pending,
                    State::InFlight(ticket) => self.poll_in_flight(ticket, cx),
                    _ => self.poll_unstarted(cx),
                }
            }
            State::Unstarted(Unstarted::Refused(reason, slot)) => {
                Poll::Ready((Err(reason.into()), slot))
            }
            // Polled again after its end: there is nothing to wait for, and panicking is not for a library.
            State::InFlight(_) | State::Taken => Poll::Pending,
        }
    }
}

/// One op, and what its caller gets to see of its end. By name, not as an `async` block, which would move the op into itself.
pub(crate) struct Mapped<'a, F> {
    op: Op<'a>,
    map: F,
}

impl<'a, F> Mapped<'a, F> {
    #[inline(always)]
    pub(crate) fn start(client: &'a Client, submission: Submission<'a>, map: F) -> Self {
        let op = Op::start(client, submission);
        Self { op, map }
    }
}

// Nothing is pinned: no reference into the future itself is ever made.
impl<F> Unpin for Mapped<'_, F> {}

impl<T, F: Fn(Ended) -> T> Future for Mapped<'_, F> {
    type Output = T;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.op).poll(cx).map(&self.map)
    }
}

impl Drop for Op<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !matches!(self.state, State::Taken) {
            self.give_up();
        }
    }
}

impl Op<'_> {
    /// Dropped before its end.
    #[cold]
    fn give_up(&self) {
        if let State::InFlight(ticket) = self.state
            && !self.client.engine.is_forked()
        {
            // SAFETY: the op is ours, and nobody uses it after this.
            unsafe { give_up(self.client, ticket) };
        }
    }
}

/// Lets an op go on without its owner, or cancels it if it is queued and the client wants that.
///
/// # Safety
/// The caller must own the op and not use it again.
unsafe fn give_up(client: &Client, ticket: Ticket) {
    let engine = &client.engine;
    let clients = &engine.clients;
    if client.options.cancel_on_drop {
        let mut wakers = Vec::new(); // At most the owner's own, which nobody waits for any more.
        engine.abandon(Submitter::Clients, ticket, Why::Cancel, false, &mut wakers);
    }
    // SAFETY: the caller owns the op; if it is done already, it is still the caller's to reap.
    unsafe {
        if clients.table.ops().detach(ticket) == Err(Done) {
            drop(clients.reap(ticket));
        }
    }
}

fn waker_of<'a>(
    cx: &'a Context<'_>,
) -> (
    impl FnOnce(&OpWaker) -> bool + 'a,
    impl FnOnce() -> OpWaker + 'a,
) {
    (
        |old: &OpWaker| old.will_wake(cx.waker()),
        || OpWaker::of(cx.waker()),
    )
}

/// Shows what was pushed to the workers when dropped: items and keys are the caller's code, which may panic.
struct Publish<'e> {
    engine: &'e Shared,
    op: OpKind,
    class: Class,
    any: bool,
    soonest: u64,
}

impl Drop for Publish<'_> {
    fn drop(&mut self) {
        if self.any {
            self.engine
                .publish_clients(self.op, self.class, self.soonest);
        }
    }
}

/// Many ops of one kind, with results in the order of the items.
///
/// Ops in flight form a chain from `head` to `tail` through their cells, so that nothing is allocated. The waker
/// waits at the head: what ends behind it is collected when the head ends.
pub(crate) struct Many<'a, K, I, F> {
    client: &'a Client,
    op: OpKind,
    items: I,
    each: F,
    head: Option<Ticket>,
    tail: Option<Ticket>,
    /// An item that waits for a credit.
    stalled: Option<(K, Option<Slot>)>,
    /// An item that was refused, until those before it have been collected.
    refused: Option<(SubmitError, Option<Slot>)>,
    place: Place<'a>,
    exhausted: bool,
}

// Nothing is pinned: no reference into the future itself is ever made.
impl<K, I, F> Unpin for Many<'_, K, I, F> {}

impl<'a, K, I, F> Many<'a, K, I, F>
where
    K: AsKey,
    I: Iterator<Item = (K, Option<Slot>)>,
    F: FnMut(Result<u64, ClientError>, Option<Slot>),
{
    pub(crate) fn new(client: &'a Client, op: OpKind, items: I, each: F) -> Self {
        Self {
            client,
            op,
            items,
            each,
            head: None,
            tail: None,
            stalled: None,
            refused: None,
            place: Place::new(&client.engine),
            exhausted: false,
        }
    }

    /// Submits items until there are no more, no credit is left, or one is refused.
    fn submit(&mut self) {
        let client = self.client;
        let engine = &*client.engine;
        if self.refused.is_some() {
            return;
        }
        let mut publish = Publish {
            engine,
            op: self.op,
            class: client.options.class,
            any: false,
            soonest: NEVER,
        };
        let mut now = None;
        loop {
            let item = self.stalled.take().or_else(|| match self.exhausted {
                true => None,
                false => self.items.next(),
            });
            let Some((key, slot)) = item else {
                self.exhausted = true;
                break;
            };
            let now = *now.get_or_insert_with(|| engine.clock.raw());
            let mut submission = submission_of(self.op, key.as_ref(), slot, client.options);
            let credit = self.place.credit.take();
            let pushed = engine
                .clients
                .push(engine, &mut submission, credit, client.caller, now);
            match pushed {
                Ok((ticket, deadline)) => {
                    publish.any = true;
                    publish.soonest = publish.soonest.min(deadline);
                    if let Some(tail) = self.tail {
                        // SAFETY: both ops are this future's.
                        unsafe { engine.clients.chain(tail, ticket) };
                    }
                    self.head = self.head.or(Some(ticket));
                    self.tail = Some(ticket);
                }
                Err(SubmitError::NoCredit { .. }) => {
                    let slot = submission.into_slot();
                    self.stalled = Some((key, slot));
                    break;
                }
                Err(reason) => {
                    engine.clients.count_refused();
                    self.refused = Some((reason, submission.into_slot()));
                    break;
                }
            }
        }
    }

    /// How all items end in a forked child.
    #[cold]
    fn forked(&mut self) {
        let clients = &self.client.engine.clients;
        while let Some(ticket) = self.head {
            // SAFETY: the op is this future's, and only the child's copy of it is touched.
            self.head = unsafe { clients.unchain(ticket) };
            let (result, slot) = FORKED;
            (self.each)(result, slot);
        }
        self.tail = None;
        if let Some((reason, slot)) = self.refused.take() {
            (self.each)(Err(reason.into()), slot);
        }
        let stalled = self.stalled.take();
        let rest = (!self.exhausted).then_some(&mut self.items);
        for (_, slot) in stalled.into_iter().chain(rest.into_iter().flatten()) {
            (self.each)(Err(SubmitError::Forked.into()), slot);
        }
        self.exhausted = true;
    }

    /// Collects what has ended, from the head on. False where nothing had.
    fn collect(&mut self) -> bool {
        let clients = &self.client.engine.clients;
        let mut progress = false;
        while let Some(ticket) = self.head {
            if !clients.table.ops().is_done(ticket) {
                return progress;
            }
            // SAFETY: the op is this future's and done; head moves on before anything else happens.
            let (raw, slot) = unsafe {
                self.head = clients.unchain(ticket);
                match clients.reap_bare(ticket) {
                    Some(raw) => (raw, None),
                    None => clients.reap(ticket),
                }
            };
            (self.each)(client_result(raw), slot);
            progress = true;
        }
        self.tail = None;
        if let Some((reason, slot)) = self.refused.take() {
            (self.each)(Err(reason.into()), slot);
            progress = true;
        }
        progress
    }
}

impl<K, I, F> Future for Many<'_, K, I, F>
where
    K: AsKey,
    I: Iterator<Item = (K, Option<Slot>)>,
    F: FnMut(Result<u64, ClientError>, Option<Slot>),
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            this.submit();
            // After it: an item's code may have forked.
            if this.client.engine.is_forked() {
                this.forked();
                return Poll::Ready(());
            }
            if this.collect() {
                continue;
            }
            if let Some(head) = this.head {
                this.place.leave();
                let (same, make) = waker_of(cx);
                let ops = this.client.engine.clients.table.ops();
                // SAFETY: the op is this future's.
                match unsafe { ops.register(head, same, make) } {
                    Ok(()) => return Poll::Pending,
                    Err(Done) => continue,
                }
            }
            if this.stalled.is_none() {
                return Poll::Ready(());
            }
            // None of ours is in flight, and all credits are others'.
            this.place.wait(cx.waker());
            this.submit();
            if this.stalled.is_some() && this.head.is_none() {
                return Poll::Pending;
            }
        }
    }
}

impl<K, I, F> Drop for Many<'_, K, I, F> {
    fn drop(&mut self) {
        if self.client.engine.is_forked() {
            return;
        }
        while let Some(ticket) = self.head {
            // SAFETY: the op is this future's; what is chained behind it is read before it is given up.
            unsafe {
                self.head = self.client.engine.clients.unchain(ticket);
                give_up(self.client, ticket);
            }
        }
    }
}

/// How long [`block_on`] spins before it parks, as the engine's default `spin_us`.
const SPIN: Duration = Duration::from_micros(20);

struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release pairs with the Acquire swap in `block_on`.
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

thread_local! {
    /// This thread's waker, made once, so that blocking allocates nothing. Out while in use: a nested call makes its own.
    static UNPARK: Cell<Option<Arc<Unpark>>> = const { Cell::new(None) };
}

/// Runs one future on this thread: spins briefly, then parks until it is woken. Needs no runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let unpark = UNPARK
        .try_with(Cell::take)
        .ok()
        .flatten()
        .unwrap_or_else(|| {
            Arc::new(Unpark {
                thread: std::thread::current(),
                woken: AtomicBool::new(false),
            })
        });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    let output = loop {
        unpark.woken.store(false, Ordering::Relaxed);
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            break output;
        }
        let start = Instant::now();
        let woken = || unpark.woken.load(Ordering::Acquire);
        while !woken() && start.elapsed() < SPIN {
            for _ in 0..64 {
                std::hint::spin_loop();
            }
        }
        while !woken() {
            std::thread::park();
        }
    };
    // While the thread ends its locals may be gone: then the next call makes a new one.
    let _ = UNPARK.try_with(|cell| cell.set(Some(unpark)));
    output
}
