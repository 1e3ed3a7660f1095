//! Memory of our own: reserved, made usable, advised, made present, locked; unmapped at drop.
//!
//! ```text
//! plain pages:   | guard | to alignment | base ... mapped ... | guard |     one reservation
//! MAP_HUGETLB:                          | base ... mapped ... |             a mapping of its own
//! ```
//! The guards are unreadable: a store that runs past the region faults instead of damaging other memory, and
//! the region stays a mapping of its own in `/proc/self/smaps`, where its pages are counted. The reservation
//! is made usable by `mprotect`, never mapped over: a failing `MAP_FIXED` may leave a hole that another
//! thread's mapping falls into.

use std::ptr::{self, NonNull};

use libc::c_int;

use super::error::RegionError;
use super::limits;
use super::options::{HugePages, MemLock, Origin, RegionOptions, RegionReport};

/// Memory from the kernel, zeroed, for us alone.
#[derive(Debug)]
pub(super) struct Mapping {
    /// What is to be unmapped.
    reserved: NonNull<u8>,
    reserved_len: usize,
    /// What is usable of it: whole pages.
    base: NonNull<u8>,
    mapped: usize,
    page_size: usize,
    /// The process that it is mapped in.
    process: u32,
}

// SAFETY: a mapping belongs to the process, not to a thread, and this type only holds its addresses.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; nothing is changed through a shared reference.
unsafe impl Sync for Mapping {}

/// Gets the memory that the options ask for, and says what it got.
pub(super) fn allocate(options: &RegionOptions) -> Result<(Mapping, RegionReport), RegionError> {
    let len = options.len;
    let align = checked_align(options)?;
    let mut notes = Vec::new();
    let mut advised = false;
    let mut prefaulted = false;

    let reserved_pool = match options.huge_pages {
        HugePages::Off => None,
        HugePages::Require => Some(Mapping::huge(len, align, options.prefault)?),
        HugePages::Try => Mapping::huge(len, align, options.prefault)
            .inspect_err(|e| notes.push(e.to_string()))
            .ok(),
    };
    let mapping = if let Some(mapping) = reserved_pool {
        prefaulted = options.prefault;
        mapping
    } else {
        let transparent = options.huge_pages == HugePages::Try;
        let mapping = Mapping::plain(len, align, transparent)?;
        if transparent {
            match mapping.advise_transparent() {
                Ok(()) => advised = true,
                Err(note) => notes.push(note),
            }
        }
        if options.prefault {
            mapping.prefault()?;
            prefaulted = true;
        }
        mapping
    };
    let locked = match options.mlock {
        MemLock::Off => 0,
        MemLock::Require => mapping.lock()?,
        MemLock::Try => mapping.lock().unwrap_or_else(|e| {
            notes.push(e.to_string());
            0
        }),
    };
    prefaulted |= locked > 0;

    let address = mapping.base.addr().get();
    let report = RegionReport {
        address,
        len,
        origin: Origin::Allocated,
        mapped: Some(mapping.mapped),
        page_size: Some(mapping.page_size),
        transparent_huge_advised: advised,
        transparent_huge: (advised && prefaulted)
            .then(|| limits::transparent_huge(address))
            .flatten(),
        prefaulted,
        locked,
        notes,
    };
    Ok((mapping, report))
}

/// The alignment asked for. Refuses what can't be.
fn checked_align(options: &RegionOptions) -> Result<usize, RegionError> {
    let page = limits::page_size();
    let align = options.align.unwrap_or(page);
    if options.len == 0 {
        return Err(RegionError::invalid("len", "zero"));
    }
    if !align.is_power_of_two() {
        let reason = format!("{align} is not a power of two");
        return Err(RegionError::invalid("align", reason));
    }
    if align < page {
        let reason = format!("{align} is under the page size of {page} bytes");
        return Err(RegionError::invalid("align", reason));
    }
    Ok(align)
}

/// `len` rounded up to whole pages. No slice can be longer than `isize::MAX`.
fn whole_pages(len: usize, page: usize) -> Result<usize, RegionError> {
    len.checked_next_multiple_of(page)
        .filter(|&mapped| isize::try_from(mapped).is_ok())
        .ok_or_else(|| too_long(len))
}

