//! burn's own training loop, `burn_train::SupervisedTraining`, on many ranks.
//!
//! In: a training written for one process, and a communicator. Out: the same training, of which
//! this rank computes its slice.
//! Invariant: all ranks agree on the samples of each step, and on a stop, before they reduce
//! gradients; replicas stay bit-equal, which is compared at the end of each epoch.
//! Source: burn-train 0.22.1, `single/strategy.rs` and `single/epoch.rs`, in the same order of
//! events.

#![cfg(feature = "burn-train")]

mod silent;
mod strategy;

use burn::tensor::Device;
use burn_train::{LearnerModel, SupervisedTraining, TrainingStrategy};
use distributed::{Communicator, ROOT};
use silent::Silent;
use std::sync::Arc;
use strategy::DataParallel;

/// Returns `training` for all ranks of the communicator, with this rank's model on `device`. Call
/// it last, before `launch`.
///
/// Each rank takes its slice of the items of the training loader, in batches of the loader's size:
/// the global batch is the world size times as large. Gradients are the exact mean over the global
/// batch if the loss of a step is the mean over its batch. They travel during the backward pass
/// where layers have a gradient hook ([`layers::with_gradient_hook`]). All ranks begin with the
/// parameters of root. Only root validates, decides about early stopping, and writes; its training
/// metrics cover its own slice. Running statistics of normalisations are averaged at the end of
/// each epoch.
///
/// An interrupt of one rank, or an error of its loader, stops all ranks after the same step.
///
/// # Panics
/// In `launch`: when a collective fails, or ranks have different models, numbers of items or
/// epochs.
///
/// # Collective
/// All ranks must call `launch`.
pub fn data_parallel<M: LearnerModel>(
    training: SupervisedTraining<M>,
    communicator: &Arc<dyn Communicator>,
    device: &Device,
) -> SupervisedTraining<M> {
    let device = match device.is_autodiff() {
        true => device.clone(),
        false => device.clone().autodiff(),
    };
    let strategy = DataParallel::new(Arc::clone(communicator), device);
    let training = training.with_training_strategy(TrainingStrategy::Custom(Arc::new(strategy)));
    if communicator.rank() == ROOT {
        return training;
    }
    training
        .with_application_logger(None)
        .with_metric_logger(Silent)
        .renderer(Box::new(Silent))
}
