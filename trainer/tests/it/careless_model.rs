//! Mistakes of a custom model family that cause no error: norms that are not synchronised, logits
//! in 16 bits, unused parameters.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use datasets::{Augment, Targets};
use distributed::communicator::SingleCommunicator;
use trainer::commands::train::train;
use trainer::config::{SyncSection, UpdateKind};
use trainer::model::ImageClassifier;
use trainer::model::family::{ModelFamily, ModelRequest};
use trainer::model::loss::Loss;
use trainer::step::StepConfig;
use trainer::task::Classification;

use crate::own_model::{Folder, Net, TINY, TinyArgs, evaluated, flags, on_root};
use crate::stepper_under_test::{StepperUnderTest, one_shard, step_config, steps};

/// A network with an unused part and logits in 16 bits. It declares support for the pass context
/// but has burn's norms.
#[derive(Module, Debug)]
struct Careless {
    net: Net,
    unused: Linear,
}

impl ImageClassifier for Careless {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.net.forward(images).cast(FloatDType::BF16)
    }

    fn supports_pass_context(&self) -> bool {
        true
    }
}

/// Returns the configured loss of logits in f32.
#[derive(Debug)]
struct OfF32(Arc<dyn Loss>);

impl Loss for OfF32 {
    fn sum(&self, logits: Tensor<2>, targets: Targets) -> Tensor<1> {
        assert_eq!(logits.dtype(), DType::F32);
        self.0.sum(logits, targets)
    }
}

struct CarelessFamily;

impl ModelFamily for CarelessFamily {
    const NAME: &'static str = "careless";
    type Args = TinyArgs;
    type Model = Careless;

    fn loss(_: &TinyArgs, configured: Arc<dyn Loss>) -> Arc<dyn Loss> {
        Arc::new(OfF32(configured))
    }

    fn build(_: &TinyArgs, request: &ModelRequest<'_>) -> Result<Careless> {
        let unused = LinearConfig::new(2, 2).init(request.device);
        Ok(Careless {
            net: Net::new(4, request.num_classes, request.device),
            unused,
        })
    }
}

fn careless(directory: &Path, num_ranks: usize, words: &str) -> Result<(), String> {
    let args = flags::<CarelessFamily>(&format!(
        "{TINY} --epochs 1 --output-dir {} {words}",
        directory.display()
    ));
    on_root(num_ranks, |world| {
        train::<Classification<CarelessFamily>>(&args, world).map(drop)
    })
}

#[test]
fn norms_of_burns_are_refused_by_name_where_norms_are_to_be_synchronised() {
    let folder = Folder::new();
    for num_ranks in [1, 2] {
        let text = careless(
            &folder.run(&num_ranks.to_string()),
            num_ranks,
            "--batch-norm sync",
        )
        .unwrap_err();
        assert!(
            text.contains(
                "statistics of net.layer1.0.bn1, net.layer1.0.shortcut.1 (expected layers::"
            ),
            "{text}"
        );
    }
}

#[test]
fn a_custom_loss_sees_f32_in_training_and_evaluation_and_the_options_of_the_one_that_it_wraps() {
    let folder = Folder::new();
    careless(&folder.run("run"), 1, "--label-smoothing 0.1 --mixup 0.2").unwrap();
    evaluated::<CarelessFamily>(&folder.run("run"), "").unwrap();
}

#[test]
fn parameters_that_the_first_pass_gives_no_gradient_are_known() {
    for update in [UpdateKind::Host, UpdateKind::Device] {
        let config = StepConfig {
            sync: SyncSection {
                update,
                ..SyncSection::default()
            },
            ..step_config()
        };
        let device = Device::flex();
        let unused = LinearConfig::new(2, 2).init(&device.clone().autodiff());
        let model = Careless {
            net: Net::new(4, 10, &device.clone().autodiff()),
            unused,
        };
        let mut stepper =
            StepperUnderTest::new(model, config, Arc::new(SingleCommunicator::new()), &device);
        assert_eq!(stepper.unused_parameters(), [""; 0]);
        stepper
            .step(0, steps(one_shard(8, 8), 8, Augment::None).swap_remove(0))
            .unwrap();
        assert_eq!(
            stepper.unused_parameters(),
            ["unused.weight", "unused.bias"],
            "{update:?}"
        );
    }
}
