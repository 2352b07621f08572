//! Sessions of a run: files, time, number of images, and options that may change.

use std::fs;

use crate::fixture::{Run, bitmap, ended_with, flags, run, trainer, write_images};
use crate::resuming::{metrics, newest, refusal, tiny, told};
use distributed::ROOT;

#[test]
fn the_files_of_a_session_are_kept_under_its_number_by_the_next() {
    let run = run(1, &tiny(""));
    let read = |name: &str| fs::read_to_string(run.directory().join(name)).unwrap();
    let first = ["run.toml", "manifest.json", "summary.json"].map(read);
    run.again()
        .go(1, &tiny("--resume --epochs 3 --schedule-epochs 2"));
    assert_eq!(
        ["run-1.toml", "manifest-1.json", "summary-1.json"].map(read),
        first
    );
    assert!(first[0].contains("epochs = 2") && read("run.toml").contains("epochs = 3"));
    let epochs = |name: &str| {
        serde_json::from_str::<records::Summary>(&read(name))
            .unwrap()
            .epochs
    };
    assert_eq!((epochs("summary-1.json"), epochs("summary.json")), (2, 3));
}

#[test]
fn a_resume_without_steps_left_keeps_the_position_for_watch_and_warns_of_no_other_course() {
    let with_val = tiny("--val-fraction 0.25");
    let done = run(2, &with_val);
    // The resumed session repeats the final test.
    fs::remove_file(done.directory().join("evaluation.json")).unwrap();
    done.again().go(1, &flags(&["--resume"]));
    let text = fs::read_to_string(done.directory().join("progress.json")).unwrap();
    let shown: records::RunProgress = serde_json::from_str(&text).unwrap();
    assert_eq!(shown.phase, "test");
    assert_eq!((shown.epoch, shown.epochs), (1, 2));
    assert_eq!(shown.step, done.outcomes()[ROOT].progress.step);
    assert_eq!(shown.step_in_epoch, shown.steps_per_epoch);
    let told = told(&done, &tiny("--val-fraction 0.25 --resume"));
    assert!(!told.contains("will differ"), "{told}");
}

#[test]
fn lost_records_of_epochs_are_a_warning_of_a_resume() {
    let run = run(1, &tiny(""));
    let metrics = run.directory().join("metrics.jsonl");
    let text = fs::read_to_string(&metrics).unwrap();
    fs::write(&metrics, text.replacen("{\"epoch\":0", "{\"epoch\":O", 1)).unwrap();
    let resume = "train --resume --epochs 3 --schedule-epochs 2 --output-dir";
    let words = ended_with(0, trainer(resume, &[&run.directory()]));
    let said = words
        .lines()
        .filter(|line| line.contains("records of epochs 1 are missing or unreadable"));
    assert_eq!(
        said.filter(|line| line.contains("metrics-1.jsonl is a copy"))
            .count(),
        1,
        "{words}"
    );
    let epochs: Vec<u64> = crate::resuming::metrics(&run)
        .iter()
        .map(|record| record.epoch)
        .collect();
    assert_eq!(epochs, [1, 2]);
}

#[test]
fn the_images_and_the_time_of_an_epoch_are_those_of_all_sessions_that_trained_it() {
    let num_images = |run: &Run| {
        let text = fs::read_to_string(run.directory().join("summary.json")).unwrap();
        serde_json::from_str::<records::Summary>(&text)
            .unwrap()
            .images
    };
    // Training uses four whole batches of 24 of the 104 images.
    let whole = run(1, &tiny("--drop-last"));
    assert_eq!(num_images(&whole), 2 * 96);
    let stopped = Run::in_new_directory()
        .stopping_after(2)
        .go(1, &tiny("--drop-last"));
    assert_eq!(num_images(&stopped), 2 * 24);
    let before = newest(&stopped).state.progress.epoch_seconds;
    assert!(before > 0.0);
    let resumed = stopped.again().go(1, &tiny("--drop-last --resume"));
    assert_eq!(num_images(&resumed), 2 * 96);
    assert!(metrics(&resumed)[0].seconds_total > before);
    assert_eq!(newest(&resumed).state.progress.epoch_seconds, 0.0);
}

#[test]
fn options_of_the_first_start_are_ignored_by_a_resume() {
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("begun.safetensors");
    let other = run(1, &tiny("--seed 5"));
    fs::copy(newest(&other).model_path(), &weights).unwrap();
    let with_weights = tiny(&format!("--weights {}", weights.display()));
    let whole = run(1, &with_weights);
    let stopped = Run::in_new_directory()
        .stopping_after(2)
        .go(1, &with_weights);
    fs::remove_file(&weights).unwrap();
    assert!(
        refusal(
            &Run::in_empty_directory(),
            1,
            &format!("--resume --weights {}", weights.display())
        )
        .contains("begun")
    );
    let resumed = stopped.again().go(1, &flags(&["--resume"]));
    assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
    let plain = run(1, &tiny(""));
    for (option, value) in [("--weights", "other.safetensors"), ("--zero-gamma", "")] {
        let words = told(&plain, &tiny(&format!("--resume {option} {value}")));
        assert!(
            words.contains(&format!("{option} has no effect")),
            "{words}"
        );
    }
    plain.again().go(
        1,
        &tiny("--resume --zero-gamma --epochs 3 --schedule-epochs 2"),
    );
    let options = fs::read_to_string(plain.directory().join("run.toml")).unwrap();
    assert!(!options.contains("zero-gamma = true"), "{options}");
}

