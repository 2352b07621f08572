//! Runs of attempts: their processes on their own cores, observed.
//!
//! In: an [`Attempt`]. Out: its record.
//! Invariant: a run starts when the machine is quiet or patience has ended; the end of this program
//! ends the run. Under each launcher a rank has its own cores where there are enough: mpirun and
//! srun bind it, taskset binds plain processes, an agent those of emulated hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use records::{AttemptRecord, Status};
use serde_json::Value;

use crate::attempt::Attempt;
use crate::cell::{Cell, Place, RankLauncher};
use crate::file::{Kind, StudyFile};
use crate::peers::{Peers, RANK};
use crate::processes::{Failed, OUTPUT, Processes};
use crate::quiet::{self, Looks, OtherUse, Watch};
use cluster::cores;
use cluster::failure::{Outcome, failed};
use cluster::hosts::{Hosts, Rate};
use cluster::mpirun::{self, Mpirun, Placement};
use cluster::run_directory;

/// Starts runs and keeps what they share.
pub(crate) struct Runs<'a> {
    pub(crate) file: &'a StudyFile,
    pub(crate) trainer: &'a Path,
    /// Directory of the study.
    pub(crate) directory: &'a Path,
    checks_quiet: bool,
    mpirun: Option<Mpirun>,
    /// Emulated hosts with their rate, kept between runs.
    hosts: Option<(Hosts, Rate)>,
    pub(crate) peers: Option<Peers>,
}

impl<'a> Runs<'a> {
    pub(crate) fn new(
        file: &'a StudyFile,
        trainer: &'a Path,
        directory: &'a Path,
        checks_quiet: bool,
    ) -> Self {
        Runs {
            file,
            trainer,
            directory,
            checks_quiet,
            mpirun: Mpirun::find(),
            hosts: None,
            peers: None,
        }
    }

    /// Runs an attempt; returns its record, and whether another attempt would fail in the same way.
    pub(crate) fn run(&mut self, attempt: &Attempt<'_>) -> Outcome<(AttemptRecord, bool)> {
        let mut record = attempt.record();
        if let Some(gap) = self.gap(attempt.cell) {
            record.why = Some(gap);
            return Ok((record, true));
        }
        let directory = self.directory.join(attempt.directory());
        if attempt.cell.is_job() {
            return Ok((self.run_job(attempt, &directory)?, false));
        }
        run_directory::fresh(&directory)?;
        let processes = self.processes(attempt, &directory)?;
        record.command = processes.shown();
        let mark = attempt.mark(&self.file.name);
        let before = self.wait_for_quiet();
        record.started = Some(records::now());
        let (ended, duration, looks) = self.observed(processes, &directory, &mark)?;
        record.seconds = Some((duration.as_secs_f64() * 1e3).round() / 1e3);
        let output = fs::read(directory.join(OUTPUT)).unwrap_or_default();
        let result = attempt.result(&directory, &String::from_utf8_lossy(&output));
        let is_wrong_usage = ended.as_ref().err().and_then(|end| end.code) == Some(2);
        let result = ended
            .map_err(|failed| failed!("{}", failed.why))
            .and(result);
        self.judge(&mut record, result, Some((before, looks)));
        Ok((record, is_wrong_usage))
    }

    /// Adds result, status and use of the machine by others to a record.
    pub(crate) fn judge(
        &self,
        record: &mut AttemptRecord,
        result: Outcome<Value>,
        looks: Option<(OtherUse, Looks)>,
    ) {
        let measured = result.as_ref().ok().and_then(|result| {
            serde_json::from_value::<[f64; 2]>(result["measured_unix_s"].clone()).ok()
        });
        let seen = looks.map(|(before, looks)| (before, looks.seen(measured)));
        match result {
            Ok(result) => {
                record.why = seen
                    .as_ref()
                    .and_then(|(_, seen)| self.disturbance(&seen.quiet));
                record.status = match record.why {
                    Some(_) => Status::Disturbed,
                    None => Status::Ok,
                };
                record.result = result;
            }
            Err(why) => record.why = Some(why.to_string()),
        }
        let limit_cores = self.checks_quiet.then_some(self.file.quiet_cores);
        record.quiet = seen.map(|(before, seen)| quiet::record(before, &seen, limit_cores));
    }

