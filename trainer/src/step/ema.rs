//! An exponential moving average of the parameters, which often predicts better than any one
//! step's.
//!
//! In: the parameters after each update. Out: their average, flat in module order.
//! Invariant: the average depends only on the sequence of parameters, so equal replicas have
//! averages with equal bits without communication, and a resumed run continues with the same ones.
//! Source: Polyak and Juditsky 1992, Acceleration of Stochastic Approximation by Averaging; the
//! formula and its use as `torch.optim.swa_utils.get_ema_multi_avg_fn` and timm's `ModelEmaV2` have
//! them.

use burn::module::Module;
use distributed::replica::{ParameterLayout, read, write};

/// The average of a model in training: after each update `average = decay * average + (1 - decay) *
/// parameters`.
///
/// # Differs from PyTorch
/// The average begins with the parameters before the first update, as timm's
/// does; `AveragedModel` begins with those after it. Norm statistics are not averaged, as with
/// `use_buffers=False`: those of the model in training are used. timm and torchvision's reference
/// scripts average them too. A skipped step makes no update and does not count.
#[derive(Clone, Debug, PartialEq)]
pub struct Ema {
    decay: f64,
    average: Vec<f32>,
}

impl Ema {
    /// Starts with `parameters`, flat in module order.
    pub fn new(decay: f64, parameters: Vec<f32>) -> Self {
        Self {
            decay,
            average: parameters,
        }
    }

    /// Adds the parameters after an update.
    ///
    /// # Panics
    /// If their number differs.
    pub fn update(&mut self, parameters: &[f32]) {
        assert_eq!(
            parameters.len(),
            self.average.len(),
            "ema: one value for each parameter"
        );
        // In this form an average that equals its parameters stays equal, whatever the rounding.
        let share = (1.0 - self.decay) as f32;
        for (average, parameter) in self.average.iter_mut().zip(parameters) {
            *average += share * (parameter - *average);
        }
    }

    /// Returns `model` with the average as its parameters; its norm statistics stay.
    pub fn place<M: Module>(&self, model: M) -> M {
        let layout = ParameterLayout::new(&model);
        write(model, &layout, &self.average)
    }

    /// Continues with the average that [`place`](Self::place) put into `model`.
    pub fn restore<M: Module>(&mut self, model: &M) {
        self.average = read(model, &ParameterLayout::new(model));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_is_that_computed_by_hand() {
        let mut ema = Ema::new(0.75, vec![0.0, 8.0]);
        ema.update(&[4.0, 8.0]);
        assert_eq!(ema.average, [1.0, 8.0]);
        ema.update(&[-3.0, 0.0]);
        assert_eq!(ema.average, [0.0, 6.0]);
        let mut none = Ema::new(0.0, vec![5.0]);
        none.update(&[2.0]);
        assert_eq!(none.average, [2.0], "without decay it is the parameters");
    }

    #[test]
    fn parameters_that_stay_are_their_own_average_to_the_bit() {
        let parameters = [0.1, -1e-30, 3.3e7];
        let mut ema = Ema::new(0.9999, parameters.to_vec());
        (0..1000).for_each(|_| ema.update(&parameters));
        assert_eq!(ema.average, parameters);
    }
}
