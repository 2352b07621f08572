//! The end of Winograd's weight gradient: the inverse transform of a task's sums.

use super::transform::{TILE, kernel_gradient_1d};
use crate::simd::{Kernel, PANEL, Simd};

/// `G^T m G` of a task's sums, scattered to PyTorch's order.
pub(crate) struct Finish {
    pub(crate) sums: *const f32,
    pub(crate) in_count: usize,
    pub(crate) out_count: usize,
    /// The task's first channel of its first filter.
    pub(crate) dw: *mut f32,
    pub(crate) filter_len: usize,
}

impl<S: Simd> Kernel<S> for Finish {
    #[inline(always)]
    unsafe fn run(self) {
        let position_len = self.in_count * self.out_count.next_multiple_of(PANEL);
        // SAFETY: the caller's addresses hold the task's sums and filters.
        unsafe {
            for first in (0..self.out_count).step_by(S::LANES) {
                for ci in 0..self.in_count {
                    let sums = self
                        .sums
                        .add((first / PANEL * self.in_count + ci) * PANEL + first % PANEL);
                    let mut columns = [[S::zero(); 3]; TILE];
                    for (j, column) in columns.iter_mut().enumerate() {
                        let at = |i: usize| S::load(sums.add((i * TILE + j) * position_len));
                        *column =
                            kernel_gradient_1d::<S>([at(0), at(1), at(2), at(3), at(4), at(5)]);
                    }
                    let mut taps = [0.0f32; 9 * PANEL];
                    for i in 0..3 {
                        let c = &columns;
                        let row = kernel_gradient_1d::<S>([
                            c[0][i], c[1][i], c[2][i], c[3][i], c[4][i], c[5][i],
                        ]);
                        for (j, value) in row.into_iter().enumerate() {
                            S::store(taps.as_mut_ptr().add((i * 3 + j) * PANEL), value);
                        }
                    }
                    for co in first..(first + S::LANES).min(self.out_count) {
                        let dw = self.dw.add(co * self.filter_len + ci * 9);
                        for tap in 0..9 {
                            *dw.add(tap) = taps[tap * PANEL + co - first];
                        }
                    }
                }
            }
        }
    }
}
