//! Error in a configuration: the option, the problem and the remedy.

use std::fmt::Display;
use std::ops::RangeInclusive;
use thiserror::Error;

/// Invalid configuration: wrong usage, exit code 2.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);

/// Returns the error for a value outside its range.
pub fn invalid(option: impl Display, expected: impl Display, got: impl Display) -> ConfigError {
    ConfigError(format!("{option}: expected {expected}, got {got}"))
}

/// Returns `value` if it lies in the range, ends included.
pub(super) fn within(
    option: &str,
    value: usize,
    range: RangeInclusive<usize>,
) -> Result<usize, ConfigError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let expected = format!("a whole number from {} to {}", range.start(), range.end());
    Err(invalid(option, expected, value))
}

/// Returns the error for two options that contradict each other.
pub(super) fn conflict(
    option: impl Display,
    other: impl Display,
    remedy: impl Display,
) -> ConfigError {
    ConfigError(format!("{option} contradicts {other}: {remedy}"))
}

/// Returns the error for a missing option.
pub(super) fn missing(
    option: impl Display,
    because: impl Display,
    remedy: impl Display,
) -> ConfigError {
    ConfigError(format!("{option} is missing: {because}; {remedy}"))
}

/// Returns the error for an option without effect; `because` begins with "with" or "without".
pub(super) fn no_effect(
    option: impl Display,
    because: impl Display,
    remedy: impl Display,
) -> ConfigError {
    ConfigError(format!("{option} has no effect {because}: {remedy}"))
}
