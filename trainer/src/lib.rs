//! Lockstep's trainer as a library: a researcher's own model trains by the same path as the program's.
//!
//! In: flags or a TOML file, images, an [`model::ImageClassifier`]. Out: a trained model, checkpoints, metrics.
//! Invariant: the model never sees a rank, the data set never sees a tensor before its batch, this crate never sees a byte
//! of an image format. Imports point down this list of modules.

pub mod launch;

pub mod commands;
pub mod verify;

pub mod train;

pub mod bench;
pub mod evaluate;
pub mod keeper;
pub mod saved_model;
pub mod step;

pub mod session;

pub mod resumption;

pub mod doctor;
pub mod job;
pub mod netbench;
pub mod predict_scaling;
pub mod simulation;

pub mod checkpoint;
pub mod data;
pub mod device_kernels;
pub mod identity;
pub mod input;
pub mod network;
pub mod norm_reducer;
pub mod optimizer;
pub mod ranks;
pub mod readback;
pub mod roles;
pub mod schedule;
pub mod stop;
pub mod sync_plan;
pub mod trace;

pub mod records;
pub mod report;

pub mod output;

pub mod lock;

pub mod gather;
pub mod manifest;

pub mod clock_offset;
pub mod model;
pub mod process_memory;
pub mod timer;

pub mod metrics;

pub mod config;

pub mod cli;

pub mod loss_scale;

pub mod choices;

#[cfg(feature = "kernel-cache")]
pub mod kernel_cache;
