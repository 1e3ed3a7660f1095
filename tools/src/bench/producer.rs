//! One producer: a thread that keeps its hands busy.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use moonring::{
    Client, ClientError, Completion, Done, OpKind, Pair, Submission, WaitError, block_on,
};

use super::plan::{Counts, Hand, Keys, Phase, Step, Values};
use super::schedule::{Schedule, precise_timers};
use crate::interrupt;
use crate::record::book::{Book, Series};
use crate::unpark;

/// How its ops reach the engine.
pub enum Way {
    /// Its own rings. Boxed, as it is far larger than a client.
    Pair(Box<Pair>),
    /// A client's futures.
    Client(Client),
}

/// When a phase ends that would not by itself, and when its ops are due.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Ops that may still be started.
    pub ops: u64,
    /// No op is started from then on.
    pub until: Option<Instant>,
    /// An open loop; `None`: an op is started as soon as one has ended.
    pub schedule: Option<Schedule>,
    /// Ctrl-C ends it.
    pub stoppable: bool,
    /// Latencies go into the producer's book.
    pub timed: bool,
}

impl Limit {
    /// None: the phase ends by itself.
    pub const NONE: Self = Self {
        ops: u64::MAX,
        until: None,
        schedule: None,
        stoppable: false,
        timed: false,
    };

    /// None but Ctrl-C.
    pub const STOPPABLE: Self = Self {
        stoppable: true,
        ..Self::NONE
    };

    /// No op is to be started any more.
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
            || self.stoppable && interrupt::pressed()
    }

    /// Counts what was due and not started when the time was over.
    fn count_backlog(&self, schedule: Option<Schedule>, counts: &mut Counts) {
        // A round of keys that ended before has left nothing.
        if let (Some(schedule), Some(until)) = (schedule, self.until)
            && Instant::now() >= until
        {
            counts.unstarted += schedule.backlog(until);
        }
    }
}

/// When an op was submitted, and when it should have been.
#[derive(Clone, Copy, Debug)]
struct Times {
    due: Option<Instant>,
    sent: Instant,
}

/// Ops of one kind and the same times, so that a burst is recorded at once.
fn record(book: &Book, ops: impl Iterator<Item = (OpKind, Times)>) {
    let now = Instant::now();
    let mut latencies = book.open();
    let mut run: Option<(OpKind, Instant, u64)> = None;
    for (op, times) in ops {
        if let Some(due) = times.due {
            let series = Series::Corrected(op);
            latencies.record(series, now.saturating_duration_since(due), 1);
        }
        match &mut run {
            Some((kind, sent, n)) if (*kind, *sent) == (op, times.sent) => *n += 1,
            other => {
                if let Some((op, sent, n)) = other.replace((op, times.sent, 1)) {
                    let took = now.saturating_duration_since(sent);
                    latencies.record(Series::Caller(op), took, n);
                }
            }
        }
    }
    if let Some((op, sent, n)) = run {
        let took = now.saturating_duration_since(sent);
        latencies.record(Series::Caller(op), took, n);
    }
}

/// A producer.
pub struct Producer {
    /// How its ops reach the engine.
    pub way: Way,
    /// Its hands, all of them at rest.
    pub hands: Vec<Hand>,
    /// Its keys.
    pub keys: Keys,
    /// What it moves.
    pub values: Values,
    /// Its latencies.
    pub book: Book,
}

impl Producer {
    /// Runs a phase until it is over and all its ops have completed.
    ///
    /// # Errors
    /// An op was refused for good, or a slot did not come back.
    pub fn run(&mut self, phase: Phase, limit: Limit) -> Result<Counts, String> {
        for hand in &mut self.hands {
            hand.begin(self.values);
        }
        if limit.schedule.is_some() {
            precise_timers();
        }
        match &mut self.way {
            Way::Pair(pair) => {
                let mut hands = Hands {
                    hands: &mut self.hands,
                    keys: &self.keys,
                    values: self.values,
                    phase,
                    book: limit.timed.then_some(&self.book),
                };
                over_pair(pair, &mut hands, limit)
            }
            Way::Client(client) => {
                let shared = Shared {
                    client,
                    keys: &self.keys,
                    values: self.values,
                    phase,
                    ops: Cell::new(limit.ops),
                    limit,
                    book: limit.timed.then_some(&self.book),
                    counts: RefCell::default(),
                };
                let hands = self.hands.iter_mut();
                if let Some(schedule) = limit.schedule {
                    over_client_at_rate(&shared, hands, schedule)?;
                    return Ok(shared.counts.into_inner());
                }
                block_on(async {
                    let mut busy: FuturesUnordered<_> =
                        hands.map(|hand| over_client(&shared, hand)).collect();
                    while let Some(done) = busy.next().await {
                        done?;
                    }
                    Ok::<_, String>(())
                })?;
                Ok(shared.counts.into_inner())
            }
        }
    }
}

