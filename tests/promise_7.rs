//! Promise 7: lookup answers yes, no or unknown; an error is never "no". A retrieve reports the true length. A store that went
//! well is `Stored` where the store can tell, else `Accepted`.

mod common_b;

use std::sync::Arc;

use common_b::*;
use moonring::store::{
    CallResult, DeleteBatch, LookupBatch, NullStore, RetrieveBatch, Store, StoreBatch,
};
use moonring::{ClientError, Done, OpError, OpKind, StoreOutcome, Submission};

/// Goes wrong in every call, in one of the ways in which a call can.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Call,
    Key,
    Fewer,
    More,
    Nothing,
    Panic,
}

impl Wrong {
    const ALL: [(Wrong, OpError); 6] = [
        (Wrong::Call, OpError::RpcTimedOut),
        (Wrong::Key, OpError::Store(-4711)),
        (Wrong::Fewer, OpError::WrongResultCount),
        (Wrong::More, OpError::WrongResultCount),
        (Wrong::Nothing, OpError::BadResult),
        (Wrong::Panic, OpError::StorePanicked),
    ];

    fn call(self, len: usize, mut set: impl FnMut(usize, Option<OpError>)) -> CallResult {
        for i in 0..len {
            match self {
                Wrong::Key => set(i, Some(OpError::Store(-4711))),
                Wrong::Nothing => {}
                // What was set before the call went wrong counts for nothing.
                _ => set(i, None),
            }
        }
        match self {
            Wrong::Call => Err(OpError::RpcTimedOut),
            Wrong::Fewer => Ok(len - 1),
            Wrong::More => Ok(len + 1),
            Wrong::Panic => panic!("as the test wants"),
            Wrong::Key | Wrong::Nothing => Ok(len),
        }
    }
}

/// Which answers a store would have given, had it not gone wrong.
struct Failing(Wrong, bool);

impl Store for Failing {
    fn name(&self) -> &str {
        "failing"
    }
    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        let yes = self.1;
        self.0
            .call(batch.len(), |i, e| batch.set(i, e.map_or(Ok(yes), Err)))
    }
    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        self.0
            .call(batch.len(), |i, e| batch.set(i, e.map_or(Ok(1), Err)))
    }
    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        let stored = StoreOutcome::Stored;
        self.0
            .call(batch.len(), |i, e| batch.set(i, e.map_or(Ok(stored), Err)))
    }
    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        self.0
            .call(batch.len(), |i, e| batch.set(i, e.map_or(Ok(()), Err)))
    }
}

#[test]
fn an_error_is_never_no_and_never_yes() {
    within(HANG, "unknown", || {
        for (wrong, error) in Wrong::ALL {
            for yes in [false, true] {
                let (region, pool) = slots(64, 8);
                let engine = start(Arc::new(Failing(wrong, yes)), config(), &region);
                let failed = Err(ClientError::Failed(error));
                let client = engine.client();
                let client = client.blocking();
                assert_eq!(client.lookup("k"), failed, "{wrong:?}");
                let mut out = Vec::new();
                client.lookup_many(["a", "b", "a"], &mut out);
                assert_eq!(out, [failed; 3], "{wrong:?}");
                let prefix = client.lookup_prefix(["a", "b"]);
                assert_eq!((prefix.len, prefix.unknown), (0, failed.err()));

                let mut pair = engine.pair(8).unwrap();
                let slot = || pool.lend(8).unwrap();
                submit(&mut pair, Submission::lookup("k"));
                submit(&mut pair, Submission::retrieve("k", slot()));
                submit(&mut pair, Submission::store("k", slot()));
                submit(&mut pair, Submission::delete("k"));
                for done in reap(&mut pair, 4) {
                    assert_eq!(done.result, Err(error), "{wrong:?} {}", done.op);
                    assert_eq!(
                        done.slot.is_some(),
                        matches!(done.op, OpKind::Retrieve | OpKind::Store)
                    );
                    assert!(!done.more);
                }
                let stats = engine.stats();
                for op in OpKind::ALL {
                    let lane = stats.lane(op);
                    assert_eq!(lane.count(error.name()), lane.ops, "{wrong:?} {op}");
                }
            }
        }
    });
}

