//! Parameter servers: servers hold the parameters, workers push gradients and receive parameters.
//!
//! In: each worker's gradient of a bucket. Out: the bucket's parameters after the update.
//! Invariant: a worker has at most one pending push of a bucket.
//! Source: Li et al. 2014, OSDI, "Scaling distributed machine learning with the parameter server".
//!
//! Workers are ranks `0..num_workers`. A server runs on a thread of a worker's process, or on a
//! dedicated rank.

mod client;
mod message;
mod server;
mod shard;

use std::fmt;

pub use client::ServerClient;
pub use server::{Server, ServerPlan};
pub use shard::{Consistency, Shard, ShardUpdate, assign_buckets};

/// The ranks that are parameter servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "cli",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum ServerPlacement {
    /// The first ranks, which train as well.
    Beside,
    /// The last ranks, which only serve.
    Own,
}

impl fmt::Display for ServerPlacement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Beside => "beside",
            Self::Own => "own",
        })
    }
}
