//! What the tests share: the bridge as Moonring opens it, and a real Mooncake of their own.
#![allow(dead_code, missing_docs, reason = "each test binary uses its part")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{ptr, thread};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Where `tools/mooncake setup` put things.
pub fn state() -> PathBuf {
    std::env::var_os("MOONRING_MOONCAKE_DIR")
        .map_or_else(|| project().join("target/mooncake"), PathBuf::from)
}

/// The venv of it. `tools/mooncake test` sets this for the bridge.
pub fn venv() -> PathBuf {
    PathBuf::from(std::env::var_os(VENV).expect("asked after `set_up`"))
}

pub const VENV: &str = "MOONRING_MOONCAKE_VENV";

pub fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("two folders up")
        .to_path_buf()
}

/// False, said aloud, where there is no venv; a failure where `MOONRING_REQUIRE` lists `mooncake`.
pub fn set_up() -> bool {
    if std::env::var_os(VENV).is_some() {
        return true;
    }
    let required = std::env::var("MOONRING_REQUIRE").unwrap_or_default();
    let missing = "needs a real Mooncake: run `tools/mooncake setup`, then `tools/mooncake test`";
    assert!(
        !required.split(',').any(|word| word == "mooncake"),
        "{missing}"
    );
    let _ = writeln!(std::io::stderr(), "SKIPPED: {missing}");
    false
}

/// The library that cargo built for this test run: beside this test, the copy one folder up may be older.
pub fn library() -> PathBuf {
    std::env::current_exe()
        .expect("a path")
        .with_file_name("libmoonring_wheel_bridge.so")
}

pub type Handle = *mut c_void;
type Keys = *const *const c_char;

/// `mooncake_replicate_config_t`.
#[repr(C)]
pub struct ReplicateConfig {
    pub replica_num: usize,
    pub with_soft_pin: c_int,
    pub with_hard_pin: c_int,
    pub preferred_segments: Keys,
    pub preferred_segments_count: usize,
}

type Text = *const c_char;

/// The seam's functions.
pub struct Bridge {
    pub create: unsafe extern "C" fn() -> Handle,
    pub destroy: unsafe extern "C" fn(Handle),
    pub setup: unsafe extern "C" fn(Handle, Text, Text, u64, u64, Text, Text, Text) -> c_int,
    pub health_check: unsafe extern "C" fn(Handle) -> c_int,
    pub register_buffer: unsafe extern "C" fn(Handle, *mut c_void, usize) -> c_int,
    pub unregister_buffer: unsafe extern "C" fn(Handle, *mut c_void) -> c_int,
    pub batch_is_exist: unsafe extern "C" fn(Handle, Keys, usize, *mut c_int) -> c_int,
    pub batch_get_into: unsafe extern "C" fn(
        Handle,
        Keys,
        *const *mut c_void,
        *const usize,
        usize,
        *mut i64,
    ) -> c_int,
    pub batch_put_from: unsafe extern "C" fn(
        Handle,
        Keys,
        *const *mut c_void,
        *const usize,
        usize,
        *const ReplicateConfig,
        *mut c_int,
    ) -> c_int,
    pub remove: unsafe extern "C" fn(Handle, Text, c_int) -> c_int,
    pub setup_dict: unsafe extern "C" fn(Handle, Keys, Keys, usize) -> c_int,
    pub batch_remove: unsafe extern "C" fn(Handle, Keys, usize, c_int, *mut c_int) -> c_int,
    pub version: unsafe extern "C" fn() -> Text,
    pub last_error: unsafe extern "C" fn() -> Text,
    pub library: Library,
}

impl Bridge {
    /// Opened with local visibility, the harder case.
    pub fn open(path: &Path) -> Bridge {
        // SAFETY: the library's loading code is Rust's and libpython's.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .expect("a library that loads");
        // SAFETY: the types are those of the seam's header.
        unsafe {
            Bridge {
                create: *library.get("mooncake_store_create").unwrap(),
                destroy: *library.get("mooncake_store_destroy").unwrap(),
                setup: *library.get("mooncake_store_setup").unwrap(),
                health_check: *library.get("mooncake_store_health_check").unwrap(),
                register_buffer: *library.get("mooncake_store_register_buffer").unwrap(),
                unregister_buffer: *library.get("mooncake_store_unregister_buffer").unwrap(),
                batch_is_exist: *library.get("mooncake_store_batch_is_exist").unwrap(),
                batch_get_into: *library.get("mooncake_store_batch_get_into").unwrap(),
                batch_put_from: *library.get("mooncake_store_batch_put_from").unwrap(),
                remove: *library.get("mooncake_store_remove").unwrap(),
                setup_dict: *library.get("moonring_mooncake_setup_dict").unwrap(),
                batch_remove: *library.get("moonring_mooncake_batch_remove").unwrap(),
                version: *library.get("moonring_mooncake_version").unwrap(),
                last_error: *library.get("moonring_mooncake_last_error").unwrap(),
                library,
            }
        }
    }

