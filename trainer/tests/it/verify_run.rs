//! `trainer verify-run`: a repetition has the run's bits. The report names the first step that
//! differs.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use distributed::run_ranks;
use trainer::commands::verify_run::verify_run;
use trainer::config::cli::VerifyRunArgs;
use trainer::model::network::NetworkFamily;
use trainer::task::Classification;

use crate::fixture::{
    Run, TINY, bitmap, ended, ended_with, flags, make_pipe, run, silent, trainer, write_images,
};

/// Returns the output of a repetition on one rank, which must exit with this code.
#[track_caller]
fn says(directory: &Path, further: &str, code: i32, words: &[&str]) -> String {
    let command = trainer(&format!("verify-run {further}"), &[directory]);
    let text = ended_with(code, command);
    // The table wraps lines.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.iter().all(|word| text.contains(word)),
        "{words:?} in {text}"
    );
    text
}

fn hashes(run: &Run) -> String {
    fs::read_to_string(run.directory().join("hashes.jsonl")).unwrap()
}

#[test]
fn a_repeated_run_is_equal_and_another_seed_is_named_by_step_and_tensor() {
    let run = run(1, &flags(&[TINY, "--augment crop-flip"]));
    assert_eq!(
        hashes(&run).lines().count(),
        5,
        "the steps of the first epoch"
    );
    says(&run.directory(), "", 0, &["equal: 5 steps"]);
    says(&run.directory(), "--steps 2", 0, &["equal: 2 steps"]);
    says(
        &run.directory(),
        "--steps 6",
        2,
        &["--steps", "1 to 5", "got 6"],
    );
    let options = run.directory().join("run.toml");
    let text = fs::read_to_string(&options).unwrap();
    assert!(text.contains("\nseed = 0\n"), "{text}");
    fs::write(&options, text.replace("\nseed = 0\n", "\nseed = 1\n")).unwrap();
    says(
        &run.directory(),
        "",
        3,
        &[
            "different from step 0 on",
            "loss before its update on rank 0",
            "tensor conv1.weight",
            "hash of the options was",
        ],
    );
}

#[test]
fn neither_event_files_nor_an_idle_resume_make_a_repetition_differ() {
    let events = tempfile::tempdir().unwrap();
    let run = run(
        1,
        &flags(&[
            TINY,
            "--epochs 1 --tensorboard",
            events.path().to_str().unwrap(),
        ]),
    );
    let text = says(&run.directory(), "", 0, &["equal: 5 steps"]);
    assert!(!text.contains("hash of the options"), "{text}");
    assert_eq!(fs::read_dir(events.path()).unwrap().count(), 1);
}

/// Repeats a run of two ranks. All kept steps must be equal.
fn repeats_on_two(run: &Run, steps: usize) {
    assert_eq!(hashes(run).lines().count(), steps);
    let args = VerifyRunArgs {
        run: run.directory(),
        ..VerifyRunArgs::default()
    };
    let codes = run_ranks(2, |communicator| {
        format!(
            "{:?}",
            verify_run::<Classification<NetworkFamily>>(&args, &silent(communicator)).unwrap()
        )
    });
    assert_eq!(codes, vec![format!("{:?}", ExitCode::SUCCESS); 2]);
}

#[test]
fn local_sgd_is_repeated_with_its_checkpoints_and_where_no_compared_step_averages() {
    let often = [
        TINY,
        "--epochs 1 --sync local-sgd --every 4 --checkpoint-every-steps 1",
    ];
    repeats_on_two(&run(2, &flags(&often)), 5);
    let apart = "--model resnet8 --shapes-train 96 --shapes-test 8 --global-batch-size 4 --epochs 1 --sync local-sgd --every 50";
    repeats_on_two(&run(2, &flags(&[apart])), 20);
}

#[test]
fn local_sgd_stopped_between_averagings_continues_without_hashes_and_warns() {
    let options = [TINY, "--sync local-sgd --every 50"];
    let stopped = || {
        Run::in_new_directory()
            .stopping_after(2)
            .go(2, &flags(&options))
    };
    let kept = hashes(&stopped()).lines().count();
    repeats_on_two(
        &stopped()
            .again()
            .go(2, &flags(&[&options[..], &["--resume"]].concat())),
        kept,
    );
    let alone = Run::in_new_directory()
        .stopping_after(2)
        .go(1, &flags(&options))
        .again();
    let resumed = alone.go(1, &flags(&[&options[..], &["--resume"]].concat()));
    assert_eq!(
        hashes(&resumed),
        hashes(&run(1, &flags(&options))),
        "one rank does not average"
    );
    let run = stopped();
    let words = format!(
        "train --threads 1 --resume {} --output-dir",
        options.join(" ")
    );
    let text = ended_with(0, trainer(&words, &[&run.directory()]));
    assert!(text.contains("earlier than planned"), "{text}");
}

