//! Option A shortcut: every second pixel of the block's input, with zero channels on both sides.
//!
//! In: `[N, H, W, C_in]`. Out: `[N, ceil(H/2), ceil(W/2), C]`, which is never stored separately.
//! Source: He et al., arXiv 1512.03385, section 3.3 (A).

use super::assert_len;
use crate::Element;
use crate::element::{Lanes, PerVector, each_vector};
use crate::pieces::elements;
use crate::simd::{GenericWork, Kernel, Simd};

/// Shapes of an option A shortcut.
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
    /// Channels of the block's output; input channel c is output channel c + (channels -
    /// channels_in) / 2.
    pub channels: usize,
}

impl ShortcutA {
    /// Returns the number of output pixels of one image.
    pub fn pixels_out(&self) -> usize {
        self.height.div_ceil(2) * self.width.div_ceil(2)
    }

    /// Returns the number of values of one image of the block's input.
    pub fn image_in(&self) -> usize {
        self.height * self.width * self.channels_in
    }

    /// Returns the number of values of one image of the block's output.
    pub fn image_out(&self) -> usize {
        self.pixels_out() * self.channels
    }

    pub(super) fn check(&self, input_len: usize, output_len: usize, channels: usize) {
        assert_len("shortcut channels", self.channels, channels);
        let few = self.channels_in;
        let many = self.channels;
        assert!(
            few <= many,
            "batch_norm: shortcut from {few} to {many} channels"
        );
        let Self {
            num_images,
            height,
            width,
            channels_in,
            channels,
        } = *self;
        let input = elements(
            "batch_norm: shortcut input",
            &[num_images, height, width, channels_in],
        );
        assert_len("shortcut input", input_len, input);
        let output = elements(
            "batch_norm: shortcut output",
            &[num_images, height.div_ceil(2), width.div_ceil(2), channels],
        );
        assert_len("shortcut output", output_len, output);
    }

    fn offset(&self) -> usize {
        (self.channels - self.channels_in) / 2
    }

    /// Writes the shortcut of whole images to `output`, where the normalisation adds to it while it
    /// is in the cache.
    pub(super) fn write<E: Element>(&self, input: &[E], output: &mut [E]) {
        let offset = self.offset();
        let channels_in = self.channels_in;
        let width_out = self.width.div_ceil(2);
        let rows = input.chunks(self.width * channels_in).enumerate();
        // Input rows of odd index within their image have no output row.
        let rows = rows
            .filter(|(row, _)| (row % self.height).is_multiple_of(2))
            .map(|(_, row)| row);
        for (input, output) in rows.zip(output.chunks_exact_mut(width_out * self.channels)) {
            output.fill(E::default());
            for (pixel, output) in input
                .chunks(2 * channels_in)
                .zip(output.chunks_exact_mut(self.channels))
            {
                copy(
                    &pixel[..channels_in],
                    &mut output[offset..offset + channels_in],
                );
            }
        }
    }
}

/// Copies a few values without a call.
#[inline(always)]
fn copy<E: Copy>(from: &[E], to: &mut [E]) {
    let (from, from_tail) = from.as_chunks::<8>();
    let (to, to_tail) = to.as_chunks_mut::<8>();
    for (from, to) in from.iter().zip(to) {
        *to = *from;
    }
    for (from, to) in from_tail.iter().zip(to_tail) {
        *to = *from;
    }
}

/// Adds g, the gradient behind the ReLU whose output is `y` (no ReLU if empty), to the input pixels
/// of whole images.
pub(super) struct Scatter<'a, E> {
    pub(super) shortcut: ShortcutA,
    pub(super) dy: &'a [E],
    pub(super) y: &'a [E],
    pub(super) gradient: &'a mut [E],
}

impl<E: Element> GenericWork for Scatter<'_, E> {
    type Output = ();

    fn run<S: Simd>(self) {
        // SAFETY: `Isa::run` asserted the features; the kernel's vectors lie inside slices that it
        // takes with checks.
        unsafe { S::vectorize(self) }
    }
}

impl<S: Simd, E: Element> Kernel<S> for Scatter<'_, E> {
    #[inline(always)]
    unsafe fn run(self) {
        let Self {
            shortcut,
            dy,
            y,
            gradient,
        } = self;
        let offset = shortcut.offset();
        let channels = shortcut.channels;
        let channels_in = shortcut.channels_in;
        let row_out = shortcut.width.div_ceil(2) * channels;
        let mut at = 0;
        for (row, gradient) in gradient
            .chunks_mut(shortcut.width * channels_in)
            .enumerate()
        {
            if row % shortcut.height % 2 == 1 {
                continue;
            }
            for (pixel, gradient) in gradient.chunks_mut(2 * channels_in).enumerate() {
                let from = at + pixel * channels + offset;
                let range = from..from + channels_in;
                let dy = dy[range.clone()].as_ptr();
                let gradient = gradient[..channels_in].as_mut_ptr();
                let y = if y.is_empty() {
                    None
                } else {
                    Some(y[range].as_ptr())
                };
                // SAFETY: features by contract; `channels_in` values lie at each address.
                unsafe { each_vector::<S>(channels_in, &Pixel { dy, y, gradient }) };
            }
            at += row_out;
        }
    }
}

/// The addresses of one pixel.
struct Pixel<E> {
    dy: *const E,
    y: Option<*const E>,
    gradient: *mut E,
}

impl<S: Simd, E: Element> PerVector<S> for Pixel<E> {
    #[inline(always)]
    unsafe fn vector(&self, lanes: Lanes<S>) {
        // SAFETY: passed on.
        unsafe {
            let mut value = lanes.load(self.dy);
            if let Some(y) = self.y {
                value = S::where_positive(lanes.load(y), value);
            }
            lanes.store(self.gradient, S::add(lanes.load(self.gradient), value));
        }
    }
}
