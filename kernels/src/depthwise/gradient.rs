//! The gradients of weights and bias.
//!
//! In: images and the gradients of the output. Out: sums over all of them. Invariant: so many images are a piece, and the pieces' sums are
//! added in order.

use super::filter::{Columns, Fill, Pass};
use super::{BLOCK, DepthwiseShape};
use crate::Element;
use crate::pieces::{SharedMut, for_each_piece};
use crate::simd::{GenericWork, Isa, Kernel, Simd, vectorized};

/// Images whose gradients are added before they are added to others.
pub(super) const PIECE_IMAGES: usize = 4;

pub(crate) fn weight_gradient_of<E: Element>(
    isa: Isa,
    shape: &DepthwiseShape,
    x: &[E],
    dy: &[E],
    dw: &mut [f32],
    db: &mut [f32],
    workspace: &mut [f32],
) {
    shape.check(x.len(), dy.len(), dw.len());
    assert!(db.len() == shape.channels, "depthwise: {} channels but a bias of {}", shape.channels, db.len());
    let (pass, of_output) = (shape.forward_pass(), shape.output_pass());
    let (read, written) = (x.len() / shape.batch, dy.len() / shape.batch);
    let num_pieces = shape.batch.div_ceil(PIECE_IMAGES);
    let (partials, slots) = workspace.split_at_mut(num_pieces * shape.sums_len());
    let sums = SharedMut::new(partials);
    for_each_piece(num_pieces, slots, pass.buffer_len() + of_output.buffer_len(), &|piece, slot| {
        let (x_buffer, dy_buffer) = slot.split_at_mut(pass.buffer_len());
        // SAFETY: each piece has its own sums, and the slice outlives the pass.
        let sums = unsafe {
            core::slice::from_raw_parts_mut(sums.at(piece * shape.sums_len(), shape.sums_len()), shape.sums_len())
        };
        sums.fill(0.0);
        for image in piece * PIECE_IMAGES..shape.batch.min((piece + 1) * PIECE_IMAGES) {
            let (x, dy) = (&x[image * read..][..read], &dy[image * written..][..written]);
            for (block, sums) in sums.chunks_exact_mut(shape.block_len() + BLOCK).enumerate() {
                let columns = Columns::of(block, shape.channels);
                vectorized(isa, Fill { pass: &pass, from: x, columns, buffer: &mut *x_buffer });
                vectorized(isa, Fill { pass: &of_output, from: dy, columns, buffer: &mut *dy_buffer });
                let given = Correlation { pass: &pass, of_output: &of_output, x: x_buffer, dy: dy_buffer, sums };
                match (pass.kernel, pass.stride) {
                    (3, 1) => isa.run(Correlated::<3, 1>(given)),
                    (3, _) => isa.run(Correlated::<3, 2>(given)),
                    (5, 1) => isa.run(Correlated::<5, 1>(given)),
                    (5, _) => isa.run(Correlated::<5, 2>(given)),
                    (_, 1) => isa.run(Correlated::<7, 1>(given)),
                    _ => isa.run(Correlated::<7, 2>(given)),
                }
            }
        }
    });
    add_pieces(shape, partials, dw, db);
}

/// Adds to `sums`, `[taps + 1, BLOCK]`, the products of the buffers under each tap, and the gradients themselves.
struct Correlation<'a> {
    pass: &'a Pass,
    of_output: &'a Pass,
    x: &'a [f32],
    dy: &'a [f32],
    sums: &'a mut [f32],
}

struct Correlated<'a, const K: usize, const STRIDE: usize>(Correlation<'a>);

impl<const K: usize, const STRIDE: usize> GenericWork for Correlated<'_, K, STRIDE> {
    type Output = ();

    fn run<S: Simd>(self) {
        // SAFETY: features asserted by `Isa::run`; the kernel stays inside the slices.
        unsafe { S::vectorize(self) }
    }
}

impl<S: Simd, const K: usize, const STRIDE: usize> Kernel<S> for Correlated<'_, K, STRIDE> {
    #[inline(always)]
    unsafe fn run(self) {
        let Correlation { pass, of_output, x, dy, sums } = self.0;
        let [x_row, dy_row] = [pass, of_output].map(|pass| pass.buffer_width() * BLOCK);
        assert!(dy_row.is_multiple_of(2 * BLOCK) && x_row >= ((dy_row / BLOCK - 1) * STRIDE + K) * BLOCK);
        assert!(sums.len() == (K * K + 1) * BLOCK);
        for first in (0..BLOCK).step_by(S::LANES) {
            // SAFETY: whole rows are cut out with checks, which as asserted hold the pixels under every column; sums hold a block a tap.
            unsafe {
                for tap_row in 0..K {
                    // Two chains, so that a product need not wait for the one before.
                    let mut of_taps = [[S::zero(); K]; 2];
                    for (row, dy) in dy.chunks_exact(dy_row).enumerate() {
                        let Some(under) = pass.row_under(row, tap_row) else { continue };
                        let x = x[under * x_row..][..x_row].as_ptr().add(first);
                        let dy = dy.as_ptr().add(first);
                        for pair in 0..dy_row / (2 * BLOCK) {
                            for (side, of_taps) in of_taps.iter_mut().enumerate() {
                                let column = 2 * pair + side;
                                let dy = S::load(dy.add(column * BLOCK));
                                for (tap, sum) in of_taps.iter_mut().enumerate() {
                                    let pixel = S::load(x.add((column * STRIDE + tap) * BLOCK));
                                    *sum = S::fma(dy, pixel, *sum);
                                }
                            }
                        }
                    }
                    for (tap, (even, odd)) in of_taps[0].into_iter().zip(of_taps[1]).enumerate() {
                        let sum = sums.as_mut_ptr().add((tap_row * K + tap) * BLOCK + first);
                        S::store(sum, S::add(S::load(sum), S::add(even, odd)));
                    }
                }
                let of_bias = sums.as_mut_ptr().add(K * K * BLOCK + first);
                let mut sum = S::load(of_bias);
                for column in 0..dy.len() / BLOCK {
                    sum = S::add(sum, S::load(dy.as_ptr().add(column * BLOCK + first)));
                }
                S::store(of_bias, sum);
            }
        }
    }
}

/// Adds up the pieces' sums in their order.
fn add_pieces(shape: &DepthwiseShape, partials: &[f32], dw: &mut [f32], db: &mut [f32]) {
    let taps = shape.kernel * shape.kernel;
    let total = |channel: usize, tap: usize| {
        let at = channel / BLOCK * (shape.block_len() + BLOCK) + tap * BLOCK + channel % BLOCK;
        partials.chunks_exact(shape.sums_len()).map(|sums| f64::from(sums[at])).sum::<f64>() as f32
    };
    for (channel, (dw, db)) in dw.chunks_exact_mut(taps).zip(db).enumerate() {
        dw.iter_mut().enumerate().for_each(|(tap, dw)| *dw = total(channel, tap));
        *db = total(channel, taps);
    }
}
