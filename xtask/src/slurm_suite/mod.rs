//! Checks under a real Slurm: training by srun and sbatch on two nodes, stopped, requeued, killed.
//!
//! In: the trainer, in the dev profile. Out: one line for each check.
//! Invariant: the suite starts and stops its cluster; each process and each job has a deadline.

mod job;
mod starting;
mod stopping;
mod submitting;

use std::path::Path;
use std::process::Command;

use cluster::failure::Outcome;
use cluster::mpirun::Mpirun;

use crate::chaos;
use crate::slurm_cluster::NODES;
use crate::suite::run::Run;
use crate::suite::start::Launcher;
use crate::suite::{self, Check, Checked, Suite, tasks};

const STORM: [Check; 1] = [(
    "a run whose ranks are killed and stopped at random under srun ends with the undisturbed parameters",
    storm,
)];

/// Starts the cluster, runs all checks, stops the cluster.
pub(crate) fn run(trainer: &Path, mpirun: &Mpirun, only: Option<&str>) -> Outcome {
    let mut suite = Suite::new("slurm-suite", trainer, Some(mpirun))?;
    suite.start_cluster()?;
    let checks = [
        &starting::CHECKS[..],
        &stopping::CHECKS,
        &submitting::CHECKS,
        &tasks::CHECKS,
        &STORM,
    ];
    suite::run(suite, only, &checks.concat())
}

/// Enough epochs for a signal between the first and the last.
const EPOCHS: usize = 20;

/// Returns a run of few samples.
fn quick<'a>(suite: &'a Suite, name: &str) -> Run<'a> {
    suite.run(name).epochs(EPOCHS).quick()
}

/// Returns the hash of an undisturbed [`quick`] run under mpirun.
fn undisturbed(suite: &Suite) -> Checked<String> {
    let run = || quick(suite, "undisturbed").by(Launcher::Mpirun);
    suite.undisturbed("undisturbed", || run().trained_hash())
}

/// Returns the command `trainer slurm`; with a command to pass on, for jobs on both nodes.
fn slurm(suite: &Suite, words: &[&str], passed_on: &[String]) -> Checked<Command> {
    let mut command = suite.cluster()?.command(&suite.trainer);
    command.arg("slurm").args(words);
    if !passed_on.is_empty() {
        let nodes = NODES.len().to_string();
        command.args(["--nodes", &nodes, "--partition", "main"]);
        command.args(["--mpi", suite.srun_kind()]);
        // More ranks than cores: a waiting rank lets the others compute.
        command.args(["--env", "OMPI_MCA_mpi_yield_when_idle=1", "--"]);
        command.args(passed_on);
    }
    Ok(command)
}

/// Includes SIGKILL to one task of two nodes.
fn storm(suite: &Suite) -> Checked {
    // Survivors in a collective ignore SIGTERM and wait for SIGKILL.
    suite.cluster()?.set_kill_wait(2)?;
    println!("{}", chaos::storm(suite, 12, 7, None)?);
    Ok(())
}
