//! The networks for ImageNet, and ResNet-18 and -34 for small images, against PyTorch.
//! golden/imagenet.py and golden/ten_losses.py computed the numbers in f64.

use burn::tensor::{Device, FloatDType, Tensor};
use burn_resnet::{ResNet, ResNetConfig, load_weights, save_safetensors};

use crate::support::ten_losses::ten_losses;
use crate::support::{relative_difference, tensors, values};

const LOSSES_OF_18: [f32; 10] = [
    4.68018, 3.825113, 2.50971, 1.248238, 0.4771358, 0.1728046, 0.0729147, 0.03761868, 0.02230514,
    0.0145483,
];
const LOSSES_OF_50: [f32; 10] = [
    3.099716, 3.016805, 2.872753, 2.686528, 2.478568, 2.268484, 2.06617, 1.882815, 1.715163,
    1.564017,
];
const LOSSES_OF_SMALL_18: [f32; 10] = [
    4.293534, 3.445392, 2.202212, 1.1129, 0.4590794, 0.1837258, 0.08268682, 0.04301867, 0.02541624,
    0.01642179,
];
const LOSSES_OF_SMALL_34: [f32; 10] = [
    2.880631, 1.046585, 0.2973053, 0.08923869, 0.04313043, 0.02742853, 0.0201672, 0.01563837,
    0.01261875, 0.01044724,
];

#[test]
fn two_of_each_kind_have_pytorchs_ten_losses() {
    let device = Device::flex().autodiff();
    // Each of the ten SGD steps starts from the rounding of the steps before.
    for (name, side, learning_rate, tolerance, expected) in [
        ("resnet18", 64, 2e-4, 1e-3, LOSSES_OF_18),
        ("resnet50", 64, 2e-7, 1e-3, LOSSES_OF_50),
        ("cifar-resnet18", 16, 2e-4, 1e-5, LOSSES_OF_SMALL_18),
        ("cifar-resnet34", 16, 2e-4, 1e-5, LOSSES_OF_SMALL_34),
    ] {
        let model = ResNetConfig::from_name(name)
            .unwrap()
            .with_num_classes(10)
            .init(0, &device);
        let losses = ten_losses(
            model,
            side,
            learning_rate,
            FloatDType::F32,
            &device,
            ResNet::forward,
        );
        let off = relative_difference(&losses, &expected);
        assert!(off <= tolerance, "{name}: losses {losses:?}: {off:.2e}");
    }
}

#[test]
fn weights_stand_under_torchvisions_names_and_come_back_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("resnet50.safetensors");
    let config = ResNetConfig::imagenet(50).unwrap().with_num_classes(7);
    let model = config.init(3, &Device::flex());
    save_safetensors(&model, &path).unwrap();
    let names = tensors(&model);
    for name in [
        "layer1.0.downsample.1.running_var",
        "layer4.2.conv3.weight",
        "layer2.0.bn3.bias",
        "fc.bias",
    ] {
        assert!(names.contains_key(name), "{name}");
    }
    assert!(
        !names
            .keys()
            .any(|name| name.starts_with("linear") || name.starts_with("layer1.1.downsample"))
    );
    let image = || Tensor::full([1, 40, 33, 3], 0.5, &Device::flex());
    let loaded = load_weights(config.init(4, &Device::flex()), &path).unwrap();
    assert_eq!(
        values(loaded.forward(image())),
        values(model.forward(image()))
    );
}
