//! `cargo xtask slurm submit`: writes a batch script into the run's directory and submits it.
//!
//! In: what the job needs, the trainer's words. Out: `job.sbatch` and `job-id` in the run's directory, a job in the queue.
//! Invariant: the trainer is built here, once; ranks never build. A directory has one job in the queue, unless the second
//! one depends on another.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use super::request::{FLAGS, Request};
use super::{ask, queue, require, script, target};
use crate::arguments::{Arguments, Command};
use crate::cargo;
use crate::failure::{Failure, Outcome};
use crate::launch;
use crate::mpirun;
use crate::process;
use crate::run_directory;
use crate::setup;

pub(super) const COMMAND: Command = Command {
    name: "slurm submit",
    summary: "Write a batch script into the run's directory and submit it.",
    details: "\
Example: cargo xtask slurm submit --nodes 2 --ntasks-per-node 8 --time 12:00:00 --requeue -- train --dataset cifar10
The run's directory is the trainer's --output-dir, else runs/NAME; it must lie on a file system that all nodes share, as
must the program. `train` gets --resume: the same directory submitted again goes on from its last checkpoint.
With --array every task has a directory of its own, DIR-TASK: --array 0-3 -- train --seed {task}
The other commands of the trainer (bench, eval, …) are started as they are, without --requeue and --restarts.",
    subjects: &[],
    parts: &[],
    object: None,
    flags: &FLAGS,
    passed_on: Some("trainer arguments"),
    run,
};

fn run(arguments: Arguments) -> Outcome {
    let request = Request::read(&arguments)?;
    if arguments.has("--dry-run") {
        let trainer = program(&arguments)?.unwrap_or_else(|| cargo::target_folder().join("release/trainer"));
        print!("{}", script::text(&request, &trainer));
        return Ok(());
    }
    require()?;
    if !arguments.has("--dependency") {
        check_free(&request)?;
    }
    let trainer = match program(&arguments)? {
        Some(program) => program,
        None => launch::build_for_ranks(&setup::run(&arguments)?, request.nodes * request.ntasks_per_node > 1)?,
    };
    let (job, file) = place(&request, &trainer)?;
    println!("{}", report(&request, &job, &file));
    Ok(())
}

/// Writes the script into the run's directory, submits it and notes the job there: its id, and the script.
fn place(request: &Request, trainer: &Path) -> Outcome<(String, PathBuf)> {
    let file = request.job.directory.join(script::FILE);
    run_directory::write(&file, &script::text(request, trainer))?;
    for (_, directory) in request.directories() {
        std::fs::create_dir_all(&directory)
            .map_err(|error| Failure::Failed(format!("cannot make {}: {error}", directory.display())))?;
    }
    let job = submit(&file)?;
    record(&request.job.directory, &job)?;
    for (task, directory) in request.directories() {
        if let Some(task) = task {
            record(&directory, &format!("{job}_{task}"))?;
        }
    }
    Ok((job, file))
}

/// Submits a job with these flags of `slurm submit`, which name the trainer; its files go to the directory. Its id.
pub(crate) fn submit_into(directory: &Path, flags: &[String], trainers_words: &[String]) -> Outcome<String> {
    let words: Vec<String> = [flags, &["--".to_owned()], trainers_words].concat();
    let arguments = COMMAND.parse(&words)?;
    require()?;
    let request = Request::read(&arguments)?.in_directory(directory.to_owned())?;
    let trainer = program(&arguments)?.ok_or_else(|| Failure::Usage("--trainer is missing".to_owned()))?;
    Ok(place(&request, &trainer)?.0)
}

/// The program that is not to be built, if one is named.
fn program(arguments: &Arguments) -> Outcome<Option<PathBuf>> {
    if arguments.has("--container") {
        return Ok(Some(PathBuf::from(arguments.value("--trainer").unwrap_or("trainer"))));
    }
    launch::named_trainer(arguments)
}

/// Refuses a second job in the same directory: both would write the same checkpoints.
fn check_free(request: &Request) -> Outcome {
    let Ok(Some(job)) = target::recorded_job(&request.job.directory) else { return Ok(()) };
    if queue::of_job(&job)?.iter().any(queue::Row::is_in_queue) {
        return Err(Failure::Failed(format!(
            "{}: job {job} of this run is in the queue: wait for it, end it by `cargo xtask slurm cancel {job}`, let the \
             new job come after it by --dependency afterany:{job}, or choose another --name",
            request.job.directory.display()
        )));
    }
    Ok(())
}

fn submit(file: &Path) -> Outcome<String> {
    let mut command = Process::new("sbatch");
    command.arg("--parsable").arg(file);
    // Submitted from within a job, the new one would find counts in its environment that are not its own.
    mpirun::forget_surrounding_job(&mut command);
    for name in ["SLURM_CONF", "SLURM_CLUSTERS"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let shown = format!("sbatch --parsable {}", process::quoted(file));
    let answer = ask(&mut command)?
        .map_err(|complaint| Failure::Failed(format!("`{shown}` refused the job: {complaint}; the script is kept")))?;
    // A federation's sbatch adds the cluster's name.
    let job = answer.trim().split(';').next().unwrap_or_default().to_owned();
    if job.is_empty() || !job.chars().all(|c| c.is_ascii_digit()) {
        return Err(Failure::Failed(format!("`{shown}`: expected a job's id, got `{}`", answer.trim())));
    }
    Ok(job)
}

/// Adds a line to the run's list of jobs.
fn record(directory: &Path, job: &str) -> Outcome {
    let file = directory.join(target::JOBS);
    let written = OpenOptions::new().create(true).append(true).open(&file).and_then(|mut file| writeln!(file, "{job}"));
    written.map_err(|error| Failure::Failed(format!("job {job} is submitted, but {}: {error}", file.display())))
}

fn report(request: &Request, job: &str, file: &Path) -> String {
    let task = match &request.array {
        Some(array) => format!("{job}_{}", array.tasks.first().copied().unwrap_or_default()),
        None => job.to_owned(),
    };
    let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut size =
        format!("{} on {}", counted(request.nodes * request.ntasks_per_node, "rank"), counted(request.nodes, "node"));
    if let Some(array) = &request.array {
        size.push_str(&format!(" for each of {}", counted(array.tasks.len(), "task")));
    }
    format!(
        "job {job} submitted: {}, {size}\n\
         script     {}\n\
         status     cargo xtask slurm status {job}\n\
         output     cargo xtask slurm logs --follow {task}\n\
         stop       cargo xtask slurm cancel {job}",
        request.job.name,
        file.display(),
    )
}
