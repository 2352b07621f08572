//! Custom loops over models with every kind of layer. Any number of ranks gives the parameters of
//! one process with the whole batch.

use std::sync::Arc;

use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::nn;
use burn::optim::SgdConfig;
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
use trainer::step::norm_reducer::NormReducer;

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