#[test]
fn options_that_may_change_and_affect_the_parameters_are_warned_of() {
    for (began, with, expected) in [
        (
            "",
            "--grad-accum-steps 2",
            "its statistics over 12 samples at a time, 24 before",
        ),
        (
            "--batch-norm sync",
            "--batch-norm sync --grad-accum-steps 2",
            "over 12 samples at a time, 24 before",
        ),
        (
            "--sync local-sgd --every 2",
            "--checkpoint-every-steps 3",
            "--checkpoint-every-steps",
        ),
        ("--compress topk:5", "--bucket-mib 1", "--bucket-mib"),
    ] {
        let run = Run::in_new_directory()
            .stopping_after(2)
            .go(1, &tiny(began));
        let words = told(&run, &tiny(&format!("--resume {began} {with}")));
        assert!(words.contains(expected), "{with}: {words}");
        assert_eq!(told(&run, &tiny(&format!("--resume {began}"))), "");
    }
}

#[test]
fn a_run_forgets_its_best_with_its_test_images_and_refuses_other_classes() {
    let data = tempfile::tempdir().unwrap();
    let folder = |split: &str, class: &str| data.path().join(split).join(class);
    for split in ["train", "test"] {
        write_images(data.path(), split, "dark", 10..14);
        write_images(data.path(), split, "light", 200..204);
    }
    let words =
        "--dataset image-folder --model resnet8 --global-batch-size 4 --augment none --data-dir";
    let with = |further: &str| {
        flags(&[
            &format!("{words} {} --schedule-epochs 2", data.path().display()),
            further,
        ])
    };
    let run = run(1, &with("--epochs 2"));
    let best = newest(&run).state.progress.best.unwrap();
    let forgotten = format!(
        "the best so far, test-top1 {:.4} after epoch {}, is forgotten: it was measured on other test images",
        best.value,
        best.epoch + 1
    );
    fs::remove_file(folder("test", "dark").join("0.bmp")).unwrap();
    let resume = with("--epochs 3 --resume --allow-changed-data");
    assert!(told(&run, &resume).contains(&forgotten), "{forgotten}");
    let resumed = run.again().go(1, &resume);
    assert_eq!(
        resumed.outcomes()[ROOT]
            .progress
            .best
            .as_ref()
            .unwrap()
            .epoch,
        2
    );
    for split in ["train", "test"] {
        fs::rename(folder(split, "dark"), folder(split, "black")).unwrap();
    }
    let refused = format!("{:#}", resumed.again().try_go(1, &resume).unwrap_err());
    assert!(
        refused.contains("class 0 of 2: expected \"dark\", got \"black\""),
        "{refused}"
    );
}

#[test]
fn a_resume_whose_metrics_are_no_file_leaves_the_runs_files_as_they_were() {
    let stopped = Run::in_new_directory().stopping_after(2).go(1, &tiny(""));
    let [metrics, manifest, summary] = ["metrics.jsonl", "manifest.json", "summary.json"]
        .map(|name| stopped.directory().join(name));
    fs::remove_file(&metrics).unwrap();
    fs::create_dir(&metrics).unwrap();
    let before = fs::read(&manifest).unwrap();
    assert!(refusal(&stopped, 1, "--resume").contains("metrics.jsonl"));
    assert_eq!(fs::read(&manifest).unwrap(), before);
    assert!(summary.exists() && !stopped.directory().join("manifest-1.json").exists());
}

#[test]
fn a_trace_is_of_the_start_that_asked_for_it_and_made_steps() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let with_trace = format!("--trace {}", trace.display());
    let stopped = Run::in_new_directory()
        .stopping_after(2)
        .go(1, &tiny(&with_trace));
    let first = fs::read(&trace).unwrap();
    let done = stopped.again().go(1, &flags(&["--resume"]));
    assert_eq!(fs::read(&trace).unwrap(), first, "it is not inherited");
    let num_hashes = fs::read_to_string(done.directory().join("hashes.jsonl"))
        .unwrap()
        .lines()
        .count();
    assert!(
        num_hashes > 2,
        "without it the run keeps its course: {num_hashes}"
    );
    done.again().go(1, &flags(&["--resume", &with_trace]));
    assert_eq!(
        fs::read(&trace).unwrap(),
        first,
        "there was no step left to trace"
    );
}

