//! LARS: momentum SGD with a step scaled per tensor by the ratio of norms.
//!
//! In: flat slices of one tensor: parameters, velocities, gradients.
//! Out: updated parameters and velocities.
//! Source: You, Gitman and Ginsburg 2017, "Large Batch Training of Convolutional Networks"
//! (1708.03888). As in timm's `Lars` and PyTorch's `torch.optim.SGD`, the learning rate is outside
//! the velocity.

use super::sgd::{self, SgdUpdate};
use super::{check_lengths, norm, trust_ratio};
use crate::simd::Isa;

/// Applies one update: r = trust_coefficient · ‖w‖ / (‖g‖ + weight_decay · ‖w‖), or 1 if a norm is
/// 0; g' = r · (g + weight_decay · w); then as [`sgd::step`] with g'.
///
/// # Shapes
/// Three slices of one length, one whole tensor.
///
/// # Panics
/// If the lengths differ, or the processor lacks `isa`.
pub fn step(
    isa: Isa,
    update: &SgdUpdate,
    trust_coefficient: f64,
    parameters: &mut [f32],
    velocities: &mut [f32],
    gradients: &[f32],
) {
    check_lengths(
        "lars",
        parameters.len(),
        [
            ("velocities", velocities.len()),
            ("gradients", gradients.len()),
        ],
    );
    let of_parameters = norm(isa, parameters);
    let of_gradients = norm(isa, gradients);
    let ratio = trust_ratio(of_parameters, of_gradients, || {
        trust_coefficient * of_parameters
            / (of_gradients + f64::from(update.weight_decay) * of_parameters)
    });
    sgd::descend(isa, update, ratio, parameters, velocities, gradients);
}
