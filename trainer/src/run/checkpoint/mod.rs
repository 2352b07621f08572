//! Checkpoints: a directory a step, whole or not there at all.
//!
//! In: the state of a run. Out: `checkpoints/step-00001234/` with `model.safetensors` (what PyTorch loads), `training.safetensors`
//! (velocities, or two moments and the number of updates; every rank's norm statistics; the factors of compressed sums; the parameters in training where the model has their
//! average), with compression `residual-00000.safetensors` … (what
//! each rank has kept back), `state.json` (position, sums, configuration, checksums of the others) and `state.sha256` (the checksum
//! of that, as `sha256sum` writes it).
//! Invariant: written under a temporary name, synced, then renamed; a checkpoint whose checksums fail is passed over aloud.

mod background;
mod state;
mod store;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use datasets::Counted;
use distributed::{
    ROOT,
    replica::{bytes_to_floats, floats_to_bytes},
};
use records::file;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use sha2::{Digest, Sha256};

use crate::step::optimizer::OptimizerState;

pub use background::Background;
use state::FORMAT;
pub use state::{CheckpointState, ModelInput, Progress};
pub use store::{CheckpointStore, Damaged, find};

const MODEL_FILE: &str = "model.safetensors";
const TRAINING_FILE: &str = "training.safetensors";
const STATE_FILE: &str = "state.json";
/// The tensor in the file of a rank's residual.
const RESIDUAL: &str = "residual";
const STATE_SUM_FILE: &str = "state.sha256";

/// The most bytes of a state: 65,536 class names of 255 bytes, and as much again.
const MAX_STATE_BYTES: u64 = 32 << 20;

/// The most bytes of a line with a checksum.
const MAX_SUM_BYTES: u64 = 1024;

/// A checkpoint found whole.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub directory: PathBuf,
    pub state: CheckpointState,
}

impl Checkpoint {
    /// Reads and checks the checkpoint in `directory`.
    ///
    /// # Errors
    /// When a file is missing, unreadable, of another format, or fails its checksum, or the state says what cannot be.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(STATE_FILE);
        let context = || format!("checkpoint state {}", path.display());
        let text = read_state(&path).with_context(context)?;
        // First of all: another format may lack what this one has.
        let origin: Origin = serde_json::from_str(&text).with_context(context)?;
        ensure!(
            origin.format == FORMAT,
            "checkpoint {}: expected format {FORMAT}, got {}. Use the version that wrote it ({})",
            directory.display(),
            origin.format,
            origin.version
        );
        let state: CheckpointState = serde_json::from_str(&text).with_context(context)?;
        check_state_sum(directory, &text)?;
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

    /// The file with the model's tensors.
    pub fn model_path(&self) -> PathBuf {
        self.directory.join(MODEL_FILE)
    }

