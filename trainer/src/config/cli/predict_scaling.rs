//! Flags of `trainer predict-scaling`.

#![allow(
    rustdoc::invalid_html_tags,
    rustdoc::broken_intra_doc_links,
    reason = "the comments here are texts of --help"
)]

use crate::config::choices::{OnOff, ScalingKind};
use crate::config::cli::{ComputeArgs, ModelSection};
use clap::Args;
use std::path::PathBuf;

/// Flags of `trainer predict-scaling`.
#[derive(Debug, Clone, Default, Args)]
pub struct PredictScalingArgs {
    /// Step to predict from: a file of bench --profile-output; a second one of another batch tells strong scaling what does not depend on the batch [default: measured now, with the flags of bench below]
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    pub profile: Option<Vec<PathBuf>>,

    /// Network: ib-edr, 10gbe, 1gbe, latency and bandwidth such as 50us,113MB/s, or a .json file of netbench --output; names may stand in one list, the flag may be repeated [default: ib-edr,10gbe,1gbe]
    #[arg(long, value_name = "NETWORK")]
    pub network: Option<Vec<String>>,

    /// Numbers of ranks that train, comma-separated [default: 1,2,4,8,16,32,64,128,256,512,1024]
    #[arg(long, value_name = "RANKS", value_delimiter = ',')]
    pub ranks: Option<Vec<usize>>,

    /// Ranks on each node, which share memory [default: as --network says, else 1]
    #[arg(long, value_name = "RANKS")]
    pub ranks_per_node: Option<usize>,

    /// Methods, comma-separated: allreduce[:mpi|:ring|:halving-doubling|:hierarchical][+bf16|+f16|+powersgd:RANK|+topk:PERCENT], exact, parameter-server[:SERVERS], async-parameter-server[:SERVERS[:STALENESS]], either with @own for servers on ranks of their own, local-sgd[:STEPS] [default: each of them, some twice]
    #[arg(long, value_name = "METHODS", value_delimiter = ',')]
    pub methods: Option<Vec<String>>,

    /// What stays as ranks are added: weak (the batch of each rank) or strong (the global batch) [default: weak]
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = true)]
    pub scaling: Option<ScalingKind>,

    /// Largest gradient bucket, MiB, as in training [default: an eighth of the gradients, 0.0625 to 0.5]
    #[arg(long, value_name = "MIB")]
    pub bucket_mib: Option<f64>,

    /// Let gradients travel while the backward pass goes on: on or off [default: on]
    #[arg(long, value_enum, value_name = "ON|OFF", hide_possible_values = true)]
    pub overlap: Option<OnOff>,

    /// Measured runs: lines of bench --json in a file, or the directory of a study; prints speedup, efficiency and for a global batch of fixed size Karp-Flatt serial shares, and how far predictions are off; may be repeated [default: none]
    #[arg(long, value_name = "FILE|DIR")]
    pub measured: Option<Vec<PathBuf>>,

    /// Compare published scaling figures with what the same simulation says of their networks [default: off]
    #[arg(long)]
    pub published: bool,

    /// Write the predictions into this file; of several networks into one each, with the network's name before the ending [default: none]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Print the same as one JSON object as the last line: an array of prediction files, and the measured groups [default: off]
    #[arg(long)]
    pub json: bool,

    /// Samples of one rank in one step that is measured now [default: 128]
    #[arg(long, value_name = "SAMPLES")]
    pub batch_size_per_rank: Option<usize>,

    /// Steps that are measured now [default: 20]
    #[arg(long, value_name = "STEPS")]
    pub steps: Option<usize>,

    /// Steps before them, not measured [default: 3, on a GPU 5]
    #[arg(long, value_name = "STEPS")]
    pub warmup_steps: Option<usize>,

    /// Which network, to be measured now.
    #[arg(skip)]
    pub model: ModelSection,
    /// Device and threads, to be measured with now.
    #[command(flatten)]
    pub compute: ComputeArgs,
}
