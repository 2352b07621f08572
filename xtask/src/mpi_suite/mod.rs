//! The checks that need real processes: MPI's conformance, failures, launchers, training on 1 to 4 ranks.
//!
//! In: the programs, in the dev profile. Out: one line for each check.
//! Invariant: nothing waits for ever; each process has a deadline. What a failed check wrote stays in
//! `target/mpi-suite` to be read; otherwise nothing is left.

mod communicator;
mod evaluation;
mod memory;
mod signals;
mod storage;
mod study;
mod synchronisation;
mod trainer;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::suite::launcher::Launcher;
use crate::suite::{self, Ended, Programs, conclude, empty_folder};
use cluster::cores;
use cluster::failure::Outcome;
use cluster::mpirun::{self, Mpirun, Placement};

/// What the checks work with; also the way to start ranks with mpirun.
pub(crate) struct Suite {
    mpirun: Option<Mpirun>,
    /// The conformance program of the crate `distributed`.
    conformance: Option<PathBuf>,
    trainer: PathBuf,
    folder: PathBuf,
    shared_memory: Option<SharedMemory>,
}

/// Runs all checks that can be run here; those of many steps only if `is_thorough`.
pub(crate) fn run(
    programs: &Programs,
    mpirun: Option<&Mpirun>,
    is_thorough: bool,
    only: Option<&str>,
) -> Outcome {
    let folder = empty_folder("mpi-suite")?;
    let conformance = programs.conformance.clone();
    let suite = Suite {
        conformance,
        ..Suite::new(mpirun.cloned(), programs.trainer.clone(), folder)
    };
    let checks = communicator::CHECKS
        .iter()
        .chain(&trainer::CHECKS)
        .chain(&evaluation::CHECKS)
        .chain(&synchronisation::CHECKS)
        .chain(&storage::CHECKS)
        .chain(&signals::CHECKS)
        .chain(memory::CHECKS.iter().filter(|_| is_thorough))
        .chain(&study::CHECKS);
    let failed = suite::run_all(&suite, mpirun.is_some(), only, checks);
    conclude(&suite.folder, &failed)
}

/// A place for Open MPI's shared memory: where a rank is killed it stays behind, and with it the machine's memory.
struct SharedMemory(PathBuf);

impl SharedMemory {
    fn make() -> Option<Self> {
        let folder = PathBuf::from(format!("/dev/shm/lockstep-{}", std::process::id()));
        fs::create_dir(&folder)
            .is_ok()
            .then_some(SharedMemory(folder))
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Suite {
    /// One that starts the trainer only.
    pub(crate) fn new(mpirun: Option<Mpirun>, trainer: PathBuf, folder: PathBuf) -> Self {
        Suite {
            mpirun,
            conformance: None,
            trainer,
            folder,
            shared_memory: SharedMemory::make(),
        }
    }

    /// What srun's `--mpi` is for the programs.
    pub(crate) fn srun_kind(&self) -> &'static str {
        self.mpirun.as_ref().map_or("none", Mpirun::srun_kind)
    }

    /// The program alone, without a launcher.
    fn alone(&self, program: &Path, arguments: &[String]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments);
        mpirun::forget_surrounding_job(&mut command);
        command
    }

    /// Runs the command to its end, at most this long; `name` is its log's.
    fn finish(&self, command: Command, name: &str, limit_s: u64) -> Result<Ended, String> {
        Ended::of(command, &self.folder.join(format!("{name}.log")), limit_s)
    }
}

impl Launcher for Suite {
    fn on_ranks(
        &self,
        ranks: usize,
        program: &Path,
        arguments: &[String],
    ) -> Result<Command, String> {
        let mpirun = self
            .mpirun
            .as_ref()
            .expect("a check that starts ranks says that it needs mpirun");
        let cores = cores::available();
        let placement = Placement {
            ranks,
            hosts: Vec::new(),
            cores,
            threads: Some(1),
            is_polite: true,
        };
        let mut command = mpirun
            .command(&placement, program, arguments)
            .map_err(|failure| failure.to_string())?;
        mpirun::forget_surrounding_job(&mut command);
        if let Some(SharedMemory(folder)) = &self.shared_memory {
            command.env("OMPI_MCA_btl_vader_backing_directory", folder);
        }
        // What a crash leaves is left there.
        command.current_dir(&self.folder);
        Ok(command)
    }

    fn rank_variable(&self) -> &'static str {
        self.mpirun
            .as_ref()
            .map_or("", |mpirun| mpirun.rank_variable())
    }

    fn folder(&self) -> &Path {
        &self.folder
    }

    fn trainer(&self) -> &Path {
        &self.trainer
    }
}
