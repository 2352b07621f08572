//! The checkpoints of one run: each written as a whole, the last few and the best kept.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use records::file::{sync_folder, sync_parent};

use super::{
    Checkpoint, CheckpointState, MODEL_FILE, OtherFormat, STATE_FILE, STATE_SUM_FILE,
    TRAINING_FILE, TrainingTensors, read_state, residual_file, residual_to_bytes, sha256_of_file,
    state_sum_line,
};
use crate::run::directory::CHECKPOINTS;

/// Ending of a checkpoint that is being written.
const UNFINISHED: &str = ".unfinished";
/// Ending of a checkpoint that is being replaced by another of the same step.
const REPLACED: &str = ".replaced";
/// Ending of a checkpoint that is not whole.
const DAMAGED: &str = ".damaged";
/// Ending of a checkpoint that is being removed.
const REMOVED: &str = ".removed";

/// A checkpoint that is not whole.
#[derive(Clone, Debug)]
pub struct Damaged {
    name: String,
    pub warning: String,
}

/// The checkpoints of one run.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    directory: PathBuf,
    keep: usize,
}

impl CheckpointStore {
    /// Returns the store in `directory`, which keeps the last `keep` checkpoints and the best.
    pub fn new(directory: &Path, keep: usize) -> Self {
        Self {
            directory: directory.to_owned(),
            keep: keep.max(1),
        }
    }

