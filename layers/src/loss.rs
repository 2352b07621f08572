//! Losses whose bits do not depend on CPU or C library.
//!
//! In: logits and targets `[N, K]`. Out: the sum of all samples' losses.
//! Invariant: only for Flex. On other devices the caller uses burn's operations.

use burn::tensor::{FloatDType, Tensor};
use kernels::loss::Loss;

use crate::choices::Computation;
use crate::ops::single::{Operation, computes, single};

/// Returns the loss computed by Lockstep's kernel, or `None` on a device without this kernel. The
/// targets get no gradient.
///
/// # Shapes
/// `logits` and `targets`: `[N, K]`; returns `[1]`.
pub fn loss_sum(loss: Loss, logits: Tensor<2>, targets: Tensor<2>) -> Option<Tensor<1>> {
    let logits = match FloatDType::from(logits.dtype()) {
        FloatDType::BF16 => logits,
        _ => logits.cast(FloatDType::F32),
    };
    let computation = Computation::default();
    computes(&logits, &computation).then(|| {
        let targets = Some(targets.detach().into_dispatch());
        single(
            logits,
            [targets, None],
            Operation::Loss(loss),
            computation.isa,
        )
        .reshape([1])
    })
}
