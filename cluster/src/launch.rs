//! `trainer launch`: starts a command of this program on N ranks.
//!
//! In: ranks, hosts, the words of a command. Out: the ranks, in place of this process.
//! Invariant: several ranks are started by mpirun; one rank needs no launcher. A stop by Ctrl-C, a
//! scheduler or a service leaves time for a checkpoint, which mpirun itself would not.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command as Process;

use clap::Args;

use crate::cores;
use crate::failure::{Failure, Outcome};
use crate::mpirun::{self, Mpirun, Placement};
use crate::options;
use crate::output::{self, say};
use crate::process;
use crate::restart::{ScriptLauncher, Start};
use crate::run_directory::{self, PlacedCommand};

const DETAILS: &str = "\
Example: trainer launch -n 4 -- train --dataset cifar10 --epochs 10
A rank is bound to one core where it has just one, or to as many as --threads of the command says, while there are
enough; two jobs at once on one machine would be bound to the same cores.
With --hosts this program must have the same path on every host, as on a shared file system.
SIGTERM, SIGINT (Ctrl-C) and SIGHUP (a closed terminal) stop all ranks at the same step with a checkpoint.
A second SIGTERM or SIGINT ends all ranks at once.
With --restarts a failed `train` resumes from its last checkpoint. Its directory is --output-dir, also that of --config,
otherwise runs/NAME, and contains the script that restarts it, launch.sh.";

/// Flags of `trainer launch`.
#[derive(Debug, Clone, Args)]
#[command(after_help = DETAILS)]
pub struct LaunchArgs {
    /// Number of ranks [required]
    #[arg(short = 'n', value_name = "N", value_parser = options::count)]
    ranks: usize,

    /// Hosts, each with or without its number of ranks [default: this one]
    #[arg(long, value_name = "A,B:2")]
    hosts: Option<String>,

    /// Restarts after a failure [default: 0]
    #[arg(long, value_name = "R", value_parser = options::count)]
    restarts: Option<usize>,

    /// With --restarts: name of the run's directory, runs/NAME [default: the command and the time]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Print the script; start nothing [default: off]
    #[arg(long)]
    dry_run: bool,

    /// Command of this program with its flags, after `--`.
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    words: Vec<String>,
}

/// Tasks of a Slurm allocation; the trainer refuses to run as one process in a larger one.
const ALLOCATION: &str = "SLURM_NTASKS";

/// Id of the surrounding step of Slurm; batch scripts and interactive shells have ids from
/// [`FIRST_OWN_STEP`] on.
const STEP: &str = "SLURM_STEP_ID";
const FIRST_OWN_STEP: u32 = 4_294_967_290;

/// Script that restarts a run, in the run's directory.
const FILE: &str = "launch.sh";

/// Ranks to start.
struct Launch<'a> {
    ranks: usize,
    hosts: Vec<String>,
    words: &'a [String],
    /// Number of restarts, and the run; without restarts the words are passed unchanged.
    again: Option<(usize, PlacedCommand)>,
    /// True in a task of srun, whose slots mpirun would use.
    is_in_step: bool,
}

fn is_step_of_srun(step: Option<&str>) -> bool {
    let id = step.and_then(|step| step.parse::<u32>().ok());
    id.is_some_and(|id| id < FIRST_OWN_STEP)
}

impl LaunchArgs {
    /// Replaces this process by the program, or by the mpirun that starts it.
    ///
    /// # Errors
    /// Flags that contradict each other; a missing mpirun.
    pub fn run(&self) -> Outcome {
        let hosts = hosts(self.hosts.as_deref())?;
        if hosts.len() > self.ranks {
            let hosts = hosts.len();
            let ranks = self.ranks;
            return Err(Failure::Usage(format!(
                "{hosts} hosts for {ranks} ranks: name at most as many as ranks"
            )));
        }
        let again = again(self.restarts, self.name.as_deref(), &self.words)?;
        let launch = Launch {
            ranks: self.ranks,
            hosts,
            words: &self.words,
            again,
            is_in_step: is_step_of_srun(env::var(STEP).ok().as_deref()),
        };
        let command = launch.command(Mpirun::find().as_ref(), &options::trainer(None)?)?;
        if self.dry_run {
            return output::result(&launch.script(&command)?);
        }
        launch.start(command)
    }
}

/// Returns the number of restarts and the run, if --restarts is given.
fn again(
    restarts: Option<usize>,
    name: Option<&str>,
    words: &[String],
) -> Outcome<Option<(usize, PlacedCommand)>> {
    let Some(restarts) = restarts else {
        return match name {
            None => Ok(None),
            Some(_) => Err(Failure::Usage(
                "--name has no effect without --restarts: the trainer names its own runs"
                    .to_owned(),
            )),
        };
    };
    let job = PlacedCommand::read(words, name)?;
    job.check_only_for_training("--restarts", true)?;
    Ok(Some((restarts, job)))
}

