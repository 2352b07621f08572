//! The interface of a model, and the scores of its predictions.
//!
//! In: images `[N, H, W, C]`, labels `[N]`. Out: logits `[N, K]`, counts of correct predictions.

use anyhow::{Result, anyhow, ensure};
use burn::module::Module;
use burn::tensor::{FloatDType, Tensor, TensorData};
use burn_resnet::ResNet;

/// A burn module that maps images to one logit per class.
pub trait ImageClassifier: Module + 'static {
    /// Returns the logits.
    ///
    /// # Shapes
    /// `images`: `[N, H, W, C]`, normalised; returns `[N, K]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2>;

    /// Returns true if all layers belong to crate `layers`. Such layers synchronise norm statistics
    /// and hand over each gradient during the backward pass. Gradients of other layers are read
    /// after the pass. Default: false.
    fn supports_pass_context(&self) -> bool {
        false
    }

    /// Returns true if a forward pass performs the same operations for every batch: it draws no
    /// random numbers and does not branch on values. A GPU may then capture a step and replay it.
    /// Default: false.
    fn is_recordable(&self) -> bool {
        false
    }
}

impl ImageClassifier for ResNet {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        ResNet::forward(self, images)
    }

    fn supports_pass_context(&self) -> bool {
        true
    }

    fn is_recordable(&self) -> bool {
        true
    }
}

/// Returns the logits of a batch in f32, with one row per label and one column per class. Losses
/// and metrics use f32 even if the last layer of a model has 16 bits.
///
/// # Errors
/// If the shape of the logits differs.
pub fn expect_logits(logits: Tensor<2>, labels: &[u32]) -> Result<Tensor<2>> {
    let [rows, columns] = logits.dims();
    let num_classes = labels.iter().max().map_or(0, |label| *label as usize + 1);
    ensure!(
        rows == labels.len() && columns >= num_classes,
        "model: expected logits [{}, {num_classes} or more], a row for each image and a column for each class, got [{rows}, {columns}]",
        labels.len()
    );
    Ok(logits.cast(FloatDType::F32))
}

/// Returns the values of a tensor as f32.
///
/// # Errors
/// If the values cannot be read.
pub fn floats(data: TensorData) -> Result<Vec<f32>> {
    data.convert::<f32>()
        .try_into_vec::<f32>()
        .map_err(|error| anyhow!("results of the device: {error:?}"))
}

/// Counts the samples whose label has the highest logit, and those with one of the five highest.
///
/// Among equal logits the lower class comes first. A NaN logit ranks above all other values, so a
/// broken model is never correct.
///
/// # Panics
/// If `logits` does not have `labels.len()` rows of `num_classes`.
pub fn count_correct(logits: &[f32], labels: &[u32], num_classes: usize) -> (u64, u64) {
    assert_eq!(
        logits.len(),
        labels.len() * num_classes,
        "logits and labels differ in samples"
    );
    let mut top1 = 0;
    let mut top5 = 0;
    for (row, &label) in logits.chunks_exact(num_classes).zip(labels) {
        let above = above(row, label as usize).count();
        top1 += u64::from(above == 0);
        top5 += u64::from(above < 5);
    }
    (top1, top5)
}

/// Returns the classes that rank before `label` in the logits of a sample.
fn above(row: &[f32], label: usize) -> impl Iterator<Item = (usize, f32)> {
    let own = row[label];
    row.iter()
        .copied()
        .enumerate()
        .filter(move |&(class, logit)| {
            class != label
                && (logit > own
                    || logit.is_nan()
                    || own.is_nan()
                    || (logit == own && class < label))
        })
}

/// Returns the predicted class: `label` if [`count_correct`] counts it as correct, otherwise the
/// first class that ranks before it.
///
/// # Panics
/// If `label` is not below the number of logits.
pub fn answer(row: &[f32], label: u32) -> u32 {
    let rank = |logit: f32| if logit.is_nan() { f32::INFINITY } else { logit };
    // Strictly higher: among equal logits the lower class comes first.
    let first = above(row, label as usize).reduce(|first, other| {
        if rank(other.1) > rank(first.1) {
            other
        } else {
            first
        }
    });
    first.map_or(label, |(class, _)| class as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_favour_the_lower_class() {
        assert_eq!(count_correct(&[1.0, 1.0], &[0], 2), (1, 1));
        assert_eq!(count_correct(&[1.0, 1.0], &[1], 2), (0, 1));
    }

    #[test]
    fn the_answer_is_the_label_exactly_where_it_counts_as_right() {
        let nan = f32::NAN;
        for (row, label, expected) in [
            ([1.0, 1.0, 0.0], 0, 0),
            ([1.0, 1.0, 0.0], 1, 0),
            ([0.0, 2.0, 3.0], 0, 2),
            ([0.0, nan, 3.0], 2, 1),
            ([nan, 1.0, 2.0], 0, 2),
            ([1.0, 3.0, 3.0], 0, 1),
        ] {
            assert_eq!(answer(&row, label), expected, "{row:?}, {label}");
            assert_eq!(count_correct(&row, &[label], 3).0 == 1, expected == label);
        }
    }

    #[test]
    fn a_nan_logit_is_never_right() {
        assert_eq!(count_correct(&[f32::NAN, 1.0], &[0], 2).0, 0);
        assert_eq!(count_correct(&[f32::NAN, 1.0], &[1], 2).0, 0);
    }

    #[test]
    fn the_fifth_place_counts_and_the_sixth_does_not() {
        let logits = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0];
        assert_eq!(count_correct(&logits, &[4], 6), (0, 1));
        assert_eq!(count_correct(&logits, &[5], 6), (0, 0));
    }
}
