//! Pass for the output, or for the gradient of the input.
//!
//! In: images, packed weights.
//! Out: images, one band of rows at a time.
//! Invariant: the pass reads only the ring and writes only the channels of an image.

use super::{BLOCK, COLUMNS, DepthwisePlan, Ring, vectorize_sized};
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

struct Filter<T, const K: usize, const STRIDE: usize>(T);

impl<S: Simd, E: Element, const K: usize, const STRIDE: usize> Kernel<S>
    for Filter<Image<'_, E>, K, STRIDE>
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
                    filter_row::<S, E, K, STRIDE>(plan, (ring.rows(), &under), packed, to);
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
unsafe fn filter_row<S: Simd, E: Element, const K: usize, const STRIDE: usize>(
    plan: &DepthwisePlan,
    (ring, under): (&[f32], &[Option<usize>; K]),
    packed: &[f32],
    to: &mut [E],
) {
    let block_len = plan.ring_width() * BLOCK;
    let touched = ((COLUMNS - 1) * STRIDE + K) * BLOCK;
    for (block, weights) in packed.chunks_exact(K * K * BLOCK).enumerate() {
        for (run, to) in to.chunks_mut(COLUMNS * plan.channels).enumerate() {
            let at = block * block_len + run * COLUMNS * STRIDE * BLOCK;
            for first in (0..BLOCK).step_by(S::LANES) {
                let channel = block * BLOCK + first;
                if channel >= plan.channels {
                    break;
                }
                // SAFETY: `touched` values are cut out with a check, of which the vectors of all
                // columns and taps are part; so are a pixel's channels from `channel` on, of which
                // as many are written as there are.
                unsafe {
                    let mut sums = [S::zero(); COLUMNS];
                    for (tap_row, under) in under.iter().enumerate() {
                        let Some(under) = under else { continue };
                        let pixels = ring[under + at..][..touched].as_ptr().add(first);
                        let weights = weights[tap_row * K * BLOCK..][..K * BLOCK]
                            .as_ptr()
                            .add(first);
                        for tap in 0..K {
                            let weight = S::load(weights.add(tap * BLOCK));
                            for (column, sum) in sums.iter_mut().enumerate() {
                                let pixel = S::load(pixels.add((column * STRIDE + tap) * BLOCK));
                                *sum = S::fma(weight, pixel, *sum);
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
