//! How one round of one row is measured.
//!
//! In: [`Settings`], a trainer, the Pythons that were found. Out: a [`Block`] and what the framework says of itself, or the reason why
//! there is none.
//! Invariant: ours and theirs are started by the same launcher and watched alike; the files of a run are in its own folder, and those
//! of an earlier attempt are not taken for it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use records::Block;

use super::block::{About, of_ours, of_peer};
use super::framework::{Framework, OURS};
use super::row::Key;
use super::run::{Patience, Processes};
use super::scripts::Scripts;
use super::settings::{Launcher, Settings, is_imagenet};
use super::start::Program;
use cluster::hosts::Hosts;
use cluster::mpirun::Mpirun;
use cluster::run_directory;

/// Of the weights and batches with which speed is measured.
const SEED: u64 = 0;

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Contender {
    Ours,
    Peer(Framework),
}

impl Contender {
    /// The name in the table.
    pub(super) fn title(self) -> &'static str {
        match self {
            Contender::Ours => OURS,
            Contender::Peer(framework) => framework.title(),
        }
    }

    /// The name in a file's name.
    pub(super) fn word(self) -> &'static str {
        match self {
            Contender::Ours => "lockstep",
            Contender::Peer(framework) => framework.word(),
        }
    }
}

/// What all measurements share.
pub(super) struct Bench<'a> {
    pub(super) settings: &'a Settings,
    pub(super) mpirun: Option<Mpirun>,
    /// With `--launcher hosts:RATE`.
    pub(super) hosts: Option<Hosts>,
    pub(super) trainer: PathBuf,
    pub(super) scripts: &'a Scripts,
    /// The Python of each framework, or why there is none.
    pub(super) pythons: BTreeMap<Framework, Result<PathBuf, String>>,
}

