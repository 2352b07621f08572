//! The fused operation refuses what it would compute wrongly.

use burn::tensor::{Device, Tensor};
use layers::{
    BatchNormOptions, Convolution, FusedOptions, Isa, Recompute, Rectifier, Residual,
    fused_inference, fused_train,
};

#[test]
fn a_weight_in_groups_is_refused_by_its_shape() {
    let options = || FusedOptions {
        stride: 1,
        padding: 1,
        residual: Residual::None,
        rectifier: Rectifier::Relu,
        convolution: Convolution::Auto,
        isa: Isa::detect(),
        recompute: Recompute::None,
        norm: BatchNormOptions::new(1e-5),
        hooked: None,
        input: None,
        residual_from: None,
        output: None,
    };
    let device = Device::flex();
    let (input, weight) = (
        Tensor::ones([1, 8, 8, 4], &device),
        Tensor::ones([4, 2, 3, 3], &device),
    );
    let channels = || Tensor::<1>::ones([4], &device);
    type Layer<'a> = Box<dyn Fn() + 'a>;
    let layers: [Layer<'_>; 2] = [
        Box::new(|| {
            drop(fused_train(
                input.clone(),
                weight.clone(),
                channels(),
                channels(),
                None,
                options(),
            ))
        }),
        Box::new(|| {
            drop(fused_inference(
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
            text.contains("expected a weight [C_out, 4, K, K]")
                && text.contains("got [4, 2, 3, 3]"),
            "{text}"
        );
    }
}
