//! The futures of a client's ops: one op, many ops, and a way to block on either.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use moonring_rings::slots::{Done, Ticket};

use crate::client::{AsKey, Client, client_result, submission_of};
use crate::engine::Shared;
use crate::submission::Submission;
use crate::{ClientError, OpKind, Slot, SubmitError};

type Ended = (Result<u64, ClientError>, Option<Slot>);

/// A place in the queue for credits; given up when dropped.
struct Place<'a> {
    engine: &'a Shared,
    id: Option<u64>,
}

impl<'a> Place<'a> {
    fn new(engine: &'a Shared) -> Self {
        Self { engine, id: None }
    }

    /// Queues up, or renews the waker. Try again after this.
    fn wait(&mut self, waker: &Waker) {
        self.id = Some(self.engine.clients.waiting().register(self.id, waker));
    }

    /// Has a credit: needs no wake any more.
    fn leave(&mut self) {
        if let Some(id) = self.id.take() {
            self.engine.clients.waiting().leave(id);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take()
            && !self.engine.clients.waiting().leave(id)
        {
            // We were woken for a credit that we don't take: pass it on.
            self.engine.clients.waiting().notify();
        }
    }
}

/// One op.
pub(crate) struct Op<'a> {
    client: &'a Client,
    state: State<'a>,
}

enum State<'a> {
    /// No credit yet.
    Waiting(Submission<'a>, Place<'a>),
    InFlight(Ticket),
    Refused(SubmitError, Option<Slot>),
    Taken,
}

impl<'a> Op<'a> {
    /// Submits the op if there is a credit.
    pub(crate) fn start(client: &'a Client, submission: Submission<'a>) -> Self {
        let mut op = Self {
            client,
            state: State::Taken,
        };
        op.submit(submission, Place::new(&client.engine));
        op
    }

    fn submit(&mut self, mut submission: Submission<'a>, mut place: Place<'a>) {
        let engine = &*self.client.engine;
        let now = engine.clock.raw();
        let pushed = engine
            .clients
            .push(engine, &mut submission, self.client.caller, now);
        self.state = match pushed {
            Ok(ticket) => {
                engine.publish_clients(submission.op);
                place.leave();
                State::InFlight(ticket)
            }
            Err(SubmitError::NoCredit { .. }) => State::Waiting(submission, place),
            Err(reason) => {
                engine.clients.count_refused();
                State::Refused(reason, submission.into_slot())
            }
        };
    }
}

impl Future for Op<'_> {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        let this = &mut *self;
        if let State::Waiting(..) = this.state
            && let State::Waiting(submission, mut place) =
                std::mem::replace(&mut this.state, State::Taken)
        {
            place.wait(cx.waker());
            this.submit(submission, place);
        }
        let clients = &this.client.engine.clients;
        match std::mem::replace(&mut this.state, State::Taken) {
            State::Waiting(submission, place) => {
                this.state = State::Waiting(submission, place);
                Poll::Pending
            }
            State::InFlight(ticket) => {
                let (same, make) = waker_of(cx);
                // SAFETY: the op is this future's until it is reaped.
                match unsafe { clients.table.ops().register(ticket, same, make) } {
                    Ok(()) => {
                        this.state = State::InFlight(ticket);
                        Poll::Pending
                    }
                    Err(Done) => {
                        // SAFETY: the op is ours and done, and the state forgets it.
                        let (raw, slot) = unsafe { clients.reap(ticket) };
                        Poll::Ready((client_result(raw), slot))
                    }
                }
            }
            State::Refused(reason, slot) => Poll::Ready((Err(reason.into()), slot)),
            // Polled again after its end: there is nothing to wait for, and panicking is not for a library.
            State::Taken => Poll::Pending,
        }
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        if let State::InFlight(ticket) = self.state {
            // SAFETY: the op is ours, and nobody uses it after this.
            unsafe { give_up(&self.client.engine, ticket) };
        }
    }
}

/// Lets an op go on without its owner.
///
/// # Safety
/// The caller must own the op and not use it again.
unsafe fn give_up(engine: &Shared, ticket: Ticket) {
    let clients = &engine.clients;
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
    impl FnOnce(&Waker) -> bool + 'a,
    impl FnOnce() -> Waker + 'a,
) {
    (
        |old: &Waker| old.will_wake(cx.waker()),
        || cx.waker().clone(),
    )
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
        let engine = &*self.client.engine;
        if self.refused.is_some() {
            return;
        }
        let mut now = None;
        let mut shown = Show {
            engine,
            op: self.op,
            pushed: false,
        };
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
            let mut submission = submission_of(self.op, key.as_ref(), slot);
            let pushed = engine
                .clients
                .push(engine, &mut submission, self.client.caller, now);
            match pushed {
                Ok(ticket) => {
                    shown.pushed = true;
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
                clients.reap(ticket)
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

/// Shows ops to the workers when it is dropped: also where the items' iterator, which is the caller's code, panics.
struct Show<'a> {
    engine: &'a Shared,
    op: OpKind,
    pushed: bool,
}

impl Drop for Show<'_> {
    fn drop(&mut self) {
        if self.pushed {
            self.engine.publish_clients(self.op);
        }
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
        let engine = &self.client.engine;
        while let Some(ticket) = self.head {
            // SAFETY: the op is this future's; what is chained behind it is read before it is given up.
            unsafe {
                self.head = engine.clients.unchain(ticket);
                give_up(engine, ticket);
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
