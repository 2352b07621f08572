//! Ten training steps equal those of the reference, from the same weights over the same images: two epochs, whose last batch is short.
//!
//! A device that has chosen a kernel for a full batch may find that it does not take one image less, of which it believes the same.

use anyhow::Result;
use burn::tensor::Device;

use super::Subject;
use super::comparison::{Comparison, Finding, of_largest, relative_l2};
use super::reference::{ABSENT, reference};
use super::trainee::{Lesson, Trainee};
use crate::config::cli::ComputeArgs;

pub(super) const EXPECTATION: &str =
    "ten training steps equal those of the reference on Flex in f32, over batches one of which is short";

const NUM_STEPS: usize = 10;

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
    let (depth, batch_size) = if subject.config.quick { (8, 4) } else { (20, 64) };
    let lesson = Lesson { depth, batch_size, num_batches: NUM_STEPS / 2, last_batch_size: batch_size - 1 };
    let expected = course(lesson, &compute, &device)?;
    let got = course(lesson, subject.compute(), &subject.device)?;
    let again = course(lesson, subject.compute(), &subject.device)?;
    let precision = subject.precision;
    Ok(Finding::Compared(vec![
        Comparison::difference(
            "ten losses, of the largest",
            of_largest(&expected.losses, &got.losses),
            precision.losses(),
        ),
        Comparison::difference(
            "what the parameters moved by, relative L2",
            relative_l2(&expected.update, &got.update),
            precision.update(),
        ),
        Comparison::told("the same steps once more", if again == got { "the same bits" } else { "other bits" }),
    ]))
}

fn course(lesson: Lesson, compute: &ComputeArgs, device: &Device) -> Result<Course> {
    let mut trainee = Trainee::new(lesson, compute, device)?;
    let before = trainee.parameters();
    let losses = (0..NUM_STEPS).map(|_| trainee.step()).collect::<Result<_>>()?;
    let update = trainee.parameters().iter().zip(before).map(|(after, before)| after - before).collect();
    Ok(Course { losses, update })
}
