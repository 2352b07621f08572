//! Loss scaling: a factor on the loss that keeps gradients of 16 bits within their range.
//!
//! In: `--loss-scale`, and whether each step's gradients were finite. Out: the factor of the next
//! loss.
//! Invariant: a power of two from 1 to 2^24, by which an f32 is multiplied and divided without
//! rounding; identical on all ranks, since it depends only on what all ranks know.
//! Source: Micikevicius et al. 2018, arXiv 1710.03740, section 3.2; the dynamic policy and its
//! constants are PyTorch's `GradScaler`.

use serde::{Deserialize, Serialize};

use crate::config::LossScaling;

/// The first factor of [`LossScaling::Dynamic`].
const START: u32 = 1 << 16;
/// Good steps in a row after which the factor doubles.
const GROWTH_INTERVAL: u32 = 2000;

/// Factor on the loss in the current step, and the counts that change it.
///
/// # Differs from PyTorch
/// The factor stays between 1 and 2^24. At 1, gradients that are not finite are an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossScale {
    /// True if an overflow halves the factor and good steps double it.
    is_dynamic: bool,
    /// Factor on the loss.
    factor: u32,
    /// Steps since the factor last changed.
    num_good_steps: u32,
    /// Steps of the run that were skipped because gradients overflowed.
    num_overflows: u64,
}

impl Default for LossScale {
    fn default() -> Self {
        Self::new(LossScaling::None)
    }
}

impl LossScale {
    /// Returns the scale of a run's first step.
    pub fn new(scaling: LossScaling) -> Self {
        let (is_dynamic, factor) = match scaling {
            LossScaling::None => (false, 1),
            LossScaling::Dynamic => (true, START),
            LossScaling::Fixed(factor) => (false, factor),
        };
        Self {
            is_dynamic,
            factor,
            num_good_steps: 0,
            num_overflows: 0,
        }
    }

    /// Factor on the loss.
    pub fn factor(&self) -> u32 {
        self.factor
    }

    /// True if an overflow halves the factor and good steps double it.
    pub fn is_dynamic(&self) -> bool {
        self.is_dynamic
    }

    /// False if the factor stays 1.
    pub(super) fn is_in_use(&self) -> bool {
        self.is_dynamic || self.factor != 1
    }

    /// Steps of the run that were skipped because gradients overflowed.
    pub fn num_overflows(&self) -> u64 {
        self.num_overflows
    }

    /// Returns the scale after each possible outcome of a step: an update, an overflow, a loss that
    /// is not finite.
    pub(super) fn after_each(self) -> [Self; 3] {
        let [mut updated, mut overflowed] = [self; 2];
        updated.note_good_step();
        overflowed.note_overflow();
        [updated, overflowed, self]
    }

    /// Counts a step with finite gradients.
    pub fn note_good_step(&mut self) {
        if !self.is_dynamic {
            return;
        }
        self.num_good_steps += 1;
        if self.num_good_steps >= GROWTH_INTERVAL {
            self.factor = (2 * self.factor).min(LossScaling::LARGEST);
            self.num_good_steps = 0;
        }
    }

    /// Halves the factor after gradients that were not finite, and returns true, if the factor may
    /// be the cause; then the step is skipped.
    pub fn note_overflow(&mut self) -> bool {
        let halves = self.is_dynamic && self.factor > 1;
        if halves {
            self.factor /= 2;
            self.num_good_steps = 0;
            self.num_overflows += 1;
        }
        halves
    }

    /// Returns true if a run can have this scale.
    pub fn is_possible(&self) -> bool {
        LossScaling::is_factor(self.factor) && self.num_good_steps < GROWTH_INTERVAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_doubles_after_2000_good_steps_in_a_row_and_not_before() {
        let mut scale = LossScale::new(LossScaling::Dynamic);
        for _ in 0..1999 {
            scale.note_good_step();
        }
        assert_eq!(scale.factor(), 65_536);
        scale.note_good_step();
        assert_eq!(scale.factor(), 131_072);
        (0..1999).for_each(|_| scale.note_good_step());
        assert!(scale.note_overflow());
        (0..1999).for_each(|_| scale.note_good_step());
        assert_eq!(scale.factor(), 65_536, "an overflow restarts the count");
        assert!(scale.is_possible());
    }

    #[test]
    fn an_overflow_halves_the_scale_down_to_1_and_there_it_is_an_ordinary_error() {
        let mut scale = LossScale::new(LossScaling::Dynamic);
        for power in (0..16).rev() {
            assert!(scale.note_overflow());
            assert_eq!(scale.factor(), 1 << power);
        }
        assert!(!scale.note_overflow());
        assert_eq!((scale.factor(), scale.num_overflows()), (1, 16));
    }

    #[test]
    fn the_scale_never_exceeds_its_bound() {
        let mut scale = LossScale::new(LossScaling::Dynamic);
        (0..20 * GROWTH_INTERVAL).for_each(|_| scale.note_good_step());
        assert_eq!(scale.factor(), 1 << 24);
    }

    #[test]
    fn a_fixed_scale_stays_whatever_the_gradients_are() {
        for (scaling, factor) in [(LossScaling::None, 1), (LossScaling::Fixed(1024), 1024)] {
            let mut scale = LossScale::new(scaling);
            (0..2 * GROWTH_INTERVAL).for_each(|_| scale.note_good_step());
            assert!(!scale.note_overflow());
            assert_eq!((scale.factor(), scale.num_overflows()), (factor, 0));
        }
    }

    #[test]
    fn a_saved_scale_goes_on_where_it_was() {
        let mut scale = LossScale::new(LossScaling::Dynamic);
        scale.note_overflow();
        scale.note_good_step();
        let text = serde_json::to_string(&scale).unwrap();
        assert_eq!(serde_json::from_str::<LossScale>(&text).unwrap(), scale);
    }
}
