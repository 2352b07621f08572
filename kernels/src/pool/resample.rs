//! Resampling of rows and columns by weighted sums: interpolation, and its transpose.
//!
//! In: `[N, H, W, C]`, and for each axis an [`Axis`] with the weights.
//! Out: `[N, H_out, W_out, C]`.
//! Invariant: the gradient of the input is the same function with transposed axes. A value is the
//! sum over the rows of each column, then over the columns, in the order of the inputs.
//! Source: Keys 1981, "Cubic convolution interpolation for digital image processing", with the
//! parameter -0.75 of PyTorch.

use super::assert_len;
use crate::Element;
use crate::pieces::{SharedMut, elements, for_each_piece, slots_len};
use crate::simd::{Isa, Task, vectorized};

/// Values whose sums stay in registers.
const LANES: usize = 32;

/// A way to interpolate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// The input at position `i * inputs / outputs` of output i, rounded down.
    Nearest,
    /// Two inputs.
    Linear,
    /// Four inputs.
    Cubic,
}

/// Weighted inputs of each output along rows or columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    inputs: usize,
    /// Inputs and weights of each output.
    taps: Vec<Vec<(usize, f32)>>,
}

impl Axis {
    /// Returns an interpolation of `inputs` values to `outputs`. With `align_corners` the first and
    /// last positions of both are the same; otherwise the outer edges of the pixels are.
    /// [`Interpolation::Nearest`] ignores it. Inputs beyond an end are that end.
    ///
    /// # Panics
    /// If there are no inputs.
    #[must_use]
    pub fn new(way: Interpolation, [inputs, outputs]: [usize; 2], align_corners: bool) -> Self {
        assert!(inputs > 0, "resampling: expected inputs, got none");
        let last = inputs - 1;
        let is_aligned = align_corners && way != Interpolation::Nearest;
        let ratio = if is_aligned {
            last as f64 / outputs.saturating_sub(1).max(1) as f64
        } else {
            inputs as f64 / outputs as f64
        };
        let taps_of = |output: usize| {
            let output = output as f64;
            let at = match way {
                Interpolation::Nearest => output * ratio,
                _ if is_aligned => output * ratio,
                Interpolation::Linear => ((output + 0.5) * ratio - 0.5).max(0.0),
                Interpolation::Cubic => (output + 0.5) * ratio - 0.5,
            };
            let base = at.floor();
            let tap = |offset: f64, weight: f64| {
                let from = (base + offset).clamp(0.0, last as f64) as usize;
                (from, weight as f32)
            };
            let part = at - base;
            match way {
                Interpolation::Nearest => vec![tap(0.0, 1.0)],
                Interpolation::Linear => vec![tap(0.0, 1.0 - part), tap(1.0, part)],
                Interpolation::Cubic => [-1.0, 0.0, 1.0, 2.0]
                    .map(|offset| tap(offset, cubic(part - offset)))
                    .into(),
            }
        };
        Self {
            inputs,
            taps: (0..outputs).map(taps_of).collect(),
        }
    }

    /// Returns the axis from the outputs back to the inputs, with the same weights.
    #[must_use]
    pub fn transposed(&self) -> Self {
        let mut taps = vec![Vec::new(); self.inputs];
        for (output, from) in self.taps.iter().enumerate() {
            for (input, weight) in from {
                taps[*input].push((output, *weight));
            }
        }
        Self {
            inputs: self.taps.len(),
            taps,
        }
    }

    fn outputs(&self) -> usize {
        self.taps.len()
    }
}

/// Returns the weight of an input at this distance.
fn cubic(distance: f64) -> f64 {
    const A: f64 = -0.75;
    let x = distance.abs();
    if x <= 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A
    } else {
        0.0
    }
}

/// Returns the number of workspace elements with which [`resample`] uses every thread of the
/// current rayon pool.
#[must_use]
pub fn resample_workspace_len([_, columns]: [&Axis; 2], channels: usize) -> usize {
    slots_len(
        rayon::current_num_threads(),
        elements("resampling: a row", &[columns.inputs, channels]),
    )
}

