//! Dropout as burn's module, with a kernel that draws and applies the mask in one pass.
//!
//! In: features, or a tensor of any shape. Out: the same kind.
//! Invariant: burn's random numbers of the device give one seed per call. So the draws depend on
//! (seed, rank, step) and a resumed run repeats them.
//! Source: Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from
//! Overfitting".

use burn::nn;

use crate::elementwise::Elementwise;
use crate::modules::{around, config_around};

around!(
    Dropout,
    nn::Dropout,
    "Dropout of single values, in training only."
);

config_around!(DropoutConfig, nn::DropoutConfig, Dropout, []);

impl DropoutConfig {
    /// Returns the configuration that sets a value to zero with this probability.
    pub fn new(probability: f64) -> Self {
        Self(nn::DropoutConfig::new(probability))
    }
}

impl Dropout {
    /// In training, on an autodiff device, sets each value to zero with the probability and divides
    /// the others by 1 minus the probability. Otherwise it returns the unchanged values.
    ///
    /// The draws differ between ranks and steps, and from those of burn's module.
    pub fn forward<T: Elementwise>(&self, x: T) -> T {
        if !self.training.is_enabled() || self.prob == 0.0 {
            return x;
        }
        x.dropped(self.prob)
    }
}
