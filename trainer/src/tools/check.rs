//! Checks of a job, a device or a run, and their common table.
//!
//! In: a name, a claim, a function that judges gathered facts. Out: [`Checked`], its lines, a
//! conclusion.
//! Invariant: a check that returns an error or panics fails, and the other checks still run. A
//! skipped check never counts as passed. NaN is outside every tolerance.

use anyhow::{Result, anyhow};
use records::{counted, wrapped};
use serde::Serialize;
use std::time::Instant;

use crate::measure::report::ConsoleLook;
use crate::world::panics;

const NAME_COLUMNS: usize = 15;
const VERDICT_COLUMNS: usize = 8;

/// Minimum width of the text, columns.
const TEXT_COLUMNS: usize = 30;

/// Verdict of a check, ordered by severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The check could not run.
    Skipped,
    /// The claim holds.
    Ok,
    /// A job would train, but slower than possible or with a risk.
    Warn,
    /// A job would fail or train wrongly.
    #[serde(rename = "FAIL")]
    Fail,
}

impl Verdict {
    /// Returns the verdict as the table shows it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Skipped => "skipped",
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }

    /// Returns the worst verdict. Returns `Skipped` if every check was skipped.
    pub fn of_all(checks: &[Checked]) -> Self {
        let verdicts = checks.iter().map(|check| check.finding.verdict);
        verdicts.max().unwrap_or(Self::Skipped)
    }
}

/// A check: its claim, and the function that judges the claim.
#[derive(Clone, Copy, Debug)]
pub struct Check<F> {
    /// Name in the table.
    pub name: &'static str,
    /// Statement that is true if the verdict is ok.
    pub claim: &'static str,
    /// Function from the gathered facts to a [`Finding`].
    pub judge: F,
}

/// Result of a judgement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Verdict.
    pub verdict: Verdict,
    /// Facts that led to the verdict.
    pub found: String,
    /// Recommended action.
    pub remedy: Option<String>,
    /// Numbers compared with expectations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<Compared>,
}

/// Completed check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// Name of the check.
    pub name: &'static str,
    /// Claim of the check.
    pub claim: &'static str,
    /// Result.
    #[serde(flatten)]
    pub finding: Finding,
    /// Duration, seconds.
    pub seconds: f64,
}

/// One number or fact and its expectation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Quantity with its unit.
    pub what: String,
    /// Expected value.
    pub expected: String,
    /// Value found.
    pub got: String,
    /// Largest permitted difference.
    pub tolerance: String,
    /// True if the difference is within the tolerance.
    pub passes: bool,
}

impl Finding {
    fn new(verdict: Verdict, found: impl Into<String>, remedy: Option<String>) -> Self {
        let found = found.into();
        Self {
            verdict,
            found,
            remedy,
            comparisons: Vec::new(),
        }
    }

    /// Returns a finding that needs no action.
    pub fn ok(found: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, found, None)
    }

    /// Returns a finding that a job would train slowly or with a risk.
    pub fn warn(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Verdict::Warn, found, Some(remedy.into()))
    }

    /// Returns a finding that a job would fail or train wrongly.
    pub fn fail(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Verdict::Fail, found, Some(remedy.into()))
    }

    /// Judges comparisons. The check fails without any comparison.
    pub fn compared(comparisons: Vec<Compared>) -> Self {
        let passes = !comparisons.is_empty() && comparisons.iter().all(|one| one.passes);
        let verdict = if passes { Verdict::Ok } else { Verdict::Fail };
        Self {
            comparisons,
            ..Self::new(verdict, "", None)
        }
    }
}

/// Error of a check that could not run, with the reason.
#[derive(Debug)]
pub struct Skipped(pub String);

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

impl<F> Check<F> {
    /// Returns a check with its name, claim and judge.
    pub const fn new(name: &'static str, claim: &'static str, judge: F) -> Self {
        Self { name, claim, judge }
    }