/// Computes weighted sums of rows and columns.
///
/// # Shapes
/// `x`: `[images, inputs of rows, inputs of columns, channels]`. `y`: the same of outputs.
///
/// # Panics
/// If a length differs, the workspace is too short for one thread, or the processor lacks `isa`.
#[inline(never)]
pub fn resample<E: Element>(
    isa: Isa,
    axes @ [rows, columns]: [&Axis; 2],
    [images, channels]: [usize; 2],
    x: &[E],
    y: &mut [E],
    workspace: &mut [f32],
) {
    let [from, to] = [axes.map(|axis| axis.inputs), axes.map(Axis::outputs)]
        .map(|[height, width]| elements("resampling: pixels", &[images, height, width, channels]));
    assert_len("inputs", x.len(), from);
    assert_len("outputs", y.len(), to);
    if from == 0 || to == 0 {
        return;
    }
    let [in_row, out_row] = [columns.inputs, columns.outputs()].map(|width| width * channels);
    let y = SharedMut::new(y);
    for_each_piece(images * rows.outputs(), workspace, in_row, &|piece, row| {
        let [image, output] = [piece / rows.outputs(), piece % rows.outputs()];
        // SAFETY: each piece has its own row, and the slice outlives the pass.
        let y = unsafe { core::slice::from_raw_parts_mut(y.at(piece * out_row, out_row), out_row) };
        let work = Row {
            x: &x[image * rows.inputs * in_row..][..rows.inputs * in_row],
            rows: &rows.taps[output],
            columns,
            channels,
            row,
            y,
        };
        vectorized(isa, work);
    });
}

/// One row of the output.
struct Row<'a, E> {
    /// An image.
    x: &'a [E],
    rows: &'a [(usize, f32)],
    columns: &'a Axis,
    channels: usize,
    /// The sums of rows.
    row: &'a mut [f32],
    y: &'a mut [E],
}

impl<E: Element> Task for Row<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self {
            x,
            rows,
            columns,
            channels,
            row,
            y,
        } = self;
        add(x, rows, row);
        for (y, taps) in y.chunks_exact_mut(channels).zip(&columns.taps) {
            add(row, taps, y);
        }
    }
}

