//! The embedded Python: found, started once, never ended.
//!
//! It is started isolated: it reads no variable of the environment (but the wheel does read its own `MC_*`), sets no locale,
//! installs no signal handler and leaves standard input and output alone. Where the process has a Python already, that one
//! is used.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::{ffi, intern};

use crate::failure::Failure;
use crate::signals::HandlersKept;

/// Names the folder of the venv; without it the venv is the folder `venv` beside the bridge.
const VENV: &CStr = c"MOONRING_MOONCAKE_VENV";

/// The Python that the bridge is built for, as 3.11.
const BUILT_FOR: &str = env!("BRIDGE_PYTHON");

/// The names under which the wheel is published.
const WHEELS: [&str; 3] = [
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
];

enum State {
    Untried,
    Started,
    /// Python can't be started twice, nor again after a failure.
    Failed(String),
}

static STATE: Mutex<State> = Mutex::new(State::Untried);

/// Calls `f` with the interpreter lock held and `mooncake.store` imported, after starting Python if need be.
pub fn with_module<T>(
    f: impl FnOnce(&Bound<'_, PyModule>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let venv = start()?;
    attached(|py| f(&import(py, venv.as_deref())?))
}

/// Calls `f` with the interpreter lock held.
pub fn attached<T>(f: impl FnOnce(Python<'_>) -> Result<T, Failure>) -> Result<T, Failure> {
    // Not `attach`: it panics in a host whose own Python is on its way out.
    Python::try_attach(f)
        .unwrap_or_else(|| Err(Failure::internal("Python does not run (any more)")))
}

/// The version of the wheel, and the name under which it was published.
pub fn wheel_version() -> Result<String, Failure> {
    with_module(|module| {
        let metadata = module.py().import("importlib.metadata")?;
        for name in WHEELS {
            if let Ok(version) = metadata.call_method1("version", (name,)) {
                return Ok(format!("{} ({name})", version.extract::<String>()?));
            }
        }
        Err(Failure::internal(
            "the version of the wheel is not known: none of its usual names is installed",
        ))
    })
}

/// Starts Python in the venv, once. Tells the venv, if there is one.
fn start() -> Result<Option<PathBuf>, Failure> {
    // Held without the interpreter lock, by every path that takes it.
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let venv = venv();
    match &*state {
        State::Started => return Ok(venv.ok()),
        State::Failed(reason) => return Err(Failure::internal(reason.as_str())),
        State::Untried => {}
    }
    // SAFETY: may be called at any time.
    if unsafe { ffi::Py_IsInitialized() } != 0 {
        check_version()?;
        *state = State::Started;
        return Ok(venv.ok());
    }
    let venv = venv.map_err(Failure::internal)?;
    make_libpython_global()?;
    match initialize(&venv) {
        Ok(()) => {
            *state = State::Started;
            Ok(Some(venv))
        }
        Err(reason) => {
            let reason = format!("can't start Python in {}: {reason}", venv.display());
            *state = State::Failed(reason.clone());
            Err(Failure::internal(reason))
        }
    }
}

/// `mooncake.store`. After a failure another try is cheap and harmless.
fn import<'py>(py: Python<'py>, venv: Option<&Path>) -> Result<Bound<'py, PyModule>, Failure> {
    let name = intern!(py, "mooncake.store");
    let _handlers = HandlersKept::new();
    let mut error = match py.import(name) {
        Ok(module) => return Ok(module),
        Err(error) => error,
    };
    // A host's own Python has not heard of our venv.
    let site = venv.map(site_packages);
    if let Some(site) = &site {
        let path = py.import("sys")?.getattr("path")?;
        // As a string: a `Path` becomes an object that the import system passes over.
        if !path.contains(site.as_os_str())? {
            path.call_method1("append", (site.as_os_str(),))?;
            match py.import(name) {
                Ok(module) => return Ok(module),
                Err(second) => error = second,
            }
        }
    }
    let place = site.map_or_else(
        || "the host's Python".into(),
        |site| site.display().to_string(),
    );
    Err(Failure::internal(format!(
        "can't import mooncake.store from {place}: {error}"
    )))
}

fn site_packages(venv: &Path) -> PathBuf {
    venv.join(format!("lib/python{BUILT_FOR}/site-packages"))
}

/// Where the venv is; an error says what to do.
fn venv() -> Result<PathBuf, String> {
    let (venv, origin) = match variable(VENV) {
        Some(path) => (path, "MOONRING_MOONCAKE_VENV"),
        None => {
            let here = file_of(venv as *const c_void)
                .ok_or("can't tell where the bridge was loaded from")?;
            let here = here
                .canonicalize()
                .map_err(|error| format!("{}: {error}", here.display()))?;
            (here.with_file_name("venv"), "the bridge")
        }
    };
    if !venv.join("pyvenv.cfg").is_file() {
        return Err(format!(
            "no Python venv at {} (from {origin}): run `tools/mooncake setup`",
            venv.display()
        ));
    }
    if !site_packages(&venv).is_dir() {
        return Err(format!(
            "the venv at {} is not of Python {BUILT_FOR}, for which the bridge was built: run `tools/mooncake setup`",
            venv.display()
        ));
    }
    Ok(venv)
}

