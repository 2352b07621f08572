//! `trainer slurm`: submits the trainer as a job, reports it, stops it.
//!
//! In: the command line, Slurm's programs. Out: a script in the run's directory, Slurm's answers.
//! Invariant: a refusal by Slurm is shown in its own words. A cluster needs only `sbatch`,
//! `squeue`, `scancel` and `scontrol`.

mod cancel;
mod logs;
mod queue;
mod request;
mod script;
mod status;
mod submit;

use std::process::Command as Process;

use clap::Subcommand;

use crate::failure::{Outcome, failed};
use crate::probe;
use crate::process;

use self::cancel::CancelArgs;
use self::logs::LogsArgs;
pub use self::queue::{QueuedJob, directory_of_run, job, recorded_job};
use self::request::SubmitArgs;
pub(crate) use self::request::TASK;
pub use self::script::output_name;
use self::status::StatusArgs;
pub use self::submit::{check, submit_into};

/// Commands of `trainer slurm`; a job is named by its id or its run's directory.
#[derive(Debug, Clone, Subcommand)]
pub enum SlurmCommand {
    /// Write a batch script into the run's directory and submit it.
    Submit(Box<SubmitArgs>),
    /// Show jobs: state, time, nodes, last epoch.
    Status(StatusArgs),
    /// Print the output of a job, or follow it to the end of the job.
    Logs(LogsArgs),
    /// End a job: with a checkpoint, or at once.
    Cancel(CancelArgs),
}

impl SlurmCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// An unknown job; a refusal by Slurm; files that cannot be read or written.
    pub fn run(&self) -> Outcome {
        match self {
            SlurmCommand::Submit(args) => args.run(),
            SlurmCommand::Status(args) => args.run(),
            SlurmCommand::Logs(args) => args.run(),
            SlurmCommand::Cancel(args) => args.run(),
        }
    }
}

/// Returns a field of `scontrol show job`, while Slurm remembers the job.
pub fn field(job: &str, name: &str) -> Option<String> {
    let text = process::answer("scontrol", &["show", "job", "--oneliner", job])?;
    let start = format!("{name}=");
    text.split_whitespace()
        .find_map(|word| word.strip_prefix(&start))
        .map(str::to_owned)
}

/// Returns whether every node is this machine, so that its processes are visible here.
pub fn nodes_are_this_machine() -> bool {
    let Some(list) = process::answer("sinfo", &["--noheader", "--Node", "--format=%o"]) else {
        return false;
    };
    let own = process::answer("hostname", &[]).unwrap_or_default();
    let is_own = |address: &str| {
        address.starts_with("127.") || address == "localhost" || address == own.trim()
    };
    !list.trim().is_empty() && list.lines().all(|address| is_own(address.trim()))
}

/// Refuses machines without Slurm.
pub fn require() -> Outcome {
    if probe::program("sbatch").is_some() {
        return Ok(());
    }
    Err(failed!(
        "no Slurm here: `sbatch` is not in PATH; log in to a cluster's submit host or load its Slurm module, or start \
         ranks without it by `trainer launch`"
    ))
}

/// Returns the answer of a program of Slurm.
fn answer(program: &str, arguments: &[&str]) -> Outcome<String> {
    process::ask_for(Process::new(program).args(arguments))
}
