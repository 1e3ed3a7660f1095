//! What a library returns is what its callers get: codes per key, a failed call as every key's error, and no stale result.

mod standin;

use moonring::store::{MooncakeStore, Store, StoreHealth, direct};
use moonring::{OpError, StoreOutcome};
use standin::{Kind, Master, StandIn};

const KEYS: [&[u8]; 3] = [b"a", b"b", b"c"];

fn faulty() -> Option<(StandIn, MooncakeStore)> {
    let library = StandIn::compile(Kind::Faulty)?;
    let store = library
        .open(&Master::listen().config(""))
        .expect("it opens");
    Some((library, store))
}

fn exists(store: &MooncakeStore) -> Vec<Result<bool, OpError>> {
    direct::exists(store, &KEYS).expect("a list")
}

fn get(store: &MooncakeStore) -> Vec<Result<u64, OpError>> {
    let mut bufs = [[0u8; 8]; 3];
    let mut items: Vec<(&[u8], &mut [u8])> = KEYS
        .into_iter()
        .zip(&mut bufs)
        .map(|(k, b)| (k, &mut b[..]))
        .collect();
    direct::get_into(store, &mut items).expect("a list")
}

fn put(store: &MooncakeStore) -> Vec<Result<StoreOutcome, OpError>> {
    direct::put_from(store, &KEYS.map(|key| (key, &b"12345678"[..]))).expect("a list")
}

fn remove(store: &MooncakeStore) -> Vec<Result<(), OpError>> {
    direct::remove(store, &KEYS, true).expect("a list")
}

/// All three lists with results are this error.
#[track_caller]
fn all_are(store: &MooncakeStore, error: OpError) {
    assert_eq!(exists(store), [Err(error); 3]);
    assert_eq!(get(store), [Err(error); 3]);
    assert_eq!(put(store), [Err(error); 3]);
}

#[test]
fn a_call_that_returns_nonzero_fails_every_key_whatever_it_has_written() {
    let Some((library, store)) = faulty() else {
        return;
    };
    // Good answers first, and good answers in the array of the call that fails.
    library.set("result", 1);
    assert_eq!(exists(&store), [Ok(true); 3]);
    assert_eq!(get(&store), [Ok(1); 3]);
    library.set("returns", -1);
    library.set("result", 0);
    all_are(&store, OpError::StoreInternal);
    library.set("writes", 0);
    all_are(&store, OpError::StoreInternal);
    assert_eq!(remove(&store), [Err(OpError::StoreInternal); 3]);
    for (returns, error) in [
        (-600, OpError::InvalidArgument),
        (-900, OpError::RpcFailed),
        (7, OpError::Store(7)),
        (-4242, OpError::Store(-4242)),
    ] {
        library.set("returns", returns);
        all_are(&store, error);
    }
}

#[test]
fn a_result_that_was_not_written_is_no_answer() {
    let Some((library, store)) = faulty() else {
        return;
    };
    // The arrays are used again: what an earlier call has left must not show.
    assert_eq!(exists(&store), [Ok(false); 3]);
    assert_eq!(get(&store), [Ok(0); 3]);
    assert_eq!(put(&store), [Ok(StoreOutcome::Accepted); 3]);
    library.set("writes", 0);
    all_are(&store, OpError::BadResult);
}

#[test]
fn a_result_that_can_not_be_is_no_answer() {
    let Some((library, store)) = faulty() else {
        return;
    };
    library.set("result", 9);
    // No yes and no no; longer than the buffer of 8; more than accepted; more than removed.
    all_are(&store, OpError::BadResult);
    assert_eq!(remove(&store), [Err(OpError::BadResult); 3]);
    library.set("result", i64::from(i32::MIN));
    all_are(&store, OpError::BadResult);
    library.set("result", i64::MAX);
    assert_eq!(get(&store), [Err(OpError::BadResult); 3]);
    library.set("result", 8);
    assert_eq!(get(&store), [Ok(8); 3]);
}

