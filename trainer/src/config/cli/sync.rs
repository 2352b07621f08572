//! Flags of synchronisation: the combination of gradients or parameters of all ranks.
//!
//! In: flags, or TOML with the flags' names as keys. Out: options. Invariant: unknown keys are
//! rejected.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::config::choices::{
    Compression, OnOff, ReductionChoice, ServerPlacement, SyncKind, UpdateKind,
};

/// Synchronisation of the ranks.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Synchronisation")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SyncArgs {
    /// Method of synchronisation [default: allreduce]
    #[arg(long, value_name = "METHOD")]
    pub sync: Option<SyncKind>,

    /// Algorithm of allreduce [default: nccl for cuda if it loads, else hierarchical]
    #[arg(long, value_name = "ALGORITHM")]
    pub reduction: Option<ReductionChoice>,

    /// Parts of a global batch with --reduction exact; at least one a rank [default: 8]
    #[arg(long, value_name = "SHARDS")]
    pub virtual_shards: Option<usize>,

    /// Communicate gradients during the backward pass [default: on]
    #[arg(long, value_name = "ON|OFF")]
    pub overlap: Option<OnOff>,

    /// Largest gradient bucket, MiB [default: 1/8 of the gradients, 0.0625 to 0.5]
    #[arg(long, value_name = "MIB")]
    pub bucket_mib: Option<f64>,

    /// Place where gradients become parameters [default: device for cuda if possible, else host]
    #[arg(long, value_name = "WHERE")]
    pub update: Option<UpdateKind>,

    /// Compression of gradients: none, bf16, f16, powersgd:RANK or topk:PERCENT [default: none]
    #[arg(long, value_name = "KIND")]
    pub compress: Option<Compression>,

    /// First steps without compression (powersgd, topk) [default: 10; bench 0]
    #[arg(long, value_name = "STEPS")]
    pub compress_warmup_steps: Option<u64>,

    /// Parameter servers, which share the parameters by size [default: 1]
    #[arg(long)]
    pub servers: Option<usize>,

    /// Ranks that are parameter servers [default: `beside`]
    #[arg(long, value_name = "PLACE")]
    pub server_placement: Option<ServerPlacement>,

    /// Steps that a rank may be ahead of the slowest; 0: synchronous [default: no bound]
    #[arg(long, value_name = "STEPS")]
    pub staleness: Option<u64>,

    /// Steps between averagings of the parameters (local-sgd, post-local-sgd) [default: 8]
    #[arg(long, value_name = "STEPS")]
    pub every: Option<u64>,

    /// First local step of post-local-sgd; required for it [default: none]
    #[arg(long, value_name = "STEP")]
    pub from_step: Option<u64>,

    /// Longest wait for ranks without progress before all stop, seconds [default: 120]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,

    /// File for a Chrome trace of all ranks [default: none]
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}
