//! The store calls of a round, and what their ops come to.

use moonring::{OpError, OpKind};

use super::circuit::May;
use super::{Id, Model, Raw, State, is_leased};

/// One key of a store call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub key: Vec<u8>,
    /// Address and length of the leader's bytes.
    pub bytes: Option<(usize, usize)>,
    leader: Id,
}

/// A store call as the model expects it.
#[derive(Clone, Debug)]
pub struct Call {
    pub kind: OpKind,
    pub force: bool,
    pub places: Vec<Place>,
    /// The ops of this call and their places.
    ops: Vec<(Id, usize)>,
}

/// How a store call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    None,
    /// Nothing is done.
    Error(OpError),
    /// Nothing is done.
    Panic,
    /// All is done, and the number of results is off by this.
    WrongCount(i64),
}

/// What is wrong with one key's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFault {
    None,
    /// Nothing is done.
    Error(OpError),
    /// It is done, and not told.
    Untold,
    /// A retrieve of more bytes than there is room.
    TooLong,
}

/// What a worker holds.
#[derive(Debug)]
pub(super) struct Batch {
    kind: OpKind,
    may: May,
    ops: Vec<Id>,
    /// Those that wait for the next call.
    todo: Vec<Id>,
    /// What the calls brought, in no order: also for ops that had ended.
    results: Vec<Raw>,
    /// The time of an op of it was up during its calls.
    is_overdue: bool,
}

impl Batch {
    pub(super) fn kind(&self) -> OpKind {
        self.kind
    }

    pub(super) fn new(kind: OpKind, ops: Vec<Id>, may: May) -> Self {
        let todo = match may {
            May::Nothing => Vec::new(),
            _ => ops.clone(),
        };
        Self {
            kind,
            may,
            ops,
            todo,
            results: Vec::new(),
            is_overdue: false,
        }
    }
}

impl Model {
    /// The store call that comes now.
    pub fn call(&mut self) -> Call {
        let batch = self.batches.last_mut().expect("a worker has a batch");
        let kind = batch.kind;
        assert!(!batch.todo.is_empty(), "no call was to come");
        let todo = std::mem::take(&mut batch.todo);
        let force = self.ops[todo[0]].request.force;
        let mut call = Call {
            kind,
            force: kind == OpKind::Delete && force,
            places: Vec::new(),
            ops: Vec::new(),
        };
        let mut later = Vec::new();
        for id in todo {
            let request = &self.ops[id].request;
            if kind == OpKind::Delete && request.force != force {
                later.push(id);
                continue;
            }
            let bytes = request.bytes.as_ref().map(|b| (b.addr, b.len));
            let found = call.places.iter().position(|p| p.key == request.key);
            let at = found.unwrap_or(call.places.len());
            match call.places.get_mut(at) {
                None => call.places.push(Place {
                    key: request.key.clone(),
                    bytes,
                    leader: id,
                }),
                Some(place) if kind == OpKind::Store && place.bytes != bytes => {
                    later.push(id);
                    continue;
                }
                // The longest buffer leads; of equal ones the first.
                Some(place) if kind == OpKind::Retrieve => {
                    let len = |bytes: Option<(usize, usize)>| bytes.map_or(0, |(_, len)| len);
                    if len(bytes) > len(place.bytes) {
                        (place.bytes, place.leader) = (bytes, id);
                    }
                }
                Some(_) => {}
            }
            call.ops.push((id, at));
        }
        self.batches.last_mut().expect("as above").todo = later;
        call
    }

