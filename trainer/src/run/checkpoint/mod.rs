//! Checkpoints: a directory for each saved step, either whole or absent.
//!
//! In: the state of a run. Out: `checkpoints/step-00001234/` with these files:
//! - `model.safetensors`: the model, which PyTorch can load;
//! - `training.safetensors`: the optimizer's state, every rank's norm statistics, the factors of
//!   compressed sums, and the parameters in training if the model has their average;
//! - `residual-00000.safetensors` and so on, with compression: what each rank has not sent yet;
//! - `state.json`: position, sums, configuration, checksums of the files above;
//! - `state.sha256`: checksum of the state, as `sha256sum` writes it.
//!
//! Invariant: written under a temporary name, synced, then renamed. A checkpoint whose checksums
//! fail is skipped with a warning.

mod state;
mod store;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use datasets::Counted;
use distributed::ROOT;
use distributed::replica::{bytes_to_floats, floats_to_bytes};
use records::file;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use sha2::{Digest, Sha256};

use crate::step::OptimizerState;

pub(in crate::run) use state::FORMAT;
pub use state::{CheckpointState, Progress};
pub use store::{CheckpointStore, Damaged, find};

const MODEL_FILE: &str = "model.safetensors";
const TRAINING_FILE: &str = "training.safetensors";
const STATE_FILE: &str = "state.json";
const STATE_SUM_FILE: &str = "state.sha256";
/// Name of the tensor in a rank's residual file.
const RESIDUAL: &str = "residual";

/// Limit of a state's size: 65,536 class names of 255 bytes, and as much again.
const MAX_STATE_BYTES: u64 = 32 << 20;

/// Limit of a checksum line's size.
const MAX_SUM_BYTES: u64 = 1024;

/// A checkpoint whose checksums are right.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub directory: PathBuf,
    pub state: CheckpointState,
}

/// The error for a whole checkpoint of another version of this program.
#[derive(Debug, thiserror::Error)]
#[error(
    "checkpoint {}: expected format {FORMAT}, got {format}. Use the version that wrote it ({version})",
    directory.display()
)]
struct OtherFormat {
    directory: PathBuf,
    format: u32,
    version: String,
}

impl Checkpoint {
    /// Reads and checks the checkpoint in `directory`.
    ///
    /// # Errors
    /// If a file is missing, cannot be read or fails its checksum; if the state has
    /// another format or impossible values.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(STATE_FILE);
        let context = || format!("checkpoint state {}", path.display());
        let text = read_state(&path).with_context(context)?;
        let sums = directory.join(STATE_SUM_FILE);
        let mut line = String::new();
        file::open(&sums)
            .and_then(|file| file.take(MAX_SUM_BYTES).read_to_string(&mut line))
            .with_context(|| format!("checksum {}", sums.display()))?;
        let expected = line.split_whitespace().next().unwrap_or_default();
        let got = format!("{:x}", Sha256::digest(&text));
        ensure!(
            got == expected,
            "{}: expected sha256 {expected} (of {STATE_SUM_FILE}), got {got}",
            path.display()
        );
        // Checked first: a state of another format may lack fields of this one.
        let origin: Origin = serde_json::from_str(&text).with_context(context)?;
        if origin.format != FORMAT {
            return Err(OtherFormat {
                directory: directory.to_owned(),
                format: origin.format,
                version: origin.version,
            }
            .into());
        }
        let state: CheckpointState = serde_json::from_str(&text).with_context(context)?;
        state.check().with_context(context)?;
        for name in state.file_names() {
            let path = directory.join(&name);
            let expected = state
                .files
                .get(&name)
                .with_context(|| format!("{}: no checksum of {name}", path.display()))?;
            let got = sha256_of_file(&path)?;
            ensure!(
                &got == expected,
                "{}: expected sha256 {expected}, got {got}",
                path.display()
            );
        }
        Ok(Self {
            directory: directory.to_owned(),
            state,
        })
    }

    /// Returns the path of the model's tensors.
    pub fn model_path(&self) -> PathBuf {
        self.directory.join(MODEL_FILE)
    }

    /// Reads what training needs in addition to the model.
    ///
    /// # Errors
    /// As [`TrainingTensors::from_bytes`].
    pub fn training_tensors(&self) -> Result<TrainingTensors> {
        let bytes = self.training_bytes()?;
        let path = self.directory.join(TRAINING_FILE);
        TrainingTensors::from_bytes(&bytes, self.state.world_size)
            .with_context(|| path.display().to_string())
    }

    /// Reads the file of [`training_tensors`](Self::training_tensors).
    pub fn training_bytes(&self) -> Result<Vec<u8>> {
        read_file(&self.directory.join(TRAINING_FILE))
    }

    /// Returns what `rank` of `world_size` ranks has not sent yet, flat in module order, `len`
    /// values. If as many ranks wrote the checkpoint, it is what that rank saved; otherwise root
    /// has the sum of all ranks, and the others have zeros, as all have in a run without
    /// compression.
    ///
    /// # Errors
    /// If a file does not hold that many f32.
    pub fn residual(&self, rank: usize, world_size: usize, len: usize) -> Result<Vec<f32>> {
        let mut sum = vec![0.0; len];
        let parts = if !self.state.has_residuals() {
            0..0
        } else if world_size == self.state.world_size {
            rank..rank + 1
        } else if rank == ROOT {
            0..self.state.world_size
        } else {
            0..0
        };
        for rank in parts {
            let path = self.directory.join(residual_file(rank));
            let context = || path.display().to_string();
            let bytes = read_file(&path)?;
            let tensors = SafeTensors::deserialize(&bytes).with_context(context)?;
            let part = floats(&tensors, RESIDUAL).with_context(context)?;
            ensure!(
                part.len() == len,
                "{}: expected {len} values, got {}",
                path.display(),
                part.len()
            );
            for (sum, part) in sum.iter_mut().zip(part) {
                *sum += part;
            }
        }
        Ok(sum)
    }
}

