//! The checkpoints of one run: written whole, the last few and the best kept.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{
    Checkpoint, CheckpointState, MODEL_FILE, STATE_FILE, STATE_SUM_FILE, TRAINING_FILE,
    TrainingTensors, is_of_later_version, read_state, residual_file, residual_to_bytes,
    sha256_of_file, state_sum_line,
};
use crate::measure::whole_file::{sync_directory, sync_parent};

/// Ending of a checkpoint that is being written.
const UNFINISHED: &str = ".unfinished";
/// Ending of a checkpoint whose place another of the same step takes.
const REPLACED: &str = ".replaced";
/// Ending of a checkpoint that was found not to be whole.
const DAMAGED: &str = ".damaged";
/// Ending of a checkpoint that is being removed: under its own name it is whole or not there.
const REMOVED: &str = ".removed";

/// A checkpoint that is not whole.
#[derive(Clone, Debug)]
pub struct Damaged {
    name: String,
    warning: String,
}

/// The checkpoints of one run's output directory.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    directory: PathBuf,
    keep: usize,
}

impl CheckpointStore {
    /// The store in `directory`, below a run's folder, which keeps the last `keep` checkpoints and the best.
    pub fn new(directory: &Path, keep: usize) -> Self {
        Self {
            directory: directory.to_owned(),
            keep: keep.max(1),
        }
    }

