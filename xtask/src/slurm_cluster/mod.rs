//! A small real Slurm on this machine: one controller, two nodes with names of their own, one folder for everything.
//!
//! In: a folder. Out: [`Cluster`], whose commands carry its `SLURM_CONF`; `cargo xtask cluster up|down` for use by hand.
//! Invariant: nothing outside the folder is changed and no other cluster is touched; daemons are found by the files of the folder
//! that they hold open, never by name alone, so that also those of an interrupted run are stopped.

mod configuration;
mod daemons;
mod short_name;

use std::fs;
use std::path::Path;
use std::process::Command as Process;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Subcommand;

use crate::cargo;
use crate::packages::{Need, Privilege};
use crate::setup;
use cluster::failure::{Failure, Outcome};
use cluster::options::Installing;

use configuration::Configuration;
use daemons::Daemons;

const DETAILS: &str = "\
`up` starts it, or finds it running, and prints the line that makes srun, sbatch and the others use it; `down` stops it and
removes its folder, target/cluster. The partition `main` is preempted, with requeueing, by the partition `urgent`.
Needs root, or sudo without a password; on Debian and Ubuntu missing packages are installed.";

/// Commands of `cargo xtask cluster`.
#[derive(Debug, Subcommand)]
#[command(after_help = DETAILS)]
pub(crate) enum ClusterCommand {
    /// Start it, or find it running.
    Up(Installing),
    /// Stop it and remove its folder.
    Down,
}

/// Programs without which nothing can be started.
const PROGRAMS: [&str; 7] = [
    "slurmctld",
    "slurmd",
    "srun",
    "sbatch",
    "scontrol",
    "munged",
    "unshare",
];
/// Longer than a busy machine takes to start three daemons.
const START_LIMIT: Duration = Duration::from_secs(90);
/// Seconds that one question to the controller may take.
const ASK_LIMIT_S: &str = "60";

/// A running cluster. It is stopped when dropped, also by a panic, unless [`Cluster::keep`] was called.
pub(crate) struct Cluster {
    daemons: Daemons,
    is_kept: bool,
}

impl ClusterCommand {
    pub(crate) fn run(&self) -> Outcome {
        let folder = cargo::target_folder().join("cluster");
        match self {
            ClusterCommand::Up(installing) => up(&folder, *installing),
            ClusterCommand::Down => down(&folder),
        }
    }
}

fn up(folder: &Path, installing: Installing) -> Outcome {
    if let Some(reason) = lacking(installing) {
        return Err(Failure::Failed(reason));
    }
    let running = Daemons::of(folder)
        .ok()
        .filter(|daemons| are_nodes(daemons, &["idle", "mix", "alloc", "comp"]));
    let daemons = match running {
        Some(daemons) => daemons,
        None => Cluster::start(folder).map_err(Failure::Failed)?.keep(),
    };
    println!(
        "two nodes are up, partitions main and urgent; `cargo xtask cluster down` stops them. Use them by:"
    );
    println!("export SLURM_CONF={}", daemons.slurm_conf().display());
    Ok(())
}

fn down(folder: &Path) -> Outcome {
    if !folder.exists() {
        println!("no cluster: {} is not there", folder.display());
        return Ok(());
    }
    Daemons::of(folder)
        .and_then(|daemons| daemons.stop_and_remove())
        .map_err(Failure::Failed)?;
    println!("cluster stopped");
    Ok(())
}

/// Why no cluster can be started here, if none can; installs what is missing where that is allowed.
pub(crate) fn lacking(installing: Installing) -> Option<String> {
    if Privilege::find() == Privilege::None {
        return Some(
            "Slurm's daemons need root: run this as root, or let sudo ask for no password"
                .to_owned(),
        );
    }
    let missing = || {
        PROGRAMS
            .into_iter()
            .filter(|name| daemons::program(name).is_none())
            .collect::<Vec<_>>()
            .join(", ")
    };
    if !missing().is_empty() {
        setup::provide(&[Need::Slurm], installing);
    }
    let missing = missing();
    if !missing.is_empty() {
        return Some(format!("no {missing}: install Slurm and munge, see above"));
    }
    let text = "no namespaces of mounts and host names here, not even for root, so no two nodes on one machine";
    (!daemons::can_unshare()).then(|| text.to_owned())
}

impl Cluster {
    /// Starts a cluster in the folder, after stopping one that an interrupted run left there.
    pub(crate) fn start(folder: &Path) -> Result<Self, String> {
        Self::stop_in(folder)?;
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let daemons = Daemons::of(folder)?;
        // From here on a failure stops what has been started, by the drop.
        let cluster = Cluster {
            daemons,
            is_kept: false,
        };
        Configuration::choose(cluster.daemons.folder())?.write()?;
        cluster.daemons.start()?;
        cluster
            .wait_until_idle()
            .map_err(|text| format!("{text}\n{}", cluster.daemons.last_words()))?;
        Ok(cluster)
    }

    /// Stops the cluster that an interrupted run left in the folder, if there is one.
    pub(crate) fn stop_in(folder: &Path) -> Result<(), String> {
        if folder.exists() {
            Daemons::of(folder)?.stop_and_remove()
        } else {
            Ok(())
        }
    }

    /// Lets it run on after this program.
    fn keep(mut self) -> Daemons {
        self.is_kept = true;
        self.daemons.clone()
    }

    /// A command of Slurm, or any that asks this cluster.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Process {
        let mut command = Process::new(program);
        cluster::mpirun::forget_surrounding_job(&mut command);
        command.env("SLURM_CONF", self.daemons.slurm_conf());
        command
    }

    /// What a short command of Slurm answers.
    pub(crate) fn ask(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        self.daemons.ask(program, arguments)
    }

    /// Sets the time between SIGTERM and SIGKILL, which a step takes to end when one of its tasks was killed.
    pub(crate) fn set_kill_wait(&self, seconds: u64) -> Result<(), String> {
        self.daemons.set_kill_wait(seconds)
    }

    /// Waits until no job is left and both nodes are free.
    pub(crate) fn wait_until_idle(&self) -> Result<(), String> {
        let start = Instant::now();
        while !are_nodes(&self.daemons, &["idle"]) {
            if start.elapsed() > START_LIMIT {
                let states = self.ask("sinfo", &["-N", "-l"]).unwrap_or_else(|text| text);
                let limit_s = START_LIMIT.as_secs();
                return Err(format!(
                    "cluster: expected both nodes idle within {limit_s} s, got\n{states}"
                ));
            }
            sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Stops it and removes its folder.
    pub(crate) fn stop(mut self) -> Result<(), String> {
        self.is_kept = true;
        self.daemons.stop_and_remove()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        // The folder stays: its logs may tell why we are here.
        if let Err(text) = self.daemons.stop() {
            println!(
                "the cluster in {} was not stopped: {text}",
                self.daemons.folder().display()
            );
        }
    }
}

/// Whether every node is in one of these states.
fn are_nodes(daemons: &Daemons, states: &[&str]) -> bool {
    let answer = daemons
        .ask("sinfo", &["-h", "-N", "-p", "main", "-o", "%N %t"])
        .unwrap_or_default();
    let is_well = |node: &str| {
        answer
            .lines()
            .any(|line| states.iter().any(|state| line == format!("{node} {state}")))
    };
    configuration::NODES.into_iter().all(is_well)
}
