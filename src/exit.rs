//! The end of the process while engines are at work.
//!
//! ```text
//!  exit, or the return from main: handlers run, those registered last first
//!   1  ours            intake stops everywhere; every engine is shut down (Cancel), all at once, within LIMIT
//!   2  the library's   finds its client gone
//!   3  the host's earlier ones
//! ```
//! Ours is registered when an engine starts, and again when a foreign library was opened since: so it comes before what that
//! library registered when it was opened and set up. Where a call is still inside the library at the limit, step 2 would wait for
//! it or tear down under it; the process then ends at once, with the code that it was to end with.
//!
//! `_exit`, `abort` and signals without a handler run no handlers; a forked child runs them on nothing.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::engine::{Closing, Shared};
use crate::shutdown::{Shutdown, shutdown};
use crate::signals::BlockedSignals;
use crate::waker::quietly;

/// How long all engines together may take.
const LIMIT: Duration = Duration::from_secs(3);

/// How long their calls may; then the ops in them end as shut down.
const CALLS: Duration = Duration::from_millis(2700);

/// How often it is looked whether a worker has come back that an earlier shutdown did not wait for.
const LOOKS: Duration = Duration::from_millis(5);

/// The engines of one process. That of a parent is left alone: its lock may be held for ever.
struct Registry {
    process: u32,
    engines: Mutex<Vec<Weak<Shared>>>,
}

/// Null before the first engine. Never freed. Release and Acquire: what it points to was written before.
static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());

/// The hook is to be registered (again). Relaxed: whoever takes it registers, whenever that is.
static DUE: AtomicBool = AtomicBool::new(true);

/// A foreign library was opened, with handlers of its own. Relaxed: set long before any exit that it matters to.
static LIBRARY: AtomicBool = AtomicBool::new(false);

impl Registry {
    /// The one of this process, if there is one.
    fn found() -> Option<&'static Self> {
        // SAFETY: null, or leaked by `made`.
        let registry = unsafe { REGISTRY.load(Ordering::Acquire).as_ref() };
        registry.filter(|registry| registry.process == std::process::id())
    }

    fn made() -> &'static Self {
        loop {
            let now = REGISTRY.load(Ordering::Acquire);
            if let Some(registry) = Self::found() {
                return registry;
            }
            let new = Box::into_raw(Box::new(Self {
                process: std::process::id(),
                engines: Mutex::default(),
            }));
            let swapped = REGISTRY.compare_exchange(now, new, Ordering::AcqRel, Ordering::Relaxed);
            if swapped.is_err() {
                // SAFETY: just made, and not shown to anybody.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

/// A foreign library was opened and set up: its handlers are registered by now.
pub(crate) fn library_opened() {
    LIBRARY.store(true, Ordering::Relaxed);
    DUE.store(true, Ordering::Relaxed);
}

/// An engine has started: it will be shut down at the end of the process, if nobody has done it before.
pub(crate) fn register(engine: &Arc<Shared>) {
    let mut engines = Registry::made()
        .engines
        .lock()
        .unwrap_or_else(|e| e.into_inner());
    engines.retain(|engine| engine.strong_count() > 0);
    engines.push(Arc::downgrade(engine));
    drop(engines);
    if DUE.swap(false, Ordering::Relaxed) && !hook() {
        tracing::warn!(
            "no room for one more exit handler: shut the engine down before the process ends"
        );
    }
}

#[cfg(target_env = "gnu")]
fn hook() -> bool {
    unsafe extern "C" {
        // As `atexit`, and tells the exit code.
        fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    // SAFETY: the handler is a function of this program, and takes no argument.
    unsafe { on_exit(at_exit, ptr::null_mut()) == 0 }
}

#[cfg(not(target_env = "gnu"))]
fn hook() -> bool {
    // Nobody tells the code: what is stuck is left to the library's own handlers.
    extern "C" fn handler() {
        quietly(|| _ = end_all());
    }
    // SAFETY: the handler is a function of this program.
    unsafe { libc::atexit(handler) == 0 }
}

#[cfg(target_env = "gnu")]
extern "C" fn at_exit(code: c_int, _: *mut c_void) {
    let mut stuck = false;
    quietly(|| stuck = end_all());
    if stuck && LIBRARY.load(Ordering::Relaxed) {
        // SAFETY: has no preconditions.
        unsafe { libc::_exit(code) };
    }
}

/// Shuts all engines down. Returns whether something of them is still at work at the limit.
fn end_all() -> bool {
    struct Left {
        engines: Mutex<usize>,
        one_less: Condvar,
    }
    let start = Instant::now();
    let Some(registry) = Registry::found() else {
        return false;
    };
    let engines = std::mem::take(&mut *registry.engines.lock().unwrap_or_else(|e| e.into_inner()));
    let engines: Vec<_> = engines.iter().filter_map(Weak::upgrade).collect();
    for engine in &engines {
        engine.set_closing(Closing::Cancel);
    }
    let left = Arc::new(Left {
        engines: Mutex::new(engines.len()),
        one_less: Condvar::new(),
    });
    for engine in engines {
        let left = Arc::clone(&left);
        // On threads of their own: closing a store may take longer than we wait.
        let end = move || {
            let _ = shutdown(&engine, Shutdown::Cancel, CALLS);
            while !engine.is_released() {
                std::thread::sleep(LOOKS);
            }
            // The store's own drop is not waited for, nor run.
            std::mem::forget(engine);
            *left.engines.lock().unwrap_or_else(|e| e.into_inner()) -= 1;
            left.one_less.notify_one();
        };
        let _blocked = BlockedSignals::new();
        let name = "mr-exit".to_owned();
        // A thread that can't be had leaves its engine as it is.
        let _ = std::thread::Builder::new().name(name).spawn(end);
    }
    let mut engines = left.engines.lock().unwrap_or_else(|e| e.into_inner());
    while *engines > 0 {
        let rest = LIMIT.saturating_sub(start.elapsed());
        if rest.is_zero() {
            return true;
        }
        engines = match left.one_less.wait_timeout(engines, rest) {
            Ok((engines, _)) => engines,
            Err(poisoned) => poisoned.into_inner().0,
        };
    }
    false
}
