//! Many processes: ranks on this machine or on several, jobs of Slurm, studies, comparisons with other frameworks.
//!
//! In: command lines; each command is a struct of flags with `run`. Out: programs that run, files, what a user reads.
//! Invariant: knows neither tensors nor MPI: a rank is a program, known by its path, its exit code and the files that it writes.
#![allow(clippy::print_stderr, reason = "the commands talk to who typed them")]
#![allow(
    rustdoc::invalid_html_tags,
    rustdoc::broken_intra_doc_links,
    reason = "comments of flags are texts of --help"
)]

mod compare;
pub mod cores;
mod environment;
pub mod failure;
pub mod guard;
pub mod hosts;
pub mod json;
mod launch;
mod machine;
pub mod mpirun;
pub mod options;
pub mod output;
pub mod probe;
pub mod process;
mod quiet;
mod restart;
mod run_directory;
mod slurm;
mod study;
mod surroundings;

pub use compare::CompareArgs;
pub use hosts::HostsCommand;
pub use launch::LaunchArgs;
pub use slurm::{SlurmCommand, directory_of_run};
pub use study::StudyArgs;
