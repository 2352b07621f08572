//! `trainer verify`: whether a device computes what the reference computes, as one table.

use std::process::ExitCode;

use anyhow::Result;

use super::train::train;
use crate::config::VerifyConfig;
use crate::config::cli::VerifyArgs;
use crate::model::network::ResNetFamily;
use crate::tools::verify::{self, Check, Verdict};
use crate::world::ranks::World;

/// Makes the checks. Returns 1 if one failed, else 0, also if all were skipped; the last line
/// reports which.
///
/// # Errors
/// When there is more than one rank, flags contradict each other, the device is not there, or the
/// file cannot be written.
pub fn verify(args: &VerifyArgs, world: &World) -> Result<ExitCode> {
    world.expect_one_process("verify")?;
    let config = VerifyConfig::resolve(args, &verify::names())?;
    if let Some(path) = &config.output {
        records::file::check_replaceable(path)?;
    }
    let begins = |name: &str| world.reporter.note(&format!("checking {name} ..."));
    let ended = |check: &Check| world.reporter.notes(&verify::rows(check));
    world.reporter.note(&verify::heading());
    let verification = verify::verify(&config, world, train::<ResNetFamily>, (begins, ended))?;
    world.reporter.note(&verify::conclusion(&verification));
    if let Some(path) = &config.output {
        records::file::replace_json(path, &verification)?;
    }
    Ok(if verification.verdict == Verdict::Failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
