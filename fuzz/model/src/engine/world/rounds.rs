//! The rounds of drivers, what goes on inside their calls, and the time.

use std::panic::resume_unwind;
use std::time::Duration;

use moonring::{OpError, OpKind};

use super::World;
use crate::engine::model::{CallFault, KeyFault};
use crate::engine::store::{Orders, Seen};

impl World {
    pub(super) fn poll(&self) {
        let driver = self.below(self.drivers.len());
        self.poll_driver(driver);
    }

    pub(super) fn poll_all(&self) {
        for driver in 0..self.drivers.len() {
            self.poll_driver(driver);
        }
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

    pub(super) fn on_call(&self, seen: Seen) -> Orders {
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
        let inside = match self.has_crews() {
            true => self.below(8),
            false => self.below(8).saturating_sub(4),
        };
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

    pub(super) fn on_return(&self) {
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

    pub(super) fn go_down_or_up(&self) {
        match self.below(8) {
            7 => self.look_at_counts_at_times(),
            n => {
                let kind = OpKind::ALL[n % 4];
                let is_down = &mut self.is_down.borrow_mut()[kind.index()];
                *is_down = !*is_down;
                self.say(format_args!("{kind} is down: {is_down}"));
            }
        }
    }

    pub(super) fn clock(&self) {
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

    pub(super) fn expire(&self) {
        if self.is_inside() && self.fails_fast() && self.below(2) == 1 {
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
}
