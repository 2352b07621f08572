//! Weights in and out, under the names PyTorch gives them.
//!
//! In: `.safetensors` or a PyTorch checkpoint (zip archive or the older plain pickle). Out: a
//! network holding them, or a `.safetensors` file that PyTorch's `load_state_dict` takes as it is.
//! Invariant: all of the network's tensors are read, and nothing but them, or the error names what
//! differs; what was written here is read under the names it was written with; a file is written
//! whole or not at all.

mod adapters;
mod claims;
mod dictionary;

use std::collections::HashSet;
use std::iter::successors;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::module::Module;
use burn::store::{ApplyError, ApplyResult, ModuleSnapshot, ModuleStore, PytorchStore, SafetensorsStore};

use crate::WeightsError;
use adapters::{FromPyTorch, OwnTensor, ToPyTorch, own_tensors};

/// The prefixes that `DataParallel` and `torch.compile` give all names.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

/// The published code's name for shortcut B, and ours.
const SHORTCUT: (&str, &str) = (".shortcut.", ".downsample.");

/// PyTorch's count of training batches; without a momentum of `None` nothing reads it.
const BATCH_COUNTER: &str = "num_batches_tracked";

/// The format in errors.
const PYTORCH: &str = "a PyTorch checkpoint";

/// The most that is told of why a file cannot be read.
const MAX_REASON_BYTES: usize = 500;

/// Puts the weights of a file into `model`, a [`crate::ResNet`] or any other module, which keeps
/// its device, its types and what it trains.
///
/// The format is told by the name: `.safetensors`, or `.pth`, `.th`, `.pt`. The tensors of a PyTorch
/// checkpoint may stand in a dictionary of it: under `state_dict`, `model_state_dict`, `net` or `model`,
/// else in the only one that holds tensors. A name that `model` lacks is tried with `downsample` for `shortcut`, then
/// without the prefixes `module.` and `_orig_mod.`, which PyTorch's wrappers give. A clone of `model` shares its running statistics
/// and so receives those of the file.
///
/// # Errors
/// [`WeightsError`]: an unknown extension, an unreadable file, one that claims more than it can hold, or tensors that do not fit.
pub fn load_weights<M: Module>(model: M, path: impl AsRef<Path>) -> Result<M, WeightsError> {
    load_weights_with(model, path, Head::OfFile).map(|(model, _)| model)
}

/// Where the last layer of a model gets its values, that which tells the classes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// From the file, as all others.
    OfFile,
    /// It keeps its own, whatever the file has in its place: for other classes than those of the file.
    Own,
}

/// What a model took from a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The key of the dictionary in which the tensors stood, if they did.
    pub key: Option<String>,
    /// The tensors that were taken, by the names that PyTorch gives them, in module order.
    pub taken: Vec<String>,
    /// Those that stay as they were: the head's, where it keeps its own.
    pub kept: Vec<String>,
}

/// As [`load_weights`], with a choice for the head; it is the module of the last tensor in module order.
///
/// # Errors
/// As [`load_weights`].
pub fn load_weights_with<M: Module>(
    mut model: M,
    path: impl AsRef<Path>,
    head: Head,
) -> Result<(M, Loaded), WeightsError> {
    let path = path.as_ref();
    let own = own_tensors(&model);
    let last = own.last().map(|last| &last.name);
    let head = last.filter(|_| head == Head::Own).map(|last| match last.rsplit_once('.') {
        Some((module, _)) => format!("{module}."),
        None => last.clone(),
    });
    let is_kept = |name: &String| head.as_ref().is_some_and(|head| name.starts_with(head));
    let file_len = claims::file_len(path)?;
    let (applied, key) = match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => (
            apply((&mut model, &own), SafetensorsStore::from_file(path), path, (file_len, "safetensors"), is_kept)?,
            None,
        ),
        Some("pth" | "th" | "pt") => {
            let unreadable = |reason| WeightsError::Format { path: path.into(), format: PYTORCH, reason };
            let refusal = claims::refusal_of_container(path, file_len)
                .map_err(|reason| WeightsError::Io { path: path.into(), reason })?;
            if let Some(reason) = refusal {
                return Err(unreadable(reason));
            }
            let key = dictionary::key_of_tensors(path).map_err(|reason| unreadable(shortened(reason)))?;
            let store = PytorchStore::from_file(path).map_indices_contiguous(false);
            let store = match &key {
                Some(key) => store.with_top_level_key(key),
                None => store,
            };
            (apply((&mut model, &own), store, path, (file_len, PYTORCH), is_kept)?, key)
        }
        _ => return Err(WeightsError::Extension { path: path.into() }),
    };
    check(path, &own, applied, is_kept)?;
    let (kept, taken) = own.into_iter().map(|own| own.name).partition(is_kept);
    Ok((model, Loaded { key, taken, kept }))
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
    collect(model, SafetensorsStore::from_file(path).overwrite(true))
        .map(drop)
        .map_err(|reason| WeightsError::Write { path: path.into(), reason })
}

