//! The weight gradient of a 3x3 convolution with stride 1, on matrix units.
//!
//! In: an input `[N, H, W, C_in]` and the gradient of the output `[N, H, W, C_out]`; channels are
//! multiples of 16.
//! Out: the sums of each block, `[blocks, C_out, 9, C_in]` in f32. A cube reads strips of both
//! tables into shared memory. A plane has 16 channels of input and output, and keeps the sums of
//! all nine taps in registers.
//! Invariant: sums are f32, in an order that depends only on the shapes.

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::cube::empty;
use crate::cube::strip::{Factors, PLANE, PLANES, Strip, TAPS, TILE, bring, clear, factor, zeros};

/// Cubes: two for each multiprocessor of an H100.
const MOST_CUBES: usize = 264;
/// Shared memory of a cube: three cubes fit on a multiprocessor.
const MOST_SHARED_BYTES: usize = 56 << 10;

/// Partition of a convolution; constants of the compiled kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tiles {
    of_input: Strip,
    of_output: Strip,
}

impl Tiles {
    /// Returns `None` if matrix units do not support the type, the number of channels is not a
    /// multiple of 16, or no strip fits.
    fn new(
        [_, height, width, channels_in]: [usize; 4],
        channels_out: usize,
        dtype: DType,
    ) -> Option<Self> {
        let factors = Factors::of(dtype)?;
        let with_rows = |rows: usize| {
            let pitch = width + 1;
            let pixels = (rows * pitch).next_multiple_of(factors.depth);
            let of_output = Strip {
                factors,
                height,
                width,
                channels: channels_out,
                rows,
                border: 0,
                pixels,
            };
            let of_input = Strip {
                channels: channels_in,
                border: 1,
                pixels: pixels + 2 * pitch + 2,
                ..of_output
            };
            Self {
                of_input,
                of_output,
            }
        };
        let is_tiled = [channels_in, channels_out]
            .iter()
            .all(|channels| channels.is_multiple_of(TILE));
        let pairs = channels_in / TILE * (channels_out / TILE);
        if !is_tiled || !pairs.max(PLANES).is_multiple_of(pairs.min(PLANES)) {
            return None;
        }
        (1..=height)
            .map(with_rows)
            .filter(|tiles| tiles.shared_bytes() <= MOST_SHARED_BYTES)
            .min_by_key(|tiles| {
                (
                    tiles.strips() * tiles.steps().div_ceil(tiles.lanes()),
                    tiles.strips(),
                )
            })
    }

    /// Number of products per strip.
    fn steps(&self) -> usize {
        self.of_output.pixels / self.of_output.factors.depth
    }

    /// Returns the number of strips in an image.
    fn strips(&self) -> usize {
        self.of_output.height.div_ceil(self.of_output.rows)
    }

    fn tiles_in(&self) -> usize {
        self.of_input.channels / TILE
    }

    fn pairs(&self) -> usize {
        self.of_output.channels / TILE * self.tiles_in()
    }

    fn pairs_of_cube(&self) -> usize {
        self.pairs().min(PLANES)
    }

    /// Returns the number of planes that share a pair of tiles and divide its products.
    fn lanes(&self) -> usize {
        PLANES / self.pairs_of_cube()
    }

    fn shared_bytes(&self) -> usize {
        self.of_input.bytes() + self.of_output.bytes() + PLANES * TILE * TILE * size_of::<f32>()
    }
}

/// Returns the sums of each block and the number of blocks, or `None` if matrix units cannot
/// compute them.
pub(super) fn block_sums(input: &CubeTensor, dy: &CubeTensor) -> Option<(CubeTensor, usize)> {
    let of_input = input.shape().dims::<4>();
    let of_output = dy.shape().dims::<4>();
    let tiles = Tiles::new(of_input, of_output[3], input.dtype)?;
    let device = input.client.properties();
    let staged = tiles.of_input.factors.staged(input.dtype, device)?;
    if dy.dtype != input.dtype || tiles.shared_bytes() > device.hardware.max_shared_memory_size {
        return None;
    }
    let client = input.client.clone();
    let cubes_for_pairs = tiles.pairs() / tiles.pairs_of_cube();
    let strips = of_input[0] * tiles.strips();
    let blocks = strips.min(MOST_CUBES / cubes_for_pairs).max(1);
    let sums = empty(
        input,
        Shape::new([blocks, of_output[3], TAPS, of_input[3]]),
        DType::F32,
    );
    let address = input
        .required_address_type()
        .max(dy.required_address_type())
        .max(sums.required_address_type());
    tile_weight_gradients::launch(
        &client,
        CubeCount::Static(cubes_for_pairs as u32, blocks as u32, 1),
        CubeDim::new_2d(PLANE as u32, PLANES as u32),
        address,
        tiles.of_input.factors.vector,
        input.clone().into_buffer_arg(),
        dy.clone().into_buffer_arg(),
        sums.clone().into_buffer_arg(),
        strips,
        tiles,
        dtype_to_storage_type(input.dtype),
        staged,
    );
    Some((sums, blocks))
}

