//! docs/errors.md against the code: every error is made here, and its message, cause and remedy stand there.
//!
//! A variant that is not made here does not compile: it is in this crate that enums are exhaustive.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use crate::config::{ConfigError, L2Adapter, MooncakeConfig, SizeError, StoreConfig, parse_size};
use crate::store::direct::DirectError;
use crate::store::{MooncakeError, OpenError, OptionError, RegisterError};
use crate::{
    ClientError, OpError, OpKind, PairError, RegionError, ShutdownError, SlotLenError, StartError,
    SubmitError, Unavailable, WaitError,
};

const PAGE: &str = include_str!("../docs/errors.md");

/// Error and message of each sample.
type Samples = Vec<(&'static str, String)>;

/// Every variant of an enum, with values.
macro_rules! every {
    ($type:ident { $($variant:ident $({ $($field:ident: $value:expr),* $(,)? })? $(($inner:expr))?,)* }) => {{
        // What is missing in the list is missing here.
        let _exhaustive = |error: &$type| match error {
            $($type::$variant { .. } => {})*
        };
        let samples: Samples = vec![$((
            stringify!($variant),
            $type::$variant $({ $($field: $value),* })? $(($inner))?.to_string(),
        )),*];
        samples
    }};
}

/// The rows of a section: error, then message, cause and remedy.
fn rows(section: &str) -> BTreeMap<&'static str, [&'static str; 3]> {
    let (_, text) = PAGE
        .split_once(&format!("\n## {section}\n"))
        .unwrap_or_else(|| panic!("no section {section}"));
    let text = text.split("\n## ").next().unwrap_or(text);
    let mut rows = BTreeMap::new();
    let lines = text.lines().filter(|line| line.starts_with('|'));
    for line in lines.skip(2) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [error, message, cause, remedy] = cells[..] else {
            panic!("{section}: not four cells: {line}");
        };
        let before = rows.insert(error.trim_matches('`'), [message, cause, remedy]);
        assert!(before.is_none(), "{section}: {error} stands twice");
    }
    rows
}

/// Whether a text is the pattern with something, or nothing, in place of each `{}`.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split("{}");
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    match last {
        Some("") => true,
        Some(part) => rest.is_empty() || text.ends_with(part),
        None => rest.is_empty(),
    }
}

/// The section has these and no others, each with its message, a cause, and a remedy where one is needed.
fn check(section: &str, samples: &Samples) {
    let mut rows = rows(section);
    for (error, message) in samples {
        let row = rows.get(error);
        let [told, cause, remedy] = row.unwrap_or_else(|| panic!("{section}: no row {error}"));
        assert!(
            matches(told, message),
            "{section}, {error}: {message:?}, told is {told:?}"
        );
        assert!(!cause.is_empty(), "{section}, {error}: no cause");
        assert!(!remedy.is_empty(), "{section}, {error}: no remedy");
    }
    for (error, _) in samples {
        rows.remove(error);
    }
    assert!(
        rows.is_empty(),
        "{section}: {:?} are no errors",
        rows.keys()
    );
}

const OP: OpKind = OpKind::Retrieve;

fn os() -> std::io::Error {
    std::io::Error::from_raw_os_error(libc::ENOMEM)
}

fn config_error() -> ConfigError {
    ConfigError::new("num_workers", "got 0 (want an integer from 1 to 62)")
}

#[test]
fn ops() {
    let len = NonZeroU64::new(7);
    check(
        "OpError",
        &every!(OpError {
            NotFound, Leased, NoSpace, ShortBuffer { object_len: len }, LengthMismatch { object_len: len }, LeaseExpired, NotReady,
            Busy, AlreadyExists, InvalidArgument, IllegalClient, NoSegment, TransferFailed, ChecksumMismatch, RpcFailed,
            RpcTimedOut, Unavailable, Unsupported, StoreInternal, StorePanicked, WrongResultCount, BadResult,
            TimedOut { started: true }, Cancelled { started: false }, ShutDown, Forked, Store(-5),
        }),
    );
    // Without what the store may not tell.
    let [told, ..] = rows("OpError")["ShortBuffer"];
    assert!(matches(
        told,
        &OpError::ShortBuffer { object_len: None }.to_string()
    ));
}

