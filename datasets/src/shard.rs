//! The samples of a shard in each step of an epoch.
//!
//! In: (num_samples, global_batch_size, seed, epoch, shard_index, num_shards). Out: the indices of
//! each step.
//! Invariant: all shards have the same number of steps. Global batch k is the same set of samples
//! for every number of shards. An epoch reads every sample once, unless `drop_last` drops the
//! partial batch or the order is [balanced](ShardPlan::balanced).
//! Source: one shuffle per epoch, divided among the workers, as in arXiv 1706.02677, section 2.3.

use std::ops::Range;

use crate::dataset::ImageDataset;
use crate::error::DatasetError;
use crate::random::{Purpose, Stream};

/// Inputs of a plan. The shards of a job differ only in `shard_index`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// Number of samples in the data set.
    pub num_samples: usize,
    /// Number of samples of one step over all shards, a multiple of `num_shards`.
    pub global_batch_size: usize,
    /// Seed of the order.
    pub seed: u64,
    /// Epoch, from 0. Each epoch has a different order.
    pub epoch: u64,
    /// True for a random order, false for the order by index.
    pub shuffle: bool,
    /// True if a partial last global batch is dropped.
    pub drop_last: bool,
    /// Shard of this plan, in `0..num_shards`.
    pub shard_index: usize,
    /// Number of shards.
    pub num_shards: usize,
    /// Number of consecutive shards of this plan's reader, from `shard_index` on, at least one.
    /// Each shard is a separate batch, so that its results do not depend on the reader's other
    /// shards.
    pub num_own_shards: usize,
}

impl ShardConfig {
    /// Returns the inputs of a single shard: epoch 0, seed 0, order by index, with a partial last
    /// batch.
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

/// Samples of one shard in one epoch, step by step.
#[derive(Clone, Debug)]
pub struct ShardPlan {
    config: ShardConfig,
    /// Draw at each position. `None` is the order by index, which needs no memory.
    order: Option<Vec<usize>>,
}

/// One shard's part of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepShard {
    /// Number of samples of the step over all shards, which gives the weight of a partial batch.
    pub global_num_samples: usize,
    /// Samples of this shard. May be empty in the last step.
    pub indices: Vec<usize>,
    /// Number of each sample for its random augmentation: its index, plus `num_samples` for each
    /// earlier draw of the sample in this epoch.
    pub draws: Vec<usize>,
}

impl ShardPlan {
    /// Returns the plan of an epoch in the order of `config`.
    ///
    /// # Errors
    /// - If there are no samples or no shards.
    /// - If `shard_index` is out of range.
    /// - If the global batch is empty or not a multiple of `num_shards`.
    /// - If `drop_last` would leave no step.
    pub fn new(config: ShardConfig) -> Result<Self, DatasetError> {
        let ShardConfig {
            num_samples,
            global_batch_size,
            num_shards,
            shard_index,
            ..
        } = config;
        let refuse =
            |field, expected: String, got: usize| Err(DatasetError::config(field, expected, got));
        if num_samples == 0 {
            return refuse("num_samples", "at least 1".into(), 0);
        }
        if num_shards == 0 {
            return refuse("num_shards", "at least 1".into(), 0);
        }
        if shard_index >= num_shards {
            return refuse(
                "shard_index",
                format!("below num_shards {num_shards}"),
                shard_index,
            );
        }
        if !(1..=num_shards - shard_index).contains(&config.num_own_shards) {
            let expected = format!(
                "1 to {} from shard {shard_index} of {num_shards}",
                num_shards - shard_index
            );
            return refuse("num_own_shards", expected, config.num_own_shards);
        }
        if global_batch_size == 0 || global_batch_size % num_shards != 0 {
            let expected = format!("a positive multiple of num_shards {num_shards}");
            return refuse("global_batch_size", expected, global_batch_size);
        }
        if config.drop_last && num_samples < global_batch_size {
            let expected =
                format!("at most num_samples {num_samples} when drop_last drops the partial batch");
            return refuse("global_batch_size", expected, global_batch_size);
        }
        let order = config.shuffle.then(|| {
            Stream::new(config.seed, config.epoch, 0, Purpose::Permutation).permutation(num_samples)
        });
        Ok(Self { config, order })
    }

