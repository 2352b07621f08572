//! Loss scaling, as spelled in flags and files.
//!
//! In: text, or a number of a TOML file. Out: [`LossScaling`]. Invariant: a factor is a power of
//! two from 1 to 2^24. Multiplying or dividing an f32 by the factor does not round.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Activations;

/// Loss scaling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "super::Written", into = "super::Written")]
pub enum LossScaling {
    /// No scaling.
    #[default]
    None,
    /// A factor that an overflow of gradients halves and 2000 good steps double. A step with an
    /// overflow is skipped.
    Dynamic,
    /// A constant power of two.
    Fixed(u32),
}

impl LossScaling {
    /// Largest factor: the loss of a whole batch stays far below the largest f32.
    pub const LARGEST: u32 = 1 << 24;

    /// Returns true if `number` is a valid factor.
    pub fn is_factor(number: u32) -> bool {
        number.is_power_of_two() && number <= Self::LARGEST
    }

    /// Returns the default for activations of `dtype`. f16, whose smallest number is 2^-24, needs
    /// scaling; bf16 has the range of f32.
    pub fn of(dtype: Activations) -> Self {
        match dtype {
            Activations::F32 | Activations::Bf16 => Self::None,
            Activations::F16 => Self::Dynamic,
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
            (_, Ok(factor)) if Self::is_factor(factor) => Ok(Self::Fixed(factor)),
            _ => Err(format!(
                "expected none, dynamic or a power of two from 1 to {}, got `{text}`",
                Self::LARGEST
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_read_back_and_only_powers_of_two_are_numbers() {
        for scaling in [
            LossScaling::None,
            LossScaling::Dynamic,
            LossScaling::Fixed(1),
            LossScaling::Fixed(LossScaling::LARGEST),
        ] {
            assert_eq!(scaling.to_string().parse(), Ok(scaling));
            let text = serde_json::to_string(&scaling).unwrap();
            assert_eq!(serde_json::from_str::<LossScaling>(&text).unwrap(), scaling);
        }
        assert_eq!(
            serde_json::from_str::<LossScaling>("1024").unwrap(),
            LossScaling::Fixed(1024)
        );
        for text in ["0", "1000", "33554432", "-2", "1.5", "auto", ""] {
            let error = text.parse::<LossScaling>().unwrap_err();
            assert!(
                error.contains("a power of two from 1 to 16777216"),
                "{error}"
            );
        }
    }
}
