//! Flags of `trainer predict-scaling`.

use crate::config::choices::OnOff;
use crate::config::cli::{ComputeArgs, ModelSection};
use clap::Args;
use serde::Serialize;
use simulate::Scaling;
use std::path::PathBuf;

/// Flags of `trainer predict-scaling`.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PredictScalingArgs {
    /// Files of bench --profile-output; strong scaling takes two [default: measured now]
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    #[serde(skip)]
    pub profile: Option<Vec<PathBuf>>,

    /// Networks: ib-edr, 10gbe, 50us,113MB/s, a netbench .json [default: ib-edr,10gbe,1gbe]
    #[arg(long)]
    pub network: Option<Vec<String>>,

    /// Numbers of training ranks, comma-separated [default: 1,2,4,8,16,32,64,128,256,512,1024]
    #[arg(long, value_delimiter = ',')]
    pub ranks: Option<Vec<usize>>,

    /// Ranks on each node, which share memory [default: as --network says, else 1]
    #[arg(long, value_name = "RANKS")]
    pub ranks_per_node: Option<usize>,

    /// Methods, comma-separated, such as allreduce:ring, exact, local-sgd:8 [default: nine of them]
    #[arg(long, value_delimiter = ',')]
    pub methods: Option<Vec<String>>,

    /// Batch that stays the same as ranks are added [default: weak]
    #[arg(long, value_name = "KIND")]
    pub scaling: Option<Scaling>,

    /// Largest gradient bucket, MiB [default: 1/8 of the gradients, 0.0625 to 0.5]
    #[arg(long, value_name = "MIB")]
    pub bucket_mib: Option<f64>,

    /// Communicate gradients during the backward pass [default: on]
    #[arg(long, value_name = "ON|OFF")]
    pub overlap: Option<OnOff>,

    /// Measured runs to compare: lines of bench --json, or a study; repeatable [default: none]
    #[arg(long, value_name = "FILE|DIR")]
    #[serde(skip)]
    pub measured: Option<Vec<PathBuf>>,

    /// Compare published scaling figures with the simulation [default: off]
    #[arg(long)]
    #[serde(skip)]
    pub published: bool,

    /// File for the predictions; one for each network [default: none]
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub output: Option<PathBuf>,

    /// Print one JSON object as the last line [default: off]
    #[arg(long)]
    #[serde(skip)]
    pub json: bool,

    /// Samples of one rank in a step that is measured now [default: 128]
    #[arg(long, value_name = "SAMPLES")]
    pub batch_size_per_rank: Option<usize>,

    /// Steps that are measured now [default: 20]
    #[arg(long)]
    pub steps: Option<usize>,

    /// Steps before the measured ones [default: 3; on a GPU 5]
    #[arg(long, value_name = "STEPS")]
    pub warmup_steps: Option<usize>,

    /// The network that is measured now.
    #[arg(skip)]
    pub model: ModelSection,
    /// Device and threads, to be measured with now.
    #[command(flatten)]
    pub compute: ComputeArgs,
}
