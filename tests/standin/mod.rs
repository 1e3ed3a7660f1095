//! Compiles the stand-ins, and talks to them.
//!
//! `real_client.h` and `standin.cpp` are a small store with the interface of Mooncake's C++ client; with the product's own
//! shim they make a library like Mooncake's. `faulty.c` is a library that only misbehaves.

#![allow(dead_code)] // each test file uses its part

use std::ffi::{CStr, CString, c_char, c_int};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use moonring::L2Adapter;
use moonring::config::{MooncakeConfig, StoreConfig};
use moonring::store::{MooncakeError, MooncakeStore, OpenOptions};

/// Which stand-in.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// The store behind the shim, with all extensions.
    Store,
    /// The same, exporting no more than Mooncake's own C library does.
    Official,
    /// The library that misbehaves.
    Faulty,
    /// The same without one of the functions.
    FaultyWithoutBatchGet,
}

/// A copy of a stand-in that no other test has, opened for its controls.
pub struct StandIn {
    pub path: PathBuf,
    library: libloading::Library,
}

impl StandIn {
    /// `None`, said aloud: there is no compiler.
    pub fn compile(kind: Kind) -> Option<Self> {
        static COMPILED: [OnceLock<Option<PathBuf>>; 4] = [const { OnceLock::new() }; 4];
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let compiled = COMPILED[kind as usize]
            .get_or_init(|| compile(kind))
            .as_ref()?;
        let number = COUNT.fetch_add(1, Relaxed);
        let path = compiled.with_extension(format!("{}-{number}.so", std::process::id()));
        std::fs::copy(compiled, &path).expect("a copy");
        // SAFETY: the library was just compiled from this project's files.
        let library = unsafe { libloading::Library::new(&path) }.expect("it opens");
        Some(Self { path, library })
    }

    /// Sets what `faulty.c` does.
    pub fn set(&self, what: &str, value: i64) {
        let what = CString::new(what).unwrap();
        // SAFETY: the type is that in `faulty.c`.
        unsafe {
            let set = self
                .library
                .get::<unsafe extern "C" fn(*const c_char, i64)>(b"standin_set");
            set.unwrap()(what.as_ptr(), value);
        }
    }

    /// What `faulty.c` has counted.
    pub fn count(&self, what: &str) -> i32 {
        let what = CString::new(what).unwrap();
        // SAFETY: the type is that in `faulty.c`.
        unsafe {
            let count = self
                .library
                .get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"standin_count");
            count.unwrap()(what.as_ptr())
        }
    }

    /// The arguments of the last set-up of `faulty.c`.
    pub fn heard(&self) -> String {
        // SAFETY: the type is that in `faulty.c`; the text is a static array there.
        unsafe {
            let heard = self
                .library
                .get::<unsafe extern "C" fn() -> *const c_char>(b"standin_heard");
            CStr::from_ptr(heard.unwrap()())
                .to_string_lossy()
                .into_owned()
        }
    }

    /// Tells `standin.cpp` what to do wrong.
    pub fn tell(&self, fault: &str) {
        let fault = CString::new(fault).unwrap();
        // SAFETY: the type is that in `real_client.h`.
        unsafe {
            let tell = self
                .library
                .get::<unsafe extern "C" fn(*const c_char)>(b"standin_tell");
            tell.unwrap()(fault.as_ptr());
        }
    }

    /// Lets the leases of `standin.cpp` pass.
    pub fn pass_ms(&self, ms: i64) {
        // SAFETY: the type is that in `real_client.h`.
        unsafe {
            let pass = self
                .library
                .get::<unsafe extern "C" fn(i64)>(b"standin_pass_ms");
            pass.unwrap()(ms);
        }
    }

    /// What the set-up of `standin.cpp` got for a key.
    pub fn configured(&self, key: &str) -> Option<String> {
        let key = CString::new(key).unwrap();
        // SAFETY: the type is that in `real_client.h`; the text stays until the next set-up.
        unsafe {
            let get = self
                .library
                .get::<unsafe extern "C" fn(*const c_char) -> *const c_char>(b"standin_configured");
            let value = get.unwrap()(key.as_ptr());
            (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
        }
    }

    /// Clients of `standin.cpp` that are set up.
    pub fn clients(&self) -> i32 {
        // SAFETY: the type is that in `real_client.h`.
        unsafe {
            let count = self
                .library
                .get::<unsafe extern "C" fn() -> c_int>(b"standin_clients");
            count.unwrap()()
        }
    }

    /// Opens a store on this library.
    pub fn open(&self, config: &MooncakeConfig) -> Result<MooncakeStore, MooncakeError> {
        MooncakeStore::open(config, &self.options())
    }

    pub fn options(&self) -> OpenOptions {
        OpenOptions::default().library(&self.path)
    }
}

