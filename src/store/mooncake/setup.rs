//! Opening: on a thread of its own, within a limit.
//!
//! Mooncake's first client blocks signals in the thread that makes it, and in every thread started from there; it may pin
//! and it may hang. So all of it, from opening the library on, happens on a thread that is then thrown away.

use std::ffi::{CStr, CString, c_char};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, SendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::MooncakeError;
use super::functions::Functions;
use super::library::Library;
use super::seam::mooncake_store_t;
use super::signals::Handlers;
use crate::config::{ConfigError, MooncakeConfig, parse_size};
use crate::signals::BlockedSignals;

/// The `master_server_addr` of a configuration without one: Mooncake's own default.
pub const DEFAULT_MASTER: &str = "127.0.0.1:50051";
const DEFAULT_SIZE: u64 = 16 << 20;
/// How long each of the master's addresses has to answer, and how many are tried.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
const PROBES: usize = 3;

/// The keys that the official C function takes; its last argument but two is `rdma_devices`.
const OFFICIAL_KEYS: [&str; 7] = [
    "local_hostname",
    "metadata_server",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "rdma_devices",
    "master_server_addr",
];

/// Mooncake's client.
#[derive(Clone, Copy)]
pub(super) struct Handle(pub mooncake_store_t);

// SAFETY: Mooncake's client is made for calls from several threads at once, its C interface holds no state but the client, and
// it may be destroyed by another thread than its maker (measured with four threads on one handle).
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// A client that was set up.
pub(super) struct Client {
    pub library: Library,
    pub version: Option<String>,
    pub handle: Handle,
}

/// What the opening thread is at, for the error of one that takes too long.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Step {
    Library,
    Master,
    Create,
    SetUp,
}

const STEPS: [&str; 4] = [
    "opening the library",
    "looking for the master",
    "making a client",
    "in Mooncake's set-up",
];

/// Opens the library, and sets a client up.
pub(super) fn open(
    config: &MooncakeConfig,
    library: Option<PathBuf>,
    limit: Duration,
) -> Result<Client, MooncakeError> {
    // One after the other, so that each puts back the handlers that it has found.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let handlers = Handlers::of_the_host();
    let opened = within(limit, {
        let config = config.clone();
        move |step| attempt(&config, library.as_deref(), &step)
    });
    handlers.put_back();
    opened
}

/// Runs `attempt` on a thread of its own. Past the limit the thread is left to itself: what it makes is its own to end.
fn within(
    limit: Duration,
    attempt: impl FnOnce(Arc<AtomicU8>) -> Result<Client, MooncakeError> + Send + 'static,
) -> Result<Client, MooncakeError> {
    let thread = |reason: String| MooncakeError::Thread { reason };
    let step = Arc::new(AtomicU8::new(Step::Library as u8));
    // Without a buffer: what is sent is received, or comes back to its sender.
    let (send, receive) = sync_channel(0);
    let body = {
        let step = Arc::clone(&step);
        move || {
            let _blocked = BlockedSignals::new();
            let Err(SendError(late)) = send.send(attempt(step)) else {
                return;
            };
            tracing::warn!("the set-up of Mooncake that was given up has ended");
            if let Ok(Client {
                library, handle, ..
            }) = late
            {
                // SAFETY: nobody else has the handle.
                unsafe { (library.functions.destroy)(handle.0) };
            }
        }
    };
    let spawned = std::thread::Builder::new()
        .name("mr-mooncake-up".to_owned())
        .spawn(body);
    spawned.map_err(|error| thread(error.to_string()))?;
    match receive.recv_timeout(limit) {
        Ok(opened) => opened,
        Err(RecvTimeoutError::Disconnected) => Err(thread("it panicked".to_owned())),
        Err(RecvTimeoutError::Timeout) => Err(MooncakeError::TimedOut {
            limit_s: limit.as_secs(),
            // Only a word in a text: relaxed.
            doing: STEPS
                .get(usize::from(step.load(Relaxed)))
                .copied()
                .unwrap_or("opening"),
        }),
    }
}

fn attempt(
    config: &MooncakeConfig,
    library: Option<&std::path::Path>,
    step: &AtomicU8,
) -> Result<Client, MooncakeError> {
    let library = Library::find(library)?;
    let f = library.functions;
    let arguments = Arguments::new(config, &f)?;
    step.store(Step::Master as u8, Relaxed);
    probe_master(config.get("master_server_addr").unwrap_or(DEFAULT_MASTER))?;
    step.store(Step::Create as u8, Relaxed);
    // SAFETY: has no preconditions.
    let handle = unsafe { (f.create)() };
    if handle.is_null() {
        let detail = last_error(&f);
        return Err(MooncakeError::Create { detail });
    }
    step.store(Step::SetUp as u8, Relaxed);
    // SAFETY: `handle` was just created and is set up once.
    let code = unsafe { arguments.set_up(&f, handle) };
    if code != 0 {
        let detail = last_error(&f);
        // SAFETY: nobody else has the handle.
        unsafe { (f.destroy)(handle) };
        return Err(MooncakeError::Setup { code, detail });
    }
    Ok(Client {
        version: version(&f),
        library,
        handle: Handle(handle),
    })
}

