//! A program's own model among the options of a run.
//!
//! In: what the program says of its model, the flags. Out: [`OwnModel`] as part of the configuration.
//! Invariant: an option that would change nothing about this model is refused.

use super::error::ConfigError;
use super::file;
use super::options::{self, Models, OPTIONS};
use super::parts::ModelConfig;
use super::resolve::no_effect;
use crate::cli::TrainArgs;
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

/// The network of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ModelChoice {
    /// One of this program's residual networks.
    Resnet(ModelConfig),
    /// A module that this program does not know.
    Own(OwnModel),
}

impl ModelChoice {
    /// Name such as `resnet20`.
    pub fn name(&self) -> String {
        match self {
            Self::Resnet(config) => config.name(),
            Self::Own(own) => own.name.clone(),
        }
    }

    /// Whether the option has an effect on this model.
    pub fn takes(&self, option: ModelOption) -> bool {
        match self {
            Self::Resnet(_) => true,
            Self::Own(own) => own.takes.contains(&option),
        }
    }

    /// The residual network, for a program that knows no other.
    ///
    /// # Errors
    /// When the run is one of a program's own model.
    pub fn resnet(&self) -> Result<&ModelConfig, ConfigError> {
        match self {
            Self::Resnet(config) => Ok(config),
            Self::Own(own) => Err(ConfigError::Invalid {
                option: "--checkpoint",
                expected: "a run of a residual network such as resnet20".to_owned(),
                got: format!("one of the model {}, which only the program that trained it can build", own.name),
            }),
        }
    }
}

/// The program's own model, with the flags that concern models.
pub(super) fn own_model(own: &OwnModel, args: &TrainArgs) -> Result<ModelChoice, ConfigError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if own.name.is_empty() || own.name.starts_with('.') || !own.name.bytes().all(is_plain) {
        return Err(ConfigError::Invalid {
            option: "name of the own model",
            expected: "letters, digits, `-`, `_` and `.`".to_owned(),
            got: format!("`{}`", own.name),
        });
    }
    if let Some(name) = args.model.model.as_ref().filter(|name| **name != own.name) {
        return Err(ConfigError::Invalid {
            option: "--model",
            expected: format!("{}, the only model of this program", own.name),
            got: name.clone(),
        });
    }
    for (option, models) in given(args) {
        let has_effect = match models {
            Models::All => true,
            Models::Resnet => false,
            Models::Taking(option) => own.takes.contains(&option),
        };
        if !has_effect {
            return Err(no_effect(option, format!("on the program's own model {}", own.name), "leave it out"));
        }
    }
    Ok(ModelChoice::Own(own.clone()))
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
