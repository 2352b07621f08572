//! Every verdict from made-up facts.

// tidy: long file because every verdict is tried on the same made-up ranks.

use super::super::diagnosis::Row;
use super::super::facts::{
    Complaint, ComputeFacts, DataFacts, PlaceFacts, ProgramFacts, SplitFacts,
};
use super::super::gradients::GradientFacts;
use super::super::machine::{GpuFacts, InterfaceFacts, MemoryFacts, ProcessorFacts, QuotaFacts};
use super::super::network::{SpeedFacts, SumFacts};
use super::super::storage::OutputFacts;
use super::*;
use crate::measure::clock_offset::ClockOffset;

/// Ranks on nodes of four cores, at most two ranks on a node, which divide its cores, with nothing wrong.
fn healthy(num_ranks: usize) -> Vec<RankFacts> {
    (0..num_ranks)
        .map(|rank| healthy_rank(rank, num_ranks))
        .collect()
}

// tidy: long function because it is one value with all its fields
fn healthy_rank(rank: usize, world_size: usize) -> RankFacts {
    let is_alone = rank.is_multiple_of(2) && rank + 1 == world_size;
    let allowed = if is_alone {
        "0-3"
    } else {
        ["0-1", "2-3"][rank % 2]
    };
    let way = |way: &str, seconds: f64| SumFacts {
        way: way.to_owned(),
        wrong: None,
        speeds: [1 << 10, 1 << 20]
            .map(|bytes| SpeedFacts { bytes, seconds })
            .to_vec(),
    };
    RankFacts {
        place: PlaceFacts {
            rank,
            world_size,
            local_rank: rank % 2,
            local_size: 2,
            node: format!("n{}", rank / 2 + 1),
            launcher: Some(("srun".to_owned(), world_size)),
            complaint: None,
        },
        program: ProgramFacts {
            version: "0.1.0".to_owned(),
            commit: "4de06dd98f3c1b".to_owned(),
            executable: Ok("ab".repeat(32)),
            library: "Open MPI v4.1.4".to_owned(),
            supports_threads: true,
            has_mpi: true,
        },
        processors: ProcessorFacts {
            model: "Xeon".to_owned(),
            boot: format!("boot {}", rank / 2),
            machine: CpuSet::parse("0-3"),
            granted: None,
            quotas: Vec::new(),
            allowed: CpuSet::parse(allowed),
            siblings: Vec::new(),
        },
        compute: Ok(ComputeFacts {
            device: "Flex".to_owned(),
            is_gpu: false,
            threads: if is_alone { 4 } else { 2 },
            instruction_set: "Avx512".to_owned(),
        }),
        gpus: GpuFacts {
            has_driver: false,
            num_gpus: 0,
        },
        gradients: None,
        memory: MemoryFacts {
            available_bytes: Some(8 << 30),
            group_left_bytes: None,
            shared_free_bytes: Some(1 << 30),
            open_files: Some(1024),
        },
        energy: Ok(2),
        interfaces: vec![InterfaceFacts {
            name: "eth0".to_owned(),
            speed: None,
        }],
        sums: vec![way("library", 2e-3), way("hierarchical", 1e-3)],
        clock: ClockOffset {
            offset_s: 0.01,
            uncertainty_s: 0.02,
        },
        data: Ok(DataFacts {
            name: "shapes".to_owned(),
            splits: [("train", 10_000, "12"), ("test", 2_000, "34")]
                .map(|(name, num_images, digits)| SplitFacts {
                    name: name.to_owned(),
                    num_images,
                    checksum: digits.repeat(32),
                })
                .to_vec(),
        }),
        output: (rank == 0).then(|| OutputFacts {
            directory: "runs".to_owned(),
            examined: "/home/a".to_owned(),
            free_bytes: Ok(10 << 30),
            write_bytes_per_s: Ok(2e8),
            locks: Ok(()),
        }),
        sees_output: (rank > 0 && rank.is_multiple_of(2)).then_some(true),
    }
}

