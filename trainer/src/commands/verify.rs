//! `trainer verify`: compares the results of a device with reference results.

use std::process::ExitCode;

use anyhow::Result;

use super::output;
use super::train::train;
use crate::config::cli::VerifyArgs;
use crate::config::{Family, invalid};
use crate::measure::report::ConsoleLook;
use crate::model::network::NetworkFamily;
use crate::task::Classification;
use crate::tools::check::{self, Checked, Verdict};
use crate::tools::verify;
use crate::world::ranks::World;

/// Runs the checks. Returns 1 if a check failed, otherwise 0. The last line counts skipped checks.
///
/// # Errors
/// If flags contradict each other, the device does not exist, or the file cannot be written.
pub fn verify(args: &VerifyArgs, world: &World) -> Result<ExitCode> {
    let names = verify::names();
    for name in args.only.iter().flatten() {
        if !names.contains(&name.as_str()) {
            return Err(invalid("--only", format!("some of {}", names.join(",")), name).into());
        }
    }
    if let Some(folder) = args.data_dir.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(invalid("--data-dir", "a folder", folder.display()).into());
    }
    let compute = args.compute.decide_for(&Family::BUILT_IN)?;
    let output = output("--output", args.output.as_ref(), world)?;
    let look = ConsoleLook::of_stdout();
    let reporter = &world.reporter;
    let begin = |name: &str| reporter.note(&format!("checking {name} ..."));
    let end = |checked: &Checked| {
        reporter.notes(&checked.lines(look));
        reporter.note(&format!("               in {:.1} s", checked.seconds));
    };
    reporter.note(&check::header());
    let verification = verify::verify(
        args,
        compute,
        world,
        train::<Classification<NetworkFamily>>,
        begin,
        end,
    )?;
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
    if let Some(path) = &output {
        records::file::replace_json(path, &verification)?;
    }
    Ok(match verification.verdict {
        Verdict::Fail => ExitCode::FAILURE,
        Verdict::Skipped | Verdict::Ok | Verdict::Warn => ExitCode::SUCCESS,
    })
}
