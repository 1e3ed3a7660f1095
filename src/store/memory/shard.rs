//! One shard of the memory store: a table of objects and the order in which they were last used.
//!
//! Objects stand in a slab; the table holds indices into it, and two doubly linked lists through it hold the order:
//!
//! ```text
//!   fresh:    oldest <-> ... <-> newest      stored, never read: no lease
//!   touched:  oldest <-> ... <-> newest      read or looked up at least once: each use moves it to the end
//! ```
//!
//! All leases have one length, so `touched` is in the order of lease ends as well: where its oldest has a lease, all
//! have one. The least recently used object without a lease is therefore the older of the two lists' oldest, and
//! every operation here takes constant time. (Calls at the same time may come out of the order of their beginnings;
//! an object can then stay for that difference after its lease, but never goes within it.)

use std::sync::Arc;

use hashbrown::HashTable;

/// A key and its bytes, in one allocation. A clone shares it, so that bytes are copied outside the shard's lock.
#[derive(Clone, Debug)]
pub(super) struct Object {
    /// The key, then the bytes.
    data: Arc<[u8]>,
    key_len: usize,
}

impl Object {
    pub(super) fn new(key: &[u8], bytes: &[u8]) -> Self {
        let mut data = Arc::<[u8]>::new_uninit_slice(key.len() + bytes.len());
        let place = Arc::get_mut(&mut data).expect("a new Arc has one owner");
        let (k, b) = place.split_at_mut(key.len());
        k.write_copy_of_slice(key);
        b.write_copy_of_slice(bytes);
        Self {
            // SAFETY: both halves of the slice, which are all of it, were written just above.
            data: unsafe { data.assume_init() },
            key_len: key.len(),
        }
    }

    fn key(&self) -> &[u8] {
        &self.data[..self.key_len]
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.data[self.key_len..]
    }

    /// Length of the bytes, without the key.
    pub(super) fn len(&self) -> usize {
        self.data.len() - self.key_len
    }
}

/// No node.
const NIL: u32 = u32::MAX;

const FRESH: usize = 0;
const TOUCHED: usize = 1;

struct Node {
    /// `None`: a free node, and `next` is the next free one.
    object: Option<Object>,
    hash: u64,
    /// When it was last used, in the store's count of uses.
    stamp: u64,
    /// Leased until then, in the clock's nanoseconds; 0: never leased.
    lease_end: u64,
    prev: u32,
    next: u32,
    /// [`FRESH`] or [`TOUCHED`].
    list: u8,
}

#[derive(Clone, Copy)]
struct List {
    oldest: u32,
    newest: u32,
}

/// How an [insert](Shard::insert) ended.
pub(super) enum Inserted {
    Yes,
    /// The key is there; the object comes back.
    AlreadyThere(Object),
    /// As many objects as a shard can count.
    Full(Object),
}

/// How a [removal](Shard::remove) ended.
pub(super) enum Removed {
    Yes(Object),
    Leased,
    NotFound,
}

pub(super) struct Shard {
    table: HashTable<u32>,
    nodes: Vec<Node>,
    free: u32,
    lists: [List; 2],
}

