//! Ten training steps equal those of the reference, from the same weights over the same images: two epochs, whose last batch is short.
//!
//! A device that has chosen a kernel for a full batch may find that it does not take one image less, of which it believes the same.

use anyhow::Result;
use burn::tensor::Device;

use super::Subject;
use super::comparison::{Comparison, Finding, of_largest, relative_l2};
use super::reference::{ABSENT, reference};
use super::trainee::{ADAMW, Lesson, SGD, Trainee};
use crate::config::ComputeSection;

pub(super) const EXPECTATION: &str = "ten training steps equal those of the reference on Flex in f32, over batches one of which is short";

const NUM_STEPS: usize = 10;

/// Layers, and images of a full batch.
pub(super) fn size(is_quick: bool) -> (usize, usize) {
    if is_quick { (8, 4) } else { (20, 64) }
}

/// What ten steps came to.
#[derive(PartialEq)]
struct Course {
    losses: Vec<f32>,
    /// What they added to the parameters: these themselves hardly move, and would hide a wrong gradient.
    update: Vec<f32>,
}

pub(super) fn check(subject: &Subject<'_>) -> Result<Finding> {
    let Some((device, compute)) = reference(subject.compute()) else {
        return Ok(Finding::Skipped(ABSENT.to_owned()));
    };
    let (depth, batch_size) = size(subject.config.quick);
    let precision = subject.precision;
    let mut comparisons = Vec::new();
    for (name, optimizer) in [("SGD", SGD), ("AdamW", ADAMW)] {
        let (num_batches, last_batch_size) = (NUM_STEPS / 2, batch_size - 1);
        let lesson = Lesson {
            depth,
            batch_size,
            num_batches,
            last_batch_size,
            optimizer,
        };
        let expected = course(lesson, &compute, &device)?;
        let got = course(lesson, subject.compute(), &subject.device)?;
        let again = course(lesson, subject.compute(), &subject.device)?;
        let (losses, update) = (
            of_largest(&expected.losses, &got.losses),
            relative_l2(&expected.update, &got.update),
        );
        let bits = if again == got {
            "the same bits"
        } else {
            "other bits"
        };
        comparisons.extend([
            Comparison::difference(
                format!("ten losses of {name}, of the largest"),
                losses,
                precision.losses(),
            ),
            Comparison::difference(
                format!("what steps of {name} moved parameters by, relative L2"),
                update,
                precision.update(),
            ),
            Comparison::told(format!("the same steps of {name} once more"), bits),
        ]);
    }
    Ok(Finding::Compared(comparisons))
}

fn course(lesson: Lesson, compute: &ComputeSection, device: &Device) -> Result<Course> {
    course_of(Trainee::new(lesson, compute, device)?)
}

fn course_of(mut trainee: Trainee) -> Result<Course> {
    let before = trainee.parameters();
    let losses = (0..NUM_STEPS)
        .map(|_| trainee.step())
        .collect::<Result<_>>()?;
    let update = trainee
        .parameters()
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    Ok(Course { losses, update })
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::step::optimizer::{AdamConfig, OptimizerConfig, SgdConfig};
    use crate::tools::verify::precision::Precision;

    #[test]
    fn rules_that_are_off_by_a_twentieth_or_leave_decay_out_are_seen_in_f32() -> Result<()> {
        let (device, compute) =
            reference(&ComputeSection::default()).expect("this test is built with the reference");
        let (depth, batch_size) = size(true);
        let update = |optimizer| {
            let lesson = Lesson {
                depth,
                batch_size,
                num_batches: 5,
                last_batch_size: batch_size - 1,
                optimizer,
            };
            course(lesson, &compute, &device).map(|course| course.update)
        };
        let (OptimizerConfig::Sgd(sgd), OptimizerConfig::AdamW(adamw)) = (SGD, ADAMW) else {
            unreachable!("their names")
        };
        let (of_sgd, of_adamw) = (update(SGD)?, update(ADAMW)?);
        for (expected, wrong) in [
            (
                &of_sgd,
                OptimizerConfig::Sgd(SgdConfig {
                    momentum: 0.855,
                    ..sgd
                }),
            ),
            (
                &of_sgd,
                OptimizerConfig::Sgd(SgdConfig {
                    weight_decay: 0.0,
                    ..sgd
                }),
            ),
            (
                &of_adamw,
                OptimizerConfig::AdamW(AdamConfig {
                    betas: [0.855, 0.99],
                    ..adamw
                }),
            ),
            (
                &of_adamw,
                OptimizerConfig::AdamW(AdamConfig {
                    weight_decay: 0.0,
                    ..adamw
                }),
            ),
        ] {
            let off = relative_l2(expected, &update(wrong)?);
            assert!(off > 1.5 * Precision::Single.update(), "{wrong:?}: {off:e}");
        }
        Ok(())
    }

    #[test]
    fn images_that_stay_those_of_the_first_batch_are_seen_at_the_widest_tolerance() -> Result<()> {
        let (device, compute) =
            reference(&ComputeSection::default()).expect("this test is built with the reference");
        for optimizer in [SGD, ADAMW] {
            let lesson = Lesson {
                depth: 8,
                batch_size: 16,
                num_batches: NUM_STEPS / 2,
                last_batch_size: 15,
                optimizer,
            };
            let expected = course(lesson, &compute, &device)?;
            let mut stale = Trainee::new(lesson, &compute, &device)?;
            stale.show_one_batch();
            let got = course_of(stale)?;
            let (losses, update) = (
                of_largest(&expected.losses, &got.losses),
                relative_l2(&expected.update, &got.update),
            );
            assert!(
                losses > Precision::Half.losses() && update > Precision::Half.update(),
                "{losses:e} {update:e}"
            );
        }
        Ok(())
    }
}
