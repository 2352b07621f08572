//! One rank and many give the same gradient for the same global batch.
//!
//! The model has no normalisation: with it, batch statistics differ between ranks by design.
//! Tolerance: 1e-5 in relative L2, for sums of f32 in another order.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::{log_softmax, relu};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use distributed::{
    CollectiveError, Communicator, GradientReducer, ParameterLayout, SingleCommunicator, StepHeader, agree, run_ranks,
    write,
};

const CHANNELS: usize = 2;
const SIDE: usize = 6;
const NUM_CLASSES: usize = 3;

#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    unused: Param<Tensor<1>>,
    head: Linear,
}

impl Net {
    /// The same net on every rank and in every test.
    fn new(device: &Device) -> Self {
        let net = Self {
            conv: Conv2dConfig::new([CHANNELS, 4], [3, 3]).init(device),
            unused: Param::from_tensor(Tensor::ones([5], device)),
            head: LinearConfig::new(4 * (SIDE - 2) * (SIDE - 2), NUM_CLASSES).init(device),
        };
        let layout = ParameterLayout::new(&net);
        let values: Vec<f32> = (0..layout.num_elements()).map(|index| wave(index) * 0.3).collect();
        write(net, &layout, &values)
    }

    /// Sum over the samples of cross entropy.
    fn loss_sum(&self, samples: &[usize], device: &Device) -> Tensor<1> {
        let num_pixels = CHANNELS * SIDE * SIDE;
        let pixels: Vec<f32> = samples
            .iter()
            .flat_map(|sample| (0..num_pixels).map(move |index| wave(sample * num_pixels + index + 7)))
            .collect();
        let mut targets = vec![0.0_f32; samples.len() * NUM_CLASSES];
        for (row, sample) in samples.iter().enumerate() {
            targets[row * NUM_CLASSES + sample % NUM_CLASSES] = 1.0;
        }
        let images: Tensor<4> =
            Tensor::from_data(TensorData::new(pixels, [samples.len(), CHANNELS, SIDE, SIDE]), device);
        let targets: Tensor<2> = Tensor::from_data(TensorData::new(targets, [samples.len(), NUM_CLASSES]), device);
        let features: Tensor<2> = relu(self.conv.forward(images)).flatten(1, 3);
        (log_softmax(self.head.forward(features), 1) * targets).sum().neg()
    }

    fn gradients(&self, samples: &[usize], divisor: usize, device: &Device) -> Gradients {
        self.loss_sum(samples, device).div_scalar(divisor as f64).backward()
    }
}

/// A smooth sequence without structure, in -1..1.
fn wave(index: usize) -> f32 {
    ((index * 37 + 11) as f32 * 0.7).sin()
}

/// The samples of a rank: every `world_size`-th of the global batch.
fn shard(communicator: &dyn Communicator, global_batch_size: usize) -> Vec<usize> {
    (communicator.rank()..global_batch_size).step_by(communicator.world_size()).collect()
}

/// The reduced gradient of a global batch, from micro-batches of `micro_batch_size`, which all ranks must agree on.
fn gradient(world_size: usize, global_batch_size: usize, micro_batch_size: usize, cap_bytes: usize) -> Vec<f32> {
    let gradients = run_ranks(world_size, |communicator| {
        let device = Device::flex().autodiff();
        let net = Net::new(&device);
        let samples = shard(&communicator, global_batch_size);
        let mut reducer = GradientReducer::new(&net, Arc::new(communicator), cap_bytes).unwrap();
        for samples in samples.chunks(micro_batch_size) {
            let gradients = net.gradients(samples, global_batch_size, &device);
            reducer.accumulate(&net, gradients, 1.0);
        }
        reducer.reduce().unwrap().as_slice().to_vec()
    });
    assert!(gradients.iter().all(|others| bits(others) == bits(&gradients[0])), "ranks hold different bits");
    gradients.into_iter().next().unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn relative_l2(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut got.iter().zip(expected).map(|(&got, &expected)| f64::from(got) - f64::from(expected)));
    difference / norm(&mut expected.iter().map(|&value| f64::from(value)))
}

