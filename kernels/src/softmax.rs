//! Softmax and its logarithm of each row of `[rows, C]`.
//!
//! In: rows. Out: rows, or the gradient of the input.
//! Invariant: each row is computed alone, so the bits do not depend on threads or instruction set.
//!
//! A piece of whole rows is widened to f32, so the exponentials of short rows fill vectors, too.
//! Short rows are read and written in whole blocks. The next row overwrites what a last block
//! writes beyond its row.

use crate::Element;
use crate::pieces::{SharedMut, elements, for_each_piece, slots_len, whole_lines};
use crate::simd::{Isa, Task, exp_to_88, vectorized};

/// Values of a piece, if a row is not longer.
const PIECE_VALUES: usize = 4096;
/// Values of a piece of short rows: its buffers, input and result fit the L1 cache.
const SHORT_PIECE_VALUES: usize = 1024;
/// Channels of a row that fills vectors without other rows.
const LONG: usize = 128;
/// Values of a block of a short row.
const BLOCK: usize = 8;
/// Independent running sums of a long row.
const LANES: usize = 16;

/// The operation on rows of `channels` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Softmax {
    /// Length of a row.
    pub channels: usize,
    /// True for the logarithm.
    pub is_log: bool,
}

impl Softmax {
    /// Returns the number of workspace elements with which both passes use every thread of the
    /// current rayon pool.
    ///
    /// # Panics
    /// If the number exceeds the largest slice.
    #[must_use]
    pub fn workspace_len(&self) -> usize {
        slots_len(rayon::current_num_threads(), self.slot_len())
    }

    /// Computes y = e^x / Σ e^x of each row, within 7e-6 y + 1e-37, or its logarithm
    /// x - ln Σ e^x, within 2e-6 max(1, |y|). The differences from the largest x are rounded.
    ///
    /// A value more than 87 below the largest has the share 0. A row with a NaN or plus infinity,
    /// or with minus infinity only, becomes NaN, as in PyTorch.
    ///
    /// # Panics
    /// If the lengths differ or are no whole rows, the workspace is too short for one thread, or
    /// the processor lacks `isa`.
    #[inline(never)]
    pub fn forward<E: Element>(&self, isa: Isa, x: &[E], y: &mut [E], workspace: &mut [f32]) {
        self.each_piece(x, None, y, workspace, &|piece| {
            vectorized(isa, Forward(piece));
        });
    }

    /// Computes the gradient of the input from the result `y`: y (dy - Σ y dy) of each row, or
    /// dy - e^y Σ dy for the logarithm.
    ///
    /// # Panics
    /// As [`Softmax::forward`].
    #[inline(never)]
    pub fn backward<E: Element>(
        &self,
        isa: Isa,
        y: &[E],
        dy: &[E],
        dx: &mut [E],
        workspace: &mut [f32],
    ) {
        self.each_piece(y, Some(dy), dx, workspace, &|piece| {
            vectorized(isa, Backward(piece));
        });
    }

    fn piece_len(&self) -> usize {
        let values = if self.channels < LONG {
            SHORT_PIECE_VALUES
        } else {
            PIECE_VALUES
        };
        let rows = (values / self.channels.max(1)).max(1);
        elements("softmax: piece", &[rows, self.channels])
    }

    /// Length of three buffers of a piece, each with the last block of its last row.
    fn slot_len(&self) -> usize {
        elements("softmax: workspace", &[3, self.buffer_len()])
    }

    fn buffer_len(&self) -> usize {
        whole_lines(self.piece_len() + BLOCK)
    }