    /// What is in training beside the model.
    ///
    /// # Errors
    /// When the file does not hold them as f32.
    pub fn training_tensors(&self) -> Result<TrainingTensors> {
        let path = self.directory.join(TRAINING_FILE);
        let bytes = read_file(&path)?;
        let tensors =
            SafeTensors::deserialize(&bytes).with_context(|| path.display().to_string())?;
        let floats =
            |name: &str| floats(&tensors, name).with_context(|| path.display().to_string());
        let flat = floats("norm_statistics")?;
        let rows = self.state.world_size;
        ensure!(
            rows > 0 && flat.len() % rows == 0,
            "{}: norm_statistics: {} values for {rows} ranks",
            path.display(),
            flat.len()
        );
        let row_len = flat.len() / rows;
        let norm_statistics = (0..rows)
            .map(|rank| flat[rank * row_len..(rank + 1) * row_len].to_vec())
            .collect();
        let mut read = TrainingTensors {
            norm_statistics,
            ..Default::default()
        };
        read.optimizer = match (
            tensors.tensor("num_updates"),
            tensors.tensor("own_optimizer"),
        ) {
            (_, Ok(own)) => OptimizerState {
                custom: Some(own.data().to_vec()),
                ..OptimizerState::default()
            },
            (Ok(num_updates), _) => {
                let bytes = <[u8; 8]>::try_from(num_updates.data()).ok();
                let bytes = bytes.with_context(|| {
                    format!("{}: num_updates: expected one u64", path.display())
                })?;
                let num_updates = Some(u64::from_le_bytes(bytes));
                OptimizerState {
                    moments: floats("moments")?,
                    num_updates,
                    custom: None,
                }
            }
            _ => OptimizerState {
                moments: floats("velocities")?,
                ..OptimizerState::default()
            },
        };
        // Only runs that compress have them.
        if let Ok(num_drawn) = tensors.tensor("num_drawn") {
            ensure!(
                num_drawn.dtype() == Dtype::U64,
                "{}: num_drawn: expected u64",
                path.display()
            );
            read.factors = floats("factors")?;
            read.num_drawn = num_drawn
                .data()
                .as_chunks()
                .0
                .iter()
                .map(|bytes| u64::from_le_bytes(*bytes))
                .collect();
        }
        if tensors.tensor("parameters").is_ok() {
            read.parameters = floats("parameters")?;
        }
        Ok(read)
    }

    /// What compression has kept back on `rank` when `world_size` ranks go on, flat in module order, `len` values: what that rank
    /// kept, if as many ranks wrote the checkpoint; otherwise root has the sum of all ranks', and the others nothing. It is zero, too,
    /// where none was saved.
    ///
    /// # Errors
    /// When a file does not hold that many f32.
    pub fn residual(&self, rank: usize, world_size: usize, len: usize) -> Result<Vec<f32>> {
        let parts = match (
            self.state.has_residuals(),
            world_size == self.state.world_size,
            rank,
        ) {
            (true, true, rank) => rank..rank + 1,
            (true, false, ROOT) => 0..self.state.world_size,
            _ => 0..0,
        };
        let mut sum = vec![0.0; len];
        for rank in parts {
            let path = self.directory.join(residual_file(rank));
            let bytes = read_file(&path)?;
            let tensors =
                SafeTensors::deserialize(&bytes).with_context(|| path.display().to_string())?;
            let part = floats(&tensors, RESIDUAL).with_context(|| path.display().to_string())?;
            ensure!(
                part.len() == len,
                "{}: expected {len} values, got {}",
                path.display(),
                part.len()
            );
            sum.iter_mut()
                .zip(part)
                .for_each(|(sum, part)| *sum += part);
        }
        Ok(sum)
    }
}

/// What is in training beside the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingTensors {
    pub optimizer: OptimizerState,
    /// Every rank's norm statistics, flat in module order; as many rows as ranks wrote them.
    pub norm_statistics: Vec<Vec<f32>>,
    /// [`distributed::reduction::ReductionState::factors`] of compressed sums.
    pub factors: Vec<f32>,
    /// [`distributed::reduction::ReductionState::num_drawn`]; empty without compression.
    pub num_drawn: Vec<u64>,
    /// The parameters in training, flat in module order, where the model has an average's in their place; else empty.
    pub parameters: Vec<f32>,
}

