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
use crate::failure::{Outcome, failed, usage};
use crate::mpirun::{self, Mpirun, Placement};
use crate::options;
use crate::output::{self, say};
use crate::process;
use crate::restart::{ScriptLauncher, Start};
use crate::run_directory::{self, PlacedCommand};
use crate::words;

const DETAILS: &str = "\
Example: trainer launch -n 4 -- train --dataset cifar10 --epochs 10
A rank is bound to one core where it has just one, or to as many as --threads of the command says, while there are \
enough; two jobs at once on one machine would be bound to the same cores.
With --hosts this program must have the same path on every host, as on a shared file system.
SIGTERM, SIGINT (Ctrl-C) and SIGHUP (a closed terminal) stop all ranks at the same step with a checkpoint.
A second SIGTERM or SIGINT ends all ranks at once.
With --restarts a failed `train` resumes from its last checkpoint. Its directory is --output-dir, also that of --config, \
otherwise runs/NAME, and contains the script that restarts it, launch.sh.";

/// Flags of `trainer launch`.
#[derive(Debug, Clone, Args)]
#[command(after_help = DETAILS)]
pub struct LaunchArgs {
    /// Number of ranks [required]
    #[arg(short = 'n', value_name = "N", value_parser = options::count)]
    ranks: usize,

    /// Hosts, each with or without its number of ranks [default: this one]
    #[arg(long, value_name = "A,B:2", value_delimiter = ',')]
    hosts: Vec<String>,

    /// Restarts after a failure [default: 0]
    #[arg(long, value_name = "R", value_parser = options::count)]
    restarts: Option<usize>,

