//! Pairs: opened, reaped, cancelled on, and dropped.

use moonring::{
    Cancel, Class, Done, IfRunning, OpError, OpKind, PairError, StoreOutcome, Submission, Ticket,
};

use super::{Submitter, World};
use crate::engine::model::{Bytes, Id, Model, Notice, Raw, Request, Time};

impl World {
    pub(super) fn open(&self) {
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

    pub(super) fn open_or_drop(&self) {
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

    pub(super) fn reap(&self) {
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

    pub(super) fn reap_one(&self, submitter: &mut Submitter) -> bool {
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
        let is_it = |_: &Model, notice: &Notice| {
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

    pub(super) fn cancel(&self) {
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
