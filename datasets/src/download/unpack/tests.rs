//! Tests of damaged and malicious archives.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};
use tempfile::TempDir;

use super::*;

const TRAIN: &str = "cifar-100-binary/train.bin";
const TEST: &str = "cifar-100-binary/test.bin";

/// Returns a header with the raw name, because the library rejects names that leave the folder.
fn header(path: &str, kind: EntryType, len: u64) -> Header {
    let mut header = Header::new_gnu();
    header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
    header.set_entry_type(kind);
    header.set_size(len);
    header.set_mode(0o644);
    header.set_cksum();
    header
}

/// Returns an entry of this kind and content.
pub(in crate::download) fn entry(path: &str, kind: EntryType, content: &[u8]) -> Vec<u8> {
    let mut bytes = header(path, kind, content.len() as u64).as_bytes().to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(path: &str) -> Vec<u8> {
    entry(path, EntryType::Regular, &[1; 3074])
}

fn link(path: &str, kind: EntryType, target: &str) -> Vec<u8> {
    let mut header = header(path, kind, 0);
    header.set_link_name(target).unwrap();
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn compressed(tar: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(tar).unwrap();
    encoder.finish().unwrap()
}

/// Unpacks into the folder `data` of a new temporary folder. Returns that folder and the result.
fn unpacked(archive: &[u8]) -> (TempDir, Result<PathBuf, DatasetError>) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    fs::create_dir(&dir).unwrap();
    let path = root.path().join("archive.tar.gz");
    fs::write(&path, archive).unwrap();
    let result = unpack(Cifar::Hundred, &path, &dir);
    (root, result)
}

/// Unpacks an archive that must be rejected, checks that no files remain, and returns the error.
fn refused(archive: &[u8]) -> String {
    let (root, result) = unpacked(archive);
    let text = result.unwrap_err().to_string();
    assert!(text.contains("archive.tar.gz"), "{text}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "{text}");
    assert_eq!(
        fs::read_dir(root.path().join("data")).unwrap().count(),
        0,
        "{text}"
    );
    text
}

/// Returns a gzipped archive.
pub(in crate::download) fn tar(entries: &[Vec<u8>]) -> Vec<u8> {
    compressed(&[entries.concat(), vec![0; 1024]].concat())
}

#[test]
fn an_archive_fetched_elsewhere_is_unpacked() {
    let (_root, result) = unpacked(&tar(&[file(TRAIN), file(TEST)]));
    let folder = result.unwrap();
    assert_eq!(fs::read(folder.join("train.bin")).unwrap(), [1; 3074]);
    crate::cifar::open(folder, Cifar::Hundred).unwrap();
}

#[test]
fn links_devices_and_pipes_are_refused() {
    let whole = [file(TRAIN), file(TEST)].concat();
    for odd in [
        link("cifar-100-binary/a", EntryType::Symlink, "/etc/passwd"),
        link(
            "cifar-100-binary/b",
            EntryType::Link,
            "../../archive.tar.gz",
        ),
        entry("cifar-100-binary/c", EntryType::Char, &[]),
        entry("cifar-100-binary/d", EntryType::Block, &[]),
        entry("cifar-100-binary/e", EntryType::Fifo, &[]),
    ] {
        let text = refused(&tar(&[whole.clone(), odd]));
        assert!(
            text.contains("expected plain files in cifar-100-binary, got cifar-100-binary/"),
            "{text}"
        );
    }
}

#[test]
fn a_sparse_file_is_refused() {
    let text = refused(&tar(&[
        file(TRAIN),
        file(TEST),
        entry("cifar-100-binary/f", EntryType::GNUSparse, &[]),
    ]));
    assert!(text.contains("cannot be unpacked"), "{text}");
}

#[test]
fn a_link_that_a_later_file_would_be_written_through_is_refused_before_it() {
    let odd = link("cifar-100-binary", EntryType::Symlink, "..");
    let text = refused(&tar(&[odd, file(TRAIN), file(TEST)]));
    assert!(
        text.contains("expected plain files in cifar-100-binary, got cifar-100-binary"),
        "{text}"
    );
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for path in [
        "../evil",
        "/evil",
        "cifar-100-binary/../evil",
        "cifar-100-binary/a/../../../evil",
        "evil",
        "..",
    ] {
        let text = refused(&tar(&[file(TRAIN), file(TEST), file(path)]));
        assert!(
            text.contains("expected plain files in cifar-100-binary, got"),
            "{text}"
        );
    }
}

#[test]
fn a_long_name_that_leads_elsewhere_is_refused() {
    let long = entry(
        "././@LongLink",
        EntryType::GNULongName,
        b"cifar-100-binary/../../evil\0",
    );
    refused(&tar(&[file(TRAIN), file(TEST), long, file("harmless")]));
}

#[test]
fn a_name_that_comes_twice_is_refused() {
    let text = refused(&tar(&[
        file(TRAIN),
        file(TEST),
        file("./cifar-100-binary/./train.bin"),
    ]));
    assert!(
        text.contains("expected each file once") && text.ends_with("train.bin twice"),
        "{text}"
    );
}

#[test]
fn many_small_files_are_refused() {
    let files: Vec<u8> = (0..100)
        .flat_map(|i| entry(&format!("cifar-100-binary/{i}"), EntryType::Regular, &[]))
        .collect();
    assert!(refused(&tar(&[files])).contains("expected at most 32 files, got more"));
}

/// Returns an archive with one entry of 2 GiB of zeros, compressed to 2 MB.
fn bomb(path: &str, kind: EntryType) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder
        .write_all(header(path, kind, 2 << 30).as_bytes())
        .unwrap();
    let zeros = vec![0; 1 << 20];
    // The archive is rejected after 200 MB, so 300 MB suffice.
    (0..300).for_each(|_| encoder.write_all(&zeros).unwrap());
    encoder.finish().unwrap()
}

#[test]
fn an_archive_that_expands_without_end_is_refused_in_whatever_it_expands() {
    for (path, kind) in [
        (TRAIN, EntryType::Regular),
        ("cifar-100-binary", EntryType::Directory),
        ("././@LongLink", EntryType::GNULongName),
        ("pax", EntryType::XHeader),
    ] {
        let text = refused(&bomb(path, kind));
        assert!(
            text.contains("expected at most 200000000 bytes, got more"),
            "{text}"
        );
    }
}

#[test]
fn an_archive_cut_anywhere_is_refused() {
    let whole = [file(TRAIN), file(TEST)].concat();
    let archive = compressed(&whole);
    for len in 0..archive.len() {
        refused(&archive[..len]);
    }
    // The archive is truncated before its compression. Only the final blocks of zeros are optional.
    for len in (0..whole.len()).step_by(100) {
        refused(&compressed(&whole[..len]));
    }
}