impl Launch<'_> {
    fn start(&self, command: Process) -> Outcome {
        say!("$ {}", process::shown(&command));
        if let Some((_, job)) = &self.again {
            let file = job.directory.join(FILE);
            run_directory::write(&file, &self.script(&command)?)?;
            say!("script: {}", file.display());
            let mut bash = Process::new("bash");
            bash.arg(file);
            return replace_this_process(bash);
        }
        match self.launcher() {
            ScriptLauncher::Mpirun => {
                let mut bash = Process::new("bash");
                bash.args(["-c", &self.script(&command)?, "launch"]);
                replace_this_process(bash)
            }
            // The trainer handles signals itself.
            ScriptLauncher::None | ScriptLauncher::Srun => replace_this_process(command),
        }
    }

    fn launcher(&self) -> ScriptLauncher {
        if self.ranks > 1 || !self.hosts.is_empty() {
            ScriptLauncher::Mpirun
        } else {
            ScriptLauncher::None
        }
    }

    /// Returns the trainer, or the mpirun that starts it.
    fn command(&self, mpirun: Option<&Mpirun>, trainer: &Path) -> Outcome<Process> {
        let words = match &self.again {
            None => self.words.to_owned(),
            Some((_, job)) => {
                let directory = job.directory.to_string_lossy().into_owned();
                let own = ["--output-dir".to_owned(), directory, "--resume".to_owned()];
                std::iter::once(&job.command)
                    .chain(&job.words)
                    .chain(&own)
                    .cloned()
                    .collect()
            }
        };
        if self.launcher() != ScriptLauncher::Mpirun {
            let mut command = Process::new(trainer);
            // One rank, whatever the surrounding allocation has.
            command.args(words).env_remove(ALLOCATION);
            return Ok(command);
        }
        let mpirun = mpirun.ok_or_else(|| {
            Failure::Failed(format!(
                "{} ranks need mpirun, not found in PATH: load or install the MPI that this program was built with, or start 1 rank",
                self.ranks
            ))
        })?;
        let placement = Placement {
            ranks: self.ranks,
            hosts: self.hosts.clone(),
            cores: cores::available(),
            threads: threads(&words),
            is_polite: false,
        };
        mpirun.command(&placement, trainer, &words)
    }

    /// Returns the bash script that runs the command.
    fn script(&self, command: &Process) -> Outcome<String> {
        let line = process::shown(command);
        let restarts = self.again.as_ref().map_or(0, |(restarts, _)| *restarts);
        let start = Start {
            command: &line,
            restarts,
            launcher: self.launcher(),
        };
        let head = match &self.again {
            None => String::new(),
            Some(_) => {
                let folder = env::current_dir().map_err(|error| {
                    Failure::Failed(format!("the working directory cannot be read: {error}"))
                })?;
                format!(
                    "#!/bin/bash\n\
                     # Written by `trainer launch`. To resume the run later, run this file with bash.\n\
                     cd {} || exit 1\n",
                    process::quoted(folder),
                )
            }
        };
        let signals = self.launcher().signals();
        let head = match self.launcher() {
            ScriptLauncher::None => format!(
                "{head}unset {ALLOCATION}  # one rank, whatever the allocation around it has\n"
            ),
            ScriptLauncher::Mpirun if self.is_in_step && self.hosts.is_empty() => {
                let prefixes = mpirun::OF_A_JOB.map(|prefix| format!("${{!{prefix}@}}"));
                let prefixes = prefixes.join(" ");
                format!(
                    "{head}unset {prefixes}  # all ranks on this machine, not in the step of srun\n"
                )
            }
            ScriptLauncher::Mpirun | ScriptLauncher::Srun => head,
        };
        Ok(format!(
            "{head}say() {{ echo \"launch: $*\" >&2; }}\n{signals}{}\nexit \"$code\"\n",
            start.text()
        ))
    }
}

fn replace_this_process(mut command: Process) -> Outcome {
    let error = command.exec();
    Err(process::cannot_start(&command, &error))
}

fn hosts(list: Option<&str>) -> Outcome<Vec<String>> {
    let words = list.into_iter().flat_map(|list| list.split(','));
    let hosts: Vec<String> = words
        .filter(|host| !host.is_empty())
        .map(str::to_owned)
        .collect();
    if list.is_some() && hosts.is_empty() {
        return Err(Failure::Usage(
            "--hosts names no host: write --hosts A,B or leave it out".to_owned(),
        ));
    }
    Ok(hosts)
}

