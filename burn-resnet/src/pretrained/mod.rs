//! Reading and writing weights under the names that PyTorch gives them.
//!
//! In: `.safetensors` or a PyTorch checkpoint. Out: a network with these weights, or a
//! `.safetensors` file for PyTorch's `load_state_dict`.
//! Invariant: all tensors of the network are read, or the error names the missing ones. The other
//! tensors of a file are named. A written file is read again under the same names. A written file
//! is complete or absent.

mod adapters;
mod names;
mod pytorch;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::Arc;

use burn::module::Module;
use burn::store::burn_pack::Tensor;
use burn::store::{ApplyError, ModuleSnapshot, ModuleStore, SafetensorsStore};

use crate::WeightsError;
use crate::error::some;
pub use names::shared_modules;

use adapters::{FromPyTorch, OwnTensor, ToPyTorch, own_tensors};

/// The formats, as errors name them.
const PYTORCH: &str = "a PyTorch checkpoint";
const SAFETENSORS: &str = "safetensors";

/// The longest part of a reason that an error shows.
const MAX_REASON_BYTES: usize = 500;

/// The bytes that a file may claim beyond its length. Headers are not counted exactly, and so few
/// bytes cost nothing.
const SLACK_BYTES: u64 = 1 << 20;

/// Puts the weights of a file into `model`. The model keeps its device and its types, and the same
/// parameters stay trainable.
///
/// `model` is a [`crate::ResNet`] or any other module. The content of the file decides its format:
/// safetensors, or a PyTorch checkpoint of `torch.save` or `pickle.dump`. The tensors of a
/// checkpoint may be in dictionaries, modules and other objects; other values in them are ignored.
///
/// All names of `model` must be under one prefix, such as `state_dict.model`. Wrappers such as
/// `module` and `_orig_mod` are removed from names, and `shortcut` is read as `downsample`. A clone
/// of `model` shares its running statistics, so it receives those of the file.
///
/// # Errors
/// [`WeightsError`] if the file is unreadable or declares more data than it has, or if tensors do
/// not fit. A tensor that `model` does not have is an error; [`load_weights_with`] ignores such
/// tensors and returns their names.
pub fn load_weights<M: Module>(model: M, path: impl AsRef<Path>) -> Result<M, WeightsError> {
    let path = path.as_ref();
    let (model, Loaded { unused, .. }) = load_weights_with(model, path, Head::OfFile)?;
    if !unused.is_empty() {
        return Err(mismatch(path, unused, Vec::new()));
    }
    Ok(model)
}

/// The source of the last layer, whose outputs are the classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The last layer comes from the file, like all other layers.
    OfFile,
    /// The model keeps its own last layer, because its classes differ from those of the file.
    Own,
}

/// Tensors that a model read from a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The keys and modules around the tensors, such as `state_dict.model`, if there are any.
    pub key: Option<String>,
    /// Tensors read from the file, by their PyTorch names, in module order.
    pub taken: Vec<String>,
    /// Tensors that keep the model's values: those of the head with [`Head::Own`].
    pub kept: Vec<String>,
    /// Paths of the other tensors under the same prefix in the file, which the model does not have.
    pub unused: Vec<String>,
}

impl Loaded {
    /// Returns the number and the first paths of the tensors that the model does not have, if any.
    pub fn describe_unused(&self) -> Option<String> {
        let unused = &self.unused;
        let tensors = if unused.len() == 1 {
            "tensor"
        } else {
            "tensors"
        };
        (!unused.is_empty()).then(|| {
            format!(
                "left out {} {tensors} that the model does not have: {}",
                unused.len(),
                some(unused)
            )
        })
    }
}

/// A tensor of a file.
struct FileTensor {
    path: String,
    /// The Python type of the tensor if it cannot be read.
    tensor: Result<Tensor, String>,
    /// The place that two names of one tensor share, if the format has such places.
    place: Option<(String, usize)>,
}

