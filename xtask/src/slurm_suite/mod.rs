//! The checks that need a real Slurm: training under srun and sbatch on two nodes, stopped, preempted, requeued, killed.
//!
//! In: the trainer, in the dev profile. Out: one line for each check.
//! Invariant: the cluster is started and stopped here, in `target/slurm-suite`; each process and each job has a deadline. What a
//! failed check wrote stays in that folder to be read; otherwise nothing is left.

mod job;
mod killing;
mod starting;
mod stopping;
mod studying;
mod submitting;

use std::cell::OnceCell;
use std::path::Path;
use std::process::Command;

use crate::chaos::{self, Undisturbed};
use crate::mpi_suite;
use crate::slurm_cluster::Cluster;
use crate::suite::launcher::Launcher;
use crate::suite::run::{QUICK, Run};
use crate::suite::{self, conclude, empty_folder};
use cluster::failure::{Failure, Outcome};
use cluster::mpirun::Mpirun;

/// What the checks work with; also the way to start ranks with srun.
pub(crate) struct Suite {
    /// The same trainer under mpirun, to compare with.
    mpi: mpi_suite::Suite,
    cluster: Cluster,
    undisturbed: OnceCell<String>,
    undisturbed_long: OnceCell<Undisturbed>,
}

/// Starts the cluster, runs all checks, stops the cluster.
pub(crate) fn run(trainer: &Path, mpirun: &Mpirun, only: Option<&str>) -> Outcome {
    stop_remains("slurm-suite").map_err(Failure::Failed)?;
    let folder = empty_folder("slurm-suite")?;
    let mpi = mpi_suite::Suite::new(Some(mpirun.clone()), trainer.to_owned(), folder.clone());
    let suite = Suite::start(mpi).map_err(Failure::Failed)?;
    let checks = starting::CHECKS
        .iter()
        .chain(&stopping::CHECKS)
        .chain(&submitting::CHECKS)
        .chain(&studying::CHECKS)
        .chain(&killing::CHECKS);
    let failed = suite::run_all(&suite, true, only, checks);
    if failed.is_empty() {
        suite.stop().map_err(Failure::Failed)?;
    } else {
        // The daemons' logs are left to be read.
        drop(suite);
    }
    conclude(&folder, &failed)
}

/// Stops the cluster of a run that was interrupted.
pub(crate) fn stop_remains(folder: &str) -> Result<(), String> {
    Cluster::stop_in(&cluster_folder(&crate::cargo::target_folder().join(folder)))
}

fn cluster_folder(folder: &Path) -> std::path::PathBuf {
    folder.join("cluster")
}

const NODES: usize = 2;
/// Enough for a signal to come between the first and the last.
const EPOCHS: usize = 20;

impl Suite {
    /// Starts the cluster beside the runs.
    pub(crate) fn start(mpi: mpi_suite::Suite) -> Result<Self, String> {
        let cluster = Cluster::start(&cluster_folder(mpi.folder()))?;
        Ok(Suite {
            mpi,
            cluster,
            undisturbed: OnceCell::new(),
            undisturbed_long: OnceCell::new(),
        })
    }

    pub(crate) fn stop(self) -> Result<(), String> {
        self.cluster.stop()
    }

    /// Lets a step end sooner after one of its tasks was killed: its survivors do not heed SIGTERM in a collective, and with Slurm's
    /// default they would all be killed only 30 s later.
    pub(crate) fn quicken_kills(&self) -> Result<(), String> {
        self.cluster.set_kill_wait(2)
    }

    /// The hash that every job's run ends with, learned under mpirun once.
    fn undisturbed(&self) -> Result<&str, String> {
        if self.undisturbed.get().is_none() {
            let run = Run::new(&self.mpi, "undisturbed");
            run.train(&self.mpi, NODES, EPOCHS, &QUICK)?;
            let _ = self.undisturbed.set(run.parameter_hash()?);
        }
        Ok(self.undisturbed.get().expect("set above"))
    }

    /// The end of the longer run in which ranks are killed, likewise.
    fn undisturbed_long(&self) -> Result<&Undisturbed, String> {
        if self.undisturbed_long.get().is_none() {
            let _ = self.undisturbed_long.set(chaos::undisturbed(&self.mpi)?);
        }
        Ok(self.undisturbed_long.get().expect("set above"))
    }

    /// `trainer slurm` with these words, for jobs on both nodes if it submits; `passed_on` are those of a command.
    fn slurm(&self, words: &[&str], passed_on: &[String]) -> Command {
        let mut command = self.cluster.command(self.trainer());
        command.arg("slurm").args(words);
        if !passed_on.is_empty() {
            command.args([
                "--nodes",
                &NODES.to_string(),
                "--partition",
                "main",
                "--mpi",
                self.mpi.srun_kind(),
            ]);
            // More ranks than cores: a waiting one lets the others compute.
            command.args(["--env", "OMPI_MCA_mpi_yield_when_idle=1"]);
            command.arg("--").args(passed_on);
        }
        command
    }

    /// A step of its own allocation: `--mpi` as given, on both nodes where there are ranks for both.
    fn srun(&self, mpi: &str, ranks: usize, program: &Path, arguments: &[String]) -> Command {
        let mut command = self.cluster.command("srun");
        // Without the third the survivors of a killed task wait for it for ever.
        command.args([
            &format!("--mpi={mpi}"),
            "--input=none",
            "--kill-on-bad-exit=1",
        ]);
        command
            .arg(format!("--nodes={}", ranks.min(NODES)))
            .arg(format!("--ntasks={ranks}"));
        // More ranks than cores: a waiting one lets the others compute.
        command.env("OMPI_MCA_mpi_yield_when_idle", "1");
        // What a crash leaves is left there.
        command
            .arg(program)
            .args(arguments)
            .current_dir(self.folder());
        command
    }
}

impl Launcher for Suite {
    fn on_ranks(
        &self,
        ranks: usize,
        program: &Path,
        arguments: &[String],
    ) -> Result<Command, String> {
        Ok(self.srun(self.mpi.srun_kind(), ranks, program, arguments))
    }

    fn rank_variable(&self) -> &'static str {
        "SLURM_PROCID"
    }

    fn folder(&self) -> &Path {
        self.mpi.folder()
    }

    fn trainer(&self) -> &Path {
        self.mpi.trainer()
    }

    /// A job that is ending may still have processes on the other node.
    fn settle(&self) -> Result<(), String> {
        self.cluster.wait_until_idle()
    }
}