    /// Runs processes and observes the machine; also returns the duration of the processes.
    pub(crate) fn observed(
        &self,
        processes: Processes,
        folder: &Path,
        mark: &str,
    ) -> Outcome<(Result<(), Failed>, Duration, Looks)> {
        let watch = Watch::start(mark)?;
        let start = Instant::now();
        let ended = processes.run(folder, self.limit(), mark);
        let duration = start.elapsed();
        let looks = watch.finish();
        Ok((ended?, duration, looks))
    }

    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.file.limit_s as u64)
    }

    /// Returns how busy the machine is, after waiting for others if the study checks that.
    pub(crate) fn wait_for_quiet(&self) -> OtherUse {
        let patience = match self.checks_quiet {
            true => self.file.quiet_patience_s as u64,
            false => 0,
        };
        quiet::wait(self.file.quiet_cores, Duration::from_secs(patience))
    }

    /// Returns why a run does not count, if others disturbed it.
    pub(crate) fn disturbance(&self, during: &OtherUse) -> Option<String> {
        let limit = self.file.quiet_cores;
        (self.checks_quiet && during.cores() > limit).then(|| {
            format!(
                "other processes used {:.2} cores and other virtual machines {:.2} (expected at most {limit} together)",
                during.other_cores, during.steal_cores
            )
        })
    }

    /// Returns the reason why a cell of another framework cannot be run.
    pub(crate) fn gap(&self, cell: &Cell) -> Option<String> {
        self.peers.as_ref()?.gap(cell)
    }

    fn processes(&mut self, attempt: &Attempt<'_>, directory: &Path) -> Outcome<Processes> {
        let cell = attempt.cell;
        let mut words = attempt.words(directory);
        let Some(peer) = cell.peer() else {
            if cell.framework.is_some() && cell.kind == Kind::Train {
                let weights = self.job(cell, attempt.seed())?.join("weights.safetensors");
                words.extend(["--weights".to_owned(), weights.display().to_string()]);
            }
            return Ok(Processes {
                ranks: self.ranks(cell, self.trainer, &words)?,
                servers: Vec::new(),
            });
        };
        let job = self.job(cell, attempt.seed())?;
        let environment = cell.chosen.environment()?;
        let Some(peers) = &self.peers else {
            return Err(failed!("other frameworks are left out"));
        };
        let (python, words) = peers.words(cell, peer, &words, &job, directory)?;
        let mut processes = Processes {
            ranks: self.ranks(cell, &python, &words)?,
            servers: Peers::servers(cell, &python, &words),
        };
        for command in processes.ranks.iter_mut().chain(&mut processes.servers) {
            command.envs(environment.iter().map(|(name, value)| (name, value)));
            // A thread of Horovod shares the rank's core: busy waiting would take the core from the
            // training.
            command.env("OMPI_MCA_mpi_yield_when_idle", "1");
        }
        Ok(processes)
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
        let mut ours = cell.as_ours();
        ours.place = Place::Machine;
        let mut words = cell.bench_words(&[
            ("device", "flex".to_owned()),
            ("dtype", "f32".to_owned()),
            ("seed", seed.to_string()),
            ("steps", "1".to_owned()),
            ("warmup_steps", "0".to_owned()),
        ]);
        words.extend(["--export-job".to_owned(), folder.display().to_string()]);
        let processes = Processes {
            ranks: self.ranks(&ours, self.trainer, &words)?,
            servers: Vec::new(),
        };
        match processes.run(&folder, self.limit(), &self.file.name)? {
            Ok(()) => Ok(folder),
            Err(failed) => Err(failed!(
                "{}: cannot write the job of a comparison: {}",
                folder.display(),
                failed.why
            )),
        }
    }

    /// Prepares the processes of all ranks of a program.
    fn ranks(&mut self, cell: &Cell, program: &Path, words: &[String]) -> Outcome<Vec<Command>> {
        let mut commands = match (&cell.place, cell.launcher()) {
            (Place::Hosts { rate, hosts }, _) => {
                let mpirun = Mpirun::needed(self.mpirun.as_ref())?.clone();
                let hosts = self.emulated(*hosts, *rate)?;
                vec![hosts.command(&mpirun, cell.world_size, program, words)?]
            }
            (_, RankLauncher::Srun) => {
                let kind = self.mpirun.as_ref().map_or("pmix", Mpirun::srun_kind);
                let mut command = Command::new("srun");
                command.arg(format!("--mpi={kind}"));
                // On one machine: ranks of other frameworks meet at its own address.
                command.args(["--input=none", "--kill-on-bad-exit=1", "--nodes=1"]);
                command.arg(format!("--ntasks={}", cell.world_size));
                command.arg(format!("--cpus-per-task={}", cell.threads));
                command.arg("--cpu-bind=cores").arg(program).args(words);
                return Ok(vec![command]);
            }
            (_, RankLauncher::Mpirun) => {
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
            (_, RankLauncher::Plain) => {
                // Either all have their own cores or none has.
                let is_pinned = cell.world_size * cell.threads <= cores::available();
                let plain = |rank: usize| {
                    let mut command = match is_pinned {
                        true => cores::pinned(program, rank, cell.threads),
                        false => Command::new(program),
                    };
                    command.args(words);
                    if cell.peer().is_some() {
                        command.env(RANK, rank.to_string());
                    }
                    command
                };
                (0..cell.world_size).map(plain).collect()
            }
        };
        commands.iter_mut().for_each(mpirun::forget_surrounding_job);
        Ok(commands)
    }

    /// Returns emulated hosts of this number and rate, made unless they are up.
    fn emulated(&mut self, count: usize, rate: Rate) -> Outcome<&Hosts> {
        let (hosts, set) = match self.hosts.take() {
            Some((hosts, set)) if hosts.count() == count => (hosts, Some(set)),
            others => {
                // The old ones go before the new ones come.
                drop(others);
                (Hosts::up(count)?, None)
            }
        };
        if set != Some(rate) {
            hosts.set_rate(rate)?;
        }
        let (hosts, _) = self.hosts.insert((hosts, rate));
        Ok(hosts)
    }
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

    /// Returns the command lines of a cell's ranks without mpirun, or the refusal.
    fn lines(text: &str) -> Vec<String> {
        let text = format!("[[matrix]]\nbatch_size_per_rank = 8\n{text}");
        let (file, cells) = study(&text).unwrap();
        let mut runs = Runs::new(&file, Path::new("trainer"), Path::new("/study"), false);
        runs.mpirun = None;
        let words = ["word".to_owned()];
        match runs.ranks(&cells[0], Path::new("program"), &words) {
            Ok(commands) => commands.iter().map(shown).collect(),
            Err(failure) => vec![failure.to_string()],
        }
    }

    #[test]
    fn each_launcher_starts_the_ranks_its_own_way() {
        for (text, expected) in [
            (
                "framework = \"pytorch\"\nranks = 2\nthreads = 1000\n",
                &[
                    "LOCKSTEP_PEER_RANK=0 program word",
                    "LOCKSTEP_PEER_RANK=1 program word",
                ][..],
            ),
            ("threads = 1000\n", &["program word"]),
            (
                "framework = \"pytorch\"\nnetwork = \"hosts:1gbit\"\nthreads = 1000\n",
                &["LOCKSTEP_PEER_RANK=0 program word"],
            ),
            (
                "framework = \"lockstep\"\nlauncher = \"srun\"\nranks = 2\nthreads = 3\n",
                &[
                    "srun --mpi=pmix --input=none --kill-on-bad-exit=1 --nodes=1 --ntasks=2 \
                    --cpus-per-task=3 --cpu-bind=cores program word",
                ],
            ),
        ] {
            assert_eq!(lines(text), expected, "{text}");
        }
        for needs_mpi in ["framework = \"horovod\"\nranks = 2\n", "ranks = 2\n"] {
            assert!(lines(needs_mpi)[0].contains("mpirun"));
        }
    }
}