    /// Runs the check. A panic fails the check: backends panic on unsupported operations.
    pub fn run(&self, judge: impl FnOnce(&F) -> Result<Finding>) -> Checked {
        let start = Instant::now();
        let finding =
            panics::caught(|| judge(&self.judge)).unwrap_or_else(|panic| Err(anyhow!(panic)));
        let without_finding = |error: anyhow::Error| match error.downcast_ref::<Skipped>() {
            Some(Skipped(reason)) => Finding::new(Verdict::Skipped, reason, None),
            None => Finding::new(Verdict::Fail, format!("broke off: {error:#}"), None),
        };
        Checked {
            name: self.name,
            claim: self.claim,
            finding: finding.unwrap_or_else(without_finding),
            seconds: start.elapsed().as_secs_f64(),
        }
    }
}

impl Compared {
    /// Compares a difference with its largest permitted value.
    pub fn difference(what: impl Into<String>, got: f64, limit: f64) -> Self {
        Self {
            what: what.into(),
            expected: "0".to_owned(),
            got: format!("{got:.1e}"),
            tolerance: format!("{limit:.0e}"),
            passes: got <= limit,
        }
    }

    /// Compares a count with an expected count that it may miss by `tolerance`.
    pub fn count(what: impl Into<String>, expected: u64, got: u64, tolerance: u64) -> Self {
        Self {
            what: what.into(),
            expected: records::grouped(expected),
            got: records::grouped(got),
            tolerance: records::grouped(tolerance),
            passes: expected.abs_diff(got) <= tolerance,
        }
    }

    /// Compares a share with a lower bound.
    pub fn at_least(what: impl Into<String>, least: f64, got: f64) -> Self {
        Self {
            what: what.into(),
            expected: format!("at least {:.1} %", 100.0 * least),
            got: format!("{:.1} %", 100.0 * got),
            tolerance: "none".to_owned(),
            passes: got >= least,
        }
    }

    /// Compares values bit by bit.
    pub fn same_bits(what: impl Into<String>, expected: &[f32], got: &[f32]) -> Self {
        let pairs = expected.iter().zip(got);
        let num_differing = pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        let passes = num_differing == 0 && expected.len() == got.len() && !expected.is_empty();
        let values = records::grouped(expected.len() as u64);
        let differing = format!(
            "{} of {} values differ",
            records::grouped(num_differing as u64),
            got.len()
        );
        Self {
            what: what.into(),
            expected: format!("the bits of {values} values"),
            got: if passes {
                "equal".to_owned()
            } else {
                differing
            },
            tolerance: "none".to_owned(),
            passes,
        }
    }

    /// Returns a fact that is shown but not judged.
    pub fn shown(what: impl Into<String>, got: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            expected: "shown only".to_owned(),
            got: got.into(),
            tolerance: "any".to_owned(),
            passes: true,
        }
    }

    fn line(&self) -> String {
        let mark = if self.passes { "" } else { "WRONG: " };
        let Self {
            what,
            got,
            expected,
            tolerance,
            ..
        } = self;
        format!("{mark}{what}: {got} (expected {expected}, tolerance {tolerance})")
    }
}

/// Returns the header of the table.
pub fn header() -> String {
    format!("{:NAME_COLUMNS$}{:VERDICT_COLUMNS$}found", "check", "")
}

