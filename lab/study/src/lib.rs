//! Measures training: studies, and comparisons with other frameworks, on a quiet machine.
//!
//! In: command lines and study files; each command is a struct of flags with `run`. Out: programs
//! that run, their records.
//! Invariant: knows neither tensors nor MPI; a run is a program, known by its path, its exit code
//! and its files.
#![allow(clippy::print_stderr, reason = "the commands print warnings")]
#![allow(
    rustdoc::invalid_html_tags,
    rustdoc::broken_intra_doc_links,
    reason = "comments of flags are texts of --help"
)]

mod attempt;
mod cell;
mod changes;
mod command;
mod compare;
mod directory;
mod file;
mod job;
mod journal;
mod peers;
mod plan;
mod predict;
mod processes;
mod quiet;
mod runs;
mod scores;
mod session;
mod starts;

pub use command::StudyArgs;
pub use compare::CompareArgs;
