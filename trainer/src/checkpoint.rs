//! Checkpoints: a directory a step, whole or not there at all.
//!
//! In: the state of a run. Out: `checkpoints/step-00001234/` with `model.safetensors` (what PyTorch loads), `training.safetensors`
//! (velocities; every rank's norm statistics) and `state.json` (position, sums, configuration, checksums of the other two).
//! Invariant: written under a temporary name, synced, then renamed; a checkpoint whose checksums fail is passed over aloud.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use datasets::DatasetSplits;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::metrics::{EpochRecord, ScoreSums};
use crate::output::write_atomically;

/// The layout of these files; raised when an older program could not read a newer one's.
const FORMAT: u32 = 1;
const MODEL_FILE: &str = "model.safetensors";
const TRAINING_FILE: &str = "training.safetensors";
const STATE_FILE: &str = "state.json";
const BEST_FILE: &str = "best";

/// Where a run stands. All randomness is a function of the seed and this position, so it is the random state as well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The epoch in work, from 0.
    pub epoch: u64,
    /// Updates made in the whole run.
    pub step: u64,
    /// Updates made in this epoch: the sample cursor is this times the global batch size.
    pub step_in_epoch: u64,
    /// This epoch's scores over all ranks so far.
    pub epoch_scores: ScoreSums,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// The last epoch done.
    pub last_record: Option<EpochRecord>,
}

impl Progress {
    /// Takes note of this epoch's evaluation; whether it is the best so far.
    pub fn note_evaluation(&mut self, test: Option<ScoreSums>) -> bool {
        let Some(test_top1) = test.map(|test| test.top1()) else { return false };
        let is_best = self.best.is_none_or(|best| test_top1 > best.test_top1);
        if is_best {
            self.best = Some(Best { epoch: self.epoch, test_top1 });
        }
        is_best
    }

    /// Goes to the beginning of the next epoch.
    pub fn begin_next_epoch(&mut self) {
        self.epoch += 1;
        self.step_in_epoch = 0;
        self.epoch_scores = ScoreSums::default();
    }
}

/// The evaluation with the highest top-1 accuracy, the earliest of equals.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The epoch it followed.
    pub epoch: u64,
    /// Share of test samples answered right, in 0..1.
    pub test_top1: f64,
}

/// What a trained model takes and what its logits stand for, so that it can be used without its data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInput {
    /// Pixels.
    pub height: usize,
    /// Pixels.
    pub width: usize,
    /// 3 for RGB.
    pub channels: usize,
    /// Mean of each channel of pixels in 0..1, subtracted.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel, divided by.
    pub std: Vec<f32>,
    /// Class names, in the order of the logits.
    pub class_names: Vec<String>,
}

impl ModelInput {
    /// What models trained on `data` take.
    pub fn of(data: &DatasetSplits) -> Self {
        let shape = data.train.image_shape();
        Self {
            height: shape.height,
            width: shape.width,
            channels: shape.channels,
            mean: data.normalization.mean.clone(),
            std: data.normalization.std.clone(),
            class_names: data.train.class_names().to_vec(),
        }
    }
}

/// What `state.json` holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckpointState {
    /// Layout of the files.
    pub format: u32,
    /// Program version that wrote it.
    pub version: String,
    /// Position and sums.
    pub progress: Progress,
    /// Ranks that wrote it, each with norm statistics of its own.
    pub world_size: usize,
    /// Hash of all parameters' bits.
    pub parameter_hash: String,
    /// What the model takes and tells.
    pub input: ModelInput,
    /// Checksum of the train split.
    pub dataset_checksum: String,
    /// The resolved configuration.
    pub config: serde_json::Value,
    /// SHA-256 of the files beside it.
    pub files: BTreeMap<String, String>,
}

