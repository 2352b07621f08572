//! Small disks for a run: tmpfs mounts that can be full or read-only.
//!
//! In: folders. Out: [`Disk`]. Invariant: the mounts end with the value; new mounts replace those
//! of an interrupted run. Source: mount(8), tmpfs(5).

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Checked, Stop};
use crate::setup::{as_root, succeeds};
use crate::{at, entries};

/// File that takes the free space.
const FILLER: &str = "filler";

/// A mounted tmpfs, perhaps with another one in it.
pub(crate) struct Disk {
    /// Folders of the mounts, outermost first.
    folders: Vec<PathBuf>,
}

impl Disk {
    /// Mounts a disk in each folder, outermost first; skips the check if this user cannot mount.
    pub(crate) fn mount(folders: &[&Path], options: &str) -> Checked<Self> {
        let mut disk = Disk {
            folders: Vec::new(),
        };
        let options = format!("{options},mode=0777");
        for folder in folders {
            unmount(folder);
            fs::create_dir_all(folder).map_err(at(folder))?;
            let mut command = as_root("mount");
            command.args(["-t", "tmpfs", "-o", &options, "lockstep-suite"]);
            if !succeeds(command.arg(folder)) {
                let text = "this user cannot mount a tmpfs";
                return Err(Stop::Skipped(text.to_owned()));
            }
            disk.folders.push(folder.to_path_buf());
        }
        Ok(disk)
    }

    /// Returns the folder of the outermost mount.
    pub(crate) fn folder(&self) -> &Path {
        &self.folders[0]
    }

    /// Changes the options of the innermost mount; fails for `ro` while a file on it is open for
    /// writing.
    pub(crate) fn remount(&self, options: &str) -> bool {
        let innermost = self.folders.last();
        innermost.is_some_and(|folder| remount(folder, options))
    }

    /// Takes all free space.
    pub(crate) fn fill(&self) -> Checked {
        for folder in self.folders.iter().rev() {
            let filler = folder.join(FILLER);
            let opened = File::options().append(true).create(true).open(&filler);
            let mut file = opened.map_err(at(&filler))?;
            loop {
                match file.write_all(&[0; 4096]) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(at(&filler)(error).into()),
                }
            }
        }
        Ok(())
    }

    /// Makes the disk writable again and frees the space that [`Disk::fill`] took.
    pub(crate) fn repair(&self) -> Checked {
        for folder in self.folders.iter().rev() {
            if !remount(folder, "rw") {
                return Err(format!("{}: cannot be remounted", folder.display()).into());
            }
            let filler = folder.join(FILLER);
            if filler.exists() {
                fs::remove_file(&filler).map_err(at(&filler))?;
            }
        }
        Ok(())
    }

    /// Removes all files.
    pub(crate) fn clear(&self) -> Checked {
        for folder in self.folders.iter().rev() {
            for path in entries(folder)? {
                if !is_mounted(&path) {
                    let is_folder = path.is_dir();
                    let remove = if is_folder {
                        fs::remove_dir_all
                    } else {
                        fs::remove_file
                    };
                    remove(&path).map_err(at(&path))?;
                }
            }
        }
        Ok(())
    }

    /// Copies the files to a folder that outlives the disk.
    pub(crate) fn copy_to(&self, folder: &Path) {
        succeeds(Command::new("cp").arg("-a").arg(self.folder()).arg(folder));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.folders.iter().rev().for_each(|folder| unmount(folder));
    }
}

fn remount(folder: &Path, options: &str) -> bool {
    let options = format!("remount,{options}");
    succeeds(as_root("mount").args(["-o", &options]).arg(folder))
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
