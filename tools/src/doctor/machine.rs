//! The machine: cores, and what a region of memory gets.

use moonring::MemoryLimits;

use super::report::Check;
use crate::table::bytes;

/// The cores that workers and callers share.
#[derive(Debug)]
pub struct Cores {
    /// All that are online, as the kernel writes it (`0-3`); empty where it doesn't say.
    pub online: String,
    /// Those that this process may use.
    pub allowed: Vec<usize>,
    /// How many it may keep busy at a time: a cgroup's quota counts here.
    pub at_a_time: usize,
    /// How many workers the engine will have.
    pub workers: usize,
}

impl Cores {
    /// Those of this process.
    pub fn read(workers: usize) -> Self {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
        let allowed = moonring::allowed_cores();
        Self {
            online: online.unwrap_or_default().trim().to_owned(),
            at_a_time: std::thread::available_parallelism().map_or(allowed.len(), usize::from),
            allowed,
            workers,
        }
    }

    /// Whether they will do.
    pub fn check(&self) -> Check {
        const NAME: &str = "cores";
        let (cores, workers) = (self.allowed.len(), self.workers);
        if cores == 0 {
            return Check::warn(
                NAME,
                "the system does not tell which cores this process may use; no worker can be pinned",
                "let the process call sched_getaffinity (a seccomp profile may forbid it)",
            );
        }
        let ids: Vec<_> = self.allowed.iter().map(usize::to_string).collect();
        let mut found = format!("{cores} allowed ({})", ids.join(","));
        if !self.online.is_empty() {
            found += &format!(" of {}", self.online);
        }
        found += &format!(", {workers} workers");
        if self.at_a_time < cores {
            found += &format!(
                "; a cgroup's quota lets all threads together use about {}",
                self.at_a_time
            );
            return Check::warn(
                NAME,
                found,
                "raise the quota (Docker: --cpus, Kubernetes: limits.cpu) to as many cores: a throttled worker \
                 stalls for whole periods",
            );
        }
        if cores == 1 {
            return Check::warn(
                NAME,
                found,
                "allow more (taskset, Docker: --cpuset-cpus): callers and workers share this one, and no worker spins",
            );
        }
        if workers > cores {
            found += &format!(", {} of them not pinned", workers - cores);
        }
        Check::ok(NAME, found)
    }
}

/// How much memory may be locked: what is registered for rdma is.
pub fn memlock(limits: &MemoryLimits, region: u64, rdma: bool) -> Check {
    const NAME: &str = "memlock";
    let limit = match limits.memlock {
        None => return Check::ok(NAME, "unlimited"),
        Some(limit) => bytes(limit),
    };
    if limits.ipc_lock {
        return Check::ok(
            NAME,
            format!("the limit of {limit} does not hold for this process (CAP_IPC_LOCK)"),
        );
    }
    if !rdma {
        return Check::ok(
            NAME,
            format!("{limit}; enough, only rdma locks the region's memory"),
        );
    }
    let found = format!(
        "{limit} may be locked, rdma locks the whole region ({})",
        bytes(region)
    );
    if limits.memlock >= Some(region) {
        return Check::ok(NAME, found);
    }
    Check::fail(
        NAME,
        found,
        "raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 (Docker), or the \
         capability IPC_LOCK; the region's size is told by --region-bytes",
    )
}

/// The devices that rdma has. Mooncake does not fail without one: it takes tcp.
pub fn rdma(devices: &[String], may_open: bool, wanted: Option<&str>) -> Check {
    const NAME: &str = "rdma";
    if devices.is_empty() {
        return Check::fail(
            NAME,
            "protocol is rdma, and there is no device in /sys/class/infiniband; Mooncake was seen to take tcp then, \
             without an error",
            "load the device's driver (`rdma link` lists devices), or take protocol tcp",
        );
    }
    let found = devices.join(", ");
    let wanted = wanted.unwrap_or_default().split(',').map(str::trim);
    let missing = wanted.filter(|name| !name.is_empty() && !devices.iter().any(|d| d == name));
    let missing: Vec<_> = missing.collect();
    if !missing.is_empty() {
        return Check::fail(
            NAME,
            format!("{found}; rdma_devices names {}", missing.join(", ")),
            "name devices that are there",
        );
    }
    if !may_open {
        return Check::fail(
            NAME,
            format!("{found}; but no /dev/infiniband, through which they are opened"),
            "give the container the devices (Docker: --device=/dev/infiniband)",
        );
    }
    Check::ok(NAME, found)
}

