//! Overwrites the values of a tensor in place, in CubeCL.
//!
//! In: a source tensor. Out: its values in the target's memory. Invariant: one unit writes each
//! element.

// The macro makes of each kernel a module with public functions.
#![allow(missing_docs, unreachable_pub)]

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{UNITS, vector_of};

/// Writes the f32 values of `source` into the memory of `target`.
///
/// # Panics
/// If shapes or types differ, or `target` has gaps between its values.
pub fn overwrite(target: &CubeTensor, source: CubeTensor) {
    assert_eq!(
        target.shape(),
        source.shape(),
        "overwrite: expected values of the target's shape"
    );
    assert_eq!(
        [target.dtype, source.dtype],
        [DType::F32; 2],
        "overwrite: expected two tensors of f32"
    );
    assert!(
        target.is_contiguous(),
        "overwrite: expected a target without gaps"
    );
    let source = into_contiguous(source);
    let len = target.shape().num_elements();
    let vector = vector_of(len);
    let client = source.client.clone();
    let address = source.required_address_type();
    copy::launch(
        &client,
        CubeCount::Static((len / vector).div_ceil(UNITS) as u32, 1, 1),
        CubeDim::new_1d(UNITS as u32),
        address,
        vector,
        source.into_buffer_arg(),
        target.clone().into_buffer_arg(),
        len / vector,
    );
}

#[cube(launch, address_type = "dynamic")]
fn copy<N: Size>(source: &[Vector<f32, N>], target: &mut [Vector<f32, N>], len: usize) {
    if ABSOLUTE_POS < len {
        target[ABSOLUTE_POS] = source[ABSOLUTE_POS];
    }
}