/// The row called `name` after `change` of otherwise healthy facts of four ranks on two nodes.
fn row_after(name: &str, change: impl FnOnce(&mut Vec<RankFacts>)) -> Row {
    let mut ranks = healthy(4);
    change(&mut ranks);
    row(name, ranks)
}

fn row(name: &str, ranks: Vec<RankFacts>) -> Row {
    let row = diagnose(ranks)
        .rows
        .into_iter()
        .find(|row| row.name == name)
        .unwrap();
    assert_eq!(row.verdict == Verdict::Ok, row.remedy.is_none(), "{row:?}");
    row
}

fn says(row: &Row, verdict: Verdict, found: &[&str], remedy: &str) {
    assert_eq!(row.verdict, verdict, "{row:?}");
    assert!(
        found.iter().all(|text| row.found.contains(text)),
        "{found:?} in {row:?}"
    );
    assert!(
        row.remedy.as_deref().unwrap_or_default().contains(remedy),
        "{remedy:?} in {row:?}"
    );
}

fn memory(ranks: &mut [RankFacts], change: impl Fn(&mut MemoryFacts)) {
    ranks.iter_mut().for_each(|rank| change(&mut rank.memory));
}

fn compute(rank: &mut RankFacts) -> &mut ComputeFacts {
    rank.compute.as_mut().unwrap()
}

#[test]
fn healthy_ranks_are_green_in_every_row_on_any_number_of_nodes() {
    for num_ranks in 1..=6 {
        let diagnosis = diagnose(healthy(num_ranks));
        let bad: Vec<&Row> = diagnosis
            .rows
            .iter()
            .filter(|row| row.verdict != Verdict::Ok)
            .collect();
        assert!(
            bad.is_empty() && diagnosis.verdict == Verdict::Ok,
            "{num_ranks} ranks: {bad:?}"
        );
        assert_eq!(
            (diagnosis.ranks, diagnosis.nodes),
            (num_ranks, num_ranks.div_ceil(2))
        );
    }
}

#[test]
fn the_verdict_is_that_of_the_worst_row() {
    let mut ranks = healthy(4);
    ranks[1].memory.open_files = Some(256);
    assert_eq!(diagnose(ranks.clone()).verdict, Verdict::Warn);
    ranks[3].program.version = "0.0.9".to_owned();
    assert_eq!(diagnose(ranks).verdict, Verdict::Fail);
}

#[test]
fn another_version_commit_or_executable_on_a_rank_fails() {
    let changes: [fn(&mut ProgramFacts); 3] = [
        |program| program.version = "0.0.9".to_owned(),
        |program| program.commit = "0".repeat(40),
        |program| program.executable = Ok("cd".repeat(32)),
    ];
    for change in changes {
        let row = row_after("program", |ranks| change(&mut ranks[3].program));
        says(
            &row,
            Verdict::Fail,
            &[
                "rank 3 on n2",
                "root: 0.1.0 (commit 4de06dd98f3c), sha256 abababababab",
            ],
            "one build",
        );
    }
    let unreadable = row_after("program", |ranks| {
        ranks
            .iter_mut()
            .for_each(|rank| rank.program.executable = Err("no /proc".to_owned()))
    });
    says(&unreadable, Verdict::Warn, &["no /proc"], "by hand");
}

#[test]
fn another_mpi_on_a_rank_fails() {
    let row = row_after("MPI", |ranks| {
        ranks[2].program.library = "MPICH 4.0.2".to_owned()
    });
    says(
        &row,
        Verdict::Fail,
        &["rank 2 on n2: MPICH 4.0.2; root: Open MPI v4.1.4"],
        "one MPI",
    );
}

#[test]
fn an_mpi_without_threads_is_a_warning_unless_there_is_one_rank() {
    let without = row_after("MPI", |ranks| ranks[1].program.supports_threads = false);
    says(
        &without,
        Verdict::Warn,
        &["MPI_THREAD_MULTIPLE on rank 1 on n1"],
        "support for threads",
    );
    let mut alone = healthy(1);
    alone[0].program.supports_threads = false;
    assert_eq!(row("MPI", alone).verdict, Verdict::Ok);
}

