//! The error of a command.
//!
//! Out: a message (problem, expected, got, remedy) and its exit code.

use std::fmt::{self, Display};
use std::path::Path;

/// The result of functions that can fail.
pub type Outcome<T = ()> = Result<T, Failure>;

/// The reason why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The command line is wrong.
    Usage(String),
    /// The command line is valid, but the work failed.
    Failed(String),
}

/// Makes a [`Failure::Usage`] of a format string and its arguments.
#[macro_export]
macro_rules! usage {
    ($($text:tt)*) => { $crate::failure::Failure::Usage(format!($($text)*)) };
}

/// Makes a [`Failure::Failed`] of a format string and its arguments.
#[macro_export]
macro_rules! failed {
    ($($text:tt)*) => { $crate::failure::Failure::Failed(format!($($text)*)) };
}
pub use {failed, usage};

/// Returns the function that adds the path to an error.
pub fn at<E: Display>(path: &Path) -> impl Fn(E) -> Failure {
    move |error| failed!("{}: {error}", path.display())
}

impl Failure {
    /// Returns 2 for a wrong command line, 1 for failed work.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Failed(_) => 1,
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) | Failure::Failed(text) => f.write_str(text),
        }
    }
}