/// Puts the weights of a file into `model`, as [`load_weights`], and lets the caller choose the
/// source of the head.
///
/// The head is the module of the last tensor in module order. Tensors that the model does not have
/// are ignored.
///
/// # Errors
/// As [`load_weights`]; [`WeightsError::Head`] if only the head does not fit.
pub fn load_weights_with<M: Module>(
    mut model: M,
    path: impl AsRef<Path>,
    head: Head,
) -> Result<(M, Loaded), WeightsError> {
    let path = path.as_ref();
    let own = own_tensors(&model);
    let last = own.last().map(|last| match last.name.rsplit_once('.') {
        Some((module, _)) => format!("{module}."),
        None => last.name.clone(),
    });
    let is_of_head = |name: &str| last.as_ref().is_some_and(|last| name.starts_with(last));
    let (kept, needed): (Vec<&OwnTensor>, Vec<&OwnTensor>) = own
        .iter()
        .partition(|own| head == Head::Own && is_of_head(&own.name));

    let (format, tensors, file_len) = open(path)?;
    let unreadable = |reason| WeightsError::Format {
        path: path.into(),
        format,
        reason,
    };
    if tensors.is_empty() {
        return Err(unreadable(
            "expected tensors by name, got none; save the network's `state_dict()`".to_owned(),
        ));
    }
    let names: Vec<&str> = needed.iter().map(|own| own.name.as_str()).collect();
    let paths: Vec<&str> = tensors.iter().map(|tensor| tensor.path.as_str()).collect();
    let is_same =
        |a: usize, b: usize| tensors[a].place.is_some() && tensors[a].place == tensors[b].place;
    let all_names: Vec<&str> = own.iter().map(|own| own.name.as_str()).collect();
    let matched =
        names::matching(&names, shared_modules(&all_names), &paths, is_same).map_err(|keys| {
            unreadable(format!(
                "expected one network, got it under the keys {}. Save only one of them.",
                keys.join(", ")
            ))
        })?;

    let fit = fit(&needed, &matched.places, &tensors, file_len).map_err(unreadable)?;
    let is_of_kept = |path: &str| kept.iter().any(|own| is_named(path, &own.name));
    let unused = matched
        .unused
        .iter()
        .map(|&place| paths[place])
        .filter(|path| !is_of_kept(path));
    let unused: Vec<String> = unused.map(str::to_owned).collect();
    let Fit {
        found,
        missing,
        misshaped,
    } = fit;
    if !missing.is_empty() || !misshaped.is_empty() {
        let is_head_alone = missing
            .iter()
            .chain(&misshaped)
            .all(|text| is_of_head(text));
        return Err(
            if is_head_alone && own.iter().any(|own| !is_of_head(&own.name)) {
                WeightsError::Head {
                    path: path.into(),
                    missing,
                    misshaped,
                }
            } else {
                WeightsError::Mismatch {
                    path: path.into(),
                    missing,
                    unexpected: unused,
                    misshaped,
                }
            },
        );
    }
    let types = own
        .iter()
        .map(|own| (own.path.clone(), own.dtype))
        .collect();
    let applied = model.apply(
        found,
        None,
        Some(Box::new(FromPyTorch(Arc::new(types)))),
        false,
    );
    if !applied.errors.is_empty() {
        let named = |path: &str| {
            own.iter()
                .find(|own| own.path == path)
                .map_or(path.to_owned(), |own| own.name.clone())
        };
        let errors = applied.errors.iter();
        let misshaped = errors
            .map(|error| shortened(describe(error, named)))
            .collect();
        return Err(mismatch(path, Vec::new(), misshaped));
    }
    let names = |own: &[&OwnTensor]| own.iter().map(|own| own.name.clone()).collect();
    let key = Some(matched.prefix).filter(|prefix| !prefix.is_empty());
    let loaded = Loaded {
        key,
        taken: names(&needed),
        kept: names(&kept),
        unused,
    };
    Ok((model, loaded))
}

