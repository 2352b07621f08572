//! Fuzz target: the reader of PyTorch's weights.

#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::pytorch(bytes));
