//! Weights in and out, under the names PyTorch gives them.
//!
//! In: `.safetensors` or a PyTorch checkpoint (zip archive or the older plain pickle). Out: a
//! network holding them, or a `.safetensors` file that PyTorch's `load_state_dict` takes as it is.
//! Invariant: all of the network's tensors are read, and nothing but them, or the error names what
//! differs; a file is written whole or not at all.

mod claims;

use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::store::pytorch::PytorchReader;
use burn::store::{
    ApplyError, ApplyResult, BurnToPyTorchAdapter, FloatCastAdapter, KeyRemapper, ModuleAdapter, ModuleSnapshot,
    ModuleStore, PyTorchToBurnAdapter, PytorchStore, SafetensorsStore,
};
use burn::tensor::DType;

use crate::WeightsError;

/// Old name to new: the prefix of `DataParallel`, and the published code's name for shortcut B.
const RENAMES: [(&str, &str); 2] = [(r"^module\.", ""), (r"\.shortcut\.", ".downsample.")];

/// PyTorch's count of training batches; without a momentum of `None` nothing reads it.
const BATCH_COUNTER: &str = "num_batches_tracked";

/// The format in errors.
const PYTORCH: &str = "a PyTorch checkpoint";

/// The most that is told of why a file cannot be read.
const MAX_REASON_BYTES: usize = 500;

/// Puts the weights of a file into `model`, a [`crate::ResNet`] or any other module, which keeps
/// its device and what it trains.
///
/// The format is told by the name: `.safetensors`, or `.pth`, `.th`, `.pt`. A checkpoint may be a
/// dictionary with the key `state_dict`; names may begin with `module.`. A clone of `model` shares
/// its running statistics and so receives those of the file.
///
/// # Errors
/// [`WeightsError`]: an unknown extension, an unreadable file, one that claims more than it can hold, or tensors that do not fit.
pub fn load_weights<M: Module>(mut model: M, path: impl AsRef<Path>) -> Result<M, WeightsError> {
    let path = path.as_ref();
    let file_len = claims::file_len(path)?;
    let applied = match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => {
            let store = SafetensorsStore::from_file(path).remap(renames());
            apply(&mut model, store, path, file_len, "safetensors")?
        }
        Some("pth" | "th" | "pt") => {
            let refusal = claims::refusal_of_container(path, file_len)
                .map_err(|source| WeightsError::Io { path: path.into(), source })?;
            if let Some(reason) = refusal {
                return Err(WeightsError::Format { path: path.into(), format: PYTORCH, reason });
            }
            apply(&mut model, pytorch_store(path), path, file_len, PYTORCH)?
        }
        _ => return Err(WeightsError::Extension { path: path.into() }),
    };
    check(path, applied)?;
    Ok(model)
}

/// Writes all parameters and running statistics as PyTorch names and lays them out.
///
/// The file appears under its name only when it is complete and on disk; an older one stays until
/// then.
///
/// # Errors
/// [`WeightsError::Write`] or [`WeightsError::Io`] when the file cannot be written.
pub fn save_safetensors<M: Module>(model: &M, path: impl AsRef<Path>) -> Result<(), WeightsError> {
    let path = path.as_ref();
    let mut store = SafetensorsStore::from_file(path)
        .with_to_adapter(BurnToPyTorchAdapter)
        .overwrite(true)
        .clear_metadata()
        .metadata("format", "pt");
    // `valid` flushes the running statistics and takes the parameters off the autodiff device.
    model
        .valid()
        .save_into(&mut store)
        .map_err(|error| WeightsError::Write { path: path.into(), reason: error.to_string() })
}

fn apply<M: Module, S: ModuleStore>(
    model: &mut M,
    mut store: S,
    path: &Path,
    file_len: u64,
    format: &'static str,
) -> Result<ApplyResult, WeightsError> {
    let unreadable = |reason| WeightsError::Format { path: path.into(), format, reason };
    let tensors = store.get_all_tensors().map_err(|error| unreadable(shortened(error.to_string())))?;
    // burn reads a tensor before it compares its shape with the model's.
    if let Some(reason) = tensors.values().find_map(|tensor| claims::refusal_of_tensor(tensor, file_len)) {
        return Err(unreadable(reason));
    }
    let tensors = tensors.values().cloned().collect();
    // Without the cast burn-store would give the model the type of a half-precision file.
    let adapter = PyTorchToBurnAdapter.chain(FloatCastAdapter::to(DType::F32));
    Ok(model.apply(tensors, None, Some(Box::new(adapter)), false))
}

/// The beginning of a reason: some readers print the object that they did not expect, however large.
fn shortened(mut reason: String) -> String {
    if reason.len() > MAX_REASON_BYTES {
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        reason.push('…');
    }
    reason
}

fn pytorch_store(path: &Path) -> PytorchStore {
    let store = PytorchStore::from_file(path).remap(renames()).map_indices_contiguous(false);
    match PytorchReader::with_top_level_key(path, "state_dict") {
        Ok(_) => store.with_top_level_key("state_dict"),
        Err(_) => store,
    }
}

fn renames() -> KeyRemapper {
    RENAMES.into_iter().fold(KeyRemapper::new(), |remapper, (from, to)| {
        remapper.add_pattern(from, to).expect("RENAMES holds valid expressions")
    })
}

fn check(path: &Path, applied: ApplyResult) -> Result<(), WeightsError> {
    let missing: Vec<String> = applied.missing.into_iter().map(|(name, _)| pytorch_name(&name)).collect();
    let unexpected: Vec<String> = applied.unused.into_iter().filter(|name| !name.ends_with(BATCH_COUNTER)).collect();
    let misshaped: Vec<String> = applied.errors.iter().map(describe).collect();
    if missing.is_empty() && unexpected.is_empty() && misshaped.is_empty() {
        return Ok(());
    }
    Err(WeightsError::Mismatch { path: PathBuf::from(path), missing, unexpected, misshaped })
}

fn describe(error: &ApplyError) -> String {
    match error {
        ApplyError::ShapeMismatch { path, expected, found } => {
            let (expected, found) = (expected.as_slice(), found.as_slice());
            format!("{}: expected {expected:?}, got {found:?}", pytorch_name(path))
        }
        ApplyError::DTypeMismatch { path, expected, found } => {
            format!("{}: expected {expected:?}, got {found:?}", pytorch_name(path))
        }
        ApplyError::AdapterError { path, message } | ApplyError::LoadError { path, message } => {
            format!("{}: {message}", pytorch_name(path))
        }
    }
}

/// burn calls a normalisation's parameters gamma and beta.
fn pytorch_name(path: &str) -> String {
    match path.rsplit_once('.') {
        Some((layer, "gamma")) => format!("{layer}.weight"),
        Some((layer, "beta")) => format!("{layer}.bias"),
        _ => path.to_owned(),
    }
}
