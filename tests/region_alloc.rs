//! A region that we allocate: what was asked for is got or refused, and the report tells the truth.

use std::fs;
use std::io::Write;

use moonring::{HugePages, MemLock, Origin, Region, RegionError, RegionOptions};

const MIB: usize = 1 << 20;

fn page() -> usize {
    // SAFETY: no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap()
}

/// How many of the region's pages are present.
fn present(region: &Region) -> usize {
    let mapped = region.report().mapped.unwrap();
    let mut pages = vec![0u8; mapped / page()];
    // SAFETY: the range is mapped, and `pages` has a byte for each page of it.
    let rc = unsafe { libc::mincore(region.base().as_ptr().cast(), mapped, pages.as_mut_ptr()) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    pages.iter().filter(|&&page| page & 1 == 1).count()
}

/// A line of the mapping that starts at the region's base, as the kernel sees it.
fn smaps_line(region: &Region, name: &str) -> String {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let head = format!("{:x}-", region.base().addr());
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&head));
    lines
        .find(|line| line.starts_with(name))
        .expect(name)
        .into()
}

/// A field of that mapping, in bytes.
fn smaps(region: &Region, name: &str) -> usize {
    let line = smaps_line(region, name);
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

/// Says what was not tested, and why, past the test harness, which shows no output of tests that pass.
fn skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
}

/// The error's text; it must be one.
fn refusal(options: RegionOptions) -> String {
    Region::allocate(options).unwrap_err().to_string()
}

#[test]
fn a_region_is_zeroed_writable_and_as_long_as_asked_for() {
    let len = 3 * page() - 1;
    let region = Region::allocate(RegionOptions::new(len)).unwrap();
    assert_eq!(region.len(), len);
    assert_ne!(region.id(), 0);
    let all = region.span(0, len);
    let start = region.as_mut_ptr(all).unwrap();
    assert_eq!(start, region.base());
    // SAFETY: nobody else uses this region, and no slice is alive while `start` is written through.
    unsafe {
        assert!(region.as_slice(all).unwrap().iter().all(|&byte| byte == 0));
        start.write_bytes(0xa5, len);
        assert!(
            region
                .as_slice(all)
                .unwrap()
                .iter()
                .all(|&byte| byte == 0xa5)
        );
    }
    let report = region.report();
    assert_eq!(report.address, region.base().addr().get());
    assert_eq!((report.len, report.origin), (len, Origin::Allocated));
    assert_eq!(report.mapped, Some(3 * page()));
    assert_eq!(report.page_size, Some(page()));
    assert_eq!(report.notes, Vec::<String>::new());
}

#[test]
fn pages_are_made_present_unless_told_otherwise() {
    let region = Region::allocate(RegionOptions::new(64 * page())).unwrap();
    assert!(region.report().prefaulted);
    assert_eq!(present(&region), 64);

    let lazy = Region::allocate(RegionOptions::new(64 * page()).prefault(false)).unwrap();
    assert!(!lazy.report().prefaulted);
    assert_eq!(present(&lazy), 0);
}

#[test]
fn the_alignment_asked_for_is_got() {
    for shift in 12..=30 {
        let align = 1usize << shift;
        if align < page() {
            continue;
        }
        // A reservation costs nothing until it is used.
        let options = RegionOptions::new(page() + 1).align(align);
        let region = Region::allocate(options).unwrap();
        assert_eq!(region.base().addr().get() % align, 0, "{align}");
        // SAFETY: inside the region, which nobody else uses.
        unsafe {
            region.base().write(1);
            region.base().add(region.len() - 1).write(1);
        }
    }
}

#[test]
fn options_that_can_not_be_are_refused_naming_the_field() {
    let text = refusal(RegionOptions::new(0));
    assert_eq!(text, "len: zero");
    for len in [usize::MAX, usize::MAX - page(), isize::MAX as usize] {
        let text = refusal(RegionOptions::new(len));
        assert_eq!(
            text,
            format!("len: {len} bytes are more than can be addressed")
        );
        let text = refusal(RegionOptions::new(len).huge_pages(HugePages::Try));
        assert!(text.starts_with("len: "), "{text}");
    }
    for align in [0, 3, page() + 1] {
        let text = refusal(RegionOptions::new(1).align(align));
        assert_eq!(text, format!("align: {align} is not a power of two"));
    }
    for align in [1, page() / 2] {
        let text = refusal(RegionOptions::new(1).align(align));
        assert_eq!(
            text,
            format!("align: {align} is under the page size of {} bytes", page())
        );
    }
    let text = refusal(RegionOptions::new(1).align(1 << 63));
    assert!(text.starts_with("len: "), "{text}");
}

#[test]
fn more_than_the_kernel_has_is_refused_naming_limit_value_and_need() {
    let need = 1usize << 60;
    let error = Region::allocate(RegionOptions::new(need).prefault(false)).unwrap_err();
    let text = error.to_string();
    let RegionError::NoMemory {
        need: told,
        limit,
        value,
        ..
    } = error
    else {
        panic!("{text}");
    };
    assert_eq!(told, need);
    assert!(value > 0);
    assert!(
        text.starts_with(&format!(
            "len: need {need} bytes, {limit} is {value} bytes: "
        )),
        "{text}"
    );
}

#[test]
fn a_reservation_that_can_not_be_backed_is_refused() {
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap();
    if mode.trim() == "1" {
        skipped("vm.overcommit_memory is 1, the kernel promises whatever is asked for");
        return;
    }
    // Fits the address space, not the memory of any machine that runs this.
    let error = Region::allocate(RegionOptions::new(1 << 45).prefault(false)).unwrap_err();
    assert!(matches!(error, RegionError::NoMemory { .. }), "{error}");
}

