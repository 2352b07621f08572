//! The pass that gives the output, or the gradient of the input.
//!
//! In: images, packed weights. Out: images. Invariant: nothing outside a block's buffer is read, nothing outside its channels written.

use super::{BLOCK, DepthwiseShape};
use crate::Element;
use crate::pieces::{SharedMut, for_each_piece};
use crate::simd::{GenericWork, Isa, Kernel, Simd, Task, vectorized};

/// Output columns whose sums stay in registers.
const COLUMNS: usize = 4;

/// What is read into the buffer of a block of channels, and what comes out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    pub(super) kernel: usize,
    pub(super) stride: usize,
    /// Rows and columns of the buffer from value to value.
    pub(super) spread: usize,
    /// Zeros in front.
    pub(super) border: usize,
    /// Height and width of what is read.
    pub(super) from: [usize; 2],
    /// Height and width of what is written.
    pub(super) to: [usize; 2],
}

impl Pass {
    /// Pixels of a row of the buffer: all that whole blocks of output columns touch.
    pub(super) fn buffer_width(&self) -> usize {
        let needed = (self.to[1].next_multiple_of(COLUMNS) - 1) * self.stride + self.kernel;
        needed.max(self.border + (self.from[1] - 1) * self.spread + 1)
    }

    pub(super) fn buffer_len(&self) -> usize {
        self.from[0] * self.buffer_width() * BLOCK
    }

    /// The row of what is read that lies under row `tap` of the kernel at output row `row`.
    pub(super) fn row_under(&self, row: usize, tap: usize) -> Option<usize> {
        let at = (row * self.stride + tap).checked_sub(self.border)?;
        (at.is_multiple_of(self.spread) && at / self.spread < self.from[0]).then_some(at / self.spread)
    }
}

/// Filters every image.
pub(super) fn filter_images<E: Element>(
    isa: Isa,
    shape: &DepthwiseShape,
    pass: &Pass,
    from: &[E],
    (weight, is_mirrored, bias): (&[f32], bool, Option<&[f32]>),
    to: &mut [E],
    workspace: &mut [f32],
) {
    let (packed, slots) = workspace.split_at_mut(shape.num_blocks() * shape.block_len());
    pack(shape, weight, is_mirrored, packed);
    let (packed, channels) = (&*packed, shape.channels);
    let [read, written] = [pass.from, pass.to].map(|[height, width]| height * width * channels);
    let to = SharedMut::new(to);
    for_each_piece(shape.batch, slots, pass.buffer_len(), &|image, buffer| {
        let from = &from[image * read..][..read];
        // SAFETY: each image has its own part, and the slice outlives the pass.
        let to = unsafe { core::slice::from_raw_parts_mut(to.at(image * written, written), written) };
        for (block, weights) in packed.chunks_exact(shape.block_len()).enumerate() {
            let columns = Columns::of(block, channels);
            vectorized(isa, Fill { pass, from, columns, buffer: &mut *buffer });
            let mut start = [0.0; BLOCK];
            if let Some(bias) = bias {
                start[..columns.len].copy_from_slice(&bias[columns.first..][..columns.len]);
            }
            let filter = Filter { pass, buffer, weights, start, columns, to: &mut *to };
            match (pass.kernel, pass.stride) {
                (3, 1) => E::run(isa, Sized::<E, 3, 1>(filter)),
                (3, _) => E::run(isa, Sized::<E, 3, 2>(filter)),
                (5, 1) => E::run(isa, Sized::<E, 5, 1>(filter)),
                (5, _) => E::run(isa, Sized::<E, 5, 2>(filter)),
                (_, 1) => E::run(isa, Sized::<E, 7, 1>(filter)),
                _ => E::run(isa, Sized::<E, 7, 2>(filter)),
            }
        }
    });
}

/// The channels of a block.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    first: usize,
    len: usize,
    /// All channels.
    stride: usize,
}

impl Columns {
    pub(super) fn of(block: usize, channels: usize) -> Self {
        let first = block * BLOCK;
        Self { first, len: BLOCK.min(channels - first), stride: channels }
    }
}

/// Weights as `[block][tap][channel]`, zeros where there is no channel.
fn pack(shape: &DepthwiseShape, weight: &[f32], is_mirrored: bool, packed: &mut [f32]) {
    let taps = shape.kernel * shape.kernel;
    packed.fill(0.0);
    for (channel, weights) in weight.chunks_exact(taps).enumerate() {
        let block = &mut packed[channel / BLOCK * shape.block_len()..][..shape.block_len()];
        for (tap, weight) in weights.iter().enumerate() {
            let tap = if is_mirrored { taps - 1 - tap } else { tap };
            block[tap * BLOCK + channel % BLOCK] = *weight;
        }
    }
}

