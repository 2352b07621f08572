//! `trainer doctor`: whether a job with these resources would train well, as one table.

use std::process::ExitCode;

use anyhow::Result;

use crate::config::DoctorConfig;
use crate::config::cli::DoctorArgs;
use crate::measure::report::ConsoleLook;
use crate::tools::doctor::{self, Verdict};
use crate::world::ranks::World;

/// Examines the world, the machines, the data and the output directory. Returns 1 on all ranks if a
/// check failed, else 0. Of tasks that are separate worlds only the first examines and prints.
/// Collective: all ranks.
///
/// # Errors
/// When flags contradict each other, or a collective fails.
pub fn doctor(args: &DoctorArgs, world: &World) -> Result<ExitCode> {
    let config = DoctorConfig::resolve(args)?;
    if doctor::stands_alone_beside_others(&*world.communicator) {
        // It could only repeat what the first task says; a failure here might end that one before
        // it has.
        return Ok(ExitCode::SUCCESS);
    }
    let watchdog = world.watch(config.timeout)?;
    let diagnosis = doctor::diagnose(doctor::examine(&config, world)?);
    world
        .reporter
        .notes(&doctor::lines(&diagnosis, ConsoleLook::of_stdout()));
    if config.json {
        world.reporter.json(&diagnosis)?;
    }
    world.end_watch(watchdog)?;
    Ok(if diagnosis.verdict == Verdict::Fail {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
