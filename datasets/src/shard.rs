//! Which samples a shard reads in each step of an epoch.
//!
//! In: (num_samples, global_batch_size, seed, epoch, shard_index, num_shards). Out: the indices of each step.
//! Invariant: all shards make the same number of steps; global batch k is the same set of samples for every number of
//! shards; in an epoch no sample is read twice and none is lost, unless `drop_last` drops the partial batch.
//! Source: one shuffle an epoch, split over the workers, as in arXiv 1706.02677, section 2.3.

use std::ops::Range;

use crate::error::DatasetError;
use crate::random::{Purpose, Stream};

/// What a plan is made from; all shards of a job differ in `shard_index` only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// The number of samples of the data set.
    pub num_samples: usize,
    /// The number of samples of one step over all shards; a multiple of `num_shards`.
    pub global_batch_size: usize,
    /// The seed of the order.
    pub seed: u64,
    /// The epoch, from 0; each has its own order.
    pub epoch: u64,
    /// Whether samples come in random order, or else by index.
    pub shuffle: bool,
    /// Whether the last global batch is dropped if it is partial.
    pub drop_last: bool,
    /// The shard that this plan is for, in `0..num_shards`.
    pub shard_index: usize,
    /// The number of shards.
    pub num_shards: usize,
    /// How many consecutive shards from `shard_index` on this plan's reader takes, at least 1: each is a batch of its own, so
    /// that what is computed of a shard does not depend on who else's shards the reader has.
    pub num_own_shards: usize,
}

impl ShardConfig {
    /// The only shard there is, of epoch 0, by index, with the last batch even where it is partial, and seed 0.
    pub fn new(num_samples: usize, global_batch_size: usize) -> Self {
        Self {
            num_samples,
            global_batch_size,
            seed: 0,
            epoch: 0,
            shuffle: false,
            drop_last: false,
            shard_index: 0,
            num_shards: 1,
            num_own_shards: 1,
        }
    }
}

/// The samples of one shard in one epoch, step by step.
#[derive(Clone, Debug)]
pub struct ShardPlan {
    config: ShardConfig,
    /// None is the order by index, which needs no memory.
    permutation: Option<Vec<usize>>,
}

/// One shard's part of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepShard {
    /// The number of samples of the step over all shards: the weight of a partial batch.
    pub global_num_samples: usize,
    /// This shard's samples; may be empty in the last step.
    pub indices: Vec<usize>,
}

impl ShardPlan {
    /// Draws the epoch's order.
    ///
    /// # Errors
    /// If there are no samples or no shards, `shard_index` is out of range, the global batch is empty or not a multiple of
    /// `num_shards`, or `drop_last` would leave no step.
    pub fn new(config: ShardConfig) -> Result<Self, DatasetError> {
        let ShardConfig { num_samples, global_batch_size, num_shards, shard_index, .. } = config;
        let refuse = |field, expected: String, got: usize| Err(DatasetError::config(field, expected, got));
        if num_samples == 0 {
            return refuse("num_samples", "at least 1".into(), 0);
        }
        if num_shards == 0 {
            return refuse("num_shards", "at least 1".into(), 0);
        }
        if shard_index >= num_shards {
            return refuse("shard_index", format!("below num_shards {num_shards}"), shard_index);
        }
        if !(1..=num_shards - shard_index).contains(&config.num_own_shards) {
            let expected = format!("1 to {} from shard {shard_index} of {num_shards}", num_shards - shard_index);
            return refuse("num_own_shards", expected, config.num_own_shards);
        }
        if global_batch_size == 0 || global_batch_size % num_shards != 0 {
            let expected = format!("a positive multiple of num_shards {num_shards}");
            return refuse("global_batch_size", expected, global_batch_size);
        }
        if config.drop_last && num_samples < global_batch_size {
            let expected = format!("at most num_samples {num_samples} when drop_last drops the partial batch");
            return refuse("global_batch_size", expected, global_batch_size);
        }
        let permutation = config
            .shuffle
            .then(|| Stream::new(config.seed, config.epoch, 0, Purpose::Permutation).permutation(num_samples));
        Ok(Self { config, permutation })
    }

    /// What the plan was made from.
    pub fn config(&self) -> &ShardConfig {
        &self.config
    }

    /// The number of steps of the epoch, the same on every shard.
    pub fn num_steps(&self) -> usize {
        if self.config.drop_last {
            self.config.num_samples / self.config.global_batch_size
        } else {
            self.config.num_samples.div_ceil(self.config.global_batch_size)
        }
    }

    /// The plan's first shard's samples of a step.
    ///
    /// # Panics
    /// If `step_in_epoch` is not below `num_steps`.
    pub fn step(&self, step_in_epoch: usize) -> StepShard {
        self.step_of(self.config.shard_index, step_in_epoch)
    }

    /// The shards of this plan's reader.
    pub fn own_shards(&self) -> Range<usize> {
        self.config.shard_index..self.config.shard_index + self.config.num_own_shards
    }

    /// A shard's samples of a step: positions r, r + N, r + 2N … of the global batch for shard r of N.
    ///
    /// # Panics
    /// If `step_in_epoch` is not below `num_steps`.
    pub fn step_of(&self, shard_index: usize, step_in_epoch: usize) -> StepShard {
        assert!(
            step_in_epoch < self.num_steps(),
            "step_in_epoch: expected below {}, got {step_in_epoch}",
            self.num_steps()
        );
        let start = step_in_epoch * self.config.global_batch_size;
        let end = (start + self.config.global_batch_size).min(self.config.num_samples);
        StepShard {
            global_num_samples: end - start,
            indices: (start + shard_index..end)
                .step_by(self.config.num_shards)
                .map(|position| self.permutation.as_ref().map_or(position, |order| order[position]))
                .collect(),
        }
    }

    /// The largest number of samples that any shard has in a step, by which all shards count their micro-batches.
    pub(crate) fn max_shard_samples(&self, global_num_samples: usize) -> usize {
        global_num_samples.div_ceil(self.config.num_shards)
    }
}
