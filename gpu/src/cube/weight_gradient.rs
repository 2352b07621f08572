//! The weight gradient of a convolution with few channels, in CubeCL.
//!
//! In: an input `[N, H, W, C_in]` and the gradient of the output `[N, H_out, W_out, C_out]` in f32,
//! bf16 or f16.
//! Out: `[C_out, k, k, C_in]` in f32. `tiles` computes most 3x3 kernels that keep the image's size
//! on matrix units, if the device has them. Otherwise a cube computes a block of output rows. Each
//! unit along x has some channels of input and output, and all taps of the kernel. The units along
//! y, called lanes, iterate over the rows. A unit keeps its sums in registers until its last row.
//! Invariant: sums are f32, without atomics, in an order that depends only on the shapes: the
//! pixels of a lane, then the lanes, then the blocks in a second launch.

// The macro makes of each kernel a module with public functions.
#![allow(missing_docs, unreachable_pub)]

mod tiles;

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::{ConvOptions, FloatTensorOps};
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::convolution::keeps_size;
use super::norm::add_lanes;
use super::{empty, vector_of};

/// Units of a cube; each has up to 144 sums in its registers.
const UNITS: usize = 128;
/// Cubes: two for each multiprocessor of the largest GPUs. The sums of each cube are written and
/// read again, so more cubes would be slower.
const MOST_CUBES: usize = 256;
/// Units of the second launch along x.
const UNITS_IN_A_ROW: usize = 32;
/// Lanes of the second launch, a power of two.
const LANES: usize = 8;
/// Largest kernel whose taps fit the registers of a unit.
const LARGEST_KERNEL: usize = 3;
/// Most channels of input and output. With more channels burn's matrix products are faster,
/// although they need a copy of the windows.
const MOST_CHANNELS: usize = 64;

/// Returns the gradient of a weight `[C_out, C_in, k, k]`. Returns `None` if burn computes this
/// shape equally fast.
pub fn weight_gradient(
    input: &CubeTensor,
    weight: &Shape,
    dy: &CubeTensor,
    options: &ConvOptions<2>,
) -> Option<CubeTensor> {
    let [channels_out, channels_in, kernel, kernel_width] = weight.dims::<4>();
    let is_ours = kernel == kernel_width
        && (2..=LARGEST_KERNEL).contains(&kernel)
        && channels_out.max(channels_in) <= MOST_CHANNELS
        && *options
            == ConvOptions::new([options.stride[0]; 2], [options.padding[0].0; 2], [1, 1], 1);
    if !is_ours {
        return None;
    }
    let input = into_contiguous(input.clone());
    let dy = into_contiguous(dy.clone());
    let by_tiles = if keeps_size(weight, options) {
        tiles::block_sums(&input, &dy)
    } else {
        None
    };
    let (sums, blocks) = by_tiles.unwrap_or_else(|| block_sums(&input, kernel, dy, options));
    let whole = empty(
        &input,
        Shape::new([channels_out, kernel, kernel, channels_in]),
        DType::F32,
    );
    let vector = vector_of(channels_in);
    let columns = whole.shape().num_elements() / vector;
    let address = sums.required_address_type();
    whole_weight_gradient::launch(
        &input.client,
        CubeCount::Static(columns.div_ceil(UNITS_IN_A_ROW) as u32, 1, 1),
        CubeDim::new_2d(UNITS_IN_A_ROW as u32, LANES as u32),
        address,
        vector,
        sums.into_buffer_arg(),
        whole.clone().into_buffer_arg(),
        columns,
        blocks,
        UNITS_IN_A_ROW * LANES,
    );
    Some(CubeBackend::float_permute(whole, &[0, 3, 1, 2]))
}

