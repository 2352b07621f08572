//! A run: from its data and its configuration to a trained model, with what it leaves on the disk.

pub mod best;
pub mod checkpoint;
pub mod checkpointer;
pub mod evaluate;
pub mod head;
pub mod identity;
pub mod lock;
pub mod metrics_file;
pub mod output;
pub mod progress_file;
pub mod resumption;
pub mod run_files;
pub mod saved_model;
pub mod session;
pub mod step_hashes;
pub mod tensorboard;
pub mod train;
