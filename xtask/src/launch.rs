//! `cargo xtask launch`: builds the trainer and starts any of its commands on any number of ranks.
//!
//! In: ranks, hosts, the trainer's own arguments. Out: the trainer, in our place.
//! Invariant: several ranks are started by mpirun or not at all; a world of one needs no launcher.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command as Process;

use crate::arguments::{Arguments, Command, Flag};
use crate::cargo::{self, Mpi};
use crate::cores;
use crate::failure::{Failure, Outcome};
use crate::mpirun::Placement;
use crate::probe::Found;
use crate::process;
use crate::setup::{self, NO_INSTALL};

pub(crate) const COMMAND: Command = Command {
    name: "launch",
    summary: "Build the trainer and start one of its commands on N ranks.",
    details: "\
Example: cargo xtask launch -n 4 -- train --dataset cifar10 --epochs 10
A rank is bound to one core where it has just one, or to as many as the trainer's --threads says, while there are
enough; two jobs at once on one machine would be bound to the same cores.
With --hosts the built program must have the same path on every host, as on a shared file system.",
    subjects: &[],
    flags: &[
        Flag { name: "-n", value: Some("N"), help: "number of ranks" },
        Flag { name: "--hosts", value: Some("A,B:2"), help: "machines, each with or without its number of ranks" },
        NO_INSTALL,
    ],
    passed_on: Some("trainer arguments"),
    run,
};

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
    let found = setup::run(&arguments)?;
    start(&found, ranks, hosts, &arguments.passed_on)
}

/// Builds the trainer for what was found and becomes it, or the mpirun that starts it.
pub(crate) fn start(found: &Found, ranks: usize, hosts: Vec<String>, arguments: &[String]) -> Outcome {
    let mpi = if found.can_build_mpi() { Mpi::With } else { Mpi::Without };
    let needs_launcher = ranks > 1 || !hosts.is_empty();
    if needs_launcher && (mpi == Mpi::Without || found.mpirun.is_none()) {
        return Err(Failure::Failed(format!(
            "{ranks} ranks need MPI and mpirun, and this machine lacks one of them: install what `cargo xtask setup` names, or start 1 rank"
        )));
    }
    let mut build = cargo::command(&["build", "--release", "-p", "trainer"]);
    build.args(mpi.trainer_features());
    let trainer = cargo::executable(build, "trainer", false)?;
    let command = match &found.mpirun {
        Some(mpirun) if needs_launcher => {
            let threads = threads(arguments);
            let placement = Placement { ranks, hosts, cores: cores::available(), threads, is_polite: false };
            mpirun.command(&placement, &trainer, arguments)?
        }
        _ => plain(&trainer, arguments),
    };
    replace_this_process(command)
}

fn plain(program: &Path, arguments: &[String]) -> Process {
    let mut command = Process::new(program);
    command.args(arguments);
    command
}

/// A signal for us, such as Ctrl-C or a scheduler's warning, then reaches mpirun itself.
fn replace_this_process(mut command: Process) -> Outcome {
    println!("$ {}", process::shown(&command));
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

    #[test]
    fn several_ranks_without_mpi_are_refused_before_anything_is_built() {
        let found = Found { c_compiler: None, mpi: None, mpirun: None, libclang: None };
        let failure = start(&found, 2, Vec::new(), &words("train")).unwrap_err();
        assert!(failure.to_string().contains("cargo xtask setup"));
    }
}
