//! Mooncake's C functions, served by the PyPI wheel of Mooncake in an embedded Python.
//!
//! Exports the seam of Moonring (`src/store/mooncake/seam.h`): what `libmooncake_store` exports, as far as Moonring uses it,
//! and Moonring's extensions. A host that can open `libmooncake_store` can open this.
//!
//! - The interpreter lock is held while arguments are built and results read, never during a transfer.
//! - A Python exception, and a panic of ours, become a code; [`moonring_mooncake_last_error`] has the words.
//! - A NULL where there must be something is an error, not a crash. So are calls before a set-up, and a second set-up.
//! - The host's signal handlers, signal mask, locale and environment stay as they are.
//! - Python and the wheel stay in the process to its end: they can't be unloaded.

mod exit;
mod failure;
mod interpreter;
mod signals;
mod store;

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use exit::InCall;
use failure::{Failure, guarded, last};
use signals::MaskKept;
use store::Store;

/// How an object is written; NULL in place of it means Mooncake's defaults. `mooncake_replicate_config_t` of the seam.
#[repr(C)]
#[derive(Debug)]
pub struct ReplicateConfig {
    /// At least 1.
    pub replica_num: usize,
    /// Not 0: the object is evicted late.
    pub with_soft_pin: c_int,
    /// Not 0: the object is never evicted.
    pub with_hard_pin: c_int,
    /// Names of segments to be tried first.
    pub preferred_segments: *const *const c_char,
    /// How many they are.
    pub preferred_segments_count: usize,
}

/// A new client, not set up yet; NULL with a last error where Python, the venv or the wheel can't be had.
#[unsafe(no_mangle)]
pub extern "C" fn mooncake_store_create() -> *mut c_void {
    let _mask = MaskKept::new();
    guarded(
        |_| ptr::null_mut(),
        || Ok(Box::into_raw(Box::new(Store::create()?)).cast()),
    )
}

/// Closes and frees a client. Takes 1 to 2 s; NULL is fine.
///
/// # Safety
///
/// `store` comes from [`mooncake_store_create`], is in no other call, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mooncake_store_destroy(store: *mut c_void) {
    if store.is_null() {
        return;
    }
    guarded(drop, || {
        let _call = InCall::enter()?;
        // SAFETY: made by `create` from such a box; the caller's promise.
        unsafe { Box::from_raw(store.cast::<Store>()) }.destroy()
    });
}

/// Connects a client. 0, or Mooncake's code. NULL strings mean Mooncake's defaults.
///
/// # Safety
///
/// `store` is NULL or a living client; the strings are NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mooncake_store_setup(
    store: *mut c_void,
    local_hostname: *const c_char,
    metadata_server: *const c_char,
    global_segment_size: u64,
    local_buffer_size: u64,
    protocol: *const c_char,
    device_name: *const c_char,
    master_server_addr: *const c_char,
) -> c_int {
    let _mask = MaskKept::new();
    // SAFETY: the caller's promise.
    on(store, |store| unsafe {
        store.setup(
            local_hostname,
            metadata_server,
            global_segment_size,
            local_buffer_size,
            protocol,
            device_name,
            master_server_addr,
        )
    })
}

/// 0 healthy, 1 not set up, 2 master unreachable; negative: error. As the client saw it last: it asks nobody.
///
/// # Safety
///
/// `store` is NULL or a living client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mooncake_store_health_check(store: *mut c_void) -> c_int {
    on(store, Store::health_check)
}

/// Registers memory for transfers. 0, or Mooncake's code.
///
/// # Safety
///
/// `store` is NULL or a living client; the memory stays until it is unregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mooncake_store_register_buffer(
    store: *mut c_void,
    buffer: *mut c_void,
    size: usize,
) -> c_int {
    on(store, |store| store.register_buffer(buffer, size))
}

/// Undoes a registration. 0, or Mooncake's code.
///
/// # Safety
///
/// `store` is NULL or a living client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mooncake_store_unregister_buffer(
    store: *mut c_void,
    buffer: *mut c_void,
) -> c_int {
    on(store, |store| store.unregister_buffer(buffer))
}

