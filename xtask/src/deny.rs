//! `cargo deny`: licences, sources, versions and known faults of the crates that we depend on.
//!
//! In: `deny.toml`, the program cargo-deny, a network for the list of known faults. Out: the verdict of a stage.
//! Invariant: what cannot be checked here is said aloud, and the stage is not called passed.

use crate::cargo;
use crate::kernel_stages::Reason;
use cluster::failure::Outcome;
use cluster::probe;
use cluster::process;

/// Checks what can be checked here.
pub(crate) fn check() -> Result<Outcome, Reason> {
    if probe::program("cargo-deny").is_none() {
        return Err("no cargo-deny, `cargo install cargo-deny --locked` adds it".to_owned());
    }
    if let Err(failure) = process::run(cargo::command(&[
        "deny",
        "--locked",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ])) {
        return Ok(Err(failure));
    }
    if let Err(failure) = process::run(cargo::command(&["deny", "fetch", "db"])) {
        return Err(format!(
            "bans, licenses and sources are right, but advisories: their list cannot be fetched: {failure}"
        ));
    }
    Ok(process::run(cargo::command(&[
        "deny",
        "--locked",
        "check",
        "--hide-inclusion-graph",
        "advisories",
    ])))
}
