//! The ranks of a job: how they are started, what each of them does, how they stop together.

#[cfg(feature = "kernel-cache")]
pub mod kernel_cache;
pub mod launch;
pub mod panics;
pub mod ranks;
pub mod roles;
pub mod stop;
pub(crate) mod switches;
