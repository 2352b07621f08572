//! Weights `[C_out, C_in, K, K]` into panels of 16 output channels as pairs of bf16: `[class][panel][tap row][vector][16][2]`.
//!
//! In: PyTorch's weights. Out: the order in which dot products read them, rounded to the nearest bf16, a pair's bits in the
//! place of an f32, the first value low; lanes beyond the last channel are zero, and so are pairs beyond the end of a run.

use half::bf16;

use crate::Element;
use crate::conv2d::Conv2dShape;
use crate::conv2d::plan::{Class, Plan};
use crate::simd::{PANEL, TILE_ROWS, TILE_VALUES};

/// How the values of a run are spread over vectors of pairs.
pub(crate) struct Layout {
    /// Vectors of a run.
    pub(crate) vectors: fn(usize) -> usize,
    /// Which value of a run the low (0) or high (1) half of a vector is for, if any.
    value: fn(run: usize, vector: usize, half: usize) -> Option<usize>,
}

/// For register blocks: one pair after the other.
pub(crate) const PAIRS: Layout = Layout {
    vectors: |run| run.div_ceil(2),
    value: |run, vector, half| Some(2 * vector + half).filter(|&value| value < run),
};

/// For tiles: 16 pairs each, the last ones of a run ending with it. Runs are of 32 values at least, or empty.
pub(crate) const TILES: Layout = Layout {
    vectors: |run| run.div_ceil(TILE_VALUES) * TILE_ROWS,
    value: |run, vector, half| {
        let new = vector / TILE_ROWS * TILE_VALUES;
        let value = new.min(run - TILE_VALUES) + 2 * (vector % TILE_ROWS) + half;
        (value >= new).then_some(value)
    },
};

/// Packs for the pass of `plan`.
pub(crate) fn pack(layout: &Layout, s: &Conv2dShape, plan: &Plan, weights: &[f32], packed: &mut [f32]) {
    let mut lanes = packed.chunks_exact_mut(PANEL);
    for class in plan.classes() {
        let (taps, run) = (Taps::new(s, plan, class), class.taps_w * plan.in_c);
        for panel in (0..plan.out_c).step_by(PANEL) {
            let channels = PANEL.min(plan.out_c - panel);
            for row in 0..class.taps_h {
                for vector in 0..(layout.vectors)(run) {
                    let pairs = lanes.next().expect("the packed length was checked");
                    let [low, high] =
                        [0, 1].map(|half| (layout.value)(run, vector, half).map(|at| taps.offset(row, at)));
                    let (used, unused) = pairs.split_at_mut(channels);
                    unused.fill(0.0);
                    for (lane, pair) in used.iter_mut().enumerate() {
                        let first = (panel + lane) * taps.lane_stride;
                        let bits = |offset: Option<usize>| offset.map_or(0, |offset| bits_of(weights[first + offset]));
                        *pair = f32::from_bits(bits(low) | bits(high) << 16);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn bits_of(weight: f32) -> u32 {
    u32::from(<bf16 as Element>::from_f32(weight).to_bits())
}

/// Where a class's weights lie among PyTorch's.
struct Taps<'a> {
    plan: &'a Plan,
    class: &'a Class,
    kernel: usize,
    stride: usize,
    /// From one output channel of the pass to the next, and from one input channel.
    lane_stride: usize,
    channel_stride: usize,
}

impl<'a> Taps<'a> {
    fn new(s: &Conv2dShape, plan: &'a Plan, class: &'a Class) -> Self {
        let of_out = s.in_channels * s.kernel * s.kernel;
        let of_in = s.kernel * s.kernel;
        let (lane_stride, channel_stride) = if plan.mirrored { (of_in, of_out) } else { (of_out, of_in) };
        Self { plan, class, kernel: s.kernel, stride: s.stride, lane_stride, channel_stride }
    }

    /// The offset of a run's value in a row of taps, for output channel 0.
    fn offset(&self, row: usize, value: usize) -> usize {
        let tap = |index: usize, last: usize| if self.plan.mirrored { last - self.stride * index } else { index };
        let (kh, kw) = (tap(row, self.class.last_tap_h), tap(value / self.plan.in_c, self.class.last_tap_w));
        value % self.plan.in_c * self.channel_stride + kh * self.kernel + kw
    }
}
