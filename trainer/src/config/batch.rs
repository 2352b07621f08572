//! The section `[batch]`.
//!
//! Invariant: global batch size = samples of a forward pass * parts, exactly.

use super::error::{ConfigError, conflict, invalid};
use super::sync::SyncMethod;
use crate::config::choices::{BatchNormKind, DatasetKind};
use crate::config::cli::BatchArgs;
use records::counted;
use serde::Serialize;

/// The samples of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct BatchSection {
    pub global_batch_size: usize,
    /// `None` with virtual shards.
    pub grad_accum_steps: Option<usize>,
    pub batch_norm: BatchNormKind,
}

impl BatchArgs {
    /// Applies the defaults for `num_workers` training ranks and rejects contradictions.
    pub(super) fn decide(
        self,
        dataset: DatasetKind,
        method: &SyncMethod,
        num_workers: usize,
    ) -> Result<BatchSection, ConfigError> {
        let shards = method.virtual_shards();
        let passes = self.grad_accum_steps.unwrap_or(1);
        if shards.is_some() && passes > 1 {
            return Err(conflict(
                "--grad-accum-steps",
                "--reduction exact",
                "a rank accumulates over its virtual shards; give --virtual-shards",
            ));
        }
        if shards.is_some() && self.batch_size_per_rank.is_some() {
            return Err(conflict(
                "--batch-size-per-rank",
                "--reduction exact",
                "its batches must not depend on the number of ranks; give --global-batch-size",
            ));
        }
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
            (Some(size), None) => size,
            (None, per_rank) => {
                let per_rank = per_rank.unwrap_or(default.div_ceil(parts));
                let expected = "a batch that can be counted";
                let product = per_rank.checked_mul(parts);
                product.ok_or_else(|| invalid("--batch-size-per-rank", expected, per_rank))?
            }
        };
        if !global_batch_size.is_multiple_of(parts) {
            let (among, remedy) = match shards {
                Some(shards) => (
                    format!("{shards} virtual shards"),
                    "another --virtual-shards",
                ),
                None => (
                    format!(
                        "{} times {} (global = per rank * accumulation * ranks)",
                        counted(num_workers, "rank"),
                        counted(passes, "accumulation step")
                    ),
                    "--batch-size-per-rank",
                ),
            };
            let below = match global_batch_size / parts * parts {
                0 => String::new(),
                below => format!("{below}, "),
            };
            let above = global_batch_size.div_ceil(parts).saturating_mul(parts);
            return Err(ConfigError(format!(
                "--global-batch-size {global_batch_size} does not divide among {among}: take {below}{above} or {remedy}"
            )));
        }
        Ok(BatchSection {
            global_batch_size,
            grad_accum_steps: shards.is_none().then_some(passes),
            batch_norm: self.batch_norm.unwrap_or(BatchNormKind::Local),
        })
    }
}

impl BatchSection {
    /// Returns the number of forward passes of all ranks in a step.
    pub(super) fn parts(&self, method: &SyncMethod, num_workers: usize) -> usize {
        method
            .virtual_shards()
            .unwrap_or_else(|| self.grad_accum_steps().saturating_mul(num_workers))
    }

    /// Returns the number of passes that a rank accumulates in a step; 1 with virtual shards.
    pub fn grad_accum_steps(&self) -> usize {
        self.grad_accum_steps.unwrap_or(1)
    }
}
