//! Normalisation, residual and ReLU or ReLU6 in one pass.
//!
//! In: `[rows, C]`, four parameters a channel, a residual. Out: `[rows, C]`.
//! Invariant: y = rectified((x - mean) · (gamma · invstd) + beta + residual), added in this order.
//! Source: arXiv 1502.03167, algorithms 1 and 2.

use std::marker::PhantomData;

use super::sums::fill_scale;
use super::{Affine, ShortcutA, assert_len, num_rows};
use crate::Element;
use crate::element::{Lanes, PerVector, each_vector};
use crate::simd::{GenericWork, Isa, Kernel, Simd};
use crate::tiles::{Columns, PerChannel, Read, Streams, TILE_MAX, Write, piece_rows, walk};

/// Activation after a normalisation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rectifier {
    /// No activation.
    #[default]
    None,
    /// max(x, 0).
    Relu,
    /// min(max(x, 0), 6).
    Relu6,
}

/// Values added before the rectifier.
#[derive(Clone, Copy, Debug)]
pub enum Residual<'a, E = f32> {
    /// No residual.
    None,
    /// Values of the same shape, `[rows, C]`.
    Identity(&'a [E]),
    /// The block's input `[N, H, W, C_in]`. The kernel subsamples the input while reading, and pads
    /// it with zero channels.
    OptionA(ShortcutA, &'a [E]),
}

/// Computes y = rectified(gamma · (x - mean) · invstd + beta + residual).
///
/// # Shapes
/// `x`, `y`: `[rows, C]`.
///
/// # Panics
/// If a length differs, or the processor lacks `isa`.
#[inline(never)]
pub fn normalize<E: Element>(
    isa: Isa,
    affine: &Affine<'_>,
    x: &[E],
    residual: Residual<'_, E>,
    rectifier: Rectifier,
    y: &mut [E],
) {
    affine.check();
    assert_len("y", y.len(), x.len());
    run(isa, Coefficients::of(affine), x, residual, rectifier, y);
}

/// Computes y = rectified(scale · x + shift + residual): inference with folded parameters, each
/// `[C]`.
///
/// # Shapes
/// `x`, `y`: `[rows, C]`.
///
/// # Panics
/// If a length differs, or the processor lacks `isa`.
#[inline(never)]
pub fn scale_shift<E: Element>(
    isa: Isa,
    scale: &[f32],
    shift: &[f32],
    x: &[E],
    residual: Residual<'_, E>,
    rectifier: Rectifier,
    y: &mut [E],
) {
    assert_len("shift", shift.len(), scale.len());
    assert_len("y", y.len(), x.len());
    run(
        isa,
        Coefficients {
            mean: None,
            scale,
            invstd: None,
            shift,
        },
        x,
        residual,
        rectifier,
        y,
    );
}

/// y = (x - mean) · (scale · invstd) + shift; an absent mean is 0, an absent invstd 1.
#[derive(Clone, Copy)]
struct Coefficients<'a> {
    mean: Option<&'a [f32]>,
    scale: &'a [f32],
    invstd: Option<&'a [f32]>,
    shift: &'a [f32],
}

impl<'a> Coefficients<'a> {
    fn of(affine: &Affine<'a>) -> Self {
        Self {
            mean: Some(affine.mean),
            scale: affine.gamma,
            invstd: Some(affine.invstd),
            shift: affine.beta,
        }
    }
}

fn run<E: Element>(
    isa: Isa,
    coefficients: Coefficients<'_>,
    x: &[E],
    residual: Residual<'_, E>,
    rectifier: Rectifier,
    y: &mut [E],
) {
    let channels = coefficients.scale.len();
    let rows = num_rows(y.len(), channels);
    let read = |values| Read {
        values,
        stride: channels,
    };
    let mut streams = Streams {
        units: rows,
        reads: [read(x), Read::ABSENT, Read::ABSENT],
        writes: [
            Write {
                values: y,
                stride: channels,
            },
            Write::absent(),
        ],
    };
    let mut piece = piece_rows(channels);
    let mut shortcut = None;
    match residual {
        Residual::None => {}
        Residual::Identity(values) => {
            assert_len("residual", values.len(), rows * channels);
            streams.reads[1] = read(values);
        }
        Residual::OptionA(shape, values) => {
            shape.check(values.len(), rows * channels, channels);
            streams.units = shape.num_images;
            streams.reads[0].stride = shape.image_out();
            streams.reads[1] = Read {
                values,
                stride: shape.image_in(),
            };
            streams.writes[0].stride = shape.image_out();
            piece = (piece / shape.pixels_out().max(1)).max(1);
            shortcut = Some(shape);
        }
    }
    streams.for_each_piece(piece, &|Streams {
                                        reads: [x, residual, _],
                                        writes: [y, _],
                                        ..
                                    }| {
        let mut residual = residual.values;
        if let Some(shortcut) = shortcut {
            shortcut.write(residual, y.values);
            residual = &[];
        }
        let part = Part {
            coefficients,
            x: x.values,
            residual,
            y: y.values,
        };
        match (shortcut.is_some(), part.residual.is_empty()) {
            (false, true) => gated::<E, NONE>(isa, part, rectifier),
            (false, false) => gated::<E, SEPARATE>(isa, part, rectifier),
            (true, _) => gated::<E, IN_OUTPUT>(isa, part, rectifier),
        }
    });
}

