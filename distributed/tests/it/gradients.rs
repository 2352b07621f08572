//! One rank and many give the same gradient for the same global batch.
//!
//! The model has no normalisation: with it, batch statistics differ between ranks by design.
//! Tolerance: 1e-5 in relative L2, for sums of f32 in another order.
use std::sync::Arc;

use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::{log_softmax, relu};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use distributed::communicator::{SingleCommunicator, WaitPolicy};
use distributed::gradients::{
    BucketContext, BucketReduction, GradientReducer, MicroStepConfig, ReducerConfig, StepHeader,
    Traffic,
};
use distributed::replica::{ParameterLayout, write};
use distributed::{CollectiveError, Communicator, run_ranks};

use crate::watchdog_refusals::Unthreaded;

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
    /// Returns the same net on every rank and in every test.
    fn new(device: &Device) -> Self {
        let net = Self {
            conv: Conv2dConfig::new([CHANNELS, 4], [3, 3]).init(device),
            unused: Param::from_tensor(Tensor::ones([5], device)),
            head: LinearConfig::new(4 * (SIDE - 2) * (SIDE - 2), NUM_CLASSES).init(device),
        };
        let layout = ParameterLayout::new(&net);
        let values: Vec<f32> = (0..layout.num_elements())
            .map(|index| wave(index) * 0.3)
            .collect();
        write(net, &layout, &values)
    }

    /// Sum over the samples of cross entropy.
    fn loss_sum(&self, samples: &[usize], device: &Device) -> Tensor<1> {
        let num_pixels = CHANNELS * SIDE * SIDE;
        let pixels: Vec<f32> = samples
            .iter()
            .flat_map(|sample| {
                (0..num_pixels).map(move |index| wave(sample * num_pixels + index + 7))
            })
            .collect();
        let mut targets = vec![0.0_f32; samples.len() * NUM_CLASSES];
        for (row, sample) in samples.iter().enumerate() {
            targets[row * NUM_CLASSES + sample % NUM_CLASSES] = 1.0;
        }
        let images: Tensor<4> = Tensor::from_data(
            TensorData::new(pixels, [samples.len(), CHANNELS, SIDE, SIDE]),
            device,
        );
        let targets: Tensor<2> = Tensor::from_data(
            TensorData::new(targets, [samples.len(), NUM_CLASSES]),
            device,
        );
        let features: Tensor<2> = relu(self.conv.forward(images)).flatten(1, 3);
        (log_softmax(self.head.forward(features), 1) * targets)
            .sum()
            .neg()
    }

    fn gradients(&self, samples: &[usize], divisor: usize, device: &Device) -> Gradients {
        self.loss_sum(samples, device)
            .div_scalar(divisor as f64)
            .backward()
    }
}

fn capped(bucket_cap_bytes: usize) -> ReducerConfig {
    ReducerConfig {
        bucket_cap_bytes: Some(bucket_cap_bytes),
        ..ReducerConfig::default()
    }
}

/// Returns a smooth sequence without structure, in -1..1.
fn wave(index: usize) -> f32 {
    ((index * 37 + 11) as f32 * 0.7).sin()
}

/// Returns the samples of a rank: every `world_size`-th of the global batch.
fn shard(communicator: &dyn Communicator, global_batch_size: usize) -> Vec<usize> {
    (communicator.rank()..global_batch_size)
        .step_by(communicator.world_size())
        .collect()
}

/// Returns the reduced gradient of a global batch, from micro-batches of `micro_batch_size`, which
/// all ranks must agree on.
fn gradient(
    world_size: usize,
    global_batch_size: usize,
    micro_batch_size: usize,
    cap_bytes: usize,
) -> Vec<f32> {
    let gradients = run_ranks(world_size, |communicator| {
        let device = Device::flex().autodiff();
        let net = Net::new(&device);
        let samples = shard(&communicator, global_batch_size);
        let mut reducer =
            GradientReducer::new(&net, Arc::new(communicator), &capped(cap_bytes)).unwrap();
        for samples in samples.chunks(micro_batch_size) {
            let gradients = net.gradients(samples, global_batch_size, &device);
            reducer.accumulate(&net, gradients, 1.0);
        }
        reducer.reduce().unwrap().to_flat()
    });
    assert!(
        gradients
            .iter()
            .all(|others| bits(others) == bits(&gradients[0])),
        "ranks hold different bits"
    );
    gradients.into_iter().next().unwrap()
}

