//! The networks for ImageNet compute what PyTorch computes: golden/imagenet.py printed the numbers, in f64.

use burn::tensor::{Device, FloatDType, Tensor};
use burn_resnet::{ResNet, ResNetConfig, load_weights, save_safetensors};

use crate::support::ten_losses::ten_losses;
use crate::support::{relative_difference, tensors, values};

/// Each of ten steps of SGD starts from the rounding of the ones before.
const TEN_LOSSES_TOLERANCE: f64 = 1e-3;

const LOSSES_OF_18: [f32; 10] =
    [4.68018, 3.825113, 2.50971, 1.248238, 0.4771358, 0.1728046, 0.0729147, 0.03761868, 0.02230514, 0.0145483];
const LOSSES_OF_50: [f32; 10] =
    [3.099716, 3.016805, 2.872753, 2.686528, 2.478568, 2.268484, 2.06617, 1.882815, 1.715163, 1.564017];

#[test]
fn all_five_have_torchvisions_parameters() {
    for (depth, expected) in
        [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808)]
    {
        let config = ResNetConfig::imagenet(depth).unwrap();
        let model = config.init(0, &Device::flex());
        assert_eq!(model.num_trainable(), expected, "{depth}");
        let num_values: usize = tensors(&model).values().map(Vec::len).sum();
        assert_eq!(config.num_values(), num_values as u64, "{depth}: in its weights file");
    }
}

#[test]
fn resnet18_and_resnet50_have_pytorchs_ten_losses() {
    let device = Device::flex().autodiff();
    for (depth, learning_rate, expected) in [(18, 2e-4, LOSSES_OF_18), (50, 2e-7, LOSSES_OF_50)] {
        let model = ResNetConfig::imagenet(depth).unwrap().with_num_classes(10).init(0, &device);
        let losses = ten_losses(model, 64, learning_rate, FloatDType::F32, &device, ResNet::forward);
        let off = relative_difference(&losses, &expected);
        assert!(off <= TEN_LOSSES_TOLERANCE, "{depth}: losses {losses:?}: {off:.2e}");
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
    for name in ["layer1.0.downsample.1.running_var", "layer4.2.conv3.weight", "layer2.0.bn3.bias", "fc.bias"] {
        assert!(names.contains_key(name), "{name}");
    }
    assert!(!names.keys().any(|name| name.starts_with("linear") || name.starts_with("layer1.1.downsample")));
    let image = || Tensor::full([1, 40, 33, 3], 0.5, &Device::flex());
    let loaded = load_weights(config.init(4, &Device::flex()), &path).unwrap();
    assert_eq!(values(loaded.forward(image())), values(model.forward(image())));
}
