//! `trainer slurm status`: where jobs stand, in the queue and in their training.
//!
//! In: nothing, a job's id, or a run's directory. Out: a line from the queue and a line from `metrics.jsonl` for each.
//! Invariant: read-only.

use std::path::Path;

use clap::Args;

use super::target::Target;
use super::{queue, require};
use crate::failure::{Failure, Outcome};
use crate::json;
use crate::output::say;

/// Flags of `trainer slurm status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// The job; without one all of yours in the queue.
    #[arg(value_name = "JOB|DIR")]
    job: Option<String>,
}

impl StatusArgs {
    pub(super) fn run(&self) -> Outcome {
        let target = self.job.as_deref().map(Target::read).transpose()?;
        require()?;
        let Some(target) = target else {
            let rows = queue::of_user()?;
            if rows.is_empty() {
                say!("no job of yours is in the queue");
            }
            rows.iter().for_each(show);
            return Ok(());
        };
        let rows = queue::of_job(&target.job)?;
        if rows.is_empty() {
            let Some(directory) = &target.directory else {
                return Err(target.unknown());
            };
            say!("job {} has left the queue", target.job);
            show_progress(directory, false)?;
        }
        rows.iter().for_each(show);
        Ok(())
    }
}

fn show(row: &queue::Row) {
    say!("{}", row.line());
    if let Some(directory) = &row.directory {
        // A run whose files cannot be read from here still has a state.
        if let Err(failure) = show_progress(directory, row.is_in_queue()) {
            say!("    {failure}");
        }
    }
}

/// The last epoch; and how the run ended, unless it goes on: then its summary is of an earlier start.
fn show_progress(directory: &Path, goes_on: bool) -> Outcome {
    say!("    {}", directory.display());
    let read = |name: &str| {
        let file = directory.join(name);
        if !file.exists() {
            return Ok(None);
        }
        let failed = |error| Failure::Failed(format!("cannot read {}: {error}", file.display()));
        records::file::read_to_string(&file)
            .map(Some)
            .map_err(failed)
    };
    match read("metrics.jsonl")?.as_deref().and_then(last_epoch) {
        Some(line) => say!("    {line}"),
        None => say!("    no epoch yet"),
    }
    if !goes_on && let Some(summary) = read("summary.json")? {
        say!("    {}", end(&summary));
    }
    Ok(())
}

/// The last whole line of the metrics, for reading.
fn last_epoch(metrics: &str) -> Option<String> {
    let record = metrics.lines().rfind(|line| line.ends_with('}'))?;
    let number = |key| json::number(record, key);
    let percent = |share: Option<f64>| {
        share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
    };
    let evaluated = |split: &str| {
        Some((
            split.to_owned(),
            json::first(record).ok()?[split]["top1"].as_f64()?,
        ))
    };
    let evaluated = evaluated("val").or_else(|| evaluated("test"));
    let (split, top1) = evaluated.map_or(("test".to_owned(), None), |(split, top1)| {
        (split, Some(top1))
    });
    // 0 where the start that ended the epoch made no step of it.
    let speed = number("images_per_second").filter(|speed| *speed > 0.0);
    Some(format!(
        "epoch {} step {} | loss {:.4} | acc {} train, {} {split} | {} img/s",
        number("epoch")?,
        number("step")?,
        number("train_loss").unwrap_or(f64::NAN),
        percent(number("train_top1")),
        percent(top1),
        speed.map_or("-".to_owned(), |speed| format!("{speed:.0}")),
    ))
}

/// How a run ended, by its summary.
pub(super) fn end(summary: &str) -> &'static str {
    match (
        json::is_true(summary, "stopped_early"),
        json::number(summary, "steps"),
    ) {
        (true, Some(0.0)) => "stopped before its first step; nothing to keep",
        (true, _) => "stopped before its end, with a checkpoint",
        (false, _) => "trained to its end",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"epoch":3,"step":160,"train_loss":1.20461,"train_top1":0.5634,"val":null,"test":null,"images_per_second":12270.4}"#;

    #[test]
    fn the_last_whole_line_is_shown() {
        let shown = last_epoch(&format!("{{\"epoch\":2}}\n{RECORD}\n{{\"epoch\":4,")).unwrap();
        assert_eq!(
            shown,
            "epoch 3 step 160 | loss 1.2046 | acc 56.3 % train, - test | 12270 img/s"
        );
        for split in ["val", "test"] {
            let evaluated = RECORD.replace(
                &format!("\"{split}\":null"),
                &format!("\"{split}\":{{\"top1\":0.5}}"),
            );
            let shown = last_epoch(&evaluated).unwrap();
            assert!(
                shown.contains(&format!("56.3 % train, 50.0 % {split} |")),
                "{shown}"
            );
        }
        let unmeasured = last_epoch(&RECORD.replace("12270.4", "0.0")).unwrap();
        assert!(unmeasured.ends_with("| - img/s"), "{unmeasured}");
    }

    #[test]
    fn a_run_that_was_stopped_before_its_first_step_is_not_said_to_have_a_checkpoint() {
        let of = |steps: u64, is_stopped: bool| {
            end(&format!(
                r#"{{"steps":{steps},"stopped_early":{is_stopped}}}"#
            ))
        };
        assert_eq!(
            of(0, true),
            "stopped before its first step; nothing to keep"
        );
        assert_eq!(
            (of(3, true), of(3, false)),
            (
                "stopped before its end, with a checkpoint",
                "trained to its end"
            )
        );
    }

    #[test]
    fn a_run_without_an_epoch_has_no_line() {
        assert_eq!(last_epoch(""), None);
        assert_eq!(last_epoch("{\"epoch\":"), None);
    }
}
