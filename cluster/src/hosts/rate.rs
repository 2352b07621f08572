//! The rate of a link.
//!
//! In: a word such as `200mbit`. Out: [`Rate`], and the words for `tc`. Source: tc(8), tc-tbf(8).

use std::fmt;

/// Bits per second of each direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// No limit: as fast as memory.
    Unlimited,
    /// A whole number and its unit.
    Limited(u64, &'static str),
}

const UNITS: [&str; 3] = ["kbit", "mbit", "gbit"];

impl Rate {
    /// Reads `unlimited`, or a whole number with its unit.
    pub fn read(word: &str) -> Result<Self, String> {
        if word == "unlimited" {
            return Ok(Rate::Unlimited);
        }
        let limited = UNITS.into_iter().find_map(|unit| {
            let number: u64 = word.strip_suffix(unit)?.parse().ok()?;
            (number > 0 && !word.starts_with('+')).then_some(Rate::Limited(number, unit))
        });
        limited.ok_or_else(|| {
            format!("expected a rate such as 200mbit or 1gbit, a whole number with kbit, mbit or gbit, or unlimited, got `{word}`")
        })
    }

    /// Returns the command line that limits the sending rate, with bursts of at most 80 KiB. The
    /// kernel sends 64 KiB in one piece. Larger bursts would pass whole gradient buckets at the
    /// speed of memory, which no real link does.
    pub(super) fn discipline(self) -> Option<String> {
        let device = super::commands::DEVICE;
        let tbf = format!("tbf rate {self} burst 80kb latency 50ms");
        (self != Rate::Unlimited).then(|| format!("tc qdisc add dev {device} root {tbf}"))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Unlimited => f.write_str("unlimited"),
            Rate::Limited(number, unit) => write!(f, "{number}{unit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_and_shown_as_it_was_written() {
        for word in ["200mbit", "1gbit", "64kbit", "unlimited"] {
            assert_eq!(Rate::read(word).unwrap().to_string(), word);
        }
        let discipline = Rate::read("1gbit").unwrap().discipline().unwrap();
        assert!(discipline.contains("tbf rate 1gbit"), "{discipline}");
        assert!(Rate::Unlimited.discipline().is_none());
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for word in [
            "",
            "fast",
            "10",
            "mbit",
            "0mbit",
            "+1mbit",
            "1.5gbit",
            "1gbit; reboot",
            "-1mbit",
        ] {
            assert!(
                Rate::read(word)
                    .unwrap_err()
                    .contains(&format!("got `{word}`")),
                "{word}"
            );
        }
    }
}
