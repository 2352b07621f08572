//! Steps with a loss or gradient that is not finite, left out on all ranks.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use burn_resnet::{ResNet, ResNetConfig};
use clap::Parser;
use datasets::{LoadedStep, Loader, LoaderConfig, Pixels, ShapesConfig, ShardConfig, ShardPlan, shapes};
use distributed::{Communicator, ParameterLayout, read, run_ranks};
use trainer::config::cli::{Cli, Command};
use trainer::config::{SyncConfig, TrainConfig};
use trainer::measure::timer::Timer;
use trainer::step::loss_scale::LossScaling;
use trainer::step::optimizer::SgdConfig;
use trainer::step::{StepConfig, StepContext, StepOutcome, Stepper};

const NUM_STEPS: usize = 4;

/// The synchronisation that these flags of `trainer train` choose for two ranks.
fn sync(options: &str) -> SyncConfig {
    let words = format!("trainer train --model resnet8 --bucket-mib 0.02 {options}");
    let Command::Train(args) = Cli::try_parse_from(words.split_whitespace()).unwrap().into_command() else {
        panic!("expected train");
    };
    TrainConfig::resolve(&args.into_args().unwrap(), 2).unwrap().sync_config()
}

fn steps(rank: usize, num_shards: usize, num_own_shards: usize) -> Vec<LoadedStep> {
    let data = shapes::open(&ShapesConfig { num_train: 8 * NUM_STEPS, num_test: 10, seed: 1 }).unwrap();
    let plan = ShardPlan::new(ShardConfig {
        num_samples: data.train.len(),
        global_batch_size: 8,
        seed: 5,
        epoch: 0,
        shuffle: true,
        drop_last: false,
        shard_index: rank * num_own_shards,
        num_shards,
        num_own_shards,
    })
    .unwrap();
    let how = LoaderConfig::new(8 / num_shards, data.normalization.clone());
    Loader::start(data.train, plan, how).map(Result::unwrap).collect()
}

/// Everything that a step changes: parameters, velocities, norm statistics; bits, so that NaN would equal NaN.
type State = [Vec<u32>; 3];

/// The state of both ranks after the steps of which `broken` has a bad pixel on rank 1, and `left_out` is never begun.
fn train(sync: &SyncConfig, broken: Option<(usize, f32)>, left_out: Option<usize>) -> Vec<State> {
    let num_shards = sync.method.virtual_shards().unwrap_or(2);
    run_ranks(2, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let rank = communicator.rank();
        let config = StepConfig {
            sgd: SgdConfig { momentum: 0.9, nesterov: false, weight_decay: 1e-4, decay_norm_and_bias: true },
            label_smoothing: 0.0,
            clip_norm: None,
            loss_scale: LossScaling::None,
            sync_batch_norm: false,
            skips_non_finite: true,
            sync: sync.clone(),
            server_link: None,
            rank_status: Arc::default(),
        };
        let model: ResNet = ResNetConfig::cifar(8).unwrap().init(3, &Device::flex().autodiff());
        let mut stepper = Stepper::new(model, config, communicator, &Device::flex()).unwrap();
        let timer = Timer::default();
        for (step, mut loaded) in steps(rank, num_shards, num_shards / 2).into_iter().enumerate() {
            if left_out == Some(step) {
                continue;
            }
            let breaks = broken.filter(|(broken, _)| *broken == step);
            if let (Some((_, value)), 1) = (breaks, rank) {
                let Pixels::Normalised(pixels) = &mut loaded.micro_batches[0].pixels else { panic!("raw pixels") };
                pixels[100] = value;
            }
            let context = StepContext { step: step as u64, learning_rate: 0.05, ..StepContext::default() };
            let loaded = loaded.map(|batch| batch.upload(stepper.device()));
            let end = stepper.step(context, loaded, &timer).unwrap();
            match end.outcome {
                StepOutcome::Skipped(reason) if breaks.is_some() => {
                    assert!(reason.contains(&format!("step {step}")) && reason.contains("on rank 1"), "{reason}");
                    assert_eq!(end.scores, None, "a step that is not made has no score");
                }
                outcome => assert_eq!((outcome, breaks), (StepOutcome::Updated, None)),
            }
        }
        let model = stepper.model().valid();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
        [bits(&stepper.parameters()), bits(&stepper.velocities()), bits(&read(&model, &ParameterLayout::state(&model)))]
    })
}

#[test]
fn a_skipped_step_leaves_no_trace_on_any_rank() {
    for options in [
        "",
        "--overlap off",
        "--reduction ring",
        "--reduction exact --virtual-shards 4 --global-batch-size 8",
        "--compress bf16",
        "--compress f16",
        "--compress powersgd:2 --compress-warmup-steps 0",
        "--compress topk:5 --compress-warmup-steps 0",
    ] {
        let sync = sync(options);
        let expected = train(&sync, None, Some(1));
        assert_ne!(expected, train(&sync, None, None), "the step matters");
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(train(&sync, Some((1, bad)), None), expected, "{options:?} {bad}");
        }
    }
}

#[test]
fn a_first_and_a_last_step_can_be_skipped_too() {
    let sync = sync("");
    for step in [0, NUM_STEPS - 1] {
        assert_eq!(train(&sync, Some((step, f32::NAN)), None), train(&sync, None, Some(step)), "step {step}");
    }
}