/// Whether a region can lie in huge pages.
pub fn huge_pages(limits: &MemoryLimits, region: u64) -> Check {
    const NAME: &str = "huge_pages";
    let free = limits.huge_pages_free;
    let need = limits
        .huge_page_size
        .map(|size| (size, region.div_ceil(size as u64)));
    let reserved = match need {
        Some((size, need)) if free >= need => {
            let size = bytes(size as u64);
            return Check::ok(
                NAME,
                format!("{free} reserved ones of {size} are free, the region needs {need}"),
            );
        }
        Some((size, need)) => format!(
            "{free} reserved ones of {} are free, the region needs {need}",
            bytes(size as u64)
        ),
        None => "no reserved ones".to_owned(),
    };
    if let Some(size) = limits.transparent_huge_size {
        let size = bytes(size as u64);
        return Check::ok(
            NAME,
            format!("{reserved}; the kernel gives transparent ones of {size} on request"),
        );
    }
    let reserve =
        need.map(|(_, need)| format!(", or reserve some: `sysctl vm.nr_hugepages={need}`"));
    Check::warn(
        NAME,
        format!("{reserved}; the kernel gives no transparent ones"),
        format!(
            "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`{}; else the region lies in plain pages",
            reserve.unwrap_or_default()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::report::Status;
    use super::*;

    fn cores(allowed: &[usize], at_a_time: usize, workers: usize) -> Check {
        let cores = Cores {
            online: "0-7".to_owned(),
            allowed: allowed.to_vec(),
            at_a_time,
            workers,
        };
        cores.check()
    }

    #[test]
    fn cores_are_told_with_the_quota_that_holds_for_them() {
        let check = cores(&[2, 3, 5, 7], 4, 4);
        assert_eq!(
            (check.status, check.found.as_str()),
            (Status::Ok, "4 allowed (2,3,5,7) of 0-7, 4 workers")
        );
        let check = cores(&[2, 3], 2, 5);
        assert_eq!(check.status, Status::Ok);
        assert!(check.found.ends_with("5 workers, 3 of them not pinned"));
        let check = cores(&[2, 3], 1, 2);
        assert_eq!(check.status, Status::Warn);
        assert!(check.found.ends_with("use about 1"), "{}", check.found);
        assert_eq!(cores(&[4], 1, 1).status, Status::Warn);
        assert_eq!(cores(&[], 1, 1).status, Status::Warn);
    }

    #[test]
    fn this_process_has_the_cores_of_its_mask() {
        let cores = Cores::read(1);
        assert!(!cores.allowed.is_empty());
        assert!((1..=cores.allowed.len()).contains(&cores.at_a_time));
    }

    fn limits(memlock: Option<u64>, ipc_lock: bool) -> MemoryLimits {
        let mut limits = MemoryLimits::read();
        (limits.memlock, limits.ipc_lock) = (memlock, ipc_lock);
        limits
    }

    #[test]
    fn only_rdma_fails_for_a_small_memlock_that_holds() {
        for (limit, ipc_lock, rdma, status) in [
            (None, false, true, Status::Ok),
            (Some(8 << 20), true, true, Status::Ok),
            (Some(8 << 20), false, false, Status::Ok),
            (Some(64 << 20), false, true, Status::Ok),
            (Some((64 << 20) - 1), false, true, Status::Fail),
        ] {
            let check = memlock(&limits(limit, ipc_lock), 64 << 20, rdma);
            assert_eq!(check.status, status, "{}", check.found);
            assert_eq!(check.todo.is_some(), status == Status::Fail);
        }
    }

    #[test]
    fn rdma_needs_the_devices_that_are_named_and_their_files() {
        let devices = ["mlx5_0", "mlx5_1"].map(String::from);
        for (devices, may_open, wanted, status) in [
            (&devices[..], true, None, Status::Ok),
            (&devices[..], true, Some(""), Status::Ok),
            (&devices[..], true, Some("mlx5_1, mlx5_0"), Status::Ok),
            (&devices[..], true, Some("mlx5_0,mlx5_2"), Status::Fail),
            (&devices[..], false, None, Status::Fail),
            (&[], true, None, Status::Fail),
        ] {
            let check = rdma(devices, may_open, wanted);
            assert_eq!(check.status, status, "{}", check.found);
        }
    }

    #[test]
    fn huge_pages_come_from_the_pool_or_on_request_or_not_at_all() {
        let pages = |free, transparent| {
            let mut limits = limits(None, false);
            limits.huge_page_size = Some(2 << 20);
            limits.huge_pages_free = free;
            limits.transparent_huge_size = transparent;
            huge_pages(&limits, 5 << 20)
        };
        let check = pages(3, None);
        assert_eq!(check.status, Status::Ok);
        assert!(check.found.ends_with("the region needs 3"));
        let check = pages(2, Some(2 << 20));
        assert_eq!(check.status, Status::Ok);
        assert!(
            check
                .found
                .ends_with("transparent ones of 2 MiB on request")
        );
        let check = pages(2, None);
        assert_eq!(check.status, Status::Warn);
        assert!(
            check
                .todo
                .is_some_and(|todo| todo.contains("vm.nr_hugepages=3"))
        );
    }
}