#[test]
fn lookup_says_yes_and_no() {
    within(HANG, "yes and no", || {
        let store = memory();
        put(&*store, b"yes", b"v");
        let (region, _pool) = slots(64, 1);
        let engine = start(store, config(), &region);
        let client = engine.client();
        assert_eq!(client.blocking().lookup("yes"), Ok(true));
        assert_eq!(client.blocking().lookup("no"), Ok(false));
        let mut out = Vec::new();
        client
            .blocking()
            .lookup_many(["yes", "no", "yes"], &mut out);
        assert_eq!(out, [Ok(true), Ok(false), Ok(true)]);
        let mut pair = engine.pair(2).unwrap();
        submit(&mut pair, Submission::lookup("yes").user_data(0));
        submit(&mut pair, Submission::lookup("no").user_data(1));
        let answers: Vec<_> = reap(&mut pair, 2).iter().map(|c| c.result).collect();
        assert_eq!(answers, [Ok(Done::Present), Ok(Done::Absent)]);
    });
}

#[test]
fn a_retrieve_reports_the_true_length() {
    within(HANG, "lengths", || {
        let store = memory();
        let (region, pool) = slots(70_000, 4);
        let lens = [1, 2, 63, 64, 65, 4096, 65_535, 65_536, 70_000];
        for len in lens {
            put(&*store, len.to_string().as_bytes(), &content(b"x", len));
        }
        let engine = start(store, config(), &region);
        let client = engine.client();
        let client = client.blocking();
        let mut pair = engine.pair(2).unwrap();
        for len in lens {
            let object = content(b"x", len);
            let key = len.to_string();
            for buf in [len, len + 1, 70_000] {
                let buf = buf.min(70_000);
                let got = client.retrieve(&key, canary_slot(&pool, buf));
                assert_eq!(got.result, Ok(len as u64));
                assert_holds(got.slot.unwrap(), &object);
                submit(
                    &mut pair,
                    Submission::retrieve(&key, canary_slot(&pool, buf)),
                );
                let done = reap(&mut pair, 1).remove(0);
                assert_eq!(done.result, Ok(Done::Retrieved(len as u64)));
                assert_holds(done.slot.unwrap(), &object);
                // The slot's length is the caller's: it stays as it was.
            }
            let got = client.retrieve_exact(&key, canary_slot(&pool, len));
            assert_eq!(got.result, Ok(len as u64));
            assert_eq!(got.slot.unwrap().len(), len);
        }
    });
}

#[test]
fn stored_already_there_and_accepted_are_told_apart_where_the_store_can() {
    within(HANG, "outcomes", || {
        let (region, pool) = slots(64, 4);
        for (store, first, second) in [
            (
                memory() as Arc<dyn Store>,
                StoreOutcome::Stored,
                StoreOutcome::AlreadyThere,
            ),
            (
                Arc::new(NullStore),
                StoreOutcome::Accepted,
                StoreOutcome::Accepted,
            ),
        ] {
            let engine = start(store, config(), &region);
            let client = engine.client();
            let mut pair = engine.pair(2).unwrap();
            let mut out = Vec::new();
            for outcome in [first, second, second] {
                submit(&mut pair, Submission::store("pair", slot_of(&pool, b"v")));
                let done = reap(&mut pair, 1).remove(0);
                assert_eq!(done.result, Ok(Done::Store(outcome)));
                let done = client.blocking().store("client", slot_of(&pool, b"v"));
                assert_eq!(done.result, Ok(outcome));
                let items = [("many", slot_of(&pool, b"v"))];
                client.blocking().store_many(items, &mut out);
                assert_eq!(out.remove(0).result, Ok(outcome));
            }
            let stats = engine.stats();
            let lane = stats.lane(OpKind::Store);
            let counts = ["stored", "already_there", "accepted"].map(|name| lane.count(name));
            let expected = match first {
                StoreOutcome::Stored => [3, 6, 0],
                _ => [0, 0, 9],
            };
            assert_eq!(counts, expected);
        }
    });
}
