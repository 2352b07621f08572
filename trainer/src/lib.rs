//! Lockstep's trainer as a library: a researcher's own model trains by the same path as the program's.
//!
//! In: flags or a TOML file, images, a [`model::family::ModelFamily`]. Out: a trained model, checkpoints, metrics.
//! Invariant: the model never sees a rank, the data set never sees a tensor before its batch, this crate never sees a byte
//! of an image format. Imports point down this list of modules.

pub mod commands;

#[allow(missing_docs, reason = "for this program and its tests alone")]
pub mod tools;

#[allow(missing_docs, reason = "as above")]
pub mod run;

#[allow(missing_docs, reason = "as above")]
pub mod step;

pub mod model;

#[allow(missing_docs, reason = "as above")]
pub mod world;

#[allow(missing_docs, reason = "as above")]
pub mod measure;

pub mod config;
