//! The rows of an image that a kernel reads at a time.
//!
//! In: an image `[H, W, C]`.
//! Out: as many rows as the kernel has, `[slot][block of channels][pixel][channel]`, with zeros
//! around and between the pixels, and in missing channels of a last block. So loops need no special
//! case for borders.
//! Invariant: every row is copied once, in order.

use super::{BLOCK, DepthwisePlan};
use crate::Element;
use crate::simd::Simd;

pub(super) struct Ring<'a, E> {
    plan: &'a DepthwisePlan,
    from: &'a [E],
    rows: &'a mut [f32],
    /// The first row that was not copied yet.
    next: usize,
}

impl<'a, E: Element> Ring<'a, E> {
    /// # Panics
    /// If a length is not the plan's.
    #[inline(always)]
    pub(super) fn new(plan: &'a DepthwisePlan, from: &'a [E], rows: &'a mut [f32]) -> Self {
        assert_eq!(
            from.len(),
            plan.from[0] * plan.from[1] * plan.channels,
            "depthwise: length of an image"
        );
        let rows = &mut rows[..plan.slot_len()];
        rows.fill(0.0);
        Self {
            plan,
            from,
            rows,
            next: 0,
        }
    }

    /// Returns the start of the row under each row of the kernel, at an output row.
    ///
    /// # Safety
    /// The processor has the features of `S`.
    #[inline(always)]
    pub(super) unsafe fn under<S: Simd, const K: usize>(
        &mut self,
        row: usize,
    ) -> [Option<usize>; K] {
        let under: [Option<usize>; K] = std::array::from_fn(|tap| self.plan.row_under(row, tap));
        if let Some(last) = under.iter().flatten().last() {
            while self.next <= *last {
                // SAFETY: features by contract.
                unsafe { self.copy_next::<S>() };
            }
        }
        under.map(|row| row.map(|row| row % K * self.plan.row_len()))
    }

    #[inline(always)]
    pub(super) fn rows(&self) -> &[f32] {
        self.rows
    }

    #[inline(always)]
    unsafe fn copy_next<S: Simd>(&mut self) {
        let plan = self.plan;
        let width = plan.from[1];
        let block_len = plan.ring_width() * BLOCK;
        let from = &self.from[self.next * width * plan.channels..][..width * plan.channels];
        let to = &mut self.rows[self.next % plan.kernel * plan.row_len()..][..plan.row_len()];
        for (pixel, from) in from.chunks_exact(plan.channels).enumerate() {
            let at = (plan.border + pixel * plan.spread) * BLOCK;
            for first in (0..plan.channels).step_by(S::LANES) {
                let to = &mut to[first / BLOCK * block_len + at + first % BLOCK..][..S::LANES];
                // SAFETY: as many lanes as there are channels left are read; a whole vector is
                // inside the slice, as just cut.
                unsafe {
                    S::store(
                        to.as_mut_ptr(),
                        E::load_masked::<S>(from[first..].as_ptr(), S::mask(plan.channels - first)),
                    )
                };
            }
        }
        self.next += 1;
    }
}
