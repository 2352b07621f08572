//! Two ranks on one device, gradients through main memory, train as one rank with the joined batch.
//!
//! In: a device. Out: whether the two end with the same bits, and how far from what one rank came to.
//! Invariant: the ranks are threads of this process; norm statistics are taken over both.

use std::sync::Arc;

use anyhow::{Context, Result};
use distributed::{Communicator, communicator::SingleCommunicator, run_ranks};

use super::Subject;
use super::comparison::{Comparison, Finding, relative_l2};
use super::trainee::{Lesson, SGD, Trainee};

pub(super) const EXPECTATION: &str =
    "two ranks on the device train as one rank with their batches joined";

/// The first gives the gradient, the second comes after an update; more only amplify roundings, in a batch this small within a few steps
/// to more than a tolerance.
const NUM_STEPS: usize = 2;

/// Of both ranks together.
const LESSON: Lesson = Lesson {
    depth: 8,
    batch_size: 8,
    num_batches: NUM_STEPS,
    last_batch_size: 8,
    optimizer: SGD,
};

pub(super) fn check(subject: &Subject<'_>) -> Result<Finding> {
    let alone = update(subject, Arc::new(SingleCommunicator::new()))?;
    let of_ranks = run_ranks(2, |communicator| update(subject, Arc::new(communicator)));
    let mut of_ranks = of_ranks
        .into_iter()
        .collect::<Result<Vec<_>>>()?
        .into_iter();
    let (first, second) = of_ranks
        .next()
        .zip(of_ranks.next())
        .context("ranks: expected two")?;
    let off = relative_l2(&alone, &first);
    Ok(Finding::Compared(vec![
        Comparison::same_bits("parameters of both ranks", &first, &second),
        Comparison::difference(
            "what they moved by in two steps, relative L2",
            off,
            subject.precision.ranks(),
        ),
    ]))
}

/// What the steps add to the parameters.
fn update(subject: &Subject<'_>, communicator: Arc<dyn Communicator>) -> Result<Vec<f32>> {
    let mut trainee = Trainee::of_rank(LESSON, subject.compute(), &subject.device, communicator)?;
    let before = trainee.parameters();
    for _ in 0..NUM_STEPS {
        trainee.step()?;
    }
    Ok(trainee
        .parameters()
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect())
}
