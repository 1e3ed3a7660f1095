//! A plain model of the engine: queues, tables and maps, no thread and no atomic. It is told what is done to the engine and says
//! what comes of it.
//!
//! Which ops a take puts into a batch is the engine's own business but for its bounds and its fairness. Here it is written down once
//! more as plainly as may be ([`Model::take`]), since everything else is exact only where that is known: who changes it there
//! changes it here.

use std::collections::{HashMap, VecDeque};

use moonring::{Class, OpError, OpKind, SubmitError, Unavailable};

/// What an op came to, as the engine carries it: a length, 0 or 1, an outcome.
pub type Raw = Result<u64, OpError>;

/// An op, by its place in [`Model::ops`].
pub type Id = usize;

/// The knobs that matter here.
#[derive(Debug)]
pub struct Knobs {
    /// The op kinds of each driver.
    pub groups: Vec<Vec<OpKind>>,
    pub max_bytes: usize,
    /// A power of two.
    pub ring_depth: usize,
    pub max_pairs: usize,
    pub max_key: usize,
    pub long_keys: usize,
    /// In nanoseconds.
    pub timeouts: [Option<u64>; 4],
    /// In bytes.
    pub quarantine_limit: usize,
}

/// Memory of an op, and what it holds.
#[derive(Clone, Debug)]
pub struct Bytes {
    pub addr: usize,
    pub len: usize,
    /// Of all its capacity.
    pub content: Vec<u8>,
    /// A slot of the pool; else a span that is only read.
    pub is_slot: bool,
}

/// An op's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    OfItsLane,
    Endless,
    Ns(u64),
}

/// An op that is submitted.
#[derive(Clone, Debug)]
pub struct Request {
    pub kind: OpKind,
    pub class: Class,
    pub key: Vec<u8>,
    pub bytes: Option<Bytes>,
    pub time: Time,
    pub exact: bool,
    pub force: bool,
    pub user_data: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Queued,
    Running,
    Ended,
}

/// An op that was accepted.
#[derive(Debug)]
pub struct Op {
    pub request: Request,
    /// 0: the clients; `p + 1`: pair `p`.
    source: usize,
    caller: u64,
    deadline: Option<u64>,
    state: State,
    pub result: Raw,
    /// It ended during its call.
    pub more: bool,
    /// That call has returned.
    released: bool,
    /// Nobody waits for it: its future was dropped, or has been told of an end with MORE.
    ownerless: bool,
    /// The slot is the engine's.
    slot_held: bool,
}

impl Op {
    fn is_long(&self) -> bool {
        self.request.key.len() > moonring::INLINE_KEY
    }

    /// Nothing of it is the engine's any more but what is to be told.
    fn is_final(&self) -> bool {
        self.state == State::Ended && (!self.more || self.released)
    }
}

/// An op in quarantine: kind, key, address, length, end.
pub type Held = (OpKind, Vec<u8>, Option<usize>, usize, OpError);

/// What a pair is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    pub id: Id,
    pub more: bool,
    pub release: bool,
}

/// The rings of a source by class and kind: words, of ops that may have ended meanwhile.
type Rings = [[VecDeque<Id>; 4]; 2];

#[derive(Debug)]
struct Pair {
    depth: usize,
    credits: usize,
    long_free: usize,
    rings: Rings,
    /// Not reaped yet, in no order that is promised.
    notices: VecDeque<Notice>,
    /// By index in the pair's table: the length of the last op's bytes, at which a take looks for each word.
    lens: Vec<usize>,
    /// By id of the op.
    index: HashMap<Id, usize>,
    dropped: bool,
    accepted: u64,
    refused: u64,
    reaped: u64,
}

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
struct Batch {
    kind: OpKind,
    ops: Vec<Id>,
    /// Those that wait for the next call.
    todo: Vec<Id>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    pub calls: u64,
    pub keys: u64,
    pub ops: u64,
    pub callers: u64,
    pub folded_ops: u64,
    pub folded_bytes: u64,
    pub bytes: u64,
    /// Entries of the histograms.
    pub queue: u64,
    pub total: u64,
    pub codes: HashMap<&'static str, u64>,
}

