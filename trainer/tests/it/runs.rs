//! Whole runs of small networks on thread-ranks: determinism, resume, world sizes, learning.

use std::sync::{Arc, Mutex};

use crate::fixture::{Run, TINY, flags, run, runs_of};
use burn::tensor::Device;
use burn_resnet::ResNetConfig;
use datasets::{DatasetError, ImageDataset, ImageSamples, ImageShape, ShapesDataset};
use distributed::{ROOT, run_ranks};
use layers::backend::Computation;
use trainer::config::InputKind;
use trainer::config::cli::TrainArgs;
use trainer::measure::report::Reporter;
use trainer::model::loss::CrossEntropy;
use trainer::model::network::{Network, NetworkFamily};
use trainer::run::evaluate::{EvaluateConfig, evaluate};
use trainer::task::Classification;
use trainer::world::stop::StopFlag;

fn tiny(further: &str) -> TrainArgs {
    flags(&[TINY, "--augment crop-flip --eval-every-epochs 2", further])
}

#[test]
fn the_same_seed_gives_the_same_bits_and_another_seed_others() {
    let hash = |seed: &str| run(1, &tiny(&format!("--seed {seed}"))).parameter_hash();
    assert_eq!(hash("3"), hash("3"));
    assert_ne!(hash("3"), hash("4"));
}

/// A data set that records which samples are read.
struct Noting {
    inner: Arc<dyn ImageDataset>,
    read: Mutex<Vec<usize>>,
}

impl ImageDataset for Noting {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn image_shape(&self) -> ImageShape {
        self.inner.image_shape()
    }

    fn class_names(&self) -> &[String] {
        self.inner.class_names()
    }

    fn label(&self, index: usize) -> usize {
        self.inner.label(index)
    }

    fn read_image(&self, index: usize, pixels: &mut [u8]) -> Result<(), DatasetError> {
        self.read.lock().unwrap().push(index);
        self.inner.read_image(index, pixels)
    }

    fn checksum(&self) -> String {
        self.inner.checksum()
    }

    fn notes(&self) -> &[String] {
        self.inner.notes()
    }
}

#[test]
fn evaluation_counts_every_sample_once_on_any_number_of_ranks() {
    let splits = ShapesDataset::new(10, 40, 1).unwrap();
    // 40 samples are not a multiple of the global batch size on any of these numbers of ranks.
    let how = EvaluateConfig {
        micro_batch_size: 7,
        loader_threads: 1,
        input: InputKind::Host,
        computation: Computation::default(),
        reporter: Reporter::new(false),
    };
    let scores = [1, 2, 3, 5].map(|world_size| {
        let noting = Arc::new(Noting {
            inner: Arc::clone(splits.test.as_ref().unwrap()),
            read: Mutex::default(),
        });
        let images = ImageSamples::new(noting.clone(), splits.normalization.clone());
        let images = Arc::new(images);
        let mut scores = run_ranks(world_size, |communicator| {
            let model = ResNetConfig::cifar(8).unwrap().init(3, &Device::flex());
            let model = Network::ResNet(model);
            let device = Device::flex();
            let stop = StopFlag::default();
            let loss = Arc::new(CrossEntropy::default());
            let task = Arc::new(Classification::<NetworkFamily>::with(loss, Vec::new()));
            evaluate(&task, &model, &images, &how, &communicator, &device, &stop)
                .unwrap()
                .sums
                .unwrap()
        });
        let mut read = noting.read.lock().unwrap().clone();
        read.sort_unstable();
        assert_eq!(read, (0..40).collect::<Vec<_>>(), "{world_size} ranks");
        let scores = scores.swap_remove(ROOT);
        let [top1, top5] =
            ["top1_correct", "top5_correct"].map(|metric| scores.count(metric).unwrap());
        (scores.num_samples, top1, top5)
    });
    assert_eq!(scores[0].0, 40);
    assert_eq!(scores, [scores[0]; 4]);
}

#[test]
fn a_gradient_that_is_not_finite_stops_all_ranks_and_names_the_step_and_the_ranks() {
    let errors = runs_of(2, &tiny("--learning-rate 1e30 --warmup-epochs 0"));
    for error in errors {
        let text = format!("{:#}", error.unwrap_err());
        // The first update makes the parameters so large that the next step's loss is NaN.
        assert!(
            text.starts_with("step 2: non-finite loss or gradient on ranks 0, 1 ("),
            "{text}"
        );
    }
}

#[test]
fn a_model_that_the_last_step_broke_is_not_saved() {
    let args = tiny("--learning-rate 1e30 --warmup-epochs 0 --epochs 1 --global-batch-size 104");
    let broken = Run::in_new_directory();
    let directory = broken.directory();
    let text = format!("{:#}", broken.try_go(1, &args).unwrap_err());
    assert!(text.contains("test loss is not finite"), "{text}");
    assert!(!directory.join("checkpoints").exists());
}

#[test]
fn one_batch_is_learned_by_heart() {
    let one_batch = "--shapes-train 16 --shapes-test 16 --global-batch-size 16 --epochs 60 --eval-every-epochs 60";
    let plain =
        "--learning-rate 0.05 --schedule constant --weight-decay 0 --checkpoint-every-epochs 60";
    let record = run(1, &flags(&[TINY, one_batch, plain])).last_record();
    assert!(record.train_loss.unwrap() < 0.01, "{:?}", record.train_loss);
    assert_eq!(record.train_top1_correct, Some(16));
}
