//! Checks against files: PyTorch's numbers for a small network, and a published network.
//!
//! In: `resnet8.safetensors`, which burn-resnet/tests/golden/make_fixture.py wrote; published
//! weights and CIFAR-10's test images. Out: differences of logits, loss and gradients; the number
//! of correct images.
//! Invariant: the checks use part A of the fixture: ResNet-8 with shortcut A on six 16x16 images.
//! Source: an independent forward pass of the weights of
//! github.com/akamaster/pytorch_resnet_cifar10. Its images are scaled to 0..1 and normalised with
//! ImageNet's mean and deviation.

use std::path::Path;

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::tensor::{Int, Tensor, TensorData};
use burn_resnet::load_weights;
use datasets::{
    Cifar, ImageSamples, Loader, LoaderConfig, MicroBatch, Normalization, ShardConfig, ShardPlan,
    Targets, cifar,
};
use distributed::replica::{ElementOrder, ParameterLayout, bytes_to_floats, take_gradients, write};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;

use super::{Subject, of_largest, relative_l2};
use crate::config::cli::ModelArgs;
use crate::model::family::ModelRequest;
use crate::model::loss::{CrossEntropy, Loss as _};
use crate::model::network::resnet;
use crate::model::{count_correct, floats};
use crate::tools::check::{Compared, Finding, Skipped};

const FIXTURE: &str = "resnet8.safetensors";
const NUM_CLASSES: usize = 10;

const WEIGHTS: &str = "resnet20-12fca82f.th";
const NUM_IMAGES: u64 = 1017;
const NUM_CORRECT: u64 = 932;
/// Batch size that divides the number of images, so that all batches are full.
const BATCH_SIZE: usize = 113;

/// Counts the images that a published ResNet-20 classifies correctly.
pub(super) fn answer(subject: &Subject<'_>) -> Result<Finding> {
    let weights = subject.find(WEIGHTS, "published weights")?;
    let images = subject.find(Cifar::Ten.test_file(), "CIFAR-10's test images")?;
    let model = resnet(
        &ModelArgs::resnet(20),
        &ModelRequest::new(Cifar::Ten.num_classes(), &subject.compute, &subject.device),
    )?;
    let model = load_weights(model, weights)?;
    let dataset = cifar::open_split(
        images.parent().unwrap_or(Path::new(".")),
        Cifar::Ten,
        "test",
    )?;
    if (dataset.len() as u64) < NUM_IMAGES {
        bail!(Skipped(format!(
            "{}: {} images, expected {NUM_IMAGES}",
            images.display(),
            dataset.len()
        )));
    }
    let plan = ShardPlan::new(ShardConfig::new(dataset.len(), BATCH_SIZE))?;
    let normalization = Normalization {
        mean: vec![0.485, 0.456, 0.406],
        std: vec![0.229, 0.224, 0.225],
    };
    let how = LoaderConfig {
        num_threads: 0,
        ..LoaderConfig::new(BATCH_SIZE)
    };
    let dataset = Arc::new(ImageSamples::new(dataset, normalization));
    let mut num_images = 0;
    let mut num_correct = 0;
    for loaded in Loader::start(dataset, plan, how).take(NUM_IMAGES as usize / BATCH_SIZE) {
        for MicroBatch { batch, .. } in loaded?.micro_batches {
            let labels = batch.labels.clone();
            let logits = model.forward(batch.to_device(&subject.device).images);
            let [_, num_classes] = logits.dims();
            let logits = floats(logits.into_data())?;
            num_correct += count_correct(&logits, &labels, num_classes).0;
            num_images += labels.len() as u64;
        }
    }
    Ok(Finding::compared(vec![
        Compared::count("images", NUM_IMAGES, num_images, 0),
        Compared::count(
            "correct",
            NUM_CORRECT,
            num_correct,
            subject.precision.images,
        ),
    ]))
}

