//! The section `[batch]`.
//!
//! Invariant: global batch size = samples of a forward pass * parts, exactly.

use super::checks::{at_least, conflict, invalid};
use super::error::ConfigError;
use super::sync::SyncMethod;
use crate::config::choices::{BatchNormKind, DatasetKind};
use crate::config::cli::BatchArgs;
use serde::Serialize;

/// The samples of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct BatchSection {
    pub global_batch_size: usize,
    /// Absent with virtual shards.
    pub grad_accum_steps: Option<usize>,
    pub batch_norm: BatchNormKind,
}

impl BatchArgs {
    /// Applies the defaults for `num_workers` training ranks and refuses contradictions.
    pub(super) fn decide(
        self,
        dataset: DatasetKind,
        method: &SyncMethod,
        num_workers: usize,
    ) -> Result<BatchSection, ConfigError> {
        let passes = at_least("--grad-accum-steps", self.grad_accum_steps.unwrap_or(1), 1)?;
        let shards = method.virtual_shards();
        let parts = shards.unwrap_or_else(|| passes.saturating_mul(num_workers));
        let default: usize = match dataset {
            DatasetKind::Shapes | DatasetKind::Synthetic => 64,
            _ => 128,
        };
        let global_batch_size = match (self.global_batch_size, self.batch_size_per_rank) {
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
            (None, None) => product(default.div_ceil(parts), parts)?,
            (Some(size), None) => at_least("--global-batch-size", size, 1)?,
        };
        if !global_batch_size.is_multiple_of(parts) {
            let (among, remedy) = match shards {
                Some(shards) => (
                    format!("{shards} virtual shards"),
                    "another --virtual-shards",
                ),
                None => (
                    format!(
                        "{num_workers} rank(s) times {passes} accumulation step(s) \
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
        Ok(BatchSection {
            global_batch_size,
            grad_accum_steps: shards.is_none().then_some(passes),
            batch_norm: self.batch_norm.unwrap_or(BatchNormKind::Local),
        })
    }
}

impl BatchSection {
    /// Returns the forward passes that all ranks together make in a step.
    pub(super) fn parts(&self, method: &SyncMethod, num_workers: usize) -> usize {
        method
            .virtual_shards()
            .unwrap_or_else(|| self.grad_accum_steps().saturating_mul(num_workers))
    }

    /// Returns the passes that a rank accumulates in a step; 1 with virtual shards.
    pub fn grad_accum_steps(&self) -> usize {
        self.grad_accum_steps.unwrap_or(1)
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
