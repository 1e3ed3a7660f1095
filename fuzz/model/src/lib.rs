//! What the fuzz targets do with their input: `fuzz/` runs these under a fuzzer, `tests/corpora.rs` runs the corpora that it
//! found through them in every ordinary test run.
//!
//! Each of [`config::check`], [`trace::check`] and [`engine::check`] takes any bytes and panics where a promise is broken.

pub mod config;
pub mod engine;
pub mod input;
// The file itself, not its crate: that is most of what a fuzzer would have to build.
#[allow(dead_code)]
#[path = "../../../tools/src/trace.rs"]
mod reader;
pub mod trace;
