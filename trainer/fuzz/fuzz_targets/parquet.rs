//! Fuzz target: the reading of a Parquet file of samples.

#![no_main]

#[path = "../bodies.rs"]
mod bodies;

// The reader catches panics of the Parquet library. The fuzzer's panic hook would abort before
// that. An uncaught panic still ends the process.
libfuzzer_sys::fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |bytes: &[u8]| bodies::parquet(bytes));
