//! Losses of training and evaluation.
//!
//! In: logits `[N, K]`, the classes. Out: the loss of all samples, summed.
//! Invariant: this module returns sums. Means are computed where the global number of samples is
//! known.

use std::fmt::Debug;
use std::sync::Arc;

use burn::tensor::activation::{log_sigmoid, log_softmax};
use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor};
use datasets::{MixedTargets, Targets};
use layers::backend::{Loss as KernelLoss, loss_sum};

use crate::config::{ComputeSection, CpuKind, LossChoice};

/// Share of a mixed image above which its class is present in binary cross entropy (Wightman et
/// al.).
const PRESENT_FROM: f64 = 0.2;

/// A loss. [`ModelFamily::loss`](super::family::ModelFamily::loss) returns a custom one.
pub trait Loss: Debug + Send + Sync {
    /// Returns the summed (not averaged) loss of all samples, for differentiation.
    ///
    /// # Shapes
    /// `logits`: `[N, K]`; returns `[1]`.
    fn sum(&self, logits: Tensor<2>, targets: Targets) -> Tensor<1>;

    /// Returns the loss that evaluation reports. Default: the training loss.
    ///
    /// # Shapes
    /// `logits`: `[N, K]`; `labels`: `[N]`; returns `[1]`, or parts of the sum, which are added in
    /// f64.
    fn test_sum(&self, logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
        self.sum(logits, Targets::of(labels))
    }

    /// Returns true if [`sum`](Self::sum) performs the same operations for all inputs: it draws no
    /// random numbers and does not branch on values read back. A GPU may then capture a step and
    /// replay it. Default: false.
    fn is_recordable(&self) -> bool {
        false
    }
}

/// Cross entropy, with label smoothing in training (Szegedy et al. 2015, 1512.00567). The loss of a
/// mixed image is the cross entropy of both classes, weighted by their shares.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy {
    /// Share of a sample's weight that is spread over all classes, in `[0, 1)`.
    pub label_smoothing: f64,
}

impl Loss for CrossEntropy {
    fn sum(&self, logits: Tensor<2>, Targets { labels, mixed }: Targets) -> Tensor<1> {
        let [_, num_classes] = logits.dims();
        let log_probabilities = log_softmax(logits, 1);
        let of =
            |labels: Tensor<1, Int>| log_probabilities.clone().gather(1, labels.unsqueeze_dim(1));
        let of_label = match mixed {
            None => of(labels).sum(),
            Some(MixedTargets {
                labels: others,
                shares,
            }) => {
                let shares = shares.unsqueeze_dim(1);
                let own = of(labels);
                (own.clone() + shares * (of(others) - own)).sum()
            }
        };
        if self.label_smoothing == 0.0 {
            return of_label.neg();
        }
        let uniform = log_probabilities
            .sum()
            .mul_scalar(self.label_smoothing / num_classes as f64);
        of_label
            .mul_scalar(1.0 - self.label_smoothing)
            .add(uniform)
            .neg()
    }

    fn test_sum(&self, logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
        Self::default().sum(logits, Targets::of(labels))
    }

    fn is_recordable(&self) -> bool {
        true
    }
}

/// A loss computed from the share of each class in each label.
#[derive(Clone, Debug)]
struct OfShares {
    /// Softmax: cross entropy. Sigmoid: binary cross entropy of each class, averaged over the
    /// classes (Wightman et al. 2021, 2110.00476, section 4). Evaluation reports cross entropy, as
    /// timm does.
    kind: KernelLoss,
    /// Share of a sample's weight in cross entropy that is spread over all classes, in `[0, 1)`.
    label_smoothing: f64,
    /// Weight of each class, as in PyTorch's `weight=`; empty without weights. The sum is not
    /// normalised here. If each sample has one class, [`Stepper`](crate::step::Stepper) divides by
    /// the summed weights of a step's samples.
    weights: Vec<f32>,
    /// True to use the kernel with the same bits on every CPU, if the device has it.
    has_same_bits: bool,
}