#[test]
fn required_huge_pages_are_got_or_refused_naming_the_limit() {
    let meminfo = |name: &str| {
        let text = fs::read_to_string("/proc/meminfo").unwrap();
        let line = text.lines().find(|line| line.starts_with(name))?.to_owned();
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let Some(huge) = meminfo("Hugepagesize:") else {
        let text = refusal(RegionOptions::new(1).huge_pages(HugePages::Require));
        assert!(text.starts_with("huge_pages: this kernel has no"), "{text}");
        return;
    };
    let huge = usize::try_from(huge).unwrap() * 1024;
    let free = meminfo("HugePages_Free:").unwrap() - meminfo("HugePages_Rsvd:").unwrap();

    // One more than there are.
    let need = usize::try_from(free).unwrap() + 1;
    let text = refusal(RegionOptions::new(need * huge).huge_pages(HugePages::Require));
    let wanted = format!("huge_pages: need {need} pages of {huge} bytes, HugePages_Free is ");
    assert!(text.starts_with(&wanted), "{text}");

    let text = refusal(
        RegionOptions::new(1)
            .huge_pages(HugePages::Require)
            .align(2 * huge),
    );
    assert!(
        text.starts_with("align: ") && text.contains("huge page size"),
        "{text}"
    );

    if free == 0 {
        skipped("a region in huge pages (HugePages_Free is 0)");
        return;
    }
    let options = RegionOptions::new(huge / 2)
        .huge_pages(HugePages::Require)
        .align(huge);
    let region = Region::allocate(options).unwrap();
    let report = region.report();
    assert_eq!((report.page_size, report.mapped), (Some(huge), Some(huge)));
    assert_eq!(region.len(), huge / 2);
    assert_eq!(report.address % huge, 0);
    assert!(report.prefaulted && !report.transparent_huge_advised);
    assert_eq!(smaps(&region, "KernelPageSize:"), huge);
    assert_eq!(smaps(&region, "Private_Hugetlb:"), huge);
}

#[test]
fn tried_huge_pages_report_what_was_got() {
    let len = 5 * MIB;
    let options = RegionOptions::new(len).huge_pages(HugePages::Try);
    let region = Region::allocate(options).unwrap();
    let report = region.report();
    assert_eq!(report.page_size, Some(smaps(&region, "KernelPageSize:")));
    if report.page_size != Some(page()) {
        assert!(report.notes.is_empty(), "{report:?}");
        return;
    }
    // The pool's refusal is told, and what came in its place.
    assert!(report.notes[0].starts_with("huge_pages: "), "{report:?}");
    assert_eq!(
        report.transparent_huge,
        report
            .transparent_huge_advised
            .then(|| smaps(&region, "AnonHugePages:")),
        "{report:?}"
    );
    let policy = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let offered = policy.is_ok_and(|modes| !modes.contains("[never]"));
    assert_eq!(report.transparent_huge_advised, offered, "{report:?}");
    let flags = smaps_line(&region, "VmFlags:");
    assert!(!offered || flags.contains(" hg"), "{flags}");
    if !offered {
        assert_eq!(report.notes.len(), 2, "{report:?}");
        skipped("transparent huge pages (this kernel offers none)");
    } else if report.transparent_huge == Some(0) {
        skipped("transparent huge pages (the kernel had none free)");
    } else {
        assert_eq!(report.address % (2 * MIB), 0);
        assert!(report.transparent_huge.unwrap() >= 2 * MIB, "{report:?}");
    }
}

#[test]
fn a_region_without_huge_pages_asks_for_none() {
    let region = Region::allocate(RegionOptions::new(MIB)).unwrap();
    assert!(!region.report().transparent_huge_advised);
    assert_eq!(region.report().transparent_huge, None);
    assert_eq!(region.report().locked, 0);
    assert_eq!(smaps(&region, "Locked:"), 0);
}

#[test]
fn locked_bytes_are_those_that_the_kernel_counts() {
    let len = 3 * page() + 1;
    let lazy = RegionOptions::new(len).prefault(false);
    let region = match Region::allocate(lazy.clone().mlock(MemLock::Require)) {
        Ok(region) => region,
        Err(e @ RegionError::MemLock { .. }) => {
            skipped(&format!("locking four pages: {e}"));
            return;
        }
        Err(e) => panic!("{e}"),
    };
    assert_eq!(region.report().locked, 4 * page());
    assert_eq!(smaps(&region, "Locked:"), 4 * page());
    // Locking makes them present too.
    assert!(region.report().prefaulted);
    assert_eq!(present(&region), 4);

    let tried = Region::allocate(lazy.mlock(MemLock::Try)).unwrap();
    assert_eq!(tried.report().locked, smaps(&tried, "Locked:"));
}

#[test]
fn the_report_can_be_printed_as_json() {
    let region = Region::allocate(RegionOptions::new(page())).unwrap();
    let json = serde_json::to_value(region.report()).unwrap();
    assert_eq!(json["len"], page());
    assert_eq!(json["origin"], "allocated");
    assert_eq!(json["page_size"], page());
}

#[test]
fn regions_differ_by_id_and_clones_do_not() {
    let one = Region::allocate(RegionOptions::new(1)).unwrap();
    let other = Region::allocate(RegionOptions::new(1)).unwrap();
    assert_ne!(one.id(), other.id());
    assert_eq!(one.clone().id(), one.id());
    assert_eq!(one.clone().base(), one.base());
}