#[test]
fn refusals() {
    let (op, offset, len, addr) = (OP, 64, 128, 0x1000);
    check(
        "SubmitError",
        &every!(SubmitError {
            NoCredit { depth: 8 }, RingFull { op: op, room: 3 }, ShutDown, Forked, EmptyKey, NulInKey { at: 4 },
            KeyTooLong { len: len, max: 100 }, NoLongKeyPlace { places: 16 }, ZeroLength { op: op },
            OutsideRegion { op: op, offset: offset, len: len, region_len: 100 }, UnknownRegion { op: op },
            AcrossRegistration { op: op, offset: offset, len: len, boundary: 100 }, NotRegistered { op: op, addr: addr, len: len },
            Quarantined { op: op, addr: addr, len: len }, Unavailable { op: op, why: Unavailable::Failing },
            Overlap { op: op, offset: offset, len: len },
        }),
    );
    check(
        "Unavailable",
        &every!(Unavailable {
            Failing,
            Overdue,
            Quarantine,
        }),
    );
    check(
        "ClientError",
        &every!(ClientError {
            Refused(SubmitError::EmptyKey), Failed(OpError::NotFound),
        }),
    );
}

#[test]
fn configurations() {
    let deep = format!(r#"{{"type": {}1{}}}"#, "[".repeat(20), "]".repeat(20));
    let sim = |rest: &str| format!(r#"{{"type": "sim", "panics": {{{rest}}}}}"#);
    let memory = |rest: &str| format!(r#"{{"type": "memory", {rest}}}"#);
    let cases = [
        ("syntax", "{".to_owned()),
        ("no object", "[]".to_owned()),
        ("unknown", memory(r#""workers": 1"#)),
        ("missing", "{}".to_owned()),
        ("value", memory(r#""num_workers": "2""#)),
        ("size", memory(r#""capacity": "1.5 GB""#)),
        ("twice", memory(r#""type": "memory""#)),
        ("deep", deep),
        ("core", memory(r#""moonring": {"cores": [1, 1]}"#)),
        ("call", sim(r#""calls": [3, 3]"#)),
        ("both", sim(r#""calls": [3], "rate": 0.5"#)),
        ("neither", sim("")),
        ("key", r#"{"type": "mooncake_store", "": 1}"#.to_owned()),
    ];
    let mut samples: Samples = Vec::new();
    for (error, json) in cases {
        let refused = L2Adapter::parse(&json).expect_err(&json);
        samples.push((error, refused.to_string()));
    }
    let rdma =
        L2Adapter::parse(r#"{"type": "mooncake_store", "protocol": "rdma"}"#).map(|a| a.store);
    let Ok(StoreConfig::MooncakeStore(rdma)) = rdma else {
        panic!("{rdma:?}");
    };
    let refused = MooncakeConfig::check_region(&rdma, None).expect_err("no region");
    samples.push(("rdma", refused.to_string()));
    check("ConfigError", &samples);
    let written = ["x", "-1", "1.5", "1 parsec", "99999999999999999999"];
    let sizes = every!(SizeError {
        NotANumber,
        Negative,
        Fractional,
        UnknownUnit,
        Overflow,
    });
    for (size, (_, message)) in written.iter().zip(&sizes) {
        assert_eq!(
            parse_size(size).map_err(|e| e.to_string()),
            Err(message.clone()),
            "{size}"
        );
    }
    check("SizeError", &sizes);
}

#[test]
fn memory() {
    check(
        "RegionError",
        &every!(RegionError {
            Invalid { field: "len".into(), reason: "zero".into() },
            NoMemory { need: 4096, limit: "RLIMIT_AS", value: 5, os: os() },
            HugePages { need: 1, page_size: 2 << 20, free: 0, reserved: 0, total: 0, os: os() },
            Prefault { need: 4096, available: 100, os: os() },
            MemLock { need: 4096, limit: None, locked: 0, os: os() },
            Kernel { call: "mprotect", os: os() },
            NoRoom { need: 100, room: 10 },
        }),
    );
    let too_long = SlotLenError {
        len: 9,
        capacity: 8,
    };
    check(
        "SlotLenError",
        &vec![("SlotLenError", too_long.to_string())],
    );
}

#[test]
fn starting() {
    let register = RegisterError::new("-600 (INVALID_PARAMS)");
    check(
        "StartError",
        &every!(StartError {
            Config(config_error()), Core { core: 9, allowed: vec![0, 1] },
            RegionsOverlap { first: 0, second: 1, report: "where they are".into() },
            Registration { region: 0, piece: 2, pieces: 3, addr: 0x1000, len: 9, error: register.clone(), left: vec![] },
            Worker { name: "mr-shared-0".into(), error: os() },
        }),
    );
    check(
        "RegisterError",
        &vec![("RegisterError", register.to_string())],
    );
    check(
        "PairError",
        &every!(PairError { Depth { depth: 0, max: 65536 }, TooMany { max: 512 }, ShutDown, Forked, }),
    );
    check(
        "WaitError",
        &every!(WaitError {
            TimedOut,
            ShutDown,
            Forked,
        }),
    );
    check(
        "ShutdownError",
        &every!(ShutdownError {
            WouldDeadlock,
            Forked,
        }),
    );
}

#[test]
fn stores() {
    let option = OptionError::new("shards", "0; must be 1 to 1024");
    let (path, origin) = ("/x.so".to_owned(), "MOONCAKE_STORE_LIBRARY");
    let mooncake = every!(MooncakeError {
        Config(config_error()), NoLibrary { tried: vec!["libmooncake_store.so".into()] },
        Library { path: path.clone(), origin: origin, reason: "no such file".into() },
        MissingSymbol { path: path.clone(), origin: origin, symbol: "mooncake_store_create" },
        NoMaster { addr: "127.0.0.1:1".into(), reason: "refused".into() }, Create { detail: None },
        Setup { code: -600, detail: Some("why".into()) }, TimedOut { limit_s: 30, doing: "in Mooncake's set-up" },
        Thread { reason: "it panicked".into() },
    });
    check("MooncakeError", &mooncake);
    check("OptionError", &vec![("OptionError", option.to_string())]);
    check(
        "OpenError",
        &every!(OpenError {
            Option(option), Mooncake(MooncakeError::Create { detail: None }),
        }),
    );
    check(
        "DirectError",
        &every!(DirectError {
            EmptyKey { index: 0 }, NulInKey { index: 0, at: 1 }, DuplicateKey { first: 0, index: 1 }, ZeroLength { index: 0 },
            TooFewBuffers { keys: 2, buffers: 1 },
        }),
    );
}

/// No error type of the crate is left out: each has a section.
#[test]
fn every_public_error_type_has_a_section() {
    fn sources(folder: &std::path::Path, found: &mut Vec<String>) {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.is_dir() {
                sources(&path, found);
            } else {
                found.extend(std::fs::read_to_string(&path).ok());
            }
        }
    }
    let mut found = Vec::new();
    sources(
        &std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut found,
    );
    // Not as a whole, or this file would be one.
    let derive = ["thiserror", "Error)]"].join("::");
    let mut types = 0;
    for source in &found {
        for (_, after) in source
            .match_indices(&derive)
            .map(|(at, _)| source.split_at(at))
        {
            let item = after
                .lines()
                .find(|line| line.contains("enum ") || line.contains("struct "));
            let item = item.unwrap_or_default();
            let Some(item) = item.strip_prefix("pub ") else {
                continue;
            };
            let name = item
                .split(|c: char| !c.is_alphanumeric())
                .nth(1)
                .unwrap_or_default();
            assert!(!rows(name).is_empty(), "{name}");
            types += 1;
        }
    }
    assert!(types >= 17, "only {types} found");
}
