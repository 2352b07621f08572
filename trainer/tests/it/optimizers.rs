//! Runs with optimizers other than SGD on thread-ranks: resume, reductions, learning.

use std::fs;

use crate::fixture::{Run, TINY, flags, run};
use safetensors::SafeTensors;
use trainer::config::cli::TrainArgs;
use trainer::config::{OptimizerChoice, TrainConfig};
use trainer::run::checkpoint::{Checkpoint, TrainingTensors};

const OTHERS: [&str; 3] = ["adamw", "lars", "lamb"];

fn tiny(further: &str) -> TrainArgs {
    flags(&[TINY, "--augment crop-flip --eval-every-epochs 2", further])
}

fn hash(world_size: usize, options: &str) -> String {
    run(world_size, &tiny(options)).parameter_hash()
}

fn saved(run: &Run, step: u64) -> TrainingTensors {
    let directory = run.directory().join(format!("checkpoints/step-{step:08}"));
    Checkpoint::open(&directory)
        .unwrap()
        .training_tensors()
        .unwrap()
}

#[test]
fn a_run_of_any_optimizer_resumed_inside_an_epoch_ends_with_the_bits_of_an_undisturbed_one() {
    for optimizer in OTHERS {
        for with in [
            "",
            "--ema-decay 0.9 --clip-grad-norm 0.5",
            "--compress powersgd:2 --compress-warmup-steps 1",
        ] {
            let options = format!("--optimizer {optimizer} --epochs 1 {with}");
            let every = "--checkpoint-every-steps 3 --keep-checkpoints 99";
            let whole = run(2, &tiny(&format!("{options} {every}")));
            let resumed = whole
                .with_checkpoint_alone(3)
                .go(2, &tiny(&format!("{options} --resume")));
            assert_eq!(
                resumed.parameter_hash(),
                whole.parameter_hash(),
                "{options}"
            );
            assert_eq!(saved(&resumed, 5), saved(&whole, 5), "{options}");
        }
    }
}

#[test]
fn every_optimizer_with_an_exact_reduction_gives_the_same_bits_on_any_number_of_ranks() {
    for optimizer in OTHERS {
        let options =
            format!("--optimizer {optimizer} --reduction exact --virtual-shards 3 --epochs 1");
        let one = hash(1, &options);
        for world_size in [2, 3] {
            assert_eq!(
                hash(world_size, &options),
                one,
                "{optimizer}, {world_size} ranks"
            );
        }
    }
}

#[test]
fn neither_overlap_nor_the_size_of_buckets_nor_a_fixed_loss_scale_changes_a_bit_of_any_optimizer() {
    for optimizer in OTHERS {
        let options = format!("--optimizer {optimizer} --epochs 1 --grad-accum-steps 2");
        let expected = hash(2, &options);
        for with in ["--overlap off", "--bucket-mib 0.01", "--loss-scale 1024"] {
            assert_eq!(
                hash(2, &format!("{options} {with}")),
                expected,
                "{optimizer} {with}"
            );
        }
    }
}

#[test]
fn changed_images_and_limited_gradients_give_the_same_bits_on_any_ranks_and_after_a_resume() {
    let distortion = "--color-jitter 0.4,0.4,0.4,0.1 --rotation 15 --random-erasing 0.5";
    let options = &format!(
        "--augment trivial {distortion} --mixup 0.3 --cutmix 1 --clip-grad-value 0.01 \
         --label-smoothing 0.1 --reduction exact --virtual-shards 2 --epochs 1"
    );
    let one = hash(1, options);
    let every = "--checkpoint-every-steps 3 --keep-checkpoints 99";
    let two = run(2, &tiny(&format!("{options} {every}")));
    assert_eq!(two.parameter_hash(), one);
    let resumed = two
        .with_checkpoint_alone(3)
        .go(1, &tiny(&format!("{options} --resume")));
    assert_eq!(resumed.parameter_hash(), one);
    for option in distortion.split(" --") {
        let without = options.replace(option.trim_start_matches("--"), "seed 0");
        assert_ne!(hash(1, &without), one, "{option}");
    }
    assert_ne!(
        hash(1, &options.replace("--clip-grad-value 0.01", "")),
        one,
        "gradients are limited"
    );
    assert_ne!(
        hash(1, &options.replace("--mixup 0.3 --cutmix 1", "")),
        one,
        "images are mixed"
    );
}

#[test]
fn every_optimizer_learns_a_batch_by_heart() {
    let one_batch = "--shapes-train 16 --shapes-test 16 --global-batch-size 16 --epochs 60 --eval-every-epochs 60";
    let plain = "--schedule constant --warmup-epochs 0 --checkpoint-every-epochs 60";
    for with in [
        "adamw --learning-rate 0.01",
        "lars --learning-rate 10",
        "lamb --learning-rate 0.02",
    ] {
        let record = run(1, &flags(&[TINY, one_batch, plain, "--optimizer", with])).last_record();
        assert!(
            record.train_loss.unwrap() < 0.2,
            "{with}: {:?}",
            record.train_loss
        );
    }
}

#[test]
fn a_checkpoint_holds_velocities_of_sgd_and_lars_and_two_moments_and_their_updates_of_the_others() {
    for (optimizer, names, num_updates) in [
        ("sgd", &["norm_statistics", "velocities"][..], None),
        ("lars", &["norm_statistics", "velocities"], None),
        (
            "adamw",
            &["moments", "norm_statistics", "num_updates"],
            Some(5),
        ),
        (
            "lamb",
            &["moments", "norm_statistics", "num_updates"],
            Some(5),
        ),
    ] {
        let run = run(1, &tiny(&format!("--optimizer {optimizer} --epochs 1")));
        let bytes = fs::read(
            run.directory()
                .join("checkpoints/step-00000005/training.safetensors"),
        )
        .unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut found = tensors.names();
        found.sort_unstable();
        assert_eq!(found, names, "{optimizer}");
        assert_eq!(
            saved(&run, 5).optimizer.num_updates,
            num_updates,
            "{optimizer}"
        );
    }
}

#[test]
fn another_optimizer_over_a_file_drops_the_options_of_the_files_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    fs::write(
        &file,
        TrainConfig::resolve(&tiny("--nesterov --learning-rate 0.3"), 1)
            .unwrap()
            .to_toml(),
    )
    .unwrap();
    let args = flags(&["--optimizer adamw --config", file.to_str().unwrap()]);
    let config = TrainConfig::resolve(&args, 1).unwrap();
    assert_eq!(config.optimizer.learning_rate, 1e-3);
    let OptimizerChoice::Adamw(adam) = config.optimizer.optimizer else {
        panic!("expected adamw")
    };
    assert_eq!(adam.weight_decay, 0.01);
}
