//! A run on this machine: its processes started on their own cores, and watched.
//!
//! In: an [`Attempt`]. Out: [`Ended`].
//! Invariant: a run starts when the machine is quiet or patience has ended; the end of this program
//! ends the run. Under each launcher a rank has its own cores where there are enough: mpirun and
//! srun bind it, taskset binds plain processes, an agent those of emulated hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use records::Status;

use crate::attempt::{Attempt, Ended, measured_unix_s};
use crate::cell::{Cell, Place, RankLauncher};
use crate::file::{Kind, StudyFile};
use crate::machine;
use crate::peers::{self, Peers, RANK};
use crate::processes::{Failed, OUTPUT, Processes};
use crate::quiet::{self, Quiet, Watch};
use cluster::cores;
use cluster::failure::{Failure, Outcome};
use cluster::hosts::{Hosts, Rate};
use cluster::mpirun::{self, Mpirun, Placement};
use cluster::run_directory;

/// Starts runs and keeps what they share.
pub(crate) struct Local<'a> {
    pub(crate) file: &'a StudyFile,
    trainer: &'a Path,
    /// Directory of the study.
    directory: &'a Path,
    mpirun: Option<Mpirun>,
    checks_quiet: bool,
    /// Emulated hosts, kept between runs, with their rate.
    hosts: Option<(Hosts, Option<Rate>)>,
    pub(crate) peers: Option<Peers>,
}

impl<'a> Local<'a> {
    pub(crate) fn new(
        file: &'a StudyFile,
        trainer: &'a Path,
        directory: &'a Path,
        checks_quiet: bool,
    ) -> Self {
        Local {
            file,
            trainer,
            directory,
            mpirun: Mpirun::find(),
            checks_quiet,
            hosts: None,
            peers: None,
        }
    }

    /// Runs an attempt; also returns the exit code.
    pub(crate) fn run(&mut self, attempt: &Attempt<'_>) -> Outcome<(Ended, Option<i32>)> {
        let directory = attempt.make_directory(self.directory)?;
        let processes = match self.processes(attempt, &directory)? {
            Ok(processes) => processes,
            Err(why) => return Ok((Ended::failed(why), Some(1))),
        };
        let command = processes.shown();
        let mark = attempt.mark(&self.file.name);
        let before = self.wait_for_quiet();
        let watch = Watch::start(&mark)?;
        let started = machine::now();
        let start = Instant::now();
        let limit = Duration::from_secs(self.file.limit_s as u64);
        let ended = processes.run(&directory, limit, &mark);
        let seconds = start.elapsed().as_secs_f64();
        let looks = watch.finish();
        let output = fs::read(directory.join(OUTPUT)).unwrap_or_default();
        let result = attempt.result(&directory, &String::from_utf8_lossy(&output));
        let seen = looks.seen(result.as_ref().ok().and_then(measured_unix_s));
        let (outcome, code) = match (ended?, result) {
            (Ok(()), Ok(result)) => (Ok(result), Some(0)),
            (Ok(()), Err(why)) => (Err(why), Some(0)),
            (Err(Failed { code, why }), _) => (Err(why), code),
        };
        let ended = match outcome {
            Ok(result) => {
                let why = self.disturbance(&seen.quiet);
                Ended {
                    status: if why.is_some() {
                        Status::Disturbed
                    } else {
                        Status::Ok
                    },
                    why,
                    result,
                    ..Ended::default()
                }
            }
            Err(why) => Ended::failed(why),
        };
        let ended = Ended {
            started,
            seconds: Some(seconds),
            command,
            quiet: Some(quiet::record(Some(before), &seen, self.limit_cores())),
            ..ended
        };
        Ok((ended, code))
    }

    /// Returns how busy the machine is, after waiting for others if the study checks that.
    pub(crate) fn wait_for_quiet(&self) -> Quiet {
        let patience = match self.checks_quiet {
            true => self.file.quiet_patience_s as u64,
            false => 0,
        };
        quiet::wait(self.file.quiet_cores, Duration::from_secs(patience))
    }

    /// Returns why a run does not count, if others disturbed it.
    pub(crate) fn disturbance(&self, during: &Quiet) -> Option<String> {
        let limit = self.file.quiet_cores;
        (self.checks_quiet && during.cores() > limit).then(|| {
            format!(
                "other processes used {:.2} cores and other virtual machines {:.2} (expected at most {limit} together)",
                during.other_cores, during.steal_cores
            )
        })
    }

    /// Limit of the use by others; without a check there is none.
    pub(crate) fn limit_cores(&self) -> Option<f64> {
        self.checks_quiet.then_some(self.file.quiet_cores)
    }

