//! Rows of a table in a cube's shared memory, as factors for matrix units.
//!
//! In: a table `[N, H, W, C]`; the number of channels is a multiple of 16.
//! Out: some rows of an image, pixel after pixel, with one pixel of zeros between rows.
//! Invariant: a tap of a 3x3 kernel has the same distance from every pixel. So the pixels under a
//! tap form a plain matrix. f32 values are rounded to TF32; bf16 and f16 values stay unchanged.

// The macro makes of each function a module with public functions.
#![allow(missing_docs, unreachable_pub)]

use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::cubecl;
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{DeviceProperties, ElemType, FloatKind};
use cubecl::prelude::*;

/// Rows and columns of a product.
pub(super) const TILE: usize = 16;
/// Reads that a unit has in flight.
pub(super) const READS: usize = 8;
/// Units that share a matrix: a plane.
pub(super) const PLANE: usize = 32;
/// Planes of a cube.
pub(super) const PLANES: usize = 8;
/// Taps of a 3x3 kernel.
pub(super) const TAPS: usize = 9;

/// Number format that matrix units multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Factors {
    /// Values in 16 bytes.
    pub(super) vector: usize,
    /// Inner dimension of a product.
    pub(super) depth: usize,
}

impl Factors {
    /// Returns `None` for a type that matrix units do not support.
    pub(super) fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self {
                vector: 4,
                depth: 8,
            }),
            DType::BF16 | DType::F16 => Some(Self {
                vector: 8,
                depth: 16,
            }),
            _ => None,
        }
    }

    /// Returns the number format in which the device's matrix units multiply values of a type, if
    /// the device has such units.
    pub(super) fn staged(self, dtype: DType, device: &DeviceProperties) -> Option<ElemType> {
        let staged = match dtype {
            DType::F32 => ElemType::Float(FloatKind::TF32),
            dtype => dtype_to_storage_type(dtype),
        };
        let product = MmaConfig {
            a_type: staged,
            b_type: staged,
            cd_type: ElemType::Float(FloatKind::F32),
            m: TILE as u32,
            n: TILE as u32,
            k: self.depth as u32,
        };
        let has_units = device.features.matmul.cmma.contains(&product)
            && [
                device.hardware.plane_size_min,
                device.hardware.plane_size_max,
            ] == [PLANE as u32; 2];
        has_units.then_some(staged)
    }

    /// Returns the distance between two rows of factors, in vectors. It is an odd multiple of 32
    /// bytes: products start at multiples of 32 bytes, and rows should lie in different banks.
    pub(super) fn stride(self, channels: usize) -> usize {
        2 * ((channels / self.vector).div_ceil(2) | 1)
    }
}

/// Geometry of a strip in its table; constants of a compiled kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Strip {
    pub(super) factors: Factors,
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
    /// Rows of the table, without the border.
    pub(super) rows: usize,
    /// Border rows and columns at each side: 1 for inputs of a 3x3 kernel, 0 for its outputs.
    pub(super) border: usize,
    /// Pixels that products read, including the zeros after the last row.
    pub(super) pixels: usize,
}

impl Strip {
    /// Returns the distance between two rows, in pixels.
    pub(super) fn pitch(&self) -> usize {
        self.width + 1
    }

    /// Returns the distance between two pixels, in vectors.
    pub(super) fn stride(&self) -> usize {
        self.factors.stride(self.channels)
    }

    /// Returns the size in shared memory, in vectors.
    pub(super) fn vectors(&self) -> usize {
        self.pixels * self.stride()
    }

    /// Returns the size in shared memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.vectors() * 16
    }
}

/// Fills the whole strip with zeros. Later reads keep the zeros between rows and after the last
/// row.
#[cube]
pub(super) fn clear<S: Float, V: Size>(staged: &mut [Vector<S, V>], #[comptime] strip: Strip) {
    let mut at = UNIT_POS as usize;
    while at < comptime!(strip.vectors()) {
        staged[at] = Vector::new(S::from_int(0));
        at += comptime!(PLANE * PLANES);
    }
}

/// Reads the rows of an image from `top` on; rows outside the image are zeros.
#[cube]
pub(super) fn bring<E: Float, S: Float, V: Size>(
    table: &[Vector<E, V>],
    staged: &mut [Vector<S, V>],
    image: usize,
    top: usize,
    #[comptime] strip: Strip,
) {
    let columns = comptime!(strip.channels / strip.factors.vector);
    let (height, width, border) = comptime!((strip.height, strip.width, strip.border));
    let values = comptime!((strip.rows + 2 * border) * width * columns);
    let units = comptime!(PLANE * PLANES);
    let turns = comptime!(values.div_ceil(units));
    // Several reads are in flight before the first write.
    #[unroll]
    for first in 0..comptime!(turns.div_ceil(READS)) {
        let reads = comptime!((turns - first * READS).min(READS));
        let mut read = Array::<Vector<E, V>>::new(READS);
        #[unroll]
        for turn in 0..reads {
            // Units beyond the end read the last value again.
            let value = min(
                UNIT_POS as usize + comptime!((first * READS + turn) * units),
                comptime!(values - 1),
            );
            let pixel = value / columns;
            let column = value % columns;
            let row = pixel / width;
            let x = pixel % width;
            let is_inside = top + row >= border && top + row < height + border;
            let from = ((image * height + top + row) * width + x) * columns + column
                - border * width * columns;
            let value = table[select(is_inside, from, 0)];
            read[turn] = select(is_inside, value, Vector::new(E::from_int(0)));
        }
        #[unroll]
        for turn in 0..reads {
            let value = min(
                UNIT_POS as usize + comptime!((first * READS + turn) * units),
                comptime!(values - 1),
            );
            let pixel = value / columns;
            let column = value % columns;
            let row = pixel / width;
            let x = pixel % width;
            let at =
                (row * comptime!(strip.pitch()) + border + x) * comptime!(strip.stride()) + column;
            staged[at] = Vector::cast_from(read[turn]);
        }
    }
}

/// Returns `count` accumulators of products, all zero.
#[cube]
pub(super) fn zeros(
    #[comptime] count: usize,
    #[comptime] depth: usize,
) -> Sequence<cmma::Matrix<f32>> {
    let mut sums = Sequence::<cmma::Matrix<f32>>::new();
    #[unroll]
    for _ in 0..count {
        sums.push(cmma::Matrix::<f32>::from_value(
            cmma::MatrixIdent::Accumulator,
            TILE,
            TILE,
            depth,
            cmma::MatrixLayout::Undefined,
            0.0f32,
        ));
    }
    sums
}

/// Returns a factor of a product, starting at vector `start` of a strip.
#[cube]
pub(super) fn factor<S: Float, V: Size>(
    staged: &[Vector<S, V>],
    start: usize,
    #[comptime] strip: Strip,
    #[comptime] side: cmma::MatrixIdent,
    #[comptime] layout: cmma::MatrixLayout,
) -> cmma::Matrix<Vector<S, V>> {
    cmma::Matrix::<Vector<S, V>>::from_slice(
        side,
        TILE,
        TILE,
        comptime!(strip.factors.depth),
        layout,
        &staged[start..comptime!(strip.vectors())],
        comptime!((strip.stride() * strip.factors.vector) as u32),
    )
}
