//! What the trainer asks of a model, and the loss it trains it with.
//!
//! In: images `[N, H, W, C]`, labels `[N]`. Out: logits `[N, K]`, the summed cross entropy, counts of right answers.
//! Invariant: sums are made here, means only where the global number of samples is known.

use anyhow::{Result, anyhow};
use burn::module::Module;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor, TensorData};
use burn_resnet::ResNet;

use crate::measure::metrics::ScoreSums;

/// A burn module that turns images into one logit a class.
pub trait ImageClassifier: Module {
    /// The logits.
    ///
    /// # Shapes
    /// `images`: `[N, H, W, C]`, normalised; returns `[N, K]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2>;

    /// Whether its layers are those of crate `layers`, by default not: they take norm statistics over all ranks where that is
    /// asked for, and hand each gradient over while the backward pass goes on. Gradients of other layers are taken after the pass.
    fn heeds_pass_context(&self) -> bool {
        false
    }
}

impl ImageClassifier for ResNet {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        ResNet::forward(self, images)
    }

    fn heeds_pass_context(&self) -> bool {
        true
    }
}

/// The cross entropy of every sample, summed (not averaged), with label smoothing (Szegedy et al. 2015, 1512.00567).
///
/// # Shapes
/// `logits`: `[N, K]`; `labels`: `[N]`; returns `[1]`.
pub fn cross_entropy_sum(logits: Tensor<2>, labels: Tensor<1, Int>, label_smoothing: f64) -> Tensor<1> {
    let [_, num_classes] = logits.dims();
    let log_probabilities = log_softmax(logits, 1);
    let of_label = log_probabilities.clone().gather(1, labels.unsqueeze_dim(1)).sum();
    if label_smoothing == 0.0 {
        return of_label.neg();
    }
    let uniform = log_probabilities.sum().mul_scalar(label_smoothing / num_classes as f64);
    of_label.mul_scalar(1.0 - label_smoothing).add(uniform).neg()
}

/// The loss and the right answers of one batch, read back from the device.
///
/// # Shapes
/// `logits`: `[N, K]`, detached; `loss_sum`: of the same samples.
///
/// # Errors
/// When the logits cannot be read.
pub fn score(logits: Tensor<2>, loss_sum: Tensor<1>, labels: &[u32]) -> Result<ScoreSums> {
    UnreadScore::new(logits, loss_sum, labels.to_vec()).read()
}

/// The results of one batch that a device may still be computing.
#[derive(Debug)]
pub struct UnreadScore {
    logits: TensorData,
    loss_sum: TensorData,
    labels: Vec<u32>,
}

impl UnreadScore {
    /// All that leads to the results is handed to the device. A GPU is not waited for: burn copies what lies there when it is read.
    ///
    /// # Shapes
    /// As [`score`].
    pub fn new(logits: Tensor<2>, loss_sum: Tensor<1>, labels: Vec<u32>) -> Self {
        Self { logits: logits.into_data(), loss_sum: loss_sum.into_data(), labels }
    }

    /// Waits for the results.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn read(self) -> Result<ScoreSums> {
        let [num_samples, num_classes] = self.logits.shape().dims();
        let (top1_correct, top5_correct) = count_correct(&floats(self.logits)?, &self.labels, num_classes);
        Ok(ScoreSums {
            loss_sum: floats(self.loss_sum)?.into_iter().map(f64::from).sum(),
            num_samples: num_samples as u64,
            top1_correct,
            top5_correct,
        })
    }
}

/// The values of a tensor as f32.
///
/// # Errors
/// When they cannot be read.
pub fn floats(data: TensorData) -> Result<Vec<f32>> {
    data.convert::<f32>().try_into_vec::<f32>().map_err(|error| anyhow!("results of the device: {error:?}"))
}

/// How many samples have their label as the first, and among the first five, of the logits.
///
/// Of equal logits the lower class comes first. A NaN logit counts as above everything, so a broken model is never right.
///
/// # Panics
/// When `logits` is not `labels.len()` rows of `num_classes`.
pub fn count_correct(logits: &[f32], labels: &[u32], num_classes: usize) -> (u64, u64) {
    assert_eq!(logits.len(), labels.len() * num_classes, "logits and labels differ in samples");
    let (mut top1, mut top5) = (0, 0);
    for (row, &label) in logits.chunks_exact(num_classes).zip(labels) {
        let label = label as usize;
        let own = row[label];
        let above = row
            .iter()
            .enumerate()
            .filter(|&(class, &logit)| {
                class != label && (logit > own || logit.is_nan() || own.is_nan() || (logit == own && class < label))
            })
            .count();
        top1 += u64::from(above == 0);
        top5 += u64::from(above < 5);
    }
    (top1, top5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn equal_logits_favour_the_lower_class() {
        assert_eq!(count_correct(&[1.0, 1.0], &[0], 2), (1, 1));
        assert_eq!(count_correct(&[1.0, 1.0], &[1], 2), (0, 1));
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

    #[test]
    fn smoothed_cross_entropy_mixes_the_label_with_the_uniform_distribution() {
        let device = Device::flex();
        let logits = || Tensor::<2>::from_floats([[2.0, 0.5, -1.0]], &device);
        let labels = || Tensor::<1, Int>::from_ints([1], &device);
        let row = [2.0f64, 0.5, -1.0];
        let log_sum = row.iter().map(|x| x.exp()).sum::<f64>().ln();
        let log_probability = |k: usize| row[k] - log_sum;
        let plain = cross_entropy_sum(logits(), labels(), 0.0).into_scalar::<f32>() as f64;
        assert!((plain + log_probability(1)).abs() < 1e-6);
        let smoothed = cross_entropy_sum(logits(), labels(), 0.3).into_scalar::<f32>() as f64;
        let expected = -(0.7 * log_probability(1) + 0.1 * (0..3).map(log_probability).sum::<f64>());
        assert!((smoothed - expected).abs() < 1e-6, "{smoothed} against {expected}");
    }
}
