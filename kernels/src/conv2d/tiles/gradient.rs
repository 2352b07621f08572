//! Gradient of the weights for bf16 activations, by products of tiles.
//!
//! In: x and dy.
//! Out: dw, from sums `[panel][kernel row][tap][channel][16]` of one task at a time. A sum over
//! pixels needs a run of pixels for each channel of x, and pairs of pixels of dy. So both are
//! packed, one unit of pixels at a time; the packed x then serves all taps by shifts.
//! Invariant: units, pieces and the order of sums depend only on the shape. A value that is not
//! finite may make all gradients of its channel wrong, also those of other taps.
//! Source: Intel, 64 and IA-32 Architectures Optimization Reference Manual, chapter on AMX, for 2 x
//! 2 tiles of sums.

use core::marker::PhantomData;
use half::bf16;

use super::grid::{Grid, PackSteps, STEP_PAIRS};
use crate::conv2d::Conv2dShape;
use crate::conv2d::direct::weight_gradient::block_of;
use crate::conv2d::gradient_pieces::{Method, Pieces, Task, Unit, Units, WeightPlan};
use crate::conv2d::plan::PixelRows;
use crate::simd::{PANEL, Simd, TILE_ROWS, TILE_VALUES, Tiles};

/// Positions of a unit: a panel of x and two of dy stay in L1 while all taps pass over them.
const UNIT_POSITIONS: usize = 512;
/// Most values of a kernel row's run, and most output channels, of a task: its sums stay in L2.
const TASK_RUN: usize = 256;
const TASK_CHANNELS: usize = 256;
/// A piece has at least so many pixels: below, adding the pieces' gradients would cost too much.
const PIECE_PIXELS: usize = 1024;
/// Floats of a tile of sums.
const SUM_TILE: usize = TILE_ROWS * PANEL;

/// Cut of the pixels: a unit is a band of rows of one image, or several small images; a piece is a
/// run of units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileWeightPlan {
    units: Units,
    pieces: Pieces,
    /// Channels of a task on either side.
    in_block: usize,
    out_block: usize,
    /// Positions of a row, and rows of an image, in every plane of a unit.
    pitch: usize,
    image_rows: usize,
}

impl TileWeightPlan {
    pub(crate) fn new(s: &Conv2dShape) -> Self {
        let all = PixelRows::of(s);
        let s = &all.shape;
        let out_h = s.out_height();
        let out_w = s.out_width();
        let halo = s.kernel.map(|taps| (taps - 1) / s.stride);
        // The zeros behind a row serve as those before the next one, and likewise those between
        // images.
        let shared = if s.stride == 1 { s.padding } else { [0, 0] };
        let pitch = out_w + halo[1] - shared[1];
        let most_rows = (UNIT_POSITIONS / pitch).clamp(1, out_h);
        let units = Units::new(all, most_rows, |band_rows| {
            UNIT_POSITIONS / ((band_rows + halo[0] - shared[0]) * pitch)
        });
        let shared_rows = if units.num_bands == 1 { shared[0] } else { 0 };
        let block = s.block().0;
        Self {
            units,
            pieces: Pieces::new(s.weight_len(), units.len(), all.pixels / PIECE_PIXELS),
            in_block: block_of(block.in_channels, (TASK_RUN / s.kernel[1]).max(PANEL)),
            out_block: block_of(block.out_channels, TASK_CHANNELS),
            pitch,
            image_rows: units.band_rows + halo[0] - shared_rows,
        }
    }

    /// Returns the number of steps of products over `images` with `rows` of `width` pixels each.
    fn steps(&self, images: usize, [rows, width]: [usize; 2]) -> usize {
        (((images - 1) * self.image_rows + rows - 1) * self.pitch + width).div_ceil(TILE_VALUES)
    }

    /// Returns the number of steps of the largest unit.
    fn max_steps(&self) -> usize {
        self.steps(
            self.units.images,
            [self.units.band_rows, self.units.rows.shape.out_width()],
        )
    }

