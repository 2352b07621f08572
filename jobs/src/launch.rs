//! `cargo xtask launch`: builds the trainer and starts any of its commands on any number of ranks.
//!
//! In: ranks, hosts, the trainer's own arguments. Out: the trainer, in our place.
//! Invariant: several ranks are started by mpirun or not at all; a world of one needs no launcher. Whoever is asked to
//! stop, by Ctrl-C, a scheduler or a service, has the time to write a checkpoint: mpirun alone would not give it.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use crate::arguments::{Arguments, Command, Flag};
use crate::cargo::{self, Mpi};
use crate::cores;
use crate::failure::{Failure, Outcome};
use crate::mpirun::Placement;
use crate::probe::{self, Found};
use crate::process;
use crate::restart::{Launcher, Start};
use crate::run_directory::{self, Job};
use crate::setup::{self, NO_INSTALL};

pub(crate) const COMMAND: Command = Command {
    name: "launch",
    summary: "Build the trainer and start one of its commands on N ranks.",
    details: "\
Example: cargo xtask launch -n 4 -- train --dataset cifar10 --epochs 10
A rank is bound to one core where it has just one, or to as many as the trainer's --threads says, while there are
enough; two jobs at once on one machine would be bound to the same cores.
With --hosts the built program must have the same path on every host, as on a shared file system.
SIGTERM and SIGINT (Ctrl-C) stop all ranks at the same step with a checkpoint; a second one ends at once.
With --restarts `train` goes on from its last checkpoint when it fails; its directory is --output-dir, else runs/NAME, and
has the script that does so, launch.sh.",
    subjects: &[],
    parts: &[],
    object: None,
    flags: &[
        Flag { name: "-n", value: Some("N"), help: "number of ranks" },
        Flag { name: "--hosts", value: Some("A,B:2"), help: "machines, each with or without its number of ranks" },
        Flag { name: "--restarts", value: Some("R"), help: "start again when it fails, at most R times" },
        Flag { name: "--name", value: Some("NAME"), help: "with --restarts: of the run's directory, runs/NAME" },
        Flag { name: "--dry-run", value: None, help: "print the script that would be run; build and start nothing" },
        NO_INSTALL,
    ],
    passed_on: Some("trainer arguments"),
    run,
};

/// The script of a run that is started again, in its directory.
const FILE: &str = "launch.sh";

/// Ranks to be started.
struct Launch<'a> {
    ranks: usize,
    hosts: Vec<String>,
    words: &'a [String],
    /// How often to start again, and where; else the trainer's words are passed on as they are.
    again: Option<(usize, Job)>,
}

fn run(arguments: Arguments) -> Outcome {
    let ranks = arguments.count("-n")?.ok_or_else(|| {
        Failure::Usage("-n is missing: say how many ranks, as in `cargo xtask launch -n 2 -- train`".to_owned())
    })?;
    let hosts = hosts(arguments.value("--hosts").unwrap_or_default(), arguments.has("--hosts"))?;
    if hosts.len() > ranks {
        return Err(Failure::Usage(format!("{} hosts for {ranks} ranks: name at most as many as ranks", hosts.len())));
    }
    if arguments.passed_on.is_empty() {
        let text = "nothing to start: the trainer's command comes after `--`, as in `cargo xtask launch -n 2 -- train`";
        return Err(Failure::Usage(text.to_owned()));
    }
    let again = again(arguments.count("--restarts")?, arguments.value("--name"), &arguments.passed_on)?;
    let launch = Launch { ranks, hosts, words: &arguments.passed_on, again };
    if arguments.has("--dry-run") {
        let command = launch.command(&Found::look(), &cargo::target_folder().join("release/trainer"))?;
        print!("{}", launch.script(&command)?);
        return Ok(());
    }
    launch.start(&setup::run(&arguments)?)
}

/// What a run that is started again needs to know.
fn again(restarts: Option<usize>, name: Option<&str>, words: &[String]) -> Outcome<Option<(usize, Job)>> {
    let Some(restarts) = restarts else {
        return match name {
            None => Ok(None),
            Some(_) => Err(Failure::Usage(
                "--name has no effect without --restarts: the trainer names its own runs".to_owned(),
            )),
        };
    };
    let job = Job::read(words, name)?;
    job.check_only_for_training("--restarts", true)?;
    Ok(Some((restarts, job)))
}

