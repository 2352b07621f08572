//! Whole runs of small networks on ranks that are threads: determinism, resuming, equivalence of world sizes, learning.

#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

mod fixture;

use std::fs;

use distributed::{ROOT, fingerprint};
use fixture::{Run, flags, run, runs_of};
use trainer::checkpoint::CheckpointStore;
use trainer::metrics::EpochRecord;

const TINY: &[&str] = &[
    "--model",
    "resnet8",
    "--shapes-train",
    "104",
    "--shapes-test",
    "40",
    "--global-batch-size",
    "24",
    "--epochs",
    "2",
    "--augment",
    "crop-flip",
    "--eval-every-epochs",
    "2",
];

#[test]
fn the_same_seed_gives_the_same_bits_and_another_seed_others() {
    let hash = |seed: &str| run(1, &flags(TINY, &["--seed", seed])).parameter_hash();
    assert_eq!(hash("3"), hash("3"));
    assert_ne!(hash("3"), hash("4"));
}

#[test]
fn a_run_resumed_inside_an_epoch_ends_with_the_bits_of_an_undisturbed_one() {
    for world_size in [1, 2] {
        let whole = run(world_size, &flags(TINY, &["--checkpoint-every-steps", "3", "--keep-checkpoints", "99"]));
        // The checkpoint of step 3 of 5 in the first epoch is all that the second run gets.
        let resumed = whole.with_checkpoint_alone(3).go(world_size, &flags(TINY, &["--resume"]));
        assert_eq!(resumed.parameter_hash(), whole.parameter_hash(), "{world_size} ranks");
        let (resumed, whole) = (resumed.last_record(), whole.last_record());
        assert_eq!(resumed.test_top1_correct, whole.test_top1_correct);
        assert_eq!(resumed.test_loss, whole.test_loss, "norm statistics of {world_size} ranks differ");
        assert_eq!(resumed.train_top1_correct, whole.train_top1_correct);
    }
}

#[test]
fn a_stop_before_the_first_step_ends_all_ranks_after_it_and_the_rest_can_be_resumed() {
    let whole = run(2, &flags(TINY, &[]));
    let stopped = Run::in_new_directory();
    stopped.stop_flag().raise();
    let stopped = stopped.go(2, &flags(TINY, &[]));
    assert!(stopped.outcomes().iter().all(|outcome| outcome.stopped_early && outcome.progress.step == 1));
    let resumed = stopped.again().go(2, &flags(TINY, &["--resume"]));
    assert!(!resumed.outcomes()[ROOT].stopped_early);
    assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
}

#[test]
fn a_run_can_be_resumed_without_naming_its_options_again() {
    let whole = run(1, &flags(TINY, &[]));
    let stopped = Run::in_new_directory();
    stopped.stop_flag().raise();
    let stopped = stopped.go(1, &flags(TINY, &[]));
    let resumed = stopped.again().go(1, &flags(&[], &["--resume"]));
    assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
}

#[test]
fn a_checkpoint_written_by_two_ranks_goes_on_on_one() {
    let stopped = Run::in_new_directory();
    stopped.stop_flag().raise();
    let stopped = stopped.go(2, &flags(TINY, &[]));
    let resumed = stopped.again().go(1, &flags(TINY, &["--resume"]));
    assert_eq!(resumed.outcomes()[ROOT].progress.epoch, 2);
}

#[test]
fn a_broken_checkpoint_is_passed_over_for_the_one_before() {
    let run = run(1, &flags(TINY, &[]));
    let store = CheckpointStore::new(&run.directory().join("checkpoints"), 2);
    let newest = store.latest().unwrap().0.unwrap();
    let mut bytes = fs::read(newest.model_path()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(newest.model_path(), bytes).unwrap();
    let (found, warnings) = store.latest().unwrap();
    assert!(found.unwrap().state.progress.step < newest.state.progress.step);
    assert!(warnings[0].contains("sha256"), "{warnings:?}");
}

#[test]
fn resuming_with_other_options_is_refused_by_name() {
    let run = run(1, &flags(TINY, &["--epochs", "1", "--schedule", "constant"]));
    let error = run.again().try_go(1, &flags(TINY, &["--resume", "--schedule", "constant", "--momentum", "0.5"]));
    let text = format!("{:#}", error.unwrap_err());
    assert!(text.contains("optimizer.momentum was 0.9, is 0.5"), "{text}");
}

#[test]
fn every_rank_ends_with_the_same_parameters() {
    for world_size in [3, 4] {
        let run = run(world_size, &flags(TINY, &["--epochs", "1"]));
        let hashes: Vec<_> = run.outcomes().iter().map(|outcome| fingerprint(&outcome.model)).collect();
        assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]), "{hashes:?}");
    }
}

#[test]
fn evaluation_counts_every_sample_once_on_any_number_of_ranks() {
    let records: Vec<EpochRecord> =
        [1, 2, 3].map(|world_size| run(world_size, &flags(TINY, &["--batch-norm", "sync"])).last_record()).into();
    for record in &records {
        assert_eq!(record.test_num_samples, Some(40));
        assert_eq!(record.train_num_samples, 104);
    }
}

#[test]
fn a_gradient_that_is_not_finite_stops_all_ranks_and_names_the_step() {
    let errors = runs_of(2, &flags(TINY, &["--learning-rate", "1e30", "--warmup-epochs", "0"]));
    for error in errors {
        let text = format!("{:#}", error.unwrap_err());
        assert!(text.contains("step") && text.contains("finite"), "{text}");
    }
}

#[test]
fn a_model_that_the_last_step_broke_is_not_saved() {
    let args = flags(
        TINY,
        &["--learning-rate", "1e30", "--warmup-epochs", "0", "--epochs", "1", "--global-batch-size", "104"],
    );
    let broken = Run::in_new_directory();
    let directory = broken.directory();
    let text = format!("{:#}", broken.try_go(1, &args).unwrap_err());
    assert!(text.contains("test loss is not finite"), "{text}");
    assert!(!directory.join("checkpoints").exists());
}

#[test]
fn one_batch_is_learned_by_heart() {
    let mut by_heart: Vec<&str> =
        "--model resnet8 --shapes-train 16 --shapes-test 16 --global-batch-size 16 --epochs 60".split(' ').collect();
    by_heart.extend("--learning-rate 0.05 --schedule constant --weight-decay 0 --eval-every-epochs 60".split(' '));
    by_heart.extend("--checkpoint-every-epochs 60".split(' '));
    let record = run(1, &flags(&by_heart, &[])).last_record();
    assert!(record.train_loss < 0.01, "{}", record.train_loss);
    assert_eq!(record.train_top1_correct, 16);
}