/// Returns the sums of each block, computed without matrix units, and the number of blocks.
fn block_sums(
    input: &CubeTensor,
    kernel: usize,
    dy: CubeTensor,
    options: &ConvOptions<2>,
) -> (CubeTensor, usize) {
    let of_input = input.shape().dims::<4>();
    let of_output = dy.shape().dims::<4>();
    let plan = WeightGradientPlan::new(of_input, of_output);
    let sums = empty(
        input,
        Shape::new([plan.blocks, of_output[3], kernel, kernel, of_input[3]]),
        DType::F32,
    );
    let window = plan.window(of_input, of_output, options);
    let client = input.client.clone();
    let address = input
        .required_address_type()
        .max(dy.required_address_type())
        .max(sums.required_address_type());
    let element = dtype_to_storage_type(input.dtype);
    block_weight_gradients::launch(
        &client,
        CubeCount::Static(plan.tiles as u32, plan.blocks as u32, 1),
        CubeDim::new_2d(plan.units_in_a_row as u32, plan.lanes as u32),
        address,
        plan.vector_in,
        plan.vector_out,
        input.clone().into_buffer_arg(),
        dy.into_buffer_arg(),
        sums.clone().into_buffer_arg(),
        window,
        kernel,
        plan.vector_out,
        plan.units_in_a_row * plan.lanes,
        element,
    );
    (sums, plan.blocks)
}

/// Partition of the outputs into cubes and their units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WeightGradientPlan {
    /// Rows of all outputs.
    rows: usize,
    /// Channels per vector.
    vector_out: usize,
    vector_in: usize,
    /// Vector pairs that a cube computes.
    units_in_a_row: usize,
    /// Rows that a cube reads at once.
    lanes: usize,
    /// Number of cubes for all pairs.
    tiles: usize,
    rows_of_block: usize,
    blocks: usize,
}

impl WeightGradientPlan {
    fn new(
        [.., channels_in]: [usize; 4],
        [images, height_out, _, channels_out]: [usize; 4],
    ) -> Self {
        let vector_out = vector_of(channels_out);
        let vector_in = vector_of(channels_in);
        let pairs = channels_out / vector_out * (channels_in / vector_in);
        let units_in_a_row = pairs.min(UNITS);
        let lanes = UNITS / units_in_a_row;
        let tiles = pairs.div_ceil(units_in_a_row);
        let rows = images * height_out;
        let rows_of_block = rows.div_ceil((MOST_CUBES / tiles).max(1)).max(lanes);
        let blocks = rows.div_ceil(rows_of_block).max(1);
        Self {
            rows,
            vector_out,
            vector_in,
            units_in_a_row,
            lanes,
            tiles,
            rows_of_block,
            blocks,
        }
    }

    fn window(
        &self,
        [_, height, width, channels_in]: [usize; 4],
        [_, height_out, width_out, channels_out]: [usize; 4],
        options: &ConvOptions<2>,
    ) -> WindowLaunch {
        WindowLaunch::new(
            self.rows,
            self.rows_of_block,
            height_out,
            width_out,
            height,
            width,
            channels_out / self.vector_out,
            channels_in / self.vector_in,
            options.stride[0],
            options.padding[0].0,
        )
    }
}

/// Sizes of a convolution.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Window {
    /// Rows of all outputs, `N * H_out`.
    rows: usize,
    rows_of_block: usize,
    height_out: usize,
    width_out: usize,
    height: usize,
    width: usize,
    /// Channel vectors of the input.
    columns_out: usize,
    columns_in: usize,
    stride: usize,
    padding: usize,
}