/// A variable of the environment that is set and not empty.
fn variable(name: &CStr) -> Option<PathBuf> {
    let name = OsStr::from_bytes(name.to_bytes());
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// The file that `address` was loaded from.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` may be written; zeroes are a valid value of it, should dladdr not write.
    let (found, info) = unsafe { (libc::dladdr(address, info.as_mut_ptr()), info.assume_init()) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a NUL-terminated string that lives as long as the library is loaded; it is copied here.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(std::ffi::OsString::from_vec(
        name.to_bytes().to_vec(),
    )))
}

/// Extension modules look libpython's symbols up globally, but a bridge opened with RTLD_LOCAL brings it in locally.
/// Mooncake also looks for `Py_IsInitialized` this way, and leaves signals to the host when it finds it.
fn make_libpython_global() -> Result<(), Failure> {
    let file = file_of(ffi::Py_IsInitialized as *const c_void)
        .ok_or_else(|| Failure::internal("can't tell where libpython was loaded from"))?;
    let path = CString::new(file.into_os_string().into_vec()).unwrap_or_default();
    // SAFETY: the library is loaded already (NOLOAD), so no code of it runs; its handle is kept for ever.
    unsafe {
        libc::dlopen(
            path.as_ptr(),
            libc::RTLD_NOW | libc::RTLD_GLOBAL | libc::RTLD_NOLOAD,
        )
    };
    // SAFETY: a look-up by name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"Py_IsInitialized".as_ptr()) };
    if found.is_null() {
        let path = path.to_string_lossy();
        return Err(Failure::internal(format!(
            "can't make the symbols of {path} global"
        )));
    }
    Ok(())
}

/// The interpreter that runs must be the one whose structures the bridge knows.
fn check_version() -> Result<(), Failure> {
    // SAFETY: a static string of the interpreter.
    let running = unsafe { CStr::from_ptr(ffi::Py_GetVersion()) }.to_string_lossy();
    let rest = running.strip_prefix(BUILT_FOR);
    if rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit())) {
        return Ok(());
    }
    let reason =
        format!("this process runs Python {running}, the bridge was built for {BUILT_FOR}");
    Err(Failure::internal(reason))
}

fn initialize(venv: &Path) -> Result<(), String> {
    let executable = CString::new(venv.join("bin/python3").into_os_string().into_vec())
        .map_err(|_| "its path holds a NUL".to_owned())?;
    let mut pre = MaybeUninit::<ffi::PyPreConfig>::zeroed();
    // SAFETY: Python isn't initialized, and `STATE` lets one thread through; the configurations are initialized by the
    // functions made for it, before they are read.
    unsafe {
        ffi::PyPreConfig_InitIsolatedConfig(pre.as_mut_ptr());
        // The host's locale is left alone, so paths can't depend on it.
        (*pre.as_mut_ptr()).utf8_mode = 1;
        check(ffi::Py_PreInitialize(pre.as_ptr()))?;
    }
    let mut config = MaybeUninit::<ffi::PyConfig>::zeroed();
    let config = config.as_mut_ptr();
    // SAFETY: as above; `config` is cleared once, after its last use.
    let started = unsafe {
        ffi::PyConfig_InitIsolatedConfig(config);
        // The venv is found by its Python, as when that is run; both names are needed for all of 3.10 to 3.13.
        let set = set_string(config, &raw mut (*config).program_name, &executable)
            .and_then(|()| set_string(config, &raw mut (*config).executable, &executable));
        let started = set.and_then(|()| check(ffi::Py_InitializeFromConfig(config)));
        ffi::PyConfig_Clear(config);
        started
    };
    started?;
    // SAFETY: this thread has the interpreter lock since the initialization; others may take it from here on.
    unsafe { ffi::PyEval_SaveThread() };
    Ok(())
}

/// # Safety
///
/// `config` is initialized, and `field` is one of its fields.
unsafe fn set_string(
    config: *mut ffi::PyConfig,
    field: *mut *mut libc::wchar_t,
    value: &CStr,
) -> Result<(), String> {
    // SAFETY: the caller's promise; the value is copied.
    check(unsafe { ffi::PyConfig_SetBytesString(config, field, value.as_ptr()) })
}

fn check(status: ffi::PyStatus) -> Result<(), String> {
    // SAFETY: looks at the value only.
    if unsafe { ffi::PyStatus_Exception(status) } == 0 {
        return Ok(());
    }
    let message: *const c_char = status.err_msg;
    if message.is_null() {
        let code: c_int = status.exitcode;
        return Err(format!("it wants to exit with code {code}"));
    }
    // SAFETY: a static string of the interpreter.
    Err(unsafe { CStr::from_ptr(message) }
        .to_string_lossy()
        .into_owned())
}
