//! Fuzz target: the reader of CIFAR's binary release.

#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::cifar(bytes));
