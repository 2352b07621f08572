//! Lockstep's trainer as a library, for programs with custom models.
//!
//! In: flags or a TOML file, data, a [`task::Task`] or, for images, a
//! [`model::family::ModelFamily`]. Out: a trained model, checkpoints, metrics.
//! Invariant: the model does not depend on ranks, the data set does not depend on tensors before
//! its batch, and this crate does not read image formats. A module imports only modules further
//! down this list.

pub mod commands;

#[allow(missing_docs, reason = "only for this program and its tests")]
pub mod tools;

pub mod own_loop;

#[allow(missing_docs, reason = "as above")]
pub mod run;

#[allow(missing_docs, reason = "as above")]
pub mod step;

pub mod task;

pub mod model;

#[allow(missing_docs, reason = "as above")]
pub mod world;

#[allow(missing_docs, reason = "as above")]
pub mod measure;

pub mod config;
