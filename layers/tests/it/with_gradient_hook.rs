//! Streamed blocks of burn's own layers: the same gradients, deepest block first, each once.

use std::sync::{Arc, Mutex};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::nn;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2dConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, FloatDType, Gradients, Tensor};
use layers::backend::gradient_hook;
use layers::{PassContext, with_gradient_hook};

use crate::differences::values;

/// Gradients that a hook got, in order.
type Given = Vec<(ParamId, Vec<f32>)>;

#[derive(Module, Debug)]
struct Block {
    conv: nn::conv::Conv2d,
    norm: nn::BatchNorm,
    /// Multiplied into the weight, so that no operation on it has the block's input for a parent.
    scale: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct Net {
    blocks: Vec<Block>,
    /// Our own layers, which stream by themselves.
    conv: layers::Conv2d,
    norm: layers::BatchNorm,
    /// Used twice.
    shared: nn::Linear,
    head: nn::Linear,
}

impl Block {
    fn new(device: &Device) -> Self {
        let conv =
            Conv2dConfig::new([3, 3], [3, 3]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
        let scale = Param::from_tensor(Tensor::from_floats([0.5, 1.5, -1.0], device));
        Self {
            conv: conv.init(device),
            norm: nn::BatchNormConfig::new(3).init(device),
            scale,
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let weight = self.conv.weight.val() * self.scale.val().reshape([3, 1, 1, 1]);
        let conv = nn::conv::Conv2d {
            weight: Param::initialized(self.conv.weight.id, weight),
            ..self.conv.clone()
        };
        relu(self.norm.forward(conv.forward(x)))
    }
}

impl Net {
    fn new(device: &Device) -> Self {
        device.seed(5);
        let mut blocks: Vec<Block> = (0..3).map(|_| Block::new(device)).collect();
        blocks[1].scale = blocks[1].scale.clone().set_require_grad(false);
        Self {
            blocks,
            conv: layers::Conv2dConfig::new([3, 3], [1, 1])
                .with_bias(false)
                .init(device),
            norm: layers::BatchNormConfig::new(3).init(device),
            shared: nn::LinearConfig::new(3, 3).init(device),
            head: nn::LinearConfig::new(3, 2).init(device),
        }
    }

    fn forward(&self, mut x: Tensor<4>) -> Tensor<2> {
        for block in &self.blocks {
            x = with_gradient_hook(block, &x).forward(x);
        }
        let features = x.permute([0, 2, 3, 1]);
        // Only the half of a fused layer is streamed.
        let conv = with_gradient_hook(&self.conv, &features);
        let x: Tensor<4> = self.norm.forward(conv.forward(features)).into();
        let x: Tensor<2> = x.mean_dims(&[1, 2]).flatten(1, 3);
        let shared = with_gradient_hook(&self.shared, &x);
        let x = shared.forward(shared.forward(x));
        with_gradient_hook(&self.head, &x).forward(x)
    }

    /// Gradients by the tape's end, and what the hook was given before it.
    fn backward(&self, is_hooked: bool, device: &Device) -> (Gradients, Given) {
        let given: Arc<Mutex<Given>> = Arc::default();
        let taken = Arc::clone(&given);
        let hook = gradient_hook(move |id, gradient| {
            taken
                .lock()
                .unwrap()
                .push((id, gradient.try_to_vec().unwrap()))
        });
        let context = PassContext {
            hook: is_hooked.then_some(hook),
            ..PassContext::default()
        };
        let x = Tensor::<1>::from_floats(
            std::array::from_fn::<f32, 384, _>(|i| (i as f32 * 0.7).sin()),
            device,
        );
        let gradients = context
            .scope(|| self.forward(x.reshape([2, 3, 8, 8])))
            .powi_scalar(2)
            .sum()
            .backward();
        let given = given.lock().unwrap().clone();
        (gradients, given)
    }
}

/// Ids of a module's parameters that are trained, with their gradients on the tape.
fn on_tape(module: &impl Module, gradients: &Gradients) -> Vec<(ParamId, Option<Vec<f32>>)> {
    struct Visitor<'a>(Vec<(ParamId, Option<Vec<f32>>)>, &'a Gradients);
    impl ModuleVisitor for Visitor<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                self.0
                    .push((param.id, param.val().grad(self.1).map(values)));
            }
        }
    }
    let mut visitor = Visitor(Vec::new(), gradients);
    module.visit(&mut visitor);
    visitor.0
}

fn streamed_gradients_are_the_tapes(device: &Device) {
    let net = Net::new(device);
    let (gradients, given) = net.backward(false, device);
    assert!(given.is_empty());
    let expected = on_tape(&net, &gradients);
    let (gradients, given) = net.backward(true, device);
    for (id, gradient) in on_tape(&net, &gradients) {
        assert_eq!(gradient, None, "{id} is on the tape, too");
    }
    assert_eq!(given.len(), expected.len());
    for (id, gradient) in expected {
        let found: Vec<_> = given
            .iter()
            .filter(|(of, _)| *of == id)
            .map(|(_, gradient)| gradient.clone())
            .collect();
        assert_eq!(found, [gradient.expect("a parameter that is used")], "{id}");
    }
}

