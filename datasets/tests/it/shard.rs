//! Shard plans for all small sizes: cover, disjoint, ordered, equal step counts, the same global
//! batches for every number of shards.

use std::collections::BTreeSet;

use datasets::{DatasetError, ImageDataset, ImageShape, ShardConfig, ShardPlan};

const NUM_SAMPLES: std::ops::RangeInclusive<usize> = 1..=30;
const MAX_SHARDS: usize = 5;
const MAX_PER_SHARD: usize = 4;

/// Returns the plans that `new` makes for all shards of a job.
fn plans_by(
    base: &ShardConfig,
    num_shards: usize,
    new: impl Fn(ShardConfig) -> Result<ShardPlan, DatasetError>,
) -> Vec<ShardPlan> {
    let of_shard = |shard_index| ShardConfig {
        shard_index,
        num_shards,
        ..base.clone()
    };
    let plans = (0..num_shards).map(|shard_index| new(of_shard(shard_index)));
    plans.collect::<Result<_, _>>().unwrap()
}

fn plans(base: &ShardConfig, num_shards: usize) -> Vec<ShardPlan> {
    plans_by(base, num_shards, ShardPlan::new)
}

fn config(num_samples: usize, global_batch_size: usize) -> ShardConfig {
    ShardConfig {
        seed: 3,
        epoch: 1,
        shuffle: true,
        ..ShardConfig::new(num_samples, global_batch_size)
    }
}

/// Calls `check` with every valid combination of small sizes.
fn for_all_small_sizes(mut check: impl FnMut(&ShardConfig, &[ShardPlan])) {
    for num_samples in NUM_SAMPLES {
        for num_shards in 1..=MAX_SHARDS {
            for per_shard in 1..=MAX_PER_SHARD {
                for flags in 0..4 {
                    let config = ShardConfig {
                        shuffle: flags & 1 == 1,
                        drop_last: flags & 2 == 2,
                        ..config(num_samples, num_shards * per_shard)
                    };
                    if config.drop_last && num_samples < config.global_batch_size {
                        continue;
                    }
                    check(&config, &plans(&config, num_shards));
                }
            }
        }
    }
}

/// Returns the samples of a step in the order of the permutation, joined from all shards.
fn global_batch(plans: &[ShardPlan], step: usize) -> Vec<usize> {
    let shards: Vec<Vec<usize>> = plans.iter().map(|plan| plan.step(step).indices).collect();
    let len = shards.iter().map(Vec::len).sum();
    (0..len)
        .map(|position| shards[position % shards.len()][position / shards.len()])
        .collect()
}

#[test]
fn every_sample_is_seen_once_per_epoch() {
    for_all_small_sizes(|config, plans| {
        let mut seen = vec![0; config.num_samples];
        for plan in plans {
            for step in 0..plan.num_steps() {
                for index in plan.step(step).indices {
                    seen[index] += 1;
                }
            }
        }
        let num_dropped = seen.iter().filter(|count| **count == 0).count();
        assert!(seen.iter().all(|count| *count <= 1), "{config:?}: {seen:?}");
        let expected = if config.drop_last {
            config.num_samples % config.global_batch_size
        } else {
            0
        };
        assert_eq!(num_dropped, expected, "{config:?}");
    });
}

#[test]
fn all_shards_make_the_same_number_of_steps() {
    for_all_small_sizes(|config, plans| {
        let full = config.num_samples / config.global_batch_size;
        let partial = config.num_samples % config.global_batch_size > 0 && !config.drop_last;
        for plan in plans {
            assert_eq!(plan.num_steps(), full + usize::from(partial), "{config:?}");
        }
    });
}

#[test]
fn shares_of_a_step_add_up_to_its_weight_and_differ_by_one_at_most() {
    for_all_small_sizes(|config, plans| {
        for step in 0..plans[0].num_steps() {
            let shards: Vec<_> = plans.iter().map(|plan| plan.step(step)).collect();
            let lens: Vec<usize> = shards.iter().map(|shard| shard.indices.len()).collect();
            let global_num_samples: usize = lens.iter().sum();
            for shard in &shards {
                assert_eq!(shard.global_num_samples, global_num_samples, "{config:?}");
            }
            assert!(lens.is_sorted_by(|a, b| a >= b), "{config:?}: {lens:?}");
            assert!(lens[0] - lens[lens.len() - 1] <= 1, "{config:?}: {lens:?}");
            let is_last = step + 1 == plans[0].num_steps();
            let remainder = config.num_samples % config.global_batch_size;
            let expected = if is_last && remainder > 0 && !config.drop_last {
                remainder
            } else {
                config.global_batch_size
            };
            assert_eq!(global_num_samples, expected, "{config:?}");
        }
    });
}

#[test]
fn a_global_batch_is_the_same_for_every_number_of_shards() {
    for num_samples in NUM_SAMPLES {
        // Sixty is divisible by all of 1..=5, twelve by all of 1..=4.
        for (global_batch_size, max_shards) in [(60, 5), (12, 4)] {
            let config = config(num_samples, global_batch_size);
            let alone = plans(&config, 1);
            for num_shards in 2..=max_shards {
                let together = plans(&config, num_shards);
                for step in 0..alone[0].num_steps() {
                    assert_eq!(
                        global_batch(&together, step),
                        alone[0].step(step).indices,
                        "{config:?}, {num_shards} shards, step {step}"
                    );
                }
            }
        }
    }
}