    /// Returns the number of steps of a plane of x: with the farthest tap's positions.
    fn plane_steps(&self, steps: usize) -> usize {
        let s = &self.units.rows.shape;
        let [down, right] = s.kernel.map(|taps| (taps - 1) / s.stride);
        steps + (down * self.pitch + right).div_ceil(TILE_VALUES)
    }

    /// Pairs from one channel of a plane to the next: an odd number of cache lines, against set
    /// conflicts.
    fn channel_stride(&self) -> usize {
        (self.plane_steps(self.max_steps()) | 1) * STEP_PAIRS
    }

    fn panel_stride(&self) -> usize {
        self.max_steps() * STEP_PAIRS * PANEL
    }

    fn plane_len(&self) -> usize {
        self.in_block.next_multiple_of(PANEL) * self.channel_stride()
    }

    /// Returns the planes in each direction.
    fn parities(&self) -> [usize; 2] {
        let s = &self.units.rows.shape;
        s.kernel.map(|taps| taps.min(s.stride))
    }

    fn num_planes(&self) -> usize {
        self.parities().iter().product()
    }

    fn sums_len(&self) -> usize {
        let taps = self.units.rows.shape.taps();
        self.out_block.next_multiple_of(PANEL) * self.in_block.next_multiple_of(PANEL) * taps
    }

    /// Returns the room for a unit's packed x and dy.
    fn scratch_len(&self) -> usize {
        self.num_planes() * self.plane_len() + self.out_block.div_ceil(PANEL) * self.panel_stride()
    }
}

impl WeightPlan for TileWeightPlan {
    fn rows(&self) -> &PixelRows {
        &self.units.rows
    }

    fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    fn blocks(&self) -> [usize; 2] {
        [self.in_block, self.out_block]
    }

    fn lens(&self) -> [usize; 2] {
        [self.sums_len(), self.scratch_len()]
    }
}

/// The products of the plan by one implementation of tiles, which exists.
pub(crate) struct ByTiles<'a, T> {
    pub(crate) plan: &'a TileWeightPlan,
    pub(crate) tiles: PhantomData<fn() -> T>,
}

impl<T: Tiles> Method<bf16> for ByTiles<'_, T> {
    type Plan = TileWeightPlan;

    fn plan(&self) -> &TileWeightPlan {
        self.plan
    }

    fn add_unit<S: Simd>(
        &self,
        task: &Task<'_, bf16>,
        unit: usize,
        sums: &mut [f32],
        accumulate: bool,
        scratch: &mut [f32],
    ) {
        run_unit::<S, T>(self.plan, task, unit, sums, accumulate, scratch);
    }

    fn finish<S: Simd>(&self, task: &Task<'_, bf16>, sums: &[f32], dw: *mut f32) {
        let in_stride = task.in_count.next_multiple_of(PANEL);
        // SAFETY: `dw` holds all filters; this task's channels of its filters are written by no
        // other.
        unsafe { task.finish::<S>(&self.plan.units.rows.shape, sums, in_stride, dw) };
    }
}