#[test]
fn a_trace_that_cannot_be_written_in_the_end_costs_the_run_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::in_new_directory();
    fs::create_dir(run.directory()).unwrap();
    // The check before the run does not follow links.
    let metrics = folder.path().join("trace.json");
    std::os::unix::fs::symlink(run.directory().join("metrics.jsonl"), &metrics).unwrap();
    let run = run.go(1, &tiny(&format!("--trace {}", metrics.display())));
    assert!(run.directory().join("summary.json").exists());
    assert_eq!(crate::resuming::metrics(&run).len(), 2);
    for name in ["run.toml", "summary.json", ".lock", "checkpoints"] {
        let own = Run::in_new_directory();
        let words = refusal(
            &own,
            1,
            &format!("--trace {}", own.directory().join(name).display()),
        );
        assert!(
            words.contains("which the run writes. Choose another file"),
            "{words}"
        );
        assert!(!own.directory().exists());
    }
}

#[test]
fn sessions_are_numbered_once_and_removed_when_the_run_starts_again() {
    let run = run(1, &tiny(""));
    let path = |name: &str| run.directory().join(name);
    // A start on a full disk leaves this file.
    fs::copy(path("manifest.json"), path("manifest-1.json")).unwrap();
    run.again()
        .go(1, &tiny("--resume --epochs 3 --schedule-epochs 2"));
    assert!(path("summary-1.json").exists() && !path("manifest-2.json").exists());
    run.again()
        .go(1, &tiny("--resume --epochs 4 --schedule-epochs 2"));
    assert!(path("summary-2.json").exists() && path("run-2.toml").exists());
    run.lose_checkpoints();
    let anew = run.again().go(1, &tiny("--resume --learning-rate 0.05"));
    for name in [
        "run-1.toml",
        "manifest-1.json",
        "summary-1.json",
        "run-2.toml",
        "manifest-2.json",
        "summary-2.json",
    ] {
        assert!(!path(name).exists(), "{name}");
    }
    assert_eq!(metrics(&anew).len(), 2);
}

#[test]
fn a_run_is_not_resumed_for_fewer_epochs_than_it_has_begun() {
    let whole = run(1, &tiny(""));
    let shorter = "--epochs 1 --schedule-epochs 2";
    let words = refusal(&whole, 1, &format!("--resume {shorter}"));
    assert!(
        words.contains("expected --epochs 2 or more") && words.contains("got 1"),
        "{words}"
    );
    // A run that stops in its first epoch can still end with that epoch.
    let stopped = Run::in_new_directory().stopping_after(2).go(1, &tiny(""));
    stopped.again().go(1, &tiny(&format!("--resume {shorter}")));
}

/// Writes a folder of two classes, each with four images in train and in test, read on demand.
/// Returns the folder with the flags of a run on it.
fn folder_read_on_demand() -> (tempfile::TempDir, String) {
    let data = tempfile::tempdir().unwrap();
    for split in ["train", "test"] {
        write_images(data.path(), split, "dark", 10..14);
        write_images(data.path(), split, "light", 200..204);
    }
    let words = "--dataset image-folder --resolution 8 --model resnet8 --global-batch-size 4 --epochs 2 --data-dir";
    let words = format!("{words} {}", data.path().display());
    (data, words)
}

#[test]
fn a_test_image_that_one_rank_cannot_read_ends_all_ranks_and_the_epoch_stays_trained() {
    let (data, words) = folder_read_on_demand();
    let whole = run(2, &flags(&[&words]));
    let image = data.path().join("test/light/3.bmp");
    fs::write(&image, &bitmap(203)[..60]).unwrap();
    let run = Run::in_new_directory();
    for further in ["", "--resume"] {
        let text = format!(
            "{:#}",
            run.again()
                .try_go(2, &flags(&[&words, further]))
                .unwrap_err()
        );
        assert!(
            text.contains("epoch 1: saved, but the evaluation failed") && text.contains("3.bmp"),
            "{text}"
        );
        let progress = newest(&run).state.progress;
        assert_eq!(
            (progress.epoch, progress.step, progress.step_in_epoch),
            (0, 2, 2)
        );
        assert!(metrics(&run).is_empty());
    }
    fs::write(&image, bitmap(203)).unwrap();
    let resumed = run
        .again()
        .go(2, &flags(&[&words, "--resume --allow-changed-data"]));
    assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
    let records = |run: &Run| {
        metrics(run)
            .into_iter()
            .map(|record| (record.epoch, record.test))
            .collect::<Vec<_>>()
    };
    assert_eq!(records(&resumed), records(&whole));
}

#[test]
fn a_run_may_skip_bad_images_from_a_resume_on_as_its_data_allow() {
    let (data, words) = folder_read_on_demand();
    let words = format!("{words} --schedule-epochs 2");
    let run = run(1, &flags(&[&words]));
    assert_eq!(
        told(&run, &flags(&[&words, "--resume --on-bad-image skip"])),
        "",
        "none is bad"
    );
    fs::write(data.path().join("train/dark/0.bmp"), "no image").unwrap();
    let skipping = "--resume --epochs 3 --on-bad-image skip";
    let refused = format!(
        "{:#}",
        run.again()
            .try_go(1, &flags(&[&words, skipping]))
            .unwrap_err()
    );
    assert!(refused.contains("the train split has changed"), "{refused}");
    let resumed = run
        .again()
        .go(1, &flags(&[&words, skipping, "--allow-changed-data"]));
    assert_eq!(resumed.outcomes()[ROOT].progress.epoch, 3);
}
