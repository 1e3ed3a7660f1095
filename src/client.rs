//! A client: any task's or thread's way to the engine, by futures.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::Shared;
use crate::future::{Ended, Many, Mapped, block_on};
use crate::store::RawResult;
use crate::submission::{Buffer, LANE_TIMEOUT, Submission, timeout_ns};
use crate::{Class, ClientError, Done, OpKind, Slot, StoreOutcome};

/// How an op with a slot ended, and the slot.
#[derive(Debug)]
#[must_use]
pub struct Returned<T> {
    /// How the op ended.
    pub result: Result<T, ClientError>,
    /// The slot that went in. `None` only where a store call may still be writing it (such a slot returns to its pool by itself).
    pub slot: Option<Slot>,
}

impl Returned<Done> {
    /// Of an op that was accepted.
    #[inline(always)]
    pub(crate) fn of(op: OpKind, result: RawResult, slot: Option<Slot>) -> Self {
        let result = match result {
            Ok(value) => Ok(Done::from_raw(op, value)),
            Err(error) => Err(ClientError::Failed(error)),
        };
        Self { result, slot }
    }
}

/// How many leading keys of a list are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The first `len` keys are there.
    pub len: usize,
    /// Why nothing is known of the next key. `None`: it is not there, or there is none.
    pub unknown: Option<ClientError>,
}

/// Any task's way to the engine: `Clone`, `Send` and `Sync`.
///
/// All clients share the engine's MPMC rings and one in-flight table (`ring_depth` ops). Each clone counts as a caller
/// of its own in the statistics.
///
/// # Futures
/// An op is submitted when its method is called, if a credit is free; so several can be in flight before the first is
/// awaited. Without a free credit the future waits for one when it is polled; it needs no runtime.
/// Credits that come back go to those who wait, in their order; a future that was woken for one and is neither polled nor dropped
/// keeps it from the others.
/// **Dropping a future does not cancel its op**: it goes on, and slot and credit return by themselves
/// ([`with_cancel_on_drop`](Client::with_cancel_on_drop) changes that).
///
/// A task that awaits an op is woken from a worker's thread. On a runtime with an I/O driver each such wake is a system call. The forms for many keys
/// ([`lookup_many`](Self::lookup_many)) wake once for all; for tasks that stay on one thread there is [`LocalClient`](crate::LocalClient), which wakes them there.
///
/// ```
/// # use moonring::{Engine, Region, RegionOptions, SlotClass, store::{MemoryOptions, MemoryStore}};
/// # use std::sync::Arc;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let region = Region::allocate(RegionOptions::new(1 << 20))?;
/// # let slots = region.slot_pool(&[SlotClass { size: 4096, count: 8 }])?;
/// # let engine = Engine::builder(Arc::new(MemoryStore::new(MemoryOptions::default())?)).region(region).start()?;
/// let client = engine.client();
/// let work = async {
///     let mut slot = slots.lend(5).ok_or("no slot")?;
///     slot.copy_from_slice(b"hello");
///     let stored = client.store("key", slot).await;
///     stored.result?;
///     let got = client.retrieve("key", stored.slot.ok_or("no slot")?).await;
///     assert_eq!(got.result?, 5);
///     Ok::<_, Box<dyn std::error::Error>>(())
/// };
/// # moonring::block_on(work)
/// # }
/// ```
#[derive(Debug)]
pub struct Client {
    pub(crate) engine: Arc<Shared>,
    pub(crate) caller: u16,
    pub(crate) options: OpOptions,
}

/// What a client's ops have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpOptions {
    pub(crate) class: Class,
    /// As in a [`Submission`].
    pub(crate) timeout: u64,
    pub(crate) cancel_on_drop: bool,
}

impl Default for OpOptions {
    fn default() -> Self {
        Self {
            class: Class::default(),
            timeout: LANE_TIMEOUT,
            cancel_on_drop: false,
        }
    }
}