fn values(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn relative_l2(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let pairs = got.iter().zip(expected);
    let difference: f64 = pairs
        .map(|(&got, &expected)| (f64::from(got) - f64::from(expected)).powi(2))
        .sum();
    let norm: f64 = expected.iter().map(|&value| f64::from(value).powi(2)).sum();
    (difference / norm).sqrt()
}

#[test]
fn any_number_of_ranks_and_micro_steps_gives_the_gradient_of_one_rank_also_with_uneven_or_no_samples()
 {
    for global_batch_size in [12, 11, 7, 2, 1] {
        let expected = gradient(1, global_batch_size, usize::MAX, 1 << 20);
        assert!(expected.iter().any(|value| value.abs() > 1e-3));
        for (world_size, micro_batch_size) in [(1, 1), (1, 4), (2, 3), (3, 2), (4, usize::MAX)] {
            let got = gradient(world_size, global_batch_size, micro_batch_size, 1 << 20);
            let error = relative_l2(&got, &expected);
            assert!(
                error <= 1e-5,
                "{world_size} ranks, {global_batch_size} samples: relative L2 {error}"
            );
        }
    }
}

#[test]
fn local_means_weighted_by_the_share_of_samples_give_the_global_mean() {
    let expected = gradient(1, 7, usize::MAX, 1 << 20);
    let gradients = run_ranks(3, |communicator| {
        let device = Device::flex().autodiff();
        let net = Net::new(&device);
        let samples = shard(&communicator, 7);
        let mut reducer =
            GradientReducer::new(&net, Arc::new(communicator), &capped(1 << 20)).unwrap();
        let local_mean = net.gradients(&samples, samples.len(), &device);
        reducer.accumulate(&net, local_mean, samples.len() as f32 / 7.0);
        reducer.reduce().unwrap().to_flat()
    });
    assert!(relative_l2(&gradients[0], &expected) <= 1e-5);
}

#[test]
fn the_bucket_size_does_not_change_a_bit() {
    let expected = bits(&gradient(3, 7, usize::MAX, 1 << 20));
    for cap_bytes in [0, 64, 700] {
        assert_eq!(
            bits(&gradient(3, 7, usize::MAX, cap_bytes)),
            expected,
            "cap of {cap_bytes} bytes"
        );
    }
}

#[test]
fn every_gradient_lies_where_the_layout_says_and_an_unused_parameter_has_zeros() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let mut reducer =
        GradientReducer::new(&net, Arc::new(SingleCommunicator::new()), &capped(64)).unwrap();
    assert!(reducer.plan().buckets().len() > 2);
    let paths: Vec<&str> = reducer
        .layout()
        .entries()
        .iter()
        .map(|entry| entry.path.as_str())
        .collect();
    assert_eq!(
        paths,
        [
            "conv.weight",
            "conv.bias",
            "unused",
            "head.weight",
            "head.bias"
        ]
    );
    let gradients = net.gradients(&[0, 1, 2], 3, &device);
    let conv = net.conv.weight.val().grad(&gradients).unwrap();
    let conv = values(conv.reshape([-1]));
    let head = net.head.weight.val().grad(&gradients).unwrap();
    let head = values(head.reshape([-1]));
    reducer.accumulate(&net, gradients, 1.0);
    let layout = reducer.layout().clone();
    let range = |path: &str| {
        layout
            .entries()
            .iter()
            .find(|entry| entry.path == path)
            .unwrap()
            .range()
    };
    let reduced = reducer.reduce().unwrap().to_flat();
    assert_eq!(reduced[range("conv.weight")], conv);
    assert_eq!(reduced[range("head.weight")], head);
    assert_eq!(reduced[range("unused")], [0.0; 5]);
}

#[test]
fn a_step_starts_from_zero_after_a_reduction_whatever_was_done_to_the_result() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let mut reducer =
        GradientReducer::new(&net, Arc::new(SingleCommunicator::new()), &capped(1 << 20)).unwrap();
    let mut runs = Vec::new();
    for _ in 0..2 {
        reducer.accumulate(&net, net.gradients(&[3, 4], 2, &device), 1.0);
        let mut reduced = reducer.reduce().unwrap();
        runs.push(reduced.to_flat());
        let squares = runs[0].iter().map(|&value| f64::from(value).powi(2));
        let expected = squares.sum::<f64>().sqrt();
        assert!((reduced.norm() - expected).abs() <= 1e-9 * expected);
        let limit = runs[0].iter().map(|value| value.abs()).sum::<f32>() / runs[0].len() as f32;
        reduced.clamp(limit);
        let clamped: Vec<f32> = runs[0]
            .iter()
            .map(|value| value.max(-limit).min(limit))
            .collect();
        assert!(
            clamped != runs[0] && bits(&reduced.to_flat()) == bits(&clamped),
            "{clamped:?}"
        );
        reduced.scale(f32::NAN);
        assert!(!reduced.is_finite());
    }
    assert_eq!(bits(&runs[0]), bits(&runs[1]));
    assert!(
        reducer
            .reduce()
            .unwrap()
            .to_flat()
            .iter()
            .all(|&value| value == 0.0),
        "nothing accumulated is zero"
    );
}

