//! `steps.csv`: a line for each step of a run with `--log-steps`.
//!
//! In: steps of root. Out: the file. Invariant: a line is written whole when its step ends, and no
//! step has two. The lines of a checkpoint's steps are on disk before the checkpoint.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result};
use records::file;

use crate::measure::metrics::{ScoreSums, StepLine};

const HEADER: &str = "epoch,step,loss,top1,learning_rate,seconds,data,forward,backward,communication,optimizer,samples_per_second\n";

/// The file `steps.csv`, open for appending.
#[derive(Debug)]
pub struct StepLog(File);

impl StepLog {
    /// Opens the file of a run that has done `num_steps` steps: removes the lines of later steps,
    /// which will be repeated, and an incomplete line.
    ///
    /// # Errors
    /// If the path is not that of a regular file; I/O errors.
    pub fn open(path: &Path, num_steps: u64) -> Result<Self> {
        let text = match file::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let is_kept = |line: &&str| {
            let step = line.split(',').nth(1).and_then(|step| step.parse().ok());
            line.ends_with('\n') && step.is_some_and(|step: u64| step <= num_steps)
        };
        let kept: String = text.split_inclusive('\n').filter(is_kept).collect();
        file::replace(path, format!("{HEADER}{kept}").as_bytes())?;
        let file = OpenOptions::new().append(true).open(path)?;
        Ok(Self(file))
    }

    /// Appends the line of a step, the `number`th of the run, with root's scores if it had samples.
    ///
    /// # Errors
    /// I/O errors.
    pub fn append(&mut self, number: u64, line: &StepLine, own: Option<&ScoreSums>) -> Result<()> {
        let own = own.filter(|own| own.num_samples > 0);
        let cell = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        let duration = line.duration.as_secs_f64();
        let seconds = &line.seconds;
        let text = format!(
            "{},{number},{},{},{},{duration},{},{},{},{},{},{:.1}\n",
            line.epoch,
            cell(own.map(ScoreSums::loss_mean)),
            cell(own.and_then(ScoreSums::top1)),
            line.learning_rate,
            seconds.data,
            seconds.forward,
            seconds.backward,
            seconds.communication,
            seconds.optimizer,
            line.global_num_samples as f64 / duration,
        );
        (self.0.write_all(text.as_bytes())).context("cannot write steps.csv")
    }

    /// Waits until all lines are on disk.
    ///
    /// # Errors
    /// I/O errors.
    pub fn sync(&self) -> Result<()> {
        self.0.sync_data().context("cannot write steps.csv")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    fn line(step: u64) -> StepLine {
        StepLine {
            epoch: step / 4,
            step_in_epoch: step % 4,
            steps_per_epoch: 4,
            scores: ScoreSums::default(),
            learning_rate: 0.1,
            duration: Duration::from_millis(500),
            seconds: records::Seconds {
                data: 0.25,
                ..records::Seconds::default()
            },
            global_num_samples: 64,
            time_left: None,
        }
    }

    fn steps(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.strip_prefix(HEADER).unwrap().lines();
        lines
            .map(|line| line.split(',').nth(1).unwrap().parse().unwrap())
            .collect()
    }

    #[test]
    fn a_resumed_run_repeats_no_line_and_completes_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("steps.csv");
        let mut log = StepLog::open(&path, 0).unwrap();
        let mut own = ScoreSums::default();
        own.add_losses(3.0, 2);
        for step in 0..6 {
            log.append(step + 1, &line(step), Some(&own).filter(|_| step != 1))
                .unwrap();
        }
        log.sync().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows[1], "0,1,1.5,,0.1,0.5,0.25,0,0,0,0,128.0");
        assert_eq!(rows[2], "0,2,,,0.1,0.5,0.25,0,0,0,0,128.0");
        assert!(rows[5].starts_with("1,5,"));
        fs::write(&path, &text[..text.len() - 3]).unwrap();
        StepLog::open(&path, 6).unwrap();
        assert_eq!(steps(&path), [1, 2, 3, 4, 5]);
        let mut log = StepLog::open(&path, 3).unwrap();
        log.append(4, &line(3), None).unwrap();
        assert_eq!(steps(&path), [1, 2, 3, 4]);
        StepLog::open(&path, 0).unwrap();
        assert_eq!(steps(&path), [0; 0]);
    }
}