impl Shard {
    pub(super) fn new() -> Self {
        let empty = List {
            oldest: NIL,
            newest: NIL,
        };
        Self {
            table: HashTable::new(),
            nodes: Vec::new(),
            free: NIL,
            lists: [empty; 2],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Bytes of all objects, counted anew.
    #[cfg(test)]
    pub(super) fn count_bytes(&self) -> usize {
        let objects = self.table.iter().map(|i| &self.node(*i).object);
        objects.flatten().map(Object::len).sum()
    }

    /// How many nodes there are, free ones too.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn contains(&self, hash: u64, key: &[u8]) -> bool {
        self.find(hash, key).is_some()
    }

    /// A use of an object: it becomes the newest, leased until `lease_end` at least.
    pub(super) fn touch(
        &mut self,
        hash: u64,
        key: &[u8],
        stamp: u64,
        lease_end: u64,
    ) -> Option<&Object> {
        let i = self.find(hash, key)?;
        self.unlink(i);
        self.link(i, TOUCHED);
        let node = self.node_mut(i);
        node.stamp = stamp;
        node.lease_end = node.lease_end.max(lease_end);
        node.object.as_ref()
    }

    pub(super) fn insert(&mut self, hash: u64, key: &[u8], object: Object, stamp: u64) -> Inserted {
        if self.contains(hash, key) {
            return Inserted::AlreadyThere(object);
        }
        let Some(i) = self.vacant() else {
            return Inserted::Full(object);
        };
        let node = self.node_mut(i);
        node.object = Some(object);
        node.hash = hash;
        node.stamp = stamp;
        node.lease_end = 0;
        let nodes = &self.nodes;
        self.table
            .insert_unique(hash, i, |i| nodes[*i as usize].hash);
        self.link(i, FRESH);
        Inserted::Yes
    }

    pub(super) fn remove(&mut self, hash: u64, key: &[u8], now: u64, force: bool) -> Removed {
        let Some(i) = self.find(hash, key) else {
            return Removed::NotFound;
        };
        if !force && self.node(i).lease_end > now {
            return Removed::Leased;
        }
        self.take(i).map_or(Removed::NotFound, Removed::Yes)
    }

    /// When the least recently used object without a lease was last used.
    pub(super) fn oldest_unleased(&self, now: u64) -> Option<u64> {
        self.victim(now).map(|i| self.node(i).stamp)
    }

    /// Takes out the least recently used object without a lease.
    pub(super) fn evict(&mut self, now: u64) -> Option<Object> {
        self.victim(now).and_then(|i| self.take(i))
    }

    fn victim(&self, now: u64) -> Option<u32> {
        let [fresh, touched] = self.lists.map(|list| list.oldest);
        let touched = (touched != NIL && self.node(touched).lease_end <= now).then_some(touched);
        let fresh = (fresh != NIL).then_some(fresh);
        [fresh, touched]
            .into_iter()
            .flatten()
            .min_by_key(|i| self.node(*i).stamp)
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        let is_it = |i: &u32| {
            let node = self.node(*i);
            node.hash == hash && node.object.as_ref().is_some_and(|o| o.key() == key)
        };
        self.table.find(hash, is_it).copied()
    }

    /// A free node, out of the list of free ones; `None`: as many as can be counted.
    fn vacant(&mut self) -> Option<u32> {
        if self.free != NIL {
            let i = self.free;
            self.free = self.node(i).next;
            return Some(i);
        }
        let i = u32::try_from(self.nodes.len()).ok().filter(|i| *i != NIL)?;
        self.nodes.push(Node {
            object: None,
            hash: 0,
            stamp: 0,
            lease_end: 0,
            prev: NIL,
            next: NIL,
            list: FRESH as u8,
        });
        Some(i)
    }

    /// Takes a node out of table and list and frees it.
    fn take(&mut self, i: u32) -> Option<Object> {
        self.unlink(i);
        let hash = self.node(i).hash;
        if let Ok(entry) = self.table.find_entry(hash, |j| *j == i) {
            entry.remove();
        }
        let free = std::mem::replace(&mut self.free, i);
        let node = self.node_mut(i);
        node.next = free;
        node.object.take()
    }

    /// Puts a node that is in no list at the new end of `list`.
    fn link(&mut self, i: u32, list: usize) {
        let newest = std::mem::replace(&mut self.lists[list].newest, i);
        let node = self.node_mut(i);
        node.list = list as u8;
        node.prev = newest;
        node.next = NIL;
        match newest {
            NIL => self.lists[list].oldest = i,
            newest => self.node_mut(newest).next = i,
        }
    }

    /// Takes a node out of its list.
    fn unlink(&mut self, i: u32) {
        let &Node {
            prev, next, list, ..
        } = self.node(i);
        match prev {
            NIL => self.lists[list as usize].oldest = next,
            prev => self.node_mut(prev).next = next,
        }
        match next {
            NIL => self.lists[list as usize].newest = prev,
            next => self.node_mut(next).prev = prev,
        }
    }

    fn node(&self, i: u32) -> &Node {
        &self.nodes[i as usize]
    }

    fn node_mut(&mut self, i: u32) -> &mut Node {
        &mut self.nodes[i as usize]
    }
}
