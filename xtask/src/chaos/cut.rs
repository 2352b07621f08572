//! A checkpoint with a file that is cut short, as a file system may leave it.
//!
//! In: a run's folder, its whole checkpoints. Out: [`Cut`].

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::CADENCE;

/// What a checkpoint consists of.
const FILES: [&str; 3] = ["model.safetensors", "training.safetensors", "state.json"];

/// A file that was cut.
pub(super) struct Cut {
    pub(super) step: u64,
    file: PathBuf,
    len: u64,
}

impl Cut {
    /// Cuts a file of the newest of the whole checkpoints, where another one is there to go back to, at most a cadence older: where
    /// one was cut just before, only the best may be left. `which` chooses the file and the part that is left, 0..1 each.
    pub(super) fn make(
        run: &Path,
        steps: &[u64],
        which: (f64, f64),
    ) -> Result<Option<Self>, String> {
        let [.., older, step] = steps else {
            return Ok(None);
        };
        if step - older > CADENCE {
            return Ok(None);
        }
        let name = FILES[(which.0 * FILES.len() as f64) as usize];
        let file = run
            .join("checkpoints")
            .join(format!("step-{step:08}"))
            .join(name);
        let failed = |error| format!("{}: {error}", file.display());
        let len = (fs::metadata(&file).map_err(failed)?.len() as f64 * which.1) as u64;
        File::options()
            .write(true)
            .open(&file)
            .and_then(|opened| opened.set_len(len))
            .map_err(failed)?;
        Ok(Some(Cut {
            step: *step,
            file,
            len,
        }))
    }

    /// Whether it is there still: the run may have put it aside.
    pub(super) fn is_there(&self) -> bool {
        fs::metadata(&self.file).is_ok_and(|found| found.len() == self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_of_several_checkpoints_is_cut() {
        let run = std::env::temp_dir().join(format!("lockstep-xtask-{}-cut", std::process::id()));
        let newest = run.join("checkpoints/step-00000007");
        fs::create_dir_all(&newest).unwrap();
        fs::write(newest.join("training.safetensors"), "0123456789").unwrap();
        assert!(Cut::make(&run, &[7], (0.5, 0.5)).unwrap().is_none());
        assert!(Cut::make(&run, &[1, 7], (0.5, 0.5)).unwrap().is_none());
        let cut = Cut::make(&run, &[4, 7], (0.5, 0.5)).unwrap().unwrap();
        assert_eq!((cut.step, fs::read(&cut.file).unwrap().len()), (7, 5));
        assert!(cut.is_there());
        fs::remove_dir_all(run).unwrap();
        assert!(!cut.is_there());
    }
}
