//! Which ops a round of a worker takes.

use moonring::{Class, OpError, OpKind};

use super::call::Batch;
use super::circuit::May;
use super::{Group, Id, Model, State};

#[derive(Debug)]
pub(super) struct DriverState {
    group: usize,
    turn: usize,
    first_source: [[usize; 2]; 4],
}

impl DriverState {
    /// One for each worker, group by group.
    pub(super) fn all(groups: &[Group]) -> Vec<Self> {
        let workers = groups.iter().enumerate();
        let workers = workers.flat_map(|(i, group)| (0..group.workers).map(move |nth| (i, nth)));
        workers
            .map(|(group, nth)| Self {
                group,
                turn: nth,
                first_source: [[0; 2]; 4],
            })
            .collect()
    }
}

/// The bounds of a batch.
#[derive(Clone, Copy)]
struct Room {
    ops: usize,
    bytes: usize,
}

/// The order of takes in a shared pool.
const TURNS: [OpKind; 8] = {
    use OpKind::{Delete, Lookup, Retrieve, Store};
    [
        Lookup, Retrieve, Lookup, Store, Lookup, Retrieve, Lookup, Delete,
    ]
};

impl Model {
    /// A worker takes a batch. Whether there is one; calls and [`finish`](Self::finish) follow then.
    pub fn take(&mut self, driver: usize) -> bool {
        self.is_list_old = false;
        let group = self.drivers[driver].group;
        let kinds = self.knobs.groups[group].kinds.clone();
        let mut order = kinds.clone();
        if kinds.len() > 1 {
            let turn = TURNS[self.drivers[driver].turn % TURNS.len()];
            order.insert(0, turn);
            order.retain(|kind| kinds.contains(kind));
        }
        for kind in order {
            let Some((may, room)) = self.may_take(group, kind) else {
                continue;
            };
            let ops = self.take_kind(driver, kind, room);
            if !ops.is_empty() {
                self.drivers[driver].turn += 1;
                self.begin(kind, may);
                self.batches.push(Batch::new(kind, ops, may));
                return true;
            }
        }
        false
    }

    /// What a worker may do with ops of this kind, and how many it may take; `None`: it leaves them to others.
    fn may_take(&self, group: usize, kind: OpKind) -> Option<(May, Room)> {
        let group = &self.knobs.groups[group];
        let is_of_group = |batch: &&Batch| group.kinds.contains(&batch.kind());
        let busy = self.batches.iter().filter(is_of_group).count();
        let is_of_kind = |batch: &&Batch| batch.kind() == kind;
        let calls = self.batches.iter().filter(is_of_kind).count();
        let may = match self.may(kind) {
            may if may == May::Nothing || calls < group.most_calls() => may,
            May::Call(_) => return None,
            // Without a place for its call it answers, which needs none.
            _ => May::Nothing,
        };
        let is_for_others = match may {
            May::Call(_) => calls + 1 < group.most_calls(),
            May::Probe | May::Nothing => true,
        };
        let (max, share) = (self.knobs.max_bytes, self.knobs.share_bytes);
        let room = Room {
            ops: match may {
                May::Call(most) => most,
                May::Probe => 1,
                May::Nothing => self.knobs.max_batch,
            },
            bytes: match busy + 1 < group.workers && is_for_others {
                true => share.min(max),
                false => max,
            },
        };
        Some((may, room))
    }

    fn take_kind(&mut self, driver: usize, kind: OpKind, room: Room) -> Vec<Id> {
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
            self.fill(driver, kind, background, room, &mut batch);
        }
        if !(turn && self.is_full(&batch, room)) {
            self.fill(driver, kind, foreground, room, &mut batch);
        }
        let hidden = batch.is_empty() && ready(self, foreground);
        if waits && !turn && !self.is_full(&batch, room) && !hidden {
            self.fill(driver, kind, background, room, &mut batch);
        }
        batch
    }

    fn bytes_of(&self, batch: &[Id]) -> usize {
        let lens = batch.iter().map(|&id| self.ops[id].request.bytes.as_ref());
        lens.map(|bytes| bytes.map_or(0, |b| b.len)).sum()
    }

    fn is_full(&self, batch: &[Id], room: Room) -> bool {
        batch.len() >= room.ops || (!batch.is_empty() && self.bytes_of(batch) >= room.bytes)
    }

    /// Once round all sources, from the one behind the last on.
    fn fill(&mut self, driver: usize, kind: OpKind, class: Class, room: Room, batch: &mut Vec<Id>) {
        let (k, c) = (kind.index(), class as usize);
        let first = self.drivers[driver].first_source[k][c];
        let ready = self.ready[c][k];
        let is_ready = |source: &usize| ready & 1 << source != 0;
        let sources: Vec<usize> = (first..64).chain(0..first).filter(is_ready).collect();
        let (mut passed_over, mut next) = (None, None);
        for &source in &sources {
            if !self.take_source(source, kind, class, room, batch) {
                passed_over.get_or_insert(source);
            }
            if self.is_full(batch, room) {
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
        room: Room,
        batch: &mut Vec<Id>,
    ) -> bool {
        let (k, c) = (kind.index(), class as usize);
        if source > 0 && self.is_list_old {
            return true;
        }
        self.ready[c][k] &= !(1 << source);
        let left_bytes = room.bytes.saturating_sub(self.bytes_of(batch));
        let has_bytes = matches!(kind, OpKind::Retrieve | OpKind::Store);
        let ring = match source {
            0 => &self.clients[c][k],
            _ => match self.pairs.get(source - 1) {
                Some(Some(pair)) => &pair.rings[c][k],
                _ => return true,
            },
        };
        let (mut n, mut used) = (0, 0);
        while n < ring.len() && n < room.ops - batch.len() {
            let len = self.peeked_len(source, ring[n]);
            used += len;
            let fits = used <= left_bytes || (batch.is_empty() && n == 0);
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
}
