//! Kinds of gradient compression, as text.
//!
//! In: `none`, `bf16`, `f16`, `powersgd:R` or `topk:P`. Out: the kind. Its text has the same form.
//! Invariant: a parsed kind is valid. The rank is at least 1. The percentage is above 0 and at most
//! 100.

use std::fmt;
use std::str::FromStr;

/// Compression of a bucket's gradients in messages between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum CompressionKind {
    /// `none`: 32-bit floats and the uncompressed sum.
    #[default]
    None,
    /// `bf16`: 16-bit values with 8 bits of significand and the range of `f32`. Half the bytes.
    Bf16,
    /// `f16`: 16-bit values with 11 bits of significand, scaled to their range. Half the bytes.
    F16,
    /// `powersgd:R`: the sum of each weight matrix as a product of two matrices of rank R.
    PowerSgd {
        /// Columns of the factors, at least 1.
        rank: usize,
    },
    /// `topk:P`: the P percent of each rank's elements that have the largest magnitudes.
    TopK {
        /// Percentage of the elements that are sent, above 0 and at most 100.
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = match text.split_once(':').unwrap_or((text, "")) {
            ("none", "") => return Ok(Self::None),
            ("bf16", "") => return Ok(Self::Bf16),
            ("f16", "") => return Ok(Self::F16),
            ("powersgd", rank) => match rank.parse() {
                Ok(rank) if rank >= 1 => return Ok(Self::PowerSgd { rank }),
                _ => "powersgd:R with a whole rank R of at least 1, for instance powersgd:2",
            },
            ("topk", percent) => match percent.parse() {
                Ok(percent) if percent > 0.0 && percent <= 100.0 => {
                    return Ok(Self::TopK { percent });
                }
                _ => "topk:P with P percent above 0 and at most 100, for instance topk:1",
            },
            _ => "none, bf16, f16, powersgd:R or topk:P",
        };
        Err(format!("compression: expected {expected}, got \"{text}\""))
    }
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
            "compression: expected none, bf16, f16, powersgd:R or topk:P, got \"bf16:2\""
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
