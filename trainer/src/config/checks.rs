//! Checks of single values, and the errors that they return.
//!
//! In: an option and its value. Out: the value, or a [`ConfigError`].

use super::error::ConfigError;
use std::borrow::Cow;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// Returns `value` if it is at least `least`.
pub(crate) fn at_least<T: PartialOrd + Display>(
    option: &'static str,
    value: T,
    least: T,
) -> Result<T, ConfigError> {
    if value < least {
        return Err(invalid(option, format!("at least {least}"), value));
    }
    Ok(value)
}

/// Returns `value` if it is absent or at least 1.
pub(super) fn at_least_one<T: PartialOrd + Display + From<u8>>(
    option: &'static str,
    value: Option<T>,
) -> Result<Option<T>, ConfigError> {
    value
        .map(|value| at_least(option, value, T::from(1)))
        .transpose()
}

/// Returns `value` if it lies in the range, ends included.
pub(super) fn within(
    option: &'static str,
    value: usize,
    range: RangeInclusive<usize>,
) -> Result<usize, ConfigError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let expected = format!("{} to {}", range.start(), range.end());
    Err(invalid(option, expected, value))
}

/// Returns `value` if it is finite and `accepts` it.
pub(crate) fn in_range(
    option: &'static str,
    value: f64,
    expected: &str,
    accepts: impl Fn(f64) -> bool,
) -> Result<f64, ConfigError> {
    match (accepts(value), value.is_finite()) {
        (true, true) => Ok(value),
        (true, false) => Err(invalid(
            option,
            format!("a finite number {expected}"),
            value,
        )),
        _ => Err(invalid(option, expected, value)),
    }
}

/// Returns `value` if it lies above 0.
pub(super) fn above_0(option: &'static str, value: f64) -> Result<f64, ConfigError> {
    in_range(option, value, "above 0", |value| value > 0.0)
}

/// Returns `value` if it lies in `[0, 1)`.
pub(super) fn share(option: &'static str, value: f64) -> Result<f64, ConfigError> {
    in_range(option, value, "0 up to but not 1", |value| {
        (0.0..1.0).contains(&value)
    })
}

pub(super) fn conflict(
    option: impl Into<Cow<'static, str>>,
    other: impl Into<String>,
    remedy: impl Into<String>,
) -> ConfigError {
    ConfigError::Conflict {
        option: option.into(),
        other: other.into(),
        remedy: remedy.into(),
    }
}

pub(super) fn invalid(
    option: &'static str,
    expected: impl Into<String>,
    got: impl ToString,
) -> ConfigError {
    ConfigError::Invalid {
        option,
        expected: expected.into(),
        got: got.to_string(),
    }
}

pub(super) fn missing(
    option: &'static str,
    because: impl Into<String>,
    remedy: impl Into<String>,
) -> ConfigError {
    ConfigError::Missing {
        option,
        because: because.into(),
        remedy: remedy.into(),
    }
}

pub(super) fn no_effect(
    option: impl Into<Cow<'static, str>>,
    because: impl Into<String>,
    remedy: impl Into<String>,
) -> ConfigError {
    ConfigError::NoEffect {
        option: option.into(),
        because: because.into(),
        remedy: remedy.into(),
    }
}
