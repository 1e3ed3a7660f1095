//! Why a region or a slot pool could not be had.

use std::io;

/// Why a region or a slot pool could not be had.
///
/// What is wrong with an argument names the argument; what was required and not got names the limit, its
/// value, and the need. All sizes are in bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// An argument has a value that can't be.
    #[error("{field}: {reason}")]
    Invalid {
        /// Which one, as `len` or `classes[1].size`.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel gives no memory of this length.
    #[error("len: need {need} bytes, {limit} is {value} bytes: {os}")]
    NoMemory {
        /// What was asked for, rounded up to whole pages.
        need: usize,
        /// The limit that it most likely ran into.
        limit: &'static str,
        /// The limit's value.
        value: u64,
        /// The kernel's answer.
        os: io::Error,
    },
    /// Huge pages were required, and there are not enough.
    #[error(
        "huge_pages: need {need} pages of {page_size} bytes, HugePages_Free is {free} \
         (HugePages_Rsvd {reserved}, HugePages_Total {total}): {os}"
    )]
    HugePages {
        /// How many pages are needed.
        need: usize,
        /// Size of one of them.
        page_size: usize,
        /// `HugePages_Free` of `/proc/meminfo`.
        free: u64,
        /// `HugePages_Rsvd` of `/proc/meminfo`: how many of the free ones are promised to others.
        reserved: u64,
        /// `HugePages_Total` of `/proc/meminfo`.
        total: u64,
        /// The kernel's answer.
        os: io::Error,
    },
    /// The pages could not be touched in advance.
    #[error("prefault: need {need} bytes, MemAvailable is {available} bytes: {os}")]
    Prefault {
        /// What was to be touched.
        need: usize,
        /// `MemAvailable` of `/proc/meminfo`.
        available: u64,
        /// The kernel's answer.
        os: io::Error,
    },
    /// Locking was required, and the kernel refused it.
    #[error(
        "mlock: need {need} bytes, RLIMIT_MEMLOCK is {} ({locked} bytes are locked already): {os}",
        limit_text(*.limit)
    )]
    MemLock {
        /// What was to be locked.
        need: usize,
        /// The soft limit; `None`: unlimited.
        limit: Option<u64>,
        /// What the process had locked before.
        locked: u64,
        /// The kernel's answer.
        os: io::Error,
    },
    /// The kernel refused a step that always goes well on Linux.
    #[error("{call}: {os}")]
    Kernel {
        /// The step.
        call: &'static str,
        /// The kernel's answer.
        os: io::Error,
    },
    /// The region has no room left for the slots.
    #[error("classes: the slots need at least {need} bytes, the region has room for {room}")]
    NoRoom {
        /// What the slots need at least, alignment included.
        need: usize,
        /// What the region has that no pool was carved from.
        room: usize,
    },
}

impl RegionError {
    pub(crate) fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid {
            field: field.into(),
            reason: reason.into(),
        }
    }
}

fn limit_text(limit: Option<u64>) -> String {
    limit.map_or("unlimited".into(), |bytes| format!("{bytes} bytes"))
}
