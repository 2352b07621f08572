//! Places of ranks, and the environment of their launcher.
//!
//! In: node names by rank, and the environment of `mpirun`, `mpiexec` or `srun`. Out: [`Topology`]
//! and [`Launcher`].
//! Invariant: if a launcher started several tasks, they never form several worlds of one rank.
//! Source: Open MPI FAQ "environment variables" (`OMPI_COMM_WORLD_*`); srun(1), output environment
//! variables; MPICH's PMI (`PMI_*`).

use crate::cpus::share;
use crate::{CollectiveError, communicator::CpuLimits};

/// Position of a rank among all ranks and nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Index of this rank, `0..world_size`.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Index of this rank among the ranks of its node, in rank order.
    pub local_rank: usize,
    /// Number of ranks on this node.
    pub local_size: usize,
    /// Name of this node.
    pub node: String,
    /// Index of this node. Nodes are numbered in the order of their first rank.
    pub node_index: usize,
    /// Number of nodes.
    pub num_nodes: usize,
    /// Number of CPUs in this rank's share of its node, at least 1.
    pub num_cpus: usize,
}

impl Topology {
    /// Returns the topology of `rank`. `nodes` holds the node name of every rank. All ranks of a
    /// node have this process's CPUs.
    ///
    /// # Panics
    /// Panics if `rank` is not below the length of `nodes`.
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

    /// Returns the topology of `rank`. `ranks` holds the node name and the CPUs of every rank.
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

    /// Returns the topology of `rank` if all ranks run in this process or on this machine.
    ///
    /// # Panics
    /// Panics if `rank` is not below `world_size`.
    pub fn on_one_node(rank: usize, world_size: usize) -> Self {
        Self::from_nodes(rank, &vec![node_name(); world_size])
    }
}

/// Launcher that started this process as one of several tasks.
///
/// Variables of a task, seen with Open MPI 4.1.4, MPICH 4.0.2 and Slurm 22.05:
/// - Open MPI's `mpirun` sets `OMPI_COMM_WORLD_SIZE`, `_RANK`, `_LOCAL_RANK`, `PMIX_RANK` and
///   `PMIX_NAMESPACE`;
/// - MPICH's `mpiexec` sets `PMI_SIZE`, `PMI_RANK`, `PMI_FD`, `MPI_LOCALRANKID` and
///   `MPI_LOCALNRANKS`;
/// - `srun` sets `SLURM_STEP_NUM_TASKS`, `SLURM_NTASKS`, `SLURM_PROCID` and `SLURM_LOCALID`, with
///   `--mpi=pmix` also `PMIX_RANK` and `PMIX_NAMESPACE`, with `--mpi=pmi2` also `PMI_SIZE`,
///   `PMI_RANK` and `PMI_FD`.
///
/// No `PMIX_*` variable holds a number of tasks, so Lockstep reads none of them. An empty variable
/// counts as unset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// `mpirun`, `mpiexec`, `srun` or `sbatch`.
    pub name: &'static str,
    /// Number of tasks that the launcher started or would start.
    pub num_tasks: usize,
    /// Variable that holds the number of tasks.
    pub variable: &'static str,
    /// Rank of this task, if the launcher sets it.
    pub rank: Option<usize>,
    /// Index of this task on its node, if the launcher sets it.
    pub local_rank: Option<usize>,
    /// Number of CPUs of this task, if the launcher sets it.
    pub num_processors: Option<usize>,
}

/// Variables of one launcher: name, number of tasks, rank, local rank, CPUs of a task.
type Variables = (
    &'static str,
    &'static str,
    Option<&'static str>,
    Option<&'static str>,
    Option<&'static str>,
);

