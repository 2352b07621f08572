//! A run on this machine: alone on cores of its own, under mpirun, or on emulated hosts; watched while it lasts.
//!
//! In: an [`Attempt`]. Out: [`Came`].
//! Invariant: a run starts when the machine is quiet or patience has ended; whatever ends us ends the run with all its ranks.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use records::Status;
use serde_json::Value;

use super::attempt::{Attempt, Came, last_words, measured_unix_s};
use super::cell::{Cell, Place};
use super::file::StudyFile;
use crate::machine;
use crate::quiet::{self, MARK, Quiet, Watch};
use cluster::cores;
use cluster::failure::{Failure, Outcome};
use cluster::guard::{Guarded, said};
use cluster::hosts::{Hosts, Rate};
use cluster::mpirun::{self, Mpirun, Placement};
use cluster::process;

/// Starts runs and keeps what they share.
pub(super) struct Local<'a> {
    file: &'a StudyFile,
    trainer: &'a Path,
    mpirun: Option<&'a Mpirun>,
    checks_quiet: bool,
    /// Kept between runs, with the rate that was set last.
    hosts: Option<(Hosts, Option<Rate>)>,
}

impl<'a> Local<'a> {
    pub(super) fn new(
        file: &'a StudyFile,
        trainer: &'a Path,
        mpirun: Option<&'a Mpirun>,
        checks_quiet: bool,
    ) -> Self {
        Local {
            file,
            trainer,
            mpirun,
            checks_quiet,
            hosts: None,
        }
    }

    /// Runs it; `study` is the study's directory. Also the exit code.
    pub(super) fn run(
        &mut self,
        attempt: &Attempt<'_>,
        study: &Path,
    ) -> Outcome<(Came, Option<i32>)> {
        let directory = attempt.make_directory(study)?;
        let mut command = self.command(attempt.cell, &attempt.words(&directory))?;
        let shown = process::shown(&command);
        let mark = attempt.mark(&self.file.name);
        command.env(MARK, &mark);
        let before = self.wait_for_quiet();
        let (watch, started, start) = (Watch::start(&mark)?, machine::now(), Instant::now());
        let log = directory.join("output.log");
        let ended = Guarded::start_apart(&command, &log)?
            .finish(Duration::from_secs(self.file.limit_s as u64));
        let (seconds, looks, code) = (start.elapsed().as_secs_f64(), watch.finish(), ended?);
        let output = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
        let result = attempt.result(&directory, &output);
        let seen = looks.seen(result.as_ref().ok().and_then(measured_unix_s));
        let (status, why, result) = match (code, result) {
            (Some(0), Ok(result)) => {
                let why = self.disturbance(&seen.quiet);
                (
                    if why.is_some() {
                        Status::Disturbed
                    } else {
                        Status::Ok
                    },
                    why,
                    result,
                )
            }
            (Some(0), Err(text)) => (Status::Failed, Some(text), Value::Null),
            (Some(code), _) => (
                Status::Failed,
                Some(format!("exit code {code}: {}", last_words(&said(&log)))),
                Value::Null,
            ),
            (None, _) => {
                let how = format!(
                    "ended by a signal or after the limit of {} s",
                    self.file.limit_s
                );
                (
                    Status::Failed,
                    Some(format!("{how}: {}", last_words(&said(&log)))),
                    Value::Null,
                )
            }
        };
        let quiet = Some(quiet::record(Some(before), &seen, self.limit_cores()));
        Ok((
            Came {
                status,
                why,
                started,
                seconds: Some(seconds),
                command: shown,
                quiet,
                result,
            },
            code,
        ))
    }

    /// Nobody else is waited for where nobody checks.
    pub(super) fn wait_for_quiet(&self) -> Quiet {
        let patience = if self.checks_quiet {
            self.file.quiet_patience_s as u64
        } else {
            0
        };
        quiet::wait(self.file.quiet_cores, Duration::from_secs(patience))
    }

    /// Why the run does not count, if others were in its way.
    pub(super) fn disturbance(&self, during: &Quiet) -> Option<String> {
        let limit = self.file.quiet_cores;
        (self.checks_quiet && during.cores() > limit).then(|| {
            format!(
                "other processes took {:.2} cores and other machines {:.2} of this one's, expected at most {limit} together",
                during.other_cores, during.steal_cores
            )
        })
    }

    pub(super) fn study_name(&self) -> &str {
        &self.file.name
    }

    /// What others may take; without a check there is no limit.
    pub(super) fn limit_cores(&self) -> Option<f64> {
        self.checks_quiet.then_some(self.file.quiet_cores)
    }

    /// The command of a cell of this machine.
    fn command(&mut self, cell: &Cell, words: &[String]) -> Outcome<Command> {
        match &cell.place {
            Place::Machine if cell.world_size == 1 => {
                Ok(alone(self.trainer, words, 0, cell.threads))
            }
            Place::Machine => {
                let placement = Placement {
                    ranks: cell.world_size,
                    hosts: Vec::new(),
                    cores: cores::available(),
                    threads: Some(cell.threads),
                    is_polite: false,
                };
                let mut command = self.mpirun()?.command(&placement, self.trainer, words)?;
                mpirun::forget_surrounding_job(&mut command);
                Ok(command)
            }
            Place::Hosts { rate, hosts } => {
                let mpirun = self.mpirun()?;
                let trainer = self.trainer;
                self.emulated(*hosts, *rate)?
                    .command(mpirun, cell.world_size, trainer, words)
            }
            Place::Slurm { .. } => Err(Failure::Failed(format!(
                "{}: a job of Slurm is no local run",
                cell.id
            ))),
        }
    }

    fn mpirun(&self) -> Outcome<&'a Mpirun> {
        Mpirun::needed(self.mpirun)
    }

    /// Hosts of this number and rate; those that are up are kept.
    fn emulated(&mut self, count: usize, rate: Rate) -> Outcome<&Hosts> {
        if self
            .hosts
            .as_ref()
            .is_none_or(|(hosts, _)| hosts.count() != count)
        {
            // The old ones go before the new ones come.
            self.hosts = None;
        }
        let (hosts, set) = match self.hosts.take() {
            Some(standing) => standing,
            None => (Hosts::up(count)?, None),
        };
        let (hosts, set) = self.hosts.insert((hosts, set));
        if *set != Some(rate) {
            hosts.set_rate(rate)?;
            *set = Some(rate);
        }
        Ok(hosts)
    }
}

/// The trainer as one rank on the cores of its place, outside of any job that surrounds this program.
pub(super) fn alone(trainer: &Path, words: &[String], place: usize, threads: usize) -> Command {
    let mut command = cores::pinned(trainer, place, threads);
    command.args(words);
    mpirun::forget_surrounding_job(&mut command);
    command
}