impl CheckpointState {
    /// A state of the present format, its file checksums still to be filled in by [`CheckpointStore::save`].
    pub fn new(
        progress: Progress,
        world_size: usize,
        parameter_hash: String,
        input: ModelInput,
        dataset_checksum: String,
        config: serde_json::Value,
    ) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let files = BTreeMap::new();
        Self { format: FORMAT, version, progress, world_size, parameter_hash, input, dataset_checksum, config, files }
    }
}

/// What is in training beside the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingTensors {
    /// The optimizer's velocities, flat in module order.
    pub velocities: Vec<f32>,
    /// Every rank's norm statistics, flat in module order; as many rows as ranks wrote them.
    pub norm_statistics: Vec<Vec<f32>>,
}

/// A checkpoint found whole.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Its directory.
    pub directory: PathBuf,
    /// Its state.
    pub state: CheckpointState,
}

impl Checkpoint {
    /// Reads and checks the checkpoint in `directory`.
    ///
    /// # Errors
    /// When a file is missing, unreadable, of another format, or fails its checksum.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(STATE_FILE);
        let text = fs::read_to_string(&path).with_context(|| format!("checkpoint state {}", path.display()))?;
        let state: CheckpointState =
            serde_json::from_str(&text).with_context(|| format!("checkpoint state {}", path.display()))?;
        ensure!(
            state.format == FORMAT,
            "checkpoint {}: expected format {FORMAT}, got {}; use the version that wrote it ({})",
            directory.display(),
            state.format,
            state.version
        );
        for name in [MODEL_FILE, TRAINING_FILE] {
            let path = directory.join(name);
            let expected =
                state.files.get(name).with_context(|| format!("{}: no checksum of {name}", path.display()))?;
            let got = sha256_of_file(&path)?;
            ensure!(&got == expected, "{}: expected sha256 {expected}, got {got}", path.display());
        }
        Ok(Self { directory: directory.to_owned(), state })
    }

    /// The file with the model's tensors.
    pub fn model_path(&self) -> PathBuf {
        self.directory.join(MODEL_FILE)
    }

    /// The velocities and norm statistics.
    ///
    /// # Errors
    /// When the file does not hold them as f32.
    pub fn training_tensors(&self) -> Result<TrainingTensors> {
        let path = self.directory.join(TRAINING_FILE);
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        let tensors = SafeTensors::deserialize(&bytes).with_context(|| path.display().to_string())?;
        let floats = |name: &str| -> Result<Vec<f32>> {
            let view = tensors.tensor(name).with_context(|| format!("{}: {name}", path.display()))?;
            ensure!(view.dtype() == Dtype::F32, "{}: {name}: expected f32, got {:?}", path.display(), view.dtype());
            Ok(view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        };
        let flat = floats("norm_statistics")?;
        let rows = self.state.world_size;
        ensure!(
            rows > 0 && flat.len() % rows == 0,
            "{}: norm_statistics: {} values for {rows} ranks",
            path.display(),
            flat.len()
        );
        let row_len = flat.len() / rows;
        let norm_statistics = (0..rows).map(|rank| flat[rank * row_len..(rank + 1) * row_len].to_vec()).collect();
        Ok(TrainingTensors { velocities: floats("velocities")?, norm_statistics })
    }
}

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
        write_synced(&unfinished.join(TRAINING_FILE), &training_bytes(tensors)?)?;
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

fn training_bytes(tensors: &TrainingTensors) -> Result<Vec<u8>> {
    let bytes_of = |values: &mut dyn Iterator<Item = f32>| values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    let velocities = bytes_of(&mut tensors.velocities.iter().copied());
    let statistics = bytes_of(&mut tensors.norm_statistics.iter().flatten().copied());
    let row_len = tensors.norm_statistics.first().map_or(0, Vec::len);
    let views = [
        ("velocities", TensorView::new(Dtype::F32, vec![tensors.velocities.len()], &velocities)?),
        ("norm_statistics", TensorView::new(Dtype::F32, vec![tensors.norm_statistics.len(), row_len], &statistics)?),
    ];
    Ok(safetensors::serialize(views, None)?)
}

fn sha256_of_file(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    Ok(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}
