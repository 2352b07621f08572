//! Batches of any arrays: what most tasks other than image classification need.
//!
//! In: arrays of floats or integers in host memory. Out: the same arrays as tensors.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::{OnDevice, Upload};

/// Arrays on a device, in the order of the host's.
#[derive(Clone, Debug)]
pub struct Arrays {
    arrays: Vec<Array>,
    /// True if f32 holds every value.
    fits_floats: bool,
}

/// Largest magnitude up to which f32 holds every integer.
const MAX_INTEGER: u32 = 1 << 24;

/// One array, flat, because a transfer to a GPU would pad each short row of a matrix.
#[derive(Clone, Debug)]
struct Array {
    shape: Vec<usize>,
    values: Values,
}

#[derive(Clone, Debug)]
enum Values {
    Float(Tensor<1>),
    Int(Tensor<1, Int>),
}

impl Upload for Vec<TensorData> {
    type OnDevice = Arrays;

    fn upload(self, device: &Device) -> Arrays {
        let fits = |data: &TensorData| match data.dtype() {
            DType::F32 => true,
            DType::I32 => data.as_slice::<i32>().is_ok_and(|values| {
                values
                    .iter()
                    .all(|value| value.unsigned_abs() <= MAX_INTEGER)
            }),
            _ => false,
        };
        let fits_floats = self.iter().all(fits);
        let arrays = self.into_iter().map(|data| {
            let (bytes, shape, dtype) = data.into_parts();
            let shape = shape.to_vec();
            let len = [shape.iter().product::<usize>()];
            let flat = TensorData::from_bytes(bytes, len, dtype);
            let values = match dtype.is_float() {
                true => Values::Float(Tensor::from_data(flat, device)),
                false => Values::Int(Tensor::from_data(flat, device)),
            };
            Array { shape, values }
        });
        Arrays {
            arrays: arrays.collect(),
            fits_floats,
        }
    }
}

impl Arrays {
    /// Returns an array of floats.
    ///
    /// # Panics
    /// If the array has integers, other dimensions than `D`, or does not exist.
    pub fn floats<const D: usize>(&self, index: usize) -> Tensor<D> {
        let Array { shape, values } = &self.arrays[index];
        match values {
            Values::Float(values) => values.clone().reshape(dims::<D>(shape)),
            Values::Int(_) => panic!("array {index}: expected floats, got integers"),
        }
    }

    /// Returns an array of integers.
    ///
    /// # Panics
    /// If the array has floats, other dimensions than `D`, or does not exist.
    pub fn ints<const D: usize>(&self, index: usize) -> Tensor<D, Int> {
        let Array { shape, values } = &self.arrays[index];
        match values {
            Values::Int(values) => values.clone().reshape(dims::<D>(shape)),
            Values::Float(_) => panic!("array {index}: expected integers, got floats"),
        }
    }
}

fn dims<const D: usize>(shape: &[usize]) -> [usize; D] {
    shape
        .try_into()
        .unwrap_or_else(|_| panic!("array: expected {D} dimensions, got {shape:?}"))
}

impl OnDevice for Arrays {
    fn flat(&self) -> Option<Vec<Tensor<1>>> {
        let flat = |array: &Array| match &array.values {
            Values::Float(values) => values.clone(),
            Values::Int(values) => values.clone().float(),
        };
        self.fits_floats
            .then(|| self.arrays.iter().map(flat).collect())
    }

    fn sizes(&self) -> Vec<usize> {
        let sizes = |array: &Array| [&[array.shape.len()][..], &array.shape].concat();
        self.arrays.iter().flat_map(sizes).collect()
    }

    fn with_flat(&self, tensors: Vec<Tensor<1>>) -> Self {
        let array = |(array, values): (&Array, Tensor<1>)| Array {
            shape: array.shape.clone(),
            values: match array.values {
                Values::Float(_) => Values::Float(values),
                Values::Int(_) => Values::Int(values.int()),
            },
        };
        Self {
            arrays: self.arrays.iter().zip(tensors).map(array).collect(),
            fits_floats: self.fits_floats,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_keep_their_values_through_upload_and_flattening() {
        let host = vec![
            TensorData::new(vec![1.5_f32, -2.0, 0.25, 8.0], [2, 2]),
            TensorData::new(vec![7_i32, -1], [2]),
        ];
        let arrays = host.upload(&Device::flex());
        let again = arrays.with_flat(arrays.flat().unwrap());
        for arrays in [arrays, again] {
            let floats = arrays.floats::<2>(0).into_data();
            assert_eq!(floats.as_slice::<f32>().unwrap(), [1.5, -2.0, 0.25, 8.0]);
            let ints = arrays.ints::<1>(1).into_data();
            assert_eq!(ints.as_slice::<i32>().unwrap(), [7, -1]);
        }
    }
}
