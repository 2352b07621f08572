//! One text of a network, with burn's layers and with ours: what differs is the imports, and that
//! ours reads images `[N, H, W, C]`.

use burn::module::Module;
use burn::nn;
use burn::tensor::{Device, FloatDType, Tensor};
use layers::{AdaptiveAvgPool2dConfig, Conv2d};

use crate::differences::{relative_difference, values};
use crate::modules::tensors;

mod ours;
mod stock;

/// Difference of f32 arithmetic in two orders through ten layers, relative to the largest value.
const TOLERANCE: f64 = 1e-4;

#[test]
fn a_network_of_burn_is_ours_by_its_imports_alone() {
    let device = Device::flex().autodiff();
    device.seed(11);
    let stock = stock::Network::new(&device);
    let ours = ours::Network::new(&device).load_record(stock.clone().into_record());
    let flat = |tensors: Vec<(String, Vec<f32>)>| {
        tensors
            .into_iter()
            .flat_map(|(_, values)| values)
            .collect::<Vec<_>>()
    };
    let names = |tensors: &[(String, Vec<f32>)]| {
        tensors
            .iter()
            .map(|(name, _)| name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(tensors(&ours, None), tensors(&stock, None));

    let images = Tensor::<4>::random(
        [4, 12, 12, 3],
        burn::tensor::Distribution::Normal(0.0, 1.0),
        &device,
    );
    let planes = || images.clone().permute([0, 3, 1, 2]);
    let found = ours.forward(images.clone().into());
    let expected = stock.forward(planes());
    let off = relative_difference(
        &values(found.clone().inner()),
        &values(expected.clone().inner()),
    );
    assert!(off <= TOLERANCE, "logits: {off:.2e}");
    let loss = |logits: Tensor<2>| (logits.clone() * logits).sum();
    let found = loss(found).backward();
    let expected = loss(expected).backward();
    let found = tensors(&ours, Some(&found));
    let expected = tensors(&stock, Some(&expected));
    assert_eq!(names(&found), names(&expected));
    let off = relative_difference(&flat(found), &flat(expected));
    assert!(off <= TOLERANCE, "gradients: {off:.2e}");

    // The running variances differ by Bessel's correction, so the record of one evaluates as the
    // other.
    let ours = ours.valid();
    let stock = stock.valid();
    let stock = stock.load_record(ours.clone().into_record());
    let images = images.inner();
    let found = ours.forward(images.clone().into());
    let off = relative_difference(
        &values(found),
        &values(stock.forward(images.permute([0, 3, 1, 2]))),
    );
    assert!(off <= TOLERANCE, "evaluated: {off:.2e}");
}

#[test]
fn averages_have_the_number_format_of_what_they_read() {
    let x = Tensor::<4>::ones([3, 9, 8, 8], &Device::flex()).cast(FloatDType::BF16);
    for size in [1, 2] {
        let means = Tensor::from(
            AdaptiveAvgPool2dConfig::new([size; 2])
                .init()
                .forward(x.clone()),
        );
        assert_eq!(
            (means.dims(), means.dtype()),
            ([3, size, size, 8], x.dtype())
        );
    }
}

#[test]
fn modules_are_shown_as_burns() {
    let conv = nn::conv::Conv2dConfig::new([8, 8], [3, 3]).init(&Device::flex());
    assert_eq!(Conv2d::from(conv.clone()).to_string(), conv.to_string());
}
