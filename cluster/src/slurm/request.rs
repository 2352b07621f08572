//! What a job is asked for, as understood from the command line.
//!
//! In: the flags of `slurm submit`, the words of a command. Out: [`Request`], valid by construction.
//! Invariant: every value fits on one line of the script, and every flag has an effect.

use std::env;
use std::path::{Path, PathBuf};

use clap::Parser;

use super::array::{Array, TASK};
use crate::failure::{Failure, Outcome};
use crate::options;
use crate::run_directory::Job;

const DEFAULT_WARN_S: usize = 120;
/// Slurm looks once a minute which jobs near their limit.
const EARLY_S: usize = 60;
/// sbatch takes no more.
const MOST_WARN_S: usize = 65535;

const DETAILS: &str = "\
Example: trainer slurm submit --nodes 2 --ntasks-per-node 8 --time 12:00:00 --requeue -- train --dataset cifar10
The run's directory is --output-dir of `train`, also that of its --config, else runs/NAME; it must lie on a file system that
all nodes share, as must the program. `train` gets --resume: the same directory submitted again goes on from its last checkpoint.
With --array every task has a directory of its own, DIR-TASK: --array 0-3 -- train --seed {task}
The other commands (bench, eval, …) are started as they are, without --requeue and --restarts.";

/// Flags of `trainer slurm submit`.
#[derive(Debug, Clone, Parser)]
#[command(after_help = DETAILS)]
pub struct SubmitArgs {
    /// Machines [default: 1]
    #[arg(long, value_name = "N", value_parser = options::count)]
    pub(super) nodes: Option<usize>,

    /// Ranks on each [required]
    #[arg(long, value_name = "N", value_parser = options::count)]
    pub(super) ntasks_per_node: usize,

    /// Cores of each rank [default: Slurm's own]
    #[arg(long, value_name = "N", value_parser = options::count)]
    pub(super) cpus_per_task: Option<usize>,

    /// GPUs of each rank [default: none]
    #[arg(long, value_name = "N")]
    pub(super) gpus_per_task: Option<String>,

    /// Memory of each node, such as 32G [default: Slurm's own]
    #[arg(long, value_name = "M")]
    pub(super) mem: Option<String>,

    /// Limit, also MINUTES or DAYS-HH:MM:SS [default: Slurm's own]
    #[arg(long, value_name = "HH:MM:SS")]
    pub(super) time: Option<String>,

    /// The queue [default: Slurm's own]
    #[arg(long, value_name = "P")]
    pub(super) partition: Option<String>,

    /// Who pays [default: Slurm's own]
    #[arg(long, value_name = "A")]
    pub(super) account: Option<String>,

    /// Quality of service [default: Slurm's own]
    #[arg(long, value_name = "Q")]
    pub(super) qos: Option<String>,

    /// Features of the nodes [default: Slurm's own]
    #[arg(long, value_name = "C")]
    pub(super) constraint: Option<String>,

    /// Share no node [default: off]
    #[arg(long)]
    pub(super) exclusive: bool,

    /// Such as afterok:123 [default: none]
    #[arg(long, value_name = "D")]
    pub(super) dependency: Option<String>,

    /// A run for each task, such as 0-3; `{task}` in the words [default: none]
    #[arg(long, value_name = "SPEC")]
    pub(super) array: Option<String>,

    /// Of the job, and of its directory runs/NAME [default: the command and the time]
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,

    /// Environment modules to load, by commas [default: none]
    #[arg(long, value_name = "LIST")]
    pub(super) module: Option<String>,

    /// Run the `trainer` inside, by apptainer [default: none]
    #[arg(long, value_name = "IMAGE")]
    pub(super) container: Option<PathBuf>,

    /// Variables for the ranks [default: none]
    #[arg(long, value_name = "K=V,K=V")]
    pub(super) env: Option<String>,

    /// How srun starts MPI programs [default: pmix]
    #[arg(long, value_name = "KIND")]
    pub(super) mpi: Option<String>,

    /// What a rank is bound to [default: cores]
    #[arg(long, value_name = "KIND")]
    pub(super) cpu_bind: Option<String>,

    /// Checkpoint so long before the limit [default: 120]
    #[arg(long, value_name = "S", value_parser = options::count)]
    pub(super) warn_seconds: Option<usize>,

    /// After a stop that nobody cancelled, queue again and go on [default: off]
    #[arg(long)]
    pub(super) requeue: bool,

    /// Start again when it fails, at most R times a job start [default: 0]
    #[arg(long, value_name = "R", value_parser = options::count)]
    pub(super) restarts: Option<usize>,

