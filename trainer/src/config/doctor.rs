//! The configuration of `doctor`.
//!
//! In: its flags. Out: plain values. Invariant: nothing is fetched, so that an examination leaves everything as it was.

use super::data;
use super::error::ConfigError;
use super::parts::{ComputeConfig, DataConfig};
use super::resolve::{at_least, compute, no_effect};
use crate::cli::{DoctorArgs, TrainSplitArgs};
use std::path::PathBuf;
use std::time::Duration;

/// What `trainer doctor` examines.
#[derive(Debug, Clone, PartialEq)]
pub struct DoctorConfig {
    /// The data set.
    pub data: DataConfig,
    /// Device and threads.
    pub compute: ComputeConfig,
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
            return Err(no_effect("--download", "with doctor, which fetches nothing", "leave it out; train fetches"));
        }
        Ok(Self {
            data: data::data(&args.data, &TrainSplitArgs::default())?,
            compute: compute(&args.compute)?,
            output_dir: args.output_dir.clone().unwrap_or_else(|| PathBuf::from("runs")),
            timeout: Duration::from_secs(at_least("--timeout", args.timeout.unwrap_or(30), 1)?),
            json: args.json,
        })
    }
}
