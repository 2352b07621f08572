//! Gradients of a block of any layers, handed over when the block's backward pass ends, not when the whole one does.
//!
//! In: a block and its input. Out: the block for one pass, its parameters gated. Invariant: a gate lies above its input and below
//! all uses of its parameter in the block, so that it opens when these are differentiated, and before what made the input is.
//! Source: Li et al. 2020, PyTorch Distributed, arXiv 2006.15704, section 3.2.3.

use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;

use crate::context::PassContext;
use crate::ops::{GradientHook, gated};

/// `block`, for the forward pass under way on `input`: the hook of the [`PassContext`] gets the gradients of its parameters as soon as the
/// block is differentiated. For blocks of burn's own layers, and of anything else; without a hook it is a clone.
///
/// ```
/// # use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
/// # let (x, linear) = (Tensor::<2>::ones([4, 3], &Device::flex()), LinearConfig::new(3, 2).init(&Device::flex()));
/// let y = layers::stream(&linear, &x).forward(x);
/// ```
///
/// The hook gets a parameter's gradient once for each block streamed with it, summed over all uses in that block. So a parameter that is
/// also used outside it, or in two streamed blocks, has no one gradient to hand over: stream a block that has all its uses, or
/// none; `distributed::gradients::GradientReducer` refuses the second part, and names the parameter. A frozen parameter stays as it is.
///
/// # Shapes
/// `input`: any; it only says when.
pub fn stream<M: Module, const D: usize>(block: &M, input: &Tensor<D>) -> M {
    match PassContext::current().hook {
        Some(hook) => block.clone().map(&mut Gates {
            input: input.clone(),
            hook,
        }),
        None => block.clone(),
    }
}

struct Gates<const D: usize> {
    input: Tensor<D>,
    hook: Arc<dyn GradientHook>,
}

impl<const D: usize> ModuleMapper for Gates<D> {
    fn map_float<const E: usize>(&mut self, parameter: Param<Tensor<E>>) -> Param<Tensor<E>> {
        let gated = gated(&parameter, &self.input, Some(&self.hook));
        parameter.map(|_| gated)
    }
}