/// Builds the trainer for what was found and becomes it, or the mpirun that starts it.
pub(crate) fn start(found: &Found, ranks: usize, hosts: Vec<String>, arguments: &[String]) -> Outcome {
    Launch { ranks, hosts, words: arguments, again: None }.start(found)
}

/// The built trainer that `--trainer` names, absolute; none where it is to be built.
pub(crate) fn named_trainer(arguments: &Arguments) -> Outcome<Option<PathBuf>> {
    let Some(path) = arguments.value("--trainer") else { return Ok(None) };
    let path = std::path::absolute(path).map_err(|error| Failure::Failed(format!("{path}: {error}")))?;
    match probe::program(&path) {
        Some(path) => Ok(Some(path)),
        None => Err(Failure::Usage(format!(
            "--trainer: {} is no program that can be run: name a built trainer, or leave it out",
            path.display()
        ))),
    }
}

/// Builds the trainer for what was found; several ranks need MPI.
pub(crate) fn build_for_ranks(found: &Found, needs_mpi: bool) -> Outcome<PathBuf> {
    let mpi = if found.can_build_mpi() { Mpi::With } else { Mpi::Without };
    if needs_mpi && mpi == Mpi::Without {
        let text =
            "several ranks need MPI, and it is missing here: install what `cargo xtask setup` names, or start 1 rank";
        return Err(Failure::Failed(text.to_owned()));
    }
    let mut build = cargo::command(&["build", "--release", "-p", "trainer"]);
    build.args(mpi.trainer_features());
    cargo::executable(build, "trainer", false)
}

impl Launch<'_> {
    fn start(&self, found: &Found) -> Outcome {
        self.check(found)?;
        let trainer = build_for_ranks(found, self.launcher() == Launcher::Mpirun)?;
        let command = self.command(found, &trainer)?;
        println!("$ {}", process::shown(&command));
        if let Some((_, job)) = &self.again {
            let file = job.directory.join(FILE);
            run_directory::write(&file, &self.script(&command)?)?;
            println!("script: {}", file.display());
            let mut bash = Process::new("bash");
            bash.arg(file);
            return replace_this_process(bash);
        }
        match self.launcher() {
            Launcher::Mpirun => {
                let mut bash = Process::new("bash");
                bash.args(["-c", &self.script(&command)?, "launch"]);
                replace_this_process(bash)
            }
            // The trainer alone does on signals what is wanted.
            Launcher::None | Launcher::Srun => replace_this_process(command),
        }
    }

    fn launcher(&self) -> Launcher {
        if self.ranks > 1 || !self.hosts.is_empty() { Launcher::Mpirun } else { Launcher::None }
    }

    fn check(&self, found: &Found) -> Outcome {
        if self.launcher() == Launcher::Mpirun && (!found.can_build_mpi() || found.mpirun.is_none()) {
            return Err(Failure::Failed(format!(
                "{} ranks need MPI and mpirun, and this machine lacks one of them: install what `cargo xtask setup` names, or start 1 rank",
                self.ranks
            )));
        }
        Ok(())
    }

    /// The trainer, or the mpirun that starts it.
    fn command(&self, found: &Found, trainer: &Path) -> Outcome<Process> {
        self.check(found)?;
        let words = match &self.again {
            None => self.words.to_owned(),
            Some((_, job)) => {
                let directory = job.directory.to_string_lossy().into_owned();
                let own = ["--output-dir".to_owned(), directory, "--resume".to_owned()];
                std::iter::once(&job.command).chain(&job.words).chain(&own).cloned().collect()
            }
        };
        match &found.mpirun {
            Some(mpirun) if self.launcher() == Launcher::Mpirun => {
                let placement = Placement {
                    ranks: self.ranks,
                    hosts: self.hosts.clone(),
                    cores: cores::available(),
                    threads: threads(&words),
                    is_polite: false,
                };
                mpirun.command(&placement, trainer, &words)
            }
            _ => {
                let mut command = Process::new(trainer);
                command.args(words);
                Ok(command)
            }
        }
    }

    /// What bash does with the command.
    fn script(&self, command: &Process) -> Outcome<String> {
        let line = process::shown(command);
        let restarts = self.again.as_ref().map_or(0, |(restarts, _)| *restarts);
        let start = Start { command: &line, restarts, launcher: self.launcher() };
        let head = match &self.again {
            None => String::new(),
            Some((_, job)) => {
                let folder = env::current_dir()
                    .map_err(|error| Failure::Failed(format!("the working directory cannot be read: {error}")))?;
                format!(
                    "#!/bin/bash\n\
                     # Written by `cargo xtask launch`. To go on with the same run later: bash {}\n\
                     cd {} || exit 1\n",
                    process::quoted(job.directory.join(FILE)),
                    process::quoted(folder),
                )
            }
        };
        Ok(format!("{head}say() {{ echo \"launch: $*\" >&2; }}\n{}\nexit \"$code\"\n", start.text()))
    }
}

