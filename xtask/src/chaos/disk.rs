//! A small disk for a run, and what can be wrong with it.
//!
//! In: a folder. Out: [`Disk`]: a tmpfs for the run, and one inside for its checkpoints, as a disk with files that are being written
//! cannot turn read-only. Invariant: both are gone when it is dropped, also those of an interrupted run when the next one is made.
//! Source: mount(8), tmpfs(5).

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packages::{self, Privilege, succeeds};

/// Several times what a run writes.
const SIZE: &str = "size=24m";
/// What takes the space that is left.
const FILLER: &str = "filler";

/// Two mounted disks.
pub(crate) struct Disk {
    pub(super) folder: PathBuf,
    checkpoints: PathBuf,
}

impl Disk {
    /// Mounts them, or says why this user cannot.
    pub(super) fn mount(folder: &Path) -> Result<Self, String> {
        Self::unmount(folder);
        let disk = Disk {
            folder: folder.to_owned(),
            checkpoints: folder.join("checkpoints"),
        };
        for place in [&disk.folder, &disk.checkpoints] {
            fs::create_dir_all(place).map_err(|error| format!("{}: {error}", place.display()))?;
            let mut command = as_root("mount");
            command
                .args([
                    "-t",
                    "tmpfs",
                    "-o",
                    &format!("{SIZE},mode=0777"),
                    "lockstep-chaos",
                ])
                .arg(place);
            let output = command
                .output()
                .map_err(|error| format!("mount: {error}"))?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
            }
        }
        Ok(disk)
    }

    /// Unmounts what is mounted there.
    pub(super) fn unmount(folder: &Path) {
        for place in [&folder.join("checkpoints"), folder] {
            if is_mounted(place) && !succeeds(as_root("umount").arg(place)) {
                // Somebody still has a file of it open.
                succeeds(as_root("umount").arg("--lazy").arg(place));
            }
        }
    }

    /// Takes all the space that is left.
    pub(super) fn fill(&self) -> Result<(), String> {
        for place in [&self.checkpoints, &self.folder] {
            let filler = place.join(FILLER);
            let failed = |error| format!("{}: {error}", filler.display());
            let mut file = File::options()
                .append(true)
                .create(true)
                .open(&filler)
                .map_err(failed)?;
            let page = [0_u8; 4096];
            loop {
                match file.write_all(&page) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(failed(error)),
                }
            }
        }
        Ok(())
    }

    /// Makes the checkpoints read-only; refused while one of their files is being written.
    pub(super) fn freeze(&self) -> bool {
        succeeds(
            as_root("mount")
                .args(["-o", "remount,ro"])
                .arg(&self.checkpoints),
        )
    }

    /// Makes the space free again and the checkpoints writable.
    pub(super) fn mend(&self) -> Result<(), String> {
        if !succeeds(
            as_root("mount")
                .args(["-o", "remount,rw"])
                .arg(&self.checkpoints),
        ) {
            return Err(format!(
                "{}: cannot be mounted for writing again",
                self.checkpoints.display()
            ));
        }
        for place in [&self.checkpoints, &self.folder] {
            let filler = place.join(FILLER);
            if filler.exists() {
                fs::remove_file(&filler)
                    .map_err(|error| format!("{}: {error}", filler.display()))?;
            }
        }
        Ok(())
    }

    /// Removes what a run wrote.
    pub(super) fn clear(&self) -> Result<(), String> {
        for place in [&self.checkpoints, &self.folder] {
            for entry in fs::read_dir(place)
                .map_err(|error| format!("{}: {error}", place.display()))?
                .flatten()
            {
                let path = entry.path();
                if path == self.checkpoints {
                    continue;
                }
                let removed = if path.is_dir() {
                    fs::remove_dir_all(&path)
                } else {
                    fs::remove_file(&path)
                };
                removed.map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Copies what a run wrote to a place that stays.
    pub(super) fn keep(&self, copy: &Path) {
        succeeds(Command::new("cp").arg("-a").arg(&self.folder).arg(copy));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Self::unmount(&self.folder);
    }
}

fn is_mounted(place: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let above = place.parent().and_then(device);
    device(place).is_some_and(|own| Some(own) != above)
}

fn as_root(program: &str) -> Command {
    packages::as_root(program, Privilege::find())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_folder_is_no_disk_and_the_kernels_view_of_processes_is_one() {
        assert!(!is_mounted(
            &std::env::temp_dir().join("no-such-folder-here")
        ));
        assert!(is_mounted(Path::new("/proc")));
    }
}
