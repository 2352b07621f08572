//! Partition of Winograd's tiles into pieces and blocks.
//!
//! In: [`Conv2dShape`].
//! Out: [`WinogradPlan`]. A piece is a band of tile rows of one image, or a few whole images. A
//! block is a run of a piece's tiles whose transformed values stay in L2, if the weights stay in a
//! cache.
//! Invariant: the partition depends only on the shape.

use super::tiles::{Grid, Tile};
use super::transform::{OUT_TILE, POSITIONS};
use crate::conv2d::Conv2dShape;
use crate::simd::PANEL;

/// Tiles of a piece, where the image has enough.
const PIECE_TILES: usize = 64;
/// Elements of a block's transformed tiles, input and output: with the weights they stay in L2.
const BLOCK_ELEMENTS: usize = 160 * 1024;
const MAX_BLOCK_TILES: usize = 24;
/// Transformed weights beyond these 4 MB come from the last cache, or from memory, for every block:
/// then a block is a whole piece, and it is its tiles that leave L2. (On Intel, 256 channels: 1.27
/// times as fast as blocks of 8 tiles.)
const CACHED_WEIGHTS: usize = 1024 * 1024;

/// Cut of the tiles into pieces and blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WinogradPlan {
    pub(crate) images: usize,
    pub(crate) input: GridPlan,
    pub(crate) output: GridPlan,
    pub(crate) padding: usize,
    tile_columns: usize,
    tile_rows: usize,
    images_of_piece: usize,
    band_tile_rows: usize,
    num_bands: usize,
    block_tiles: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct GridPlan {
    pub(crate) height: usize,
    pub(crate) width: usize,
    /// Channels of a block, and of a pixel.
    pub(crate) channels: usize,
    pub(crate) pixel_stride: usize,
}

impl GridPlan {
    pub(crate) fn image_len(&self) -> usize {
        self.height * self.width * self.pixel_stride
    }

    fn new(height: usize, width: usize, channels: usize) -> Self {
        Self {
            height,
            width,
            channels,
            pixel_stride: channels,
        }
    }

    pub(crate) fn grid(&self, padding: usize) -> Grid {
        Grid {
            height: self.height,
            width: self.width,
            channels: self.channels,
            pixel_stride: self.pixel_stride,
            padding,
        }
    }
}

impl WinogradPlan {
    /// Returns true if the algorithm supports the shape.
    pub(crate) fn supports(s: &Conv2dShape) -> bool {
        [s.kernel, s.padding] == [[3, 3], [s.padding[0]; 2]] && s.stride == 1 && s.groups == 1
    }

    /// Returns true if Winograd is faster than direct convolution. It compares rough counts of
    /// multiply-adds with measured costs: 40 for the 36 of a tile, 300 and 200 for the transforms
    /// of a channel of input and output. The count is for one image, so that the result of an image
    /// does not depend on the number of images. Direct convolution does `per_instruction`
    /// multiply-adds of a lane in the time of one of f32.
    pub(crate) fn wins(&self, per_instruction: usize) -> bool {
        let in_c = self.input.pixel_stride;
        let out_c = self.output.pixel_stride;
        let lanes = |channels: usize| channels.next_multiple_of(PANEL);
        let products = in_c * lanes(out_c);
        let of_tile = 40 * products + 300 * lanes(in_c) + 200 * lanes(out_c);
        let tiles = self.num_tiles() / self.images;
        per_instruction * tiles * of_tile < 9 * products * self.output.height * self.output.width
    }

    pub(crate) fn forward(s: &Conv2dShape) -> Self {
        let input = GridPlan::new(s.height, s.width, s.in_channels);
        let output = GridPlan::new(s.out_height(), s.out_width(), s.out_channels);
        Self::new(s.batch, input, output, s.padding[0], MAX_BLOCK_TILES)
    }

    pub(crate) fn data_gradient(s: &Conv2dShape) -> Self {
        let input = GridPlan::new(s.out_height(), s.out_width(), s.out_channels);
        let output = GridPlan::new(s.height, s.width, s.in_channels);
        Self::new(s.batch, input, output, 2 - s.padding[0], MAX_BLOCK_TILES)
    }

    /// Returns the weight gradient's tiles: those of x and of dy, at most `task_channels` of each
    /// at a time.
    pub(crate) fn weight_gradient(s: &Conv2dShape, task_channels: usize) -> Self {
        let mut input = GridPlan::new(s.height, s.width, s.in_channels);
        let mut output = GridPlan::new(s.out_height(), s.out_width(), s.out_channels);
        input.channels = input.channels.min(task_channels);
        output.channels = output.channels.min(task_channels);
        Self::new(s.batch, input, output, s.padding[0], PIECE_TILES)
    }

