//! Validation splits, early stopping, class weights and balanced sampling, on thread-ranks.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::evaluation::alone;
use crate::fixture::{Run, TINY, ended_with, flags, relative_l2, run, trainer, write_images};
use distributed::ROOT;
use distributed::replica::{ParameterLayout, read};
use records::{EpochRecord, EvaluationByClass, Summary};
use serde_json::Value;
use tempfile::TempDir;
use trainer::config::cli::TrainArgs;

fn tiny(further: &str) -> TrainArgs {
    flags(&[TINY, "--warmup-epochs 0", further])
}

fn metrics(run: &Run) -> Vec<EpochRecord> {
    let text = fs::read_to_string(run.directory().join("metrics.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn summary(run: &Run) -> Summary {
    serde_json::from_str(&fs::read_to_string(run.directory().join("summary.json")).unwrap())
        .unwrap()
}

fn by_class(run: &Run) -> EvaluationByClass {
    serde_json::from_str(&fs::read_to_string(run.directory().join("evaluation.json")).unwrap())
        .unwrap()
}

/// Writes a folder of grey images: two classes in each split, with this number of images per class.
fn folder(splits: &[(&str, u8)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (split, count) in splits {
        for (label, class) in (0_u8..).zip(["cat", "dog"]) {
            write_images(
                folder.path(),
                split,
                class,
                (0..*count).map(|image| 100 * label + image),
            );
        }
    }
    folder
}

fn of_folder(folder: &Path, further: &str) -> TrainArgs {
    let data = format!(
        "--dataset image-folder --data-dir {} --image-size 8",
        folder.display()
    );
    flags(&[
        "--model resnet8 --global-batch-size 6 --epochs 2 --warmup-epochs 0",
        &data,
        further,
    ])
}

#[test]
fn a_run_with_a_val_split_chooses_by_it_and_measures_the_test_split_once_on_any_number_of_ranks() {
    for world_size in 1..=3 {
        let run = run(world_size, &tiny("--val-fraction 0.25 --epochs 3"));
        for record in metrics(&run) {
            assert_eq!((record.val.unwrap().num_samples, record.test), (26, None));
        }
        let summary = summary(&run);
        let best = summary.best.unwrap();
        let test = summary.test.unwrap();
        assert_eq!(
            (best.monitor.as_str(), test.epoch, test.scores.num_samples),
            ("val-top1", best.epoch, 40)
        );
        for outcome in run.outcomes() {
            assert_eq!(outcome.progress.best.as_ref(), Some(&best));
            assert_eq!(outcome.test.as_ref(), Some(&test));
        }
        // `eval` uses the same model and images, because its val split is the run's.
        let of = |split: &[&str]| alone(&run.directory(), split).unwrap();
        let (of_test, of_val, of_train) =
            (of(&[]), of(&["--split", "val"]), of(&["--split", "train"]));
        assert_eq!(of_test.scores.top1_correct, test.scores.top1_correct);
        assert_eq!(
            (of_val.scores.num_samples, of_val.scores.top1),
            (26, Some(best.value))
        );
        assert_eq!(
            (
                of_val.split.as_str(),
                of_train.split.as_str(),
                of_train.scores.num_samples
            ),
            ("val", "train", 78)
        );
        // The sums over all ranks are whole numbers.
        let file = by_class(&run);
        assert_eq!(
            (file.split.as_str(), file.epoch, file.scores.top1_correct),
            ("test", Some(best.epoch), of_test.scores.top1_correct)
        );
        assert_eq!(
            (&file.classes, &file.confusion_matrix),
            (&of_test.classes, &of_test.confusion_matrix)
        );
        assert_eq!(
            file.classes
                .iter()
                .map(|class| class.num_samples)
                .sum::<u64>(),
            40
        );
        assert_eq!(
            file.classes.iter().map(|class| class.correct).sum::<u64>(),
            test.scores.top1_correct.unwrap()
        );
    }
}

#[test]
fn a_stop_within_the_test_measurement_is_made_good_by_the_next_session_and_a_finished_run_is_measured_once()
 {
    let args = |further: &str| {
        tiny(&format!(
            "--shapes-train 64 --shapes-test 60 --global-batch-size 24 --epochs 1 --val-fraction 0.25 {further}"
        ))
    };
    let whole = run(2, &args(""));
    let expected = whole.outcomes()[ROOT].test.clone();
    assert!(expected.is_some());
    let mut stopped_in_test = 0;
    for num_looks in 2..30 {
        let stopped = Run::in_new_directory()
            .stopping_after(num_looks)
            .go(2, &args(""));
        let outcome = &stopped.outcomes()[ROOT];
        if !outcome.stopped_early {
            break;
        }
        assert_eq!(outcome.test, None);
        if outcome.progress.epoch == 1 {
            stopped_in_test += 1;
            assert_eq!(by_class(&stopped).split, "val");
            let resumed = stopped.again().go(2, &args("--resume"));
            assert!(
                resumed
                    .outcomes()
                    .iter()
                    .all(|outcome| outcome.test == expected && !outcome.stopped_early)
            );
        }
    }
    assert!(stopped_in_test > 0);
    // The next session reuses the results in this session's file.
    let path = whole.directory().join("evaluation.json");
    let mut file: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    file["top1"] = 0.125.into();
    fs::write(&path, file.to_string()).unwrap();
    let again = whole.again().go(2, &args("--resume"));
    for outcome in again.outcomes() {
        assert_eq!(outcome.test.as_ref().unwrap().scores.top1, Some(0.125));
    }
    assert_eq!(summary(&again).test.unwrap().scores.top1, Some(0.125));
}

#[test]
fn patience_ends_a_run_on_all_ranks_at_once_and_counts_on_after_a_stop() {
    // 26 images allow at most 27 increasing accuracies.
    let args = |further: &str| {
        tiny(&format!(
            "--val-fraction 0.25 --epochs 40 --patience 1 --schedule constant {further}"
        ))
    };
    for world_size in 1..=3 {
        let whole = run(world_size, &args(""));
        let progress = &whole.outcomes()[ROOT].progress;
        assert!(
            progress.epoch < 40
                && whole
                    .outcomes()
                    .iter()
                    .all(|outcome| outcome.progress.best == progress.best)
        );
        let records = metrics(&whole);
        let accuracies: Vec<f64> = records
            .iter()
            .map(|record| record.val.as_ref().unwrap().top1.unwrap())
            .collect();
        let (last, before) = accuracies.split_last().unwrap();
        assert!(
            before.windows(2).all(|pair| pair[0] < pair[1]) && *last <= before[before.len() - 1],
            "{accuracies:?}"
        );
        let summary_of_whole = summary(&whole);
        assert_eq!(
            (
                summary_of_whole.patience_ended_after,
                summary_of_whole.stopped_early
            ),
            (Some(1), false)
        );
        assert!(summary_of_whole.test.is_some());
        if world_size == 2 {
            let stopped = Run::in_new_directory()
                .stopping_after(4)
                .go(world_size, &args(""));
            let resumed = stopped.again().go(world_size, &args("--resume"));
            let of = |run: &Run| {
                metrics(run)
                    .iter()
                    .map(|record| record.val.clone())
                    .collect::<Vec<_>>()
            };
            assert_eq!(of(&resumed), of(&whole));
            let ended = whole.again().go(world_size, &args("--resume"));
            assert_eq!(
                metrics(&ended).len(),
                records.len(),
                "a run that has ended makes no further epoch"
            );
            let patient = whole.again().go(world_size, &args("--resume --patience 2"));
            assert!(metrics(&patient).len() > records.len());
        }
    }
}

#[test]
fn splits_of_files_are_found_named_or_refused() {
    let all = folder(&[("train", 6), ("val", 2), ("test", 3), ("dev", 4)]);
    let whole = run(1, &of_folder(all.path(), ""));
    assert_eq!(whole.last_record().val.unwrap().num_samples, 4);
    assert_eq!(
        whole.outcomes()[ROOT]
            .test
            .as_ref()
            .unwrap()
            .scores
            .num_samples,
        6
    );
    let num_samples = |further: &[&str]| {
        alone(&whole.directory(), further)
            .unwrap()
            .scores
            .num_samples
    };
    let measured = [
        &[][..],
        &["--split", "val"],
        &["--split", "train"],
        &["--eval-split", "dev"],
    ]
    .map(num_samples);
    assert_eq!(measured, [6, 4, 12, 8]);
    let named = run(1, &of_folder(all.path(), "--eval-split dev"));
    assert_eq!(named.last_record().val.unwrap().num_samples, 8);
    let refused =
        |args: &TrainArgs| format!("{:#}", Run::in_new_directory().try_go(1, args).unwrap_err());
    let text = refused(&of_folder(all.path(), "--val-fraction 0.5"));
    assert!(
        text.contains(
            "the data set has a val split already (expected none, got image-folder val of 4 images)"
        ),
        "{text}"
    );
    let text = refused(&of_folder(all.path(), "--monitor test-top1"));
    assert!(text.contains("expected val-top1, got test-top1"), "{text}");

    let folder_of_run = tempfile::tempdir().unwrap();
    let words = "train --dataset image-folder --image-size 8 --eval-split train --model resnet8 --epochs 1 --threads 1";
    let mut command = trainer(&format!("{words} --data-dir"), &[all.path()]);
    command.current_dir(folder_of_run.path());
    let text = ended_with(0, command);
    assert!(
        text.contains("--eval-split train: the best model is chosen by training images"),
        "{text}"
    );

    // Without a val split, the test split selects the best epoch and keeps its name.
    let two = folder(&[("train", 6), ("test", 3)]);
    let of_two = run(1, &of_folder(two.path(), "--monitor val-loss"));
    let summary = summary(&of_two);
    assert_eq!(
        (summary.best.unwrap().monitor.as_str(), summary.test),
        ("test-loss", None)
    );
    let text = alone(&of_two.directory(), &["--split", "val"]).unwrap_err();
    assert!(text.contains("val"), "{text}");
}

#[test]
fn the_log_says_on_which_images_the_best_model_is_chosen() {
    let log = |further: &str| {
        let folder = tempfile::tempdir().unwrap();
        let words = format!("train {TINY} --threads 1 {further} --output-dir");
        ended_with(0, trainer(&words, &[&folder.path().join("run")]))
    };
    let text = log("--val-fraction 0.25");
    for words in [
        "78 train, 26 val, 40 test |",
        "best by val-top1; test at the end",
        "\nbest     val-top1 ",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let text = log("--monitor val-loss");
    for words in [
        "best by test-loss; no val split",
        "--monitor val-loss: there is no val split",
        "\nbest     test-loss ",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_run_goes_on_with_other_val_images_only_where_that_is_allowed_and_forgets_its_best() {
    let all = folder(&[("train", 6), ("val", 2), ("test", 3)]);
    let first = run(1, &of_folder(all.path(), "--epochs 1 --schedule constant"));
    write_images(all.path(), "val", "cat", [7, 8, 9]);
    let refused = first
        .again()
        .try_go(
            1,
            &of_folder(all.path(), "--epochs 2 --schedule constant --resume"),
        )
        .unwrap_err();
    assert!(
        format!("{refused:#}").contains("resume: the val split has changed"),
        "{refused:#}"
    );
    let resumed = first.again().go(
        1,
        &of_folder(
            all.path(),
            "--epochs 2 --schedule constant --resume --allow-changed-data",
        ),
    );
    assert_eq!(
        resumed.outcomes()[ROOT]
            .progress
            .best
            .as_ref()
            .unwrap()
            .epoch,
        1
    );
}

#[test]
fn class_weights_and_balanced_draws_give_the_same_bits_on_any_number_of_ranks_and_across_a_stop() {
    // The last batch has 8 samples, which three ranks share unevenly.
    let weights = "--class-weights 1,3,0.5,7,1,1,2,0,1,4";
    let mut hashes = BTreeSet::new();
    for options in [
        weights,
        "--sampler balanced",
        "--class-weights balanced --label-smoothing 0.1",
    ] {
        let args = |further: &str| {
            tiny(&format!(
                "--reduction exact --virtual-shards 6 --augment crop-flip {options} {further}"
            ))
        };
        let one = run(1, &args("")).parameter_hash();
        for world_size in [2, 3] {
            assert_eq!(
                run(world_size, &args("")).parameter_hash(),
                one,
                "{options}, {world_size} ranks"
            );
        }
        let stopped = Run::in_new_directory().stopping_after(3).go(2, &args(""));
        assert_eq!(
            stopped.again().go(2, &args("--resume")).parameter_hash(),
            one,
            "{options}, resumed"
        );
        hashes.insert(one);
    }
    hashes.insert(
        run(
            1,
            &tiny("--reduction exact --virtual-shards 6 --augment crop-flip"),
        )
        .parameter_hash(),
    );
    assert_eq!(hashes.len(), 4, "every option changes the training");
}

#[test]
fn equal_weights_of_any_size_are_as_good_as_none_whichever_way_ranks_synchronise() {
    for method in [
        "",
        "--sync local-sgd",
        "--sync parameter-server",
        "--update device",
        "--cpu portable",
        "--mixup 0.4",
    ] {
        let parameters = |weights: &str| {
            let run = run(3, &tiny(&format!("{method} --epochs 1 {weights}")));
            let model = &run.outcomes()[ROOT].model;
            (
                read(model, &ParameterLayout::new(model)),
                run.last_record().train_loss.unwrap(),
            )
        };
        // The loss of mixed images is the mean over samples, as PyTorch's loss of class
        // probabilities.
        let weight = if method.contains("mixup") { "1" } else { "3" };
        let weights = [weight; 10].join(",");
        let (got, loss) = parameters(&format!("--class-weights {weights}"));
        let (expected, loss_without) = parameters("");
        let distance = relative_l2(&got, &expected);
        assert!(
            distance < 1e-4 && (loss - loss_without).abs() < 1e-4,
            "{method}: {distance:e}, {loss}, {loss_without}"
        );
    }
}

#[test]
fn weights_for_another_number_of_classes_are_refused() {
    let refused = Run::in_new_directory().try_go(1, &tiny("--class-weights 1,2"));
    let text = refused.unwrap_err().to_string();
    let expected =
        "--class-weights: the number of weights is not that of the classes (expected 10, got 2)";
    assert!(text.contains(expected), "{text}");
}
