//! Defaults and checks of the flags of a batch.
//!
//! Invariant: global batch size = samples of a forward pass * parts, exactly.

use super::checks::{Filled, at_least, conflict, invalid};
use super::error::ConfigError;
use super::sync::SyncMethod;
use crate::config::choices::{BatchNormKind, DatasetKind};
use crate::config::cli::BatchArgs;

impl BatchArgs {
    /// Fills the gaps for `num_workers` ranks that train, and refuses what contradicts itself.
    pub(super) fn fill(
        &mut self,
        dataset: DatasetKind,
        method: &SyncMethod,
        num_workers: usize,
    ) -> Result<(), ConfigError> {
        let grad_accum_steps =
            at_least("--grad-accum-steps", self.grad_accum_steps.unwrap_or(1), 1)?;
        self.grad_accum_steps = method
            .virtual_shards()
            .is_none()
            .then_some(grad_accum_steps);
        let parts = self.parts(method, num_workers);
        let default = if matches!(dataset, DatasetKind::Shapes | DatasetKind::Synthetic) {
            64
        } else {
            128
        };
        let global_batch_size = match (self.global_batch_size, self.batch_size_per_rank.take()) {
            (Some(_), Some(_)) => {
                return Err(conflict(
                    "--global-batch-size",
                    "--batch-size-per-rank",
                    "give one of them (global = per rank * accumulation * ranks)",
                ));
            }
            (None, Some(per_rank)) => {
                product(at_least("--batch-size-per-rank", per_rank, 1)?, parts)?
            }
            (None, None) => product(usize::div_ceil(default, parts), parts)?,
            (Some(global_batch_size), None) => {
                at_least("--global-batch-size", global_batch_size, 1)?
            }
        };
        if global_batch_size % parts != 0 {
            let (among, remedy) = match method.virtual_shards() {
                Some(shards) => (
                    format!("{shards} virtual shards"),
                    "another --virtual-shards",
                ),
                None => (
                    format!(
                        "{num_workers} rank(s) times {grad_accum_steps} accumulation step(s) \
                         (global = per rank * accumulation * ranks)"
                    ),
                    "--batch-size-per-rank",
                ),
            };
            return Err(ConfigError::IndivisibleBatch {
                global_batch_size,
                among,
                remedy,
                nearest_below: Some(global_batch_size / parts * parts).filter(|below| *below > 0),
                nearest_above: global_batch_size.div_ceil(parts).saturating_mul(parts),
            });
        }
        self.global_batch_size = Some(global_batch_size);
        self.batch_norm.get_or_insert(BatchNormKind::Local);
        Ok(())
    }

    /// Forward passes that all ranks together make in a step.
    pub(super) fn parts(&self, method: &SyncMethod, num_workers: usize) -> usize {
        method
            .virtual_shards()
            .unwrap_or_else(|| self.grad_accum_steps().saturating_mul(num_workers))
    }

    /// Forward and backward passes of a step on a rank, but for those of virtual shards.
    pub fn grad_accum_steps(&self) -> usize {
        self.grad_accum_steps.unwrap_or(1)
    }

    /// Samples of one rank's forward pass.
    pub(super) fn micro_batch_size(&self, method: &SyncMethod, num_workers: usize) -> usize {
        self.global_batch_size.filled() / self.parts(method, num_workers)
    }
}

fn product(micro_batch_size: usize, parts: usize) -> Result<usize, ConfigError> {
    micro_batch_size.checked_mul(parts).ok_or_else(|| {
        invalid(
            "--batch-size-per-rank",
            "a batch that can be counted",
            micro_batch_size,
        )
    })
}
