//! The L1 region: the contiguous memory that a host registers once.

mod error;
mod limits;
mod map;
mod options;
mod pieces;

pub use error::RegionError;
pub use limits::MemoryLimits;
pub use options::{HugePages, MemLock, Origin, RegionOptions, RegionReport};
pub use pieces::Pieces;

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Contiguous memory for objects, allocated by us or wrapped from the host.
///
/// A region is a handle: clones are cheap and mean the same memory. The memory, or the owner of wrapped memory, is
/// given back when the last of these is gone: clones, [slots](crate::Slot), [pools](crate::SlotPool), and an
/// engine that was started with it, which unregisters it first.
///
/// Memory that is allocated here starts as zeros and is **not inherited by forked children**: there, any access
/// through a region or a slot is a segmentation fault. For wrapped memory that is up to its owner.
///
/// ```
/// use moonring::{MemLock, Region, RegionOptions, SlotClass};
///
/// let region = Region::allocate(RegionOptions::new(1 << 20).mlock(MemLock::Try))?;
/// for note in &region.report().notes {
///     eprintln!("L1: {note}");
/// }
/// let pool = region.slot_pool(&[SlotClass { size: 4096, count: 16 }])?;
/// let mut slot = pool.lend(5).expect("nothing is lent yet");
/// slot.copy_from_slice(b"hello");
/// # Ok::<(), moonring::RegionError>(())
/// ```
#[derive(Clone)]
pub struct Region {
    inner: Arc<Inner>,
}

struct Inner {
    id: u64,
    base: NonNull<u8>,
    len: usize,
    report: RegionReport,
    /// Offset up to which pools have been carved. Only making a pool locks it.
    carved: Mutex<usize>,
    /// Our mapping or the host's owner: its drop gives the memory back.
    _memory: Box<dyn Send + Sync>,
}

// SAFETY: `base` is only an address here. Who may access the bytes behind it, and when, is settled by whoever
// makes a reference of it: slots own theirs, all else is `unsafe`. The other fields are Send.
unsafe impl Send for Inner {}
// SAFETY: as for `Send`; nothing but `carved`, a mutex, changes through a shared reference.
unsafe impl Sync for Inner {}

/// A part of a region, by offset and length in bytes. Plain numbers: whether it lies inside is checked
/// when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The region, by its [`Region::id`].
    pub region: u64,
    /// Bytes from the region's start.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}

/// How two regions lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// No byte in common; neighbours have none.
    Apart,
    /// The same first byte and the same length.
    Identical,
    /// Some bytes in common, not all.
    Partial,
}

impl Region {
    /// Allocates a region: an anonymous mapping of this process.
    ///
    /// # Errors
    /// [`RegionError`]: an option that can't be, or something required that the kernel doesn't give. What was only
    /// tried and not got is in the [`report`](Region::report)'s notes.
    pub fn allocate(options: RegionOptions) -> Result<Self, RegionError> {
        let (mapping, report) = map::allocate(&options)?;
        Ok(Self::new(mapping.base(), report, Box::new(mapping)))
    }