#[test]
fn a_rank_with_another_plan_is_named_on_all_ranks() {
    let errors = run_ranks(3, |communicator| {
        let cap_bytes = if communicator.rank() == 2 {
            64
        } else {
            1 << 20
        };
        let net = Net::new(&Device::flex().autodiff());
        GradientReducer::new(&net, Arc::new(communicator), &capped(cap_bytes)).unwrap_err()
    });
    for error in &errors {
        assert!(
            error.to_string().starts_with("bucket plan differs: "),
            "{error}"
        );
        assert!(
            error.to_string().contains("in 1 buckets") && error.to_string().contains("(rank 2)"),
            "{error}"
        );
        assert_eq!(error, &errors[0]);
    }
}

fn header(reducer: &GradientReducer) -> StepHeader {
    StepHeader {
        epoch: 0,
        step: 12,
        plan_hash: reducer.plan().hash(),
        stop: false,
        num_samples: 4,
        finite: true,
    }
}

#[test]
fn a_non_finite_gradient_or_another_step_of_one_rank_stops_all_and_after_the_first_the_next_step_is_whole()
 {
    for overlap in [false, true] {
        let errors = run_ranks(3, |communicator| {
            let communicator: Arc<dyn Communicator> = Arc::new(communicator);
            let net = Net::new(&Device::flex().autodiff());
            let config = ReducerConfig {
                overlap,
                ..capped(64)
            };
            let mut reducer =
                GradientReducer::new(&net, Arc::clone(&communicator), &config).unwrap();
            assert_eq!(reducer.overlaps(), overlap);
            let is_odd = communicator.rank() == 1;
            let mut step = |number, factor: f64| {
                reducer.post_header(StepHeader {
                    step: number,
                    ..header(&reducer)
                });
                let loss = net.unused.val().mul_scalar(factor).sum();
                reducer.accumulate(&net, loss.backward(), 1.0);
                let status = reducer.finish();
                let gradients = reducer.synced();
                (
                    status,
                    gradients.is_finite(),
                    gradients.buckets().is_empty(),
                )
            };
            let (status, is_finite, _) = step(12, if is_odd { f64::INFINITY } else { 1.0 });
            let infinite = status.unwrap_err();
            assert!(!is_finite);
            let (status, is_finite, _) = step(12, 1.0);
            assert_eq!(status.unwrap().unwrap().num_samples, 12);
            assert!(is_finite);
            let (status, _, has_no_sums) = step(if is_odd { 13 } else { 12 }, 1.0);
            assert!(has_no_sums, "there are sums to use");
            [infinite, status.unwrap_err()].map(|error| error.to_string())
        });
        for [infinite, diverged] in errors {
            let expected = "step 13: non-finite loss or gradient on rank 1 (the largest gradient, in unused, is inf there). Lower";
            assert!(infinite.starts_with(expected), "{infinite}");
            let expected =
                "step 13: ranks diverged: step is 14 on rank 1, expected 13 as on rank 0";
            assert_eq!(diverged, expected);
        }
    }
}

