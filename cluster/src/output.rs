//! What the commands print on standard output.
//!
//! In: text. Out: lines. Invariant: a reader who has left (`| head -1`) or a full disk ends no job; what a command was asked for is
//! written whole, or is an error.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

use crate::failure::{Failure, Outcome};

/// Prints a line of what goes on, as far as somebody reads it.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}
pub use say;

/// As [`say`].
pub fn line(text: Arguments<'_>) {
    let _ = io::stdout()
        .lock()
        .write_all(format!("{text}\n").as_bytes());
}

/// Prints what the command was asked for.
///
/// # Errors
/// When it cannot be written.
pub fn result(text: &str) -> Outcome {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    unless_reader_left(written)
        .map_err(|error| Failure::Failed(format!("standard output: {error}")))
}

/// A reader who has left has what he wanted.
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