impl Checked {
    /// Returns the table lines of the check. The remedy is indented below the findings.
    pub fn lines(&self, look: ConsoleLook) -> Vec<String> {
        let indent = NAME_COLUMNS + VERDICT_COLUMNS;
        let columns = look.width.saturating_sub(indent + 1).max(TEXT_COLUMNS);
        let finding = &self.finding;
        let comparisons = finding.comparisons.iter().map(Compared::line);
        let found = Some(finding.found.clone()).filter(|found| !found.is_empty());
        let found = found.into_iter().chain(comparisons);
        let mut texts: Vec<String> = found.flat_map(|text| wrapped(&text, columns)).collect();
        for (index, line) in finding
            .remedy
            .iter()
            .flat_map(|remedy| wrapped(remedy, columns - 3))
            .enumerate()
        {
            let arrow = if index == 0 { "-> " } else { "   " };
            texts.push(format!("{arrow}{line}"));
        }
        let word = format!("{:VERDICT_COLUMNS$}", finding.verdict.word());
        let word = painted(&word, finding.verdict, look);
        let name = format!("{:NAME_COLUMNS$}", self.name);
        let mut texts = texts.into_iter();
        let first = format!("{name}{word}{}", texts.next().unwrap_or_default());
        let further = texts.map(|text| format!("{:indent$}{text}", ""));
        std::iter::once(first).chain(further).collect()
    }
}

/// Returns the last lines: the verdict, `about`, and the number of checks by verdict.
///
/// `meanings` explain ok, warn and FAIL. The lines end with the meaning of the verdict.
pub fn conclusion(
    command: &str,
    about: &str,
    checks: &[Checked],
    meanings: [&str; 3],
    look: ConsoleLook,
) -> Vec<String> {
    let verdict = Verdict::of_all(checks);
    let of = |verdict| {
        checks
            .iter()
            .filter(move |check| check.finding.verdict == verdict)
    };
    let skipped: Vec<&str> = of(Verdict::Skipped).map(|check| check.name).collect();
    let skipped = match skipped.len() {
        0 => String::new(),
        number => format!(", {number} skipped ({})", skipped.join(", ")),
    };
    let meaning = match verdict {
        Verdict::Skipped => "nothing was checked",
        Verdict::Ok => meanings[0],
        Verdict::Warn => meanings[1],
        Verdict::Fail => meanings[2],
    };
    let word = verdict.word();
    let text = format!(
        "{command}: {word}: {about}, {}, {} warn, {} FAIL{skipped}: {meaning}",
        counted(checks.len(), "check"),
        of(Verdict::Warn).count(),
        of(Verdict::Fail).count(),
    );
    let mut lines = wrapped(&text, look.width.saturating_sub(1).max(TEXT_COLUMNS));
    // The verdict is in the first line.
    if let Some(first) = lines.first_mut() {
        *first = first.replacen(word, &painted(word, verdict, look), 1);
    }
    lines
}

