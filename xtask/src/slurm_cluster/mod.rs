//! A small real Slurm on this machine: a controller and two nodes, all files in one folder.
//!
//! In: a folder. Out: [`Cluster`], whose commands carry its `SLURM_CONF`; `cargo xtask cluster`.
//! Invariant: a cluster ends with its value, and that of an interrupted run before the next start.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Subcommand;
use cluster::failure::{Outcome, failed};
use cluster::mpirun;
use cluster::options::Installing;
use cluster::process;

use crate::cargo;
use crate::setup::{self, Need};

const DETAILS: &str = "\
`up` starts the cluster or finds it running, and prints the line that makes srun, sbatch and the
others use it. `down` stops it and removes its folder, target/cluster. The partition `urgent` preempts
the partition `main`, with requeueing. Needs root, or sudo without a password; on Debian and Ubuntu
xtask installs missing packages.";

/// Commands of `cargo xtask cluster`.
#[derive(Debug, Subcommand)]
#[command(after_help = DETAILS)]
pub(crate) enum ClusterCommand {
    /// Start the cluster, or find it running.
    Up(Installing),
    /// Stop the cluster and remove its folder.
    Down,
}

pub(crate) const NODES: [&str; 2] = ["n1", "n2"];
const SCRIPT: &str = "xtask/src/slurm_cluster/cluster.sh";
const START_LIMIT: Duration = Duration::from_secs(90);

/// A running cluster. The end of the value stops it.
pub(crate) struct Cluster {
    folder: PathBuf,
    slurm_conf: PathBuf,
    ends_with_value: bool,
}

impl ClusterCommand {
    pub(crate) fn run(&self) -> Outcome {
        let folder = cargo::target_folder().join("cluster");
        let ClusterCommand::Up(installing) = self else {
            return Cluster::stop_in(&folder);
        };
        if let Some(reason) = lacking(*installing) {
            return Err(failed!("{reason}"));
        }
        let running = folder.exists().then(|| Cluster::at(&folder)).transpose()?;
        let states = ["idle", "mix", "alloc", "comp"];
        let mut cluster = match running {
            Some(cluster) if cluster.has_nodes(&states) => cluster,
            _ => Cluster::start(&folder)?,
        };
        cluster.ends_with_value = false;
        println!(
            "two nodes are up, partitions main and urgent; `cargo xtask cluster down` stops them"
        );
        println!("export SLURM_CONF={}", cluster.slurm_conf.display());
        Ok(())
    }
}

/// Returns the reason if no cluster can start here; installs what is missing if allowed.
pub(crate) fn lacking(installing: Installing) -> Option<String> {
    let lacking = || {
        let answer = process::answer(cargo::root().join(SCRIPT), &["lacking", "/"])?;
        let reason = answer.trim();
        (!reason.is_empty()).then(|| reason.to_owned())
    };
    let reason = lacking()?;
    if !reason.starts_with("no ") {
        return Some(reason);
    }
    setup::provide(&[Need::Slurm], installing);
    lacking()
}

fn script(words: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(cargo::root().join(SCRIPT));
    command.arg(words[0]).arg(folder).args(&words[1..]);
    mpirun::forget_surrounding_job(&mut command);
    command
}

impl Cluster {
    /// Starts a cluster in the folder, after stopping one that an interrupted run left there.
    pub(crate) fn start(folder: &Path) -> Outcome<Self> {
        Self::stop_in(folder)?;
        std::fs::create_dir_all(folder).map_err(crate::at(folder))?;
        // From here on a failure stops the daemons that have started.
        let cluster = Self::at(folder)?;
        process::run(script(&["start"], folder))?;
        cluster.wait_until_idle()?;
        Ok(cluster)
    }

    fn at(folder: &Path) -> Outcome<Self> {
        let path = cargo::root().join(SCRIPT);
        let name = process::answer(path, &["name", &folder.to_string_lossy()]);
        let name = name.ok_or_else(|| failed!("`{SCRIPT} name` failed"))?;
        Ok(Cluster {
            folder: folder.to_owned(),
            slurm_conf: Path::new(name.trim()).join("slurm.conf"),
            ends_with_value: true,
        })
    }

    /// Stops the cluster in a folder, if there is one, and removes the folder.
    pub(crate) fn stop_in(folder: &Path) -> Outcome {
        match folder.exists() {
            true => process::run(script(&["remove"], folder)),
            false => Ok(()),
        }
    }

    pub(crate) fn stop(mut self) -> Outcome {
        self.ends_with_value = false;
        Self::stop_in(&self.folder)
    }

    /// Returns a command for a program that talks to this cluster.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        mpirun::forget_surrounding_job(&mut command);
        command.env("SLURM_CONF", &self.slurm_conf);
        command
    }

    /// Returns the output of a short command of Slurm.
    pub(crate) fn ask(&self, program: &str, arguments: &[&str]) -> Outcome<String> {
        let mut command = self.command("timeout");
        command.args(["--kill-after=5", "60", program]);
        process::ask_for(command.args(arguments))
    }

    /// Sets the time between SIGTERM and SIGKILL, and so how soon a step ends with a killed task.
    pub(crate) fn set_kill_wait(&self, seconds: u64) -> Outcome {
        process::run(script(&["kill-wait", &seconds.to_string()], &self.folder))
    }

    /// Waits until no job is left and both nodes are free.
    pub(crate) fn wait_until_idle(&self) -> Outcome {
        let pause = Duration::from_millis(200);
        if process::wait_until(START_LIMIT, pause, || self.has_nodes(&["idle"])) {
            return Ok(());
        }
        let states = self.ask("sinfo", &["-N", "-l"]);
        Err(failed!(
            "cluster: expected both nodes idle within {START_LIMIT:?}, got\n{states:?}"
        ))
    }

    /// Returns true if every node is in one of these states.
    fn has_nodes(&self, states: &[&str]) -> bool {
        let words = ["-h", "-N", "-p", "main", "-o", "%N %t"];
        let answer = self.ask("sinfo", &words).unwrap_or_default();
        let is_well = |node: &str| {
            let mut lines = answer.lines().filter_map(|line| line.split_once(' '));
            lines.any(|(name, state)| name == node && states.contains(&state))
        };
        NODES.into_iter().all(is_well)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The folder stays with its logs.
        if self.ends_with_value
            && let Err(failure) = process::run(script(&["stop"], &self.folder))
        {
            println!("{failure}");
        }
    }
}
