//! A model of burn's layers with gradient hooks and a reducer: equal results on any number of
//! ranks, and errors for wrong use.

use std::sync::Arc;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use distributed::communicator::SingleCommunicator;
use distributed::gradients::{GradientReducer, ReducerConfig};
use distributed::replica::{ParameterLayout, write};
use distributed::{Communicator, run_ranks};
use layers::backend::gradient_hook;
use layers::{PassContext, with_gradient_hook};

#[derive(Module, Debug)]
struct Net {
    blocks: Vec<Linear>,
}

impl Net {
    fn new(device: &Device) -> Self {
        let net = Self {
            blocks: (0..4)
                .map(|_| LinearConfig::new(4, 4).init(device))
                .collect(),
        };
        let layout = ParameterLayout::new(&net);
        let values: Vec<f32> = (0..layout.num_elements())
            .map(|index| (index as f32 * 0.9).sin())
            .collect();
        write(net, &layout, &values)
    }

    fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        for block in &self.blocks {
            x = relu(with_gradient_hook(block, &x).forward(x));
        }
        x
    }
}

fn rows(range: std::ops::Range<usize>, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = range
        .clone()
        .flat_map(|row| (0..4).map(move |i| ((row * 4 + i) as f32 * 0.7).sin()))
        .collect();
    Tensor::from_data(TensorData::new(values, [range.len(), 4]), device)
}

/// Returns the gradients of a step over eight rows, of which `forward` gets this rank's.
fn gradients(
    communicator: Arc<dyn Communicator>,
    is_hooked: bool,
    forward: impl Fn(&Net, Tensor<2>) -> Tensor<2>,
) -> Vec<f32> {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let num_own = 8 / communicator.world_size();
    let own = communicator.rank() * num_own;
    let config = ReducerConfig {
        bucket_cap_bytes: Some(64),
        ..ReducerConfig::default()
    };
    let mut reducer = GradientReducer::new(&net, communicator, &config).unwrap();
    let collector = reducer.collector();
    let hook = gradient_hook(move |id, gradient| collector.take(id, gradient.as_slice().unwrap()));
    let context = PassContext {
        hook: is_hooked.then_some(hook),
        ..PassContext::default()
    };
    let loss = context.scope(|| {
        forward(&net, rows(own..own + num_own, &device))
            .powi_scalar(2)
            .mean()
    });
    reducer.backward(&net, loss, num_own as f64 / 8.0).unwrap();
    reducer.synced().to_flat()
}

fn alone(is_hooked: bool, forward: impl Fn(&Net, Tensor<2>) -> Tensor<2>) -> Vec<f32> {
    gradients(Arc::new(SingleCommunicator::new()), is_hooked, forward)
}

#[test]
fn streaming_changes_no_bit_of_a_steps_gradients_and_ranks_agree_with_one() {
    let expected = alone(false, Net::forward);
    assert!(expected.iter().any(|value| value.abs() > 1e-3));
    assert_eq!(alone(true, Net::forward), expected);
    let ranks = run_ranks(2, |communicator| {
        gradients(Arc::new(communicator), true, Net::forward)
    });
    assert_eq!(ranks[0], ranks[1]);
    let largest = expected
        .iter()
        .fold(0.0_f32, |all, value| all.max(value.abs()));
    let off = ranks[0]
        .iter()
        .zip(&expected)
        .fold(0.0_f32, |all, (a, b)| all.max((a - b).abs()));
    assert!(off <= 1e-6 * largest, "{off:.2e} of {largest:.2e}");
}

#[test]
#[should_panic(expected = "blocks.1.weight: a second gradient in one backward pass")]
fn a_weight_that_is_also_used_outside_its_streamed_block_is_refused_by_name() {
    alone(true, |net, x| {
        net.forward(x)
            .matmul(net.blocks[1].weight.val().transpose())
    });
}

#[test]
#[should_panic(expected = "a second gradient in one backward pass")]
fn a_block_streamed_twice_in_a_pass_is_refused() {
    alone(true, |net, x| net.forward(net.forward(x)));
}

#[test]
fn a_shared_block_is_streamed_with_all_its_uses() {
    let twice = |net: &Net, x: Tensor<2>| {
        let block = with_gradient_hook(&net.blocks[0], &x);
        block.forward(relu(block.forward(x)))
    };
    assert_eq!(alone(true, twice), alone(false, twice));
}
