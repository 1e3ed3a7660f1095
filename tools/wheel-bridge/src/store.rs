//! One client of the wheel, behind a handle.
//!
//! The wheel lets go of the interpreter lock inside each call that moves bytes or asks the master, so what is done here
//! under the lock is building lists and reading them. Keys go as `bytes`: the wheel takes any, UTF-8 or not.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::ReplicateConfig;
use crate::exit;
use crate::failure::{Failure, INVALID_PARAMS};
use crate::interpreter::{attached, with_module};

/// A `MooncakeDistributedStore`, and the methods of it that are called often.
pub struct Store {
    object: Py<PyAny>,
    batch_is_exist: Py<PyAny>,
    batch_get_into: Py<PyAny>,
    batch_put_from: Py<PyAny>,
    batch_remove: Py<PyAny>,
    /// Before a set-up the wheel's calls crash. A set-up is over before other threads may use the handle, so nothing hangs
    /// on the order of this flag.
    set_up: AtomicBool,
}

impl Store {
    pub fn create() -> Result<Store, Failure> {
        with_module(|module| {
            let object = module.getattr("MooncakeDistributedStore")?.call0()?;
            let method = |name: &str| object.getattr(name).map(Bound::unbind);
            Ok(Store {
                batch_is_exist: method("batch_is_exist")?,
                batch_get_into: method("batch_get_into")?,
                batch_put_from: method("batch_put_from")?,
                batch_remove: method("batch_remove")?,
                set_up: AtomicBool::new(false),
                object: object.unbind(),
            })
        })
    }

    /// Closes the client (1 to 2 s, under the interpreter lock: the wheel keeps it there).
    pub fn destroy(self) -> Result<(), Failure> {
        attached(|py| {
            let closed = self.object.call_method0(py, "close");
            // Under the lock, or PyO3 would put it off.
            drop(self);
            closed.map(drop).map_err(Failure::from)
        })
    }

    /// # Safety
    ///
    /// The strings are NUL-terminated or NULL.
    #[allow(clippy::too_many_arguments, reason = "the arguments of the C function")]
    pub unsafe fn setup(
        &self,
        local_hostname: *const c_char,
        metadata_server: *const c_char,
        global_segment_size: u64,
        local_buffer_size: u64,
        protocol: *const c_char,
        device_name: *const c_char,
        master_server_addr: *const c_char,
    ) -> Result<c_int, Failure> {
        // SAFETY: the caller's promise. The defaults are Mooncake's.
        let (hostname, metadata, protocol, device, master) = unsafe {
            (
                text_or(local_hostname, c""),
                text_or(metadata_server, c""),
                text_or(protocol, c"tcp"),
                text_or(device_name, c""),
                text_or(master_server_addr, c"127.0.0.1:50051"),
            )
        };
        self.set_up_with(|py| {
            let (hostname, metadata) = (text(py, hostname)?, text(py, metadata)?);
            let (protocol, device, master) =
                (text(py, protocol)?, text(py, device)?, text(py, master)?);
            (
                hostname,
                metadata,
                global_segment_size,
                local_buffer_size,
                protocol,
                device,
                master,
            )
                .into_pyobject(py)
        })
    }

    /// # Safety
    ///
    /// `keys` and `values` hold `count` pointers, each to a NUL-terminated string or NULL.
    pub unsafe fn setup_dict(
        &self,
        keys: *const *const c_char,
        values: *const *const c_char,
        count: usize,
    ) -> Result<c_int, Failure> {
        // SAFETY: the caller's promise.
        let (keys, values) = unsafe {
            (
                strings("keys", keys, count)?,
                strings("values", values, count)?,
            )
        };
        self.set_up_with(|py| {
            let dict = PyDict::new(py);
            for (key, value) in keys.iter().zip(values) {
                // SAFETY: checked by `strings` not to be NULL; the caller's promise.
                let (key, value) = unsafe { (CStr::from_ptr(*key), CStr::from_ptr(*value)) };
                dict.set_item(text(py, key)?, text(py, value)?)?;
            }
            PyTuple::new(py, [dict])
        })
    }

    fn set_up_with(
        &self,
        arguments: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyTuple>>,
    ) -> Result<c_int, Failure> {
        if self.set_up.load(Ordering::Relaxed) {
            // The wheel would replace the client and forget its registrations, and say nothing.
            return Err(Failure::new(INVALID_PARAMS, "this store is set up already"));
        }
        let answer = attached(|py| {
            let answer = self.object.bind(py).call_method1("setup", arguments(py)?)?;
            Ok(answer.extract::<c_int>()?)
        });
        exit::watch();
        let code = answer?;
        if code != 0 {
            let reason = format!(
                "Mooncake's set-up returned {code}; its log on standard error may say more"
            );
            return Err(Failure::new(code, reason));
        }
        self.set_up.store(true, Ordering::Relaxed);
        Ok(code)
    }

