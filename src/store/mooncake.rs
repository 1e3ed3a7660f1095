//! The `mooncake_store`: a real Mooncake.
//!
//! All calls go through one table of C functions, declared in `src/store/mooncake/seam.h`: Mooncake's own C interface, and a
//! few optional extensions of ours. The table is filled at start, every function in it checked, from the first of these:
//!
//! 1. the library that [`OpenOptions::library`] names, or the environment: `MOONCAKE_STORE_LIBRARY` (Mooncake's
//!    `libmooncake_store.so`, built with `WITH_STORE_C_SHARED`), `MOONRING_MOONCAKE_BRIDGE`. If it is none, no other is tried;
//! 2. in a linked build (`BUILD_MOONCAKE=1`, see `build/mooncake.rs`) what was linked in;
//! 3. `libmooncake_store.so` where the loader finds it;
//! 4. the bridge to the PyPI wheel, `libmoonring_wheel_bridge.so`, where it is set up: in `$MOONRING_MOONCAKE_DIR`, or in
//!    `moonring` in `$XDG_DATA_HOME` or `~/.local/share`.
//!
//! # What reaches Mooncake's set-up
//! With the extensions (2 and 4) every key of the configuration, as it is. The C interface has arguments instead:
//! `local_hostname` and `metadata_server` (both needed), `global_segment_size` and `local_buffer_size` (sizes; default 16 MiB),
//! `protocol` (`tcp`), `rdma_devices`, `master_server_addr` (`127.0.0.1:50051`); another key is an error that names it.
//!
//! # What is promised
//! - A result array is filled with what no result can be before each call, and a call that returns anything but 0 makes all its
//!   keys errors, whatever it has written.
//! - Result codes become [`OpError`]s by the table in `codes.rs`; an unknown code keeps its number. A put that went well
//!   is [`Accepted`](StoreOutcome::Accepted): Mooncake doesn't tell a new object from one that is there.
//! - Opening ends in `setup_timeout`; a master that doesn't listen is told in seconds. It happens on a thread of its own,
//!   with signals blocked, and handlers that the library changes are put back: the caller's thread, the process's
//!   environment and handlers stay as they were.
//! - After [`close`](Store::close) no call reaches the library, and the client is not destroyed under one.
//! - In a forked child no call reaches the library either, and dropping the store leaves the client alone. The library itself
//!   doesn't know of the fork: such a child must end by `exec` or `_exit`, or what the library does at `exit` runs there without
//!   the threads that it needs.
//!
//! # Limits
//! - The lookup of a key, as Mooncake has it, takes a lease like a retrieve.
//! - Mooncake's C library (not the bridge) starts a thread that waits for SIGINT, SIGTERM and SIGHUP with `sigwait`. A
//!   process that has such a signal unblocked gets it as before; one that blocks it in all threads and waits for it itself
//!   competes with that thread.
//! - A library is never unloaded.

mod codes;
mod error;
mod functions;
mod inside;
mod library;
#[cfg(not(feature = "bindgen"))]
#[allow(non_camel_case_types, dead_code)]
#[rustfmt::skip]
mod seam;
#[cfg(feature = "bindgen")]
#[allow(non_camel_case_types, dead_code)]
mod seam {
    include!(concat!(env!("OUT_DIR"), "/seam.rs"));
}
mod setup;
mod signals;

pub use codes::code_name;
pub use error::MooncakeError;
pub use library::{BRIDGE_VARIABLE, LIBRARY_VARIABLE};
pub use setup::{DEFAULT_MASTER, probe_master};

use std::cell::RefCell;
use std::ffi::c_int;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, mpsc};
use std::thread::LocalKey;
use std::time::Duration;

use super::{
    CallResult, Capabilities, DeleteBatch, LookupBatch, OpenOptions, RegisterError, RetrieveBatch,
    Store, StoreBatch, StoreHealth,
};
use crate::config::MooncakeConfig;
use crate::{OpError, OpKind, StoreOutcome};
use codes::{error, error_of_key, named};
use functions::Functions;
use inside::{Entered, Inside};
use setup::{Client, Handle};

/// The largest registration that Mooncake's transfer engine makes, in bytes; it reads the same variable.
const MAX_REGISTRATION_VARIABLE: &str = "MC_MAX_MR_SIZE";
/// How long closing waits for calls, and then for Mooncake to tear its client down.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

