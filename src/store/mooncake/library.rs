//! Finding and opening the library that the seam's functions come from.

use std::ffi::{OsString, c_void};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};

use super::MooncakeError;
use super::functions::Functions;

/// Names Mooncake's C library.
pub const LIBRARY_VARIABLE: &str = "MOONCAKE_STORE_LIBRARY";
/// Names the bridge to the PyPI wheel.
pub const BRIDGE_VARIABLE: &str = "MOONRING_MOONCAKE_BRIDGE";

const ON_LOADERS_PATH: &str = "libmooncake_store.so";
/// Where `tools/mooncake setup` puts what it makes, if not to its usual place.
const SETUP_VARIABLE: &str = "MOONRING_MOONCAKE_DIR";
const BRIDGE: &str = "libmoonring_wheel_bridge.so";

/// The functions, and where they came from.
#[derive(Clone)]
pub(super) struct Library {
    pub functions: Functions,
    pub path: String,
    pub origin: &'static str,
}

/// A place where a library may be.
#[derive(Debug, PartialEq)]
struct Candidate {
    path: PathBuf,
    origin: &'static str,
    /// It was asked for: if it isn't there, no other is tried.
    asked_for: bool,
}

impl Library {
    /// What was asked for, else what was linked in, else what the loader finds, else the bridge where it is set up.
    ///
    /// A library is never closed again: Mooncake's threads may run in it for as long as the process lives.
    pub fn find(asked_for: Option<&Path>) -> Result<Self, MooncakeError> {
        let mut tried = Vec::new();
        for candidate in candidates(asked_for, |name| std::env::var_os(name)) {
            if !candidate.asked_for {
                if let Some(linked) = Self::linked() {
                    return Ok(linked);
                }
                if candidate.path.is_absolute() && !candidate.path.exists() {
                    tried.push(candidate.path.display().to_string());
                    continue;
                }
            }
            match open(&candidate) {
                Err(MooncakeError::Library { path, reason, .. })
                    if !candidate.asked_for
                        && reason.starts_with(&format!("{path}: cannot open")) =>
                {
                    tried.push(format!("{path} on the loader's path"));
                }
                opened => return opened,
            }
        }
        Err(MooncakeError::NoLibrary { tried })
    }

    #[cfg(mooncake_linked)]
    fn linked() -> Option<Self> {
        Some(Self {
            functions: Functions::LINKED,
            path: "linked in".to_owned(),
            origin: "the build",
        })
    }

    #[cfg(not(mooncake_linked))]
    fn linked() -> Option<Self> {
        None
    }
}

/// All places, in the order in which they are tried.
fn candidates(
    asked_for: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Vec<Candidate> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let named = |name: &'static str| set(name).map(|path| (PathBuf::from(path), name));
    let asked = asked_for
        .map(|path| (path.to_owned(), "the library option"))
        .or_else(|| named(LIBRARY_VARIABLE))
        .or_else(|| named(BRIDGE_VARIABLE));
    if let Some((path, origin)) = asked {
        return vec![Candidate {
            path,
            origin,
            asked_for: true,
        }];
    }
    let data = set("XDG_DATA_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(Path::new(&set("HOME")?).join(".local/share")));
    let found = |path, origin| Candidate {
        path,
        origin,
        asked_for: false,
    };
    let mut all = vec![found(PathBuf::from(ON_LOADERS_PATH), "the loader's path")];
    let bridges = [
        set(SETUP_VARIABLE).map(|folder| Path::new(&folder).join(BRIDGE)),
        data.map(|data| data.join("moonring").join(BRIDGE)),
    ];
    let bridges = bridges.into_iter().flatten();
    all.extend(bridges.map(|path| found(path, "tools/mooncake setup")));
    all
}

fn open(candidate: &Candidate) -> Result<Library, MooncakeError> {
    let path = candidate.path.display().to_string();
    let origin = candidate.origin;
    // Its names are kept to itself; the bridge shows those of its Python to all by itself.
    // SAFETY: opening runs the library's initialisers. That it may is what naming it means; they run on a thread of ours,
    // see `setup`.
    let loaded = unsafe { Loaded::open(Some(&candidate.path), RTLD_NOW | RTLD_LOCAL) };
    let loaded = loaded.map_err(|error| MooncakeError::Library {
        path: path.clone(),
        origin,
        reason: told(&error),
    })?;
    let find = |symbol: &'static str| {
        // SAFETY: only the address is taken; `Functions` gives it its type.
        let found = unsafe { loaded.get::<*mut c_void>(symbol.as_bytes()) };
        Some(found.ok()?.as_raw_ptr()).filter(|address| !address.is_null())
    };
    // SAFETY: a library that exports these names is held to the types of Mooncake's header, which are those of `seam.h`.
    let functions = unsafe { Functions::look_up(find) };
    let functions = functions.map_err(|symbol| MooncakeError::MissingSymbol {
        path: path.clone(),
        origin,
        symbol,
    })?;
    std::mem::forget(loaded);
    Ok(Library {
        functions,
        path,
        origin,
    })
}

/// The loader's own words, which libloading keeps as the cause.
fn told(error: &libloading::Error) -> String {
    use std::error::Error;
    match error.source() {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(
        asked_for: Option<&str>,
        variables: &[(&str, &str)],
    ) -> Vec<(String, &'static str, bool)> {
        let variable = |name: &str| {
            let (_, value) = variables.iter().find(|(n, _)| *n == name)?;
            Some(OsString::from(value))
        };
        candidates(asked_for.map(Path::new), variable)
            .into_iter()
            .map(|c| (c.path.display().to_string(), c.origin, c.asked_for))
            .collect()
    }

    #[test]
    fn what_was_asked_for_is_the_only_place() {
        let both = [
            (LIBRARY_VARIABLE, "/a.so"),
            (BRIDGE_VARIABLE, "/b.so"),
            ("HOME", "/h"),
        ];
        let only = |path: &str, origin| vec![(path.to_owned(), origin, true)];
        assert_eq!(
            places(Some("/o.so"), &both),
            only("/o.so", "the library option")
        );
        assert_eq!(places(None, &both), only("/a.so", LIBRARY_VARIABLE));
        assert_eq!(places(None, &both[1..]), only("/b.so", BRIDGE_VARIABLE));
    }

    #[test]
    fn unasked_the_loaders_path_comes_before_the_bridge() {
        let loader = (
            "libmooncake_store.so".to_owned(),
            "the loader's path",
            false,
        );
        let bridge = |folder: &str| {
            let path = format!("{folder}/moonring/libmoonring_wheel_bridge.so");
            (path, "tools/mooncake setup", false)
        };
        let home = ("HOME", "/h");
        let found = places(None, &[home]);
        assert_eq!(found, [loader.clone(), bridge("/h/.local/share")]);
        let found = places(None, &[home, ("XDG_DATA_HOME", "/d")]);
        assert_eq!(found, [loader.clone(), bridge("/d")]);
        let at_setup = (
            "/s/libmoonring_wheel_bridge.so".to_owned(),
            "tools/mooncake setup",
            false,
        );
        let found = places(None, &[home, (SETUP_VARIABLE, "/s")]);
        assert_eq!(found, [loader.clone(), at_setup, bridge("/h/.local/share")]);
        // As the standard says: a relative path is no path.
        let found = places(None, &[home, ("XDG_DATA_HOME", "d")]);
        assert_eq!(found, [loader.clone(), bridge("/h/.local/share")]);
        assert_eq!(places(None, &[(LIBRARY_VARIABLE, "")]), [loader]);
    }
}
