//! What the commands share: their store and engine, the region, and where the JSON goes.

use std::fs::File;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use moonring::config::{L2Adapter, parse_size};
use moonring::store::{
    SimStore,
    sim::{Fault, SimReport},
};
use moonring::{
    Engine, Region, RegionOptions, Shutdown, SlotClass, SlotPool, SlotPoolOptions, Stats, store,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::Failure;
use crate::table;

/// The largest region that is allocated without being asked for by size.
const MAX_DEFAULT_REGION: u64 = 1 << 30;
/// Slots lie this many bytes apart, or a multiple: the slot pool's alignment.
const SLOT_ALIGN: u64 = 64;
/// How many spoiled calls of a `sim` are listed; all are counted.
const MAX_SPOILED: usize = 1000;
/// How long the end of a run waits for store calls that are still under way.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(60);

/// The value of `--l2-adapter`.
///
/// # Errors
/// What the configuration's field has wrong.
pub fn adapter(json: &str) -> Result<L2Adapter, Failure> {
    L2Adapter::parse(json).map_err(|e| Failure::input(format!("--l2-adapter: {e}")))
}

/// Whether the store moves no bytes, so that it gives none back.
pub fn is_null(adapter: &L2Adapter) -> bool {
    let config = adapter.effective();
    config["type"] == "null" || config["inner"]["type"] == "null"
}

/// A size on the command line: at least one byte.
///
/// # Errors
/// Why it is none, for clap.
pub fn size(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Ok(0) => Err("must be at least 1 byte".into()),
        other => other.map_err(|e| e.to_string()),
    }
}

/// An engine on a store, and slots for it.
#[derive(Debug)]
pub struct Session {
    /// The engine.
    pub engine: Engine,
    /// Its slots; `None` where none were asked for.
    pub slots: Option<SlotPool>,
    /// The memory that they are cut from.
    pub region: Option<Region>,
    /// Its store, where that is a `sim`.
    pub sim: Option<Arc<SimStore>>,
}

/// How many slots a run needs.
#[derive(Clone, Debug)]
pub struct Need {
    /// Capacity of each in bytes.
    pub slot_bytes: u64,
    /// How many.
    pub slots: u64,
    /// Why so many, for the error.
    pub why: String,
}

impl Need {
    /// Bytes that the slots need, where no slot may lie across two registrations of `max` bytes; `None`: more
    /// than can be addressed.
    fn bytes(&self, max: Option<u64>) -> Option<u64> {
        let stride = self.slot_bytes.checked_next_multiple_of(SLOT_ALIGN)?;
        // Behind a boundary at an odd place the next aligned one may be this far.
        let padding = match max {
            Some(max) if max % SLOT_ALIGN != 0 => SLOT_ALIGN - 1,
            _ => 0,
        };
        let first = self.slot_bytes.checked_add(padding)?;
        let bytes = match max.and_then(|max| Some((max, max.checked_sub(first)?))) {
            // Full registrations, and as many slots of the next as are left.
            Some((max, more)) => {
                let each = 1 + more / stride;
                let full = (self.slots / each).checked_mul(max)?;
                full.checked_add(self.slots % each * stride + padding)?
            }
            // No slot fits; the pool says so.
            None => stride.checked_mul(self.slots)?,
        };
        (bytes <= isize::MAX as u64).then_some(bytes)
    }

    /// The region's size in bytes.
    ///
    /// # Errors
    /// `given` is too small, or none is given and the need is beyond what is taken unasked.
    fn region_bytes(&self, given: Option<u64>, max: Option<u64>) -> Result<usize, Failure> {
        let Some(need) = self.bytes(max) else {
            return Err(Failure::input(format!(
                "the region would need more than the address space holds ({})",
                self.why
            )));
        };
        let text = |bytes: u64| format!("{} ({bytes} bytes)", table::bytes(bytes));
        match given {
            Some(have) if have < need => Err(Failure::input(format!(
                "--region-bytes: the region needs {} for {}, it has {}",
                text(need),
                self.why,
                text(have)
            ))),
            None if need > MAX_DEFAULT_REGION => Err(Failure::input(format!(
                "the region needs {} for {}, and unasked it has at most {}: give --region-bytes {need}",
                text(need),
                self.why,
                text(MAX_DEFAULT_REGION)
            ))),
            given => Ok(given.unwrap_or(need) as usize),
        }
    }
}