    fn each_piece<E: Element>(
        &self,
        x: &[E],
        dy: Option<&[E]>,
        written: &mut [E],
        workspace: &mut [f32],
        work: &(dyn Fn(Piece<'_, E>) + Sync),
    ) {
        let len = x.len();
        for (what, got) in [
            ("result", written.len()),
            ("gradient", dy.map_or(len, <[E]>::len)),
        ] {
            assert!(
                got == len,
                "softmax: {what}: expected {len} values, got {got}"
            );
        }
        assert!(
            len == 0 || self.channels > 0 && len.is_multiple_of(self.channels),
            "softmax: {len} values are no rows of {}",
            self.channels
        );
        if len == 0 {
            return;
        }
        let piece_len = self.piece_len();
        let written = SharedMut::new(written);
        let num_pieces = len.div_ceil(piece_len);
        for_each_piece(num_pieces, workspace, self.slot_len(), &|index, slot| {
            let first = index * piece_len;
            let piece = first..(first + piece_len).min(len);
            // SAFETY: each piece has its own part, and the slice outlives the pass.
            let written = unsafe {
                let start = written.at(first, piece.len());
                core::slice::from_raw_parts_mut(start, piece.len())
            };
            let (values, rest) = slot.split_at_mut(self.buffer_len());
            let (powers, results) = rest.split_at_mut(self.buffer_len());
            work(Piece {
                softmax: self,
                x: &x[piece.clone()],
                dy: dy.map_or(&[], |dy| &dy[piece.clone()]),
                written,
                buffers: [values, powers, results],
            });
        });
    }
}

struct Piece<'a, E> {
    softmax: &'a Softmax,
    /// The input, or the result in the backward pass.
    x: &'a [E],
    dy: &'a [E],
    written: &'a mut [E],
    buffers: [&'a mut [f32]; 3],
}

struct Forward<'a, E>(Piece<'a, E>);

impl<E: Element> Task for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Piece {
            softmax: &Softmax { channels, is_log },
            x,
            written,
            buffers: [values, powers, results],
            ..
        } = self.0;
        if channels >= LONG {
            for (x, y) in x
                .chunks_exact(channels)
                .zip(written.chunks_exact_mut(channels))
            {
                let largest = folded(x, f32::NEG_INFINITY, larger);
                for (power, x) in powers.iter_mut().zip(x) {
                    *power = share(x.to_f32() - largest);
                }
                let sum = folded(&powers[..channels], 0.0, |a, b| a + b);
                if is_log {
                    let log = libm::logf(sum);
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = E::from_f32(x.to_f32() - largest - log);
                    }
                } else {
                    let factor = 1.0 / sum;
                    for (y, power) in y.iter_mut().zip(&*powers) {
                        *y = E::from_f32(power * factor);
                    }
                }
            }
            return;
        }
        let blocks = Blocks::new(channels);
        let len = x.len();
        let x = match E::as_f32(x) {
            Some(x) if channels.is_multiple_of(BLOCK) => x,
            _ => {
                for (result, x) in results.iter_mut().zip(x) {
                    *result = x.to_f32();
                }
                &*results
            }
        };
        for start in (0..len).step_by(channels) {
            let x = &x[start..];
            let largest = blocks.reduced(x, f32::NEG_INFINITY, larger);
            blocks.map([x, x], &mut values[start..], |x, _| x - largest);
        }
        for (power, value) in powers.iter_mut().zip(&values[..len]) {
            *power = share(*value);
        }
        for start in (0..len).step_by(channels) {
            let [powers, values] = [&powers[start..], &values[start..]];
            let sum = blocks.reduced(powers, 0.0, |a, b| a + b);
            let term = if is_log { libm::logf(sum) } else { 1.0 / sum };
            let results = &mut results[start..];
            if is_log {
                blocks.map([powers, values], results, |_, value| value - term);
            } else {
                blocks.map([powers, values], results, |power, _| power * term);
            }
        }
        for (y, result) in written.iter_mut().zip(&*results) {
            *y = E::from_f32(*result);
        }
    }
}

struct Backward<'a, E>(Piece<'a, E>);

impl<E: Element> Task for Backward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Piece {
            softmax: &Softmax { channels, is_log },
            x: y,
            dy,
            written,
            buffers: [values, powers, results],
        } = self.0;
        if channels >= LONG {
            let rows = y.chunks_exact(channels).zip(dy.chunks_exact(channels));
            for ((y, dy), dx) in rows.zip(written.chunks_exact_mut(channels)) {
                let sum = if is_log {
                    folded(dy, 0.0, |a, b| a + b)
                } else {
                    summed(y, dy, |y, dy| y * dy)
                };
                for (dx, (y, dy)) in dx.iter_mut().zip(y.iter().zip(dy)) {
                    let (y, dy) = (y.to_f32(), dy.to_f32());
                    *dx = E::from_f32(if is_log {
                        dy - share(y) * sum
                    } else {
                        y * dy - y * sum
                    });
                }
            }
            return;
        }
        let blocks = Blocks::new(channels);
        let buffers = values.iter_mut().zip(&mut *powers);
        for ((value, power), (y, dy)) in buffers.zip(y.iter().zip(dy)) {
            let (y, dy) = (y.to_f32(), dy.to_f32());
            (*value, *power) = if is_log { (dy, share(y)) } else { (y * dy, y) };
        }
        for start in (0..y.len()).step_by(channels) {
            let row = [&values[start..], &powers[start..]];
            let sum = blocks.reduced(row[0], 0.0, |a, b| a + b);
            blocks.map(row, &mut results[start..], |value, power| {
                value - power * sum
            });
        }
        for (dx, result) in written.iter_mut().zip(&*results) {
            *dx = E::from_f32(*result);
        }
    }
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Blocks of a short row.
struct Blocks {
    count: usize,
    /// The bits of the last block's values that belong to the row.
    mask: [u32; BLOCK],
}

