//! Activations as groups of rows, and sums over the rows in two stages.
//!
//! In: `[N, H, W, C]`. Out: views `[groups, rows, C]`; means and sums of each channel, `[1, 1, C]`.
//! Invariant: a function of the shape alone, so that all ranks with equal batches round alike.
//!
//! A sum in one stage is slow on a GPU. It has one thread block for each vector of four channels: 4
//! blocks at 16 channels, for more than a hundred multiprocessors. A first sum over groups has
//! `groups` times as many blocks, and the second sum is small. Two stages also round less. burn's
//! fused kernels end when a tensor loses a dimension, so operations between two reductions keep all
//! three dimensions.

use burn::backend::Backend;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::Shape;

use crate::switches::Switches;

/// Values that the first stage leaves: 2,048 vectors of four.
const MOST_VALUES: usize = 8192;
/// Rows of a group; with fewer the second stage would have as much to do as the first.
const FEWEST_ROWS: usize = 32;
/// Groups of the rows of a channels-last tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tables {
    groups: usize,
    rows: usize,
    channels: usize,
}

impl Tables {
    /// Returns the groups of a tensor `[N, H, W, C]`.
    pub(super) fn of(shape: &Shape) -> Self {
        let [n, h, w, channels] = shape.dims();
        Self::new(n * h * w, channels, !Switches::current().one_stage_sums)
    }

    /// Returns the groups of a tensor made by [`Tables::view`].
    pub(super) fn viewed(shape: &Shape) -> Self {
        let [groups, rows, channels] = shape.dims();
        Self {
            groups,
            rows,
            channels,
        }
    }

    /// Returns a number of groups that divides the rows, with neither too many values nor too few
    /// rows per group. The number of images or a side of the images usually divides the rows.
    fn new(rows: usize, channels: usize, has_two_stages: bool) -> Self {
        let most = if has_two_stages {
            (MOST_VALUES / channels.max(1)).min(rows / FEWEST_ROWS)
        } else {
            1
        };
        let groups = (1..=most)
            .rev()
            .find(|groups| rows.is_multiple_of(*groups))
            .unwrap_or(1);
        Self {
            groups,
            rows: rows / groups,
            channels,
        }
    }

    /// Returns the number of values of each channel.
    pub(super) fn num_rows(self) -> usize {
        self.groups * self.rows
    }

    /// Returns `[N, H, W, C]` as `[groups, rows, C]`.
    pub(super) fn view<B: Backend>(self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        B::float_reshape(tensor, Shape::new([self.groups, self.rows, self.channels]))
    }

    /// Returns the mean of each channel, `[1, 1, C]`: all groups have equally many rows.
    pub(super) fn mean<B: Backend>(self, table: FloatTensor<B>) -> FloatTensor<B> {
        self.reduce::<B>(table, B::float_mean_dim)
    }

    /// Returns the sum of each channel, `[1, 1, C]`.
    pub(super) fn sum<B: Backend>(self, table: FloatTensor<B>) -> FloatTensor<B> {
        self.reduce::<B>(table, B::float_sum_dim)
    }

    fn reduce<B: Backend>(
        self,
        table: FloatTensor<B>,
        stage: impl Fn(FloatTensor<B>, usize) -> FloatTensor<B>,
    ) -> FloatTensor<B> {
        let of_groups = stage(table, 1);
        if self.groups == 1 {
            of_groups
        } else {
            stage(of_groups, 0)
        }
    }
}

/// Returns `[C]` as `[1, 1, C]`.
pub(super) fn as_row<B: Backend>(values: FloatTensor<B>) -> FloatTensor<B> {
    let channels = values.shape().num_elements();
    B::float_reshape(values, Shape::new([1, 1, channels]))
}

/// Returns `[1, 1, C]` as `[C]`.
pub(super) fn as_vector<B: Backend>(row: FloatTensor<B>) -> FloatTensor<B> {
    let channels = row.shape().num_elements();
    B::float_reshape(row, Shape::new([channels]))
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    #![allow(clippy::unwrap_used)] // A failed unwrap here is a failed test.

    use burn::backend::Flex;
    use burn::backend::flex::FlexTensor;
    use burn::tensor::TensorData;

    use super::*;

    #[test]
    fn every_layer_of_a_network_has_blocks_for_a_whole_gpu_and_groups_worth_a_block() {
        let layers = [
            ([128, 32, 32, 16], 512),
            ([128, 16, 16, 32], 256),
            ([128, 8, 8, 64], 128),
            ([96, 7, 7, 512], 16),
        ];
        for (shape, groups) in layers {
            let [n, h, w, channels] = shape;
            let expected = Tables {
                groups,
                rows: n * h * w / groups,
                channels,
            };
            assert_eq!(
                Tables::new(n * h * w, channels, true),
                expected,
                "{shape:?}"
            );
            assert!(
                groups * channels / 4 >= 132 && expected.rows >= FEWEST_ROWS,
                "{shape:?}"
            );
            assert_eq!(
                Tables::new(n * h * w, channels, false),
                Tables {
                    groups: 1,
                    rows: n * h * w,
                    channels
                }
            );
        }
    }

    #[test]
    fn rows_that_nothing_divides_and_few_rows_are_one_group() {
        for rows in [0, 1, 31, 45, 63, 8191] {
            assert_eq!(
                Tables::new(rows, 16, true),
                Tables {
                    groups: 1,
                    rows,
                    channels: 16
                }
            );
        }
        // A last batch of 97 images of 7x7 pixels.
        assert_eq!(
            Tables::new(97 * 49, 16, true),
            Tables {
                groups: 97,
                rows: 49,
                channels: 16
            }
        );
    }

    #[test]
    fn sums_and_means_over_groups_are_those_over_all_rows() {
        for rows in [45, 127, 96 * 49, 97 * 49] {
            let channels = 3;
            let values: Vec<f32> = (0..rows * channels)
                .map(|i| (i * 7919 % 1000) as f32 / 500.0 - 0.4)
                .collect();
            let tensor =
                || FlexTensor::from_data(TensorData::new(values.clone(), [1, rows, 1, channels]));
            let tables = Tables::new(rows, channels, true);
            assert_eq!(tables.num_rows(), rows);
            let read = |row: FlexTensor| {
                assert_eq!(row.shape().as_slice(), [1, 1, channels]);
                as_vector::<Flex>(row).as_slice::<f32>().unwrap().to_vec()
            };
            let sums = read(tables.sum::<Flex>(tables.view::<Flex>(tensor())));
            let means = read(tables.mean::<Flex>(tables.view::<Flex>(tensor())));
            for channel in 0..channels {
                let expected: f64 = values
                    .iter()
                    .skip(channel)
                    .step_by(channels)
                    .map(|&v| f64::from(v))
                    .sum();
                let near = |found: f32, expected: f64| {
                    (f64::from(found) - expected).abs() <= 1e-6 * expected.abs()
                };
                assert!(
                    near(sums[channel], expected),
                    "{} of {rows} rows, expected {expected}",
                    sums[channel]
                );
                assert!(
                    near(means[channel], expected / rows as f64),
                    "{} of {rows} rows",
                    means[channel]
                );
            }
        }
    }
}
