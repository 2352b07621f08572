//! How a command ends badly.
//!
//! Out: a message (what failed, expected, got, remedy) and the exit code that belongs to it.

use std::fmt;

/// The result of everything in this crate that can fail.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// The command line is wrong.
    Usage(String),
    /// The command line is right, the work failed.
    Failed(String),
}

impl Failure {
    /// 2 for a wrong command line, 1 for work that failed.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Failed(_) => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) | Failure::Failed(text) => f.write_str(text),
        }
    }
}
