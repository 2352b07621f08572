//! The resources of a job.
//!
//! In: the flags of `slurm submit`, the words of a command. Out: [`Request`].
//! Invariant: every value fits on one line of the script, and every flag has an effect.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};

use clap::Parser;

use crate::failure::{Outcome, failed, usage};
use crate::options;
use crate::run_directory::PlacedCommand;

const DEFAULT_WARN_S: usize = 120;
/// Slurm checks time limits once a minute.
const EARLY_S: usize = 60;
/// Maximum of sbatch.
const MOST_WARN_S: usize = 65535;

const DETAILS: &str = "\
Example: trainer slurm submit --nodes 2 --ntasks-per-node 8 --requeue -- train
The run's directory is --output-dir of `train`, also that of its --config, else runs/NAME; it must lie on a file system that \
all nodes share, as must the program. `train` gets --resume: the same directory submitted again resumes from its last checkpoint.
With --array every task has its own directory, DIR-TASK: --array 0-3 -- train --seed {task}
The other commands (bench, eval, …) are started as they are, without --requeue and --restarts.";

/// Flags of `trainer slurm submit`.
#[derive(Debug, Clone, Parser)]
#[command(after_help = DETAILS)]
pub struct SubmitArgs {
    /// Nodes [default: 1]
    #[arg(long, value_name = "N", value_parser = options::count, default_value_t = 1, hide_default_value = true)]
    pub(super) nodes: usize,

    /// Ranks on each node [required]
    #[arg(long, value_name = "N", value_parser = options::count)]
    pub(super) ntasks_per_node: usize,

    /// Cores of each rank [default: Slurm's own]
    #[arg(long, value_name = "N", value_parser = options::count)]
    pub(super) cpus_per_task: Option<usize>,

    /// GPUs of each rank [default: none]
    #[arg(long, value_name = "N", value_parser = one_word)]
    pub(super) gpus_per_task: Option<String>,

    /// Memory of each node, such as 32G [default: Slurm's own]
    #[arg(long, value_name = "M", value_parser = one_word)]
    pub(super) mem: Option<String>,

    /// Time limit, also MINUTES or DAYS-HH:MM:SS [default: Slurm's own]
    #[arg(long, value_name = "HH:MM:SS", value_parser = one_word)]
    pub(super) time: Option<String>,

    /// Partition [default: Slurm's own]
    #[arg(long, value_name = "P", value_parser = one_word)]
    pub(super) partition: Option<String>,

    /// Account to charge [default: Slurm's own]
    #[arg(long, value_name = "A", value_parser = one_word)]
    pub(super) account: Option<String>,

    /// Quality of service [default: Slurm's own]
    #[arg(long, value_name = "Q", value_parser = one_word)]
    pub(super) qos: Option<String>,

    /// Features of the nodes [default: Slurm's own]
    #[arg(long, value_name = "C", value_parser = one_word)]
    pub(super) constraint: Option<String>,

    /// Exclusive nodes [default: off]
    #[arg(long)]
    pub(super) exclusive: bool,

    /// Dependency, such as afterok:123 [default: none]
    #[arg(long, value_name = "D", value_parser = one_word)]
    pub(super) dependency: Option<String>,

    /// Tasks of an array, a run for each, such as 0-3; `{task}` in the words [default: none]
    #[arg(long, value_name = "SPEC", value_parser = Array::read)]
    pub(super) array: Option<Array>,

    /// Name of the job and of its directory runs/NAME [default: the command and the time]
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,

    /// Environment modules to load, comma-separated [default: none]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = one_word)]
    pub(super) module: Vec<String>,

    /// Image with `trainer`, run by apptainer [default: none]
    #[arg(long, value_name = "IMAGE", value_parser = image)]
    pub(super) container: Option<PathBuf>,

    /// Variables for the ranks [default: none]
    #[arg(long, value_name = "K=V,K=V", value_delimiter = ',', value_parser = export)]
    pub(super) env: Vec<(String, String)>,

    /// MPI type of srun [default: pmix]
    #[arg(long, value_name = "KIND", value_parser = one_word, default_value = "pmix", hide_default_value = true)]
    pub(super) mpi: String,

    /// Binding of ranks by srun [default: cores]
    #[arg(long, value_name = "KIND", value_parser = one_word, default_value = "cores", hide_default_value = true)]
    pub(super) cpu_bind: String,

    /// Time of the checkpoint before the time limit, seconds [default: 120]
    #[arg(long, value_name = "S", value_parser = options::count)]
    pub(super) warn_seconds: Option<usize>,

    /// Requeue after a stop that was not a cancellation, and resume [default: off]
    #[arg(long)]
    pub(super) requeue: bool,

