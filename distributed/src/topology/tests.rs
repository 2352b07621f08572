//! Tests of launchers' variables and of positions of ranks.

use super::*;

fn detect(environment: &[(&str, &str)]) -> Result<Option<Launcher>, CollectiveError> {
    Launcher::detect(|wanted| {
        environment
            .iter()
            .find(|(name, _)| *name == wanted)
            .map(|(_, value)| (*value).to_owned())
    })
}

fn launcher(environment: &[(&str, &str)]) -> Launcher {
    detect(environment).unwrap().unwrap()
}

#[test]
fn a_plain_start_has_no_launcher_and_any_world_size() {
    assert_eq!(
        detect(&[("PMIX_RANK", "1"), ("SLURM_JOB_ID", "7")]).unwrap(),
        None
    );
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
    assert_eq!(
        (found.name, found.num_tasks, found.rank, found.local_rank),
        ("mpirun", 8, Some(5), Some(1))
    );
}

#[test]
fn mpiexec_wins_over_slurm() {
    let found = launcher(&[("PMI_SIZE", "4"), ("PMI_RANK", "3"), ("SLURM_NTASKS", "2")]);
    assert_eq!(
        (found.name, found.num_tasks, found.rank, found.local_rank),
        ("mpiexec", 4, Some(3), None)
    );
}

#[test]
fn a_task_of_srun_is_sruns_also_with_the_variables_of_mpiexec() {
    let srun = [
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_PROCID", "3"),
        ("SLURM_LOCALID", "1"),
    ];
    let pmi = [("PMI_SIZE", "4"), ("PMI_RANK", "3")];
    let found = launcher(&[&srun[..], &pmi].concat());
    assert_eq!(
        (found.name, found.num_tasks, found.rank, found.local_rank),
        ("srun", 4, Some(3), Some(1))
    );
    let found = launcher(&[&srun[..], &pmi, &[("MPI_LOCALRANKID", "0")]].concat());
    assert_eq!(
        (found.name, found.num_tasks, found.rank, found.local_rank),
        ("mpiexec", 4, Some(3), Some(0))
    );
}

#[test]
fn a_step_of_one_task_in_a_larger_allocation_is_one_task() {
    let found = launcher(&[
        ("SLURM_NTASKS", "4"),
        ("SLURM_STEP_NUM_TASKS", "1"),
        ("SLURM_PROCID", "0"),
        ("SLURM_LOCALID", "0"),
    ]);
    assert_eq!(
        (found.name, found.num_tasks, found.rank, found.local_rank),
        ("srun", 1, Some(0), Some(0))
    );
    assert_eq!(check_world_size(Some(&found), 1, true), Ok(()));
}

#[test]
fn a_plain_start_in_a_batch_script_of_several_tasks_is_refused() {
    let found = launcher(&[("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0")]);
    assert_eq!(found.name, "sbatch");
    let text = check_world_size(Some(&found), 1, true)
        .unwrap_err()
        .to_string();
    assert_eq!(
        text,
        "sbatch: expected a world of 4 (SLURM_NTASKS=4), got a world of 1. \
         Start it with srun --mpi=pmix or mpirun. For one process: unset SLURM_NTASKS"
    );
    let alone = launcher(&[("SLURM_NTASKS", "1")]);
    assert_eq!(check_world_size(Some(&alone), 1, true), Ok(()));
}

#[test]
fn a_mismatch_names_variable_numbers_and_the_remedy_for_the_build() {
    let found = launcher(&[("SLURM_STEP_NUM_TASKS", "2")]);
    let with = check_world_size(Some(&found), 1, true)
        .unwrap_err()
        .to_string();
    assert!(
        with.contains("SLURM_STEP_NUM_TASKS=2") && with.contains("world of 1"),
        "{with}"
    );
    assert!(with.contains("use srun --mpi=pmix"), "{with}");
    let without = check_world_size(Some(&found), 1, false)
        .unwrap_err()
        .to_string();
    assert!(
        without.contains("Rebuild with the default feature mpi, or start one task"),
        "{without}"
    );
    assert!(
        without.ends_with(". For one process: unset SLURM_STEP_NUM_TASKS SLURM_NTASKS"),
        "{without}"
    );
}

#[test]
fn a_variable_without_a_number_is_named_and_an_empty_one_is_unset() {
    let error = detect(&[("PMI_SIZE", "many")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "environment variable PMI_SIZE: expected a number, got \"many\". If no launcher set it: unset PMI_SIZE"
    );
    assert_eq!(
        detect(&[("SLURM_NTASKS", ""), ("PMI_SIZE", " ")]).unwrap(),
        None
    );
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
        assert_eq!(
            check_place(Some(&launcher(2, local_rank)), &topology),
            Ok(())
        );
    }
    let text = check_place(Some(&launcher(1, Some(0))), &topology)
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with("srun: expected rank 1, got 2 on node b. "),
        "{text}"
    );
    let text = check_place(Some(&launcher(2, Some(1))), &topology)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("local rank 1, got 0") && text.contains("host name"),
        "{text}"
    );
}

#[test]
fn the_processors_of_a_task_are_sruns_to_tell() {
    let slurm = [
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_PROCID", "0"),
        ("SLURM_CPUS_PER_TASK", "4"),
    ];
    assert_eq!(launcher(&slurm).num_processors, Some(4));
    assert_eq!(
        launcher(&[&slurm[..], &[("OMPI_COMM_WORLD_SIZE", "2")]].concat()).num_processors,
        None
    );
}

