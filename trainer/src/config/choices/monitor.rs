//! The figure that ranks evaluations, as `val-loss` or `val-top1`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The value of `--monitor`: a figure, and the split if one is named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "super::Written", into = "super::Written")]
pub struct Monitor {
    /// `val` or `test`; `None` means the split that is evaluated in every epoch.
    pub split: Option<String>,
    /// Figure to compare: `loss`, `top1`, or a metric of the task by name.
    pub figure: String,
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
            "top-1" => "top1",
            "" => {
                return Err(format!(
                    "expected val-loss, val-top1 or val-NAME of a metric, got `{text}`"
                ));
            }
            figure => figure,
        };
        Ok(Self {
            split,
            figure: figure.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_monitor_is_a_figure_of_the_named_or_the_evaluated_split() {
        for (text, split, figure) in [
            ("val-loss", Some("val"), "loss"),
            ("test-top1", Some("test"), "top1"),
            ("loss", None, "loss"),
            ("val-cost", Some("val"), "cost"),
            ("value-error", None, "value-error"),
        ] {
            let monitor: Monitor = text.parse().unwrap();
            assert_eq!(
                (monitor.split.as_deref(), monitor.figure.as_str()),
                (split, figure)
            );
            assert_eq!(monitor.to_string(), text);
        }
        assert!("val-".parse::<Monitor>().is_err() && "".parse::<Monitor>().is_err());
    }
}