/// Packs one unit and adds its products to the sums of its task, or sets them.
fn run_unit<S: Simd, T: Tiles>(
    plan: &TileWeightPlan,
    task: &Task<'_, bf16>,
    unit: usize,
    sums: &mut [f32],
    accumulate: bool,
    slot: &mut [f32],
) {
    let s = &plan.units.rows.shape;
    let Unit {
        image,
        images,
        row,
        runs,
        width,
        ..
    } = plan.units.get(unit);
    let steps = plan.steps(images, [runs, width]);
    let [in_h, in_w] = if plan.units.rows.is_flat() {
        [row + runs, width]
    } else {
        [s.height, s.width]
    };
    let (planes, dy) = slot.split_at_mut(plan.num_planes() * plan.plane_len());
    let in_image = s.height * s.width * s.in_channels;

    let of_unit = Grid {
        images,
        image_rows: plan.image_rows,
        pitch: plan.pitch.max(width),
        rows: [0, runs],
        columns: [0, width],
        strides: [
            s.out_height() * s.out_width() * s.out_channels,
            s.out_width() * s.out_channels,
            s.out_channels,
        ],
        origin: ((image * s.out_height() + row) * s.out_width() * s.out_channels) as isize,
    };
    let source = &task.dy[task.out_c..];
    let channels = task.out_count;
    let stride = plan.panel_stride();
    let right = PackSteps::<false> {
        source,
        grid: of_unit,
        channels,
        steps,
        out: dy,
        stride,
    };
    // SAFETY: features asserted by `Isa::run`; the kernel stays inside its slices.
    unsafe { S::vectorize(right) };
    for (index, plane) in planes.chunks_exact_mut(plan.plane_len()).enumerate() {
        let [_, of_row] = plan.parities();
        let [first_row, first_column] = [
            (row * s.stride + index / of_row) as isize - s.padding[0] as isize,
            (index % of_row) as isize - s.padding[1] as isize,
        ];
        let grid = Grid {
            rows: Grid::inside(first_row, s.stride, in_h).map(|row| row.min(plan.image_rows)),
            columns: Grid::inside(first_column, s.stride, in_w)
                .map(|column| column.min(of_unit.pitch)),
            strides: [
                in_image,
                s.stride * s.width * s.in_channels,
                s.stride * s.in_channels,
            ],
            origin: (image * in_image) as isize
                + (first_row * s.width as isize + first_column) * s.in_channels as isize,
            ..of_unit
        };
        let source = &task.x[task.in_c..];
        let steps = plan.plane_steps(steps);
        let stride = plan.channel_stride();
        let left = PackSteps::<true> {
            source,
            grid,
            channels: task.in_count,
            steps,
            out: plane,
            stride,
        };
        // SAFETY: as above.
        unsafe { S::vectorize(left) };
    }
    let products = Products {
        plan,
        planes,
        dy,
        steps,
        in_count: task.in_count,
        accumulate,
    };
    products.run::<T>(task.out_count, sums);
}

/// A packed unit.
struct Products<'a> {
    plan: &'a TileWeightPlan,
    planes: &'a [f32],
    dy: &'a [f32],
    steps: usize,
    in_count: usize,
    accumulate: bool,
}

