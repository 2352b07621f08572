//! Several ranks with synchronised batch normalisation equal one rank with the joined batch.

use std::ops::Range;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use burn_resnet::{ResNetConfig, Shortcut};
use layers::PassContext;
use layers::backend::StatisticsReducer;

use crate::support::{Named, assert_close, gradients, relative_difference, tensors, values};

/// The tolerance, relative to the largest value of a tensor.
const TOLERANCE: f64 = 1e-5;
const NUM_IMAGES: usize = 7;
const SIZE: usize = 8;

/// The end of one rank in a sum over threads, in rank order.
#[derive(Debug)]
struct ThreadReducer {
    rank: usize,
    /// The weight is 0 if the rank has no samples.
    weight: f64,
    barrier: Arc<Barrier>,
    slots: Arc<Mutex<Vec<Vec<f64>>>>,
}

impl StatisticsReducer for ThreadReducer {
    fn all_reduce_sum(&self, values: &mut [f64]) {
        self.slots.lock().unwrap()[self.rank] = values.iter().map(|v| v * self.weight).collect();
        self.barrier.wait();
        let slots = self.slots.lock().unwrap();
        for (i, value) in values.iter_mut().enumerate() {
            *value = slots.iter().map(|slot| slot[i]).sum();
        }
        drop(slots);
        self.barrier.wait();
    }
}

/// The images of a rank, and its weight in the sum.
type Part = (Range<usize>, f64);

struct StepResult {
    logits: Vec<f32>,
    image_gradients: Vec<f32>,
    parameter_gradients: Named,
    statistics: Named,
}

fn images() -> Vec<f32> {
    let len = NUM_IMAGES * SIZE * SIZE * 3;
    (0..len)
        .map(|i| ((i * i) as f32 * 0.37).sin() + (i % 3) as f32 * 0.5)
        .collect()
}

/// Runs one training step of a rank. The loss is the sum over its samples divided by the global
/// number of samples.
fn run_rank(
    device: &Device,
    part: Part,
    reducer: Option<Arc<dyn StatisticsReducer>>,
) -> StepResult {
    let (range, weight) = part;
    let model = ResNetConfig::cifar(8)
        .unwrap()
        .with_shortcut(Shortcut::B)
        .init(5, device);
    let all = Tensor::<4>::from_data(
        TensorData::new(images(), [NUM_IMAGES, SIZE, SIZE, 3]),
        device,
    );
    let batch = all.narrow(0, range.start, range.len()).require_grad();
    let logits = PassContext {
        reducer,
        ..PassContext::default()
    }
    .scope(|| model.forward(batch.clone()));
    let loss = logits.clone().powi_scalar(2).sum() * (weight / NUM_IMAGES as f64);
    let computed = loss.backward();
    let mut statistics = tensors(&model.valid());
    statistics.retain(|name, _| name.contains("running_"));
    StepResult {
        logits: values(logits),
        image_gradients: values(batch.grad(&computed).unwrap()),
        parameter_gradients: gradients(&model, &computed),
        statistics,
    }
}

fn run_ranks(device: &Device, parts: &[Part]) -> Vec<StepResult> {
    let barrier = Arc::new(Barrier::new(parts.len()));
    let slots = Arc::new(Mutex::new(vec![Vec::new(); parts.len()]));
    thread::scope(|scope| {
        let ranks: Vec<_> = parts
            .iter()
            .enumerate()
            .map(|(rank, part)| {
                let barrier = barrier.clone();
                let slots = slots.clone();
                let reducer = Arc::new(ThreadReducer {
                    rank,
                    weight: part.1,
                    barrier,
                    slots,
                });
                scope.spawn(move || run_rank(device, part.clone(), Some(reducer)))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn assert_equals_one_rank(device: &Device, parts: &[Part]) {
    let expected = run_rank(device, (0..NUM_IMAGES, 1.0), None);
    let ranks = run_ranks(device, parts);
    let counting = || {
        ranks
            .iter()
            .zip(parts)
            .filter(|(_, part)| part.1 != 0.0)
            .map(|(rank, _)| rank)
    };
    let fields: [fn(&StepResult) -> &Vec<f32>; 2] =
        [|step| &step.logits, |step| &step.image_gradients];
    for field in fields {
        let joined: Vec<f32> = counting().flat_map(|rank| field(rank).clone()).collect();
        assert!(relative_difference(&joined, field(&expected)) <= TOLERANCE);
    }

    let mut summed = Named::new();
    for rank in counting() {
        for (name, values) in &rank.parameter_gradients {
            let sum = summed
                .entry(name.clone())
                .or_insert_with(|| vec![0.0; values.len()]);
            sum.iter_mut()
                .zip(values)
                .for_each(|(sum, value)| *sum += value);
        }
    }
    assert_close(&summed, &expected.parameter_gradients, TOLERANCE);
    for rank in &ranks {
        assert_eq!(rank.statistics, ranks[0].statistics);
        assert_close(&rank.statistics, &expected.statistics, TOLERANCE);
    }
}

#[test]
fn two_ranks_with_unequal_counts_equal_one_rank() {
    assert_equals_one_rank(&Device::flex().autodiff(), &[(0..5, 1.0), (5..7, 1.0)]);
}

#[test]
fn a_rank_of_weight_zero_changes_nothing() {
    let device = Device::flex().autodiff();
    let parts = [(0..4, 1.0), (2..5, 0.0), (4..7, 1.0)];
    assert_equals_one_rank(&device, &parts);
}

#[test]
fn without_a_reducer_ranks_differ() {
    let device = Device::flex().autodiff();
    let whole = run_rank(&device, (0..NUM_IMAGES, 1.0), None);
    let half = run_rank(&device, (0..3, 1.0), None);
    assert_ne!(half.logits, whole.logits[..half.logits.len()]);
}

#[cfg(feature = "ndarray")]
#[allow(deprecated, reason = "burn calls its NdArray so")]
mod second_opinion {
    use super::*;

    #[test]
    fn the_composed_body_synchronises_too() {
        assert_equals_one_rank(&Device::ndarray().autodiff(), &[(0..3, 1.0), (3..7, 1.0)]);
    }
}
