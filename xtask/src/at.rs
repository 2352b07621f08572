//! Errors of the file system, with the path at which they came.

use std::io;
use std::path::Path;

use cluster::failure::Failure;

pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::Failed(format!("{}: {error}", path.display()))
}
