//! A hot loop: one thread with rings of its own, and raw spans over memory that the host has already.
//!
//! `cargo run --release -p moonring-examples --bin hot_loop`

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use moonring::store::{MemoryOptions, MemoryStore};
use moonring::{Done, Engine, OpKind, Pair, Region, Shutdown, Submission};

const BLOCK: usize = 64 << 10;
const BLOCKS: usize = 32;
const ROUNDS: u64 = 50;

/// Memory of the host's: here its own mapping, elsewhere pinned memory of a GPU runtime.
struct HostMemory {
    base: *mut u8,
    len: usize,
}

// SAFETY: it is only unmapped, once, by whoever drops it last; access goes by the rules of `Region::wrap`.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    fn map(len: usize) -> std::io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, of nobody's memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
        match base {
            libc::MAP_FAILED => Err(std::io::Error::last_os_error()),
            base => Ok(Self {
                base: base.cast(),
                len,
            }),
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody uses it any more: the region that held us is gone.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// A key without an allocation. Returns it as a part of `buffer`.
fn key(buffer: &mut [u8; 64], round: u64, block: usize) -> &[u8] {
    let mut rest = &mut buffer[..];
    write!(rest, "model@0@0@{round:08x}{block:04x}").expect("64 bytes are enough");
    let left = rest.len();
    &buffer[..64 - left]
}

/// Waits for all ops in flight, and counts those that went well by `is_well`.
fn reap(pair: &mut Pair, is_well: impl Fn(Done, u64) -> bool) -> Result<usize, Box<dyn Error>> {
    pair.wait(pair.in_flight(), Some(Duration::from_secs(10)))?;
    let mut well = 0;
    for completion in pair.completions() {
        well += usize::from(is_well(completion.result?, completion.user_data));
    }
    Ok(well)
}

fn main() -> Result<(), Box<dyn Error>> {
    // The first half has what is stored, the second takes what is retrieved.
    let memory = HostMemory::map(2 * BLOCKS * BLOCK)?;
    let (base, len) = (memory.base, memory.len);
    // SAFETY: `memory` keeps the mapping, and goes into the region; below, bytes are touched only while no op has them.
    let region = unsafe { Region::wrap(base, len, memory)? };
    let store = MemoryStore::new(MemoryOptions::default())?;
    let engine = Engine::builder(Arc::new(store))
        .region(region.clone())
        .start()?;

    let mut pair = engine.pair(BLOCKS)?;
    let mut buffer = [0; 64];
    let (mut stored, mut found, mut retrieved, mut wrong) = (0, 0, 0, 0);
    for round in 0..ROUNDS {
        // A place in the ring for each op, filled in place; one publication for all.
        for block in 0..BLOCKS {
            let fill = (round as u8).wrapping_add(block as u8);
            // SAFETY: inside the mapping; no op is in flight.
            unsafe { base.add(block * BLOCK).write_bytes(fill, BLOCK) };
        }
        let mut batch = pair.batch();
        for block in 0..BLOCKS {
            let span = region.span(block * BLOCK, BLOCK);
            // SAFETY: nobody writes these bytes before `reap` has seen the completion, and none has `more`: there are no deadlines.
            let op = unsafe { Submission::store_span(key(&mut buffer, round, block), span) };
            batch.push(op).map_err(|refused| refused.reason)?;
        }
        batch.publish();
        stored += reap(&mut pair, |done, _| matches!(done, Done::Store(_)))?;

        let mut batch = pair.batch();
        for block in 0..BLOCKS {
            let op = Submission::lookup(key(&mut buffer, round, block));
            batch.push(op).map_err(|refused| refused.reason)?;
        }
        batch.publish();
        found += reap(&mut pair, |done, _| done == Done::Present)?;

        let mut batch = pair.batch();
        for block in 0..BLOCKS {
            let span = region.span((BLOCKS + block) * BLOCK, BLOCK);
            // SAFETY: as above; nobody reads them either.
            let op = unsafe { Submission::retrieve_span(key(&mut buffer, round, block), span) };
            batch
                .push(op.user_data(block as u64))
                .map_err(|refused| refused.reason)?;
        }
        batch.publish();
        retrieved += reap(&mut pair, |done, _| done == Done::Retrieved(BLOCK as u64))?;
        // SAFETY: inside the mapping; no op is in flight.
        let (sent, got) = unsafe {
            let half = BLOCKS * BLOCK;
            (
                std::slice::from_raw_parts(base, half),
                std::slice::from_raw_parts(base.add(half), half),
            )
        };
        wrong += usize::from(sent != got);
    }

    let per_call = engine.stats().lane(OpKind::Retrieve).ops_per_call();
    println!(
        "stored {stored}, found {found}, retrieved {retrieved}, wrong {wrong}, {per_call:.1} ops per call"
    );
    drop(pair);
    let report = engine.shutdown(Shutdown::Drain, Duration::from_secs(5))?;
    println!(
        "completed {}, unreleased {}",
        report.completed,
        report.unreleased.len()
    );
    Ok(())
}
