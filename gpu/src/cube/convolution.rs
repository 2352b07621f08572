//! A 3x3 convolution with stride 1 on matrix units, and the gradient of its input.
//!
//! In: a table `[N, H, W, C]`, a weight `[C_out, C_in, 3, 3]`; 16, 32, 48 or 64 channels.
//! Out: a table with the channels of the output, or of the input for the gradient. The gradient is
//! a convolution of the output's gradient with the rotated weight (180 degrees). A cube keeps the
//! weight in shared memory and iterates over strips of the table. If the whole weight does not fit,
//! each cube computes a part of the result's channels. A plane computes 16 channels for some tiles
//! of 16 pixels.
//! Invariant: sums are f32, in an order that depends only on shapes.

// The macro makes of each kernel a module with public functions.
#![allow(missing_docs, unreachable_pub)]

#[cfg(test)]
mod tests;

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::ConvOptions;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::DeviceProperties;
use cubecl::prelude::*;

use super::empty;
use super::strip::{Factors, PLANE, PLANES, READS, Strip, TAPS, TILE, bring, clear, factor, zeros};

/// Cubes per multiprocessor.
const MOST_CUBES: usize = 4;
/// Shared memory of a cube: all of one multiprocessor of an H100.
const MOST_SHARED_BYTES: usize = 224 << 10;
/// Sums of a plane in registers.
const MOST_SUMS: usize = 8;
/// Most channels whose weight fits the shared memory.
const MOST_CHANNELS: usize = 64;
/// Fewest rows of a strip that is not the whole image. Fewer rows need over 50 % more reads.
const FEWEST_ROWS: usize = 4;

/// Returns true for a 3x3 convolution that keeps the size of the image.
pub(super) fn keeps_size(weight: &Shape, options: &ConvOptions<2>) -> bool {
    let [.., kernel, kernel_width] = weight.dims::<4>();
    [kernel, kernel_width] == [3, 3] && *options == ConvOptions::new([1, 1], [1, 1], [1, 1], 1)
}

/// Returns the shared memory of a multiprocessor.
fn shared_bytes_of(device: &DeviceProperties) -> usize {
    device
        .hardware
        .max_shared_memory_size
        .min(MOST_SHARED_BYTES)
}

/// Returns the output, or with `is_gradient` the gradient of the input for a gradient of the
/// output. Returns `None` if burn computes this shape equally fast.
pub fn convolve(
    table: &CubeTensor,
    weight: &CubeTensor,
    options: &ConvOptions<2>,
    is_gradient: bool,
) -> Option<CubeTensor> {
    if !keeps_size(&weight.shape(), options) || weight.dtype != table.dtype {
        return None;
    }
    let [channels_out, channels_in, ..] = weight.shape().dims::<4>();
    let channels_of_result = if is_gradient {
        channels_in
    } else {
        channels_out
    };
    let shape = table.shape().dims::<4>();
    let [images, height, width, _] = shape;
    let (plan, staged) = ConvolutionPlan::on(
        table.client.properties(),
        shape,
        channels_of_result,
        table.dtype,
    )?;
    let table = into_contiguous(table.clone());
    let weight = into_contiguous(weight.clone());
    let result = empty(
        &table,
        Shape::new([images, height, width, channels_of_result]),
        table.dtype,
    );
    let address = table
        .required_address_type()
        .max(result.required_address_type());
    let strips = images * plan.strips();
    let processors = table
        .client
        .properties()
        .hardware
        .num_streaming_multiprocessors
        .unwrap_or(1) as usize;
    let shared_bytes = shared_bytes_of(table.client.properties());
    let cubes = processors * (shared_bytes / plan.shared_bytes()).min(MOST_CUBES);
    convolve_strips::launch(
        &result.client,
        CubeCount::Static(
            strips.min(cubes.div_ceil(plan.parts)) as u32,
            plan.parts as u32,
            1,
        ),
        CubeDim::new_2d(PLANE as u32, PLANES as u32),
        address,
        plan.strip.factors.vector,
        table.clone().into_buffer_arg(),
        weight.into_buffer_arg(),
        result.clone().into_buffer_arg(),
        strips,
        plan,
        is_gradient,
        dtype_to_storage_type(table.dtype),
        staged,
    );
    Some(result)
}

/// Returns true if [`convolve`] supports these tables on this device.
pub fn takes_convolution(
    device: &DeviceProperties,
    table: [usize; 4],
    channels_of_result: usize,
    dtype: DType,
) -> bool {
    ConvolutionPlan::on(device, table, channels_of_result, dtype).is_some()
}

/// Partition of a convolution; constants of the compiled kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConvolutionPlan {
    /// Strip of the input table.
    strip: Strip,
    /// Channels of the result that a cube computes.
    channels: usize,
    /// Parts of the result's channels.
    parts: usize,
}

