//! Circuits: whether calls of a kind are made, and with how many keys at most.

use moonring::{OpError, OpKind, SubmitError, Unavailable};

use super::{Id, Knobs, Model, Raw};

/// The circuit of one op kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circuit {
    /// Why it is open.
    pub open: Option<Unavailable>,
    /// Calls in a row in which all keys failed, and those of them, the last ones, in which all failed on the way.
    pub failed: u32,
    unreachable: u32,
    /// Calls that have not returned though the time of an op of theirs is up, and how many of them open it.
    pub overdue: u32,
    too_many: u32,
    /// Most keys of the next call.
    pub bound: usize,
    pub opened: u64,
    /// A call was answered.
    pub answered: bool,
    /// While it is open, when it lets one op through: not before the first of these times, and surely from the second on. The
    /// engine says how long the pause is, a quarter more or less; nobody looks at it in between.
    probe_at: (u64, u64),
    /// That op's call is under way; maybe one that began when the circuit had been open before.
    is_probing: bool,
}

/// What a worker may do with what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum May {
    /// A call with so many keys.
    Call(usize),
    Probe,
    /// Its ops end as unavailable.
    Nothing,
}

impl Circuit {
    pub fn new(op: OpKind, knobs: &Knobs) -> Self {
        let mut groups = knobs.groups.iter();
        let group = groups.find(|group| group.kinds.contains(&op));
        let workers = group.expect("each kind has one").workers as u32;
        Self {
            open: None,
            failed: 0,
            unreachable: 0,
            overdue: 0,
            too_many: (workers / 2).max(1),
            bound: knobs.max_batch,
            opened: 0,
            answered: false,
            probe_at: (0, 0),
            is_probing: false,
        }
    }

    fn pause(&mut self, knobs: &Knobs, now: u64) {
        let (pause, quarter) = (knobs.pause, knobs.pause / 4);
        self.probe_at = (now + pause - quarter, now + pause + quarter);
    }

    fn open(&mut self, why: Unavailable, knobs: &Knobs, now: u64) {
        if self.open.replace(why).is_none() {
            self.opened += 1;
            self.pause(knobs, now);
        }
    }

    fn is_probe_due(&self, now: u64) -> bool {
        let (from, surely) = self.probe_at;
        if self.is_probing {
            return false;
        }
        assert!(now < from || now >= surely, "nobody looks in between");
        now >= surely
    }

    fn returned(&mut self, results: &[Raw], was: May, was_overdue: bool, knobs: &Knobs, now: u64) {
        let answered = results.iter().any(is_answer);
        // Of a call with all keys that went well the circuit takes no notice, so it doubles no bound that another call has halved.
        let goes_well = answered && !was_overdue && self.failed == 0 && self.open.is_none();
        if knobs.fail_fast > 0 && !(goes_well && was == May::Call(knobs.max_batch)) {
            self.bound = match was_overdue {
                true => (self.bound / 2).max(1),
                false => (self.bound * 2).min(knobs.max_batch),
            };
        }
        let on_the_way = |result: &Raw| {
            use OpError::{RpcFailed, RpcTimedOut, TransferFailed, Unavailable};
            matches!(
                result,
                Err(RpcFailed | RpcTimedOut | TransferFailed | Unavailable)
            )
        };
        if results.iter().all(on_the_way) {
            self.failed += 1;
            self.unreachable += 1;
            if knobs.fail_fast > 0 && self.unreachable >= knobs.fail_fast {
                self.open(Unavailable::Failing, knobs, now);
            }
        } else {
            // The store is there, whatever it says.
            self.unreachable = 0;
            if self.overdue < self.too_many {
                self.open = None;
            }
            self.answered |= answered;
            self.failed = match answered {
                true => 0,
                false => self.failed + 1,
            };
        }
        if was == May::Probe {
            self.is_probing = false;
            self.pause(knobs, now);
        }
    }
}

/// The store has looked for the key.
fn is_answer(result: &Raw) -> bool {
    use OpError::{AlreadyExists, Busy, Leased, LengthMismatch, NotFound, NotReady, ShortBuffer};
    match result {
        Ok(_) | Err(NotFound | Leased | Busy | NotReady | AlreadyExists) => true,
        Err(ShortBuffer { .. } | LengthMismatch { .. }) => true,
        Err(_) => false,
    }
}

impl Model {
    /// Lookups are always accepted: they are answered *unknown*.
    pub(super) fn check_circuit(&self, op: OpKind) -> Result<(), SubmitError> {
        let circuit = &self.circuits[op.index()];
        match circuit.open {
            Some(why) if op != OpKind::Lookup && !circuit.is_probe_due(self.now) => {
                Err(SubmitError::Unavailable { op, why })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn may(&self, op: OpKind) -> May {
        let circuit = &self.circuits[op.index()];
        match circuit.open {
            None => May::Call(circuit.bound),
            Some(_) if circuit.is_probe_due(self.now) => May::Probe,
            Some(_) => May::Nothing,
        }
    }

    /// A worker has found something for what it may do.
    pub(super) fn begin(&mut self, op: OpKind, may: May) {
        if may == May::Probe {
            self.circuits[op.index()].is_probing = true;
        }
    }

    /// The time of a running op is up.
    pub(super) fn op_is_overdue(&mut self, id: Id) {
        if !self.is_call_overdue_now(id) {
            return;
        }
        let circuit = &mut self.circuits[self.ops[id].request.kind.index()];
        circuit.overdue += 1;
        if self.knobs.fail_fast > 0 && circuit.overdue >= circuit.too_many {
            circuit.open(Unavailable::Overdue, &self.knobs, self.now);
        }
    }

    /// The calls of a round have returned, with these results.
    pub(super) fn calls_returned(
        &mut self,
        op: OpKind,
        may: May,
        results: &[Raw],
        was_overdue: bool,
    ) {
        let circuit = &mut self.circuits[op.index()];
        circuit.overdue -= u32::from(was_overdue);
        circuit.returned(results, may, was_overdue, &self.knobs, self.now);
    }

    pub fn circuits(&self) -> &[Circuit; 4] {
        &self.circuits
    }

    /// The next time from `now` on, at least so much later, at which it is known whether a probe is due: just before it can
    /// be (if `early`), or when it must be.
    pub fn settled_time(&self, by: u64, early: bool) -> u64 {
        let mut time = self.now + by;
        let windows = || {
            let circuits = self.circuits.iter();
            let asked = circuits.filter(|c| c.open.is_some() && !c.is_probing);
            asked.map(|circuit| circuit.probe_at)
        };
        let is_in = |time: u64| windows().find(|&(from, surely)| from <= time && time < surely);
        if let Some((from, _)) = is_in(time)
            && early
            && from - 1 > self.now
            && is_in(from - 1).is_none()
        {
            return from - 1;
        }
        while let Some((_, surely)) = is_in(time) {
            time = surely;
        }
        time
    }
}
