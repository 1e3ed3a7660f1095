//! The engine and its model side by side, and the script that is done to both.

mod clients;
mod look;
mod pairs;
mod rounds;
mod setup;
mod submit;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use moonring::{Client, Driver, Engine, HandClock, Pair, Region, Shutdown, SlotPool, Ticket};

use self::clients::Waiting;
use super::model::{Call, ClientOptions, Id, Lane, Model};
use super::store::{Orders, Scripted, Seen};
use crate::input::Input;

/// Longer scripts than this bring nothing new.
const MAX_OPS: usize = 600;

/// A pair and what it has accepted.
struct Submitter {
    pair: Pair,
    /// Its number in the model.
    id: usize,
    ops: Vec<(Ticket, Id)>,
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
    /// How often all counts are still looked at on the way: it takes longer than all else together.
    looks: Cell<u32>,
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

    /// Inside a store call.
    fn is_inside(&self) -> bool {
        !self.calls.borrow().is_empty()
    }

    /// Op kinds have several workers.
    fn has_crews(&self) -> bool {
        self.model.borrow().knobs.groups[0].workers > 1
    }

    fn fails_fast(&self) -> bool {
        self.model.borrow().knobs.fail_fast > 0
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
        if self.is_inside() && self.has_crews() {
            // Workers are to meet in calls of one kind.
            what = [0, 0, 4, 4, 4, 4, 4, 4, 7, 8, 9, 11, 12, 13, 14, 15][what];
        } else if self.fails_fast() {
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
            15 => self.look_at_counts_at_times(),
            _ => self.submit(),
        }
    }

    /// Everything ends, one way or the other.
    fn end(&self) {
        let how = self.below(8);
        match how {
            0 => self.shut_down(Shutdown::Drain),
            1 => self.shut_down(Shutdown::Cancel),
            _ => self.drain(),
        }
        self.look();
        for submitter in self.pairs.borrow_mut().iter_mut() {
            while self.reap_one(submitter) {}
            assert!(submitter.ops.is_empty(), "ops without an end");
        }
        self.end_futures();
        self.look();
        if how & 1 == 0 {
            // Not each time: it takes as long as all else of a short script.
            self.look_at_counts();
        }
        let model = self.model.borrow();
        assert_eq!((model.ops_in_flight(), model.credits_in_use()), (0, 0));
        assert_eq!(self.pool.available(), self.pool.total());
    }

    fn shut_down(&self, mode: Shutdown) {
        let report = self.engine.shutdown(mode, Duration::ZERO);
        let report = report.expect("not from inside");
        self.model.borrow_mut().shut_down();
        let model = self.model.borrow();
        assert_eq!(report.completed, model.accepted_ops());
        let count = |lane: &Lane| lane.codes.get("shut_down").copied();
        let cancelled: u64 = model.lanes.iter().filter_map(count).sum();
        assert_eq!(report.cancelled, cancelled);
        assert_eq!((report.in_flight, report.stuck_workers.len()), (0, 0));
        assert!(report.unreleased.is_empty() && report.not_unregistered.is_empty());
    }

    fn drain(&self) {
        // A take may find nothing but entries of ops that have ended: so it goes round more often than there are ops.
        let rounds = self.model.borrow().ops.len() + 16;
        for _ in 0..rounds {
            self.poll_all();
        }
        let left = self.model.borrow().ops_in_flight();
        assert_eq!(left, 0, "an op was left behind");
    }

    fn end_futures(&self) {
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
            self.poll_all();
            if self.waiting.borrow().is_empty() {
                break;
            }
        }
        assert!(self.waiting.borrow().is_empty(), "a future without an end");
    }
}
