//! The network's size, its first weights and its shapes.

use burn::module::Module;
use burn::tensor::{Device, Distribution, Tensor};
use burn_resnet::{ResNetConfig, Shortcut};

use crate::support::{tensors, values};

fn config(depth: usize) -> ResNetConfig {
    ResNetConfig::cifar(depth).unwrap()
}

#[test]
fn parameter_counts_are_the_published_ones_and_the_number_of_values_is_known_without_the_network() {
    let device = Device::flex();
    let mut configs = Vec::new();
    // With shortcuts A and B.
    for (depth, a, b) in [
        (20, 269_722, 272_474),
        (32, 464_154, 466_906),
        (44, 658_586, 661_338),
        (56, 853_018, 855_770),
        (110, 1_727_962, 1_730_714),
    ] {
        configs.push((config(depth).with_shortcut(Shortcut::A), a));
        configs.push((config(depth).with_shortcut(Shortcut::B), b));
    }
    // Those of torchvision, and the variants of two for small images.
    for (name, expected) in [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("cifar-resnet18", 11_173_962),
        ("cifar-resnet34", 21_282_122),
        ("resnet1202", 19_421_274),
    ] {
        configs.push((ResNetConfig::from_name(name).unwrap(), expected));
    }
    configs.push((config(20).with_num_classes(100), 269_722 + 90 * 65));
    configs.push((config(20).with_in_channels(4), 269_722 + 9 * 16));
    for (config, expected) in configs {
        let model = config.init(0, &device);
        assert_eq!(model.num_trainable(), expected, "{config:?}");
        // burn also counts the running statistics.
        assert_eq!(config.num_values(), model.num_params() as u64, "{config:?}");
    }
    assert_eq!(config((usize::MAX - 2) / 6 * 6 + 2).num_values(), u64::MAX);
}

#[test]
fn the_seed_alone_decides_the_first_weights() {
    let flex = tensors(&config(20).init(7, &Device::flex()));
    assert_eq!(
        flex,
        tensors(&config(20).init(7, &Device::flex().autodiff()))
    );
    let elsewhere = std::thread::spawn(|| tensors(&config(20).init(7, &Device::flex())));
    assert_eq!(flex, elsewhere.join().unwrap());

    let other = tensors(&config(20).init(8, &Device::flex()));
    for (name, weights) in &flex {
        let drawn = name.contains("conv") || name == "linear.weight";
        assert_eq!(*weights != other[name], drawn, "{name}");
    }
}

#[test]
fn zero_gamma_changes_the_last_norm_of_each_block_and_nothing_else() {
    let device = Device::flex();
    let plain = tensors(&config(20).init(1, &device));
    let zero = tensors(&config(20).with_zero_gamma(true).init(1, &device));
    for (name, weights) in &zero {
        if name.starts_with("layer") && name.ends_with("bn2.weight") {
            assert!(weights.iter().all(|&w| w == 0.0), "{name}");
        } else {
            assert_eq!(*weights, plain[name], "{name}");
        }
    }
}

#[test]
fn images_of_any_size_and_channels_give_one_logit_a_class() {
    let device = Device::flex();
    for shortcut in [Shortcut::A, Shortcut::B] {
        let config = config(8)
            .with_shortcut(shortcut)
            .with_num_classes(7)
            .with_in_channels(1);
        let model = config.init(0, &device);
        for [h, w] in [[28, 28], [9, 5], [1, 1]] {
            assert_eq!(
                model.forward(Tensor::ones([3, h, w, 1], &device)).dims(),
                [3, 7]
            );
        }
    }
}

#[test]
#[should_panic(expected = "axis 3 expected 3, got 1")]
fn images_with_other_channels_are_refused() {
    let device = Device::flex();
    config(8)
        .init(0, &device)
        .forward(Tensor::ones([1, 8, 8, 1], &device));
}

#[test]
fn evaluation_is_per_image_and_training_is_per_batch() {
    let device = Device::flex().autodiff();
    let model = config(8).init(3, &device);
    let images = Tensor::<4>::random([4, 8, 8, 3], Distribution::Default, &device);
    let first = |images: Tensor<4>| images.narrow(0, 0, 1);
    let in_batch = values(model.forward(images.clone()).narrow(0, 0, 1));
    assert_ne!(in_batch, values(model.forward(first(images.clone()))));

    let model = model.valid();
    let images = images.inner();
    let in_batch = values(model.forward(images.clone()).narrow(0, 0, 1));
    assert_eq!(in_batch, values(model.forward(first(images))));
}

#[test]
fn running_statistics_are_current_after_one_training_step() {
    let device = Device::flex().autodiff();
    let model = config(8).init(3, &device);
    let before = tensors(&model);
    model.forward(Tensor::random([4, 8, 8, 3], Distribution::Default, &device));
    let after = tensors(&model);
    for (name, values) in &after {
        assert_eq!(*values != before[name], name.contains("running_"), "{name}");
    }
    assert_eq!(tensors(&model.valid()), after);
}

#[cfg(feature = "ndarray")]
#[allow(deprecated, reason = "burn calls its NdArray so")]
mod second_opinion {
    use super::*;

    #[test]
    fn the_first_weights_are_the_same_on_another_backend() {
        assert_eq!(
            tensors(&config(20).init(7, &Device::flex())),
            tensors(&config(20).init(7, &Device::ndarray()))
        );
    }
}

#[test]
fn the_multiply_adds_of_a_forward_pass_are_the_published_ones() {
    let device = Device::flex();
    // He et al. 2016 and fvcore.
    for (name, pixels, expected) in [
        ("resnet20", 32, 40_551_040.0),
        ("resnet50", 224, 4_089_184_256.0),
    ] {
        let model = ResNetConfig::from_name(name).unwrap().init(0, &device);
        let images = Tensor::zeros([1, pixels, pixels, 3], &device);
        let earlier = layers::timing::multiply_adds();
        model.forward(images);
        assert_eq!(
            layers::timing::multiply_adds() - earlier,
            expected,
            "{name}"
        );
    }
}
