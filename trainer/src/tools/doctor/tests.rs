//! Tests of every verdict on invented facts.

// tidy: long file because every verdict is tested on the same invented ranks

use super::facts::{ComputeFacts, DataFacts, DataProblem, PlaceFacts, ProgramFacts, SplitFacts};
use super::machine::{
    GpuFacts, InterfaceFacts, MemoryFacts, NcclFacts, ProcessorFacts, QuotaFacts,
};
use super::network::{SpeedFacts, SumFacts};
use super::storage::OutputFacts;
use super::*;
use crate::measure::clock_offset::ClockOffset;
use crate::tools::check::Finding;
use Verdict::{Fail, Ok as Good, Warn};

/// Returns the facts of ranks without any problem.
///
/// A node has four cores, divided among at most two ranks.
fn healthy(num_ranks: usize) -> Vec<RankFacts> {
    (0..num_ranks)
        .map(|rank| healthy_rank(rank, num_ranks))
        .collect()
}

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
        nccl: None,
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
            notes: Vec::new(),
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

/// A change of healthy facts, and the expected finding of a check.
///
/// The finding is a verdict, words of the facts, and words of the remedy.
type Case<'a> = (
    &'a dyn Fn(&mut [RankFacts]),
    Verdict,
    &'a [&'a str],
    &'a str,
);

fn finding(check: &str, ranks: Vec<RankFacts>) -> Finding {
    let rows = diagnose(ranks).rows.into_iter();
    let finding = rows
        .map(|row| (row.name, row.finding))
        .find(|(name, _)| *name == check)
        .unwrap()
        .1;
    assert!(
        finding.verdict != Good || finding.remedy.is_none(),
        "{finding:?}"
    );
    finding
}