impl OpOptions {
    pub(crate) fn apply(self, mut submission: Submission<'_>) -> Submission<'_> {
        submission.class = self.class;
        submission.timeout = self.timeout;
        submission
    }
}

impl Clone for Client {
    fn clone(&self) -> Self {
        self.with(self.options)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.engine.client_handles.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A key of a client's op.
pub trait AsKey: AsRef<[u8]> {}
impl<T: AsRef<[u8]> + ?Sized> AsKey for T {}

impl Client {
    pub(crate) fn new(engine: Arc<Shared>, options: OpOptions) -> Self {
        let caller = engine.clients.next_caller();
        engine.client_handles.fetch_add(1, Ordering::Relaxed);
        Self {
            engine,
            caller,
            options,
        }
    }

    /// One more client, with these options.
    fn with(&self, options: OpOptions) -> Self {
        Self::new(Arc::clone(&self.engine), options)
    }

    /// A client whose ops may take so long, in place of their lane's `timeout_ms`; `None`: as long as it takes.
    ///
    /// An op's time begins when it gets its credit. When it is up, its future is ready with
    /// [`OpError::TimedOut`](crate::OpError::TimedOut); a slot that a store call may still be writing returns to its pool
    /// by itself.
    #[must_use]
    pub fn with_timeout(&self, timeout: Option<Duration>) -> Client {
        let timeout = timeout_ns(timeout);
        self.with(OpOptions {
            timeout,
            ..self.options
        })
    }

    /// A client whose ops are cancelled when their future is dropped: one that no store call has taken then is never
    /// started, and its slot is back in its pool when the drop returns. One that a call has taken goes on.
    #[must_use]
    pub fn with_cancel_on_drop(&self) -> Client {
        self.with(OpOptions {
            cancel_on_drop: true,
            ..self.options
        })
    }

    /// A client whose ops are [`Class::Background`]: they can wait, for prefetches, write-backs and clean-up.
    ///
    /// It counts as a caller of its own, as a clone does, and its clones are background, too. Credits are not divided
    /// between the classes: a background batch of more than `ring_depth` ops uses all that are free, and foreground
    /// ops of clients then wait for one until it comes back. Keep such batches shorter, or give them a
    /// [`Pair`](crate::Pair), which has credits of its own.
    ///
    /// ```
    /// # use moonring::{Engine, store::NullStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = Engine::builder(std::sync::Arc::new(NullStore)).start()?;
    /// let client = engine.client();
    /// let cleaner = client.background();
    /// cleaner.blocking().delete("old")?;
    /// # Ok(()) }
    /// ```
    pub fn background(&self) -> Client {
        let class = Class::Background;
        self.with(OpOptions {
            class,
            ..self.options
        })
    }

    /// Is an object with this key there? An error means *unknown*.
    pub fn lookup<'a>(
        &'a self,
        key: &'a (impl AsKey + ?Sized),
    ) -> impl Future<Output = Result<bool, ClientError>> + Send + 'a {
        Mapped::start(self, Submission::lookup(key), |(result, _): Ended| {
            result.map(|value| value != 0)
        })
    }

