//! Training on images that the device makes from raw pixels gives the bits of training on images
//! that the host makes.

use crate::fixture::{Run, TINY, flags, run};
use trainer::config::cli::TrainArgs;

/// 104 images, so that the last step of the epoch has 8 images instead of 24.
fn tiny(further: &str) -> TrainArgs {
    flags(&[TINY, "--shapes-test 41 --augment crop-flip", further])
}

/// Returns the values that must be equal: all parameters, and the losses and correct answers of the
/// last epoch, as bits.
fn bits(run: &Run) -> (String, [u64; 2], [u64; 2]) {
    let record = run.last_record();
    let test = record.test.as_ref().unwrap();
    let losses = [record.train_loss.unwrap(), test.loss].map(f64::to_bits);
    (
        run.parameter_hash(),
        losses,
        [
            record.train_top1_correct.unwrap(),
            test.top1_correct.unwrap(),
        ],
    )
}

fn assert_routes_are_equal(world_size: usize, options: &str) {
    let [host, device] = ["host", "device"].map(|input| {
        bits(&run(
            world_size,
            &tiny(&format!("{options} --input {input}")),
        ))
    });
    assert_eq!(host, device, "{world_size} ranks, {options}");
}

#[test]
fn two_epochs_have_the_bits_of_the_host_route() {
    assert_routes_are_equal(1, "");
    assert_routes_are_equal(1, "--augment none --loader-threads 0");
    assert_routes_are_equal(1, "--grad-accum-steps 3 --seed 9");
}

#[test]
fn ranks_without_samples_take_part() {
    // The last step has 2 samples for 4 ranks.
    assert_routes_are_equal(4, "--shapes-train 50 --batch-norm sync");
    assert_routes_are_equal(2, "--reduction exact --virtual-shards 4");
}

#[test]
fn a_run_resumes_inside_an_epoch_on_the_other_route() {
    let whole = run(1, &tiny("--checkpoint-every-steps 3 --keep-checkpoints 99"));
    let resumed = whole
        .with_checkpoint_alone(3)
        .go(1, &tiny("--resume --input device"));
    assert_eq!(bits(&resumed), bits(&whole));
}

#[cfg(feature = "ndarray")]
mod second_opinion {
    use super::*;

    #[test]
    fn the_routes_are_equal_on_another_backend_too() {
        // burn's convolutions on this backend take seconds even for few images.
        let few = "--epochs 1 --shapes-train 10 --shapes-test 4 --global-batch-size 6";
        assert_routes_are_equal(1, &format!("--device ndarray {few}"));
    }
}
