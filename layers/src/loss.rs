//! Losses whose bits no processor and no C library changes.
//!
//! In: logits and targets `[N, K]`.
//! Out: the loss of all samples, summed.
//! Invariant: only where our kernels compute, on Flex; the caller has a loss of burn's operations
//! for all other devices.

use burn::tensor::{FloatDType, Tensor};
use kernels::loss::Loss;

use crate::choices::Computation;
use crate::ops::single::{Operation, computes, single};

/// Returns the loss by our kernel; nothing on devices that are not its own. The targets get no
/// gradient.
///
/// # Shapes
/// `logits` and `targets`: `[N, K]`; returns `[1]`.
pub fn loss_sum(loss: Loss, logits: Tensor<2>, targets: Tensor<2>) -> Option<Tensor<1>> {
    let logits = logits.cast(FloatDType::F32);
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
