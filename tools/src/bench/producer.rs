//! One producer: a thread that keeps its hands busy.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use moonring::{Client, ClientError, Completion, Done, OpKind, Pair, Submission, block_on};

use super::plan::{Counts, Hand, Keys, Phase, Step, Values};

/// How its ops reach the engine.
pub enum Way {
    /// Its own rings. Boxed, as it is far larger than a client.
    Pair(Box<Pair>),
    /// A client's futures.
    Client(Client),
}

/// When a phase ends that would not by itself.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Ops that may still be started.
    pub ops: u64,
    /// No op is started from then on.
    pub until: Option<Instant>,
}

impl Limit {
    /// None: the phase ends by itself.
    pub const NONE: Self = Self {
        ops: u64::MAX,
        until: None,
    };
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
        match &mut self.way {
            Way::Pair(pair) => {
                let mut hands = Hands {
                    hands: &mut self.hands,
                    keys: &self.keys,
                    values: self.values,
                    phase,
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
                    until: limit.until,
                    counts: RefCell::default(),
                };
                let hands = self.hands.iter_mut();
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

/// Whatever has completed is reaped, and as many ops are submitted by one publication.
fn over_pair(pair: &mut Pair, hands: &mut Hands<'_>, limit: Limit) -> Result<Counts, String> {
    let Hands {
        hands,
        keys,
        values,
        phase,
    } = hands;
    let (keys, values, phase) = (*keys, *values, *phase);
    let mut counts = Counts::default();
    let mut left = limit.ops;
    let mut steps: Vec<Option<Step>> = vec![None; hands.len()];
    let mut free: Vec<usize> = (0..hands.len()).rev().collect();
    let mut in_flight = 0;
    loop {
        if limit.until.is_some_and(|until| Instant::now() >= until) {
            left = 0;
        }
        let mut batch = pair.batch();
        while left > 0
            && let Some(number) = free.pop()
        {
            let hand = &mut hands[number];
            let Some(step) = hand.next(phase, keys, values) else {
                continue;
            };
            let op = submission(step, keys, hand)?.user_data(number as u64);
            match batch.push(op) {
                Ok(_) => {
                    hand.advance();
                    steps[number] = Some(step);
                    in_flight += 1;
                    left -= 1;
                }
                // There is a credit for each hand, so this is for good.
                Err(refused) => return Err(format!("refused: {}", refused.reason)),
            }
        }
        batch.publish();
        if in_flight == 0 {
            return Ok(counts);
        }
        pair.wait(1, None).map_err(|e| e.to_string())?;
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
                hand.ended(phase, step, keys, values, result, &mut counts);
            }
            in_flight -= 1;
            free.push(number);
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
    until: Option<Instant>,
    counts: RefCell<Counts>,
}

/// One hand's ops, one after the other.
async fn over_client(shared: &Shared<'_>, hand: &mut Hand) -> Result<(), String> {
    let Shared {
        client,
        keys,
        values,
        phase,
        ..
    } = *shared;
    while shared.ops.get() > 0 {
        if shared.until.is_some_and(|until| Instant::now() >= until) {
            shared.ops.set(0);
            return Ok(());
        }
        let Some(step) = hand.next(phase, keys, values) else {
            return Ok(());
        };
        shared.ops.set(shared.ops.get() - 1);
        hand.advance();
        let key = keys.get(step.key);
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
        if let Err(ClientError::Refused(reason)) = result {
            return Err(format!("refused: {reason}"));
        }
        let mut counts = shared.counts.borrow_mut();
        hand.ended(phase, step, keys, values, result, &mut counts);
    }
    Ok(())
}
