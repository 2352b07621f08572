//! The shares of an image's area that random crops have, as `0.08:1`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The smallest and the largest share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CropScale {
    /// Above 0.
    pub min: f64,
    /// At most 1, and no less than `min`.
    pub max: f64,
}

impl Default for CropScale {
    /// That of Szegedy et al. 2014 (1409.4842), and of torchvision.
    fn default() -> Self {
        Self {
            min: 0.08,
            max: 1.0,
        }
    }
}

impl fmt::Display for CropScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.min, self.max)
    }
}

impl FromStr for CropScale {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text
            .split_once(':')
            .and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
        match parsed {
            Some((min, max)) if 0.0 < min && min <= max && max <= 1.0 => Ok(Self { min, max }),
            _ => Err(format!(
                "expected two shares above 0 and up to 1, the smaller one first, such as 0.08:1, got `{text}`"
            )),
        }
    }
}