/// Returns the reduced gradients of three steps, from hooks in backward order or from the tape,
/// reduced during the pass or after it.
fn of_three_steps(streams: bool, overlap: bool) -> Vec<Vec<u32>> {
    let mut of_ranks = run_ranks(3, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let device = Device::flex().autodiff();
        let net = Net::new(&device);
        let config = ReducerConfig {
            overlap,
            ..capped(700)
        };
        let mut reducer = GradientReducer::new(&net, Arc::clone(&communicator), &config).unwrap();
        let collector = reducer.collector();
        let mut steps = Vec::new();
        for global_batch_size in [7, 2, 12] {
            let samples = shard(&*communicator, global_batch_size);
            let micro_batches: Vec<&[usize]> = samples.chunks(2).collect();
            reducer.begin_step(BucketContext::default());
            for (index, samples) in micro_batches.iter().enumerate() {
                let is_last = index + 1 == micro_batches.len();
                if is_last {
                    reducer.post_header(header(&reducer));
                }
                reducer.begin_micro_step(MicroStepConfig {
                    is_last,
                    ..MicroStepConfig::default()
                });
                let mut gradients = net.gradients(samples, global_batch_size, &device);
                if streams {
                    let head = net.head.weight.val().grad_remove(&mut gradients).unwrap();
                    collector.take(net.head.weight.id, &values(head.reshape([-1])));
                    let conv = net.conv.weight.val().grad_remove(&mut gradients).unwrap();
                    collector.take(net.conv.weight.id, &values(conv.reshape([-1])));
                }
                reducer.accumulate(&net, gradients, 1.0);
            }
            if micro_batches.is_empty() {
                reducer.post_header(header(&reducer));
            }
            assert!(reducer.finish().unwrap().is_some());
            steps.push(bits(&reducer.synced().to_flat()));
        }
        steps
    });
    let of_root = of_ranks.swap_remove(0);
    assert!(
        of_ranks.iter().all(|steps| *steps == of_root),
        "ranks hold different bits"
    );
    of_root
}

#[test]
fn hooks_and_a_communication_thread_do_not_change_a_bit() {
    let expected = of_three_steps(false, false);
    for (streams, overlap) in [(true, false), (false, true), (true, true)] {
        assert_eq!(
            of_three_steps(streams, overlap),
            expected,
            "streams {streams}, overlap {overlap}"
        );
    }
}

#[test]
fn a_local_step_gives_this_ranks_own_gradient_and_sends_nothing() {
    let sums = run_ranks(2, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let device = Device::flex().autodiff();
        let net = Net::new(&device);
        let mut reducer =
            GradientReducer::new(&net, Arc::clone(&communicator), &capped(700)).unwrap();
        let samples = shard(&*communicator, 8);
        let mut own = Vec::new();
        // Rank 0 takes one step more than the other: it would wait if anything were sent.
        for _ in communicator.rank()..2 {
            reducer.accumulate(&net, net.gradients(&samples, 8, &device), 1.0);
            let gradients = reducer.finish_local();
            assert!(gradients.is_finite());
            own = gradients.to_flat();
        }
        communicator.all_reduce_sum(&mut own).unwrap();
        own
    });
    assert!(relative_l2(&sums[0], &gradient(1, 8, usize::MAX, 1 << 20)) <= 1e-5);
}

/// A reduction that waits on a separate communicator, which it returns.
#[derive(Debug)]
struct Elsewhere(Arc<Unthreaded>);

impl BucketReduction for Elsewhere {
    fn reduce(
        &mut self,
        _: BucketContext,
        _: usize,
        _: &mut Vec<f32>,
    ) -> Result<Traffic, CollectiveError> {
        Ok(Traffic::default())
    }

    fn waits_on(&self) -> Option<Arc<dyn Communicator>> {
        Some(self.0.clone())
    }
}

#[test]
fn the_communicator_of_a_reduction_sleeps_during_the_pass_and_spins_after_it() {
    run_ranks(2, |communicator| {
        let net = Net::new(&Device::flex().autodiff());
        let own = Arc::new(Unthreaded::default());
        let reduction = Box::new(Elsewhere(Arc::clone(&own)));
        let mut reducer =
            GradientReducer::with_reduction(&net, Arc::new(communicator), &capped(700), |_, _| {
                Ok(reduction)
            })
            .unwrap();
        for _ in 0..2 {
            reducer.begin_micro_step(MicroStepConfig::default());
            reducer.reduce().unwrap();
        }
        let expected = [WaitPolicy::Sleep, WaitPolicy::Spin].repeat(2);
        assert_eq!(*own.wait_policies.lock().unwrap(), expected);
    });
}

#[test]
#[should_panic(expected = "the module has no tensor conv.weight at its place")]
fn gradients_of_another_module_are_refused() {
    let device = Device::flex().autodiff();
    let mut reducer = GradientReducer::new(
        &Net::new(&device),
        Arc::new(SingleCommunicator::new()),
        &capped(1 << 20),
    )
    .unwrap();
    let other = LinearConfig::new(2, 2).init(&device);
    let gradients = other
        .forward(Tensor::<2>::ones([1, 2], &device))
        .sum()
        .backward();
    reducer.accumulate(&other, gradients, 1.0);
}