#[derive(Debug)]
struct DriverState {
    turn: usize,
    first_source: [[usize; 2]; 4],
}

/// See the module's page.
#[derive(Debug)]
pub struct Model {
    pub knobs: Knobs,
    /// In nanoseconds.
    pub now: u64,
    pub closed: bool,
    pub ops: Vec<Op>,
    pub objects: HashMap<Vec<u8>, Vec<u8>>,
    pub lanes: [Lane; 4],
    pairs: Vec<Option<Pair>>,
    /// A pair has gone since the round began: the worker's list is old, and it leaves pairs' rings to the next round.
    is_list_old: bool,
    /// Counts of pairs that are gone.
    gone: (u64, u64),
    clients: Rings,
    clients_accepted: u64,
    clients_refused: u64,
    credits: usize,
    long_free: usize,
    pub futures: Vec<Future>,
    /// Futures that wait for a credit, and those that have been given one and not come for it.
    waiting: VecDeque<usize>,
    granted: Vec<usize>,
    /// By class and kind: a bit per source.
    ready: [[u64; 4]; 2],
    background_waited: [u64; 4],
    drivers: Vec<DriverState>,
    batches: Vec<Batch>,
    quarantine: Vec<Id>,
}

/// The order of takes in a shared pool.
const TURNS: [OpKind; 8] = {
    use OpKind::{Delete, Lookup, Retrieve, Store};
    [
        Lookup, Retrieve, Lookup, Store, Lookup, Retrieve, Lookup, Delete,
    ]
};

impl Model {
    pub fn new(knobs: Knobs, now: u64) -> Self {
        let driver = |_| DriverState {
            turn: 0,
            first_source: [[0; 2]; 4],
        };
        Self {
            drivers: (0..knobs.groups.len()).map(driver).collect(),
            credits: knobs.ring_depth,
            long_free: knobs.long_keys,
            knobs,
            now,
            closed: false,
            ops: Vec::new(),
            objects: HashMap::new(),
            lanes: Default::default(),
            pairs: Vec::new(),
            is_list_old: false,
            gone: (0, 0),
            clients: Default::default(),
            clients_accepted: 0,
            clients_refused: 0,
            futures: Vec::new(),
            waiting: VecDeque::new(),
            granted: Vec::new(),
            ready: [[0; 4]; 2],
            background_waited: [0; 4],
            batches: Vec::new(),
            quarantine: Vec::new(),
        }
    }

    // ---- submitters

    /// The number of a new pair; `None`: there are too many.
    pub fn open_pair(&mut self, depth: usize) -> Option<usize> {
        let free = self.pairs.iter().position(Option::is_none);
        let id = free.unwrap_or(self.pairs.len());
        if id >= self.knobs.max_pairs {
            return None;
        }
        let pair = Pair {
            depth,
            credits: depth,
            long_free: self.knobs.long_keys,
            rings: Default::default(),
            notices: VecDeque::new(),
            lens: vec![0; depth],
            index: HashMap::new(),
            dropped: false,
            accepted: 0,
            refused: 0,
            reaped: 0,
        };
        if id == self.pairs.len() {
            self.pairs.push(None);
        }
        self.pairs[id] = Some(pair);
        Some(id)
    }

    pub fn drop_pair(&mut self, id: usize) {
        self.pair(id).dropped = true;
        self.clear_up(id);
    }

    fn pair(&mut self, id: usize) -> &mut Pair {
        self.pairs[id].as_mut().expect("the pair is there")
    }

    pub fn in_flight(&self, id: usize) -> usize {
        let pair = self.pairs[id].as_ref().expect("the pair is there");
        pair.depth - pair.credits
    }