impl Blocks {
    #[inline(always)]
    fn new(channels: usize) -> Self {
        let count = channels.div_ceil(BLOCK);
        let last = channels - (count - 1) * BLOCK;
        Self {
            count,
            mask: std::array::from_fn(|lane| if lane < last { u32::MAX } else { 0 }),
        }
    }

    #[inline(always)]
    fn of<'a>(&self, values: &'a [f32]) -> &'a [[f32; BLOCK]] {
        &values.as_chunks().0[..self.count]
    }

    /// Returns a sum or maximum of the row at the front of `values`, in lanes.
    #[inline(always)]
    fn reduced(&self, values: &[f32], start: f32, of: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = [start; BLOCK];
        let (whole, last) = self.of(values).split_at(self.count - 1);
        for block in whole {
            lanes = std::array::from_fn(|lane| of(lanes[lane], block[lane]));
        }
        // The mask selects bits: the compiler would turn selections of values into jumps.
        for block in last {
            lanes = std::array::from_fn(|lane| {
                let mask = self.mask[lane];
                let bits = block[lane].to_bits() & mask | start.to_bits() & !mask;
                of(lanes[lane], f32::from_bits(bits))
            });
        }
        let four: [f32; 4] = std::array::from_fn(|lane| of(lanes[lane], lanes[lane + 4]));
        of(of(four[0], four[2]), of(four[1], four[3]))
    }

    /// Writes a function of two rows. The last block also reads and writes behind the rows.
    #[inline(always)]
    fn map(&self, [a, b]: [&[f32]; 2], to: &mut [f32], of: impl Fn(f32, f32) -> f32) {
        let to = &mut to.as_chunks_mut::<BLOCK>().0[..self.count];
        for (to, (a, b)) in to.iter_mut().zip(self.of(a).iter().zip(self.of(b))) {
            *to = std::array::from_fn(|lane| of(a[lane], b[lane]));
        }
    }
}

/// Returns e^x for x up to 0, and 0 below -87.
#[inline(always)]
pub(crate) fn share(x: f32) -> f32 {
    let power = exp_to_88(x);
    if x < -87.0 { 0.0 } else { power }
}

/// Returns a sum or maximum of a row, in lanes.
#[inline(always)]
pub(crate) fn folded<E: Element>(row: &[E], start: f32, of: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let (blocks, tail) = row.as_chunks::<LANES>();
    for block in blocks {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane = of(*lane, value.to_f32());
        }
    }
    for (lane, value) in lanes.iter_mut().zip(tail) {
        *lane = of(*lane, value.to_f32());
    }
    lanes.into_iter().fold(start, of)
}

