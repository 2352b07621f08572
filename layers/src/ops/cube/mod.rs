//! The normalisation, and convolutions of few channels, on burn's GPU backend, by kernels of our own.
//!
//! In and out: as the trait says; tables of f32, bf16 or f16, statistics in f32. Invariant: how a table is divided, and so the order of
//! every sum, is a function of its shape alone; equal bits on every run. A normalisation is three launches forward and three backward, a
//! weight's gradient two, a convolution one; nothing waits.

mod convolution;
mod norm;
mod overwrite;
mod strip;
#[cfg(all(test, feature = "flex"))]
mod tests;
mod weight_gradient;

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::ops::ConvOptions;
use burn::backend::ops::conv::calculate_conv_output_sizes;
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::prelude::{CubeCount, CubeDim};
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use kernels::batch_norm::Rectifier;

use super::fused::{convolution_by_burn, input_gradient_by_burn, weight_gradient_by_burn};
use super::{LayerOps, NormEnd, NormTable};
use norm::TableLaunch;

/// Of a cube.
const UNITS: usize = 256;
/// Of a cube, in a row: neighbours read neighbouring vectors.
const MOST_UNITS_IN_A_ROW: usize = 32;
/// Of a lane, in a block; with fewer the second launch would have much to do.
const FEWEST_ROWS: usize = 4;
/// Some for each multiprocessor of the largest GPUs.
const MOST_CUBES: usize = 1024;

/// The shape of what sums a table over its rows.
pub(super) fn row(table: &TensorSpec) -> TensorSpec {
    let channels = table.shape.iter().last().copied().unwrap_or(1);
    TensorSpec::new(Shape::new([1, 1, channels]), DType::F32)
}

/// The same shape in f32.
pub(super) fn in_f32(tensor: &TensorSpec) -> TensorSpec {
    TensorSpec::new(tensor.shape.clone(), DType::F32)
}

