//! Reading PyTorch checkpoints, whatever else they contain.
//!
//! In: a file of `torch.save` (a zip archive, or pickles one after the other) or of `pickle.dump`.
//! Out: its tensors by path, not yet read.
//! Invariant: nothing in the file is executed. Memory is bounded by a small multiple of the file's
//! length.

mod archive;
mod legacy;
mod objects;
mod pickle;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Cursor};
use std::sync::Arc;

use burn::store::burn_pack::{Bytes, Error as PackError, Tensor};

use archive::Place;
use objects::{Entry, Storage, View};

use super::FileTensor;
use super::SLACK_BYTES;

/// The name of the pickle in an archive, in the archive's only folder.
const PICKLE: &str = "data.pkl";

/// The place of the magic number in a tar header.
const TAR_MAGIC: std::ops::Range<usize> = 257..262;

/// The number of bytes that decide the format of a file.
pub(super) const HEADER_LEN: u64 = TAR_MAGIC.end as u64;

/// Returns the tensors of a checkpoint of `file_len` bytes that starts with `header`.
///
/// # Errors
/// The reason that the file is no checkpoint.
pub(super) fn tensors(file: File, file_len: u64, header: &[u8]) -> Result<Vec<FileTensor>, String> {
    if header.get(TAR_MAGIC) == Some(b"ustar") {
        return Err(
            "expected a zip archive or a pickle, got the tar archive of PyTorch before 0.1.10; load it and save it \
                    again with a newer PyTorch"
                .to_owned(),
        );
    }
    let (pickle, storages) = if header.starts_with(b"PK") {
        of_archive(&file, file_len)?
    } else {
        let mut stream = BufReader::new(&file);
        match header.first() {
            _ if legacy::begins(&header[..header.len().min(legacy::MAGIC_END)]) => {
                legacy::read(&mut stream)?
            }
            Some(0x80 | b'(' | b'}' | b']' | b'c') => (pickle::read(&mut stream)?, HashMap::new()),
            _ => {
                return Err(
                    "expected safetensors, a zip archive or a pickle, got another kind of file"
                        .to_owned(),
                );
            }
        }
    };
    let entries = objects::tensors(&pickle)?;
    let file = Arc::new(file);
    let opened = entries
        .into_iter()
        .map(|Entry { path, tensor }| FileTensor {
            place: tensor.as_ref().ok().and_then(View::place),
            tensor: tensor.map(|view| deferred(&path, view, &storages, &file)),
            path,
        });
    Ok(opened.collect())
}

/// Returns the pickle of an archive and the places of its storages.
fn of_archive(
    file: &File,
    file_len: u64,
) -> Result<(pickle::Pickle, HashMap<String, Place>), String> {
    let entries = archive::entries(file, file_len)?;
    let roots = entries.keys().filter_map(|name| name.strip_suffix(PICKLE));
    let root = roots
        .filter(|root| root.is_empty() || root.ends_with('/'))
        .min_by_key(|root| root.len());
    let root = root.ok_or(
        "expected an entry data.pkl, as torch.save writes it, got another kind of zip archive",
    )?;
    let whole = |place: &Place, what: &str| {
        if place.len > file_len + SLACK_BYTES {
            return Err(format!(
                "expected a {what} shorter than the file of {file_len} bytes, got one that unpacks to {}; save it again with \
                 torch.save, which does not compress",
                place.len
            ));
        }
        place
            .read(file, 0, place.len as usize)
            .map_err(|error| format!("{what}: {error}"))
    };
    if let Some(place) = entries.get(&format!("{root}byteorder"))
        && whole(place, "byteorder")?.starts_with(b"big")
    {
        return Err(archive::big_endian());
    }
    let pickle = whole(&entries[&format!("{root}{PICKLE}")], "pickle")?;
    let pickle = pickle::read(&mut Cursor::new(pickle))?;
    let folder = format!("{root}data/");
    let storages = entries
        .iter()
        .filter_map(|(name, place)| Some((name.strip_prefix(&folder)?.to_owned(), place.clone())));
    Ok((pickle, storages.collect()))
}

/// Returns a tensor that is read when it is needed.
fn deferred(path: &str, view: View, storages: &HashMap<String, Place>, file: &Arc<File>) -> Tensor {
    let place = match &view.storage {
        Storage::Named(key) => storages.get(key).cloned(),
        Storage::Bytes(_) => None,
    };
    let shape: Vec<usize> = view.shape.clone();
    let byte_len = shape
        .iter()
        .fold(view.dtype.size(), |len, &size| len.saturating_mul(size));
    let file = Arc::clone(file);
    let name = path.to_owned();
    Tensor::deferred(
        path.to_owned(),
        view.dtype,
        shape,
        None,
        byte_len,
        move || {
            let bytes = read(&view, place.as_ref(), &file)
                .map_err(|reason| PackError::IoError(format!("{name}: {reason}")))?;
            Ok(Bytes::from_bytes_vec(bytes))
        },
    )
}

/// Returns the bytes of a tensor in row-major order.
fn read(view: &View, place: Option<&Place>, file: &File) -> Result<Vec<u8>, String> {
    let View {
        storage,
        dtype,
        offset,
        shape,
        stride,
    } = view;
    let size = dtype.size();
    let too_large =
        || format!("shape {shape:?} with strides {stride:?} is larger than its storage");
    if shape.len() != stride.len() {
        return Err(too_large());
    }
    if shape.contains(&0) {
        return Ok(Vec::new());
    }
    let last = shape
        .iter()
        .zip(stride)
        .try_fold(0_usize, |last, (&len, &step)| {
            last.checked_add((len - 1).checked_mul(step)?)
        });
    let extent = last
        .and_then(|last| last.checked_add(1)?.checked_mul(size))
        .ok_or_else(too_large)?;
    let from = offset.checked_mul(size).ok_or_else(too_large)?;
    let to = from.checked_add(extent).ok_or_else(too_large)?;
    let mut bytes = match (storage, place) {
        (Storage::Bytes(bytes), _) => bytes.get(from..to).ok_or_else(too_large)?.to_vec(),
        (Storage::Named(_), Some(place)) => place
            .read(file, from, to)
            .map_err(|error| error.to_string())?,
        (Storage::Named(key), None) => return Err(format!("storage {key} is not in the file")),
    };
    if dtype.is_bool() {
        bytes
            .iter_mut()
            .for_each(|byte| *byte = u8::from(*byte != 0));
    }
    let in_order = shape
        .iter()
        .zip(stride)
        .rev()
        .try_fold(1, |step, (&len, &stride)| {
            (len == 1 || stride == step).then_some(step.saturating_mul(len))
        });
    if in_order.is_some() {
        return Ok(bytes);
    }
    let len: usize = shape.iter().product();
    let mut gathered = Vec::with_capacity(len * size);
    let mut index = vec![0; shape.len()];
    for _ in 0..len {
        let at = index
            .iter()
            .zip(stride)
            .map(|(index, step)| index * step)
            .sum::<usize>()
            * size;
        gathered.extend_from_slice(&bytes[at..at + size]);
        for (index, &len) in index.iter_mut().zip(shape).rev() {
            *index += 1;
            if *index < len {
                break;
            }
            *index = 0;
        }
    }
    Ok(gathered)
}