thread_local! {
    /// Where the library writes results: each worker's own, grown to its largest batch and never freed before its end.
    static RESULTS: RefCell<Vec<c_int>> = const { RefCell::new(Vec::new()) };
    static LENGTHS: RefCell<Vec<i64>> = const { RefCell::new(Vec::new()) };
}

/// A client of a real Mooncake. See the [module's page](self).
pub struct MooncakeStore {
    client: Client,
    inside: Inside,
    rdma: bool,
    /// Over tcp Mooncake needs no registration: one that fails is no more than a warning.
    tcp: bool,
    max_registration: Option<usize>,
    /// The code that made the last call fail as a whole, or with which all its keys failed; 0: it was answered. For
    /// [`health`](Store::health) alone: relaxed.
    trouble: AtomicI32,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    warnings: Vec<String>,
    /// Memory whose registration failed and need not be undone.
    unregistered: Vec<usize>,
}

/// A Mooncake library as it was found, see [`MooncakeStore::library`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MooncakeLibrary {
    /// Its path, or the name by which the loader found it, or `linked in`.
    pub path: String,
    /// What led to it: the name of an environment variable, `the library option`, `the build`, `the loader's path`, or
    /// `tools/mooncake setup` for a bridge in one of its folders.
    pub origin: &'static str,
    /// Mooncake's version, where the library knows it.
    pub version: Option<String>,
    /// Whether every key of the configuration reaches Mooncake's set-up.
    pub takes_dictionary: bool,
}

impl MooncakeLibrary {
    /// Looks for a library as [`MooncakeStore::open`] does, without making a client. The library stays open.
    ///
    /// # Errors
    /// Those of [`MooncakeError`] that speak of the library.
    pub fn find(asked_for: Option<&Path>) -> Result<Self, MooncakeError> {
        library::Library::find(asked_for).map(|library| Self::of(&library))
    }

    fn of(library: &library::Library) -> Self {
        Self {
            path: library.path.clone(),
            origin: library.origin,
            version: setup::version(&library.functions),
            takes_dictionary: library.functions.setup_dict.is_some(),
        }
    }
}

impl MooncakeStore {
    /// Finds the library and sets a client up.
    ///
    /// # Errors
    /// [`MooncakeError`].
    pub fn open(config: &MooncakeConfig, options: &OpenOptions) -> Result<Self, MooncakeError> {
        config.check_region(options.region)?;
        let client = setup::open(config, options.library.clone(), options.setup_timeout)?;
        crate::exit::library_opened();
        let mut notes = Notes::default();
        if config.is_rdma() && rdma_devices().is_empty() {
            let warning = "protocol: \"rdma\", and this machine has no RDMA device: Mooncake was seen to move bytes over tcp \
                           then, without an error";
            tracing::warn!("{warning}");
            notes.warnings.push(warning.to_owned());
        }
        Ok(Self {
            client,
            inside: Inside::default(),
            rdma: config.is_rdma(),
            tcp: config
                .get("protocol")
                .is_none_or(|protocol| protocol == "tcp"),
            max_registration: max_registration(),
            trouble: AtomicI32::new(0),
            notes: Mutex::new(notes),
        })
    }

    /// The library behind it.
    pub fn library(&self) -> MooncakeLibrary {
        MooncakeLibrary::of(&self.client.library)
    }

    fn functions(&self) -> &Functions {
        &self.client.library.functions
    }

    fn handle(&self) -> seam::mooncake_store_t {
        self.client.handle.0
    }

    fn enter(&self) -> Result<Entered<'_>, OpError> {
        self.inside.enter().ok_or_else(|| self.refusal())
    }

    /// How a call ends that does not reach the library.
    fn refusal(&self) -> OpError {
        match self.inside.is_forked() {
            true => OpError::Forked,
            false => OpError::Unavailable,
        }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A call with results: fills them with `unset`, lets `call` write them, hands each on to `set`.
    fn call<R: Copy + Into<i64>>(
        &self,
        results: &'static LocalKey<RefCell<Vec<R>>>,
        (len, unset): (usize, R),
        call: impl FnOnce(&Functions, seam::mooncake_store_t, *mut R) -> c_int,
        mut set: impl FnMut(usize, i64),
    ) -> CallResult {
        let _entered = self.enter()?;
        results.with_borrow_mut(|results| {
            results.clear();
            results.resize(len, unset);
            let code = call(self.functions(), self.handle(), results.as_mut_ptr());
            if code != 0 {
                self.trouble.store(code, Relaxed);
                return Err(error(code));
            }
            // All keys alike, and no answer: the master is gone, or the nodes are.
            let first = results.first().map_or(0, |r| (*r).into());
            let lost =
                (-901..=-800).contains(&first) && results.iter().all(|r| (*r).into() == first);
            self.trouble
                .store(if lost { first as i32 } else { 0 }, Relaxed);
            for (i, result) in results.iter().enumerate() {
                set(i, (*result).into());
            }
            Ok(len)
        })
    }
}

