//! Numbers that describe a convolution.

use super::depthwise;
use crate::pieces::elements;
use crate::simd::PANEL;

/// Two-dimensional convolution with a square kernel: activations `[N, H, W, C]`, weights `[C_out,
/// C_in / groups, K, K]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dShape {
    /// Images, N.
    pub batch: usize,
    /// Rows of an input image, H.
    pub height: usize,
    /// Pixels of an input row, W.
    pub width: usize,
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Side of the square kernel, K.
    pub kernel: usize,
    /// Step of the kernel in both directions: 1 or 2.
    pub stride: usize,
    /// Zeros around the input on each side; less than `kernel`.
    pub padding: usize,
    /// 1, or for a depthwise convolution the number of input and output channels. Depthwise kernels
    /// have side 3, 5 or 7.
    pub groups: usize,
}

impl Conv2dShape {
    /// Returns the number of rows of an output image.
    #[must_use]
    pub fn out_height(&self) -> usize {
        self.out_extent(self.height)
    }

    /// Returns the number of pixels in an output row.
    #[must_use]
    pub fn out_width(&self) -> usize {
        self.out_extent(self.width)
    }

    /// Returns the number of elements of the input.
    #[must_use]
    pub fn input_len(&self) -> usize {
        self.batch * self.height * self.width * self.in_channels
    }

    /// Returns the number of elements of the output.
    #[must_use]
    pub fn output_len(&self) -> usize {
        self.batch * self.out_height() * self.out_width() * self.out_channels
    }

    /// Returns the number of elements of the weights.
    #[must_use]
    pub fn weight_len(&self) -> usize {
        self.out_channels * self.taps()
    }

    /// Returns the number of floating-point operations of one pass: 2 per multiply-add of direct
    /// convolution, including padding.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * self.output_len() as f64 * self.taps() as f64
    }

    /// Returns true if Lockstep's kernels support this number of channels and groups with a kernel
    /// of this side.
    #[must_use]
    pub fn has_groups(channels: [usize; 2], kernel: usize, groups: usize) -> bool {
        groups == 1 || (channels == [groups; 2] && depthwise::has_kernel(kernel))
    }

    pub(super) fn is_depthwise(&self) -> bool {
        self.groups > 1
    }

    /// Weights of an output channel.
    fn taps(&self) -> usize {
        self.in_channels / self.groups * self.kernel * self.kernel
    }

    fn out_extent(&self, extent: usize) -> usize {
        (extent + 2 * self.padding - self.kernel) / self.stride + 1
    }

    /// # Panics
    /// If an extent is zero, [`Self::groups`] is not supported, the stride is not 1 or 2, the
    /// padding is not less than the kernel, the kernel is larger than the padded image, or
    /// activations or weights exceed the largest slice.
    pub(super) fn assert_valid(&self) {
        for (name, extent) in [
            ("batch", self.batch),
            ("height", self.height),
            ("width", self.width),
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
            ("kernel", self.kernel),
            ("groups", self.groups),
        ] {
            assert!(
                extent > 0,
                "convolution: {name}: expected at least 1, got 0 in {self:?}"
            );
        }
        assert!(
            Self::has_groups(
                [self.in_channels, self.out_channels],
                self.kernel,
                self.groups
            ),
            "convolution: expected one group, or as many as channels and a kernel of 3, 5 or 7, in {self:?}"
        );
        assert!(
            matches!(self.stride, 1 | 2),
            "convolution: expected a stride of 1 or 2 in {self:?}"
        );
        assert!(
            self.padding < self.kernel,
            "convolution: expected a padding below the kernel's side in {self:?}"
        );
        // Products that wrapped would be the lengths of slices far too short. No plan pads more
        // than this, and an output is at most a kernel larger than its input.
        let around = |extent: usize| extent.saturating_add(self.kernel.saturating_mul(3));
        let channels = self.in_channels.max(self.out_channels);
        elements(
            "convolution: padded activations",
            &[
                self.batch,
                around(self.height),
                around(self.width),
                channels,
            ],
        );
        let [filters, depth] = [self.out_channels, self.in_channels / self.groups]
            .map(|channels| channels.saturating_add(PANEL));
        elements(
            "convolution: padded weights",
            &[filters, depth, self.kernel, self.kernel],
        );
        assert!(
            self.kernel <= self.height.min(self.width) + 2 * self.padding,
            "convolution: the kernel is larger than the padded image in {self:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Conv2dShape = Conv2dShape {
        batch: 1,
        height: 1,
        width: 1,
        in_channels: 1,
        out_channels: 16,
        kernel: 1,
        stride: 1,
        padding: 0,
        groups: 1,
    };

    fn refusal(shape: Conv2dShape) -> String {
        *std::panic::catch_unwind(|| shape.assert_valid())
            .unwrap_err()
            .downcast()
            .unwrap()
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn extents_whose_product_wraps_are_refused() {
        SMALL.assert_valid();
        let wide = Conv2dShape {
            in_channels: (1 << 60) + 1,
            ..SMALL
        };
        let many = Conv2dShape {
            batch: 1 << 60,
            height: 4,
            width: 4,
            ..SMALL
        };
        let large = Conv2dShape {
            kernel: 1 << 32,
            padding: (1 << 32) - 1,
            ..SMALL
        };
        let deep = Conv2dShape {
            in_channels: 1 << 31,
            out_channels: 1 << 31,
            ..SMALL
        };
        for (shape, what) in [
            (wide, "activations"),
            (many, "activations"),
            (large, "activations"),
            (deep, "weights"),
        ] {
            let text = refusal(shape);
            assert!(
                text.contains(&format!("convolution: padded {what}: expected at most")),
                "{text}"
            );
        }
    }

    #[test]
    fn an_extent_of_zero_is_named() {
        let text = refusal(Conv2dShape { batch: 0, ..SMALL });
        assert!(
            text.starts_with("convolution: batch: expected at least 1, got 0 in Conv2dShape"),
            "{text}"
        );
    }
}
