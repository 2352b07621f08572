//! A small disk for a run: a tmpfs that can be full or read-only.
//!
//! In: a folder. Out: [`Disk`]. Invariant: the mount ends with the value; a new mount replaces that
//! of an interrupted run. Source: mount(8), tmpfs(5).

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Checked, Stop};
use crate::at;
use crate::packages::{as_root, succeeds};

/// File that takes the free space.
const FILLER: &str = "filler";

/// A mounted tmpfs.
pub(crate) struct Disk {
    pub(crate) folder: PathBuf,
}

impl Disk {
    /// Mounts a disk; skips the check if this user cannot mount.
    pub(crate) fn mount(folder: &Path, options: &str) -> Checked<Self> {
        unmount(folder);
        fs::create_dir_all(folder).map_err(at(folder))?;
        let options = format!("{options},mode=0777");
        let mut command = as_root("mount");
        command.args(["-t", "tmpfs", "-o", &options, "lockstep-suite"]);
        if !succeeds(command.arg(folder)) {
            let text = "this user cannot mount a tmpfs";
            return Err(Stop::Skipped(text.to_owned()));
        }
        Ok(Disk {
            folder: folder.to_owned(),
        })
    }

    /// Changes mount options; fails for `ro` while a file is open for writing.
    pub(crate) fn remount(&self, options: &str) -> bool {
        let options = format!("remount,{options}");
        succeeds(as_root("mount").args(["-o", &options]).arg(&self.folder))
    }

    /// Takes all free space.
    pub(crate) fn fill(&self) -> Checked {
        let filler = self.folder.join(FILLER);
        let mut options = File::options();
        let opened = options.append(true).create(true).open(&filler);
        let mut file = opened.map_err(at(&filler))?;
        loop {
            match file.write_all(&[0; 4096]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(at(&filler)(error).into()),
            }
        }
    }

    /// Makes the disk writable again and frees the space that [`Disk::fill`] took.
    pub(crate) fn repair(&self) -> Checked {
        if !self.remount("rw") {
            return Err(format!("{}: cannot be remounted", self.folder.display()).into());
        }
        let filler = self.folder.join(FILLER);
        if filler.exists() {
            fs::remove_file(&filler).map_err(at(&filler))?;
        }
        Ok(())
    }

    /// Removes all files.
    pub(crate) fn clear(&self) -> Checked {
        for entry in fs::read_dir(&self.folder)
            .map_err(at(&self.folder))?
            .flatten()
        {
            let path = entry.path();
            if is_mounted(&path) {
                continue;
            }
            let removed = match path.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            removed.map_err(at(&path))?;
        }
        Ok(())
    }

    /// Copies the files to a folder that outlives the disk.
    pub(crate) fn copy_to(&self, folder: &Path) {
        succeeds(Command::new("cp").arg("-a").arg(&self.folder).arg(folder));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.folder);
    }
}

fn unmount(folder: &Path) {
    if is_mounted(folder) && !succeeds(as_root("umount").arg(folder)) {
        // A process still has a file open.
        succeeds(as_root("umount").arg("--lazy").arg(folder));
    }
}

fn is_mounted(folder: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let above = folder.parent().and_then(device);
    device(folder).is_some_and(|own| Some(own) != above)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_folder_is_not_mounted_and_proc_is() {
        assert!(!is_mounted(&std::env::temp_dir().join("no-such-folder")));
        assert!(is_mounted(Path::new("/proc")));
    }
}