#[test]
fn streamed_gradients_are_bit_for_bit_those_of_the_tape_which_then_has_none() {
    streamed_gradients_are_the_tapes(&Device::flex().autodiff());
}

#[test]
fn gradients_come_block_by_block_the_deepest_first_while_earlier_blocks_are_not_differentiated() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let (gradients, given) = net.backward(true, &device);
    let ids = |module: &dyn Fn() -> Vec<(ParamId, Option<Vec<f32>>)>| {
        module().into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    let stages = [
        ids(&|| on_tape(&net.head, &gradients)),
        ids(&|| on_tape(&net.shared, &gradients)),
        ids(&|| {
            [
                on_tape(&net.conv, &gradients),
                on_tape(&net.norm, &gradients),
            ]
            .concat()
        }),
        ids(&|| on_tape(&net.blocks[2], &gradients)),
        ids(&|| on_tape(&net.blocks[1], &gradients)),
        ids(&|| on_tape(&net.blocks[0], &gradients)),
    ];
    let stage_of = |id: &ParamId| {
        stages
            .iter()
            .position(|ids| ids.contains(id))
            .expect("a parameter of the network")
    };
    let order: Vec<usize> = given.iter().map(|(id, _)| stage_of(id)).collect();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(order, sorted);
}

#[test]
fn gradients_of_a_layer_whose_norm_is_frozen_go_to_the_hook_as_those_of_others_do() {
    let device = Device::flex().autodiff();
    let conv: layers::Conv2d = Conv2dConfig::new([3, 4], [3, 3])
        .with_bias(false)
        .init(&device)
        .into();
    let norm = nn::BatchNormConfig::new(4).init(&device);
    let norm: layers::BatchNorm = nn::BatchNorm {
        training: Param::from_bool(false),
        ..norm
    }
    .into();
    let x = Tensor::<4>::ones([2, 5, 5, 3], &device);
    let alone = |x: &Tensor<4>| {
        Tensor::<4>::from(norm.forward(Tensor::<4>::ones([2, 3, 3, 4], &x.device())))
    };
    let fused = |x: &Tensor<4>| Tensor::<4>::from(norm.forward(conv.forward(x.clone())));
    for (forward, expected) in [(&fused as &dyn Fn(&Tensor<4>) -> Tensor<4>, 3), (&alone, 2)] {
        let given: Arc<Mutex<Vec<ParamId>>> = Arc::default();
        let taken = Arc::clone(&given);
        let hook = gradient_hook(move |id, _| taken.lock().unwrap().push(id));
        let y = PassContext {
            hook: Some(hook),
            ..PassContext::default()
        }
        .scope(|| forward(&x));
        let gradients = y.powi_scalar(2).sum().backward();
        assert_eq!(given.lock().unwrap().len(), expected);
        for (id, gradient) in [on_tape(&conv, &gradients), on_tape(&norm, &gradients)].concat() {
            assert_eq!(gradient, None, "{id} is on the tape, too");
        }
    }
}

#[test]
fn a_hook_gets_gradients_in_f32_whatever_the_parameters_are() {
    let device = Device::flex().autodiff();
    for dtype in [FloatDType::F64, FloatDType::F32, FloatDType::BF16] {
        let weight = Tensor::<2>::ones([3, 2], &device).cast(dtype).detach();
        let linear = nn::Linear {
            weight: Param::from_tensor(weight).set_require_grad(true),
            bias: None,
        };
        let ours = layers::Linear::from(linear.clone());
        let x = Tensor::<2>::ones([4, 3], &device).cast(dtype);
        let streamed = || with_gradient_hook(&linear, &x).forward(x.clone());
        for forward in [&streamed as &dyn Fn() -> Tensor<2>, &|| {
            ours.forward(x.clone())
        }] {
            let given: Arc<Mutex<Given>> = Arc::default();
            let taken = Arc::clone(&given);
            let hook = gradient_hook(move |id, gradient| {
                taken
                    .lock()
                    .unwrap()
                    .push((id, gradient.try_to_vec().unwrap()))
            });
            PassContext {
                hook: Some(hook),
                ..PassContext::default()
            }
            .scope(forward)
            .sum()
            .backward();
            assert_eq!(
                *given.lock().unwrap(),
                [(linear.weight.id, vec![4.0; 6])],
                "{dtype:?}"
            );
        }
    }
}

#[test]
fn without_a_hook_or_a_tape_a_streamed_block_is_the_block() {
    let device = Device::flex();
    let net = Net::new(&device.clone().autodiff()).valid();
    let x = Tensor::ones([1, 3, 8, 8], &device);
    let hook = gradient_hook(|_, _| panic!("no backward pass"));
    let context = PassContext {
        hook: Some(hook),
        ..PassContext::default()
    };
    let found = context.scope(|| net.forward(x.clone()));
    assert_eq!(values(found), values(net.forward(x)));
}

#[cfg(feature = "ndarray")]
#[allow(deprecated, reason = "burn calls its NdArray so")]
mod second_opinion {
    use super::*;

    #[test]
    fn streamed_gradients_are_those_of_the_tape_on_another_backend() {
        streamed_gradients_are_the_tapes(&Device::ndarray().autodiff());
    }
}