    pub fn health_check(&self) -> Result<c_int, Failure> {
        attached(|py| Ok(self.object.call_method0(py, "health_check")?.extract(py)?))
    }

    pub fn register_buffer(&self, buffer: *mut c_void, size: usize) -> Result<c_int, Failure> {
        self.must_be_set_up()?;
        attached(|py| {
            Ok(self
                .object
                .call_method1(py, "register_buffer", (buffer as usize, size))?
                .extract(py)?)
        })
    }

    pub fn unregister_buffer(&self, buffer: *mut c_void) -> Result<c_int, Failure> {
        self.must_be_set_up()?;
        attached(|py| {
            Ok(self
                .object
                .call_method1(py, "unregister_buffer", (buffer as usize,))?
                .extract(py)?)
        })
    }

    /// # Safety
    ///
    /// `keys` holds `count` NUL-terminated strings or NULLs, `results` has room for `count`.
    pub unsafe fn batch_is_exist(
        &self,
        keys: *const *const c_char,
        count: usize,
        results: *mut c_int,
    ) -> Result<c_int, Failure> {
        self.must_be_set_up()?;
        // SAFETY: the caller's promise.
        let keys = unsafe { strings("keys", keys, count)? };
        attached(|py| {
            // SAFETY: as above.
            let answer = self
                .batch_is_exist
                .bind(py)
                .call1((unsafe { key_list(py, keys)? },))?;
            // SAFETY: as above.
            unsafe { write_results(&answer, count, results) }
        })
    }

    /// # Safety
    ///
    /// As for `batch_is_exist`; `buffers` and `sizes` hold `count` entries too, each buffer is writable for its size.
    pub unsafe fn batch_get_into(
        &self,
        keys: *const *const c_char,
        buffers: *const *mut c_void,
        sizes: *const usize,
        count: usize,
        results: *mut i64,
    ) -> Result<c_int, Failure> {
        self.must_be_set_up()?;
        // SAFETY: the caller's promise.
        let (keys, buffers, sizes) = unsafe {
            (
                strings("keys", keys, count)?,
                array("buffers", buffers, count)?,
                array("sizes", sizes, count)?,
            )
        };
        attached(|py| {
            // SAFETY: as above.
            let keys = unsafe { key_list(py, keys)? };
            let arguments = (keys, address_list(py, buffers)?, PyList::new(py, sizes)?);
            let answer = self.batch_get_into.bind(py).call1(arguments)?;
            // SAFETY: as above.
            unsafe { write_results(&answer, count, results) }
        })
    }

    /// # Safety
    ///
    /// As for `batch_get_into`, each buffer readable; `config` is NULL or valid.
    pub unsafe fn batch_put_from(
        &self,
        keys: *const *const c_char,
        buffers: *const *mut c_void,
        sizes: *const usize,
        count: usize,
        config: *const ReplicateConfig,
        results: *mut c_int,
    ) -> Result<c_int, Failure> {
        self.must_be_set_up()?;
        // SAFETY: the caller's promise.
        let (keys, buffers, sizes) = unsafe {
            (
                strings("keys", keys, count)?,
                array("buffers", buffers, count)?,
                array("sizes", sizes, count)?,
            )
        };
        // SAFETY: as above.
        let config = match unsafe { config.as_ref() } {
            // SAFETY: as above.
            Some(config) => Some(unsafe { replicate_config(config)? }),
            None => None,
        };
        attached(|py| {
            // SAFETY: as above.
            let keys = unsafe { key_list(py, keys)? };
            let (buffers, sizes) = (address_list(py, buffers)?, PyList::new(py, sizes)?);
            let put = self.batch_put_from.bind(py);
            let answer = match config {
                Some(config) => put.call1((keys, buffers, sizes, config))?,
                None => put.call1((keys, buffers, sizes))?,
            };
            // SAFETY: as above.
            unsafe { write_results(&answer, count, results) }
        })
    }

    /// # Safety
    ///
    /// As for `batch_is_exist`.
    pub unsafe fn batch_remove(
        &self,
        keys: *const *const c_char,
        count: usize,
        force: bool,
        results: *mut c_int,
    ) -> Result<c_int, Failure> {
        self.must_be_set_up()?;
        // SAFETY: the caller's promise.
        let keys = unsafe { strings("keys", keys, count)? };
        attached(|py| {
            // SAFETY: as above.
            let answer = self
                .batch_remove
                .bind(py)
                .call1((unsafe { key_list(py, keys)? }, force))?;
            // SAFETY: as above.
            unsafe { write_results(&answer, count, results) }
        })
    }

    /// # Safety
    ///
    /// `key` is NUL-terminated or NULL.
    pub unsafe fn remove(&self, key: *const c_char, force: bool) -> Result<c_int, Failure> {
        self.must_be_set_up()?;
        if key.is_null() {
            return Err(Failure::internal("key is NULL"));
        }
        // SAFETY: the caller's promise.
        let key = unsafe { CStr::from_ptr(key) };
        attached(|py| {
            let key = PyBytes::new(py, key.to_bytes());
            Ok(self
                .object
                .call_method1(py, "remove", (key, force))?
                .extract(py)?)
        })
    }

