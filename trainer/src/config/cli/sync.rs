//! Flags of synchronisation: how the ranks' gradients or parameters become one.
//!
//! In: flags, or TOML with the flags' names as keys. Out: options. Invariant: unknown keys are refused.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::config::choices::{
    Compression, OnOff, PlacementKind, ReductionChoice, SyncKind, UpdateKind,
};

/// How the ranks' gradients or parameters become one.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Synchronisation")]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SyncArgs {
    /// Method: allreduce, parameter-server, async-parameter-server, local-sgd or post-local-sgd [default: allreduce]
    #[arg(long, value_enum, value_name = "METHOD", hide_possible_values = true)]
    pub sync: Option<SyncKind>,

    /// How allreduce sums: mpi (the library), ring, halving-doubling, hierarchical (inside each machine, then between them), exact (the same bits on any number of ranks) or nccl (on the GPUs, where NVIDIA's library is found; needs --device cuda) [default: hierarchical, the fastest measured]
    #[arg(
        long,
        value_enum,
        value_name = "ALGORITHM",
        hide_possible_values = true
    )]
    pub reduction: Option<ReductionChoice>,

    /// Parts of a global batch that --reduction exact computes one by one; at least one a rank [default: 8]
    #[arg(long, value_name = "SHARDS")]
    pub virtual_shards: Option<usize>,

    /// Let gradients travel while the backward pass goes on: on or off [default: on]
    #[arg(long, value_enum, value_name = "ON|OFF", hide_possible_values = true)]
    pub overlap: Option<OnOff>,

    /// Largest gradient bucket that is sent at once, MiB; the first is at most 0.25 [default: an eighth of the gradients, 0.0625 to 0.5]
    #[arg(long, value_name = "MIB")]
    pub bucket_mib: Option<f64>,

    /// Where gradients become parameters: host, or device, which a rank keeps both on that trains alone [default: device for cuda, else host]
    #[arg(long, value_enum, value_name = "WHERE", hide_possible_values = true)]
    pub update: Option<UpdateKind>,

    /// Compress gradients on the wire: none, bf16, f16, powersgd:RANK or topk:PERCENT [default: none]
    #[arg(long, value_name = "KIND")]
    pub compress: Option<Compression>,

    /// First steps that are sent uncompressed (powersgd and topk) [default: 10, of bench 0]
    #[arg(long, value_name = "STEPS")]
    pub compress_warmup_steps: Option<u64>,

    /// Parameter servers, which share the parameters by size [default: 1]
    #[arg(long, value_name = "SERVERS")]
    pub servers: Option<usize>,

    /// Where they are: beside (on the first ranks, which train as well) or own (the last ranks do nothing else) [default: beside]
    #[arg(long, value_enum, value_name = "PLACE", hide_possible_values = true)]
    pub server_placement: Option<PlacementKind>,

    /// Steps that a rank of async-parameter-server may be ahead of the slowest; 0 is synchronous [default: no bound]
    #[arg(long, value_name = "STEPS")]
    pub staleness: Option<u64>,

    /// Steps between two averagings of the parameters (local-sgd, post-local-sgd) [default: 8]
    #[arg(long, value_name = "STEPS")]
    pub every: Option<u64>,

    /// First step of post-local-sgd that is local [default: none, required for it]
    #[arg(long, value_name = "STEP")]
    pub from_step: Option<u64>,

    /// Longest that a rank may wait for others that make no progress before all stop, seconds [default: 120]
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,

    /// Write what every rank did when, its first 1048576 stretches, into this file, as a Chrome trace (chrome://tracing, Perfetto); train --resume has to be told again [default: none]
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}
