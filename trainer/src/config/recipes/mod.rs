//! Published trainings by name: options as in a TOML file, overridden by all typed options.
//!
//! In: a name. Out: [`TrainArgs`]. Invariant: options of a recipe are printed, saved and changed
//! like ordinary options.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::error::ConfigError;
use super::family::Family;
use super::file;
use crate::config::cli::{ModelSection, TrainArgs};

/// A published training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recipe {
    /// ResNet-18 for CIFAR-10, 200 epochs of SGD: the usual baseline, 93 to 95 %.
    CifarResnet18,
    /// ResNet-50, 90 epochs of SGD: torchvision's first weights, 76.1 %.
    ImagenetResnet50,
    /// ResNet-50, 100 epochs of LAMB at 160 pixels: procedure A3 of Wightman et al. 2021, 78.1 %.
    ImagenetA3,
}

impl Recipe {
    /// Returns the options, without the model if the program has another family.
    pub(super) fn options(self, family: &Family) -> Result<TrainArgs, ConfigError> {
        let text = match self {
            Self::CifarResnet18 => include_str!("cifar-resnet18.toml"),
            Self::ImagenetResnet50 => include_str!("imagenet-resnet50.toml"),
            Self::ImagenetA3 => include_str!("imagenet-a3.toml"),
        };
        let mut options = file::parse(text, "the recipe")?;
        if !family.is_built_in() {
            options.model = ModelSection::default();
        }
        Ok(options)
    }
}