    /// Returns the reason why a cell of another framework cannot be run.
    pub(crate) fn gap(&self, cell: &Cell) -> Option<String> {
        self.peers.as_ref()?.gap(cell)
    }

    /// Prepares the processes of an attempt; the inner error is the reason why a peer cannot start.
    fn processes(
        &mut self,
        attempt: &Attempt<'_>,
        directory: &Path,
    ) -> Outcome<Result<Processes, String>> {
        let cell = attempt.cell;
        let mut words = attempt.words(directory);
        if cell.peer().is_none() {
            if cell.framework.is_some() && cell.kind == Kind::Train {
                let job = self.job(cell, attempt.seed())?;
                let weights = job.join("weights.safetensors");
                words.extend(["--weights".to_owned(), weights.display().to_string()]);
            }
            let trainer = self.trainer.to_owned();
            let ranks = self.ranks(cell, &trainer, &words)?;
            return Ok(Ok(Processes {
                ranks,
                ..Processes::default()
            }));
        }
        let environment = match cell.chosen.environment() {
            Ok(environment) => environment,
            Err(why) => return Ok(Err(why)),
        };
        let job = self.job(cell, attempt.seed())?;
        if let Place::Hosts { rate, hosts } = cell.place {
            self.emulated(hosts, rate)?;
        }
        let hosts = match cell.place {
            Place::Hosts { .. } => self.hosts.as_ref().map(|(hosts, _)| hosts),
            _ => None,
        };
        let Some(peers) = &self.peers else {
            return Ok(Err("other frameworks are left out".to_owned()));
        };
        let (python, words) = peers.words(cell, &words, &job, directory, hosts)?;
        let mut processes = Processes {
            ranks: self.ranks(cell, &python, &words)?,
            servers: Peers::servers(cell, &python, &words),
        };
        let all = processes.ranks.iter_mut().chain(&mut processes.servers);
        for command in all {
            command.envs(environment.iter().map(|(name, value)| (name, value)));
            // A thread of Horovod shares the rank's core: busy waiting would take the core from the
            // training.
            command.env("OMPI_MCA_mpi_yield_when_idle", "1");
        }
        Ok(Ok(processes))
    }

    /// Returns the folder with the weights and batches of a comparison, written if they are absent.
    fn job(&mut self, cell: &Cell, seed: u64) -> Outcome<PathBuf> {
        let name = format!(
            "{}-b{}-r{}-s{seed}",
            cell.setting("model"),
            cell.setting("batch_size_per_rank"),
            cell.ranks
        );
        let folder = self.directory.join("jobs").join(name);
        // Written last by root.
        let last = folder.join(format!("batches-rank{}.safetensors", cell.ranks - 1));
        if folder.join("job.json").exists() && last.exists() {
            return Ok(folder);
        }
        run_directory::fresh(&folder)?;
        let words = peers::job_words(cell, seed, &folder);
        let trainer = self.trainer.to_owned();
        let ours = Cell {
            place: Place::Machine,
            ..cell.as_ours()
        };
        let processes = Processes {
            ranks: self.ranks(&ours, &trainer, &words)?,
            ..Processes::default()
        };
        let limit = Duration::from_secs(self.file.limit_s as u64);
        match processes.run(&folder, limit, &self.file.name)? {
            Ok(()) => Ok(folder),
            Err(failed) => Err(Failure::Failed(format!(
                "{}: cannot write the job of a comparison: {}",
                folder.display(),
                failed.why
            ))),
        }
    }

    /// Prepares the processes of all ranks of a program.
    fn ranks(&mut self, cell: &Cell, program: &Path, words: &[String]) -> Outcome<Vec<Command>> {
        let mut commands = match (&cell.place, cell.launcher()) {
            (Place::Hosts { rate, hosts }, _) => {
                self.emulated(*hosts, *rate)?;
                let mpirun = Mpirun::needed(self.mpirun.as_ref())?;
                let hosts = self.hosts.as_ref().map(|(hosts, _)| hosts);
                let hosts = hosts.ok_or_else(|| Failure::Failed("no emulated hosts".to_owned()))?;
                vec![hosts.command(mpirun, cell.world_size, program, words)?]
            }
            (Place::Slurm { .. }, _) => {
                let text = format!("{}: a job of Slurm is no local run", cell.id);
                return Err(Failure::Failed(text));
            }
            (Place::Machine, RankLauncher::Srun) => {
                return Ok(vec![self.srun(cell, program, words)]);
            }
            (Place::Machine, RankLauncher::Mpirun) => {
                let placement = Placement {
                    ranks: cell.world_size,
                    hosts: Vec::new(),
                    cores: cores::available(),
                    threads: Some(cell.threads),
                    is_polite: false,
                };
                let mpirun = Mpirun::needed(self.mpirun.as_ref())?;
                vec![mpirun.command(&placement, program, words)?]
            }
            (Place::Machine, RankLauncher::Plain) => (0..cell.world_size)
                .map(|rank| plain(cell, program, words, rank))
                .collect(),
        };
        commands.iter_mut().for_each(mpirun::forget_surrounding_job);
        Ok(commands)
    }