#[test]
fn codes_of_keys_are_told_apart() {
    let Some((library, store)) = faulty() else {
        return;
    };
    for (code, error) in [
        (-1, OpError::StoreInternal),
        (-101, OpError::NoSegment),
        (-200, OpError::NoSpace),
        (-601, OpError::IllegalClient),
        (-703, OpError::NotReady),
        (-704, OpError::NotFound),
        (-705, OpError::AlreadyExists),
        (-706, OpError::Leased),
        (-707, OpError::LeaseExpired),
        (-714, OpError::Busy),
        (-800, OpError::TransferFailed),
        (-801, OpError::ChecksumMismatch),
        (-900, OpError::RpcFailed),
        (-901, OpError::RpcTimedOut),
        (-1010, OpError::Unavailable),
        (-1011, OpError::Unavailable),
        (-1012, OpError::Unsupported),
        (-31337, OpError::Store(-31337)),
    ] {
        library.set("result", code);
        all_are(&store, error);
        assert_eq!(remove(&store), [Err(error); 3]);
    }
    library.set("result", -600);
    assert_eq!(put(&store), [Err(OpError::InvalidArgument); 3]);
    assert_eq!(
        get(&store),
        [Err(OpError::ShortBuffer { object_len: None }); 3]
    );
}

#[test]
fn without_an_extension_keys_are_removed_one_by_one() {
    let Some((library, store)) = faulty() else {
        return;
    };
    assert_eq!(remove(&store), [Ok(()); 3]);
    assert_eq!(library.count("calls"), 3);
    assert_eq!(exists(&store), [Ok(false); 3]);
    assert_eq!(library.count("calls"), 4, "lists are one call");
}

#[test]
fn health_tells_of_a_lost_master_and_of_its_return() {
    let Some((library, store)) = faulty() else {
        return;
    };
    for (code, well) in [
        (-900, false),
        (-704, true),
        (-800, false),
        (0, true),
        (-901, false),
    ] {
        library.set("result", code);
        get(&store);
        assert_eq!(store.health() == StoreHealth::Healthy, well, "{code}");
    }
    assert!(
        matches!(store.health(), StoreHealth::Degraded(why) if why.contains("-901 (RPC_TIMEOUT)"))
    );
    library.set("returns", -1);
    exists(&store);
    assert!(matches!(store.health(), StoreHealth::Degraded(_)));
    store.close();
    assert!(matches!(store.health(), StoreHealth::Down(_)));
}

#[test]
fn after_close_no_call_reaches_the_library() {
    let Some((library, store)) = faulty() else {
        return;
    };
    exists(&store);
    let calls = library.count("calls");
    store.close();
    store.close();
    all_are(&store, OpError::Unavailable);
    assert_eq!(remove(&store), [Err(OpError::Unavailable); 3]);
    let mut memory = [0u8; 64];
    let base = std::ptr::NonNull::new(memory.as_mut_ptr()).unwrap();
    // SAFETY: `memory` outlives the call, which is refused.
    assert!(unsafe { store.register(base, 64) }.is_err());
    // SAFETY: as above.
    assert!(unsafe { store.unregister(base, 64) }.is_err());
    assert_eq!(library.count("calls"), calls);
    drop(store);
    assert_eq!(
        (library.count("creates"), library.count("destroys")),
        (1, 1)
    );
}

/// Through the C++ shim: exceptions, and lists of another length.
#[test]
fn no_exception_leaves_the_shim() {
    let Some(library) = StandIn::compile(Kind::Store) else {
        return;
    };
    let store = library
        .open(&Master::listen().config(""))
        .expect("it opens");
    assert_eq!(put(&store), [Ok(StoreOutcome::Accepted); 3]);
    for fault in ["throw", "throw int", "short"] {
        library.tell(fault);
        all_are(&store, OpError::StoreInternal);
        assert_eq!(remove(&store), [Err(OpError::StoreInternal); 3]);
    }
    library.tell("");
    assert_eq!(
        exists(&store),
        [Ok(false); 3],
        "the deletes happened, with a result too few"
    );
}
