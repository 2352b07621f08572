//! Weights of the classes in the loss, as `balanced` or `0.5,2,1`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Weight of the samples of each class in the training loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "super::Written", into = "super::Written")]
pub enum ClassWeights {
    /// Number of training samples / (number of classes with samples * samples of the class).
    Balanced,
    /// One weight per class, in label order.
    Given(Vec<f64>),
}

impl ClassWeights {
    /// Returns the class weights for these numbers of training samples. Balanced weights are 0 for
    /// a class without samples.
    ///
    /// # Errors
    /// If the number of weights differs from the number of classes.
    pub fn of(&self, class_sizes: &[usize]) -> Result<Vec<f64>, String> {
        match self {
            Self::Balanced => {
                let num_classes = class_sizes.iter().filter(|size| **size > 0).count() as f64;
                let num_samples = class_sizes.iter().sum::<usize>() as f64;
                let weight = |size: &usize| {
                    if *size > 0 {
                        num_samples / (num_classes * *size as f64)
                    } else {
                        0.0
                    }
                };
                Ok(class_sizes.iter().map(weight).collect())
            }
            Self::Given(weights) if weights.len() == class_sizes.len() => Ok(weights.clone()),
            Self::Given(weights) => Err(format!(
                "--class-weights: the number of weights is not that of the classes (expected {}, got {}). Give one weight a class, in label order",
                class_sizes.len(),
                weights.len()
            )),
        }
    }
}

impl fmt::Display for ClassWeights {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Balanced => formatter.write_str("balanced"),
            Self::Given(weights) => formatter.write_str(
                &weights
                    .iter()
                    .map(f64::to_string)
                    .collect::<Vec<_>>()
                    .join(","),
            ),
        }
    }
}

impl FromStr for ClassWeights {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().eq_ignore_ascii_case("balanced") {
            return Ok(Self::Balanced);
        }
        let weights: Option<Vec<f64>> = text
            .split(',')
            .map(|weight| weight.trim().parse().ok())
            .collect();
        match weights {
            Some(weights)
                if weights
                    .iter()
                    .all(|weight| weight.is_finite() && *weight >= 0.0)
                    && weights.iter().any(|weight| *weight > 0.0) =>
            {
                Ok(Self::Given(weights))
            }
            _ => Err(format!(
                "expected `balanced`, or numbers of at least 0 that are not all 0, separated by commas, got `{text}`"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balanced_weights_are_those_of_scikit_learn_and_given_ones_are_one_a_class() {
        // sklearn.utils.class_weight.compute_class_weight("balanced", classes=[0, 1, 3], y=[0]*6 +
        // [1]*3 + [3]).
        assert_eq!(
            ClassWeights::Balanced.of(&[6, 3, 0, 1]).unwrap(),
            [10.0 / 18.0, 10.0 / 9.0, 0.0, 10.0 / 3.0]
        );
        let given: ClassWeights = "0.5, 2,1".parse().unwrap();
        assert_eq!(
            (given.of(&[1, 1, 1]).unwrap(), given.to_string()),
            (vec![0.5, 2.0, 1.0], "0.5,2,1".to_owned())
        );
        assert!(
            given
                .of(&[1, 1])
                .unwrap_err()
                .contains("(expected 2, got 3)")
        );
        for text in ["", "1,", "1,-1", "0,0", "nan,1", "inf", "even"] {
            assert!(text.parse::<ClassWeights>().is_err(), "{text}");
        }
    }
}