    /// Restarts after a failure within a job [default: 0]
    #[arg(long, value_name = "R", value_parser = options::count)]
    pub(super) restarts: Option<usize>,

    /// Print the script; write and submit nothing [default: off]
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Another built trainer; with --container a path in the image [default: this program]
    #[arg(long, value_name = "PATH")]
    pub(super) trainer: Option<PathBuf>,

    /// Command of this program with its flags, after `--`.
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(super) words: Vec<String>,
}

impl SubmitArgs {
    /// Returns the flags that sbatch has under the same name, with their values.
    pub(super) fn of_sbatch(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let flags = [
            ("time", &self.time),
            ("partition", &self.partition),
            ("account", &self.account),
            ("qos", &self.qos),
            ("constraint", &self.constraint),
            ("gpus-per-task", &self.gpus_per_task),
            ("mem", &self.mem),
            ("dependency", &self.dependency),
        ];
        let given = flags.into_iter();
        given.filter_map(|(name, value)| Some((name, value.as_deref()?)))
    }

    pub(super) fn warn_s(&self) -> usize {
        self.warn_seconds.unwrap_or(DEFAULT_WARN_S)
    }
}

/// A job to submit.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) args: SubmitArgs,
    pub(super) job: PlacedCommand,
    /// Folder of relative paths in the trainer's words.
    pub(super) working_directory: PathBuf,
}

impl Request {
    pub(super) fn read(args: &SubmitArgs) -> Outcome<Self> {
        let job = PlacedCommand::read(&args.words, args.name.as_deref())?;
        let only_for_training = [
            ("--requeue", args.requeue),
            ("--restarts", args.restarts.is_some()),
            ("--warn-seconds", args.warn_seconds.is_some()),
        ];
        for (flag, is_given) in only_for_training {
            job.check_only_for_training(flag, is_given)?;
        }
        if job.trains() {
            check_warning(args.warn_s(), args.time.as_deref())?;
        }
        let working_directory = env::current_dir()
            .map_err(|error| failed!("cannot read the working directory: {error}"))?;
        let request = Request {
            args: args.clone(),
            job,
            working_directory,
        };
        request.check_paths()?;
        Ok(request)
    }

    /// Returns the request with another directory for the script, its output and the list of jobs.
    pub(super) fn in_directory(mut self, directory: PathBuf) -> Outcome<Self> {
        self.job.directory = directory;
        self.check_paths()?;
        Ok(self)
    }

    /// Returns the run's directory of every task, or the only directory.
    pub(super) fn directories(&self) -> Vec<(Option<usize>, PathBuf)> {
        let directory = &self.job.directory;
        let Some(array) = &self.args.array else {
            return vec![(None, directory.clone())];
        };
        let tasks = array.tasks.iter();
        tasks
            .map(|task| (Some(*task), of_task(directory, task)))
            .collect()
    }

    fn check_paths(&self) -> Outcome {
        for path in [&self.job.directory, &self.working_directory] {
            let text = path.to_string_lossy();
            // apptainer's --bind interprets `:` and `,`, sbatch's options the others.
            if let Some(odd) = text
                .chars()
                .find(|c| "\"'\\:,%".contains(*c) || c.is_control())
            {
                return Err(usage!(
                    "`{text}` contains {odd:?}, which sbatch or apptainer would misread: choose another --output-dir or --name"
                ));
            }
        }
        if self.args.array.is_some() && self.job.directory.to_string_lossy().contains(TASK) {
            return Err(usage!(
                "{TASK} in --output-dir: every task's directory gets -TASK at its end by itself, leave it out"
            ));
        }
        if self.args.array.is_none() && self.job.words.iter().any(|word| word.contains(TASK)) {
            return Err(usage!(
                "{TASK} is the number of an array's task: add --array, such as 0-3"
            ));
        }
        Ok(())
    }
}

/// Returns the directory of one task of an array.
pub(super) fn of_task(directory: &Path, task: impl std::fmt::Display) -> PathBuf {
    let mut path = directory.as_os_str().to_owned();
    path.push(format!("-{task}"));
    PathBuf::from(path)
}

/// Reads a value that sbatch's lines contain without quotes.
fn one_word(value: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_graphic() && !"\"'\\#`$;".contains(c);
    let value = Some(value).filter(|value| !value.is_empty() && value.chars().all(is_plain));
    let expected = "expected one word without blanks and quotes";
    value.map(str::to_owned).ok_or(expected.to_owned())
}

/// Reads a variable for the ranks.
fn export(pair: &str) -> Result<(String, String), String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name =
        |name: &str| name.chars().all(is_part) && name.starts_with(|c: char| !c.is_ascii_digit());
    match pair.split_once('=') {
        Some((name, value)) if is_name(name) && !value.contains('\n') => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("expected NAME=VALUE, several by commas; a value has no comma".to_owned()),
    }
}

