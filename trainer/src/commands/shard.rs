//! `trainer shard`: writes tar files of samples from a folder of images.
//!
//! In: flags. Out: a folder that `--dataset shards` reads. Invariant: the folder is complete or
//! absent.

use anyhow::Result;
use datasets::tar_shards;
use records::counted;

use crate::config::cli::ShardArgs;
use crate::config::invalid;
use crate::world::ranks::World;

/// Default of `--images-per-shard`: at about 110 KB per image, a shard of ImageNet has 110 MB.
const IMAGES_PER_SHARD: usize = 1000;

/// Writes the shards.
///
/// # Errors
/// If the folder of images has no training split, or the target is not empty. Also if a file cannot
/// be read or written, or a signal requests the end.
pub fn shard(args: &ShardArgs, world: &World) -> Result<()> {
    let images_per_shard = args.images_per_shard.unwrap_or(IMAGES_PER_SHARD);
    if images_per_shard == 0 {
        return Err(invalid("--images-per-shard", "a whole number from 1", 0).into());
    }
    let mut go_on = |name: &str| {
        world.reporter.note(&format!("{name} is written"));
        !world.stop.is_raised()
    };
    let written = tar_shards::write(&args.from, &args.to, images_per_shard, &mut go_on)?;
    written
        .notes
        .iter()
        .for_each(|note| world.reporter.warn(note));
    world.reporter.note(&format!(
        "{} in {} in {}",
        counted(written.num_images, "image"),
        counted(written.num_shards, "shard"),
        args.to.display()
    ));
    Ok(())
}
