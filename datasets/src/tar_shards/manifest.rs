//! Digests of a folder's shards, from its `MANIFEST`.
//!
//! In: lines in the format of `sha256sum`. Out: the digest of a split.
//! Invariant: a listed shard exists, and a shard that may have changed is hashed.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::index::{Identity, ShardIndex};
use super::{MANIFEST, MAX_TEXT_BYTES};
use crate::error::DatasetError;
use crate::file::{read_text, sha256_of};
use crate::memory::to_hex;
use crate::split::split_of;

/// Digests of all shards, by name.
pub(super) struct Manifest {
    text: String,
    identity: Identity,
}

impl Manifest {
    /// Reads the manifest of a folder, if it has one.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, DatasetError> {
        let path = dir.join(MANIFEST);
        if !path.exists() {
            return Ok(None);
        }
        let identity = Identity::of(&path)?;
        let text = read_text(&path, MAX_TEXT_BYTES)?;
        Ok(Some(Self { text, identity }))
    }

    /// Returns digests and names.
    fn lines(&self) -> impl Iterator<Item = (&str, &str)> {
        self.text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once("  "))
    }

    fn digest(&self, name: &str) -> Option<&str> {
        self.lines()
            .find(|(_, listed)| *listed == name)
            .map(|(digest, _)| digest)
    }

    /// Returns the listed digest of a shard that may have changed.
    pub(super) fn doubted(&self, name: &str, shard: Identity, was_known: bool) -> Option<&str> {
        if was_known || shard.is_newer_than(&self.identity) {
            self.digest(name)
        } else {
            None
        }
    }

    /// Returns one digest of the digests of a split's shards, or `None` if any is missing.
    pub(super) fn digest_of_split(
        &self,
        dir: &Path,
        split: &str,
        indices: &[(String, ShardIndex)],
    ) -> Result<Option<String>, DatasetError> {
        let is_there = |name: &str| indices.iter().any(|(indexed, _)| indexed == name);
        let of_split = |name: &str| split_of(name, split).is_some_and(|(named, _)| named == split);
        if let Some((_, name)) = self
            .lines()
            .find(|(_, name)| of_split(name) && !is_there(name) && !dir.join(name).exists())
        {
            return Err(DatasetError::Missing {
                what: name.to_owned(),
                path: dir.to_path_buf(),
                expected: "every shard that MANIFEST lists".to_owned(),
                remedy: "Fetch it again, or remove MANIFEST to do without it",
            });
        }
        let mut digest = Sha256::new();
        for (name, _) in indices {
            let Some(of_shard) = self.digest(name) else {
                return Ok(None);
            };
            digest.update(of_shard);
        }
        Ok(Some(to_hex(&digest.finalize())))
    }
}

/// Rejects a shard whose digest differs from the manifest's.
pub(super) fn expect_digest(path: &Path, expected: &str) -> Result<(), DatasetError> {
    let got = sha256_of(path)?;
    if got.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    let problem = format!(
        "expected sha256 {expected}, as MANIFEST says, got {got}. Fetch the shard again, or make \
         MANIFEST again (sha256sum *.tar > MANIFEST)"
    );
    Err(DatasetError::invalid(path, problem))
}