/// Returns true if the last part of `path` is `name`.
fn is_named(path: &str, name: &str) -> bool {
    path.strip_suffix(name)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn mismatch(path: &Path, unexpected: Vec<String>, misshaped: Vec<String>) -> WeightsError {
    WeightsError::Mismatch {
        path: path.into(),
        missing: Vec::new(),
        unexpected,
        misshaped,
    }
}

/// The tensors of a file for a network, and those that do not fit it.
#[derive(Default)]
struct Fit {
    /// The tensors by their paths in the network.
    found: Vec<Tensor>,
    missing: Vec<String>,
    misshaped: Vec<String>,
}

/// Compares the tensors at `places` of a file of `file_len` bytes with the `needed` ones.
///
/// # Errors
/// The tensor that no file of this length can hold.
fn fit(
    needed: &[&OwnTensor],
    places: &[Option<usize>],
    tensors: &[FileTensor],
    file_len: u64,
) -> Result<Fit, String> {
    let mut fit = Fit::default();
    for (own, place) in needed.iter().zip(places) {
        let Some(place) = place else {
            fit.missing.push(own.name.clone());
            continue;
        };
        match &tensors[*place].tensor {
            Ok(tensor) => {
                // This comes before the comparison of shapes: a shape that a file of this length
                // cannot have means a damaged file.
                if let Some(reason) = too_large(tensor, file_len) {
                    return Err(reason);
                }
                let shape = tensor.shape.as_slice();
                if shape != own.shape {
                    fit.misshaped.push(format!(
                        "{}: expected {:?}, got {shape:?}",
                        own.name, own.shape
                    ));
                }
                let mut tensor = tensor.clone();
                tensor.name.clone_from(&own.path);
                fit.found.push(tensor);
            }
            Err(kind) => fit
                .misshaped
                .push(format!("{}: expected a dense tensor, got {kind}", own.name)),
        }
    }
    Ok(fit)
}

/// Returns the reason not to read a tensor: a stride of 0 repeats one element any number of times.
fn too_large(tensor: &Tensor, file_len: u64) -> Option<String> {
    let len = tensor.byte_len() as u64;
    (len > file_len + SLACK_BYTES).then(|| {
        format!(
            "{}: expected a tensor no larger than the file of {file_len} bytes, got {:?} of {len} bytes; save it again with \
             `contiguous()`",
            tensor.name,
            tensor.shape.as_slice()
        )
    })
}

/// Returns the format of a file, its tensors and its length. A pipe is rejected, because opening it
/// would wait.
fn open(path: &Path) -> Result<(&'static str, Vec<FileTensor>, u64), WeightsError> {
    let failed = |reason| WeightsError::Io {
        path: path.into(),
        reason,
    };
    let metadata = path.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other(
            "expected a regular file, got a folder, pipe or device",
        )));
    }
    let file = File::open(path).map_err(failed)?;
    let file_len = metadata.len();
    let mut header = Vec::new();
    (&file)
        .take(pytorch::HEADER_LEN)
        .read_to_end(&mut header)
        .map_err(failed)?;
    (&file).rewind().map_err(failed)?;
    // If a file has neither format, its name decides the format that the error expects.
    let is_other = header.starts_with(b"PK") || header.first() == Some(&0x80);
    let is_named = path
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case(SAFETENSORS))
        && !is_other;
    let (format, tensors) = if is_safetensors(&header, file_len) || is_named {
        (SAFETENSORS, of_safetensors(path))
    } else if let Some(kind) = other_kind(&header) {
        (PYTORCH, Err(format!("it is {kind}")))
    } else {
        (PYTORCH, pytorch::tensors(file, file_len, &header))
    };
    let tensors = tensors.map_err(|reason| WeightsError::Format {
        path: path.into(),
        format,
        reason: shortened(reason),
    })?;
    Ok((format, tensors, file_len))
}

/// Returns true if a file begins with the length of a JSON header that fits into it, and a JSON
/// object.
fn is_safetensors(header: &[u8], file_len: u64) -> bool {
    let len = header.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    len.is_some_and(|len| len < file_len) && header.get(8) == Some(&b'{')
}

