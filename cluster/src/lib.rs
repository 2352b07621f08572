//! Starts ranks: on this machine by mpirun, on several hosts, as jobs of Slurm, on emulated hosts.
//!
//! In: command lines; each command is a struct of flags with `run`. Out: processes, their files,
//! lines for the user.
//! Invariant: knows neither tensors nor MPI; a rank is a program, known by its path, its exit code
//! and its files.
#![allow(clippy::print_stderr, reason = "the commands print warnings")]
#![allow(
    rustdoc::invalid_html_tags,
    rustdoc::broken_intra_doc_links,
    reason = "comments of flags are texts of --help"
)]

pub mod cores;
pub mod failure;
pub mod guard;
pub mod hosts;
pub mod json;
mod launch;
pub mod mpirun;
pub mod options;
pub mod output;
pub mod probe;
pub mod process;
mod restart;
pub mod run_directory;
pub mod slurm;
pub mod words;

pub use hosts::HostsCommand;
pub use launch::LaunchArgs;
pub use slurm::{SlurmCommand, directory_of_run};
