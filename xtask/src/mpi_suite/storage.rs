//! Checks of runs on a disk that is full or read-only.
//!
//! In: a small mounted disk. Out: checks. Invariant: without the right to mount, they are skipped.

use std::fs;
use std::path::Path;

use crate::at;
use crate::suite::disk::Disk;
use crate::suite::{Check, Checked, Suite};

pub(super) const CHECKS: [Check; 2] = [
    (
        "a full disk ends all ranks with one message that names the file, and the checkpoints before it can be resumed",
        full_disk,
    ),
    (
        "a read-only output directory is refused before anything is trained",
        read_only_disk,
    ),
];

fn full_disk(suite: &Suite) -> Checked {
    // A checkpoint takes 600 KiB, so that the third does not fit.
    let disk = Disk::mount(&[&suite.folder.join("disk")], "size=1500k")?;
    let expected = suite.run("disk-undisturbed").trained_hash()?;
    let run = suite.run("disk-full").into(disk.folder().to_owned());
    let run = run.with("--checkpoint-every-steps 1 --keep-checkpoints 99");
    let ended = suite.finish(run.command()?, &run.name)?;
    ended.expect_code(1)?;
    ended.expect_text(&["No space left on device", "checkpoint of step"])?;
    ended.expect_one_message()?;
    let names = names(&run.folder.join("checkpoints"))?;
    ended.expect(
        names.iter().any(|name| name.starts_with("step-")),
        "an earlier checkpoint",
    )?;
    ended.expect(
        !names.iter().any(|name| name.ends_with(".unfinished")),
        "no unfinished checkpoint",
    )?;
    ended.expect(disk.remount("size=24m"), "a larger disk")?;
    let resumed = run.resume()?;
    let is_whole = !resumed.text().contains("skipped: ");
    resumed.expect(is_whole, "whole checkpoints only")?;
    run.expect_hash(&expected)
}

fn read_only_disk(suite: &Suite) -> Checked {
    let disk = Disk::mount(&[&suite.folder.join("read-only-disk")], "ro")?;
    let run = suite.run("read-only").into(disk.folder().to_owned());
    let ended = suite.finish(run.command()?, &run.name)?;
    ended.expect_code(1)?;
    ended.expect_text(&["Read-only file system", ".lock"])?;
    ended.expect(!ended.text().contains("epoch 1"), "no training")?;
    ended.expect(names(disk.folder())?.is_empty(), "an empty folder")
}

fn names(folder: &Path) -> Checked<Vec<String>> {
    let entries = fs::read_dir(folder).map_err(at(folder))?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.collect())
}
