//! `trainer slurm status`: the state of jobs in the queue and in their training.
//!
//! In: nothing, a job's id, or a run's directory. Out: a line from the queue and a line from
//! `metrics.jsonl` for each.
//! Invariant: read-only.

use std::io::ErrorKind;
use std::path::Path;

use clap::Args;
use records::EpochRecord;

use super::queue::NamedJob;
use super::{queue, require};
use crate::failure::{Outcome, at};
use crate::json;
use crate::output::say;

/// Flags of `trainer slurm status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Id of the job, or the run's directory [default: all of your jobs]
    #[arg(value_name = "JOB|DIR")]
    job: Option<String>,
}

impl StatusArgs {
    pub(super) fn run(&self) -> Outcome {
        let target = self.job.as_deref().map(NamedJob::read).transpose()?;
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

fn show(row: &queue::QueuedJob) {
    say!("{}", row.line);
    if let Some(directory) = &row.directory {
        // The run's files may not be readable here.
        if let Err(failure) = show_progress(directory, row.is_in_queue()) {
            say!("    {failure}");
        }
    }
}

/// Returns the last epoch, and the end of a run that has ended; the summary of a running one is an
/// earlier start's.
fn show_progress(directory: &Path, goes_on: bool) -> Outcome {
    say!("    {}", directory.display());
    let read = |name: &str| {
        let file = directory.join(name);
        match records::file::read_to_string(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            text => text.map(Some).map_err(at(&file)),
        }
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

/// Returns the last record of the metrics as text.
fn last_epoch(metrics: &str) -> Option<String> {
    let record: EpochRecord = metrics
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())?;
    let percent = |share: Option<f64>| {
        share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
    };
    let split = record.evaluation().map_or("test", |(split, _)| split);
    let speed = record.speed().map_or("-".to_owned(), |speed| {
        records::grouped(speed.round() as u64)
    });
    Some(format!(
        "epoch {} step {} | loss {:.4} | acc {} train, {} {split} | {speed} samples/s",
        record.number(),
        record.step,
        record.train_loss.unwrap_or(f64::NAN),
        percent(record.train_top1),
        percent(record.evaluated_top1()),
    ))
}

/// Describes the end of a run by its summary.
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
    use records::Evaluation;

    fn line(record: &EpochRecord) -> String {
        serde_json::to_string(record).unwrap()
    }

    #[test]
    fn the_last_whole_record_is_shown() {
        let record = EpochRecord {
            epoch: 3,
            step: 160,
            train_loss: Some(1.20461),
            train_top1: Some(0.5634),
            images_per_second: 12_270.4,
            ..EpochRecord::default()
        };
        let metrics = format!(
            "{}\n{}\n{{\"epoch\":4,",
            line(&EpochRecord::default()),
            line(&record)
        );
        assert_eq!(
            last_epoch(&metrics).unwrap(),
            "epoch 4 step 160 | loss 1.2046 | acc 56.3 % train, - test | 12,270 samples/s"
        );
        for without in ["", "{\"epoch\":"] {
            assert_eq!(last_epoch(without), None);
        }
        let evaluated = EpochRecord {
            val: Some(Evaluation {
                top1: Some(0.5),
                ..Evaluation::default()
            }),
            images_per_second: 0.0,
            ..record
        };
        assert_eq!(
            last_epoch(&line(&evaluated)).unwrap(),
            "epoch 4 step 160 | loss 1.2046 | acc 56.3 % train, 50.0 % val | - samples/s"
        );
    }

    #[test]
    fn a_run_that_stopped_before_its_first_step_has_no_checkpoint() {
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
}
