//! Checks of what a run does when its disk fails it: full, or read-only.
//!
//! In: the program, a small disk of its own (a tmpfs in a mount namespace). Out: checks.
//! Invariant: the mount is seen by the run alone and gone with it; where namespaces are not allowed that is said aloud.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Suite;
use crate::suite::launcher::Launcher;
use crate::suite::run::{Run, arguments, instead};
use crate::suite::{Check, check};
use cluster::mpirun;
use cluster::process;

pub(super) const CHECKS: [Check<Suite>; 2] = [
    check(
        "a full disk ends all ranks with one message that names the file, and the checkpoints before it go on",
        full_disk,
    ),
    check(
        "a read-only output directory is refused before anything is trained",
        read_only_disk,
    ),
];

const LIMIT_S: u64 = 300;

fn full_disk(suite: &Suite) -> Result<(), String> {
    let undisturbed = Run::new(suite, "disk-undisturbed");
    undisturbed.train(suite, 2, 1, &[])?;
    let run = Run::new(suite, "disk-full");
    // A checkpoint takes 600 KiB, so that the third does not fit.
    let Some(disk) = Disk::new(suite, "disk", "size=1500k")? else {
        return Ok(());
    };
    let every_step = ["--checkpoint-every-steps", "1", "--keep-checkpoints", "99"];
    let words = instead(arguments(&disk.folder, 1), &every_step);
    let ended = suite.finish(
        disk.command(suite, &words, &run.folder)?,
        &run.name,
        LIMIT_S,
    )?;
    ended.expect(ended.finished.code == Some(1), "exit code 1")?;
    let text = &ended.finished.text;
    ended.expect(
        text.contains("No space left on device") && text.contains("checkpoint of step"),
        "the step and the reason",
    )?;
    ended.expect(text.matches("error (rank").count() == 1, "one message")?;
    let names = names(&run.folder.join("checkpoints"))?;
    ended.expect(
        names.iter().any(|name| name.starts_with("step-")),
        "a checkpoint from before",
    )?;
    ended.expect(
        !names.iter().any(|name| name.ends_with(".unfinished")),
        "no unfinished checkpoint",
    )?;
    let resumed = run.train(suite, 2, 1, &["--resume"])?;
    ended.expect(
        !resumed.finished.text.contains("passed over"),
        "whole checkpoints only",
    )?;
    let (expected, got) = (undisturbed.parameter_hash()?, run.parameter_hash()?);
    resumed.expect(
        expected == got,
        &format!("parameter hash {expected}, not {got}"),
    )
}

fn read_only_disk(suite: &Suite) -> Result<(), String> {
    let Some(disk) = Disk::new(suite, "read-only-disk", "ro")? else {
        return Ok(());
    };
    let copy = suite.folder.join("read-only-copy");
    let ended = suite.finish(
        disk.command(suite, &arguments(&disk.folder, 1), &copy)?,
        "read-only",
        LIMIT_S,
    )?;
    ended.expect(ended.finished.code == Some(1), "exit code 1")?;
    let text = &ended.finished.text;
    ended.expect(
        text.contains("Read-only file system") && text.contains(".lock"),
        "the file and the reason",
    )?;
    ended.expect(!text.contains("epoch 00"), "no training")?;
    ended.expect(names(&copy)?.is_empty(), "nothing written")
}

/// A disk for one command.
struct Disk {
    folder: PathBuf,
    options: &'static str,
}

impl Disk {
    /// `None` where this user may not mount, which is said.
    fn new(suite: &Suite, name: &str, options: &'static str) -> Result<Option<Self>, String> {
        let folder = suite.folder.join(name);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let can_mount = process::answer("unshare", &[namespace(), &["true"]].concat()).is_some();
        if !can_mount {
            println!("skipped: no mount namespaces for this user, so no small disk");
        }
        Ok(can_mount.then_some(Self { folder, options }))
    }

    /// Two ranks on the disk, whose files are copied to `copy` when they have ended.
    fn command(&self, suite: &Suite, words: &[String], copy: &Path) -> Result<Command, String> {
        let ranks = suite.on_ranks(2, &suite.trainer, words)?;
        let (folder, copy) = (self.folder.display(), copy.display());
        let script = format!(
            "mount -t tmpfs -o {} tmpfs '{folder}' || exit 99; {}; code=$?; mkdir -p '{copy}' && cp -a '{folder}/.' '{copy}' || exit 98; exit $code",
            self.options,
            process::shown(&ranks),
        );
        let mut command = Command::new("unshare");
        command.args(namespace()).args(["sh", "-c", &script]);
        mpirun::forget_surrounding_job(&mut command);
        Ok(command)
    }
}

fn namespace() -> &'static [&'static str] {
    match process::is_root() {
        true => &["--mount", "--propagation", "private"],
        false => &["--user", "--map-root-user", "--mount"],
    }
}

fn names(folder: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect())
}