    /// With --restarts: name of the run's directory, runs/NAME [default: the command and the time]
    #[arg(long, value_name = "NAME", requires = "restarts")]
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
        let hosts = self.hosts()?;
        let job = self.job()?;
        let trainer = options::trainer(None)?;
        let words = job
            .as_ref()
            .map_or_else(|| self.words.clone(), PlacedCommand::to_check);
        // One error in place of one from each rank.
        words::check(&trainer, &words, self.ranks)?;
        let mut command = self.command(hosts, job.as_ref(), Mpirun::find().as_ref(), &trainer)?;
        // In a task of srun, mpirun would use the slots of the step.
        let is_in_step = is_step_of_srun(env::var(STEP).ok().as_deref());
        let script = self.script(&command, job.is_some(), is_in_step)?;
        if self.dry_run {
            return output::result(&script);
        }
        say!("$ {}", process::shown(&command));
        if let Some(job) = &job {
            let file = job.directory.join(FILE);
            run_directory::write(&file, &script)?;
            say!("script: {}", file.display());
            command = Process::new("bash");
            command.arg(file);
        } else if self.launcher() == ScriptLauncher::Mpirun {
            command = Process::new("bash");
            command.args(["-c", &script, "launch"]);
        }
        // One rank without a script handles signals by itself.
        let error = command.exec();
        Err(process::cannot_start(&command, &error))
    }

    /// Returns the hosts; a comma at the end of the list has no meaning.
    fn hosts(&self) -> Outcome<Vec<String>> {
        let named = self.hosts.iter().filter(|host| !host.is_empty());
        let hosts: Vec<String> = named.cloned().collect();
        if hosts.is_empty() && !self.hosts.is_empty() {
            return Err(usage!(
                "--hosts names no host: write --hosts A,B or leave it out"
            ));
        }
        if hosts.len() > self.ranks {
            return Err(usage!(
                "--hosts: expected at most {} for {}, got {}",
                records::counted(self.ranks, "host"),
                records::counted(self.ranks, "rank"),
                hosts.len()
            ));
        }
        Ok(hosts)
    }

    /// Returns the run to restart; without restarts the words are passed unchanged.
    fn job(&self) -> Outcome<Option<PlacedCommand>> {
        if self.restarts.is_none() {
            return Ok(None);
        }
        let job = PlacedCommand::read(&self.words, self.name.as_deref())?;
        job.check_only_for_training("--restarts", true)?;
        Ok(Some(job))
    }

    fn launcher(&self) -> ScriptLauncher {
        match self.ranks > 1 || !self.hosts.is_empty() {
            true => ScriptLauncher::Mpirun,
            false => ScriptLauncher::None,
        }
    }

    /// Returns the trainer, or the mpirun that starts it.
    fn command(
        &self,
        hosts: Vec<String>,
        job: Option<&PlacedCommand>,
        mpirun: Option<&Mpirun>,
        trainer: &Path,
    ) -> Outcome<Process> {
        let words = match job {
            None => self.words.clone(),
            Some(job) => {
                let directory = job.directory.to_string_lossy().into_owned();
                let own = ["--output-dir".to_owned(), directory, "--resume".to_owned()];
                [std::slice::from_ref(&job.command), &job.words, &own].concat()
            }
        };
        if self.launcher() != ScriptLauncher::Mpirun {
            let mut command = Process::new(trainer);
            // One rank, whatever the surrounding allocation has.
            command.args(words).env_remove(ALLOCATION);
            return Ok(command);
        }
        let placement = Placement {
            ranks: self.ranks,
            hosts,
            cores: cores::available(),
            // The trainer reports an invalid value.
            threads: options::value_of(&words, "--threads").and_then(|count| count.parse().ok()),
            is_polite: false,
        };
        Mpirun::needed(mpirun)?.command(&placement, trainer, &words)
    }

    /// Returns the bash script that runs the command.
    fn script(&self, command: &Process, restarts: bool, is_in_step: bool) -> Outcome<String> {
        let launcher = self.launcher();
        let mut text = String::new();
        if restarts {
            let folder = env::current_dir()
                .map_err(|error| failed!("the working directory cannot be read: {error}"))?;
            text.push_str(&format!(
                "#!/bin/bash\n\
                 # Written by `trainer launch`. To resume the run later, run this file with bash.\n\
                 cd {} || exit 1\n",
                process::quoted(folder),
            ));
        }
        if launcher == ScriptLauncher::None {
            text.push_str(&format!(
                "unset {ALLOCATION}  # one rank, whatever the allocation around it has\n"
            ));
        } else if is_in_step && self.hosts.is_empty() {
            let prefixes = mpirun::OF_A_JOB.map(|prefix| format!("${{!{prefix}@}}"));
            text.push_str(&format!(
                "unset {}  # all ranks on this machine, not in the step of srun\n",
                prefixes.join(" ")
            ));
        }
        let start = Start {
            command: &process::shown(command),
            restarts: self.restarts.unwrap_or(0),
            launcher,
        };
        let signals = launcher.signals();
        let start = start.text();
        Ok(format!(
            "{text}say() {{ echo \"launch: $*\" >&2; }}\n{signals}{start}\nexit \"$code\"\n"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::path::PathBuf;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        launch: LaunchArgs,
    }

    fn args(words: &[&str]) -> Outcome<LaunchArgs> {
        let words = std::iter::once(&"launch").chain(words);
        match CommandLine::try_parse_from(words) {
            Ok(line) => Ok(line.launch),
            Err(error) => Err(usage!("{error}")),
        }
    }

    fn script(words: &[&str], is_in_step: bool) -> Outcome<String> {
        let args = args(words)?;
        let hosts = args.hosts()?;
        let job = args.job()?;
        let mpirun = Mpirun {
            program: PathBuf::from("mpirun"),
            make: mpirun::Make::Other,
            version: "X".to_owned(),
        };
        let trainer = Path::new("/opt/trainer");
        let command = args.command(hosts, job.as_ref(), Some(&mpirun), trainer)?;
        args.script(&command, job.is_some(), is_in_step)
    }

    #[test]
    fn a_run_with_restarts_has_its_directory_and_resumes() {
        let line = [
            "-n1",
            "--restarts",
            "2",
            "--",
            "train",
            "--output-dir",
            "/d/a\ntouch b #",
        ];
        let text = script(&line, false).unwrap();
        assert!(
            text.starts_with("#!/bin/bash\n# Written by `trainer launch`"),
            "{text}"
        );
        let third = text.lines().nth(2).unwrap();
        assert!(third.starts_with("cd "), "{text}");
        let run = "    /opt/trainer train --output-dir '/d/a\ntouch b #' --resume </dev/null &\n";
        assert!(text.contains(run), "{text}");
        assert_eq!(text.matches("touch").count(), 1, "{text}");
        assert!(
            text.contains("restarts_left=2\n") && text.ends_with("exit \"$code\"\n"),
            "{text}"
        );
    }

    #[test]
    fn without_restarts_the_words_of_the_trainer_are_unchanged() {
        let text = script(&["-n1", "--", "eval", "--json"], false).unwrap();
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
    fn flags_without_effect_and_missing_programs_are_refused() {
        for (line, expected) in [
            (
                &["-n1", "--restarts", "1", "--", "eval"][..],
                "`eval` has none",
            ),
            (&["-n1", "--name", "x", "--", "train"], "--restarts"),
            (&["-n1", "--restarts", "1", "--", "--epochs"], "comes first"),
            (
                &["-n1", "--hosts", ",", "--", "train"],
                "--hosts names no host",
            ),
            (
                &["-n1", "--hosts", "a,b", "--", "train"],
                "--hosts: expected at most 1 host for 1 rank, got 2",
            ),
        ] {
            let failure = script(line, false).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            assert!(failure.to_string().contains(expected), "{failure}");
        }
        let two = args(&["-n2", "--", "train"]).unwrap();
        let failure = two.command(Vec::new(), None, None, Path::new("/opt/trainer"));
        let text = failure.unwrap_err().to_string();
        assert!(text.contains("need mpirun, not found in PATH"), "{text}");
    }

    #[test]
    fn a_list_of_hosts_may_end_with_a_comma() {
        let hosts = |list: &str| args(&["-n2", "--hosts", list, "--", "train"])?.hosts();
        assert_eq!(hosts("a,b:2").unwrap(), ["a", "b:2"]);
        assert_eq!(hosts("a,b,").unwrap(), ["a", "b"]);
    }

    #[test]
    fn in_a_step_of_srun_ranks_start_on_this_machine_outside_of_the_step() {
        let text = script(&["-n2", "--", "train"], true).unwrap();
        assert!(text.starts_with("unset ${!OMPI_COMM_WORLD_@}"), "{text}");
        let line = text.lines().next().unwrap();
        let check = format!(
            "SLURM_NTASKS=1 PMIX_RANK=0 SLURM=kept; export SLURM_NTASKS; {line}\necho \"$SLURM_NTASKS$PMIX_RANK$SLURM\""
        );
        assert_eq!(process::answer("bash", &["-c", &check]).unwrap(), "kept\n");
        // Outside, and over hosts, the variables are mpirun's own.
        let on_hosts = ["-n2", "--hosts", "a,b:2", "--", "train"];
        for (is_in_step, words) in [(false, &["-n2", "--", "train"][..]), (true, &on_hosts)] {
            let text = script(words, is_in_step).unwrap();
            assert!(!text.contains("unset"), "{text}");
        }
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
        for line in [
            "-n 3 -- train --ranks 5 -- --help",
            "-n 3 train --ranks 5 -- --help",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let launch = args(&words).unwrap();
            assert_eq!(launch.ranks, 3, "{line}");
            assert_eq!(launch.words.join(" "), "train --ranks 5 -- --help");
        }
        for (line, expected) in [
            ("-n 3 --epochs 5 -- train", "--epochs"),
            ("-- train", "-n"),
            ("-n 2", "<COMMAND>"),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let refusal = args(&words).unwrap_err().to_string();
            assert!(refusal.contains(expected), "{refusal}");
        }
    }
}