    fn check_key(&self, key: &[u8]) -> Result<(), SubmitError> {
        let (len, max) = (key.len(), self.knobs.max_key);
        match len {
            0 => Err(SubmitError::EmptyKey),
            _ if len > max => Err(SubmitError::KeyTooLong { len, max }),
            _ => Ok(()),
        }
    }

    fn check_nul(key: &[u8]) -> Result<(), SubmitError> {
        match key.iter().position(|&b| b == 0) {
            Some(at) => Err(SubmitError::NulInKey { at }),
            None => Ok(()),
        }
    }

    fn check_bytes(&self, request: &Request) -> Result<(), SubmitError> {
        let op = request.kind;
        let mine = |id: &&Id| self.ops[**id].request.kind == op;
        let len_of = |id: &Id| self.ops[*id].request.bytes.as_ref().map_or(0, |b| b.len);
        let any = self.quarantine.iter().any(|id| len_of(id) > 0);
        let held: usize = self.quarantine.iter().filter(mine).map(len_of).sum();
        if any && held > self.knobs.quarantine_limit {
            let why = Unavailable::Quarantine;
            return Err(SubmitError::Unavailable { op, why });
        }
        let Some(bytes) = &request.bytes else {
            return Ok(());
        };
        let overlaps = |id: &Id| {
            let held = self.ops[*id].request.bytes.as_ref();
            held.is_some_and(|h| h.addr < bytes.addr + bytes.len && bytes.addr < h.addr + h.len)
        };
        if !bytes.is_slot && self.quarantine.iter().any(overlaps) {
            let (addr, len) = (bytes.addr, bytes.len);
            return Err(SubmitError::Quarantined { op, addr, len });
        }
        match bytes.len {
            0 => Err(SubmitError::ZeroLength { op }),
            _ => Ok(()),
        }
    }

    fn deadline(&self, request: &Request, submitted: u64) -> Option<u64> {
        let ns = match request.time {
            Time::OfItsLane => self.knobs.timeouts[request.kind.index()],
            Time::Endless => None,
            Time::Ns(ns) => Some(ns),
        };
        ns.map(|ns| submitted + ns)
    }

    fn add_op(&mut self, request: &Request, source: usize, caller: u64, submitted: u64) -> Id {
        self.ops.push(Op {
            source,
            caller,
            deadline: self.deadline(request, submitted),
            state: State::Queued,
            result: Err(OpError::BadResult),
            more: false,
            released: false,
            ownerless: false,
            slot_held: request.bytes.as_ref().is_some_and(|b| b.is_slot),
            request: request.clone(),
        });
        self.ops.len() - 1
    }

    /// An op of a pair is pushed: taken, or refused for this reason. [`accepted`](Self::accepted) and [`publish`](Self::publish) follow.
    pub fn push(
        &mut self,
        pair: usize,
        request: &Request,
        submitted: u64,
    ) -> Result<Id, SubmitError> {
        let checked = self.check_push(pair, request);
        if let Err(reason) = checked {
            self.pair(pair).refused += 1;
            return Err(reason);
        }
        let id = self.add_op(request, pair + 1, pair as u64, submitted);
        let long = self.ops[id].is_long();
        let pair = self.pair(pair);
        pair.accepted += 1;
        pair.credits -= 1;
        pair.long_free -= usize::from(long);
        pair.rings[request.class as usize][request.kind.index()].push_back(id);
        Ok(id)
    }

    /// An op that is refused whatever the model says.
    pub fn count_refused(&mut self, pair: usize) {
        self.pair(pair).refused += 1;
    }

    fn check_push(&mut self, id: usize, request: &Request) -> Result<(), SubmitError> {
        if self.closed {
            return Err(SubmitError::ShutDown);
        }
        self.check_key(&request.key)?;
        let places = self.knobs.long_keys;
        let pair = self.pair(id);
        if pair.credits == 0 {
            return Err(SubmitError::NoCredit { depth: pair.depth });
        }
        if request.key.len() > moonring::INLINE_KEY && pair.long_free == 0 {
            return Err(SubmitError::NoLongKeyPlace { places });
        }
        let ring = &pair.rings[request.class as usize][request.kind.index()];
        if ring.len() == pair.depth.next_power_of_two() {
            let op = request.kind;
            return Err(SubmitError::RingFull { op, room: 0 });
        }
        Self::check_nul(&request.key)?;
        self.check_bytes(request)
    }

