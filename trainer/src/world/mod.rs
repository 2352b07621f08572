//! The ranks of a job: how they start, their roles, how they stop together.

pub mod launch;
pub mod panics;
pub mod ranks;
pub mod stop;
pub(crate) mod switches;
