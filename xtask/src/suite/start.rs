//! Launchers of a suite's ranks: mpirun, or srun in a cluster.
//!
//! In: a number of ranks, a program. Out: commands, and the processes of running ranks.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cluster::cores;
use cluster::failure::Outcome;
use cluster::mpirun::{self, Mpirun, Placement};
use cluster::process::{self, Running};

use super::run::LIMIT_S;
use super::{Checked, Ended, Stop};
use crate::at;
use crate::cargo::{self, Mpi};
use crate::chaos::Undisturbed;
use crate::slurm_cluster::{self, Cluster};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Launcher {
    Mpirun,
    Srun,
}

/// Programs and places that the checks work with.
pub(crate) struct Suite {
    pub(crate) trainer: PathBuf,
    /// Test program of the crate `distributed`.
    pub(crate) conformance: PathBuf,
    /// Folder for runs and logs.
    pub(crate) folder: PathBuf,
    pub(crate) mpirun: Option<Mpirun>,
    cluster: Option<Cluster>,
    shared_memory: SharedMemory,
    /// Parameter hashes of undisturbed runs, by the run's name.
    undisturbed: RefCell<BTreeMap<String, String>>,
    /// Undisturbed run to compare with runs under faults.
    pub(crate) storm: OnceCell<Undisturbed>,
}

/// Folder for Open MPI's shared memory: a killed rank leaves its part there.
struct SharedMemory(PathBuf);

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Programs of the suites, in the dev profile.
pub(crate) struct Programs {
    pub(crate) trainer: PathBuf,
    pub(crate) conformance: PathBuf,
}

impl Programs {
    pub(crate) fn build(mpi: Mpi) -> Outcome<Self> {
        const CONFORMANCE: &str = "mpi_conformance";
        let trainer = cargo::kept_trainer(mpi)?;
        let mut conformance = PathBuf::new();
        if mpi == Mpi::With {
            let words = ["test", "--workspace", "--no-run", "--test", CONFORMANCE];
            conformance = cargo::executable(cargo::command(&words), CONFORMANCE, true)?;
        }
        Ok(Programs {
            trainer,
            conformance,
        })
    }
}

/// A process of a rank.
pub(crate) struct Rank {
    pub(crate) process: u32,
    pub(super) rank: usize,
    pub(super) words: Vec<String>,
}

impl Suite {
    /// Makes a suite with an empty folder `target/NAME`.
    pub(crate) fn new(name: &str, trainer: &Path, mpirun: Option<&Mpirun>) -> Outcome<Self> {
        let folder = cargo::target_folder().join(name);
        // A failed suite leaves its folder, an interrupted one also its cluster.
        Cluster::stop_in(&folder.join("cluster"))?;
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        let shared_memory = format!("/dev/shm/lockstep-{}", std::process::id());
        let _ = fs::create_dir(&shared_memory);
        Ok(Suite {
            trainer: trainer.to_owned(),
            conformance: PathBuf::new(),
            folder,
            mpirun: mpirun.cloned(),
            cluster: None,
            shared_memory: SharedMemory(shared_memory.into()),
            undisturbed: RefCell::default(),
            storm: OnceCell::new(),
        })
    }

    pub(crate) fn start_cluster(&mut self) -> Outcome {
        self.cluster = Some(Cluster::start(&self.folder.join("cluster"))?);
        Ok(())
    }

    pub(crate) fn stop_cluster(&mut self) -> Outcome {
        self.cluster.take().map_or(Ok(()), Cluster::stop)
    }

    pub(crate) fn cluster(&self) -> Checked<&Cluster> {
        let skipped = || Stop::Skipped("no Slurm cluster".to_owned());
        self.cluster.as_ref().ok_or_else(skipped)
    }

