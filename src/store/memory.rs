//! The `memory` store: a real, sharded store inside the process.
//!
//! # What it promises
//! It answers as Mooncake does, where Mooncake's answer is not a trap:
//! - Objects are immutable: a put of a key that is there leaves the old bytes and says
//!   [`AlreadyThere`](StoreOutcome::AlreadyThere). It is no use of the object.
//! - A retrieve and a lookup take a **lease** on the object (also a retrieve that fails for a short buffer), which
//!   runs from the beginning of the call and keeps it from being evicted, and from being removed without `force`. A put
//!   takes none.
//! - A put into a full store evicts the **least recently used** objects without a lease. Where that doesn't make room,
//!   it is [`NoSpace`](OpError::NoSpace); what was evicted on the way is gone. An object longer than the capacity evicts nothing.
//! - **Capacity** counts the bytes of the values, exactly, and is never exceeded. Keys and
//!   bookkeeping come on top: an object's key and some 100 to 200 bytes (`tests/store_memory_footprint.rs` measures it). A put counts from before its bytes are copied.
//!   A retrieve under way keeps the memory of its object, also of one that was evicted meanwhile, until its bytes are copied.
//! - A missing key, a lease or a lack of room is one key's result, never another's.
//!
//! # How
//! A key's hash chooses one of the shards, each a table with a lock of its own that is held for one key at a
//! time and never while bytes are copied. Each use of an object has a number in a count over the whole store; an eviction
//! asks every shard for the number of its oldest object and takes the least. With one caller that is the exact
//! order of use; calls at the same time are ordered by when they began.
//!
//! # Limits
//! An eviction looks at every shard, so that more of them make puts into a full store dearer. A shard's table grows by
//! doubling, which moves its entries (not the bytes) under its lock.

mod clock;
mod registrations;
mod shard;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, Hasher};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use foldhash::fast::RandomState;

pub use clock::{Clock, ManualClock};
use registrations::Registrations;
use shard::{Inserted, Object, Removed, Shard};

use super::{
    CallResult, Capabilities, DeleteBatch, LookupBatch, OptionError, RegisterError, RetrieveBatch,
    Store, StoreBatch,
};
use crate::{OpError, StoreOutcome};

/// Options of a [`MemoryStore`].
///
/// | option | default | reason |
/// | --- | --- | --- |
/// | `capacity` | 2 GiB | holds an hour of a busy chat service in small blocks |
/// | `lease` | 10 s | Mooncake's, as measured |
/// | `shards` | 16 | a lock is held for tens of nanoseconds; an eviction looks at each shard |
/// | `clock` | monotonic | |
/// | `needs_registration` | false | any memory can be copied |
/// | `max_registration` | none | as above |
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Bytes that the values of all objects may take together; at least 1.
    pub capacity: usize,
    /// How long an object stays leased from its last retrieve or lookup. Zero: never leased.
    pub lease: Duration,
    /// Number of shards: 1 to [`MAX_SHARDS`](Self::MAX_SHARDS).
    pub shards: usize,
    /// What leases are measured with.
    pub clock: Clock,
    /// Behaves as over rdma: a buffer outside any one registered piece of memory is
    /// [`InvalidArgument`](OpError::InvalidArgument).
    pub needs_registration: bool,
    /// The longest piece of memory, in bytes, that one registration takes; at least 1.
    pub max_registration: Option<usize>,
}

impl MemoryOptions {
    /// The most shards.
    pub const MAX_SHARDS: usize = 1024;

    /// Whether the options make sense.
    ///
    /// # Errors
    /// Names the first field that doesn't.
    pub fn validate(&self) -> Result<(), OptionError> {
        if self.capacity == 0 {
            return Err(OptionError::new("capacity", "0 bytes; must be at least 1"));
        }
        if !(1..=Self::MAX_SHARDS).contains(&self.shards) {
            let reason = format!("{}; must be 1 to {}", self.shards, Self::MAX_SHARDS);
            return Err(OptionError::new("shards", reason));
        }
        if self.max_registration == Some(0) {
            let reason = "0 bytes; must be at least 1";
            return Err(OptionError::new("max_registration", reason));
        }
        Ok(())
    }
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            capacity: 2 << 30,
            lease: Duration::from_secs(10),
            shards: 16,
            clock: Clock::monotonic(),
            needs_registration: false,
            max_registration: None,
        }
    }
}

