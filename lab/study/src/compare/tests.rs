//! What a comparison says and writes where nothing can be measured.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;

#[test]
fn the_files_of_somebody_else_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["lock", "jobs/mine.txt", "peers/run.py"].map(|name| folder.path().join(name));
    files
        .iter()
        .for_each(|file| run_directory::write(file, "mine").unwrap());
    let line = format!(
        "--again --with jax --no-install --peers-dir {0} --output {0} --trainer /bin/true",
        folder.path().display()
    );
    let args = CompareArgs::parsed(line.split_whitespace()).unwrap();
    let failures = [args.check(), args.run()].map(Result::unwrap_err);
    let kept = files.map(|file| fs::read_to_string(file).unwrap_or_default());
    for failure in failures {
        assert!(
            failure.exit_code() == 2 && failure.to_string().contains("without `jobs`"),
            "{failure}"
        );
    }
    assert_eq!(kept, ["mine"; 3]);
}

#[test]
fn a_folder_is_known_as_a_comparisons_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let [trainer, output, seen] =
        ["trainer", "out", "seen"].map(|name| folder.path().join(name).display().to_string());
    // What its first measurement finds.
    let script =
        format!("#!/bin/sh\n[ \"$1\" = --version ] || [ -e {seen} ] || ls {output} > {seen}\n");
    run_directory::write(Path::new(&trainer), &script).unwrap();
    fs::set_permissions(&trainer, fs::Permissions::from_mode(0o755)).unwrap();
    let words = [
        "--with",
        "",
        "--ranks",
        "1",
        "--rounds",
        "1",
        "--quiet-cores",
        "1e9",
        "--peers-dir",
        "/nonexistent",
    ];
    CompareArgs::parsed(
        words
            .into_iter()
            .chain(["--output", &output, "--trainer", &trainer]),
    )
    .unwrap()
    .run()
    .unwrap_err();
    let seen = fs::read_to_string(seen).unwrap();
    assert!(seen.lines().any(|name| name == "comparison.json"), "{seen}");
}

#[test]
fn what_cannot_be_had_is_a_named_gap_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!(
        "--with jax,horovod --ranks 1 --no-install --peers-dir {0}/peers --output {0}/out --trainer /bin/true --quiet-cores 1e9 --rounds 1",
        folder.path().display()
    );
    let failure = CompareArgs::parsed(line.split_whitespace())
        .unwrap()
        .run()
        .unwrap_err();
    let found: serde_json::Value = block::read(&folder.path().join("out/comparison.json")).unwrap();
    // This trainer measures nothing, which is no gap but a failure.
    assert!(
        failure.to_string().contains("our own measurement failed"),
        "{failure}"
    );
    let gap = |framework: &str| {
        let rows = found["rows"].as_array().unwrap();
        let row = rows
            .iter()
            .find(|row| row["framework"] == framework)
            .unwrap();
        assert_eq!(
            (
                &row["counts"],
                row["images_per_second"].as_array().unwrap().len()
            ),
            (&false.into(), 0)
        );
        row["gap"].as_str().unwrap().to_owned()
    };
    assert!(gap("JAX").contains("not installed"), "{}", gap("JAX"));
    assert!(
        gap("Horovod").contains("it is PyTorch"),
        "{}",
        gap("Horovod")
    );
    assert!(
        gap(framework::OURS).contains("JSON"),
        "{}",
        gap(framework::OURS)
    );
}
