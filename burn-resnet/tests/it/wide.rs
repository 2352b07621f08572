//! ResNet-18 and -34 for small images compute what PyTorch computes: golden/ten_losses.py printed the numbers, in f64.

use burn::tensor::{Device, FloatDType};
use burn_resnet::{ResNet, ResNetConfig};

use crate::support::relative_difference;
use crate::support::ten_losses::ten_losses;

/// Each of ten steps of SGD starts from the rounding of the ones before.
const TEN_LOSSES_TOLERANCE: f64 = 1e-5;

const LOSSES_OF_18: [f32; 10] =
    [4.293534, 3.445392, 2.202212, 1.1129, 0.4590794, 0.1837258, 0.08268682, 0.04301867, 0.02541624, 0.01642179];
const LOSSES_OF_34: [f32; 10] =
    [2.880631, 1.046585, 0.2973053, 0.08923869, 0.04313043, 0.02742853, 0.0201672, 0.01563837, 0.01261875, 0.01044724];

#[test]
fn resnet18_and_resnet34_have_pytorchs_parameters_and_ten_losses() {
    let device = Device::flex().autodiff();
    for (name, num_parameters, expected) in
        [("cifar-resnet18", 11_173_962, LOSSES_OF_18), ("cifar-resnet34", 21_282_122, LOSSES_OF_34)]
    {
        let config = ResNetConfig::from_name(name).unwrap();
        let model = config.init(0, &device);
        assert_eq!(model.num_trainable(), num_parameters, "{name}");
        let losses = ten_losses(model, 16, 0.0002, FloatDType::F32, &device, ResNet::forward);
        let off = relative_difference(&losses, &expected);
        assert!(off <= TEN_LOSSES_TOLERANCE, "{name}: losses {losses:?}: {off:.2e}");
    }
}
