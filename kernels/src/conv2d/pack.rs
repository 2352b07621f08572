//! Weights `[C_out, C_in, K, K]` into panels of 16 output channels: `[class][panel][tap row][tap][channel][16]`.
//!
//! In: PyTorch's weights. Out: the order in which the direct kernels read them; lanes beyond the last channel are zero.

use super::Conv2dShape;
use super::plan::Plan;
use crate::simd::PANEL;

/// For the forward pass: output channels in lanes.
pub(super) fn pack_forward(s: &Conv2dShape, plan: &Plan, weights: &[f32], packed: &mut [f32]) {
    let k = s.kernel;
    pack(plan, packed, 1, |co, ci, kh, kw| weights[((co * s.in_channels + ci) * k + kh) * k + kw]);
}

/// For the data gradient: input channels in lanes, taps mirrored, every stride-th tap in a class.
pub(super) fn pack_data_gradient(s: &Conv2dShape, plan: &Plan, weights: &[f32], packed: &mut [f32]) {
    let k = s.kernel;
    pack(plan, packed, s.stride, |ci, co, kh, kw| weights[((co * s.in_channels + ci) * k + kh) * k + kw]);
}

/// `value(out channel, in channel, tap row, tap)` into panels.
fn pack(plan: &Plan, packed: &mut [f32], stride: usize, value: impl Fn(usize, usize, usize, usize) -> f32) {
    let mut lanes = packed.chunks_exact_mut(PANEL);
    for class in plan.classes() {
        let tap = |index: usize, last: usize| if plan.mirrored { last - stride * index } else { index };
        for panel in (0..plan.out_c).step_by(PANEL) {
            let channels = PANEL.min(plan.out_c - panel);
            for (i, j) in (0..class.taps_h).flat_map(|i| (0..class.taps_w).map(move |j| (i, j))) {
                let (kh, kw) = (tap(i, class.last_tap_h), tap(j, class.last_tap_w));
                for c in 0..plan.in_c {
                    let vector = lanes.next().expect("the packed length was checked");
                    for (lane, slot) in vector.iter_mut().enumerate() {
                        *slot = if lane < channels { value(panel + lane, c, kh, kw) } else { 0.0 };
                    }
                }
            }
        }
    }
}
