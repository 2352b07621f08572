//! What a job is asked for, as understood from the command line.
//!
//! In: the flags of `slurm submit`, the trainer's words. Out: [`Request`], valid by construction.
//! Invariant: every value fits on one line of the script without quotes, and every flag has an effect.

use std::env;
use std::path::{Path, PathBuf};

use super::array::{Array, TASK};
use crate::arguments::{Arguments, Flag};
use crate::failure::{Failure, Outcome};
use crate::run_directory::Job;
use crate::setup::NO_INSTALL;

const DEFAULT_WARN_S: usize = 120;
/// Slurm looks once a minute which jobs near their limit.
const EARLY_S: usize = 60;
/// sbatch takes no more.
const MOST_WARN_S: usize = 65535;

/// Flags that sbatch has under the same name, with one word each; their values go into the script as they are.
const PASSED: [&str; 8] =
    ["--time", "--partition", "--account", "--qos", "--constraint", "--gpus-per-task", "--mem", "--dependency"];

pub(super) const FLAGS: [Flag; 25] = [
    Flag { name: "--nodes", value: Some("N"), help: "machines (default 1)" },
    Flag { name: "--ntasks-per-node", value: Some("N"), help: "ranks on each" },
    Flag { name: "--cpus-per-task", value: Some("N"), help: "cores of each rank" },
    Flag { name: "--gpus-per-task", value: Some("N"), help: "GPUs of each rank" },
    Flag { name: "--mem", value: Some("M"), help: "memory of each node, such as 32G" },
    Flag { name: "--time", value: Some("HH:MM:SS"), help: "limit, also MINUTES or DAYS-HH:MM:SS" },
    Flag { name: "--partition", value: Some("P"), help: "the queue" },
    Flag { name: "--account", value: Some("A"), help: "who pays" },
    Flag { name: "--qos", value: Some("Q"), help: "quality of service" },
    Flag { name: "--constraint", value: Some("C"), help: "features of the nodes" },
    Flag { name: "--exclusive", value: None, help: "share no node" },
    Flag { name: "--dependency", value: Some("D"), help: "such as afterok:123" },
    Flag { name: "--array", value: Some("SPEC"), help: "a run for each task, such as 0-3; `{task}` in the words" },
    Flag { name: "--name", value: Some("NAME"), help: "of the job, and of its directory runs/NAME" },
    Flag { name: "--module", value: Some("LIST"), help: "environment modules to load, by commas" },
    Flag { name: "--container", value: Some("IMAGE"), help: "run the `trainer` inside, by apptainer" },
    Flag { name: "--env", value: Some("K=V,K=V"), help: "variables for the ranks" },
    Flag { name: "--mpi", value: Some("KIND"), help: "srun's way to start MPI (default pmix)" },
    Flag { name: "--cpu-bind", value: Some("KIND"), help: "what a rank is bound to (default cores)" },
    Flag { name: "--warn-seconds", value: Some("S"), help: "checkpoint so long before the limit (default 120)" },
    Flag { name: "--requeue", value: None, help: "after a stop that nobody cancelled, queue again and go on" },
    Flag { name: "--restarts", value: Some("R"), help: "start again when it fails, at most R times a job start" },
    Flag {
        name: "--trainer",
        value: Some("PATH"),
        help: "a program that is built already; in the image's file system with --container",
    },
    Flag { name: "--dry-run", value: None, help: "print the script; write and submit nothing" },
    NO_INSTALL,
];

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
    pub(super) fn read(arguments: &Arguments) -> Outcome<Self> {
        let job = Job::read(&arguments.passed_on, arguments.value("--name"))?;
        for flag in ["--requeue", "--restarts", "--warn-seconds"] {
            job.check_only_for_training(flag, arguments.has(flag))?;
        }
        let is_built_elsewhere = arguments.has("--trainer") || arguments.has("--container");
        if is_built_elsewhere && arguments.has(NO_INSTALL.name) {
            let text = "--no-install has no effect with --trainer or --container, which build nothing: leave it out";
            return Err(Failure::Usage(text.to_owned()));
        }
        let mut passed = Vec::new();
        for name in PASSED {
            if let Some(value) = arguments.value(name) {
                passed.push((name.trim_start_matches('-'), one_word(name, value)?));
            }
        }
        let warn_s = arguments.count("--warn-seconds")?.unwrap_or(DEFAULT_WARN_S);
        if job.trains() {
            check_warning(warn_s, arguments.value("--time"))?;
        }
        let word_of = |name: &str, default: &str| one_word(name, arguments.value(name).unwrap_or(default));
        let request = Request {
            nodes: arguments.count("--nodes")?.unwrap_or(1),
            ntasks_per_node: arguments.count("--ntasks-per-node")?.ok_or_else(|| {
                Failure::Usage("--ntasks-per-node is missing: say how many ranks a node has".to_owned())
            })?,
            cpus_per_task: arguments.count("--cpus-per-task")?,
            passed,
            is_exclusive: arguments.has("--exclusive"),
            array: arguments.value("--array").map(Array::read).transpose()?,
            modules: modules(arguments.value("--module"))?,
            container: arguments.value("--container").map(image).transpose()?,
            exports: exports(arguments.value("--env"))?,
            mpi: word_of("--mpi", "pmix")?,
            cpu_bind: word_of("--cpu-bind", "cores")?,
            warn_s,
            is_requeued: arguments.has("--requeue"),
            restarts: arguments.count("--restarts")?.unwrap_or(0),
            working_directory: env::current_dir()
                .map_err(|error| Failure::Failed(format!("the working directory cannot be read: {error}")))?,
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
            Some(array) => array.tasks.iter().map(|&task| (Some(task), of_task(&self.job.directory, task))).collect(),
        }
    }

    fn check_paths(&self) -> Outcome {
        for path in [&self.job.directory, &self.working_directory] {
            let text = path.to_string_lossy();
            // `:` and `,` have a meaning to apptainer's --bind, the others to sbatch's own reader of options.
            if let Some(odd) = text.chars().find(|c| "\"'\\:,%".contains(*c) || c.is_control()) {
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
            return Err(Failure::Usage(format!("{TASK} is the number of an array's task: add --array, such as 0-3")));
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

/// A value that the script can show without quotes.
fn one_word(name: &str, value: &str) -> Outcome<String> {
    let is_plain = |c: char| c.is_ascii_graphic() && !"\"'\\#`$;".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        return Ok(value.to_owned());
    }
    Err(Failure::Usage(format!("{name}: expected one word without blanks and quotes, got `{value}`")))
}

fn modules(list: Option<&str>) -> Outcome<Vec<String>> {
    let Some(list) = list else { return Ok(Vec::new()) };
    list.split(',').map(|name| one_word("--module", name)).collect()
}

fn exports(list: Option<&str>) -> Outcome<Vec<(String, String)>> {
    let Some(list) = list else { return Ok(Vec::new()) };
    let read = |pair: &str| {
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let named = pair.split_once('=').filter(|(name, value)| is_name(name) && !value.contains('\n'));
        named.map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(|| {
            Failure::Usage(format!("--env: expected NAME=VALUE, several by commas, got `{pair}`; a value has no comma"))
        })
    };
    list.split(',').map(read).collect()
}

fn image(path: &str) -> Outcome<PathBuf> {
    let path = std::path::absolute(path).map_err(|error| Failure::Failed(format!("{path}: {error}")))?;
    if path.exists() {
        return Ok(path);
    }
    Err(Failure::Usage(format!("--container: {} does not exist: expected an image or its directory", path.display())))
}

/// Refuses a warning that would come at once.
fn check_warning(warn_s: usize, time: Option<&str>) -> Outcome {
    if warn_s > MOST_WARN_S {
        return Err(Failure::Usage(format!("--warn-seconds: expected at most {MOST_WARN_S}, got {warn_s}")));
    }
    let Some(time) = time else { return Ok(()) };
    let Some(limit_s) = seconds(time) else {
        return Err(Failure::Usage(format!("--time: expected MINUTES, HH:MM:SS or DAYS-HH:MM:SS, got `{time}`")));
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
    let numbers = |text: &str| text.split(':').map(|part| part.parse().ok()).collect::<Option<Vec<usize>>>();
    let (days, units) = match time.split_once('-') {
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
    Some(((days * 24 + units[0]) * 60 + units[1]) * 60 + units[2])
}