/// A store inside the process. See the [module's page](self).
pub struct MemoryStore {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Bytes of all objects, and of those that are about to be inserted. Only ever compared with `capacity`, and
    /// nothing is published with it: relaxed throughout.
    used: CachePadded<AtomicUsize>,
    /// The count of uses. Only its order matters: relaxed throughout.
    uses: CachePadded<AtomicU64>,
    evictions: AtomicU64,
    hasher: RandomState,
    capacity: usize,
    lease_ns: u64,
    clock: Clock,
    needs_registration: bool,
    max_registration: Option<usize>,
    registrations: RwLock<Registrations>,
}

/// One call's time, taken once: its beginning, and the numbers of its uses.
#[derive(Clone, Copy)]
struct Call {
    now: u64,
    lease_end: u64,
    first_use: u64,
}

impl MemoryStore {
    /// An empty store.
    ///
    /// # Errors
    /// As [`MemoryOptions::validate`].
    pub fn new(options: MemoryOptions) -> Result<Self, OptionError> {
        options.validate()?;
        let shards = (0..options.shards).map(|_| CachePadded::new(Mutex::new(Shard::new())));
        Ok(Self {
            shards: shards.collect(),
            used: CachePadded::default(),
            uses: CachePadded::default(),
            evictions: AtomicU64::new(0),
            hasher: RandomState::default(),
            capacity: options.capacity,
            lease_ns: clock::nanos(options.lease),
            clock: options.clock,
            needs_registration: options.needs_registration,
            max_registration: options.max_registration,
            registrations: RwLock::default(),
        })
    }

