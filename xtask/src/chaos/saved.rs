//! Checkpoints of a run between its starts.
//!
//! In: the outcome of a start. Out: whether the checkpoints are whole and none was lost.

use std::fs::{self, File};
use std::path::PathBuf;

use super::CADENCE;
use super::fault::{Fault, Kind};
use super::life::Lived;
use crate::at;
use crate::suite::run::Run;
use crate::suite::{Checked, checkpoints};

const FILES: [&str; 3] = ["model.safetensors", "training.safetensors", "state.json"];

/// Whole checkpoints of a run, oldest first, and the checkpoint with a cut file.
#[derive(Default)]
pub(super) struct Saved {
    steps: Vec<u64>,
    cut: Option<Cut>,
}

/// A file that was cut short, as a file system may leave it.
struct Cut {
    step: u64,
    file: PathBuf,
    len: u64,
}

impl Saved {
    pub(super) fn newest(&self) -> u64 {
        self.steps.last().copied().unwrap_or(0)
    }

    /// Expects that a start resumed from the newest checkpoint, and that it left whole checkpoints,
    /// the newest not older than before.
    pub(super) fn look(&mut self, run: &Run<'_>, lived: &Lived) -> Checked {
        let before = self.newest();
        lived.ended.expect(
            lived.resumed.is_none_or(|step| step == before),
            &format!("a resume at step {before}, not {:?}", lived.resumed),
        )?;
        // The run may have put the cut checkpoint aside.
        self.cut.take_if(|cut| {
            let len = fs::metadata(&cut.file).map(|found| found.len());
            !len.is_ok_and(|len| len == cut.len)
        });
        let damaged = self.cut.as_ref().map(|cut| cut.step);
        self.steps = checkpoints::whole(&run.folder, damaged)?;
        lived.ended.expect(
            self.newest() >= before,
            &format!(
                "a checkpoint of step {before} or newer, not {:?}",
                self.steps
            ),
        )
    }

    /// Cuts the newest checkpoint if that is the fault, and counts the steps to repeat. A cut that
    /// is not possible counts as a kill.
    pub(super) fn lost(
        &mut self,
        run: &Run<'_>,
        lived: &Lived,
        fault: &Fault,
    ) -> Checked<(Kind, u64)> {
        let mut kind = fault.kind;
        // The checkpoint before the newest counts until the newest has been written.
        let mut most = if lived.ended.succeeded() {
            0
        } else {
            2 * CADENCE
        };
        if kind == Kind::CutCheckpoint {
            if self.cut_newest(run, fault.cut)? {
                most = 3 * CADENCE;
            } else {
                kind = Kind::Kill;
            }
        }
        let reached = lived.reached.unwrap_or(0);
        let lost = reached.saturating_sub(self.newest());
        let expected = format!("at most {most} steps lost, not {lost}");
        lived.ended.expect(lost <= most, &expected)?;
        Ok((kind, lost))
    }

    /// Cuts a file of the newest checkpoint if the one before is at most a cadence older.
    fn cut_newest(&mut self, run: &Run<'_>, (which, share): (f64, f64)) -> Checked<bool> {
        let [.., older, step] = self.steps[..] else {
            return Ok(false);
        };
        // After an earlier cut, only the best checkpoint may be left.
        if self.cut.is_some() || step - older > CADENCE {
            return Ok(false);
        }
        let checkpoint = format!("checkpoints/step-{step:08}");
        let name = FILES[(which * FILES.len() as f64) as usize];
        let file = run.folder.join(checkpoint).join(name);
        let opened = File::options().write(true).open(&file).map_err(at(&file))?;
        let whole = opened.metadata().map_err(at(&file))?.len();
        let len = (whole as f64 * share) as u64;
        opened.set_len(len).map_err(at(&file))?;
        self.steps.pop();
        self.cut = Some(Cut { step, file, len });
        Ok(true)
    }
}