impl ConvolutionPlan {
    /// Returns the plan for a device, with the number format of its matrix units.
    fn on(
        device: &DeviceProperties,
        shape: [usize; 4],
        channels_of_result: usize,
        dtype: DType,
    ) -> Option<(Self, ElemType)> {
        let plan = Self::new(shape, channels_of_result, dtype, shared_bytes_of(device))?;
        plan.strip
            .factors
            .staged(dtype, device)
            .map(|staged| (plan, staged))
    }

    /// Returns `None` if matrix units do not support the type, the number of channels is not a
    /// multiple of 16 or too large, or no strip fits.
    fn new(
        [_, height, width, channels]: [usize; 4],
        channels_of_result: usize,
        dtype: DType,
        shared_bytes: usize,
    ) -> Option<Self> {
        let factors = Factors::of(dtype)?;
        let is_ours = [channels, channels_of_result]
            .iter()
            .all(|channels| channels.is_multiple_of(TILE) && *channels <= MOST_CHANNELS);
        if !is_ours {
            return None;
        }
        let with_rows = |rows: usize, parts: usize| {
            let pitch = width + 1;
            let pixels = (rows * pitch).next_multiple_of(TILE) + 2 * pitch + 2;
            Self {
                strip: Strip {
                    factors,
                    height,
                    width,
                    channels,
                    rows,
                    border: 1,
                    pixels,
                },
                channels: channels_of_result / parts,
                parts,
            }
        };
        let tiles = channels_of_result / TILE;
        (1..=tiles)
            .filter(|parts| tiles.is_multiple_of(*parts) && PLANES.is_multiple_of(tiles / *parts))
            .find_map(|parts| {
                (height.min(FEWEST_ROWS)..=height)
                    .map(|rows| with_rows(rows, parts))
                    .filter(|plan| plan.sums() <= MOST_SUMS && plan.shared_bytes() <= shared_bytes)
                    .min_by_key(|plan| (plan.strips() * plan.sums(), plan.strips()))
            })
    }

    /// Returns the number of strips in an image.
    fn strips(&self) -> usize {
        self.strip.height.div_ceil(self.strip.rows)
    }

    /// Returns the number of pixel tiles in a strip.
    fn tiles(&self) -> usize {
        (self.strip.rows * self.strip.pitch()).div_ceil(TILE)
    }

    /// Returns the number of planes that compute the same channels.
    fn lanes(&self) -> usize {
        PLANES / (self.channels / TILE)
    }

    /// Returns the number of pixel tiles of a plane.
    fn sums(&self) -> usize {
        self.tiles().div_ceil(self.lanes())
    }

    /// Returns the rows of a tap's matrix in a cube's weight: channels of the output, in either
    /// direction.
    fn rows(&self, is_gradient: bool) -> usize {
        if is_gradient {
            self.strip.channels
        } else {
            self.channels
        }
    }

    /// Returns the length of such a row: channels of the input.
    fn columns(&self, is_gradient: bool) -> usize {
        if is_gradient {
            self.channels
        } else {
            self.strip.channels
        }
    }

    /// Returns the distance between two rows of the weight, in factors.
    fn row_pitch(&self, is_gradient: bool) -> usize {
        self.strip.factors.stride(self.columns(is_gradient)) * self.strip.factors.vector
    }

    fn shared_bytes(&self) -> usize {
        let weight = [false, true]
            .map(|is_gradient| TAPS * self.rows(is_gradient) * self.row_pitch(is_gradient))
            .into_iter()
            .max()
            .unwrap_or(0);
        // A vector of factors has 16 bytes.
        self.strip.bytes()
            + weight * 16 / self.strip.factors.vector
            + PLANES * TILE * TILE * size_of::<f32>()
    }
}