impl Session {
    /// Allocates the region, opens the store and starts the engine.
    ///
    /// # Errors
    /// Bad input: the region's size, or what the store or the engine refuse.
    pub fn start(
        adapter: &L2Adapter,
        need: &Need,
        region_bytes: Option<u64>,
    ) -> Result<Self, Failure> {
        let limits = [
            store::max_registration(&adapter.store),
            adapter.engine.max_registration,
        ];
        let max = limits.into_iter().flatten().min();
        let mut options = store::OpenOptions::new(&adapter.engine);
        let mut memory = None;
        if need.slots > 0 {
            let bytes = need.region_bytes(region_bytes, max.map(|max| max as u64))?;
            let region = Region::allocate(RegionOptions::new(bytes))
                .map_err(|e| Failure::input(format!("region: {e}")))?;
            let class = SlotClass {
                size: need.slot_bytes as usize,
                count: need.slots as usize,
            };
            let mut slots = SlotPoolOptions::default();
            if let Some(max) = max.and_then(NonZeroUsize::new) {
                slots = slots.max_registration(max);
            }
            let pool = region.slot_pool_with(&[class], slots);
            let pool = pool.map_err(|e| Failure::input(format!("slots: {e}")))?;
            options = options.region(region.base().as_ptr(), region.len());
            memory = Some((region, pool));
        }
        let opened = store::open_with(&adapter.store, &options)
            .map_err(|e| Failure::input(format!("--l2-adapter: {e}")))?;
        let mut builder = Engine::builder(opened.store)
            .config(adapter.engine.clone())
            .warnings(adapter.warnings().iter().cloned());
        let (mut slots, mut kept) = (None, None);
        if let Some((region, pool)) = memory {
            builder = builder.region(region.clone());
            slots = Some(pool);
            kept = Some(region);
        }
        let engine = builder
            .start()
            .map_err(|e| Failure::input(format!("start: {e}")))?;
        for warning in &engine.start_report().warnings {
            eprintln!("moonring: warning: {warning}");
        }
        Ok(Self {
            engine,
            slots,
            region: kept,
            sim: opened.sim,
        })
    }

    /// Ends the engine; the last statistics.
    ///
    /// # Errors
    /// Calls of the store did not return in time.
    pub fn end(self) -> (Stats, Result<(), Failure>) {
        let ended = self.engine.shutdown(Shutdown::Drain, SHUTDOWN_LIMIT);
        let ended = match ended {
            Ok(report) if report.in_flight > 0 => Err(Failure::run(format!(
                "shutdown: {} ops are in store calls that did not return within {} s",
                report.in_flight,
                SHUTDOWN_LIMIT.as_secs()
            ))),
            Ok(_) => Ok(()),
            Err(e) => Err(Failure::run(format!("shutdown: {e}"))),
        };
        (self.engine.stats(), ended)
    }
}

/// The most memory that this process has had resident, in bytes; `None` where the system doesn't tell.
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Where the JSON of a run goes. The file is made before the run, so that a bad name ends no long run.
#[derive(Debug)]
pub enum JsonOut {
    /// Nowhere.
    None,
    /// To standard output; what is for people then goes to standard error.
    Stdout,
    /// To a file.
    File(PathBuf, File),
}

impl JsonOut {
    /// The place that `--json` names; `-` is standard output.
    ///
    /// # Errors
    /// The file can't be made.
    pub fn open(path: Option<&Path>) -> Result<Self, Failure> {
        match path {
            None => Ok(Self::None),
            Some(path) if path == Path::new("-") => Ok(Self::Stdout),
            Some(path) => match File::create(path) {
                Ok(file) => Ok(Self::File(path.to_owned(), file)),
                Err(e) => Err(Failure::input(format!("--json {}: {e}", path.display()))),
            },
        }
    }

