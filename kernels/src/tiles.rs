//! Partition of `[rows, C]` into pieces for threads, and of a piece into tiles with a repeating
//! pattern of channels.
//!
//! In: rows, channels, slices.
//! Out: calls of a kernel with a few hundred values each, for any C.
//! Invariant: the partition depends only on (rows, C).
//!
//! A tile consists of whole rows; its width is a multiple of 16 and at least [`TILE_MIN`]. With 3
//! channels the parameters of 112 rows are repeated once, and the kernel runs over 336 values per
//! call. From 128 channels on a tile has up to [`COLUMNS_MAX`] channels of one row. Only the last
//! rows give a shorter tile.

/// Lanes of the widest vector.
const WIDE: usize = 16;
/// Values in the longest tile: at most 127 channels times 16 rows.
pub(crate) const TILE_MAX: usize = 2048;
/// Short tiles are joined up to this many values: a sum kept in memory is then not needed again
/// before it is stored.
const TILE_MIN: usize = 256;
/// Channels handled at once where there are many: whole rows of ResNets, so that memory is read in
/// order.
const COLUMNS_MAX: usize = TILE_MAX;
/// Tiles added up in f32 before the sums go to f64.
const TILES_PER_FLUSH: usize = 32;
/// Values in a piece of an operation without sums.
const PIECE_VALUES: usize = 1 << 16;
/// Most pieces of an operation with sums, and the most sums of all pieces together unless these are
/// under 16 pieces: bound the workspace and the time of its addition.
const MAX_SUMMED_PIECES: usize = 64;
const MAX_PIECE_SUMS: usize = 1 << 14;

/// The channels of a tile: lane i holds channel `first + i % period`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    pub(crate) first: usize,
    pub(crate) period: usize,
    pub(crate) width: usize,
}

impl Columns {
    /// Writes the parameter of each lane's channel.
    #[inline(always)]
    pub(crate) fn fill(self, tile: &mut [f32; TILE_MAX], parameter: &[f32]) {
        let parameter = &parameter[self.first..self.first + self.period];
        for lanes in tile[..self.width].chunks_mut(self.period) {
            lanes.copy_from_slice(&parameter[..lanes.len()]);
        }
    }

    /// Adds each lane to its channel's sum and clears it.
    #[inline(always)]
    pub(crate) fn drain(self, tile: &mut [f32; TILE_MAX], sums: &mut [f64]) {
        let sums = &mut sums[self.first..self.first + self.period];
        for lanes in tile[..self.width].chunks_mut(self.period) {
            for (sum, lane) in sums.iter_mut().zip(lanes) {
                *sum += f64::from(*lane);
                *lane = 0.0;
            }
        }
    }
}

/// A kernel over `[rows, C]` with parameters or sums for each channel.
pub(crate) trait PerChannel {
    /// Loads the parameters of these channels.
    fn enter(&mut self, columns: Columns);

    /// Handles `width` values from `at` on, the first of which belongs to the first lane.
    fn tile(&mut self, at: usize, width: usize);

    /// Handles four such runs of values, each `stride` after the one before; sums need not be
    /// stored between them.
    #[inline(always)]
    fn four_tiles(&mut self, at: usize, stride: usize, width: usize) {
        for tile in 0..4 {
            self.tile(at + tile * stride, width);
        }
    }

    /// Stores the sums, after every few tiles.
    #[inline(always)]
    fn flush(&mut self, _columns: Columns) {}
}

/// Returns the number of rows in a tile below 128 channels.
fn tile_rows(channels: usize) -> usize {
    let divisor = 1 << channels.trailing_zeros().min(4);
    let aligned = WIDE / divisor;
    aligned * TILE_MIN.div_ceil(aligned * channels).max(1)
}

/// Calls `kernel` for every value of `[rows, channels]`.
#[inline(always)]
pub(crate) fn walk<K: PerChannel>(kernel: &mut K, rows: usize, channels: usize) {
    if channels < 128 {
        let tile_rows = tile_rows(channels);
        let columns = Columns {
            first: 0,
            period: channels,
            width: tile_rows * channels,
        };
        kernel.enter(columns);
        walk_tiles(kernel, columns, columns.width, rows / tile_rows);
        let rest = Columns {
            width: rows % tile_rows * channels,
            ..columns
        };
        kernel.tile(rows / tile_rows * columns.width, rest.width);
        kernel.flush(rest);
    } else {
        let mut first = 0;
        while first < channels {
            let width = COLUMNS_MAX.min(channels - first);
            let columns = Columns {
                first,
                period: width,
                width,
            };
            kernel.enter(columns);
            walk_tiles(kernel, columns, channels, rows);
            first += width;
        }
    }
}

#[inline(always)]
fn walk_tiles<K: PerChannel>(kernel: &mut K, columns: Columns, stride: usize, count: usize) {
    let mut tile = 0;
    while tile < count {
        let end = count.min(tile + TILES_PER_FLUSH);
        while tile + 4 <= end {
            kernel.four_tiles(columns.first + tile * stride, stride, columns.width);
            tile += 4;
        }
        while tile < end {
            kernel.tile(columns.first + tile * stride, columns.width);
            tile += 1;
        }
        kernel.flush(columns);
    }
}

