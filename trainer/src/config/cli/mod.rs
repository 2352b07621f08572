//! The command line as typed: every flag is an `Option`, and no default is applied.
//!
//! In: the program's arguments. Out: [`CommandOf`] a model family. Invariant: a flag that was not
//! typed is `None`, so [`crate::config`] can reject a typed option without effect.

#![allow(
    rustdoc::invalid_html_tags,
    rustdoc::broken_intra_doc_links,
    reason = "the comments here are texts of --help"
)]

mod family;
mod habits;
mod help;
mod optimizer;
mod predict_scaling;
mod sections;
mod sync;
mod tools;

pub use family::{ModelSection, TakesModel, WithModel};
pub use optimizer::OptimizerArgs;
pub use predict_scaling::PredictScalingArgs;
pub use sections::{
    BatchArgs, ComputeArgs, DataArgs, ModelArgs, RunArgs, ScheduleArgs, TrainArgs, TrainSplitArgs,
};
pub use sync::SyncArgs;
pub use tools::{
    CompletionsArgs, DoctorArgs, ManArgs, ShardArgs, VerifyArgs, VerifyRunArgs, WatchArgs,
};

use crate::config::choices::{BatchNormKind, Split};
use crate::config::options::OF_IMAGES;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use cluster::{HostsCommand, LaunchArgs, SlurmCommand};
use netbench::NetbenchArgs;
use serde::Serialize;
use std::path::{Path, PathBuf};
use study::{CompareArgs, StudyArgs};

/// Environment variable that replaces `--cpu`.
pub(super) const CPU_VARIABLE: &str = "LOCKSTEP_CPU";

/// Returns an environment variable: a debugging switch, or a variable of another program.
pub fn environment(variable: &str) -> Option<String> {
    std::env::var(variable).ok()
}

/// Trains neural networks on one process or many.
#[derive(Debug, Parser)]
#[command(
    name = "trainer",
    version = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("LOCKSTEP_COMMIT"), ")"),
    after_help = "Without a command the program runs `train` with its defaults: a small\n\
                  network on drawn shapes. Several ranks: `launch`, `slurm submit`, mpirun or\n\
                  srun; the world size is the number of tasks."
)]
pub struct CliOf<A: Args> {
    #[command(subcommand)]
    command: Option<CommandOf<A>>,
}

/// Command line of the program for its own networks.
pub type Cli = CliOf<ModelArgs>;

impl<A: Args + Default> CliOf<A> {
    /// Returns the definitions of commands and flags, with the name of the started program. Help
    /// shows those of images only if the program `has_images`.
    pub fn definitions(has_images: bool) -> clap::Command {
        // Accept negative numbers, so that the range check of the option reports them.
        let with_numbers = |argument: Arg| {
            let takes_values = argument.get_action().takes_values();
            let is_of_images = argument
                .get_long()
                .is_some_and(|long| OF_IMAGES.contains(&long));
            let is_hidden = argument.is_hide_set() || is_of_images && !has_images;
            argument
                .allow_negative_numbers(takes_values)
                .hide(is_hidden)
        };
        let of_images = |name: &str| ["predict", "shard"].contains(&name);
        let definitions = Self::command().mut_subcommands(|command| {
            let is_hidden = command.is_hide_set() || of_images(command.get_name()) && !has_images;
            command.mut_args(with_numbers).hide(is_hidden)
        });
        let program = std::env::args_os().next().unwrap_or_default();
        help::grouped(match Path::new(&program).file_name() {
            // clap requires a name with a static lifetime.
            Some(name) => definitions.name(&*name.to_string_lossy().into_owned().leak()),
            None => definitions,
        })
    }

