//! Second backward pass: gradients of the input and of the residual.
//!
//! In: x, dy, the gate, and the sums of the first pass.
//! Out: dx = gamma · invstd · (g - S1/n - x̂ · S2/n). g, the gradient of the residual, is written
//! or scattered to every second pixel.
//! Invariant: no two pieces write the same value.
//! Source: arXiv 1502.03167, section 3, the gradients after algorithm 1.

use std::marker::PhantomData;

use super::shortcut::Scatter;
use super::sums::{OPEN, OUTPUT, RECOMPUTED, RECOMPUTED_6, fill_scale};
use super::{Gate, Saved, ShortcutA, assert_len};
use crate::Element;
use crate::element::{Lanes, PerVector, each_vector};
use crate::simd::{GenericWork, Isa, Kernel, Simd};
use crate::tiles::{Columns, PerChannel, Read, Streams, TILE_MAX, Write, piece_rows, walk};

/// Target of the residual's gradient g: dy if the gate is open, otherwise 0.
#[derive(Debug)]
pub enum ResidualGradient<'a, E = f32> {
    /// No residual.
    None,
    /// Writes g, `[rows, C]`.
    Write(&'a mut [E]),
    /// Writes g to every second pixel of `[N, H, W, C_in]`, and 0 to the other pixels.
    WriteOptionA(ShortcutA, &'a mut [E]),
}

/// Runs the second backward pass: dx = gamma · invstd · (g - S1/n - x̂ · S2/n), and the residual's
/// gradient g.
///
/// # Shapes
/// `sums`: `[2, C]`, S1 then S2, over all `count` rows of all ranks. `dy`, `dx`: `[rows, C]`.
///
/// # Panics
/// If a length differs, `count` is not positive, a residual is combined with [`Gate::Recomputed`],
/// or the processor lacks `isa`.
#[inline(never)]
pub fn backward<E: Element>(
    isa: Isa,
    saved: &Saved<'_, E>,
    sums: &[f64],
    count: f64,
    dy: &[E],
    dx: &mut [E],
    residual: ResidualGradient<'_, E>,
) {
    let (rows, channels) = saved.check();
    assert_len("sums", sums.len(), 2 * channels);
    assert!(count > 0.0, "batch_norm: gradient of {count} rows");
    assert_len("dy", dy.len(), saved.x.len());
    assert_len("dx", dx.len(), saved.x.len());
    let (writes, option_a, values) = match residual {
        ResidualGradient::None => (false, None, &mut [][..]),
        ResidualGradient::Write(values) => (true, None, values),
        ResidualGradient::WriteOptionA(shortcut, values) => (false, Some(shortcut), values),
    };
    let residual = writes || option_a.is_some();
    assert!(
        !residual || !matches!(saved.gate, Gate::Recomputed | Gate::Recomputed6),
        "batch_norm: behind a residual: expected Gate::Output or Gate::Open, got a recomputed gate"
    );
    // One unit is a row, or an image where the shortcut reaches over rows.
    let (units, unit, residual_unit, piece) = match option_a {
        Some(shortcut) => {
            shortcut.check(values.len(), rows * channels, channels);
            let piece = piece_rows(channels) / shortcut.pixels_out().max(1);
            (
                shortcut.num_images,
                shortcut.image_out(),
                shortcut.image_in(),
                piece.max(1),
            )
        }
        None if residual => {
            assert_len("residual", values.len(), rows * channels);
            (rows, channels, channels, piece_rows(channels))
        }
        None => (rows, channels, 0, piece_rows(channels)),
    };
    let read = |values| Read {
        values,
        stride: unit,
    };
    let streams = Streams {
        units,
        reads: [
            read(saved.x),
            saved.gate_values().map_or(Read::ABSENT, read),
            read(dy),
        ],
        writes: [
            Write {
                values: dx,
                stride: unit,
            },
            Write {
                values,
                stride: residual_unit,
            },
        ],
    };
    streams.for_each_piece(piece, &|Streams {
                                        reads: [x, y, dy],
                                        writes: [dx, residual],
                                        ..
                                    }| {
        let x = x.values;
        let y = y.values;
        let dy = dy.values;
        let dx = dx.values;
        let residual = residual.values;
        if let Some(shortcut) = option_a {
            residual.fill(E::default());
            E::run(
                isa,
                Scatter {
                    shortcut,
                    dy,
                    y,
                    gradient: &mut *residual,
                },
            );
        }
        let part = Part {
            saved,
            sums,
            count,
            x,
            y,
            dy,
            dx,
            residual,
        };
        match saved.gate {
            Gate::Open => part.gated::<OPEN>(isa, writes),
            Gate::Output(_) => part.gated::<OUTPUT>(isa, writes),
            Gate::Recomputed => part.gated::<RECOMPUTED>(isa, false),
            Gate::Recomputed6 => part.gated::<RECOMPUTED_6>(isa, false),
        }
    });
}

struct Part<'a, E> {
    saved: &'a Saved<'a, E>,
    sums: &'a [f64],
    count: f64,
    x: &'a [E],
    y: &'a [E],
    dy: &'a [E],
    dx: &'a mut [E],
    residual: &'a mut [E],
}

