//! What the kernel says of its limits and of our pages. Read when a region is made, never later.

use std::{fs, io};

/// The bit of `CAP_IPC_LOCK` in a set of capabilities.
const IPC_LOCK: u32 = 14;

/// What the kernel would give a region of this process now. All sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryLimits {
    /// How much may be locked, `RLIMIT_MEMLOCK`; `None`: unlimited. Memory that is registered for rdma is locked.
    pub memlock: Option<u64>,
    /// The process has `CAP_IPC_LOCK`: `memlock` does not hold for it.
    pub ipc_lock: bool,
    /// Size of a page of the reserved pool; `None`: this kernel has none.
    pub huge_page_size: Option<usize>,
    /// Pages of the reserved pool that are free and not promised to others.
    pub huge_pages_free: u64,
    /// Size of a transparent huge page; `None`: the kernel has none, or its policy gives them to nobody.
    pub transparent_huge_size: Option<usize>,
}

impl MemoryLimits {
    /// Reads them.
    pub fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let free = meminfo("HugePages_Free").unwrap_or(0);
        Self {
            memlock: soft_limit(libc::RLIMIT_MEMLOCK),
            ipc_lock: has_capability(&status, IPC_LOCK),
            huge_page_size: huge_page_size(),
            huge_pages_free: free.saturating_sub(meminfo("HugePages_Rsvd").unwrap_or(0)),
            transparent_huge_size: transparent_huge_size().filter(|_| !transparent_huge_never()),
        }
    }
}

/// Whether a capability, by its bit, is in the effective set of a `status` file.
fn has_capability(status: &str, bit: u32) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    set.is_some_and(|set| set >> bit & 1 == 1)
}

/// Size of a plain page in bytes.
pub(super) fn page_size() -> usize {
    // SAFETY: `sysconf` has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // It can't fail for this name; 4 KiB is the smallest page of any Linux.
    usize::try_from(size).unwrap_or(4096)
}

/// Size of the reserved pool's pages in bytes; `None`: this kernel has none.
pub(super) fn huge_page_size() -> Option<usize> {
    usize::try_from(meminfo("Hugepagesize")?).ok()
}

/// Size of a transparent huge page in bytes; `None`: this kernel has none.
pub(super) fn transparent_huge_size() -> Option<usize> {
    let path = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Whether the system's policy gives transparent huge pages to nobody.
pub(super) fn transparent_huge_never() -> bool {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    fs::read_to_string(path).is_ok_and(|modes| modes.contains("[never]"))
}

/// A value of `/proc/meminfo`, in bytes where it has a unit.
pub(super) fn meminfo(name: &str) -> Option<u64> {
    field(&fs::read_to_string("/proc/meminfo").ok()?, name)
}

/// What this process has locked, in bytes.
pub(super) fn locked() -> u64 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| field(&status, "VmLck"))
        .unwrap_or(0)
}

/// How much of the mapping that starts at `address` lies in transparent huge pages, in bytes.
pub(super) fn transparent_huge(address: usize) -> Option<usize> {
    let smaps = fs::read_to_string("/proc/self/smaps").ok()?;
    let value = field(mapping(&smaps, address)?, "AnonHugePages")?;
    usize::try_from(value).ok()
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// The soft limit of a resource; `None`: unlimited.
pub(super) fn soft_limit(resource: Resource) -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is a live `rlimit` for the kernel to write.
    let failed = unsafe { libc::getrlimit(resource, &mut limit) } != 0;
    (!failed && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The limit that a mapping most likely ran into, and its value in bytes.
pub(super) fn of_mappings() -> (&'static str, u64) {
    if let Some(limit) = soft_limit(libc::RLIMIT_AS) {
        return ("RLIMIT_AS", limit);
    }
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    if mode.trim() == "2" {
        return ("CommitLimit", meminfo("CommitLimit").unwrap_or(0));
    }
    // Without strict accounting the kernel refuses what all of memory and swap could not hold.
    let all = meminfo("MemTotal").unwrap_or(0) + meminfo("SwapTotal").unwrap_or(0);
    ("MemTotal + SwapTotal", all)
}

/// The last error of a system call on this thread.
pub(super) fn os_error() -> io::Error {
    io::Error::last_os_error()
}

/// The value of a line `name:   123 kB` or `name:   123`, in bytes or as it is.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut words = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
        .split_whitespace();
    let value: u64 = words.next()?.parse().ok()?;
    match words.next() {
        Some("kB") => value.checked_mul(1024),
        _ => Some(value),
    }
}

/// The part of a `smaps` file that speaks of the mapping which starts at `address`.
fn mapping(smaps: &str, address: usize) -> Option<&str> {
    // A mapping's first line is `start-end perms ...` in lower-case hex without leading zeros; only these have
    // a `-` in the first word before any `:`.
    let head = format!("{address:08x}-");
    let start = smaps
        .match_indices(&head)
        .map(|(at, _)| at)
        .find(|&at| at == 0 || smaps.as_bytes().get(at - 1) == Some(&b'\n'))?;
    let part = smaps.get(start..)?;
    // Its last line is the one with the flags.
    let end = part.find("VmFlags:").unwrap_or(part.len());
    part.get(..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/7f0000200000-7f
Size:                328 kB
AnonHugePages:         4 kB
VmFlags: rd ex
7f0000200000-7f0000600000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      2048 kB
Locked:             4096 kB
VmFlags: rd wr
7f0000600000-7f0000601000 ---p 00000000 00:00 0
AnonHugePages:         8 kB
VmFlags: mr
";

    #[test]
    fn a_mapping_is_found_by_its_start_only() {
        let huge = |address| field(mapping(SMAPS, address)?, "AnonHugePages");
        assert_eq!(huge(0x40_0000), Some(4 << 10));
        assert_eq!(huge(0x7f00_0020_0000), Some(2 << 20));
        assert_eq!(huge(0x7f00_0060_0000), Some(8 << 10));
        assert_eq!(huge(0x7f00_0030_0000), None);
        assert_eq!(huge(0), None);
    }

    #[test]
    fn a_value_has_its_unit_and_its_whole_name() {
        let text = "HugePages_Total:       3\nMemTotalX: 1 kB\nMemTotal:  24683656 kB\nBad: x\n";
        assert_eq!(field(text, "HugePages_Total"), Some(3));
        assert_eq!(field(text, "MemTotal"), Some(24_683_656 << 10));
        assert_eq!(field(text, "Mem"), None);
        assert_eq!(field(text, "Bad"), None);
    }

    #[test]
    fn a_capability_is_one_bit_of_the_effective_set() {
        let status = "CapPrm:\tffffffffffffffff\nCapEff:\t0000000000004000\n";
        assert!(has_capability(status, IPC_LOCK));
        assert!(!has_capability(status, IPC_LOCK + 1));
        assert!(!has_capability(status, 13));
        assert!(!has_capability("CapPrm:\tffffffffffffffff\n", IPC_LOCK));
        assert!(!has_capability("CapEff:\tmany\n", IPC_LOCK));
    }

    #[test]
    fn this_machine_answers() {
        assert!(page_size().is_power_of_two());
        assert!(meminfo("MemTotal").is_some_and(|bytes| bytes > 1 << 20));
    }
}
