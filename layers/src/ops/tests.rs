//! Weights that a layer rejects.

#![allow(clippy::unwrap_used)] // A failed unwrap here is a failed test.

use burn::tensor::{Device, Tensor};
use kernels::batch_norm::Rectifier;

use super::{ConvolutionOptions, LayerOptions, layer_inference, layer_train};
use crate::choices::Convolution;

#[test]
fn a_weight_of_other_channels_is_refused_by_its_shape() {
    let convolution = ConvolutionOptions {
        stride: 1,
        padding: [1, 1],
        algorithm: Convolution::Auto,
    };
    let options = || LayerOptions {
        rectifier: Rectifier::Relu,
        ..LayerOptions::new(Some(convolution), 1e-5)
    };
    let device = Device::flex();
    let input = Tensor::ones([1, 8, 8, 4], &device);
    let weight = Tensor::ones([4, 3, 3, 3], &device);
    let channels = || Tensor::<1>::ones([4], &device);
    type Layer<'a> = Box<dyn Fn() + 'a>;
    let layers: [Layer<'_>; 2] = [
        Box::new(|| {
            drop(layer_train(
                input.clone(),
                Some(weight.clone()),
                channels(),
                channels(),
                None,
                options(),
            ))
        }),
        Box::new(|| {
            drop(layer_inference(
                input.clone(),
                weight.clone(),
                channels(),
                channels(),
                None,
                options(),
            ))
        }),
    ];
    for layer in layers {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(layer)).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(
            text.contains("expected a weight [C_out, 4 / groups, K_h, K_w]")
                && text.contains("got [4, 3, 3, 3]"),
            "{text}"
        );
    }
}