/// Copies the channels of a block of an image, with zeros around and between.
pub(super) struct Fill<'a, E> {
    pub(super) pass: &'a Pass,
    pub(super) from: &'a [E],
    pub(super) columns: Columns,
    pub(super) buffer: &'a mut [f32],
}

impl<E: Element> Task for Fill<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Pass { spread, border, from: [_, width], .. } = *self.pass;
        let Columns { first, len, stride } = self.columns;
        let rows = self.buffer.chunks_exact_mut(self.pass.buffer_width() * BLOCK);
        for (row, from) in rows.zip(self.from.chunks_exact(width * stride)) {
            let (front, rest) = row.split_at_mut(border * BLOCK);
            front.fill(0.0);
            let (inside, behind) = rest.split_at_mut(((width - 1) * spread + 1) * BLOCK);
            behind.fill(0.0);
            if spread > 1 || len < BLOCK {
                inside.fill(0.0);
            }
            for (to, from) in inside.chunks_mut(spread * BLOCK).zip(from.chunks_exact(stride)) {
                if len == BLOCK {
                    let (to, from) = (&mut to[..BLOCK], &from[first..first + BLOCK]);
                    for lane in 0..BLOCK {
                        to[lane] = from[lane].to_f32();
                    }
                } else {
                    for (to, from) in to.iter_mut().zip(&from[first..first + len]) {
                        *to = from.to_f32();
                    }
                }
            }
        }
    }
}

/// Filters the buffer into the channels of a block of an image.
struct Filter<'a, E> {
    pass: &'a Pass,
    buffer: &'a [f32],
    weights: &'a [f32],
    start: [f32; BLOCK],
    columns: Columns,
    to: &'a mut [E],
}

struct Sized<'a, E, const K: usize, const STRIDE: usize>(Filter<'a, E>);

impl<E: Element, const K: usize, const STRIDE: usize> GenericWork for Sized<'_, E, K, STRIDE> {
    type Output = ();

    fn run<S: Simd>(self) {
        // SAFETY: features asserted by `Isa::run`; the kernel stays inside the slices.
        unsafe { S::vectorize(self) }
    }
}

impl<S: Simd, E: Element, const K: usize, const STRIDE: usize> Kernel<S> for Sized<'_, E, K, STRIDE> {
    #[inline(always)]
    unsafe fn run(self) {
        let Filter { pass, buffer, weights, start, columns, to } = self.0;
        let row_len = pass.buffer_width() * BLOCK;
        let touched = ((COLUMNS - 1) * STRIDE + K) * BLOCK;
        for (row, to) in to.chunks_exact_mut(pass.to[1] * columns.stride).enumerate() {
            let under: [Option<usize>; K] = std::array::from_fn(|tap_row| pass.row_under(row, tap_row));
            for (block, to) in to.chunks_mut(COLUMNS * columns.stride).enumerate() {
                for first in (0..BLOCK).step_by(S::LANES) {
                    // SAFETY: `touched` values are cut out with a check, of which the vectors of all columns and taps are part; `weights`
                    // and `start` hold whole blocks.
                    unsafe {
                        let mut sums = [S::load(start.as_ptr().add(first)); COLUMNS];
                        for (tap_row, under) in under.iter().enumerate() {
                            let Some(under) = under else { continue };
                            let pixels = &buffer[under * row_len + block * COLUMNS * STRIDE * BLOCK..][..touched];
                            let pixels = pixels.as_ptr().add(first);
                            let weights = weights[tap_row * K * BLOCK..][..K * BLOCK].as_ptr().add(first);
                            for tap in 0..K {
                                let weight = S::load(weights.add(tap * BLOCK));
                                for (column, sum) in sums.iter_mut().enumerate() {
                                    let pixel = S::load(pixels.add((column * STRIDE + tap) * BLOCK));
                                    *sum = S::fma(weight, pixel, *sum);
                                }
                            }
                        }
                        let len = columns.len.saturating_sub(first).min(S::LANES);
                        for (to, sum) in to.chunks_exact_mut(columns.stride).zip(sums) {
                            let to = &mut to[columns.first..][..columns.len];
                            E::store_masked::<S>(to.as_mut_ptr().wrapping_add(first), S::mask(len), sum);
                        }
                    }
                }
            }
        }
    }
}
