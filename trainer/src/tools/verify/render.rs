//! The table of a verification.
//!
//! In: a [`Verification`]. Out: lines of ASCII but for what a file's name or an error says.

use super::{Check, Verdict, Verification};

/// The line above the checks.
pub fn heading() -> String {
    format!(
        "{:<14}{:<9}{:>8}  {}",
        "check", "", "seconds", "what came, what was expected"
    )
}

pub fn rows(check: &Check) -> Vec<String> {
    let head = format!(
        "{:<14}{:<9}{:>8.1}  ",
        check.name,
        check.verdict.word(),
        check.seconds
    );
    let found = check.comparisons.iter().map(|comparison| {
        let mark = if comparison.passes { "" } else { "WRONG: " };
        let (what, got, expected, tolerance) = (
            &comparison.what,
            &comparison.got,
            &comparison.expected,
            &comparison.tolerance,
        );
        format!("{mark}{what}: {got} (expected {expected}, tolerance {tolerance})")
    });
    let texts: Vec<String> = check.reason.iter().cloned().chain(found).collect();
    let indent = " ".repeat(head.len());
    texts
        .iter()
        .enumerate()
        .map(|(index, text)| format!("{}{text}", if index == 0 { &head } else { &indent }))
        .collect()
}

/// The last line: the verdict, and the number of checks that passed, failed and were skipped, with the names of the skipped ones.
pub fn conclusion(verification: &Verification) -> String {
    let of = |verdict| {
        verification
            .checks
            .iter()
            .filter(move |check| check.verdict == verdict)
            .map(|check| check.name)
    };
    let skipped: Vec<&str> = of(Verdict::Skipped).collect();
    let is_in_part = verification.verdict == Verdict::Passed && !skipped.is_empty();
    let names = if skipped.is_empty() {
        String::new()
    } else {
        format!(" ({})", skipped.join(", "))
    };
    format!(
        "verify: {}{}: {} passed, {} failed, {} skipped{names}; {} {} {}, tolerances of {}",
        verification.verdict.word(),
        if is_in_part { " in part" } else { "" },
        of(Verdict::Passed).count(),
        of(Verdict::Failed).count(),
        skipped.len(),
        verification.device,
        verification.dtype,
        verification.kernels,
        verification.precision
    )
}

#[cfg(test)]
mod tests {
    use super::super::Comparison;
    use super::*;

    fn check(
        name: &'static str,
        verdict: Verdict,
        reason: Option<&str>,
        comparisons: Vec<Comparison>,
    ) -> Check {
        Check {
            name,
            expectation: "",
            verdict,
            reason: reason.map(str::to_owned),
            comparisons,
            seconds: 1.25,
        }
    }

    #[test]
    fn every_comparison_has_a_line_and_wrong_ones_are_marked() {
        let wrong = vec![
            Comparison::count("right", 932, 932, 0),
            Comparison::difference("loss", 0.5, 1e-6),
        ];
        let verification = Verification {
            device: "cuda".to_owned(),
            dtype: "f32".to_owned(),
            kernels: "fused".to_owned(),
            threads: 1,
            version: String::new(),
            precision: "tf32",
            verdict: Verdict::Failed,
            checks: vec![
                check(
                    "known-answer",
                    Verdict::Skipped,
                    Some("no files"),
                    Vec::new(),
                ),
                check("golden", Verdict::Failed, None, wrong),
            ],
        };
        let lines: Vec<_> = verification.checks.iter().flat_map(rows).collect();
        assert_eq!(lines[0], "known-answer  skipped       1.2  no files");
        assert_eq!(
            lines[1],
            "golden        FAILED        1.2  right: 932 (expected 932, tolerance 0)"
        );
        assert!(
            lines[2].ends_with("  WRONG: loss: 5.0e-1 (expected 0, tolerance 1e-6)"),
            "{lines:#?}"
        );
        let expected = "verify: FAILED: 0 passed, 1 failed, 1 skipped (known-answer); cuda f32 fused, tolerances of tf32";
        assert_eq!(conclusion(&verification), expected);
        let mut in_part = verification;
        (in_part.verdict, in_part.checks[1].verdict) = (Verdict::Passed, Verdict::Passed);
        assert!(
            conclusion(&in_part).starts_with(
                "verify: passed in part: 1 passed, 0 failed, 1 skipped (known-answer); "
            )
        );
    }
}