/// Reads the path of an image.
fn image(path: &str) -> Result<PathBuf, String> {
    let path = std::path::absolute(path).ok().filter(|path| path.exists());
    path.ok_or("does not exist, expected an image or its directory".to_owned())
}

/// Refuses a warning that would come at once.
fn check_warning(warn_s: usize, time: Option<&str>) -> Outcome {
    if warn_s > MOST_WARN_S {
        return Err(usage!(
            "--warn-seconds: expected at most {MOST_WARN_S}, got {warn_s}"
        ));
    }
    let Some(time) = time else { return Ok(()) };
    match seconds(time) {
        None => Err(usage!(
            "--time: expected MINUTES, HH:MM:SS or DAYS-HH:MM:SS, got `{time}`"
        )),
        Some(limit_s) if limit_s <= warn_s + EARLY_S => Err(usage!(
            "--time {time}: the warning of --warn-seconds comes up to {} s before the end, so nothing would be \
             trained (expected a longer --time, got {limit_s} s). Increase --time, or decrease --warn-seconds.",
            warn_s + EARLY_S
        )),
        Some(_) => Ok(()),
    }
}

/// Reads a time limit in Slurm's notations: `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S`.
fn seconds(time: &str) -> Option<usize> {
    let (days, clock) = match time.split_once('-') {
        Some((days, clock)) => (Some(days), clock),
        None => (None, time),
    };
    let parts: Vec<&str> = clock.split(':').collect();
    let factors: &[usize] = match (days, parts.len()) {
        (Some(_), 1..=3) | (None, 3) => &[3600, 60, 1],
        (None, 1 | 2) => &[60, 1],
        _ => return None,
    };
    let mut sum = days.unwrap_or("0").parse::<u32>().ok()? as usize * 86_400;
    for (part, factor) in parts.iter().zip(factors) {
        sum += part.parse::<u32>().ok()? as usize * factor;
    }
    Some(sum)
}

/// Placeholder of a task's number in the trainer's words.
pub(crate) const TASK: &str = "{task}";
/// Above the default limit of clusters; each task gets a directory.
const MOST_TASKS: usize = 100_000;

/// A job array.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Array {
    /// Specification as given.
    pub(crate) specification: String,
    pub(crate) tasks: BTreeSet<usize>,
}

impl Array {
    fn read(text: &str) -> Result<Self, String> {
        let expected =
            "expected tasks such as 0-3, 1,5,7 or 0-30:10, perhaps with %LIMIT at a time";
        Ok(Array {
            specification: text.to_owned(),
            tasks: tasks(text).ok_or(expected)?,
        })
    }
}

/// Reads the tasks as Slurm does.
///
/// Source: sbatch(1), `--array`.
fn tasks(text: &str) -> Option<BTreeSet<usize>> {
    let (list, limit) = text.split_once('%').unwrap_or((text, "1"));
    limit.parse::<usize>().ok().filter(|limit| *limit > 0)?;
    let mut tasks = BTreeSet::new();
    for part in list.split(',') {
        let (range, stride) = part.split_once(':').unwrap_or((part, "1"));
        let stride: usize = stride.parse().ok().filter(|stride| *stride > 0)?;
        let (first, last) = match range.split_once('-') {
            None if part != range => return None,
            None => (range, range),
            Some(ends) => ends,
        };
        let first: usize = first.parse().ok()?;
        let last: usize = last.parse().ok()?;
        if last < first || (last - first) / stride >= MOST_TASKS {
            return None;
        }
        tasks.extend((first..=last).step_by(stride));
    }
    Some(tasks)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the request of a command line.
    pub(crate) fn read(words: &[String]) -> Outcome<Request> {
        let line = std::iter::once("submit").chain(words.iter().map(String::as_str));
        Request::read(&SubmitArgs::try_parse_from(line).map_err(|error| usage!("{error}"))?)
    }

    #[test]
    fn every_notation_of_sbatch_names_its_tasks() {
        for (text, expected) in [
            ("0-3", &[0, 1, 2, 3][..]),
            ("7", &[7]),
            ("1,5,2", &[1, 2, 5]),
            ("0-8:4,9%2", &[0, 4, 8, 9]),
        ] {
            let tasks = tasks(text).unwrap();
            assert!(tasks.iter().eq(expected), "{text}: {tasks:?}");
        }
        for text in [
            "",
            "a",
            "3-1",
            "1-",
            "1:2",
            "0-4:0",
            "0-3%0",
            "0-3%",
            "1 2",
            "0-99999999",
        ] {
            assert_eq!(tasks(text), None, "{text}");
        }
    }
}