/// The launchers, innermost first.
///
/// `mpirun` inside a Slurm allocation starts its daemons with `srun`, one per node. The daemons'
/// `SLURM_NTASKS`, `SLURM_STEP_NUM_TASKS` and `SLURM_PROCID` stay in the environment of the ranks.
/// With four ranks on two nodes a rank had `SLURM_NTASKS=1`. So mpirun's own variable has priority.
/// `mpiexec` of MPICH and Intel MPI does the same with `PMI_SIZE`, and `mpirun_rsh` of MVAPICH2
/// with `MV2_COMM_WORLD_SIZE` (MVAPICH2 user guide; not tested).
///
/// A batch script has `SLURM_NTASKS` (if tasks were requested) and no step. A program in the script
/// without a launcher should have been started by `srun`, so `SLURM_NTASKS` counts, with the lowest
/// priority. `SLURM_PROCID` then belongs to the script and is not used.
///
/// `srun` sets the CPUs of a task only if a number was requested. Ranks of `mpirun` may have
/// Slurm's variable, but `mpirun` has chosen their CPUs.
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
    /// Returns the innermost launcher whose number of tasks is set according to `lookup`.
    ///
    /// # Errors
    /// Returns an error if a used variable does not hold a number.
    pub fn detect(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, CollectiveError> {
        let number = |variable: &'static str| match lookup(variable)
            .filter(|value| !value.trim().is_empty())
        {
            None => Ok(None),
            Some(value) => match value.trim().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(CollectiveError::Failed(format!(
                    "environment variable {variable}: expected a number, got \"{value}\". If no launcher set it: unset {variable}"
                ))),
            },
        };
        for (name, variable, rank, local_rank, num_processors) in LAUNCHERS {
            if let Some(num_tasks) = number(variable)? {
                // `srun --mpi=pmi2` sets the same two variables, but not the third.
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

    /// Calls [`detect`](Launcher::detect) with this process's environment.
    ///
    /// # Errors
    /// Returns an error in the cases of [`detect`](Launcher::detect).
    pub fn detect_from_environment() -> Result<Option<Self>, CollectiveError> {
        Self::detect(|variable| std::env::var(variable).ok())
    }
}

/// Returns true if the variables of the launcher show that the job uses several nodes.
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

/// Returns true if NCCL may put several ranks on one GPU, which tests on one GPU need.
#[cfg(feature = "nccl")]
pub(crate) fn nccl_may_share_gpus() -> bool {
    std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1")
}

/// Returns the scheduler's name of this process's job.
pub fn scheduler_job() -> Option<String> {
    std::env::var("SLURM_JOB_ID")
        .ok()
        .map(|id| format!("Slurm job {id}"))
}

/// Returns true if this process must initialise MPI to find the other ranks of its job.
#[cfg(feature = "mpi")]
pub(crate) fn needs_mpi(library: &str) -> bool {
    has_address(
        |variable| std::env::var(variable).ok(),
        library.starts_with("Open MPI"),
    )
}

/// Returns true if a launcher left the address of other ranks, in a form that the MPI library may
/// read.
///
/// Without an address every MPI library creates a world of one rank. Open MPI then starts a daemon,
/// which needs ssh and a writable `/tmp`. In a step of `srun`, Open MPI ends the process instead.
/// If a launcher started one task, there are no other ranks. Only Open MPI is known to read none of
/// the variables of `OTHERS` without one of `ADDRESSES`.
///
/// Sources in addition to [`Launcher`]'s: MPICH, `src/pmi` (`PMI_PORT`, `PMI_ID`); Slurm,
/// `mpi/cray_shasta` (`PALS_RANKID`, `PMI_CONTROL_PORT`); Cray's `aprun` (`ALPS_APP_PE`); Flux
/// (`PMI_FD`); Open MPI before version 2 (`OMPI_MCA_orte_hnp_uri`).
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
        // The step may belong to mpirun's daemons. The size may belong to a launcher around `srun`.
        sizes => sizes.iter().all(|&size| size == 1) && step.is_none_or(|tasks| tasks == 1),
    };
    // Some libraries find the tasks of `srun` by Slurm's variables.
    let other_libraries =
        || OTHERS.iter().any(|variable| is_set(&variable)) || step.is_some_and(|tasks| tasks > 1);
    !is_one && (!addresses.is_empty() || !is_open_mpi && other_libraries())
}

/// Rejects a world that the launcher did not start.
///
/// Without its launcher, MPI starts a world of one rank in every task without a warning. The tasks
/// would train independently and overwrite each other's files.
///
/// # Errors
/// Returns an error if the launcher's number of tasks is not `world_size`.
pub fn check_world_size(
    launcher: Option<&Launcher>,
    world_size: usize,
    built_with_mpi: bool,
) -> Result<(), CollectiveError> {
    let Some(launcher) = launcher.filter(|launcher| launcher.num_tasks != world_size) else {
        return Ok(());
    };
    let remedy = match (built_with_mpi, launcher.name) {
        (false, _) => "Rebuild with the default feature mpi, or start one task",
        (true, "sbatch") => "Start it with srun --mpi=pmix or mpirun",
        (true, _) => {
            "The program may use another MPI than the launcher: use srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH), \
             or the mpirun of the program's MPI library"
        }
    };
    let Launcher {
        name,
        num_tasks,
        variable,
        ..
    } = launcher;
    // Without the step's variable, the allocation's variable would count.
    let further = match *variable {
        "SLURM_STEP_NUM_TASKS" => " SLURM_NTASKS",
        _ => "",
    };
    Err(CollectiveError::Failed(format!(
        "{name}: expected a world of {num_tasks} ({variable}={num_tasks}), got a world of {world_size}. {remedy}. \
         For one process: unset {variable}{further}"
    )))
}

/// Rejects a rank, or an index on the node, that the launcher did not assign.
///
/// # Errors
/// Returns an error if the launcher assigned another rank or another index on the node.
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
            "Start all ranks with one launcher.",
        ),
        (
            "local rank",
            launcher.local_rank,
            topology.local_rank,
            "Give every node its own host name: ranks of one node share memory and GPUs.",
        ),
    ];
    for (what, expected, got, remedy) in pairs {
        if let Some(expected) = expected.filter(|&expected| expected != got) {
            return Err(CollectiveError::Failed(format!(
                "{}: expected {what} {expected}, got {got} on node {}. {remedy}",
                launcher.name, topology.node
            )));
        }
    }
    Ok(())
}

/// Returns the name of this machine from the kernel, or `localhost`.
fn node_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

#[cfg(test)]
mod tests;