/// Compares one training pass of a ResNet-8 with PyTorch's.
pub(super) fn golden(subject: &Subject<'_>) -> Result<Finding> {
    let path = subject.find(FIXTURE, "PyTorch's numbers")?;
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let fixture = Fixture {
        tensors: SafeTensors::deserialize(&bytes).with_context(|| path.display().to_string())?,
    };
    let device = subject.device.clone().autodiff();
    let request = ModelRequest::new(NUM_CLASSES, &subject.compute, &device);
    let model = resnet(&ModelArgs::resnet(8), &request)?;
    let layout = ParameterLayout::new(&model);
    let model = write(model, &layout, &fixture.parameters("initial", &layout)?);

    let (images, shape) = fixture.floats("images")?;
    let labels = fixture.labels()?;
    let num_samples = labels.len();
    let logits = model.forward(Tensor::<4>::from_data(
        TensorData::new(images, shape),
        &device,
    ));
    let labels = Tensor::<1, Int>::from_data(TensorData::new(labels, [num_samples]), &device);
    let loss = CrossEntropy::default()
        .sum(logits.clone(), Targets::of(labels))
        .div_scalar(num_samples as f64);
    let gradients = take_gradients(&model, &layout, ElementOrder::Module, loss.backward())
        .into_iter()
        .zip(layout.entries())
        .map(|(gradient, entry)| {
            values(gradient.with_context(|| format!("{}: no gradient", entry.path))?)
        })
        .collect::<Result<Vec<_>>>()?
        .concat();

    let precision = subject.precision;
    let (expected_logits, _) = fixture.floats("A.logits")?;
    let (expected_losses, _) = fixture.floats("A.losses")?;
    let expected_gradients = fixture.parameters("gradient", &layout)?;
    let gradients_off = relative_l2(&expected_gradients, &gradients);
    let mut comparisons = vec![
        Compared::difference(
            "logits, of the largest",
            of_largest(&expected_logits, &values(logits.inner())?),
            precision.logits,
        ),
        Compared::difference(
            "mean loss, relative",
            of_largest(&expected_losses[..1], &values(loss.inner())?),
            precision.loss,
        ),
        Compared::difference(
            "all gradients, relative L2",
            gradients_off,
            precision.gradients,
        ),
    ];
    if gradients_off > precision.gradients {
        let off = layout.entries().iter().map(|entry| {
            let off = relative_l2(
                &expected_gradients[entry.range()],
                &gradients[entry.range()],
            );
            format!("{} {off:.1e}", in_pytorch(&entry.path))
        });
        // In the order of the backward pass, the first wrong gradient shows where to look.
        let off: Vec<String> = off.rev().collect();
        comparisons.push(Compared::shown(
            "the same of each parameter, last layer first",
            off.join(", "),
        ));
    }
    Ok(Finding::compared(comparisons))
}

fn values<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    tensor
        .into_data()
        .convert::<f32>()
        .try_into_vec::<f32>()
        .map_err(|error| anyhow!("tensor: {error:?}"))
}

/// PyTorch's tensors by name.
struct Fixture<'a> {
    tensors: SafeTensors<'a>,
}

impl Fixture<'_> {
    fn floats(&self, name: &str) -> Result<(Vec<f32>, Vec<usize>)> {
        let view = self.tensors.tensor(name).with_context(|| name.to_owned())?;
        ensure!(
            view.dtype() == Dtype::F32,
            "{name}: expected f32, got {:?}",
            view.dtype()
        );
        Ok((bytes_to_floats(view.data()), view.shape().to_vec()))
    }

    fn labels(&self) -> Result<Vec<i32>> {
        let view = self.tensors.tensor("labels").context("labels")?;
        ensure!(
            view.dtype() == Dtype::I64,
            "labels: expected i64, got {:?}",
            view.dtype()
        );
        Ok(view
            .data()
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| i64::from_le_bytes(*word) as i32)
            .collect())
    }

    /// Concatenates the tensors of `layout` under a prefix, in burn's layout.
    fn parameters(&self, prefix: &str, layout: &ParameterLayout) -> Result<Vec<f32>> {
        let mut flat = Vec::with_capacity(layout.num_elements());
        for entry in layout.entries() {
            let (floats, shape) =
                self.floats(&format!("A.{prefix}.{}", in_pytorch(&entry.path)))?;
            ensure!(
                floats.len() == entry.len,
                "{}: expected {} values, got {}",
                entry.path,
                entry.len,
                floats.len()
            );
            flat.extend(if shape.len() == 2 {
                transposed(&floats, shape[1])
            } else {
                floats
            });
        }
        Ok(flat)
    }
}

/// Returns PyTorch's name of a parameter. burn names normalisation parameters gamma and beta.
fn in_pytorch(path: &str) -> String {
    match path.rsplit_once('.') {
        Some((module, "gamma")) => format!("{module}.weight"),
        Some((module, "beta")) => format!("{module}.bias"),
        _ => path.to_owned(),
    }
}

/// Transposes a linear weight from PyTorch's `[out, in]` to burn's `[in, out]`.
fn transposed(floats: &[f32], num_columns: usize) -> Vec<f32> {
    (0..num_columns)
        .flat_map(|column| floats.iter().skip(column).step_by(num_columns).copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_orders_are_pytorchs() {
        assert_eq!(in_pytorch("layer1.0.bn2.gamma"), "layer1.0.bn2.weight");
        assert_eq!(in_pytorch("linear.bias"), "linear.bias");
        assert_eq!(
            transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3),
            [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
        );
    }
}
