//! A run: from its data and its configuration to a trained model and the files of the run.

pub mod best;
pub mod checkpoint;
pub mod checkpointer;
pub mod directory;
pub mod evaluate;
pub mod head;
pub mod identity;
pub mod metrics_file;
pub mod progress_file;
pub mod resumption;
pub mod session;
pub mod step_hashes;
pub mod step_log;
pub mod tensorboard;
pub mod train;
pub mod trained_model;
