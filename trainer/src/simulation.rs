//! The speed of many ranks, predicted from the step of this one.
//!
//! In: a measured step, the method, a network. Out: a table. Invariant: every line says that it is simulated.

use anyhow::{Result, bail};
use distributed::ReductionKind;
use distributed::simulate::{StepProfile, Synchronisation, predict};

use crate::config::{SimulationConfig, SyncConfig, SyncMethod};

/// One line a number of ranks.
///
/// # Errors
/// When the method cannot be simulated.
pub fn lines(profile: &StepProfile, sync: &SyncConfig, simulation: &SimulationConfig) -> Result<Vec<String>> {
    let synchronisation = synchronisation(sync)?;
    let mut lines = vec![format!(
        "simulated {} over {}, overlap {}: batch {} a rank, {:.1} ms of computing a step, {} of gradients",
        sync.method.kind(),
        simulation.network,
        if sync.overlap { "on" } else { "off" },
        profile.batch_size_per_rank,
        profile.compute_s() * 1e3,
        humanised(profile.buckets.iter().map(|bucket| bucket.bytes).sum()),
    )];
    for &ranks in &simulation.ranks {
        let prediction = predict(profile, synchronisation, &simulation.network, ranks, sync.overlap)?;
        lines.push(format!(
            "simulated {ranks:5} ranks | {:9.1} ms a step | exposed comm {:8.2} ms of {:8.2} | {:10.1} img/s | speedup {:7.2} | efficiency {:5.1} %",
            prediction.step_s * 1e3,
            prediction.exposed_s * 1e3,
            prediction.communication_s * 1e3,
            prediction.images_per_second,
            prediction.speedup,
            100.0 * prediction.efficiency,
        ));
    }
    Ok(lines)
}

fn synchronisation(sync: &SyncConfig) -> Result<Synchronisation> {
    Ok(match sync.method {
        SyncMethod::Allreduce { compression, .. } if compression.is_some() => {
            bail!("simulate-network: --compress {compression} is not simulated; leave it out")
        }
        SyncMethod::Allreduce { reduction, .. } => Synchronisation::AllReduce(reduction.into()),
        SyncMethod::Exact { .. } => Synchronisation::AllReduce(ReductionKind::Exact),
        SyncMethod::ParameterServer { servers, asynchronous: None, .. } => Synchronisation::ParameterServer { servers },
        SyncMethod::ParameterServer { .. } | SyncMethod::LocalSgd { .. } => {
            bail!(
                "simulate-network: --sync {} is not simulated, expected allreduce or parameter-server",
                sync.method.kind()
            )
        }
    })
}

fn humanised(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / (1 << 20) as f64)
}