/// State of training in addition to the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingTensors {
    pub optimizer: OptimizerState,
    /// Norm statistics, flat in module order; a row for each rank that wrote them.
    pub norm_statistics: Vec<Vec<f32>>,
    /// [`distributed::gradients::ReductionState::factors`] of compressed sums.
    pub factors: Vec<f32>,
    /// [`distributed::gradients::ReductionState::num_drawn`]; empty without compression.
    pub num_drawn: Vec<u64>,
    /// The parameters in training, flat in module order, if the model has their average; otherwise
    /// empty.
    pub parameters: Vec<f32>,
}

impl TrainingTensors {
    /// Reads the tensors that `world_size` ranks wrote.
    ///
    /// # Errors
    /// If a tensor is missing or has another type or length.
    pub fn from_bytes(bytes: &[u8], world_size: usize) -> Result<Self> {
        let tensors = SafeTensors::deserialize(bytes)?;
        let statistics = floats(&tensors, "norm_statistics")?;
        ensure!(
            world_size > 0 && statistics.len() % world_size == 0,
            "norm_statistics: {} values for {world_size} ranks",
            statistics.len()
        );
        let row_len = statistics.len() / world_size;
        let mut read = Self {
            norm_statistics: (0..world_size)
                .map(|rank| statistics[rank * row_len..(rank + 1) * row_len].to_vec())
                .collect(),
            ..Self::default()
        };
        let has = |name| tensors.tensor(name).is_ok();
        if let Ok(custom) = tensors.tensor("own_optimizer") {
            read.optimizer.custom = Some(custom.data().to_vec());
        } else if has("num_updates") {
            let num_updates = words(&tensors, "num_updates")?;
            ensure!(num_updates.len() == 1, "num_updates: expected one u64");
            read.optimizer.num_updates = num_updates.first().copied();
            read.optimizer.moments = floats(&tensors, "moments")?;
        } else {
            read.optimizer.moments = floats(&tensors, "velocities")?;
        }
        if has("num_drawn") {
            read.factors = floats(&tensors, "factors")?;
            read.num_drawn = words(&tensors, "num_drawn")?;
        }
        if has("parameters") {
            read.parameters = floats(&tensors, "parameters")?;
        }
        Ok(read)
    }

