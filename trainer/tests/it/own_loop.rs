//! Custom loops over models with every kind of layer. Any number of ranks gives the parameters of
//! one process with the whole batch.

#[allow(dead_code)]
#[path = "../../examples/own_loop.rs"]
mod example;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::nn;
use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Shape, Tensor, TensorData};
use distributed::communicator::SingleCommunicator;
use distributed::gradients::{GradientReducer, ReducerConfig};
use distributed::replica::{ParameterLayout, read, write};
use distributed::{Communicator, run_ranks};
use layers::backend::{Activations, Computation, gradient_hook};
use layers::{
    BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Linear, LinearConfig, PassContext,
    global_avg_pool, relu, with_gradient_hook,
};
use records::Summary;
use tempfile::TempDir;
use trainer::own_loop::{
    AdamConfig, EpochRecord, LoopOptimizer, OptimizerChoice, OwnLoop, OwnLoopConfig, ScoreSums,
    World,
};
use trainer::step::norm_reducer::NormReducer;
use trainer::world::stop::StopFlag;

use crate::fixture::{silent, succeed, trainer};

const NUM_SAMPLES: usize = 6;
const NUM_STEPS: usize = 3;
const SIDE: usize = 6;

/// Layers of `layers` and of burn: one used twice, one with a gradient hook, one frozen, one
/// unused.
#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    norm: BatchNorm,
    of_burn: nn::conv::Conv2d,
    streamed: nn::Linear,
    twice: Linear,
    frozen: Linear,
    unused: nn::Linear,
    head: Linear,
}

impl Net {
    /// Returns a model with the same values but different parameter ids on every rank.
    fn new(device: &Device) -> Self {
        let linear = |d_output| LinearConfig::new(8, d_output).init(device);
        let net = Self {
            conv: Conv2dConfig::new([3, 8], [3, 3])
                .with_bias(false)
                .init(device),
            norm: BatchNormConfig::new(8).init(device),
            of_burn: nn::conv::Conv2dConfig::new([8, 8], [1, 1]).init(device),
            streamed: nn::LinearConfig::new(8, 8).init(device),
            twice: linear(8),
            frozen: linear(8).no_grad(),
            unused: nn::LinearConfig::new(8, 2).init(device),
            head: linear(3),
        };
        [ParameterLayout::new(&net), ParameterLayout::state(&net)]
            .iter()
            .fold(net, |net, layout| {
                let wave = |(place, entry): (usize, &str)| match entry.rsplit('.').next() {
                    Some("gamma" | "running_var") => 1.0,
                    Some("running_mean") => 0.0,
                    _ => (place as f32 * 0.7 + 0.3).sin() * 0.4,
                };
                let entries = layout
                    .entries()
                    .iter()
                    .flat_map(|entry| entry.range().map(|place| (place, &*entry.path)));
                let values: Vec<f32> = entries.map(wave).collect();
                write(net, layout, &values)
            })
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = relu(self.norm.forward(self.conv.forward(images)));
        let x = layers::in_f32(x.into(), |x: Tensor<4>| {
            self.of_burn
                .forward(x.permute([0, 3, 1, 2]))
                .permute([0, 2, 3, 1])
        });
        let x = global_avg_pool(x);
        let x = with_gradient_hook(&self.streamed, &x).forward(x);
        // The gradient is the sum over both uses, so the hook is off and the reducer takes it
        // afterwards.
        let x = PassContext {
            hook: None,
            ..PassContext::current()
        }
        .scope(|| self.twice.forward(layers::gelu(self.twice.forward(x))));
        self.head.forward(self.frozen.forward(x))
    }
}

/// Multiplies matrices and kernels by a trained scale.
#[derive(Module, Debug)]
struct Scaling {
    scale: Param<Tensor<1>>,
}

impl Reparameterization for Scaling {
    const NAME: &'static str = "scaling";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base * self.scale.val().reshape(Shape::from(vec![1; D]))
    }
}

struct Scaled;

impl Reparameterizer for Scaled {
    type Reparam = Scaling;

