//! The store of the script: a map, behind calls that the world hears of.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use moonring::store::{
    CallResult, Capabilities, DeleteBatch, LookupBatch, RetrieveBatch, Store, StoreBatch,
};
use moonring::{OpError, OpKind, StoreOutcome};

use super::model::{CallFault, KeyFault, is_leased};
use super::world;

/// A store call as it came.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    pub kind: OpKind,
    pub force: bool,
    pub keys: Vec<Vec<u8>>,
    pub bytes: Vec<Option<(usize, usize)>>,
}

/// What a call is to do.
pub struct Orders {
    pub fault: CallFault,
    pub faults: Vec<KeyFault>,
}

#[derive(Default)]
pub struct Scripted {
    objects: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
}

impl Scripted {
    pub fn objects(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Vec<u8>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One call: the world hears of it and says what it is to do, `each` does it for one key.
fn call(seen: Seen, mut each: impl FnMut(usize, KeyFault)) -> CallResult {
    let n = seen.keys.len();
    let Some(orders) = world::called(seen) else {
        return Ok(n);
    };
    match orders.fault {
        CallFault::Error(error) => return Err(error),
        // No hook hears of it.
        CallFault::Panic => std::panic::resume_unwind(Box::new("the store panics")),
        CallFault::None | CallFault::WrongCount(_) => {}
    }
    for (i, &fault) in orders.faults.iter().enumerate() {
        each(i, fault);
    }
    world::returning();
    Ok(match orders.fault {
        CallFault::WrongCount(by) => n.saturating_add_signed(by as isize),
        _ => n,
    })
}

macro_rules! seen {
    ($kind:expr, $batch:expr, $force:expr, $bytes:expr) => {
        Seen {
            kind: $kind,
            force: $force,
            keys: (0..$batch.len()).map(|i| $batch.key(i).to_vec()).collect(),
            bytes: (0..$batch.len()).map($bytes).collect(),
        }
    };
}

impl Store for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        let seen = seen!(OpKind::Lookup, batch, false, |_| None);
        call(seen, |i, fault| match fault {
            KeyFault::Error(error) => batch.set(i, Err(error)),
            KeyFault::Untold => {}
            _ => batch.set(i, Ok(self.objects().contains_key(batch.key(i)))),
        })
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        let seen = seen!(OpKind::Retrieve, batch, false, |i| Some((
            batch.bufs()[i].addr(),
            batch.buf_lens()[i]
        )));
        call(seen, |i, fault| match fault {
            KeyFault::Error(error) => batch.set(i, Err(error)),
            KeyFault::TooLong => batch.set(i, Ok(batch.buf_lens()[i] as u64 + 1)),
            _ => {
                let object = self.objects().get(batch.key(i)).cloned();
                match object {
                    Some(object) => batch.fill(i, &object),
                    None => batch.set(i, Err(OpError::NotFound)),
                }
                if fault == KeyFault::Untold {
                    batch.set(i, Err(OpError::BadResult));
                }
            }
        })
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        let seen = seen!(OpKind::Store, batch, false, |i| Some((
            batch.bufs()[i].addr(),
            batch.buf_lens()[i]
        )));
        call(seen, |i, fault| {
            if let KeyFault::Error(error) = fault {
                return batch.set(i, Err(error));
            }
            let mut objects = self.objects();
            let outcome = match objects.contains_key(batch.key(i)) {
                true => StoreOutcome::AlreadyThere,
                false => {
                    objects.insert(batch.key(i).to_vec(), batch.bytes(i).to_vec());
                    StoreOutcome::Stored
                }
            };
            if fault != KeyFault::Untold {
                batch.set(i, Ok(outcome));
            }
        })
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        let seen = seen!(OpKind::Delete, batch, batch.force(), |_| None);
        call(seen, |i, fault| {
            if let KeyFault::Error(error) = fault {
                return batch.set(i, Err(error));
            }
            let mut objects = self.objects();
            let gone = match objects.contains_key(batch.key(i)) {
                false => Err(OpError::NotFound),
                true if is_leased(batch.key(i)) && !batch.force() => Err(OpError::Leased),
                true => {
                    objects.remove(batch.key(i));
                    Ok(())
                }
            };
            if fault != KeyFault::Untold {
                batch.set(i, gone);
            }
        })
    }
}
