//! Parameter servers: they hold the parameters, the workers bring gradients and take parameters home.
//!
//! In: each worker's gradient of a bucket. Out: the bucket's parameters after the update. Invariant: a worker has one push of a
//! bucket on its way at most.
//! Source: Li et al. 2014, OSDI, "Scaling distributed machine learning with the parameter server".
//!
//! Workers are ranks `0..num_workers`. A server lives beside a worker, on a thread of its own, or on a rank of its own.

mod client;
mod message;
mod server;
mod shard;

pub use crate::pause::pause_after;
pub use client::ServerClient;
pub use server::{Server, ServerPlan};
pub use shard::{Consistency, Shard, ShardUpdate, assign_buckets};