fn too_long(len: usize) -> RegionError {
    RegionError::invalid("len", format!("{len} bytes are more than can be addressed"))
}

impl Mapping {
    /// Plain pages, with room to the left and right of them in the reservation.
    fn plain(len: usize, align: usize, transparent: bool) -> Result<Self, RegionError> {
        let page = limits::page_size();
        let mapped = whole_pages(len, page)?;
        // Transparent huge pages stand at multiples of their size.
        let align = match limits::transparent_huge_size() {
            Some(huge) if transparent => align.max(huge),
            _ => align,
        };
        let reserved_len = mapped
            .checked_add(align)
            .and_then(|sum| sum.checked_add(2 * page))
            .ok_or_else(|| too_long(len))?;
        let no_memory = || {
            let os = limits::os_error();
            let (limit, value) = limits::of_mappings();
            RegionError::NoMemory {
                need: mapped,
                limit,
                value,
                os,
            }
        };

        let reserved = map_anonymous(reserved_len, libc::PROT_NONE, 0).ok_or_else(no_memory)?;
        // One page in, then up to the alignment: at most `page + align - 1` bytes, which leaves `mapped` bytes and
        // a page behind them.
        let skip = page + padding(reserved.addr().get() + page, align);
        // SAFETY: `skip + mapped` is under `reserved_len`, see above.
        let base = unsafe { reserved.add(skip) };
        // From here on dropping it unmaps.
        let mapping = Self {
            reserved,
            reserved_len,
            base,
            mapped,
            page_size: page,
            process: std::process::id(),
        };
        // SAFETY: the range lies in our own reservation, which nothing has an address of yet.
        let failed = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mprotect(base.as_ptr().cast(), mapped, access) != 0
        };
        if failed {
            return Err(no_memory());
        }
        mapping.keep_from_children()?;
        Ok(mapping)
    }

    /// Pages of the reserved pool, or the reason why not.
    fn huge(len: usize, align: usize, prefault: bool) -> Result<Self, RegionError> {
        let Some(page) = limits::huge_page_size() else {
            let reason = "this kernel has no huge pages (no Hugepagesize in /proc/meminfo)";
            return Err(RegionError::invalid("huge_pages", reason));
        };
        if align > page {
            let reason = format!("{align} is over the huge page size of {page} bytes");
            return Err(RegionError::invalid("align", reason));
        }
        let mapped = whole_pages(len, page)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let Some(base) = map_anonymous(mapped, access, libc::MAP_HUGETLB) else {
            let os = limits::os_error();
            return Err(RegionError::HugePages {
                need: mapped / page,
                page_size: page,
                free: limits::meminfo("HugePages_Free").unwrap_or(0),
                reserved: limits::meminfo("HugePages_Rsvd").unwrap_or(0),
                total: limits::meminfo("HugePages_Total").unwrap_or(0),
                os,
            });
        };
        let mapping = Self {
            reserved: base,
            reserved_len: mapped,
            base,
            mapped,
            page_size: page,
            process: std::process::id(),
        };
        mapping.keep_from_children()?;
        // Here, so that a pool that lacks pages in spite of the reservation (a cgroup's limit) is seen before the
        // choice is made.
        if prefault {
            mapping.prefault()?;
        }
        Ok(mapping)
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Advice for the usable part.
    fn advise(&self, advice: c_int) -> Result<(), std::io::Error> {
        // SAFETY: the range is our own mapping; the advices that we give change no byte of it.
        let failed = unsafe { libc::madvise(self.base.as_ptr().cast(), self.mapped, advice) != 0 };
        if failed {
            return Err(limits::os_error());
        }
        Ok(())
    }

    /// A child that is forked has no page of the region: a copy would cost as much again at the first
    /// write, and a store that writes by device would write into only one of the two.
    fn keep_from_children(&self) -> Result<(), RegionError> {
        // SAFETY: the whole reservation is our own; the advice changes no byte of it.
        let failed = unsafe {
            let start = self.reserved.as_ptr().cast();
            libc::madvise(start, self.reserved_len, libc::MADV_DONTFORK) != 0
        };
        if failed {
            let os = limits::os_error();
            let call = "madvise(MADV_DONTFORK)";
            return Err(RegionError::Kernel { call, os });
        }
        Ok(())
    }

    /// Asks for transparent huge pages; an error is the note for the report.
    fn advise_transparent(&self) -> Result<(), String> {
        self.advise(libc::MADV_HUGEPAGE)
            .map_err(|os| format!("huge_pages: madvise(MADV_HUGEPAGE): {os}"))?;
        if limits::transparent_huge_never() {
            return Err("huge_pages: /sys/kernel/mm/transparent_hugepage/enabled is never".into());
        }
        Ok(())
    }

    /// Makes all pages present and writable.
    fn prefault(&self) -> Result<(), RegionError> {
        match self.advise(libc::MADV_POPULATE_WRITE) {
            Ok(()) => Ok(()),
            // Linux before 5.14 doesn't know the advice.
            Err(os) if os.raw_os_error() == Some(libc::EINVAL) => {
                self.touch();
                Ok(())
            }
            Err(os) => Err(RegionError::Prefault {
                need: self.mapped,
                available: limits::meminfo("MemAvailable").unwrap_or(0),
                os,
            }),
        }
    }

    /// Writes a zero over the zero at the start of each page.
    fn touch(&self) {
        for offset in (0..self.mapped).step_by(self.page_size) {
            // SAFETY: inside the mapping, which nobody else has an address of yet.
            unsafe { self.base.add(offset).write_volatile(0) };
        }
    }

    /// Locks all pages, or none. Returns how many bytes.
    fn lock(&self) -> Result<usize, RegionError> {
        let locked = limits::locked();
        let start = self.base.as_ptr().cast();
        // SAFETY: the range is our own mapping; locking changes no byte of it.
        if unsafe { libc::mlock(start, self.mapped) } == 0 {
            return Ok(self.mapped);
        }
        let os = limits::os_error();
        // A part may be locked by now. An answer would change nothing: it is the same error again, or none.
        // SAFETY: as above.
        unsafe { libc::munlock(start, self.mapped) };
        Err(RegionError::MemLock {
            need: self.mapped,
            limit: limits::soft_limit(libc::RLIMIT_MEMLOCK),
            locked,
            os,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child has nothing mapped here, or by now something else.
        if std::process::id() != self.process {
            return;
        }
        // SAFETY: it is our own mapping, and the last user of the region has dropped its handle.
        let failed = unsafe { libc::munmap(self.reserved.as_ptr().cast(), self.reserved_len) != 0 };
        if failed {
            // Nobody is left to give the error to; the memory is leaked, which harms nothing else.
            let os = limits::os_error();
            tracing::warn!("munmap of a region of {} bytes: {os}", self.mapped);
        }
    }
}

/// Fresh zeroed memory, or `None` and the reason in `errno`.
fn map_anonymous(len: usize, access: c_int, flags: c_int) -> Option<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: a new mapping at a place of the kernel's choice touches no memory in use.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    NonNull::new(start.cast())
}

/// How far it is from `address` up to the next multiple of `align`, a power of two.
fn padding(address: usize, align: usize) -> usize {
    address.wrapping_neg() & (align - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The way of kernels before 5.14, which no test machine has.
    #[test]
    fn touching_makes_every_page_present() {
        let mapping = Mapping::plain(10 * limits::page_size() - 1, limits::page_size(), false);
        let mapping = mapping.unwrap();
        let mut present = [0u8; 10];
        let mut pages_present = || {
            // SAFETY: the range is the mapping's, and `present` has a byte for each of its pages.
            let failed = unsafe {
                let start = mapping.base.as_ptr().cast();
                libc::mincore(start, mapping.mapped, present.as_mut_ptr()) != 0
            };
            assert!(!failed, "{}", limits::os_error());
            present.iter().filter(|&&page| page & 1 == 1).count()
        };
        assert_eq!(pages_present(), 0);
        mapping.touch();
        assert_eq!(pages_present(), 10);
    }

    #[test]
    fn padding_reaches_the_next_multiple() {
        assert_eq!(padding(0, 64), 0);
        assert_eq!(padding(64, 64), 0);
        assert_eq!(padding(1, 64), 63);
        assert_eq!(padding(65, 64), 63);
        assert_eq!(padding(usize::MAX, 64), 1);
        assert_eq!(padding(7, 1), 0);
    }
}
