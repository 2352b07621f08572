//! `trainer doctor` as a user starts it, and on thread-ranks.

use crate::fixture::{
    ended_with, last_line_as_json, parsed, silent, succeed, trainer, write_images,
};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use distributed::{Communicator, run_ranks};
use trainer::commands::doctor::doctor;
use trainer::config::DoctorConfig;
use trainer::config::cli::{self, DoctorArgs};
use trainer::tools::check::Verdict;
use trainer::tools::doctor::{RankFacts, diagnose, examine};

fn doctor_of(words: &str, output_dir: &Path) -> Command {
    let words = format!("doctor --threads 1 {words} --output-dir");
    trainer(&words, &[output_dir])
}

/// Returns the row of the table that starts with `name`, and the row's verdict.
fn verdict(table: &str, name: &str) -> String {
    let line = table
        .lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_else(|| panic!("{name} in {table}"));
    line[name.len()..]
        .split_whitespace()
        .next()
        .unwrap()
        .to_owned()
}

#[test]
fn a_plain_start_is_examined_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let table = succeed(doctor_of("--json", &directory.path().join("runs")));
    assert!(
        table.contains("kernels for") || table.contains("portable kernels"),
        "{table}"
    );
    assert!(table.contains("shapes, 10,000 train images"), "{table}");
    assert!(
        table.contains("1 rank on 1 node") && table.contains("one rank, nothing to reduce"),
        "{table}"
    );
    let json = last_line_as_json(&table);
    assert_eq!(
        (
            json["ranks"].as_u64(),
            json["facts"].as_array().unwrap().len()
        ),
        (Some(1), 1)
    );
    for row in json["rows"].as_array().unwrap() {
        assert_ne!(row["verdict"], "FAIL", "{row}");
        assert_eq!(row["verdict"] == "ok", row["remedy"].is_null(), "{row}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_missing_data_set_fails_with_code_1_and_the_other_checks_are_made() {
    let directory = tempfile::tempdir().unwrap();
    let absent = directory.path().join("absent");
    let words = format!("--dataset cifar10 --data-dir {}", absent.display());
    let table = ended_with(1, doctor_of(&words, directory.path()));
    assert_eq!(verdict(&table, "data set"), "FAIL");
    assert_eq!(verdict(&table, "output"), "ok");
    assert!(
        table.contains("-> put the data") && table.contains("doctor: FAIL"),
        "{table}"
    );
}

#[test]
fn bad_data_has_the_remedy_of_its_error_only() {
    let directory = tempfile::tempdir().unwrap();
    let images = directory.path().join("images");
    for (split, class) in [("train", "a"), ("train", "b"), ("test", "a"), ("test", "B")] {
        write_images(&images, split, class, [10, 20]);
    }
    let words = format!("--dataset image-folder --data-dir {}", images.display());
    let table = ended_with(1, doctor_of(&words, directory.path()));
    assert_eq!(verdict(&table, "data set"), "FAIL");
    assert!(
        table.contains("remove these") && !table.contains("-> put the data"),
        "{table}"
    );
}

#[test]
fn skipped_images_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let images = directory.path().join("images");
    for split in ["train", "test"] {
        write_images(&images, split, "a", [10, 20]);
        write_images(&images, split, "b", [200]);
    }
    fs::write(images.join("train/a/broken.bmp"), "no image").unwrap();
    let data_dir = images.to_str().unwrap();
    let words = format!(
        "--dataset image-folder --image-size 8 --on-bad-image skip --data-dir {data_dir} --json"
    );
    let json = last_line_as_json(&succeed(doctor_of(&words, directory.path())));
    let rows = json["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "data set").unwrap();
    let found = row["found"].as_str().unwrap();
    assert!(
        found.contains("skipped") && found.contains("broken.bmp"),
        "{found}"
    );
}

#[test]
fn separate_worlds_fail_and_the_first_task_reports_for_all() {
    let directory = tempfile::tempdir().unwrap();
    // The environments of srun --mpi=none and of another MPI's mpiexec.
    for (tasks, rank) in [
        ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
        ("PMI_SIZE", "PMI_RANK"),
    ] {
        let task = |index| {
            let mut command = doctor_of("", directory.path());
            command.env(tasks, "2").env(rank, index);
            command
        };
        let table = ended_with(1, task("0"));
        assert_eq!(verdict(&table, "world"), "FAIL");
        assert!(
            table.contains("world of 1") && table.contains(&format!("{tasks}=2")),
            "{table}"
        );
        assert_eq!(succeed(task("1")), "");
    }
}

#[test]
fn doctor_fetches_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let words = format!(
        "--dataset cifar10 --download --data-dir {}",
        directory.path().display()
    );
    let text = ended_with(2, doctor_of(&words, directory.path()));
    assert!(
        text.contains("--download has no effect with doctor"),
        "{text}"
    );
}

/// A small number of test images. Every rank computes their checksums.
const FEW: &str = "--shapes-test 8";

fn arguments(output_dir: &Path, more: &[&str]) -> DoctorArgs {
    let words = format!(
        "doctor --threads 1 --output-dir {} {}",
        output_dir.display(),
        more.join(" ")
    );
    let cli::Command::Doctor(args) = parsed(&words) else {
        panic!("expected doctor")
    };
    *args
}

#[test]
fn all_ranks_find_the_same_and_sum_exactly() {
    let directory = tempfile::tempdir().unwrap();
    for world_size in [2, 3] {
        let config = DoctorConfig::resolve(&arguments(directory.path(), &[FEW])).unwrap();
        let found: Vec<Vec<RankFacts>> = run_ranks(world_size, |communicator| {
            examine(&config, &silent(communicator)).unwrap()
        });
        assert!(
            found.windows(2).all(|pair| pair[0] == pair[1]),
            "{found:#?}"
        );
        let diagnosis = diagnose(found[0].clone());
        assert_eq!((diagnosis.ranks, diagnosis.nodes), (world_size, 1));
        for name in [
            "program",
            "world",
            "sums",
            "clocks",
            "data set",
            "output",
            "file locks",
        ] {
            let row = diagnosis.rows.iter().find(|row| row.name == name).unwrap();
            assert_eq!(row.finding.verdict, Verdict::Ok, "{row:?}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

#[test]
fn data_that_one_rank_lacks_ends_all_ranks_alike_and_hangs_none() {
    let directory = tempfile::tempdir().unwrap();
    let codes = run_ranks(3, |communicator| {
        let lacks = communicator.rank() == 1;
        let more: &[&str] = if lacks {
            &["--dataset", "cifar10", "--data-dir", "/absent"]
        } else {
            &[FEW]
        };
        doctor(&arguments(directory.path(), more), &silent(communicator)).unwrap()
    });
    assert_eq!(codes, [ExitCode::FAILURE; 3]);
}
