//! `trainer slurm logs`: prints the output of a job, or follows it.
//!
//! In: a job's id or a run's directory. Out: the output file on standard output; remarks on
//! standard error.
//! Invariant: following ends when the job has left the queue: a requeued job continues in the same
//! file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use clap::Args;

use super::queue::NamedJob;
use super::{queue, require, script};
use crate::failure::{Outcome, at, failed, usage};
use crate::output::say;

/// Flags of `trainer slurm logs`.
#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// Id of the job, or the run's directory.
    #[arg(value_name = "JOB|DIR")]
    job: String,

    /// Follow until the job has left the queue, also through a requeue [default: off]
    #[arg(long)]
    follow: bool,
}

/// Interval of the looks at the file.
const PAUSE: Duration = Duration::from_millis(500);
/// Looks at the file for one look at the queue, which all users share.
const LOOKS: usize = 6;
/// Consecutive failures of the queue, and ends that may turn out to be a requeue.
const NUM_FAILURES: usize = 20;
const NUM_ENDS: usize = 2;

/// Output of a job.
#[derive(Debug, PartialEq)]
struct Output {
    job: String,
    file: PathBuf,
}

impl LogsArgs {
    pub(super) fn run(&self) -> Outcome {
        let target = NamedJob::read(&self.job)?;
        let outputs = outputs(&target)?;
        if !self.follow {
            return print(&outputs);
        }
        require()?;
        match &outputs[..] {
            [output] => follow(output),
            several => {
                let jobs: Vec<&str> = several.iter().map(|output| output.job.as_str()).collect();
                Err(usage!(
                    "job {} has several tasks, follow one of: {}",
                    target.job,
                    jobs.join(", ")
                ))
            }
        }
    }
}

/// Prints the present output; of several tasks each under its name.
fn print(outputs: &[Output]) -> Outcome {
    for output in outputs {
        if outputs.len() > 1 {
            say!("==> {} <==", output.file.display());
        }
        if output.file.exists() {
            if copy_from(&output.file, 0, &mut io::stdout())?.is_none() {
                return Ok(());
            }
        } else if outputs.len() == 1 {
            return Err(failed!(
                "job {} has written nothing yet: {} does not exist; see `trainer slurm status {}`",
                output.job,
                output.file.display(),
                output.job
            ));
        }
    }
    Ok(())
}

/// Returns the output of the job, or of every task of an array.
fn outputs(target: &NamedJob) -> Outcome<Vec<Output>> {
    let output = |job: &str, directory: &Path| Output {
        job: job.to_owned(),
        file: directory.join(script::output_name(job)),
    };
    if let Some(directory) = &target.directory {
        let mut outputs = Vec::new();
        for (task, folder) in tasks(directory) {
            outputs.push(output(&format!("{}_{task}", target.job), &folder));
        }
        outputs.retain(|output| output.file.exists());
        if outputs.is_empty() {
            outputs.push(output(&target.job, directory));
        }
        return Ok(outputs);
    }
    require()?;
    let rows = queue::of_job(&target.job)?;
    if rows.is_empty() {
        return Err(target.unknown());
    }
    let mut outputs = Vec::new();
    for row in &rows {
        let directory = row.directory.as_deref().ok_or_else(|| {
            failed!(
                "job {0} was not submitted by `trainer slurm submit`: see StdOut in `scontrol show job {0}`",
                row.job
            )
        })?;
        outputs.push(output(&row.job, directory));
    }
    Ok(outputs)
}

/// Returns the directories of an array's tasks, next to the array's, by their number.
fn tasks(directory: &Path) -> BTreeMap<usize, PathBuf> {
    let directory = std::path::absolute(directory).unwrap_or_default();
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let siblings = directory
        .parent()
        .and_then(|parent| fs::read_dir(parent).ok());
    let siblings = siblings.into_iter().flatten().flatten();
    let task = |entry: fs::DirEntry| {
        let sibling = entry.file_name();
        let task = sibling.to_str()?.strip_prefix(&*name)?.strip_prefix('-')?;
        Some((task.parse().ok()?, entry.path()))
    };
    siblings.filter_map(task).collect()
}

fn follow(output: &Output) -> Outcome {
    let mut position = 0;
    let mut shown = String::new();
    let mut failures = 0;
    let mut ends = 0;
    loop {
        match queue::of_job(&output.job) {
            Ok(rows) => {
                failures = 0;
                let row = rows.first();
                let state = row.map_or(
                    "has left the queue".to_owned(),
                    queue::QueuedJob::explained_state,
                );
                let is_over = row.is_none_or(|row| !row.is_in_queue());
                ends = if is_over { ends + 1 } else { 0 };
                if state != shown && (ends == 0 || ends == NUM_ENDS) {
                    eprintln!("[job {}: {state}]", output.job);
                    shown = state;
                }
            }
            // A controller may be busy.
            Err(failure) => {
                failures += 1;
                if failures == NUM_FAILURES {
                    return Err(failure);
                }
            }
        }
        for _ in 0..LOOKS {
            if output.file.exists() {
                let Some(end) = copy_from(&output.file, position, &mut io::stdout())? else {
                    return Ok(());
                };
                position = end;
            }
            if ends == NUM_ENDS {
                return Ok(());
            }
            sleep(PAUSE);
        }
    }
}

/// Copies the file from a position and returns its end; `None` if the reader has left.
fn copy_from(file: &Path, position: u64, out: &mut impl Write) -> Outcome<Option<u64>> {
    let mut source = File::open(file).map_err(at(file))?;
    source.seek(SeekFrom::Start(position)).map_err(at(file))?;
    match io::copy(&mut source, out).and_then(|length| out.flush().map(|()| length)) {
        Ok(length) => Ok(Some(position + length)),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        Err(error) => Err(at(file)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrays_directory_leads_to_the_files_of_its_tasks() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("night");
        for name in ["night", "night-0", "night-10", "night-2", "night-x"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        for (name, file) in [
            ("night-10", "slurm-12_10.out"),
            ("night-2", "slurm-12_2.out"),
            ("night-0", "slurm-11_0.out"),
        ] {
            fs::write(folder.path().join(name).join(file), "x").unwrap();
        }
        let target = |job: &str| NamedJob {
            job: job.to_owned(),
            directory: Some(run.clone()),
        };
        let jobs = |job| {
            outputs(&target(job))
                .unwrap()
                .into_iter()
                .map(|output| output.job)
                .collect::<Vec<_>>()
        };
        assert_eq!(jobs("12"), ["12_2", "12_10"]);
        let single = outputs(&target("13")).unwrap();
        assert_eq!(
            single,
            [Output {
                job: "13".to_owned(),
                file: run.join("slurm-13.out")
            }]
        );
    }

    #[test]
    fn copying_continues_at_its_end_and_ends_when_the_reader_has_left() {
        let file =
            std::env::temp_dir().join(format!("lockstep-jobs-{}-output", std::process::id()));
        fs::write(&file, "ab").unwrap();
        let mut seen = Vec::new();
        assert_eq!(copy_from(&file, 0, &mut seen).unwrap(), Some(2));
        fs::write(&file, "abcd").unwrap();
        assert_eq!(copy_from(&file, 2, &mut seen).unwrap(), Some(4));
        let (reader, mut left) = io::pipe().unwrap();
        drop(reader);
        assert_eq!(copy_from(&file, 0, &mut left).unwrap(), None);
        assert_eq!(seen, b"abcd");
        fs::remove_file(file).unwrap();
    }
}
