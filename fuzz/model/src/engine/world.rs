//! The engine and its model side by side, and the script that is done to both.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use moonring::{
    Cancel, Class, Client, ClientError, Done, Driver, Engine, EngineConfig, HandClock, IfRunning,
    OpError, OpKind, Pair, PairError, Region, RegionOptions, Shutdown, ShutdownError, Slot,
    SlotClass, SlotPool, StoreOutcome, Submission, Ticket,
};

use super::model::{
    Bytes, Call, CallFault, ClientOptions, Held, Id, KeyFault, Knobs, Model, Polled, Raw, Request,
    Time,
};
use super::store::{Orders, Scripted, Seen};
use crate::input::Input;

const SLOTS: [SlotClass; 2] = [
    SlotClass {
        size: 16,
        count: 12,
    },
    SlotClass {
        size: 64,
        count: 16,
    },
];
/// Behind the slots, for stores of spans.
const SPANS: usize = 256;
const REGION: usize = 4096;
/// Longer scripts than this bring nothing new.
const MAX_OPS: usize = 600;

type Ended = (Result<u64, ClientError>, Option<Slot>);

/// A pair and what it has accepted.
struct Submitter {
    pair: Pair,
    /// Its number in the model.
    id: usize,
    ops: Vec<(Ticket, Id)>,
}

struct Waiting {
    future: Pin<Box<dyn Future<Output = Ended>>>,
    number: usize,
    options: ClientOptions,
}

