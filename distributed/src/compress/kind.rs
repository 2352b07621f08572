//! How gradients are compressed, as text.
//!
//! In: `none`, `bf16`, `f16`, `powersgd:R` or `topk:P`. Out: the kind, which is written back in the same spelling.
//! Invariant: a kind that was read is usable: the rank is at least 1, the percentage above 0 and at most 100.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// How the gradients of a bucket are compressed on their way between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum CompressionKind {
    /// `none`: 32-bit floats, the exact sum.
    #[default]
    None,
    /// `bf16`: 16-bit values with 8 bits of significand and the range of `f32`; half the bytes.
    Bf16,
    /// `f16`: 16-bit values with 11 bits of significand, scaled into their range; half the bytes.
    F16,
    /// `powersgd:R`: the sum of each weight matrix as a product of two matrices of rank R.
    PowerSgd {
        /// Columns of the factors, at least 1.
        rank: usize,
    },
    /// `topk:P`: from each rank the P percent of its elements that are largest in magnitude.
    TopK {
        /// Part of the elements that is sent, in percent, above 0 and at most 100.
        percent: f32,
    },
}

impl fmt::Display for CompressionKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => formatter.write_str("none"),
            Self::Bf16 => formatter.write_str("bf16"),
            Self::F16 => formatter.write_str("f16"),
            Self::PowerSgd { rank } => write!(formatter, "powersgd:{rank}"),
            Self::TopK { percent } => write!(formatter, "topk:{percent}"),
        }
    }
}

impl FromStr for CompressionKind {
    type Err = ParseCompressionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, argument) = match text.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        match (name, argument) {
            ("none", None) => Ok(Self::None),
            ("bf16", None) => Ok(Self::Bf16),
            ("f16", None) => Ok(Self::F16),
            ("none" | "bf16" | "f16", Some(_)) => Err(ParseCompressionError::Argument {
                name: name.to_owned(),
                got: text.to_owned(),
            }),
            ("powersgd", argument) => match argument.map(str::parse) {
                Some(Ok(rank)) if rank >= 1 => Ok(Self::PowerSgd { rank }),
                _ => Err(ParseCompressionError::Rank {
                    got: text.to_owned(),
                }),
            },
            ("topk", argument) => match argument.map(str::parse) {
                Some(Ok(percent)) if percent > 0.0 && percent <= 100.0 => {
                    Ok(Self::TopK { percent })
                }
                _ => Err(ParseCompressionError::Percent {
                    got: text.to_owned(),
                }),
            },
            _ => Err(ParseCompressionError::Name {
                got: text.to_owned(),
            }),
        }
    }
}

/// A text names no kind of compression.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the message of each variant says what its fields are"
)]
pub enum ParseCompressionError {
    /// No kind has this name.
    #[error("compression: expected none, bf16, f16, powersgd:R or topk:P, got \"{got}\"")]
    Name { got: String },
    /// The kind takes no argument.
    #[error("compression: expected {name} without an argument, got \"{got}\"; write {name}")]
    Argument { name: String, got: String },
    /// The rank is missing, zero or no number.
    #[error(
        "compression: expected powersgd:R with a whole rank R of at least 1, got \"{got}\"; try powersgd:2"
    )]
    Rank { got: String },
    /// The percentage is missing, out of range or no number.
    #[error(
        "compression: expected topk:P with P percent above 0 and at most 100, got \"{got}\"; try topk:1"
    )]
    Percent { got: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            "none",
            "bf16",
            "f16",
            "powersgd:1",
            "powersgd:32",
            "topk:0.1",
            "topk:1",
            "topk:100",
        ] {
            let kind: CompressionKind = text.parse().unwrap();
            assert_eq!(kind.to_string(), text);
        }
        assert_eq!(
            "powersgd:4".parse(),
            Ok(CompressionKind::PowerSgd { rank: 4 })
        );
        assert_eq!(
            "topk:2.50".parse(),
            Ok(CompressionKind::TopK { percent: 2.5 })
        );
    }

    #[test]
    fn errors_tell_what_was_expected() {
        let error = |text: &str| text.parse::<CompressionKind>().unwrap_err().to_string();
        assert_eq!(
            error("zip"),
            "compression: expected none, bf16, f16, powersgd:R or topk:P, got \"zip\""
        );
        assert_eq!(
            error("bf16:2"),
            "compression: expected bf16 without an argument, got \"bf16:2\"; write bf16"
        );
        for text in [
            "powersgd",
            "powersgd:",
            "powersgd:0",
            "powersgd:-1",
            "powersgd:1.5",
        ] {
            assert!(
                error(text).contains("a whole rank R of at least 1"),
                "{text}"
            );
        }
        for text in [
            "topk",
            "topk:0",
            "topk:-1",
            "topk:100.1",
            "topk:NaN",
            "topk:inf",
            "topk:x",
        ] {
            assert!(error(text).contains("above 0 and at most 100"), "{text}");
        }
        assert!(error("BF16").contains("expected none"));
    }
}
