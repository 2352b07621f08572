//! Loss scaling: a factor on the loss that keeps gradients of 16 bits within their range.
//!
//! In: `--loss-scale`, and how each step's gradients were. Out: the factor of the next step's loss. Invariant: a power of two from 1
//! to 2^24, by which an f32 is multiplied and divided without rounding; a function of what all ranks know, so alike on all.
//! Source: Micikevicius et al. 2018, arXiv 1710.03740, section 3.2; the dynamic policy and its constants are PyTorch's `GradScaler`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::config::choices::Dtype;

/// First factor of [`LossScaling::Dynamic`].
const START: u32 = 1 << 16;
/// Largest factor: with it the loss of a whole batch stays far below the largest f32.
const MOST: u32 = 1 << 24;
/// Good steps in a row after which the factor doubles.
const GROWTH_INTERVAL: u32 = 2000;

/// How the loss is scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Spelling", into = "String")]
pub enum LossScaling {
    /// Not at all.
    #[default]
    None,
    /// As much as the gradients bear: halved where they overflow, and that step left out; doubled after 2000 good steps.
    Dynamic,
    /// Always by this power of two.
    Fixed(u32),
}

impl LossScaling {
    /// What activations of `dtype` are trained with if nobody says: gradients need it in f16, whose smallest number is 2^-24;
    /// bf16 has the range of f32.
    pub fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 | Dtype::Bf16 => Self::None,
            Dtype::F16 => Self::Dynamic,
        }
    }
}

impl fmt::Display for LossScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::Dynamic => f.pad("dynamic"),
            Self::Fixed(factor) => factor.fmt(f),
        }
    }
}

impl FromStr for LossScaling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("none", _) => Ok(Self::None),
            ("dynamic", _) => Ok(Self::Dynamic),
            (_, Ok(factor)) if is_factor(factor) => Ok(Self::Fixed(factor)),
            _ => Err(format!("expected none, dynamic or a power of two from 1 to {MOST}, got `{text}`")),
        }
    }
}

/// In a file: text, or a number as it is.
#[derive(Deserialize)]
#[serde(untagged)]
enum Spelling {
    Number(i64),
    Text(String),
}

impl TryFrom<Spelling> for LossScaling {
    type Error = String;

    fn try_from(spelling: Spelling) -> Result<Self, String> {
        match spelling {
            Spelling::Number(factor) => factor.to_string().parse(),
            Spelling::Text(text) => text.parse(),
        }
    }
}

impl From<LossScaling> for String {
    fn from(scaling: LossScaling) -> Self {
        scaling.to_string()
    }
}

/// The factor of the present step, and what it will depend on.
///
/// # Differs from PyTorch
/// The factor stays between 1 and 2^24; at 1 gradients that are not finite are no matter of scaling any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossScale {
    is_dynamic: bool,
    factor: u32,
    /// Since the factor last changed.
    num_good_steps: u32,
    num_overflows: u64,
}

impl LossScale {
    /// That of a run's first step.
    pub fn new(scaling: LossScaling) -> Self {
        let (is_dynamic, factor) = match scaling {
            LossScaling::None => (false, 1),
            LossScaling::Dynamic => (true, START),
            LossScaling::Fixed(factor) => (false, factor),
        };
        Self { is_dynamic, factor, num_good_steps: 0, num_overflows: 0 }
    }

    /// What the loss is multiplied by, and gradients are divided by.
    pub fn factor(&self) -> u32 {
        self.factor
    }

    /// Whether an overflow of the gradients halves the factor.
    pub fn is_dynamic(&self) -> bool {
        self.is_dynamic
    }

    /// Steps of the whole run that were left out because gradients overflowed.
    pub fn num_overflows(&self) -> u64 {
        self.num_overflows
    }

    /// Takes note of a step that was made.
    pub fn note_good_step(&mut self) {
        if !self.is_dynamic {
            return;
        }
        self.num_good_steps += 1;
        if self.num_good_steps >= GROWTH_INTERVAL {
            (self.factor, self.num_good_steps) = ((2 * self.factor).min(MOST), 0);
        }
    }

    /// Takes note of gradients that are not finite. Whether the factor may be to blame: then it is halved, and the step is to be
    /// left out.
    pub fn note_overflow(&mut self) -> bool {
        let halves = self.is_dynamic && self.factor > 1;
        if halves {
            (self.factor, self.num_good_steps) = (self.factor / 2, 0);
            self.num_overflows += 1;
        }
        halves
    }

    /// Whether a run could have come to this.
    pub fn is_possible(&self) -> bool {
        is_factor(self.factor) && self.num_good_steps < GROWTH_INTERVAL
    }
}

fn is_factor(number: u32) -> bool {
    number.is_power_of_two() && number <= MOST
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
        assert_eq!(scale.factor(), 65_536, "an overflow begins the count anew");
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
    fn every_spelling_is_read_back_and_only_powers_of_two_are_numbers() {
        for scaling in [LossScaling::None, LossScaling::Dynamic, LossScaling::Fixed(1), LossScaling::Fixed(MOST)] {
            assert_eq!(scaling.to_string().parse(), Ok(scaling));
            let text = serde_json::to_string(&scaling).unwrap();
            assert_eq!(serde_json::from_str::<LossScaling>(&text).unwrap(), scaling);
        }
        assert_eq!(serde_json::from_str::<LossScaling>("1024").unwrap(), LossScaling::Fixed(1024));
        for text in ["0", "1000", "33554432", "-2", "1.5", "auto", ""] {
            let error = text.parse::<LossScaling>().unwrap_err();
            assert!(error.contains("a power of two from 1 to 16777216"), "{error}");
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
