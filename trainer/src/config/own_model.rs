//! A program's own model among the options of a run.
//!
//! In: what the program says of its model, the flags. Out: [`OwnModel`] as part of the configuration.
//! Invariant: an option that would change nothing about this model is refused.

use super::checks::no_effect;
use super::error::ConfigError;
use super::file;
use super::options::{self, Models, OPTIONS};
use crate::config::cli::TrainArgs;
use serde::{Deserialize, Serialize};

/// An option of how a network is made or computed that a program's own model may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelOption {
    /// `--zero-gamma`.
    ZeroGamma,
    /// `--kernels`.
    Kernels,
    /// `--dtype`.
    Dtype,
    /// `--convolution`.
    Convolution,
    /// `--cpu`.
    Cpu,
}

/// A module of the program that trains it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnModel {
    /// What it is called in configurations, checkpoints and the name of the output directory.
    pub name: String,
    /// The options that it takes; all others that only say how a network is made or computed are refused.
    pub takes: Vec<ModelOption>,
}

impl OwnModel {
    /// A model of this name (letters, digits, `-`, `_` and `.`) that takes no option of its own: what else `trainer train` offers
    /// works with any model.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), takes: Vec::new() }
    }

    /// This model, whose maker heeds these options.
    pub fn taking(mut self, options: &[ModelOption]) -> Self {
        self.takes = options.to_vec();
        self
    }
}

impl OwnModel {
    /// Refuses a name that no directory can have, and options without effect on this model.
    pub(super) fn reject_inapplicable_options(&self, args: &TrainArgs) -> Result<(), ConfigError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if self.name.is_empty() || self.name.starts_with('.') || !self.name.bytes().all(is_plain) {
            return Err(ConfigError::Invalid {
                option: "name of the own model",
                expected: "letters, digits, `-`, `_` and `.`".to_owned(),
                got: format!("`{}`", self.name),
            });
        }
        if let Some(name) = args.model.model.as_ref().filter(|name| **name != self.name) {
            return Err(ConfigError::Invalid {
                option: "--model",
                expected: format!("{}, the only model of this program", self.name),
                got: name.clone(),
            });
        }
        for (option, models) in given(args) {
            let has_effect = match models {
                Models::All => true,
                Models::Resnet => false,
                Models::Taking(option) => self.takes.contains(&option),
            };
            if !has_effect {
                return Err(no_effect(option, format!("on the program's own model {}", self.name), "leave it out"));
            }
        }
        Ok(())
    }
}

/// The flags that are given, and the models that each has an effect on.
fn given(args: &TrainArgs) -> impl Iterator<Item = (String, Models)> {
    let table = toml::Table::try_from(args).expect("options are plain values, which TOML has");
    OPTIONS.iter().filter(move |option| file::get(&table, option.key).is_some()).map(|option| {
        let name = match option.key {
            "compute.cpu" => "--cpu, or LOCKSTEP_CPU,".to_owned(),
            key => options::flag(key),
        };
        (name, option.models)
    })
}
