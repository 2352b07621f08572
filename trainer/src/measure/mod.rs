//! Measurements and messages of a run: times, sums, traces, console, log.

pub mod clock_offset;
pub mod energy;
pub mod event_file;
pub mod gather;
pub mod manifest;
pub mod metrics;
pub mod process_memory;
pub mod report;
pub mod timer;
pub mod trace;
