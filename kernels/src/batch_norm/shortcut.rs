//! Option A shortcut: every second pixel of the block's input, with zero channels on both sides.
//!
//! In: `[N, H, W, C_in]`. Out: `[N, ceil(H/2), ceil(W/2), C]`, never stored on its own.
//! Source: He et al., arXiv 1512.03385, section 3.3 (A).

use super::assert_len;
use crate::Element;
use crate::simd::Task;

/// The shapes of an option A shortcut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortcutA {
    /// Images in the batch.
    pub num_images: usize,
    /// Height of the block's input.
    pub height: usize,
    /// Width of the block's input.
    pub width: usize,
    /// Channels of the block's input.
    pub channels_in: usize,
    /// Channels of the block's output; input channel c is output channel c + (channels - channels_in) / 2.
    pub channels: usize,
}

impl ShortcutA {
    /// Output pixels of one image.
    pub fn pixels_out(&self) -> usize {
        self.height.div_ceil(2) * self.width.div_ceil(2)
    }

    /// Values of one image of the block's input.
    pub fn image_in(&self) -> usize {
        self.height * self.width * self.channels_in
    }

    /// Values of one image of the block's output.
    pub fn image_out(&self) -> usize {
        self.pixels_out() * self.channels
    }

    pub(super) fn check(&self, input_len: usize, output_len: usize, channels: usize) {
        assert_len("shortcut channels", self.channels, channels);
        let (few, many) = (self.channels_in, self.channels);
        assert!(few <= many, "batch_norm: shortcut from {few} to {many} channels");
        assert_len("shortcut input", input_len, self.num_images * self.image_in());
        assert_len("shortcut output", output_len, self.num_images * self.image_out());
    }

    fn offset(&self) -> usize {
        (self.channels - self.channels_in) / 2
    }

    /// Writes the shortcut of whole images to `output`, where the normalisation adds to it while it is in the cache.
    pub(super) fn write<E: Element>(&self, input: &[E], output: &mut [E]) {
        let (offset, channels_in) = (self.offset(), self.channels_in);
        let width_out = self.width.div_ceil(2);
        let rows = input.chunks(self.width * channels_in).enumerate();
        // Input rows of odd index within their image have no output row.
        let rows = rows.filter(|(row, _)| (row % self.height).is_multiple_of(2)).map(|(_, row)| row);
        for (input, output) in rows.zip(output.chunks_exact_mut(width_out * self.channels)) {
            output.fill(E::default());
            for (pixel, output) in input.chunks(2 * channels_in).zip(output.chunks_exact_mut(self.channels)) {
                copy(&pixel[..channels_in], &mut output[offset..offset + channels_in]);
            }
        }
    }
}

/// Copies a few values without a call.
#[inline(always)]
fn copy<E: Copy>(from: &[E], to: &mut [E]) {
    let ((from, from_tail), (to, to_tail)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
    for (from, to) in from.iter().zip(to) {
        *to = *from;
    }
    for (from, to) in from_tail.iter().zip(to_tail) {
        *to = *from;
    }
}

/// Adds g, the gradient behind the ReLU whose output is `y` (no ReLU if empty), to the input pixels of whole images.
pub(super) struct Scatter<'a, E> {
    pub(super) shortcut: ShortcutA,
    pub(super) dy: &'a [E],
    pub(super) y: &'a [E],
    pub(super) gradient: &'a mut [E],
}

impl<E: Element> Task for Scatter<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { shortcut, dy, y, gradient } = self;
        let (offset, channels, channels_in) = (shortcut.offset(), shortcut.channels, shortcut.channels_in);
        let row_out = shortcut.width.div_ceil(2) * channels;
        let mut at = 0;
        for (row, gradient) in gradient.chunks_mut(shortcut.width * channels_in).enumerate() {
            if row % shortcut.height % 2 == 1 {
                continue;
            }
            for (pixel, gradient) in gradient.chunks_mut(2 * channels_in).enumerate() {
                let from = at + pixel * channels + offset;
                let (dy, gradient) = (&dy[from..from + channels_in], &mut gradient[..channels_in]);
                if y.is_empty() {
                    add::<E, false>(dy, dy, gradient);
                } else {
                    add::<E, true>(dy, &y[from..from + channels_in], gradient);
                }
            }
            at += row_out;
        }
    }
}

/// Adds `dy`, where `y` is above 0 if `GATED`.
#[inline(always)]
fn add<E: Element, const GATED: bool>(dy: &[E], y: &[E], gradient: &mut [E]) {
    let ((dy, dy_tail), (y, y_tail)) = (dy.as_chunks::<8>(), y.as_chunks::<8>());
    let (gradient, gradient_tail) = gradient.as_chunks_mut::<8>();
    for ((dy, y), gradient) in dy.iter().zip(y).zip(gradient) {
        for i in 0..8 {
            add_one::<E, GATED>(dy[i], y[i], &mut gradient[i]);
        }
    }
    for ((dy, y), gradient) in dy_tail.iter().zip(y_tail).zip(gradient_tail) {
        add_one::<E, GATED>(*dy, *y, gradient);
    }
}

#[inline(always)]
fn add_one<E: Element, const GATED: bool>(dy: E, y: E, gradient: &mut E) {
    let dy = dy.to_f32();
    let open = !GATED || y.to_f32() > 0.0;
    *gradient = E::from_f32(gradient.to_f32() + if open { dy } else { 0.0 });
}
