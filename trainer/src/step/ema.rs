//! An exponential moving average of the parameters, which often predicts better than any one
//! step's.
//!
//! In: the parameters after each update, in main memory or on a device. Out: their average there.
//! Invariant: the average depends only on the sequence of parameters, so equal replicas have
//! averages with equal bits without communication, and a resumed run continues with the same ones.
//! Source: Polyak and Juditsky 1992, Acceleration of Stochastic Approximation by Averaging; the
//! formula and its use as `torch.optim.swa_utils.get_ema_multi_avg_fn` and timm's `ModelEmaV2` have
//! them.

use burn::module::Module;
use burn::tensor::Tensor;
use distributed::replica::{ParameterLayout, read, replace, write};

use super::Stepper;
use super::device::{FlatPlacement, ORDER};

/// The average of a model in training: after each update `average = decay * average + (1 - decay) *
/// parameters`.
///
/// # Differs from PyTorch
/// The average begins with the parameters before the first update, as timm's
/// does; `AveragedModel` begins with those after it. Norm statistics are not averaged, as with
/// `use_buffers=False`: those of the model in training are used. timm and torchvision's reference
/// scripts average them too. A skipped step makes no update and does not count.
#[derive(Clone, Debug)]
pub struct Ema {
    decay: f64,
    average: Average,
}

#[derive(Clone, Debug)]
enum Average {
    /// Flat in module order.
    Host(Vec<f32>),
    Device(Box<(Tensor<1>, FlatPlacement)>),
}

impl Ema {
    /// Starts with the parameters of `stepper`.
    pub fn new<M: Module>(decay: f64, stepper: &Stepper<M>) -> Self {
        let average = match stepper.device_parameters() {
            Some((parameters, placement)) => {
                Average::Device(Box::new((parameters, placement.clone())))
            }
            None => Average::Host(stepper.parameters().into_owned()),
        };
        Self { decay, average }
    }

    /// Adds the parameters after a step, if it updated them.
    pub fn update<M: Module>(&mut self, stepper: &Stepper<M>) {
        match (&mut self.average, stepper.device_parameters()) {
            (Average::Device(device), Some((parameters, _))) => {
                let average = &mut device.0;
                let distance = parameters - average.clone();
                let moved = average.clone() + distance * (1.0 - self.decay);
                *average = stepper.if_updated(average.clone(), moved);
            }
            (Average::Host(average), _) if stepper.has_updated => {
                add(average, self.decay, &stepper.parameters());
            }
            (Average::Host(_), _) => {}
            (Average::Device(_), None) => unreachable!("a stepper's replica stays where it is"),
        }
    }

    /// Returns `model` with the average as its parameters; its norm statistics stay.
    pub fn place<M: Module>(&self, model: M) -> M {
        match &self.average {
            Average::Host(average) => {
                let layout = ParameterLayout::new(&model);
                write(model, &layout, average)
            }
            Average::Device(device) => {
                let (average, placement) = &**device;
                replace(model, placement.layout(), ORDER, placement.views(average))
            }
        }
    }

    /// Continues with the average that [`place`](Self::place) put into `model`.
    pub fn restore<M: Module>(&mut self, model: &M) {
        match &mut self.average {
            Average::Host(average) => *average = read(model, &ParameterLayout::new(model)),
            Average::Device(device) => {
                let (average, placement) = &mut **device;
                *average = placement.upload(&read(model, placement.layout()));
            }
        }
    }
}

/// Adds `parameters` to an average in main memory.
fn add(average: &mut [f32], decay: f64, parameters: &[f32]) {
    // In this form an average that equals its parameters stays equal, whatever the rounding.
    let share = (1.0 - decay) as f32;
    for (average, parameter) in average.iter_mut().zip(parameters) {
        *average += share * (parameter - *average);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_is_that_computed_by_hand() {
        let mut average = [0.0, 8.0];
        add(&mut average, 0.75, &[4.0, 8.0]);
        assert_eq!(average, [1.0, 8.0]);
        add(&mut average, 0.75, &[-3.0, 0.0]);
        assert_eq!(average, [0.0, 6.0]);
        let mut none = [5.0];
        add(&mut none, 0.0, &[2.0]);
        assert_eq!(none, [2.0], "without decay it is the parameters");
    }

    #[test]
    fn parameters_that_stay_are_their_own_average_to_the_bit() {
        let parameters = [0.1, -1e-30, 3.3e7];
        let mut average = parameters;
        (0..1000).for_each(|_| add(&mut average, 0.9999, &parameters));
        assert_eq!(average, parameters);
    }
}