    fn reparameterize<const D: usize>(
        &mut self,
        _: &str,
        parameter: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Scaling>) {
        let scale = Param::from_tensor(Tensor::from_floats([0.9], &parameter.lazy_device()));
        (parameter, (D > 1).then_some(Scaling { scale }))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain,
    /// A model loaded from a record before the second step, so that parameters have other ids.
    Loaded,
    Reparameterized,
}

/// Returns these samples with their targets, as one rank has them.
fn batch(samples: std::ops::Range<usize>, device: &Device) -> (Tensor<4>, Tensor<2>) {
    let of = |len: usize, rate: f32| {
        samples
            .clone()
            .flat_map(move |sample| (0..len).map(move |i| ((sample * len + i) as f32 * rate).sin()))
    };
    let images: Vec<f32> = of(SIDE * SIDE * 3, 1.3).collect();
    let targets: Vec<f32> = of(3, 2.1).collect();
    let images = Tensor::from_data(
        TensorData::new(images, [samples.len(), SIDE, SIDE, 3]),
        device,
    );
    (
        images,
        Tensor::from_data(TensorData::new(targets, [samples.len(), 3]), device),
    )
}

/// Returns the parameters after some steps of SGD.
fn trained(
    communicator: Arc<dyn Communicator>,
    kind: Kind,
    activations: Activations,
    has_hook: bool,
) -> Vec<f32> {
    let device = Device::flex().autodiff();
    let net = |kind| match kind {
        Kind::Reparameterized => Net::new(&device).apply_reparameterization(Scaled),
        _ => Net::new(&device),
    };
    let mut model = net(kind);
    let mut reducer =
        GradientReducer::new(&model, Arc::clone(&communicator), &ReducerConfig::default()).unwrap();
    let collector = reducer.collector();
    let hook = gradient_hook(move |parameter, gradient| {
        collector.take(parameter, gradient.as_slice().unwrap())
    });
    let context = PassContext {
        computation: Computation {
            activations,
            ..Computation::default()
        },
        reducer: Some(Arc::new(NormReducer::new(Arc::clone(&communicator), true))),
        hook: has_hook.then_some(hook),
    };
    // The ranks have different numbers of samples.
    let cut = |rank| NUM_SAMPLES * rank * rank / communicator.world_size().pow(2);
    let own = cut(communicator.rank())..cut(communicator.rank() + 1);
    let mut optimizer = SgdConfig::new().init();
    for step in 0..NUM_STEPS {
        if step == 1 && kind == Kind::Loaded {
            let layout = ParameterLayout::new(&model);
            let saved = write(net(kind), &layout, &read(&model, &layout));
            model = model.load_record(saved.into_record());
        }
        let (images, targets) = batch(own.clone(), &device);
        let logits = context.clone().scope(|| model.forward(images));
        let loss = (logits - targets)
            .powi_scalar(2)
            .sum()
            .div_scalar(own.len() as f64);
        let gradients = reducer
            .backward(&model, loss, own.len() as f64 / NUM_SAMPLES as f64)
            .unwrap();
        let unused = reducer.unused_parameters();
        assert!(
            !unused.is_empty() && unused.iter().all(|path| path.starts_with("unused.")),
            "{kind:?}: {unused:?}"
        );
        model = optimizer.step(0.01, model, gradients);
    }
    read(&model, &ParameterLayout::new(&model))
}

fn relative_l2(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |value: f32| f64::from(value).powi(2);
    let difference: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    (difference / expected.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
}

#[test]
fn models_of_every_kind_of_part_are_trained_alike_on_any_number_of_ranks_with_hooks_and_without() {
    for kind in [Kind::Plain, Kind::Loaded, Kind::Reparameterized] {
        for (activations, tolerance) in [
            (Activations::F32, 1e-5),
            (Activations::Bf16, 2e-3),
            (Activations::F16, 2e-4),
        ] {
            let expected = trained(
                Arc::new(SingleCommunicator::new()),
                kind,
                activations,
                false,
            );
            for (world_size, has_hook) in [(1, true), (2, true), (2, false)] {
                let ranks = run_ranks(world_size, |own| {
                    trained(Arc::new(own), kind, activations, has_hook)
                });
                assert!(
                    ranks.iter().all(|rank| *rank == ranks[0]),
                    "{kind:?} {activations:?}: ranks differ"
                );
                assert!(
                    ranks[0].iter().all(|value| value.is_finite()),
                    "{kind:?} {activations:?}: diverged"
                );
                let off = relative_l2(&ranks[0], &expected);
                let what =
                    format!("{kind:?}, {activations:?}, {world_size} ranks, hook {has_hook}");
                assert!(off < tolerance, "{what}: {off:.2e}");
            }
        }
    }
}

/// Two networks, as of an adversarial loop, with random masks.
#[derive(Module, Debug)]
struct Pair {
    generator: Linear,
    critic: nn::Linear,
    dropout: nn::Dropout,
}

impl Pair {
    fn new(device: &Device) -> Self {
        let net = Self {
            generator: LinearConfig::new(3, 4).init(device),
            critic: nn::LinearConfig::new(4, 1).init(device),
            dropout: nn::DropoutConfig::new(0.0).init(),
        };
        let layout = ParameterLayout::new(&net);
        let wave = |place: usize| (place as f32 * 0.7 + 0.3).sin();
        let values: Vec<f32> = (0..layout.num_elements()).map(wave).collect();
        write(net, &layout, &values)
    }

    fn with_masks(self, rate: f64) -> Self {
        Self {
            dropout: nn::DropoutConfig::new(rate).init(),
            ..self
        }
    }

    /// Returns the summed loss of these samples and their number.
    fn sum(&self, samples: std::ops::Range<usize>) -> Option<(Tensor<1>, usize)> {
        let values: Vec<f32> = samples
            .clone()
            .flat_map(|sample| (0..3).map(move |i| ((sample * 3 + i) as f32 * 1.3).sin()))
            .collect();
        let values = TensorData::new(values, [samples.len(), 3]);
        let device = self.critic.weight.val().device();
        let x = self
            .generator
            .forward(Tensor::<2>::from_data(values, &device));
        let scores = self.critic.forward(self.dropout.forward(relu_of(x)));
        Some(((scores - 0.5).powi_scalar(2).sum(), samples.len()))
    }
}

fn relu_of(x: Tensor<2>) -> Tensor<2> {
    burn::tensor::activation::relu(x)
}

fn parameters(model: &impl Module) -> Vec<f32> {
    read(model, &ParameterLayout::new(model))
}

fn adam() -> ModuleOptimizer {
    AdamWConfig::new().init()
}

fn lockstep_adam() -> OptimizerChoice {
    OptimizerChoice::Adamw(AdamConfig {
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.01,
        decay_norm_and_bias: Some(true),
    })
}

/// Returns a loop over a pair on this rank.
fn pair(
    communicator: impl Communicator + 'static,
    optimizer: impl Into<LoopOptimizer>,
    config: &OwnLoopConfig,
) -> Result<OwnLoop<Pair>> {
    let model = Pair::new(&Device::flex().autodiff());
    OwnLoop::new(model, optimizer, config, &silent(communicator))
}

fn error_of<T>(result: Result<T>) -> String {
    format!("{:#}", result.err().expect("an error"))
}

#[test]
fn a_step_of_uneven_ranks_uses_the_mean_over_all_samples() {
    let config = OwnLoopConfig {
        clip_grad_norm: Some(1.0),
        ..OwnLoopConfig::default()
    };
    let optimizers: [fn() -> LoopOptimizer; 2] = [|| adam().into(), || lockstep_adam().into()];
    for optimizer in optimizers {
        let mut one = pair(SingleCommunicator::new(), optimizer(), &config).unwrap();
        for step in 0..4 {
            one.step(0.1, |model| Ok(model.sum(step..step + 7)))
                .unwrap();
        }
        let ranks = run_ranks(2, |own| {
            let is_root = own.rank() == 0;
            let mut two = pair(own, optimizer(), &config).unwrap();
            // Other passes on each rank, and a rank without samples.
            for step in 0..4 {
                let (first, last) = match (step, is_root) {
                    (0, true) => (None, 0..7),
                    (0, false) => (None, 7..7),
                    (_, true) => (Some(step..step + 2), step + 2..step + 6),
                    (_, false) => (None, step + 6..step + 7),
                };
                if let Some(first) = first {
                    two.accumulate(|model| Ok(model.sum(first))).unwrap();
                }
                two.step(0.1, |model| {
                    Ok(if last.is_empty() {
                        None
                    } else {
                        model.sum(last)
                    })
                })
                .unwrap();
            }
            let scores = two.evaluate(|model| {
                let mut sums = ScoreSums::default();
                let own = if is_root { 0..5 } else { 5..6 };
                let (loss, num_samples) = model.sum(own).unwrap();
                sums.add_losses(loss.into_scalar::<f32>().into(), num_samples);
                sums.add("length", 12.0);
                Ok(sums)
            });
            let scores = scores.unwrap();
            assert_eq!((scores.num_samples, scores.metrics["length"]), (6, 4.0));
            (parameters(two.model()), scores.loss)
        });
        assert_eq!(ranks[0], ranks[1], "ranks differ");
        let (trained, loss) = &ranks[0];
        let off = relative_l2(trained, &parameters(one.model()));
        assert!(off < 1e-5, "{off:.2e}");
        let whole = one.evaluate(|model| {
            let mut sums = ScoreSums::default();
            let (loss, num_samples) = model.sum(0..6).unwrap();
            sums.add_losses(loss.into_scalar::<f32>().into(), num_samples);
            Ok(sums)
        });
        assert!((whole.unwrap().loss - loss).abs() < 1e-5);
    }
}

#[test]
fn an_update_of_parts_leaves_the_others_and_their_states_unchanged() {
    let config = OwnLoopConfig::default();
    let mut whole = pair(SingleCommunicator::new(), adam(), &config).unwrap();
    let layout = ParameterLayout::new(whole.model());
    let num_of_generator = 3 * 4 + 4;
    assert_eq!(layout.entries()[2].offset, num_of_generator);
    let before = parameters(whole.model());
    whole
        .step_parts(&["generator"], 0.1, |model| Ok(model.sum(0..4)))
        .unwrap();
    let after = parameters(whole.model());
    assert_eq!(before[num_of_generator..], after[num_of_generator..]);
    assert_ne!(before[..num_of_generator], after[..num_of_generator]);
    whole
        .step_parts(&["critic"], 0.1, |model| Ok(model.sum(0..4)))
        .unwrap();
    let last = parameters(whole.model());
    assert_eq!(after[..num_of_generator], last[..num_of_generator]);
    assert_ne!(after[num_of_generator..], last[num_of_generator..]);

    let error = error_of(whole.step_parts(&["judge"], 0.1, |model| Ok(model.sum(0..4))));
    assert!(error.contains("generator, critic"), "{error}");
    let mut of_lockstep = pair(SingleCommunicator::new(), lockstep_adam(), &config).unwrap();
    let error = error_of(of_lockstep.step_parts(&["critic"], 0.1, |model| Ok(model.sum(0..4))));
    assert!(
        error.contains("expected one of burn's optimizers"),
        "{error}"
    );
}

#[test]
fn all_ranks_end_together_if_a_loss_is_not_finite_or_no_rank_has_samples() {
    let errors = run_ranks(2, |own| {
        let rank = own.rank();
        let mut training = pair(own, adam(), &OwnLoopConfig::default()).unwrap();
        let before = parameters(training.model());
        let result = training.step(0.1, |model| {
            let factor = if rank == 1 { f32::NAN } else { 1.0 };
            Ok(model.sum(0..2).map(|(sum, number)| (sum * factor, number)))
        });
        assert_eq!(parameters(training.model()), before);
        error_of(result)
    });
    assert_eq!(errors[0], errors[1]);
    assert!(
        errors[0].contains("non-finite loss or gradient on rank 1"),
        "{}",
        errors[0]
    );
    let errors = run_ranks(2, |own| {
        let mut training = pair(own, adam(), &OwnLoopConfig::default()).unwrap();
        error_of(training.step(0.1, |_| Ok(None)))
    });
    assert_eq!(errors[0], errors[1]);
    assert!(
        errors[0].contains("expected samples on at least one rank"),
        "{}",
        errors[0]
    );
}

/// Returns settings of a run below `folder`, which may have begun.
fn in_folder(folder: &TempDir) -> OwnLoopConfig {
    OwnLoopConfig {
        epochs: 2,
        output_dir: Some(folder.path().join("run")),
        resume: true,
        ..OwnLoopConfig::default()
    }
}

/// Trains a pair on one rank, with random masks at this rate. Saves after `save_after` steps, and
/// ends like a killed process after `end_after` steps.
fn train_pair(
    config: &OwnLoopConfig,
    rate: f64,
    (save_after, end_after): (u64, u64),
) -> Option<Vec<f32>> {
    let model = Pair::new(&Device::flex().autodiff()).with_masks(rate);
    let world = silent(SingleCommunicator::new());
    let mut training = OwnLoop::new(model, adam(), config, &world).unwrap();
    while training.is_running() {
        for step in training.step_in_epoch()..5 {
            let first = (training.epoch() * 5 + step) as usize;
            training
                .step(0.1, |model| Ok(model.sum(first..first + 3)))
                .unwrap();
            if first as u64 + 1 == save_after {
                training.save().unwrap();
            }
            if first as u64 + 1 == end_after {
                return None;
            }
        }
        training.end_epoch(EpochRecord::default()).unwrap();
    }
    Some(parameters(&training.finish().unwrap()))
}

#[test]
fn a_killed_loop_continues_from_its_checkpoint_with_the_same_bits() {
    let undisturbed = tempfile::tempdir().unwrap();
    let expected = train_pair(&in_folder(&undisturbed), 0.0, (0, 0)).unwrap();
    let loss_of_epoch = |folder: &TempDir, epoch: usize| {
        let text = fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        let record: EpochRecord = serde_json::from_str(lines[epoch]).unwrap();
        (
            record.step,
            record.train_num_samples,
            record.train_loss.unwrap(),
        )
    };
    // Killed in the first epoch, in the second, and between a checkpoint and the next.
    for (save_after, end_after) in [(3, 4), (0, 6), (7, 9)] {
        let folder = tempfile::tempdir().unwrap();
        let config = in_folder(&folder);
        assert_eq!(train_pair(&config, 0.0, (save_after, end_after)), None);
        assert_eq!(train_pair(&config, 0.0, (0, 0)).unwrap(), expected);
        for epoch in 0..2 {
            let [(step, samples, loss), expected] =
                [&folder, &undisturbed].map(|folder| loss_of_epoch(folder, epoch));
            assert_eq!((step, samples), (expected.0, expected.1));
            assert!((loss - expected.2).abs() < 1e-9, "{save_after} {end_after}");
        }
        // A session after the end changes nothing.
        assert_eq!(train_pair(&config, 0.0, (0, 0)).unwrap(), expected);
    }
}

#[test]
fn a_resumed_loop_draws_the_numbers_of_an_undisturbed_one() {
    // Other tests of this process draw from the same stream, so one of several attempts counts.
    let is_equal = (0..10).any(|_| {
        let [undisturbed, killed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let expected = train_pair(&in_folder(&undisturbed), 0.5, (0, 0));
        let config = in_folder(&killed);
        train_pair(&config, 0.5, (7, 9));
        train_pair(&config, 0.5, (0, 0)) == expected
    });
    assert!(is_equal, "a resumed loop drew other masks");
}

#[test]
fn a_loop_resumes_only_with_its_settings_and_only_if_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let config = in_folder(&folder);
    train_pair(&config, 0.0, (0, 0));
    let refusal =
        |config: &OwnLoopConfig| error_of(pair(SingleCommunicator::new(), adam(), config));
    let text = refusal(&OwnLoopConfig {
        resume: false,
        ..config.clone()
    });
    assert!(text.contains("is not empty: give --resume"), "{text}");
    let text = refusal(&OwnLoopConfig {
        seed: 1,
        ..config.clone()
    });
    assert!(text.contains("--seed: expected 0 as in"), "{text}");
    let text = refusal(&OwnLoopConfig {
        options: [("width".to_owned(), "4".to_owned())].into(),
        ..config.clone()
    });
    assert!(text.contains("width: expected none as in"), "{text}");
    let text = error_of(pair(SingleCommunicator::new(), lockstep_adam(), &config));
    assert!(text.contains("of another optimizer or model"), "{text}");

    let texts = run_ranks(2, |own| {
        let config = OwnLoopConfig {
            seed: own.rank() as u64,
            ..OwnLoopConfig::default()
        };
        error_of(pair(own, adam(), &config))
    });
    assert!(
        texts[0].contains("--seed of rank 1 differs") && texts[0] == texts[1],
        "{texts:?}"
    );
    for config in [
        OwnLoopConfig {
            epochs: 0,
            ..OwnLoopConfig::default()
        },
        OwnLoopConfig {
            clip_grad_norm: Some(0.0),
            ..OwnLoopConfig::default()
        },
        OwnLoopConfig {
            resume: true,
            ..OwnLoopConfig::default()
        },
    ] {
        let text = refusal(&config);
        assert!(
            text.starts_with("--") && text.contains("expected"),
            "{text}"
        );
    }
}

fn summary(run: &Path) -> Summary {
    serde_json::from_slice(&fs::read(run.join("summary.json")).unwrap()).unwrap()
}

/// Runs the example on two ranks. Rank 1 is asked to stop after some steps and evaluations.
fn run_example(config: &OwnLoopConfig, stop_after: Option<u64>) -> Summary {
    run_ranks(2, |own| {
        let rank = own.rank();
        let mut world: World = silent(own);
        if let Some(looks) = stop_after.filter(|_| rank == 1) {
            world.stop = StopFlag::default().or_after_looks(looks);
        }
        example::train(config, &world, &Device::flex()).unwrap();
    });
    summary(config.output_dir.as_ref().unwrap())
}

#[test]
fn the_example_stops_on_all_ranks_resumes_with_the_same_bits_and_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let config = |name: &str| OwnLoopConfig {
        output_dir: Some(folder.path().join(name)),
        ..in_folder(&folder)
    };
    let expected = run_example(&config("whole"), None);
    assert_eq!(
        (expected.epochs, expected.steps, expected.images),
        (2, 42, 2000)
    );
    assert!(!expected.stopped_early);
    let stopped = run_example(&config("stopped"), Some(30));
    assert!(stopped.stopped_early && stopped.epochs == 1, "{stopped:?}");
    assert!((22..42).contains(&stopped.steps), "{stopped:?}");
    let resumed = run_example(&config("stopped"), None);
    assert_eq!(resumed.parameter_hash, expected.parameter_hash);

    let [whole, run, page] = ["whole", "stopped", "page"].map(|name| folder.path().join(name));
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let scores = |line: &str| {
        let record: EpochRecord = serde_json::from_str(line).unwrap();
        let test = record.test.unwrap();
        (record.num_ranks, test.num_samples, test.top1.is_some())
    };
    assert_eq!(
        text.lines().map(scores).collect::<Vec<_>>(),
        [(2, 200, true); 2]
    );
    succeed(trainer(
        "report",
        &[&run, &whole, Path::new("--output"), &page],
    ));
    let html = fs::read_to_string(page.join("index.html")).unwrap();
    assert!(
        html.contains("stopped") && html.contains("custom, 0 train"),
        "no run in the report"
    );
}
