//! `trainer slurm submit`: writes a batch script into the run's directory and submits it.
//!
//! In: resources, the words of a command. Out: `job.sbatch` and `job-id` in the run's directory, a
//! job in the queue.
//! Invariant: ranks run this program, or the named one. A directory has one job in the queue,
//! unless a second job depends on another.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use clap::Parser;

use super::request::{Request, SubmitArgs, TASK};
use super::{queue, require, script};
use crate::failure::{Failure, Outcome, at, failed};
use crate::mpirun;
use crate::options;
use crate::output::{self, say};
use crate::process;
use crate::run_directory;
use crate::words;

impl SubmitArgs {
    pub(super) fn run(&self) -> Outcome {
        let request = Request::read(self)?;
        let trainer = self.program()?;
        for warning in self.warnings(&request, &trainer)? {
            eprintln!("warning: {warning}");
        }
        if self.dry_run {
            return output::result(&script::text(&request, &trainer));
        }
        require()?;
        if self.dependency.is_none() {
            check_free(&request)?;
        }
        let (job, file) = place(&request, &trainer)?;
        say!("{}", report(&request, &job, &file));
        Ok(())
    }

    /// Refuses a command that the trainer would refuse in the job, and returns what looks wrong.
    fn warnings(&self, request: &Request, trainer: &Path) -> Outcome<Vec<String>> {
        let mut warnings = Vec::new();
        let job = &request.job;
        let mut words = job.to_check();
        if let Some(array) = &self.array {
            let first = array.tasks.first().unwrap_or(&0).to_string();
            if !job.words.iter().any(|word| word.contains(TASK)) {
                warnings.push(format!(
                    "--array: all tasks run the same command (expected {TASK} in it, such as --seed {TASK})"
                ));
            }
            words = words
                .iter()
                .map(|word| word.replace(TASK, &first))
                .collect();
        }
        // The program of an image is not here.
        if self.container.is_none() {
            let ranks = self.nodes * self.ntasks_per_node;
            warnings.extend(words::check(trainer, &words, ranks)?);
        }
        Ok(warnings)
    }

    /// Returns the program of the ranks; with an image its path there.
    fn program(&self) -> Outcome<PathBuf> {
        match (&self.container, &self.trainer) {
            (Some(_), None) => Ok(PathBuf::from("trainer")),
            (Some(_), Some(program)) => Ok(program.clone()),
            (None, named) => options::trainer(named.as_deref()),
        }
    }
}

/// Writes the script, submits it and records the job in the run's directory; returns its id and the
/// script.
fn place(request: &Request, trainer: &Path) -> Outcome<(String, PathBuf)> {
    let file = request.job.directory.join(script::FILE);
    let directories = request.directories().into_iter();
    let paths: Vec<PathBuf> = directories.map(|(_, directory)| directory).collect();
    let is_new = |path: &&Path| !path.exists();
    let all = paths.iter().chain([&request.job.directory, &file]);
    let new: BTreeSet<PathBuf> = all
        .flat_map(|path| path.ancestors().take_while(is_new))
        .map(Path::to_owned)
        .collect();
    run_directory::write(&file, &script::text(request, trainer))?;
    for directory in &paths {
        fs::create_dir_all(directory).map_err(at(directory))?;
    }
    let job = submit(&file).inspect_err(|_| {
        // Without a job the script and the empty directories mislead `slurm logs`.
        for path in new.iter().rev() {
            let _ = match path == &file {
                true => fs::remove_file(path),
                false => fs::remove_dir(path),
            };
        }
    })?;
    record(&request.job.directory, &job)?;
    for (task, directory) in request.directories() {
        if let Some(task) = task {
            record(&directory, &format!("{job}_{task}"))?;
        }
    }
    Ok((job, file))
}