#[test]
fn a_program_without_mpi_fails_where_several_tasks_were_started() {
    let of_tasks = |tasks: usize| {
        let mut alone = healthy(1);
        alone[0].program.has_mpi = false;
        alone[0].place.launcher = Some(("srun".to_owned(), tasks));
        row("MPI", alone)
    };
    says(
        &of_tasks(2),
        Verdict::Fail,
        &["not built in", "2 tasks"],
        "feature mpi",
    );
    assert_eq!(of_tasks(1).verdict, Verdict::Ok);
}

#[test]
fn a_world_that_the_launcher_did_not_start_fails_with_the_remedy_of_the_refusal() {
    let mut alone = healthy(1);
    alone[0].place.launcher = Some(("srun".to_owned(), 2));
    alone[0].place.complaint = Some(Complaint {
        found: "srun: expected a world of 2".to_owned(),
        remedy: "use srun --mpi=pmix".to_owned(),
    });
    says(
        &row("world", alone),
        Verdict::Fail,
        &["rank 0 on n1: srun: expected a world of 2", "train alone"],
        "--mpi=pmix",
    );
    let misplaced = row_after("world", |ranks| {
        for rank in &mut ranks[1..3] {
            rank.place.complaint = Some(Complaint {
                found: "another rank".to_owned(),
                remedy: "one launcher".to_owned(),
            });
        }
    });
    says(
        &misplaced,
        Verdict::Fail,
        &["ranks 1-2: another rank"],
        "one launcher",
    );
    assert!(!misplaced.found.contains("alone"));
}

#[test]
fn ranks_bound_to_the_same_cores_while_others_idle_fail() {
    let bind = |allowed: &'static str, threads: usize| {
        row_after("cores", |ranks| {
            for rank in &mut ranks[2..] {
                rank.processors.allowed = CpuSet::parse(allowed);
                compute(rank).threads = threads;
            }
        })
    };
    says(
        &bind("1", 1),
        Verdict::Fail,
        &["n2: ranks 2-3", "same cores, 1 of 4", "2 threads on 1:"],
        "at most 1 of these",
    );
    says(
        &bind("0-1", 2),
        Verdict::Fail,
        &["4 threads on 2"],
        "--bind-to core",
    );
    says(
        &bind("0-1", 2),
        Verdict::Fail,
        &["double binding"],
        "--threads 1",
    );
    says(
        &bind("0-1", 1),
        Verdict::Warn,
        &["n2: ranks 2-3 with 2 threads on 4 CPUs: 2 idle"],
        "--threads 2",
    );
}

#[test]
fn cpus_that_no_rank_uses_are_reported_unless_the_job_has_no_right_to_them() {
    let narrow = |change: fn(&mut RankFacts)| {
        row_after("cores", |ranks| {
            for rank in ranks {
                rank.processors.allowed = CpuSet::parse(["0", "1"][rank.place.local_rank]);
                compute(rank).threads = 1;
                change(rank);
            }
        })
    };
    says(
        &narrow(|_| {}),
        Verdict::Warn,
        &["n1: ranks 0-1 with 2 threads on 4 CPUs: 2 idle"],
        "slot:PE=2",
    );
    let changes: [fn(&mut RankFacts); 4] = [
        |rank| rank.processors.granted = Some(2),
        |rank| rank.processors.machine = CpuSet::parse("0-2"),
        |rank| {
            rank.processors.quotas = vec![QuotaFacts {
                group: "/job".to_owned(),
                cpus: 2.5,
            }]
        },
        |rank| compute(rank).is_gpu = true,
    ];
    for change in changes {
        assert_eq!(narrow(change).verdict, Verdict::Ok);
    }
}

