//! The zip archives that `torch.save` writes.
//!
//! In: a file. Out: the place of each entry. Invariant: no entry lies outside the file. The crate
//! `zip` does not fit: it scans for a second directory of an archive, and it rejects files by the
//! length of their names.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use flate2::Crc;
use flate2::read::DeflateDecoder;

use crate::pretrained::SLACK_BYTES;

/// The place of an entry's bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) start: u64,
    pub(super) len: u64,
    /// The number of bytes in the file.
    pub(super) stored: u64,
    pub(super) is_deflated: bool,
    /// `None` where no checksum was written.
    pub(super) crc: Option<u32>,
}

impl Place {
    /// Returns the bytes `from..to` of the entry if the file has them.
    pub(super) fn read(&self, file: &File, from: usize, to: usize) -> io::Result<Vec<u8>> {
        if to as u64 > self.len || from > to {
            return Err(io::Error::other(format!(
                "expected bytes {from} to {to} of a storage of {}",
                self.len
            )));
        }
        if self.is_deflated && to as u64 > file.metadata()?.len() + SLACK_BYTES {
            return Err(io::Error::other(format!(
                "a compressed storage unpacks to {to} bytes, more than the file has"
            )));
        }
        let mut bytes = vec![0; to - from];
        if self.is_deflated {
            let stored = FileRange {
                file,
                at: self.start,
                end: self.start + self.stored,
            };
            let mut decoder = DeflateDecoder::new(stored);
            io::copy(&mut decoder.by_ref().take(from as u64), &mut io::sink())?;
            decoder.read_exact(&mut bytes)?;
        } else {
            file.read_exact_at(&mut bytes, self.start + from as u64)?;
        }
        if bytes.len() as u64 == self.len
            && let Some(expected) = self.crc
        {
            let mut crc = Crc::new();
            crc.update(&bytes);
            if crc.sum() != expected {
                return Err(io::Error::other(
                    "the checksum is wrong: the file is damaged",
                ));
            }
        }
        Ok(bytes)
    }
}

/// A part of a file as a stream.
struct FileRange<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for FileRange<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = usize::try_from(self.end.saturating_sub(self.at))
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = self.file.read_at(&mut buffer[..len], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

pub(super) fn big_endian() -> String {
    "expected numbers with the low byte first, got those of a big-endian machine; save it again on another".to_owned()
}

/// The longest comment of an archive.
const MAX_COMMENT: u64 = u16::MAX as u64;

const END: &[u8] = b"PK\x05\x06";
const END_LEN: usize = 22;
const LOCATOR: &[u8] = b"PK\x06\x07";
const LOCATOR_LEN: usize = 20;
const WIDE_END: &[u8] = b"PK\x06\x06";
const WIDE_END_LEN: usize = 56;
const ENTRY: &[u8] = b"PK\x01\x02";
const ENTRY_LEN: usize = 46;
const LOCAL: &[u8] = b"PK\x03\x04";
const LOCAL_LEN: usize = 30;

/// Returns the entries of the archive by name.
///
/// # Errors
/// The reason that it has no directory, or that its directory names bytes outside the file.
pub(super) fn entries(file: &File, file_len: u64) -> Result<HashMap<String, Place>, String> {
    let directory = directory(file, file_len)?;
    let mut entries = HashMap::new();
    let mut rest = directory.as_slice();
    while rest.starts_with(ENTRY) && rest.len() >= ENTRY_LEN {
        let lens = [28, 30, 32].map(|at| usize::from(u16_at(rest, at)));
        let next = ENTRY_LEN + lens.iter().sum::<usize>();
        if next > rest.len() {
            break;
        }
        let name = String::from_utf8_lossy(&rest[ENTRY_LEN..][..lens[0]]).into_owned();
        // The number of bytes, the number of bytes in the file, and the place of the local header.
        // If one is at its maximum, the extra field has it in 64 bits.
        let mut numbers = [24, 20, 42].map(|at| u64::from(u32_at(rest, at)));
        widen(&mut numbers, &rest[ENTRY_LEN + lens[0]..][..lens[1]]);
        let [len, stored, local] = numbers;
        let outside = || format!("entry {name} lies outside the file");
        let mut header = [0; LOCAL_LEN];
        file.read_exact_at(&mut header, local)
            .map_err(|_| outside())?;
        if !header.starts_with(LOCAL) {
            return Err(outside());
        }
        // Only the lengths in the local header count: PyTorch aligns the data with an extra field
        // that the directory does not have.
        let start = local
            + (LOCAL_LEN as u64)
            + u64::from(u16_at(&header, 26))
            + u64::from(u16_at(&header, 28));
        if start.checked_add(stored).is_none_or(|end| end > file_len) {
            return Err(outside());
        }
        let method = u16_at(rest, 10);
        let is_deflated = method == 8;
        if method != 0 && !is_deflated || method == 0 && len != stored {
            return Err(format!(
                "entry {name} is compressed in a way that torch.save does not"
            ));
        }
        let crc = Some(u32_at(rest, 16)).filter(|&crc| crc != 0);
        entries.insert(
            name,
            Place {
                start,
                len,
                stored,
                is_deflated,
                crc,
            },
        );
        rest = &rest[next..];
    }
    Ok(entries)
}

/// Returns the bytes of the directory.
fn directory(file: &File, file_len: u64) -> Result<Vec<u8>, String> {
    let no_directory = || "the archive has no directory: the file is cut off".to_owned();
    let read = |from: u64, len: u64| {
        let end = from
            .checked_add(len)
            .filter(|&end| end <= file_len)
            .ok_or_else(no_directory)?;
        let mut bytes = vec![0; (end - from) as usize];
        file.read_exact_at(&mut bytes, from)
            .map_err(|error| error.to_string())?;
        Ok::<_, String>(bytes)
    };
    let tail_len = file_len.min(MAX_COMMENT + (END_LEN + LOCATOR_LEN) as u64);
    let tail = read(file_len - tail_len, tail_len)?;
    let is_end = |at: &usize| tail[*at..].starts_with(END);
    let at = (0..=tail.len().saturating_sub(END_LEN))
        .rev()
        .find(is_end)
        .ok_or_else(no_directory)?;
    if tail.len() < END_LEN {
        return Err(no_directory());
    }
    let end = &tail[at..];
    let mut place = (u64::from(u32_at(end, 16)), u64::from(u32_at(end, 12)));
    let locator = at
        .checked_sub(LOCATOR_LEN)
        .map(|at| &tail[at..])
        .filter(|locator| locator.starts_with(LOCATOR));
    if let Some(locator) = locator {
        let wide = read(u64_at(locator, 8), WIDE_END_LEN as u64)?;
        if wide.starts_with(WIDE_END) {
            place = (u64_at(&wide, 48), u64_at(&wide, 40));
        }
    }
    read(place.0, place.1)
}

/// Replaces the numbers that do not fit into 32 bits by those in the extra field of an entry.
fn widen(numbers: &mut [u64; 3], mut extra: &[u8]) {
    while extra.len() >= 4 {
        let kind = u16_at(extra, 0);
        let len = usize::from(u16_at(extra, 2));
        let Some(field) = extra.get(4..4 + len) else {
            return;
        };
        if kind == 1 {
            let mut wide = field.chunks_exact(8).map(|bytes| u64_at(bytes, 0));
            for number in numbers
                .iter_mut()
                .filter(|number| **number == u64::from(u32::MAX))
            {
                *number = wide.next().unwrap_or(*number);
            }
        }
        extra = &extra[4 + len..];
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