impl Bench<'_> {
    /// Why a contender cannot do a job at all.
    pub(super) fn gap(&self, contender: Contender, key: &Key) -> Option<String> {
        let Contender::Peer(framework) = contender else {
            return None;
        };
        let servers = self.hosts.is_some() && !framework.roles(key.ranks).is_empty();
        let refusal = framework
            .refusal(&key.dtype, key.ranks)
            .or(servers.then_some("its scheduler and server are not started on emulated hosts"));
        refusal
            .map(str::to_owned)
            .or_else(|| self.python(framework).err())
    }

    /// One round of a row; the launcher is the one really used.
    pub(super) fn block(
        &self,
        contender: Contender,
        key: &Key,
        round: usize,
    ) -> Result<(Launcher, About, Block), String> {
        let job = self.job(&key.model, key.ranks, SEED)?;
        let mark = format!("compare-{}", std::process::id());
        let name = format!(
            "{}-{}-r{}-{}-",
            key.model,
            key.dtype,
            key.ranks,
            contender.word()
        );
        let name = if key.tried.is_empty() {
            format!("{name}round{}", round + 1)
        } else {
            let setting = key
                .setting
                .shown()
                .replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-");
            format!("{name}{}-{setting}", key.tried)
        };
        let patience = Patience {
            limit_cores: self.settings.quiet_cores,
            attempts: self.settings.attempts,
            patience: Duration::from_secs(30),
        };
        let watched = patience.watched(&mark, |attempt| {
            let folder = self
                .settings
                .output
                .join("runs")
                .join(format!("{name}a{attempt}"));
            fresh(&folder)?;
            let measured = match contender {
                Contender::Ours => self.ours(key, &folder, &mark),
                Contender::Peer(framework) => self.peer(framework, key, &job, &folder, &mark),
            }?;
            let window = measured.2.measured_unix_s;
            Ok((measured, window))
        })?;
        let (launcher, about, block) = watched.result;
        Ok((
            launcher,
            about,
            Block {
                quiet: Some(watched.quiet),
                is_disturbed: watched.is_disturbed,
                ..block
            },
        ))
    }

    fn ours(
        &self,
        key: &Key,
        folder: &Path,
        mark: &str,
    ) -> Result<(Launcher, About, Block), String> {
        let settings = self.settings;
        let mut words = self.bench_words(&key.model, &key.dtype);
        words.extend(["--steps".to_owned(), settings.steps.to_string()]);
        words.extend([
            "--warmup-steps".to_owned(),
            settings.warmup_steps.to_string(),
            "--json".to_owned(),
        ]);
        let (launcher, command) = self.run_ours(words, key.ranks, folder, mark)?;
        let log =
            fs::read_to_string(folder.join("process-0.log")).map_err(|error| error.to_string())?;
        let (about, block) = of_ours(&log)?;
        Ok((launcher, about, Block { command, ..block }))
    }

    /// Runs a command of our trainer: how it was started.
    fn run_ours(
        &self,
        words: Vec<String>,
        ranks: usize,
        folder: &Path,
        mark: &str,
    ) -> Result<(Launcher, String), String> {
        let program = Program {
            file: self.trainer.clone(),
            words,
            ranks,
            threads: self.settings.threads,
            needs_mpi: true,
            environment: Vec::new(),
        };
        self.run(&program, &[], folder, mark)
    }

    fn peer(
        &self,
        framework: Framework,
        key: &Key,
        job: &Path,
        folder: &Path,
        mark: &str,
    ) -> Result<(Launcher, About, Block), String> {
        let settings = self.settings;
        let python = self.python(framework)?;
        let mut program = Program::peer(
            framework,
            python,
            self.scripts,
            key.ranks,
            settings.threads,
            self.hosts.as_ref(),
        )
        .map_err(|failure| failure.to_string())?;
        program.set(&key.setting)?;
        let paths = [("--job", job), ("--output", folder)];
        program.words.extend(
            paths
                .iter()
                .flat_map(|(flag, path)| [(*flag).to_owned(), path.display().to_string()]),
        );
        program.words.extend([
            "--dtype".to_owned(),
            key.dtype.clone(),
            "--steps".to_owned(),
            settings.steps.to_string(),
        ]);
        program.words.extend([
            "--warmup-steps".to_owned(),
            settings.warmup_steps.to_string(),
        ]);
        let (launcher, command) = self.run(&program, framework.roles(key.ranks), folder, mark)?;
        let global_samples = key.ranks * settings.batch_size_per_rank * settings.steps;
        let (mut about, block) = of_peer(folder, key.ranks, global_samples)?;
        if !framework.roles(key.ranks).is_empty() {
            let whose = if program.leaves_a_core() {
                "a core of its own"
            } else {
                "the ranks' cores"
            };
            about.communication = format!("{} on {whose}", about.communication);
        }
        Ok((launcher, about, Block { command, ..block }))
    }

    /// The Python of a framework.
    pub(super) fn python(&self, framework: Framework) -> Result<&Path, String> {
        match self.pythons.get(&framework) {
            Some(Ok(python)) => Ok(python),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err("not asked for".to_owned()),
        }
    }

    /// Starts a program's ranks and its roles and waits for them.
    fn run(
        &self,
        program: &Program,
        roles: &[&str],
        folder: &Path,
        mark: &str,
    ) -> Result<(Launcher, String), String> {
        let wanted = self.settings.launcher;
        let mut ranks = program
            .commands(wanted, self.mpirun.as_ref(), self.hosts.as_ref())
            .map_err(|failure| failure.to_string())?;
        if program.launcher(wanted) != Launcher::Plain && program.file != self.trainer {
            // Horovod's thread shares the rank's core: waiting at full speed would take it from the training.
            for command in &mut ranks {
                command.env("OMPI_MCA_mpi_yield_when_idle", "1");
            }
        }
        let processes = Processes {
            ranks,
            beside: roles.iter().map(|role| program.beside(role)).collect(),
        };
        let shown = processes.shown();
        processes.run(folder, self.settings.timeout, mark)?;
        Ok((program.launcher(wanted), shown))
    }

    /// The folder of a job's files, written by our trainer where they are not there yet.
    pub(super) fn job(&self, model: &str, ranks: usize, seed: u64) -> Result<PathBuf, String> {
        let batch = self.settings.batch_size_per_rank;
        let folder = self
            .settings
            .output
            .join(format!("jobs/{model}-b{batch}-r{ranks}-s{seed}"));
        // The last of the files that root writes.
        if !folder.join("job.json").exists()
            || !folder
                .join(format!("batches-rank{}.safetensors", ranks - 1))
                .exists()
        {
            fresh(&folder)?;
            let mut words = self.bench_words(model, "f32");
            words.extend(["--steps", "1", "--warmup-steps", "0", "--seed"].map(str::to_owned));
            words.extend([
                seed.to_string(),
                "--export-job".to_owned(),
                folder.display().to_string(),
            ]);
            let mark = format!("compare-{}", std::process::id());
            self.run_ours(words, ranks, &folder, &mark)
                .map_err(|reason| format!("the job cannot be written: {reason}"))?;
        }
        Ok(folder)
    }

    fn bench_words(&self, model: &str, dtype: &str) -> Vec<String> {
        let settings = self.settings;
        let mut pairs = vec![
            ("--device", "flex".to_owned()),
            ("--model", model.to_owned()),
            ("--dtype", dtype.to_owned()),
            (
                "--batch-size-per-rank",
                settings.batch_size_per_rank.to_string(),
            ),
            ("--threads", settings.threads.to_string()),
        ];
        if is_imagenet(model) {
            pairs.extend([
                ("--image-size", "224".to_owned()),
                ("--num-classes", "1000".to_owned()),
            ]);
        }
        std::iter::once("bench".to_owned())
            .chain(
                pairs
                    .into_iter()
                    .flat_map(|(flag, value)| [flag.to_owned(), value]),
            )
            .collect()
    }
}

/// An empty folder.
pub(super) fn fresh(folder: &Path) -> Result<(), String> {
    run_directory::fresh(folder).map_err(|failure| failure.to_string())
}