    /// The engine gave this place of its table to the op.
    pub fn accepted(&mut self, pair: usize, id: Id, index: usize) {
        let len = self.ops[id].request.bytes.as_ref().map_or(0, |b| b.len);
        let pair = self.pair(pair);
        pair.lens[index] = len;
        pair.index.insert(id, index);
    }

    /// What was pushed with these kinds and classes is shown.
    pub fn publish(&mut self, pair: usize, rings: &[(OpKind, Class)]) {
        for (kind, class) in rings {
            self.ready[*class as usize][kind.index()] |= 1 << (pair + 1);
        }
    }

    /// One of the notices that can come next. Its credit is back if it is the last.
    pub fn reap(&mut self, pair: usize, is_it: impl Fn(&Self, &Notice) -> bool) -> Option<Notice> {
        let notices = self.pairs[pair].as_ref()?.notices.clone();
        let at = notices.iter().position(|notice| is_it(self, notice))?;
        // An end comes before its release.
        let early = |n: &Notice| n.id == notices[at].id && !n.release;
        if notices[at].release && notices.iter().any(early) {
            return None;
        }
        let notice = self.pair(pair).notices.remove(at)?;
        self.reaped(pair, notice);
        Some(notice)
    }

    pub fn has_notice(&self, pair: usize) -> bool {
        let pair = self.pairs[pair].as_ref();
        pair.is_some_and(|pair| !pair.notices.is_empty())
    }

    fn reaped(&mut self, pair: usize, notice: Notice) {
        let op = &mut self.ops[notice.id];
        if notice.more {
            op.ownerless = true;
            if op.released {
                op.slot_held = false;
            }
            return;
        }
        if !notice.release {
            // It comes with the notice.
            op.slot_held = false;
        }
        let long = op.is_long();
        let pair = self.pair(pair);
        pair.credits += 1;
        pair.long_free += usize::from(long);
        pair.reaped += 1;
    }

    /// Who was dropped reaps at once, and is gone when nothing is in flight.
    fn clear_up(&mut self, id: usize) {
        if self.pairs[id].as_ref().is_none_or(|pair| !pair.dropped) {
            return;
        }
        while let Some(notice) = self.pair(id).notices.pop_front() {
            self.reaped(id, notice);
        }
        if self.in_flight(id) == 0 {
            let pair = self.pairs[id].take().expect("the pair is there");
            self.is_list_old = true;
            self.gone.0 += pair.accepted;
            self.gone.1 += pair.refused;
        }
    }

    // ---- clients

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
            false => self.check_key(&request.key),
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

