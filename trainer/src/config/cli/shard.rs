//! Flags of `trainer shard`, which makes shards of a folder of images.

use clap::Args;
use std::path::PathBuf;

/// Flags of `trainer shard`.
#[derive(Debug, Clone, Args)]
pub struct ShardArgs {
    /// Folder of images, as --data-dir of --dataset image-folder [required]
    #[arg(long, value_name = "DIR")]
    pub from: PathBuf,

    /// New or empty folder for the shards [required]
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,

    /// Images of one shard [default: 1000]
    #[arg(long, value_name = "IMAGES")]
    pub images_per_shard: Option<usize>,
}