/// Writes the weighted sum of runs of `from`, each as long as `to`.
#[inline(always)]
fn add<A: Element, B: Element>(from: &[A], taps: &[(usize, f32)], to: &mut [B]) {
    let len = to.len();
    let (blocks, rest) = to.as_chunks_mut::<LANES>();
    for (index, to) in blocks.iter_mut().enumerate() {
        let mut sums = [0.0; LANES];
        for (run, weight) in taps {
            let from = &from[run * len + index * LANES..][..LANES];
            for (sum, from) in sums.iter_mut().zip(from) {
                *sum += weight * from.to_f32();
            }
        }
        for (to, sum) in to.iter_mut().zip(sums) {
            *to = B::from_f32(sum);
        }
    }
    let first = len - rest.len();
    for (index, to) in rest.iter_mut().enumerate() {
        let mut sum = 0.0;
        for (run, weight) in taps {
            sum += weight * from[run * len + first + index].to_f32();
        }
        *to = B::from_f32(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_close, rounded, same_everywhere, stored, values, widened};

    const WAYS: [Interpolation; 3] = [
        Interpolation::Nearest,
        Interpolation::Linear,
        Interpolation::Cubic,
    ];

    fn run<E: Element>(
        isa: Isa,
        axes: [&Axis; 2],
        [images, channels]: [usize; 2],
        x: &[E],
    ) -> Vec<E> {
        let mut y =
            vec![E::from_f32(f32::NAN); images * channels * axes[0].outputs() * axes[1].outputs()];
        let mut workspace = vec![f32::NAN; resample_workspace_len(axes, channels)];
        resample(isa, axes, [images, channels], x, &mut y, &mut workspace);
        y
    }

    #[test]
    fn sums_equal_plain_loops_and_are_the_same_everywhere() {
        for (way, from, to, channels, is_aligned) in [
            (Interpolation::Linear, [4, 5], [8, 10], 64, false),
            (Interpolation::Linear, [7, 3], [3, 11], 5, true),
            (Interpolation::Cubic, [6, 5], [9, 2], 33, false),
            (Interpolation::Cubic, [1, 4], [3, 4], 1, true),
            (Interpolation::Nearest, [5, 6], [7, 4], 40, false),
        ] {
            let [rows, columns] =
                [0, 1].map(|axis| Axis::new(way, [from[axis], to[axis]], is_aligned));
            let axes = [&rows, &columns];
            let x = values(2 * from[0] * from[1] * channels, 3);
            let y = same_everywhere(|isa| run(isa, axes, [2, channels], &x));
            let mut expected = vec![0.0; y.len()];
            for (index, expected) in expected.iter_mut().enumerate() {
                let [channel, pixel] = [index % channels, index / channels];
                let [column, row] = [pixel % to[1], pixel / to[1] % to[0]];
                let image = pixel / (to[0] * to[1]);
                for (i, down) in &rows.taps[row] {
                    for (j, right) in &columns.taps[column] {
                        let at = ((image * from[0] + i) * from[1] + j) * channels + channel;
                        *expected += f64::from(*down) * f64::from(*right) * f64::from(x[at]);
                    }
                }
            }
            assert_close(&format!("{way:?} {from:?} {to:?}"), &y, &expected, 1e-6);
        }
    }

    #[test]
    fn the_transposed_axes_give_the_adjoint() {
        for way in WAYS {
            let [rows, columns] = [Axis::new(way, [5, 8], false), Axis::new(way, [6, 4], true)];
            let [x, dy] = [values(3 * 5 * 6 * 7, 1), values(3 * 8 * 4 * 7, 2)];
            let y = run(Isa::detect(), [&rows, &columns], [3, 7], &x);
            let back = [&rows.transposed(), &columns.transposed()];
            let dx = same_everywhere(|isa| run(isa, back, [3, 7], &dy));
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
                products.sum()
            };
            let [by_y, by_x] = [dot(&y, &dy), dot(&x, &dx)];
            assert!((by_y - by_x).abs() < 1e-4, "{way:?}: {by_y} {by_x}");
            assert_eq!(rows.transposed().transposed(), rows, "{way:?}");
        }
    }

    #[test]
    fn weights_add_up_to_1_and_corners_keep_their_place() {
        for way in WAYS {
            for (extents, is_aligned) in [
                ([5, 9], true),
                ([5, 9], false),
                ([9, 5], false),
                ([1, 3], true),
            ] {
                let axis = Axis::new(way, extents, is_aligned);
                for taps in &axis.taps {
                    let sum: f32 = taps.iter().map(|(_, weight)| weight).sum();
                    assert!((sum - 1.0).abs() < 1e-6, "{way:?} {extents:?}: {taps:?}");
                }
                if is_aligned && way != Interpolation::Nearest && extents[0] > 1 {
                    let ends = [&axis.taps[0], &axis.taps[extents[1] - 1]];
                    for (taps, end) in ends.into_iter().zip([0, extents[0] - 1]) {
                        let of_end: f32 = taps
                            .iter()
                            .filter(|tap| tap.0 == end)
                            .map(|tap| tap.1)
                            .sum();
                        assert!((of_end - 1.0).abs() < 1e-6, "{way:?}: {taps:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn bf16_is_the_rounded_result_of_the_widened_values() {
        let axis = Axis::new(Interpolation::Linear, [6, 11], false);
        let x = stored(6 * 6 * 37, 4);
        let y = run(Isa::detect(), [&axis; 2], [1, 37], &x);
        let expected = run(Isa::detect(), [&axis; 2], [1, 37], &widened(&x));
        assert_eq!(y, rounded(&expected));
    }

    #[test]
    #[should_panic(expected = "pool: inputs: expected 40 values, got 39")]
    fn a_wrong_length_is_named() {
        let axis = Axis::new(Interpolation::Nearest, [2, 2], false);
        resample(
            Isa::detect(),
            [&axis; 2],
            [1, 10],
            &[0.0; 39],
            &mut [0.0; 40],
            &mut [0.0; 20],
        );
    }
}
