//! burn's own training loop, `burn_train::SupervisedTraining`, on many ranks.
//!
//! In: a training as it is written for one process, and a communicator. Out: the same training, of which this rank computes its part.
//! Invariant: all ranks agree on each step's samples and on a stop before they reduce gradients; replicas stay bit-equal, which
//! is compared at the end of each epoch.
//! Source: burn-train 0.22.1, `single/strategy.rs` and `single/epoch.rs`, whose order of events this keeps.

mod silent;
mod strategy;

use std::sync::Arc;

use burn::tensor::Device;
use burn_train::{LearnerModel, SupervisedTraining, TrainingStrategy};
use distributed::{Communicator, ROOT};

use silent::Silent;
use strategy::DataParallel;

/// `training` on all ranks of the communicator, with this rank's model on `device`. Call it last, before `launch`.
///
/// Each rank takes its slice of the items of the training loader, in batches of the loader's size; so the global batch is the world size
/// times as large. Gradients are the exact mean over the global batch, if the step's loss is the mean over its batch, and travel
/// while earlier layers are differentiated, where layers hand them over ([`layers::with_gradient_hook`]). All ranks begin with root's parameters.
/// Root alone validates, decides about early stopping, and writes: what it renders and logs of training is of its own slice. Running
/// statistics of normalisations are averaged at the end of each epoch.
///
/// An interrupt of one rank, or an error that its loader gives, stops all after the same step.
///
/// # Panics
/// In `launch`: when a collective fails, or ranks have different models, numbers of items or epochs.
///
/// # Collective
/// `launch` must be called by all ranks.
pub fn data_parallel<M: LearnerModel>(
    training: SupervisedTraining<M>,
    communicator: &Arc<dyn Communicator>,
    device: &Device,
) -> SupervisedTraining<M> {
    let device = if device.is_autodiff() {
        device.clone()
    } else {
        device.clone().autodiff()
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
