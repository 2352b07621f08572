//! Standard output of the commands.
//!
//! In: text. Out: lines. Invariant: a closed pipe (`| head -1`) or a full disk ends no job. The
//! result of a command is written completely, or is an error.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

use crate::failure::{Outcome, failed};

/// Prints a line of progress; errors are ignored.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}
pub use say;

/// Prints the line of [`say`].
pub fn line(text: Arguments<'_>) {
    let _ = io::stdout()
        .lock()
        .write_all(format!("{text}\n").as_bytes());
}

/// Prints the result of a command.
///
/// # Errors
/// The result cannot be written.
pub fn result(text: &str) -> Outcome {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    unless_reader_left(written).map_err(|error| failed!("standard output: {error}"))
}

/// Ignores a closed pipe: the reader has what it needs.
///
/// # Errors
/// All others.
pub fn unless_reader_left(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| {
        if error.kind() == ErrorKind::BrokenPipe {
            Ok(())
        } else {
            Err(error)
        }
    })
}
