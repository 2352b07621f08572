//! A block: two 3x3 convolutions, or a 3x3 one between two of 1x1, and a shortcut around them.
//!
//! In: `[N, H, W, C_in]`. Out: `[N, H / stride, W / stride, C_out]` (rounded up). Invariant: the
//! field names are PyTorch's, so module paths are the names of the published weights.
//! Source: He et al. 2015, arXiv 1512.03385, figures 2 and 5 and section 4.2.

use burn::module::Module;
use layers::{BatchNorm, Conv2d, Features, relu};

use crate::config::{ResNetConfig, Shortcut, Stage};
use crate::init::WeightInit;

/// The convolutions, each with a normalisation and a ReLU. The last ReLU follows the addition of
/// the shortcut.
#[derive(Module, Debug)]
pub struct ResidualBlock {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    /// The third convolution of a bottleneck.
    conv3: Option<Conv2d>,
    bn3: Option<BatchNorm>,
    /// The shortcut B where the shape changes. The tuple gives the paths `downsample.0` and `.1`.
    downsample: Option<(Conv2d, BatchNorm)>,
    /// True if shortcut A subsamples and pads, because the shape changes.
    is_padded: bool,
}

impl ResidualBlock {
    pub(crate) fn new(
        config: &ResNetConfig,
        c_in: usize,
        stride: usize,
        stage: Stage,
        init: &mut WeightInit,
    ) -> Self {
        let inner = stage.channels;
        let c_out = stage.out_channels();
        let reshapes = c_in != c_out || stride > 1;
        let shortcut = config.shortcut();
        let zero_gamma = config.zero_gamma();
        let (first, second) = if stage.has_bottlenecks {
            (1, stride)
        } else {
            (stride, 1)
        };
        Self {
            conv1: init.conv(
                [c_in, inner],
                if stage.has_bottlenecks { 1 } else { 3 },
                first,
            ),
            bn1: init.norm(inner, false),
            conv2: init.conv([inner, inner], 3, second),
            bn2: init.norm(inner, zero_gamma && !stage.has_bottlenecks),
            conv3: stage
                .has_bottlenecks
                .then(|| init.conv([inner, c_out], 1, 1)),
            bn3: stage.has_bottlenecks.then(|| init.norm(c_out, zero_gamma)),
            downsample: (reshapes && shortcut == Shortcut::B)
                .then(|| (init.conv([c_in, c_out], 1, stride), init.norm(c_out, false))),
            is_padded: reshapes && shortcut == Shortcut::A,
        }
    }

    /// Runs the block.
    ///
    /// # Shapes
    /// `[N, H, W, C_in]` to `[N, ceil(H / stride), ceil(W / stride), C_out]`.
    pub fn forward(&self, input: Features) -> Features {
        let shortcut = match &self.downsample {
            Some((conv, norm)) => norm.forward(conv.forward(input.clone())),
            None if self.is_padded => input.clone().subsample_and_pad(self.bn2.gamma.dims()[0]),
            None => input.clone(),
        };
        let hidden = relu(self.bn1.forward(self.conv1.forward(input)));
        let hidden = self.bn2.forward(self.conv2.forward(hidden));
        let last = match (&self.conv3, &self.bn3) {
            (Some(conv), Some(norm)) => norm.forward(conv.forward(relu(hidden))),
            _ => hidden,
        };
        relu(last + shortcut)
    }
}