    fn new(
        images: usize,
        input: GridPlan,
        output: GridPlan,
        padding: usize,
        max_block: usize,
    ) -> Self {
        let tile_rows = output.height.div_ceil(OUT_TILE);
        let tile_columns = output.width.div_ceil(OUT_TILE);
        let band_tile_rows = (PIECE_TILES / tile_columns).clamp(1, tile_rows);
        let num_bands = tile_rows.div_ceil(band_tile_rows);
        let band_tile_rows = tile_rows.div_ceil(num_bands);
        let num_bands = tile_rows.div_ceil(band_tile_rows);
        let whole = PIECE_TILES / (tile_rows * tile_columns);
        let images_of_piece = if num_bands > 1 {
            1
        } else {
            whole.clamp(1, images)
        };
        let lanes =
            input.channels.next_multiple_of(PANEL) + output.channels.next_multiple_of(PANEL);
        let is_cached = POSITIONS * input.channels * output.channels <= CACHED_WEIGHTS;
        let fitting = if is_cached {
            (BLOCK_ELEMENTS / (POSITIONS * lanes)).clamp(8, max_block)
        } else {
            PIECE_TILES
        };
        let tiles = images_of_piece * band_tile_rows * tile_columns;
        let block_tiles = tiles.div_ceil(tiles.div_ceil(fitting));
        Self {
            images,
            input,
            output,
            padding,
            tile_columns,
            tile_rows,
            images_of_piece,
            band_tile_rows,
            num_bands,
            block_tiles,
        }
    }

    pub(crate) fn num_pieces(&self) -> usize {
        self.images.div_ceil(self.images_of_piece) * self.num_bands
    }

    pub(crate) fn num_tiles(&self) -> usize {
        self.images * self.tile_rows * self.tile_columns
    }

    /// Returns the blocks of a piece, in order.
    pub(crate) fn blocks(&self, piece: usize) -> impl Iterator<Item = TileBlock> {
        let image = piece / self.num_bands * self.images_of_piece;
        let tile_row = piece % self.num_bands * self.band_tile_rows;
        let tile_rows = self.band_tile_rows.min(self.tile_rows - tile_row);
        let num_tiles =
            self.images_of_piece.min(self.images - image) * tile_rows * self.tile_columns;
        let block_tiles = self.block_tiles;
        (0..num_tiles).step_by(block_tiles).map(move |first| {
            let tiles = block_tiles.min(num_tiles - first);
            TileBlock {
                image,
                tile_row,
                tile_rows,
                first,
                tiles,
            }
        })
    }

    /// Returns the start of the output of a piece, and its elements.
    pub(crate) fn output_range(&self, piece: usize) -> (usize, usize) {
        let image = piece / self.num_bands * self.images_of_piece;
        let images = self.images_of_piece.min(self.images - image);
        let first_row = piece % self.num_bands * self.band_tile_rows * OUT_TILE;
        let end_row = (first_row + self.band_tile_rows * OUT_TILE).min(self.output.height);
        let row_len = self.output.width * self.output.channels;
        let rows = (images - 1) * self.output.height + end_row - first_row;
        (
            image * self.output.image_len() + first_row * row_len,
            rows * row_len,
        )
    }

    /// Returns the number of elements of the transformed weights; positions 64 bytes apart, against
    /// cache set conflicts while packing.
    pub(crate) fn packed_len(&self) -> usize {
        POSITIONS * (self.input.channels * self.output.channels.next_multiple_of(PANEL) + PANEL)
    }

    /// Returns the number of elements from one position of a block to the next; 64 bytes more than
    /// the tiles, against cache set conflicts.
    pub(crate) fn position_strides(&self) -> [usize; 2] {
        [&self.input, &self.output]
            .map(|grid| self.block_tiles * grid.channels.next_multiple_of(PANEL) + PANEL)
    }

    pub(crate) fn slot_len(&self) -> usize {
        POSITIONS * self.position_strides().iter().sum::<usize>()
    }
}

/// Consecutive tiles of a piece.
pub(crate) struct TileBlock {
    image: usize,
    tile_row: usize,
    tile_rows: usize,
    first: usize,
    pub(crate) tiles: usize,
}

impl TileBlock {
    /// Returns the `index`-th tile of the block in a grid of images with `image_len` elements.
    pub(crate) fn tile(&self, plan: &WinogradPlan, index: usize, image_len: usize) -> Tile {
        let index = self.first + index;
        let row = index / plan.tile_columns;
        let column = index % plan.tile_columns;
        Tile {
            image: (self.image + row / self.tile_rows) * image_len,
            row: (self.tile_row + row % self.tile_rows) * OUT_TILE,
            column: column * OUT_TILE,
        }
    }
}