impl TrainingTensors {
    fn to_bytes(&self) -> Result<Vec<u8>> {
        let OptimizerState {
            moments,
            num_updates,
            custom,
        } = &self.optimizer;
        let (moments, len) = (floats_to_bytes(moments), moments.len());
        let num_updates = num_updates.map(u64::to_le_bytes);
        let statistics = floats_to_bytes(&self.norm_statistics.concat());
        let factors = floats_to_bytes(&self.factors);
        let num_drawn: Vec<u8> = self
            .num_drawn
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let parameters = floats_to_bytes(&self.parameters);
        let row_len = self.norm_statistics.first().map_or(0, Vec::len);
        let mut views = vec![(
            "norm_statistics",
            TensorView::new(
                Dtype::F32,
                vec![self.norm_statistics.len(), row_len],
                &statistics,
            )?,
        )];
        if let Some(own) = custom {
            views.push((
                "own_optimizer",
                TensorView::new(Dtype::U8, vec![own.len()], own)?,
            ));
        } else if let Some(num_updates) = &num_updates {
            views.push((
                "moments",
                TensorView::new(Dtype::F32, vec![2, len / 2], &moments)?,
            ));
            views.push((
                "num_updates",
                TensorView::new(Dtype::U64, vec![1], num_updates)?,
            ));
        } else {
            views.push((
                "velocities",
                TensorView::new(Dtype::F32, vec![len], &moments)?,
            ));
        }
        if !self.num_drawn.is_empty() {
            views.push((
                "factors",
                TensorView::new(Dtype::F32, vec![self.factors.len()], &factors)?,
            ));
            views.push((
                "num_drawn",
                TensorView::new(Dtype::U64, vec![self.num_drawn.len()], &num_drawn)?,
            ));
        }
        if !self.parameters.is_empty() {
            views.push((
                "parameters",
                TensorView::new(Dtype::F32, vec![self.parameters.len()], &parameters)?,
            ));
        }
        Ok(safetensors::serialize(views, None)?)
    }
}

/// The file of what a rank has kept back.
fn residual_file(rank: usize) -> String {
    format!("residual-{rank:05}.safetensors")
}

fn residual_to_bytes(residual: &[f32]) -> Result<Vec<u8>> {
    let bytes = floats_to_bytes(residual);
    Ok(safetensors::serialize(
        [(
            RESIDUAL,
            TensorView::new(Dtype::F32, vec![residual.len()], &bytes)?,
        )],
        None,
    )?)
}

fn floats(tensors: &SafeTensors<'_>, name: &str) -> Result<Vec<f32>> {
    let view = tensors.tensor(name).with_context(|| name.to_owned())?;
    ensure!(
        view.dtype() == Dtype::F32,
        "{name}: expected f32, got {:?}",
        view.dtype()
    );
    Ok(bytes_to_floats(view.data()))
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

/// What every format tells.
#[derive(serde::Deserialize)]
struct Origin {
    format: u32,
    #[serde(default)]
    version: String,
}

/// Whether a checkpoint's state is whole and of a format that only later versions know, whatever else it says.
fn is_of_later_version(directory: &Path) -> bool {
    let Ok(text) = read_state(&directory.join(STATE_FILE)) else {
        return false;
    };
    let is_later = serde_json::from_str(&text).is_ok_and(|origin: Origin| origin.format > FORMAT);
    is_later && check_state_sum(directory, &text).is_ok()
}

/// Compares the text of a state with its checksum.
fn check_state_sum(directory: &Path, text: &str) -> Result<()> {
    let path = directory.join(STATE_SUM_FILE);
    let mut line = String::new();
    file::open(&path)
        .and_then(|file| file.take(MAX_SUM_BYTES).read_to_string(&mut line))
        .with_context(|| format!("checksum {}", path.display()))?;
    let expected = line.split_whitespace().next().unwrap_or_default();
    let got = hexadecimal(Sha256::digest(text));
    ensure!(
        got == expected,
        "{}: expected sha256 {expected} (of {STATE_SUM_FILE}), got {got}",
        directory.join(STATE_FILE).display()
    );
    Ok(())
}

/// The line that `sha256sum` writes for a state.
fn state_sum_line(text: &[u8]) -> String {
    format!("{}  {STATE_FILE}\n", hexadecimal(Sha256::digest(text)))
}

fn hexadecimal(digest: impl AsRef<[u8]>) -> String {
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn sha256_of_file(path: &Path) -> Result<String> {
    let mut digest = Sha256::new();
    file::open(path)
        .and_then(|file| io::copy(&mut Counted(file), &mut digest))
        .with_context(|| path.display().to_string())?;
    Ok(hexadecimal(digest.finalize()))
}