/// What set-up is called with.
enum Arguments {
    /// All pairs as they are.
    Dictionary(Vec<(CString, CString)>),
    /// The arguments of the official function, in the order of [`OFFICIAL_KEYS`] without the sizes.
    Official {
        texts: [CString; 5],
        segment: u64,
        buffer: u64,
    },
}

impl Arguments {
    fn new(config: &MooncakeConfig, functions: &Functions) -> Result<Self, ConfigError> {
        let text = |key: &str, value: &str| {
            CString::new(value).map_err(|_| ConfigError::new(key, "holds a NUL byte"))
        };
        if functions.setup_dict.is_some() {
            let pairs = config.forwarded.iter();
            let pairs = pairs.map(|(key, value)| Ok((text(key, key)?, text(key, value)?)));
            return Ok(Self::Dictionary(pairs.collect::<Result<_, ConfigError>>()?));
        }
        if let Some((key, _)) = config
            .forwarded
            .iter()
            .find(|(key, _)| !OFFICIAL_KEYS.contains(&key.as_str()))
        {
            let known = OFFICIAL_KEYS.join(", ");
            return Err(ConfigError::new(
                key,
                format_args!(
                    "Mooncake's C library can't take this key (it takes {known}); a linked build and the bridge to the wheel can"
                ),
            ));
        }
        let get = |key: &str, default: &str| text(key, config.get(key).unwrap_or(default));
        let needed = |key: &str| match config.get(key) {
            Some(value) if !value.is_empty() => text(key, value),
            _ => Err(ConfigError::new(key, "missing; Mooncake needs it")),
        };
        let size = |key: &str| match config.get(key) {
            None => Ok(DEFAULT_SIZE),
            Some(value) => parse_size(value).map_err(|error| {
                ConfigError::new(
                    key,
                    format_args!("got {value:?}, which is {error} (want a size)"),
                )
            }),
        };
        Ok(Self::Official {
            texts: [
                needed("local_hostname")?,
                needed("metadata_server")?,
                get("protocol", "tcp")?,
                get("rdma_devices", "")?,
                get("master_server_addr", DEFAULT_MASTER)?,
            ],
            segment: size("global_segment_size")?,
            buffer: size("local_buffer_size")?,
        })
    }

    /// Mooncake's code.
    ///
    /// # Safety
    /// `handle` must be a client that was created by these functions and not set up before.
    unsafe fn set_up(&self, f: &Functions, handle: mooncake_store_t) -> i32 {
        match (self, f.setup_dict) {
            (Self::Dictionary(pairs), Some(setup_dict)) => {
                let (mut keys, mut values): (Vec<*const c_char>, Vec<_>) =
                    pairs.iter().map(|(k, v)| (k.as_ptr(), v.as_ptr())).unzip();
                // SAFETY: the caller vouches for the handle; both arrays hold as many NUL-terminated strings as are
                // announced, which live in `self`.
                unsafe { setup_dict(handle, keys.as_mut_ptr(), values.as_mut_ptr(), pairs.len()) }
            }
            (
                Self::Official {
                    texts,
                    segment,
                    buffer,
                },
                _,
            ) => {
                let [hostname, metadata, protocol, devices, master] = texts;
                // SAFETY: as above.
                unsafe {
                    (f.setup)(
                        handle,
                        hostname.as_ptr(),
                        metadata.as_ptr(),
                        *segment,
                        *buffer,
                        protocol.as_ptr(),
                        devices.as_ptr(),
                        master.as_ptr(),
                    )
                }
            }
            // `new` makes a dictionary only where it can be taken.
            (Self::Dictionary(_), None) => -1012,
        }
    }
}

/// Whether anything listens at the master's address, `host:port`, told in seconds: Mooncake itself would try for a minute and
/// a half. `Ok(false)`: it was not tried, because an address that is no `host:port`, as one of a high-availability set-up, is left
/// to Mooncake.
///
/// # Errors
/// [`MooncakeError::NoMaster`].
pub fn probe_master(addr: &str) -> Result<bool, MooncakeError> {
    let port = addr.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    if addr.contains("://") || !matches!(port, Some(Ok(_))) {
        return Ok(false);
    }
    let no_master = |reason: String| MooncakeError::NoMaster {
        addr: addr.to_owned(),
        reason,
    };
    let found: Vec<SocketAddr> = addr
        .to_socket_addrs()
        .map_err(|error| no_master(error.to_string()))?
        .take(PROBES)
        .collect();
    let mut reason = "the name has no address".to_owned();
    for socket in &found {
        match TcpStream::connect_timeout(socket, PROBE_LIMIT) {
            Ok(_) => return Ok(true),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(no_master(reason))
}

/// What the extension of that name says.
fn last_error(f: &Functions) -> Option<String> {
    // SAFETY: has no preconditions; what it returns is read at once.
    owned(unsafe { (f.last_error?)() })
}

/// The version of Mooncake, where the library knows it.
pub(super) fn version(f: &Functions) -> Option<String> {
    // SAFETY: has no preconditions; what it returns lives as long as the library.
    owned(unsafe { (f.version?)() })
}

fn owned(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: `seam.h`: NULL or a NUL-terminated string that is valid until the thread's next call at least.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    Some(text.into_owned()).filter(|text| !text.is_empty())
}