#[test]
fn without_shuffling_samples_come_by_index() {
    for_all_small_sizes(|config, plans| {
        if !config.shuffle {
            let order: Vec<usize> = (0..plans[0].num_steps())
                .flat_map(|step| global_batch(plans, step))
                .collect();
            assert_eq!(order, (0..order.len()).collect::<Vec<_>>(), "{config:?}");
        }
    });
}

#[test]
fn seed_and_epoch_alone_decide_the_order() {
    let order = |seed, epoch| {
        let config = ShardConfig {
            seed,
            epoch,
            ..config(1000, 1000)
        };
        ShardPlan::new(config).unwrap().step(0).indices
    };
    assert_eq!(order(1, 2), order(1, 2));
    assert_ne!(order(1, 2), order(1, 3));
    assert_ne!(order(1, 2), order(2, 2));
    assert_ne!(order(1, 2), order(2, 1));
    let first: BTreeSet<usize> = (0..200).map(|epoch| order(1, epoch)[0] / 100).collect();
    assert_eq!(first.len(), 10, "the first sample may be any");
}

#[test]
fn the_order_of_a_seed_never_changes_between_versions() {
    // This program wrote them: a changed order would silently change every run that continues from
    // a checkpoint.
    let plan = ShardPlan::new(config(10, 10)).unwrap();
    assert_eq!(plan.step(0).indices, [8, 4, 6, 2, 1, 5, 7, 9, 0, 3]);
}

#[test]
fn a_partial_batch_may_leave_shards_empty() {
    let config = config(9, 8);
    let lens: Vec<usize> = plans(&config, 4)
        .iter()
        .map(|plan| plan.step(1).indices.len())
        .collect();
    assert_eq!(lens, [1, 0, 0, 0]);
}

#[test]
fn settings_that_cannot_work_are_refused_with_both_numbers() {
    let message = |config| ShardPlan::new(config).unwrap_err().to_string();
    let shards = |config, shard_index, num_shards| ShardConfig {
        shard_index,
        num_shards,
        ..config
    };
    assert_eq!(
        message(shards(config(10, 7), 0, 2)),
        "global_batch_size: expected a positive multiple of num_shards 2, got 7"
    );
    assert_eq!(
        message(shards(config(10, 4), 2, 2)),
        "shard_index: expected below num_shards 2, got 2"
    );
    let dropped = ShardConfig {
        drop_last: true,
        ..config(3, 4)
    };
    assert_eq!(
        message(dropped),
        "global_batch_size: expected at most num_samples 3 when drop_last drops the partial batch, got 4"
    );
    assert!(ShardPlan::new(config(0, 4)).is_err());
    assert!(ShardPlan::new(config(4, 0)).is_err());
    assert!(ShardPlan::new(shards(config(4, 4), 0, 0)).is_err());
}

/// A data set with 90 samples of class 0, 9 of class 1, none of class 2 and 1 of class 3.
struct Unbalanced(Vec<String>);

impl ImageDataset for Unbalanced {
    fn name(&self) -> &str {
        "unbalanced"
    }

    fn len(&self) -> usize {
        100
    }

    fn image_shape(&self) -> ImageShape {
        ImageShape {
            height: 1,
            width: 1,
            channels: 1,
        }
    }

    fn class_names(&self) -> &[String] {
        &self.0
    }

    fn label(&self, index: usize) -> usize {
        match index {
            0..90 => 0,
            90..99 => 1,
            _ => 3,
        }
    }

    fn read_image(&self, _: usize, _: &mut [u8]) -> Result<(), DatasetError> {
        Ok(())
    }

    fn checksum(&self) -> String {
        String::new()
    }
}

#[test]
fn a_balanced_order_draws_every_class_alike_and_the_same_global_batches_on_any_number_of_shards() {
    let dataset = Unbalanced(["a", "b", "c", "d"].map(str::to_owned).to_vec());
    let plans = |epoch: u64, num_shards: usize| -> Vec<ShardPlan> {
        let base = ShardConfig {
            epoch,
            ..config(100, 12)
        };
        plans_by(&base, num_shards, |config| {
            ShardPlan::balanced(config, &dataset)
        })
    };
    let mut counts = [0usize; 4];
    for epoch in 0..300 {
        let alone = &plans(epoch, 1)[0];
        let order: Vec<usize> = (0..alone.num_steps())
            .flat_map(|step| alone.global_draws(step).map(|draw| draw % 100))
            .collect();
        assert_eq!(order.len(), 100);
        order
            .iter()
            .for_each(|index| counts[dataset.label(*index)] += 1);
        let draws: BTreeSet<usize> = (0..alone.num_steps())
            .flat_map(|step| alone.step(step).draws)
            .collect();
        assert_eq!(
            draws.len(),
            100,
            "a sample that comes again is changed in another way"
        );
        for num_shards in if epoch < 3 { 2..=4 } else { 2..=2 } {
            let shards = plans(epoch, num_shards);
            let of_shards: Vec<usize> = (0..alone.num_steps())
                .flat_map(|step| global_batch(&shards, step))
                .collect();
            assert_eq!(of_shards, order, "{num_shards} shards");
        }
    }
    // Five standard deviations of a binomial with n = 30,000 and p = 1/3 are 408.
    assert!(
        [0, 1, 3]
            .iter()
            .all(|class| counts[*class].abs_diff(10_000) < 408)
            && counts[2] == 0,
        "{counts:?}"
    );
}
