//! Running statistics of one normalisation that several places share, and of a batch without
//! images.

use burn::module::{Module, Param};
use burn::nn;
use burn::nn::PaddingConfig2d;
use burn::tensor::{Device, Tensor};
use layers::backend::locally_normalised;
use layers::backend::{Computation, Kernels};
use layers::{BatchNorm, Conv2d, Conv2dConfig, Features, PassContext, relu};

use crate::differences::{relative_difference, values};

/// Difference of f32 arithmetic in two orders; statistics taken in the wrong one are a tenth off.
const TOLERANCE: f64 = 1e-5;

#[derive(Module, Debug)]
struct Shared {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Shared {
    fn new(device: &Device) -> Self {
        let conv =
            Conv2dConfig::new([3, 4], [3, 3]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
        let norm = nn::BatchNormConfig::new(4).init(device);
        Self {
            conv: conv.with_bias(false).init(device),
            norm: norm.into(),
        }
    }

    fn convolved(&self, brightness: f32, device: &Device) -> Features {
        self.norm
            .forward(self.conv.forward(images(brightness, device)))
    }

    fn alone(&self, brightness: f32, device: &Device) -> Features {
        let image = images(brightness, device);
        self.norm.forward(Tensor::cat(
            vec![image.clone(), image.slice([0..2, 0..6, 0..6, 0..1])],
            3,
        ))
    }
}

fn images(brightness: f32, device: &Device) -> Tensor<4> {
    let values = Tensor::<1>::from_floats(
        std::array::from_fn::<f32, 216, _>(|i| (i as f32 * 0.7).sin()),
        device,
    );
    (values * brightness + brightness).reshape([2, 6, 6, 3])
}

/// A part of a network that uses one normalisation more than once.
type Part = fn(&Shared, &Device);

const PARTS: [Part; 5] = [
    // The first branch takes the second one as what is added to it.
    |m, device| {
        drop(Tensor::from(relu(
            m.convolved(1.0, device) + m.convolved(5.0, device),
        )))
    },
    // Read in the other order.
    |m, device| {
        let first = m.convolved(1.0, device);
        let second = m.convolved(5.0, device);
        drop((Tensor::from(second), Tensor::from(first)));
    },
    |m, device| {
        let first = relu(m.alone(1.0, device));
        let second = relu(m.alone(5.0, device));
        drop((Tensor::from(second), Tensor::from(first)));
    },
    // Behind a convolution that waits, too.
    |m, device| {
        let of_four = nn::conv::Conv2dConfig::new([4, 4], [1, 1]).init(device);
        let first = Conv2d::from(of_four).forward(m.convolved(1.0, device));
        drop((Tensor::from(m.alone(5.0, device)), Tensor::from(first)));
    },
    |m, device| {
        let shared = m.convolved(1.0, device);
        let first = relu(shared.clone());
        let second = m.alone(5.0, device) + shared;
        drop((Tensor::from(second), Tensor::from(first)));
    },
];

#[test]
fn a_norm_that_is_used_twice_moves_its_statistics_in_the_order_of_the_program_whatever_is_read_first()
 {
    let device = Device::flex().autodiff();
    for (index, part) in PARTS.iter().enumerate() {
        let record = Shared::new(&device).into_record();
        // The stock kernels take burn's operations one after the other.
        let [found, expected] = [Kernels::Fused, Kernels::Stock].map(|kernels| {
            let shared = Shared::new(&device).load_record(record.clone());
            let computation = Computation {
                kernels,
                ..Computation::default()
            };
            PassContext::from(computation).scope(|| part(&shared, &device));
            let running = [&shared.norm.running_mean, &shared.norm.running_var];
            running.map(|running| values(running.value_sync().inner()))
        });
        for (found, expected) in found.iter().zip(&expected) {
            let off = relative_difference(found, expected);
            assert!(off <= TOLERANCE, "part {index}: {off:.2e}");
        }
    }
}

#[test]
fn a_norm_in_training_refuses_a_batch_without_images_and_keeps_its_statistics() {
    let device = Device::flex().autodiff();
    let shared = Shared::new(&device);
    let nothing = |channels: usize| Tensor::<4>::zeros([0, 6, 6, channels], &device);
    let alone = || Tensor::from(shared.norm.forward(nothing(4)));
    let fused = || Tensor::from(shared.norm.forward(shared.conv.forward(nothing(3))));
    for (forward, channels) in [(&alone as &dyn Fn() -> Tensor<4>, 4), (&fused, 3)] {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(forward)).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        let got = format!(
            "batch norm in training: expected values to take statistics of, got [0, 6, 6, {channels}];"
        );
        assert!(text.starts_with(&got), "{text}");
    }
    assert_eq!(
        values(shared.norm.running_mean.value_sync().inner()),
        [0.0; 4]
    );
}

#[derive(Module, Debug)]
struct Mixed {
    own: BatchNorm,
    of_burn: Vec<nn::BatchNorm>,
}

#[test]
fn only_burns_own_norms_that_a_pass_used_are_named_as_local() {
    let device = Device::flex().autodiff();
    let norm = || nn::BatchNormConfig::new(3).init(&device);
    let model = Mixed {
        own: norm().into(),
        of_burn: vec![norm(), norm()],
    };
    drop(Tensor::<4>::from(model.own.forward(images(2.0, &device))));
    assert_eq!(locally_normalised(&model), [""; 0]);
    for _ in 0..2 {
        model.of_burn[1].forward(images(2.0, &device).permute([0, 3, 1, 2]));
        assert_eq!(locally_normalised(&model), ["of_burn.1"]);
        assert_eq!(
            locally_normalised(&model),
            [""; 0],
            "nothing is pending any more"
        );
    }
    let frozen = nn::BatchNorm {
        training: Param::from_bool(false),
        ..model.of_burn[0].clone()
    };
    frozen.forward(images(2.0, &device).permute([0, 3, 1, 2]));
    assert_eq!(locally_normalised(&model), [""; 0]);
}