    /// The call has returned.
    pub fn returned(&mut self, call: &Call, fault: CallFault, faults: &[KeyFault]) {
        let answers: Vec<Raw> = match fault {
            CallFault::Error(error) => vec![Err(error); call.places.len()],
            CallFault::Panic => vec![Err(OpError::StorePanicked); call.places.len()],
            CallFault::WrongCount(_) | CallFault::None => {
                let places = call.places.iter().zip(faults);
                let answers = places.map(|(place, &fault)| self.answer(call, place, fault));
                let answers: Vec<Raw> = answers.collect();
                match fault {
                    CallFault::None => answers,
                    _ => vec![Err(OpError::WrongResultCount); call.places.len()],
                }
            }
        };
        let mut callers: Vec<u64> = call
            .ops
            .iter()
            .map(|&(id, _)| self.ops[id].caller)
            .collect();
        callers.sort_unstable();
        callers.dedup();
        let lane = &mut self.lanes[call.kind.index()];
        lane.calls += 1;
        lane.keys += call.places.len() as u64;
        lane.ops += call.ops.len() as u64;
        lane.callers += callers.len() as u64;
        for &(id, at) in &call.ops {
            let leads = call.places[at].leader == id;
            let lent = call.places[at].bytes.map_or(0, |(_, len)| len as u64);
            let request = &self.ops[id].request;
            let own = request.bytes.as_ref().map_or(0, |b| b.len as u64);
            let lane = &mut self.lanes[call.kind.index()];
            lane.folded_ops += u64::from(!leads);
            let mut result = answers[at];
            if let (OpKind::Retrieve, Ok(len)) = (call.kind, result) {
                let object_len = std::num::NonZeroU64::new(len);
                result = match len {
                    _ if len > lent => Err(OpError::BadResult),
                    _ if len > own => Err(OpError::ShortBuffer { object_len }),
                    _ if request.exact && len != own => Err(OpError::LengthMismatch { object_len }),
                    _ => Ok(len),
                };
                if leads && len <= lent {
                    lane.bytes += len;
                } else if !leads && result.is_ok() {
                    lane.folded_bytes += len;
                }
            }
            if call.kind == OpKind::Store && leads && result.is_ok() {
                lane.bytes += own;
            }
            let batch = self.batches.last_mut().expect("a worker has a batch");
            batch.results.push(result);
            // Who has been told of another end keeps that.
            if self.ops[id].state == State::Running {
                self.ops[id].result = result;
                self.settle_content(id);
            }
        }
    }

    /// After a retrieve that went well: the object, and behind it what was there.
    fn settle_content(&mut self, id: Id) {
        let op = &mut self.ops[id];
        if let (OpKind::Retrieve, Ok(len)) = (op.request.kind, op.result)
            && let (Some(bytes), Some(object)) =
                (&mut op.request.bytes, self.objects.get(&op.request.key))
        {
            let len = (len as usize).min(object.len());
            bytes.content[..len].copy_from_slice(&object[..len]);
        }
    }

    fn answer(&mut self, call: &Call, place: &Place, fault: KeyFault) -> Raw {
        match fault {
            KeyFault::Error(error) => return Err(error),
            KeyFault::TooLong => return Ok(place.bytes.map_or(0, |(_, len)| len as u64) + 1),
            KeyFault::Untold | KeyFault::None => {}
        }
        let object = self.objects.get(&place.key);
        let answer = match call.kind {
            OpKind::Lookup => Ok(u64::from(object.is_some())),
            OpKind::Retrieve => match object {
                None => Err(OpError::NotFound),
                Some(object) => {
                    let len = object.len() as u64;
                    match place.bytes.is_some_and(|(_, room)| object.len() <= room) {
                        true => Ok(len),
                        false => Err(OpError::ShortBuffer {
                            object_len: std::num::NonZeroU64::new(len),
                        }),
                    }
                }
            },
            OpKind::Store if object.is_some() => Ok(2),
            OpKind::Store => {
                let bytes = self.ops[place.leader].request.bytes.as_ref();
                let content = bytes.map_or(Vec::new(), |b| b.content[..b.len].to_vec());
                self.objects.insert(place.key.clone(), content);
                Ok(1)
            }
            OpKind::Delete if object.is_none() => Err(OpError::NotFound),
            OpKind::Delete if is_leased(&place.key) && !call.force => Err(OpError::Leased),
            OpKind::Delete => {
                self.objects.remove(&place.key);
                Ok(0)
            }
        };
        match fault {
            KeyFault::Untold => Err(OpError::BadResult),
            _ => answer,
        }
    }

    /// The time of a running op is up. Whether its call was in time until now.
    pub(super) fn is_call_overdue_now(&mut self, id: Id) -> bool {
        let mut batches = self.batches.iter_mut();
        let batch = batches.find(|batch| batch.ops.contains(&id));
        !std::mem::replace(&mut batch.expect("a worker has it").is_overdue, true)
    }

    /// The round is over. Returns whether calls are missing.
    pub fn finish(&mut self) -> bool {
        let batch = self.batches.pop().expect("a worker has a batch");
        for &id in &batch.ops {
            if self.ops[id].state == State::Ended {
                self.release(id);
            } else {
                self.ops[id].state = State::Ended;
                let lane = &mut self.lanes[batch.kind.index()];
                lane.total += 1;
                match batch.may {
                    May::Nothing => self.ops[id].result = Err(OpError::Unavailable),
                    _ => lane.queue += 1,
                }
                self.count(id);
                self.tell(id, false, false);
            }
        }
        if batch.may != May::Nothing {
            self.calls_returned(batch.kind, batch.may, &batch.results, batch.is_overdue);
        }
        !batch.todo.is_empty()
    }
}