    fn must_be_set_up(&self) -> Result<(), Failure> {
        if self.set_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Failure::new(INVALID_PARAMS, "this store is not set up"))
    }
}

/// # Safety
///
/// `string` is NULL, or NUL-terminated for as long as the result is used.
unsafe fn text_or(string: *const c_char, default: &CStr) -> &CStr {
    if string.is_null() {
        return default;
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(string) }
}

/// An option as a `str`, which the wheel wants there.
fn text<'py>(py: Python<'py>, value: &CStr) -> PyResult<Bound<'py, PyString>> {
    PyString::from_encoded_object(
        &PyBytes::new(py, value.to_bytes()),
        Some(c"utf-8"),
        Some(c"strict"),
    )
}

/// # Safety
///
/// `pointer` is NULL, or holds `count` entries for as long as the result is used.
unsafe fn array<'a, T>(name: &str, pointer: *const T, count: usize) -> Result<&'a [T], Failure> {
    match (count, pointer.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Failure::internal(format!("{name} is NULL"))),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(pointer, count) }),
    }
}

/// An array of strings, none of them NULL.
///
/// # Safety
///
/// As for `array`.
unsafe fn strings<'a>(
    name: &str,
    pointer: *const *const c_char,
    count: usize,
) -> Result<&'a [*const c_char], Failure> {
    // SAFETY: the caller's promise.
    let strings = unsafe { array(name, pointer, count)? };
    match strings.iter().position(|string| string.is_null()) {
        Some(place) => Err(Failure::internal(format!("{name}[{place}] is NULL"))),
        None => Ok(strings),
    }
}

/// # Safety
///
/// `keys` come from `strings`, and are NUL-terminated.
unsafe fn key_list<'py>(py: Python<'py>, keys: &[*const c_char]) -> PyResult<Bound<'py, PyList>> {
    // SAFETY: the caller's promise.
    PyList::new(
        py,
        keys.iter()
            .map(|&key| PyBytes::new(py, unsafe { CStr::from_ptr(key) }.to_bytes())),
    )
}

fn address_list<'py>(py: Python<'py>, buffers: &[*mut c_void]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, buffers.iter().map(|&buffer| buffer as usize))
}

/// # Safety
///
/// The preferred segments are `preferred_segments_count` NUL-terminated strings or NULLs.
unsafe fn replicate_config(config: &ReplicateConfig) -> Result<Py<PyAny>, Failure> {
    // SAFETY: the caller's promise.
    let segments = unsafe {
        array(
            "preferred_segments",
            config.preferred_segments,
            config.preferred_segments_count,
        )?
    };
    with_module(|module| {
        let py = module.py();
        let object = module.getattr("ReplicateConfig")?.call0()?;
        object.setattr("replica_num", config.replica_num)?;
        object.setattr("with_hard_pin", config.with_hard_pin != 0)?;
        if config.with_soft_pin != 0 {
            // Up to 0.3.12 a switch, then one of several actions.
            match module.getattr("SoftPinAction") {
                Ok(action) => object.setattr("soft_pin_action", action.getattr("ENABLE")?)?,
                Err(_) => object.setattr("with_soft_pin", true)?,
            }
        }
        let preferred = PyList::empty(py);
        for &segment in segments.iter().filter(|segment| !segment.is_null()) {
            // SAFETY: the caller's promise.
            preferred.append(text(py, unsafe { CStr::from_ptr(segment) })?)?;
        }
        if !preferred.is_empty() {
            object.setattr("preferred_segments", preferred)?;
        }
        Ok(object.unbind())
    })
}

/// Copies the wheel's list of results out, if it has one for each key.
///
/// # Safety
///
/// `results` is NULL or has room for `count`.
unsafe fn write_results<T>(
    answer: &Bound<'_, PyAny>,
    count: usize,
    results: *mut T,
) -> Result<c_int, Failure>
where
    T: for<'a, 'py> FromPyObject<'a, 'py>,
{
    if results.is_null() && count > 0 {
        return Err(Failure::internal("results is NULL"));
    }
    let list = answer.cast::<PyList>().map_err(PyErr::from)?;
    if list.len() != count {
        // Mooncake answers a call that it refuses with one code.
        let code = list
            .get_item(0)
            .ok()
            .and_then(|code| code.extract::<c_int>().ok())
            .filter(|&code| code < 0);
        let reason = format!("{} results for {count} keys", list.len());
        return Err(Failure::new(
            code.unwrap_or(crate::failure::INTERNAL),
            reason,
        ));
    }
    for (place, result) in list.iter().enumerate() {
        let result = result.extract::<T>().map_err(Into::<PyErr>::into)?;
        // SAFETY: `place` is below `count`; the caller's promise.
        unsafe { results.add(place).write(result) };
    }
    Ok(0)
}
