//! Where ranks run, and what their launcher says about it.
//!
//! In: node names by rank; the environment that `mpirun`, `mpiexec` or `srun` left. Out: [`Topology`], [`Launcher`].
//! Invariant: a launcher that started several tasks is never answered by several worlds of one.
//! Source: Open MPI FAQ "environment variables" (`OMPI_COMM_WORLD_*`); srun(1), output environment variables; MPICH's PMI (`PMI_*`).

use crate::cpus::share;
use crate::{CollectiveError, launch::CpuLimits};

/// Where a rank stands among the others and their nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Index of this rank, `0..world_size`.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Index of this rank among those of its node, in rank order.
    pub local_rank: usize,
    /// Number of ranks on this node.
    pub local_size: usize,
    /// Name of this node.
    pub node: String,
    /// Index of this node; nodes are counted in the order of their first rank.
    pub node_index: usize,
    /// Number of nodes.
    pub num_nodes: usize,
    /// Number of CPUs that are this rank's share on its node, at least 1.
    pub num_cpus: usize,
}

impl Topology {
    /// The topology of `rank` when `nodes` holds the node name of every rank, and all ranks of a node have this process's CPUs.
    ///
    /// # Panics
    /// When `rank` is not below the number of nodes' names.
    pub fn from_nodes(rank: usize, nodes: &[String]) -> Self {
        let node = nodes[rank].clone();
        let mut distinct: Vec<&String> = Vec::new();
        for name in nodes {
            if !distinct.contains(&name) {
                distinct.push(name);
            }
        }
        let local_size = nodes.iter().filter(|name| **name == node).count();
        Self {
            rank,
            world_size: nodes.len(),
            local_rank: nodes[..rank].iter().filter(|name| **name == node).count(),
            local_size,
            node_index: distinct
                .iter()
                .position(|name| **name == node)
                .expect("the rank's own node is among the nodes"),
            num_nodes: distinct.len(),
            num_cpus: share(0, &vec![CpuLimits::of_this_process(); local_size]),
            node,
        }
    }

    /// The topology of `rank` when `ranks` holds the node name and the CPUs of every rank.
    #[cfg(any(feature = "mpi", test))]
    pub(crate) fn from_ranks(rank: usize, ranks: &[(String, CpuLimits)]) -> Self {
        let nodes: Vec<String> = ranks.iter().map(|(node, _)| node.clone()).collect();
        let topology = Self::from_nodes(rank, &nodes);
        let of_node = ranks
            .iter()
            .filter(|(node, _)| *node == topology.node)
            .map(|(_, limits)| limits.clone());
        let num_cpus = share(topology.local_rank, &of_node.collect::<Vec<_>>());
        Self {
            num_cpus,
            ..topology
        }
    }

    /// The topology of `rank` when all ranks run in this process or on this machine.
    ///
    /// # Panics
    /// When `rank` is not below `world_size`.
    pub fn on_one_node(rank: usize, world_size: usize) -> Self {
        Self::from_nodes(rank, &vec![node_name(); world_size])
    }
}

/// The program that started this process as one of several tasks.
///
/// Variables of a task, seen with Open MPI 4.1.4, MPICH 4.0.2 and Slurm 22.05:
/// - Open MPI's `mpirun` sets `OMPI_COMM_WORLD_SIZE`, `_RANK`, `_LOCAL_RANK`, `PMIX_RANK` and `PMIX_NAMESPACE`;
/// - MPICH's `mpiexec` sets `PMI_SIZE`, `PMI_RANK`, `PMI_FD`, `MPI_LOCALRANKID` and `MPI_LOCALNRANKS`;
/// - `srun` sets `SLURM_STEP_NUM_TASKS`, `SLURM_NTASKS`, `SLURM_PROCID` and `SLURM_LOCALID`, with `--mpi=pmix` also `PMIX_RANK` and
///   `PMIX_NAMESPACE`, with `--mpi=pmi2` also `PMI_SIZE`, `PMI_RANK` and `PMI_FD`.
///
/// No `PMIX_*` variable holds a number of tasks, so none is read. An empty variable counts as unset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// `mpirun`, `mpiexec`, `srun` or `sbatch`.
    pub name: &'static str,
    /// Number of tasks it started, or would start.
    pub num_tasks: usize,
    /// The variable that says so.
    pub variable: &'static str,
    /// This task's rank, where the launcher tells it.
    pub rank: Option<usize>,
    /// This task's index on its node, where the launcher tells it.
    pub local_rank: Option<usize>,
    /// The processors it was given, where the launcher tells it.
    pub num_processors: Option<usize>,
}

/// The variables of one launcher: name, number of tasks, rank, local rank, processors of a task.
type Variables = (
    &'static str,
    &'static str,
    Option<&'static str>,
    Option<&'static str>,
    Option<&'static str>,
);

