//! Checkpoints: a directory a step, whole or not there at all.
//!
//! In: the state of a run. Out: `checkpoints/step-00001234/` with `model.safetensors` (what PyTorch loads), `training.safetensors`
//! (velocities; every rank's norm statistics) and `state.json` (position, sums, configuration, checksums of the other two).
//! Invariant: written under a temporary name, synced, then renamed; a checkpoint whose checksums fail is passed over aloud.

mod state;
mod store;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use distributed::{bytes_to_floats, floats_to_bytes};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use sha2::{Digest, Sha256};

use state::FORMAT;
pub use state::{Best, CheckpointState, ModelInput, Progress};
pub use store::{CheckpointStore, find};

const MODEL_FILE: &str = "model.safetensors";
const TRAINING_FILE: &str = "training.safetensors";
const STATE_FILE: &str = "state.json";

/// The most bytes of a state: 65,536 class names of 255 bytes, and as much again.
const MAX_STATE_BYTES: u64 = 32 << 20;

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
    /// When a file is missing, unreadable, of another format, or fails its checksum, or the state says what cannot be.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(STATE_FILE);
        let text = read_state(&path).with_context(|| format!("checkpoint state {}", path.display()))?;
        let state: CheckpointState =
            serde_json::from_str(&text).with_context(|| format!("checkpoint state {}", path.display()))?;
        ensure!(
            state.format == FORMAT,
            "checkpoint {}: expected format {FORMAT}, got {}; use the version that wrote it ({})",
            directory.display(),
            state.format,
            state.version
        );
        state.check().with_context(|| format!("checkpoint state {}", path.display()))?;
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
        let mut bytes = Vec::new();
        open_file(&path)
            .and_then(|mut file| Ok(file.read_to_end(&mut bytes)?))
            .with_context(|| path.display().to_string())?;
        let tensors = SafeTensors::deserialize(&bytes).with_context(|| path.display().to_string())?;
        let floats = |name: &str| -> Result<Vec<f32>> {
            let view = tensors.tensor(name).with_context(|| format!("{}: {name}", path.display()))?;
            ensure!(view.dtype() == Dtype::F32, "{}: {name}: expected f32, got {:?}", path.display(), view.dtype());
            Ok(bytes_to_floats(view.data()))
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

/// What is in training beside the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingTensors {
    /// The optimizer's velocities, flat in module order.
    pub velocities: Vec<f32>,
    /// Every rank's norm statistics, flat in module order; as many rows as ranks wrote them.
    pub norm_statistics: Vec<Vec<f32>>,
}

impl TrainingTensors {
    fn to_bytes(&self) -> Result<Vec<u8>> {
        let velocities = floats_to_bytes(&self.velocities);
        let statistics = floats_to_bytes(&self.norm_statistics.concat());
        let row_len = self.norm_statistics.first().map_or(0, Vec::len);
        let views = [
            ("velocities", TensorView::new(Dtype::F32, vec![self.velocities.len()], &velocities)?),
            ("norm_statistics", TensorView::new(Dtype::F32, vec![self.norm_statistics.len(), row_len], &statistics)?),
        ];
        Ok(safetensors::serialize(views, None)?)
    }
}

/// Opens a file that is a file: opening a named pipe would wait for its writer.
fn open_file(path: &Path) -> Result<File> {
    ensure!(fs::metadata(path)?.is_file(), "expected a regular file, got a folder, pipe or device");
    Ok(File::open(path)?)
}

fn read_state(path: &Path) -> Result<String> {
    let mut text = String::new();
    let len = open_file(path)?.take(MAX_STATE_BYTES + 1).read_to_string(&mut text)?;
    ensure!(
        len as u64 <= MAX_STATE_BYTES,
        "expected at most {MAX_STATE_BYTES} bytes, got more; take another checkpoint"
    );
    Ok(text)
}

fn sha256_of_file(path: &Path) -> Result<String> {
    let mut digest = Sha256::new();
    open_file(path)
        .and_then(|mut file| Ok(io::copy(&mut file, &mut digest)?))
        .with_context(|| path.display().to_string())?;
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
