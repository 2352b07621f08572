//! The configuration of `doctor`.
//!
//! In: its flags. Out: plain values. Invariant: nothing is fetched, so that an examination leaves everything as it was.

use super::checks::{at_least, no_effect};
use super::error::ConfigError;
use super::family::Family;
use crate::config::cli::{ComputeArgs, DataArgs, DoctorArgs, TrainSplitArgs};
use std::path::PathBuf;
use std::time::Duration;

/// What `trainer doctor` examines.
#[derive(Debug, Clone, PartialEq)]
pub struct DoctorConfig {
    /// The data set.
    pub data: DataArgs,
    /// Its images to train on.
    pub train_split: TrainSplitArgs,
    /// Device and threads.
    pub compute: ComputeArgs,
    /// Where runs would be written.
    pub output_dir: PathBuf,
    /// Longest wait for another rank.
    pub timeout: Duration,
    /// End with a JSON line.
    pub json: bool,
}

impl DoctorConfig {
    /// Decides the examination.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the option and the remedy.
    pub fn resolve(args: &DoctorArgs) -> Result<Self, ConfigError> {
        if args.data.download == Some(true) {
            return Err(no_effect(
                "--download",
                "with doctor, which fetches nothing",
                "leave it out; train fetches",
            ));
        }
        let (data, train_split) = args.data.clone().decided(TrainSplitArgs::default())?;
        Ok(Self {
            data,
            train_split,
            compute: args.compute.decided(&Family::RESNET)?,
            output_dir: args
                .output_dir
                .clone()
                .unwrap_or_else(|| PathBuf::from("runs")),
            timeout: Duration::from_secs(at_least("--timeout", args.timeout.unwrap_or(30), 1)?),
            json: args.json,
        })
    }
}