    /// Returns the typed flags. Exits after `--help`, `--version` or an error.
    pub fn typed(has_images: bool) -> Self {
        let mut definitions = Self::definitions(has_images);
        let mut own_words = std::env::args_os().take_while(|word| word != "--");
        if own_words.any(|word| word == "-h") {
            definitions = help::short(definitions, has_images);
        }
        if environment(CPU_VARIABLE).is_some_and(|value| value.is_empty()) {
            let without = |flag: Arg| {
                if flag.get_id() == "cpu" {
                    flag.env(None::<&str>)
                } else {
                    flag
                }
            };
            definitions = definitions.mut_subcommands(|command| command.mut_args(without));
        }
        let matches = definitions.clone().try_get_matches();
        let matches = matches.unwrap_or_else(|error| {
            let error = habits::explained(naming_variable(error), &definitions);
            with_general_usage(error, &definitions).exit()
        });
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Returns the command; without a command, `train` with its defaults.
    pub fn into_command(self) -> CommandOf<A> {
        self.command
            .unwrap_or_else(|| CommandOf::Train(Box::default()))
    }
}

/// Adds the variable to an error about `--cpu`, because the variable may have set the value.
fn naming_variable(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
        && flag.starts_with("--cpu ")
    {
        let named = format!("{flag}, or {CPU_VARIABLE}");
        error.insert(ContextKind::InvalidArg, ContextValue::String(named));
    }
    error
}

/// Replaces clap's usage line, which repeats the typed flags, with the usage of the command.
fn with_general_usage(mut error: clap::Error, definitions: &clap::Command) -> clap::Error {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else {
        return error;
    };
    let usage = usage.to_string();
    // The line begins with "Usage:" and the name of the program.
    let mut words = usage.split_whitespace().skip(2);
    let mut command = definitions.clone();
    command.build();
    while let Some(next) = words
        .next()
        .and_then(|word| command.find_subcommand(word).cloned())
    {
        command = next;
    }
    let usage = ContextValue::StyledStr(command.render_usage());
    error.insert(ContextKind::Usage, usage);
    error
}

/// Command of the program for its own networks.
pub type Command = CommandOf<ModelArgs>;

/// Commands of a program whose models have the flags `A`.
#[derive(Debug, Subcommand)]
pub enum CommandOf<A: Args> {
    /// Train a model.
    Train(Box<WithModel<A, TrainArgs>>),
    /// Measure loss and accuracy of weights or a checkpoint.
    Eval(Box<WithModel<A, EvalArgs>>),
    /// Name the classes of image files.
    Predict(PredictArgs),
    /// Measure the speed of training steps on random pixels.
    Bench(Box<WithModel<A, BenchArgs>>),
    /// Print the configuration of `train` as TOML for --config.
    Config(Box<WithModel<A, TrainArgs>>),
    /// Check ranks, CPUs, network, data and disk of a job.
    ///
    /// Exit code 1 on a failure.
    Doctor(Box<DoctorArgs>),
    /// Compare a device with the reference in numbers and training.
    ///
    /// Also checks checkpoints and memory.
    Verify(Box<VerifyArgs>),
    /// Repeat the first steps of a run and compare the bits.
    ///
    /// Exit code 3 if they differ.
    VerifyRun(VerifyRunArgs),
    /// Measure latency, bandwidth and collectives of the ranks.
    Netbench(NetbenchArgs),
    /// Predict the speed of thousands of ranks from one step.
    PredictScaling(Box<WithModel<A, PredictScalingArgs>>),
    /// Write a page with figures and tables of runs and studies.
    ///
    /// Also of predictions, networks and traces.
    Report(report::Request),
    /// Show a run live: curves, speed, time left, warnings.
    Watch(WatchArgs),
    /// Write a folder of images as tar shards, for --dataset shards.
    Shard(ShardArgs),
    /// Start N ranks with mpirun, and restart them after failures.
    Launch(LaunchArgs),
    /// Submit a command to Slurm; show, read or stop its jobs.
    #[command(subcommand)]
    Slurm(SlurmCommand),
    /// Run a study: a matrix of runs, repeated on a quiet machine.
    Study(Box<StudyArgs>),
    /// Compare the same job in Lockstep and in other frameworks.
    Compare(Box<CompareArgs>),
    /// Emulate hosts with a rate-limited network; needs root.
    #[command(subcommand)]
    Hosts(HostsCommand),
    /// Print the completions of a shell.
    Completions(CompletionsArgs),
    /// Write man pages, or one Markdown page of all flags.
    Man(ManArgs),
}

/// Flags of `trainer eval`. Ranks compare all flags that serde does not skip.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct EvalArgs {
    /// Weights to measure, with --model and --dataset [default: none; this or --checkpoint]
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub weights: Option<PathBuf>,

    /// Directory of a run or of a checkpoint to measure [default: none; this or --weights]
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    pub checkpoint: Option<PathBuf>,

    /// Split to measure [default: test, else val]
    #[arg(long, conflicts_with = "eval_split")]
    pub split: Option<Split>,

