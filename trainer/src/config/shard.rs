//! What `trainer shard` does: its flags, filled.

use super::checks::at_least;
use super::error::ConfigError;
use crate::config::cli::ShardArgs;

/// Images of a shard where nobody says: at about 110 KB an image, shards of ImageNet have 110 MB.
const IMAGES_PER_SHARD: usize = 1000;

/// Images of one shard.
///
/// # Errors
/// A [`ConfigError`] where it is 0.
pub fn images_per_shard(args: &ShardArgs) -> Result<usize, ConfigError> {
    at_least(
        "--images-per-shard",
        args.images_per_shard.unwrap_or(IMAGES_PER_SHARD),
        1,
    )
}