// tidy: long function because its sums are in registers, which cannot be passed to a function.
/// Computes one convolution: `[N, H, W, C']`.
#[cube(launch, address_type = "dynamic")]
pub(super) fn convolve_strips<E: Float, S: Float, V: Size>(
    table: &[Vector<E, V>],
    weight: &[Vector<E, V>],
    result: &mut [Vector<E, V>],
    strips: usize,
    #[comptime] plan: ConvolutionPlan,
    #[comptime] is_gradient: bool,
    #[define(E)] _element: ElemType,
    #[define(S)] _staged: ElemType,
) {
    let of_table = comptime!(plan.strip);
    let (depth, vector, pitch) = comptime!((
        of_table.factors.depth,
        of_table.factors.vector,
        of_table.pitch()
    ));
    let (height, width, rows) = comptime!((of_table.height, of_table.width, of_table.rows));
    let (weight_rows, columns) = comptime!((plan.rows(is_gradient), plan.columns(is_gradient)));
    let (row_pitch, stride) = comptime!((plan.row_pitch(is_gradient), of_table.stride()));
    let (lanes, square) = comptime!((plan.lanes(), TILE * TILE));
    let mut inputs = Shared::<[Vector<S, V>]>::new_slice(comptime!(of_table.vectors()));
    let factors = comptime!(TAPS * weight_rows * row_pitch);
    let mut weights = Shared::<[S]>::new_slice(factors);
    let mut of_planes = Shared::<[Vector<f32, V>]>::new_slice(comptime!(PLANES * square / vector));
    clear::<S, V>(&mut inputs, of_table);
    let units = comptime!(PLANE * PLANES);
    // In vectors: a row of the cube's weight, a row of the whole weight, the cube's first value.
    let (row_len, whole_row) = comptime!((
        columns * TAPS / vector,
        columns * TAPS / vector * if is_gradient { plan.parts } else { 1 }
    ));
    let part = CUBE_POS_Y as usize;
    let first_value = part
        * comptime!(if is_gradient {
            row_len
        } else {
            weight_rows * row_len
        });
    let values = comptime!(weight_rows * row_len);
    let mut first = UNIT_POS as usize;
    while first < values {
        let mut read = Array::<Vector<E, V>>::new(READS);
        #[unroll]
        for turn in 0..READS {
            let value = min(first + turn * units, values - 1);
            read[turn] = weight[first_value + value / row_len * whole_row + value % row_len];
        }
        #[unroll]
        for turn in 0..READS {
            let value = read[turn];
            #[unroll]
            for lane in 0..vector {
                let at = min(first + turn * units, values - 1) * vector + lane;
                let row = at / comptime!(columns * TAPS);
                let column = at / TAPS % columns;
                let tap = at % TAPS;
                let tap = if comptime!(is_gradient) {
                    TAPS - 1 - tap
                } else {
                    tap
                };
                weights[(tap * weight_rows + row) * row_pitch + column] =
                    S::cast_from(value.extract(lane));
            }
        }
        first += units * READS;
    }
    sync_cube();

    let plane = UNIT_POS_Y as usize;
    let tile_out = plane / lanes;
    let lane = plane % lanes;
    let mut strip = CUBE_POS_X as usize;
    while strip < strips {
        let image = strip / comptime!(plan.strips());
        let top = strip % comptime!(plan.strips()) * rows;
        bring::<E, S, V>(table, &mut inputs, image, top, of_table);
        sync_cube();

        let sums = zeros(comptime!(plan.sums()), depth);
        for tap in 0..TAPS {
            let under = tap / 3 * pitch + tap % 3;
            #[unroll]
            for step in 0..comptime!(of_table.channels / depth) {
                let of_step = comptime!(step * depth);
                let start = if comptime!(is_gradient) {
                    (tap * weight_rows + of_step) * row_pitch + tile_out * TILE
                } else {
                    (tap * weight_rows + tile_out * TILE) * row_pitch + of_step
                };
                let weight = cmma::Matrix::<S>::from_slice(
                    cmma::MatrixIdent::B,
                    TILE,
                    TILE,
                    depth,
                    comptime!(if is_gradient {
                        cmma::MatrixLayout::RowMajor
                    } else {
                        cmma::MatrixLayout::ColMajor
                    }),
                    &weights[start..factors],
                    comptime!(row_pitch as u32),
                );
                #[unroll]
                for turn in 0..comptime!(plan.sums()) {
                    // A plane without a remaining tile computes the last tile again.
                    let tile = min(lane + turn * lanes, comptime!(plan.tiles() - 1));
                    let start = (tile * TILE + under) * stride + comptime!(step * depth / vector);
                    let (a, rows) = comptime!((cmma::MatrixIdent::A, cmma::MatrixLayout::RowMajor));
                    let value = factor::<S, V>(&inputs, start, of_table, a, rows);
                    let sum = sums.index(turn);
                    cmma::execute(&value, &weight, sum, sum);
                }
            }
        }

        let start = plane * comptime!(square / vector);
        let of_unit = comptime!(TILE / 2 / vector);
        #[unroll]
        for turn in 0..comptime!(plan.sums()) {
            let place = &mut of_planes[start..start + comptime!(square / vector)];
            cmma::store(
                place,
                sums.index(turn),
                comptime!(TILE as u32),
                cmma::MatrixLayout::RowMajor,
            );
            sync_plane();
            // Two units write one pixel of 16 channels.
            let pixel = (lane + turn * lanes) * TILE + UNIT_POS_X as usize / 2;
            let row = pixel / pitch;
            let x = pixel % pitch;
            if row < rows && x < width && top + row < height {
                let pixel = (image * height + top + row) * width + x;
                let tile = part * comptime!(plan.channels / TILE) + tile_out;
                let to = pixel * comptime!(plan.channels * plan.parts) + tile * TILE;
                #[unroll]
                for vectors in 0..of_unit {
                    let at = start + UNIT_POS_X as usize * of_unit + vectors;
                    let column = UNIT_POS_X as usize % 2 * of_unit + vectors;
                    result[to / vector + column] = Vector::cast_from(of_planes[at]);
                }
            }
            sync_plane();
        }
        sync_cube();
        strip += CUBE_COUNT_X as usize;
    }
}