    pub fn last_error(&self) -> Option<String> {
        // SAFETY: NULL or a string that is valid until this thread's next call.
        unsafe { text((self.last_error)()) }
    }

    pub fn version(&self) -> Option<String> {
        // SAFETY: NULL or a string that lives as long as the process.
        unsafe { text((self.version)()) }
    }
}

/// # Safety
///
/// NULL or a living string.
unsafe fn text(pointer: Text) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    Some(text.to_string_lossy().into_owned())
}

/// The bridge of this process.
pub fn bridge() -> &'static Bridge {
    static BRIDGE: OnceLock<Bridge> = OnceLock::new();
    BRIDGE.get_or_init(|| Bridge::open(&library()))
}

/// A client of the bridge. A batch call's error is `Err(code)`.
pub struct Client {
    pub handle: Handle,
}

// SAFETY: the seam's functions may be called from any thread, and from several.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Client {
    pub fn create() -> Client {
        // SAFETY: no precondition.
        let handle = unsafe { (bridge().create)() };
        assert!(!handle.is_null(), "create: {:?}", bridge().last_error());
        Client { handle }
    }

    pub fn set_up(&self, pairs: &[(&str, &str)]) -> c_int {
        let own = |text: &str| CString::new(text).unwrap();
        let (keys, values): (Vec<_>, Vec<_>) = pairs.iter().map(|(k, v)| (own(k), own(v))).unzip();
        let pointers =
            |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (keys, values) = (pointers(&keys), pointers(&values));
        // SAFETY: arrays of living strings, of the length given.
        unsafe { (bridge().setup_dict)(self.handle, keys.as_ptr(), values.as_ptr(), keys.len()) }
    }

    pub fn connected(mooncake: &Mooncake) -> Client {
        let client = Client::create();
        let code = client.set_up(&mooncake.dictionary());
        assert_eq!(code, 0, "set-up: {:?}", bridge().last_error());
        client
    }

    pub fn exists<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<c_int>, c_int> {
        let (_own, keys) = c_keys(keys);
        let mut results = vec![c_int::MIN; keys.len()];
        // SAFETY: arrays of the length given.
        let code = unsafe {
            (bridge().batch_is_exist)(self.handle, keys.as_ptr(), keys.len(), results.as_mut_ptr())
        };
        if code == 0 { Ok(results) } else { Err(code) }
    }

    pub fn put<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Result<Vec<c_int>, c_int> {
        self.put_with(pairs, ptr::null())
    }

    pub fn put_with<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
        config: *const ReplicateConfig,
    ) -> Result<Vec<c_int>, c_int> {
        let (_own, keys) = c_keys(&pairs.iter().map(|(key, _)| key).collect::<Vec<_>>());
        let buffers: Vec<_> = pairs
            .iter()
            .map(|(_, value)| value.as_ref().as_ptr().cast_mut().cast())
            .collect();
        let sizes: Vec<_> = pairs
            .iter()
            .map(|(_, value)| value.as_ref().len())
            .collect();
        let mut results = vec![c_int::MIN; keys.len()];
        // SAFETY: arrays of the length given, buffers that live and are only read.
        let code = unsafe {
            (bridge().batch_put_from)(
                self.handle,
                keys.as_ptr(),
                buffers.as_ptr(),
                sizes.as_ptr(),
                keys.len(),
                config,
                results.as_mut_ptr(),
            )
        };
        if code == 0 { Ok(results) } else { Err(code) }
    }

    /// Gets into buffers of `size` bytes of canaries; what the buffers hold then comes back too.
    pub fn get_sized<K: AsRef<[u8]>>(
        &self,
        keys: &[(K, usize)],
    ) -> Result<Vec<(i64, Vec<u8>)>, c_int> {
        let mut values: Vec<_> = keys.iter().map(|&(_, size)| vec![CANARY; size]).collect();
        let sizes: Vec<_> = keys.iter().map(|&(_, size)| size).collect();
        let buffers: Vec<*mut c_void> = values
            .iter_mut()
            .map(|value| value.as_mut_ptr().cast())
            .collect();
        let (_own, keys) = c_keys(&keys.iter().map(|(key, _)| key).collect::<Vec<_>>());
        let mut results = vec![i64::MIN; keys.len()];
        // SAFETY: arrays of the length given, buffers that live and are nobody else's.
        let code = unsafe {
            (bridge().batch_get_into)(
                self.handle,
                keys.as_ptr(),
                buffers.as_ptr(),
                sizes.as_ptr(),
                keys.len(),
                results.as_mut_ptr(),
            )
        };
        if code == 0 {
            Ok(results.into_iter().zip(values).collect())
        } else {
            Err(code)
        }
    }

    /// One key's value, of at most 64 KiB.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Vec<u8>, i64> {
        let (code, mut value) = self
            .get_sized(&[(key, 65536)])
            .map_err(i64::from)?
            .remove(0);
        if code < 0 {
            return Err(code);
        }
        value.truncate(usize::try_from(code).unwrap());
        Ok(value)
    }

    pub fn remove(&self, key: impl AsRef<[u8]>, force: bool) -> c_int {
        let key = CString::new(key.as_ref()).unwrap();
        // SAFETY: a living string.
        unsafe { (bridge().remove)(self.handle, key.as_ptr(), force.into()) }
    }

    pub fn batch_remove<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        force: bool,
    ) -> Result<Vec<c_int>, c_int> {
        let (_own, keys) = c_keys(keys);
        let mut results = vec![c_int::MIN; keys.len()];
        // SAFETY: arrays of the length given.
        let code = unsafe {
            (bridge().batch_remove)(
                self.handle,
                keys.as_ptr(),
                keys.len(),
                force.into(),
                results.as_mut_ptr(),
            )
        };
        if code == 0 { Ok(results) } else { Err(code) }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: created once, in no call, not used again.
        unsafe { (bridge().destroy)(self.handle) };
    }
}