/// The names of this machine's RDMA devices, as `rdma_devices` takes them; sorted.
pub fn rdma_devices() -> Vec<String> {
    let devices = std::fs::read_dir("/sys/class/infiniband");
    let devices = devices.into_iter().flatten().flatten();
    let names = devices.map(|device| device.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// `MC_MAX_MR_SIZE`, read as Mooncake reads it: by `atoll`; what is not over 0 counts as not set.
pub(crate) fn max_registration() -> Option<usize> {
    let value = std::env::var(MAX_REGISTRATION_VARIABLE).ok()?;
    leading_number(&value)
}

fn leading_number(text: &str) -> Option<usize> {
    let text = text.trim_start();
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text[..end].parse().ok().filter(|bytes| *bytes > 0)
}

/// A list of pointers as C declares it. Mooncake's functions read the list and don't write it.
fn as_c<T>(list: &[*const T]) -> *mut *const T {
    list.as_ptr().cast_mut()
}

impl Store for MooncakeStore {
    fn name(&self) -> &str {
        "mooncake_store"
    }

    fn version(&self) -> Option<String> {
        self.client.version.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            needs_registration: self.rdma,
            max_registration: self.max_registration,
            tells_stored: false,
            leases: true,
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.notes().warnings.clone()
    }

    unsafe fn register(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        let _entered = self.enter().map_err(closed)?;
        // SAFETY: the client lives while this call is inside; the caller vouches for the memory.
        let code =
            unsafe { (self.functions().register_buffer)(self.handle(), base.as_ptr().cast(), len) };
        if code == 0 {
            return Ok(());
        }
        let reason = format!("mooncake_store_register_buffer returned {}", named(code));
        if !self.tcp {
            return Err(RegisterError::new(reason));
        }
        let warning = format!(
            "{len} bytes at {base:p} are not registered: {reason}; over tcp it works without"
        );
        tracing::warn!("{warning}");
        let mut notes = self.notes();
        notes.warnings.push(warning);
        notes.unregistered.push(base.as_ptr() as usize);
        Ok(())
    }

    unsafe fn unregister(&self, base: NonNull<u8>, len: usize) -> Result<(), RegisterError> {
        let _ = len;
        let _entered = self.enter().map_err(closed)?;
        {
            let mut notes = self.notes();
            let at = base.as_ptr() as usize;
            if let Some(i) = notes.unregistered.iter().position(|&a| a == at) {
                notes.unregistered.swap_remove(i);
                return Ok(());
            }
        }
        // SAFETY: as in `register`.
        match unsafe { (self.functions().unregister_buffer)(self.handle(), base.as_ptr().cast()) } {
            0 => Ok(()),
            code => Err(RegisterError::new(format!(
                "mooncake_store_unregister_buffer returned {}",
                named(code)
            ))),
        }
    }

    fn batch_exists(&self, batch: &mut LookupBatch<'_>) -> CallResult {
        let (keys, len) = (as_c(batch.key_ptrs()), batch.len());
        self.call(
            &RESULTS,
            (len, c_int::MIN),
            // SAFETY: the client lives while this call is inside; `len` NUL-terminated keys, which the batch borrows for the
            // whole call, and as many results.
            |f, client, results| unsafe { (f.batch_is_exist)(client, keys, len, results) },
            |i, result| {
                batch.set(
                    i,
                    match result {
                        0 => Ok(false),
                        1 => Ok(true),
                        code => Err(error_of_key(OpKind::Lookup, code)),
                    },
                );
            },
        )
    }

    fn batch_get_into(&self, batch: &mut RetrieveBatch<'_>) -> CallResult {
        let (keys, len) = (as_c(batch.key_ptrs()), batch.len());
        let (bufs, lens) = (
            batch.bufs().as_ptr().cast_mut().cast(),
            batch.buf_lens().as_ptr(),
        );
        self.call(
            &LENGTHS,
            (len, i64::MIN),
            // SAFETY: as above; each buffer is this call's alone to write, up to its length.
            |f, client, results| unsafe {
                (f.batch_get_into)(client, keys, bufs, lens, len, results)
            },
            |i, result| {
                batch.set(
                    i,
                    match u64::try_from(result) {
                        Ok(length) => Ok(length),
                        Err(_) => Err(error_of_key(OpKind::Retrieve, result)),
                    },
                );
            },
        )
    }

    fn batch_put_from(&self, batch: &mut StoreBatch<'_>) -> CallResult {
        let (keys, len) = (as_c(batch.key_ptrs()), batch.len());
        let (bufs, lens) = (
            batch.bufs().as_ptr().cast_mut().cast(),
            batch.buf_lens().as_ptr(),
        );
        self.call(
            &RESULTS,
            (len, c_int::MIN),
            // SAFETY: as above; the buffers are only read. No configuration: Mooncake's defaults.
            |f, client, results| unsafe {
                (f.batch_put_from)(client, keys, bufs, lens, len, std::ptr::null(), results)
            },
            |i, result| {
                batch.set(
                    i,
                    match result {
                        0 => Ok(StoreOutcome::Accepted),
                        code => Err(error_of_key(OpKind::Store, code)),
                    },
                );
            },
        )
    }

    fn batch_remove(&self, batch: &mut DeleteBatch<'_>) -> CallResult {
        let (keys, len) = (as_c(batch.key_ptrs()), batch.len());
        let force = c_int::from(batch.force());
        self.call(
            &RESULTS,
            (len, c_int::MIN),
            |f, client, results| match f.batch_remove {
                // SAFETY: as above.
                Some(remove) => unsafe { remove(client, keys, len, force, results) },
                None => {
                    for i in 0..len {
                        // SAFETY: as above; `i` is under `len` in both arrays.
                        unsafe { *results.add(i) = (f.remove)(client, *keys.add(i), force) };
                    }
                    0
                }
            },
            |i, result| {
                batch.set(
                    i,
                    match result {
                        0 => Ok(()),
                        code => Err(error_of_key(OpKind::Delete, code)),
                    },
                );
            },
        )
    }

    fn health(&self) -> StoreHealth {
        if self.inside.is_closed() {
            return StoreHealth::Down(closed(self.refusal()).reason);
        }
        match self.trouble.load(Relaxed) {
            0 => StoreHealth::Healthy,
            code => StoreHealth::Degraded(format!("the last call ended with {}", named(code))),
        }
    }

    fn close(&self) {
        if !self.inside.close() {
            return;
        }
        if !self.inside.wait_empty(CLOSE_LIMIT) {
            tracing::warn!("calls to Mooncake are still under way; its client is left as it is");
            return;
        }
        destroy(self.client.library.functions, self.client.handle);
    }
}

impl Drop for MooncakeStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// Tears a client down, on a thread of its own and within a limit: it calls the master, which may not answer.
fn destroy(functions: Functions, handle: Handle) {
    let (done, wait) = mpsc::channel::<()>();
    let body = move || {
        let handle = handle;
        let _blocked = crate::signals::BlockedSignals::new();
        // SAFETY: the store is closed, no call is inside, and `close` comes here once.
        unsafe { (functions.destroy)(handle.0) };
        drop(done);
    };
    let spawned = std::thread::Builder::new()
        .name("mr-mooncake-end".to_owned())
        .spawn(body);
    match spawned {
        Ok(_) => {
            if let Err(mpsc::RecvTimeoutError::Timeout) = wait.recv_timeout(CLOSE_LIMIT) {
                tracing::warn!("Mooncake takes long to tear its client down; it is not waited for");
            }
        }
        Err(error) => {
            tracing::warn!(%error, "no thread to tear Mooncake's client down; it is left")
        }
    }
}

fn closed(error: OpError) -> RegisterError {
    RegisterError::new(match error {
        OpError::Forked => "the store belongs to the parent of this forked process",
        _ => "the store is closed",
    })
}

impl std::fmt::Debug for MooncakeStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MooncakeStore")
            .field("library", &self.client.library.path)
            .field("rdma", &self.rdma)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::leading_number;

    #[test]
    fn the_largest_registration_is_read_as_mooncake_reads_it() {
        for (text, bytes) in [
            ("65536", Some(65_536)),
            (" +16", Some(16)),
            ("64MB", Some(64)),
            ("0", None),
            ("-5", None),
            ("", None),
            ("lots", None),
        ] {
            assert_eq!(leading_number(text), bytes, "{text:?}");
        }
    }
}
