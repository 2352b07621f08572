//! Weights `[C_out, C_in, K_h, K_w]` in panels of 16 output channels: `[class][panel][tap
//! row][tap][channel][16]`.
//!
//! In: weights in PyTorch's order.
//! Out: the order in which the direct kernels read them; unused lanes of the last panel are zero.
//! The lanes hold output channels for the forward pass, and input channels for the data gradient,
//! whose taps are mirrored and divided among the classes.

use crate::conv2d::Conv2dShape;
use crate::conv2d::plan::DirectPlan;
use crate::conv2d::transpose::Rows;
use crate::simd::{GenericWork, Kernel, PANEL, Simd};

/// Packs all weights; the lengths were asserted by the caller.
pub(crate) struct Pack<'a> {
    pub(crate) shape: &'a Conv2dShape,
    pub(crate) plan: &'a DirectPlan,
    pub(crate) weights: &'a [f32],
    pub(crate) packed: &'a mut [f32],
}

impl GenericWork for Pack<'_> {
    type Output = ();
    fn run<S: Simd>(self) {
        // SAFETY: features asserted by `Isa::run`; the kernel stays inside the slices, whose
        // lengths were asserted.
        unsafe { S::vectorize(self) }
    }
}

impl<S: Simd> Kernel<S> for Pack<'_> {
    #[inline(always)]
    unsafe fn run(self) {
        let plan = self.plan;
        let [_, width] = self.shape.kernel;
        let taps = self.shape.taps();
        let weights = self.weights.as_ptr().cast_mut();
        let packed = self.packed.as_mut_ptr();
        for first in (0..plan.out_c.next_multiple_of(PANEL)).step_by(S::LANES) {
            let rows = S::LANES.min(plan.out_c.saturating_sub(first));
            // Start of the panel's vectors of a tap, one for each channel.
            let place = |tap| {
                packed.wrapping_add(plan.packed_tap(self.shape, first / PANEL, tap) + first % PANEL)
            };
            let next = |(kh, kw): (usize, usize)| {
                if kw + 1 == width {
                    (kh + 1, 0)
                } else {
                    (kh, kw + 1)
                }
            };
            // SAFETY: `rows` filters (or channels of them) from `first` on exist, and the plan has
            // a place for each tap.
            unsafe {
                if !plan.mirrored {
                    let stride = plan.in_c * taps;
                    let columns = plan.in_c * taps;
                    let filters = Rows {
                        first: weights.wrapping_add(first * stride),
                        stride,
                        rows,
                        columns,
                    };
                    let mut channel = 0;
                    let mut tap = (0, 0);
                    filters.each_column::<S>(|_, vector| {
                        S::store(place(tap).add(channel * PANEL), vector);
                        tap = next(tap);
                        if tap.0 == self.shape.kernel[0] {
                            (channel, tap) = (channel + 1, (0, 0));
                        }
                    });
                } else if taps == 1 {
                    let to = place((0, 0));
                    for channel in 0..plan.in_c {
                        let from = weights.wrapping_add(channel * plan.out_c + first);
                        S::store(to.add(channel * PANEL), S::load_masked(from, S::mask(rows)));
                    }
                } else {
                    for channel in 0..plan.in_c {
                        let filters = Rows {
                            first: weights.wrapping_add((channel * plan.out_c + first) * taps),
                            stride: taps,
                            rows,
                            columns: taps,
                        };
                        let mut tap = (0, 0);
                        filters.each_column::<S>(|_, vector| {
                            S::store(place(tap).add(channel * PANEL), vector);
                            tap = next(tap);
                        });
                    }
                }
            }
        }
    }
}