/// What a convolution makes of a table `[N, H, W, C_in]`.
pub(super) fn convolved(
    input: &TensorSpec,
    weight: &TensorSpec,
    options: &ConvOptions<2>,
) -> TensorSpec {
    let ([images, height, width, _], [channels, _, kernel @ ..]) =
        (input.shape.dims::<4>(), weight.shape.dims::<4>());
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

impl LayerOps for CubeBackend {
    fn norm_moments(table: CubeTensor) -> (CubeTensor, CubeTensor) {
        let table = into_contiguous(table);
        let plan = Plan::of(&table);
        let [means, squares] = [(); 2].map(|()| plan.empty(&table, plan.blocks));
        let [mean, variance] = [(); 2].map(|()| plan.empty(&table, 1));
        let (client, address) = (table.client.clone(), table.required_address_type());
        let element = dtype_to_storage_type(table.dtype);
        norm::block_moments::launch(
            &client,
            plan.all(),
            plan.cube(),
            address,
            plan.vector,
            table.into_buffer_arg(),
            means.clone().into_buffer_arg(),
            squares.clone().into_buffer_arg(),
            plan.table(),
            plan.units(),
            element,
        );
        norm::whole_moments::launch(
            &client,
            plan.one_block(),
            plan.cube(),
            address,
            plan.vector,
            means.into_buffer_arg(),
            squares.into_buffer_arg(),
            mean.clone().into_buffer_arg(),
            variance.clone().into_buffer_arg(),
            plan.table(),
            plan.blocks,
            plan.units(),
        );
        (mean, variance)
    }

    fn norm_apply(saved: NormTable<Self>, residual: CubeTensor, end: NormEnd) -> CubeTensor {
        let table = into_contiguous(saved.input);
        let plan = Plan::of(&table);
        // Any tensor where there is none: it is not read then.
        let residual = if end.has_residual {
            like(residual, &table)
        } else {
            table.clone()
        };
        let [mean, variance, gamma, beta] = [saved.mean, saved.variance, saved.gamma, saved.beta]
            .map(|row| into_contiguous(row).into_buffer_arg());
        let output = plan.empty_like(&table);
        norm::apply::launch(
            &output.client,
            plan.all(),
            plan.cube(),
            table.required_address_type(),
            plan.vector,
            table.into_buffer_arg(),
            mean,
            variance,
            gamma,
            beta,
            residual.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            plan.table(),
            end.epsilon as f32,
            end.has_residual,
            end.rectifier != Rectifier::None,
            end.rectifier == Rectifier::Relu6,
            dtype_to_storage_type(output.dtype),
        );
        output
    }

    fn norm_gradient_sums(
        saved: NormTable<Self>,
        output: CubeTensor,
        dy: CubeTensor,
        end: NormEnd,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let table = into_contiguous(saved.input);
        let plan = Plan::of(&table);
        let dy = like(dy, &table);
        let is_rectified = end.rectifier != Rectifier::None;
        // Without a rectifier the gradient is what it was: `output` is not read, nothing is written here.
        let output = if is_rectified {
            like(output, &table)
        } else {
            dy.clone()
        };
        let gated = if is_rectified {
            plan.empty_like(&table)
        } else {
            plan.empty_gate(&table)
        };
        let [sums, sums_with_centred] = [(); 2].map(|()| plan.empty(&table, plan.blocks));
        let [plain, with_normalised] = [(); 2].map(|()| plan.empty(&table, 1));
        let (client, address) = (table.client.clone(), table.required_address_type());
        let element = dtype_to_storage_type(table.dtype);
        norm::block_gradient_sums::launch(
            &client,
            plan.all(),
            plan.cube(),
            address,
            plan.vector,
            table.into_buffer_arg(),
            into_contiguous(saved.mean).into_buffer_arg(),
            output.into_buffer_arg(),
            dy.clone().into_buffer_arg(),
            gated.clone().into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            sums_with_centred.clone().into_buffer_arg(),
            plan.table(),
            is_rectified,
            end.rectifier == Rectifier::Relu6,
            plan.units(),
            element,
        );
        norm::whole_gradient_sums::launch(
            &client,
            plan.one_block(),
            plan.cube(),
            address,
            plan.vector,
            sums.into_buffer_arg(),
            sums_with_centred.into_buffer_arg(),
            into_contiguous(saved.variance).into_buffer_arg(),
            plain.clone().into_buffer_arg(),
            with_normalised.clone().into_buffer_arg(),
            plan.table(),
            plan.blocks,
            end.epsilon as f32,
            plan.units(),
        );
        (
            if is_rectified { gated } else { dy },
            plain,
            with_normalised,
        )
    }

    fn norm_gradient_input(
        saved: NormTable<Self>,
        plain: CubeTensor,
        with_normalised: CubeTensor,
        dy: CubeTensor,
        end: NormEnd,
    ) -> CubeTensor {
        let table = into_contiguous(saved.input);
        let plan = Plan::of(&table);
        let dy = like(dy, &table);
        let [mean, variance, gamma, plain, with_normalised] = [
            saved.mean,
            saved.variance,
            saved.gamma,
            plain,
            with_normalised,
        ]
        .map(|row| into_contiguous(row).into_buffer_arg());
        let dx = plan.empty_like(&table);
        norm::gradient_input::launch(
            &dx.client,
            plan.all(),
            plan.cube(),
            table.required_address_type(),
            plan.vector,
            table.into_buffer_arg(),
            mean,
            variance,
            gamma,
            plain,
            with_normalised,
            dy.into_buffer_arg(),
            dx.clone().into_buffer_arg(),
            plan.table(),
            end.epsilon as f32,
            (1.0 / saved.num_values) as f32,
            dtype_to_storage_type(dx.dtype),
        );
        dx
    }

    fn overwrite(target: CubeTensor, source: CubeTensor) -> CubeTensor {
        overwrite::overwrite(&target, source);
        target
    }

    fn convolution(input: CubeTensor, weight: CubeTensor, options: ConvOptions<2>) -> CubeTensor {
        convolution::convolve(&input, &weight, &options, false)
            .unwrap_or_else(|| convolution_by_burn::<Self>(input, weight, options))
    }

    fn input_gradient(
        input: CubeTensor,
        weight: CubeTensor,
        dy: CubeTensor,
        options: ConvOptions<2>,
    ) -> CubeTensor {
        convolution::convolve(&dy, &weight, &options, true)
            .unwrap_or_else(|| input_gradient_by_burn::<Self>(input, weight, dy, options))
    }

    fn weight_gradient(
        input: CubeTensor,
        weight: CubeTensor,
        dy: CubeTensor,
        options: ConvOptions<2>,
    ) -> CubeTensor {
        weight_gradient::weight_gradient(&input, &weight.shape(), &dy, &options)
            .unwrap_or_else(|| weight_gradient_by_burn::<Self>(input, weight, dy, options))
    }
}

/// A tensor in a table's memory order and number format.
fn like(tensor: CubeTensor, table: &CubeTensor) -> CubeTensor {
    into_contiguous(cast(tensor, table.dtype))
}

/// How a table is divided over cubes and their units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    rows: usize,
    channels: usize,
    /// Channels in a vector.
    vector: usize,
    /// Of a cube: vectors of a row.
    width: usize,
    /// Of a cube: rows at a time, a power of two.
    lanes: usize,
    rows_of_block: usize,
    blocks: usize,
}

impl Plan {
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

    /// Cubes for all blocks.
    fn all(self) -> CubeCount {
        CubeCount::Static(self.tiles(), self.blocks as u32, 1)
    }

    fn one_block(self) -> CubeCount {
        CubeCount::Static(self.tiles(), 1, 1)
    }

    fn tiles(self) -> u32 {
        (self.channels / self.vector).div_ceil(self.width) as u32
    }

    /// Statistics of so many blocks, `[1, blocks, C]`.
    fn empty(self, table: &CubeTensor, blocks: usize) -> CubeTensor {
        empty(table, Shape::new([1, blocks, self.channels]), DType::F32)
    }

    fn empty_like(self, table: &CubeTensor) -> CubeTensor {
        empty(table, table.shape(), table.dtype)
    }

    /// Stands for a table that is not written.
    fn empty_gate(self, table: &CubeTensor) -> CubeTensor {
        empty(table, Shape::new([self.vector]), table.dtype)
    }
}

/// Channels in a vector.
fn vector_of(channels: usize) -> usize {
    [4, 2]
        .into_iter()
        .find(|size| channels.is_multiple_of(*size))
        .unwrap_or(1)
}

fn empty(table: &CubeTensor, shape: Shape, dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(table.client.clone(), table.device.clone(), shape, dtype)
}