// tidy: long function because its sums are in registers, which cannot be passed to a function.
/// Computes the sums of each block: `[blocks, C_out, taps, C_in]`.
#[cube(launch, address_type = "dynamic")]
pub(super) fn block_weight_gradients<E: Float, I: Size, O: Size>(
    input: &[Vector<E, I>],
    dy: &[Vector<E, O>],
    sums: &mut [Vector<f32, I>],
    window: &Window,
    #[comptime] kernel: usize,
    #[comptime] vector_out: usize,
    #[comptime] units: usize,
    #[define(E)] _element: ElemType,
) {
    let taps = comptime!(kernel * kernel);
    let pair = (CUBE_POS_X * CUBE_DIM_X + UNIT_POS_X) as usize;
    let column_out = pair / window.columns_in;
    let column_in = pair % window.columns_in;
    let is_used = column_out < window.columns_out;
    let mut sum = Array::<Vector<f32, I>>::new(comptime!(taps * vector_out));
    #[unroll]
    for at in 0..comptime!(taps * vector_out) {
        sum[at] = Vector::new(0.0f32);
    }

    let mut row = CUBE_POS_Y as usize * window.rows_of_block + UNIT_POS_Y as usize;
    let end = (CUBE_POS_Y as usize + 1) * window.rows_of_block;
    let end = select(is_used, select(end < window.rows, end, window.rows), 0);
    while row < end {
        let image = row / window.height_out;
        // First input row under the window, counted from `padding` rows above the image.
        let top = row % window.height_out * window.stride;
        let mut left = 0usize;
        for x in 0..window.width_out {
            let gradient = Vector::<f32, O>::cast_from(
                dy[(row * window.width_out + x) * window.columns_out + column_out],
            );
            #[unroll]
            for tap in 0..taps {
                let y = top + comptime!(tap / kernel);
                let x = left + comptime!(tap % kernel);
                let is_inside = y >= window.padding
                    && y < window.padding + window.height
                    && x >= window.padding
                    && x < window.padding + window.width;
                let pixel = (image * window.height + y) * window.width + x
                    - window.padding * (window.width + 1);
                let at = select(is_inside, pixel * window.columns_in + column_in, 0);
                let value = Vector::<f32, I>::cast_from(input[at]);
                let value = select(is_inside, value, Vector::new(0.0f32));
                #[unroll]
                for channel in 0..vector_out {
                    sum[comptime!(channel * taps + tap)] +=
                        value * Vector::new(gradient.extract(channel));
                }
            }
            left += window.stride;
        }
        row += CUBE_DIM_Y as usize;
    }

    // A few channels per pass, because the shared memory is small.
    let unit = UNIT_POS as usize;
    let width = CUBE_DIM_X as usize;
    let mut lanes = Shared::<[Vector<f32, I>]>::new_slice(comptime!(taps * units));
    #[unroll]
    for channel in 0..vector_out {
        #[unroll]
        for tap in 0..taps {
            lanes[tap * units + unit] = sum[comptime!(channel * taps + tap)];
        }
        sync_cube();
        let mut part = unit;
        while part < taps * width {
            let tap = part / width;
            let pair = CUBE_POS_X as usize * width + part % width;
            let column_out = pair / window.columns_in;
            if column_out < window.columns_out {
                let mut whole = Vector::<f32, I>::new(0.0f32);
                for lane in 0..CUBE_DIM_Y as usize {
                    whole += lanes[tap * units + lane * width + part % width];
                }
                let channel =
                    (CUBE_POS_Y as usize * window.columns_out + column_out) * vector_out + channel;
                sums[(channel * taps + tap) * window.columns_in + pair % window.columns_in] = whole;
            }
            part += units;
        }
        sync_cube();
    }
}

/// Adds the sums of all blocks: `[C_out, taps, C_in]`, in `columns` vectors.
#[cube(launch, address_type = "dynamic")]
pub(super) fn whole_weight_gradient<I: Size>(
    sums: &[Vector<f32, I>],
    whole: &mut [Vector<f32, I>],
    columns: usize,
    blocks: usize,
    #[comptime] units: usize,
) {
    let column = (CUBE_POS_X * CUBE_DIM_X + UNIT_POS_X) as usize;
    let mut even = Vector::<f32, I>::new(0.0f32);
    let mut odd = Vector::<f32, I>::new(0.0f32);
    if column < columns {
        let step = 2 * CUBE_DIM_Y as usize;
        let mut block = 2 * UNIT_POS_Y as usize;
        while block < blocks {
            even += sums[block * columns + column];
            if block + 1 < blocks {
                odd += sums[(block + 1) * columns + column];
            }
            block += step;
        }
    }
    let (even, odd) = add_lanes::<I>(even, odd, units);
    if UNIT_POS_Y == 0 && column < columns {
        whole[column] = even + odd;
    }
}
