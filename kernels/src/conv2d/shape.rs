//! The numbers that describe a convolution.

use super::depthwise;

/// A two-dimensional convolution with a square kernel: activations `[N, H, W, C]`, weights `[C_out, C_in / groups, K, K]`.
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
    /// 1, or as many as channels of the input and of the output: depthwise, every channel by a kernel of its own, of side 3, 5 or 7.
    pub groups: usize,
}

impl Conv2dShape {
    /// Rows of an output image.
    #[must_use]
    pub fn out_height(&self) -> usize {
        self.out_extent(self.height)
    }

    /// Pixels of an output row.
    #[must_use]
    pub fn out_width(&self) -> usize {
        self.out_extent(self.width)
    }

    /// Elements of the input.
    #[must_use]
    pub fn input_len(&self) -> usize {
        self.batch * self.height * self.width * self.in_channels
    }

    /// Elements of the output.
    #[must_use]
    pub fn output_len(&self) -> usize {
        self.batch * self.out_height() * self.out_width() * self.out_channels
    }

    /// Elements of the weights.
    #[must_use]
    pub fn weight_len(&self) -> usize {
        self.out_channels * self.taps()
    }

    /// Floating-point operations of one pass, counted as direct convolution with its padding: 2 a multiply-add.
    #[must_use]
    pub fn flops(&self) -> f64 {
        2.0 * self.output_len() as f64 * self.taps() as f64
    }

    /// Whether our kernels convolve so many channels, by a kernel of this side, in so many groups.
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
    /// If an extent is zero, the groups are not as [`Self::groups`] says, the stride is not 1 or 2, the padding reaches the kernel's side, or the kernel is larger
    /// than the padded image.
    pub(super) fn assert_valid(&self) {
        let extents =
            [self.batch, self.height, self.width, self.in_channels, self.out_channels, self.kernel, self.groups];
        assert!(extents.iter().all(|&extent| extent > 0), "convolution: an extent is zero in {self:?}");
        assert!(
            Self::has_groups([self.in_channels, self.out_channels], self.kernel, self.groups),
            "convolution: expected one group, or as many as channels and a kernel of 3, 5 or 7, in {self:?}"
        );
        assert!(matches!(self.stride, 1 | 2), "convolution: expected a stride of 1 or 2 in {self:?}");
        assert!(self.padding < self.kernel, "convolution: expected a padding below the kernel's side in {self:?}");
        assert!(
            self.kernel <= self.height.min(self.width) + 2 * self.padding,
            "convolution: the kernel is larger than the padded image in {self:?}"
        );
    }
}
