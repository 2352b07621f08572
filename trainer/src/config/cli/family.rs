//! The flags of a model family combined with the flags of a command.
//!
//! In: flags. Out: the command's flags, and the model's flags by key. Invariant: a flag that was
//! not typed is absent.

use super::{BenchArgs, EvalArgs, PredictScalingArgs, TrainArgs};
use clap::Args;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use toml::{Table, Value};

/// Flags of a model by key, as in section `[model]` of a TOML file. Only the model's family knows
/// their names.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ModelSection(pub(crate) Table);

impl<'de> Deserialize<'de> for ModelSection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The JSON of a checkpoint has null for absent flags. TOML has no null.
        let keys = BTreeMap::<String, Option<Value>>::deserialize(deserializer)?;
        Ok(Self(
            keys.into_iter()
                .filter_map(|(key, value)| Some((key, value?)))
                .collect(),
        ))
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for ModelSection {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(flags: I) -> Self {
        Self(
            flags
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.into()))
                .collect(),
        )
    }
}

/// The flags of a command `C` and those of a model `A`.
#[derive(Debug, Default, Args)]
#[group(skip)]
pub struct WithModel<A: Args, C: Args> {
    /// The network.
    #[command(flatten, next_help_heading = "Model")]
    pub model: A,
    /// The other flags.
    #[command(flatten, next_help_heading = None::<&'static str>)]
    pub args: C,
}

/// The flags of a command that makes a model.
pub trait TakesModel: Args {
    /// Returns the model section of the flags.
    fn model_mut(&mut self) -> &mut ModelSection;
}

macro_rules! takes_model {
    ($($args:ty),+) => {$(
        impl TakesModel for $args {
            fn model_mut(&mut self) -> &mut ModelSection {
                &mut self.model
            }
        }
    )+};
}

takes_model!(TrainArgs, EvalArgs, BenchArgs, PredictScalingArgs);
