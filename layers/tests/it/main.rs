//! Guarantees of the operations: the numbers of plain f64, and no silent wrong result.

#![allow(clippy::unwrap_used)] // A failed unwrap here is a failed test.

mod batch_norm;
mod differences;
mod drop_in;
mod every_layer;
mod modules;
mod more_operations;
mod number_formats;
mod random_networks;
mod running_statistics;
mod single;
mod with_gradient_hook;