    fn to_bytes(&self) -> Result<Vec<u8>> {
        let floats = |name, shape: Vec<usize>, values: &[f32]| {
            (name, Dtype::F32, shape, floats_to_bytes(values))
        };
        let words = |name, values: &[u64]| {
            let bytes = values.iter().copied().flat_map(u64::to_le_bytes).collect();
            (name, Dtype::U64, vec![values.len()], bytes)
        };
        let rows = &self.norm_statistics;
        let OptimizerState {
            moments,
            num_updates,
            custom,
        } = &self.optimizer;
        let mut tensors = vec![floats(
            "norm_statistics",
            vec![rows.len(), rows.first().map_or(0, Vec::len)],
            &rows.concat(),
        )];
        if let Some(custom) = custom {
            tensors.push((
                "own_optimizer",
                Dtype::U8,
                vec![custom.len()],
                custom.clone(),
            ));
        } else if num_updates.is_some() {
            tensors.push(floats("moments", vec![2, moments.len() / 2], moments));
            tensors.push(words("num_updates", num_updates.as_slice()));
        } else {
            tensors.push(floats("velocities", vec![moments.len()], moments));
        }
        if !self.num_drawn.is_empty() {
            tensors.push(floats("factors", vec![self.factors.len()], &self.factors));
            tensors.push(words("num_drawn", &self.num_drawn));
        }
        if !self.parameters.is_empty() {
            let shape = vec![self.parameters.len()];
            tensors.push(floats("parameters", shape, &self.parameters));
        }
        let mut views = Vec::new();
        for (name, dtype, shape, bytes) in &tensors {
            views.push((*name, TensorView::new(*dtype, shape.clone(), bytes)?));
        }
        Ok(safetensors::serialize(views, None)?)
    }
}

fn residual_file(rank: usize) -> String {
    format!("residual-{rank:05}.safetensors")
}

fn residual_to_bytes(residual: &[f32]) -> Result<Vec<u8>> {
    let bytes = floats_to_bytes(residual);
    let view = TensorView::new(Dtype::F32, vec![residual.len()], &bytes)?;
    Ok(safetensors::serialize([(RESIDUAL, view)], None)?)
}

fn floats(tensors: &SafeTensors<'_>, name: &str) -> Result<Vec<f32>> {
    Ok(bytes_to_floats(data(tensors, name, Dtype::F32)?))
}

fn words(tensors: &SafeTensors<'_>, name: &str) -> Result<Vec<u64>> {
    let (words, _) = data(tensors, name, Dtype::U64)?.as_chunks();
    Ok(words.iter().copied().map(u64::from_le_bytes).collect())
}

fn data<'a>(tensors: &SafeTensors<'a>, name: &str, dtype: Dtype) -> Result<&'a [u8]> {
    let view = tensors.tensor(name).with_context(|| name.to_owned())?;
    let got = view.dtype();
    ensure!(got == dtype, "{name}: expected {dtype:?}, got {got:?}");
    Ok(view.data())
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    file::read(path).with_context(|| path.display().to_string())
}

fn read_state(path: &Path) -> Result<String> {
    let mut text = String::new();
    let len = file::open(path)?
        .take(MAX_STATE_BYTES + 1)
        .read_to_string(&mut text)?;
    ensure!(
        len as u64 <= MAX_STATE_BYTES,
        "expected at most {MAX_STATE_BYTES} bytes, got more; take another checkpoint"
    );
    Ok(text)
}

/// The fields of a state in every format.
#[derive(serde::Deserialize)]
struct Origin {
    format: u32,
    #[serde(default)]
    version: String,
}

/// Returns the line that `sha256sum` writes for a state.
fn state_sum_line(text: &[u8]) -> String {
    format!("{:x}  {STATE_FILE}\n", Sha256::digest(text))
}

fn sha256_of_file(path: &Path) -> Result<String> {
    let mut digest = Sha256::new();
    file::open(path)
        .and_then(|file| io::copy(&mut Counted(file), &mut digest))
        .with_context(|| path.display().to_string())?;
    Ok(format!("{:x}", digest.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tensor_is_an_error_with_its_name() {
        for (num_updates, missing) in [
            (None, "velocities"),
            (Some(3), "moments"),
            (None, "norm_statistics"),
            (None, "factors"),
        ] {
            let tensors = TrainingTensors {
                optimizer: OptimizerState {
                    num_updates,
                    ..OptimizerState::default()
                },
                norm_statistics: vec![Vec::new()],
                num_drawn: vec![1],
                ..TrainingTensors::default()
            };
            let bytes = tensors.to_bytes().unwrap();
            assert_eq!(TrainingTensors::from_bytes(&bytes, 1).unwrap(), tensors);
            let mut others = SafeTensors::deserialize(&bytes).unwrap().tensors();
            others.retain(|(name, _)| name != missing);
            let bytes = safetensors::serialize(others, None).unwrap();
            let error = TrainingTensors::from_bytes(&bytes, 1).unwrap_err();
            assert_eq!(error.to_string(), missing);
        }
    }
}