struct Hands<'a> {
    hands: &'a mut [Hand],
    keys: &'a Keys,
    values: Values,
    phase: Phase,
    book: Option<&'a Book>,
}

const LOST: &str = "a slot did not come back";

/// A submission for the step. The hand's slot goes into it.
fn submission<'k>(step: Step, keys: &'k Keys, hand: &mut Hand) -> Result<Submission<'k>, String> {
    let key = keys.get(step.key);
    Ok(match step.op {
        OpKind::Lookup => Submission::lookup(key),
        OpKind::Retrieve => Submission::retrieve(key, hand.slot.take().ok_or(LOST)?),
        OpKind::Store => Submission::store(key, hand.slot.take().ok_or(LOST)?),
        OpKind::Delete if step.force => Submission::delete(key).force(),
        OpKind::Delete => Submission::delete(key),
    })
}

/// Whatever has completed is reaped, and as many ops are submitted by one publication, of those that are due.
fn over_pair(pair: &mut Pair, hands: &mut Hands<'_>, limit: Limit) -> Result<Counts, String> {
    let Hands {
        hands,
        keys,
        values,
        phase,
        book,
    } = hands;
    let (keys, values, phase) = (*keys, *values, *phase);
    let mut counts = Counts::default();
    let mut left = limit.ops;
    let mut schedule = limit.schedule;
    let mut steps: Vec<Option<Step>> = vec![None; hands.len()];
    let mut free: Vec<usize> = (0..hands.len()).rev().collect();
    let mut times: Vec<Option<Times>> = vec![None; hands.len()];
    let mut ended: Vec<(OpKind, Times)> = Vec::with_capacity(hands.len());
    let mut in_flight = 0;
    loop {
        if left > 0 && limit.is_over() {
            left = 0;
        }
        // One look at the clock for all that is submitted together.
        let sent = (book.is_some() || schedule.is_some()).then(Instant::now);
        let mut batch = pair.batch();
        while left > 0 && !free.is_empty() {
            let due = schedule.map(|schedule| schedule.next());
            if due > sent {
                break;
            }
            let Some(number) = free.pop() else { break };
            let hand = &mut hands[number];
            let Some(step) = hand.next(phase, keys, values) else {
                continue;
            };
            let op = submission(step, keys, hand)?.user_data(number as u64);
            match batch.push(op) {
                Ok(_) => {
                    hand.advance();
                    steps[number] = Some(step);
                    times[number] = sent.map(|sent| Times { due, sent });
                    in_flight += 1;
                    left -= 1;
                    if let Some(schedule) = &mut schedule {
                        schedule.advance();
                    }
                }
                // There is a credit for each hand, so this is for good.
                Err(refused) => return Err(format!("refused: {}", refused.reason)),
            }
        }
        batch.publish();
        // The next one that is due and has a hand.
        let next = schedule.filter(|_| left > 0 && !free.is_empty());
        let next = next.map(|schedule| schedule.next().min(limit.until.unwrap_or(schedule.next())));
        if in_flight == 0 {
            match next {
                Some(next) => interrupt::sleep_until(next),
                None => {
                    limit.count_backlog(schedule, &mut counts);
                    return Ok(counts);
                }
            }
            continue;
        }
        let timeout = next.map(|next| next.saturating_duration_since(Instant::now()));
        match pair.wait(1, timeout) {
            Ok(()) => {}
            Err(WaitError::TimedOut) => continue,
            Err(error) => return Err(error.to_string()),
        }
        for Completion {
            user_data,
            result,
            slot,
            ..
        } in pair.completions()
        {
            let number = user_data as usize;
            let hand = &mut hands[number];
            if slot.is_some() {
                hand.slot = slot;
            }
            if let Some(step) = steps[number].take() {
                ended.extend(times[number].take().map(|times| (step.op, times)));
                hand.ended(phase, step, keys, values, result, &mut counts);
            }
            in_flight -= 1;
            free.push(number);
        }
        if let Some(book) = book {
            record(book, ended.drain(..));
        }
    }
}

/// What the futures of a client's producer share, on one thread.
struct Shared<'a> {
    client: &'a Client,
    keys: &'a Keys,
    values: Values,
    phase: Phase,
    /// Ops that may still be started.
    ops: Cell<u64>,
    limit: Limit,
    book: Option<&'a Book>,
    counts: RefCell<Counts>,
}