// tidy: long function because it is one table of environments
#[test]
fn mpi_is_initialised_only_where_a_launcher_left_an_address_that_the_library_may_understand() {
    const STEP: (&str, &str) = ("SLURM_STEP_NUM_TASKS", "2");
    const ONE: (&str, &str) = ("SLURM_STEP_NUM_TASKS", "1");
    const EVERY: [bool; 2] = [true, true];
    const NO: [bool; 2] = [false, false];
    const NOT_OPEN_MPI: [bool; 2] = [false, true];
    type Case<'a> = (&'a [(&'a str, &'a str)], [bool; 2]);
    let cases: [Case<'_>; 24] = [
        (&[], NO),
        (
            &[
                ("SLURM_JOB_ID", "7"),
                ("SLURM_NTASKS", "4"),
                ("SLURM_PROCID", "0"),
            ],
            NO,
        ),
        (
            &[
                ("PMIX_MCA_gds", "hash"),
                ("PMI_NO_PREINITIALIZE", "1"),
                ("OMPI_MCA_btl", "self"),
            ],
            NO,
        ),
        (
            &[
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("PMIX_NAMESPACE", "7@0"),
                ("PMIX_RANK", "0"),
            ],
            EVERY,
        ),
        (
            &[
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("OMPI_MCA_orte_hnp_uri", "7;tcp://"),
            ],
            EVERY,
        ),
        (
            &[("PMI_SIZE", "2"), ("PMI_RANK", "1"), ("PMI_FD", "9")],
            EVERY,
        ),
        (&[("PMI_PORT", "n1:7"), ("PMI_ID", "0")], EVERY),
        (
            &[("PMIX_NAMESPACE", "prte-n1-7@1"), ("PMIX_RANK", "0")],
            EVERY,
        ),
        (&[("MV2_COMM_WORLD_SIZE", "2"), ("MPIRUN_RANK", "1")], EVERY),
        (&[("PALS_RANKID", "0")], EVERY),
        // Steps of srun with its plugins pmix, pmi2 and none.
        (
            &[
                STEP,
                ("PMIX_NAMESPACE", "slurm.pmix.7.0"),
                ("PMIX_RANK", "0"),
            ],
            EVERY,
        ),
        (
            &[STEP, ("PMI_SIZE", "2"), ("PMI_RANK", "0"), ("PMI_FD", "9")],
            EVERY,
        ),
        (&[STEP, ("SLURM_PROCID", "0")], NOT_OPEN_MPI),
        (&[ONE, ("SLURM_PROCID", "0")], NO),
        // One task with any address.
        (
            &[("OMPI_COMM_WORLD_SIZE", "1"), ("PMIX_NAMESPACE", "7@0")],
            NO,
        ),
        (&[("PMI_SIZE", "1"), ("PMI_RANK", "0"), ("PMI_FD", "9")], NO),
        (
            &[
                ONE,
                ("PMIX_NAMESPACE", "slurm.pmix.7.0"),
                ("PMIX_RANK", "0"),
            ],
            NO,
        ),
        (
            &[ONE, ("PMIX_NAMESPACE", "prte-n1-7@1"), ("PMIX_RANK", "0")],
            EVERY,
        ),
        (
            &[
                ONE,
                ("PMIX_NAMESPACE", "slurm.pmix.7.0"),
                ("PMI_PORT", "n1:7"),
            ],
            EVERY,
        ),
        // These variables remain from another job.
        (&[("PMI_SIZE", "4"), ("PMI_RANK", "0")], NOT_OPEN_MPI),
        (&[("PMI_RANK", "")], NO),
        // A launcher inside another one.
        (
            &[
                ("OMPI_COMM_WORLD_SIZE", "1"),
                ("PMI_SIZE", "2"),
                ("PMI_FD", "9"),
            ],
            EVERY,
        ),
        (
            &[("OMPI_COMM_WORLD_SIZE", "1"), STEP, ("PMIX_RANK", "1")],
            EVERY,
        ),
        (
            &[("OMPI_COMM_WORLD_SIZE", "4"), STEP, ("PMIX_RANK", "1")],
            EVERY,
        ),
    ];
    for (environment, expected) in cases {
        let lookup = |wanted: &str| {
            environment
                .iter()
                .find(|(name, _)| *name == wanted)
                .map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(
            [true, false].map(|is_open_mpi| has_address(lookup, is_open_mpi)),
            expected,
            "{environment:?}"
        );
    }
}

#[test]
fn a_rank_has_the_cpus_of_its_own_node_only() {
    let ranks = [
        ("a", "0-7"),
        ("b", "0-3"),
        ("a", "0-7"),
        ("b", "0-3"),
        ("b", "0-3"),
    ];
    let ranks = ranks.map(|(node, mask)| (node.to_owned(), CpuLimits::parse(mask)));
    assert_eq!(
        [0, 1, 2, 3, 4].map(|rank| Topology::from_ranks(rank, &ranks).num_cpus),
        [4, 1, 4, 1, 1]
    );
    assert_eq!(Topology::from_ranks(2, &ranks).local_size, 2);
}

#[test]
fn nodes_are_counted_in_the_order_of_their_first_rank() {
    let nodes: Vec<String> = ["b", "a", "b", "c", "a", "b"].map(String::from).into();
    let of = |rank| {
        let topology = Topology::from_nodes(rank, &nodes);
        assert_eq!(
            (topology.rank, topology.world_size, topology.num_nodes),
            (rank, 6, 3)
        );
        (
            topology.node_index,
            topology.local_rank,
            topology.local_size,
        )
    };
    assert_eq!(
        (0..6).map(of).collect::<Vec<_>>(),
        [
            (0, 0, 3),
            (1, 0, 2),
            (0, 1, 3),
            (2, 0, 1),
            (1, 1, 2),
            (0, 2, 3)
        ]
    );
}
