//! The configuration of `verify`.
//!
//! In: its flags. Out: plain values. Invariant: a check that there is not is refused before any is made.

use super::checks::invalid;
use super::commands::file_name;
use super::error::ConfigError;
use super::family::Family;
use crate::config::cli::{ComputeArgs, VerifyArgs};
use std::path::PathBuf;

/// What `trainer verify` checks.
#[derive(Debug, Clone, PartialEq)]
pub struct VerifyConfig {
    /// Shorter checks.
    pub quick: bool,
    /// The checks to make; `None` is all.
    pub only: Option<Vec<String>>,
    /// Where the files outside the program are.
    pub data_dir: Option<PathBuf>,
    /// File of the result.
    pub output: Option<PathBuf>,
    /// Device and threads.
    pub compute: ComputeArgs,
}

impl VerifyConfig {
    /// Decides the verification; `names` are those of the checks that there are.
    ///
    /// # Errors
    /// A [`ConfigError`] naming the option and the remedy.
    pub fn resolve(args: &VerifyArgs, names: &[&str]) -> Result<Self, ConfigError> {
        let unknown = args
            .only
            .iter()
            .flatten()
            .find(|name| !names.contains(&name.as_str()));
        if let Some(unknown) = unknown {
            let expected = format!("some of {}", names.join(","));
            return Err(invalid("--only", expected, unknown.clone()));
        }
        if let Some(folder) = args.data_dir.as_ref().filter(|folder| !folder.is_dir()) {
            let (expected, got) = ("a folder".to_owned(), folder.display().to_string());
            return Err(invalid("--data-dir", expected, got));
        }
        Ok(Self {
            quick: args.quick,
            only: args.only.clone(),
            data_dir: args.data_dir.clone(),
            output: args
                .output
                .clone()
                .map(|path| file_name("--output", path))
                .transpose()?,
            compute: args.compute.decided(&Family::RESNET)?,
        })
    }
}