    /// Writes a checkpoint and removes those no longer kept. `residuals` are what compression has kept back, of every rank or of none;
    /// `write_model` writes the model to the path it is given.
    ///
    /// # Errors
    /// When anything cannot be written; then no checkpoint of this name appears.
    pub fn save(
        &self,
        mut state: CheckpointState,
        tensors: &TrainingTensors,
        residuals: impl IntoIterator<Item = Result<Vec<f32>>>,
        write_model: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let name = format!("step-{:08}", state.progress.step);
        let directory = self.directory.join(&name);
        let unfinished = self.directory.join(format!("{name}{UNFINISHED}"));
        self.sweep()?;
        // Below the run's folder: where that has gone, one made anew would be half a run.
        match fs::create_dir(&self.directory) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => made.with_context(|| format!("create {}", self.directory.display()))?,
        }
        fs::create_dir(&unfinished).with_context(|| format!("create {}", unfinished.display()))?;
        sync_parent(&self.directory)?;
        let write = || {
            let model_path = unfinished.join(MODEL_FILE);
            write_model(&model_path)?;
            File::open(&model_path)
                .and_then(|file| file.sync_all())
                .with_context(|| format!("sync {}", model_path.display()))?;
            let training_path = unfinished.join(TRAINING_FILE);
            write_synced(&training_path, &tensors.to_bytes()?)?;
            let mut files = vec![MODEL_FILE.to_owned(), TRAINING_FILE.to_owned()];
            for (rank, residual) in residuals.into_iter().enumerate() {
                files.push(residual_file(rank));
                write_synced(
                    &unfinished.join(residual_file(rank)),
                    &residual_to_bytes(&residual?)?,
                )?;
            }
            state.files.clear();
            for file in files {
                let checksum = sha256_of_file(&unfinished.join(&file))?;
                state.files.insert(file, checksum);
            }
            let text = state.to_json()?;
            write_synced(&unfinished.join(STATE_FILE), &text)?;
            write_synced(
                &unfinished.join(STATE_SUM_FILE),
                state_sum_line(&text).as_bytes(),
            )?;
            sync_directory(&unfinished)
        };
        if let Err(error) = write() {
            // What is there of it would only fill a disk that may be full; the first error is the one to tell.
            let _ = fs::remove_dir_all(&unfinished);
            return Err(error.context(format!("checkpoint of step {}", state.progress.step)));
        }
        self.put_in_place(&unfinished, &directory)?;
        self.prune()?;
        Ok(directory)
    }

    /// Gives a finished checkpoint its name. One of that step may be there, written before its epoch was evaluated; whoever is
    /// killed between the two renamings leaves it to `recover`.
    fn put_in_place(&self, unfinished: &Path, directory: &Path) -> Result<()> {
        let rename = |from: &Path, to: &Path| {
            fs::rename(from, to).with_context(|| format!("rename to {}", to.display()))
        };
        let replaced = with_ending(directory, REPLACED);
        if directory.exists() {
            rename(directory, &replaced)?;
        }
        rename(unfinished, directory)?;
        sync_directory(&self.directory)?;
        remove_if_there(&replaced)
    }

    /// Gives a checkpoint its name back that was about to be replaced when its run was killed.
    fn recover(&self) -> Result<()> {
        for replaced in self.entries_with(&[REPLACED])? {
            let directory = replaced.with_extension("");
            if !directory.exists() {
                fs::rename(&replaced, &directory)
                    .with_context(|| format!("rename to {}", directory.display()))?;
            }
        }
        Ok(())
    }

    /// Removes what a killed run left half-written or half-removed.
    fn sweep(&self) -> Result<()> {
        self.recover()?;
        self.entries_with(&[UNFINISHED, REPLACED, REMOVED])?
            .iter()
            .try_for_each(|path| remove_if_there(path))
    }

    fn entries_with(&self, endings: &[&str]) -> Result<Vec<PathBuf>> {
        let names = self.entries()?.into_iter();
        Ok(names
            .filter(|name| endings.iter().any(|ending| name.ends_with(ending)))
            .map(|name| self.directory.join(name))
            .collect())
    }

    /// The newest checkpoint that is whole, and a warning for each newer one that is not.
    ///
    /// # Errors
    /// When there are checkpoints and none is whole.
    pub fn latest(&self) -> Result<(Option<Checkpoint>, Vec<String>)> {
        let (checkpoint, passed_over) = self.newest_whole()?;
        Ok((
            checkpoint,
            passed_over
                .into_iter()
                .map(|damaged| damaged.warning)
                .collect(),
        ))
    }

    /// As [`latest`](Self::latest), for the run to go on with; newer checkpoints that are not whole are left to
    /// [`set_aside`](Self::set_aside). Nothing changes but the name of a checkpoint that was being replaced when its run was killed.
    ///
    /// # Errors
    /// As [`latest`](Self::latest); when a directory cannot be renamed.
    pub fn resume(&self) -> Result<(Option<Checkpoint>, Vec<Damaged>)> {
        self.recover()?;
        self.newest_whole()
    }

    /// Renames checkpoints that are not whole to `step-…damaged`, for they would count among those to keep; a warning for each.
    pub fn set_aside(&self, passed_over: &[Damaged]) -> Result<Vec<String>> {
        let mut warnings = Vec::new();
        for Damaged { name, warning } in passed_over {
            let directory = self.directory.join(name);
            let damaged = with_ending(&directory, DAMAGED);
            remove_if_there(&damaged)?;
            fs::rename(&directory, &damaged)
                .with_context(|| format!("rename to {}", damaged.display()))?;
            warnings.push(format!("{warning}; it is kept as {}", damaged.display()));
        }
        Ok(warnings)
    }

    /// The newest whole checkpoint, and the newer ones that are not.
    ///
    /// # Errors
    /// When none is whole, or the newest is of a later version of this program.
    fn newest_whole(&self) -> Result<(Option<Checkpoint>, Vec<Damaged>)> {
        let mut passed_over = Vec::new();
        for name in self.names()?.into_iter().rev() {
            match Checkpoint::open(&self.directory.join(&name)) {
                Ok(checkpoint) => return Ok((Some(checkpoint), passed_over)),
                // It is whole: to go on from an older one would lose what it holds.
                Err(error) if is_of_later_version(&self.directory.join(&name)) => {
                    return Err(error);
                }
                Err(error) => {
                    let warning = format!("checkpoint {name} passed over: {error:#}");
                    passed_over.push(Damaged { name, warning });
                }
            }
        }
        if !passed_over.is_empty() {
            let warnings: Vec<String> = passed_over
                .into_iter()
                .map(|damaged| damaged.warning)
                .collect();
            bail!(
                "no checkpoint in {} is whole: {}",
                self.directory.display(),
                warnings.join("; ")
            );
        }
        Ok((None, passed_over))
    }

    /// Whether there is a checkpoint, whole or not.
    pub fn has_any(&self) -> Result<bool> {
        Ok(!self.names()?.is_empty())
    }

    /// The checkpoint of the model with the best evaluation, if there is one.
    pub fn best(&self) -> Result<Option<Checkpoint>> {
        match self.best_name() {
            Some(name) => Checkpoint::open(&self.directory.join(name)).map(Some),
            None => Ok(None),
        }
    }

    /// Every checkpoint tells by itself whether its model was the best so far; the newest of them is better than those before. A mark
    /// kept elsewhere could be of another moment than the checkpoints.
    fn best_name(&self) -> Option<String> {
        let is_best = |name: &String| {
            self.state_of(name)
                .is_ok_and(|state| state.progress.is_best())
        };
        self.names().ok()?.into_iter().rev().find(is_best)
    }

    /// A warning for each of `names` that does not tell whether it is the best.
    fn unknown<'a>(&self, names: impl Iterator<Item = &'a String>) -> Vec<String> {
        let error = |name: &'a String| self.state_of(name).err().map(|error| (name, error));
        let warning =
            |(name, error)| format!("checkpoint {name} passed over, it may be the best: {error:#}");
        names.filter_map(error).map(warning).collect()
    }

    /// What a checkpoint says, its checksum not looked at.
    fn state_of(&self, name: &str) -> Result<CheckpointState> {
        Ok(serde_json::from_str(&read_state(
            &self.directory.join(name).join(STATE_FILE),
        )?)?)
    }

    /// Names of the finished checkpoints, oldest first; one that was being replaced counts where the other has not come to its place.
    fn names(&self) -> Result<Vec<String>> {
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_step = |name: &str| name.strip_prefix("step-").is_some_and(is_number);
        let entries = self.entries()?;
        let is_finished = |name: &&String| match name.strip_suffix(REPLACED) {
            Some(step) => is_step(step) && !entries.iter().any(|other| other == step),
            None => is_step(name),
        };
        let mut names: Vec<String> = entries.iter().filter(is_finished).cloned().collect();
        // Steps have eight digits or more: the shorter name is the older one.
        names.sort_by_cached_key(|name| {
            let step = name.trim_end_matches(REPLACED);
            (step.len(), step.to_owned())
        });
        Ok(names)
    }

    fn entries(&self) -> Result<Vec<String>> {
        // A link to what is not there now is no run without checkpoints.
        let is_absent = || matches!(fs::symlink_metadata(&self.directory), Err(error) if error.kind() == ErrorKind::NotFound);
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == ErrorKind::NotFound && is_absent() => {
                return Ok(Vec::new());
            }
            entries => {
                entries.with_context(|| format!("cannot read {}", self.directory.display()))?
            }
        };
        entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn prune(&self) -> Result<()> {
        let names = self.names()?;
        let best = self.best_name();
        // One that does not tell what it is may be the best.
        let is_superfluous =
            |name: &&String| Some(*name) != best.as_ref() && self.state_of(name).is_ok();
        for name in names.iter().rev().skip(self.keep).filter(is_superfluous) {
            let directory = self.directory.join(name);
            let removed = with_ending(&directory, REMOVED);
            fs::rename(&directory, &removed)
                .with_context(|| format!("rename to {}", removed.display()))?;
            remove_if_there(&removed)?;
        }
        Ok(())
    }
}

