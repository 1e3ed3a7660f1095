//! Clients: futures, and the credits that they wait for.

use moonring::{Class, OpError, SubmitError};

use super::{Id, Model, Request, State, Time};

/// A future of a client.
#[derive(Clone, Debug)]
pub enum Future {
    Waits { request: Request, queued: bool },
    InFlight(Id),
    Done,
}

/// What a poll of a future brings.
#[derive(Debug)]
pub enum Polled {
    Pending,
    Refused(SubmitError, Request),
    /// The op, and whether its slot comes back.
    Ended(Id, bool),
}

/// How a client's handle was made.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    pub caller: u64,
    pub class: Class,
    pub time: Time,
    pub cancel_on_drop: bool,
}

impl Model {
    /// A future is made and polled for the first time. Its number is the next.
    pub fn start_future(&mut self, options: ClientOptions, request: Request) -> (usize, Polled) {
        let queued = false;
        self.futures.push(Future::Waits { request, queued });
        let number = self.futures.len() - 1;
        (number, self.poll_future(number, options))
    }

    pub fn poll_future(&mut self, number: usize, options: ClientOptions) -> Polled {
        if let Future::Waits { request, queued } = self.futures[number].clone() {
            let granted = self.granted.iter().position(|&n| n == number);
            let has_credit = granted.map(|at| self.granted.swap_remove(at)).is_some();
            match self.push_client(&request, options, has_credit) {
                Ok(None) => {
                    if !queued {
                        self.waiting.push_back(number);
                    }
                    let queued = true;
                    self.futures[number] = Future::Waits { request, queued };
                    return Polled::Pending;
                }
                Ok(Some(id)) => self.futures[number] = Future::InFlight(id),
                Err(reason) => {
                    self.waiting.retain(|&n| n != number);
                    self.futures[number] = Future::Done;
                    self.clients_refused += 1;
                    return Polled::Refused(reason, request);
                }
            }
        }
        let Future::InFlight(id) = self.futures[number] else {
            return Polled::Pending;
        };
        if self.ops[id].state != State::Ended {
            return Polled::Pending;
        }
        self.futures[number] = Future::Done;
        let is_final = self.ops[id].is_final();
        self.leave(id);
        Polled::Ended(id, is_final && self.ops[id].request.bytes.is_some())
    }

    /// `Ok(None)`: there is no credit.
    fn push_client(
        &mut self,
        request: &Request,
        options: ClientOptions,
        has_credit: bool,
    ) -> Result<Option<Id>, SubmitError> {
        let checked = match self.closed {
            true => Err(SubmitError::ShutDown),
            false => self
                .check_circuit(request.kind)
                .and_then(|()| self.check_key(&request.key)),
        };
        if let Err(reason) = checked {
            if has_credit {
                self.pass_on();
            }
            return Err(reason);
        }
        if !has_credit {
            if self.credits == 0 {
                return Ok(None);
            }
            self.credits -= 1;
        }
        let long = request.key.len() > moonring::INLINE_KEY;
        let (kind, class) = (request.kind, request.class);
        let full = self.clients[class as usize][kind.index()].len() == self.knobs.ring_depth;
        let checked = match long && self.long_free == 0 {
            true => Err(SubmitError::NoLongKeyPlace {
                places: self.knobs.long_keys,
            }),
            false => Self::check_nul(&request.key)
                .and_then(|()| self.check_bytes(request))
                .and(match full {
                    true => Err(SubmitError::RingFull { op: kind, room: 0 }),
                    false => Ok(()),
                }),
        };
        if let Err(reason) = checked {
            self.pass_on();
            return Err(reason);
        }
        let id = self.add_op(request, 0, options.caller, self.now);
        self.long_free -= usize::from(long);
        self.clients_accepted += 1;
        self.clients[class as usize][kind.index()].push_back(id);
        self.ready[class as usize][kind.index()] |= 1;
        Ok(Some(id))
    }

    /// Gives a credit to the first that waits for one, or back.
    fn pass_on(&mut self) {
        match self.waiting.pop_front() {
            Some(number) => self.granted.push(number),
            None => self.credits += 1,
        }
    }

    /// A client's op is its future's no more. What it holds comes back when it is final.
    fn leave(&mut self, id: Id) {
        self.ops[id].ownerless = true;
        if self.ops[id].is_final() {
            self.recycle(id);
        }
    }

    pub(super) fn recycle(&mut self, id: Id) {
        self.ops[id].slot_held = false;
        self.long_free += usize::from(self.ops[id].is_long());
        self.pass_on();
    }

    pub fn drop_future(&mut self, number: usize, options: ClientOptions) {
        match std::mem::replace(&mut self.futures[number], Future::Done) {
            Future::Waits { .. } => {
                self.waiting.retain(|&n| n != number);
                if let Some(at) = self.granted.iter().position(|&n| n == number) {
                    self.granted.swap_remove(at);
                    self.pass_on();
                }
            }
            Future::InFlight(id) => {
                if options.cancel_on_drop {
                    let error = |started| OpError::Cancelled { started };
                    self.abandon(id, error, false);
                }
                self.leave(id);
            }
            Future::Done => {}
        }
    }
}
