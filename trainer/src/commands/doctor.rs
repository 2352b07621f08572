//! `trainer doctor`: checks whether the resources of a job suffice for training.

use std::process::ExitCode;

use anyhow::Result;

use crate::config::DoctorConfig;
use crate::config::cli::DoctorArgs;
use crate::measure::report::ConsoleLook;
use crate::tools::check::Verdict;
use crate::tools::doctor;
use crate::world::ranks::World;

/// Checks the world, the machines, the data and the output directory. Returns 1 on all ranks if a
/// check failed, otherwise 0. If tasks form separate worlds, only the first task checks and prints.
/// Collective: all ranks.
///
/// # Errors
/// If flags contradict each other, or a collective fails.
pub fn doctor(args: &DoctorArgs, world: &World) -> Result<ExitCode> {
    let config = DoctorConfig::resolve(args)?;
    if doctor::is_follower_without_world(&*world.communicator) {
        // An error here could end the first task before it prints its report.
        return Ok(ExitCode::SUCCESS);
    }
    let watchdog = world.watch(config.timeout)?;
    let diagnosis = doctor::diagnose(doctor::examine(&config, world)?);
    world
        .reporter
        .notes(&diagnosis.lines(ConsoleLook::of_stdout()));
    if args.json {
        world.reporter.json(&diagnosis)?;
    }
    world.end_watch(watchdog)?;
    Ok(match diagnosis.verdict {
        Verdict::Fail => ExitCode::FAILURE,
        Verdict::Skipped | Verdict::Ok | Verdict::Warn => ExitCode::SUCCESS,
    })
}
