//! Pass for the output, or for the gradient of the input.
//!
//! In: images, packed weights.
//! Out: images, one band of rows at a time.
//! Invariant: the pass reads only the ring and writes only the channels of an image.

use super::{BLOCK, COLUMNS, DepthwisePlan, Ring, TURNS, of_half, vectorize_sized};
use crate::Element;
use crate::conv2d::pass::{AfterPiece, Operands};
use crate::pieces::{SharedMut, for_each_piece};
use crate::simd::{GenericWork, Kernel, Simd};

/// The pass over all images.
pub(in crate::conv2d) struct Depthwise<'a, E> {
    pub(in crate::conv2d) plan: &'a DepthwisePlan,
    pub(in crate::conv2d) operands: Operands<'a, E>,
    pub(in crate::conv2d) after_piece: AfterPiece<'a, E>,
}

impl<E: Element> GenericWork for Depthwise<'_, E> {
    type Output = ();

    fn run<S: Simd>(self) {
        let Self {
            plan,
            operands:
                Operands {
                    input,
                    packed,
                    output,
                    workspace,
                },
            after_piece,
        } = self;
        let [read, written] =
            [plan.from, plan.to].map(|[height, width]| height * width * plan.channels);
        let output = SharedMut::new(output);
        for_each_piece(plan.images, workspace, plan.slot_len(), &|image, slot| {
            // SAFETY: each image has its own part, and the slice outlives the pass.
            let to = unsafe {
                core::slice::from_raw_parts_mut(output.at(image * written, written), written)
            };
            let work = Image {
                plan,
                index: image,
                from: &input[image * read..][..read],
                packed,
                to,
                slot,
                after_piece,
            };
            // SAFETY: features asserted by `Isa::run`; the kernel stays inside the slices.
            unsafe { vectorize_sized!(plan, S, Filter, work) }
        });
    }
}

struct Image<'a, E> {
    plan: &'a DepthwisePlan,
    index: usize,
    from: &'a [E],
    packed: &'a [f32],
    to: &'a mut [E],
    slot: &'a mut [f32],
    after_piece: AfterPiece<'a, E>,
}

struct Filter<T, const K: usize, const STRIDE: usize, const OF_GROUP: usize>(T);

impl<S: Simd, E: Element, const K: usize, const STRIDE: usize, const OF_GROUP: usize> Kernel<S>
    for Filter<Image<'_, E>, K, STRIDE, OF_GROUP>
{
    #[inline(always)]
    unsafe fn run(self) {
        let Image {
            plan,
            index,
            from,
            packed,
            to,
            slot,
            after_piece,
        } = self.0;
        let image_len = to.len();
        let row_len = plan.out_row_len();
        let mut ring = Ring::new(plan, from, slot);
        let mut row = 0;
        for (band, to) in to.chunks_mut(plan.band_rows() * row_len).enumerate() {
            for to in to.chunks_exact_mut(row_len) {
                // SAFETY: features by contract.
                unsafe {
                    let under = ring.under::<S, K>(row);
                    let rows = (ring.rows(), &under);
                    filter_row::<S, E, K, STRIDE, OF_GROUP>(plan, rows, packed, to);
                }
                row += 1;
            }
            let start = index * image_len + band * plan.band_rows() * row_len;
            after_piece(index * plan.num_bands() + band, start, to);
        }
    }
}

/// # Safety
/// The processor has the features of `S`.
#[inline(always)]
unsafe fn filter_row<
    S: Simd,
    E: Element,
    const K: usize,
    const STRIDE: usize,
    const OF_GROUP: usize,
>(
    plan: &DepthwisePlan,
    (ring, under): (&[f32], &[Option<usize>; K]),
    packed: &[f32],
    to: &mut [E],
) {
    // Several channels of a group are many products of each sum: narrow vectors, which two units
    // multiply, then need more sums.
    let columns = if OF_GROUP > 1 && S::LANES < 16 {
        COLUMNS
    } else {
        COLUMNS / 2
    };
    let block_len = plan.ring_width() * BLOCK;
    let touched = (columns - 1) * STRIDE + K;
    for (block, weights) in packed.chunks_exact(K * K * OF_GROUP * BLOCK).enumerate() {
        for (run, to) in to.chunks_mut(columns * plan.channels).enumerate() {
            let at = block * block_len + run * columns * STRIDE * BLOCK;
            for first in (0..BLOCK).step_by(S::LANES) {
                let channel = block * BLOCK + first;
                if channel >= plan.channels {
                    break;
                }
                // SAFETY: the pixels that all columns and taps touch are cut out with a check, and
                // so are a row's weights; so are a pixel's channels from `channel` on, of which as
                // many are written as there are.
                unsafe {
                    let mut sums = [S::zero(); COLUMNS];
                    for (tap_row, under) in under.iter().enumerate() {
                        let Some(under) = under else { continue };
                        let pixels = ring[under + at..][..touched * BLOCK].as_ptr();
                        let row_len = K * OF_GROUP * BLOCK;
                        let weights = weights[tap_row * row_len..][..row_len].as_ptr();
                        for tap in 0..K {
                            let weights = weights.add(tap * OF_GROUP * BLOCK);
                            for (column, sum) in sums.iter_mut().enumerate().take(columns) {
                                let pixel = pixels.add((column * STRIDE + tap) * BLOCK);
                                *sum = filter_pixel::<S, OF_GROUP>(pixel, first, weights, *sum);
                            }
                        }
                    }
                    let mask = S::mask(plan.channels - channel);
                    for (to, sum) in to.chunks_exact_mut(plan.channels).zip(sums) {
                        E::store_masked::<S>(to[channel..].as_mut_ptr(), mask, sum);
                    }
                }
            }
        }
    }
}

/// Adds the products of a pixel with the weights of a tap, lanes from `first` on.
///
/// # Safety
/// The processor has the features of `S`; a pixel and a tap's weights lie at the addresses.
#[inline(always)]
unsafe fn filter_pixel<S: Simd, const OF_GROUP: usize>(
    pixel: *const f32,
    first: usize,
    weights: *const f32,
    mut sum: S::V,
) -> S::V {
    // SAFETY: passed on. Each turn is written out, as an exchange is a constant.
    unsafe {
        for half in 0..OF_GROUP.div_ceil(TURNS) {
            let values = of_half::<S>(|lane| S::load(pixel.add(lane)), first, half);
            let weights = weights.add(half * TURNS * BLOCK + first);
            sum = S::fma(S::load(weights), values, sum);
            if OF_GROUP > 1 {
                let weights = [1, 2, 3].map(|turn| S::load(weights.add(turn * BLOCK)));
                sum = S::fma(weights[0], S::exchange::<1>(values), sum);
                sum = S::fma(weights[1], S::exchange::<2>(values), sum);
                sum = S::fma(weights[2], S::exchange::<3>(values), sum);
            }
        }
    }
    sum
}