/// `results[i]`: 1 exists, 0 does not, negative: error.
///
/// # Safety
///
/// `store` is NULL or a living client; `keys` and `results` are NULL or have `count` entries; a key is NULL or
/// NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mooncake_store_batch_is_exist(
    store: *mut c_void,
    keys: *const *const c_char,
    count: usize,
    results: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    on(store, |store| unsafe {
        store.batch_is_exist(keys, count, results)
    })
}

/// `results[i]`: the object's length in bytes, negative: error.
///
/// # Safety
///
/// As [`mooncake_store_batch_is_exist`], for `buffers` and `sizes` too; each buffer is writable for its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mooncake_store_batch_get_into(
    store: *mut c_void,
    keys: *const *const c_char,
    buffers: *const *mut c_void,
    sizes: *const usize,
    count: usize,
    results: *mut i64,
) -> c_int {
    // SAFETY: the caller's promise.
    on(store, |store| unsafe {
        store.batch_get_into(keys, buffers, sizes, count, results)
    })
}

/// `results[i]`: 0 accepted, negative: error.
///
/// # Safety
///
/// As [`mooncake_store_batch_get_into`], each buffer readable; `config` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mooncake_store_batch_put_from(
    store: *mut c_void,
    keys: *const *const c_char,
    buffers: *const *mut c_void,
    sizes: *const usize,
    count: usize,
    config: *const ReplicateConfig,
    results: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    on(store, |store| unsafe {
        store.batch_put_from(keys, buffers, sizes, count, config, results)
    })
}

/// 0 removed, negative: error. With `force` not 0 also when leased.
///
/// # Safety
///
/// `store` is NULL or a living client; `key` is NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mooncake_store_remove(
    store: *mut c_void,
    key: *const c_char,
    force: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    on(store, |store| unsafe { store.remove(key, force != 0) })
}

/// Connects a client by a dictionary, whose pairs reach Mooncake as they are. 0, or Mooncake's code.
///
/// # Safety
///
/// `store` is NULL or a living client; `keys` and `values` are NULL or have `count` entries, NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_mooncake_setup_dict(
    store: *mut c_void,
    keys: *const *const c_char,
    values: *const *const c_char,
    count: usize,
) -> c_int {
    let _mask = MaskKept::new();
    // SAFETY: the caller's promise.
    on(store, |store| unsafe {
        store.setup_dict(keys, values, count)
    })
}

/// `results[i]`: 0 removed, negative: error.
///
/// # Safety
///
/// As [`mooncake_store_batch_is_exist`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moonring_mooncake_batch_remove(
    store: *mut c_void,
    keys: *const *const c_char,
    count: usize,
    force: c_int,
    results: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    on(store, |store| unsafe {
        store.batch_remove(keys, count, force != 0, results)
    })
}

/// The version of the wheel and its name, or NULL with a last error. Lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn moonring_mooncake_version() -> *const c_char {
    static VERSION: OnceLock<CString> = OnceLock::new();
    let _mask = MaskKept::new();
    guarded(
        |_| ptr::null(),
        || {
            if VERSION.get().is_none() {
                let version = CString::new(interpreter::wheel_version()?).unwrap_or_default();
                // Another thread's word is the same.
                let _ = VERSION.set(version);
            }
            Ok(VERSION
                .get()
                .map_or(ptr::null(), |version| version.as_ptr()))
        },
    )
}

/// Why this thread's last call failed, for people; NULL if it did not. Valid until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn moonring_mooncake_last_error() -> *const c_char {
    last()
}

/// Runs a call on a client.
fn on(store: *mut c_void, call: impl FnOnce(&Store) -> Result<c_int, Failure>) -> c_int {
    guarded(
        |code| code,
        || {
            let _call = InCall::enter()?;
            // SAFETY: NULL, or made by `create` and not yet destroyed: the promise of every caller.
            match unsafe { store.cast::<Store>().as_ref() } {
                Some(store) => call(store),
                None => Err(Failure::internal("the store is NULL")),
            }
        },
    )
}