/// Returns the text in the colour of its verdict, if the console has colours.
fn painted(text: &str, verdict: Verdict, look: ConsoleLook) -> String {
    let colour = match verdict {
        _ if !look.is_colored => return text.to_owned(),
        Verdict::Ok => 32,
        Verdict::Warn | Verdict::Skipped => 33,
        Verdict::Fail => 31,
    };
    format!("\x1b[{colour}m{text}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(name: &'static str, finding: Finding) -> Checked {
        Check::new(name, "", ()).run(|()| Ok(finding))
    }

    fn skipped(name: &'static str) -> Checked {
        Check::new(name, "", ()).run(|()| Err(Skipped("no files".to_owned()).into()))
    }

    fn look(width: usize, is_colored: bool) -> ConsoleLook {
        ConsoleLook { width, is_colored }
    }

    #[test]
    fn a_wrong_number_fails_and_nan_is_wrong() {
        for (comparison, passes) in [
            (Compared::difference("loss", 1e-6, 1e-6), true),
            (Compared::difference("loss", 1.1e-6, 1e-6), false),
            (Compared::difference("loss", f64::NAN, 1e-6), false),
            (Compared::at_least("accuracy", 0.95, 0.949), false),
            (Compared::at_least("accuracy", 0.95, f64::NAN), false),
            (Compared::count("correct", 932, 929, 3), true),
            (Compared::count("correct", 932, 928, 3), false),
            (
                Compared::same_bits("parameters", &[1.0, -0.0], &[1.0, -0.0]),
                true,
            ),
            (
                Compared::same_bits("parameters", &[1.0, -0.0], &[1.0, 0.0]),
                false,
            ),
            (
                Compared::same_bits("parameters", &[1.0, -0.0], &[1.0]),
                false,
            ),
            (Compared::same_bits("parameters", &[], &[]), false),
        ] {
            assert_eq!(comparison.passes, passes, "{comparison:?}");
            let verdict = Finding::compared(vec![comparison]).verdict;
            assert_eq!(verdict == Verdict::Ok, passes);
        }
        assert_eq!(Finding::compared(Vec::new()).verdict, Verdict::Fail);
    }

    #[test]
    fn a_check_that_breaks_off_or_panics_fails_with_the_reason() {
        let check = Check::new("golden", "", ());
        for (checked, reason) in [
            (
                check.run(|()| Err(anyhow!("no kernel"))),
                "broke off: no kernel",
            ),
            (check.run(|()| panic!("device lost")), "device lost"),
        ] {
            assert_eq!(checked.finding.verdict, Verdict::Fail);
            assert!(checked.finding.found.contains(reason), "{checked:?}");
        }
    }

    #[test]
    fn one_failure_fails_all_and_skipped_checks_do_not_pass() {
        let skipped = || skipped("a");
        let ok = || checked("b", Finding::ok("fine"));
        let fail = || checked("c", Finding::fail("bad", "fix it"));
        assert_eq!(Verdict::of_all(&[ok(), fail(), skipped()]), Verdict::Fail);
        assert_eq!(Verdict::of_all(&[skipped(), ok()]), Verdict::Ok);
        assert_eq!(Verdict::of_all(&[skipped()]), Verdict::Skipped);
    }

    #[test]
    fn no_line_is_wider_than_the_console_and_remedies_are_indented() {
        let warning = checked(
            "bandwidth",
            Finding::warn("slow ".repeat(20), "buy a network ".repeat(10)),
        );
        for width in [60, 80, 120] {
            let lines = warning.lines(look(width, false));
            assert!(
                lines
                    .iter()
                    .all(|line| line.is_ascii() && line.len() < width),
                "{lines:#?}"
            );
            assert!(
                lines[0].starts_with("bandwidth      warn    slow slow"),
                "{lines:#?}"
            );
            let arrow = format!("{:23}-> buy a network", "");
            let remedy = lines
                .iter()
                .position(|line| line.starts_with(&arrow))
                .unwrap();
            assert!(
                lines[remedy + 1].starts_with(&format!("{:26}", "")),
                "{lines:#?}"
            );
        }
        let failure = checked("data set", Finding::fail("none", "fetch it"));
        let coloured = failure.lines(look(80, true));
        assert!(
            coloured[0].starts_with("data set       \x1b[31mFAIL    \x1b[0mnone"),
            "{coloured:?}"
        );
    }

    #[test]
    fn every_comparison_has_a_line_and_the_conclusion_counts_verdicts() {
        let wrong = vec![
            Compared::count("correct", 932, 932, 0),
            Compared::difference("loss", 0.5, 1e-6),
        ];
        let checks = [
            skipped("known-answer"),
            checked("golden", Finding::compared(wrong)),
            checked("memory", Finding::warn("little", "more")),
        ];
        let plain = look(200, false);
        assert_eq!(checks[0].lines(plain), ["known-answer   skipped no files"]);
        let lines = checks[1].lines(plain);
        assert_eq!(
            lines[0],
            "golden         FAIL    correct: 932 (expected 932, tolerance 0)"
        );
        assert!(
            lines[1].ends_with("   WRONG: loss: 5.0e-1 (expected 0, tolerance 1e-6)"),
            "{lines:#?}"
        );
        let last = conclusion(
            "doctor",
            "4 ranks on 2 nodes",
            &checks,
            ["good", "slow", "do not train"],
            plain,
        );
        let expected = "doctor: FAIL: 4 ranks on 2 nodes, 3 checks, 1 warn, 1 FAIL, 1 skipped (known-answer): do not train";
        assert_eq!(last, [expected]);
    }
}