impl<E: Element> Part<'_, E> {
    fn gated<const GATE: u8>(self, isa: Isa, writes_residual: bool) {
        if writes_residual {
            E::run(isa, PartOf::<E, GATE, true>(self));
        } else {
            E::run(isa, PartOf::<E, GATE, false>(self));
        }
    }
}

struct PartOf<'a, E, const GATE: u8, const RESIDUAL: bool>(Part<'a, E>);

impl<E: Element, const GATE: u8, const RESIDUAL: bool> GenericWork
    for PartOf<'_, E, GATE, RESIDUAL>
{
    type Output = ();

    fn run<S: Simd>(self) {
        // SAFETY: `Isa::run` asserted the features; the kernel's vectors lie inside slices that it
        // takes with checks.
        unsafe { S::vectorize(self) }
    }
}

impl<S: Simd, E: Element, const GATE: u8, const RESIDUAL: bool> Kernel<S>
    for PartOf<'_, E, GATE, RESIDUAL>
{
    #[inline(always)]
    unsafe fn run(self) {
        let channels = self.0.saved.affine.num_channels();
        let rows = self.0.x.len() / channels;
        let zeros = [0.0; TILE_MAX];
        let mean = zeros;
        let scale = zeros;
        let slope = zeros;
        let offset = zeros;
        let beta = zeros;
        let simd = PhantomData;
        let mut tiles = Tiles::<S, E, GATE, RESIDUAL> {
            part: self.0,
            mean,
            scale,
            slope,
            offset,
            beta,
            simd,
        };
        walk(&mut tiles, rows, channels);
    }
}

/// dx = scale · g - slope · (x - mean) - offset. Only made where the features of `S` are switched
/// on. Parameters start where a cache line does.
#[repr(C, align(64))]
struct Tiles<'a, S, E, const GATE: u8, const RESIDUAL: bool> {
    mean: [f32; TILE_MAX],
    /// gamma · invstd.
    scale: [f32; TILE_MAX],
    /// gamma · invstd² · S2 / n.
    slope: [f32; TILE_MAX],
    /// gamma · invstd · S1 / n.
    offset: [f32; TILE_MAX],
    beta: [f32; TILE_MAX],
    part: Part<'a, E>,
    simd: PhantomData<S>,
}