#[test]
fn a_changed_byte_of_the_weights_is_found_though_the_manifest_has_none() {
    let first = run(1, &flags(&[TINY, "--epochs 1"]));
    let weights = fs::read_dir(first.directory().join("checkpoints"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let weights = weights.join("model.safetensors");
    let run = Run::in_new_directory();
    let words = format!("train {TINY} --threads 1 --weights");
    let mut train = trainer(&words, &[&weights]);
    train.arg("--output-dir").arg(run.directory());
    ended_with(0, train);
    says(&run.directory(), "", 0, &["equal"]);
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    says(
        &run.directory(),
        "",
        3,
        &[
            "different from step 0 on",
            "tensor ",
            "the bytes of --weights",
        ],
    );
}

#[test]
fn a_changed_byte_of_an_image_is_found_with_the_checksum() {
    let images = tempfile::tempdir().unwrap();
    for (class, split, number) in [
        ("a", "train", 4),
        ("b", "train", 4),
        ("a", "test", 1),
        ("b", "test", 1),
    ] {
        let first = if class == "a" { 10 } else { 150 };
        write_images(
            images.path(),
            split,
            class,
            (0..number).map(|index| first + index * 20),
        );
    }
    let data = format!(
        "--model resnet8 --dataset image-folder --image-size 8 --augment none --epochs 1 --data-dir {}",
        images.path().display()
    );
    let run = run(1, &flags(&[&data, "--global-batch-size 2"]));
    says(&run.directory(), "", 0, &["equal: 4 steps"]);
    fs::write(images.path().join("train/a/0.bmp"), bitmap(11)).unwrap();
    says(
        &run.directory(),
        "",
        3,
        &[
            "different from step",
            "loss",
            "checksum of the train split was",
        ],
    );
}

#[test]
fn a_run_of_two_ranks_is_repeated_on_two_and_an_exact_one_on_any_number() {
    let local = run(2, &flags(&[TINY]));
    let line = hashes(&local).lines().next().unwrap().to_owned();
    let line: records::StepHashes = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (line.losses.len(), line.tensors.len()),
        (2, line.names.len())
    );
    assert!(
        line.losses[0] != line.losses[1] && line.parameters[0] == line.parameters[1],
        "{line:?}"
    );
    says(
        &local.directory(),
        "",
        1,
        &["expected 2 ranks", "got 1", "--reduction exact"],
    );
    let exact = run(2, &flags(&[TINY, "--reduction exact --virtual-shards 4"]));
    says(
        &exact.directory(),
        "",
        0,
        &["equal: 5 steps", "ranks was 2, is 1"],
    );
}

#[test]
fn a_run_resumed_in_its_first_steps_keeps_the_hashes_of_an_undisturbed_one() {
    let whole = run(2, &flags(&[TINY]));
    let stopped = Run::in_new_directory()
        .stopping_after(2)
        .go(2, &flags(&[TINY]));
    let kept = hashes(&stopped);
    assert!(
        hashes(&whole).starts_with(&kept) && kept.lines().count() < 5,
        "{kept}"
    );
    let resumed = stopped.again().go(2, &flags(&[TINY, "--resume"]));
    assert_eq!(hashes(&resumed), hashes(&whole));
}

#[test]
fn steps_after_a_resume_with_other_options_are_not_repeated() {
    let stopped = Run::in_new_directory()
        .stopping_after(2)
        .go(1, &flags(&[TINY]));
    let kept = hashes(&stopped);
    let resumed = stopped
        .again()
        .go(1, &flags(&[TINY, "--resume --grad-accum-steps 2"]));
    assert_eq!(hashes(&resumed), kept);
    says(&resumed.directory(), "", 0, &["equal: "]);
}

#[test]
fn independent_ranks_and_updates_on_the_device_keep_no_hashes() {
    for (ranks, method) in [(2, "--sync async-parameter-server"), (1, "--update device")] {
        let run = run(ranks, &flags(&[TINY, "--epochs 1", method]));
        says(
            &run.directory(),
            "",
            1,
            &[
                "has no hashes.jsonl",
                "runs of independent ranks, runs with --update device",
            ],
        );
    }
}

#[test]
fn a_resumed_run_continues_without_lost_hashes() {
    let stopped = Run::in_new_directory()
        .stopping_after(2)
        .go(1, &flags(&[TINY]));
    let file = stopped.directory().join("hashes.jsonl");
    let torn = &hashes(&stopped)[..20];
    fs::write(&file, torn).unwrap();
    let resumed = stopped.again().go(1, &flags(&[TINY, "--resume"]));
    assert_eq!(hashes(&resumed), torn);
    fs::remove_file(&file).unwrap();
    resumed.lose_checkpoints();
    let stopped = resumed
        .again()
        .stopping_after(2)
        .go(1, &flags(&[TINY, "--resume"]));
    fs::remove_file(&file).unwrap();
    stopped.again().go(1, &flags(&[TINY, "--resume"]));
    assert!(!file.exists());
}

#[test]
fn hashes_that_cannot_be_written_cause_one_warning_and_stop_no_rank() {
    let run = Run::in_new_directory();
    fs::create_dir_all(run.directory().join("hashes.jsonl/in-the-way")).unwrap();
    let further = "--resume --checkpoint-every-steps 2";
    let words = format!("train {TINY} {further} --output-dir");
    let words = ended_with(0, trainer(&words, &[&run.directory()]));
    assert_eq!(
        words
            .matches("warning: hashes of the first steps: cannot write")
            .count(),
        1,
        "{words}"
    );
    run.lose_checkpoints();
    run.go(2, &flags(&[TINY, further]));
}

#[test]
fn named_pipes_among_a_runs_files_are_refused_and_not_waited_for() {
    let run = run(1, &flags(&[TINY, "--epochs 1 --schedule constant"]));
    let resume = "train --resume --epochs 2 --output-dir";
    for (command, files) in [
        (
            "verify-run",
            &["hashes.jsonl", "manifest.json", "run.toml"][..],
        ),
        (
            resume,
            &["run.toml", "manifest.json", "metrics.jsonl", "train.log"],
        ),
    ] {
        for file in files {
            let path = run.directory().join(file);
            let aside = path.with_extension("aside");
            fs::rename(&path, &aside).unwrap();
            make_pipe(&path);
            let (got, text) = ended(trainer(command, &[&run.directory()]));
            assert!(
                text.contains("expected a regular file") && text.contains(file),
                "{command} {file}: {text}"
            );
            assert!(command == resume || got == Some(1), "{file}: {text}");
            fs::rename(&aside, &path).unwrap();
        }
    }
}
