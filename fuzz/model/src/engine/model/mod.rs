//! A plain model of the engine: queues, tables and maps, no thread and no atomic. It is told what is done to the engine and says
//! what comes of it.
//!
//! Which ops a take puts into a batch is the engine's own business but for its bounds and its fairness. Here it is written down once
//! more as plainly as may be ([`Model::take`]), since everything else is exact only where that is known: who changes it there
//! changes it here.

mod accept;
mod call;
mod circuit;
mod clients;
mod ends;
mod pairs;
mod seen;
mod take;

use std::collections::{HashMap, VecDeque};

use moonring::{Class, OpError, OpKind};

use self::call::Batch;
pub use self::call::{Call, CallFault, KeyFault};
use self::circuit::Circuit;
pub use self::clients::{ClientOptions, Future, Polled};
use self::take::DriverState;

/// What an op came to, as the engine carries it: a length, 0 or 1, an outcome.
pub type Raw = Result<u64, OpError>;

/// An op, by its place in [`Model::ops`].
pub type Id = usize;

/// Workers that serve the same op kinds; a driver is each of them.
#[derive(Debug)]
pub struct Group {
    pub kinds: Vec<OpKind>,
    pub workers: usize,
}

impl Group {
    /// Of several kinds none may have all workers in its calls.
    fn most_calls(&self) -> usize {
        match self.kinds.len() > 1 && self.workers > 1 {
            true => self.workers - 1,
            false => self.workers,
        }
    }
}

/// The knobs that matter here.
#[derive(Debug)]
pub struct Knobs {
    pub groups: Vec<Group>,
    pub max_batch: usize,
    pub max_bytes: usize,
    /// Most bytes of a batch while another worker could take some, too.
    pub share_bytes: usize,
    /// A power of two.
    pub ring_depth: usize,
    pub max_pairs: usize,
    pub max_key: usize,
    pub long_keys: usize,
    /// In nanoseconds.
    pub timeouts: [Option<u64>; 4],
    /// Calls that fail on the way, one after the other, before a circuit opens; 0: none opens.
    pub fail_fast: u32,
    /// Between the probes of an open circuit, in nanoseconds.
    pub pause: u64,
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
    circuits: [Circuit; 4],
    batches: Vec<Batch>,
    quarantine: Vec<Id>,
}

impl Model {
    pub fn new(knobs: Knobs, now: u64) -> Self {
        Self {
            drivers: DriverState::all(&knobs.groups),
            circuits: OpKind::ALL.map(|op| Circuit::new(op, &knobs)),
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
}

/// Objects with such keys have a lease.
pub fn is_leased(key: &[u8]) -> bool {
    key.first() == Some(&b'L')
}
