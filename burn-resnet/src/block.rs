//! The basic block: two 3x3 convolutions and a shortcut around them.
//!
//! In: `[N, H, W, C_in]`. Out: `[N, H / stride, W / stride, C_out]` (rounded up). Invariant: the
//! field names are PyTorch's, so module paths are the names of the published weights.
//! Source: He et al. 2015, arXiv 1512.03385, figure 2 and section 4.2.

use burn::module::Module;
use burn::nn::BatchNorm;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use layers::{Branch, Computation, Residual, Skip};

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
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let layer = |conv, norm, input, skip, relu| self.computation.forward((conv, norm), input, skip, relu);
        let residual = if self.is_padded { Residual::ShortcutA } else { Residual::Identity };
        if let Some((conv, norm)) = &self.downsample {
            let hidden = layer(&self.conv1, &self.bn1, input.clone(), Skip::NONE, true);
            let shortcut = layer(conv, norm, input, Skip::NONE, false);
            let skip = Skip { residual, branch: Branch::None, tensor: Some(shortcut) };
            return layer(&self.conv2, &self.bn2, hidden, skip, true);
        }
        let (first, shortcut, branch) = if self.computation.can_branch([&self.bn1, &self.bn2], &input) {
            let shortcut = input.clone().detach();
            let opens = Skip { residual: Residual::None, branch: Branch::Opens, tensor: Some(shortcut.clone()) };
            (opens, shortcut, Branch::Ends)
        } else {
            (Skip::NONE, input.clone(), Branch::None)
        };
        let hidden = layer(&self.conv1, &self.bn1, input, first, true);
        layer(&self.conv2, &self.bn2, hidden, Skip { residual, branch, tensor: Some(shortcut) }, true)
    }

    pub(crate) fn with_computation(mut self, computation: &Computation) -> Self {
        self.computation = computation.clone();
        self
    }
}