    /// Bytes of values that it may hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of values that it holds, with those of puts under way. Never more than [`capacity`](Self::capacity).
    pub fn used_bytes(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// How many objects it holds; counted shard by shard, so inexact while others put and remove.
    pub fn objects(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// How many objects it has evicted.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Relaxed)
    }

    /// How many pieces of memory are registered.
    pub fn registrations(&self) -> usize {
        let table = self.registrations.read();
        table.unwrap_or_else(PoisonError::into_inner).len()
    }

    fn call(&self, keys: usize) -> Call {
        let now = self.clock.now_ns();
        Call {
            now,
            // No lease at all must not end at a time that a call which began earlier still takes for the future.
            lease_end: match self.lease_ns {
                0 => 0,
                ns => now.saturating_add(ns),
            },
            first_use: self.uses.fetch_add(keys as u64, Relaxed),
        }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // From the middle of the hash: the table within uses its lowest bits and its highest seven.
        let part = (hash >> 32) as usize & 0xffff;
        lock(&self.shards[(part * self.shards.len()) >> 16])
    }

    /// Adds `len` to `used`, evicting where that is needed; false: there is no room.
    fn reserve(&self, len: usize, now: u64) -> bool {
        if len > self.capacity {
            return false;
        }
        let fits = |used: usize| used.checked_add(len).filter(|sum| *sum <= self.capacity);
        while self.used.fetch_update(Relaxed, Relaxed, fits).is_err() {
            if !self.evict_one(now) {
                return false;
            }
        }
        true
    }

    fn release(&self, len: usize) {
        self.used.fetch_sub(len, Relaxed);
    }

    /// Evicts the least recently used object without a lease; false: there is none.
    fn evict_one(&self, now: u64) -> bool {
        loop {
            let oldest = |shard: &'_ CachePadded<Mutex<Shard>>| lock(shard).oldest_unleased(now);
            let candidates = self.shards.iter().filter_map(|s| Some((oldest(s)?, s)));
            let Some((_, shard)) = candidates.min_by_key(|(stamp, _)| *stamp) else {
                return false;
            };
            // Dropped after the lock. `None`: somebody read or removed it since; look again.
            let evicted = lock(shard).evict(now);
            if let Some(object) = evicted {
                self.release(object.len());
                self.evictions.fetch_add(1, Relaxed);
                return true;
            }
        }
    }

    fn put(&self, key: &[u8], bytes: &[u8], now: u64, stamp: u64) -> Result<StoreOutcome, OpError> {
        if key.is_empty() || bytes.is_empty() {
            return Err(OpError::InvalidArgument);
        }
        let hash = self.hash(key);
        if self.shard(hash).contains(hash, key) {
            return Ok(StoreOutcome::AlreadyThere);
        }
        if !self.reserve(bytes.len(), now) {
            return Err(OpError::NoSpace);
        }
        let object = Object::new(key, bytes);
        let inserted = self.shard(hash).insert(hash, key, object, stamp);
        match inserted {
            Inserted::Yes => Ok(StoreOutcome::Stored),
            Inserted::AlreadyThere(object) => {
                self.release(object.len());
                Ok(StoreOutcome::AlreadyThere)
            }
            Inserted::Full(object) => {
                self.release(object.len());
                Err(OpError::NoSpace)
            }
        }
    }

    /// The table that buffers are looked up in, where they must be.
    fn must_cover(&self) -> Option<RwLockReadGuard<'_, Registrations>> {
        let read = || self.registrations.read();
        let table = self.needs_registration.then(read)?;
        Some(table.unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store for MemoryStore {
    fn name(&self) -> &str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            needs_registration: self.needs_registration,
            max_registration: self.max_registration,
            tells_stored: true,
            leases: true,
        }
    }

    unsafe fn register(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        let table = self.registrations.write();
        let mut table = table.unwrap_or_else(PoisonError::into_inner);
        table.add(base.addr().get(), len, self.max_registration)
    }

    unsafe fn unregister(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        let table = self.registrations.write();
        let mut table = table.unwrap_or_else(PoisonError::into_inner);
        table.remove(base.addr().get(), len)
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        let call = self.call(batch.len());
        for i in 0..batch.len() {
            let key = batch.key(i);
            let hash = self.hash(key);
            let stamp = call.first_use + i as u64;
            let found = self
                .shard(hash)
                .touch(hash, key, stamp, call.lease_end)
                .is_some();
            batch.set(i, Ok(found));
        }
        Ok(batch.len())
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        let call = self.call(batch.len());
        let registered = self.must_cover();
        for i in 0..batch.len() {
            if let Some(table) = &registered
                && !table.covers(batch.bufs()[i].addr(), batch.buf_lens()[i])
            {
                batch.set(i, Err(OpError::InvalidArgument));
                continue;
            }
            let key = batch.key(i);
            let hash = self.hash(key);
            let stamp = call.first_use + i as u64;
            let found = self
                .shard(hash)
                .touch(hash, key, stamp, call.lease_end)
                .cloned();
            match found {
                Some(object) => batch.fill(i, object.bytes()),
                None => batch.set(i, Err(OpError::NotFound)),
            }
        }
        Ok(batch.len())
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        let call = self.call(batch.len());
        let registered = self.must_cover();
        for i in 0..batch.len() {
            if let Some(table) = &registered
                && !table.covers(batch.bufs()[i].addr(), batch.buf_lens()[i])
            {
                batch.set(i, Err(OpError::InvalidArgument));
                continue;
            }
            let stamp = call.first_use + i as u64;
            let outcome = self.put(batch.key(i), batch.bytes(i), call.now, stamp);
            batch.set(i, outcome);
        }
        Ok(batch.len())
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        let now = self.clock.now_ns();
        for i in 0..batch.len() {
            let key = batch.key(i);
            let hash = self.hash(key);
            let removed = self.shard(hash).remove(hash, key, now, batch.force());
            batch.set(
                i,
                match removed {
                    Removed::Yes(object) => {
                        self.release(object.len());
                        Ok(())
                    }
                    Removed::Leased => Err(OpError::Leased),
                    Removed::NotFound => Err(OpError::NotFound),
                },
            );
        }
        Ok(batch.len())
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore")
            .field("capacity", &self.capacity)
            .field("used_bytes", &self.used_bytes())
            .field("objects", &self.objects())
            .field("evictions", &self.evictions())
            .finish_non_exhaustive()
    }
}

/// Nothing under a shard's lock can leave it half changed, so a poisoned one is as good as another.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
