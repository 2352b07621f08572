//! Lockstep's trainer as a library: a researcher's own model trains by the same path as the program's.
//!
//! In: flags or a TOML file, images, a [`model::family::ModelFamily`]. Out: a trained model, checkpoints, metrics.
//! Invariant: the model never sees a rank, the data set never sees a tensor before its batch, this crate never sees a byte
//! of an image format. Imports point down this list of modules.

#[cfg(feature = "burn-train")]
pub mod burn_loop;

pub mod commands;

pub mod tools;

pub mod run;

pub mod step;

pub mod model;

pub mod world;

pub mod measure;

pub mod config;
