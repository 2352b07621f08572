//! Fuzz target: the reading of a shard of samples.

#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::shards(bytes));