// tidy: long function because its sums are in registers, which cannot be passed to a function.
/// Computes the sums of each block: `[blocks, C_out, 9, C_in]`.
#[cube(launch, address_type = "dynamic")]
pub(super) fn tile_weight_gradients<E: Float, S: Float, V: Size>(
    input: &[Vector<E, V>],
    dy: &[Vector<E, V>],
    sums: &mut [f32],
    strips: usize,
    #[comptime] tiles: Tiles,
    #[define(E)] _element: ElemType,
    #[define(S)] _staged: ElemType,
) {
    let (of_input, of_output) = comptime!((tiles.of_input, tiles.of_output));
    let (depth, vector, pitch) = comptime!((
        of_input.factors.depth,
        of_input.factors.vector,
        of_input.pitch()
    ));
    let (tiles_in, pairs, lanes) =
        comptime!((tiles.tiles_in(), tiles.pairs_of_cube(), tiles.lanes()));
    let (stride_in, stride_out) = comptime!((of_input.stride(), of_output.stride()));
    let mut outputs = Shared::<[Vector<S, V>]>::new_slice(comptime!(of_output.vectors()));
    let mut inputs = Shared::<[Vector<S, V>]>::new_slice(comptime!(of_input.vectors()));
    let mut of_planes = Shared::<[f32]>::new_slice(comptime!(PLANES * TILE * TILE));
    clear::<S, V>(&mut outputs, of_output);
    clear::<S, V>(&mut inputs, of_input);

    let plane = UNIT_POS_Y as usize;
    let first_pair = CUBE_POS_X as usize * pairs;
    let pair = first_pair + plane % pairs;
    let tile_out = pair / tiles_in;
    let tile_in = pair % tiles_in;
    let taps = zeros(TAPS, depth);
    sync_cube();

    let mut strip = CUBE_POS_Y as usize;
    while strip < strips {
        let image = strip / comptime!(tiles.strips());
        let top = strip % comptime!(tiles.strips()) * comptime!(of_output.rows);
        bring::<E, S, V>(dy, &mut outputs, image, top, of_output);
        bring::<E, S, V>(input, &mut inputs, image, top, of_input);
        sync_cube();
        let mut step = plane / pairs;
        while step < comptime!(tiles.steps()) {
            let pixel = step * depth;
            let start = pixel * stride_out + tile_out * comptime!(TILE / vector);
            let (a, columns) = comptime!((cmma::MatrixIdent::A, cmma::MatrixLayout::ColMajor));
            let gradient = factor::<S, V>(&outputs, start, of_output, a, columns);
            #[unroll]
            for tap in 0..TAPS {
                let under = pixel + comptime!(tap / 3 * pitch + tap % 3);
                let start = under * stride_in + tile_in * comptime!(TILE / vector);
                let (b, rows) = comptime!((cmma::MatrixIdent::B, cmma::MatrixLayout::RowMajor));
                let value = factor::<S, V>(&inputs, start, of_input, b, rows);
                let sum = taps.index(tap);
                cmma::execute(&gradient, &value, sum, sum);
            }
            step += lanes;
        }
        sync_cube();
        strip += CUBE_COUNT_Y as usize;
    }

    let square = comptime!(TILE * TILE);
    #[unroll]
    for tap in 0..TAPS {
        let start = plane * square;
        let place = &mut of_planes[start..start + square];
        cmma::store(
            place,
            taps.index(tap),
            comptime!(TILE as u32),
            cmma::MatrixLayout::RowMajor,
        );
        sync_cube();
        let mut part = UNIT_POS as usize;
        while part < comptime!(pairs * square) {
            let mut whole = 0.0f32;
            #[unroll]
            for lane in 0..lanes {
                whole += of_planes[part + lane * comptime!(pairs * square)];
            }
            let pair = first_pair + part / square;
            let channel_out = pair / tiles_in * TILE + part % square / TILE;
            let channel_in = pair % tiles_in * TILE + part % TILE;
            let row =
                (CUBE_POS_Y as usize * comptime!(of_output.channels) + channel_out) * TAPS + tap;
            sums[row * comptime!(of_input.channels) + channel_in] = whole;
            part += comptime!(PLANE * PLANES);
        }
        sync_cube();
    }
}
