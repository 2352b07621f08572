//! The update as plain loops, word for word that of `trainer/src/step/optimizer.rs`.

use super::SgdUpdate;

pub(super) fn step(update: &SgdUpdate, parameters: &mut [f32], velocities: &mut [f32], gradients: &[f32]) {
    let SgdUpdate { learning_rate, momentum, weight_decay, nesterov } = *update;
    let (of_gradient, of_velocity) = if nesterov { (1.0, momentum) } else { (0.0, 1.0) };
    for ((parameter, velocity), &gradient) in parameters.iter_mut().zip(velocities).zip(gradients) {
        let gradient = gradient + weight_decay * *parameter;
        *velocity = momentum * *velocity + gradient;
        *parameter -= learning_rate * (of_gradient * gradient + of_velocity * *velocity);
    }
}
