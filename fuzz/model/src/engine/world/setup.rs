//! The engine and its model, as the first bytes of the script say.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use moonring::{
    Class, Client, Engine, EngineConfig, HandClock, OpKind, Region, RegionOptions, SlotClass,
    SlotPool,
};

use super::World;
use crate::engine::model::{ClientOptions, Group, Knobs, Model, Time};
use crate::engine::store::Scripted;
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

/// What is drawn.
struct Setup {
    /// Kinds with workers of their own; the others share theirs.
    dedicated: &'static [OpKind],
    /// Of each group.
    workers: usize,
    with_clients: bool,
    quarantine_percent: u32,
    is_down: [bool; 4],
    knobs: Knobs,
}

impl Setup {
    fn draw(input: &mut Input) -> Self {
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
        let with_clients = layout & 4 != 0;
        let workers = match layout >> 5 {
            3 => 2,
            7 => 3,
            _ => 1,
        };
        let max_batch = input.one_of(&[1, 2, 5, 16, 16]);
        // Where clients are, no batch comes to its bound of bytes: see `Model::peeked_len`.
        let max_bytes = match with_clients {
            true => 1 << 20,
            false => input.one_of(&[1, 20, 64, 100, 1 << 20]),
        };
        let share_bytes = match (workers, with_clients) {
            // Nobody to share with.
            (1, _) => 1,
            (_, true) => max_bytes,
            (_, false) => input.one_of(&[1, 20, 64, 1 << 20]),
        };
        let ring_depth = input.one_of(&[1, 2, 4, 8]);
        let long_keys = input.below(3);
        let quarantine_percent = input.one_of(&[100, 100, 1, 2]);
        let (mut fail_fast, mut pause_ms, mut is_down) = (0, 1, [false; 4]);
        if layout & 16 != 0 {
            fail_fast = input.one_of(&[1, 2, 2, 3]);
            pause_ms = input.one_of(&[1, 1, 2, 4]);
            let down = input.byte();
            is_down = std::array::from_fn(|kind| down & 1 << kind != 0);
        }
        let timeout = |op| (layout & 8 != 0 && op != Delete).then_some(3_000_000);
        Self {
            dedicated,
            workers,
            with_clients,
            quarantine_percent,
            is_down,
            knobs: Knobs {
                groups: groups(dedicated, workers),
                max_batch,
                max_bytes,
                share_bytes,
                ring_depth,
                max_pairs: 3,
                max_key: 300,
                long_keys,
                timeouts: OpKind::ALL.map(timeout),
                fail_fast,
                pause: pause_ms * 1_000_000,
                quarantine_limit: REGION / 100 * quarantine_percent as usize,
            },
        }
    }

    fn config(&self) -> EngineConfig {
        let knobs = &self.knobs;
        let ms = |ns: u64| (ns / 1_000_000) as u32;
        let mut config = EngineConfig::default()
            .max_batch(knobs.max_batch)
            .max_batch_bytes(knobs.max_bytes)
            .share_bytes(knobs.share_bytes)
            .num_workers(self.workers)
            // How many of several workers may be in calls at once is learned by the time that calls take; that isn't modelled.
            .adapt(self.workers == 1)
            .ring_depth(knobs.ring_depth)
            .max_pairs(knobs.max_pairs)
            .max_key(knobs.max_key)
            .long_keys(knobs.long_keys)
            .quarantine_percent(self.quarantine_percent)
            .fail_fast_after(knobs.fail_fast)
            .fail_fast_ms(ms(knobs.pause));
        for op in OpKind::ALL {
            if let Some(ns) = knobs.timeouts[op.index()] {
                config = config.timeout_ms(op, ms(ns));
            }
        }
        for &op in self.dedicated {
            config = config.dedicated(op, self.workers);
        }
        config
    }
}

/// As the engine has them: first that of the kinds that share workers.
fn groups(dedicated: &[OpKind], workers: usize) -> Vec<Group> {
    let shared = OpKind::ALL.into_iter().filter(|op| !dedicated.contains(op));
    let own = dedicated.iter().map(|&op| vec![op]);
    let kinds = std::iter::once(shared.collect()).chain(own);
    let kinds = kinds.filter(|kinds: &Vec<OpKind>| !kinds.is_empty());
    kinds.map(|kinds| Group { kinds, workers }).collect()
}

/// A client with each option.
fn clients(engine: &Engine) -> Vec<(Arc<Client>, ClientOptions)> {
    let plain = engine.client();
    let (foreground, background) = (Class::Foreground, Class::Background);
    let short = Some(Duration::from_millis(2));
    let with_cancel = plain.with_cancel_on_drop();
    let in_background = plain.background();
    let with_timeout = plain.with_timeout(short);
    let endless = plain.with_timeout(None);
    let clients = [
        (plain, foreground, Time::OfItsLane, false),
        (with_cancel, foreground, Time::OfItsLane, true),
        (in_background, background, Time::OfItsLane, false),
        (with_timeout, foreground, Time::Ns(2_000_000), false),
        (endless, foreground, Time::Endless, false),
    ];
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
    clients.collect()
}

/// A region with slots, and behind them bytes that stay what they are: where, and which.
fn region() -> (Region, SlotPool, (usize, Vec<u8>)) {
    let region = Region::allocate(RegionOptions::new(REGION)).expect("a region");
    let pool = region.slot_pool(&SLOTS).expect("slots");
    let start = REGION - SPANS;
    assert!(region.uncarved().offset <= start);
    let content: Vec<u8> = (0..SPANS).map(|i| i as u8 ^ 0x5a).collect();
    let to = region.as_mut_ptr(region.span(start, SPANS)).expect("there");
    // SAFETY: so many bytes behind the slots, which nobody else has yet.
    unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), to.as_ptr(), SPANS) };
    (region, pool, (start, content))
}

impl World {
    pub(super) fn new(mut input: Input) -> Self {
        let setup = Setup::draw(&mut input);
        let (region, pool, spans) = region();
        let other = Region::allocate(RegionOptions::new(64)).expect("a region");
        let foreign = other.slot_pool(&[SlotClass { size: 64, count: 1 }]);
        let clock = HandClock::new();
        let store = Arc::new(Scripted::default());
        let builder = Engine::builder(Arc::clone(&store) as Arc<dyn moonring::store::Store>);
        let started = builder
            .config(setup.config())
            .region(region.clone())
            .start_by_hand_on(&clock);
        let (engine, drivers) = started.expect("the engine starts");
        assert_eq!(drivers.len(), setup.knobs.groups.len() * setup.workers);
        Self {
            clients: match setup.with_clients {
                true => clients(&engine),
                false => Vec::new(),
            },
            engine,
            clock,
            store,
            region,
            pool,
            foreign: foreign.expect("a slot"),
            spans,
            input: RefCell::new(input),
            // As a new `HandClock`.
            model: RefCell::new(Model::new(setup.knobs, 1_000_000_000)),
            drivers: drivers.into_iter().map(RefCell::new).collect(),
            pairs: RefCell::default(),
            waiting: RefCell::default(),
            calls: RefCell::default(),
            is_down: RefCell::new(setup.is_down),
            failure: RefCell::default(),
            filled: RefCell::new(1),
            looks: Cell::new(2),
            says: std::env::var_os("MOONRING_SAY").is_some(),
        }
    }
}
