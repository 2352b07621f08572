//! One training pass of a small network equals PyTorch's in f64.
//!
//! In: `resnet8.safetensors`, which burn-resnet/tests/golden/make_fixture.py wrote. Out: how far logits, loss and gradients are off.
//! Invariant: the fixture's part A is used: ResNet-8 with shortcut A on six 16x16 images.

use anyhow::{Context, Result, anyhow, ensure};
use burn::optim::GradientsParams;
use burn::tensor::{Int, Tensor, TensorData};
use datasets::Targets;
use distributed::replica::{ParameterEntry, ParameterLayout, bytes_to_floats, write};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;

use super::Subject;
use super::comparison::{Comparison, Finding, of_largest, relative_l2};
use super::files;
use crate::config::cli::ModelArgs;
use crate::model::family::ModelRequest;
use crate::model::loss::{CrossEntropy, Loss as _};
use crate::model::network::resnet;

pub(super) const EXPECTATION: &str =
    "logits, loss and gradients of a ResNet-8 equal PyTorch's in f64";

const FIXTURE: &str = "resnet8.safetensors";
const NUM_CLASSES: usize = 10;

pub(super) fn check(subject: &Subject<'_>) -> Result<Finding> {
    let path = match files::find(
        subject.config.data_dir.as_deref(),
        FIXTURE,
        "PyTorch's numbers",
    ) {
        Ok(path) => path,
        Err(reason) => return Ok(Finding::Skipped(reason)),
    };
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let fixture = Fixture {
        tensors: SafeTensors::deserialize(&bytes).with_context(|| path.display().to_string())?,
    };
    let device = subject.device.clone().autodiff();
    let request = ModelRequest::new(NUM_CLASSES, subject.compute(), &device);
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
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let gradients = layout
        .entries()
        .iter()
        .map(|entry| gradient(&gradients, entry))
        .collect::<Result<Vec<_>>>()?;

    let precision = subject.precision;
    let (expected_logits, _) = fixture.floats("A.logits")?;
    let (expected_losses, _) = fixture.floats("A.losses")?;
    let (expected_gradients, gradients) =
        (fixture.parameters("gradient", &layout)?, gradients.concat());
    let gradients_off = relative_l2(&expected_gradients, &gradients);
    let mut comparisons = vec![
        Comparison::difference(
            "logits, of the largest",
            of_largest(&expected_logits, &values(logits.inner())?),
            precision.logits(),
        ),
        Comparison::difference(
            "mean loss, relative",
            of_largest(&expected_losses[..1], &values(loss.inner())?),
            precision.loss(),
        ),
        Comparison::difference(
            "all gradients, relative L2",
            gradients_off,
            precision.gradients(),
        ),
    ];
    if gradients_off > precision.gradients() {
        let off = layout.entries().iter().map(|entry| {
            let off = relative_l2(
                &expected_gradients[entry.range()],
                &gradients[entry.range()],
            );
            format!("{} {off:.1e}", in_pytorch(&entry.path))
        });
        // As the backward pass meets them: the first that is wrong tells where to look.
        let off: Vec<String> = off.rev().collect();
        comparisons.push(Comparison::told(
            "the same of each parameter, last layer first",
            off.join(", "),
        ));
    }
    Ok(Finding::Compared(comparisons))
}

fn values<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    tensor
        .into_data()
        .convert::<f32>()
        .try_into_vec::<f32>()
        .map_err(|error| anyhow!("tensor: {error:?}"))
}

fn gradient(gradients: &GradientsParams, entry: &ParameterEntry) -> Result<Vec<f32>> {
    let missing = || anyhow!("{}: no gradient", entry.path);
    match entry.shape.len() {
        1 => values(gradients.get::<1>(entry.id).ok_or_else(missing)?),
        2 => values(gradients.get::<2>(entry.id).ok_or_else(missing)?),
        4 => values(gradients.get::<4>(entry.id).ok_or_else(missing)?),
        ndim => Err(anyhow!(
            "{}: expected 1, 2 or 4 axes, got {ndim}",
            entry.path
        )),
    }
}

/// What PyTorch computed, by its names.
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

    /// The tensors of `layout` under a prefix, end to end, as burn keeps them.
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

/// burn calls the parameters of a normalisation gamma and beta.
fn in_pytorch(path: &str) -> String {
    match path.rsplit_once('.') {
        Some((module, "gamma")) => format!("{module}.weight"),
        Some((module, "beta")) => format!("{module}.bias"),
        _ => path.to_owned(),
    }
}

/// burn keeps a linear weight as `[in, out]`, PyTorch as `[out, in]`.
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