impl Loss for OfShares {
    /// # Panics
    /// If there are weights, but not one per logit.
    fn sum(&self, logits: Tensor<2>, targets: Targets) -> Tensor<1> {
        let [_, num_classes] = logits.dims();
        let device = logits.device();
        let mut shares = shares(targets.clone(), num_classes, &device);
        if self.kind == KernelLoss::SigmoidCrossEntropy {
            shares = shares.greater_elem(PRESENT_FROM).float();
        } else {
            shares = shares
                .mul_scalar(1.0 - self.label_smoothing)
                .add_scalar(self.label_smoothing / num_classes as f64);
        }
        if !self.weights.is_empty() {
            assert_eq!(
                self.weights.len(),
                num_classes,
                "class weights and logits differ in classes"
            );
            shares = shares * Tensor::<1>::from_floats(&*self.weights, &device).unsqueeze::<2>();
        }
        let of_kernel = match self.has_same_bits {
            true => loss_sum(self.kind, logits.clone(), shares.clone()),
            false => None,
        };
        match self.kind {
            KernelLoss::SigmoidCrossEntropy => of_kernel
                .unwrap_or_else(|| {
                    // softplus(z) - t z, which neither overflows nor loses small terms.
                    (log_sigmoid(logits.clone().neg()).neg() - shares * logits).sum()
                })
                .div_scalar(num_classes as f64),
            KernelLoss::SoftmaxCrossEntropy => of_kernel.unwrap_or_else(|| {
                let label_smoothing = self.label_smoothing;
                match self.weights.is_empty() {
                    true => CrossEntropy { label_smoothing }.sum(logits, targets),
                    false => (log_softmax(logits, 1) * shares).sum().neg(),
                }
            }),
        }
    }

    /// Returns the loss of each sample, if the kernel computes it. The sum in f64 is then
    /// independent of the batches of the ranks.
    fn test_sum(&self, logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
        let of_burn = |logits| CrossEntropy::default().sum(logits, Targets::of(labels.clone()));
        if !self.has_same_bits {
            return of_burn(logits);
        }
        let [_, num_classes] = logits.dims();
        let shares = shares(Targets::of(labels.clone()), num_classes, &logits.device());
        let samples = logits
            .clone()
            .split(1, 0)
            .into_iter()
            .zip(shares.split(1, 0));
        let losses: Option<Vec<_>> = samples
            .map(|(logits, shares)| loss_sum(KernelLoss::SoftmaxCrossEntropy, logits, shares))
            .collect();
        losses.map_or_else(|| of_burn(logits), |losses| Tensor::cat(losses, 0))
    }

    fn is_recordable(&self) -> bool {
        self.weights.is_empty()
    }
}

/// Returns the share of each class in each label, `[N, K]`. Reads nothing from the device, unlike
/// `one_hot` of burn.
fn shares(Targets { labels, mixed }: Targets, num_classes: usize, device: &Device) -> Tensor<2> {
    let share_of = |labels: Tensor<1, Int>| {
        let ([num_samples], at) = (labels.dims(), labels.device());
        let none = Tensor::<2>::zeros([num_samples, num_classes], &at);
        let one = Tensor::ones([num_samples, 1], &at);
        none.scatter(1, labels.unsqueeze_dim(1), one, IndexingUpdateOp::Add)
            .to_device(device)
    };
    match mixed {
        None => share_of(labels),
        Some(MixedTargets {
            labels: others,
            shares,
        }) => {
            let own = share_of(labels);
            let shares = shares.unsqueeze_dim(1);
            own.clone() + shares * (share_of(others) - own)
        }
    }
}

/// Returns false if a loss ignores the second class of mixed images. Its sum over mixed samples
/// then equals the sum over their first classes.
pub fn takes_mixed_targets(loss: &dyn Loss, num_classes: usize, device: &Device) -> bool {
    if num_classes < 2 {
        return true;
    }
    let logits: Vec<f32> = (0..2 * num_classes)
        .map(|index| (index * index % 7) as f32 * 0.5)
        .collect();
    let logits = Tensor::<1>::from_floats(logits.as_slice(), device).reshape([2, num_classes]);
    let labels = || Tensor::from_ints([0, 1], device);
    let others = Tensor::from_ints([1, 0], device);
    let mixed = MixedTargets {
        labels: others,
        shares: Tensor::from_floats([0.3, 0.7], device),
    };
    let sum = |targets| loss.sum(logits.clone(), targets).into_data();
    sum(Targets::of(labels()))
        != sum(Targets {
            labels: labels(),
            mixed: Some(mixed),
        })
}

/// Returns the loss of the options, with the same bits on every CPU if `--cpu` names an instruction
/// set. `class_weights` has one weight per class.
pub fn configured(
    choice: &LossChoice,
    class_weights: Option<&[f64]>,
    compute: &ComputeSection,
) -> Arc<dyn Loss> {
    let has_same_bits = !matches!(compute.cpu, None | Some(CpuKind::Auto));
    let (kind, label_smoothing) = match *choice {
        LossChoice::CrossEntropy {
            label_smoothing, ..
        } => (KernelLoss::SoftmaxCrossEntropy, label_smoothing),
        LossChoice::BinaryCrossEntropy => (KernelLoss::SigmoidCrossEntropy, 0.0),
    };
    if kind == KernelLoss::SoftmaxCrossEntropy && class_weights.is_none() && !has_same_bits {
        return Arc::new(CrossEntropy { label_smoothing });
    }
    let weights = class_weights.unwrap_or_default().iter();
    Arc::new(OfShares {
        kind,
        label_smoothing,
        weights: weights.map(|weight| *weight as f32).collect(),
        has_same_bits,
    })
}

