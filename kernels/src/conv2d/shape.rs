//! Numbers that describe a convolution.

use super::depthwise;
use crate::pieces::elements;
use crate::simd::PANEL;

/// Largest step of a kernel.
pub(super) const MAX_STRIDE: usize = 4;

/// Two-dimensional convolution: activations `[N, H, W, C]`, weights `[C_out, C_in / groups, K_h,
/// K_w]`.
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
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Step of the kernel in both directions: 1 to 4.
    pub stride: usize,
    /// Zeros above and below, and to the left and right; each less than the kernel's extent.
    pub padding: [usize; 2],
    /// Parts of the channels that are convolved independently: a divisor of both numbers of
    /// channels.
    pub groups: usize,
}

impl Conv2dShape {
    /// Returns the number of rows of an output image.
    #[must_use]
    pub fn out_height(&self) -> usize {
        self.out_extent(self.height, 0)
    }

    /// Returns the number of pixels in an output row.
    #[must_use]
    pub fn out_width(&self) -> usize {
        self.out_extent(self.width, 1)
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
        self.out_channels * self.filter_len()
    }

    /// Returns the number of floating-point operations of one pass: 2 per multiply-add of direct
    /// convolution, including padding.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * self.output_len() as f64 * self.filter_len() as f64
    }

    /// Returns true if Lockstep's kernels support the kernel with this step and padding.
    #[must_use]
    pub fn supports(kernel: [usize; 2], stride: usize, padding: [usize; 2]) -> bool {
        let is_short = |axis: usize| padding[axis] < kernel[axis];
        (1..=MAX_STRIDE).contains(&stride) && is_short(0) && is_short(1)
    }

    /// Returns the shape of a block of groups that is computed like one group, and the groups in
    /// it: as few as fill a panel, or all of a depthwise convolution.
    pub(super) fn block(&self) -> (Self, usize) {
        let of_group = (self.in_channels.min(self.out_channels) / self.groups).max(1);
        let merged = (PANEL.div_ceil(of_group)..self.groups)
            .find(|merged| self.groups.is_multiple_of(*merged) && !self.is_depthwise())
            .unwrap_or(self.groups);
        let blocks = self.groups / merged;
        let block = Self {
            in_channels: self.in_channels / blocks,
            out_channels: self.out_channels / blocks,
            groups: 1,
            ..*self
        };
        (block, merged)
    }

    /// Returns the number of blocks of groups.
    pub(super) fn num_blocks(&self) -> usize {
        self.groups / self.block().1
    }

    /// Returns true if a convolution of each channel with this kernel, step and padding is computed
    /// without merging channels: square kernels of 3, 5, 7 or 9 with step 1 or 2.
    #[must_use]
    pub fn is_depthwise_kernel(kernel: [usize; 2], stride: usize, padding: [usize; 2]) -> bool {
        let is_square = kernel == [kernel[0]; 2] && padding == [padding[0]; 2];
        is_square && matches!(stride, 1 | 2) && depthwise::has_kernel(kernel[0], 1)
    }

    /// Returns true if groups are computed without merging them.
    pub(super) fn is_depthwise(&self) -> bool {
        self.groups > 1
            && self.in_channels == self.out_channels
            && Self::is_depthwise_kernel(self.kernel, self.stride, self.padding)
            && depthwise::has_kernel(self.kernel[0], self.in_channels / self.groups)
    }

    /// Returns true if every pixel is convolved without its neighbours.
    #[must_use]
    pub fn is_pointwise(&self) -> bool {
        self.kernel == [1, 1] && self.stride == 1
    }

    /// Returns the number of taps of the kernel.
    pub(super) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Returns the number of weights of an output channel.
    pub(super) fn filter_len(&self) -> usize {
        self.in_channels / self.groups * self.taps()
    }

    fn out_extent(&self, extent: usize, axis: usize) -> usize {
        (extent + 2 * self.padding[axis] - self.kernel[axis]) / self.stride + 1
    }

    /// # Panics
    /// If an extent is zero, [`Self::groups`] do not divide the channels, the stride is not 1 to 4,
    /// the padding is not less than the kernel, the kernel is larger than the padded image, or
    /// activations or weights exceed the largest slice.
    pub(super) fn assert_valid(&self) {
        for (name, extent) in [
            ("batch", self.batch),
            ("height", self.height),
            ("width", self.width),
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
            ("kernel", self.kernel[0].min(self.kernel[1])),
            ("groups", self.groups),
        ] {
            assert!(
                extent > 0,
                "convolution: {name}: expected at least 1, got 0 in {self:?}"
            );
        }
        assert!(
            self.in_channels.is_multiple_of(self.groups)
                && self.out_channels.is_multiple_of(self.groups),
            "convolution: expected groups that divide the channels in {self:?}"
        );
        assert!(
            Self::supports(self.kernel, self.stride, self.padding),
            "convolution: expected a stride of 1 to {MAX_STRIDE} and a padding below the kernel's extent in {self:?}"
        );
        // Products that wrapped would be the lengths of slices far too short. No plan pads more
        // than this, and an output is at most a kernel larger than its input.
        let [kernel_height, kernel_width] = self.kernel;
        let around = |extent: usize, kernel: usize| extent.saturating_add(kernel.saturating_mul(3));
        let channels = self.in_channels.max(self.out_channels);
        elements(
            "convolution: padded activations",
            &[
                self.batch,
                around(self.height, kernel_height),
                around(self.width, kernel_width),
                channels,
            ],
        );
        let [filters, depth] = [self.out_channels, self.block().0.in_channels]
            .map(|channels| channels.saturating_add(PANEL));
        elements(
            "convolution: padded weights",
            &[filters, depth, kernel_height, kernel_width],
        );
        assert!(
            kernel_height <= self.height + 2 * self.padding[0]
                && kernel_width <= self.width + 2 * self.padding[1],
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
        kernel: [1, 1],
        stride: 1,
        padding: [0, 0],
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
            kernel: [1 << 32; 2],
            padding: [(1 << 32) - 1; 2],
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