impl<S: Simd, E: Element, const GATE: u8, const RESIDUAL: bool> PerChannel
    for Tiles<'_, S, E, GATE, RESIDUAL>
{
    #[inline(always)]
    fn enter(&mut self, columns: Columns) {
        let Part {
            saved, sums, count, ..
        } = &self.part;
        let affine = saved.affine;
        columns.fill(&mut self.mean, affine.mean);
        fill_scale(columns, &mut self.scale, affine.gamma, affine.invstd);
        if GATE == RECOMPUTED || GATE == RECOMPUTED_6 {
            columns.fill(&mut self.beta, affine.beta);
        }
        let (first_sums, second_sums) = sums.split_at(affine.num_channels());
        for lane in 0..columns.width {
            let channel = columns.first + lane % columns.period;
            let scale = f64::from(self.scale[lane]) / count;
            self.slope[lane] =
                (scale * f64::from(affine.invstd[channel]) * second_sums[channel]) as f32;
            self.offset[lane] = (scale * first_sums[channel]) as f32;
        }
    }

    #[inline(always)]
    fn tile(&mut self, at: usize, width: usize) {
        let range = at..at + width;
        let part = &mut self.part;
        let dx = part.dx[range.clone()].as_mut_ptr();
        let x = part.x[range.clone()].as_ptr();
        let y = if GATE == OUTPUT {
            part.y[range.clone()].as_ptr()
        } else {
            x
        };
        let dy = part.dy[range.clone()].as_ptr();
        let residual = if RESIDUAL {
            part.residual[range].as_mut_ptr()
        } else {
            dx
        };
        let mean = self.mean[..width].as_ptr();
        let scale = self.scale[..width].as_ptr();
        let slope = self.slope[..width].as_ptr();
        let offset = self.offset[..width].as_ptr();
        let beta = self.beta[..width].as_ptr();
        let run = Run::<E, GATE, RESIDUAL> {
            x,
            y,
            dy,
            dx,
            residual,
            mean,
            scale,
            slope,
            offset,
            beta,
        };
        // SAFETY: features as of `S::vectorize`, in which alone this type is made; `width` values
        // lie at each address.
        unsafe { each_vector::<S>(width, &run) }
    }
}

/// The addresses of one tile.
struct Run<E, const GATE: u8, const RESIDUAL: bool> {
    x: *const E,
    y: *const E,
    dy: *const E,
    dx: *mut E,
    residual: *mut E,
    mean: *const f32,
    scale: *const f32,
    slope: *const f32,
    offset: *const f32,
    beta: *const f32,
}

impl<S: Simd, E: Element, const GATE: u8, const RESIDUAL: bool> PerVector<S>
    for Run<E, GATE, RESIDUAL>
{
    #[inline(always)]
    unsafe fn vector(&self, lanes: Lanes<S>) {
        // SAFETY: passed on.
        unsafe {
            // Not for dx, which is scratch memory in a layer's pass.
            lanes.ask_ahead::<E, false>(self.x);
            lanes.ask_ahead::<E, false>(self.dy);
            if GATE == OUTPUT {
                lanes.ask_ahead::<E, false>(self.y);
            }
            if RESIDUAL {
                lanes.ask_ahead::<E, true>(self.residual);
            }
            let centred = S::sub(lanes.load(self.x), lanes.load(self.mean));
            let scale = lanes.load(self.scale);
            let dy = lanes.load(self.dy);
            let gradient = match GATE {
                OPEN => dy,
                OUTPUT => S::where_positive(lanes.load(self.y), dy),
                RECOMPUTED => {
                    S::where_positive(S::add(S::mul(centred, scale), lanes.load(self.beta)), dy)
                }
                _ => {
                    let value = S::add(S::mul(centred, scale), lanes.load(self.beta));
                    S::where_positive(value, S::where_positive(S::sub(S::splat(6.0), value), dy))
                }
            };
            if RESIDUAL {
                lanes.store(self.residual, gradient);
            }
            let sloped = S::sub(
                S::mul(scale, gradient),
                S::mul(centred, lanes.load(self.slope)),
            );
            lanes.store(self.dx, S::sub(sloped, lanes.load(self.offset)));
        }
    }
}
