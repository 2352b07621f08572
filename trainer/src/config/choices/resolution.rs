//! The height and width of images over the epochs of a run, as `160:192@0.65:224@eval`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Heights and widths, pixels. Smaller images in early training follow Howard 2018 (progressive
/// resizing) and FFCV.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "super::Written", into = "super::Written")]
pub struct Resolution {
    /// (share of the epochs, side): the side applies from this share on; the first share is 0.
    training: Vec<(f64, usize)>,
    /// Side in evaluation, if it differs from the last side in training.
    evaluation: Option<usize>,
}

impl Resolution {
    /// Returns the side of training images in an epoch of `planned` ones. Later epochs keep the
    /// last side.
    pub fn in_epoch(&self, epoch: u64, planned: u64) -> usize {
        // 0.28 of 25 epochs is 7, but the product in f64 is slightly larger.
        let reached = |(share, _): &&(f64, usize)| epoch as f64 + 1e-6 >= share * planned as f64;
        self.training
            .iter()
            .rev()
            .find(reached)
            .unwrap_or(&self.training[0])
            .1
    }

    /// Returns the side of test images, and of all images for the trained model.
    pub fn in_evaluation(&self) -> usize {
        self.evaluation
            .unwrap_or(self.training[self.training.len() - 1].1)
    }

    /// Returns all sides.
    pub fn sides(&self) -> impl Iterator<Item = usize> {
        self.training
            .iter()
            .map(|(_, side)| *side)
            .chain(self.evaluation)
    }

    /// Returns true if training uses several sides, or another side than evaluation.
    pub fn varies(&self) -> bool {
        self.sides().any(|side| side != self.in_evaluation())
    }

    /// Returns true if the side in an epoch depends on the number of planned epochs.
    pub fn depends_on_epochs(&self) -> bool {
        self.training.len() > 1
    }
}

impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.training[0].1)?;
        self.training[1..]
            .iter()
            .try_for_each(|(share, side)| write!(f, ":{side}@{share}"))?;
        self.evaluation
            .map_or(Ok(()), |side| write!(f, ":{side}@eval"))
    }
}

impl FromStr for Resolution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':').peekable();
        let first = parts.next().and_then(|side| side.parse().ok());
        let mut training: Vec<(f64, usize)> = first.map(|side| (0.0, side)).into_iter().collect();
        let mut evaluation = None;
        while let Some(part) = parts.next() {
            match part
                .split_once('@')
                .map(|(side, from)| (side.parse(), from, from.parse::<f64>()))
            {
                Some((Ok(side), "eval", _)) if parts.peek().is_none() => evaluation = Some(side),
                Some((Ok(side), _, Ok(share))) => training.push((share, side)),
                _ => training.clear(),
            }
        }
        let ascend = training.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if training.first().is_some_and(|(share, _)| *share == 0.0)
            && ascend
            && training.iter().all(|(share, _)| *share < 1.0)
        {
            return Ok(Self {
                training,
                evaluation,
            });
        }
        Err(format!(
            "expected pixels, or those at first, then others from a share of the epochs on, in their order, and those of evaluation, such as 160:192@0.65:224@eval, got `{text}`"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Resolution {
        text.parse().expect("a resolution")
    }

    #[test]
    fn the_side_of_an_epoch_is_the_last_whose_share_is_reached() {
        let resolution = parsed("160:192@0.65:208@0.8:224@eval");
        let sides: Vec<usize> = (0..11)
            .map(|epoch| resolution.in_epoch(epoch, 10))
            .collect();
        assert_eq!(
            sides,
            [160, 160, 160, 160, 160, 160, 160, 192, 208, 208, 208]
        );
        assert_eq!(
            (
                resolution.in_evaluation(),
                resolution.varies(),
                resolution.depends_on_epochs()
            ),
            (224, true, true)
        );
        assert_eq!(
            [6, 7].map(|epoch| parsed("16:24@0.28").in_epoch(epoch, 25)),
            [16, 24]
        );
        assert!(parsed("160:224@eval").varies() && !parsed("160:224@eval").depends_on_epochs());
        let plain = parsed("224");
        assert_eq!(
            (plain.in_epoch(3, 5), plain.in_evaluation(), plain.varies()),
            (224, 224, false)
        );
    }

    #[test]
    fn it_is_written_as_it_was_typed_and_a_lone_number_as_one() {
        for text in ["160:192@0.65:224@eval", "224", "128:160@0.25", "64:96@eval"] {
            assert_eq!(parsed(text).to_string(), text);
            let written = serde_json::to_string(&parsed(text)).expect("plain values");
            assert_eq!(written.starts_with('"'), text.len() > 3, "{written}");
            assert_eq!(
                serde_json::from_str::<Resolution>(&written).expect("what was written"),
                parsed(text)
            );
        }
    }

    #[test]
    fn what_is_no_course_of_sides_is_refused() {
        for text in [
            "",
            "x",
            "160:192",
            "160:192@1",
            "160:192@0",
            "160@0.5",
            "160:224@eval:192@0.5",
            "160:192@0.5:176@0.4",
            "1:2@-1",
            "1:2@nan",
        ] {
            let refusal = text.parse::<Resolution>().expect_err(text);
            assert!(
                refusal.contains("160:192@0.65:224@eval") && refusal.contains(text),
                "{refusal}"
            );
        }
    }
}
