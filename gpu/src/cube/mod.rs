//! CubeCL kernels: normalisation of tables, convolutions of few channels, overwriting.
//!
//! In and out: tensors of f32, bf16 or f16 on burn's CubeCL backend, statistics in f32.
//! Invariant: the partition of a table, and so the order of every sum, depends only on its shape.
//! Every run has equal bits. A normalisation takes three launches forward and three backward, a
//! weight gradient two, a convolution one. No launch waits.

mod convolution;
pub mod implicit_gemm;
mod norm;
mod overwrite;
mod strip;
#[cfg(test)]
mod tests;
mod weight_gradient;

use burn::backend::TensorMetadata;
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::ops::ConvOptions;
use burn::backend::ops::conv::calculate_conv_output_sizes;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl::ir::DeviceProperties;
use burn_cubecl::cubecl::prelude::{CubeCount, CubeDim};
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use norm::TableLaunch;

pub use convolution::{convolve, takes_convolution};
pub use norm::{Norm, NormEnd, apply, gradient_input, gradient_sums, moments};
pub use overwrite::overwrite;
pub use weight_gradient::weight_gradient;

/// Units of a cube.
const UNITS: usize = 256;
/// Units of a cube along x; neighbours read neighbouring vectors.
const MOST_UNITS_IN_A_ROW: usize = 32;
/// Fewest rows of a lane in a block. Fewer rows make the second launch slow.
const FEWEST_ROWS: usize = 4;
/// Number of cubes: several for each multiprocessor of the largest GPUs.
const MOST_CUBES: usize = 1024;

/// Returns the shape of a table's sums over its rows.
pub fn row(table: &TensorSpec) -> TensorSpec {
    let channels = table.shape.iter().last().copied().unwrap_or(1);
    TensorSpec::new(Shape::new([1, 1, channels]), DType::F32)
}

/// Returns a description of the same shape in f32.
pub fn in_f32(tensor: &TensorSpec) -> TensorSpec {
    TensorSpec::new(tensor.shape.clone(), DType::F32)
}

/// Returns the shape of the convolution's output for a table `[N, H, W, C_in]`.
pub fn convolved(input: &TensorSpec, weight: &TensorSpec, options: &ConvOptions<2>) -> TensorSpec {
    let [images, height, width, _] = input.shape.dims::<4>();
    let [channels, _, kernel @ ..] = weight.shape.dims::<4>();
    let sides = calculate_conv_output_sizes(
        &kernel,
        &options.stride,
        &options.padding,
        &options.dilation,
        &[height, width],
    );
    TensorSpec::new(
        Shape::new([images, sides[0], sides[1], channels]),
        input.dtype,
    )
}

/// Returns true if the device has matrix units for this number format that the convolutions use.
pub fn has_matrix_units(device: &DeviceProperties, dtype: DType) -> bool {
    strip::Factors::of(dtype).is_some_and(|factors| factors.staged(dtype, device).is_some())
}

/// Returns a tensor with the memory order and number format of a table.
fn like(tensor: CubeTensor, table: &CubeTensor) -> CubeTensor {
    into_contiguous(cast(tensor, table.dtype))
}

/// Partition of a table into cubes and their units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TablePlan {
    rows: usize,
    channels: usize,
    /// Channels per vector.
    vector: usize,
    /// Vectors of a row that a cube reads.
    width: usize,
    /// Rows that a cube reads at once, a power of two.
    lanes: usize,
    rows_of_block: usize,
    blocks: usize,
}

impl TablePlan {
    fn of(table: &CubeTensor) -> Self {
        let shape = table.shape();
        let channels = shape.iter().last().copied().unwrap_or(1).max(1);
        Self::new(shape.num_elements() / channels, channels)
    }

    fn new(rows: usize, channels: usize) -> Self {
        let vector = vector_of(channels);
        let width = (channels / vector).min(MOST_UNITS_IN_A_ROW);
        let lanes = 1 << (UNITS / width).ilog2();
        let most = (MOST_CUBES / (channels / vector).div_ceil(width)).max(1);
        let rows_of_block = rows
            .div_ceil(rows.div_ceil(lanes * FEWEST_ROWS).clamp(1, most))
            .max(1);
        Self {
            rows,
            channels,
            vector,
            width,
            lanes,
            rows_of_block,
            blocks: rows.div_ceil(rows_of_block).max(1),
        }
    }

    fn table(self) -> TableLaunch {
        TableLaunch::new(self.rows, self.channels / self.vector, self.rows_of_block)
    }

    fn units(self) -> usize {
        self.width * self.lanes
    }

    fn cube(self) -> CubeDim {
        CubeDim::new_2d(self.width as u32, self.lanes as u32)
    }

    /// Returns the number of cubes for all blocks.
    fn all(self) -> CubeCount {
        CubeCount::Static(self.tiles(), self.blocks as u32, 1)
    }

    fn one_block(self) -> CubeCount {
        CubeCount::Static(self.tiles(), 1, 1)
    }

    fn tiles(self) -> u32 {
        (self.channels / self.vector).div_ceil(self.width) as u32
    }

    /// Returns memory for the statistics of `blocks` blocks, `[1, blocks, C]`.
    fn empty(self, table: &CubeTensor, blocks: usize) -> CubeTensor {
        empty(table, Shape::new([1, blocks, self.channels]), DType::F32)
    }

    fn empty_like(self, table: &CubeTensor) -> CubeTensor {
        empty(table, table.shape(), table.dtype)
    }

    /// Returns a placeholder for a table that is not written.
    fn empty_gate(self, table: &CubeTensor) -> CubeTensor {
        empty(table, Shape::new([self.vector]), table.dtype)
    }
}

/// Returns the number of channels per vector.
fn vector_of(channels: usize) -> usize {
    [4, 2]
        .into_iter()
        .find(|size| channels.is_multiple_of(*size))
        .unwrap_or(1)
}

fn empty(table: &CubeTensor, shape: Shape, dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(table.client.clone(), table.device.clone(), shape, dtype)
}
