//! Pairs: what they push, and what they reap.

use std::collections::{HashMap, VecDeque};

use moonring::{Class, OpKind, SubmitError};

use super::{Id, Model, Notice, Pair, Request};

impl Model {
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

    pub(super) fn pair(&mut self, id: usize) -> &mut Pair {
        self.pairs[id].as_mut().expect("the pair is there")
    }

    pub fn in_flight(&self, id: usize) -> usize {
        let pair = self.pairs[id].as_ref().expect("the pair is there");
        pair.depth - pair.credits
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

    /// A store out of a region that the engine doesn't know.
    pub fn refuse(&mut self, pair: usize, request: &Request) -> SubmitError {
        let op = request.kind;
        let checked = self.check_push(pair, request);
        self.pair(pair).refused += 1;
        checked.err().unwrap_or(SubmitError::UnknownRegion { op })
    }

    fn check_push(&mut self, id: usize, request: &Request) -> Result<(), SubmitError> {
        if self.closed {
            return Err(SubmitError::ShutDown);
        }
        self.check_circuit(request.kind)?;
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
    pub(super) fn clear_up(&mut self, id: usize) {
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
}
