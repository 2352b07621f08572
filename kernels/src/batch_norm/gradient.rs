//! The second backward pass: gradients of the input and of the residual.
//!
//! In: x, dy, the gate, and the sums of the first pass. Out: dx = gamma · invstd · (g - S1/n - x̂ · S2/n), and g itself for
//! the residual, written, added, or scattered to every second pixel. Invariant: no two pieces write the same value.
//! Source: arXiv 1502.03167, section 3, the gradients after algorithm 1.

use super::shortcut::Scatter;
use super::sums::{OPEN, OUTPUT, RECOMPUTED, fill_scale};
use super::{Gate, Saved, ShortcutA, assert_len};
use crate::Element;
use crate::simd::{Isa, Task, vectorized};
use crate::tiles::{Columns, PerChannel, Read, Streams, TILE_MAX, Write, piece_rows, walk};

/// Where dy is and where dx goes, each `[rows, C]`.
#[derive(Debug)]
pub enum Gradients<'a, E = f32> {
    /// dy is read and dx written elsewhere.
    Separate {
        /// Gradient of the output.
        dy: &'a [E],
        /// Gradient of the normalisation's input.
        dx: &'a mut [E],
    },
    /// dx replaces dy: one buffer and one stream less.
    InPlace(&'a mut [E]),
}

/// What becomes of the residual's gradient, g = dy where the gate is open, else 0.
#[derive(Debug)]
pub enum ResidualGradient<'a, E = f32> {
    /// No residual.
    None,
    /// Written, `[rows, C]`.
    Write(&'a mut [E]),
    /// Added, `[rows, C]`.
    Add(&'a mut [E]),
    /// Written to every second pixel of `[N, H, W, C_in]`, the others becoming 0.
    WriteOptionA(ShortcutA, &'a mut [E]),
    /// Added to every second pixel of `[N, H, W, C_in]`.
    AddOptionA(ShortcutA, &'a mut [E]),
}

/// Second backward pass: dx = gamma · invstd · (g - S1/n - x̂ · S2/n), and the residual's gradient g.
///
/// # Shapes
/// `sums`: `[2, C]`, S1 then S2, over all `count` rows of all ranks. The rest as their types say.
///
/// # Panics
/// If a length differs, `count` is not above 0, an option A residual meets [`Gate::Recomputed`], or the processor lacks
/// `isa`.
pub fn backward<E: Element>(
    isa: Isa,
    saved: &Saved<'_, E>,
    sums: &[f64],
    count: f64,
    gradients: Gradients<'_, E>,
    residual: ResidualGradient<'_, E>,
) {
    let (rows, channels) = saved.check();
    assert_len("sums", sums.len(), 2 * channels);
    assert!(count > 0.0, "batch_norm: gradient of {count} rows");
    let (dy, dx) = match gradients {
        Gradients::Separate { dy, dx } => (Some(dy), dx),
        Gradients::InPlace(dx) => (None, dx),
    };
    assert_len("dy", dy.map_or(dx.len(), <[E]>::len), saved.x.len());
    assert_len("dx", dx.len(), saved.x.len());
    let (mode, option_a, values) = match residual {
        ResidualGradient::None => (NONE, None, &mut [][..]),
        ResidualGradient::Write(values) => (WRITE, None, values),
        ResidualGradient::Add(values) => (ADD, None, values),
        ResidualGradient::WriteOptionA(shortcut, values) => (NONE, Some((shortcut, true)), values),
        ResidualGradient::AddOptionA(shortcut, values) => (NONE, Some((shortcut, false)), values),
    };
    let residual = mode != NONE || option_a.is_some();
    assert!(
        !residual || !matches!(saved.gate, Gate::Recomputed),
        "batch_norm: a gate behind a residual is read from y"
    );
    // One unit is a row, or an image where the shortcut reaches over rows.
    let (units, unit, residual_unit, piece) = match option_a {
        Some((shortcut, _)) => {
            shortcut.check(values.len(), rows * channels, channels);
            let piece = piece_rows(channels) / shortcut.pixels_out().max(1);
            (shortcut.num_images, shortcut.image_out(), shortcut.image_in(), piece.max(1))
        }
        None if residual => {
            assert_len("residual", values.len(), rows * channels);
            (rows, channels, channels, piece_rows(channels))
        }
        None => (rows, channels, 0, piece_rows(channels)),
    };
    let read = |values| Read { values, stride: unit };
    let streams = Streams {
        units,
        reads: [read(saved.x), saved.gate_values().map_or(Read::ABSENT, read), dy.map_or(Read::ABSENT, read)],
        writes: [Write { values: dx, stride: unit }, Write { values, stride: residual_unit }],
    };
    streams.for_each_piece(piece, &|Streams { reads: [x, y, dy], writes: [dx, residual], .. }| {
        let (x, y, dy, dx, residual) = (x.values, y.values, dy.values, dx.values, residual.values);
        if let Some((shortcut, clear)) = option_a {
            if clear {
                residual.fill(E::default());
            }
            let dy = if dy.is_empty() { &*dx } else { dy };
            vectorized(isa, Scatter { shortcut, dy, y, gradient: &mut *residual });
        }
        let part = Part { saved, sums, count, x, y, dy, dx, residual };
        match saved.gate {
            Gate::Open => part.gated::<OPEN>(isa, mode),
            Gate::Output(_) => part.gated::<OUTPUT>(isa, mode),
            Gate::Recomputed => part.placed::<RECOMPUTED, NONE>(isa),
        }
    });
}

/// What happens to g in the kernel.
const NONE: u8 = 0;
const WRITE: u8 = 1;
const ADD: u8 = 2;

struct Part<'a, E> {
    saved: &'a Saved<'a, E>,
    sums: &'a [f64],
    count: f64,
    x: &'a [E],
    y: &'a [E],
    /// Empty where dx holds it.
    dy: &'a [E],
    dx: &'a mut [E],
    residual: &'a mut [E],
}

impl<E: Element> Part<'_, E> {
    fn gated<const GATE: u8>(self, isa: Isa, mode: u8) {
        match mode {
            WRITE => self.placed::<GATE, WRITE>(isa),
            ADD => self.placed::<GATE, ADD>(isa),
            _ => self.placed::<GATE, NONE>(isa),
        }
    }

    fn placed<const GATE: u8, const RESIDUAL: u8>(self, isa: Isa) {
        if self.dy.is_empty() {
            vectorized(isa, PartOf::<E, GATE, RESIDUAL, true>(self));
        } else {
            vectorized(isa, PartOf::<E, GATE, RESIDUAL, false>(self));
        }
    }
}

struct PartOf<'a, E, const GATE: u8, const RESIDUAL: u8, const IN_PLACE: bool>(Part<'a, E>);

