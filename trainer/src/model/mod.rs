//! The model, its input, its data, its loss and its learning rate.

pub mod classifier;
pub mod data;
pub mod family;
pub mod input;
pub mod loss;
pub mod metric;
pub mod network;
pub mod parts;
pub mod schedule;

pub use classifier::{ImageClassifier, answer, count_correct, expect_logits, floats};