    fn srun(&self, cell: &Cell, program: &Path, words: &[String]) -> Command {
        let kind = self.mpirun.as_ref().map_or("pmix", Mpirun::srun_kind);
        let mut command = Command::new("srun");
        command.arg(format!("--mpi={kind}"));
        // On one machine: ranks of other frameworks meet at its own address.
        command.args(["--input=none", "--kill-on-bad-exit=1", "--nodes=1"]);
        command.args([
            format!("--ntasks={}", cell.world_size),
            format!("--cpus-per-task={}", cell.threads),
        ]);
        command.arg("--cpu-bind=cores").arg(program).args(words);
        command
    }

    /// Makes emulated hosts of this number and rate, or keeps those that are up.
    fn emulated(&mut self, count: usize, rate: Rate) -> Outcome {
        let is_fitting = |(hosts, _): &(Hosts, Option<Rate>)| hosts.count() == count;
        if !self.hosts.as_ref().is_some_and(is_fitting) {
            // The old ones go before the new ones come.
            self.hosts = None;
            self.hosts = Some((Hosts::up(count)?, None));
        }
        if let Some((hosts, set)) = &mut self.hosts
            && *set != Some(rate)
        {
            hosts.set_rate(rate)?;
            *set = Some(rate);
        }
        Ok(())
    }
}

/// Prepares one rank of several plain processes.
fn plain(cell: &Cell, program: &Path, words: &[String], rank: usize) -> Command {
    // Either all have their own cores or none has.
    let is_pinned = cell.world_size * cell.threads <= cores::available();
    let mut command = match is_pinned {
        true => cores::pinned(program, rank, cell.threads),
        false => Command::new(program),
    };
    command.args(words);
    if cell.peer().is_some() {
        command.env(RANK, rank.to_string());
    }
    command
}

/// Prepares the trainer as one rank on the cores of its place, outside of any surrounding job.
pub(crate) fn alone(trainer: &Path, words: &[String], place: usize, threads: usize) -> Command {
    let mut command = cores::pinned(trainer, place, threads);
    command.args(words);
    mpirun::forget_surrounding_job(&mut command);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::study;
    use cluster::process::shown;

    /// The lines of a cell's ranks under a launcher, without and with an mpirun.
    fn lines(text: &str) -> Vec<String> {
        let text = format!("[[matrix]]\nbatch_size_per_rank = 8\n{text}");
        let (file, cells) = study(&text).unwrap();
        let mut local = Local::new(&file, Path::new("trainer"), Path::new("/study"), false);
        local.mpirun = None;
        let words = ["word".to_owned()];
        match local.ranks(&cells[0], Path::new("program"), &words) {
            Ok(commands) => commands.iter().map(shown).collect(),
            Err(failure) => vec![failure.to_string()],
        }
    }

    #[test]
    fn each_launcher_starts_the_ranks_its_own_way() {
        let plain = lines("framework = \"pytorch\"\nranks = 2\nthreads = 1000\n");
        let expected = [0, 1].map(|rank| format!("LOCKSTEP_PEER_RANK={rank} program word"));
        assert_eq!(plain, expected);
        for needs_mpi in ["framework = \"horovod\"\nranks = 2\n", "ranks = 2\n"] {
            assert!(lines(needs_mpi)[0].contains("mpirun"));
        }
        let srun = "framework = \"lockstep\"\nlauncher = \"srun\"\nranks = 2\nthreads = 3\n";
        let line = &lines(srun)[0];
        let is_srun = line.contains("srun --mpi=pmix --input=none");
        assert!(
            is_srun && line.contains("--ntasks=2 --cpus-per-task=3"),
            "{line}"
        );
        assert!(line.ends_with("program word"), "{line}");
        let one = lines("threads = 1000\n");
        assert_eq!(one, ["program word"], "one rank of ours needs no mpirun");
        let on_host = "framework = \"pytorch\"\nnetwork = \"hosts:1gbit\"\nthreads = 1000\n";
        let one = lines(on_host);
        assert_eq!(
            one,
            ["LOCKSTEP_PEER_RANK=0 program word"],
            "one rank needs no host"
        );
    }
}
