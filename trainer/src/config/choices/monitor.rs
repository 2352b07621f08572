//! The figure that ranks evaluations, as `val-loss` or `val-top1`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Figure that ranks evaluations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Figure {
    /// Mean loss; lower is better.
    Loss,
    /// Top-1 accuracy; higher is better.
    Top1,
    /// A metric of the program's model family, by name.
    Metric(String),
}

impl fmt::Display for Figure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Loss => "loss",
            Self::Top1 => "top1",
            Self::Metric(name) => name,
        })
    }
}

/// The value of `--monitor`: a figure, and the split if one is named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "super::Written", into = "super::Written")]
pub struct Monitor {
    /// `val` or `test`; `None` means the split that is evaluated in every epoch.
    pub split: Option<String>,
    /// Figure to compare.
    pub figure: Figure,
}

impl fmt::Display for Monitor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.split {
            Some(split) => write!(formatter, "{split}-{}", self.figure),
            None => self.figure.fmt(formatter),
        }
    }
}

impl FromStr for Monitor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = ["val", "test"]
            .iter()
            .find_map(|split| Some((split, text.strip_prefix(split)?.strip_prefix('-')?)));
        let (split, figure) = named.map_or((None, text), |(split, figure)| {
            (Some((*split).to_owned()), figure)
        });
        let figure = match figure {
            "loss" => Figure::Loss,
            "top1" | "top-1" => Figure::Top1,
            "" => {
                return Err(format!(
                    "expected val-loss, val-top1 or val-NAME of a metric, got `{text}`"
                ));
            }
            name => Figure::Metric(name.to_owned()),
        };
        Ok(Self { split, figure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_monitor_is_a_figure_of_the_named_or_the_evaluated_split() {
        for (text, split, figure) in [
            ("val-loss", Some("val"), Figure::Loss),
            ("test-top1", Some("test"), Figure::Top1),
            ("loss", None, Figure::Loss),
            ("val-cost", Some("val"), Figure::Metric("cost".to_owned())),
            (
                "value-error",
                None,
                Figure::Metric("value-error".to_owned()),
            ),
        ] {
            let monitor: Monitor = text.parse().unwrap();
            assert_eq!(
                (monitor.split.as_deref(), &monitor.figure),
                (split, &figure)
            );
            assert_eq!(monitor.to_string(), text);
        }
        assert!("val-".parse::<Monitor>().is_err() && "".parse::<Monitor>().is_err());
    }
}