pub const CANARY: u8 = 0xA5;

fn c_keys<K: AsRef<[u8]>>(keys: &[K]) -> (Vec<CString>, Vec<*const c_char>) {
    let own: Vec<_> = keys
        .iter()
        .map(|key| CString::new(key.as_ref()).expect("no NUL"))
        .collect();
    let pointers = own.iter().map(|key| key.as_ptr()).collect();
    (own, pointers)
}

/// A name that no other process of the tests uses.
pub fn instance(name: &str) -> String {
    format!("bridge-{name}-{}", std::process::id())
}

/// A master and a storage node, ended when dropped.
pub struct Mooncake {
    name: String,
    pub master: String,
    pub metadata: String,
}

impl Mooncake {
    pub fn up(name: &str, arguments: &[&str]) -> Mooncake {
        Mooncake::named(&instance(name), arguments)
    }

    pub fn named(name: &str, arguments: &[&str]) -> Mooncake {
        let json = run(name, &[&["up", "--segment", "256MB"], arguments].concat());
        assert_eq!(json.lines().count(), 1, "one line: {json}");
        let field = |field: &str| {
            let rest = json
                .split(&format!("\"{field}\": \""))
                .nth(1)
                .unwrap_or_else(|| panic!("{field} in {json}"));
            rest.split('"').next().unwrap().to_owned()
        };
        assert_eq!(field("type"), "mooncake_store");
        assert_eq!(field("global_segment_size"), "0");
        Mooncake {
            master: field("master_server_addr"),
            metadata: field("metadata_server"),
            name: name.to_owned(),
        }
    }

    pub fn dictionary(&self) -> Vec<(&str, &str)> {
        vec![
            ("local_hostname", "127.0.0.1"),
            ("metadata_server", &self.metadata),
            ("master_server_addr", &self.master),
            ("protocol", "tcp"),
            ("global_segment_size", "0"),
        ]
    }

    /// A command of `tools/mooncake` on this instance; its output.
    pub fn command(&self, command: &str) -> String {
        run(&self.name, &[command])
    }

    pub fn counter(&self, name: &str) -> u64 {
        let page = self.command("metrics");
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} in {page}"))
            .parse()
            .unwrap()
    }
}

impl Drop for Mooncake {
    fn drop(&mut self) {
        self.command("down");
    }
}

pub fn run(instance: &str, arguments: &[&str]) -> String {
    let output = Command::new(project().join("tools/mooncake"))
        .args(arguments)
        .env("MOONRING_MOONCAKE_INSTANCE", instance)
        .env("MOONRING_MOONCAKE_DIR", state())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("tools/mooncake");
    assert!(output.status.success(), "tools/mooncake {arguments:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Polls until `true`, or fails.
pub fn eventually(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
    start.elapsed()
}

/// Ends the process loudly when the test hangs.
pub struct Watchdog(std::sync::mpsc::Sender<()>);

impl Watchdog {
    pub fn new(limit: Duration, what: &'static str) -> Watchdog {
        let (sender, receiver) = std::sync::mpsc::channel();
        thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let _ = writeln!(std::io::stderr(), "WATCHDOG: {what} hangs since {limit:?}");
                std::process::abort();
            }
        });
        Watchdog(sender)
    }
}