fn replace_this_process(mut command: Process) -> Outcome {
    let error = command.exec();
    Err(process::cannot_start(&command, &error))
}

fn hosts(list: &str, is_given: bool) -> Outcome<Vec<String>> {
    let hosts: Vec<String> = list.split(',').filter(|host| !host.is_empty()).map(str::to_owned).collect();
    if is_given && hosts.is_empty() {
        return Err(Failure::Usage("--hosts names no host: write --hosts A,B or leave it out".to_owned()));
    }
    Ok(hosts)
}

/// The computing threads that the trainer is told to use, if it is; what is wrong is the trainer's to refuse.
fn threads(arguments: &[String]) -> Option<usize> {
    let attached = arguments.iter().find_map(|word| word.strip_prefix("--threads="));
    let following = || arguments.iter().skip_while(|word| *word != "--threads").nth(1).map(String::as_str);
    attached.or_else(following).and_then(|count| count.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_trainers_threads_are_read_in_both_notations() {
        assert_eq!(threads(&words("train --threads 3 --seed 1")), Some(3));
        assert_eq!(threads(&words("train --threads=2")), Some(2));
        assert_eq!(threads(&words("train --seed 1")), None);
        assert_eq!(threads(&words("train --threads")), None);
    }

    #[test]
    fn an_empty_list_of_hosts_is_refused_only_if_it_was_given() {
        assert_eq!(hosts("a,b:2", true).unwrap(), ["a", "b:2"]);
        assert!(hosts("", false).unwrap().is_empty());
        assert_eq!(hosts(",", true).unwrap_err().exit_code(), 2);
    }

    fn script_of(line: &str, restarts: Option<usize>) -> String {
        let words = words(line);
        let launch =
            Launch { ranks: 1, hosts: Vec::new(), words: &words, again: again(restarts, None, &words).unwrap() };
        let found = Found { c_compiler: None, mpi: None, mpirun: None, libclang: None };
        launch.script(&launch.command(&found, Path::new("/opt/trainer")).unwrap()).unwrap()
    }

    #[test]
    fn a_run_that_is_started_again_has_its_directory_and_resumes() {
        let text = script_of("train --epochs 3 --output-dir /d/x", Some(2));
        assert!(text.starts_with("#!/bin/bash\n"), "{text}");
        assert!(text.contains("later: bash /d/x/launch.sh\n"), "{text}");
        assert!(text.contains("    /opt/trainer train --epochs 3 --output-dir /d/x --resume </dev/null &\n"), "{text}");
        assert!(text.contains("restarts_left=2\n") && text.ends_with("exit \"$code\"\n"), "{text}");
    }

    #[test]
    fn without_restarts_the_trainers_words_are_passed_on_as_they_are() {
        let text = script_of("eval --json", None);
        assert!(text.contains("    /opt/trainer eval --json </dev/null &\n"), "{text}");
        assert!(!text.contains("restarts_left") && !text.contains("cd "), "{text}");
    }

    #[test]
    fn restarts_and_names_are_refused_where_they_have_no_effect() {
        for (line, restarts, name, expected) in [
            ("eval", Some(1), None, "`eval` has none"),
            ("train", None, Some("x"), "--name has no effect without --restarts"),
            ("--epochs 3", Some(1), None, "comes first"),
        ] {
            let failure = again(restarts, name, &words(line)).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            assert!(failure.to_string().contains(expected), "{failure}");
        }
    }

    #[test]
    fn several_ranks_without_mpi_are_refused_before_anything_is_built() {
        let found = Found { c_compiler: None, mpi: None, mpirun: None, libclang: None };
        let failure = start(&found, 2, Vec::new(), &words("train")).unwrap_err();
        assert!(failure.to_string().contains("cargo xtask setup"));
    }
}
