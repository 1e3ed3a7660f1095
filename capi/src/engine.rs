//! An engine, from its start to its end.

use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;

use moonring::store::{self, OpenOptions};
use moonring::{Engine, L2Adapter, Region, Shutdown};

use crate::moonring_status::*;
use crate::{Null, failure, guarded, moonring_status};

/// A running engine. Its functions may be called from any thread.
pub struct moonring_engine {
    pub(crate) engine: Engine,
}

/// How an engine ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct moonring_shutdown_report {
    /// Ops that had their completion since the start.
    pub completed: u64,
    /// Those of them that ended as shut down.
    pub cancelled: u64,
    /// Ops in store calls that have not returned. Over 0: the engine's memory must stay mapped for as long as the process lives.
    pub unreleased: u64,
    /// Pieces of the memory that the store did not unregister. Over 0: the same.
    pub not_unregistered: u64,
}

/// Opens the store and starts an engine, over memory of the host's that buffers will lie in.
///
/// `json`: LMCache's `--l2-adapter`, see docs/configuration.md. `memory` may be NULL (with `memory_len` 0) for a store that needs no
/// registration. It stays the host's, who must keep it mapped until `moonring_shutdown` reports `unreleased` and
/// `not_unregistered` 0, else for as long as the process lives.
///
/// # Safety
/// `json` must end in NUL; `memory` must be NULL, or `memory_len` mapped, readable and writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_open(
    json: *const c_char,
    memory: *mut u8,
    memory_len: usize,
    engine: *mut *mut moonring_engine,
) -> moonring_status {
    guarded(|| {
        if json.is_null() || engine.is_null() || memory.is_null() != (memory_len == 0) {
            let text = "json, memory or engine is NULL, or memory has no length";
            return Err(failure(MOONRING_BAD_ARGUMENT, text));
        }
        // SAFETY: the caller's: it ends in NUL.
        let json = unsafe { CStr::from_ptr(json) }.to_str();
        let json = json.map_err(|e| failure(MOONRING_BAD_CONFIG, format_args!("json: {e}")))?;
        let adapter = L2Adapter::parse(json).map_err(|e| failure(MOONRING_BAD_CONFIG, e))?;
        let mut options = OpenOptions::new(&adapter.engine);
        let mut region = None;
        if !memory.is_null() {
            options = options.region(memory, memory_len);
            // SAFETY: the caller's: mapped for as long as the engine may use it. The `()` keeps nothing.
            let wrapped = unsafe { Region::wrap(memory, memory_len, ()) };
            region = Some(wrapped.map_err(|e| failure(MOONRING_BAD_ARGUMENT, e))?);
        }
        let opened = store::open_with(&adapter.store, &options);
        let opened = opened.map_err(|e| failure(MOONRING_OPEN_FAILED, e))?;
        let warnings = adapter.warnings().to_vec();
        let mut builder = Engine::builder(opened.store)
            .config(adapter.engine)
            .warnings(warnings);
        if let Some(region) = region {
            builder = builder.region(region);
        }
        let started = builder.start();
        let started = moonring_engine {
            engine: started.map_err(|e| failure(MOONRING_START_FAILED, e))?,
        };
        // SAFETY: the caller's: a place for a pointer.
        unsafe { engine.write(Box::into_raw(Box::new(started))) };
        Ok(())
    })
}

/// Stops intake, executes (`drain` not 0) or cancels what is queued, and waits for store calls under way, `limit_ms` at most.
/// `report` may be NULL. Harmless when called again.
///
/// # Safety
/// `engine` must be one that was opened and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_shutdown(
    engine: *const moonring_engine,
    drain: c_int,
    limit_ms: u32,
    report: *mut moonring_shutdown_report,
) -> moonring_status {
    guarded(|| {
        // SAFETY: the caller's.
        let engine = unsafe { engine.as_ref() }.ok_or(Null("engine"))?;
        let mode = match drain {
            0 => Shutdown::Cancel,
            _ => Shutdown::Drain,
        };
        let limit = Duration::from_millis(limit_ms.into());
        let ended = engine.engine.shutdown(mode, limit)?;
        // SAFETY: the caller's: NULL, or a place for it.
        if let Some(report) = unsafe { report.as_mut() } {
            *report = moonring_shutdown_report {
                completed: ended.completed,
                cancelled: ended.cancelled,
                unreleased: ended.in_flight,
                not_unregistered: ended.not_unregistered.len() as u64,
            };
        }
        Ok(())
    })
}

/// Frees the handle; an engine that was not shut down is, with what is queued cancelled, in 5 s at most. NULL is fine.
///
/// # Safety
/// `engine` must be one that was opened and not closed; nobody uses it any more. Pairs may outlive it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_close(engine: *mut moonring_engine) {
    guarded(|| {
        if !engine.is_null() {
            // SAFETY: the caller's: made by `moonring_open`, and this is its end.
            drop(unsafe { Box::from_raw(engine) });
        }
        Ok(())
    });
}