fn gated<E: Element, const RESIDUAL: u8>(isa: Isa, part: Part<'_, E>, rectifier: Rectifier) {
    match rectifier {
        Rectifier::None => E::run(isa, PartOf::<E, RESIDUAL, NOT>(part)),
        Rectifier::Relu => E::run(isa, PartOf::<E, RESIDUAL, RELU>(part)),
        Rectifier::Relu6 => E::run(isa, PartOf::<E, RESIDUAL, RELU6>(part)),
    }
}

/// [`Rectifier`] as a constant.
const NOT: u8 = 0;
const RELU: u8 = 1;
const RELU6: u8 = 2;

/// Place of the residual.
const NONE: u8 = 0;
const SEPARATE: u8 = 1;
const IN_OUTPUT: u8 = 2;

struct Part<'a, E> {
    coefficients: Coefficients<'a>,
    x: &'a [E],
    residual: &'a [E],
    y: &'a mut [E],
}

struct PartOf<'a, E, const RESIDUAL: u8, const RECTIFIER: u8>(Part<'a, E>);

impl<E: Element, const RESIDUAL: u8, const RECTIFIER: u8> GenericWork
    for PartOf<'_, E, RESIDUAL, RECTIFIER>
{
    type Output = ();

    fn run<S: Simd>(self) {
        // SAFETY: `Isa::run` asserted the features; the kernel's vectors lie inside slices that it
        // takes with checks.
        unsafe { S::vectorize(self) }
    }
}

impl<S: Simd, E: Element, const RESIDUAL: u8, const RECTIFIER: u8> Kernel<S>
    for PartOf<'_, E, RESIDUAL, RECTIFIER>
{
    #[inline(always)]
    unsafe fn run(self) {
        let channels = self.0.coefficients.scale.len();
        let rows = self.0.y.len() / channels;
        let mean = [0.0; TILE_MAX];
        let scale = [0.0; TILE_MAX];
        let shift = [0.0; TILE_MAX];
        let mut tiles = Tiles::<S, E, RESIDUAL, RECTIFIER> {
            part: self.0,
            mean,
            scale,
            shift,
            simd: PhantomData,
        };
        walk(&mut tiles, rows, channels);
    }
}

/// Only made where the features of `S` are switched on. Parameters start where a cache line does.
#[repr(C, align(64))]
struct Tiles<'a, S, E, const RESIDUAL: u8, const RECTIFIER: u8> {
    mean: [f32; TILE_MAX],
    scale: [f32; TILE_MAX],
    shift: [f32; TILE_MAX],
    part: Part<'a, E>,
    simd: PhantomData<S>,
}

impl<S: Simd, E: Element, const RESIDUAL: u8, const RECTIFIER: u8> PerChannel
    for Tiles<'_, S, E, RESIDUAL, RECTIFIER>
{
    #[inline(always)]
    fn enter(&mut self, columns: Columns) {
        let Coefficients {
            mean,
            scale,
            invstd,
            shift,
        } = self.part.coefficients;
        if let Some(mean) = mean {
            columns.fill(&mut self.mean, mean);
        }
        match invstd {
            Some(invstd) => fill_scale(columns, &mut self.scale, scale, invstd),
            None => columns.fill(&mut self.scale, scale),
        }
        columns.fill(&mut self.shift, shift);
    }

    #[inline(always)]
    fn tile(&mut self, at: usize, width: usize) {
        let range = at..at + width;
        let y = self.part.y[range.clone()].as_mut_ptr();
        let x = self.part.x[range.clone()].as_ptr();
        let residual = match RESIDUAL {
            SEPARATE => self.part.residual[range].as_ptr(),
            _ => y.cast_const(),
        };
        let mean = &self.mean[..width];
        let scale = &self.scale[..width];
        let shift = &self.shift[..width];
        let [mean, scale, shift] = [mean, scale, shift].map(<[f32]>::as_ptr);
        let run = Run::<E, RESIDUAL, RECTIFIER> {
            x,
            residual,
            y,
            mean,
            scale,
            shift,
        };
        // SAFETY: features as of `S::vectorize`, in which alone this type is made; `width` values
        // lie at each address.
        unsafe { each_vector::<S>(width, &run) }
    }
}

/// The addresses of one tile.
struct Run<E, const RESIDUAL: u8, const RECTIFIER: u8> {
    x: *const E,
    residual: *const E,
    y: *mut E,
    mean: *const f32,
    scale: *const f32,
    shift: *const f32,
}

impl<S: Simd, E: Element, const RESIDUAL: u8, const RECTIFIER: u8> PerVector<S>
    for Run<E, RESIDUAL, RECTIFIER>
{
    #[inline(always)]
    unsafe fn vector(&self, lanes: Lanes<S>) {
        // SAFETY: passed on.
        unsafe {
            lanes.ask_ahead::<E, false>(self.x);
            if RESIDUAL == SEPARATE {
                lanes.ask_ahead::<E, false>(self.residual);
            }
            lanes.ask_ahead::<E, true>(self.y);
            let centred = S::sub(lanes.load(self.x), lanes.load(self.mean));
            let mut value = S::add(
                S::mul(centred, lanes.load(self.scale)),
                lanes.load(self.shift),
            );
            if RESIDUAL != NONE {
                value = S::add(value, lanes.load(self.residual));
            }
            let value = match RECTIFIER {
                NOT => value,
                RELU => S::relu(value),
                _ => S::at_most(S::relu(value), S::splat(6.0)),
            };
            lanes.store(self.y, value);
        }
    }
}