#[test]
fn threads_beyond_a_cpu_quota_are_a_warning() {
    let under = |cpus: f64, group: fn(&RankFacts) -> String| {
        row_after("cores", |ranks| {
            for rank in ranks {
                rank.processors.quotas = vec![QuotaFacts {
                    group: group(rank),
                    cpus,
                }];
            }
        })
    };
    let shared = |cpus| under(cpus, |_| "/job".to_owned());
    says(
        &shared(2.0),
        Verdict::Warn,
        &["n1: ranks 0-1 with 4 threads under a CPU quota of 2.0 (/job)"],
        "--threads 1",
    );
    says(
        &shared(1.5),
        Verdict::Warn,
        &["4 threads under a CPU quota of 1.5"],
        "at most 1 rank under",
    );
    let whole = shared(4.0);
    assert!(
        whole.verdict == Verdict::Ok && whole.found.ends_with("within a CPU quota of 4.0"),
        "{whole:?}"
    );
    assert_eq!(
        under(2.0, |rank| format!("/job/{}", rank.place.rank)).verdict,
        Verdict::Ok
    );
}

#[test]
fn more_threads_than_cores_is_a_warning() {
    let unbound = |threads: usize| {
        row_after("cores", |ranks| {
            for rank in ranks {
                rank.processors.allowed = CpuSet::parse("0-3");
                compute(rank).threads = threads;
            }
        })
    };
    assert_eq!(unbound(2).verdict, Verdict::Ok);
    says(
        &unbound(4),
        Verdict::Warn,
        &[
            "n1: ranks 0-1 have 8 threads on 4 cores (0-3)",
            "oversubscribed",
        ],
        "--threads 2",
    );
    let bound = row_after("cores", |ranks| compute(&mut ranks[1]).threads = 3);
    says(
        &bound,
        Verdict::Warn,
        &["rank 1 has 3 threads on 2 cores (2-3)"],
        "--threads 2",
    );
}

#[test]
fn nodes_that_are_containers_of_one_machine_share_its_cores_and_memory() {
    let contained = |ranks: &mut Vec<RankFacts>| {
        ranks
            .iter_mut()
            .for_each(|rank| rank.processors.boot = "one".to_owned())
    };
    let cores = row_after("cores", contained);
    says(
        &cores,
        Verdict::Fail,
        &["n1: ranks 1,3", "4 threads on 2: double binding"],
        "--threads 1",
    );
    assert!(row_after("memory", contained).found.starts_with("2.0 GiB"));
}

#[test]
fn chains_of_overlapping_bindings_are_one_group() {
    let row = row_after("cores", |ranks| {
        ranks.push(healthy_rank(4, 5));
        for (rank, allowed) in ranks.iter_mut().zip(["0-1", "1-2", "2-3", "2-3", "9"]) {
            rank.processors.boot = "one".to_owned();
            rank.processors.machine = CpuSet::parse("0-9");
            rank.processors.allowed = CpuSet::parse(allowed);
        }
        compute(&mut ranks[4]).threads = 1;
    });
    says(
        &row,
        Verdict::Fail,
        &["ranks 0-3", "0-3 of 10", "8 threads on 4"],
        "--threads 1",
    );
}

#[test]
fn hyper_threads_of_one_core_on_two_ranks_are_a_warning_and_on_one_rank_are_not() {
    let siblings = |cores: [&'static str; 2]| {
        row_after("cores", |ranks| {
            for (rank, core) in ranks.iter_mut().zip(cores) {
                rank.processors.siblings = vec![CpuSet::parse(core)];
            }
        })
    };
    says(
        &siblings(["0,2", "0,2"]),
        Verdict::Warn,
        &["ranks 0 and 1", "0,2 are the hyper-threads"],
        "nomultithread",
    );
    assert_eq!(siblings(["0,1", "2,3"]).verdict, Verdict::Ok);
}

