//! Fuzz target: the unpacking of a data set's archive.

#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::archive(bytes));
