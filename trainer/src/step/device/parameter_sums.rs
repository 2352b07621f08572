//! Sums over each parameter of a flat tensor, and factors for each parameter.
//!
//! In: a flat tensor of a placement. Out: one value per parameter, and such values at every
//! element.
//! Invariant: the order of additions is fixed. A library's reduction may choose another order on
//! each GPU, and then replicas would drift apart. The number of launches depends on the longest
//! parameter, not on the number of parameters.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::placement::GRANULE;

/// Largest number of values that are added in one row.
const ROW: usize = 128;

/// The granules of each parameter, as indices on the device.
#[derive(Clone, Debug)]
pub(super) struct ParameterSums {
    /// Rows of granules, each of one parameter; the index after the last granule stands for zero.
    granules: Tensor<1, Int>,
    /// For each parameter its rows, padded in the same way.
    rows: Tensor<1, Int>,
    /// Parameter of each granule.
    owners: Tensor<1, Int>,
    num_parameters: usize,
}

impl ParameterSums {
    /// Returns the sums of parameters with these numbers of granules, in their order.
    pub(super) fn new(num_granules: &[usize], device: &Device) -> Self {
        let whole: usize = num_granules.iter().sum();
        let most_rows = num_granules.iter().map(|count| count.div_ceil(ROW)).max();
        let num_rows: usize = num_granules.iter().map(|count| count.div_ceil(ROW)).sum();
        let mut granules = Vec::with_capacity(num_rows * ROW);
        let mut rows = Vec::new();
        let mut owners = Vec::with_capacity(whole);
        let mut first = 0;
        for (parameter, &count) in num_granules.iter().enumerate() {
            let begun = granules.len() / ROW;
            granules.extend((first..first + count).map(|granule| granule as i32));
            granules.resize(granules.len().next_multiple_of(ROW), whole as i32);
            rows.extend((begun..granules.len() / ROW).map(|row| row as i32));
            rows.resize((parameter + 1) * most_rows.unwrap_or(0), num_rows as i32);
            owners.resize(owners.len() + count, parameter as i32);
            first += count;
        }
        let upload = |indices: Vec<i32>| {
            let len = indices.len();
            Tensor::from_data(TensorData::new(indices, [len]), device)
        };
        Self {
            granules: upload(granules),
            rows: upload(rows),
            owners: upload(owners),
            num_parameters: num_granules.len(),
        }
    }

    /// Returns the L2 norm of each parameter, `[num_parameters]`.
    pub(super) fn norms(&self, whole: Tensor<1>) -> Tensor<1> {
        self.squares(whole).sqrt()
    }

    /// Returns the L2 norm of all parameters, `[1]`.
    pub(super) fn norm(&self, whole: Tensor<1>) -> Tensor<1> {
        sum_rows(self.squares(whole).reshape([1, self.num_parameters])).sqrt()
    }

    /// Multiplies the elements of each parameter by its factor in `[num_parameters]`.
    pub(super) fn scaled(&self, whole: Tensor<1>, factors: Tensor<1>) -> Tensor<1> {
        let [len] = whole.dims();
        let factors = factors.select(0, self.owners.clone());
        let factors = factors.reshape([len / GRANULE, 1]);
        (whole.reshape([len / GRANULE, GRANULE]) * factors).reshape([len])
    }

    fn squares(&self, whole: Tensor<1>) -> Tensor<1> {
        let [len] = whole.dims();
        let squares = whole.clone() * whole;
        let sums = sum_rows(squares.reshape([len / GRANULE, GRANULE]));
        let sums = sum_rows(chosen(sums, &self.granules, ROW));
        let [num_places] = self.rows.dims();
        sum_rows(chosen(sums, &self.rows, num_places / self.num_parameters))
    }
}

/// Returns rows of the values at `indices`, with zero after the last value.
fn chosen(values: Tensor<1>, indices: &Tensor<1, Int>, width: usize) -> Tensor<2> {
    let zero = Tensor::zeros([1], &values.device());
    let [num_places] = indices.dims();
    let chosen = Tensor::cat(vec![values, zero], 0).select(0, indices.clone());
    chosen.reshape([num_places / width, width])
}

/// Returns the sum of each row, by halves that are added to each other.
fn sum_rows(mut rows: Tensor<2>) -> Tensor<1> {
    let [num_rows, mut width] = rows.dims();
    while width > 1 {
        let half = width / 2;
        let columns = |from: usize, to: usize| rows.clone().slice([0..num_rows, from..to]);
        let sums = columns(0, half) + columns(half, 2 * half);
        rows = if width.is_multiple_of(2) {
            sums
        } else {
            Tensor::cat(vec![sums, columns(2 * half, width)], 1)
        };
        width = width.div_ceil(2);
    }
    rows.reshape([num_rows])
}

#[cfg(feature = "flex")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::floats;

    #[test]
    fn norms_and_factors_are_those_of_each_parameter_of_any_length() {
        let device = Device::flex();
        // Below, at and above one row, and several rows.
        let counts = [1, ROW, ROW + 1, 2, 5 * ROW + 3];
        let sums = ParameterSums::new(&counts, &device);
        let whole: Vec<f32> = counts
            .iter()
            .enumerate()
            .flat_map(|(parameter, &count)| vec![(parameter + 1) as f32; count * GRANULE])
            .collect();
        let squares: Vec<f32> = counts
            .iter()
            .enumerate()
            .map(|(parameter, &count)| ((parameter + 1).pow(2) * count * GRANULE) as f32)
            .collect();
        let tensor = |values: &[f32]| {
            let data = TensorData::new(values.to_vec(), [values.len()]);
            Tensor::<1>::from_data(data, &device)
        };
        let read = |tensor: Tensor<1>| floats(tensor.into_data()).unwrap();
        // The sums of these squares are exact.
        let norms: Vec<f32> = squares.iter().map(|square| square.sqrt()).collect();
        assert_eq!(read(sums.norms(tensor(&whole))), norms);
        let norm = squares.iter().sum::<f32>().sqrt();
        assert_eq!(read(sums.norm(tensor(&whole))), [norm]);
        let factors: Vec<f32> = (1..=counts.len())
            .map(|parameter| (parameter as f32).recip())
            .collect();
        let ones = read(sums.scaled(tensor(&whole), tensor(&factors)));
        assert!(ones.iter().all(|value| (value - 1.0).abs() < 1e-6));
    }
}
