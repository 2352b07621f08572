//! Softmax and its logarithm.
//!
//! In: a tensor of any rank.
//! Out: the same shape.
//! Invariant: the functions of burn; a kernel computes them over the last axis.

use burn::tensor::Tensor;
use burn::tensor::activation;

use crate::context::PassContext;
use crate::fallback;
use crate::features::in_f32;
use crate::ops::single::{Operation, computes, single};

/// Returns `e^x / sum(e^x)` over the axis `dim`.
///
/// On Flex, over the last axis, each value is within 7e-6 of the exact one. A value more than 87
/// below the largest has the share 0. A row with a NaN or plus infinity, or with minus infinity
/// only, becomes NaN, as in PyTorch. 16 bits are computed in f32.
///
/// # Shapes
/// Any, to the same.
///
/// # Panics
/// If the tensor has no axis `dim`.
pub fn softmax<const D: usize>(x: Tensor<D>, dim: usize) -> Tensor<D> {
    over(x, dim, false)
}

/// Returns `x - ln(sum(e^x))` over the axis `dim`, on Flex within 2e-6 of the exact value or, if
/// this is larger, of 1.
///
/// Special values, shapes and panics are as those of [`softmax`]. The backward pass reads the
/// result, as PyTorch's: in bf16 the gradient has the error of rounded logarithms.
pub fn log_softmax<const D: usize>(x: Tensor<D>, dim: usize) -> Tensor<D> {
    over(x, dim, true)
}

fn over<const D: usize>(x: Tensor<D>, dim: usize, is_log: bool) -> Tensor<D> {
    assert!(
        dim < D,
        "softmax: dim: expected an axis of {:?}, got {dim}",
        x.dims()
    );
    let computation = PassContext::current().computation;
    if computes(&x, &computation) {
        if dim + 1 == D {
            let operation = Operation::Softmax { is_log };
            return single(x, [None, None], operation, computation.isa);
        }
        fallback::note(format!("softmax over axis {dim} of {D}"));
    }
    in_f32(x, |x| {
        if is_log {
            activation::log_softmax(x, dim)
        } else {
            activation::softmax(x, dim)
        }
    })
}
