//! The commands of the program, one a file.
//!
//! In: flags as typed and the world this process belongs to. Out: what each command prints or
//! writes.

pub mod bench;
pub mod doctor;
pub mod eval;
pub mod man;
pub mod netbench;
pub mod predict;
pub mod predict_scaling;
pub mod program;
pub mod report;
pub mod shard;
pub mod train;
pub mod verify;
pub mod verify_run;