#[test]
fn any_number_of_ranks_gives_the_gradient_of_one_also_when_shards_are_uneven_or_empty() {
    for global_batch_size in [12, 7, 2, 1] {
        let expected = gradient(1, global_batch_size, usize::MAX, 1 << 20);
        assert!(expected.iter().any(|value| value.abs() > 1e-3));
        for world_size in 2..=4 {
            let error = relative_l2(&gradient(world_size, global_batch_size, usize::MAX, 1 << 20), &expected);
            assert!(error <= 1e-5, "{world_size} ranks, {global_batch_size} samples: relative L2 {error}");
        }
    }
}

#[test]
fn accumulating_micro_steps_gives_the_gradient_of_one_batch() {
    let expected = gradient(1, 11, usize::MAX, 1 << 20);
    for (world_size, micro_batch_size) in [(1, 1), (1, 4), (2, 3), (3, 2)] {
        let error = relative_l2(&gradient(world_size, 11, micro_batch_size, 1 << 20), &expected);
        assert!(error <= 1e-5, "{world_size} ranks, micro-batches of {micro_batch_size}: relative L2 {error}");
    }
}

#[test]
fn local_means_weighted_by_the_share_of_samples_give_the_global_mean() {
    let expected = gradient(1, 7, usize::MAX, 1 << 20);
    let gradients = run_ranks(3, |communicator| {
        let device = Device::flex().autodiff();
        let net = Net::new(&device);
        let samples = shard(&communicator, 7);
        let mut reducer = GradientReducer::new(&net, Arc::new(communicator), 1 << 20).unwrap();
        let local_mean = net.gradients(&samples, samples.len(), &device);
        reducer.accumulate(&net, local_mean, samples.len() as f32 / 7.0);
        reducer.reduce().unwrap().as_slice().to_vec()
    });
    assert!(relative_l2(&gradients[0], &expected) <= 1e-5);
}

#[test]
fn the_bucket_size_does_not_change_a_bit() {
    let expected = bits(&gradient(3, 7, usize::MAX, 1 << 20));
    for cap_bytes in [0, 64, 700] {
        assert_eq!(bits(&gradient(3, 7, usize::MAX, cap_bytes)), expected, "cap of {cap_bytes} bytes");
    }
}

#[test]
fn every_gradient_lies_where_the_layout_says_and_an_unused_parameter_has_zeros() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let mut reducer = GradientReducer::new(&net, Arc::new(SingleCommunicator::new()), 64).unwrap();
    assert!(reducer.plan().buckets().len() > 2);
    let paths: Vec<&str> = reducer.layout().entries().iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["conv.weight", "conv.bias", "unused", "head.weight", "head.bias"]);
    let gradients = net.gradients(&[0, 1, 2], 3, &device);
    let data = |tensor: Tensor<1>| tensor.into_data().try_into_vec::<f32>().unwrap();
    let conv: Vec<f32> = data(net.conv.weight.val().grad(&gradients).unwrap().reshape([-1]));
    let head: Vec<f32> = data(net.head.weight.val().grad(&gradients).unwrap().reshape([-1]));
    reducer.accumulate(&net, gradients, 1.0);
    let layout = reducer.layout().clone();
    let range = |path: &str| layout.entries().iter().find(|entry| entry.path == path).unwrap().range();
    let reduced = reducer.reduce().unwrap();
    assert_eq!(reduced.as_slice()[range("conv.weight")], conv);
    assert_eq!(reduced.as_slice()[range("head.weight")], head);
    assert_eq!(reduced.as_slice()[range("unused")], [0.0; 5]);
}

