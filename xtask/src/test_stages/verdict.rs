//! How stages ended.
//!
//! In: outcomes and seconds. Out: the table at the end of `cargo xtask test`.

use cluster::failure::Outcome;

pub(super) enum Verdict {
    Passed,
    Skipped(String),
    Failed(String),
}

pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    pub(super) seconds: f64,
}

pub(super) fn table(rows: &[Row]) -> String {
    let mut text = format!("{:<8} {:>9}  result\n", "stage", "seconds");
    for Row {
        name,
        verdict,
        seconds,
    } in rows
    {
        let verdict = match verdict {
            Verdict::Passed => "passed".to_owned(),
            Verdict::Skipped(reason) => format!("skipped: {reason}"),
            Verdict::Failed(reason) => format!("FAILED: {reason}"),
        };
        text.push_str(&format!("{name:<8} {seconds:>9.1}  {verdict}\n"));
    }
    text
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(()) => Verdict::Passed,
            Err(failure) => Verdict::Failed(failure.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_seconds_and_reasons() {
        let rows = [
            Row {
                name: "fmt",
                verdict: Verdict::Passed,
                seconds: 1.26,
            },
            Row {
                name: "mpi",
                verdict: Verdict::Skipped("no mpirun".to_owned()),
                seconds: 0.0,
            },
        ];
        let text = table(&rows);
        assert!(text.contains("fmt            1.3  passed\n"), "{text}");
        assert!(text.contains("skipped: no mpirun"));
    }
}
