//! Fuzz target: the reader of checkpoints.

#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::checkpoint(bytes));