#[test]
fn unlike_instruction_sets_and_portable_kernels_are_warnings() {
    let unlike = row_after("processor", |ranks| {
        compute(&mut ranks[3]).instruction_set = "Avx2Fma".to_owned()
    });
    says(
        &unlike,
        Verdict::Warn,
        &["rank 3 on n2: kernels for Avx2Fma", "slowest"],
        "--constraint",
    );
    let portable = row_after("processor", |ranks| {
        ranks
            .iter_mut()
            .for_each(|rank| compute(rank).instruction_set = "Portable".to_owned());
    });
    says(&portable, Verdict::Warn, &["portable kernels"], "AVX");
}

#[test]
fn a_device_that_cannot_be_had_fails() {
    let row = row_after("device", |ranks| {
        ranks[2].compute = Err("device cuda: no NVIDIA driver".to_owned())
    });
    says(
        &row,
        Verdict::Fail,
        &["rank 2 on n2: device cuda"],
        "--device",
    );
}

#[test]
fn idle_gpus_and_more_ranks_than_gpus_are_warnings() {
    let with = |num_gpus: usize, is_gpu: bool| {
        row_after("device", |ranks| {
            for rank in ranks {
                rank.gpus = GpuFacts {
                    has_driver: true,
                    num_gpus,
                };
                compute(rank).is_gpu = is_gpu;
            }
        })
    };
    says(
        &with(2, false),
        Verdict::Warn,
        &["n1 has an NVIDIA driver with 2 GPUs"],
        "--features cuda",
    );
    says(
        &with(1, true),
        Verdict::Warn,
        &["n1: 2 ranks on 1 GPUs"],
        "--ntasks-per-node=1",
    );
    assert_eq!(with(2, true).verdict, Verdict::Ok);
}

/// The row of gradients where all ranks have GPUs, and their first ones on a node these versions and files of NCCL.
fn way(versions: [Option<&str>; 2], files: &[&str], is_cuda_aware: Option<bool>) -> Row {
    row_after("gradients' way", |ranks| {
        for (rank, version) in [(0, versions[0]), (2, versions[1])] {
            ranks[rank].gradients = Some(GradientFacts {
                nccl_version: version.map(str::to_owned),
                nccl_files: files.iter().map(|&file| file.to_owned()).collect(),
                is_cuda_aware,
            });
        }
    })
}

#[test]
fn gradients_of_processors_go_through_host_memory_and_nothing_more_is_said() {
    assert_eq!(
        row_after("gradients' way", |_| {}).found,
        "host memory over MPI"
    );
    assert_eq!(
        row("gradients' way", healthy(1)).found,
        "one rank, none to take"
    );
}

#[test]
fn gradients_of_gpus_are_staged_unless_nccl_is_asked_for_and_there() {
    let both = way([Some("2.21.5"); 2], &[], Some(false));
    says(
        &both,
        Verdict::Ok,
        &[
            "staged through host memory",
            "by NCCL 2.21.5 with --reduction nccl",
            "not CUDA-aware",
        ],
        "",
    );
    let none = way([Some("2.21.5"), None], &[], None);
    says(
        &none,
        Verdict::Ok,
        &["does not load on n2 (no libnccl.so in", "is unknown"],
        "",
    );
    let short = way([None; 2], &["/usr/lib/libnccl.so.2"], Some(true));
    says(
        &short,
        Verdict::Ok,
        &[
            "libnccl.so is looked for, there is only /usr/lib/libnccl.so.2",
            "which is not used",
        ],
        "",
    );
}

#[test]
fn another_nccl_on_a_node_is_a_warning() {
    let row = way([Some("2.21.5"), Some("2.18.1")], &[], None);
    says(
        &row,
        Verdict::Warn,
        &["2.21.5 on n1 and 2.18.1 on n2"],
        "the same NCCL",
    );
}

