//! A factor on the learning rate of a part of the model, as `layer1=0.1`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A part of a model, and the factor on its learning rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RateFactor {
    /// Names of the fields from the model's root, dotted.
    pub part: String,
    /// On the learning rate.
    pub factor: f64,
}

impl fmt::Display for RateFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.part, self.factor)
    }
}

impl FromStr for RateFactor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text
            .split_once('=')
            .and_then(|(part, factor)| Some((part.trim(), factor.trim().parse().ok()?)));
        match parsed {
            Some((part, factor)) if !part.is_empty() => Ok(Self {
                part: part.to_owned(),
                factor,
            }),
            _ => Err(format!(
                "expected a part of the model and a number, such as layer1=0.1, got `{text}`"
            )),
        }
    }
}