    /// Print the script; write and submit nothing [default: off]
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Another program than this one, built already; in the image's file system with --container [default: this program]
    #[arg(long, value_name = "PATH")]
    pub(super) trainer: Option<PathBuf>,

    /// Command of this program with its flags, after `--`.
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(super) words: Vec<String>,
}

impl SubmitArgs {
    /// Flags that sbatch has under the same name, with one word each; their values go into the script as they are.
    fn passed(&self) -> [(&'static str, Option<&String>); 8] {
        [
            ("time", self.time.as_ref()),
            ("partition", self.partition.as_ref()),
            ("account", self.account.as_ref()),
            ("qos", self.qos.as_ref()),
            ("constraint", self.constraint.as_ref()),
            ("gpus-per-task", self.gpus_per_task.as_ref()),
            ("mem", self.mem.as_ref()),
            ("dependency", self.dependency.as_ref()),
        ]
    }
}

/// A job as it is to be submitted.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) job: Job,
    pub(super) nodes: usize,
    pub(super) ntasks_per_node: usize,
    pub(super) cpus_per_task: Option<usize>,
    /// Names without their dashes, and values.
    pub(super) passed: Vec<(&'static str, String)>,
    pub(super) is_exclusive: bool,
    pub(super) array: Option<Array>,
    pub(super) modules: Vec<String>,
    pub(super) container: Option<PathBuf>,
    pub(super) exports: Vec<(String, String)>,
    pub(super) mpi: String,
    pub(super) cpu_bind: String,
    pub(super) warn_s: usize,
    pub(super) is_requeued: bool,
    pub(super) restarts: usize,
    /// Where relative paths of the trainer's words begin.
    pub(super) working_directory: PathBuf,
}

impl Request {
    pub(super) fn read(args: &SubmitArgs) -> Outcome<Self> {
        let job = Job::read(&args.words, args.name.as_deref())?;
        let only_for_training = [
            ("--requeue", args.requeue),
            ("--restarts", args.restarts.is_some()),
            ("--warn-seconds", args.warn_seconds.is_some()),
        ];
        for (flag, is_given) in only_for_training {
            job.check_only_for_training(flag, is_given)?;
        }
        let passed = args
            .passed()
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let passed = passed.map(|(name, value)| Ok((name, one_word(&format!("--{name}"), value)?)));
        let warn_s = args.warn_seconds.unwrap_or(DEFAULT_WARN_S);
        if job.trains() {
            check_warning(warn_s, args.time.as_deref())?;
        }
        let request = Request {
            nodes: args.nodes.unwrap_or(1),
            ntasks_per_node: args.ntasks_per_node,
            cpus_per_task: args.cpus_per_task,
            passed: passed.collect::<Outcome<_>>()?,
            is_exclusive: args.exclusive,
            array: args.array.as_deref().map(Array::read).transpose()?,
            modules: modules(args.module.as_deref())?,
            container: args.container.as_deref().map(image).transpose()?,
            exports: exports(args.env.as_deref())?,
            mpi: one_word("--mpi", args.mpi.as_deref().unwrap_or("pmix"))?,
            cpu_bind: one_word("--cpu-bind", args.cpu_bind.as_deref().unwrap_or("cores"))?,
            warn_s,
            is_requeued: args.requeue,
            restarts: args.restarts.unwrap_or(0),
            working_directory: env::current_dir().map_err(|error| {
                Failure::Failed(format!("the working directory cannot be read: {error}"))
            })?,
            job,
        };
        request.check_paths()?;
        Ok(request)
    }

    /// The same with another directory for the script, its output and the list of jobs.
    pub(super) fn in_directory(mut self, directory: PathBuf) -> Outcome<Self> {
        self.job.directory = directory;
        self.check_paths()?;
        Ok(self)
    }

    /// The run's directory of every task, or the only one.
    pub(super) fn directories(&self) -> Vec<(Option<usize>, PathBuf)> {
        match &self.array {
            None => vec![(None, self.job.directory.clone())],
            Some(array) => array
                .tasks
                .iter()
                .map(|&task| (Some(task), of_task(&self.job.directory, task)))
                .collect(),
        }
    }

