//! The updates as plain loops.

use super::adam::AdamWUpdate;
use super::sgd::SgdUpdate;

pub(super) fn sgd(
    update: &SgdUpdate,
    parameters: &mut [f32],
    velocities: &mut [f32],
    gradients: &[f32],
) {
    let SgdUpdate {
        learning_rate,
        momentum,
        weight_decay,
        nesterov,
    } = *update;
    let (of_gradient, of_velocity) = if nesterov {
        (1.0, momentum)
    } else {
        (0.0, 1.0)
    };
    for ((parameter, velocity), &gradient) in parameters.iter_mut().zip(velocities).zip(gradients) {
        let gradient = gradient + weight_decay * *parameter;
        *velocity = momentum * *velocity + gradient;
        *parameter -= learning_rate * (of_gradient * gradient + of_velocity * *velocity);
    }
}

pub(super) fn adamw(
    update: &AdamWUpdate,
    parameters: &mut [f32],
    moments: [&mut [f32]; 2],
    gradients: &[f32],
) {
    let AdamWUpdate {
        learning_rate,
        kept,
        direction: of,
    } = *update;
    let [first, second] = moments;
    for index in 0..parameters.len() {
        let m = &mut first[index];
        let v = &mut second[index];
        let gradient = gradients[index];
        *m += of.first_share * (gradient - *m);
        *v = of.second_decay * *v + of.second_share * (gradient * gradient);
        let direction = of.first_correction * *m / (of.root_correction * v.sqrt() + of.epsilon);
        parameters[index] = kept * parameters[index] - learning_rate * direction;
    }
}
