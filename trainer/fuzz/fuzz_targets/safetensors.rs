//! Fuzz target: the reader of safetensors.

#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::safetensors(bytes));
