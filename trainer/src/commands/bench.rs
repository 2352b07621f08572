//! `trainer bench`: measures the speed of a training step on random pixels.
//!
//! In: flags. Out: images/s over all ranks, step times, memory; a file with the step; a prediction
//! for more ranks.
//! Invariant: an output that cannot be written is rejected before the measurement.

use anyhow::Result;
use records::counted;
use simulate::{Scaling, forecast, forecast_lines};

use super::output;
use crate::config::cli::BenchArgs;
use crate::config::{BenchConfig, Family};
use crate::measure::report::lines;
use crate::run::identity;
use crate::task::Task;
use crate::tools::bench::{Measurement, measure};
use crate::tools::predict_scaling::method;
use crate::world::ranks::World;

/// Measures training steps. Collective: all ranks.
///
/// # Errors
/// If flags contradict each other or differ between ranks, the profile cannot be written, or a step
/// fails.
pub fn bench<T: Task>(args: &BenchArgs, world: &World) -> Result<()> {
    let config = BenchConfig::resolve(args, &Family::of::<T>(), world.communicator.world_size())?;
    let watchdog = world.watch(config.sync.timeout())?;
    identity::compare(config.shared_settings(), &*world.communicator)?;
    let profile_output = output("--profile-output", args.profile_output.as_ref(), world)?;
    let Some(mut measurement) = measure::<T>(&config, world)? else {
        return world.end_watch(watchdog);
    };
    measurement.add_alone();
    print(&measurement, world);
    let Measurement {
        result, profile, ..
    } = &measurement;
    if let Some(path) = &profile_output {
        records::file::replace_json(path, profile)?;
        world.reporter.note(&format!(
            "step written to {}, for predict-scaling --profile",
            path.display()
        ));
    }
    if let Some(simulation) = config.simulation.as_ref().filter(|_| world.is_root()) {
        let (file, left_out) = forecast(
            std::slice::from_ref(profile),
            &simulation.network,
            &[method(&config.sync, profile)],
            &simulation.ranks,
            Scaling::Weak,
        )?;
        world.reporter.notes(&forecast_lines(&file, &left_out));
    }
    if args.json {
        world.reporter.json(result)?;
    }
    world.end_watch(watchdog)
}

/// Prints the measurement.
pub(super) fn print(
    Measurement {
        result,
        stats,
        own_seconds,
        ..
    }: &Measurement,
    world: &World,
) {
    world.reporter.note(&format!(
        "{} {} on {} x {}, batch {} a rank{}, {} after {} of warm-up:",
        result.model,
        result.device,
        counted(result.ranks, "rank"),
        counted(result.threads, "thread"),
        result.batch_size_per_rank,
        result
            .grad_accum_steps
            .map_or(String::new(), |passes| format!(" x {passes} passes")),
        counted(result.steps, "step"),
        result.warmup_steps
    ));
    world.reporter.speed(stats, result.peak_memory_bytes);
    world
        .reporter
        .notes(&lines::step_parts(*own_seconds, result));
    if let Some(kernels) = &result.device_kernels {
        world.reporter.notes(&lines::device_kernels(kernels));
    }
}
