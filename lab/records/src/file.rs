//! Opens and reads files, if they are files.
//!
//! In: a path. Out: the file, its bytes or its text. Invariant: never waits for the writer of a named pipe, never reads on without end,
//! as from a device.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Opens a regular file.
///
/// # Errors
/// When it is something else; I/O errors.
pub fn open(path: &Path) -> io::Result<File> {
    // Asked before it is opened, since opening a named pipe already waits.
    if !fs::metadata(path)?.is_file() {
        let problem =
            "expected a regular file, got a folder, pipe or device; write its contents to a file";
        return Err(io::Error::new(ErrorKind::InvalidInput, problem));
    }
    File::open(path)
}

/// The bytes of a regular file.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a regular file.
///
/// # Errors
/// As [`open`]; when it is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    io::read_to_string(open(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_file_is_read_and_what_is_none_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let [file, pipe] = ["file", "pipe"].map(|name| folder.path().join(name));
        fs::write(&file, "text").unwrap();
        assert_eq!(
            (read(&file).unwrap(), read_to_string(&file).unwrap()),
            (b"text".to_vec(), "text".to_owned())
        );
        assert_eq!(
            read(&folder.path().join("none")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        let mut others = vec![folder.path().to_owned()];
        if cfg!(unix) {
            assert!(
                Command::new("mkfifo")
                    .arg(&pipe)
                    .status()
                    .unwrap()
                    .success()
            );
            others.extend([pipe, "/dev/zero".into()]);
        }
        for other in others {
            let error = read_to_string(&other).unwrap_err().to_string();
            assert!(
                error.starts_with("expected a regular file, got"),
                "{}: {error}",
                other.display()
            );
        }
    }
}
