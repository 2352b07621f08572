//! Values of tensors, and how far lists of them are apart.

use burn::tensor::Tensor;

/// A tensor's values in logical order.
pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec::<f32>().expect("f32 tensor")
}

/// Largest absolute difference over the largest absolute expected value.
pub(crate) fn relative_difference(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0.0, |all: f64, v| {
            if v.is_nan() {
                f64::INFINITY
            } else {
                all.max(v.abs())
            }
        })
    };
    let pairs = found.iter().zip(expected);
    let difference = largest(&mut pairs.map(|(&a, &b)| f64::from(a) - f64::from(b)));
    let scale = largest(&mut expected.iter().map(|&v| f64::from(v)));
    difference / scale.max(f64::MIN_POSITIVE)
}
