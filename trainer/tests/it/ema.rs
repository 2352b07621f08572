//! The moving average of parameters: manual computation, evaluation, saving, no effect on training.

use std::fs;

use crate::evaluation::alone;
use crate::fixture::{Run, TINY, flags, run};
use burn::tensor::Device;
use burn_resnet::{ResNet, ResNetConfig, load_weights};
use distributed::replica::{ParameterLayout, read};
use records::EvaluationByClass;
use trainer::config::cli::TrainArgs;
use trainer::run::checkpoint::Checkpoint;

/// Returns the flags of `TINY` with an average in which each new value has a weight of a quarter.
fn averaging(further: &str) -> TrainArgs {
    flags(&[TINY, "--ema-decay 0.75", further])
}

fn parameters(model: &ResNet) -> Vec<f32> {
    read(model, &ParameterLayout::new(model))
}

fn network() -> ResNet {
    ResNetConfig::cifar(8).unwrap().init(0, &Device::flex())
}

/// Returns the averaged parameters of the saved model, and the saved parameters in training.
fn saved(run: &Run, step: u64) -> (Vec<f32>, Vec<f32>) {
    let checkpoint =
        Checkpoint::open(&run.directory().join(format!("checkpoints/step-{step:08}"))).unwrap();
    let model = load_weights(network(), checkpoint.model_path()).unwrap();
    (
        parameters(&model),
        checkpoint.training_tensors().unwrap().parameters,
    )
}

/// Returns the result of `eval` on the run's last checkpoint.
fn evaluated(run: &Run) -> EvaluationByClass {
    alone(&run.directory().join("checkpoints/step-00000010"), &[]).unwrap()
}

#[test]
fn the_saved_model_is_the_average_over_the_initial_parameters_and_those_after_each_step() {
    let run = run(
        1,
        &averaging("--epochs 1 --checkpoint-every-steps 1 --keep-checkpoints 9"),
    );
    let mut expected = parameters(&network());
    for step in 1..=5 {
        let (average, in_training) = saved(&run, step);
        expected
            .iter_mut()
            .zip(&in_training)
            .for_each(|(average, new)| *average += 0.25 * (new - *average));
        assert_eq!(average, expected, "step {step}");
        assert_ne!(average, in_training);
    }
}

#[test]
fn an_average_is_evaluated_and_used_and_changes_nothing_in_training() {
    let (with, without) = (run(1, &averaging("")), run(1, &flags(&[TINY])));
    assert_eq!(with.parameter_hash(), without.parameter_hash());
    let (record, other) = (with.last_record(), without.last_record());
    assert_eq!(record.train_loss, other.train_loss);
    assert_ne!(record.test, other.test);
    let (result, expected) = (evaluated(&with), record.test.as_ref().unwrap().loss);
    assert!(
        (result.scores.loss - expected).abs() < 1e-4 * expected,
        "{} and {expected}",
        result.scores.loss
    );
}

#[test]
fn a_resumed_run_goes_on_with_the_bits_of_the_average_and_of_the_parameters() {
    let whole = run(2, &averaging(""));
    let model = |run: &Run| {
        fs::read(
            run.directory()
                .join("checkpoints/step-00000010/model.safetensors"),
        )
        .unwrap()
    };
    let stopped = Run::in_new_directory()
        .stopping_after(3)
        .go(2, &averaging(""));
    assert_eq!(stopped.outcomes()[1].progress.step, 3);
    let resumed = stopped.again().go(2, &averaging("--resume"));
    assert_eq!(
        (resumed.parameter_hash(), model(&resumed)),
        (whole.parameter_hash(), model(&whole))
    );
    // Another decay gives another model, so a resume rejects the decay.
    let error = stopped
        .again()
        .try_go(2, &averaging("--resume --ema-decay 0.5"))
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("optimizer.ema-decay was 0.75, is 0.5"),
        "{error:#}"
    );
}

#[test]
fn an_average_on_the_device_is_that_in_main_memory_and_survives_a_resume_there() {
    let loss = |run: &Run| run.last_record().test.unwrap().loss;
    let on_device = |more: &str| averaging(&format!("--device flex --update device {more}"));
    let [host, device] = [averaging(""), on_device("")].map(|args| run(2, &args));
    assert!(
        (loss(&device) / loss(&host) - 1.0).abs() < 1e-3,
        "{} and {}",
        loss(&device),
        loss(&host)
    );
    let stopped = Run::in_new_directory()
        .stopping_after(3)
        .go(2, &on_device(""));
    let resumed = stopped.again().go(2, &on_device("--resume"));
    assert_eq!(
        (resumed.parameter_hash(), loss(&resumed)),
        (device.parameter_hash(), loss(&device))
    );
}

#[test]
fn steps_that_a_device_skips_leave_the_average_at_the_initial_parameters() {
    // The gradient of every step overflows f16.
    let overflows = "--device flex --update device --dtype f16 --loss-scale 16777216 --shapes-train 10 --global-batch-size 2 --epochs 1";
    let skips = "--on-non-finite skip --max-skipped-steps 1000";
    let run = run(2, &averaging(&format!("{overflows} {skips}")));
    assert_eq!(run.last_record().skipped_steps, 5);
    let initial = parameters(&network());
    assert_eq!(saved(&run, 5), (initial.clone(), initial));
}