struct World {
    engine: Engine,
    clock: HandClock,
    store: Arc<Scripted>,
    region: Region,
    pool: SlotPool,
    /// Of a region that is not the engine's.
    foreign: SlotPool,
    /// Where the spans begin, and their content.
    spans: (usize, Vec<u8>),
    input: RefCell<Input>,
    model: RefCell<Model>,
    drivers: Vec<RefCell<Driver>>,
    pairs: RefCell<Vec<Submitter>>,
    clients: Vec<(Arc<Client>, ClientOptions)>,
    waiting: RefCell<Vec<Waiting>>,
    /// The calls under way: the innermost last.
    calls: RefCell<Vec<(Call, Orders)>>,
    /// By kind: most calls of it fail on the way now.
    is_down: RefCell<[bool; 4]>,
    /// What went wrong inside a call, where the engine would take it for a panic of the store.
    failure: RefCell<Option<Box<dyn std::any::Any + Send>>>,
    filled: RefCell<u8>,
    /// Says what it does: `MOONRING_SAY=1`.
    says: bool,
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

fn world() -> Option<Rc<World>> {
    WORLD.with(|world| world.borrow().clone())
}

/// A store call has begun. What it is to do; `None`: something went wrong before.
pub fn called(seen: Seen) -> Option<Orders> {
    let world = world()?;
    world.guarded(|| world.on_call(seen))
}

/// A store call has done its work and is about to return.
pub fn returning() {
    if let Some(world) = world() {
        world.guarded(|| world.on_return());
    }
}

/// Takes any bytes as a script.
///
/// # Panics
/// Where the engine does other than the model says.
pub fn check(bytes: &[u8]) {
    let world = Rc::new(World::new(Input::new(bytes)));
    WORLD.with(|slot| *slot.borrow_mut() = Some(Rc::clone(&world)));
    struct Forget;
    impl Drop for Forget {
        fn drop(&mut self) {
            WORLD.with(|slot| *slot.borrow_mut() = None);
        }
    }
    let _forget = Forget;
    world.play();
    world.end();
}

impl World {
    fn new(mut input: Input) -> Self {
        use OpKind::{Delete, Lookup, Retrieve, Store};
        let layout = input.byte();
        let dedicated: &[OpKind] = match layout % 4 {
            0 => &[],
            1 => &[Lookup],
            2 => &[Retrieve, Store],
            // Seldom: a recorder for each of its workers takes long to read.
            _ if layout >= 224 => &[Lookup, Retrieve, Store, Delete],
            _ => &[Delete],
        };
        let shared = OpKind::ALL.into_iter().filter(|op| !dedicated.contains(op));
        let shared: Vec<OpKind> = shared.collect();
        let own = dedicated.iter().map(|&op| vec![op]);
        let groups = std::iter::once(shared).chain(own);
        let groups: Vec<Vec<OpKind>> = groups.filter(|ops| !ops.is_empty()).collect();

        let with_clients = layout & 4 != 0;
        let max_batch = input.one_of(&[1, 2, 5, 16, 16]);
        // Where clients are, no batch comes to its bound of bytes: see `Model::peeked_len`.
        let max_bytes = match with_clients {
            true => 1 << 20,
            false => input.one_of(&[1, 20, 64, 100, 1 << 20]),
        };
        let ring_depth: usize = input.one_of(&[1, 2, 4, 8]);
        let max_pairs = 3;
        let long_keys = input.below(3);
        let percent = input.one_of(&[100, 100, 1, 2]);
        let mut config = EngineConfig::default()
            .max_batch(max_batch)
            .max_batch_bytes(max_bytes)
            .share_bytes(1)
            .ring_depth(ring_depth)
            .max_pairs(max_pairs)
            .max_key(300)
            .long_keys(long_keys)
            .quarantine_percent(percent);
        let (mut fail_fast, mut pause_ms, mut is_down) = (0, 1, [false; 4]);
        if layout & 16 != 0 {
            fail_fast = input.one_of(&[1, 2, 2, 3]);
            pause_ms = input.one_of(&[1, 1, 2, 4]);
            let down = input.byte();
            is_down = std::array::from_fn(|kind| down & 1 << kind != 0);
        }
        config = config.fail_fast_after(fail_fast).fail_fast_ms(pause_ms);
        let mut timeouts = [None; 4];
        for op in OpKind::ALL {
            if layout & 8 != 0 && op != Delete {
                config = config.timeout_ms(op, 3);
                timeouts[op.index()] = Some(3_000_000);
            }
        }
        for &op in dedicated {
            config = config.dedicated(op, 1);
        }

        let region = Region::allocate(RegionOptions::new(REGION)).expect("a region");
        let pool = region.slot_pool(&SLOTS).expect("slots");
        let other = Region::allocate(RegionOptions::new(64)).expect("a region");
        let foreign = other.slot_pool(&[SlotClass { size: 64, count: 1 }]);
        let start = REGION - SPANS;
        assert!(region.uncarved().offset <= start);
        let content: Vec<u8> = (0..SPANS).map(|i| i as u8 ^ 0x5a).collect();
        let to = region.as_mut_ptr(region.span(start, SPANS)).expect("there");
        // SAFETY: so many bytes behind the slots, which nobody else has yet.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), to.as_ptr(), SPANS) };

        let clock = HandClock::new();
        let store = Arc::new(Scripted::default());
        let builder = Engine::builder(Arc::clone(&store) as Arc<dyn moonring::store::Store>);
        let started = builder
            .config(config)
            .region(region.clone())
            .start_by_hand_on(&clock);
        let (engine, drivers) = started.expect("the engine starts");
        assert_eq!(drivers.len(), groups.len());
        let knobs = Knobs {
            groups,
            max_batch,
            max_bytes,
            ring_depth,
            max_pairs,
            max_key: 300,
            long_keys,
            timeouts,
            fail_fast,
            pause: u64::from(pause_ms) * 1_000_000,
            quarantine_limit: REGION / 100 * percent as usize,
        };
        let (mut clients, plain) = (Vec::new(), engine.client());
        if with_clients {
            let (foreground, background) = (Class::Foreground, Class::Background);
            let short = Some(Duration::from_millis(2));
            clients = vec![
                (plain.clone(), foreground, Time::OfItsLane, false),
                (
                    plain.with_cancel_on_drop(),
                    foreground,
                    Time::OfItsLane,
                    true,
                ),
                (plain.background(), background, Time::OfItsLane, false),
                (
                    plain.with_timeout(short),
                    foreground,
                    Time::Ns(2_000_000),
                    false,
                ),
                (plain.with_timeout(None), foreground, Time::Endless, false),
            ];
        }
        drop(plain);
        let clients = clients.into_iter().enumerate();
        let clients = clients.map(|(i, (client, class, time, cancel_on_drop))| {
            let options = ClientOptions {
                caller: 1_000_000 + i as u64,
                class,
                time,
                cancel_on_drop,
            };
            (Arc::new(client), options)
        });
        Self {
            clients: clients.collect(),
            engine,
            clock,
            store,
            region,
            pool,
            foreign: foreign.expect("a slot"),
            spans: (start, content),
            input: RefCell::new(input),
            // As a new `HandClock`.
            model: RefCell::new(Model::new(knobs, 1_000_000_000)),
            drivers: drivers.into_iter().map(RefCell::new).collect(),
            pairs: RefCell::default(),
            waiting: RefCell::default(),
            calls: RefCell::default(),
            is_down: RefCell::new(is_down),
            failure: RefCell::default(),
            filled: RefCell::new(1),
            says: std::env::var_os("MOONRING_SAY").is_some(),
        }
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        if self.says {
            let inside = "  ".repeat(self.calls.borrow().len());
            eprintln!("{inside}{what}");
        }
    }

    fn below(&self, n: usize) -> usize {
        self.input.borrow_mut().below(n)
    }

    fn is_over(&self) -> bool {
        self.input.borrow().is_empty() || self.model.borrow().ops.len() >= MAX_OPS
    }

