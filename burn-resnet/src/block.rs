//! The basic block: two 3x3 convolutions and a shortcut around them.
//!
//! In: `[N, H, W, C_in]`. Out: `[N, H / stride, W / stride, C_out]` (rounded up). Invariant: the
//! field names are PyTorch's, so module paths are the names of the published weights.
//! Source: He et al. 2015, arXiv 1512.03385, figure 2 and section 4.2.

use burn::module::Module;
use layers::{BatchNorm, Conv2d, Features, relu};

use crate::config::{ResNetConfig, Shortcut};
use crate::init::WeightInit;

/// Convolution, normalisation, ReLU, convolution, normalisation, plus the shortcut, ReLU.
#[derive(Module, Debug)]
pub struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    /// Shortcut B where the shape changes; the tuple gives the paths `downsample.0` and `.1`.
    downsample: Option<(Conv2d, BatchNorm)>,
    /// Whether shortcut A subsamples and pads, because the shape changes.
    is_padded: bool,
}

impl BasicBlock {
    pub(crate) fn new(config: &ResNetConfig, channels: [usize; 2], init: &mut WeightInit) -> Self {
        let [c_in, c_out] = channels;
        let reshapes = c_in != c_out;
        let stride = if reshapes { 2 } else { 1 };
        let shortcut = config.shortcut();
        Self {
            conv1: init.conv([c_in, c_out], 3, stride),
            bn1: init.norm(c_out, false),
            conv2: init.conv([c_out, c_out], 3, 1),
            bn2: init.norm(c_out, config.zero_gamma()),
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
        relu(self.bn2.forward(self.conv2.forward(hidden)) + shortcut)
    }
}