/// Submits a job with these flags of `slurm submit`, among them --trainer, into a directory;
/// returns its id.
pub fn submit_into(directory: &Path, flags: &[String], words: &[String]) -> Outcome<String> {
    let args = parsed(flags, words)?;
    require()?;
    let request = Request::read(&args)?.in_directory(directory.to_owned())?;
    Ok(place(&request, &args.program()?)?.0)
}

/// Refuses flags and words that [`submit_into`] would refuse.
pub fn check(flags: &[String], words: &[String]) -> Outcome {
    Request::read(&parsed(flags, words)?).map(drop)
}

fn parsed(flags: &[String], words: &[String]) -> Outcome<SubmitArgs> {
    let line = [&["submit".to_owned()], flags, &["--".to_owned()], words].concat();
    SubmitArgs::try_parse_from(line).map_err(|error| {
        let text = error.to_string();
        Failure::Usage(
            text.lines()
                .next()
                .unwrap_or_default()
                .trim_start_matches("error: ")
                .to_owned(),
        )
    })
}

/// Refuses a second job in the same directory: both would write the same checkpoints.
fn check_free(request: &Request) -> Outcome {
    let Some(job) = queue::recorded_job(&request.job.directory)? else {
        return Ok(());
    };
    if queue::of_job(&job)?
        .iter()
        .any(queue::QueuedJob::is_in_queue)
    {
        return Err(failed!(
            "{}: job {job} of this run is in the queue: wait for it, end it by `trainer slurm cancel {job}`, let the \
             new job come after it by --dependency afterany:{job}, or choose another --name",
            request.job.directory.display()
        ));
    }
    Ok(())
}

fn submit(file: &Path) -> Outcome<String> {
    let mut command = Process::new("sbatch");
    command.arg("--parsable").arg(file);
    // A job submitted from within another would inherit the counts of that one.
    mpirun::forget_surrounding_job(&mut command);
    for name in ["SLURM_CONF", "SLURM_CLUSTERS"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let answer = process::ask(&mut command)?.map_err(|complaint| {
        failed!(
            "`sbatch {}` rejected the job: {complaint}",
            process::quoted(file)
        )
    })?;
    // The sbatch of a federation adds the cluster's name.
    let job = answer
        .trim()
        .split(';')
        .next()
        .unwrap_or_default()
        .to_owned();
    if job.is_empty() || !job.chars().all(|c| c.is_ascii_digit()) {
        return Err(failed!(
            "sbatch: expected a job's id, got `{}`",
            answer.trim()
        ));
    }
    Ok(job)
}

/// Adds a line to the run's list of jobs.
fn record(directory: &Path, job: &str) -> Outcome {
    let file = directory.join(queue::JOBS);
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)
        .and_then(|mut file| writeln!(file, "{job}"));
    written.map_err(|error| failed!("job {job} is submitted, but {}: {error}", file.display()))
}

fn report(request: &Request, job: &str, file: &Path) -> String {
    let args = &request.args;
    let ranks = records::counted(args.nodes * args.ntasks_per_node, "rank");
    let mut size = format!("{ranks} on {}", records::counted(args.nodes, "node"));
    let mut task = job.to_owned();
    if let Some(array) = &args.array {
        let tasks = records::counted(array.tasks.len(), "task");
        size.push_str(&format!(" for each of {tasks}"));
        task.push_str(&format!("_{}", array.tasks.first().unwrap_or(&0)));
    }
    format!(
        "job {job} submitted: {}, {size}\n\
         script     {}\n\
         status     trainer slurm status {job}\n\
         output     trainer slurm logs --follow {task}\n\
         stop       trainer slurm cancel {job}",
        request.job.name,
        file.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_an_unreadable_list_of_jobs_gets_no_second_job() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(queue::JOBS), "12\n\0\0").unwrap();
        let line = format!(
            "--ntasks-per-node 1 -- train --output-dir {}",
            directory.path().display()
        );
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = check_free(&super::super::request::tests::read(&words).unwrap())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("expected a job's id in its last line"),
            "{error}"
        );
    }
}