    /// Returns a plan like [`new`](Self::new), with a random order in which all classes are equally
    /// frequent. Each of the epoch's `num_samples` samples is drawn with replacement: first a
    /// class, with equal probabilities, then a sample of this class. The order equals that of
    /// PyTorch's `WeightedRandomSampler` with the inverse sizes of the samples' classes as weights.
    ///
    /// # Errors
    /// Returns an error in the cases of [`new`](Self::new).
    ///
    /// # Panics
    /// Panics if `config` is for another number of samples than `dataset` has.
    pub fn balanced(config: ShardConfig, dataset: &dyn ImageDataset) -> Result<Self, DatasetError> {
        let num_samples = dataset.len();
        assert_eq!(
            config.num_samples, num_samples,
            "num_samples of plan and data set"
        );
        let plan = Self::new(ShardConfig {
            shuffle: false,
            ..config
        })?;
        let mut members = vec![Vec::new(); dataset.class_names().len()];
        (0..num_samples).for_each(|index| members[dataset.label(index)].push(index));
        members.retain(|members| !members.is_empty());
        let mut stream = Stream::new(
            plan.config.seed,
            plan.config.epoch,
            0,
            Purpose::BalancedOrder,
        );
        let mut num_drawn = vec![0; num_samples];
        let mut draw = || {
            let class = &members[stream.below(members.len())];
            let index = class[stream.below(class.len())];
            num_drawn[index] += 1;
            index + (num_drawn[index] - 1) * num_samples
        };
        let order = (0..num_samples).map(|_| draw()).collect();
        Ok(Self {
            config: ShardConfig {
                shuffle: true,
                ..plan.config
            },
            order: Some(order),
        })
    }

    /// Returns the inputs of the plan.
    pub fn config(&self) -> &ShardConfig {
        &self.config
    }

    /// Returns the number of steps of the epoch, the same on every shard.
    pub fn num_steps(&self) -> usize {
        if self.config.drop_last {
            self.config.num_samples / self.config.global_batch_size
        } else {
            self.config
                .num_samples
                .div_ceil(self.config.global_batch_size)
        }
    }

    /// Returns the samples of a step for the plan's first shard.
    ///
    /// # Panics
    /// Panics if `step_in_epoch` is not below `num_steps`.
    pub fn step(&self, step_in_epoch: usize) -> StepShard {
        self.step_of(self.config.shard_index, step_in_epoch)
    }

    /// Returns the shards of this plan's reader.
    pub fn own_shards(&self) -> Range<usize> {
        self.config.shard_index..self.config.shard_index + self.config.num_own_shards
    }

    /// Returns a shard's samples of a step. Shard r of N has positions r, r + N, r + 2N … of the
    /// global batch.
    ///
    /// # Panics
    /// Panics if `step_in_epoch` is not below `num_steps`.
    pub fn step_of(&self, shard_index: usize, step_in_epoch: usize) -> StepShard {
        let positions = self.positions(step_in_epoch);
        let global_num_samples = positions.len();
        let own = (positions.start + shard_index..positions.end).step_by(self.config.num_shards);
        let draws: Vec<usize> = own.map(|position| self.draw(position)).collect();
        let indices = draws
            .iter()
            .map(|draw| draw % self.config.num_samples)
            .collect();
        StepShard {
            global_num_samples,
            indices,
            draws,
        }
    }

    /// Returns the [draws](StepShard::draws) of a step over all shards, in the order of the epoch.
    ///
    /// # Panics
    /// Panics if `step_in_epoch` is not below `num_steps`.
    pub fn global_draws(&self, step_in_epoch: usize) -> impl Iterator<Item = usize> {
        self.positions(step_in_epoch)
            .map(|position| self.draw(position))
    }

    fn positions(&self, step_in_epoch: usize) -> Range<usize> {
        assert!(
            step_in_epoch < self.num_steps(),
            "step_in_epoch: expected below {}, got {step_in_epoch}",
            self.num_steps()
        );
        let start = step_in_epoch * self.config.global_batch_size;
        start..(start + self.config.global_batch_size).min(self.config.num_samples)
    }

    fn draw(&self, position: usize) -> usize {
        self.order
            .as_ref()
            .map_or(position, |order| order[position])
    }

    /// Returns the largest number of samples of any shard in a step, which determines the number of
    /// micro-batches on all shards.
    pub(crate) fn max_shard_samples(&self, global_num_samples: usize) -> usize {
        global_num_samples.div_ceil(self.config.num_shards)
    }
}
