//! See `moonring_fuzz_model::trace`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| moonring_fuzz_model::trace::check(bytes));
