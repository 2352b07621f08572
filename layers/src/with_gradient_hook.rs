//! Early gradients of any module: the hook receives them when the module's backward pass ends.
//!
//! In: a module and its input. Out: a copy of the module for one pass, whose parameters pass
//! through gates.
//! Invariant: on the tape a gate is above the input and below all uses of its parameter in the
//! module. So burn runs the gate after those uses and before the layers that made the input.
//! Source: Li et al. 2020, PyTorch Distributed, arXiv 2006.15704, section 3.2.3.

use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;

use crate::context::PassContext;
use crate::ops::{GradientHook, gated};

/// Returns a copy of `module` for one use on `input`, whose gradients go to the hook of the
/// [`PassContext`].
///
/// The hook gets each gradient as soon as `module` is differentiated. Without a hook the copy is a
/// plain clone. A module may be a block of any layers, one of burn's own layers, or a single
/// [`Param`].
///
/// ```
/// # use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
/// # let x = Tensor::<2>::ones([4, 3], &Device::flex());
/// # let linear = LinearConfig::new(3, 2).init(&Device::flex());
/// let y = layers::with_gradient_hook(&linear, &x).forward(x);
/// ```
///
/// The hook gets one gradient per parameter and call, summed over all uses in that copy. A
/// parameter that is also used outside the copy, or in two copies, has no single gradient: pass a
/// module that contains all uses, or none. `distributed::gradients::GradientReducer` rejects a
/// second gradient and names the parameter. Frozen parameters stay unchanged.
///
/// # Shapes
/// `input`: any. It only determines when the hook is called.
pub fn with_gradient_hook<M: Module, const D: usize>(module: &M, input: &Tensor<D>) -> M {
    match PassContext::current().hook {
        Some(hook) => module.clone().map(&mut Gates {
            input: input.clone(),
            hook,
        }),
        None => module.clone(),
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
