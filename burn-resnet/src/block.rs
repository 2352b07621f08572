//! The basic block: two 3x3 convolutions and a shortcut around them.
//!
//! In: `[N, H, W, C_in]`. Out: `[N, H / stride, W / stride, C_out]` (rounded up). Invariant: the
//! field names are PyTorch's, so module paths are the names of the published weights.
//! Source: He et al. 2015, arXiv 1512.03385, figure 2 and section 4.2.

use burn::module::Module;
use burn::nn::BatchNorm;
use burn::nn::conv::Conv2d;
use layers::{Computation, Features, Skip};

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
    #[module(skip)]
    computation: Computation,
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
            computation: config.computation(),
        }
    }

    /// Runs the block.
    ///
    /// # Shapes
    /// `[N, H, W, C_in]` to `[N, ceil(H / stride), ceil(W / stride), C_out]`.
    pub fn forward(&self, input: Features) -> Features {
        let Self { computation, conv1, bn1, conv2, bn2, .. } = self;
        let shortcut = match &self.downsample {
            Some((conv, norm)) => Skip::Identity(computation.features((conv, norm), input.clone(), Skip::None, false)),
            None if self.is_padded => Skip::ShortcutA(input.clone()),
            None => Skip::Identity(input.clone()),
        };
        let hidden = computation.hidden((conv1, bn1), input, bn2);
        computation.after((conv2, bn2), hidden, shortcut, true)
    }

    pub(crate) fn with_computation(mut self, computation: &Computation) -> Self {
        self.computation = computation.clone();
        self
    }
}
