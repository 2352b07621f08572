//! Sums of the weight gradient, `[panel][tap][channel][16]`, in PyTorch's order.

use crate::conv2d::transpose::Rows;
use crate::simd::{Kernel, PANEL, Simd};

/// Writes a task's sums in PyTorch's order.
pub(crate) struct Finish<'a> {
    pub(crate) sums: &'a [f32],
    pub(crate) taps: usize,
    pub(crate) in_count: usize,
    /// Vectors of sums from one tap to the next.
    pub(crate) in_stride: usize,
    pub(crate) out_count: usize,
    /// The task's first channel of its first filter.
    pub(crate) dw: *mut f32,
    pub(crate) filter_len: usize,
}

impl<S: Simd> Kernel<S> for Finish<'_> {
    #[inline(always)]
    unsafe fn run(self) {
        let columns = self.in_count * self.taps;
        let panel_stride = self.in_stride * self.taps * PANEL;
        assert!(
            self.out_count.div_ceil(PANEL) * panel_stride <= self.sums.len(),
            "weight gradient: sums of a task"
        );
        for first in (0..self.out_count).step_by(S::LANES) {
            let sums = self
                .sums
                .as_ptr()
                .wrapping_add(first / PANEL * panel_stride + first % PANEL);
            let filters = Rows {
                first: self.dw.wrapping_add(first * self.filter_len),
                stride: self.filter_len,
                rows: S::LANES.min(self.out_count - first),
                columns,
            };
            let mut channel = 0;
            let mut tap = 0;
            // SAFETY: the sums lie in the slice as just asserted, the filters are the caller's
            // contract.
            unsafe {
                filters.fill_columns::<S>(|_| {
                    let vector =
                        S::load(sums.wrapping_add((tap * self.in_stride + channel) * PANEL));
                    tap += 1;
                    if tap == self.taps {
                        (channel, tap) = (channel + 1, 0);
                    }
                    vector
                });
            }
        }
    }
}
