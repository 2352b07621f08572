//! `trainer predict-scaling`: predicts the speed of more ranks, and compares measured and published
//! figures.
//!
//! In: flags. Out: tables, a JSON file for each network. Invariant: an output that cannot be
//! written is rejected before the measurement.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use records::{PredictionFile, ProfileFile, PublishedFigure};
use serde::Serialize;
use simulate::{
    Measured, NamedNetwork, Scaling, forecast, forecast_lines, measured_lines, published_lines,
    read_measured, read_profiles,
};

use super::bench::print;
use crate::config::cli::PredictScalingArgs;
use crate::config::{BenchConfig, Family, ScalingConfig};
use crate::task::Task;
use crate::tools::bench::measure;
use crate::tools::predict_scaling::method;
use crate::world::ranks::World;

/// Divisor of the batch in the second step, which strong scaling needs.
const SECOND_BATCH: usize = 8;

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct All {
    predictions: Vec<PredictionFile>,
    measured: Vec<Measured>,
    published: Vec<PublishedFigure>,
}

/// Predicts and compares speeds, and prints the results.
///
/// # Errors
/// If flags contradict each other, there are several ranks, a file cannot be read or written, or a
/// step fails.
pub fn predict_scaling<T: Task>(args: &PredictScalingArgs, world: &World) -> Result<()> {
    let world_size = world.communicator.world_size();
    let config = ScalingConfig::resolve(args, &Family::of::<T>(), world_size)?;
    let published = if args.published {
        simulate::published_answers()?
    } else {
        Vec::new()
    };
    let predictions = match &config {
        Some(config) => predict::<T>(config, &published, world)?,
        None => Vec::new(),
    };
    let measured = match &args.measured {
        None => Vec::new(),
        Some(inputs) => read_measured(inputs, &predictions, |text| world.reporter.warn(text))?,
    };
    world.reporter.notes(&measured_lines(&measured));
    if args.published {
        world.reporter.notes(&published_lines(&published));
    }
    if args.json {
        world.reporter.json(&All {
            predictions,
            measured,
            published,
        })?;
    }
    Ok(())
}

/// Predicts for every network, and writes the output.
fn predict<T: Task>(
    config: &ScalingConfig,
    published: &[PublishedFigure],
    world: &World,
) -> Result<Vec<PredictionFile>> {
    let outputs: Vec<Option<PathBuf>> = config
        .networks
        .iter()
        .map(|network| output_path(config, network))
        .collect();
    outputs
        .iter()
        .flatten()
        .try_for_each(|path| records::file::check_replaceable(path))?;
    let profiles = profiles::<T>(config, world)?;
    let methods = config.methods.iter();
    let methods: Vec<_> = methods.map(|sync| method(sync, &profiles[0])).collect();
    let mut files = Vec::new();
    for (network, path) in config.networks.iter().zip(outputs) {
        let (mut file, left_out) =
            forecast(&profiles, network, &methods, &config.ranks, config.scaling)?;
        file.created = records::now();
        file.commit = env!("LOCKSTEP_COMMIT").to_owned();
        file.published = published.to_vec();
        world.reporter.notes(&forecast_lines(&file, &left_out));
        if let Some(path) = path {
            records::file::replace_json(&path, &file)?;
            world
                .reporter
                .note(&format!("predictions written to {}", path.display()));
        }
        files.push(file);
    }
    Ok(files)
}

/// Returns the file of `--output`, or one for each network: `scaling-10gbe.json` for
/// `scaling.json`.
fn output_path(config: &ScalingConfig, network: &NamedNetwork) -> Option<PathBuf> {
    let path = config.output.as_deref()?;
    if config.networks.len() == 1 {
        return Some(path.to_owned());
    }
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let name: String = network
        .name
        .chars()
        .map(|letter| if is_plain(letter) { letter } else { '_' })
        .collect();
    let stem = path
        .file_stem()
        .unwrap_or(Path::new("predictions").as_os_str())
        .to_string_lossy();
    let ending = path.extension().map_or(String::new(), |ending| {
        format!(".{}", ending.to_string_lossy())
    });
    Some(path.with_file_name(format!("{stem}-{name}{ending}")))
}

fn profiles<T: Task>(config: &ScalingConfig, world: &World) -> Result<Vec<ProfileFile>> {
    let Some(bench) = &config.bench else {
        return read_profiles(&config.profiles).context("--profile");
    };
    let mut profiles = vec![measured::<T>(bench, world)?];
    if config.scaling == Scaling::Strong && bench.batch_size_per_rank > 1 {
        let bench = BenchConfig {
            batch_size_per_rank: bench.batch_size_per_rank.div_ceil(SECOND_BATCH),
            ..bench.clone()
        };
        profiles.push(measured::<T>(&bench, world)?);
    }
    Ok(profiles)
}

fn measured<T: Task>(bench: &BenchConfig, world: &World) -> Result<ProfileFile> {
    let measurement =
        measure::<T>(bench, world)?.context("predict-scaling: the only rank measured nothing")?;
    print(&measurement, world);
    Ok(measurement.profile)
}