    /// Keeps a panic from the engine, for after the round.
    fn guarded<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        if self.failure.borrow().is_some() {
            return None;
        }
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(result) => Some(result),
            Err(payload) => {
                *self.failure.borrow_mut() = Some(payload);
                None
            }
        }
    }

    fn play(&self) {
        while !self.is_over() {
            self.step();
            self.look();
        }
    }

    fn step(&self) {
        let mut what = self.below(16);
        if self.fails_fast() {
            // Circuits want calls and time, and fewer ops.
            what = [0, 0, 4, 4, 4, 4, 7, 7, 8, 9, 9, 11, 12, 13, 14, 15][what];
        }
        match what {
            0..=3 => self.submit(),
            4..=6 => self.poll(),
            7 => self.clock(),
            8 => self.expire(),
            9 | 10 => self.reap(),
            11 => self.cancel(),
            12 => self.open_or_drop(),
            13 if !self.clients.is_empty() => self.start_future(),
            14 if !self.clients.is_empty() => self.use_future(),
            15 if self.fails_fast() => self.go_down_or_up(),
            15 => self.look_at_counts(),
            _ => self.submit(),
        }
    }

    // ---- what is submitted

    fn key(&self) -> Vec<u8> {
        match self.below(40) {
            // Refused ones.
            38 => Vec::new(),
            39 => b"nul\0in it".to_vec(),
            37 => vec![b'x'; 301],
            // Long ones, up to the limit of `max_key`.
            36 => vec![b'y'; 300],
            34 | 35 => vec![b'z'; 256],
            29 => b"bb".to_vec(),
            30 => b"a key of sixteen".to_vec(),
            31 => b"Leased, and rather longer".to_vec(),
            32 => vec![b'v'; 255],
            33 => b"model@0@1@0123456789abcdef".to_vec(),
            // Few, so that they meet.
            21..=28 => b"Leased".to_vec(),
            _ => b"a".to_vec(),
        }
    }

    /// Kind, and what it needs of memory: a slot, or nothing.
    fn request(&self) -> (Request, Option<Slot>) {
        let kind = OpKind::ALL[self.below(4)];
        let how = self.input.borrow_mut().byte();
        let key = self.key();
        let mut slot = None;
        if matches!(kind, OpKind::Retrieve | OpKind::Store) {
            slot = self.lend(kind);
        }
        let bytes = slot.as_mut().map(|(slot, len)| self.fill(slot, *len));
        let request = Request {
            kind,
            class: Class::ALL[usize::from(how & 1)],
            key,
            bytes,
            time: match how >> 1 & 7 {
                0 => Time::Ns(self.input.borrow_mut().one_of(&[0, 1_000_000])),
                1 => Time::Ns(1_000_000),
                2 => Time::Ns(2_500_000),
                3 => Time::Ns(3_600_000_000_000),
                4 => Time::Endless,
                _ => Time::OfItsLane,
            },
            exact: kind == OpKind::Retrieve && how & 16 != 0,
            force: kind == OpKind::Delete && how & 16 != 0,
            user_data: u64::from(how >> 5),
        };
        (request, slot.map(|(slot, _)| slot))
    }

    fn lend(&self, kind: OpKind) -> Option<(Slot, usize)> {
        let len = match self.below(12) {
            11 => 0,
            // Most that is read fits.
            n if kind == OpKind::Retrieve && n >= 4 => 54 + n,
            10 => 64,
            9 => 17,
            n => n + 8,
        };
        let slot = self.pool.lend(len.max(1))?;
        let used = self
            .model
            .borrow()
            .is_in_use(slot.as_ptr().addr(), slot.capacity());
        assert!(!used, "a slot is lent that the engine has");
        Some((slot, len))
    }

    /// Fills a slot with what no other had.
    fn fill(&self, slot: &mut Slot, len: usize) -> Bytes {
        let mut filled = self.filled.borrow_mut();
        let capacity = slot.capacity();
        slot.set_len(capacity).expect("its capacity");
        for byte in slot.iter_mut() {
            *filled = filled.wrapping_mul(5).wrapping_add(17);
            *byte = *filled;
        }
        let bytes = Bytes {
            addr: slot.as_ptr().addr(),
            len,
            content: slot.to_vec(),
            is_slot: true,
        };
        slot.set_len(len).expect("less than its capacity");
        bytes
    }

    /// Its content is what the model says.
    fn check_slot(&self, mut slot: Slot, bytes: &Bytes) {
        assert_eq!((slot.as_ptr().addr(), slot.len()), (bytes.addr, bytes.len));
        slot.set_len(slot.capacity()).expect("its capacity");
        assert_eq!(&slot[..], &bytes.content[..], "the bytes of a slot");
    }

    fn submit(&self) {
        let mut pairs = self.pairs.borrow_mut();
        if pairs.is_empty() {
            drop(pairs);
            return self.open();
        }
        let which = self.below(pairs.len());
        let submitter = &mut pairs[which];
        let most = match self.fails_fast() {
            true => 4,
            false => 8,
        };
        let n = 1 + self.below(most);
        let mut batch = submitter.pair.batch();
        let mut rings = Vec::new();
        let mut submitted = 0;
        for nth in 0..n {
            let (mut request, slot) = self.request();
            let mut model = self.model.borrow_mut();
            if rings.is_empty() {
                submitted = model.now;
            }
            let needs = matches!(request.kind, OpKind::Retrieve | OpKind::Store);
            // A store without a slot is one of a span.
            let span = needs && (slot.is_none() || self.input.borrow_mut().one_in(6));
            if span && request.kind == OpKind::Retrieve && slot.is_none() {
                continue;
            }
            let key = request.key.clone();
            let submission = match (request.kind, slot) {
                (OpKind::Lookup, _) => Submission::lookup(&key),
                (OpKind::Delete, _) => Submission::delete(&key),
                (OpKind::Store, _) if span => {
                    let (start, content) = &self.spans;
                    let (at, len) = self.input.borrow_mut().one_of(&[(0, 40), (0, 20), (8, 20)]);
                    let addr = self.region.base().addr().get() + start + at;
                    request.bytes = Some(Bytes {
                        addr,
                        len,
                        content: content[at..at + len].to_vec(),
                        is_slot: false,
                    });
                    // SAFETY: nobody ever writes there.
                    unsafe { Submission::store_span(&key, self.region.span(start + at, len)) }
                }
                (OpKind::Store, Some(slot)) => Submission::store(&key, slot),
                (OpKind::Retrieve, Some(slot)) => Submission::retrieve(&key, slot),
                (_, None) => continue,
            };
            let submission = flagged(submission, &request);
            let expected = model.push(submitter.id, &request, submitted);
            self.say(format_args!(
                "pair {} {request:?}: {expected:?}",
                submitter.id
            ));
            drop(model);
            match (batch.push(submission), expected) {
                (Ok(ticket), Ok(id)) => {
                    let index = ticket.index() as usize;
                    assert!(submitter.ops.iter().all(|(other, _)| *other != ticket));
                    let mut model = self.model.borrow_mut();
                    model.accepted(submitter.id, id, index);
                    submitter.ops.push((ticket, id));
                    rings.push((request.kind, request.class));
                }
                (Err(refused), Err(reason)) => {
                    assert_eq!(refused.reason, reason);
                    self.check_refused(refused.op, &request);
                }
                (got, wanted) => panic!("submitted: {got:?}, wanted {wanted:?}"),
            }
            if nth == 0 && self.input.borrow_mut().one_in(8) {
                // The ops of a batch have one time.
                self.clock();
            }
        }
        drop(batch);
        self.model.borrow_mut().publish(submitter.id, &rings);
    }

    fn check_refused(&self, op: Submission<'_>, request: &Request) {
        assert_eq!((op.op(), op.key()), (request.kind, &request.key[..]));
        let slot = op.into_slot();
        let bytes = request.bytes.as_ref().filter(|bytes| bytes.is_slot);
        assert_eq!(slot.is_some(), bytes.is_some());
        if let (Some(slot), Some(bytes)) = (slot, bytes) {
            self.check_slot(slot, bytes);
        }
    }

    // ---- what is done

    fn poll(&self) {
        let driver = self.below(self.drivers.len());
        self.poll_driver(driver);
    }

    fn poll_driver(&self, driver: usize) {
        let Ok(mut hand) = self.drivers[driver].try_borrow_mut() else {
            return; // It makes the call that this is inside of.
        };
        let expected = self.model.borrow_mut().take(driver);
        self.say(format_args!("poll {driver}: {expected}"));
        let depth = self.calls.borrow().len();
        let found = hand.poll_once();
        if let Some(payload) = self.failure.borrow_mut().take() {
            resume_unwind(payload);
        }
        assert_eq!(found, expected, "whether driver {driver} found work");
        if found {
            let missing = self.model.borrow_mut().finish();
            assert!(!missing, "an op of the batch was in no call");
        }
        assert_eq!(self.calls.borrow().len(), depth);
    }

    fn on_call(&self, seen: Seen) -> Orders {
        let call = self.model.borrow_mut().call();
        let expected = Seen {
            kind: call.kind,
            force: call.force,
            keys: call.places.iter().map(|place| place.key.clone()).collect(),
            bytes: call.places.iter().map(|place| place.bytes).collect(),
        };
        self.say(format_args!("{seen:?}"));
        assert_eq!(seen, expected, "the store call");
        let orders = Orders {
            fault: CallFault::None,
            faults: Vec::new(),
        };
        self.calls.borrow_mut().push((call, orders));
        let inside = self.below(8).saturating_sub(4);
        for _ in 0..inside {
            if !self.is_over() {
                self.step();
                self.look_inside();
            }
        }
        if self.fails_fast() && self.below(8) == 7 {
            // It hangs.
            self.clock();
            self.expire();
        }
        let (call, _) = self.calls.borrow_mut().pop().expect("pushed above");
        let (fault, faults) = self.draw_faults(call.kind, call.places.len());
        self.say(format_args!("{fault:?} {faults:?}"));
        self.model.borrow_mut().returned(&call, fault, &faults);
        Orders { fault, faults }
    }

    fn on_return(&self) {
        if self.below(8) == 7 && !self.is_over() {
            self.step();
            self.look_inside();
        }
    }

    fn draw_faults(&self, kind: OpKind, n: usize) -> (CallFault, Vec<KeyFault>) {
        const ERRORS: [OpError; 6] = [
            OpError::NotFound,
            OpError::NoSpace,
            OpError::TransferFailed,
            OpError::RpcFailed,
            OpError::Busy,
            OpError::Store(-7),
        ];
        if self.is_down.borrow()[kind.index()]
            && let Some(failed) = self.draw_failure(n)
        {
            return failed;
        }
        let mut input = self.input.borrow_mut();
        let mut faults = vec![KeyFault::None; n];
        let fault = match input.below(16) {
            12 => CallFault::Error(input.one_of(&ERRORS)),
            13 => CallFault::Panic,
            14 => CallFault::WrongCount(input.one_of(&[-1, 1])),
            9..=11 => {
                let at = input.below(n);
                faults[at] = match input.below(8) {
                    6 => KeyFault::Untold,
                    7 if kind == OpKind::Retrieve => KeyFault::TooLong,
                    7 => KeyFault::Untold,
                    i => KeyFault::Error(ERRORS[i]),
                };
                CallFault::None
            }
            _ => CallFault::None,
        };
        (fault, faults)
    }

    /// A call that fails for every key; `None`: one that may not.
    fn draw_failure(&self, n: usize) -> Option<(CallFault, Vec<KeyFault>)> {
        const ON_THE_WAY: [OpError; 4] = [
            OpError::RpcFailed,
            OpError::RpcTimedOut,
            OpError::TransferFailed,
            OpError::Unavailable,
        ];
        let mut input = self.input.borrow_mut();
        let error = input.one_of(&ON_THE_WAY);
        let mut faults = vec![KeyFault::Error(error); n];
        let fault = match input.below(8) {
            0..=3 => CallFault::Error(error),
            4 | 5 => CallFault::None,
            6 => {
                // Not all on the way.
                faults[input.below(n)] = KeyFault::Error(OpError::NoSpace);
                CallFault::None
            }
            _ => return None,
        };
        Some((fault, faults))
    }

    fn fails_fast(&self) -> bool {
        self.model.borrow().knobs.fail_fast > 0
    }

    fn go_down_or_up(&self) {
        match self.below(8) {
            7 => self.look_at_counts(),
            n => {
                let kind = OpKind::ALL[n % 4];
                let is_down = &mut self.is_down.borrow_mut()[kind.index()];
                *is_down = !*is_down;
                self.say(format_args!("{kind} is down: {is_down}"));
            }
        }
    }

    fn clock(&self) {
        let by: u64 = match self.fails_fast() {
            false => self
                .input
                .borrow_mut()
                .one_of(&[1, 1_000_000, 2_000_000, 3_000_000]),
            true => {
                let choices = [1, 700_000, 1_000_000, 3_000_000];
                let how = self.below(8);
                let model = self.model.borrow_mut();
                let until = model.settled_time(choices[how / 2], how.is_multiple_of(2));
                until - model.now
            }
        };
        self.say(format_args!("{by} ns later"));
        self.clock.advance(Duration::from_nanos(by));
        self.model.borrow_mut().now += by;
    }

    fn expire(&self) {
        let is_inside = !self.calls.borrow().is_empty();
        if is_inside && self.fails_fast() && self.below(2) == 1 {
            self.clock();
        }
        // Any driver that is free looks at all ops.
        let free = self.drivers.iter().find_map(|d| d.try_borrow_mut().ok());
        if let Some(mut driver) = free {
            self.say(format_args!("expire"));
            driver.expire();
            self.model.borrow_mut().expire();
        }
    }

    fn reap(&self) {
        let mut pairs = self.pairs.borrow_mut();
        if pairs.is_empty() {
            return;
        }
        let which = self.below(pairs.len());
        let n = self.below(6);
        for _ in 0..n {
            if !self.reap_one(&mut pairs[which]) {
                break;
            }
        }
    }

    fn reap_one(&self, submitter: &mut Submitter) -> bool {
        let mut model = self.model.borrow_mut();
        let Some(completion) = submitter.pair.poll() else {
            assert!(!model.has_notice(submitter.id), "a completion is missing");
            return false;
        };
        let ids: Vec<Id> = submitter
            .ops
            .iter()
            .filter(|(t, _)| *t == completion.ticket)
            .map(|o| o.1)
            .collect();
        let [id] = ids[..] else {
            panic!("a completion of {} ops: {completion:?}", ids.len());
        };
        let (more, release) = (completion.more, completion.release);
        let is_it = |_: &Model, notice: &super::model::Notice| {
            (notice.id, notice.more, notice.release) == (id, more, release)
        };
        self.say(format_args!(
            "pair {}: op {id}: {completion:?}",
            submitter.id
        ));
        let notice = model.reap(submitter.id, is_it);
        assert!(notice.is_some(), "not expected: {completion:?}");
        let op = &model.ops[id];
        let request = &op.request;
        assert_eq!(
            (completion.op, completion.user_data),
            (request.kind, request.user_data)
        );
        assert_eq!(completion.result, done(request.kind, op.result));
        let bytes = request.bytes.clone().filter(|bytes| bytes.is_slot);
        let defined = request.kind == OpKind::Store || op.result.is_ok();
        let comes_back = bytes.is_some() && !more && !release;
        assert_eq!(completion.slot.is_some(), comes_back);
        if !more {
            submitter.ops.retain(|(_, other)| *other != id);
        }
        drop(model);
        if let (Some(slot), Some(bytes)) = (completion.slot, bytes)
            && defined
        {
            self.check_slot(slot, &bytes);
        }
        true
    }

    fn cancel(&self) {
        let mut pairs = self.pairs.borrow_mut();
        if pairs.is_empty() {
            return;
        }
        let which = self.below(pairs.len());
        let how = self.input.borrow_mut().byte();
        let submitter = &mut pairs[which];
        let abandon = how & 1 != 0;
        let running = match abandon {
            true => IfRunning::Abandon,
            false => IfRunning::Wait,
        };
        let mut model = self.model.borrow_mut();
        if how & 2 != 0 && how & 4 != 0 {
            let user_data = u64::from(how >> 5);
            let expected = model.cancel_all(submitter.id, user_data, abandon);
            assert_eq!(submitter.pair.cancel_all(user_data, running), expected);
        } else if !submitter.ops.is_empty() {
            let (ticket, id) = submitter.ops[usize::from(how >> 2) % submitter.ops.len()];
            let expected = model.cancel(id, abandon);
            self.say(format_args!("cancel {id}: {expected:?}"));
            assert_eq!(submitter.pair.cancel(ticket, running), expected);
        } else {
            let none = Ticket::from_word(u64::from(how) << 32 | 1 << 20);
            assert_eq!(submitter.pair.cancel(none, running), Cancel::Ended);
        }
    }

    fn open(&self) {
        let depth = self.input.borrow_mut().one_of(&[1, 3, 8, 8, 16]);
        let expected = self.model.borrow_mut().open_pair(depth);
        match (self.engine.pair(depth), expected) {
            (Ok(pair), Some(id)) => self.pairs.borrow_mut().push(Submitter {
                pair,
                id,
                ops: Vec::new(),
            }),
            (Err(PairError::TooMany { max: 3 }), None) => {}
            (got, wanted) => panic!("a pair: {got:?}, wanted {wanted:?}"),
        }
    }

    fn open_or_drop(&self) {
        let what = self.below(4);
        let mut pairs = self.pairs.borrow_mut();
        if what < 2 || pairs.is_empty() {
            drop(pairs);
            return self.open();
        }
        if what == 2 {
            return self.refuse_foreign(&mut pairs);
        }
        let which = self.below(pairs.len());
        let gone = pairs.swap_remove(which);
        self.say(format_args!("drop pair {}", gone.id));
        self.model.borrow_mut().drop_pair(gone.id);
        drop(gone.pair);
    }

    /// A slot of a region that the engine doesn't know.
    fn refuse_foreign(&self, pairs: &mut [Submitter]) {
        let (Some(slot), Some(submitter)) = (self.foreign.lend(8), pairs.first_mut()) else {
            return;
        };
        let bytes = Bytes {
            addr: slot.as_ptr().addr(),
            len: slot.len(),
            content: Vec::new(),
            is_slot: true,
        };
        let Err(refused) = submitter.pair.submit(Submission::store(b"a", slot)) else {
            panic!("a slot of an unknown region was taken");
        };
        let request = Request {
            kind: OpKind::Store,
            class: Class::Foreground,
            key: b"a".to_vec(),
            bytes: Some(bytes),
            time: Time::OfItsLane,
            exact: false,
            force: false,
            user_data: 0,
        };
        let expected = self.model.borrow_mut().refuse(submitter.id, &request);
        assert_eq!(refused.reason, expected);
    }

    // ---- clients

    fn start_future(&self) {
        let which = self.below(self.clients.len());
        let (client, options) = &self.clients[which];
        let (mut request, slot) = self.request();
        request.class = options.class;
        request.time = options.time;
        request.user_data = 0;
        let needs = matches!(request.kind, OpKind::Retrieve | OpKind::Store);
        if needs && slot.is_none() {
            return;
        }
        let future = future_of(client, &request, slot);
        let (number, expected) = self.model.borrow_mut().start_future(*options, request);
        self.say(format_args!("future {number}, {options:?}: {expected:?}"));
        let waiting = Waiting {
            future,
            number,
            options: *options,
        };
        self.poll_and_keep(waiting, expected);
    }

    fn poll_and_keep(&self, mut waiting: Waiting, expected: Polled) {
        let mut cx = Context::from_waker(Waker::noop());
        let polled = waiting.future.as_mut().poll(&mut cx);
        match (polled, expected) {
            (Poll::Pending, Polled::Pending) => self.waiting.borrow_mut().push(waiting),
            (
                Poll::Ready((Err(ClientError::Refused(got)), slot)),
                Polled::Refused(reason, request),
            ) => {
                assert_eq!(got, reason);
                assert_eq!(slot.is_some(), request.bytes.is_some());
                if let (Some(slot), Some(bytes)) = (slot, &request.bytes) {
                    self.check_slot(slot, bytes);
                }
            }
            (Poll::Ready((result, slot)), Polled::Ended(id, comes_back)) => {
                let op_result = self.model.borrow().ops[id].result;
                let request = self.model.borrow().ops[id].request.clone();
                // A delete's value is nothing.
                assert_eq!(result, op_result.map_err(ClientError::Failed));
                assert_eq!(slot.is_some(), comes_back);
                let defined = request.kind == OpKind::Store || op_result.is_ok();
                if let (Some(slot), Some(bytes), true) = (slot, &request.bytes, defined) {
                    self.check_slot(slot, bytes);
                }
            }
            (got, wanted) => panic!("polled: {got:?}, wanted {wanted:?}"),
        }
    }

    fn use_future(&self) {
        let mut futures = self.waiting.borrow_mut();
        if futures.is_empty() {
            return;
        }
        let what = self.below(4);
        let which = self.below(futures.len());
        let waiting = futures.swap_remove(which);
        drop(futures);
        if what == 0 {
            self.say(format_args!("drop future {}", waiting.number));
            self.model
                .borrow_mut()
                .drop_future(waiting.number, waiting.options);
            drop(waiting.future);
            return;
        }
        let expected = self
            .model
            .borrow_mut()
            .poll_future(waiting.number, waiting.options);
        self.poll_and_keep(waiting, expected);
    }

    // ---- what is seen

    /// After each step outside of calls.
    fn look(&self) {
        let model = self.model.borrow();
        for submitter in self.pairs.borrow().iter() {
            assert_eq!(submitter.pair.in_flight(), model.in_flight(submitter.id));
        }
        let free = self.pool.total() - model.slots_held();
        assert_eq!(self.pool.available(), free, "slots that are free");
        self.look_at_quarantine(&model);
        self.look_at_circuits(&model);
    }

    fn look_at_circuits(&self, model: &Model) {
        let health = self.engine.health();
        for (lane, circuit) in health.lanes.iter().zip(model.circuits()) {
            assert_eq!(lane.open, circuit.open, "why a circuit is open");
            let got = (lane.failed_calls, lane.overdue_calls, lane.opened);
            let expected = (circuit.failed, circuit.is_overdue.into(), circuit.opened);
            assert_eq!(got, expected, "failed, overdue, opened");
            assert_eq!(lane.batch_bound, circuit.bound, "most keys of a call");
            let in_use = circuit.answered || circuit.failed > 0;
            assert_eq!(lane.in_use, in_use, "whether a kind is in use");
        }
    }

    fn look_inside(&self) {
        self.look();
        if self.below(64) == 63 {
            let refused = self.engine.shutdown(Shutdown::Drain, Duration::ZERO);
            assert_eq!(refused, Err(ShutdownError::WouldDeadlock));
        }
    }

    fn look_at_quarantine(&self, model: &Model) {
        let mut expected = model.quarantined();
        let held = self.engine.quarantined().into_iter();
        let mut held: Vec<_> = held
            .map(|q| (q.op, q.key, q.addr, q.len, q.ended_as))
            .collect();
        let order = |q: &Held| (q.0, q.1.clone(), q.2, q.3, q.4.name());
        expected.sort_by_key(order);
        held.sort_by_key(order);
        assert_eq!(held, expected, "what is in quarantine");
    }

    /// All counts. Slow, and exact only where no call is under way.
    fn look_at_counts(&self) {
        if self.drivers.iter().any(|d| d.try_borrow_mut().is_err()) {
            return;
        }
        let (stats, model) = (self.engine.stats(), self.model.borrow());
        let counts = stats.engine;
        let in_flight = model.ops_in_flight();
        assert_eq!(counts.accepted, model.accepted_ops(), "accepted");
        assert_eq!(counts.completed, counts.accepted - in_flight, "completed");
        assert_eq!(counts.in_flight, in_flight, "in flight");
        assert_eq!(counts.refused, model.refused_ops(), "refused");
        assert_eq!(counts.quarantined, 0, "in quarantine");
        assert_eq!(counts.credits_in_use, model.credits_in_use(), "credits");
        assert_eq!(counts.pairs, model.open_pairs(), "pairs");
        assert_eq!(counts.clients, self.clients.len() as u64, "clients");
        for (lane, expected) in stats.lanes.iter().zip(&model.lanes) {
            let got = super::model::Lane {
                calls: lane.calls,
                keys: lane.keys,
                ops: lane.ops,
                callers: lane.callers,
                folded_ops: lane.folded_ops,
                folded_bytes: lane.folded_bytes,
                bytes: lane.bytes,
                queue: lane.queue().len(),
                total: lane.total().len(),
                codes: lane.by_code().collect(),
            };
            assert_eq!(&got, expected, "the counts of {}", lane.op);
        }
        assert_eq!(*self.store.objects(), model.objects, "the objects");
    }

    /// Everything ends, one way or the other.
    fn end(&self) {
        let how = self.below(8);
        if how < 2 {
            let mode = [Shutdown::Drain, Shutdown::Cancel][how];
            let report = self.engine.shutdown(mode, Duration::ZERO);
            let report = report.expect("not from inside");
            self.model.borrow_mut().shut_down();
            let model = self.model.borrow();
            assert_eq!(report.completed, model.accepted_ops());
            let count = |lane: &super::model::Lane| lane.codes.get("shut_down").copied();
            let cancelled: u64 = model.lanes.iter().filter_map(count).sum();
            assert_eq!(report.cancelled, cancelled);
            assert_eq!((report.in_flight, report.stuck_workers.len()), (0, 0));
            assert!(report.unreleased.is_empty() && report.not_unregistered.is_empty());
        } else {
            // A take may find nothing but entries of ops that have ended: so it goes round more often than there are ops.
            let rounds = self.model.borrow().ops.len() + 16;
            for _ in 0..rounds {
                for driver in 0..self.drivers.len() {
                    self.poll_driver(driver);
                }
            }
            assert_eq!(
                self.model.borrow().ops_in_flight(),
                0,
                "an op was left behind"
            );
        }
        self.look();
        for submitter in self.pairs.borrow_mut().iter_mut() {
            while self.reap_one(submitter) {}
            assert!(submitter.ops.is_empty(), "ops without an end");
        }
        // Those that wait for credits get them by and by.
        for _ in 0..MAX_OPS {
            let n = self.waiting.borrow().len();
            for _ in 0..n {
                let waiting = self.waiting.borrow_mut().remove(0);
                let mut model = self.model.borrow_mut();
                let expected = model.poll_future(waiting.number, waiting.options);
                drop(model);
                self.poll_and_keep(waiting, expected);
            }
            for driver in 0..self.drivers.len() {
                self.poll_driver(driver);
            }
            if self.waiting.borrow().is_empty() {
                break;
            }
        }
        assert!(self.waiting.borrow().is_empty(), "a future without an end");
        self.look();
        if how & 1 == 0 {
            // Not each time: it takes as long as all else of a short script.
            self.look_at_counts();
        }
        let model = self.model.borrow();
        assert_eq!((model.ops_in_flight(), model.credits_in_use()), (0, 0));
        assert_eq!(self.pool.available(), self.pool.total());
    }
}