    fn recycle(&mut self, id: Id) {
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

    // ---- ends without a call

    /// Ends an op that is queued, or running if it may be. Whether it was running; `None`: nothing was done.
    fn abandon(&mut self, id: Id, error: impl Fn(bool) -> OpError, may_run: bool) -> Option<bool> {
        let started = match self.ops[id].state {
            State::Queued => false,
            State::Running if may_run => true,
            _ => return None,
        };
        let kind = self.ops[id].request.kind;
        let op = &mut self.ops[id];
        op.state = State::Ended;
        op.result = Err(error(started));
        op.more = started;
        if started {
            self.quarantine.push(id);
            self.lanes[kind.index()].total += 1;
        }
        self.count(id);
        self.tell(id, started, false);
        Some(started)
    }

    fn count(&mut self, id: Id) {
        let kind = self.ops[id].request.kind;
        let name = match (&self.ops[id].result, kind) {
            (Err(error), _) => error.name(),
            (Ok(0), OpKind::Lookup) => "absent",
            (Ok(_), OpKind::Lookup) => "present",
            (Ok(1), OpKind::Store) => "stored",
            (Ok(2), OpKind::Store) => "already_there",
            (Ok(_), OpKind::Store) => "accepted",
            (Ok(_), _) => "ok",
        };
        *self.lanes[kind.index()].codes.entry(name).or_default() += 1;
    }

    /// The submitter learns of an end, or of a release.
    fn tell(&mut self, id: Id, more: bool, release: bool) {
        match self.ops[id].source {
            0 => {
                let op = &self.ops[id];
                if op.ownerless && op.is_final() {
                    self.recycle(id);
                }
            }
            source => {
                let notice = Notice { id, more, release };
                self.pair(source - 1).notices.push_back(notice);
                self.clear_up(source - 1);
            }
        }
    }

    /// What a cancel answers: the op was never started, is abandoned, runs on, or has ended.
    pub fn cancel(&mut self, id: Id, abandon: bool) -> moonring::Cancel {
        use moonring::Cancel;
        let error = |started| OpError::Cancelled { started };
        match self.abandon(id, error, abandon) {
            Some(true) => Cancel::Abandoned,
            Some(false) => Cancel::NeverStarted,
            None if self.ops[id].state == State::Running => Cancel::Running,
            None => Cancel::Ended,
        }
    }

    /// Cancels what a pair has with this number; how many.
    pub fn cancel_all(&mut self, pair: usize, user_data: u64, abandon: bool) -> usize {
        let mine = |op: &Op| op.source == pair + 1 && op.request.user_data == user_data;
        let ids = self.live_ops(mine);
        let error = |started| OpError::Cancelled { started };
        let done = ids.into_iter().map(|id| self.abandon(id, error, abandon));
        done.flatten().count()
    }

    fn live_ops(&self, is_it: impl Fn(&Op) -> bool) -> Vec<Id> {
        let live = |op: &Op| op.state != State::Ended && is_it(op);
        (0..self.ops.len())
            .filter(|&id| live(&self.ops[id]))
            .collect()
    }

    /// Ends all whose time is up.
    pub fn expire(&mut self) {
        let now = self.now;
        for id in self.live_ops(|op| op.deadline.is_some_and(|d| d <= now)) {
            self.abandon(id, |started| OpError::TimedOut { started }, true);
        }
    }

    /// Ends all that is queued. No call may be under way.
    pub fn shut_down(&mut self) {
        self.closed = true;
        for id in self.live_ops(|op| op.state == State::Queued) {
            self.abandon(id, |_| OpError::ShutDown, false);
        }
        // They come to be refused.
        self.waiting.clear();
        for future in &mut self.futures {
            if let Future::Waits { queued, .. } = future {
                *queued = true;
            }
        }
        self.ready = [[0; 4]; 2];
        self.clients = Default::default();
        for pair in self.pairs.iter_mut().flatten() {
            pair.rings = Default::default();
        }
    }

    // ---- a round of a worker

    /// A worker takes a batch of at most so many ops of each kind. Whether there is one; calls and [`finish`](Self::finish) follow then.
    pub fn take(&mut self, driver: usize, most: [usize; 4]) -> bool {
        self.is_list_old = false;
        let kinds = self.knobs.groups[driver].clone();
        let mut order = kinds.clone();
        if kinds.len() > 1 {
            let turn = TURNS[self.drivers[driver].turn % TURNS.len()];
            order.insert(0, turn);
            order.retain(|kind| kinds.contains(kind));
        }
        for kind in order {
            let ops = self.take_kind(driver, kind, most[kind.index()]);
            if !ops.is_empty() {
                self.drivers[driver].turn += 1;
                let todo = ops.clone();
                self.batches.push(Batch { kind, ops, todo });
                return true;
            }
        }
        false
    }

    fn take_kind(&mut self, driver: usize, kind: OpKind, most: usize) -> Vec<Id> {
        let [foreground, background] = [Class::Foreground, Class::Background];
        let ready = |model: &Self, class: Class| model.ready[class as usize][kind.index()] != 0;
        let waits = ready(self, background);
        let mut batch = Vec::new();
        if !waits && !ready(self, foreground) {
            return batch;
        }
        // One in eight of the takes at which background waits is its own.
        let turn = waits && {
            let nth = &mut self.background_waited[kind.index()];
            *nth += 1;
            nth.is_multiple_of(8)
        };
        if turn {
            self.fill(driver, kind, background, most, &mut batch);
        }
        if !(turn && self.is_full(&batch, most)) {
            self.fill(driver, kind, foreground, most, &mut batch);
        }
        let hidden = batch.is_empty() && ready(self, foreground);
        if waits && !turn && !self.is_full(&batch, most) && !hidden {
            self.fill(driver, kind, background, most, &mut batch);
        }
        batch
    }

    fn bytes_of(&self, batch: &[Id]) -> usize {
        let lens = batch.iter().map(|&id| self.ops[id].request.bytes.as_ref());
        lens.map(|bytes| bytes.map_or(0, |b| b.len)).sum()
    }

    fn is_full(&self, batch: &[Id], most: usize) -> bool {
        batch.len() >= most || (!batch.is_empty() && self.bytes_of(batch) >= self.knobs.max_bytes)
    }

    /// Once round all sources, from the one behind the last on.
    fn fill(
        &mut self,
        driver: usize,
        kind: OpKind,
        class: Class,
        most: usize,
        batch: &mut Vec<Id>,
    ) {
        let (k, c) = (kind.index(), class as usize);
        let first = self.drivers[driver].first_source[k][c];
        let ready = self.ready[c][k];
        let is_ready = |source: &usize| ready & 1 << source != 0;
        let sources: Vec<usize> = (first..64).chain(0..first).filter(is_ready).collect();
        let (mut passed_over, mut next) = (None, None);
        for &source in &sources {
            if !self.take_source(source, kind, class, most, batch) {
                passed_over.get_or_insert(source);
            }
            if self.is_full(batch, most) {
                next = Some((source + 1) % 64);
                break;
            }
        }
        if let Some(source) = passed_over.or(next) {
            self.drivers[driver].first_source[k][c] = source;
        }
    }

    /// False where it has ops and not even the first fits.
    fn take_source(
        &mut self,
        source: usize,
        kind: OpKind,
        class: Class,
        most: usize,
        batch: &mut Vec<Id>,
    ) -> bool {
        let (k, c) = (kind.index(), class as usize);
        if source > 0 && self.is_list_old {
            return true;
        }
        self.ready[c][k] &= !(1 << source);
        let room = self.knobs.max_bytes.saturating_sub(self.bytes_of(batch));
        let has_bytes = matches!(kind, OpKind::Retrieve | OpKind::Store);
        let ring = match source {
            0 => &self.clients[c][k],
            _ => match self.pairs.get(source - 1) {
                Some(Some(pair)) => &pair.rings[c][k],
                _ => return true,
            },
        };
        let (mut n, mut used) = (0, 0);
        while n < ring.len() && n < most - batch.len() {
            let len = self.peeked_len(source, ring[n]);
            used += len;
            let fits = used <= room || (batch.is_empty() && n == 0);
            if has_bytes && !fits {
                break;
            }
            n += 1;
        }
        let ring = match source {
            0 => &mut self.clients[c][k],
            _ => &mut self.pair(source - 1).rings[c][k],
        };
        let words: Vec<Id> = ring.drain(..n).collect();
        let left = !ring.is_empty();
        if left {
            self.ready[c][k] |= 1 << source;
        }
        for &id in &words {
            let late = self.ops[id].deadline.is_some_and(|d| d <= self.now);
            match self.ops[id].state {
                State::Queued if late => {
                    self.abandon(id, |started| OpError::TimedOut { started }, false);
                }
                State::Queued => {
                    self.ops[id].state = State::Running;
                    batch.push(id);
                }
                _ => {}
            }
        }
        !left || !words.is_empty()
    }

    /// What a take sees of an op's length: its table entry may be another op's by now. Clients' entries are not known here, and go
    /// with bounds that no batch comes to.
    fn peeked_len(&self, source: usize, id: Id) -> usize {
        if source == 0 {
            return self.bytes_of(&[id]);
        }
        let pair = self.pairs[source - 1].as_ref();
        pair.and_then(|pair| Some(pair.lens[*pair.index.get(&id)?]))
            .unwrap_or(0)
    }

    /// The store call that comes now.
    pub fn call(&mut self) -> Call {
        let batch = self.batches.last_mut().expect("a worker has a batch");
        let kind = batch.kind;
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

    /// The round is over. Returns whether calls are missing.
    pub fn finish(&mut self) -> bool {
        let batch = self.batches.pop().expect("a worker has a batch");
        for &id in &batch.ops {
            if self.ops[id].state == State::Ended {
                self.release(id);
            } else {
                self.ops[id].state = State::Ended;
                let lane = &mut self.lanes[batch.kind.index()];
                lane.queue += 1;
                lane.total += 1;
                self.count(id);
                self.tell(id, false, false);
            }
        }
        !batch.todo.is_empty()
    }

    fn release(&mut self, id: Id) {
        self.quarantine.retain(|&held| held != id);
        let op = &mut self.ops[id];
        op.released = true;
        if op.source > 0 && op.ownerless {
            op.slot_held = false;
        }
        self.tell(id, false, true);
    }

    // ---- what can be seen

    /// Ops that have ended while a call has them.
    pub fn quarantined(&self) -> Vec<Held> {
        let held = self.quarantine.iter().map(|&id| {
            let op = &self.ops[id];
            let bytes = op.request.bytes.as_ref();
            let error = op.result.expect_err("what is in quarantine has failed");
            let (addr, len) = (bytes.map(|b| b.addr), bytes.map_or(0, |b| b.len));
            (op.request.kind, op.request.key.clone(), addr, len, error)
        });
        held.collect()
    }

    /// Slots that are the engine's.
    pub fn slots_held(&self) -> usize {
        let waiting = self.futures.iter().filter(
            |future| matches!(future, Future::Waits { request, .. } if request.bytes.is_some()),
        );
        self.ops.iter().filter(|op| op.slot_held).count() + waiting.count()
    }

    /// Whether a byte there is the engine's.
    pub fn is_in_use(&self, addr: usize, len: usize) -> bool {
        let mut held = self.ops.iter().filter(|op| op.slot_held);
        held.any(|op| {
            let bytes = op.request.bytes.as_ref();
            bytes.is_some_and(|b| b.addr < addr + len && addr < b.addr + b.content.len())
        })
    }

    pub fn accepted_ops(&self) -> u64 {
        let pairs: u64 = self.pairs.iter().flatten().map(|pair| pair.accepted).sum();
        pairs + self.gone.0 + self.clients_accepted
    }

    pub fn refused_ops(&self) -> u64 {
        let pairs: u64 = self.pairs.iter().flatten().map(|pair| pair.refused).sum();
        pairs + self.gone.1 + self.clients_refused
    }

    pub fn open_pairs(&self) -> u64 {
        self.pairs.iter().flatten().count() as u64
    }

    pub fn ops_in_flight(&self) -> u64 {
        self.live_ops(|_| true).len() as u64
    }

    pub fn credits_in_use(&self) -> u64 {
        let pairs = self.pairs.iter().flatten();
        let of_pairs: u64 = pairs.map(|pair| pair.accepted - pair.reaped).sum();
        of_pairs + (self.knobs.ring_depth - self.credits) as u64
    }
}

/// Objects with such keys have a lease.
pub fn is_leased(key: &[u8]) -> bool {
    key.first() == Some(&b'L')
}
