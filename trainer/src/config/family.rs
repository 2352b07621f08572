//! The facts of a model family for the configuration: its name, its flags by key, and the general
//! options that it supports.
//!
//! In: the flags of a model as typed or saved. Out: the same flags, filled and checked by the
//! family.
//! Invariant: an option without effect on a model is rejected. A saved section names its family,
//! except for networks of this program.

use super::error::{ConfigError, invalid, no_effect};
use super::file;
use super::options::{self, is_in_vain};
use crate::config::choices::ModelOption;
use crate::config::cli::{
    BenchArgs, EvalArgs, ModelArgs, ModelSection, PredictScalingArgs, TakesModel, TrainArgs,
    WithModel,
};
use clap::{Args, Command, ValueEnum};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use toml::{Table, Value};

/// The key of a saved section that names its family.
const FAMILY: &str = "family";

/// Function that fills and checks the flags of a model, and returns the model's name.
type Decide = fn(Table) -> Result<(Table, String), ConfigError>;

/// A model family as a value, so that configurations are not generic.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Name in checkpoints.
    pub(crate) name: &'static str,
    /// General options that the family supports.
    pub(crate) options: &'static [ModelOption],
    /// True if the options of labelled images apply.
    pub(crate) has_images: bool,
    pub(crate) decide: Decide,
}

impl Family {
    /// The networks of this program. Checkpoints name the family by its first networks.
    pub const BUILT_IN: Self = Self {
        name: "resnet",
        options: ModelOption::ALL,
        has_images: true,
        decide: |flags| decided(flags, ModelArgs::fill, ModelArgs::name),
    };

    /// Rejects flags `A` of a family if one has the name of a general flag, because it would take
    /// the general flag's values. clap itself checks this only with debug assertions.
    ///
    /// # Errors
    /// An error that names the first such flag.
    pub(crate) fn expect_own_names<A: Args>() -> Result<(), ConfigError> {
        let commands = [
            TrainArgs::augment_args,
            EvalArgs::augment_args,
            BenchArgs::augment_args,
            PredictScalingArgs::augment_args,
        ];
        let general: HashSet<String> = commands.into_iter().flat_map(names).collect();
        match names(A::augment_args)
            .into_iter()
            .find(|name| general.contains(name))
        {
            None => Ok(()),
            Some(name) => Err(invalid(
                "ModelFamily::Args",
                "flags that the program has not yet",
                format!("{name}; give it another name"),
            )),
        }
    }

    pub(super) fn is_built_in(&self) -> bool {
        self.name == Self::BUILT_IN.name
    }

    /// Applies the defaults to `section` and rejects unknown flags. Returns the name of the model
    /// for run directories and reports.
    pub(super) fn decide(&self, section: &mut ModelSection) -> Result<String, ConfigError> {
        if let Some(Value::String(family)) = section.0.remove(FAMILY) {
            self.expect("[model] family", &family)?;
        }
        let (flags, name) = (self.decide)(std::mem::take(&mut section.0))?;
        [self.name, &name].into_iter().try_for_each(expect_plain)?;
        section.0 = flags;
        if !self.is_built_in() {
            section.0.insert(FAMILY.to_owned(), self.name.into());
        }
        Ok(name)
    }

    /// Rejects the first option of images that was `typed`, if this family has other data. `plain`:
    /// the decided options of a command without flags.
    pub(super) fn expect_no_image_option(
        &self,
        typed: &impl Serialize,
        plain: &impl Serialize,
    ) -> Result<(), ConfigError> {
        match options::image_option(&file::table(typed)?, &file::table(plain)?) {
            Some(option) if !self.has_images => {
                let because = format!("on the task {}, which has its own data and loss", self.name);
                Err(no_effect(format!("--{option}"), because, "leave it out"))
            }
            _ => Ok(()),
        }
    }

    /// Rejects a model of another family; `source` is the option that names the model.
    pub(super) fn expect(&self, source: &'static str, family: &str) -> Result<(), ConfigError> {
        if family == self.name {
            return Ok(());
        }
        Err(invalid(
            source,
            format!("a run of the model family {}", self.name),
            format!("one of the family {family}, which only a program of that family can build"),
        ))
    }

