//! The checkpoints of one run: written whole, the last few and the best kept.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Checkpoint, CheckpointState, MODEL_FILE, STATE_FILE, TRAINING_FILE, TrainingTensors, sha256_of_file};
use crate::output::write_atomically;

const BEST_FILE: &str = "best";

/// The checkpoints of one run's output directory.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    directory: PathBuf,
    keep: usize,
}

impl CheckpointStore {
    /// The store in `directory`, which keeps the last `keep` checkpoints and the best.
    pub fn new(directory: &Path, keep: usize) -> Self {
        Self { directory: directory.to_owned(), keep: keep.max(1) }
    }

    /// Writes a checkpoint and removes those no longer kept. `write_model` writes the model to the path it is given.
    ///
    /// # Errors
    /// When anything cannot be written; then no checkpoint of this name appears.
    pub fn save(
        &self,
        mut state: CheckpointState,
        tensors: &TrainingTensors,
        is_best: bool,
        write_model: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let name = format!("step-{:08}", state.progress.step);
        let directory = self.directory.join(&name);
        let unfinished = self.directory.join(format!("{name}.unfinished"));
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).with_context(|| unfinished.display().to_string())?;
        }
        fs::create_dir_all(&unfinished).with_context(|| format!("create {}", unfinished.display()))?;

        let model_path = unfinished.join(MODEL_FILE);
        write_model(&model_path)?;
        File::open(&model_path)
            .and_then(|file| file.sync_all())
            .with_context(|| format!("sync {}", model_path.display()))?;
        write_synced(&unfinished.join(TRAINING_FILE), &tensors.to_bytes()?)?;
        for file in [MODEL_FILE, TRAINING_FILE] {
            state.files.insert(file.to_owned(), sha256_of_file(&unfinished.join(file))?);
        }
        write_synced(&unfinished.join(STATE_FILE), &serde_json::to_vec_pretty(&state)?)?;
        sync_directory(&unfinished)?;

        // A checkpoint of this step may be there from before a resume: it holds the same, but the renaming needs its place.
        if directory.exists() {
            fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())?;
        }
        fs::rename(&unfinished, &directory).with_context(|| format!("rename to {}", directory.display()))?;
        sync_directory(&self.directory)?;
        if is_best {
            write_atomically(&self.directory.join(BEST_FILE), name.as_bytes())?;
        }
        self.prune()?;
        Ok(directory)
    }

    /// The newest checkpoint that is whole, and a warning for each newer one that is not.
    ///
    /// # Errors
    /// When there are checkpoints and none is whole.
    pub fn latest(&self) -> Result<(Option<Checkpoint>, Vec<String>)> {
        let mut warnings = Vec::new();
        for name in self.names()?.iter().rev() {
            match Checkpoint::open(&self.directory.join(name)) {
                Ok(checkpoint) => return Ok((Some(checkpoint), warnings)),
                Err(error) => warnings.push(format!("checkpoint {name} passed over: {error:#}")),
            }
        }
        if !warnings.is_empty() {
            bail!("no checkpoint in {} is whole: {}", self.directory.display(), warnings.join("; "));
        }
        Ok((None, warnings))
    }

    /// The checkpoint with the best evaluation, if one was marked.
    ///
    /// # Errors
    /// When the marked one is not whole.
    pub fn best(&self) -> Result<Option<Checkpoint>> {
        match self.best_name() {
            Some(name) => Checkpoint::open(&self.directory.join(name)).map(Some),
            None => Ok(None),
        }
    }

    fn best_name(&self) -> Option<String> {
        fs::read_to_string(self.directory.join(BEST_FILE)).ok().map(|name| name.trim().to_owned())
    }

    /// Names of the finished checkpoints, oldest first.
    fn names(&self) -> Result<Vec<String>> {
        if !self.directory.exists() {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).with_context(|| self.directory.display().to_string())? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.strip_prefix("step-").is_some_and(|step| step.bytes().all(|byte| byte.is_ascii_digit())) {
                names.push(name);
            }
        }
        // Steps have eight digits or more: the shorter name is the older one.
        names.sort_by_key(|name| (name.len(), name.clone()));
        Ok(names)
    }

    fn prune(&self) -> Result<()> {
        let names = self.names()?;
        let best = self.best_name();
        for name in names.iter().rev().skip(self.keep).filter(|name| Some(*name) != best.as_ref()) {
            let directory = self.directory.join(name);
            fs::remove_dir_all(&directory).with_context(|| format!("remove {}", directory.display()))?;
        }
        Ok(())
    }
}

/// The checkpoint that `path` means: a checkpoint's own directory, or a run's output directory (its best, else its last).
///
/// # Errors
/// When there is none, or it is not whole.
pub fn find(path: &Path) -> Result<Checkpoint> {
    if path.join(STATE_FILE).exists() {
        return Checkpoint::open(path);
    }
    let store = CheckpointStore::new(&path.join("checkpoints"), 1);
    if let Some(best) = store.best()? {
        return Ok(best);
    }
    let (latest, _) = store.latest()?;
    latest.with_context(|| {
        format!("no checkpoint in {}: expected a checkpoint's directory or a run's output directory", path.display())
    })
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.write_all(bytes).with_context(|| format!("write {}", path.display()))?;
    file.sync_all().with_context(|| format!("sync {}", path.display()))
}

fn sync_directory(path: &Path) -> Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path).and_then(|file| file.sync_all()).with_context(|| format!("sync {}", path.display()))
}