    /// Reads the object into the slot's first `slot.len()` bytes; gives its true length in bytes.
    ///
    /// Bytes of the slot behind the object are untouched; after an error the slot's content is undefined.
    pub fn retrieve<'a>(
        &'a self,
        key: &'a (impl AsKey + ?Sized),
        slot: Slot,
    ) -> impl Future<Output = Returned<u64>> + Send + 'a {
        Mapped::start(self, Submission::retrieve(key, slot), |ended| {
            returned(ended, |len| len)
        })
    }

    /// As [`retrieve`](Client::retrieve); an object of another length than `slot.len()` is an error.
    pub fn retrieve_exact<'a>(
        &'a self,
        key: &'a (impl AsKey + ?Sized),
        slot: Slot,
    ) -> impl Future<Output = Returned<u64>> + Send + 'a {
        Mapped::start(self, Submission::retrieve(key, slot).exact(), |ended| {
            returned(ended, |len| len)
        })
    }

    /// Writes the slot's first `slot.len()` bytes as the object.
    pub fn store<'a>(
        &'a self,
        key: &'a (impl AsKey + ?Sized),
        slot: Slot,
    ) -> impl Future<Output = Returned<StoreOutcome>> + Send + 'a {
        Mapped::start(self, Submission::store(key, slot), |ended| {
            returned(ended, StoreOutcome::from_raw)
        })
    }

    /// Removes the object; a leased one is [`OpError::Leased`](crate::OpError::Leased).
    pub fn delete<'a>(
        &'a self,
        key: &'a (impl AsKey + ?Sized),
    ) -> impl Future<Output = Result<(), ClientError>> + Send + 'a {
        Mapped::start(self, Submission::delete(key), |(result, _): Ended| {
            result.map(drop)
        })
    }

    /// Removes the object, leased or not.
    pub fn delete_forced<'a>(
        &'a self,
        key: &'a (impl AsKey + ?Sized),
    ) -> impl Future<Output = Result<(), ClientError>> + Send + 'a {
        Mapped::start(
            self,
            Submission::delete(key).force(),
            |(result, _): Ended| result.map(drop),
        )
    }

    /// Looks many keys up. `out` is emptied and filled with one answer per key, in the order of the keys.
    ///
    /// The batch forms submit as many ops as there are credits, by one publication, and the rest as credits come back; they
    /// allocate nothing unless `out` must grow. A key that is refused fails alone.
    pub fn lookup_many<'a, K: AsKey + Send + 'a>(
        &'a self,
        keys: impl IntoIterator<Item = K, IntoIter: Send> + 'a,
        out: &'a mut Vec<Result<bool, ClientError>>,
    ) -> impl Future<Output = ()> + Send + 'a {
        out.clear();
        self.many(
            OpKind::Lookup,
            keys.into_iter().map(|key| (key, None)),
            |raw, _| {
                out.push(raw.map(|value| value != 0));
            },
        )
    }

    /// Retrieves many objects. `out` is emptied and filled with one result per item, in the order of the items.
    pub fn retrieve_many<'a, K: AsKey + Send + 'a>(
        &'a self,
        items: impl IntoIterator<Item = (K, Slot), IntoIter: Send> + 'a,
        out: &'a mut Vec<Returned<u64>>,
    ) -> impl Future<Output = ()> + Send + 'a {
        out.clear();
        self.many(
            OpKind::Retrieve,
            items.into_iter().map(some_slot),
            |raw, slot| {
                out.push(returned((raw, slot), |len| len));
            },
        )
    }

    /// Stores many objects. `out` is emptied and filled with one result per item, in the order of the items.
    pub fn store_many<'a, K: AsKey + Send + 'a>(
        &'a self,
        items: impl IntoIterator<Item = (K, Slot), IntoIter: Send> + 'a,
        out: &'a mut Vec<Returned<StoreOutcome>>,
    ) -> impl Future<Output = ()> + Send + 'a {
        out.clear();
        self.many(
            OpKind::Store,
            items.into_iter().map(some_slot),
            |raw, slot| {
                out.push(returned((raw, slot), StoreOutcome::from_raw));
            },
        )
    }

    /// Deletes many objects. `out` is emptied and filled with one result per key, in the order of the keys.
    pub fn delete_many<'a, K: AsKey + Send + 'a>(
        &'a self,
        keys: impl IntoIterator<Item = K, IntoIter: Send> + 'a,
        out: &'a mut Vec<Result<(), ClientError>>,
    ) -> impl Future<Output = ()> + Send + 'a {
        out.clear();
        self.many(
            OpKind::Delete,
            keys.into_iter().map(|key| (key, None)),
            |raw, _| {
                out.push(raw.map(drop));
            },
        )
    }

    /// How many leading keys are there.
    ///
    /// All keys are looked up together; the first that is not there, or of which nothing is known, ends the prefix.
    pub fn lookup_prefix<'a, K: AsKey + Send + 'a>(
        &'a self,
        keys: impl IntoIterator<Item = K, IntoIter: Send> + 'a,
    ) -> impl Future<Output = Prefix> + Send + 'a {
        let keys = keys.into_iter().map(|key| (key, None));
        async move {
            let mut prefix = Prefix {
                len: 0,
                unknown: None,
            };
            let mut ended = false;
            self.many(OpKind::Lookup, keys, |raw, _| match raw {
                _ if ended => {}
                Ok(value) if value != 0 => prefix.len += 1,
                Ok(_) => ended = true,
                Err(error) => {
                    ended = true;
                    prefix.unknown = Some(error);
                }
            })
            .await;
            prefix
        }
    }

    fn many<'a, K, I, F>(&'a self, op: OpKind, items: I, each: F) -> Many<'a, K, I, F>
    where
        K: AsKey,
        I: Iterator<Item = (K, Option<Slot>)>,
        F: FnMut(Result<u64, ClientError>, Option<Slot>),
    {
        Many::new(self, op, items, each)
    }

    /// The same ops for threads that block.
    pub fn blocking(&self) -> Blocking<'_> {
        Blocking(self)
    }
}