    /// Samples of one rank in one forward pass [default: 128]
    #[arg(long, value_name = "SAMPLES")]
    pub batch_size_per_rank: Option<usize>,

    /// Match labels to the classes of --checkpoint by position, not by name [default: off]
    #[arg(long)]
    pub allow_changed_classes: bool,

    /// Longest wait for ranks without progress before all stop, seconds [default: 120]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,

    /// Print one JSON object as the last line [default: off]
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,

    /// The network.
    #[arg(skip)]
    pub model: ModelSection,
    /// The images.
    #[command(flatten)]
    pub data: DataArgs,
    /// Device and threads.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// Flags of `trainer predict`.
#[derive(Debug, Clone, Args)]
pub struct PredictArgs {
    /// Directory of the trained model: a run or a checkpoint [required]
    #[arg(long, value_name = "DIR")]
    pub checkpoint: PathBuf,

    /// Image files (JPEG, PNG, GIF, TIFF, BMP, WebP, PPM, PGM), or folders of them
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,

    /// Classes to print for each image, likeliest first [default: 5]
    #[arg(
        long,
        value_name = "CLASSES",
        default_value_t = 5,
        hide_default_value = true
    )]
    pub top: usize,

    /// Print one JSON object as the last line [default: off]
    #[arg(long)]
    pub json: bool,

    /// Device and threads.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// Flags of `trainer bench`. Ranks compare all flags that serde does not skip.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct BenchArgs {
    /// Samples of one rank in one pass [default: 128]
    #[arg(long, value_name = "SAMPLES")]
    pub batch_size_per_rank: Option<usize>,

    /// Forward and backward passes accumulated in a step [default: 1]
    #[arg(long, value_name = "PASSES")]
    pub grad_accum_steps: Option<usize>,

    /// Measured steps [default: 20]
    #[arg(long)]
    pub steps: Option<usize>,

    /// Steps before the measured ones [default: 3; on a GPU 5]
    #[arg(long, value_name = "STEPS")]
    pub warmup_steps: Option<usize>,

    /// Height and width of the images, pixels [default: 32]
    #[arg(long, value_name = "PIXELS")]
    pub image_size: Option<usize>,

    /// Number of classes [default: 10]
    #[arg(long, value_name = "CLASSES")]
    pub num_classes: Option<usize>,

    /// Samples of the batch statistics [default: local]
    #[arg(long, value_name = "KIND")]
    pub batch_norm: Option<BatchNormKind>,

    /// Network to predict more ranks for: ib-edr, 50us,113MB/s or a netbench .json [default: none]
    #[arg(long, value_name = "NETWORK")]
    #[serde(skip)]
    pub simulate_network: Option<String>,

    /// Numbers of ranks to simulate, comma-separated [default: 2,4,8,16,32,64,128,256,512,1024]
    #[arg(long, value_name = "RANKS", value_delimiter = ',')]
    #[serde(skip)]
    pub simulate_ranks: Option<Vec<usize>>,

    /// File for the measured step, which predict-scaling --profile reads [default: none]
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub profile_output: Option<PathBuf>,

    /// Seed of the weights and pixels [default: 0]
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub seed: Option<u64>,

    /// Print one JSON object as the last line [default: off]
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,

    /// Directory for the same job in files of other frameworks [default: none]
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    pub export_job: Option<PathBuf>,

    /// The network.
    #[arg(skip)]
    pub model: ModelSection,
    /// Synchronisation of the ranks.
    #[command(flatten)]
    pub sync: SyncArgs,
    /// Device and threads.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// Returns the flags `A` of a command line.
#[cfg(test)]
pub(super) fn typed<A: Args>(words: &str) -> A {
    let words = std::iter::once("test").chain(words.split_whitespace());
    let command = A::augment_args(clap::Command::new("test"));
    let matches = command.try_get_matches_from(words).unwrap();
    A::from_arg_matches(&matches).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_the_usage_of_its_command_without_the_typed_flags() {
        let definitions = Cli::command().name("trainer");
        let words = ["trainer", "train", "--epochs", "2", "--steps"];
        let error = definitions.clone().try_get_matches_from(words).unwrap_err();
        let text = with_general_usage(error, &definitions).to_string();
        assert!(text.contains("Usage: trainer train [OPTIONS]\n"), "{text}");
    }
}