#[test]
fn little_memory_for_a_rank_is_a_warning_also_by_the_jobs_limit() {
    let free = row_after("memory", |ranks| {
        memory(&mut ranks[2..], |memory| {
            memory.available_bytes = Some(2_000 << 20)
        })
    });
    says(
        &free,
        Verdict::Warn,
        &["1000 MiB free for each rank on n2"],
        "fewer ranks",
    );
    let limited = row_after("memory", |ranks| {
        memory(ranks, |memory| memory.group_left_bytes = Some(1 << 30))
    });
    says(
        &limited,
        Verdict::Warn,
        &["512 MiB", "job's own limit"],
        "--mem-per-cpu",
    );
    let unknown = row_after("memory", |ranks| {
        memory(ranks, |memory| memory.available_bytes = None)
    });
    says(&unknown, Verdict::Warn, &["unknown"], "free");
}

#[test]
fn little_shared_memory_is_a_warning_where_ranks_share_a_node() {
    let small = |ranks: &mut [RankFacts]| {
        memory(ranks, |memory| {
            memory.shared_free_bytes = Some((64 << 20) - 1)
        })
    };
    says(
        &row_after("shared memory", |ranks| small(ranks)),
        Verdict::Warn,
        &["/dev/shm on n1"],
        "--shm-size",
    );
    let mut alone = healthy(1);
    small(&mut alone);
    assert_eq!(row("shared memory", alone).verdict, Verdict::Ok);
}

#[test]
fn few_open_files_are_a_warning() {
    let row = row_after("open files", |ranks| {
        ranks[3].memory.open_files = Some(1023)
    });
    says(
        &row,
        Verdict::Warn,
        &["at most 1023 on rank 3 on n2"],
        "ulimit -n",
    );
}

#[test]
fn a_wrong_sum_on_any_rank_fails() {
    let wrong = "element 7 of 1009: expected 24, got 1".to_owned();
    let row = row_after("sums", |ranks| ranks[2].sums[1].wrong = Some(wrong));
    says(
        &row,
        Verdict::Fail,
        &["rank 2 on n2: hierarchical: element 7"],
        "do not train",
    );
}

#[test]
fn slow_sums_are_a_warning_between_nodes_only() {
    let slow = |ranks: &mut [RankFacts]| {
        for speed in ranks[1].sums.iter_mut().flat_map(|sum| &mut sum.speeds) {
            speed.seconds = 0.1;
        }
    };
    says(
        &row_after("bandwidth", |ranks| slow(ranks)),
        Verdict::Warn,
        &["0.02 GB/s", "slow"],
        "btl_tcp_if_include",
    );
    let mut on_one_node = healthy(2);
    slow(&mut on_one_node);
    assert_eq!(row("bandwidth", on_one_node).verdict, Verdict::Ok);
    says(
        &row("bandwidth", healthy(1)),
        Verdict::Ok,
        &["one rank, nothing to reduce"],
        "",
    );
}

#[test]
fn clocks_a_second_apart_are_a_warning_and_a_minute_apart_fail() {
    let apart = |offset_s: f64, uncertainty_s: f64| {
        row_after("clocks", |ranks| {
            ranks[3].clock = ClockOffset {
                offset_s,
                uncertainty_s,
            }
        })
    };
    assert_eq!(
        apart(-1.5, 0.6).verdict,
        Verdict::Ok,
        "the messages' time may explain it"
    );
    says(
        &apart(1.5, 0.001),
        Verdict::Warn,
        &["rank 3 on n2 is 1.5 s behind root"],
        "NTP",
    );
    says(
        &apart(-3600.0, 0.001),
        Verdict::Fail,
        &["ahead of root"],
        "NTP",
    );
}

#[test]
fn nodes_with_other_interfaces_are_told_apart() {
    assert_eq!(row("interfaces", healthy(4)).found, "eth0");
    let unlike = row_after("interfaces", |ranks| ranks[2].interfaces.clear());
    says(&unlike, Verdict::Ok, &["n1: eth0; n2: none is up"], "");
}