#[track_caller]
fn expect(check: &str, num_ranks: usize, cases: &[Case<'_>]) {
    for (number, (change, verdict, found, remedy)) in cases.iter().enumerate() {
        let mut ranks = healthy(num_ranks);
        change(&mut ranks);
        let finding = finding(check, ranks);
        assert_eq!(finding.verdict, *verdict, "case {number}: {finding:?}");
        for words in *found {
            assert!(
                finding.found.contains(words),
                "case {number}: {words:?} in {finding:?}"
            );
        }
        let given = finding.remedy.as_deref().unwrap_or_default();
        assert!(
            given.contains(remedy),
            "case {number}: {remedy:?} in {given:?}"
        );
    }
}

fn compute(rank: &mut RankFacts) -> &mut ComputeFacts {
    rank.compute.as_mut().unwrap()
}

fn each(change: impl Fn(&mut RankFacts)) -> impl Fn(&mut [RankFacts]) {
    move |ranks| ranks.iter_mut().for_each(&change)
}

/// Binds some ranks to CPUs with a number of threads each.
fn bind(ranks: &mut [RankFacts], allowed: &str, threads: usize) {
    for rank in ranks {
        rank.processors.allowed = CpuSet::parse(allowed);
        compute(rank).threads = threads;
    }
}

#[test]
fn healthy_ranks_pass_every_check_on_any_number_of_nodes() {
    for num_ranks in 1..=6 {
        let diagnosis = diagnose(healthy(num_ranks));
        let mut rows = diagnosis.rows.iter();
        assert!(
            rows.all(|row| row.finding.verdict == Good),
            "{num_ranks} ranks: {:#?}",
            diagnosis.rows
        );
        assert_eq!(diagnosis.verdict, Good);
        assert_eq!(
            (diagnosis.ranks, diagnosis.nodes),
            (num_ranks, num_ranks.div_ceil(2))
        );
    }
}

#[test]
fn the_verdict_is_that_of_the_worst_check() {
    let mut ranks = healthy(4);
    ranks[1].memory.open_files = Some(256);
    assert_eq!(diagnose(ranks.clone()).verdict, Warn);
    ranks[3].program.version = "0.0.9".to_owned();
    assert_eq!(diagnose(ranks).verdict, Fail);
}

#[test]
fn every_rank_runs_the_same_build_with_the_same_mpi() {
    let found = [
        "rank 3 on n2",
        "root: 0.1.0 (commit 4de06dd98f3c), sha256 abababababab",
    ];
    expect(
        "program",
        4,
        &[
            (
                &|ranks| ranks[3].program.version = "0.0.9".to_owned(),
                Fail,
                &found,
                "one build",
            ),
            (
                &|ranks| ranks[3].program.commit = "0".repeat(40),
                Fail,
                &found,
                "one build",
            ),
            (
                &|ranks| ranks[3].program.executable = Ok("cd".repeat(32)),
                Fail,
                &found,
                "one build",
            ),
            (
                &each(|rank| rank.program.executable = Err("no /proc".to_owned())),
                Warn,
                &["no /proc"],
                "by hand",
            ),
        ],
    );
    expect(
        "MPI",
        4,
        &[
            (
                &|ranks| ranks[2].program.library = "MPICH 4.0.2".to_owned(),
                Fail,
                &["rank 2 on n2: MPICH 4.0.2; root: Open MPI v4.1.4"],
                "one MPI",
            ),
            (
                &|ranks| ranks[1].program.supports_threads = false,
                Warn,
                &["MPI_THREAD_MULTIPLE on rank 1 on n1"],
                "support for threads",
            ),
        ],
    );
    let without_mpi = |tasks: usize| {
        each(move |rank| {
            rank.program.has_mpi = false;
            rank.place.launcher = Some(("srun".to_owned(), tasks));
        })
    };
    expect(
        "MPI",
        1,
        &[
            (
                &|ranks| ranks[0].program.supports_threads = false,
                Good,
                &[],
                "",
            ),
            (
                &without_mpi(2),
                Fail,
                &["not built in", "2 tasks"],
                "feature mpi",
            ),
            (&without_mpi(1), Good, &[], ""),
        ],
    );
}

#[test]
fn a_world_that_the_launcher_did_not_start_fails_with_the_remedy_of_the_refusal() {
    let complaint = |found: &str, remedy: &str| Some((found.to_owned(), remedy.to_owned()));
    let separate = each(move |rank| {
        rank.place.launcher = Some(("srun".to_owned(), 2));
        rank.place.complaint = complaint("srun: expected a world of 2", "use srun --mpi=pmix");
    });
    let found = [
        "rank 0 on n1: srun: expected a world of 2",
        "train alone and",
    ];
    expect("world", 1, &[(&separate, Fail, &found, "--mpi=pmix")]);
    let mut misplaced = healthy(4);
    for rank in &mut misplaced[1..3] {
        rank.place.complaint = complaint("another rank", "one launcher");
    }
    assert_eq!(finding("world", misplaced).found, "ranks 1-2: another rank");
}

#[test]
fn ranks_share_no_cores_and_leave_none_idle() {
    let narrow = |change: fn(&mut RankFacts)| {
        each(move |rank| {
            rank.processors.allowed = CpuSet::parse(["0", "1"][rank.place.local_rank]);
            compute(rank).threads = 1;
            change(rank);
        })
    };
    expect(
        "cores",
        4,
        &[
            // Two ranks share cores while other cores idle.
            (
                &|ranks| bind(&mut ranks[2..], "1", 1),
                Fail,
                &["n2: ranks 2-3", "same cores, 1 of 4", "2 threads on 1:"],
                "at most 1 of these",
            ),
            (
                &|ranks| bind(&mut ranks[2..], "0-1", 2),
                Fail,
                &["4 threads on 2: double binding"],
                "--bind-to core",
            ),
            (
                &|ranks| bind(&mut ranks[2..], "0-1", 2),
                Fail,
                &[],
                "--threads 1",
            ),
            (
                &|ranks| bind(&mut ranks[2..], "0-1", 1),
                Warn,
                &["n2: ranks 2-3 with 2 threads on 4 CPUs: 2 idle"],
                "--threads 2",
            ),
            // CPUs idle. This is a problem only if the job may use them.
            (
                &narrow(|_| {}),
                Warn,
                &["n1: ranks 0-1 with 2 threads on 4 CPUs: 2 idle"],
                "slot:PE=2",
            ),
            (
                &narrow(|rank| rank.processors.granted = Some(2)),
                Good,
                &[],
                "",
            ),
            (
                &narrow(|rank| rank.processors.machine = CpuSet::parse("0-2")),
                Good,
                &[],
                "",
            ),
            (&narrow(|rank| compute(rank).is_gpu = true), Good, &[], ""),
            (
                &narrow(|rank| {
                    let group = "/job".to_owned();
                    rank.processors.quotas = vec![QuotaFacts { group, cpus: 2.5 }];
                }),
                Good,
                &[],
                "",
            ),
            // A node has more threads than cores.
            (&|ranks| bind(ranks, "0-3", 2), Good, &[], ""),
            (
                &|ranks| bind(ranks, "0-3", 4),
                Warn,
                &[
                    "n1: ranks 0-1 have 8 threads on 4 cores (0-3)",
                    "oversubscribed",
                ],
                "--threads 2",
            ),
            (
                &|ranks| compute(&mut ranks[1]).threads = 3,
                Warn,
                &["rank 1 has 3 threads on 2 cores (2-3)"],
                "--threads 2",
            ),
            // The nodes are containers of one machine.
            (
                &each(|rank| rank.processors.boot = "one".to_owned()),
                Fail,
                &["n1: ranks 1,3", "4 threads on 2: double binding"],
                "--threads 1",
            ),
        ],
    );
    let mut chain = healthy(4);
    chain.push(healthy_rank(4, 5));
    for (rank, allowed) in chain.iter_mut().zip(["0-1", "1-2", "2-3", "2-3", "9"]) {
        rank.processors.boot = "one".to_owned();
        rank.processors.machine = CpuSet::parse("0-9");
        rank.processors.allowed = CpuSet::parse(allowed);
    }
    compute(&mut chain[4]).threads = 1;
    let found = finding("cores", chain).found;
    assert!(
        found.contains("ranks 0-3 are bound to the same cores, 0-3 of 10, with 8 threads on 4"),
        "{found}"
    );
}

#[test]
fn threads_beyond_a_cpu_quota_are_a_warning() {
    let under = |cpus: f64, is_shared: bool| {
        each(move |rank| {
            let group = if is_shared {
                "/job".to_owned()
            } else {
                format!("/job/{}", rank.place.rank)
            };
            rank.processors.quotas = vec![QuotaFacts { group, cpus }];
        })
    };
    expect(
        "cores",
        4,
        &[
            (
                &under(2.0, true),
                Warn,
                &["n1: ranks 0-1 with 4 threads under a CPU quota of 2.0 (/job)"],
                "--threads 1",
            ),
            (
                &under(1.5, true),
                Warn,
                &["4 threads under a CPU quota of 1.5"],
                "at most 1 rank under",
            ),
            (&under(4.0, true), Good, &["within a CPU quota of 4.0"], ""),
            (&under(2.0, false), Good, &[], ""),
        ],
    );
}

#[test]
fn hyper_threads_of_one_core_on_two_ranks_are_a_warning_and_on_one_rank_are_not() {
    let siblings = |cores: [&'static str; 2]| {
        move |ranks: &mut [RankFacts]| {
            for (rank, core) in ranks.iter_mut().zip(cores) {
                rank.processors.siblings = vec![CpuSet::parse(core)];
            }
        }
    };
    expect(
        "cores",
        4,
        &[
            (
                &siblings(["0,2", "0,2"]),
                Warn,
                &["ranks 0 and 1", "hyper-threads 0,2"],
                "nomultithread",
            ),
            (&siblings(["0,1", "2,3"]), Good, &[], ""),
        ],
    );
}

#[test]
fn processors_and_devices_are_the_same_and_no_gpu_idles() {
    expect(
        "processor",
        4,
        &[
            (
                &|ranks| compute(&mut ranks[3]).instruction_set = "Avx2Fma".to_owned(),
                Warn,
                &["rank 3 on n2: kernels for Avx2Fma", "slowest"],
                "--constraint",
            ),
            (
                &each(|rank| compute(rank).instruction_set = "Portable".to_owned()),
                Warn,
                &["portable kernels"],
                "AVX",
            ),
        ],
    );
    let with = |num_gpus: usize, is_gpu: bool| {
        each(move |rank| {
            rank.gpus = GpuFacts {
                has_driver: true,
                num_gpus,
            };
            compute(rank).is_gpu = is_gpu;
        })
    };
    expect(
        "device",
        4,
        &[
            (
                &|ranks| ranks[2].compute = Err("device cuda: no NVIDIA driver".to_owned()),
                Fail,
                &["rank 2 on n2: device cuda"],
                "--device",
            ),
            (
                &with(2, false),
                Warn,
                &["n1 has an NVIDIA driver with 2 GPUs"],
                "--features cuda",
            ),
            (
                &with(1, true),
                Warn,
                &["n1: 2 ranks on 1 GPU"],
                "--ntasks-per-node=1",
            ),
            (&with(2, true), Good, &[], ""),
        ],
    );
}

#[test]
fn gradients_of_gpus_are_staged_unless_the_same_nccl_loads_on_every_node() {
    let gpus = |versions: [Option<&'static str>; 2], files: &'static [&str]| {
        move |ranks: &mut [RankFacts]| {
            for (rank, version) in [0, 2].into_iter().zip(versions) {
                ranks[rank].nccl = Some(NcclFacts {
                    version: version.map(str::to_owned),
                    files: files.iter().map(|&file| file.to_owned()).collect(),
                });
            }
        }
    };
    let new = Some("2.21.5");
    expect(
        "gradients' way",
        4,
        &[
            (&|_| {}, Good, &["host memory over MPI"], ""),
            (
                &gpus([new, new], &[]),
                Good,
                &["from GPU to GPU by NCCL 2.21.5"],
                "",
            ),
            (
                &gpus([new, None], &[]),
                Warn,
                &["does not load on n2 (no libnccl.so.2 in"],
                "libnccl2",
            ),
            (
                &gpus([None; 2], &["/usr/lib/libnccl.so.2"]),
                Warn,
                &["does not load on n1 (there is /usr/lib/libnccl.so.2)"],
                "libnccl2",
            ),
            (
                &gpus([new, Some("2.18.1")], &[]),
                Warn,
                &["2.21.5 on n1 and 2.18.1 on n2"],
                "the same NCCL",
            ),
        ],
    );
    expect(
        "gradients' way",
        1,
        &[(&|_| {}, Good, &["one rank, none"], "")],
    );
}

#[test]
fn every_rank_has_memory_and_files() {
    expect(
        "memory",
        4,
        &[
            (
                &|ranks| {
                    each(|rank| rank.memory.available_bytes = Some(2_000 << 20))(&mut ranks[2..])
                },
                Warn,
                &["1000 MiB free for each rank on n2"],
                "fewer ranks",
            ),
            (
                &each(|rank| rank.memory.group_left_bytes = Some(1 << 30)),
                Warn,
                &["512 MiB", "job's own limit"],
                "--mem-per-cpu",
            ),
            (
                &each(|rank| rank.memory.available_bytes = None),
                Warn,
                &["unknown"],
                "free",
            ),
            (
                &each(|rank| rank.processors.boot = "one".to_owned()),
                Good,
                &["2.0 GiB"],
                "",
            ),
        ],
    );
    let little = each(|rank| rank.memory.shared_free_bytes = Some((64 << 20) - 1));
    expect(
        "shared memory",
        4,
        &[(&little, Warn, &["/dev/shm on n1"], "--shm-size")],
    );
    expect("shared memory", 1, &[(&little, Good, &[], "")]);
    expect(
        "open files",
        4,
        &[(
            &|ranks| ranks[3].memory.open_files = Some(1023),
            Warn,
            &["at most 1,023 on rank 3 on n2"],
            "ulimit -n",
        )],
    );
    expect(
        "energy",
        4,
        &[
            (
                &|ranks| ranks[2].energy = Err("no package of RAPL".to_owned()),
                Good,
                &["no joules", "n2 has no package of RAPL"],
                "",
            ),
            (&|_| {}, Good, &["joules per image"], ""),
        ],
    );
}

#[test]
fn sums_are_exact_and_fast_between_nodes() {
    let wrong = "element 7 of 1009: expected 24, got 1";
    expect(
        "sums",
        4,
        &[(
            &|ranks| ranks[2].sums[1].wrong = Some(wrong.to_owned()),
            Fail,
            &["rank 2 on n2: hierarchical: element 7"],
            "do not train",
        )],
    );
    let slow = |ranks: &mut [RankFacts]| {
        for speed in ranks[1].sums.iter_mut().flat_map(|sum| &mut sum.speeds) {
            speed.seconds = 0.1;
        }
    };
    expect(
        "bandwidth",
        4,
        &[(&slow, Warn, &["0.02 GB/s", "slow"], "btl_tcp_if_include")],
    );
    expect("bandwidth", 2, &[(&slow, Good, &[], "")]);
    expect(
        "bandwidth",
        1,
        &[(&|_| {}, Good, &["one rank, nothing to reduce"], "")],
    );
    expect(
        "interfaces",
        4,
        &[
            (&|_| {}, Good, &["eth0"], ""),
            (
                &|ranks| ranks[2].interfaces.clear(),
                Good,
                &["n1: eth0; n2: none is up"],
                "",
            ),
        ],
    );
}

#[test]
fn clocks_a_second_apart_are_a_warning_and_a_minute_apart_fail() {
    let apart = |offset_s: f64, uncertainty_s: f64| {
        move |ranks: &mut [RankFacts]| {
            ranks[3].clock = ClockOffset {
                offset_s,
                uncertainty_s,
            }
        }
    };
    expect(
        "clocks",
        4,
        &[
            // The message times may explain the offset.
            (&apart(-1.5, 0.6), Good, &[], ""),
            (
                &apart(1.5, 0.001),
                Warn,
                &["rank 3 on n2 is 1.5 s behind root"],
                "NTP",
            ),
            (&apart(-3600.0, 0.001), Fail, &["ahead of root"], "NTP"),
        ],
    );
}

#[test]
fn every_rank_reads_the_same_images_and_the_notes_of_the_scan_are_shown() {
    fn data(rank: &mut RankFacts) -> &mut DataFacts {
        rank.data.as_mut().unwrap()
    }
    let problem = |text: &str, is_missing| {
        let text = text.to_owned();
        Err(DataProblem { text, is_missing })
    };
    expect(
        "data set",
        4,
        &[
            (
                &|ranks| ranks[1].data = problem("cifar: no file", true),
                Fail,
                &["rank 1 on n1: cifar: no file"],
                "--data-dir",
            ),
            (
                &|ranks| ranks[1].data = problem("test: other classes. Rename these.", false),
                Fail,
                &["rank 1 on n1: test: other classes. Rename these."],
                "",
            ),
            (
                &|ranks| data(&mut ranks[2]).splits[1].checksum = "56".repeat(32),
                Fail,
                &[
                    "rank 2 on n2",
                    "565656565656",
                    "root: shapes, 10,000 train",
                    "343434343434",
                ],
                "copy",
            ),
            (
                &|ranks| {
                    data(&mut ranks[0])
                        .notes
                        .push("train: 2 images were skipped".to_owned())
                },
                Good,
                &["; train: 2 images were skipped"],
                "",
            ),
        ],
    );
}

#[test]
fn root_can_write_and_every_node_sees_its_directory() {
    fn output(ranks: &mut [RankFacts]) -> &mut OutputFacts {
        ranks[0].output.as_mut().unwrap()
    }
    let free = |bytes: u64| move |ranks: &mut [RankFacts]| output(ranks).free_bytes = Ok(bytes);
    let unwritable = |ranks: &mut [RankFacts]| {
        output(ranks).write_bytes_per_s = Err("/f is a file, expected a directory".to_owned());
        ranks.iter_mut().for_each(|rank| rank.sees_output = None);
    };
    expect(
        "output",
        4,
        &[
            (&free(2 << 30), Good, &[], ""),
            (
                &free((2 << 30) - 1),
                Warn,
                &["runs: 2.0 GiB free"],
                "/home/a",
            ),
            (
                &free((200 << 20) - 1),
                Fail,
                &["200 MiB free"],
                "--output-dir",
            ),
            (
                &unwritable,
                Fail,
                &["runs: cannot be written: /f is a file"],
                "--output-dir",
            ),
        ],
    );
    let mut ranks = healthy(4);
    unwritable(&mut ranks);
    let bad = diagnose(ranks)
        .rows
        .into_iter()
        .filter(|row| row.finding.verdict != Good);
    assert_eq!(bad.count(), 1, "one cause, one failure");
    let blind = |ranks: &mut [RankFacts]| ranks[2].sees_output = Some(false);
    expect(
        "shared output",
        4,
        &[(
            &blind,
            Warn,
            &["not seen by rank 2 on n2"],
            "only root writes",
        )],
    );
    let unlocked = |ranks: &mut [RankFacts]| output(ranks).locks = Err("given twice".to_owned());
    expect(
        "file locks",
        4,
        &[(
            &unlocked,
            Warn,
            &["given twice", "are not detected"],
            "flock",
        )],
    );
}

#[test]
fn the_map_joins_neighbours_with_the_same_cores_and_is_cut() {
    let mut ranks = healthy(6);
    for rank in &mut ranks[..2] {
        rank.processors.allowed = CpuSet::parse("0-3");
    }
    ranks[5].compute = Err("no device".to_owned());
    let mut diagnosis = diagnose(ranks);
    let line = |(node, ranks, cores, threads): (&str, &str, &str, Option<usize>)| MapLine {
        node: node.to_owned(),
        ranks: ranks.to_owned(),
        cores: cores.to_owned(),
        threads,
    };
    let expected = [
        ("n1", "0-1", "0-3", Some(2)),
        ("n2", "2", "0-1", Some(2)),
        ("n2", "3", "2-3", Some(2)),
        ("n3", "4", "0-1", Some(2)),
        ("n3", "5", "2-3", None),
    ];
    assert_eq!(diagnosis.map, expected.map(line));
    diagnosis.map = vec![diagnosis.map[0].clone(); 100];
    let lines = diagnosis.lines(ConsoleLook::plain());
    assert!(
        lines.contains(&"and 76 more lines, all of them in --json".to_owned()),
        "{lines:#?}"
    );
    assert!(
        lines.iter().all(|line| line.is_ascii() && line.len() < 80),
        "{lines:#?}"
    );
}