/// Returns the number of rows in a piece of an operation without sums.
pub(crate) fn piece_rows(channels: usize) -> usize {
    let tile_rows = if channels < 128 {
        tile_rows(channels)
    } else {
        1
    };
    (PIECE_VALUES / (tile_rows * channels)).max(1) * tile_rows
}

/// Returns the number of rows in a piece of an operation with sums.
pub(crate) fn summed_piece_rows(rows: usize, channels: usize) -> usize {
    let tile_rows = if channels < 128 {
        tile_rows(channels)
    } else {
        1
    };
    let block = tile_rows * TILES_PER_FLUSH;
    let pieces = (MAX_PIECE_SUMS / channels).clamp(16, MAX_SUMMED_PIECES);
    rows.div_ceil(pieces).max(4 * block).next_multiple_of(block)
}

/// A slice read along with others: `stride` values belong to each unit (a row, an image); none
/// where it is absent.
#[derive(Clone, Copy)]
pub(crate) struct Read<'a, E> {
    pub(crate) values: &'a [E],
    pub(crate) stride: usize,
}

/// A slice written along with others.
pub(crate) struct Write<'a, E> {
    pub(crate) values: &'a mut [E],
    pub(crate) stride: usize,
}

impl<'a, E: Copy> Read<'a, E> {
    /// An absent stream.
    pub(crate) const ABSENT: Self = Self {
        values: &[],
        stride: 0,
    };

    fn split(self, units: usize) -> (Self, Self) {
        let (left, right) = self.values.split_at(units * self.stride);
        (
            Self {
                values: left,
                ..self
            },
            Self {
                values: right,
                ..self
            },
        )
    }
}

impl<'a, E> Write<'a, E> {
    /// Returns an absent stream.
    pub(crate) fn absent() -> Self {
        Self {
            values: &mut [],
            stride: 0,
        }
    }

    fn split(self, units: usize) -> (Self, Self) {
        let (left, right) = self.values.split_at_mut(units * self.stride);
        (
            Self {
                values: left,
                stride: self.stride,
            },
            Self {
                values: right,
                stride: self.stride,
            },
        )
    }
}

/// Inputs and outputs of an operation for each of `units` rows or images.
pub(crate) struct Streams<'a, E> {
    pub(crate) units: usize,
    pub(crate) reads: [Read<'a, E>; 3],
    pub(crate) writes: [Write<'a, E>; 2],
}

impl<E: Copy + Send + Sync> Streams<'_, E> {
    /// Calls `work` for every piece of `piece_units`, on the threads of the current rayon pool;
    /// allocates nothing.
    pub(crate) fn for_each_piece(self, piece_units: usize, work: &(dyn Fn(Self) + Sync)) {
        if self.units <= piece_units {
            work(self);
            return;
        }
        let middle = self.units.div_ceil(piece_units) / 2 * piece_units;
        let [a, b, c] = self.reads.map(|read| read.split(middle));
        let [d, e] = self.writes.map(|write| write.split(middle));
        let left = Self {
            units: middle,
            reads: [a.0, b.0, c.0],
            writes: [d.0, e.0],
        };
        let right = Self {
            units: self.units - middle,
            reads: [a.1, b.1, c.1],
            writes: [d.1, e.1],
        };
        rayon::join(
            || left.for_each_piece(piece_units, work),
            || right.for_each_piece(piece_units, work),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_is_a_multiple_of_16_values_and_fits() {
        for channels in 1..128 {
            let width = tile_rows(channels) * channels;
            assert!(
                width.is_multiple_of(WIDE) && (TILE_MIN..=TILE_MAX).contains(&width),
                "{channels}: {width}"
            );
        }
    }

    struct Count {
        visits: Vec<u32>,
        channels: usize,
        columns: Columns,
    }

    impl PerChannel for Count {
        fn enter(&mut self, columns: Columns) {
            self.columns = columns;
        }
        fn tile(&mut self, at: usize, width: usize) {
            for i in 0..width {
                self.visits[at + i] += 1;
                assert_eq!(
                    (at + i) % self.channels,
                    self.columns.first + i % self.columns.period
                );
            }
        }
    }

    #[test]
    fn every_value_is_visited_once_with_its_channel() {
        for channels in [1, 2, 3, 5, 7, 16, 17, 48, 63, 127, 128, 129, 512, 513, 1100] {
            for rows in [0, 1, 2, 31, 257] {
                let columns = Columns {
                    first: 0,
                    period: 1,
                    width: 0,
                };
                let mut count = Count {
                    visits: vec![0; rows * channels],
                    channels,
                    columns,
                };
                walk(&mut count, rows, channels);
                assert!(
                    count.visits.iter().all(|visits| *visits == 1),
                    "{rows} x {channels}"
                );
            }
        }
    }
}