/// Compiles a stand-in.
fn compile(kind: Kind) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (own, seam) = (root.join("tests/standin"), root.join("src/store/mooncake"));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("libstandin-{kind:?}.so"));
    // Other test processes may do the same now.
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let cpp = matches!(kind, Kind::Store | Kind::Official);
    let (variable, default) = if cpp { ("CXX", "c++") } else { ("CC", "cc") };
    let compiler = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
    let mut command = Command::new(&compiler);
    // Symbolic: several copies in one process keep to themselves.
    command.args([
        "-shared",
        "-fPIC",
        "-Wl,-Bsymbolic",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        "-o",
    ]);
    command.arg(&new).arg("-I").arg(&own).arg("-I").arg(&seam);
    if cpp {
        command.args(["-std=c++20", "-DMOONRING_MOONCAKE_VERSION=\"stand-in\""]);
        command
            .arg(seam.join("shim.cpp"))
            .arg(own.join("standin.cpp"));
    } else {
        command.arg(own.join("faulty.c"));
    }
    match kind {
        Kind::Official => {
            let map = own.join("official.map");
            command.arg(format!("-Wl,--version-script={}", map.display()));
        }
        Kind::FaultyWithoutBatchGet => {
            command.arg("-DWITHOUT_BATCH_GET");
        }
        Kind::Store | Kind::Faulty => {}
    }
    match command.output() {
        Ok(done) if done.status.success() => {
            std::fs::rename(&new, &path).expect("renamed");
            Some(path)
        }
        Ok(done) => panic!("{compiler}: {}", String::from_utf8_lossy(&done.stderr)),
        Err(error) => {
            assert!(!required("compiler"), "{compiler} is required: {error}");
            eprintln!("SKIPPED: no stand-in: {compiler}: {error}");
            None
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether `MOONRING_REQUIRE` forbids to skip it.
pub fn required(what: &str) -> bool {
    let list = std::env::var("MOONRING_REQUIRE").unwrap_or_default();
    list.split(',').any(|item| item.trim() == what)
}

/// Something that listens where the master would, and answers nobody.
pub struct Master {
    listener: TcpListener,
}

impl Master {
    pub fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Self { listener }
    }

    pub fn addr(&self) -> String {
        self.listener.local_addr().expect("bound").to_string()
    }

    /// A configuration with this master; `more` are further members of the JSON.
    pub fn config(&self, more: &str) -> MooncakeConfig {
        let comma = if more.is_empty() { "" } else { "," };
        config(&format!(
            r#""local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_addr": "{}"{comma}{more}"#,
            self.addr()
        ))
    }
}

/// The configuration of a `mooncake_store` with these members.
pub fn config(members: &str) -> MooncakeConfig {
    let adapter = L2Adapter::parse(&format!(r#"{{"type": "mooncake_store", {members}}}"#));
    match adapter.expect("good JSON").store {
        StoreConfig::MooncakeStore(config) => config,
        other => panic!("{other:?}"),
    }
}