/// Returns the sum of a function of two rows, in lanes.
#[inline(always)]
pub(crate) fn summed<E: Element>(a: &[E], b: &[E], of: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let [(a, a_tail), (b, b_tail)] = [a, b].map(<[E]>::as_chunks::<LANES>);
    for (a, b) in a.iter().zip(b) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += of(a.to_f32(), b.to_f32());
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(a_tail.iter().zip(b_tail)) {
        *lane += of(a.to_f32(), b.to_f32());
    }
    lanes.into_iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_close, doubles, rounded, same_everywhere, stored, values, widened};
    use half::bf16;

    /// The result and the gradient for dy, of f64 loops.
    fn reference(softmax: Softmax, x: &[f32], dy: &[f32]) -> [Vec<f64>; 2] {
        let mut all = [Vec::new(), Vec::new()];
        let rows = x.chunks_exact(softmax.channels);
        for (x, dy) in rows.zip(dy.chunks_exact(softmax.channels)) {
            let (x, dy) = (doubles(x), doubles(dy));
            let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = x.iter().map(|x| (x - largest).exp()).sum();
            let p: Vec<f64> = x.iter().map(|x| (x - largest).exp() / sum).collect();
            let mean: f64 = p.iter().zip(&dy).map(|(p, dy)| p * dy).sum();
            let total: f64 = dy.iter().sum();
            for ((x, p), dy) in x.iter().zip(&p).zip(&dy) {
                let [y, dx] = if softmax.is_log {
                    [x - largest - sum.ln(), dy - p * total]
                } else {
                    [*p, p * (dy - mean)]
                };
                all[0].push(y);
                all[1].push(dx);
            }
        }
        all
    }

    fn run<E: Element>(softmax: Softmax, isa: Isa, x: &[E], dy: &[E]) -> [Vec<E>; 2] {
        let mut y = vec![E::default(); x.len()];
        let mut dx = vec![E::default(); x.len()];
        let mut workspace = vec![f32::NAN; softmax.workspace_len()];
        softmax.forward(isa, x, &mut y, &mut workspace);
        softmax.backward(isa, &y, dy, &mut dx, &mut workspace);
        [y, dx]
    }

    const OPERATIONS: [bool; 2] = [false, true];

    #[test]
    fn rows_equal_the_formulas_in_f64_and_are_the_same_everywhere() {
        for (rows, channels) in [
            (1, 1),
            (7, 3),
            (1000, 7),
            (700, 10),
            (5, 16),
            (40, 100),
            (3, 1000),
            (2, 5003),
        ] {
            for is_log in OPERATIONS {
                let softmax = Softmax { channels, is_log };
                let x: Vec<f32> = values(rows * channels, 1)
                    .iter()
                    .map(|x| 20.0 * x)
                    .collect();
                let dy = values(x.len(), 2);
                let [y, dx] = same_everywhere(|isa| run(softmax, isa, &x, &dy));
                let [expected, gradient] = reference(softmax, &x, &dy);
                let what = format!("{softmax:?}, {rows} rows");
                assert_close(&what, &y, &expected, 2e-6);
                // Of sums of `channels` gradients.
                assert_close(&what, &dx, &gradient, 1e-5);
                if !is_log {
                    for (y, expected) in y.iter().zip(&expected) {
                        let error = (f64::from(*y) - expected).abs();
                        let bound = 7e-6 * expected + 1e-37;
                        assert!(error <= bound, "{what}: {y} against {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn far_values_have_no_share_and_rows_without_a_number_are_nan() {
        let x = [0.0, f32::NEG_INFINITY, -90.0, 0.0];
        for is_log in OPERATIONS {
            let softmax = Softmax {
                channels: 4,
                is_log,
            };
            let [y, _] = run(softmax, Isa::detect(), &x, &[1.0; 4]);
            let expected = if is_log {
                let log = 2.0_f32.ln();
                [-log, f32::NEG_INFINITY, -90.0 - log, -log]
            } else {
                [0.5, 0.0, 0.0, 0.5]
            };
            assert_eq!(y, expected);
            for wrong in [f32::NAN, f32::INFINITY] {
                let [y, dx] = run(softmax, Isa::detect(), &[0.0, 1.0, wrong, 2.0], &[1.0; 4]);
                assert!(y.iter().any(|y| y.is_nan()) && dx.iter().all(|dx| dx.is_nan()));
            }
            let [y, _] = run(softmax, Isa::detect(), &[f32::NEG_INFINITY; 4], &[1.0; 4]);
            assert!(y.iter().all(|y| y.is_nan()));
            let [y, dx] = run::<f32>(softmax, Isa::detect(), &[], &[]);
            assert!(y.is_empty() && dx.is_empty());
        }
    }

    #[test]
    fn bf16_is_the_rounded_result_of_the_widened_values() {
        for is_log in OPERATIONS {
            let softmax = Softmax {
                channels: 37,
                is_log,
            };
            let [x, dy] = [stored(37 * 50, 3), stored(37 * 50, 4)];
            let [y, dx]: [Vec<bf16>; 2] = run(softmax, Isa::detect(), &x, &dy);
            let [expected, _] = run(softmax, Isa::detect(), &widened(&x), &widened(&dy));
            assert_eq!(y, rounded(&expected));
            let mut gradient = vec![0.0; x.len()];
            let mut workspace = vec![f32::NAN; softmax.workspace_len()];
            let [y, dy] = [widened(&y), widened(&dy)];
            softmax.backward(Isa::detect(), &y, &dy, &mut gradient, &mut workspace);
            assert_eq!(dx, rounded(&gradient));
        }
    }
}
