//! Why a Mooncake store could not be opened.

use super::codes::named;
use crate::config::ConfigError;

/// Why a [`MooncakeStore`](super::MooncakeStore) could not be opened. Nothing is left behind, but for what
/// [`TimedOut`](MooncakeError::TimedOut) says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MooncakeError {
    /// A value that was refused before Mooncake saw it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No library was found in any of the usual places.
    #[error(
        "no Mooncake library found: tried {}. Name the libmooncake_store.so of a Mooncake that was built with \
         WITH_STORE_C_SHARED in MOONCAKE_STORE_LIBRARY, or set up the bridge to the PyPI wheel with `tools/mooncake setup`",
        .tried.join(", ")
    )]
    NoLibrary {
        /// The places.
        tried: Vec<String>,
    },
    /// A library that could not be opened.
    #[error(
        "{path} (from {origin}): {reason}; want Mooncake's C library libmooncake_store.so or Moonring's bridge"
    )]
    Library {
        /// Its path.
        path: String,
        /// What named it: an environment variable, an option, the loader.
        origin: &'static str,
        /// The loader's reason.
        reason: String,
    },
    /// A library that lacks a function.
    #[error(
        "{path} (from {origin}): no symbol {symbol}; it is no libmooncake_store.so, or of a Mooncake too old: take one of \
         0.3.13 or newer that was built with WITH_STORE_C_SHARED"
    )]
    MissingSymbol {
        /// Its path.
        path: String,
        /// What named it.
        origin: &'static str,
        /// The first function that is missing.
        symbol: &'static str,
    },
    /// Nothing listens where the master should.
    #[error(
        "master_server_addr: no master answers at {addr}: {reason}; is mooncake_master running there?"
    )]
    NoMaster {
        /// The address.
        addr: String,
        /// The system's reason.
        reason: String,
    },
    /// Mooncake made no client.
    #[error("Mooncake made no client{}", detail_note(.detail))]
    Create {
        /// Its reason, where it gives one.
        detail: Option<String>,
    },
    /// Mooncake's set-up failed.
    #[error("Mooncake's set-up failed with {}{}", named(*.code), detail_note(.detail))]
    Setup {
        /// Mooncake's code, see [`code_name`](super::code_name).
        code: i32,
        /// Its reason, where it gives one.
        detail: Option<String>,
    },
    /// Opening took longer than the limit. The thread that does it, and the client that it may be making, were left
    /// to themselves; should it ever end, it closes its client.
    #[error(
        "not open after {limit_s} s (moonring.setup_timeout), while {doing}; the thread that does it was abandoned"
    )]
    TimedOut {
        /// The limit in seconds.
        limit_s: u64,
        /// What was being done.
        doing: &'static str,
    },
    /// The thread that opens could not be started, or it panicked.
    #[error("the thread that opens the store: {reason}")]
    Thread {
        /// The reason.
        reason: String,
    },
}

fn detail_note(detail: &Option<String>) -> String {
    detail
        .as_ref()
        .map(|text| format!(": {text}"))
        .unwrap_or_default()
}
