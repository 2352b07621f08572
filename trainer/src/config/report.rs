//! The configuration of `report`.
//!
//! In: its flags. Out: a [`Request`]. Invariant: there is something to report on; the target is a share.

use super::checks::in_range;
use super::error::ConfigError;
use crate::config::cli::ReportArgs;
use report::Request;
use std::path::PathBuf;

/// What these flags ask for.
///
/// # Errors
/// A [`ConfigError`] naming the option and the remedy.
pub fn report_request(args: &ReportArgs) -> Result<Request, ConfigError> {
    let expected = || "above 0 and at most 1, as 0.8 for 80 %".to_owned();
    let target = args.target_accuracy.map(|target| {
        in_range("--target-accuracy", target, expected(), |target| {
            target > 0.0 && target <= 1.0
        })
    });
    Ok(Request {
        inputs: args.inputs.clone(),
        output: args
            .output
            .clone()
            .unwrap_or_else(|| PathBuf::from("report")),
        title: args.title.clone(),
        target_accuracy: target.transpose()?,
    })
}
