//! After a first step no layer's result is fresh memory: what an operation asks of the system is
//! small, however large its tensors. Counted is the thread that calls; what the kernels' own
//! threads ask for, nothing, is asserted in `kernels/tests/no_allocation.rs`.

use burn::nn::PaddingConfig2d::Explicit;
use burn::tensor::{Device, Distribution, FloatDType, Tensor};
use layers::backend::{Activations, Computation};
use layers::{
    BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Features, LayerNormConfig, LinearConfig,
    MaxPool2dConfig, PassContext, attention, gelu, global_avg_pool, relu, relu6, silu,
};

/// Channels and extents of the images: 3 MiB or more in any number format, 3x3 weights and a max
/// pool's taps of a third of one.
const C: usize = 96;
const IMAGES: [usize; 4] = [16, 32, 32, C];
/// Statistics and sums of three layers, and burn's tape, stay below together.
const SMALL: u64 = 256 * 1024;

type Layer<'a> = (&'a str, Box<dyn Fn(Tensor<4>) -> Features>);

fn conv(
    channels: [usize; 2],
    kernel: usize,
    stride: usize,
    groups: usize,
    device: &Device,
) -> Conv2d {
    let padding = kernel / 2;
    let config = Conv2dConfig::new(channels, [kernel; 2])
        .with_stride([stride; 2])
        .with_groups(groups);
    config
        .with_padding(Explicit(padding, padding, padding, padding))
        .with_bias(false)
        .init(device)
}

fn layers(device: &Device) -> Vec<Layer<'static>> {
    let norm = || -> BatchNorm { BatchNormConfig::new(C).init(device) };
    let [same, first, second, third] = [(); 4].map(|()| conv([C, C], 3, 1, 1, device));
    let [wide, strided] = [
        conv([C, 2 * C], 1, 1, 1, device),
        conv([C, C], 3, 2, 1, device),
    ];
    let [small, large] =
        [(5, 2), (7, 1)].map(|(kernel, stride)| conv([C, C], kernel, stride, C, device));
    let [a, b, c, of_large, before, alone] = [(); 6].map(|()| norm());
    let linear = LinearConfig::new(C, 3 * C).init(device);
    let layer_norm = LayerNormConfig::new(C).init(device);
    let max_pool = MaxPool2dConfig::new([3, 3])
        .with_strides([2, 2])
        .with_padding(Explicit(1, 1, 1, 1))
        .init();
    vec![
        ("convolution", Box::new(move |x| same.forward(x))),
        ("convolution 1x1", Box::new(move |x| wide.forward(x))),
        (
            "convolution with stride 2",
            Box::new(move |x| strided.forward(x)),
        ),
        (
            "depthwise convolution 5x5, stride 2",
            Box::new(move |x| small.forward(x)),
        ),
        (
            "depthwise convolution 7x7, norm, ReLU6",
            Box::new(move |x| relu6(of_large.forward(large.forward(x)))),
        ),
        (
            "a block with a residual",
            Box::new(move |x| {
                let x = relu(a.forward(first.forward(x)));
                let y = relu(b.forward(second.forward(x.clone())));
                relu(c.forward(third.forward(y)) + x)
            }),
        ),
        ("batch norm", Box::new(move |x| alone.forward(x))),
        (
            "norm before a ReLU",
            Box::new(move |x| relu(before.forward(x))),
        ),
        ("linear layer", Box::new(move |x| linear.forward(x).into())),
        (
            "layer norm",
            Box::new(move |x| layer_norm.forward(x).into()),
        ),
        ("GELU", Box::new(|x| gelu(Features::from(x)))),
        ("SiLU", Box::new(|x| silu(Features::from(x)))),
        (
            "attention",
            Box::new(|x| {
                let y = attention(x.reshape([16 * 32, 32, C]), 1);
                y.reshape([16, 32, 32, C / 3]).into()
            }),
        ),
        ("max pool", Box::new(move |x| max_pool.forward(x))),
    ]
}

#[test]
fn after_the_first_steps_no_layer_asks_for_memory_as_large_as_its_tensors() {
    let device = Device::flex().autodiff();
    let images = Tensor::<4>::random(IMAGES, Distribution::Normal(0.0, 1.0), &device);
    for (dtype, activations) in [
        (FloatDType::F32, Activations::F32),
        (FloatDType::BF16, Activations::Bf16),
    ] {
        let computation = Computation {
            activations,
            ..Computation::default()
        };
        let context = PassContext::from(computation);
        let images = images.clone().inner().cast(dtype);
        for (name, layer) in layers(&device) {
            let step = || {
                let x = Tensor::from_inner(images.clone()).require_grad();
                let gradients = context
                    .clone()
                    .scope(|| global_avg_pool(layer(x.clone())))
                    .sum()
                    .backward();
                assert!(x.grad(&gradients).is_some(), "{name}");
            };
            // The second finds the arena as the first left it.
            (0..2).for_each(|_| step());
            let bytes = allocation_counter::measure(step).bytes_total;
            assert!(bytes <= SMALL, "{name} in {dtype:?}: {bytes} bytes");
        }
    }
}