    /// Returns srun in a cluster, mpirun otherwise.
    pub(crate) fn launcher(&self) -> Launcher {
        match self.cluster {
            Some(_) => Launcher::Srun,
            None => Launcher::Mpirun,
        }
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// Runs a command with the log `NAME.log`.
    pub(crate) fn finish(&self, command: Command, name: &str) -> Checked<Ended> {
        let log = self.log(name);
        let line = process::shown(&command);
        let running = Running::start(command, &log)?;
        Ended::finish(line, running, Duration::from_secs(LIMIT_S))
    }

    /// As [`finish`](Self::finish), for a command that must succeed.
    pub(crate) fn succeed(&self, command: Command, name: &str) -> Checked<Ended> {
        let ended = self.finish(command, name)?;
        ended.expect_success()?;
        Ok(ended)
    }

    /// Returns the command of a shell line on ranks under mpirun.
    pub(crate) fn shell(&self, ranks: usize, line: String) -> Checked<Command> {
        let words = ["-c".to_owned(), line];
        self.on_ranks(Launcher::Mpirun, ranks, Path::new("/bin/sh"), &words)
    }

    /// Returns the value that `hash` computes, which happens once for each name.
    pub(crate) fn undisturbed(
        &self,
        name: &str,
        hash: impl FnOnce() -> Checked<String>,
    ) -> Checked<String> {
        if let Some(hash) = self.undisturbed.borrow().get(name) {
            return Ok(hash.clone());
        }
        let hash = hash()?;
        let mut known = self.undisturbed.borrow_mut();
        known.insert(name.to_owned(), hash.clone());
        Ok(hash)
    }

    /// Returns a command of the trainer on one process, without a launcher.
    pub(crate) fn alone(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.trainer);
        command.args(arguments);
        mpirun::forget_surrounding_job(&mut command);
        command
    }

    /// Returns a command for a program on ranks, which may be more than the cores.
    pub(crate) fn on_ranks(
        &self,
        launcher: Launcher,
        ranks: usize,
        program: &Path,
        arguments: &[String],
    ) -> Checked<Command> {
        if launcher == Launcher::Srun {
            return self.srun(self.srun_kind(), ranks, program, arguments);
        }
        let placement = Placement {
            ranks,
            hosts: Vec::new(),
            cores: cores::available(),
            threads: Some(1),
            is_polite: true,
        };
        let mut command = self.mpirun()?.command(&placement, program, arguments)?;
        mpirun::forget_surrounding_job(&mut command);
        let SharedMemory(folder) = &self.shared_memory;
        command.env("OMPI_MCA_btl_vader_backing_directory", folder);
        // A crash leaves its core file in the suite's folder.
        command.current_dir(&self.folder);
        Ok(command)
    }

    /// Returns a command for a job step with its own allocation, on both nodes if there are two
    /// ranks.
    pub(crate) fn srun(
        &self,
        mpi: &str,
        ranks: usize,
        program: &Path,
        arguments: &[String],
    ) -> Checked<Command> {
        let mut command = self.cluster()?.command("srun");
        let nodes = ranks.min(slurm_cluster::NODES.len());
        // Without --kill-on-bad-exit the survivors of a killed task wait for it for ever.
        let places = format!("--mpi={mpi} --nodes={nodes} --ntasks={ranks}");
        command.args(["--input=none", "--kill-on-bad-exit=1"]);
        command.args(places.split(' '));
        // More ranks than cores: a waiting rank lets the others compute.
        command.env("OMPI_MCA_mpi_yield_when_idle", "1");
        command.arg(program).args(arguments);
        command.current_dir(&self.folder);
        Ok(command)
    }

    /// Returns the value of srun's `--mpi` for the programs.
    pub(crate) fn srun_kind(&self) -> &'static str {
        self.mpirun.as_ref().map_or("none", Mpirun::srun_kind)
    }

    pub(crate) fn mpirun(&self) -> Checked<&Mpirun> {
        let skipped = || Stop::Skipped("no mpirun".to_owned());
        self.mpirun.as_ref().ok_or_else(skipped)
    }

    /// Returns the name of the variable with a process's rank.
    pub(crate) fn rank_variable(&self) -> &'static str {
        match self.launcher() {
            Launcher::Srun => "SLURM_PROCID",
            Launcher::Mpirun => self.mpirun.as_ref().map_or("", Mpirun::rank_variable),
        }
    }

    /// Lists the running processes of the suite's programs that the launcher started.
    pub(crate) fn ranks(&self) -> Vec<Rank> {
        let start = format!("{}=", self.rank_variable());
        let strings = |process: u32, file: &str| -> Vec<String> {
            let bytes = fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            text.split('\0').map(str::to_owned).collect()
        };
        let rank = |process: u32| {
            let words = strings(process, "cmdline");
            // The launcher's command line has the same words after another program.
            if Path::new(words.first()?).parent() != self.trainer.parent() {
                return None;
            }
            let variables = strings(process, "environ");
            let rank = variables
                .iter()
                .find_map(|entry| entry.strip_prefix(&start));
            Some(Rank {
                process,
                rank: rank?.parse().ok()?,
                words,
            })
        };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter_map(|entry| rank(entry.file_name().to_str()?.parse().ok()?))
            .collect()
    }
}