#[test]
fn a_step_starts_from_zero_after_a_reduction_whatever_was_done_to_the_result() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let mut reducer = GradientReducer::new(&net, Arc::new(SingleCommunicator::new()), 1 << 20).unwrap();
    assert_eq!(reducer.local().largest(), (0, 0.0));
    let mut runs = Vec::new();
    for _ in 0..2 {
        reducer.accumulate(&net, net.gradients(&[3, 4], 2, &device), 1.0);
        let mut reduced = reducer.reduce().unwrap();
        runs.push(reduced.as_slice().to_vec());
        let norm = reduced.norm();
        let expected: f64 = runs[0].iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        assert!((norm - expected).abs() <= 1e-9 * expected);
        reduced.scale(f32::NAN);
        assert!(!reduced.is_finite());
        assert!(reducer.local().is_finite(), "a consumed buffer is no local gradient");
    }
    assert_eq!(bits(&runs[0]), bits(&runs[1]));
    assert!(reducer.reduce().unwrap().as_slice().iter().all(|&value| value == 0.0), "nothing accumulated is zero");
}

#[test]
fn the_largest_gradient_is_named_and_nan_wins_over_infinity() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let mut reducer = GradientReducer::new(&net, Arc::new(SingleCommunicator::new()), 1 << 20).unwrap();
    let of = |net: &Net, unused: f64, bias: f64| {
        let loss =
            net.unused.val().mul_scalar(unused).sum() + net.head.bias.as_ref().unwrap().val().mul_scalar(bias).sum();
        loss.backward()
    };
    let mut largest = |unused, bias| {
        reducer.accumulate(&net, of(&net, unused, bias), 1.0);
        let largest = reducer.local().largest();
        assert_eq!(reducer.local().is_finite(), largest.1.is_finite());
        reducer.reduce().unwrap();
        largest
    };
    assert_eq!(largest(-3.0, 2.0), (2, 3.0));
    assert_eq!(largest(3.0, f64::NEG_INFINITY), (4, f32::INFINITY));
    let (parameter, value) = largest(f64::NAN, f64::INFINITY);
    assert!(parameter == 2 && value.is_nan());
}

#[test]
fn a_rank_with_another_plan_is_named_on_all_ranks() {
    let errors = run_ranks(3, |communicator| {
        let cap_bytes = if communicator.rank() == 2 { 64 } else { 1 << 20 };
        let net = Net::new(&Device::flex().autodiff());
        GradientReducer::new(&net, Arc::new(communicator), cap_bytes).unwrap_err()
    });
    for error in &errors {
        assert!(matches!(error, CollectiveError::PlanMismatch { what: "bucket plan", rank: 2, .. }), "{error}");
        assert!(error.to_string().contains("in 1 buckets") && error.to_string().contains("(rank 2)"), "{error}");
        assert_eq!(error, &errors[0]);
    }
}

#[test]
fn a_nan_on_one_rank_stops_all_before_the_reduction_naming_the_parameter() {
    let errors = run_ranks(3, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let device = Device::flex().autodiff();
        let net = Net::new(&device);
        let mut reducer = GradientReducer::new(&net, Arc::clone(&communicator), 1 << 20).unwrap();
        let factor = if communicator.rank() == 1 { f64::INFINITY } else { 1.0 };
        reducer.accumulate(&net, net.unused.val().mul_scalar(factor).sum().backward(), 1.0);
        let (largest_parameter, largest) = reducer.local().largest();
        let header = StepHeader {
            epoch: 0,
            step: 12,
            plan_hash: reducer.plan().hash(),
            stop: false,
            num_samples: 4,
            finite: reducer.local().is_finite(),
            largest,
            largest_parameter,
        };
        agree(&*communicator, &header, reducer.layout()).unwrap_err()
    });
    for error in errors {
        assert!(
            error.to_string().starts_with(
                "step 12: non-finite loss or gradient on rank 1; largest gradient there inf in unused (rank 1)"
            ),
            "{error}"
        );
    }
}

#[test]
#[should_panic(expected = "the module has no tensor conv.weight at its place")]
fn gradients_of_another_module_are_refused() {
    let device = Device::flex().autodiff();
    let mut reducer = GradientReducer::new(&Net::new(&device), Arc::new(SingleCommunicator::new()), 1 << 20).unwrap();
    let other = LinearConfig::new(2, 2).init(&device);
    let gradients = other.forward(Tensor::<2>::ones([1, 2], &device)).sum().backward();
    reducer.accumulate(&other, gradients, 1.0);
}
