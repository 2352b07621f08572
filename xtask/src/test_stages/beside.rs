//! A stage in a process of its own, beside the suites.
//!
//! In: its name. Out: its row, and what it wrote, to be shown when nobody else writes.
//! Invariant: the verdict is the one that the process itself tells, in the table at its end.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::verdict::{Row, Verdict};
use crate::at::at;
use crate::cargo;
use cluster::failure::{Failure, Outcome};
use cluster::guard::Guarded;

/// Longer than a stage takes on a busy machine; then it ends with all that it started.
const LIMIT: Duration = Duration::from_secs(45 * 60);

pub(super) struct Ended {
    pub(super) row: Row,
    pub(super) text: String,
}

pub(super) fn run(name: &'static str, further: &[&str]) -> Ended {
    let start = Instant::now();
    let (verdict, text) = match text(name, further) {
        Ok(text) => (verdict(name, &text), text),
        Err(failure) => (Verdict::Failed(failure.to_string()), String::new()),
    };
    Ended {
        row: Row {
            name,
            verdict,
            seconds: start.elapsed().as_secs_f64(),
        },
        text,
    }
}

/// What `cargo xtask test --only NAME` writes.
fn text(name: &str, further: &[&str]) -> Outcome<String> {
    let folder = cargo::target_folder().join("stages");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let command = again(&[&["test", "--only", name], further].concat())?;
    written(&command, &folder.join(format!("{name}.txt")), LIMIT)
}

/// This program again, with other words.
pub(super) fn again(words: &[&str]) -> Outcome<Command> {
    let program =
        env::current_exe().map_err(|error| Failure::Failed(format!("this program: {error}")))?;
    let mut command = Command::new(program);
    command.args(words);
    Ok(command)
}

fn written(command: &Command, log: &Path, limit: Duration) -> Outcome<String> {
    Guarded::start(command, log)?.finish(limit)?;
    let bytes = fs::read(log).map_err(at(log))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What the table at the end of `text` says of the stage.
fn verdict(name: &str, text: &str) -> Verdict {
    let row = text.lines().rev().find_map(|line| {
        let (seconds, verdict) = line.strip_prefix(name)?.trim_start().split_once("  ")?;
        seconds.parse::<f64>().ok().map(|_| verdict)
    });
    let Some(row) = row else {
        return Verdict::Failed("it ended before its end, see above".to_owned());
    };
    match (row.strip_prefix("skipped: "), row.strip_prefix("FAILED: ")) {
        (Some(reason), _) => Verdict::Skipped(reason.to_owned()),
        (None, Some(reason)) => Verdict::Failed(reason.to_owned()),
        (None, None) if row == "passed" => Verdict::Passed,
        (None, None) => Verdict::Failed(format!("expected a verdict at its end, got `{row}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_stages::verdict::table;

    #[test]
    fn the_verdict_is_read_back_from_the_table() {
        let read_back = |verdict: Verdict| {
            let rows = [Row {
                name: "doc",
                verdict,
                seconds: 61.5,
            }];
            super::verdict(
                "doc",
                &format!(
                    "doc 7  passed by others\n\n{}1 passed, 0 failed\n",
                    table(&rows)
                ),
            )
        };
        assert!(matches!(read_back(Verdict::Passed), Verdict::Passed));
        assert!(
            matches!(read_back(Verdict::Skipped("no rustdoc".into())), Verdict::Skipped(text) if text == "no rustdoc")
        );
        assert!(
            matches!(read_back(Verdict::Failed("one".into())), Verdict::Failed(text) if text == "one")
        );
    }

    #[test]
    fn what_a_stage_has_started_ends_at_its_limit_and_what_it_wrote_stays() {
        let log = env::temp_dir().join(format!("lockstep-xtask-{}-limit", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo $!; wait"]);
        let text = written(&command, &log, Duration::from_millis(500)).unwrap();
        let started = text.trim();
        let stat = fs::read_to_string(format!("/proc/{started}/stat")).unwrap_or_default();
        assert!(
            !started.is_empty() && (stat.is_empty() || stat.contains(") Z ")),
            "{text}: {stat}"
        );
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_process_that_ends_without_a_table_has_failed() {
        assert!(matches!(
            verdict("doc", "error: no C compiler found\n"),
            Verdict::Failed(_)
        ));
    }
}