    /// Writes the report and shows the text for people.
    ///
    /// # Errors
    /// The report can't be written.
    pub fn write(self, report: &impl Serialize, text: &str) -> Result<(), Failure> {
        let json = serde_json::to_string_pretty(report).map_err(Failure::run)?;
        let failed = |name: &str, e: std::io::Error| Failure::run(format!("--json {name}: {e}"));
        // A closed standard output is no failure of the run.
        let say = |text: &str| {
            let _ = std::io::stdout().write_all(text.as_bytes());
        };
        match self {
            Self::None => say(text),
            Self::Stdout => {
                eprint!("{text}");
                say(&json);
                say("\n");
            }
            Self::File(path, mut file) => {
                say(text);
                file.write_all(json.as_bytes())
                    .and_then(|()| file.write_all(b"\n"))
                    .map_err(|e| failed(&path.to_string_lossy(), e))?;
            }
        }
        Ok(())
    }
}

/// The lanes as a table for people.
pub fn lanes_table(stats: &Stats) -> String {
    let mut lanes = table::Table::new(&[
        "lane",
        "ops",
        "calls",
        "ops/call",
        "keys/call",
        "callers/call",
        "p50",
        "p99",
        "max",
        "queue p50",
        "call p50",
        "results",
    ]);
    for lane in &stats.lanes {
        let us = |histogram: &moonring::stats::Histogram<u64>, quantile: f64| {
            table::micros(histogram.value_at_quantile(quantile) as f64 / 1e3)
        };
        if lane.completed() == 0 {
            continue;
        }
        let results: Vec<_> = lane
            .by_code()
            .map(|(name, n)| format!("{name} {}", table::count(n)))
            .collect();
        lanes.row([
            lane.op.name().to_owned(),
            table::count(lane.ops),
            table::count(lane.calls),
            format!("{:.1}", lane.ops_per_call()),
            format!("{:.1}", lane.keys_per_call()),
            format!("{:.1}", lane.callers_per_call()),
            us(lane.total(), 0.5),
            us(lane.total(), 0.99),
            us(lane.total(), 1.0),
            us(lane.queue(), 0.5),
            us(lane.call(), 0.5),
            results.join(", "),
        ]);
    }
    lanes.text()
}

/// What a `sim` has done: its seed, faults by name, and whose bytes it spoiled (the first 1,000 calls).
pub fn sim_json(report: &SimReport) -> Value {
    let faults: serde_json::Map<_, _> = Fault::ALL
        .iter()
        .map(|&fault| (fault.name().to_owned(), report.count(fault).into()))
        .collect();
    let spoiled: Vec<_> = report
        .byte_faults
        .iter()
        .take(MAX_SPOILED)
        .map(|spoiled| {
            let keys = spoiled.keys.iter().map(|key| String::from_utf8_lossy(key));
            json!({
                "fault": spoiled.fault.name(),
                "call": spoiled.call,
                "retrieve_call": spoiled.retrieve,
                "keys": keys.collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({ "seed": report.seed, "faults": faults, "spoiled": spoiled })
}

/// The `lanes` and `engine` members of a report.
pub fn stats_json(stats: &Stats) -> (Value, Value) {
    let mut json = stats.to_json();
    (json["lanes"].take(), json["engine"].take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_need_leaves_room_for_registration_boundaries() {
        let need = |slot_bytes, slots| Need {
            slot_bytes,
            slots,
            why: String::new(),
        };
        assert_eq!(need(4096, 10).bytes(None), Some(40_960));
        assert_eq!(need(100, 10).bytes(None), Some(1280));
        assert_eq!(
            need(4096, 11).bytes(Some(4096 * 3 + 1)),
            Some(5 * 12_289 + 4096 + 63)
        );
        assert_eq!(need(4096, 9).bytes(Some(4096 * 3)), Some(36_864));
        assert_eq!(need(u64::MAX, 1).bytes(None), None);
        assert_eq!(need(1 << 40, 1 << 30).bytes(None), None);
        // What is laid out has room for all.
        for (slot, slots, max) in [
            (1000, 50, 4096),
            (4096, 7, 8192),
            (64, 9, 130),
            (5000, 33, 20_000),
        ] {
            let bytes = need(slot, slots).bytes(Some(max)).expect("a size");
            let region = Region::allocate(RegionOptions::new(bytes as usize)).expect("memory");
            let class = SlotClass {
                size: slot as usize,
                count: slots as usize,
            };
            let max = NonZeroUsize::new(max as usize).expect("not 0");
            let options = SlotPoolOptions::default().max_registration(max);
            let pool = region.slot_pool_with(&[class], options);
            assert_eq!(
                pool.expect("room").total() as u64,
                slots,
                "{slot} {slots} {max}"
            );
        }
    }
}
