//! What is submitted: keys, memory, and ops by a pair.

use std::time::Duration;

use moonring::{Class, OpKind, Slot, Submission};

use super::World;
use crate::engine::model::{Bytes, Request, Time};

impl World {
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
    pub(super) fn request(&self) -> (Request, Option<Slot>) {
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
    pub(super) fn check_slot(&self, mut slot: Slot, bytes: &Bytes) {
        assert_eq!((slot.as_ptr().addr(), slot.len()), (bytes.addr, bytes.len));
        slot.set_len(slot.capacity()).expect("its capacity");
        assert_eq!(&slot[..], &bytes.content[..], "the bytes of a slot");
    }

    pub(super) fn submit(&self) {
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