    /// Writes a checkpoint and removes those that are no longer kept. `residuals` are those of
    /// every rank or of none; `model` is the content of the model's file.
    ///
    /// # Errors
    /// If a residual is an error; I/O errors. Then the other checkpoints stay and nothing
    /// of this one.
    pub fn save(
        &self,
        mut state: CheckpointState,
        tensors: &TrainingTensors,
        residuals: impl IntoIterator<Item = Result<Vec<f32>>>,
        model: &[u8],
    ) -> Result<PathBuf> {
        let name = format!("step-{:08}", state.progress.step);
        let directory = self.directory.join(&name);
        let unfinished = self.directory.join(format!("{name}{UNFINISHED}"));
        self.sweep()?;
        // Not with its parents: if the run's directory was removed, a new one would be half a run.
        match fs::create_dir(&self.directory) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => made.with_context(|| format!("create {}", self.directory.display()))?,
        }
        fs::create_dir(&unfinished).with_context(|| format!("create {}", unfinished.display()))?;
        sync_parent(&self.directory)?;
        state.files.clear();
        let write = || -> Result<()> {
            let mut write_summed = |name: String, bytes: &[u8]| -> Result<()> {
                let path = unfinished.join(&name);
                write_synced(&path, bytes)?;
                state.files.insert(name, sha256_of_file(&path)?);
                Ok(())
            };
            write_summed(MODEL_FILE.to_owned(), model)?;
            write_summed(TRAINING_FILE.to_owned(), &tensors.to_bytes()?)?;
            for (rank, residual) in residuals.into_iter().enumerate() {
                write_summed(residual_file(rank), &residual_to_bytes(&residual?)?)?;
            }
            let text = state.to_json()?;
            write_synced(&unfinished.join(STATE_FILE), &text)?;
            let line = state_sum_line(&text);
            write_synced(&unfinished.join(STATE_SUM_FILE), line.as_bytes())?;
            Ok(sync_folder(&unfinished)?)
        };
        if let Err(error) = write() {
            // The remains would fill a disk that may be full, and the first error is the one to
            // report.
            let _ = fs::remove_dir_all(&unfinished);
            return Err(error.context(format!("checkpoint of step {}", state.progress.step)));
        }
        self.put_in_place(&unfinished, &directory)?;
        self.prune()?;
        Ok(directory)
    }

    /// Gives a finished checkpoint its name. One of the same step may exist, written before its
    /// epoch was evaluated. If the process is killed between the two renamings,
    /// [`sweep`](Self::sweep) restores that one.
    fn put_in_place(&self, unfinished: &Path, directory: &Path) -> Result<()> {
        let replaced = with_ending(directory, REPLACED);
        if directory.exists() {
            rename(directory, &replaced)?;
        }
        rename(unfinished, directory)?;
        sync_folder(&self.directory)?;
        remove_if_there(&replaced)
    }

    /// Removes what a killed run left half written or half removed, and restores a checkpoint that
    /// was being replaced.
    fn sweep(&self) -> Result<()> {
        for name in self.entries()? {
            let path = self.directory.join(&name);
            if let Some(step) = name.strip_suffix(REPLACED)
                && !self.directory.join(step).exists()
            {
                rename(&path, &self.directory.join(step))?;
            } else if [UNFINISHED, REPLACED, REMOVED]
                .iter()
                .any(|ending| name.ends_with(ending))
            {
                remove_if_there(&path)?;
            }
        }
        Ok(())
    }

    /// Returns the newest whole checkpoint, and the newer ones that are not whole. No file changes.
    ///
    /// # Errors
    /// If none of several checkpoints is whole, or the newest is of another version of
    /// this program.
    pub fn latest(&self) -> Result<(Option<Checkpoint>, Vec<Damaged>)> {
        self.first_whole(self.names()?)
    }

    /// Returns the last of `names` that is whole, and those after it.
    fn first_whole(&self, names: Vec<String>) -> Result<(Option<Checkpoint>, Vec<Damaged>)> {
        let mut damaged = Vec::new();
        for name in names.into_iter().rev() {
            match Checkpoint::open(&self.directory.join(&name)) {
                Ok(checkpoint) => return Ok((Some(checkpoint), damaged)),
                // It is whole: continuing from an older one would lose its steps.
                Err(error) if error.is::<OtherFormat>() => return Err(error),
                Err(error) => {
                    let warning = format!("checkpoint {name} skipped: {error:#}");
                    damaged.push(Damaged { name, warning });
                }
            }
        }
        ensure!(
            damaged.is_empty(),
            "no checkpoint in {} is whole: {}",
            self.directory.display(),
            warnings(damaged).join("; ")
        );
        Ok((None, damaged))
    }

    /// Renames damaged checkpoints to `step-….damaged`, since they would count among those to keep.
    /// Returns a warning for each.
    pub fn set_aside(&self, damaged: &[Damaged]) -> Result<Vec<String>> {
        let mut warnings = Vec::new();
        for Damaged { name, warning } in damaged {
            let directory = self.directory.join(name);
            let kept = with_ending(&directory, DAMAGED);
            remove_if_there(&kept)?;
            rename(&directory, &kept)?;
            warnings.push(format!("{warning}. It is kept as {}", kept.display()));
        }
        Ok(warnings)
    }

    /// Returns true if there is a checkpoint, whole or not.
    pub fn has_any(&self) -> Result<bool> {
        Ok(!self.names()?.is_empty())
    }

    /// Returns the checkpoint of the model with the best evaluation, if there is one.
    pub fn best(&self) -> Result<Option<Checkpoint>> {
        match self.best_name() {
            Some(name) => Checkpoint::open(&self.directory.join(name)).map(Some),
            None => Ok(None),
        }
    }

    /// Each state has a mark if its model was the best so far, and the newest of those is the best
    /// of all. A mark elsewhere could be older or newer than the checkpoints.
    fn best_name(&self) -> Option<String> {
        let is_best = |name: &String| {
            self.state_of(name)
                .is_ok_and(|state| state.progress.is_best())
        };
        self.names().ok()?.into_iter().rev().find(is_best)
    }

    /// Reads a state without checking its checksum.
    fn state_of(&self, name: &str) -> Result<CheckpointState> {
        let text = read_state(&self.directory.join(name).join(STATE_FILE))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Returns the names of the finished checkpoints, oldest first. One that was being replaced
    /// counts if its replacement is absent.
    fn names(&self) -> Result<Vec<String>> {
        let entries = self.entries()?;
        let step = |name: &str| -> Option<u128> {
            let digits = name.trim_end_matches(REPLACED).strip_prefix("step-")?;
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            if is_number { digits.parse().ok() } else { None }
        };
        let is_finished = |name: &&String| {
            let place = name.strip_suffix(REPLACED);
            step(name).is_some()
                && place.is_none_or(|place| !entries.iter().any(|other| other == place))
        };
        let mut names: Vec<String> = entries.iter().filter(is_finished).cloned().collect();
        names.sort_by_cached_key(|name| step(name));
        Ok(names)
    }

    fn entries(&self) -> Result<Vec<String>> {
        let context = || format!("cannot read {}", self.directory.display());
        // A link to an unmounted folder must not count as a run without checkpoints.
        if let Err(error) = fs::symlink_metadata(&self.directory)
            && error.kind() == ErrorKind::NotFound
        {
            return Ok(Vec::new());
        }
        fs::read_dir(&self.directory)
            .with_context(context)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn prune(&self) -> Result<()> {
        let names = self.names()?;
        let best = self.best_name();
        for name in names.iter().rev().skip(self.keep) {
            // One whose state cannot be read may be the best.
            if Some(name) != best.as_ref() && self.state_of(name).is_ok() {
                let directory = self.directory.join(name);
                // Under its own name a checkpoint is whole or absent.
                let removed = with_ending(&directory, REMOVED);
                rename(&directory, &removed)?;
                remove_if_there(&removed)?;
            }
        }
        Ok(())
    }
}

/// Returns the checkpoint at `path`, the directory of a checkpoint or of a run. For a run it
/// returns the best checkpoint, or the newest one if no best exists. Adds a warning for each
/// damaged checkpoint that it skips.
///
/// # Errors
/// If there is no checkpoint, or none is whole.
pub fn find(path: &Path) -> Result<(Checkpoint, Vec<String>)> {
    if path.join(STATE_FILE).exists() {
        return Ok((Checkpoint::open(path)?, Vec::new()));
    }
    let store = CheckpointStore::new(&path.join(CHECKPOINTS), 1);
    let best = store.best_name();
    let is_best = |name: &String| Some(name) == best.as_ref();
    let mut names = store.names()?;
    // One whose state cannot be read might be the best, and is reported if it is newer.
    names.sort_by_cached_key(|name| {
        is_best(name) || (best.is_some() && store.state_of(name).is_err())
    });
    let (found, damaged) = store.first_whole(names)?;
    let found = found.with_context(|| {
        format!(
            "{}: expected the directory of a run or of one of its checkpoints, got {}",
            path.display(),
            if path.exists() {
                "no checkpoint in it; name the --output-dir of a run that saved one"
            } else {
                "no such directory; name the --output-dir of a run"
            }
        )
    })?;
    let has_lost_best = damaged.iter().any(|damaged| is_best(&damaged.name));
    let mut warnings = warnings(damaged);
    if has_lost_best {
        let taken = found.directory.display();
        warnings.push(format!(
            "the best checkpoint cannot be read: {taken} is used instead"
        ));
    }
    Ok((found, warnings))
}

fn warnings(damaged: Vec<Damaged>) -> Vec<String> {
    damaged.into_iter().map(|damaged| damaged.warning).collect()
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("rename to {}", to.display()))
}

fn remove_if_there(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))?;
    }
    Ok(())
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().with_context(|| format!("write {}", path.display()))
}