/// What [`save_safetensors`] writes.
///
/// # Errors
/// [`WeightsError::Write`] when a tensor cannot be read from its device.
pub fn safetensors_bytes<M: Module>(model: &M) -> Result<Vec<u8>, WeightsError> {
    let store = collect(model, SafetensorsStore::from_bytes(None));
    store
        .and_then(|store| store.get_bytes().map_err(|error| error.to_string()))
        .map_err(|reason| WeightsError::Write { path: "main memory".into(), reason })
}

/// `store` with all parameters and running statistics as PyTorch has them.
fn collect<M: Module>(model: &M, store: SafetensorsStore) -> Result<SafetensorsStore, String> {
    let mut store = store.with_to_adapter(ToPyTorch).clear_metadata().metadata("format", "pt");
    // `valid` flushes the running statistics and takes the parameters off the autodiff device.
    model.valid().save_into(&mut store).map_err(|error| error.to_string())?;
    Ok(store)
}

fn apply<M: Module, S: ModuleStore>(
    (model, own): (&mut M, &[OwnTensor]),
    mut store: S,
    path: &Path,
    (file_len, format): (u64, &'static str),
    is_kept: impl Fn(&String) -> bool,
) -> Result<ApplyResult, WeightsError> {
    let unreadable = |reason| WeightsError::Format { path: path.into(), format, reason };
    let tensors = store.get_all_tensors().map_err(|error| unreadable(shortened(error.to_string())))?;
    // burn reads a tensor before it compares its shape with the model's.
    if let Some(reason) = tensors.values().find_map(|tensor| claims::refusal_of_tensor(tensor, file_len)) {
        return Err(unreadable(reason));
    }
    let own_names: HashSet<&str> = own.iter().map(|own| own.name.as_str()).collect();
    let mut tensors: Vec<_> = tensors.values().cloned().collect();
    for tensor in &mut tensors {
        if let Some(name) = own_name(&tensor.name, &own_names) {
            tensor.name = name;
        }
    }
    tensors.retain(|tensor| !is_kept(&tensor.name));
    let types = own.iter().map(|own| (own.path.clone(), own.dtype)).collect();
    Ok(model.apply(tensors, None, Some(Box::new(FromPyTorch(Arc::new(types)))), false))
}

/// The beginning of a reason: some readers print the object that they did not expect, however large.
fn shortened(mut reason: String) -> String {
    if reason.len() > MAX_REASON_BYTES {
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        reason.push('…');
    }
    reason
}

/// What `model` calls a tensor of this name in a file, if it does not call it so itself.
fn own_name<'a>(name: &'a str, own_names: &HashSet<&str>) -> Option<String> {
    if own_names.contains(name) {
        return None;
    }
    let within = |name: &&'a str| WRAPPERS.iter().find_map(|wrapper| name.strip_prefix(wrapper));
    let (theirs, ours) = SHORTCUT;
    let mut candidates = successors(Some(name), within).flat_map(|name| [name.to_owned(), name.replace(theirs, ours)]);
    candidates.find(|name| own_names.contains(name.as_str()))
}

fn check(
    path: &Path,
    own: &[OwnTensor],
    applied: ApplyResult,
    is_kept: impl Fn(&String) -> bool,
) -> Result<(), WeightsError> {
    let named = |path: String| own.iter().find(|own| own.path == path).map_or(path, |own| own.name.clone());
    let missing: Vec<String> =
        applied.missing.into_iter().map(|(path, _)| named(path)).filter(|name| !is_kept(name)).collect();
    let unexpected: Vec<String> = applied.unused.into_iter().filter(|name| !name.ends_with(BATCH_COUNTER)).collect();
    let misshaped: Vec<String> = applied.errors.into_iter().map(|error| describe(error, named)).collect();
    if missing.is_empty() && unexpected.is_empty() && misshaped.is_empty() {
        return Ok(());
    }
    Err(WeightsError::Mismatch { path: PathBuf::from(path), missing, unexpected, misshaped })
}

fn describe(error: ApplyError, named: impl Fn(String) -> String) -> String {
    match error {
        ApplyError::ShapeMismatch { path, expected, found } => {
            let (expected, found) = (expected.as_slice(), found.as_slice());
            format!("{}: expected {expected:?}, got {found:?}", named(path))
        }
        ApplyError::DTypeMismatch { path, expected, found } => {
            format!("{}: expected {expected:?}, got {found:?}", named(path))
        }
        ApplyError::AdapterError { path, message } | ApplyError::LoadError { path, message } => {
            format!("{}: {message}", named(path))
        }
    }
}
