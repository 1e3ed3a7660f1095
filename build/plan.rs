//! Whether and with what a Mooncake is linked in, from the environment alone.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `BUILD_MOONCAKE` | `1`: on; `0`: off, whatever else is set; not set: on if `MOONCAKE_INCLUDE_DIR` is set; any other value: off, with a warning |
//! | `MOONCAKE_INCLUDE_DIR` | folders with Mooncake's headers; one of them holds `real_client.h` |
//! | `MOONCAKE_LIB_DIR` | folders with Mooncake's libraries; one of them holds `libmooncake_store.so` or `.a` |
//! | `MOONRING_MOONCAKE_INCLUDES` | further folders with headers, as of yalantinglibs and jsoncpp |
//! | `MOONRING_MOONCAKE_CXXFLAGS` | further flags for the compiler, separated by blanks |
//! | `MOONRING_MOONCAKE_LIBS` | further libraries, as `glog` or `static=transfer_engine` |
//!
//! Lists are separated by `;`. The first three are LMCache's.

use std::path::{Path, PathBuf};

pub const VARIABLES: [&str; 6] = [
    "BUILD_MOONCAKE",
    "MOONCAKE_INCLUDE_DIR",
    "MOONCAKE_LIB_DIR",
    "MOONRING_MOONCAKE_INCLUDES",
    "MOONRING_MOONCAKE_CXXFLAGS",
    "MOONRING_MOONCAKE_LIBS",
];

const HEADER: &str = "real_client.h";

#[derive(Debug, PartialEq)]
pub enum Plan {
    /// No Mooncake is linked in; a warning to be printed.
    Off(Option<String>),
    On(Linked),
}

#[derive(Debug, PartialEq)]
pub struct Linked {
    pub includes: Vec<PathBuf>,
    pub flags: Vec<String>,
    pub lib_dirs: Vec<PathBuf>,
    /// As `cargo::rustc-link-lib` takes them, Mooncake's first.
    pub libs: Vec<String>,
}

/// What the environment asks for; `Err` is the sentence that the build stops with.
pub fn plan(
    variable: impl Fn(&str) -> Option<String>,
    exists: impl Fn(&Path) -> bool,
) -> Result<Plan, String> {
    let list = |name: &str| -> Vec<String> {
        let value = variable(name).unwrap_or_default();
        let items = value
            .split(';')
            .map(str::trim)
            .filter(|item| !item.is_empty());
        items.map(str::to_owned).collect()
    };
    let folders =
        |name: &str| -> Vec<PathBuf> { list(name).into_iter().map(PathBuf::from).collect() };
    let mut includes = folders("MOONCAKE_INCLUDE_DIR");
    match variable("BUILD_MOONCAKE").as_deref() {
        Some("1") => {}
        Some("0") => return Ok(Plan::Off(None)),
        None if includes.is_empty() => return Ok(Plan::Off(None)),
        None => {}
        Some(other) => {
            return Ok(Plan::Off(Some(format!(
                "BUILD_MOONCAKE: \"{other}\" is neither 0 nor 1; no Mooncake is linked in"
            ))));
        }
    }
    let lib_dirs = folders("MOONCAKE_LIB_DIR");
    for (name, folders, holds) in [
        ("MOONCAKE_INCLUDE_DIR", &includes, HEADER),
        (
            "MOONCAKE_LIB_DIR",
            &lib_dirs,
            "libmooncake_store.so or libmooncake_store.a",
        ),
    ] {
        if folders.is_empty() {
            return Err(format!(
                "{name} is not set, and a linked build needs the folder that holds Mooncake's {holds} (BUILD_MOONCAKE=0 builds without)"
            ));
        }
    }
    includes.extend(folders("MOONRING_MOONCAKE_INCLUDES"));
    let found =
        |folders: &[PathBuf], file: &str| folders.iter().any(|folder| exists(&folder.join(file)));
    let shown = |folders: &[PathBuf]| {
        let shown: Vec<_> = folders.iter().map(|f| f.display().to_string()).collect();
        shown.join(", ")
    };
    if !found(&includes, HEADER) {
        return Err(format!(
            "MOONCAKE_INCLUDE_DIR: there is no {HEADER} in {}; it is in mooncake-store/include of Mooncake's source",
            shown(&includes)
        ));
    }
    let mut libs = Vec::new();
    if found(&lib_dirs, "libmooncake_store.so") {
        libs.push("dylib=mooncake_store".to_owned());
    } else if found(&lib_dirs, "libmooncake_store.a") {
        libs.push("static=mooncake_store".to_owned());
    } else {
        return Err(format!(
            "MOONCAKE_LIB_DIR: there is no libmooncake_store.so or libmooncake_store.a in {}",
            shown(&lib_dirs)
        ));
    }
    libs.extend(list("MOONRING_MOONCAKE_LIBS"));
    let flags = variable("MOONRING_MOONCAKE_CXXFLAGS").unwrap_or_default();
    Ok(Plan::On(Linked {
        includes,
        flags: flags.split_whitespace().map(str::to_owned).collect(),
        lib_dirs,
        libs,
    }))
}