    fn check_paths(&self) -> Outcome {
        for path in [&self.job.directory, &self.working_directory] {
            let text = path.to_string_lossy();
            // `:` and `,` have a meaning to apptainer's --bind, the others to sbatch's own reader of options.
            if let Some(odd) = text
                .chars()
                .find(|c| "\"'\\:,%".contains(*c) || c.is_control())
            {
                return Err(Failure::Usage(format!(
                    "`{text}` contains {odd:?}, which sbatch or apptainer would misread: choose another --output-dir or --name"
                )));
            }
        }
        if self.array.is_some() && self.job.directory.to_string_lossy().contains(TASK) {
            return Err(Failure::Usage(format!(
                "{TASK} in --output-dir: every task's directory gets -TASK at its end by itself, leave it out"
            )));
        }
        if self.array.is_none() && self.job.words.iter().any(|word| word.contains(TASK)) {
            return Err(Failure::Usage(format!(
                "{TASK} is the number of an array's task: add --array, such as 0-3"
            )));
        }
        Ok(())
    }
}

/// The directory of one task of an array.
pub(super) fn of_task(directory: &Path, task: impl std::fmt::Display) -> PathBuf {
    let mut path = directory.as_os_str().to_owned();
    path.push(format!("-{task}"));
    PathBuf::from(path)
}

/// A value that sbatch's own lines can show without quotes.
fn one_word(name: &str, value: &str) -> Outcome<String> {
    let is_plain = |c: char| c.is_ascii_graphic() && !"\"'\\#`$;".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        return Ok(value.to_owned());
    }
    Err(Failure::Usage(format!(
        "{name}: expected one word without blanks and quotes, got `{value}`"
    )))
}

fn modules(list: Option<&str>) -> Outcome<Vec<String>> {
    let Some(list) = list else {
        return Ok(Vec::new());
    };
    list.split(',')
        .map(|name| one_word("--module", name))
        .collect()
}

fn exports(list: Option<&str>) -> Outcome<Vec<(String, String)>> {
    let Some(list) = list else {
        return Ok(Vec::new());
    };
    let read = |pair: &str| {
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let named = pair
            .split_once('=')
            .filter(|(name, value)| is_name(name) && !value.contains('\n'));
        named.map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(|| {
            Failure::Usage(format!("--env: expected NAME=VALUE, several by commas, got `{pair}`; a value has no comma"))
        })
    };
    list.split(',').map(read).collect()
}

fn image(path: &Path) -> Outcome<PathBuf> {
    let path = std::path::absolute(path)
        .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
    if path.exists() {
        return Ok(path);
    }
    Err(Failure::Usage(format!(
        "--container: {} does not exist: expected an image or its directory",
        path.display()
    )))
}

/// Refuses a warning that would come at once.
fn check_warning(warn_s: usize, time: Option<&str>) -> Outcome {
    if warn_s > MOST_WARN_S {
        return Err(Failure::Usage(format!(
            "--warn-seconds: expected at most {MOST_WARN_S}, got {warn_s}"
        )));
    }
    let Some(time) = time else { return Ok(()) };
    let Some(limit_s) = seconds(time) else {
        return Err(Failure::Usage(format!(
            "--time: expected MINUTES, HH:MM:SS or DAYS-HH:MM:SS, got `{time}`"
        )));
    };
    if limit_s <= warn_s + EARLY_S {
        return Err(Failure::Usage(format!(
            "--time {time} is {limit_s} s, and the warning comes {warn_s} s before its end, up to {EARLY_S} s earlier: \
             nothing would be trained; ask for more time, or write a shorter --warn-seconds S"
        )));
    }
    Ok(())
}

/// A time limit in Slurm's notations: `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S`.
fn seconds(time: &str) -> Option<usize> {
    let numbers = |text: &str| {
        text.split(':')
            .map(|part| part.parse().ok())
            .collect::<Option<Vec<usize>>>()
    };
    let (days, [hours, minutes, seconds]) = match time.split_once('-') {
        Some((days, rest)) => (
            days.parse::<usize>().ok()?,
            match numbers(rest)?[..] {
                [h] => [h, 0, 0],
                [h, m] => [h, m, 0],
                [h, m, s] => [h, m, s],
                _ => return None,
            },
        ),
        None => (
            0,
            match numbers(time)?[..] {
                [m] => [0, m, 0],
                [m, s] => [0, m, s],
                [h, m, s] => [h, m, s],
                _ => return None,
            },
        ),
    };
    let parts = [(24, hours), (60, minutes), (60, seconds)];
    parts.into_iter().try_fold(days, |whole, (factor, part)| {
        whole.checked_mul(factor)?.checked_add(part)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The request of a command line.
    pub(crate) fn read(words: &[String]) -> Outcome<Request> {
        let line = std::iter::once("submit").chain(words.iter().map(String::as_str));
        Request::read(
            &SubmitArgs::try_parse_from(line).map_err(|error| Failure::Usage(error.to_string()))?,
        )
    }
}