/// Innermost launcher first.
///
/// `mpirun` inside a Slurm allocation starts its daemons with `srun`, one a node, and their `SLURM_NTASKS`, `SLURM_STEP_NUM_TASKS`
/// and `SLURM_PROCID` stay in the ranks' environment: with four ranks on two nodes a rank saw `SLURM_NTASKS=1`. So mpirun's own
/// variable must win. `mpiexec` of MPICH and Intel MPI does the same with `PMI_SIZE`, `mpirun_rsh` of MVAPICH2 with `MV2_COMM_WORLD_SIZE`
/// (MVAPICH2 user guide; not tried).
/// A batch script has `SLURM_NTASKS` (when tasks were asked for) and no step: a program started there without a launcher is one
/// that `srun` should have started, so `SLURM_NTASKS` counts too, last; its `SLURM_PROCID` is the script's and tells nothing.
///
/// `srun` tells a task's processors only where a number was asked for; mpirun's ranks may have Slurm's variable too, but it is
/// mpirun that placed them.
const LAUNCHERS: [Variables; 5] = [
    (
        "mpirun",
        "OMPI_COMM_WORLD_SIZE",
        Some("OMPI_COMM_WORLD_RANK"),
        Some("OMPI_COMM_WORLD_LOCAL_RANK"),
        None,
    ),
    (
        "mpiexec",
        "PMI_SIZE",
        Some("PMI_RANK"),
        Some("MPI_LOCALRANKID"),
        None,
    ),
    (
        "mpirun_rsh",
        "MV2_COMM_WORLD_SIZE",
        Some("MV2_COMM_WORLD_RANK"),
        Some("MV2_COMM_WORLD_LOCAL_RANK"),
        None,
    ),
    (
        "srun",
        "SLURM_STEP_NUM_TASKS",
        Some("SLURM_PROCID"),
        Some("SLURM_LOCALID"),
        Some("SLURM_CPUS_PER_TASK"),
    ),
    ("sbatch", "SLURM_NTASKS", None, None, None),
];

impl Launcher {
    /// The innermost launcher whose number of tasks `lookup` knows, if any.
    ///
    /// # Errors
    /// When a variable that is used holds no number.
    pub fn detect(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, CollectiveError> {
        let number = |variable: &'static str| match lookup(variable)
            .filter(|value| !value.trim().is_empty())
        {
            None => Ok(None),
            Some(value) => match value.trim().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(CollectiveError::LauncherVariable { variable, value }),
            },
        };
        for (name, variable, rank, local_rank, num_processors) in LAUNCHERS {
            if let Some(num_tasks) = number(variable)? {
                // `srun --mpi=pmi2` sets the same two variables, and not the third.
                let is_sruns = name == "mpiexec"
                    && number("MPI_LOCALRANKID")?.is_none()
                    && number("SLURM_STEP_NUM_TASKS")? == Some(num_tasks)
                    && number("SLURM_PROCID")? == number("PMI_RANK")?;
                if is_sruns {
                    continue;
                }
                let further = |variable: Option<&'static str>| {
                    Ok(variable.map(number).transpose()?.flatten())
                };
                return Ok(Some(Self {
                    name,
                    num_tasks,
                    variable,
                    rank: further(rank)?,
                    local_rank: further(local_rank)?,
                    num_processors: further(num_processors)?,
                }));
            }
        }
        Ok(None)
    }

    /// [`detect`](Launcher::detect) on this process's environment.
    ///
    /// # Errors
    /// As for [`detect`](Launcher::detect).
    pub fn detect_from_environment() -> Result<Option<Self>, CollectiveError> {
        Self::detect(|variable| std::env::var(variable).ok())
    }
}

/// Whether the launcher started this process as one of several nodes' tasks, as far as it tells.
#[cfg(feature = "mpi")]
pub(crate) fn spans_nodes() -> bool {
    let number = |variable: &str| {
        std::env::var(variable)
            .ok()
            .and_then(|value| value.trim().parse::<usize>().ok())
    };
    let world = number("OMPI_COMM_WORLD_SIZE");
    let local = number("OMPI_COMM_WORLD_LOCAL_SIZE");
    match (world, local) {
        (Some(world), Some(local)) => world > local,
        _ => number("SLURM_STEP_NUM_NODES").is_some_and(|nodes| nodes > 1),
    }
}

/// The scheduler's name for the job that this process belongs to, if there is one.
pub fn scheduler_job() -> Option<String> {
    std::env::var("SLURM_JOB_ID")
        .ok()
        .map(|id| format!("Slurm job {id}"))
}

/// Returns whether this process must initialise MPI to find the other ranks of its job.
#[cfg(feature = "mpi")]
pub(crate) fn needs_mpi(library: &str) -> bool {
    has_address(
        |variable| std::env::var(variable).ok(),
        library.starts_with("Open MPI"),
    )
}