impl Products<'_> {
    /// Computes all tiles of sums: those of a pair of output panels, then channel by channel panel
    /// all taps.
    fn run<T: Tiles>(&self, out_count: usize, sums: &mut [f32]) {
        let plan = self.plan;
        let taps = plan.units.rows.shape.taps();
        let in_panels = self.in_count.div_ceil(PANEL);
        let out_panels = out_count.div_ceil(PANEL);
        assert!(
            out_panels * taps * in_panels * SUM_TILE <= sums.len(),
            "weight gradient: sums of a task"
        );
        assert!(
            out_panels * plan.panel_stride() <= self.dy.len(),
            "weight gradient: packed dy"
        );
        let count = taps * in_panels;
        // SAFETY: `T` exists, as the pass that runs it asserted. Tiles of sums below `count` and
        // panels below `out_panels` were just asserted to exist; `left` asserts the same of its
        // factor.
        unsafe {
            let mut tiles = T::configure(self.in_count.min(TILE_ROWS));
            for panel in (0..out_panels).step_by(2) {
                if panel + 1 < out_panels {
                    for first in (0..count).step_by(2) {
                        match count - first {
                            1 => self.multiply::<T, 1, 2>(&mut tiles, first, panel, sums),
                            _ => self.multiply::<T, 2, 2>(&mut tiles, first, panel, sums),
                        }
                    }
                } else {
                    // Blocks of even size: a product waits for the one before in the same sum, so
                    // that one sum alone takes as long as three.
                    let blocks = count.div_ceil(4);
                    for block in 0..blocks {
                        let first = block * count / blocks;
                        match (block + 1) * count / blocks - first {
                            1 => self.multiply::<T, 1, 1>(&mut tiles, first, panel, sums),
                            2 => self.multiply::<T, 2, 1>(&mut tiles, first, panel, sums),
                            3 => self.multiply::<T, 3, 1>(&mut tiles, first, panel, sums),
                            _ => self.multiply::<T, 4, 1>(&mut tiles, first, panel, sums),
                        }
                    }
                }
            }
        }
    }

    /// Returns the left factor of the tile of sums `index`, which counts the taps of one channel
    /// panel after the other, and where these sums start in a panel's.
    #[inline(always)]
    fn left(&self, index: usize) -> (*const f32, usize) {
        let plan = self.plan;
        let Conv2dShape { kernel, stride, .. } = plan.units.rows.shape;
        let taps = kernel[0] * kernel[1];
        let channels = index / taps;
        let tap = index % taps;
        let row = tap / kernel[1];
        let column = tap % kernel[1];
        let plane = row % stride * plan.parities()[1] + column % stride;
        let shift = row / stride * plan.pitch + column / stride;
        let channel = plane * plan.plane_len() + channels * PANEL * plan.channel_stride();
        let last = channel
            + (PANEL - 1) * plan.channel_stride()
            + self.steps * STEP_PAIRS
            + shift.div_ceil(2);
        assert!(last <= self.planes.len(), "weight gradient: packed x");
        // Two positions to a float.
        let first = self.planes[channel..]
            .as_ptr()
            .cast::<bf16>()
            .wrapping_add(shift);
        (
            first.cast(),
            (tap * self.in_count.div_ceil(PANEL) + channels) * SUM_TILE,
        )
    }

    /// L tiles of sums from `first` on, of R output panels: all steps.
    ///
    /// # Safety
    /// The instructions of `T` exist, as do the tiles of sums and panels; `tiles` was configured
    /// last.
    #[inline(always)]
    // tidy: long function because the tiles stay loaded from its first line to its last
    unsafe fn multiply<T: Tiles, const L: usize, const R: usize>(
        &self,
        tiles: &mut T,
        first: usize,
        panel: usize,
        sums: &mut [f32],
    ) {
        let count = self.plan.units.rows.shape.taps() * self.in_count.div_ceil(PANEL);
        let lefts =
            [0, 1, 2, 3].map(|index| self.left(if index < L { first + index } else { first }));
        let left_stride = self.plan.channel_stride() * size_of::<f32>();
        let row = PANEL * size_of::<f32>();
        // Sums 0 to 3: two panels of two lefts, or one panel of four.
        let place = |sum: usize| {
            let (left, right) = if R == 2 { (sum / 2, sum % 2) } else { (sum, 0) };
            ((panel + right) * count * SUM_TILE + lefts[left].1, left < L)
        };
        let out = sums.as_mut_ptr();
        macro_rules! each_sum {
            ($method:ident, $($sum:literal)*) => {
                $(if let (at, true) = place($sum) { tiles.$method::<$sum>(out.add(at).cast(), row); })*
            };
        }
        // SAFETY: passed on to the caller; `left` asserted that its factors exist.
        unsafe {
            if self.accumulate {
                each_sum!(load, 0 1 2 3);
            } else {
                tiles.zero::<0>();
                tiles.zero::<1>();
                tiles.zero::<2>();
                tiles.zero::<3>();
            }
            let mut right = self.dy.as_ptr().add(panel * self.plan.panel_stride());
            for step in 0..self.steps {
                let left = |index: usize| lefts[index].0.wrapping_add(step * STEP_PAIRS).cast();
                tiles.load::<6>(right.cast(), row);
                tiles.load::<4>(left(0), left_stride);
                tiles.multiply::<0, 4, 6>();
                if R == 2 {
                    tiles.load::<7>(right.add(self.plan.panel_stride()).cast(), row);
                    tiles.multiply::<1, 4, 7>();
                    if L > 1 {
                        tiles.load::<5>(left(1), left_stride);
                        tiles.multiply::<2, 5, 6>();
                        tiles.multiply::<3, 5, 7>();
                    }
                } else {
                    if L > 1 {
                        tiles.load::<5>(left(1), left_stride);
                        tiles.multiply::<1, 5, 6>();
                    }
                    if L > 2 {
                        tiles.load::<4>(left(2), left_stride);
                        tiles.multiply::<2, 4, 6>();
                    }
                    if L > 3 {
                        tiles.load::<5>(left(3), left_stride);
                        tiles.multiply::<3, 5, 6>();
                    }
                }
                right = right.add(STEP_PAIRS * PANEL);
            }
            each_sum!(store, 0 1 2 3);
        }
    }
}
