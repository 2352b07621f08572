//! Downloads CIFAR-10 or CIFAR-100 from its official address (feature `download`).
//!
//! In: a data set and a folder. Out: the folder of the release inside the folder, for
//! [`cifar::open`](crate::cifar::open).
//! Invariant: the release's folder appears only after the archive's sha256 is verified and all
//! files are unpacked.
//! Source: <https://www.cs.toronto.edu/~kriz/cifar.html>.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::Agent;

use crate::cifar::Cifar;
use crate::error::DatasetError;
use crate::file::sha256_of;
use crate::progress::Counted;

mod unpack;

pub use unpack::unpack;

/// Maximum bytes of an archive. The larger official archive has 170 MB.
const MAX_ARCHIVE_BYTES: u64 = 200_000_000;

/// Address and digest of an archive.
struct Source {
    url: String,
    /// Digest of the archive in hex.
    sha256: String,
    cifar: Cifar,
}

impl Source {
    /// Returns the official archive. Other public downloaders (TFDS, MLDatasets.jl) check the same
    /// digests.
    fn official(cifar: Cifar) -> Self {
        let (name, sha256) = match cifar {
            Cifar::Ten => (
                "cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
            Cifar::Hundred => (
                "cifar-100-binary.tar.gz",
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        };
        Self {
            url: format!("https://www.cs.toronto.edu/~kriz/{name}"),
            sha256: sha256.into(),
            cifar,
        }
    }

    fn error(&self, reason: impl ToString, num_bytes: u64) -> DatasetError {
        DatasetError::Download {
            url: self.url.clone(),
            reason: reason.to_string(),
            remedy: if num_bytes > 0 {
                format!("Run it again to continue after {num_bytes} bytes")
            } else {
                format!(
                    "Check the network, or fetch the archive elsewhere and unpack it so that there is a folder {}",
                    self.cifar.folder()
                )
            },
        }
    }
}

/// Downloads, verifies and unpacks a data set into `dir`. Returns the release's folder.
///
/// Does nothing if the folder exists. An interrupted download is resumed. `progress` receives the
/// number of bytes so far and the total number, if the server sends it. Only one process may
/// download to a folder at a time.
///
/// # Errors
/// Returns an error if there is no network, if the server does not send the archive, if the bytes
/// are not the published ones, or if the folder cannot be written.
pub fn download(
    cifar: Cifar,
    dir: impl AsRef<Path>,
    progress: &mut dyn FnMut(u64, Option<u64>),
) -> Result<PathBuf, DatasetError> {
    // A stalled connection ends in an error. A slow connection does not.
    let agent = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(Duration::from_secs(30)))
        .timeout_recv_response(Some(Duration::from_secs(60)))
        .timeout_per_read(Some(Duration::from_secs(60)))
        .build()
        .new_agent();
    obtain(&agent, &Source::official(cifar), dir.as_ref(), progress)
}

fn obtain(
    agent: &Agent,
    source: &Source,
    dir: &Path,
    progress: &mut dyn FnMut(u64, Option<u64>),
) -> Result<PathBuf, DatasetError> {
    if let Some(folder) = source.cifar.find(dir) {
        return Ok(folder);
    }
    let is_new = !dir.exists();
    fs::create_dir_all(dir).map_err(DatasetError::io("create", dir))?;
    let archive = dir.join(format!("{}.tar.gz.part", source.cifar.folder()));
    let received =
        receive(agent, source, &archive, progress).and_then(|()| check(source, &archive));
    received.inspect_err(|_| {
        if is_new {
            // Downloaded data stay in the folder. An empty folder is removed.
            let _ = fs::remove_dir(dir);
        }
    })?;
    let folder = unpack(source.cifar, &archive, dir)?;
    fs::remove_file(&archive).map_err(DatasetError::io("remove", &archive))?;
    Ok(folder)
}

/// Downloads the rest of the file at `path` after the bytes of an earlier attempt.
fn receive(
    agent: &Agent,
    source: &Source,
    path: &Path,
    progress: &mut dyn FnMut(u64, Option<u64>),
) -> Result<(), DatasetError> {
    let mut done = fs::metadata(path).map_or(0, |metadata| metadata.len());
    // A server that compresses on the fly would make ranges and digests meaningless.
    let mut request = agent.get(&source.url).header("Accept-Encoding", "identity");
    if done > 0 {
        request = request.header("Range", format!("bytes={done}-"));
    }
    let response = request.call().map_err(|error| source.error(error, done))?;
    let header = |name| response.headers().get(name)?.to_str().ok();
    let mut options = OpenOptions::new();
    match response.status().as_u16() {
        200 => {
            done = 0;
            options.write(true).create(true).truncate(true);
        }
        206 => {
            let range = header("content-range").unwrap_or_default();
            if !range.starts_with(&format!("bytes {done}-")) {
                let reason =
                    format!("asked for the bytes from {done} on, got the range \"{range}\"");
                return Err(source.error(reason, done));
            }
            options.append(true);
        }
        // The file is complete or too long. The digest decides.
        416 if done > 0 => return Ok(()),
        status => {
            return Err(source.error(format!("the server answered with status {status}"), done));
        }
    }
    let total = header("content-length")
        .and_then(|length| length.parse::<u64>().ok())
        .map(|length| done + length);
    total.map_or(Ok(()), |total| refuse_long(source, total))?;
    let file = options
        .open(path)
        .map_err(DatasetError::io("write", path))?;
    progress(done, total);
    let done = append(
        source,
        response.into_body().into_reader(),
        (file, path),
        done,
        |done| progress(done, total),
    )?;
    match total {
        Some(total) if done < total => {
            let reason = format!("expected {total} bytes, the connection ended after {done}");
            Err(source.error(reason, done))
        }
        _ => Ok(()),
    }
}

/// Appends `body` to the `done` bytes of the file. Returns the new number of bytes.
fn append(
    source: &Source,
    body: impl Read,
    (mut file, path): (File, &Path),
    mut done: u64,
    mut progress: impl FnMut(u64),
) -> Result<u64, DatasetError> {
    let mut body = Counted(body);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let len = match body.read(&mut buffer) {
            Ok(0) => return Ok(done),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(source.error(error, done)),
        };
        // A server that does not send the length could fill the disk.
        if let Err(error) = refuse_long(source, done + len as u64) {
            fs::remove_file(path).map_err(DatasetError::io("remove", path))?;
            return Err(error);
        }
        file.write_all(&buffer[..len])
            .map_err(DatasetError::io("write", path))?;
        done += len as u64;
        progress(done);
    }
}

fn refuse_long(source: &Source, len: u64) -> Result<(), DatasetError> {
    if len <= MAX_ARCHIVE_BYTES {
        return Ok(());
    }
    Err(source.error(
        format!("expected at most {MAX_ARCHIVE_BYTES} bytes, got {len}"),
        0,
    ))
}

/// Compares the archive's digest with the published one. Removes a wrong archive, because resuming
/// its download could never succeed.
fn check(source: &Source, path: &Path) -> Result<(), DatasetError> {
    let got = sha256_of(path)?;
    if got == source.sha256 {
        return Ok(());
    }
    fs::remove_file(path).map_err(DatasetError::io("remove", path))?;
    let expected = &source.sha256;
    let problem =
        format!("expected sha256 {expected}, got {got}; the file was removed. Download it again");
    Err(DatasetError::invalid(path, problem))
}

#[cfg(test)]
mod tests;