/// One hand's ops, one after the other.
async fn over_client(shared: &Shared<'_>, hand: &mut Hand) -> Result<(), String> {
    while shared.ops.get() > 0 {
        if shared.limit.is_over() {
            shared.ops.set(0);
            return Ok(());
        }
        let Some(step) = hand.next(shared.phase, shared.keys, shared.values) else {
            return Ok(());
        };
        shared.ops.set(shared.ops.get() - 1);
        one_over_client(shared, hand, step, None).await?;
    }
    Ok(())
}

/// One op of a hand.
async fn one_over_client(
    shared: &Shared<'_>,
    hand: &mut Hand,
    step: Step,
    due: Option<Instant>,
) -> Result<(), String> {
    let Shared {
        client,
        keys,
        values,
        phase,
        book,
        ..
    } = *shared;
    hand.advance();
    let key = keys.get(step.key);
    let times = book.map(|_| Times {
        due,
        sent: Instant::now(),
    });
    let result = match step.op {
        OpKind::Lookup => client.lookup(key).await.map(|there| match there {
            true => Done::Present,
            false => Done::Absent,
        }),
        OpKind::Retrieve => {
            let returned = client.retrieve(key, hand.slot.take().ok_or(LOST)?).await;
            hand.slot = returned.slot;
            returned.result.map(Done::Retrieved)
        }
        OpKind::Store => {
            let returned = client.store(key, hand.slot.take().ok_or(LOST)?).await;
            hand.slot = returned.slot;
            returned.result.map(Done::Store)
        }
        OpKind::Delete if step.force => client.delete_forced(key).await.map(|()| Done::Deleted),
        OpKind::Delete => client.delete(key).await.map(|()| Done::Deleted),
    };
    if let (Some(book), Some(times)) = (book, times) {
        record(book, std::iter::once((step.op, times)));
    }
    if let Err(ClientError::Refused(reason)) = result {
        return Err(format!("refused: {reason}"));
    }
    let mut counts = shared.counts.borrow_mut();
    hand.ended(phase, step, keys, values, result, &mut counts);
    Ok(())
}

/// Ops as they are due, each by a hand that is free.
fn over_client_at_rate<'h>(
    shared: &Shared<'_>,
    hands: impl Iterator<Item = &'h mut Hand>,
    mut schedule: Schedule,
) -> Result<(), String> {
    let limit = shared.limit;
    let start = |hand: &'h mut Hand, step, due| async move {
        let done = one_over_client(shared, hand, step, Some(due)).await;
        done.map(|()| hand)
    };
    let mut free: Vec<_> = hands.collect();
    let mut busy = FuturesUnordered::new();
    let waker = unpark::waker();
    let mut cx = Context::from_waker(&waker);
    loop {
        if limit.is_over() {
            shared.ops.set(0);
        }
        let mut wait: Option<Duration> = None;
        while shared.ops.get() > 0 && !free.is_empty() {
            let due = schedule.next();
            let left = due.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                wait = Some(left);
                break;
            }
            let Some(hand) = free.pop() else { break };
            let Some(step) = hand.next(shared.phase, shared.keys, shared.values) else {
                continue;
            };
            shared.ops.set(shared.ops.get() - 1);
            schedule.advance();
            busy.push(start(hand, step, due));
        }
        match Pin::new(&mut busy).poll_next(&mut cx) {
            Poll::Ready(Some(done)) => free.push(done?),
            Poll::Ready(None) if wait.is_none() => {
                let mut counts = shared.counts.borrow_mut();
                limit.count_backlog(Some(schedule), &mut counts);
                return Ok(());
            }
            Poll::Ready(None) | Poll::Pending => match wait {
                // Its end, too, is a time to look.
                Some(wait) => thread::park_timeout(wait.min(interrupt::NAP)),
                None => thread::park(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_due_is_missed_only_when_the_time_is_over() {
        let backlog = |until: Instant, began: Instant| {
            let limit = Limit {
                until: Some(until),
                ..Limit::NONE
            };
            let mut counts = Counts::default();
            limit.count_backlog(Some(Schedule::new(began, 10.0, 0, 1)), &mut counts);
            counts.unstarted
        };
        let now = Instant::now();
        let second = Duration::from_secs(1);
        // A round of keys that is over before.
        assert_eq!(backlog(now + 3600 * second, now), 0);
        let began = now.checked_sub(second).expect("up for a second");
        assert_eq!(backlog(now, began), 10);
    }
}