/// Returns --threads of the trainer; the trainer reports an invalid value.
fn threads(arguments: &[String]) -> Option<usize> {
    options::value_of(arguments, "--threads").and_then(|count| count.parse().ok())
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
        assert_eq!(hosts(Some("a,b:2")).unwrap(), ["a", "b:2"]);
        assert!(hosts(None).unwrap().is_empty());
        assert_eq!(hosts(Some(",")).unwrap_err().exit_code(), 2);
    }

    fn script_of(line: &str, restarts: Option<usize>) -> String {
        let words = words(line);
        let launch = Launch {
            ranks: 1,
            hosts: Vec::new(),
            words: &words,
            again: again(restarts, None, &words).unwrap(),
            is_in_step: false,
        };
        launch
            .script(&launch.command(None, Path::new("/opt/trainer")).unwrap())
            .unwrap()
    }

    #[test]
    fn a_run_that_is_started_again_has_its_directory_and_resumes() {
        let text = script_of("train --epochs 3 --output-dir /d/x", Some(2));
        assert!(
            text.starts_with("#!/bin/bash\n# Written by `trainer launch`"),
            "{text}"
        );
        assert!(
            text.contains(
                "    /opt/trainer train --epochs 3 --output-dir /d/x --resume </dev/null &\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("restarts_left=2\n") && text.ends_with("exit \"$code\"\n"),
            "{text}"
        );
    }

    #[test]
    fn no_part_of_a_directorys_name_is_a_line_of_the_script() {
        let words = ["train", "--output-dir", "/d/a\ntouch b #"].map(str::to_owned);
        let again = again(Some(1), None, &words).unwrap();
        let launch = Launch {
            ranks: 1,
            hosts: Vec::new(),
            words: &words,
            again,
            is_in_step: false,
        };
        let text = launch
            .script(&launch.command(None, Path::new("/opt/trainer")).unwrap())
            .unwrap();
        assert!(
            text.lines()
                .nth(2)
                .is_some_and(|line| line.starts_with("cd ")),
            "{text}"
        );
        assert_eq!(text.matches("touch").count(), 1, "{text}");
        assert!(
            text.contains("--output-dir '/d/a\ntouch b #' --resume </dev/null &"),
            "{text}"
        );
    }

    #[test]
    fn without_restarts_the_trainers_words_are_passed_on_as_they_are() {
        let text = script_of("eval --json", None);
        assert!(
            text.contains("    /opt/trainer eval --json </dev/null &\n"),
            "{text}"
        );
        assert!(
            !text.contains("restarts_left") && !text.contains("cd "),
            "{text}"
        );
        assert!(text.starts_with("unset SLURM_NTASKS "), "{text}");
    }

    #[test]
    fn restarts_and_names_are_refused_where_they_have_no_effect() {
        for (line, restarts, name, expected) in [
            ("eval", Some(1), None, "`eval` has none"),
            (
                "train",
                None,
                Some("x"),
                "--name has no effect without --restarts",
            ),
            ("--epochs 3", Some(1), None, "comes first"),
        ] {
            let failure = again(restarts, name, &words(line)).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            assert!(failure.to_string().contains(expected), "{failure}");
        }
    }

    #[test]
    fn several_ranks_without_mpirun_are_refused_before_anything_is_started() {
        let launch = Launch {
            ranks: 2,
            hosts: Vec::new(),
            words: &words("train"),
            again: None,
            is_in_step: false,
        };
        let failure = launch.command(None, Path::new("/opt/trainer")).unwrap_err();
        assert!(
            failure
                .to_string()
                .contains("2 ranks need mpirun, not found in PATH"),
            "{failure}"
        );
    }

    #[test]
    fn in_a_step_of_srun_ranks_start_on_this_machine_outside_of_the_step() {
        let script = |is_in_step: bool, hosts: &[&str]| {
            let launch = Launch {
                ranks: 2,
                hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
                words: &words("train"),
                again: None,
                is_in_step,
            };
            launch.script(&Process::new("mpirun")).unwrap()
        };
        let text = script(true, &[]);
        assert!(text.starts_with("unset ${!OMPI_COMM_WORLD_@}"), "{text}");
        let line = text.lines().next().unwrap();
        let check = format!(
            "SLURM_NTASKS=1 PMIX_RANK=0 SLURM=kept; export SLURM_NTASKS; {line}\necho \"$SLURM_NTASKS$PMIX_RANK$SLURM\""
        );
        assert_eq!(process::answer("bash", &["-c", &check]).unwrap(), "kept\n");
        assert!(!script(false, &[]).contains("unset"));
        assert!(!script(true, &["a", "b"]).contains("unset"));
        for (step, is_step) in [
            (Some("0"), true),
            (Some("17"), true),
            (Some("4294967291"), false),
            (None, false),
        ] {
            assert_eq!(is_step_of_srun(step), is_step, "{step:?}");
        }
    }

    #[test]
    fn the_command_comes_after_two_dashes_or_after_the_flags() {
        use clap::Parser;
        #[derive(Debug, Parser)]
        struct Program {
            #[command(flatten)]
            launch: LaunchArgs,
        }
        let read = |line: &str| {
            let words = std::iter::once("launch").chain(line.split(' '));
            Program::try_parse_from(words)
                .map(|program| program.launch)
                .map_err(|error| error.to_string())
        };
        for line in [
            "-n 3 -- train --ranks 5 -- --help",
            "-n 3 train --ranks 5 -- --help",
        ] {
            let launch = read(line).unwrap();
            assert_eq!(
                (launch.ranks, launch.words.join(" ")),
                (3, "train --ranks 5 -- --help".to_owned()),
                "{line}"
            );
        }
        assert!(
            read("-n 3 --epochs 5 -- train")
                .unwrap_err()
                .contains("--epochs")
        );
        assert!(read("-- train").unwrap_err().contains("-n"));
        assert!(read("-n 2").unwrap_err().contains("<COMMAND>"));
    }
}
