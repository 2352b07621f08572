//! What a run tells of itself: times, sums, traces, messages.

pub mod clock_offset;
pub mod energy;
pub mod event_file;
pub mod gather;
pub mod held_file;
pub mod manifest;
pub mod metrics;
pub mod process_memory;
pub mod report;
pub mod timer;
pub mod trace;
pub mod whole_file;
