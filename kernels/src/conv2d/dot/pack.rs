//! Weights `[C_out, C_in, K_h, K_w]` in panels of 16 output channels, as pairs of bf16:
//! `[class][panel][tap row][vector][16][2]`.
//!
//! In: weights in PyTorch's order.
//! Out: the order in which dot products read them, rounded to the nearest bf16. A pair takes the
//! place of an f32, its first value in the low half. Unused lanes of the last panel, and pairs
//! after the end of a run, are zero.

use half::bf16;

use crate::Element;
use crate::conv2d::Conv2dShape;
use crate::conv2d::plan::{Class, DirectPlan};
use crate::simd::{PANEL, TILE_ROWS, TILE_VALUES, Task};

/// Order of the values of a run in vectors of pairs: by blocks of 32, of which the last one may be
/// cut off or end with the run.
pub(crate) struct Layout {
    /// Vectors of a run.
    pub(crate) vectors: fn(usize) -> usize,
    /// The first value for which the block has room that begins with the value `new`; those before
    /// `new` are zero.
    start: fn(run: usize, new: usize) -> usize,
}

/// For register blocks: one pair after the other.
pub(crate) const PAIRS: Layout = Layout {
    vectors: |run| run.div_ceil(2),
    start: |_, new| new,
};

/// For tiles: 16 pairs each, the last ones of a run ending with it. Runs are of 32 values at least,
/// or empty.
pub(crate) const TILES: Layout = Layout {
    vectors: |run| run.div_ceil(TILE_VALUES) * TILE_ROWS,
    start: |run, new| new.min(run - TILE_VALUES),
};

/// Packs for the pass of `plan`; the lengths were asserted by the caller.
pub(crate) struct PackPairs<'a> {
    pub(crate) layout: Layout,
    pub(crate) shape: &'a Conv2dShape,
    pub(crate) plan: &'a DirectPlan,
    pub(crate) weights: &'a [f32],
    pub(crate) packed: &'a mut [f32],
}

impl Task for PackPairs<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let plan = self.plan;
        let layout = &self.layout;
        let (mut packed, _) = self.packed.as_chunks_mut::<PANEL>();
        for class in plan.classes() {
            let taps = Taps::new(self.shape, plan, class);
            let run = class.taps_w * plan.in_c;
            for panel in (0..plan.out_c).step_by(PANEL) {
                let filters = Filters {
                    taps: &taps,
                    weights: &self.weights[panel * taps.lane_stride..],
                    num: PANEL.min(plan.out_c - panel),
                };
                for row in 0..class.taps_h {
                    for new in (0..run).step_by(TILE_VALUES) {
                        let start = (layout.start)(run, new);
                        let mut block = [[0.0; PANEL]; TILE_VALUES];
                        filters.gather(
                            row,
                            new,
                            &mut block[new - start..(run - start).min(TILE_VALUES)],
                        );
                        let vectors = TILE_ROWS.min((layout.vectors)(run) - new / 2);
                        let (to, rest) = packed.split_at_mut(vectors);
                        packed = rest;
                        for (pairs, [low, high]) in to.iter_mut().zip(block.as_chunks::<2>().0) {
                            for lane in 0..PANEL {
                                pairs[lane] =
                                    f32::from_bits(bits_of(low[lane]) | bits_of(high[lane]) << 16);
                            }
                        }
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

/// The weights of the output channels of a panel.
struct Filters<'a> {
    taps: &'a Taps<'a>,
    weights: &'a [f32],
    num: usize,
}

impl Filters<'_> {
    /// Computes the values of a row of taps from `value` on, a filter in each lane.
    #[inline(always)]
    fn gather(&self, row: usize, value: usize, values: &mut [[f32; PANEL]]) {
        let taps = self.taps;
        let in_c = taps.plan.in_c;
        let mut tap = value / in_c;
        let mut channel = value % in_c;
        let mut done = 0;
        while done < values.len() {
            // As many as have the same tap.
            let count = (in_c - channel).min(values.len() - done);
            let first = taps.offset(row, tap) + channel * taps.channel_stride;
            let to = &mut values[done..done + count];
            if taps.lane_stride == 1 && self.num == PANEL {
                for (index, lanes) in to.iter_mut().enumerate() {
                    lanes.copy_from_slice(
                        &self.weights[first + index * taps.channel_stride..][..PANEL],
                    );
                }
            } else {
                for lane in 0..self.num {
                    let filter = &self.weights[first + lane * taps.lane_stride..];
                    for (lanes, weight) in to
                        .iter_mut()
                        .zip(filter.iter().step_by(taps.channel_stride))
                    {
                        lanes[lane] = *weight;
                    }
                }
            }
            (done, tap, channel) = (done + count, tap + 1, 0);
        }
    }
}

/// Position of a class's weights among PyTorch's.
struct Taps<'a> {
    plan: &'a DirectPlan,
    class: &'a Class,
    /// Taps of a row of the kernel.
    width: usize,
    stride: usize,
    /// From one output channel of the pass to the next, and from one input channel.
    lane_stride: usize,
    channel_stride: usize,
}

impl<'a> Taps<'a> {
    fn new(s: &Conv2dShape, plan: &'a DirectPlan, class: &'a Class) -> Self {
        let of_out = s.filter_len();
        let of_in = s.taps();
        let (lane_stride, channel_stride) = if plan.mirrored {
            (of_in, of_out)
        } else {
            (of_out, of_in)
        };
        Self {
            plan,
            class,
            width: s.kernel[1],
            stride: s.stride,
            lane_stride,
            channel_stride,
        }
    }

    /// Returns the offset of a tap in a row of them, for output channel 0 and input channel 0.
    #[inline(always)]
    fn offset(&self, row: usize, column: usize) -> usize {
        let tap = |index: usize, last: usize| {
            if self.plan.mirrored {
                last - self.stride * index
            } else {
                index
            }
        };
        tap(row, self.class.last_tap_h) * self.width + tap(column, self.class.last_tap_w)
    }
}