/// The checkpoint that `path` means: a checkpoint's own directory, or a run's output directory (its best, else its newest); and
/// a warning for each that would have been taken, were it whole.
///
/// # Errors
/// When there is none, or none is whole.
pub fn find(path: &Path) -> Result<(Checkpoint, Vec<String>)> {
    if path.join(STATE_FILE).exists() {
        return Ok((Checkpoint::open(path)?, Vec::new()));
    }
    let store = CheckpointStore::new(&path.join("checkpoints"), 1);
    let names = store.names()?;
    let is_not = |found: &Checkpoint, name: &&String| !found.directory.ends_with(name);
    let lost_best = match store.best() {
        Ok(Some(best)) => {
            let warnings = store.unknown(names.iter().rev().take_while(|name| is_not(&best, name)));
            return Ok((best, warnings));
        }
        Ok(None) => None,
        Err(error) => Some(error),
    };
    let (newest, mut passed_over) = store.newest_whole()?;
    let newest = newest.with_context(|| {
        format!(
            "no checkpoint in {}: expected a checkpoint's directory or a run's output directory",
            path.display()
        )
    })?;
    let mut warnings = Vec::new();
    if let Some(error) = lost_best {
        // It may be among the newest, and is told of once.
        passed_over.retain(|damaged| store.best_name().as_ref() != Some(&damaged.name));
        let taken = newest.directory.display();
        warnings.push(format!(
            "the best checkpoint cannot be read: {error:#}; the newest whole one, {taken}, takes its place"
        ));
    }
    warnings.extend(passed_over.into_iter().map(|damaged| damaged.warning));
    warnings.extend(store.unknown(names.iter().take_while(|name| is_not(&newest, name))));
    Ok((newest, warnings))
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

fn remove_if_there(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))?;
    }
    Ok(())
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.write_all(bytes)
        .with_context(|| format!("write {}", path.display()))?;
    file.sync_all()
        .with_context(|| format!("sync {}", path.display()))
}