    /// Takes the host's memory as a region, for instance the L1 buffer of an LMCache process.
    ///
    /// `owner` is whatever keeps the memory mapped; it is dropped after the last use, on the thread that happens to
    /// be last, and at once where this is an error. A panic in its drop is caught. `()` is the owner of memory that
    /// lives as long as the process.
    ///
    /// # Errors
    /// [`RegionError::Invalid`]: `ptr` is null, `len` is zero, or the end is beyond the address space.
    ///
    /// # Safety
    /// - As long as `owner` lives, the `len` bytes at `ptr` are mapped, readable, writable and initialised.
    /// - Nobody else accesses the bytes of a slot that is lent from this region, nor reads or writes those
    ///   of an op in flight against that op's rules. That includes other regions over the same bytes.
    pub unsafe fn wrap(
        ptr: *mut u8,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self, RegionError> {
        let owner = Owner(Some(owner));
        let Some(base) = NonNull::new(ptr) else {
            return Err(RegionError::invalid("ptr", "null"));
        };
        if len == 0 {
            return Err(RegionError::invalid("len", "zero"));
        }
        let address = base.addr().get();
        if isize::try_from(len).is_err() || address.checked_add(len).is_none() {
            let reason = format!("{len} bytes at {address:#x} end beyond the address space");
            return Err(RegionError::invalid("len", reason));
        }
        let report = RegionReport {
            address,
            len,
            origin: Origin::Wrapped,
            mapped: None,
            page_size: None,
            transparent_huge_advised: false,
            transparent_huge: None,
            prefaulted: false,
            locked: 0,
            notes: Vec::new(),
        };
        Ok(Self::new(base, report, Box::new(owner)))
    }

    fn new(base: NonNull<u8>, report: RegionReport, memory: Box<dyn Send + Sync>) -> Self {
        // Relaxed: the numbers need only differ.
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let inner = Inner {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            base,
            len: report.len,
            report,
            carved: Mutex::new(0),
            _memory: memory,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// What was really got.
    pub fn report(&self) -> &RegionReport {
        &self.inner.report
    }

    /// A number that no other region of this process has. Never zero.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.inner.base
    }

    /// Length in bytes. Never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// A span of this region. Not checked here: that comes when it is used.
    pub fn span(&self, offset: usize, len: usize) -> Span {
        Span {
            region: self.id(),
            offset,
            len,
        }
    }

    /// Whether a span is of this region and lies inside.
    pub fn contains(&self, span: Span) -> bool {
        span.region == self.id() && self.holds(span.offset, span.len)
    }

    fn holds(&self, offset: usize, len: usize) -> bool {
        offset <= self.len() && len <= self.len() - offset
    }

    /// The offset of `len` bytes at `ptr`, where all of them lie inside. `None` for zero bytes: they
    /// lie nowhere.
    pub fn resolve(&self, ptr: *const u8, len: usize) -> Option<usize> {
        let offset = ptr.addr().checked_sub(self.base().addr().get())?;
        (len > 0 && self.holds(offset, len)).then_some(offset)
    }

    /// How another region lies to this one.
    pub fn overlap(&self, other: &Region) -> Overlap {
        let start = |region: &Region| region.base().addr().get();
        // No overflow: an end beyond the address space is refused when a region is made.
        let end = |region: &Region| start(region) + region.len();
        if start(self) == start(other) && self.len() == other.len() {
            Overlap::Identical
        } else if start(self) < end(other) && start(other) < end(self) {
            Overlap::Partial
        } else {
            Overlap::Apart
        }
    }

    /// The address of a span's first byte; `None` when the span is not of this region or not inside.
    pub fn as_mut_ptr(&self, span: Span) -> Option<NonNull<u8>> {
        if !self.contains(span) {
            return None;
        }
        // SAFETY: the offset is at most the region's length, so the address stays inside it or at its end.
        Some(unsafe { self.base().add(span.offset) })
    }

    /// The bytes of a span; `None` when the span is not of this region or not inside.
    ///
    /// # Safety
    /// Nobody writes them as long as the slice is used: no op in flight, no owner of a slot, no device.
    pub unsafe fn as_slice(&self, span: Span) -> Option<&[u8]> {
        let start = self.as_mut_ptr(span)?;
        // SAFETY: inside the region, thus mapped and initialised as long as `self` is borrowed; no writer, says
        // the caller.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), span.len) })
    }

    /// What no pool was carved from yet, for instance for raw spans.
    pub fn uncarved(&self) -> Span {
        let carved = *self.carved();
        self.span(carved, self.len() - carved)
    }

    /// Gives the part from where the last pool ended to `layout`, which returns where its own ends.
    /// Whether memory is behind its pages now, judged by up to 64 of them. `true` where the kernel doesn't tell.
    pub(crate) fn is_present(&self) -> bool {
        let page = limits::page_size();
        let samples = self.len().div_ceil(page).min(64);
        let base = self.base().addr().get();
        (0..samples).all(|i| {
            let at = (base + self.len() / samples * i) / page * page;
            let mut present = 0u8;
            // SAFETY: only asks; one byte for one page, and `present` is one. The page lies in the region, which is mapped.
            let failed = unsafe { libc::mincore(at as *mut libc::c_void, 1, &mut present) } != 0;
            failed || present & 1 != 0
        })
    }

    pub(crate) fn carve<T>(
        &self,
        layout: impl FnOnce(usize) -> Result<(T, usize), RegionError>,
    ) -> Result<T, RegionError> {
        let mut carved = self.carved();
        let (value, end) = layout(*carved)?;
        if end > self.len() {
            return Err(RegionError::NoRoom {
                need: end - *carved,
                room: self.len() - *carved,
            });
        }
        *carved = end;
        Ok(value)
    }

    fn carved(&self) -> std::sync::MutexGuard<'_, usize> {
        // A panic under the lock leaves the number as it was.
        let lock = &self.inner.carved;
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("id", &self.id())
            .field("base", &self.base())
            .field("len", &self.len())
            .field("origin", &self.report().origin)
            .finish()
    }
}

/// The host's keep-alive of wrapped memory. Its drop may run on one of our workers, so a panic stops here.
struct Owner<T>(Option<T>);

impl<T> Drop for Owner<T> {
    fn drop(&mut self) {
        let owner = self.0.take();
        if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| drop(owner))) {
            // The host's panic hook has told of it. The payload's own drop could panic again.
            std::mem::forget(panic);
        }
    }
}
