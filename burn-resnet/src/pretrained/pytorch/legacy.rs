//! The format of `torch.save` before PyTorch 1.6. Newer versions write it with
//! `_use_new_zipfile_serialization=False`.
//!
//! In: a stream of pickles (magic number, version, byte order, saved object, keys of the storages),
//! then for each storage its number of elements and its bytes. Out: the saved object and the place
//! of each storage.

use std::collections::HashMap;
use std::io::{BufRead, Cursor, Read, Seek, SeekFrom};

use burn::tensor::DType;

use super::archive::{Place, big_endian};
use super::objects::StorageReference;
use super::pickle::{self, Node, Pickle};

/// The magic number 0x1950a86a20f9469cfc6c as an operation of protocol 2 and above.
const MAGIC: [u8; 10] = [0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19];

/// The same number as protocols 0 and 1 write it.
const MAGIC_DIGITS: &[u8] = b"119547037146038801333356";

/// The latest end of the magic number: protocol 4 has a frame before it.
pub(super) const MAGIC_END: usize = 64;

/// Returns true if a file that begins with `header` has this format.
pub(super) fn begins(header: &[u8]) -> bool {
    let begins_with = |magic: &[u8]| header.windows(magic.len()).any(|window| window == magic);
    begins_with(&MAGIC) || begins_with(MAGIC_DIGITS)
}

/// Returns the saved object and its storages.
///
/// # Errors
/// The reason that the stream has another format, or ends early.
pub(super) fn read(
    stream: &mut (impl BufRead + Seek),
) -> Result<(Pickle, HashMap<String, Place>), String> {
    pickle::read(stream)?;
    pickle::read(stream)?;
    let system = pickle::read(stream)?;
    if let Node::Dict(entries) = system.node(system.root) {
        let order = entries
            .iter()
            .find(|&&(key, _)| system.text(key).as_deref() == Some("little_endian"));
        if order.is_some_and(|&(_, little)| matches!(system.node(little), Node::Bool(false))) {
            return Err(big_endian());
        }
    }
    let saved = pickle::read(stream)?;
    let sizes: HashMap<String, usize> = saved
        .nodes()
        .iter()
        .filter_map(|node| match node {
            Node::Reference(id) => StorageReference::of(&saved, *id),
            _ => None,
        })
        .map(|reference| {
            (
                reference.key,
                reference.dtype.map_or(1, |dtype| dtype.size()),
            )
        })
        .collect();
    let keys = pickle::read(stream)?;
    let mut storages = HashMap::new();
    for &key in keys
        .sequence(keys.root)
        .ok_or("it has no list of storages")?
    {
        let key = keys.text(key).ok_or("a storage has no name")?;
        let mut count = [0; 8];
        stream
            .read_exact(&mut count)
            .map_err(|error| format!("storage {key} is missing: {error}"))?;
        let start = stream
            .stream_position()
            .map_err(|error| error.to_string())?;
        // If the type cannot be read, the size of an element is unknown, and so is the start of the
        // next storage.
        let size = sizes
            .get(&key)
            .copied()
            .ok_or_else(|| format!("storage {key} is of no tensor"))?;
        let len = u64::from_le_bytes(count).checked_mul(size as u64);
        let len = len
            .filter(|&len| i64::try_from(len).is_ok())
            .ok_or_else(|| format!("storage {key} is too long"))?;
        stream
            .seek(SeekFrom::Current(len as i64))
            .map_err(|error| error.to_string())?;
        storages.insert(
            key,
            Place {
                start,
                len,
                stored: len,
                is_deflated: false,
                crc: None,
            },
        );
    }
    let position = stream.stream_position();
    let end = position.and_then(|position| Ok((position, stream.seek(SeekFrom::End(0))?)));
    let (position, end) = end.map_err(|error| error.to_string())?;
    if position > end {
        return Err(format!(
            "expected {position} bytes, got {end}: the file is cut off"
        ));
    }
    Ok((saved, storages))
}

/// Returns the type and the bytes of the storage that is the whole of a file in memory.
pub(super) fn one_storage(file: &[u8]) -> Option<(DType, Vec<u8>)> {
    let mut stream = Cursor::new(file);
    let (saved, storages) = read(&mut stream).ok()?;
    let Node::Reference(id) = saved.node(saved.root) else {
        return None;
    };
    let reference = StorageReference::of(&saved, *id)?;
    let place = storages.get(&reference.key)?;
    stream.set_position(place.start);
    let mut bytes = Vec::new();
    stream.take(place.len).read_to_end(&mut bytes).ok()?;
    Some((reference.dtype?, bytes))
}
