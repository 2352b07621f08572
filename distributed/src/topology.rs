//! Where ranks run, and what their launcher says about it.
//!
//! In: node names by rank; the environment that `mpirun`, `mpiexec` or `srun` left. Out: [`Topology`], [`Launcher`].
//! Invariant: a launcher that started several tasks is never answered by several worlds of one.
//! Source: Open MPI FAQ "environment variables" (`OMPI_COMM_WORLD_*`); srun(1), output environment variables; MPICH's PMI (`PMI_*`).

use crate::CollectiveError;

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
}

impl Topology {
    /// The topology of `rank` when `nodes` holds the node name of every rank.
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
        Self {
            rank,
            world_size: nodes.len(),
            local_rank: nodes[..rank].iter().filter(|name| **name == node).count(),
            local_size: nodes.iter().filter(|name| **name == node).count(),
            node_index: distinct
                .iter()
                .position(|name| **name == node)
                .expect("the rank's own node is among the nodes"),
            num_nodes: distinct.len(),
            node,
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
/// What the launchers set in a task, seen with Open MPI 4.1.4, MPICH 4.0.2 and Slurm 22.05: `mpirun` sets `OMPI_COMM_WORLD_SIZE`, `_RANK` and
/// `_LOCAL_RANK`, beside `PMIX_RANK` and `PMIX_NAMESPACE`; that of MPICH sets `PMI_SIZE`, `PMI_RANK`, `MPI_LOCALRANKID` and
/// `MPI_LOCALNRANKS`; `srun` sets `SLURM_STEP_NUM_TASKS`, `SLURM_NTASKS`, `SLURM_PROCID` and
/// `SLURM_LOCALID`, with `--mpi=pmix` also `PMIX_RANK` and `PMIX_NAMESPACE`, with `--mpi=pmi2` also `PMI_SIZE` and `PMI_RANK`.
/// No `PMIX_*` variable tells a number of tasks, so none is read.
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
type Variables = (&'static str, &'static str, Option<&'static str>, Option<&'static str>, Option<&'static str>);

/// Innermost launcher first.
///
/// `mpirun` inside a Slurm allocation starts its daemons with `srun`, one a node, and their `SLURM_NTASKS`, `SLURM_STEP_NUM_TASKS`
/// and `SLURM_PROCID` stay in the ranks' environment: with four ranks on two nodes a rank saw `SLURM_NTASKS=1`. So mpirun's own
/// variable must win. `mpiexec` of MPICH and Intel MPI does the same with `PMI_SIZE`.
/// A batch script has `SLURM_NTASKS` (when tasks were asked for) and no step: a program started there without a launcher is one
/// that `srun` should have started, so `SLURM_NTASKS` counts too, last; its `SLURM_PROCID` is the script's and tells nothing.
///
/// `srun` tells a task's processors only where a number was asked for; mpirun's ranks may have Slurm's variable too, but it is
/// mpirun that placed them.
const LAUNCHERS: [Variables; 4] = [
    ("mpirun", "OMPI_COMM_WORLD_SIZE", Some("OMPI_COMM_WORLD_RANK"), Some("OMPI_COMM_WORLD_LOCAL_RANK"), None),
    ("mpiexec", "PMI_SIZE", Some("PMI_RANK"), Some("MPI_LOCALRANKID"), None),
    ("srun", "SLURM_STEP_NUM_TASKS", Some("SLURM_PROCID"), Some("SLURM_LOCALID"), Some("SLURM_CPUS_PER_TASK")),
    ("sbatch", "SLURM_NTASKS", None, None, None),
];

impl Launcher {
    /// The innermost launcher whose number of tasks `lookup` knows, if any.
    ///
    /// # Errors
    /// When a variable that is used holds no number.
    pub fn detect(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, CollectiveError> {
        let number = |variable: &'static str| match lookup(variable) {
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
                let further = |variable: Option<&'static str>| Ok(variable.map(number).transpose()?.flatten());
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
    let number = |variable: &str| std::env::var(variable).ok().and_then(|value| value.trim().parse::<usize>().ok());
    let world = number("OMPI_COMM_WORLD_SIZE");
    let local = number("OMPI_COMM_WORLD_LOCAL_SIZE");
    match (world, local) {
        (Some(world), Some(local)) => world > local,
        _ => number("SLURM_STEP_NUM_NODES").is_some_and(|nodes| nodes > 1),
    }
}

/// The scheduler's name for the job that this process belongs to, if there is one.
pub fn scheduler_job() -> Option<String> {
    std::env::var("SLURM_JOB_ID").ok().map(|id| format!("Slurm job {id}"))
}

/// Whether `srun` started this process as one of several and left it no address of the others, as `srun --mpi=none` does.
///
/// Open MPI ends such a process in `MPI_Init`, other libraries make it a world of one.
#[cfg(feature = "mpi")]
pub(crate) fn srun_left_no_address() -> bool {
    left_no_address(|variable| std::env::var(variable).ok())
}

#[cfg(any(feature = "mpi", test))]
fn left_no_address(lookup: impl Fn(&str) -> Option<String>) -> bool {
    const ADDRESSES: [&str; 4] = ["PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK", "PMI_FD"];
    let launcher = Launcher::detect(&lookup).ok().flatten();
    launcher.is_some_and(|launcher| launcher.name == "srun" && launcher.num_tasks > 1)
        && ADDRESSES.iter().all(|variable| lookup(variable).is_none())
}

/// Refuses a world that is not the one the launcher started.
///
/// Without its launcher's help MPI starts a world of one in every task and tells nobody: the tasks would train side by side and
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
        (true, "sbatch") => "start it with srun --mpi=pmix or mpirun, or ask for one task",
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
pub fn check_place(launcher: Option<&Launcher>, topology: &Topology) -> Result<(), CollectiveError> {
    let Some(launcher) = launcher else { return Ok(()) };
    let pairs = [
        ("rank", launcher.rank, topology.rank, "start all ranks by one launcher"),
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
            return Err(CollectiveError::PlaceMismatch { launcher, what, expected, got, node, remedy });
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
mod tests {
    use super::*;

    fn detect(environment: &[(&str, &str)]) -> Result<Option<Launcher>, CollectiveError> {
        Launcher::detect(|wanted| {
            environment.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        })
    }

    fn launcher(environment: &[(&str, &str)]) -> Launcher {
        detect(environment).unwrap().unwrap()
    }

    #[test]
    fn a_plain_start_has_no_launcher_and_any_world_size() {
        assert_eq!(detect(&[("PMIX_RANK", "1"), ("SLURM_JOB_ID", "7")]).unwrap(), None);
        assert_eq!(check_world_size(None, 1, true), Ok(()));
    }

    #[test]
    fn mpirun_wins_over_the_slurm_step_of_its_daemons() {
        let found = launcher(&[
            ("OMPI_COMM_WORLD_SIZE", "8"),
            ("OMPI_COMM_WORLD_RANK", "5"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_PROCID", "1"),
        ]);
        assert_eq!((found.name, found.num_tasks, found.rank, found.local_rank), ("mpirun", 8, Some(5), Some(1)));
    }

    #[test]
    fn mpiexec_wins_over_slurm() {
        let found = launcher(&[("PMI_SIZE", "4"), ("PMI_RANK", "3"), ("SLURM_NTASKS", "2")]);
        assert_eq!((found.name, found.num_tasks, found.rank, found.local_rank), ("mpiexec", 4, Some(3), None));
    }

    #[test]
    fn a_task_of_srun_is_sruns_also_with_the_variables_of_mpiexec() {
        let srun = [("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "3"), ("SLURM_LOCALID", "1")];
        let pmi = [("PMI_SIZE", "4"), ("PMI_RANK", "3")];
        let found = launcher(&[&srun[..], &pmi].concat());
        assert_eq!((found.name, found.num_tasks, found.rank, found.local_rank), ("srun", 4, Some(3), Some(1)));
        let found = launcher(&[&srun[..], &pmi, &[("MPI_LOCALRANKID", "0")]].concat());
        assert_eq!((found.name, found.num_tasks, found.rank, found.local_rank), ("mpiexec", 4, Some(3), Some(0)));
    }

    #[test]
    fn a_step_of_one_task_in_a_larger_allocation_is_one_task() {
        let found = launcher(&[
            ("SLURM_NTASKS", "4"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
        ]);
        assert_eq!((found.name, found.num_tasks, found.rank, found.local_rank), ("srun", 1, Some(0), Some(0)));
        assert_eq!(check_world_size(Some(&found), 1, true), Ok(()));
    }

    #[test]
    fn a_plain_start_in_a_batch_script_of_several_tasks_is_refused() {
        let found = launcher(&[("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0")]);
        assert_eq!(found.name, "sbatch");
        let text = check_world_size(Some(&found), 1, true).unwrap_err().to_string();
        assert_eq!(
            text,
            "sbatch: expected a world of 4 (SLURM_NTASKS=4), got a world of 1; \
             start it with srun --mpi=pmix or mpirun, or ask for one task"
        );
        let alone = launcher(&[("SLURM_NTASKS", "1")]);
        assert_eq!(check_world_size(Some(&alone), 1, true), Ok(()));
    }

    #[test]
    fn a_mismatch_names_variable_numbers_and_the_remedy_for_the_build() {
        let found = launcher(&[("SLURM_STEP_NUM_TASKS", "2")]);
        let with = check_world_size(Some(&found), 1, true).unwrap_err().to_string();
        assert!(with.contains("SLURM_STEP_NUM_TASKS=2") && with.contains("world of 1"), "{with}");
        assert!(with.contains("use srun --mpi=pmix"), "{with}");
        let without = check_world_size(Some(&found), 1, false).unwrap_err().to_string();
        assert!(without.ends_with("rebuild with the default feature mpi, or start one task"), "{without}");
    }

    #[test]
    fn a_variable_without_a_number_is_named() {
        let error = detect(&[("PMI_SIZE", "many")]).unwrap_err();
        assert_eq!(error.to_string(), "environment variable PMI_SIZE: expected a number, got \"many\"");
    }

    #[test]
    fn a_place_that_the_launcher_did_not_give_is_refused() {
        let nodes = ["a", "a", "b"].map(String::from);
        let launcher = |rank, local_rank| Launcher {
            name: "srun",
            num_tasks: 3,
            variable: "SLURM_STEP_NUM_TASKS",
            rank: Some(rank),
            local_rank,
            num_processors: None,
        };
        let topology = Topology::from_nodes(2, &nodes);
        assert_eq!(check_place(None, &topology), Ok(()));
        for local_rank in [None, Some(0)] {
            assert_eq!(check_place(Some(&launcher(2, local_rank)), &topology), Ok(()));
        }
        let text = check_place(Some(&launcher(1, Some(0))), &topology).unwrap_err().to_string();
        assert!(text.starts_with("srun: expected rank 1, got 2 on node b; "), "{text}");
        let text = check_place(Some(&launcher(2, Some(1))), &topology).unwrap_err().to_string();
        assert!(text.contains("local rank 1, got 0") && text.contains("host name"), "{text}");
    }

    #[test]
    fn the_processors_of_a_task_are_sruns_to_tell() {
        let slurm = [("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "0"), ("SLURM_CPUS_PER_TASK", "4")];
        assert_eq!(launcher(&slurm).num_processors, Some(4));
        assert_eq!(launcher(&[&slurm[..], &[("OMPI_COMM_WORLD_SIZE", "2")]].concat()).num_processors, None);
    }

    #[test]
    fn several_tasks_of_srun_need_an_address_of_the_others() {
        let is_left = |environment: &[(&str, &str)]| {
            left_no_address(|wanted| {
                environment.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
            })
        };
        let several = ("SLURM_STEP_NUM_TASKS", "2");
        assert!(is_left(&[several, ("SLURM_PROCID", "0")]));
        for contact in ["PMIX_RANK", "PMI_FD", "OMPI_COMM_WORLD_SIZE"] {
            assert!(!is_left(&[several, (contact, "2")]), "{contact}");
        }
        assert!(!is_left(&[("SLURM_STEP_NUM_TASKS", "1")]) && !is_left(&[]));
    }

    #[test]
    fn nodes_are_counted_in_the_order_of_their_first_rank() {
        let nodes: Vec<String> = ["b", "a", "b", "c", "a", "b"].map(String::from).into();
        let of = |rank| {
            let topology = Topology::from_nodes(rank, &nodes);
            assert_eq!((topology.rank, topology.world_size, topology.num_nodes), (rank, 6, 3));
            (topology.node_index, topology.local_rank, topology.local_size)
        };
        assert_eq!(
            (0..6).map(of).collect::<Vec<_>>(),
            [(0, 0, 3), (1, 0, 2), (0, 1, 3), (2, 0, 1), (1, 1, 2), (0, 2, 3)]
        );
    }
}
