//! `trainer netbench` on thread-ranks, and as a user starts it.

use crate::fixture::{last_line_as_json, parsed, silent, succeed, trainer};
use std::path::Path;

use distributed::run_ranks;
use records::{NetbenchResult, Operation};
use serde_json::Value;
use trainer::commands::netbench::netbench;
use trainer::config::cli::Command;
use trainer::config::{BenchConfig, Family};

/// Runs `netbench` with these words on thread-ranks. Returns the result in the written file.
fn measured(world_size: usize, words: &str, path: &Path) -> NetbenchResult {
    let words = format!("netbench {words} --output {}", path.display());
    let Command::Netbench(args) = parsed(&words) else {
        panic!("expected netbench")
    };
    run_ranks(world_size, |communicator| {
        netbench(&args, &silent(communicator)).unwrap()
    });
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

const BRIEF: &str = "--sizes 1,1KiB,1MiB --seconds-per-point 0.02";

#[test]
fn all_pairs_and_collectives_are_measured_at_every_size() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("network.json");
    let result = measured(3, &format!("{BRIEF} --ranks 2,3"), &path);
    let pairs: Vec<[usize; 2]> = result
        .point_to_point
        .iter()
        .map(|pair| pair.ranks)
        .collect();
    assert_eq!(
        (pairs, result.possible_pairs),
        (vec![[0, 1], [0, 2], [1, 2]], 3)
    );
    assert_eq!(result.collectives.len(), 2 * 7);
    for operation in [
        Operation::AllReduce,
        Operation::Broadcast,
        Operation::AllGather,
    ] {
        assert!(
            result
                .collectives
                .iter()
                .any(|times| times.operation == operation && times.ranks == 3)
        );
    }
    let of_pairs = result.point_to_point.iter().map(|pair| &pair.points);
    for points in of_pairs.chain(result.collectives.iter().map(|times| &times.points)) {
        assert_eq!(points.len(), 3);
        for point in points {
            assert!(
                point.repetitions >= 3 && point.seconds_median > 0.0,
                "{point:?}"
            );
            assert!(
                point.seconds_p10 <= point.seconds_median
                    && point.seconds_median <= point.seconds_p90,
                "{point:?}"
            );
        }
    }
    assert_eq!((result.environment.ranks, result.environment.nodes), (3, 1));
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        1,
        "nothing else is left"
    );
}

#[test]
fn bench_simulates_the_network_that_was_measured() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("network.json");
    let result = measured(2, &format!("{BRIEF} --reductions ring,mpi"), &path);
    let names: Vec<&str> = result
        .collectives
        .iter()
        .map(|times| times.algorithm.as_str())
        .collect();
    assert_eq!(names, ["ring", "mpi", "mpi", "mpi"]);
    let network = result.network.unwrap();
    let links = result.links.inside_node.unwrap();
    assert!(
        links.alpha_s > 0.0 && links.bandwidth_bytes_per_s > 1e6,
        "{links:?}"
    );
    assert!(
        result.collectives[0].points[2]
            .simulated_seconds
            .is_some_and(|seconds| seconds > 0.0)
    );
    let Command::Bench(args) = parsed(&format!("bench --simulate-network {}", path.display()))
    else {
        panic!("expected bench");
    };
    let simulated = BenchConfig::resolve(&args.into_args().unwrap(), &Family::BUILT_IN, 1)
        .unwrap()
        .simulation
        .unwrap();
    assert_eq!(simulated.network.model.to_string(), network);
}

#[test]
fn few_pairs_of_many_are_chosen_and_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("network.json");
    let words = "--sizes 8,4KiB --seconds-per-point 0.005 --pairs 2 --reductions mpi";
    let result = measured(4, words, &path);
    assert_eq!((result.point_to_point.len(), result.possible_pairs), (2, 6));
}

#[test]
fn one_rank_tells_its_circumstances_and_that_there_is_nothing_to_measure() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("alone.json");
    let text = succeed(trainer("netbench --json --output", &[&path]));
    assert!(
        text.contains("1 rank on 1 node") && text.contains("there is nothing to measure"),
        "{text}"
    );
    let json = last_line_as_json(&text);
    assert_eq!(
        (&json["network"], &json["environment"]["ranks"]),
        (&Value::Null, &Value::from(1))
    );
    assert_eq!(
        json,
        serde_json::from_slice::<Value>(&std::fs::read(&path).unwrap()).unwrap()
    );
}

#[test]
fn wrong_usage_has_code_2_and_a_file_that_cannot_be_written_code_1_at_once() {
    for (words, code, expected) in [
        ("--sizes 0", 2, "--sizes"),
        ("--sizes 1MB", 2, "--sizes"),
        ("--max-bytes 4 --sizes 4", 2, "--max-bytes"),
        ("--ranks 2", 2, "--ranks"),
        ("--output /", 2, "--output"),
        ("--output .", 2, "--output"),
        ("--output ..", 2, "--output"),
        ("--pairs 0", 2, "--pairs"),
        (
            "--output /absent/folder/network.json",
            1,
            "cannot write /absent/folder/network.json",
        ),
    ] {
        let output = trainer(&format!("netbench {words}"), &[]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words}: {error}");
        assert!(error.contains(expected), "{words}: {error}");
        assert!(
            output.stdout.is_empty(),
            "refused before anything is printed"
        );
    }
}
