//! What the checks of single flags have in common.
//!
//! In: a flag's name and value. Out: the value, or a [`ConfigError`].

use super::error::ConfigError;
use std::borrow::Cow;
use std::ops::RangeInclusive;

/// A flag of which [`super::TrainConfig`] and its like know that it has a value.
pub trait Filled {
    /// Of the flag.
    type Value;

    /// The value.
    ///
    /// # Panics
    /// If it has none: this is for flags that are filled whenever they are looked at.
    fn filled(&self) -> Self::Value;
}

impl<T: Clone> Filled for Option<T> {
    type Value = T;

    fn filled(&self) -> T {
        self.clone()
            .expect("flags are filled before they are looked at")
    }
}

/// A `value` that is no less than `least`.
pub(super) fn at_least<T: PartialOrd + ToString>(
    option: &'static str,
    value: T,
    least: T,
) -> Result<T, ConfigError> {
    if value < least {
        let expected = format!("at least {}", least.to_string());
        return Err(invalid(option, expected, value));
    }
    Ok(value)
}

/// As [`at_least`] 1, where there is a value.
pub(super) fn at_least_one<T: PartialOrd + ToString + From<u8> + Copy>(
    option: &'static str,
    value: Option<T>,
) -> Result<(), ConfigError> {
    value.map_or(Ok(()), |value| {
        at_least(option, value, T::from(1)).map(|_| ())
    })
}

/// A `value` within the range, ends included.
pub(super) fn within(
    option: &'static str,
    value: usize,
    range: RangeInclusive<usize>,
) -> Result<usize, ConfigError> {
    if !range.contains(&value) {
        let expected = format!("{} to {}", range.start(), range.end());
        return Err(invalid(option, expected, value));
    }
    Ok(value)
}

/// A finite `value` that `accepts`.
pub(super) fn in_range(
    option: &'static str,
    value: f64,
    expected: impl Into<String>,
    accepts: impl Fn(f64) -> bool,
) -> Result<f64, ConfigError> {
    let expected = match (accepts(value), value.is_finite()) {
        (true, true) => return Ok(value),
        (true, false) => format!("a finite number {}", expected.into()),
        _ => expected.into(),
    };
    Err(invalid(option, expected, value))
}

/// Whether it is 0 up to but not 1.
pub(super) fn is_share(value: f64) -> bool {
    (0.0..1.0).contains(&value)
}

/// Refuses the first of (option, whether it is given, whether it has an effect, what it needs for that) that is given in vain.
pub(super) fn expect_needs<const N: usize>(
    rules: [(&'static str, bool, bool, &str); N],
) -> Result<(), ConfigError> {
    match rules
        .into_iter()
        .find(|(_, is_given, has_effect, _)| *is_given && !has_effect)
    {
        None => Ok(()),
        Some((option, .., needs)) => Err(no_effect(
            option,
            format!("without {needs}"),
            "add that or leave this out",
        )),
    }
}

pub(super) fn conflict(
    option: &'static str,
    other: impl Into<String>,
    remedy: impl Into<String>,
) -> ConfigError {
    ConfigError::Conflict {
        option,
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
