//! The basic block: two 3x3 convolutions and a shortcut around them.
//!
//! In: `[N, H, W, C_in]`. Out: `[N, H / stride, W / stride, C_out]` (rounded up). Invariant: the
//! field names are PyTorch's, so module paths are the names of the published weights.
//! Source: He et al. 2015, arXiv 1512.03385, figure 2 and section 4.2.

use std::sync::Arc;

use burn::module::Module;
use burn::nn::BatchNorm;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;

use crate::config::{ResNetConfig, Shortcut};
use crate::init::WeightInit;
use crate::norm::batch_norm;
use crate::ops::{StatisticsReducer, stock};

/// Convolution, normalisation, ReLU, convolution, normalisation, plus the shortcut, ReLU.
#[derive(Module, Debug)]
pub struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    /// Shortcut B where the shape changes; the tuple gives the paths `downsample.0` and `.1`.
    downsample: Option<(Conv2d, BatchNorm)>,
    /// Channels of zeros on each side for shortcut A where the shape changes, else 0.
    zero_channels: usize,
    #[module(skip)]
    statistics_reducer: Option<Arc<dyn StatisticsReducer>>,
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
            zero_channels: if reshapes && shortcut == Shortcut::A { (c_out - c_in) / 2 } else { 0 },
            statistics_reducer: None,
        }
    }

    /// Runs the block.
    ///
    /// # Shapes
    /// `[N, H, W, C_in]` to `[N, ceil(H / stride), ceil(W / stride), C_out]`.
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let hidden = stock::conv(&self.conv1, input.clone());
        let hidden = stock::relu(self.norm(&self.bn1, hidden));
        let hidden = stock::conv(&self.conv2, hidden);
        let hidden = self.norm(&self.bn2, hidden);
        let shortcut = match &self.downsample {
            Some((conv, bn)) => self.norm(bn, stock::conv(conv, input)),
            None if self.zero_channels > 0 => stock::subsample_and_pad(input, self.zero_channels),
            None => input,
        };
        stock::add_relu(hidden, shortcut)
    }

    pub(crate) fn with_statistics_reducer(mut self, reducer: Option<Arc<dyn StatisticsReducer>>) -> Self {
        self.statistics_reducer = reducer;
        self
    }

    fn norm(&self, norm: &BatchNorm, input: Tensor<4>) -> Tensor<4> {
        batch_norm(norm, input, self.statistics_reducer.as_ref())
    }
}