impl<E: Element, const GATE: u8, const RESIDUAL: u8, const IN_PLACE: bool> Task
    for PartOf<'_, E, GATE, RESIDUAL, IN_PLACE>
{
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let channels = self.0.saved.affine.num_channels();
        let rows = self.0.x.len() / channels;
        let zeros = [0.0; TILE_MAX];
        let (mean, scale, slope, offset, beta) = (zeros, zeros, zeros, zeros, zeros);
        let mut kernel = Kernel::<E, GATE, RESIDUAL, IN_PLACE> { part: self.0, mean, scale, slope, offset, beta };
        walk(&mut kernel, rows, channels);
    }
}

/// dx = scale · g - slope · (x - mean) - offset.
struct Kernel<'a, E, const GATE: u8, const RESIDUAL: u8, const IN_PLACE: bool> {
    part: Part<'a, E>,
    mean: [f32; TILE_MAX],
    /// gamma · invstd.
    scale: [f32; TILE_MAX],
    /// gamma · invstd² · S2 / n.
    slope: [f32; TILE_MAX],
    /// gamma · invstd · S1 / n.
    offset: [f32; TILE_MAX],
    beta: [f32; TILE_MAX],
}

impl<E: Element, const GATE: u8, const RESIDUAL: u8, const IN_PLACE: bool> PerChannel
    for Kernel<'_, E, GATE, RESIDUAL, IN_PLACE>
{
    #[inline(always)]
    fn enter(&mut self, columns: Columns) {
        let Part { saved, sums, count, .. } = &self.part;
        let affine = saved.affine;
        columns.fill(&mut self.mean, affine.mean);
        fill_scale(columns, &mut self.scale, affine.gamma, affine.invstd);
        if GATE == RECOMPUTED {
            columns.fill(&mut self.beta, affine.beta);
        }
        let (first_sums, second_sums) = sums.split_at(affine.num_channels());
        for lane in 0..columns.width {
            let channel = columns.first + lane % columns.period;
            let scale = f64::from(self.scale[lane]) / count;
            self.slope[lane] = (scale * f64::from(affine.invstd[channel]) * second_sums[channel]) as f32;
            self.offset[lane] = (scale * first_sums[channel]) as f32;
        }
    }

    #[inline(always)]
    fn tile(&mut self, at: usize, width: usize) {
        let range = at..at + width;
        let part = &mut self.part;
        let x = &part.x[range.clone()];
        let y = if GATE == OUTPUT { &part.y[range.clone()] } else { &[] };
        let dy = if IN_PLACE { &[] } else { &part.dy[range.clone()] };
        let residual: &mut [E] = if RESIDUAL == NONE { &mut [] } else { &mut part.residual[range.clone()] };
        let dx = &mut part.dx[range];
        let (mean, scale, slope) = (&self.mean[..width], &self.scale[..width], &self.slope[..width]);
        let (offset, beta) = (&self.offset[..width], &self.beta[..width]);
        for i in 0..width {
            let centred = x[i].to_f32() - mean[i];
            let open = match GATE {
                OPEN => true,
                OUTPUT => y[i].to_f32() > 0.0,
                _ => centred * scale[i] + beta[i] > 0.0,
            };
            // Loaded whatever the gate says, or the compiler makes a jump of it.
            let dy = if IN_PLACE { dx[i] } else { dy[i] }.to_f32();
            let gradient = if open { dy } else { 0.0 };
            match RESIDUAL {
                WRITE => residual[i] = E::from_f32(gradient),
                ADD => residual[i] = E::from_f32(residual[i].to_f32() + gradient),
                _ => {}
            }
            dx[i] = E::from_f32(scale[i] * gradient - centred * slope[i] - offset[i]);
        }
    }
}