/// Returns whether a launcher left the address of other ranks, in a way that the MPI library may understand.
///
/// Without an address every library makes a world of one, and Open MPI starts a daemon for that, which needs ssh and a writable `/tmp`, or
/// ends the process where it sees a step of `srun`. Where a launcher says that it started one task, there are no other ranks.
/// Only Open MPI is known to read none of the variables of `OTHERS` without one of `ADDRESSES`.
/// Sources besides [`Launcher`]'s: MPICH, `src/pmi` (`PMI_PORT`, `PMI_ID`); Slurm, `mpi/cray_shasta` (`PALS_RANKID`, `PMI_CONTROL_PORT`);
/// Cray's `aprun` (`ALPS_APP_PE`); Flux (`PMI_FD`); Open MPI before version 2 (`OMPI_MCA_orte_hnp_uri`).
#[cfg(any(feature = "mpi", test))]
fn has_address(lookup: impl Fn(&str) -> Option<String>, is_open_mpi: bool) -> bool {
    const SIZES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"];
    const ADDRESSES: [&str; 10] = [
        "PMIX_NAMESPACE",
        "PMIX_RANK",
        "PMI_FD",
        "PMI_PORT",
        "PMI_ID",
        "PMI_CONTROL_PORT",
        "PALS_RANKID",
        "ALPS_APP_PE",
        "MPIRUN_RANK",
        "OMPI_MCA_orte_hnp_uri",
    ];
    const OTHERS: [&str; 3] = ["PMI_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK"];
    let number = |variable: &str| lookup(variable)?.trim().parse::<usize>().ok();
    let is_set = |variable: &&&str| lookup(variable).is_some_and(|value| !value.is_empty());
    let sizes: Vec<usize> = SIZES.into_iter().filter_map(number).collect();
    let addresses: Vec<&&str> = ADDRESSES.iter().filter(is_set).collect();
    let step = number("SLURM_STEP_NUM_TASKS");
    let is_sruns = lookup("PMIX_NAMESPACE")
        .is_some_and(|namespace| namespace.starts_with("slurm."))
        && addresses
            .iter()
            .all(|variable| variable.starts_with("PMIX_"));
    let is_one = match sizes.as_slice() {
        // `srun --pty bash` leaves an address that one process can use once.
        [] => step == Some(1) && is_sruns,
        // The step may be that of mpirun's daemons, or the size that of a launcher around `srun`.
        sizes => sizes.iter().all(|&size| size == 1) && step.is_none_or(|tasks| tasks == 1),
    };
    // Some libraries find the tasks of `srun` by Slurm's own variables.
    let other_libraries =
        || OTHERS.iter().any(|variable| is_set(&variable)) || step.is_some_and(|tasks| tasks > 1);
    !is_one && (!addresses.is_empty() || !is_open_mpi && other_libraries())
}

/// Refuses a world that is not the one the launcher started.
///
/// Without its launcher's help MPI starts a world of one in every task without a warning: the tasks would train independently and
/// overwrite each other's files.
///
/// # Errors
/// When the launcher's number of tasks is not `world_size`.
pub fn check_world_size(
    launcher: Option<&Launcher>,
    world_size: usize,
    built_with_mpi: bool,
) -> Result<(), CollectiveError> {
    let Some(launcher) = launcher.filter(|launcher| launcher.num_tasks != world_size) else {
        return Ok(());
    };
    let remedy = match (built_with_mpi, launcher.name) {
        (false, _) => "rebuild with the default feature mpi, or start one task",
        (true, "sbatch") => "start it with srun --mpi=pmix or mpirun",
        (true, _) => {
            "built for another MPI than the launcher's? use srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH), or the mpirun of the \
             library it is linked with"
        }
    };
    Err(CollectiveError::WorldSizeMismatch {
        launcher: launcher.name,
        variable: launcher.variable,
        num_tasks: launcher.num_tasks,
        world_size,
        remedy,
    })
}

/// Refuses a place among the ranks, or on the node, that is not the one the launcher gave.
///
/// # Errors
/// When the launcher tells another rank, or another index on the node.
pub fn check_place(
    launcher: Option<&Launcher>,
    topology: &Topology,
) -> Result<(), CollectiveError> {
    let Some(launcher) = launcher else {
        return Ok(());
    };
    let pairs = [
        (
            "rank",
            launcher.rank,
            topology.rank,
            "start all ranks by one launcher",
        ),
        (
            "local rank",
            launcher.local_rank,
            topology.local_rank,
            "do two nodes have the same host name? ranks would share memory, or a GPU, that is not theirs",
        ),
    ];
    for (what, expected, got, remedy) in pairs {
        if let Some(expected) = expected.filter(|&expected| expected != got) {
            let (launcher, node) = (launcher.name, topology.node.clone());
            return Err(CollectiveError::PlaceMismatch {
                launcher,
                what,
                expected,
                got,
                node,
                remedy,
            });
        }
    }
    Ok(())
}

/// This machine's name as the kernel tells it, else `localhost`.
fn node_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

#[cfg(test)]
mod tests;
