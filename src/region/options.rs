//! What one asks of a region's memory, and what one got.

use serde::Serialize;

/// Whether a region lies in huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Asks for nothing: the kernel's own policy holds.
    #[default]
    Off,
    /// Pages of the reserved pool (`MAP_HUGETLB`), else transparent huge pages (`MADV_HUGEPAGE`), else none. The
    /// report says which.
    Try,
    /// Pages of the reserved pool, or an error. Transparent ones don't count: the kernel may split them
    /// at any time.
    Require,
}

/// Whether a region is locked into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemLock {
    /// Not locked.
    #[default]
    Off,
    /// The whole region is locked if the kernel allows it, else nothing is. The report says which.
    Try,
    /// The whole region is locked, or an error.
    Require,
}

/// What to allocate. `len` is required; the rest has defaults:
///
/// | field | default | why |
/// | --- | --- | --- |
/// | `huge_pages` | [`HugePages::Off`] | the reserved pool may be meant for another process |
/// | `prefault` | `true` | page faults at start, not under the first ops |
/// | `mlock` | [`MemLock::Off`] | most containers allow little |
/// | `align` | the page size | what every device takes |
#[derive(Clone, Debug)]
#[must_use]
pub struct RegionOptions {
    pub(super) len: usize,
    pub(super) huge_pages: HugePages,
    pub(super) prefault: bool,
    pub(super) mlock: MemLock,
    pub(super) align: Option<usize>,
}

impl RegionOptions {
    /// A region of `len` bytes, any number but zero. What the kernel maps for it is rounded up to whole pages.
    pub fn new(len: usize) -> Self {
        Self {
            len,
            huge_pages: HugePages::default(),
            prefault: true,
            mlock: MemLock::default(),
            align: None,
        }
    }

    /// Whether to use huge pages.
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Whether all pages are made present at once. A region larger than the free memory then meets the
    /// kernel's out-of-memory killer here, not later.
    pub fn prefault(mut self, prefault: bool) -> Self {
        self.prefault = prefault;
        self
    }

    /// Whether to lock the region into memory. Locking makes all pages present, whatever `prefault` says.
    pub fn mlock(mut self, mlock: MemLock) -> Self {
        self.mlock = mlock;
        self
    }

    /// Alignment of the region's first byte: a power of two, at least the page size. Pages of the reserved pool
    /// (`MAP_HUGETLB`) can't be had with more than their own size.
    pub fn align(mut self, align: usize) -> Self {
        self.align = Some(align);
        self
    }
}

/// Where a region's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Origin {
    /// Allocated by [`Region::allocate`](crate::Region::allocate).
    Allocated,
    /// The host's, by [`Region::wrap`](crate::Region::wrap).
    Wrapped,
}

/// What a region really got. All sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RegionReport {
    /// Address of the first byte.
    pub address: usize,
    /// Length, as asked for.
    pub len: usize,
    /// Where the memory comes from.
    pub origin: Origin,
    /// What is mapped for it: `len`, rounded up to whole pages. `None` for wrapped memory.
    pub mapped: Option<usize>,
    /// Size of the pages that it is mapped in, the huge pages' when they come from the reserved pool. `None` for
    /// wrapped memory.
    pub page_size: Option<usize>,
    /// Transparent huge pages were asked for and the kernel took the advice.
    pub transparent_huge_advised: bool,
    /// How much of the region lay in transparent huge pages when it was made. Looked up only where they were
    /// advised and the pages were made present; `None` otherwise.
    pub transparent_huge: Option<usize>,
    /// All pages were made present.
    pub prefaulted: bool,
    /// How much is locked into memory by us: all of `mapped`, or nothing.
    pub locked: usize,
    /// What was tried and not got, with the reason.
    pub notes: Vec<String>,
}
