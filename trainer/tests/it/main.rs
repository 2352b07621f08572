//! All tests of the trainer except those of the fuzz corpus. One program links the tensor library
//! once.

#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

mod book;
#[cfg(feature = "wgpu")]
mod captured;
mod careless_model;
mod cli;
mod doctor;
mod ema;
mod equivalence;
mod evaluation;
mod fixture;
mod gradient_noise;
mod input;
mod interruptions;
mod jobs;
mod loss_scale;
mod netbench;
mod networks;
mod non_finite;
mod optimizers;
mod own_loop;
mod own_model;
mod own_parts;
mod panics;
mod predict_scaling;
mod program;
mod report;
mod resuming;
mod runs;
mod same_bits;
mod scaled_on_device;
mod sessions;
mod shards;
mod signals;
mod splits;
mod stepper_under_test;
mod streaming;
mod synchronisation;
mod task_programs;
mod tasks;
mod tensorboard;
mod update_on_device;
mod verify;
mod verify_run;
