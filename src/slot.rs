//! Slots: owned parts of a region, lent from a pool and returned to it by being dropped.
//!
//! ```text
//!  free queue of its class ──lend──▶ Slot, the one owner of its bytes ──drop──▶ the same queue
//! ```
//! The queue holds the offsets of the free slots. A `Slot` can be neither cloned nor made up, so an offset is
//! either in the queue or in one `Slot`: it can't come back twice, nor to another pool.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use crate::fork::ForkWord;
use crate::region::{Pieces, Region, RegionError, Span};

/// Slots of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotClass {
    /// Capacity of each slot in bytes.
    pub size: usize,
    /// How many slots.
    pub count: usize,
}

/// How the slots of a pool lie in the region.
///
/// | field | default | why |
/// | --- | --- | --- |
/// | `align` | 64 | no two slots share a cache line |
/// | `max_registration` | none | tcp needs no registration |
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct SlotPoolOptions {
    align: usize,
    max_registration: Option<NonZeroUsize>,
}

impl Default for SlotPoolOptions {
    fn default() -> Self {
        Self {
            align: 64,
            max_registration: None,
        }
    }
}

impl SlotPoolOptions {
    /// Alignment of the address of each slot: a power of two.
    pub fn align(mut self, align: usize) -> Self {
        self.align = align;
        self
    }

    /// The largest piece in bytes that the store registers at once, as its
    /// [`Capabilities`](crate::store::Capabilities) say: no slot is then laid across two pieces, where
    /// every op with it would be refused.
    pub fn max_registration(mut self, bytes: NonZeroUsize) -> Self {
        self.max_registration = Some(bytes);
        self
    }
}

/// Slots of one or several sizes, carved from a region.
///
/// A handle: clones mean the same slots. A pool and its slots keep the region's memory alive, and slots that are
/// out keep the pool's insides alive, so these may be dropped in any order. The bytes that a pool was carved from
/// are not carved again, even when it is gone.
///
/// Lending and returning take no lock and allocate nothing. They are not wait-free: a thread that was stopped
/// between the two steps of a `lend` or a return can make another wait for it that comes to the same place of the
/// queue, a whole round later.
#[derive(Clone)]
pub struct SlotPool {
    shared: Arc<Shared>,
}

struct Shared {
    region: Region,
    /// By size, smallest first.
    classes: Box<[Class]>,
    /// In a child a queue may stand still for ever, between the two steps of a thread that is not there.
    alive: ForkWord,
}

struct Class {
    size: usize,
    /// Offsets of the free slots; has room for all.
    free: ArrayQueue<usize>,
}

impl Region {
    /// A pool of slots, in the part of the region that no pool was carved from yet.
    ///
    /// # Errors
    /// [`RegionError::Invalid`] for no class, a size or a count of zero; [`RegionError::NoRoom`]. Nothing is
    /// carved then.
    pub fn slot_pool(&self, classes: &[SlotClass]) -> Result<SlotPool, RegionError> {
        self.slot_pool_with(classes, SlotPoolOptions::default())
    }

    /// [`slot_pool`](Region::slot_pool) with options.
    ///
    /// # Errors
    /// As there; also for an alignment that is not a power of two, and for slots that fit between no two
    /// registration boundaries.
    pub fn slot_pool_with(
        &self,
        classes: &[SlotClass],
        options: SlotPoolOptions,
    ) -> Result<SlotPool, RegionError> {
        let base = self.base().addr().get();
        let classes = self.carve(|start| lay_out(base, self.len(), start, classes, options))?;
        Ok(SlotPool {
            shared: Arc::new(Shared {
                region: self.clone(),
                classes,
                alive: ForkWord::new(1),
            }),
        })
    }
}

/// Places all slots from `start` on, in the order of the classes. Returns them, smallest first, and the offset
/// behind the last one, which may lie beyond the region.
fn lay_out(
    base: usize,
    region_len: usize,
    start: usize,
    classes: &[SlotClass],
    options: SlotPoolOptions,
) -> Result<(Box<[Class]>, usize), RegionError> {
    if classes.is_empty() {
        return Err(RegionError::invalid("classes", "none"));
    }
    if !options.align.is_power_of_two() {
        let reason = format!("{} is not a power of two", options.align);
        return Err(RegionError::invalid("align", reason));
    }
    for (i, class) in classes.iter().enumerate() {
        for (name, value) in [("size", class.size), ("count", class.count)] {
            if value == 0 {
                let field = format!("classes[{i}].{name}");
                return Err(RegionError::invalid(field, "zero"));
            }
        }
    }
    // First without a loop: no count that is far too large shall keep us busy. Slots of one class start at least
    // their size, rounded up to the alignment, apart.
    let room = region_len.saturating_sub(start);
    let need = classes.iter().fold(0usize, |sum, class| {
        let stride = class.size.checked_next_multiple_of(options.align);
        let all_but_last = stride.map_or(usize::MAX, |s| s.saturating_mul(class.count - 1));
        sum.saturating_add(all_but_last).saturating_add(class.size)
    });
    if need > room {
        return Err(RegionError::NoRoom { need, room });
    }

    let pieces = match options.max_registration {
        Some(max) => Pieces::cut(region_len, max),
        None => Pieces::whole(region_len),
    };
    let mut end = start;
    let mut placed = Vec::with_capacity(classes.len());
    for (i, &SlotClass { size, count }) in classes.iter().enumerate() {
        let free = ArrayQueue::new(count);
        for _ in 0..count {
            let offset = place(base, end, size, options.align, pieces).ok_or_else(|| {
                let reason = format!("{size} bytes fit between no two registration boundaries");
                RegionError::invalid(format!("classes[{i}].size"), reason)
            })?;
            end = offset.saturating_add(size);
            // Never full: it has `count` places.
            let _ = free.push(offset);
        }
        placed.push(Class { size, free });
    }
    placed.sort_by_key(|class| class.size);
    Ok((placed.into(), end))
}

