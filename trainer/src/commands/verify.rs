//! `trainer verify`: whether a device computes what the reference computes.

use std::process::ExitCode;

use anyhow::Result;

use super::train::train;
use crate::config::VerifyConfig;
use crate::config::cli::VerifyArgs;
use crate::measure::report::ConsoleLook;
use crate::model::network::ResNetFamily;
use crate::tools::check::{self, Checked, Verdict};
use crate::tools::verify;
use crate::world::ranks::World;

/// Makes the checks. Returns 1 if one failed, else 0, also if all were skipped; the last line shows which.
///
/// # Errors
/// When there is more than one rank, flags contradict each other, the device does not exist, or the file cannot be
/// written.
pub fn verify(args: &VerifyArgs, world: &World) -> Result<ExitCode> {
    world.expect_one_process("verify")?;
    let config = VerifyConfig::resolve(args, &verify::names())?;
    if let Some(path) = &config.output {
        records::file::check_replaceable(path)?;
    }
    let look = ConsoleLook::of_stdout();
    let reporter = &world.reporter;
    let begin = |name: &str| reporter.note(&format!("checking {name} ..."));
    let end = |checked: &Checked| {
        reporter.notes(&checked.lines(look));
        reporter.note(&format!("               in {:.1} s", checked.seconds));
    };
    reporter.note(&check::header());
    let verification = verify::verify(&config, world, train::<ResNetFamily>, begin, end)?;
    let meanings = [
        "the device computes what the reference computes",
        "see the warnings",
        "do not train on this device",
    ];
    let about = verification.about();
    reporter.notes(&check::conclusion(
        "verify",
        &about,
        &verification.checks,
        meanings,
        look,
    ));
    if let Some(path) = &config.output {
        records::file::replace_json(path, &verification)?;
    }
    Ok(match verification.verdict {
        Verdict::Fail => ExitCode::FAILURE,
        Verdict::Skipped | Verdict::Ok | Verdict::Warn => ExitCode::SUCCESS,
    })
}
