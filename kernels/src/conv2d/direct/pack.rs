//! Weights `[C_out, C_in, K_h, K_w]` in panels of 16 output channels: `[class][panel][tap
//! row][tap][channel][16]`.
//!
//! In: weights in PyTorch's order.
//! Out: the order in which the direct kernels read them; unused lanes of the last panel are zero.
//! The lanes hold output channels for the forward pass, and input channels for the data gradient,
//! whose taps are mirrored and divided among the classes.

use crate::conv2d::Conv2dShape;
use crate::conv2d::plan::DirectPlan;
use crate::conv2d::transpose::Weights;
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
        let taps = self.shape.taps();
        let mut strides = [taps, taps * plan.in_c];
        if plan.mirrored {
            strides = [taps * plan.out_c, taps];
        }
        let weights = Weights {
            values: self.weights,
            taps,
            in_channels: plan.in_c,
            out_channels: plan.out_c,
            in_stride: strides[0],
            out_stride: strides[1],
        };
        let width = self.shape.kernel[1];
        let packed = self.packed;
        // SAFETY: passed on.
        unsafe {
            weights.each_block::<S>(|block| {
                for tap in 0..block.taps {
                    let (kh, kw) = ((block.tap + tap) / width, (block.tap + tap) % width);
                    let first = plan.packed_tap(self.shape, block.panel, (kh, kw));
                    let (packed, _) = packed[first + block.channel * PANEL..].as_chunks_mut();
                    let vectors = block.vectors[tap..].iter().step_by(block.taps);
                    packed
                        .iter_mut()
                        .zip(vectors)
                        .for_each(|(to, from)| *to = *from);
                }
            });
        }
    }
}