fn flagged<'k>(submission: Submission<'k>, request: &Request) -> Submission<'k> {
    let mut submission = submission.class(request.class).user_data(request.user_data);
    if request.exact {
        submission = submission.exact();
    }
    if request.force {
        submission = submission.force();
    }
    match request.time {
        Time::OfItsLane => submission,
        Time::Endless => submission.timeout(None),
        Time::Ns(ns) => submission.timeout(Some(Duration::from_nanos(ns))),
    }
}

fn done(kind: OpKind, raw: Raw) -> Result<Done, OpError> {
    raw.map(|value| match (kind, value) {
        (OpKind::Lookup, 0) => Done::Absent,
        (OpKind::Lookup, _) => Done::Present,
        (OpKind::Retrieve, len) => Done::Retrieved(len),
        (OpKind::Store, 1) => Done::Store(StoreOutcome::Stored),
        (OpKind::Store, 2) => Done::Store(StoreOutcome::AlreadyThere),
        (OpKind::Store, _) => Done::Store(StoreOutcome::Accepted),
        (OpKind::Delete, _) => Done::Deleted,
    })
}

/// The future of one op, with what it ends with as the engine carries it.
fn future_of(
    client: &Arc<Client>,
    request: &Request,
    slot: Option<Slot>,
) -> Pin<Box<dyn Future<Output = Ended>>> {
    let (client, key) = (Arc::clone(client), request.key.clone());
    let (exact, force) = (request.exact, request.force);
    match (request.kind, slot) {
        (OpKind::Lookup, _) => {
            Box::pin(async move { (client.lookup(&key).await.map(u64::from), None) })
        }
        (OpKind::Delete, _) if force => {
            Box::pin(async move { (client.delete_forced(&key).await.map(|()| 0), None) })
        }
        (OpKind::Delete, _) => {
            Box::pin(async move { (client.delete(&key).await.map(|()| 0), None) })
        }
        (OpKind::Retrieve, Some(slot)) => Box::pin(async move {
            let returned = match exact {
                true => client.retrieve_exact(&key, slot).await,
                false => client.retrieve(&key, slot).await,
            };
            (returned.result, returned.slot)
        }),
        (OpKind::Store, Some(slot)) => Box::pin(async move {
            let returned = client.store(&key, slot).await;
            let raw = |outcome| match outcome {
                StoreOutcome::Stored => 1,
                StoreOutcome::AlreadyThere => 2,
                _ => 0,
            };
            (returned.result.map(raw), returned.slot)
        }),
        (_, None) => unreachable!("it was given a slot"),
    }
}