/// Returns the kind of a file that people often take for weights.
fn other_kind(header: &[u8]) -> Option<&'static str> {
    let kinds: [(&[u8], &str); 6] = [
        (
            b"version https://git-lfs",
            "a pointer of Git LFS, not the file; fetch it with `git lfs pull`",
        ),
        (
            b"<",
            "a web page, not the file; check the address it was downloaded from",
        ),
        (
            b"{",
            "JSON text, such as an index of several files; merge the files into one",
        ),
        (b"\x1F\x8B", "compressed by gzip; unpack it with `gunzip`"),
        (
            b"\x89HDF",
            "HDF5, as Keras writes it; convert it to a PyTorch `state_dict` or safetensors",
        ),
        (
            b"\x08",
            "a protocol buffer, such as ONNX; convert it to a PyTorch `state_dict` or safetensors",
        ),
    ];
    kinds
        .into_iter()
        .find(|(magic, _)| header.starts_with(magic))
        .map(|(_, kind)| kind)
}

fn of_safetensors(path: &Path) -> Result<Vec<FileTensor>, String> {
    let mut store = SafetensorsStore::from_file(path);
    let tensors = store.get_all_tensors().map_err(|error| error.to_string())?;
    let tensors = tensors.values().cloned();
    Ok(tensors
        .map(|tensor| FileTensor {
            path: tensor.name.clone(),
            tensor: Ok(tensor),
            place: None,
        })
        .collect())
}

/// Writes all parameters and running statistics with PyTorch's names and layouts.
///
/// The file appears under its name only when it is complete and on disk. Until then an older file
/// stays.
///
/// # Errors
/// [`WeightsError::Write`] or [`WeightsError::Io`] if the file cannot be written.
pub fn save_safetensors<M: Module>(model: &M, path: impl AsRef<Path>) -> Result<(), WeightsError> {
    let path = path.as_ref();
    collect(model, SafetensorsStore::from_file(path).overwrite(true))
        .map(drop)
        .map_err(|reason| WeightsError::Write {
            path: path.into(),
            reason,
        })
}

/// Returns the content of the file that [`save_safetensors`] writes.
///
/// # Errors
/// [`WeightsError::Write`] if a tensor cannot be read from its device.
pub fn safetensors_bytes<M: Module>(model: &M) -> Result<Vec<u8>, WeightsError> {
    let store = collect(model, SafetensorsStore::from_bytes(None));
    store
        .and_then(|store| store.get_bytes().map_err(|error| error.to_string()))
        .map_err(|reason| WeightsError::Write {
            path: "main memory".into(),
            reason,
        })
}

/// Returns `store` with all parameters and running statistics in PyTorch's layout.
fn collect<M: Module>(model: &M, store: SafetensorsStore) -> Result<SafetensorsStore, String> {
    let store = store
        .with_to_adapter(ToPyTorch::of(model))
        .skip_enum_variants(true);
    let mut store = store.clear_metadata().metadata("format", "pt");
    // `valid` flushes the running statistics and takes the parameters off the autodiff device.
    model
        .valid()
        .save_into(&mut store)
        .map_err(|error| error.to_string())?;
    Ok(store)
}

/// Returns the beginning of a reason. Some readers print a whole unexpected object, however large.
fn shortened(mut reason: String) -> String {
    if reason.len() > MAX_REASON_BYTES {
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        reason.push('…');
    }
    reason
}

/// Describes an error with the names of the file's tensors, which `named` returns for a path.
fn describe(error: &ApplyError, named: impl Fn(&str) -> String) -> String {
    match error {
        ApplyError::ShapeMismatch {
            path,
            expected,
            found,
        } => {
            let expected = expected.as_slice();
            let found = found.as_slice();
            format!("{}: expected {expected:?}, got {found:?}", named(path))
        }
        ApplyError::DTypeMismatch {
            path,
            expected,
            found,
        } => {
            format!("{}: expected {expected:?}, got {found:?}", named(path))
        }
        ApplyError::AdapterError { path, message } | ApplyError::LoadError { path, message } => {
            format!("{}: {message}", named(path))
        }
    }
}