#[test]
fn a_missing_data_set_fails_and_names_the_ranks() {
    let row = row_after("data set", |ranks| {
        ranks[1].data = Err("cifar: no file".to_owned())
    });
    says(
        &row,
        Verdict::Fail,
        &["rank 1 on n1: cifar: no file"],
        "--data-dir",
    );
}

#[test]
fn other_data_on_a_rank_fails_with_both_checksums() {
    let row = row_after("data set", |ranks| {
        ranks[2].data.as_mut().unwrap().splits[1].checksum = "56".repeat(32)
    });
    says(
        &row,
        Verdict::Fail,
        &[
            "rank 2 on n2",
            "565656565656",
            "root: shapes, 10 000 train",
            "343434343434",
        ],
        "copy",
    );
}

#[test]
fn an_output_directory_without_room_is_a_warning_then_fails() {
    let with = |free_bytes: u64| {
        row_after("output", |ranks| {
            ranks[0].output.as_mut().unwrap().free_bytes = Ok(free_bytes)
        })
    };
    assert_eq!(with(2 << 30).verdict, Verdict::Ok);
    says(
        &with((2 << 30) - 1),
        Verdict::Warn,
        &["runs: 2.0 GiB free"],
        "/home/a",
    );
    says(
        &with((200 << 20) - 1),
        Verdict::Fail,
        &["200 MiB free"],
        "--output-dir",
    );
}

#[test]
fn an_output_directory_that_cannot_be_written_fails_once() {
    let mut ranks = healthy(4);
    ranks[0].output.as_mut().unwrap().write_bytes_per_s =
        Err("/f is a file, expected a directory".to_owned());
    ranks.iter_mut().for_each(|rank| rank.sees_output = None);
    says(
        &row("output", ranks.clone()),
        Verdict::Fail,
        &["runs: cannot be written: /f is a file"],
        "--output-dir",
    );
    assert_eq!(
        diagnose(ranks)
            .rows
            .iter()
            .filter(|row| row.verdict != Verdict::Ok)
            .count(),
        1
    );
}

#[test]
fn a_directory_that_a_node_does_not_see_and_locks_that_fail_are_warnings() {
    let blind = row_after("shared output", |ranks| ranks[2].sees_output = Some(false));
    says(
        &blind,
        Verdict::Warn,
        &["not seen by rank 2 on n2"],
        "only root writes",
    );
    let unlocked = row_after("file locks", |ranks| {
        ranks[0].output.as_mut().unwrap().locks = Err("given twice".to_owned())
    });
    says(
        &unlocked,
        Verdict::Warn,
        &["given twice", "cannot be told apart"],
        "flock",
    );
}

#[test]
fn the_map_joins_neighbours_with_the_same_cores() {
    let mut ranks = healthy(6);
    for rank in &mut ranks[..2] {
        rank.processors.allowed = CpuSet::parse("0-3");
    }
    ranks[5].compute = Err("no device".to_owned());
    let map: Vec<(String, String, String, Option<usize>)> = diagnose(ranks)
        .map
        .into_iter()
        .map(|line| (line.node, line.ranks, line.cores, line.threads))
        .collect();
    let line = |node: &str, ranks: &str, cores: &str, threads| {
        (node.to_owned(), ranks.to_owned(), cores.to_owned(), threads)
    };
    assert_eq!(
        map,
        [
            line("n1", "0-1", "0-3", Some(2)),
            line("n2", "2", "0-1", Some(2)),
            line("n2", "3", "2-3", Some(2)),
            line("n3", "4", "0-1", Some(2)),
            line("n3", "5", "2-3", None),
        ]
    );
}

#[test]
fn energy_that_cannot_be_read_is_said_with_the_reason_and_is_no_fault() {
    let row = row_after("energy", |ranks| {
        ranks[2].energy = Err("no package of RAPL".to_owned())
    });
    says(
        &row,
        Verdict::Ok,
        &["no joules", "n2 has no package of RAPL"],
        "",
    );
    says(
        &row_after("energy", |_| {}),
        Verdict::Ok,
        &["joules per image"],
        "",
    );
}