fn some_slot<K>((key, slot): (K, Slot)) -> (K, Option<Slot>) {
    (key, Some(slot))
}

fn returned<T>(
    (raw, slot): (Result<u64, ClientError>, Option<Slot>),
    value: impl FnOnce(u64) -> T,
) -> Returned<T> {
    Returned {
        result: raw.map(value),
        slot,
    }
}

pub(crate) fn submission_of<'k>(
    op: OpKind,
    key: &'k [u8],
    slot: Option<Slot>,
    options: OpOptions,
) -> Submission<'k> {
    options.apply(Submission {
        op,
        key,
        buffer: slot.map_or(Buffer::None, Buffer::Slot),
        user_data: 0,
        timeout: LANE_TIMEOUT,
        flags: 0,
        class: Class::default(),
    })
}

pub(crate) fn client_result(raw: RawResult) -> Result<u64, ClientError> {
    raw.map_err(ClientError::Failed)
}

/// A client's ops for threads that block. Each waits as [`block_on`] does.
///
/// Don't call these from a waker or from a store's own call: the worker would wait for itself.
#[derive(Clone, Copy, Debug)]
pub struct Blocking<'a>(&'a Client);

impl<'a> Blocking<'a> {
    /// See [`Client::lookup`].
    pub fn lookup(&self, key: &(impl AsKey + ?Sized)) -> Result<bool, ClientError> {
        block_on(self.0.lookup(key))
    }

    /// See [`Client::retrieve`].
    pub fn retrieve(&self, key: &(impl AsKey + ?Sized), slot: Slot) -> Returned<u64> {
        block_on(self.0.retrieve(key, slot))
    }

    /// See [`Client::retrieve_exact`].
    pub fn retrieve_exact(&self, key: &(impl AsKey + ?Sized), slot: Slot) -> Returned<u64> {
        block_on(self.0.retrieve_exact(key, slot))
    }

    /// See [`Client::store`].
    pub fn store(&self, key: &(impl AsKey + ?Sized), slot: Slot) -> Returned<StoreOutcome> {
        block_on(self.0.store(key, slot))
    }

    /// See [`Client::delete`].
    pub fn delete(&self, key: &(impl AsKey + ?Sized)) -> Result<(), ClientError> {
        block_on(self.0.delete(key))
    }

    /// See [`Client::delete_forced`].
    pub fn delete_forced(&self, key: &(impl AsKey + ?Sized)) -> Result<(), ClientError> {
        block_on(self.0.delete_forced(key))
    }

    /// See [`Client::lookup_many`].
    pub fn lookup_many<K: AsKey + Send>(
        &self,
        keys: impl IntoIterator<Item = K, IntoIter: Send>,
        out: &mut Vec<Result<bool, ClientError>>,
    ) {
        block_on(self.0.lookup_many(keys, out));
    }

    /// See [`Client::retrieve_many`].
    pub fn retrieve_many<K: AsKey + Send>(
        &self,
        items: impl IntoIterator<Item = (K, Slot), IntoIter: Send>,
        out: &mut Vec<Returned<u64>>,
    ) {
        block_on(self.0.retrieve_many(items, out));
    }

    /// See [`Client::store_many`].
    pub fn store_many<K: AsKey + Send>(
        &self,
        items: impl IntoIterator<Item = (K, Slot), IntoIter: Send>,
        out: &mut Vec<Returned<StoreOutcome>>,
    ) {
        block_on(self.0.store_many(items, out));
    }

    /// See [`Client::delete_many`].
    pub fn delete_many<K: AsKey + Send>(
        &self,
        keys: impl IntoIterator<Item = K, IntoIter: Send>,
        out: &mut Vec<Result<(), ClientError>>,
    ) {
        block_on(self.0.delete_many(keys, out));
    }

    /// See [`Client::lookup_prefix`].
    pub fn lookup_prefix<K: AsKey + Send>(
        &self,
        keys: impl IntoIterator<Item = K, IntoIter: Send>,
    ) -> Prefix {
        block_on(self.0.lookup_prefix(keys))
    }
}
