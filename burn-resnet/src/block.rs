//! The basic block: two 3x3 convolutions and a shortcut around them.
//!
//! In: `[N, H, W, C_in]`. Out: `[N, H / stride, W / stride, C_out]` (rounded up). Invariant: the
//! field names are PyTorch's, so module paths are the names of the published weights.
//! Source: He et al. 2015, arXiv 1512.03385, figure 2 and section 4.2.

use burn::module::Module;
use burn::nn::BatchNorm;
use burn::nn::conv::Conv2d;
use layers::{Branch, Computation, Features, Residual, Skip};

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
        let residual = if self.is_padded { Residual::ShortcutA } else { Residual::Identity };
        let (input, first, skip) = if let Some((conv, norm)) = &self.downsample {
            let input = input.into_tensor();
            let shortcut = computation.forward((conv, norm), input.clone(), Skip::NONE, false);
            (input.into(), Skip::NONE, Skip { residual, branch: Branch::None, tensor: Some(shortcut) })
        } else if computation.can_branch([bn1, bn2], &input) {
            let (input, shortcut) = input.split();
            let opens = Skip { residual: Residual::None, branch: Branch::Opens, tensor: Some(shortcut.clone()) };
            (input, opens, Skip { residual, branch: Branch::Ends, tensor: Some(shortcut) })
        } else {
            let input = input.into_tensor();
            (input.clone().into(), Skip::NONE, Skip { residual, branch: Branch::None, tensor: Some(input) })
        };
        let hidden = computation.hidden((conv1, bn1), input, first, bn2);
        computation.after((conv2, bn2), hidden, skip, true)
    }

    pub(crate) fn with_computation(mut self, computation: &Computation) -> Self {
        self.computation = computation.clone();
        self
    }
}
