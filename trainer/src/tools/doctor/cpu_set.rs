//! Sets of CPUs as Linux writes them.
//!
//! In, out: `0-3,8`.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// CPUs of a machine, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct CpuSet(BTreeSet<usize>);

impl CpuSet {
    /// Parses a set. Ignores other parts of the text.
    pub fn parse(text: &str) -> Self {
        let range = |part: &str| {
            let (first, last) = part
                .trim()
                .split_once('-')
                .unwrap_or((part.trim(), part.trim()));
            Some(first.parse().ok()?..=last.parse().ok()?)
        };
        Self(text.split(',').filter_map(range).flatten().collect())
    }
}

impl Deref for CpuSet {
    type Target = BTreeSet<usize>;

    fn deref(&self) -> &BTreeSet<usize> {
        &self.0
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for &number in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        let texts: Vec<String> = ranges
            .into_iter()
            .map(|(first, last)| {
                if first == last {
                    first.to_string()
                } else {
                    format!("{first}-{last}")
                }
            })
            .collect();
        f.pad(&texts.join(","))
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        Self(numbers.into_iter().collect())
    }
}

impl From<String> for CpuSet {
    fn from(text: String) -> Self {
        Self::parse(&text)
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_read_and_written_as_linux_does() {
        for text in ["0-3,8", "0", "0-1", "5,7,9-11", ""] {
            assert_eq!(CpuSet::parse(text).to_string(), text);
        }
        assert_eq!(CpuSet::parse(" 0-1,\t3\n").len(), 3);
        assert!(CpuSet::parse("none").is_empty());
    }
}
