//! Numbers against what they should be.
//!
//! In: what was expected, what came, how far apart they may be. Out: [`Comparison`]s and a [`Verdict`].
//! Invariant: NaN is never within a tolerance; nothing compared is nothing passed.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All that was compared was within its tolerance.
    Passed,
    /// Something was not, or the check broke off.
    Failed,
    /// It could not be made.
    Skipped,
}

impl Verdict {
    /// The word in the table.
    pub fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
        }
    }

    /// Of one check.
    pub(super) fn of(comparisons: &[Comparison]) -> Self {
        let passes =
            !comparisons.is_empty() && comparisons.iter().all(|comparison| comparison.passes);
        if passes { Self::Passed } else { Self::Failed }
    }

    /// Of several: failed if any is, skipped if none was made.
    pub(super) fn of_all(verdicts: impl IntoIterator<Item = Self>) -> Self {
        verdicts
            .into_iter()
            .fold(Self::Skipped, |all, one| match (all, one) {
                (Self::Failed, _) | (_, Self::Failed) => Self::Failed,
                (Self::Passed, _) | (_, Self::Passed) => Self::Passed,
                _ => Self::Skipped,
            })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    Compared(Vec<Comparison>),
    /// Why it could not be made.
    Skipped(String),
}

/// One number, or one fact, beside what it should be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// What is compared, with its unit.
    pub what: String,
    pub expected: String,
    pub got: String,
    /// How far it may be off.
    pub tolerance: String,
    /// Whether it is within the tolerance.
    pub passes: bool,
}

impl Comparison {
    /// A difference that should be 0 and may be `limit`.
    pub(super) fn difference(what: impl Into<String>, got: f64, limit: f64) -> Self {
        let passes = got <= limit;
        Self {
            what: what.into(),
            expected: "0".to_owned(),
            got: format!("{got:.1e}"),
            tolerance: format!("{limit:.0e}"),
            passes,
        }
    }

    /// A count that may be off by `tolerance`.
    pub(super) fn count(what: impl Into<String>, expected: u64, got: u64, tolerance: u64) -> Self {
        Self {
            what: what.into(),
            expected: expected.to_string(),
            got: got.to_string(),
            tolerance: tolerance.to_string(),
            passes: expected.abs_diff(got) <= tolerance,
        }
    }

    /// A share that should be at least `least`.
    pub(super) fn at_least(what: impl Into<String>, least: f64, got: f64) -> Self {
        Self {
            what: what.into(),
            expected: format!("at least {:.1} %", 100.0 * least),
            got: format!("{:.1} %", 100.0 * got),
            tolerance: "none".to_owned(),
            passes: got >= least,
        }
    }

    /// Values whose bits must be equal.
    pub(super) fn same_bits(what: impl Into<String>, expected: &[f32], got: &[f32]) -> Self {
        let differing = expected
            .iter()
            .zip(got)
            .filter(|(a, b)| a.to_bits() != b.to_bits())
            .count();
        let passes = differing == 0 && expected.len() == got.len() && !expected.is_empty();
        let of = |differing: usize| format!("{differing} of {} values differ", got.len());
        Self {
            what: what.into(),
            expected: format!("the bits of {} values", expected.len()),
            got: if passes {
                "equal".to_owned()
            } else {
                of(differing)
            },
            tolerance: "none".to_owned(),
            passes,
        }
    }

    /// A fact that is told and not judged.
    pub(super) fn told(what: impl Into<String>, got: impl Into<String>) -> Self {
        let (expected, tolerance) = ("told only".to_owned(), "any".to_owned());
        Self {
            what: what.into(),
            expected,
            got: got.into(),
            tolerance,
            passes: true,
        }
    }
}

/// The largest absolute difference over the largest absolute value expected; infinite where lengths differ or a value is NaN.
pub(super) fn of_largest(expected: &[f32], got: &[f32]) -> f64 {
    let largest = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0.0, |all: f64, value| {
            if value.is_nan() {
                f64::INFINITY
            } else {
                all.max(value.abs())
            }
        })
    };
    if expected.len() != got.len() || expected.is_empty() {
        return f64::INFINITY;
    }
    let difference = largest(
        &mut expected
            .iter()
            .zip(got)
            .map(|(a, b)| f64::from(*a) - f64::from(*b)),
    );
    ratio(
        difference,
        largest(&mut expected.iter().map(|value| f64::from(*value))),
    )
}

/// The L2 norm of the difference over that of what is expected; infinite where lengths differ.
pub(super) fn relative_l2(expected: &[f32], got: &[f32]) -> f64 {
    if expected.len() != got.len() || expected.is_empty() {
        return f64::INFINITY;
    }
    let norm = |values: &mut dyn Iterator<Item = f64>| {
        values.map(|value| value * value).sum::<f64>().sqrt()
    };
    let difference = norm(
        &mut expected
            .iter()
            .zip(got)
            .map(|(a, b)| f64::from(*a) - f64::from(*b)),
    );
    ratio(
        difference,
        norm(&mut expected.iter().map(|value| f64::from(*value))),
    )
}

fn ratio(difference: f64, scale: f64) -> f64 {
    if difference == 0.0 {
        0.0
    } else {
        difference / scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_number_fails_and_nan_is_wrong() {
        assert!(Comparison::difference("loss", 1e-6, 1e-6).passes);
        assert!(!Comparison::difference("loss", 1.1e-6, 1e-6).passes);
        assert!(!Comparison::difference("loss", f64::NAN, 1e-6).passes);
        assert!(!Comparison::at_least("accuracy", 0.95, 0.949).passes);
        assert!(!Comparison::at_least("accuracy", 0.95, f64::NAN).passes);
        assert!(Comparison::count("right", 932, 929, 3).passes);
        assert!(!Comparison::count("right", 932, 928, 3).passes);
    }

    #[test]
    fn one_bit_is_a_difference_and_so_is_a_missing_value() {
        let values = [1.0, -0.0];
        assert!(Comparison::same_bits("parameters", &values, &values).passes);
        assert!(!Comparison::same_bits("parameters", &values, &[1.0, 0.0]).passes);
        assert!(!Comparison::same_bits("parameters", &values, &values[..1]).passes);
        assert!(!Comparison::same_bits("parameters", &[], &[]).passes);
    }

    #[test]
    fn differences_are_relative_and_infinite_where_nothing_can_be_compared() {
        assert_eq!(of_largest(&[4.0, -2.0], &[4.0, -1.0]), 0.25);
        assert_eq!(relative_l2(&[3.0, 4.0], &[3.0, 4.5]), 0.1);
        assert_eq!(of_largest(&[0.0], &[0.0]), 0.0);
        for wrong in [&[f32::NAN][..], &[1.0, 1.0], &[]] {
            assert_eq!(of_largest(&[1.0], wrong), f64::INFINITY, "{wrong:?}");
        }
        assert!(!Comparison::difference("gradients", relative_l2(&[1.0], &[f32::NAN]), 0.5).passes);
    }

    #[test]
    fn one_failure_fails_all_and_nothing_compared_is_not_passed() {
        use Verdict::{Failed, Passed, Skipped};
        assert_eq!(Verdict::of_all([Passed, Failed, Skipped]), Failed);
        assert_eq!(Verdict::of_all([Skipped, Passed]), Passed);
        assert_eq!(Verdict::of(&[]), Failed);
    }
}