    /// Rejects the first general option that was `typed` and that this family does not support.
    pub(super) fn expect_effect(
        &self,
        typed: &impl Serialize,
        decided: &impl Serialize,
    ) -> Result<(), ConfigError> {
        let typed = file::table(typed)?;
        let decided = file::table(decided)?;
        for option in ModelOption::value_variants() {
            if is_in_vain(&option.to_string(), &typed, &decided) {
                let flag = match option {
                    ModelOption::Cpu => "--cpu, or LOCKSTEP_CPU,".to_owned(),
                    option => format!("--{option}"),
                };
                let because = format!("on models of the family {}", self.name);
                return Err(no_effect(flag, because, "leave it out"));
            }
        }
        Ok(())
    }
}

/// Returns the flags as typed, then the names of their fields.
fn names(add: fn(Command) -> Command) -> Vec<String> {
    let command = add(Command::new("flags"));
    let flags = command
        .get_arguments()
        .filter_map(|flag| Some(format!("--{}", flag.get_long()?)));
    flags
        .chain(
            command
                .get_arguments()
                .map(|flag| format!("the field {}", flag.get_id())),
        )
        .collect()
}

/// Applies the defaults of `fill` to the flags of a model; returns the flags and the model's name.
pub(crate) fn decided<A: Serialize + DeserializeOwned>(
    flags: Table,
    fill: impl Fn(&mut A) -> Result<(), ConfigError>,
    name: impl Fn(&A) -> String,
) -> Result<(Table, String), ConfigError> {
    let mut args: A = ModelSection(flags).read()?;
    fill(&mut args)?;
    Ok((file::table(&args)?, name(&args)))
}

/// Rejects a name that a directory cannot have.
fn expect_plain(name: &str) -> Result<(), ConfigError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(is_plain) {
        return Err(invalid(
            "name of the model",
            "letters, digits, `-`, `_` and `.`",
            format!("`{name}`"),
        ));
    }
    Ok(())
}

impl ModelSection {
    /// Converts the flags to the flags type of their family.
    ///
    /// # Errors
    /// If the flags belong to another family.
    pub fn read<A: DeserializeOwned>(&self) -> Result<A, ConfigError> {
        let flags = self.0.iter().filter(|(key, _)| *key != FAMILY);
        let flags: Table = flags
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let read = flags.try_into();
        read.map_err(|error: toml::de::Error| file::syntax("[model]", error))
    }

    /// Returns the family of a saved section.
    pub fn family(&self) -> &str {
        self.0
            .get(FAMILY)
            .and_then(Value::as_str)
            .unwrap_or(Family::BUILT_IN.name)
    }

    /// Returns one of the given flags.
    pub(super) fn first_flag(&self) -> Option<String> {
        self.0.keys().next().map(|key| format!("--{key}"))
    }
}

impl<A: Args + Serialize, C: TakesModel> WithModel<A, C> {
    /// Returns the flags of the command, with the model's flags by key.
    ///
    /// # Errors
    /// If a number is too large for TOML.
    pub fn into_args(self) -> Result<C, ConfigError> {
        let Self { model, mut args } = self;
        *args.model_mut() = ModelSection(file::table(&model)?);
        Ok(args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags of a family. Some have the name of a flag of `train`, `eval` or `bench`.
    macro_rules! flags {
        ($name:ident, $field:ident, $long:literal) => {
            #[derive(Args)]
            struct $name {
                #[arg(long)]
                _blocks: Option<usize>,
                #[arg(long = $long)]
                $field: Option<usize>,
            }
        };
    }
    flags!(Own, mine, "mine");
    flags!(OfTrain, mine, "momentum");
    flags!(OfEval, mine, "checkpoint");
    flags!(OfBench, mine, "image-size");
    flags!(OfField, epochs, "mine");

    #[test]
    fn an_own_flag_with_the_name_or_field_of_a_general_one_is_refused_by_name() {
        Family::expect_own_names::<ModelArgs>().unwrap();
        Family::expect_own_names::<Own>().unwrap();
        let text = |refused: Result<(), ConfigError>| refused.unwrap_err().to_string();
        let of_train = text(Family::expect_own_names::<OfTrain>());
        assert_eq!(
            of_train,
            "ModelFamily::Args: expected flags that the program has not yet, got --momentum; give it another name"
        );
        assert!(text(Family::expect_own_names::<OfEval>()).contains("got --checkpoint;"));
        assert!(text(Family::expect_own_names::<OfBench>()).contains("got --image-size;"));
        assert!(text(Family::expect_own_names::<OfField>()).contains("got the field epochs;"));
    }
}
