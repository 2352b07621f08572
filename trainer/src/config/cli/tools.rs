//! Flags of `shard`, `watch`, `doctor`, `verify`, `verify-run`, `completions` and `man`.

use super::{ComputeArgs, DataArgs};
use clap::Args;
use clap_complete::aot::Shell;
use std::path::PathBuf;

/// Flags of `trainer shard`.
#[derive(Debug, Clone, Args)]
pub struct ShardArgs {
    /// Folder of images, as --data-dir of --dataset image-folder [required]
    #[arg(long, value_name = "DIR")]
    pub from: PathBuf,

    /// New or empty folder for the shards [required]
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,

    /// Images of one shard [default: 1000]
    #[arg(long, value_name = "IMAGES")]
    pub images_per_shard: Option<usize>,
}

/// Flags of `trainer watch`.
#[derive(Debug, Clone, Args)]
pub struct WatchArgs {
    /// Directory of a run, or the id of a Slurm job of `slurm submit`
    pub run: String,

    /// Print the page once [default: off, until q is pressed]
    #[arg(long)]
    pub once: bool,

    /// End with the run; exit code 3 if it has not finished [default: off]
    #[arg(long, conflicts_with = "once")]
    pub until_end: bool,
}

/// Flags of `trainer doctor`.
#[derive(Debug, Clone, Default, Args)]
pub struct DoctorArgs {
    /// Directory that runs would be written to; it is left unchanged [default: runs]
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,

    /// Longest wait for ranks without progress before all stop, seconds [default: 30]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,

    /// Print one JSON object as the last line [default: off]
    #[arg(long)]
    pub json: bool,

    /// Share of the training images that train would evaluate on [default: none]
    #[arg(long, value_name = "SHARE")]
    pub val_fraction: Option<f64>,

    /// The images.
    #[command(flatten)]
    pub data: DataArgs,
    /// Device and threads.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// Flags of `trainer completions`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Files that shells read:\n\
                  bash  ~/.local/share/bash-completion/completions/trainer\n\
                  zsh   _trainer in a directory of $fpath\n\
                  fish  ~/.config/fish/completions/trainer.fish")]
pub struct CompletionsArgs {
    /// Shell
    pub shell: Shell,
}

/// Flags of `trainer man`.
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Directory for the pages, such as ~/.local/share/man/man1
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// Write one page of Markdown, flags.md, instead [default: off]
    #[arg(long)]
    pub markdown: bool,
}

/// Flags of `trainer verify`.
#[derive(Debug, Clone, Default, Args)]
pub struct VerifyArgs {
    /// Shorter checks: a smaller training, fewer steps [default: off]
    #[arg(long)]
    pub quick: bool,

    /// Checks to make, comma-separated, such as golden,ranks [default: all]
    #[arg(long, value_name = "CHECK,...", value_delimiter = ',')]
    pub only: Option<Vec<String>>,

    /// Folder of the files outside the program; see the book [default: none, checks are skipped]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// File for the result, JSON [default: none]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Device and threads.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// Flags of `trainer verify-run`.
#[derive(Debug, Clone, Default, Args)]
pub struct VerifyRunArgs {
    /// Output directory of the run, finished or stopped
    pub run: PathBuf,

    /// Steps of the first epoch to repeat [default: 20, or the epoch if it is shorter]
    #[arg(long)]
    pub steps: Option<u64>,

    /// Current folder of the images [default: as the run]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}