/// Returns the evaluation loss.
pub fn cross_entropy(compute: &ComputeSection) -> Arc<dyn Loss> {
    let choice = LossChoice::CrossEntropy {
        label_smoothing: 0.0,
        class_weights: None,
    };
    configured(&choice, None, compute)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn every_loss_of_the_program_takes_mixed_targets_for_any_number_of_classes() {
        for cpu in [CpuKind::Auto, CpuKind::Portable] {
            for choice in [smoothed(0.1), LossChoice::BinaryCrossEntropy] {
                let loss = configured(&choice, None, &compute(cpu));
                for num_classes in [1, 2, 3, 7, 10, 1000] {
                    assert!(
                        takes_mixed_targets(&*loss, num_classes, &Device::flex()),
                        "{loss:?}, {num_classes} classes"
                    );
                }
            }
        }
    }

    fn smoothed(label_smoothing: f64) -> LossChoice {
        LossChoice::CrossEntropy {
            label_smoothing,
            class_weights: None,
        }
    }

    fn compute(cpu: CpuKind) -> ComputeSection {
        ComputeSection {
            cpu: Some(cpu),
            ..ComputeSection::default()
        }
    }

    const ROW: [f64; 3] = [2.0, 0.5, -1.0];

    fn loss(label_smoothing: f64, mixed: Option<(i32, f32)>) -> f64 {
        let device = Device::flex();
        let mixed = mixed.map(|(label, share)| MixedTargets {
            labels: Tensor::from_ints([label], &device),
            shares: Tensor::from_floats([share], &device),
        });
        let targets = Targets {
            labels: Tensor::from_ints([1], &device),
            mixed,
        };
        let logits = Tensor::<2>::from_floats([ROW.map(|logit| logit as f32)], &device);
        CrossEntropy { label_smoothing }
            .sum(logits, targets)
            .into_scalar::<f32>() as f64
    }

    fn log_probability(class: usize) -> f64 {
        ROW[class] - ROW.iter().map(|logit| logit.exp()).sum::<f64>().ln()
    }

    fn assert_near(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-6, "{got} against {expected}");
    }

    #[test]
    fn smoothed_cross_entropy_mixes_the_label_with_the_uniform_distribution() {
        assert_near(loss(0.0, None), -log_probability(1));
        assert_near(
            loss(0.3, None),
            -(0.7 * log_probability(1) + 0.1 * (0..3).map(log_probability).sum::<f64>()),
        );
    }

    #[test]
    fn mixed_samples_cost_what_both_classes_cost_by_their_shares() {
        let both = 0.75 * log_probability(1) + 0.25 * log_probability(2);
        assert_near(loss(0.0, Some((2, 0.25))), -both);
        assert_near(
            loss(0.3, Some((2, 0.25))),
            -(0.7 * both + 0.1 * (0..3).map(log_probability).sum::<f64>()),
        );
    }

    #[test]
    fn binary_cross_entropy_is_that_of_pytorch_with_every_class_of_a_share_above_the_threshold() {
        let device = Device::flex();
        let loss = |mixed: Option<(i32, f32)>| {
            let mixed = mixed.map(|(label, share)| MixedTargets {
                labels: Tensor::from_ints([label], &device),
                shares: Tensor::from_floats([share], &device),
            });
            let targets = Targets {
                labels: Tensor::from_ints([1], &device),
                mixed,
            };
            let logits = Tensor::<2>::from_floats([ROW.map(|logit| logit as f32)], &device);
            let choice = LossChoice::BinaryCrossEntropy;
            let loss = configured(&choice, None, &compute(CpuKind::Auto));
            f64::from(loss.sum(logits, targets).into_scalar::<f32>())
        };
        // torch.nn.functional.binary_cross_entropy_with_logits([2, 0.5, -1], target).
        let expected = |targets: [f64; 3]| {
            ROW.iter()
                .zip(targets)
                .map(|(z, t)| (1.0 + z.exp()).ln() - t * z)
                .sum::<f64>()
                / 3.0
        };
        assert_near(expected([0.0, 1.0, 0.0]), 0.971_422_2);
        assert_near(loss(None), expected([0.0, 1.0, 0.0]));
        assert_near(loss(Some((2, 0.25))), expected([0.0, 1.0, 1.0]));
        assert_near(loss(Some((2, 0.15))), expected([0.0, 1.0, 0.0]));
        assert_near(loss(Some((2, 0.85))), expected([0.0, 0.0, 1.0]));
        assert_near(loss(Some((1, 0.5))), expected([0.0, 1.0, 0.0]));
    }

    #[test]
    fn weighted_cross_entropy_and_its_gradients_are_those_of_pytorch() {
        // torch.nn.functional.cross_entropy(logits, [1, 2, 1], weight=[0.5, 2.0, 3.0],
        // label_smoothing=s, reduction="sum") and its gradients. Mixed labels: the targets are 0.75
        // of these labels and 0.25 of [2, 0, 1].
        let expected: [(f64, bool, f64, [f64; 9]); 3] = [
            (
                0.0,
                false,
                15.907920,
                [
                    1.571194, -1.649419, 0.078225, 0.00267, 2.928459, -2.931129, 0.423883,
                    -0.847766, 0.423883,
                ],
            ),
            (
                0.3,
                false,
                14.609835,
                [
                    1.481914, -1.258184, -0.22373, -0.047641, 2.386805, -2.339164, 0.363286,
                    -0.476572, 0.113286,
                ],
            ),
            (
                0.3,
                true,
                14.335255,
                [
                    1.619394, -0.877508, -0.741886, -0.135531, 1.959738, -1.824208, 0.363286,
                    -0.476572, 0.113286,
                ],
            ),
        ];
        for cpu in [CpuKind::Auto, CpuKind::Portable] {
            for (label_smoothing, is_mixed, sum, gradients) in expected {
                let device = Device::flex().autodiff();
                let mixed = is_mixed.then(|| MixedTargets {
                    labels: Tensor::from_ints([2, 0, 1], &device),
                    shares: Tensor::from_floats([0.25, 0.25, 0.25], &device),
                });
                let targets = Targets {
                    labels: Tensor::from_ints([1, 2, 1], &device),
                    mixed,
                };
                let rows = [[2.0, 0.5, -1.0], [-3.0, 4.0, 0.25], [0.0, 1.0, 0.0]];
                let logits = Tensor::<2>::from_floats(rows, &device).require_grad();
                let choice = smoothed(label_smoothing);
                let loss = configured(&choice, Some(&[0.5, 2.0, 3.0]), &compute(cpu));
                let got = loss.sum(logits.clone(), targets);
                let tape = got.clone().backward();
                let got_gradients = logits
                    .grad(&tape)
                    .unwrap()
                    .into_data()
                    .try_to_vec::<f32>()
                    .unwrap();
                assert!(
                    (f64::from(got.into_scalar::<f32>()) - sum).abs() < 1e-5,
                    "{loss:?}"
                );
                for (got, expected) in got_gradients.iter().zip(gradients) {
                    assert!(
                        (f64::from(*got) - expected).abs() < 1e-5,
                        "{loss:?}: {got_gradients:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn evaluation_knows_no_smoothing() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([ROW.map(|logit| logit as f32)], &device);
        let loss = CrossEntropy {
            label_smoothing: 0.3,
        }
        .test_sum(logits, Tensor::from_ints([1], &device));
        assert_near(loss.into_scalar::<f32>() as f64, -log_probability(1));
    }

    #[test]
    fn losses_of_the_same_bits_and_their_gradients_are_those_of_burns_operations() {
        fn results(loss: &dyn Loss, is_mixed: bool) -> Vec<f32> {
            let device = Device::flex().autodiff();
            let mixed = is_mixed.then(|| MixedTargets {
                labels: Tensor::from_ints([2, 0], &device),
                shares: Tensor::from_floats([0.25, 0.6], &device),
            });
            let targets = Targets {
                labels: Tensor::from_ints([1, 2], &device),
                mixed,
            };
            let logits = Tensor::<2>::from_floats([[2.0, 0.5, -1.0], [-3.0, 4.0, 0.25]], &device)
                .require_grad();
            let sum = loss.sum(logits.clone(), targets);
            let gradients = sum.clone().mul_scalar(0.5).backward();
            let values = [logits.grad(&gradients).unwrap().reshape([6]), sum.inner()]
                .map(Tensor::<1>::into_data);
            values
                .into_iter()
                .flat_map(|values| values.try_to_vec::<f32>().unwrap())
                .collect()
        }
        for choice in [smoothed(0.1), LossChoice::BinaryCrossEntropy] {
            let [burns, ours] = [CpuKind::Auto, CpuKind::Portable]
                .map(|cpu| configured(&choice, None, &compute(cpu)));
            for is_mixed in [false, true] {
                let got = results(&*ours, is_mixed);
                let expected = results(&*burns, is_mixed);
                let is_near = got
                    .iter()
                    .zip(&expected)
                    .all(|(got, expected)| (got - expected).abs() < 1e-6);
                assert!(
                    is_near,
                    "{ours:?}, mixed {is_mixed}: {got:?} against {expected:?}"
                );
            }
        }
    }
}
