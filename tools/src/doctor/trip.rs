//! One key there and back: stored, found, retrieved with the right bytes, deleted.

use moonring::{Blocking, ClientError, Engine, OpError, Slot, SlotPool};

use super::Progress;
use super::report::Check;
use crate::content::{Content, POISON};
use crate::keys::random_salt;
use crate::table::bytes;

const VALUE_BYTES: usize = 4096;
/// Longer than the value, so that its true length has to be told.
pub const SLOT_BYTES: usize = VALUE_BYTES + 64;
/// The value's, and the answer's.
pub const SLOTS: usize = 2;
/// Room for both.
pub const REGION_BYTES: usize = 64 << 10;

const NAME: &str = "round_trip";

/// Makes the trip. A store that moves no bytes is only asked for an answer.
pub fn check(engine: &Engine, slots: &SlotPool, moves_bytes: bool, progress: &Progress) -> Check {
    let client = engine.client();
    let client = client.blocking();
    // 128 random bits below a name of our own: no other has this key.
    let key = format!("moonring-doctor/{}{}", random_salt(), random_salt());
    if !moves_bytes {
        return match client.lookup(&key) {
            Ok(_) => Check::warn(
                NAME,
                "a lookup was answered; bytes were not checked, this store moves none",
                "take another type than null for more than benches",
            ),
            Err(error) => Failed::of("lookup", error).into_check(&key),
        };
    }
    match trip(&client, slots, &key, progress) {
        Ok(()) => Check::ok(
            NAME,
            format!(
                "a value of {} was stored, found, retrieved with the right bytes, and deleted",
                bytes(VALUE_BYTES as u64)
            ),
        ),
        Err(failed) => {
            let gone = client.delete_forced(&key);
            let gone = matches!(gone, Ok(()) | Err(ClientError::Failed(OpError::NotFound)));
            let mut check = failed.into_check(&key);
            if !gone {
                check.found += ", which may still be there";
            }
            check
        }
    }
}

/// Where it failed, how, and what to do.
struct Failed {
    found: String,
    todo: &'static str,
}

impl Failed {
    /// An op that did not go well.
    fn of(op: &str, error: ClientError) -> Self {
        let todo = match error {
            ClientError::Failed(OpError::NoSpace | OpError::NoSegment) => {
                "start a storage node (a client whose global_segment_size is over 0), or give it more memory"
            }
            ClientError::Failed(
                OpError::RpcFailed | OpError::RpcTimedOut | OpError::Unavailable,
            ) => "see the log of mooncake_master: it listens, but does not serve",
            ClientError::Failed(OpError::TransferFailed) => {
                "see whether the storage nodes run, and can be reached at the local_hostname that each was given"
            }
            ClientError::Failed(OpError::NotFound | OpError::LeaseExpired) => {
                "see whether the store is full: it evicts what was just stored"
            }
            _ => "see above, and in the store's logs, what it wrote",
        };
        Self {
            found: format!("{op}: {error}"),
            todo,
        }
    }

    /// An answer that can't be right.
    fn wrong(found: String) -> Self {
        let todo = "do not use this store: it does not give back what it was given";
        Self { found, todo }
    }

    fn into_check(self, key: &str) -> Check {
        let Self { found, todo } = self;
        Check::fail(NAME, format!("{found}; the key is {key}"), todo)
    }
}

fn trip(
    client: &Blocking<'_>,
    slots: &SlotPool,
    key: &str,
    progress: &Progress,
) -> Result<(), Failed> {
    let lookup = |when: &str, there: bool| {
        progress.at("lookup");
        match client.lookup(key) {
            Ok(found) if found == there => Ok(()),
            Ok(found) => Err(Failed::wrong(format!(
                "lookup {when}: {}",
                if found { "there" } else { "not there" }
            ))),
            Err(error) => Err(Failed::of(&format!("lookup {when}"), error)),
        }
    };
    let lend = |len: usize| -> Result<Slot, Failed> {
        slots.lend(len).ok_or_else(|| Failed {
            found: "no slot is free".to_owned(),
            todo: "please report it: the slots are the doctor's own",
        })
    };
    let content = Content::new(0, 0);

    lookup("before the store", false)?;
    let mut value = lend(VALUE_BYTES)?;
    content.fill(&mut value);
    progress.at("store");
    let stored = client.store(key, value);
    stored.result.map_err(|error| Failed::of("store", error))?;
    lookup("after the store", true)?;

    let mut answer = lend(SLOT_BYTES)?;
    answer.fill(POISON);
    progress.at("retrieve");
    let got = client.retrieve(key, answer);
    let len = got.result.map_err(|error| Failed::of("retrieve", error))?;
    if len != VALUE_BYTES as u64 {
        return Err(Failed::wrong(format!(
            "retrieve: {len} bytes, stored were {VALUE_BYTES}"
        )));
    }
    let bytes = got.slot.as_deref().and_then(|slot| slot.get(..VALUE_BYTES));
    let bytes =
        bytes.ok_or_else(|| Failed::wrong("retrieve: the buffer did not come back".into()))?;
    content.check(bytes).map_err(|wrong| {
        let (at, found, expected) = (wrong.offset, wrong.found, wrong.expected);
        Failed::wrong(format!(
            "retrieve: byte {at} is {found:#04x}, stored was {expected:#04x}"
        ))
    })?;

    // Forced: the lookup and the retrieve have taken leases.
    progress.at("delete");
    let deleted = client.delete_forced(key);
    deleted.map_err(|error| Failed::of("delete", error))?;
    lookup("after the delete", false)
}