/// The first offset from `from` on where a slot may start. `None`: it would cross a boundary even after one.
fn place(base: usize, from: usize, size: usize, align: usize, pieces: Pieces) -> Option<usize> {
    // The address is aligned, not the offset: wrapped memory may start anywhere.
    let aligned = |offset: usize| {
        let padding = base.wrapping_add(offset).wrapping_neg() & (align - 1);
        offset.saturating_add(padding)
    };
    let offset = aligned(from);
    let Some(boundary) = pieces.crossing(offset, size) else {
        return Some(offset);
    };
    let offset = aligned(boundary);
    pieces.crossing(offset, size).is_none().then_some(offset)
}

impl SlotPool {
    /// Lends a slot of at least `size` bytes, with its length set to `size`: from the smallest class that fits,
    /// else from the next larger one that has a slot. `None`: none is free, or no class is that large
    /// ([`capacity_for`](SlotPool::capacity_for) tells them apart).
    ///
    /// The slot's bytes are whatever was there before. A forked child is lent none, and gives none back.
    pub fn lend(&self, size: usize) -> Option<Slot> {
        let shared = &self.shared;
        if shared.alive.is_wiped() {
            return None;
        }
        let first = shared.first_class(size);
        for (class, queue) in shared.classes.iter().enumerate().skip(first) {
            let Some(offset) = queue.free.pop() else {
                continue;
            };
            return Some(Slot {
                // SAFETY: `lay_out` and `carve` placed the slot inside the region.
                start: unsafe { shared.region.base().add(offset) },
                len: size,
                class,
                pool: Arc::clone(shared),
            });
        }
        None
    }

    /// Capacity in bytes of the class that `size` bytes are lent from first; `None`: no class is that large.
    pub fn capacity_for(&self, size: usize) -> Option<usize> {
        let classes = &self.shared.classes;
        classes.get(self.shared.first_class(size)).map(|c| c.size)
    }

    /// How many slots are free, in all classes. A snapshot.
    pub fn available(&self) -> usize {
        self.shared.classes.iter().map(|c| c.free.len()).sum()
    }

    /// How many slots there are, lent or free.
    pub fn total(&self) -> usize {
        self.shared.classes.iter().map(|c| c.free.capacity()).sum()
    }

    /// The region that the slots lie in.
    pub fn region(&self) -> &Region {
        &self.shared.region
    }
}

impl Shared {
    /// The smallest class that `size` bytes fit into.
    fn first_class(&self, size: usize) -> usize {
        self.classes.partition_point(|class| class.size < size)
    }
}

impl fmt::Debug for SlotPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotPool")
            .field("region", &self.shared.region.id())
            .field("available", &self.available())
            .field("total", &self.total())
            .finish()
    }
}

/// An owned part of a region: like a `Box<[u8]>` whose memory is registered and goes back to its pool at drop.
///
/// It reads and writes as a slice of its current length. An op takes the slot and uses that length: so many bytes
/// are stored, or so many may be retrieved into it. The completion gives it back.
pub struct Slot {
    pool: Arc<Shared>,
    start: NonNull<u8>,
    len: usize,
    class: usize,
}

// It moves by value into the in-flight table and back.
const _: () = assert!(size_of::<Slot>() <= 40 && size_of::<Option<Slot>>() == size_of::<Slot>());

// SAFETY: a slot is the one owner of its bytes (see the module's head), as a `Box<[u8]>` is; the memory
// belongs to no thread, and the pool is Send and Sync.
unsafe impl Send for Slot {}
// SAFETY: a shared slot only reads its bytes.
unsafe impl Sync for Slot {}

/// A length over a slot's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("len: {len} bytes, the slot's capacity is {capacity}")]
pub struct SlotLenError {
    /// The length asked for, in bytes.
    pub len: usize,
    /// The slot's capacity in bytes.
    pub capacity: usize,
}

impl Slot {
    /// The most bytes that it can hold.
    pub fn capacity(&self) -> usize {
        // `class` comes from `lend`, so there is one.
        self.pool.classes.get(self.class).map_or(0, |c| c.size)
    }

    /// Sets the length that slices and ops see. Bytes that come into sight are whatever was there before.
    ///
    /// # Errors
    /// [`SlotLenError`] where it is more than the [`capacity`](Slot::capacity); the length stays as it was.
    pub fn set_len(&mut self, len: usize) -> Result<(), SlotLenError> {
        let capacity = self.capacity();
        if len > capacity {
            return Err(SlotLenError { len, capacity });
        }
        self.len = len;
        Ok(())
    }

    /// Its place in the region, with the current length.
    pub fn span(&self) -> Span {
        self.pool.region.span(self.offset(), self.len)
    }

    /// The region that it lies in, by its [`Region::id`].
    pub fn region_id(&self) -> u64 {
        self.pool.region.id()
    }

    /// Address of its first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Address of its first byte, to write. Stays valid when the slot is moved.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn offset(&self) -> usize {
        self.start.addr().get() - self.pool.region.base().addr().get()
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` is at most the capacity, which lies inside the region: mapped and initialised, by
        // `Region::allocate` or by the contract of `Region::wrap`; nobody else owns these bytes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.pool.alive.is_wiped() {
            return;
        }
        if let Some(class) = self.pool.classes.get(self.class) {
            // Never full: the slot's own place is free. What its owner wrote is seen by the next one: the queue's
            // push releases, its pop acquires.
            let _ = class.free.push(self.offset());
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("region", &self.region_id())
            .field("offset", &self.offset())
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish()
    }
}
